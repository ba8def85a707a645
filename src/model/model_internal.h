/* layout.c: fills in a model's layers and blocks, its tensors and where they lie. */
#ifndef RH_MODEL_MODEL_INTERNAL_H
#define RH_MODEL_MODEL_INTERNAL_H

#include "model/model.h"

enum {
	MODEL_TENSORS = 32, /* of a block without experts, at most */
	MODEL_GAP = 64      /* elements: a matrix begins at a multiple, 256 bytes of F32, 128 of bf16 */
};

/* The number of layers: none has a trainable block. */
int model_lowest_trained(const struct rh_model *model);
/* How many tensors are the matrix that begins with this one. */
int block_matrix_tensors(const struct rh_block *block, int first);
/* scaled.c: sets may_feed of linears' tensors, where the model multiplies in 8 bits. */
void model_mark_eight(struct rh_model *model);
int model_lay_out(struct rh_model *model, const struct rh_lora_config *lora) RH_MUST;

#endif
