/* A table of layers, written by hand from published measurements or printed by a profile:
 *
 *   tokens: 8192            # of the micro-batch that was timed
 *   hop_ms: 1.6             # one boundary activation from device to device
 *   first_trained: 1        # layers below it have no backward; 0 if absent
 *   layers:                 # bottom up
 *     - {count: 28, forward_ms: 7.429, backward_ms: 15.831}
 *     - {forward_ms: 22.066, backward_ms: 43.707, recompute_ms: 0}
 *
 * Of a layer: forward_ms, backward_ms (without recompute), or forward_flops, backward_flops; recompute_ms (absent: as forward),
 * weight_gradient_ms (absent: half of backward), recompute_spared_ms, and *_bytes as struct rh_layer_cost names them (absent: 0). */
#ifndef RH_CONFIG_LAYER_TABLE_H
#define RH_CONFIG_LAYER_TABLE_H

#include "core/error.h"

#include <stdint.h>

enum { RH_LAYER_TABLE_MOST = 4096 }; /* layers in all */

struct rh_layer_entry {
	int number; /* in the file, from 1 */
	int64_t count;
	double forward_ms, recompute_ms, recompute_spared_ms, backward_ms, weight_gradient_ms; /* -1: absent; spared: 0 */
	double forward_flops, backward_flops;
	int64_t upload_bytes, gradient_bytes, optimizer_bytes, saved_bytes, boundary_bytes, forward_workspace_bytes,
	        backward_workspace_bytes;
};

struct rh_layer_table {
	char *name; /* of the file */
	int64_t tokens, first_trained;
	double hop_ms;
	struct rh_layer_entry *entry;
	size_t entries, capacity;
};

/* One YAML document. -EINVAL with file, line and what is wrong: unknown keys, negative or missing numbers, more than
 * RH_LAYER_TABLE_MOST layers. *out is freed with rh_layer_table_free. */
int rh_layer_table_parse(const char *bytes, size_t length, const char *path, struct rh_layer_table *out) RH_MUST;
int rh_layer_table_read(const char *path, struct rh_layer_table *out) RH_MUST;
void rh_layer_table_free(struct rh_layer_table *table);

#endif
