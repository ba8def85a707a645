/* What attention.c lends to another mixer that attends (latent.c): the op itself, of queries, keys and values that are ready, and the keys
 * and values that a layer carries. */
#ifndef RH_MODEL_ATTENTION_H
#define RH_MODEL_ATTENTION_H

#include "model/half.h"

/* Tensors of such a mixer, beside its linears': norms of what becomes queries and keys, and a logit for each head. */
enum { ATTENTION_Q_NORM, ATTENTION_K_NORM, ATTENTION_SINKS };

/* (T,heads*D), (T,kv_heads*D) and (T,kv_heads*D); or their gradients. */
struct attention_parts {
	struct rh_view q, k, v;
};

struct rh_carried attention_carries(const struct rh_layer *layer);
/* Keys and values join those that the layer carries, and attention reads all. */
void attention_forward(struct rh_emit *emit, int layer, struct attention_parts in, struct rh_view o, struct rh_view lse);
/* Gradients `out` of d_o, of what the forward made. */
struct attention_made {
	struct rh_view o, lse;
};
void attention_backward(struct rh_emit *emit, int layer, struct attention_made made, struct rh_view d_o, struct attention_parts in,
                        struct attention_parts out);
/* In a backward slot: keys and values of a chunk join those that the layer carries, and their gradients are cleared. */
void attention_carry(struct rh_emit *emit, int layer, struct attention_parts in);

#endif
