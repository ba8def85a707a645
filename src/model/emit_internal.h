/* Inside model/: the functions that layer kinds are written with. After a fault of the arena or of the sink each of them does nothing. */
#ifndef RH_MODEL_EMIT_INTERNAL_H
#define RH_MODEL_EMIT_INTERNAL_H

#include "model/emit.h"

void emit_op(struct rh_emit *emit, const struct rh_op *op);

/* A fresh (rows, cols) tensor from an arena; emit_act: from emit->arena, of the model's dtype. */
static inline struct rh_view emit_take(struct rh_arena *arena, enum rh_dtype dtype, int64_t rows, int64_t cols)
{
	return rh_view_of(rh_arena_take(arena, rh_dtype_bytes(dtype, rows * cols)), dtype, rows, cols);
}
struct rh_view emit_act(struct rh_emit *emit, int64_t rows, int64_t cols);

/* A run of the micro-batch's integers at a byte offset, (count,1). */
struct rh_view emit_micro(const struct rh_emit *emit, int64_t offset, int64_t count);
/* A lane of what travels beside: keys, then values. */
struct rh_view emit_lane(const struct rh_emit *emit, struct rh_view side, int lane);
/* Where what this layer carries begins. */
char *emit_carried(const struct rh_emit *emit, int layer);

/* A tensor of one of the layer's two blocks, together with the tensors that lie right after it: weights, or their fp32 gradient sum
 * (absent when the block is frozen or tensor is -1). */
struct rh_view emit_weight(const struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, int64_t rows, int64_t cols);
struct rh_view emit_gradient(const struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, int64_t rows, int64_t cols);

/* pack.c: the same for a matrix that may be packed: a plain view. It may lie in the arena, so the caller marks and resets that. */
struct rh_view emit_matrix(struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, int64_t rows, int64_t cols);
/* The matrix (rows, cols) that begins with `tensor` of the layer's base block as an 8-bit product reads it: straight, or across, which may
 * be made in the arena. 0: it is not stored for that. */
int emit_eight_bits(struct rh_emit *emit, const struct rh_layer *layer, int tensor, int across, int64_t rows, int64_t cols,
                    struct rh_scaled *out);
/* y (n,cols) = those rows of a packed tensor that index (n,1) names; 0: it is not packed, and nothing is emitted. */
int emit_packed_rows(struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, struct rh_view index, struct rh_view y);

struct emit_product {
	struct rh_view a, b, c, bias, d;
	struct rh_scaled of_a, of_b; /* what is there of a and b already, for emit_linear_product */
	int trans_a, trans_b;
	float alpha; /* 0 means 1 */
};
void emit_gemm(struct rh_emit *emit, const struct emit_product *product);
/* scaled.c: a linear's product, in the precision of emit->model->multiply where the lengths allow it. a: (T,.), an activation when
 * trans_b, else a gradient. */
void emit_linear_product(struct rh_emit *emit, const struct emit_product *product);
/* What was made of a matrix of linears once a slot (rh_model_scale); all absent where nothing was. */
struct rh_scaled emit_scaled_matrix(const struct rh_emit *emit, const struct rh_layer *layer, int tensor);
/* Makes it of a block: its bytes are at `from`; where its plain matrices are and the rest goes, `to`. */
void emit_scale_block(struct rh_emit *emit, const struct rh_block *block, char *from, char *to);
/* Quantises dy (T,out) for dx and dW at once; all absent where their products take it as it is. `straight` is freed by resetting the arena
 * to *mark, the others lie below. */
struct rh_scaled emit_scaled_gradient(struct rh_emit *emit, struct rh_view dy, struct rh_view dx, int64_t *mark);
/* Quantises x once for the products that read it up to emit_unshare_input: as it lies, for those of linears, or across, for those of dW.
 * What is made lies in the arena from the mark on that is returned. */
int64_t emit_share_input(struct rh_emit *emit, struct rh_view x, int across);
void emit_unshare_input(struct rh_emit *emit, int64_t mark);
/* amax.c. begin: takes room for a stage's pass. emit_amax: where the op that is emitted next is to leave what it finds of the first `known`
 * columns of its output `of`, so many numbers a row; absent: nowhere. of: what is known of x; NULL: nothing. forget: emit_op calls it. */
void emit_amax_begin(struct rh_emit *emit, struct rh_amaxes *amaxes);
struct rh_view emit_amax(struct rh_emit *emit, struct rh_view of, int64_t known, int64_t cols);
const struct rh_amax *emit_amax_of(const struct rh_emit *emit, struct rh_view x);
void emit_amax_forget(struct rh_amaxes *amaxes, const struct rh_op *op);
/* The same with the base's matrix (out, in), which the product lacks: as it is stored, where it is stored in 8 bits. */
void emit_base_product(struct rh_emit *emit, const struct rh_layer *layer, int tensor, int64_t out, int64_t in, struct emit_product p);
/* y (1,c) += sums over the rows of x: a bias's gradient. */
void emit_column_sum(struct rh_emit *emit, struct rh_view x, struct rh_view y);
void emit_cast(struct rh_emit *emit, struct rh_view x, struct rh_view y);
/* The model's own dropout: y = add + dropout(x), or y = dropout(x) where add is absent; y may be x. own: which of a layer's dropouts it
 * is (RH_OWN_END and its like). */
uint32_t emit_own_site(const struct rh_emit *emit, int layer, int own);
struct emit_drop {
	int layer, own;
	float p;
};
void emit_dropout(struct rh_emit *emit, struct emit_drop drop, struct rh_view x, struct rh_view add, struct rh_view y);
/* y += noise (rh_model_dropout). */
void emit_noise(struct rh_emit *emit, int layer, struct rh_view y);
void emit_fill(struct rh_emit *emit, struct rh_view y);
void emit_add(struct rh_emit *emit, struct rh_view a, struct rh_view b, struct rh_view y); /* y = a + b; y may be either */
void emit_add_scaled(struct rh_emit *emit, struct rh_view a, struct rh_view b, struct rh_view scale, struct rh_view y); /* as ADD has it */
void emit_glu(struct rh_emit *emit, enum rh_activation act, struct rh_view gu, struct rh_view a);
/* gu becomes its gradient, da becomes a; dot: see GLU_BACKWARD, or absent. */
void emit_glu_backward(struct rh_emit *emit, enum rh_activation act, struct rh_view gu, struct rh_view da, struct rh_view dot);

/* The rope tables of the micro-batch's positions, rows of a stage's lowest layer: declared, and made where they are wanted. */
struct emit_table;
void emit_declare_ropes(const struct rh_emit *emit, struct emit_table *table);
void emit_rope_tables(struct rh_emit *emit, const struct rh_activations *s);

/* norm.c: a norm of a layer, as its traits say. One is a tensor of the layer's base block: over whole rows (groups 1), or over each of
 * `groups` heads. tensor -1: an RMSNorm without a weight. */
struct emit_norm {
	const struct rh_layer *layer;
	int tensor;
	int64_t groups, length;
	float epsilon; /* 0: the traits' */
};
int emit_norm_is_rms(const struct rh_traits *traits);
float emit_norm_offset(const struct rh_traits *traits); /* the number added to an RMSNorm's weights */
struct emit_norm emit_norm_of(const struct rh_emit *emit, int layer, enum rh_norm_place place);
/* Takes what the backward needs beside x: F32, a row each of so many columns, `groups`, or for a LayerNorm 2. */
int64_t emit_norm_stats_cols(struct emit_norm norm);
struct rh_view emit_norm_stats(struct rh_arena *arena, struct emit_norm norm, int64_t rows);
void emit_norm(struct rh_emit *emit, struct emit_norm norm, struct rh_view x, struct rh_view y, struct rh_view stats);
/* dx = add + gradient, and the weights' gradients; y: the forward's output once more. add and y may be absent. */
struct emit_norm_gradient {
	struct rh_view x, stats, dy, add, dx, y;
};
void emit_norm_backward(struct rh_emit *emit, struct emit_norm norm, const struct emit_norm_gradient *gradient);

/* A row of the activation table that the backward makes: where it was placed, else from now on in emit->arena. */
struct rh_view emit_operand(const struct rh_emit *emit, struct rh_activations *s, int row);

/* linear.c: `count` projections, first..first+count-1, whose rows lie back to back and which read the same x: one product, then each one's
 * adapter. y (T, sum of out) = x W^T + bias + adapters' parts + residual; y may not be the residual. The row LOW + p, where the module is
 * adapted, receives x A^T. y absent: only that is made. */
struct emit_linears {
	int layer, first, count;
};
void emit_linear(struct rh_emit *emit, struct emit_linears which, struct rh_view x, struct rh_view residual, struct rh_view y,
                 const struct rh_activations *s);
/* The same, except that a residual which is to be added by another op is left out: then what to add it to is returned, as large as y, in
 * the arena; else NULL. */
void *emit_linear_apart(struct rh_emit *emit, struct emit_linears which, struct rh_view x, struct rh_view residual, struct rh_view y,
                        const struct rh_activations *s);
/* y = residual + that, if it is not NULL. */
void emit_add_apart(struct rh_emit *emit, struct rh_view residual, void *sum, struct rh_view y);
/* dx (T,in) = dy W + adapters' part; absent dx: not wanted. Then the gradients: dW += dy^T x, db += column sums, and the adapters'. In two
 * calls, as x is often known only after dx has been used. The first makes the rows D_LOW of adapted modules. */
void emit_linear_dx(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view dx, struct rh_activations *s);
void emit_linear_dw(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view x, const struct rh_activations *s);
/* emit_linear_dx with dx +=: of further linears that read the same x. */
void emit_linear_more_dx(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view dx, struct rh_activations *s);
/* Is any of their weights or adapters trained? */
int emit_linear_learns(const struct rh_emit *emit, struct emit_linears which);
/* emit_linear_dw at once; nothing where weight gradients are deferred. */
void emit_linear_gradients(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view x,
                           const struct rh_activations *s);

/* Declares a layer's rows, in the order in which they are placed. block.c also: rows of a layer that its output is made of. */
void emit_declare_block(const struct rh_emit *emit, int layer, struct emit_table *table);
void emit_declare_head(const struct rh_emit *emit, int layer, struct emit_table *table);
rh_row_set emit_block_output_from(const struct rh_emit *emit, int layer);

/* block.c: a transformer layer. y absent: it is not made. Of its rows it makes those that are wanted. */
void emit_block(struct rh_emit *emit, int layer, struct rh_view x, struct rh_view y, struct rh_activations *s);
/* Rows that are made of what lies beside the stage's activations. */
rh_row_set emit_block_of_side(const struct rh_emit *emit, int layer);
/* After emit_block, or with its rows where they are: what it lends goes to emit->side, where that is wanted. */
void emit_block_lend(struct rh_emit *emit, int layer, const struct rh_activations *s);
/* Only what its mixer carries of x. */
void emit_block_carry(struct rh_emit *emit, int layer, struct rh_view x, struct rh_activations *s);
void emit_block_backward(struct rh_emit *emit, int layer, struct rh_activations *s, struct rh_view dy, struct rh_view dx);
/* The weight gradients that the backward deferred. */
void emit_block_weights(struct rh_emit *emit, int layer, struct rh_activations *s);

/* table_adapter.c: the adapters of the embedding's table and of the head's matrix. The head's: logits += up low^T, low = scale * A x, x =
 * drop(h), made in the arena; absent views: there is none. `up` are the rows of B. */
struct emit_table_adapter {
	struct rh_view x, low, up;
};
struct emit_table_adapter emit_head_adapter(struct rh_emit *emit, struct rh_view h);
/* dh += the adapter's part, of the gradient of low; and the gradient of A. */
void emit_head_adapter_backward(struct rh_emit *emit, const struct emit_table_adapter *adapter, struct rh_view dlow, struct rh_view dh);
struct rh_view emit_head_adapter_up_gradient(const struct rh_emit *emit);
/* y += scale * B A of the tokens, scale times the table's own. And the gradients of A and B. */
void emit_embedding_adapter(struct rh_emit *emit, struct rh_view ids, float scale, struct rh_view y);
void emit_embedding_adapter_backward(struct rh_emit *emit, struct rh_view ids, float scale, struct rh_view dy);

/* head.c: final norm and head. learns 0: loss or logits only; else the loss's gradient is kept in a row of *s. */
void emit_head(struct rh_emit *emit, struct rh_view x, const struct rh_head_out *out, int learns, struct rh_activations *s);
/* Of a text in chunks, where documents are judged: adds the chunk's cross-entropies to those that the head carries. */
void emit_head_carry(struct rh_emit *emit, struct rh_view x, struct rh_activations *s);
void emit_head_backward(struct rh_emit *emit, struct rh_activations *s, struct rh_view dx);

/* per_layer.c: the lowest layer adds what it makes of x to the inputs of all layers, beside the activations; before emit_block. And dx +=
 * that way's gradient, with those of its weights: after all else of the layer's backward. Nothing in other layers. */
void emit_make_inputs(struct rh_emit *emit, int layer, struct rh_view x, struct rh_activations *s);
void emit_make_inputs_backward(struct rh_emit *emit, int layer, struct rh_activations *s, struct rh_view dx);

/* head.c: the tokens' rows of the table of layers' own inputs, where the model has one, beside what the embedding makes; and that table's
 * gradient. */
void emit_input_rows(struct rh_emit *emit);
void emit_input_rows_backward(struct rh_emit *emit);
/* head.c: the embedding. */
void emit_embedding(struct rh_emit *emit, struct rh_view y);
void emit_embedding_backward(struct rh_emit *emit, struct rh_view dy);

#endif
