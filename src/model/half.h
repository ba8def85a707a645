/* A transformer layer has two halves, a mixer of tokens and an MLP, which join the residual in one of three ways (block.c). A kind of half
 * is a row of functions in a file of its own; its name stands in the lists of traits.h. It numbers its tensors (rh_layer's `own`) and the
 * activations that it keeps (rh_saved's `own`) itself. Its linears are its part of rh_layer's `proj`: their weights, adapters, kept
 * activations and deferred gradients are as of any linear. */
#ifndef RH_MODEL_HALF_H
#define RH_MODEL_HALF_H

#include "model/emit_internal.h"
#include "model/layout.h"

/* An activation that a layer's backward reads. */
struct emit_activation {
	struct rh_view *view; /* where the backward finds it */
	enum rh_dtype dtype;
	int64_t rows, cols;
	int is_deferred; /* an operand of a weight gradient that is deferred: it is kept for as long */
};
/* Those of a layer, in the order in which they are declared. */
struct emit_activations {
	struct emit_activation row[RH_HALVES * (RH_HALF_VIEWS + 1) + RH_NORMS + RH_PROJS + 1];
	int count;
};
static inline void emit_keep(struct emit_activations *list, struct rh_view *view, enum rh_dtype dtype, int64_t rows, int64_t cols,
                             int is_deferred)
{
	RH_ASSERT(list->count < (int)(sizeof list->row / sizeof *list->row));
	list->row[list->count++] = (struct emit_activation){view, dtype, rows, cols, is_deferred};
}
/* Takes them from the arena, or from emit->deferred. */
void emit_take_kept(const struct rh_emit *emit, struct rh_arena *arena, const struct emit_activations *list);

/* A block has its layer's tensors in this order, and of each kind the mixer's before the MLP's. */
enum half_tensors { HALF_NORMS, HALF_WEIGHTS, HALF_BIASES };
enum half_end { HALF_INPUT, HALF_OUTPUT };

struct rh_half {
	/* ---- layout ---- */
	/* layout_size of each of its linears */
	void (*size)(const struct rh_model_config *config, struct rh_layer *layer);
	/* Places its tensors of one kind. */
	void (*place)(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind);
	/* Places adapters beside those of its linears; prefix: of the layer's modules. NULL: it has none. */
	void (*place_adapters)(const struct rh_model_config *config, const struct rh_lora_config *lora, const char *prefix,
	                       struct rh_layer *layer, struct layout *at);
	/* What it keeps from one run of tokens to the next; NULL: nothing. */
	struct rh_carried (*carries)(const struct rh_layer *layer);

	/* ---- emission ---- */
	/* Declares what its backward reads beside its input and its linears' low activations. */
	void (*keeps)(const struct rh_emit *emit, int layer, struct rh_saved *s, struct emit_activations *list);
	/* 1: gradients of its weights are made of its input, or of the gradient of its output. */
	int (*learns)(const struct rh_emit *emit, int layer, enum half_end of);
	/* y (T,width) = residual + what it makes of x (T,width); residual absent: that alone. y may not be the residual. Returns NULL, or
	 * what the caller has to add to the residual to make y: as large as y, in the arena. y absent: only what the backward reads is made. */
	void *(*forward)(struct rh_emit *emit, int layer, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_saved *s);
	/* dx = the gradient at x, absent: not wanted; and the gradients of weights, but for those that are made of x. */
	void (*backward)(struct rh_emit *emit, int layer, struct rh_saved *s, struct rh_view dy, struct rh_view dx);
	/* The others: x is often known only after dx has been used. */
	void (*gradients)(struct rh_emit *emit, int layer, struct rh_saved *s, struct rh_view x);
	/* The weight gradients that these two deferred, in their order. */
	void (*weights)(struct rh_emit *emit, int layer, const struct rh_saved *s);
};

#define HALF_DECLARE(KIND, name) extern const struct rh_half half_##name;
RH_MIXER_KINDS(HALF_DECLARE)
RH_MLP_KINDS(HALF_DECLARE)
#undef HALF_DECLARE

const struct rh_half *half_of(const struct rh_layer *layer, enum rh_half_place which);

#endif
