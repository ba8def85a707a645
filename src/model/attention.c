/* Attention, a mixer: O(attention(rope(norm_q(Q x)), rope(norm_k(K x)), V x)), with norms of heads, rotation and sinks where the family
 * has them. It carries keys and values.
 *
 * Gated attention has O(sigmoid(G x) * attention(...)), and norms. Of each head Q and G are rows of one matrix, one behind the other. There
 * the rows QKV, QK and NORM_QK of the activation table are planes, one behind the other: first what is of queries (with gates), as a row
 * for each token and head, then what is of keys (and values), as a row for each token.
 * Attention may borrow keys and values that a layer below lends: they lie beside its input (struct rh_side), ready to be read, and it adds
 * their gradients to those beside the gradient. It has queries alone of its own; its row QK has a copy of what it borrows.
 *
 * Side-gated attention is the same function, where Q and G are linears of their own: its rows are those of attention, and GATE is what G
 * makes. */
#include "model/attention.h"

#include <assert.h>

/* Its tensors, beside its linears'; and its rows of the activation table. */
enum { Q_NORM = ATTENTION_Q_NORM, K_NORM = ATTENTION_K_NORM, SINKS = ATTENTION_SINKS };
enum { QKV = RH_ROW_MIXER, QK, NORM_QK, OUT, LSE, D_QKV, GATED, GATE, D_GATE };

/* ---- layout ---- */

static int is_gated(const struct rh_traits *traits)
{
	return traits->mixer == RH_MIXER_GATED_ATTENTION;
}

static int is_side_gated(const struct rh_traits *traits)
{
	return traits->mixer == RH_MIXER_SIDE_GATED_ATTENTION;
}

static int has_gates(const struct rh_traits *traits)
{
	return is_gated(traits) || is_side_gated(traits);
}

static int borrows(const struct rh_traits *traits)
{
	return traits->keys == RH_KEYS_BORROWED;
}

static void size(const struct rh_model_config *config, struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	int64_t q = traits->heads * traits->head_dim, kv = borrows(traits) ? 0 : traits->kv_heads * traits->head_dim;
	int64_t values = traits->values_are_keys ? 0 : kv;
	layout_size(config, layer, RH_PROJ_Q, layer->width, is_gated(traits) ? 2 * q : q, 0);
	layout_size(config, layer, RH_PROJ_K, layer->width, kv, !is_gated(traits));
	layout_size(config, layer, RH_PROJ_V, layer->width, values, 1);
	layout_size(config, layer, RH_PROJ_O, q, layer->width, 0);
	if (is_side_gated(traits))
		layout_size(config, layer, RH_PROJ_FIFTH, layer->width, q, 0);
}

/* Rows of queries and keys are those of heads, which some GGUFs have in another order. */
static void note_heads(const struct rh_layer *layer, struct layout *at)
{
	for (int p = RH_PROJ_Q; p <= RH_PROJ_K && !at->fault; p++) {
		const struct rh_linear *linear = &layer->proj[p];
		if (linear->weight >= 0)
			at->block->tensor[linear->weight].head_dim = layer->traits.head_dim;
		if (linear->bias >= 0)
			at->block->tensor[linear->bias].head_dim = layer->traits.head_dim;
	}
}

/* Of the norm of so many heads' queries or keys; and how many such vectors they are. */
static int64_t norm_length(const struct rh_traits *traits, int64_t heads)
{
	return traits->qk_norm == RH_QK_NORM_ALL ? heads * traits->head_dim : traits->head_dim;
}

static int64_t norm_groups(const struct rh_traits *traits, int64_t heads)
{
	return traits->qk_norm == RH_QK_NORM_ALL ? 1 : heads;
}

static void place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	const struct rh_traits *traits = &layer->traits;
	int *own = layer->own[RH_MIXER];
	switch (kind) {
	case HALF_NORMS:
		if (!traits->qk_norm || traits->qk_norm_is_plain)
			return;
		own[Q_NORM] = layout_place_norm(at, "self_attn.q_norm", traits->norm, norm_length(traits, traits->heads));
		if (!borrows(traits))
			own[K_NORM] = layout_place_norm(at, "self_attn.k_norm", traits->norm, norm_length(traits, traits->kv_heads));
		break;
	case HALF_WEIGHTS:
		layout_weights(config, layer, at, RH_PROJ_MIXER, RH_PROJ_MLP - RH_PROJ_MIXER);
		break;
	case HALF_BIASES:
		if (traits->sinks) {
			layout_align(at);
			own[SINKS] = layout_place(at, "self_attn.sinks", NULL, 1, 1, traits->heads);
			if (!at->fault)
				at->block->tensor[own[SINKS]].decays = 1; /* as transformers' trainer has it */
		}
		layout_biases(config, layer, at, RH_PROJ_MIXER, RH_PROJ_MLP - RH_PROJ_MIXER);
		note_heads(layer, at);
		break;
	}
}

struct rh_carried attention_carries(const struct rh_layer *layer)
{
	return (struct rh_carried){.columns = 2 * layer->traits.kv_heads * layer->traits.head_dim};
}

/* ---- emission ---- */

static struct emit_linears qkv_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_Q, 3};
}

/* Where queries have gates they are a product of their own. */
static struct emit_linears q_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_Q, 1};
}

static struct emit_linears kv_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_K, 2};
}

static struct emit_linears o_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_O, 1};
}

/* Of the gates, of side-gated attention. */
static struct emit_linears side_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_FIFTH, 1};
}

static int learns(const struct rh_emit *emit, int layer, enum half_end of)
{
	if (of == HALF_INPUT && is_side_gated(&emit->model->layer[layer].traits) && emit_linear_learns(emit, side_of(layer)))
		return 1;
	return emit_linear_learns(emit, of == HALF_INPUT ? qkv_of(layer) : o_of(layer));
}

/* (rows,cols) of a row's memory, from an element on. */
static struct rh_view plane(struct rh_view row, int64_t first, int64_t rows, int64_t cols)
{
	return rh_view_of(row.data ? (char *)row.data + rh_dtype_bytes(row.dtype, first) : NULL, row.dtype, rows, cols);
}

/* Of gated attention: queries with gates, (T,2 heads*D); and keys with values, (T,2 kv_heads*D). */
static struct rh_view q_plane(const struct rh_traits *traits, struct rh_view qkv)
{
	return plane(qkv, 0, qkv.rows, 2 * traits->heads * traits->head_dim);
}

static struct rh_view kv_plane(const struct rh_traits *traits, struct rh_view qkv)
{
	int64_t q = 2 * traits->heads * traits->head_dim;
	return plane(qkv, qkv.rows * q, qkv.rows, 2 * traits->kv_heads * traits->head_dim);
}

/* A row for each token and head: its queries, which = 0, or gates, 1, within their plane; and all of a row of heads. */
static struct rh_view gated_part(const struct rh_traits *traits, struct rh_view qkv, int which)
{
	struct rh_view both = plane(qkv, 0, qkv.rows * traits->heads, 2 * traits->head_dim);
	return rh_view_cols(both, which * traits->head_dim, traits->head_dim);
}

static struct rh_view by_head(const struct rh_traits *traits, struct rh_view x)
{
	return plane(x, 0, x.rows * traits->heads, traits->head_dim);
}

static struct attention_parts split_qkv(const struct rh_traits *traits, struct rh_view qkv)
{
	int64_t q = traits->heads * traits->head_dim, kv = traits->kv_heads * traits->head_dim;
	if (is_gated(traits)) {
		struct rh_view both = kv_plane(traits, qkv);
		return (struct attention_parts){gated_part(traits, qkv, 0), rh_view_cols(both, 0, kv), rh_view_cols(both, kv, kv)};
	}
	struct attention_parts parts = {.q = rh_view_cols(qkv, 0, q)};
	if (borrows(traits))
		return parts;
	parts.k = rh_view_cols(qkv, q, kv);
	parts.v = traits->values_are_keys ? parts.k : rh_view_cols(qkv, q + kv, kv);
	return parts;
}

/* The operands of attention: where q and k (and v) are normalised, the results lie apart from the norms' inputs. */
static struct attention_parts attended(const struct rh_traits *traits, const struct rh_view *view)
{
	struct attention_parts parts = split_qkv(traits, view[QKV]);
	if (is_gated(traits)) {
		int64_t rows = view[QK].rows, q = traits->heads * traits->head_dim;
		parts.q = plane(view[QK], 0, rows, q);
		parts.k = plane(view[QK], rows * q, rows, parts.k.cols);
	} else if (traits->qk_norm) {
		int64_t q = parts.q.cols, kv = traits->kv_heads * traits->head_dim;
		parts.q = rh_view_cols(view[QK], 0, q);
		parts.k = rh_view_cols(view[QK], q, kv);
		if (traits->norms_values)
			parts.v = rh_view_cols(view[QK], q + kv, kv);
	}
	return parts;
}

/* Where they lie apart from the norms' inputs: all that others may borrow. */
static struct rh_view keys_and_values(const struct rh_traits *traits, const struct rh_view *view)
{
	int64_t q = traits->heads * traits->head_dim;
	RH_ASSERT(traits->norms_values && !is_gated(traits));
	return rh_view_cols(view[QK], q, view[QK].cols - q);
}

/* Query and key heads, which lie side by side. */
static struct rh_view query_key(const struct rh_traits *traits, struct rh_view qkv)
{
	return rh_view_cols(qkv, 0, (traits->heads + traits->kv_heads) * traits->head_dim);
}

/* within: of which a product reads all and x are the first columns; or absent. */
static void rope(struct rh_emit *emit, const struct rh_traits *traits, int table, struct rh_view x, int inverse, struct rh_view within)
{
	struct rh_op op = {.kind = RH_OP_ROPE};
	if (table < 0)
		return;
	op.operand[RH_ROPE_X] = x;
	op.operand[RH_ROPE_TABLE_IN] = emit->ropes.table[table];
	op.rope.heads = x.cols / traits->head_dim;
	op.rope.inverse = inverse;
	op.rope.apart = traits->apart;
	if (within.data && traits->rotary == traits->head_dim && rh_rope_has_amax(traits->rotary))
		op.operand[RH_ROPE_AMAX] = emit_amax(emit, within, x.cols, op.rope.heads);
	emit_op(emit, &op);
}

/* Of query and key heads, which lie side by side. */
static void rope_both(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view qk, int inverse, struct rh_view within)
{
	int64_t q = traits->heads * traits->head_dim;
	struct rh_view none = {0};
	if (traits->query_rope == traits->rope) {
		rope(emit, traits, traits->rope, qk, inverse, within);
		return;
	}
	rope(emit, traits, traits->query_rope, rh_view_cols(qk, 0, q), inverse, none);
	rope(emit, traits, traits->rope, rh_view_cols(qk, q, qk.cols - q), inverse, none);
}

static void set_attention(const struct rh_emit *emit, const struct rh_traits *traits, struct rh_op *op)
{
	op->attention.heads = traits->heads;
	op->attention.kv_heads = traits->kv_heads;
	op->attention.documents = emit->shape.documents;
	op->attention.longest = emit->shape.longest;
	op->attention.window = traits->window;
	op->attention.scale = traits->scale;
	op->attention.direction = traits->direction;
}

static void split_launch(const struct rh_model *model, struct rh_op *op)
{
	int uses_tensor_cores = op->attention.p == 0 &&
	                        rh_attention_uses_tensor_cores(model->dtype, op->operand[RH_ATTENTION_Q].cols / op->attention.heads);
	rh_attention_split(op, uses_tensor_cores ? model->attention_flops : model->plain_attention_flops);
}

static void set_dropout(const struct rh_emit *emit, int layer, int64_t keys, struct rh_op *op)
{
	op->attention.p = emit->drop.attention;
	op->attention.seed = emit->seed;
	op->attention.step = emit->step;
	op->attention.micro_batch = emit->micro_batch;
	op->attention.site = emit_own_site(emit, layer, RH_OWN_ATTENTION);
	op->attention.first_q = (uint32_t)emit->shape.first;
	op->attention.first_k = (uint32_t)(emit->shape.first + emit->shape.tokens - keys);
}

static struct rh_view sinks_of(const struct rh_emit *emit, int layer)
{
	const struct rh_layer *of = &emit->model->layer[layer];
	return emit_weight(emit, of, 0, of->own[RH_MIXER][SINKS], 1, of->traits.heads);
}

/* Keys and values that the layer carries, of the tokens that attention reads. */
static void carried(const struct rh_emit *emit, int layer, struct rh_view *k, struct rh_view *v)
{
	int64_t bytes = rh_dtype_bytes(k->dtype, emit->cache_rows * k->cols);
	int64_t keys = emit->shape.keys, first = emit->shape.first + emit->shape.tokens - keys;
	char *base = emit_carried(emit, layer);
	*k = rh_view_rows(rh_view_of(base, k->dtype, emit->cache_rows, k->cols), first, keys);
	*v = rh_view_rows(rh_view_of(base + bytes, k->dtype, emit->cache_rows, k->cols), first, keys);
}

/* Appends the new keys and values to those, and makes attention read all of them. */
static void append(struct rh_emit *emit, int layer, struct rh_view *k, struct rh_view *v)
{
	struct rh_view new_k = *k, new_v = *v;
	carried(emit, layer, k, v);
	emit_cast(emit, new_k, rh_view_rows(*k, k->rows - new_k.rows, new_k.rows));
	emit_cast(emit, new_v, rh_view_rows(*v, v->rows - new_v.rows, new_v.rows));
}

/* The fp32 sums of the gradients of these keys, which = 0, and values, 1. */
static struct rh_view sums_of(const struct rh_emit *emit, struct rh_view k, int which)
{
	int64_t first = emit->shape.first + emit->shape.tokens - k.rows;
	char *base = emit->sums + which * emit->cache_rows * k.cols * 4;
	return rh_view_rows(rh_view_of(base, RH_F32, emit->cache_rows, k.cols), first, k.rows);
}

void attention_forward(struct rh_emit *emit, int layer, struct attention_parts in, struct rh_view o, struct rh_view lse)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	struct rh_op op = {.kind = RH_OP_ATTENTION};
	set_attention(emit, &emit->model->layer[layer].traits, &op);
	if (emit->shape.keys)
		append(emit, layer, &in.k, &in.v);
	set_dropout(emit, layer, in.k.rows, &op);
	op.operand[RH_ATTENTION_Q] = in.q;
	op.operand[RH_ATTENTION_K] = in.k;
	op.operand[RH_ATTENTION_V] = in.v;
	op.operand[RH_ATTENTION_START_Q] = emit_micro(emit, at.start_q, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_START_K] = emit_micro(emit, at.start_k, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_O] = o;
	op.operand[RH_ATTENTION_LSE] = lse;
	op.operand[RH_ATTENTION_SINK] = sinks_of(emit, layer);
	if (o.cols <= RH_AMAX_HEAD_DIM * lse.cols)
		op.operand[RH_ATTENTION_AMAX] = emit_amax(emit, o, o.cols, lse.cols);
	split_launch(emit->model, &op);
	emit_op(emit, &op);
}

/* The norm of each head's queries. */
static struct emit_norm norm_q(const struct rh_layer *layer)
{
	int64_t heads = layer->traits.heads, groups = is_gated(&layer->traits) ? 1 : norm_groups(&layer->traits, heads);
	return (struct emit_norm){layer, layer->own[RH_MIXER][Q_NORM], groups, norm_length(&layer->traits, heads), 0};
}

static struct emit_norm norm_k(const struct rh_layer *layer)
{
	int64_t heads = layer->traits.kv_heads;
	return (struct emit_norm){layer, layer->own[RH_MIXER][K_NORM], norm_groups(&layer->traits, heads),
	                          norm_length(&layer->traits, heads), 0};
}

/* Of each head's values, without a weight. */
static struct emit_norm norm_v(const struct rh_layer *layer)
{
	return (struct emit_norm){layer, -1, layer->traits.kv_heads, layer->traits.head_dim, 0};
}

/* Their statistics lie side by side, as the heads do. */
static struct emit_norm norm_qk(const struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	int64_t groups = norm_groups(traits, traits->heads) + norm_groups(traits, traits->kv_heads);
	groups += traits->norms_values ? traits->kv_heads : 0;
	groups = borrows(traits) ? norm_groups(traits, traits->heads) : groups;
	return (struct emit_norm){layer, layer->own[RH_MIXER][Q_NORM], groups, traits->head_dim, 0};
}

static struct rh_view stats_q(const struct rh_traits *traits, const struct rh_view *view)
{
	struct rh_view row = view[NORM_QK];
	return is_gated(traits) ? plane(row, 0, row.rows * traits->heads, 1) : rh_view_cols(row, 0, norm_groups(traits, traits->heads));
}

static struct rh_view stats_k(const struct rh_traits *traits, const struct rh_view *view)
{
	struct rh_view row = view[NORM_QK];
	return is_gated(traits) ? plane(row, row.rows * traits->heads, row.rows, traits->kv_heads)
	                        : rh_view_cols(row, norm_groups(traits, traits->heads), norm_groups(traits, traits->kv_heads));
}

static struct rh_view stats_v(const struct rh_traits *traits, const struct rh_view *view)
{
	return rh_view_cols(view[NORM_QK], norm_groups(traits, traits->heads) + norm_groups(traits, traits->kv_heads), traits->kv_heads);
}

/* 1: one op normalises heads and rotates them. */
static int fuses_norm_and_rope(const struct rh_traits *traits)
{
	return traits->qk_norm == RH_QK_NORM_HEADS && !traits->qk_norm_is_plain && !is_gated(traits) && emit_norm_is_rms(traits) &&
	       traits->rope >= 0 && traits->query_rope == traits->rope && traits->rotary == traits->head_dim && !traits->norms_values;
}

static void set_norm_and_rope(const struct rh_emit *emit, const struct rh_layer *layer, struct rh_op *op)
{
	const struct rh_traits *traits = &layer->traits;
	static_assert((int)RH_QK_ROPE_Q_W == RH_QK_ROPE_BACKWARD_Q_W && (int)RH_QK_ROPE_K_W == RH_QK_ROPE_BACKWARD_K_W, "in one place");
	op->qk_rope.heads = traits->heads;
	op->qk_rope.kv_heads = traits->kv_heads;
	op->qk_rope.epsilon = traits->epsilon;
	op->qk_rope.offset = emit_norm_offset(traits);
	op->operand[RH_QK_ROPE_Q_W] = emit_weight(emit, layer, 0, layer->own[RH_MIXER][Q_NORM], 1, traits->head_dim);
	op->operand[RH_QK_ROPE_K_W] = emit_weight(emit, layer, 0, layer->own[RH_MIXER][K_NORM], 1, traits->head_dim);
}

/* Rotates queries and keys for attention, after normalising them where the family does so. */
static void rotate(struct rh_emit *emit, const struct rh_layer *layer, const struct rh_view *view)
{
	const struct rh_traits *traits = &layer->traits;
	if (fuses_norm_and_rope(traits)) {
		struct rh_op op = {.kind = RH_OP_QK_ROPE};
		set_norm_and_rope(emit, layer, &op);
		op.operand[RH_QK_ROPE_X] = query_key(traits, view[QKV]);
		op.operand[RH_QK_ROPE_TABLE] = emit->ropes.table[traits->rope];
		op.operand[RH_QK_ROPE_Y] = view[QK];
		op.operand[RH_QK_ROPE_RSTD] = view[NORM_QK];
		emit_op(emit, &op);
		return;
	}
	struct attention_parts raw = split_qkv(traits, view[QKV]), in = attended(traits, view);
	if (borrows(traits)) {
		emit_norm(emit, norm_q(layer), raw.q, in.q, stats_q(traits, view));
		rope(emit, traits, traits->query_rope, in.q, 0, (struct rh_view){0});
		emit_cast(emit, emit_lane(emit, emit->side, traits->lane), keys_and_values(traits, view));
		return;
	}
	if (is_gated(traits)) {
		emit_norm(emit, norm_q(layer), raw.q, by_head(traits, in.q), stats_q(traits, view));
		emit_norm(emit, norm_k(layer), raw.k, in.k, stats_k(traits, view));
		rope(emit, traits, traits->query_rope, in.q, 0, (struct rh_view){0});
		rope(emit, traits, traits->rope, in.k, 0, (struct rh_view){0});
		return;
	}
	if (traits->qk_norm) {
		emit_norm(emit, norm_q(layer), raw.q, in.q, stats_q(traits, view));
		emit_norm(emit, norm_k(layer), raw.k, in.k, stats_k(traits, view));
	}
	if (traits->norms_values)
		emit_norm(emit, norm_v(layer), raw.v, in.v, stats_v(traits, view));
	rope_both(emit, traits, query_key(traits, traits->qk_norm ? view[QK] : view[QKV]), 0, (struct rh_view){0});
}

void attention_backward(struct rh_emit *emit, int layer, struct attention_made made, struct rh_view d_o, struct attention_parts in,
                        struct attention_parts out)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	const struct rh_layer *of = &emit->model->layer[layer];
	int64_t mark = emit->arena->used;
	struct rh_op op = {.kind = RH_OP_ATTENTION_BACKWARD};
	set_attention(emit, &of->traits, &op);
	if (emit->shape.keys) {
		carried(emit, layer, &in.k, &in.v);
		op.operand[RH_ATTENTION_BACKWARD_DK_SUM] = sums_of(emit, in.k, 0);
		op.operand[RH_ATTENTION_BACKWARD_DV_SUM] = sums_of(emit, in.k, 1);
	}
	set_dropout(emit, layer, in.k.rows, &op);
	op.operand[RH_ATTENTION_BACKWARD_Q] = in.q;
	op.operand[RH_ATTENTION_BACKWARD_K] = in.k;
	op.operand[RH_ATTENTION_BACKWARD_V] = in.v;
	op.operand[RH_ATTENTION_BACKWARD_START_Q] = emit_micro(emit, at.start_q, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_BACKWARD_START_K] = emit_micro(emit, at.start_k, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_BACKWARD_O] = made.o;
	op.operand[RH_ATTENTION_BACKWARD_LSE] = made.lse;
	op.operand[RH_ATTENTION_BACKWARD_DO] = d_o;
	op.operand[RH_ATTENTION_BACKWARD_DELTA] = emit_take(emit->arena, RH_F32, made.lse.rows, made.lse.cols);
	op.operand[RH_ATTENTION_BACKWARD_DQ] = out.q;
	op.operand[RH_ATTENTION_BACKWARD_DK] = out.k;
	op.operand[RH_ATTENTION_BACKWARD_DV] = out.v;
	op.operand[RH_ATTENTION_BACKWARD_SINK] = sinks_of(emit, layer);
	op.operand[RH_ATTENTION_BACKWARD_DSINK] = emit_gradient(emit, of, 0, of->own[RH_MIXER][SINKS], 1, of->traits.heads);
	if (emit->model->has_attention_space && emit->model->dtype == RH_BF16 && rh_attention_uses_space(of->traits.head_dim))
		op.operand[RH_ATTENTION_BACKWARD_SPACE] = emit_take(
		        emit->arena, RH_F32, rh_attention_space_rows(in.q.rows, op.attention.documents, of->traits.head_dim), in.q.cols);
	split_launch(emit->model, &op);
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}

static struct attention_made made_of(const struct rh_view *view)
{
	return (struct attention_made){view[OUT], view[LSE]};
}

/* The same where queries have gates, whose own gradients are there already. */
static void gated_qkv_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d_o, struct rh_view dqkv)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	int64_t mark = emit->arena->used;
	struct attention_parts raw = split_qkv(traits, view[QKV]), d = split_qkv(traits, dqkv), in = d;
	in.q = emit_act(emit, d_o.rows, d_o.cols);
	attention_backward(emit, index, made_of(view), d_o, attended(traits, view), in);
	rope(emit, traits, traits->query_rope, in.q, 1, (struct rh_view){0});
	rope(emit, traits, traits->rope, in.k, 1, (struct rh_view){0});
	emit_norm_backward(
	        emit, norm_q(layer),
	        &(struct emit_norm_gradient){.x = raw.q, .stats = stats_q(traits, view), .dy = by_head(traits, in.q), .dx = d.q});
	emit_norm_backward(emit, norm_k(layer),
	                   &(struct emit_norm_gradient){.x = raw.k, .stats = stats_k(traits, view), .dy = d.k, .dx = d.k});
	rh_arena_reset(emit->arena, mark);
}

/* The same where there are queries alone: the gradients of what is borrowed are added to those of other borrowers. */
static void q_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d_o, struct rh_view dq)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	int64_t mark = emit->arena->used, kv = traits->kv_heads * traits->head_dim;
	struct rh_view dkv = emit_act(emit, d_o.rows, 2 * kv), sum = emit_lane(emit, emit->d_side, traits->lane);
	attention_backward(emit, index, made_of(view), d_o, attended(traits, view),
	                   (struct attention_parts){dq, rh_view_cols(dkv, 0, kv), rh_view_cols(dkv, kv, kv)});
	emit_add(emit, sum, dkv, sum);
	rope(emit, traits, traits->query_rope, dq, 1, (struct rh_view){0});
	emit_norm_backward(emit, norm_q(layer),
	                   &(struct emit_norm_gradient){.x = view[QKV], .stats = stats_q(traits, view), .dy = dq, .dx = dq});
	rh_arena_reset(emit->arena, mark);
}

/* What is lent has the gradients of who borrowed it, too. */
static void add_borrowers(struct rh_emit *emit, const struct rh_traits *traits, struct attention_parts d)
{
	struct rh_view sum = emit_lane(emit, emit->d_side, traits->lane);
	emit_add(emit, d.k, rh_view_cols(sum, 0, d.k.cols), d.k);
	emit_add(emit, d.v, rh_view_cols(sum, d.k.cols, d.v.cols), d.v);
}

/* dqkv (T, q+2kv), before rope and before the norms of heads. */
static void qkv_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d_o, struct rh_view dqkv)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	struct attention_parts raw = split_qkv(traits, view[QKV]), d = split_qkv(traits, dqkv);
	int64_t mark = emit->arena->used;
	struct rh_view none = {0}, add = traits->values_are_keys ? d.k : none, dv = d.v;
	if (traits->values_are_keys)
		d.v = emit_act(emit, d.k.rows, d.k.cols);
	attention_backward(emit, index, made_of(view), d_o, attended(traits, view), d);
	if (traits->keys == RH_KEYS_LENT)
		add_borrowers(emit, traits, d);
	struct rh_view dqk = query_key(traits, dqkv);
	if (fuses_norm_and_rope(traits)) {
		struct rh_op op = {.kind = RH_OP_QK_ROPE_BACKWARD};
		set_norm_and_rope(emit, layer, &op);
		op.operand[RH_QK_ROPE_BACKWARD_X] = query_key(traits, view[QKV]);
		op.operand[RH_QK_ROPE_BACKWARD_RSTD] = view[NORM_QK];
		op.operand[RH_QK_ROPE_BACKWARD_TABLE] = emit->ropes.table[traits->rope];
		op.operand[RH_QK_ROPE_BACKWARD_DY] = op.operand[RH_QK_ROPE_BACKWARD_DX] = dqk;
		op.operand[RH_QK_ROPE_BACKWARD_DQ_W] = emit_gradient(emit, layer, 0, layer->own[RH_MIXER][Q_NORM], 1, traits->head_dim);
		op.operand[RH_QK_ROPE_BACKWARD_DK_W] = emit_gradient(emit, layer, 0, layer->own[RH_MIXER][K_NORM], 1, traits->head_dim);
		op.operand[RH_QK_ROPE_BACKWARD_AMAX] = emit_amax(emit, dqkv, dqk.cols, traits->heads + traits->kv_heads);
		emit_op(emit, &op);
		return;
	}
	rope_both(emit, traits, dqk, 1, traits->qk_norm ? none : dqkv);
	if (!traits->qk_norm)
		return;
	emit_norm_backward(emit, norm_q(layer),
	                   &(struct emit_norm_gradient){.x = raw.q, .stats = stats_q(traits, view), .dy = d.q, .dx = d.q});
	emit_norm_backward(emit, norm_k(layer),
	                   &(struct emit_norm_gradient){.x = raw.k, .stats = stats_k(traits, view), .dy = d.k, .dx = d.k});
	if (traits->norms_values)
		emit_norm_backward(
		        emit, norm_v(layer),
		        &(struct emit_norm_gradient){.x = raw.v, .stats = stats_v(traits, view), .dy = d.v, .add = add, .dx = dv});
	rh_arena_reset(emit->arena, mark);
}

static void declare(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	int64_t tokens = emit->shape.tokens, q = traits->heads * traits->head_dim, kv = traits->kv_heads * traits->head_dim;
	int64_t own = borrows(traits) ? 0 : traits->values_are_keys ? 1 : 2, wide = q + own * kv + (is_gated(traits) ? q : 0);
	int64_t normed = q + kv + (traits->norms_values ? kv : 0);
	enum rh_dtype act = emit->model->dtype;
	enum rh_maker mixer = RH_MAKER_MIXER;
	rh_row_set ropes = RH_ROW_RUN(RH_ROW_ROPE, RH_ROPES), qkv = RH_ROW_SET(QKV),
	           attended = traits->qk_norm ? qkv | RH_ROW_SET(QK) : qkv;
	int out_is_deferred = emit->deferred && learns(emit, index, HALF_OUTPUT);
	int d_qkv_is_deferred = emit->deferred && learns(emit, index, HALF_INPUT);
	emit_row(table, LSE, RH_F32, tokens, traits->heads, (struct emit_origin){mixer, attended, 0});
	emit_row(table, QKV, act, tokens, wide, (struct emit_origin){mixer, RH_ROW_SET(RH_ROW_X) | ropes, 0});
	if (traits->qk_norm) {
		int64_t stats = emit_norm_stats_cols(norm_qk(layer)); /* of gated attention all of the two planes, too */
		emit_row(table, QK, act, tokens, normed, (struct emit_origin){mixer, qkv | ropes, 0});
		if (traits->keys)
			emit_row_side(table, borrows(traits) ? RH_SIDE_FROM : RH_SIDE_TO);
		emit_row(table, NORM_QK, RH_F32, tokens, stats, (struct emit_origin){mixer, qkv | ropes, 0});
	}
	emit_row(table, OUT, act, tokens, q, (struct emit_origin){mixer, attended, out_is_deferred && !has_gates(traits)});
	emit_row(table, D_QKV, act, tokens, wide, (struct emit_origin){RH_MAKER_BACKWARD, 0, d_qkv_is_deferred});
	if (has_gates(traits)) /* the input of O */
		emit_row(table, GATED, act, tokens, q, (struct emit_origin){RH_MAKER_BACKWARD, 0, out_is_deferred});
	if (!is_side_gated(traits))
		return;
	emit_row(table, GATE, act, tokens, q, (struct emit_origin){mixer, RH_ROW_SET(RH_ROW_X), 0});
	emit_row(table, D_GATE, act, tokens, q, (struct emit_origin){RH_MAKER_BACKWARD, 0, d_qkv_is_deferred});
}

static void project(struct rh_emit *emit, int index, struct rh_view x, const struct rh_activations *s)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view qkv = emit_wanted(s, QKV), none = {0};
	int wants = emit_wants(s, RH_ROW_SET(QKV)) || emit_wants_low(s, qkv_of(index));
	int64_t mark = emit->arena->used;
	if (has_gates(traits) && (qkv.data || emit_wanted(s, GATE).data))
		mark = emit_share_input(emit, x, 0);
	if (is_side_gated(traits) && (emit_wants(s, RH_ROW_SET(GATE)) || emit_wants_low(s, side_of(index))))
		emit_linear(emit, side_of(index), x, none, emit_wanted(s, GATE), s);
	if (wants && !is_gated(traits))
		emit_linear(emit, qkv_of(index), x, none, qkv, s);
	if (wants && is_gated(traits)) {
		emit_linear(emit, q_of(index), x, none, qkv.data ? q_plane(traits, qkv) : none, s);
		emit_linear(emit, kv_of(index), x, none, qkv.data ? kv_plane(traits, qkv) : none, s);
	}
	emit_unshare_input(emit, mark);
}

/* The input of O, in the arena where it is not the output of attention. */
static struct rh_view gate(struct rh_emit *emit, int index, const struct rh_view *view)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_op op = {.kind = RH_OP_GATE, .gate.f = RH_GATE_SIGMOID};
	if (!has_gates(traits))
		return view[OUT];
	struct rh_view y = emit_act(emit, view[OUT].rows, view[OUT].cols);
	op.operand[RH_GATE_X] = by_head(traits, view[OUT]);
	op.operand[RH_GATE_Z] = is_gated(traits) ? gated_part(traits, view[QKV], 1) : by_head(traits, view[GATE]);
	op.operand[RH_GATE_Y] = by_head(traits, y);
	emit_op(emit, &op);
	return y;
}

/* d_o, of what the gate made, becomes that of attention's output; gated: what the gate made; d_gate receives the gates' gradients: dqkv,
 * or of side-gated attention their own. */
static void gate_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d_o, struct rh_view gated,
                          struct rh_view d_gate)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_op op = {.kind = RH_OP_GATE_BACKWARD, .gate.f = RH_GATE_SIGMOID};
	op.operand[RH_GATE_BACKWARD_X] = by_head(traits, view[OUT]);
	op.operand[RH_GATE_BACKWARD_Z] = is_gated(traits) ? gated_part(traits, view[QKV], 1) : by_head(traits, view[GATE]);
	op.operand[RH_GATE_BACKWARD_DY] = op.operand[RH_GATE_BACKWARD_DX] = by_head(traits, d_o);
	op.operand[RH_GATE_BACKWARD_DZ] = is_gated(traits) ? gated_part(traits, d_gate, 1) : by_head(traits, d_gate);
	op.operand[RH_GATE_BACKWARD_Y] = by_head(traits, gated);
	emit_op(emit, &op);
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	rh_row_set rotated = layer->traits.qk_norm ? RH_ROW_SET(QK) | RH_ROW_SET(NORM_QK) : RH_ROW_SET(QKV);
	project(emit, index, x, s);
	if (emit_wants(s, rotated))
		rotate(emit, layer, s->view);
	if (emit_wants(s, RH_ROW_SET(OUT) | RH_ROW_SET(LSE)))
		attention_forward(emit, index, attended(&layer->traits, s->view), s->view[OUT], s->view[LSE]);
	if (!y.data && !emit_wants_low(s, o_of(index)))
		return NULL;
	return emit_linear_apart(emit, o_of(index), gate(emit, index, s->view), residual, y, s);
}

static void lend(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	emit_cast(emit, keys_and_values(traits, s->view), emit_lane(emit, emit->side, traits->lane));
}

void attention_carry(struct rh_emit *emit, int index, struct attention_parts in)
{
	int64_t rows = in.k.rows;
	append(emit, index, &in.k, &in.v);
	for (int which = 0; which < 2; which++)
		emit_fill(emit, rh_view_rows(sums_of(emit, in.k, which), in.k.rows - rows, rows));
}

static void carry(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	attention_carry(emit, index, attended(&emit->model->layer[index].traits, s->view));
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view dqkv = emit_operand(emit, s, D_QKV), out = s->view[OUT];
	struct rh_view d_gate = is_side_gated(traits) ? emit_operand(emit, s, D_GATE) : dqkv;
	int64_t mark = emit->arena->used;
	struct rh_view d_o = emit_act(emit, out.rows, out.cols);
	emit_linear_dx(emit, o_of(index), dy, d_o, s);
	if (has_gates(traits)) {
		out = emit_operand(emit, s, GATED);
		gate_backward(emit, index, s->view, d_o, out, d_gate);
	}
	emit_linear_gradients(emit, o_of(index), dy, out, s);
	if (is_gated(traits)) {
		gated_qkv_backward(emit, index, s->view, d_o, dqkv);
		rh_arena_reset(emit->arena, mark);
		emit_linear_dx(emit, q_of(index), q_plane(traits, dqkv), dx, s);
		emit_linear_more_dx(emit, kv_of(index), kv_plane(traits, dqkv), dx, s);
		return;
	}
	if (borrows(traits))
		q_backward(emit, index, s->view, d_o, dqkv);
	else
		qkv_backward(emit, index, s->view, d_o, dqkv);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, qkv_of(index), dqkv, dx, s);
	if (is_side_gated(traits))
		emit_linear_more_dx(emit, side_of(index), d_gate, dx, s);
}

/* Of the linears that read x. */
static void input_gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view dqkv = s->view[D_QKV];
	int64_t mark = emit->arena->used;
	if (has_gates(traits) && emit->model->block[emit->model->layer[index].block[0]].trainable)
		mark = emit_share_input(emit, x, 1);
	if (is_gated(traits)) {
		emit_linear_dw(emit, q_of(index), q_plane(traits, dqkv), x, s);
		emit_linear_dw(emit, kv_of(index), kv_plane(traits, dqkv), x, s);
	} else {
		emit_linear_dw(emit, qkv_of(index), dqkv, x, s);
	}
	if (is_side_gated(traits))
		emit_linear_dw(emit, side_of(index), s->view[D_GATE], x, s);
	emit_unshare_input(emit, mark);
}

static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	if (!emit->deferred)
		input_gradients(emit, index, s, x);
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	int input = has_gates(traits) ? GATED : OUT;
	emit_linear_dw(emit, o_of(index), s->view[RH_ROW_GRADIENT + RH_MIXER], s->view[input], s);
	input_gradients(emit, index, s, s->view[RH_ROW_INPUT + RH_MIXER]);
}

#define ATTENTION(more, of_what)                                                                                                           \
	{                                                                                                                                  \
		.size = size, .place = place, .carries = attention_carries,                                                                \
		.to_carry = RH_ROW_SET(QKV) | RH_ROW_RUN(RH_ROW_LOW + RH_PROJ_Q, 3) | RH_ROW_SET(QK) | RH_ROW_SET(NORM_QK),                \
		.carry = carry, .lend = lend, .of_side = RH_ROW_SET(QK),                                                                   \
		.of_input = RH_ROW_SET(QKV) | RH_ROW_RUN(RH_ROW_LOW + RH_PROJ_Q, 3) | (more), .of_output = of_what, .declare = declare,    \
		.learns = learns, .forward = forward, .backward = backward, .gradients = gradients, .weights = weights                     \
	}
const struct rh_half half_attention = ATTENTION(0, RH_ROW_SET(OUT));
const struct rh_half half_gated_attention = ATTENTION(0, RH_ROW_SET(OUT) | RH_ROW_SET(QKV));
const struct rh_half half_side_gated_attention =
        ATTENTION(RH_ROW_SET(GATE) | RH_ROW_SET(RH_ROW_LOW + RH_PROJ_FIFTH), RH_ROW_SET(OUT) | RH_ROW_SET(GATE));
