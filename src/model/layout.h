/* Inside model/: how tensors are placed in a block while a model is laid out. After a fault each function does nothing. */
#ifndef RH_MODEL_LAYOUT_H
#define RH_MODEL_LAYOUT_H

#include "model/model_internal.h"

enum { LAYOUT_NAME_BYTES = 192 };

/* Collects a block's tensors. */
struct layout {
	struct rh_block *block;
	const char *prefix;  /* of its tensors' names */
	float deviation;     /* of weights at random */
	int joins;           /* the next tensor, with the one before it */
	int capacity, fault; /* most: tensors */
};

/* Where the next tensor may begin; tensors that follow without it lie back to back. */
void layout_align(struct layout *at);
/* The tensor "<prefix><module>.<kind>", or without a kind "<prefix><module>"; returns its number. Those of rank 1 are norms and biases: no
 * weight decay. */
int layout_place(struct layout *at, const char *module, const char *kind, int rank, int64_t rows, int64_t cols);
/* A matrix that products read in any form: emit_matrix. */
int layout_place_matrix(struct layout *at, const char *module, const char *kind, int64_t rows, int64_t cols);
/* Aligned, in no matrix's decay, zeros. */
int layout_place_bias(struct layout *at, const char *module, const char *kind, int rank, int64_t rows, int64_t cols);
/* A norm's weight, and behind it the bias of a LayerNorm. */
int layout_place_norm(struct layout *at, const char *module, enum rh_norm_kind kind, int64_t length);
/* A and B of a linear's adapter, of `count` experts one under another, which are then one tensor each in the files. */
void layout_place_adapter(struct layout *at, const char *module, struct rh_linear *linear, int64_t count, double scale);

/* Sets the lengths of linear `proj` (enum rh_proj) of a layer. joins: one product makes it together with the linear before it, of the same
 * input, and a module that the family has no name for is part of that one. */
void layout_size(const struct rh_model_config *config, struct rh_layer *layer, int proj, int64_t inputs, int64_t outputs, int joins);
/* Places the weights, or the biases that the configuration has, of `count` linears; what joins lies back to back. attention_bias is about
 * any mixer's first three linears, attention_output_bias about its fourth, mlp_bias about all others. */
void layout_weights(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, int first, int count);
void layout_biases(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, int first, int count);

#endif
