/* Multi-head latent attention (DeepSeek-V2), a mixer: O(attention(Q, K, V)), where queries, and keys with values, are each made of a short
 * vector:
 *   q | kv | shared = A x,   Q = Bq norm(q),   K without its last part, V = Bkv norm(kv)
 * The last part of each head's queries and keys is rotated; that of keys is `shared`, one for all heads. Keys and values are made whole, as
 * those of attention, whose op and whose carried keys and values these are. That op has one length for both: shorter values have zeros
 * behind them, and so has what attention makes, which are left out before O.
 *
 * Rows of the activation table: what A makes, `shared` rotated; its norms' statistics; queries, rotated; keys and values, planes of one
 * row, one behind the other; what attention makes. The backward makes gradients of what the linears made and, once more, the inputs of the
 * two Bs, planes of one row too, and of O, where that is shorter than what attention made. */
#include "model/attention.h"

/* Its linears, q_a and kv_a being A; and its rows. */
enum { Q_A = RH_PROJ_Q, KV_A = RH_PROJ_K, Q_B = RH_PROJ_V, OUT_PROJ = RH_PROJ_O, KV_B = RH_PROJ_FIFTH };
enum { LATENT = RH_ROW_MIXER, STATS, QUERIES, KEYS_VALUES, OUT, LSE, D_LATENT, D_QUERIES, D_KEYS_VALUES, NORMED, SHORT };
_Static_assert(SHORT < RH_ROW_MIXER + RH_HALF_ROWS, "each row has its number");

/* ---- layout ---- */

/* Elements of a head's key that are its own. */
static int64_t own_of(const struct rh_traits *traits)
{
	return traits->head_dim - traits->rotary;
}

static int64_t all_heads(const struct rh_traits *traits)
{
	return traits->heads * traits->head_dim;
}

static int64_t latent_of(const struct rh_traits *traits)
{
	return traits->q_rank + traits->kv_rank;
}

static void size(const struct rh_model_config *config, struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	layout_size(config, layer, Q_A, layer->width, traits->q_rank, 0);
	layout_size(config, layer, KV_A, layer->width, traits->kv_rank + traits->rotary, 1);
	layout_size(config, layer, Q_B, traits->q_rank, all_heads(traits), 0);
	layout_size(config, layer, KV_B, traits->kv_rank, traits->heads * (own_of(traits) + traits->value), 0);
	layout_size(config, layer, OUT_PROJ, traits->heads * traits->value, layer->width, 0);
}

static void place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	const struct rh_traits *traits = &layer->traits;
	int *own = layer->own[RH_MIXER];
	switch (kind) {
	case HALF_NORMS:
		own[ATTENTION_Q_NORM] = layout_place_norm(at, "self_attn.q_a_layernorm", traits->norm, traits->q_rank);
		own[ATTENTION_K_NORM] = layout_place_norm(at, "self_attn.kv_a_layernorm", traits->norm, traits->kv_rank);
		break;
	case HALF_WEIGHTS:
		layout_weights(config, layer, at, RH_PROJ_MIXER, RH_PROJ_MLP - RH_PROJ_MIXER);
		break;
	case HALF_BIASES:
		layout_biases(config, layer, at, Q_A, 2);
		layout_biases(config, layer, at, OUT_PROJ, 1);
		break;
	}
}

/* ---- emission ---- */

static struct emit_linears one_of(int layer, int proj)
{
	return (struct emit_linears){layer, proj, 1};
}

static struct emit_linears a_of(int layer)
{
	return (struct emit_linears){layer, Q_A, 2};
}

static int learns(const struct rh_emit *emit, int layer, enum half_end of)
{
	return emit_linear_learns(emit, of == HALF_INPUT ? a_of(layer) : one_of(layer, OUT_PROJ));
}

/* Number `which` of the two parts of a row's memory, of so many columns, one behind the other. */
static struct rh_view plane(struct rh_view row, int which, const int64_t cols[2])
{
	int64_t first = which ? row.rows * cols[0] : 0;
	return rh_view_of(row.data ? (char *)row.data + rh_dtype_bytes(row.dtype, first) : NULL, row.dtype, row.rows, cols[which]);
}

/* What becomes queries, which = 0, and keys and values, 1: of what A makes, or of its gradient; after the norm; and its statistics. */
static struct rh_view short_of(const struct rh_traits *traits, struct rh_view latent, int which)
{
	return rh_view_cols(latent, which ? traits->q_rank : 0, which ? traits->kv_rank : traits->q_rank);
}

static struct rh_view normed_of(const struct rh_traits *traits, struct rh_view normed, int which)
{
	return plane(normed, which, (int64_t[2]){traits->q_rank, traits->kv_rank});
}

static struct rh_view shared_of(const struct rh_traits *traits, struct rh_view latent)
{
	return rh_view_cols(latent, latent_of(traits), traits->rotary);
}

static struct emit_norm norm_of(const struct rh_layer *layer, int which)
{
	int64_t length = which ? layer->traits.kv_rank : layer->traits.q_rank;
	return (struct emit_norm){layer, layer->own[RH_MIXER][which ? ATTENTION_K_NORM : ATTENTION_Q_NORM], 1, length,
	                          layer->traits.latent_epsilon};
}

static struct attention_parts parts_of(const struct rh_traits *traits, const struct rh_view *view)
{
	const int64_t cols[2] = {all_heads(traits), all_heads(traits)};
	return (struct attention_parts){view[QUERIES], plane(view[KEYS_VALUES], 0, cols), plane(view[KEYS_VALUES], 1, cols)};
}

/* The last part of each head of x. */
static void rope(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view x, int64_t heads, int inverse)
{
	struct rh_op op = {.kind = RH_OP_ROPE,
	                   .rope = {.heads = heads,
	                            .inverse = inverse,
	                            .first = x.cols / heads - traits->rotary,
	                            .adjacent = traits->rotates_adjacent}};
	op.operand[RH_ROPE_X] = x;
	op.operand[RH_ROPE_TABLE_IN] = emit->ropes.table[traits->rope];
	emit_op(emit, &op);
}

/* Keys and values of what Bkv makes, kv. */
static void spread(struct rh_emit *emit, const struct rh_traits *traits, const struct rh_view *view, struct rh_view kv)
{
	struct rh_op op = {.kind = RH_OP_LATENT, .latent = {traits->heads, traits->value}};
	struct attention_parts to = parts_of(traits, view);
	op.operand[RH_LATENT_KV] = kv;
	op.operand[RH_LATENT_SHARED] = shared_of(traits, view[LATENT]);
	op.operand[RH_LATENT_K] = to.k;
	op.operand[RH_LATENT_V] = to.v;
	emit_op(emit, &op);
}

/* Gradients of what Bkv made, and of `shared` where the row has it. */
static void collect(struct rh_emit *emit, const struct rh_traits *traits, struct attention_parts d, const struct rh_view *view)
{
	struct rh_op op = {.kind = RH_OP_LATENT_BACKWARD, .latent = {traits->heads, traits->value}};
	op.operand[RH_LATENT_BACKWARD_DK] = d.k;
	op.operand[RH_LATENT_BACKWARD_DV] = d.v;
	op.operand[RH_LATENT_BACKWARD_DKV] = view[D_KEYS_VALUES];
	op.operand[RH_LATENT_BACKWARD_DSHARED] = shared_of(traits, view[D_LATENT]);
	emit_op(emit, &op);
}

static int has_zeros(const struct rh_traits *traits)
{
	return traits->value < traits->head_dim;
}

/* A row for each token and head of what attention makes: without the zeros. */
static struct rh_view without_zeros(const struct rh_traits *traits, struct rh_view o)
{
	return rh_view_cols(rh_view_of(o.data, o.dtype, o.rows * traits->heads, traits->head_dim), 0, traits->value);
}

static struct rh_view by_head(const struct rh_traits *traits, struct rh_view x)
{
	return rh_view_of(x.data, x.dtype, x.rows * traits->heads, traits->value);
}

/* What O reads: what attention made, or, where values have zeros behind them, a copy without these, in `made`. */
static struct rh_view shorten(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view o, struct rh_view made)
{
	if (!has_zeros(traits))
		return o;
	emit_cast(emit, without_zeros(traits, o), by_head(traits, made));
	return made;
}

/* The gradient of what attention made, from that of what O reads. Behind each head's value it meets zeros alone: 0. */
static struct rh_view lengthen(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view d)
{
	if (!has_zeros(traits))
		return d;
	struct rh_view d_o = emit_act(emit, d.rows, all_heads(traits));
	emit_fill(emit, d_o);
	emit_cast(emit, by_head(traits, d), without_zeros(traits, d_o));
	return d_o;
}

static void declare(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	int64_t tokens = emit->shape.tokens, heads = all_heads(traits), latent = latent_of(traits) + traits->rotary;
	enum rh_dtype act = emit->model->dtype;
	enum rh_maker mixer = RH_MAKER_MIXER;
	rh_row_set ropes = RH_ROW_RUN(RH_ROW_ROPE, RH_ROPES), of_latent = RH_ROW_SET(LATENT);
	rh_row_set attended = RH_ROW_SET(QUERIES) | RH_ROW_SET(KEYS_VALUES);
	int learns_q = emit_linear_learns(emit, one_of(index, Q_B)), learns_kv = emit_linear_learns(emit, one_of(index, KV_B));
	int defers = emit->deferred != NULL, out_is_deferred = defers && learns(emit, index, HALF_OUTPUT);
	emit_row(table, LSE, RH_F32, tokens, traits->heads, (struct emit_origin){mixer, attended, 0});
	emit_row(table, LATENT, act, tokens, latent, (struct emit_origin){mixer, RH_ROW_SET(RH_ROW_X) | ropes, 0});
	emit_row(table, STATS, RH_F32, tokens, 2, (struct emit_origin){mixer, of_latent, 0});
	emit_row(table, QUERIES, act, tokens, heads, (struct emit_origin){mixer, of_latent | ropes, 0});
	emit_row(table, KEYS_VALUES, act, tokens, 2 * heads, (struct emit_origin){mixer, of_latent, 0});
	emit_row(table, OUT, act, tokens, heads, (struct emit_origin){mixer, attended, out_is_deferred && !has_zeros(traits)});
	if (has_zeros(traits))
		emit_row(table, SHORT, act, tokens, traits->heads * traits->value,
		         (struct emit_origin){RH_MAKER_BACKWARD, 0, out_is_deferred});
	emit_row(table, D_LATENT, act, tokens, latent,
	         (struct emit_origin){RH_MAKER_BACKWARD, 0, defers && learns(emit, index, HALF_INPUT)});
	emit_row(table, D_QUERIES, act, tokens, heads, (struct emit_origin){RH_MAKER_BACKWARD, 0, defers && learns_q});
	emit_row(table, D_KEYS_VALUES, act, tokens, traits->heads * (own_of(traits) + traits->value),
	         (struct emit_origin){RH_MAKER_BACKWARD, 0, defers && learns_kv});
	emit_row(table, NORMED, act, tokens, latent_of(traits),
	         (struct emit_origin){RH_MAKER_BACKWARD, 0, defers && (learns_q || learns_kv)});
}

/* What the two Bs make of what A made, where it is wanted. */
static void expand(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	int wants_q = emit_wants(s, RH_ROW_SET(QUERIES)), wants_kv = emit_wants(s, RH_ROW_SET(KEYS_VALUES));
	int makes[2] = {wants_q || emit_wants_low(s, one_of(index, Q_B)), wants_kv || emit_wants_low(s, one_of(index, KV_B))};
	int64_t mark = emit->arena->used;
	struct rh_view none = {0}, normed = emit_act(emit, emit->shape.tokens, latent_of(traits));
	for (int which = 0; which < 2; which++)
		if (makes[which] || emit_wants(s, RH_ROW_SET(STATS)))
			emit_norm(emit, norm_of(layer, which), short_of(traits, s->view[LATENT], which), normed_of(traits, normed, which),
			          rh_view_cols(s->view[STATS], which, 1));
	if (makes[0])
		emit_linear(emit, one_of(index, Q_B), normed_of(traits, normed, 0), none, emit_wanted(s, QUERIES), s);
	if (wants_q)
		rope(emit, traits, s->view[QUERIES], traits->heads, 0);
	if (makes[1]) {
		struct rh_view kv = wants_kv ? emit_act(emit, emit->shape.tokens, layer->proj[KV_B].outputs) : none;
		emit_linear(emit, one_of(index, KV_B), normed_of(traits, normed, 1), none, kv, s);
		if (wants_kv)
			spread(emit, traits, s->view, kv);
	}
	rh_arena_reset(emit->arena, mark);
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	if (emit_wants(s, RH_ROW_SET(LATENT)) || emit_wants_low(s, a_of(index)))
		emit_linear(emit, a_of(index), x, (struct rh_view){0}, emit_wanted(s, LATENT), s);
	if (emit_wants(s, RH_ROW_SET(LATENT)))
		rope(emit, traits, shared_of(traits, s->view[LATENT]), 1, 0);
	expand(emit, index, s);
	if (emit_wants(s, RH_ROW_SET(OUT) | RH_ROW_SET(LSE)))
		attention_forward(emit, index, parts_of(traits, s->view), s->view[OUT], s->view[LSE]);
	if (!y.data && !emit_wants_low(s, one_of(index, OUT_PROJ)))
		return NULL;
	struct rh_view in = has_zeros(traits) ? emit_act(emit, emit->shape.tokens, traits->heads * traits->value) : s->view[OUT];
	return emit_linear_apart(emit, one_of(index, OUT_PROJ), shorten(emit, traits, s->view[OUT], in), residual, y, s);
}

static void carry(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	attention_carry(emit, index, parts_of(&emit->model->layer[index].traits, s->view));
}

/* Gradients of queries, and of what Bkv made, before rotation. */
static void attend_backward(struct rh_emit *emit, int index, const struct rh_activations *s, struct rh_view d_o)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	int64_t mark = emit->arena->used;
	struct attention_parts d = {s->view[D_QUERIES], emit_act(emit, d_o.rows, d_o.cols), emit_act(emit, d_o.rows, d_o.cols)};
	attention_backward(emit, index, (struct attention_made){s->view[OUT], s->view[LSE]}, d_o, parts_of(traits, s->view), d);
	collect(emit, traits, d, s->view);
	rope(emit, traits, d.q, traits->heads, 1);
	rope(emit, traits, shared_of(traits, s->view[D_LATENT]), 1, 1);
	rh_arena_reset(emit->arena, mark);
}

/* Of one of the Bs: the gradient of what A made, and, where they are not deferred, weight gradients. */
static void b_backward(struct rh_emit *emit, int index, struct rh_activations *s, int which)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	struct emit_linears b = one_of(index, which ? KV_B : Q_B);
	struct rh_view dy = s->view[which ? D_KEYS_VALUES : D_QUERIES], normed = normed_of(traits, s->view[NORMED], which);
	int64_t mark = emit->arena->used;
	struct rh_view d = emit_act(emit, normed.rows, normed.cols);
	emit_linear_dx(emit, b, dy, d, s);
	emit_norm_backward(emit, norm_of(layer, which),
	                   &(struct emit_norm_gradient){.x = short_of(traits, s->view[LATENT], which),
	                                                .stats = rh_view_cols(s->view[STATS], which, 1),
	                                                .dy = d,
	                                                .dx = short_of(traits, s->view[D_LATENT], which),
	                                                .y = normed});
	emit_linear_gradients(emit, b, dy, normed, s);
	rh_arena_reset(emit->arena, mark);
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view d_latent = emit_operand(emit, s, D_LATENT), out = s->view[OUT];
	int64_t mark = emit->arena->used;
	for (int row = D_QUERIES; row <= NORMED; row++)
		(void)emit_operand(emit, s, row);
	struct rh_view d = emit_act(emit, out.rows, traits->heads * traits->value);
	emit_linear_dx(emit, one_of(index, OUT_PROJ), dy, d, s);
	if (has_zeros(traits))
		out = shorten(emit, traits, out, emit_operand(emit, s, SHORT));
	emit_linear_gradients(emit, one_of(index, OUT_PROJ), dy, out, s);
	attend_backward(emit, index, s, lengthen(emit, traits, d));
	for (int which = 0; which < 2; which++)
		b_backward(emit, index, s, which);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, a_of(index), d_latent, dx, s);
}

static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	if (!emit->deferred)
		emit_linear_dw(emit, a_of(index), s->view[D_LATENT], x, s);
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	emit_linear_dw(emit, one_of(index, OUT_PROJ), s->view[RH_ROW_GRADIENT + RH_MIXER], s->view[has_zeros(traits) ? SHORT : OUT], s);
	emit_linear_dw(emit, one_of(index, Q_B), s->view[D_QUERIES], normed_of(traits, s->view[NORMED], 0), s);
	emit_linear_dw(emit, one_of(index, KV_B), s->view[D_KEYS_VALUES], normed_of(traits, s->view[NORMED], 1), s);
	emit_linear_dw(emit, a_of(index), s->view[D_LATENT], s->view[RH_ROW_INPUT + RH_MIXER], s);
}

#define LOW_OF(proj) RH_ROW_SET(RH_ROW_LOW + (proj))
const struct rh_half half_latent_attention = {.size = size,
                                              .place = place,
                                              .carries = attention_carries,
                                              .to_carry = RH_ROW_SET(LATENT) | RH_ROW_SET(STATS) | RH_ROW_SET(KEYS_VALUES) | LOW_OF(Q_A) |
                                                          LOW_OF(KV_A) | LOW_OF(KV_B),
                                              .carry = carry,
                                              .of_input = RH_ROW_SET(LATENT) | LOW_OF(Q_A) | LOW_OF(KV_A),
                                              .between = LOW_OF(Q_B) | LOW_OF(KV_B),
                                              .of_between = RH_ROW_SET(LATENT),
                                              .of_output = RH_ROW_SET(OUT),
                                              .declare = declare,
                                              .learns = learns,
                                              .forward = forward,
                                              .backward = backward,
                                              .gradients = gradients,
                                              .weights = weights};
