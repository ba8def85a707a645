/* A transformer layer has two halves, a mixer of tokens and an MLP, and some have a third one, of their own inputs; they join the residual
 * in one of several ways (block.c). A kind of half
 * is a row of functions in a file of its own; its name stands in the lists of traits.h. It numbers its tensors (rh_layer's `own`) and the
 * rows of the activation table (activation.h) itself. Its linears are its part of rh_layer's `proj`: their weights, adapters, low
 * activations and gradients are as of any linear. */
#ifndef RH_MODEL_HALF_H
#define RH_MODEL_HALF_H

#include "model/emit_internal.h"
#include "model/layout.h"

/* A layer's rows of the activation table, in the order in which they are declared and placed. */
struct emit_table {
	int count, has_backward; /* 0: what the backward makes is left out */
	struct rh_activation_row row[RH_ACTIVATIONS];
};
struct emit_origin {
	enum rh_maker maker;
	rh_row_set from; /* of which rows: struct rh_activation_row */
	int is_deferred;
};
static inline void emit_row(struct emit_table *table, int row, enum rh_dtype dtype, int64_t rows, int64_t cols, struct emit_origin origin)
{
	if (origin.maker == RH_MAKER_BACKWARD && !table->has_backward)
		return;
	RH_ASSERT(table->count < RH_ACTIVATIONS);
	table->row[table->count++] =
	        (struct rh_activation_row){row, dtype, rows, cols, origin.maker, origin.from, origin.is_deferred, RH_SIDE_NOT};
}

/* Of the row that was declared last. */
static inline void emit_row_side(struct emit_table *table, enum rh_row_side side)
{
	table->row[table->count - 1].side = side;
}

static inline int emit_wants(const struct rh_activations *s, rh_row_set rows)
{
	return (s->wanted & rows) != 0;
}
static inline int emit_wants_low(const struct rh_activations *s, struct emit_linears which)
{
	return emit_wants(s, RH_ROW_RUN(RH_ROW_LOW + which.first, which.count));
}
/* The row where it is wanted, else absent. */
static inline struct rh_view emit_wanted(const struct rh_activations *s, int row)
{
	return emit_wants(s, RH_ROW_SET(row)) ? s->view[row] : (struct rh_view){0};
}

/* Gives rows of layer l their addresses, by their fates, except those of the backward that are not deferred, which lie in the arena only
 * while it runs. All but those of the backward are wanted. */
void emit_place(const struct rh_emit *emit, int l, const struct emit_table *table, struct rh_activations *s);

/* A copy in 8 bits of the boundary below `layer` is made of x and what lies beside it, (T, columns of its side) or absent; and the boundary
 * itself, or made wide in the arena where it is such a copy. */
void emit_narrow(struct rh_emit *emit, int layer, struct rh_view x, struct rh_view beside, struct rh_view narrow);
struct rh_view emit_widened(struct rh_emit *emit, int layer, struct rh_view x);

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
	/* Of a mixer that carries: in a backward slot `carry` adds what it carries of a chunk, made of the rows `to_carry`, and clears its
	 * gradient. In a forward slot its forward does the first by itself. */
	rh_row_set to_carry;
	void (*carry)(struct rh_emit *emit, int layer, const struct rh_activations *s);

	/* Of a mixer that may lend (RH_KEYS_LENT): its rows go to their place beside the activation. */
	void (*lend)(struct rh_emit *emit, int layer, const struct rh_activations *s);

	/* ---- emission ---- */
	/* Rows that are made of its input, by its forward alone; rows that its output is made of; and, where the layer borrows or has an
	 * input of its own, rows that are made of what lies beside. */
	rh_row_set of_input, of_output, of_side;
	/* Low activations of linears that read neither its input nor what its output is made of; and the rows that they are made of. */
	rh_row_set between, of_between;
	/* Declares its own rows: what its backward reads beside its input and its linears' low activations, and operands of its weight
	 * gradients that the backward makes. */
	void (*declare)(const struct rh_emit *emit, int layer, struct emit_table *table);
	/* Is any weight gradient made of that end: of its input, or of the gradient of its output? */
	int (*learns)(const struct rh_emit *emit, int layer, enum half_end of);
	/* y (T,width) = residual + what it makes of x (T,width); residual absent: that alone. y may not be the residual. Returns NULL, or
	 * what the caller has to add to the residual to make y: as large as y, in the arena. y absent: it is not made. Of its rows it makes
	 * those that are wanted (s->wanted), and may make others anew where they are, with the same bits. x is read only for rows of
	 * of_input. */
	void *(*forward)(struct rh_emit *emit, int layer, struct rh_view x, struct rh_view residual, struct rh_view y,
	                 struct rh_activations *s);
	/* dx = the gradient at x, absent: not wanted; and the gradients of weights, but for those that are made of x. */
	void (*backward)(struct rh_emit *emit, int layer, struct rh_activations *s, struct rh_view dy, struct rh_view dx);
	/* The others: x is often known only after dx has been used. */
	void (*gradients)(struct rh_emit *emit, int layer, struct rh_activations *s, struct rh_view x);
	/* The weight gradients that these two deferred, in their order, made of rows alone. */
	void (*weights)(struct rh_emit *emit, int layer, struct rh_activations *s);
};

#define HALF_DECLARE(KIND, name) extern const struct rh_half half_##name;
RH_MIXER_KINDS(HALF_DECLARE)
RH_MLP_KINDS(HALF_DECLARE)
#undef HALF_DECLARE
extern const struct rh_half half_per_layer;

/* NULL: the layer has no input of its own. */
const struct rh_half *half_of(const struct rh_layer *layer, enum rh_half_place which);

#endif
