/* A training experiment described by measured layer times, without a model at hand; and another system's measured results with it. One
 * YAML file:
 *
 *   name: Llama-3.1-8B, all weights
 *   layers: llama-3.1-8b-layers.yaml     # beside this file (config/layer_table.h); the topmost is the head
 *   device: NVIDIA GeForce RTX 4090      # on which they were timed
 *   batch: 256                           # sequences of a step
 *   sequence_length: 2048
 *   hidden_size: 4096
 *   parameters: {block: 218112000, head: 525340672, embedding: 525336576}
 *   trained: {block: 70000000, head: 0, embedding: 0}      # absent: all of them
 *   saved_bytes_per_token: 130KiB        # of a block, kept from recompute to backward
 *   block: {intermediate_size: 14336, attention_heads: 32, key_value_heads: 8, head_dim: 128}  # absent: none of it is told apart
 *                                        # and experts: 32, experts_per_token: 4, each of intermediate_size;
 *                                        # window: 128, window_every: 2, keys that each second one's queries see
 *   fixed_ms: {forward: 6.0, backward: 23.0}   # of a block's times: what does not grow with the micro-batch
 *   published:
 *     source: arXiv 2604.27085
 *     system: roundpipe.yaml             # beside this file: struct rh_peer
 *     async: {rounds: 2, round_micro_batches: 10, tokens_per_s: 24275}
 *     sync: {rounds: 5, round_micro_batches: 10, tokens_per_s: 18888}
 *     one_device_tokens_per_s: 3142
 *     longest_sequence: 50176
 *     exception: why its figures are not those of its own layer times
 *     bubbles:                           # its simulator's table: flushed, in percent
 *       micro_batches: 16
 *       rounds: 2
 *       devices: 8
 *       roundpipe: {percent: 14.28, forward: 4x5 2x6, backward: 16x2}      # stages x blocks in each, in their order of running
 *       gpipe: {percent: 42.08, stages: 8x4}                               # bottom up; the head goes with the last
 *       ...
 */
#ifndef RH_CONFIG_EXPERIMENT_H
#define RH_CONFIG_EXPERIMENT_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

/* How another system moves its bytes, and what its box gave it. Bytes a trained parameter unless said otherwise. */
struct rh_peer {
	char *name, *source;
	double link_bytes_per_s, host_bytes_per_s; /* a device's link, one way; the host's memory, for copies and update together */
	double weight_bytes;                       /* any parameter: held for upload, and sent up for each pass of each round */
	double gradient_bytes;                     /* down after each round, and up before each but the first */
	double held_bytes;                         /* on the host, in all */
	double taken_bytes, updated_bytes, published_bytes; /* moved in host memory by its update's three parts */
};

struct rh_published_run {
	int64_t rounds, round_micro_batches; /* 0: not published */
	double tokens_per_s;
};

enum rh_bubble_row { RH_BUBBLE_ROUNDPIPE, RH_BUBBLE_LOOPED, RH_BUBBLE_INTERLEAVED, RH_BUBBLE_GPIPE, RH_BUBBLE_1F1B, RH_BUBBLE_ROWS };
/* "roundpipe", "looped-bfs", ...: as schedules are named. */
const char *rh_bubble_row_name(enum rh_bubble_row row);

enum { RH_EXPERIMENT_STAGES_MOST = 512 };
/* Blocks in each stage. */
struct rh_stage_sizes {
	int count;
	int size[RH_EXPERIMENT_STAGES_MOST];
};

struct rh_bubble {
	double percent;                         /* 0: not published */
	struct rh_stage_sizes stages, backward; /* roundpipe: stages are the forward ones; the others have one kind */
};

struct rh_experiment {
	char *name, *layers, *device; /* layers: the path to read */
	int64_t batch, sequence_length, hidden_size;
	struct rh_experiment_parameters {
		double block, head, embedding;
	} parameters, trained;
	int64_t saved_bytes_per_token;
	struct rh_experiment_block {
		int64_t intermediate_size, attention_heads, key_value_heads, head_dim; /* 0: not said */
		int64_t experts, experts_per_token;                                    /* 0: one MLP */
		int64_t window, window_every;                                          /* 0: all keys */
	} block;
	double fixed_forward_ms, fixed_backward_ms;

	char *source, *exception, *system; /* of what was published; system: the path, NULL: nothing was */
	struct rh_published_run async, sync;
	double one_device_tokens_per_s;
	int64_t longest_sequence;
	int64_t bubble_micro_batches, bubble_rounds, bubble_devices;
	struct rh_bubble bubble[RH_BUBBLE_ROWS];
};

/* -EINVAL with file, line and what is wrong. *out is freed with rh_experiment_free. */
int rh_experiment_parse(const char *bytes, size_t length, const char *path, struct rh_experiment *out) RH_MUST;
int rh_experiment_read(const char *path, struct rh_experiment *out) RH_MUST;
void rh_experiment_free(struct rh_experiment *experiment);

/* 1: the file is there and is an experiment (it has `layers` and `batch`); 0: anything else. */
int rh_experiment_is(const char *path);

int rh_peer_read(const char *path, struct rh_peer *out) RH_MUST;
void rh_peer_free(struct rh_peer *peer);

#endif
