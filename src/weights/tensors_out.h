/* Writes tensors from a store into safetensors files, one block after the other, in pieces: no tensor is ever copied whole. The caller
 * says when a block is due, and may let it be updated as soon as it has been written. */
#ifndef RH_WEIGHTS_TENSORS_OUT_H
#define RH_WEIGHTS_TENSORS_OUT_H

#include "weights/tensors.h"
#include "weights/write_ring.h"

struct rh_tensors_out;

/* One file. Takes the list's content, also on failure; model and store are borrowed until commit or abandon. */
int rh_tensors_out_open(const char *path, struct rh_tensor_list *list, const struct rh_model *model, struct rh_store *store,
                        struct rh_tensors_out **out) RH_MUST;
/* model*.safetensors of a Hugging Face directory, in the model's dtype; with what `source`, which may be NULL, has beside the model, as it
 * is. */
int rh_tensors_out_open_model(const char *dir, const struct rh_source *source, const struct rh_model *model, struct rh_store *store,
                              struct rh_tensors_out **out) RH_MUST;
/* From now on bytes go through the ring to the files. All files of a checkpoint share one ring, which is borrowed until commit or
 * abandon and cleared then. NULL: bytes go to the files directly. */
void rh_tensors_out_through(struct rh_tensors_out *out, struct rh_write_ring *ring);
/* Writes, or leaves in the ring, what is not yet written of blocks 0 to `block`. */
int rh_tensors_out_block(struct rh_tensors_out *out, int block) RH_MUST;
/* Writes what is left. Files appear whole, or not at all. Frees either way. */
int rh_tensors_out_commit(struct rh_tensors_out *out) RH_MUST;
/* Nothing appears. NULL is legal. */
void rh_tensors_out_abandon(struct rh_tensors_out *out);

/* config.json of such a directory. */
int rh_weights_config_save(const char *dir, const struct rh_model *model) RH_MUST;
/* All of it at once: config.json and model*.safetensors. */
int rh_weights_save(const char *dir, const struct rh_source *source, const struct rh_model *model, struct rh_store *store) RH_MUST;

#endif
