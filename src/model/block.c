/* A transformer layer:
 *   x2 = x + O(attention(rope(norm_q(Q h)), rope(norm_k(K h)), V h)),  h = norm1(x)
 *   y  = x2 + Down(act(Gate h2) * Up h2),                             h2 = norm2(x2)
 * or with norms behind the sums instead, x2 = norm1(x + O(...)), y = norm2(x2 + Down(...)); with a norm behind O and Down too where the
 * residual is a sandwich; without Gate where the MLP has none, Down(act(Up h2)); or, of a mixture of experts, y = x2 + the sum of weight_j
 * Down_j(act(Gate_j h2) * Up_j h2) over the experts chosen (moe.c).
 * Kept for the backward: qkv, o, lse, x2, gate|up and the norms' rstd; h, h2 and act(gate)*up are made again on the way. Where weight
 * gradients are deferred, both operands of each lie apart, in emit->deferred: those of a product's input and of its output's gradient. */
#include "model/emit_internal.h"

#include <assert.h>

static struct emit_linears joint(int layer, enum rh_joint which)
{
	return (struct emit_linears){layer, (int)rh_joints[which].first, rh_joints[which].count};
}

struct parts {
	struct rh_view q, k, v;
};

static struct parts split_qkv(const struct rh_traits *traits, struct rh_view qkv)
{
	int64_t q = traits->heads * traits->head_dim, kv = traits->kv_heads * traits->head_dim;
	struct parts parts = {rh_view_cols(qkv, 0, q), rh_view_cols(qkv, q, kv), rh_view_cols(qkv, q + kv, kv)};
	return parts;
}

/* The operands of attention: where q and k are normalised, the results lie apart from the norms' inputs. */
static struct parts attended(const struct rh_traits *traits, const struct rh_saved *s)
{
	struct parts parts = split_qkv(traits, s->qkv);
	if (traits->qk_norm) {
		parts.q = rh_view_cols(s->qk, 0, parts.q.cols);
		parts.k = rh_view_cols(s->qk, parts.q.cols, parts.k.cols);
	}
	return parts;
}

/* Query and key heads, which lie side by side. */
static struct rh_view query_key(const struct rh_traits *traits, struct rh_view qkv)
{
	return rh_view_cols(qkv, 0, (traits->heads + traits->kv_heads) * traits->head_dim);
}

static void rope(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view x, const struct rh_ropes *ropes, int inverse)
{
	struct rh_op op = {.kind = RH_OP_ROPE};
	if (traits->rope < 0)
		return;
	op.operand[RH_ROPE_X] = x;
	op.operand[RH_ROPE_TABLE_IN] = ropes->table[traits->rope];
	op.rope.heads = x.cols / traits->head_dim;
	op.rope.inverse = inverse;
	emit_op(emit, &op);
}

static struct rh_op attention_op(const struct rh_emit *emit, int layer, enum rh_op_kind kind)
{
	const struct rh_traits *traits = &emit->model->layer[layer].traits;
	struct rh_op op = {.kind = kind};
	op.attention.heads = traits->heads;
	op.attention.kv_heads = traits->kv_heads;
	op.attention.documents = emit->shape.documents;
	op.attention.longest = emit->shape.longest;
	op.attention.window = traits->window;
	op.attention.scale = traits->scale;
	op.attention.direction = traits->direction;
	return op;
}

static struct rh_view sinks_of(const struct rh_emit *emit, int layer)
{
	const struct rh_layer *of = &emit->model->layer[layer];
	return emit_weight(emit, of, 0, of->sinks, 1, of->traits.heads);
}

/* With a cache: appends the new keys and values, and makes attention read all of them. */
static void append_to_cache(struct rh_emit *emit, int layer, struct rh_view *k, struct rh_view *v)
{
	int64_t bytes = rh_dtype_bytes(k->dtype, emit->cache_rows * k->cols), first = emit->shape.keys - k->rows;
	char *base = emit->cache + rh_dtype_bytes(k->dtype, emit->cache_rows * emit->model->layer[layer].cache_column);
	struct rh_view keys = rh_view_of(base, k->dtype, emit->shape.keys, k->cols);
	struct rh_view values = rh_view_of(base + bytes, k->dtype, emit->shape.keys, k->cols);
	emit_cast(emit, *k, rh_view_rows(keys, first, k->rows));
	emit_cast(emit, *v, rh_view_rows(values, first, v->rows));
	*k = keys;
	*v = values;
}

static void attention(struct rh_emit *emit, int layer, struct parts in, struct rh_view o, struct rh_view lse)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	struct rh_op op = attention_op(emit, layer, RH_OP_ATTENTION);
	if (emit->shape.keys)
		append_to_cache(emit, layer, &in.k, &in.v);
	op.operand[RH_ATTENTION_Q] = in.q;
	op.operand[RH_ATTENTION_K] = in.k;
	op.operand[RH_ATTENTION_V] = in.v;
	op.operand[RH_ATTENTION_START_Q] = emit_micro(emit, at.start_q, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_START_K] = emit_micro(emit, at.start_k, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_O] = o;
	op.operand[RH_ATTENTION_LSE] = lse;
	op.operand[RH_ATTENTION_SINK] = sinks_of(emit, layer);
	emit_op(emit, &op);
}

/* Where the operands of weight gradients go that are kept from the recompute on: where the others do, unless they are deferred. */
static struct rh_arena *operands(const struct rh_emit *emit, struct rh_arena *arena, struct emit_linears which)
{
	struct rh_arena *deferred = emit_linear_operands(emit, which);
	return deferred == emit->arena ? arena : deferred;
}

/* The norm of each head's queries. */
static struct emit_norm norm_q(const struct rh_layer *layer)
{
	return (struct emit_norm){layer, layer->q_norm, layer->traits.heads, layer->traits.head_dim};
}

static struct emit_norm norm_k(const struct rh_layer *layer)
{
	return (struct emit_norm){layer, layer->k_norm, layer->traits.kv_heads, layer->traits.head_dim};
}

/* Their statistics lie side by side, as the heads do. */
static struct emit_norm norm_qk(const struct rh_layer *layer)
{
	return (struct emit_norm){layer, layer->q_norm, layer->traits.heads + layer->traits.kv_heads, layer->traits.head_dim};
}

static struct rh_view stats_q(const struct rh_traits *traits, const struct rh_saved *s)
{
	return rh_view_cols(s->norm_qk, 0, traits->heads);
}

static struct rh_view stats_k(const struct rh_traits *traits, const struct rh_saved *s)
{
	return rh_view_cols(s->norm_qk, traits->heads, traits->kv_heads);
}

/* 1: one op normalises heads and rotates them. */
static int fuses_norm_and_rope(const struct rh_traits *traits)
{
	return traits->qk_norm && emit_norm_is_rms(traits) && traits->rope >= 0 && traits->rotary == traits->head_dim;
}

static void take_saved(const struct rh_emit *emit, struct rh_arena *arena, int index, struct rh_view x, struct rh_saved *saved)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	enum rh_dtype act = emit->model->dtype;
	int64_t tokens = emit->shape.tokens, heads = traits->heads, kv_heads = traits->kv_heads;
	int64_t q = heads * traits->head_dim, kv = kv_heads * traits->head_dim;
	*saved = (struct rh_saved){.x = x};
	for (int n = 0; n < RH_NORMS; n++)
		if (layer->norm[n] >= 0)
			saved->norm[n] = emit_norm_stats(arena, emit_norm_of(emit, index, (enum rh_norm_place)n), tokens);
	if (traits->residual != RH_RESIDUAL_PRE) {
		saved->attended = emit_take(arena, act, tokens, layer->width);
		saved->transformed = emit_take(arena, act, tokens, layer->width);
	}
	saved->lse = emit_take(arena, RH_F32, tokens, heads);
	saved->qkv = emit_take(arena, act, tokens, q + 2 * kv);
	if (traits->qk_norm) {
		saved->qk = emit_take(arena, act, tokens, q + kv);
		saved->norm_qk = emit_norm_stats(arena, norm_qk(layer), tokens);
	}
	saved->o = emit_take(operands(emit, arena, joint(index, RH_JOINT_O)), act, tokens, q);
	int feeds = traits->residual == RH_RESIDUAL_POST; /* the MLP itself */
	saved->x2 = emit_take(feeds ? operands(emit, arena, joint(index, RH_JOINT_GATE_UP)) : arena, act, tokens, layer->width);
	int64_t rows = traits->experts ? tokens * traits->experts_per_token : tokens;
	saved->gu = emit_take(operands(emit, arena, joint(index, RH_JOINT_GATE_UP)), act, rows,
	                      (traits->ungated ? 1 : 2) * traits->intermediate);
	if (traits->experts)
		emit_experts_keep(emit, arena, index, saved);
	for (int p = 0; p < RH_PROJS; p++)
		if (layer->proj[p].r)
			saved->low[p] = emit_take(emit->deferred ? emit->deferred : arena, act, tokens, layer->proj[p].r);
}

static struct rh_op norm_and_rope(const struct rh_emit *emit, const struct rh_layer *layer, enum rh_op_kind kind)
{
	const struct rh_traits *traits = &layer->traits;
	struct rh_view q_w = emit_weight(emit, layer, 0, layer->q_norm, 1, traits->head_dim);
	struct rh_view k_w = emit_weight(emit, layer, 0, layer->k_norm, 1, traits->head_dim);
	struct rh_op op = {.kind = kind, .qk_rope = {traits->heads, traits->kv_heads, traits->epsilon, emit_norm_offset(traits)}};
	static_assert((int)RH_QK_ROPE_Q_W == RH_QK_ROPE_BACKWARD_Q_W && (int)RH_QK_ROPE_K_W == RH_QK_ROPE_BACKWARD_K_W, "in one place");
	op.operand[RH_QK_ROPE_Q_W] = q_w;
	op.operand[RH_QK_ROPE_K_W] = k_w;
	return op;
}

/* Rotates queries and keys for attention, after normalising them where the family does so. */
static void rotate(struct rh_emit *emit, const struct rh_layer *layer, const struct rh_ropes *ropes, const struct rh_saved *s)
{
	const struct rh_traits *traits = &layer->traits;
	if (fuses_norm_and_rope(traits)) {
		struct rh_op op = norm_and_rope(emit, layer, RH_OP_QK_ROPE);
		op.operand[RH_QK_ROPE_X] = query_key(traits, s->qkv);
		op.operand[RH_QK_ROPE_TABLE] = ropes->table[traits->rope];
		op.operand[RH_QK_ROPE_Y] = s->qk;
		op.operand[RH_QK_ROPE_RSTD] = s->norm_qk;
		emit_op(emit, &op);
		return;
	}
	struct parts raw = split_qkv(traits, s->qkv), in = attended(traits, s);
	if (traits->qk_norm) {
		emit_norm(emit, norm_q(layer), raw.q, in.q, stats_q(traits, s));
		emit_norm(emit, norm_k(layer), raw.k, in.k, stats_k(traits, s));
	}
	rope(emit, traits, traits->qk_norm ? s->qk : query_key(traits, s->qkv), ropes, 0);
}

/* x2 = x + O(o), h = its norm. */
static void upper_norm(struct rh_emit *emit, int index, struct rh_view x, struct rh_view h, const struct rh_saved *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct emit_norm norm = emit_norm_of(emit, index, RH_NORM_MLP);
	int64_t mark = emit->arena->used;
	struct rh_view sum = emit_linear_apart(emit, joint(index, RH_JOINT_O), s->o, x, s->x2, s->low);
	if (sum.data && emit_norm_is_rms(&layer->traits)) {
		struct rh_op op = {.kind = RH_OP_ADD_RMSNORM,
		                   .qk_rope = {.epsilon = layer->traits.epsilon, .offset = emit_norm_offset(&layer->traits)}};
		op.operand[RH_ADD_RMSNORM_A] = x;
		op.operand[RH_ADD_RMSNORM_B] = sum;
		op.operand[RH_ADD_RMSNORM_W] = emit_weight(emit, layer, 0, norm.tensor, 1, norm.length);
		op.operand[RH_ADD_RMSNORM_SUM] = s->x2;
		op.operand[RH_ADD_RMSNORM_Y] = h;
		op.operand[RH_ADD_RMSNORM_RSTD] = s->norm[RH_NORM_MLP];
		emit_op(emit, &op);
	} else {
		if (sum.data)
			emit_add(emit, x, sum, s->x2);
		emit_norm(emit, norm, s->x2, h, s->norm[RH_NORM_MLP]);
	}
	rh_arena_reset(emit->arena, mark);
}

/* y = residual + what the MLP makes of h. */
static void mlp(struct rh_emit *emit, int index, struct rh_view h, struct rh_view residual, struct rh_view y, struct rh_saved *s)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	emit_linear(emit, joint(index, RH_JOINT_GATE_UP), h, (struct rh_view){0}, s->gu, s->low);
	if (!y.data && !emit->model->layer[index].proj[RH_PROJ_DOWN].r)
		return;
	struct rh_view a = emit_act(emit, s->gu.rows, traits->intermediate);
	emit_mlp_activation(emit, traits, s->gu, a);
	emit_linear(emit, joint(index, RH_JOINT_DOWN), a, residual, y, s->low);
}

/* y = residual + the norm of what a half of the layer made; y absent: only the norm's statistics are wanted. */
static void add_normed(struct rh_emit *emit, int index, enum rh_norm_place place, struct rh_view made, struct rh_view residual,
                       struct rh_view y, const struct rh_saved *s)
{
	int64_t mark = emit->arena->used;
	struct rh_view normed = emit_act(emit, made.rows, made.cols);
	emit_norm(emit, emit_norm_of(emit, index, place), made, normed, s->norm[place]);
	if (y.data)
		emit_add(emit, residual, normed, y);
	rh_arena_reset(emit->arena, mark);
}

void emit_block(struct rh_emit *emit, int index, const struct rh_ropes *ropes, struct rh_view x, struct rh_view y, struct rh_saved *keep)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	struct rh_saved local, *s = keep ? keep : &local;
	int64_t outer = emit->arena->used;
	take_saved(emit, keep ? emit->saved : emit->arena, index, x, s);
	int64_t inner = emit->arena->used;

	struct rh_view h = emit_act(emit, emit->shape.tokens, layer->width);
	int is_post = traits->residual == RH_RESIDUAL_POST;
	if (!is_post)
		emit_norm(emit, emit_norm_of(emit, index, RH_NORM_ATTENTION), x, h, s->norm[RH_NORM_ATTENTION]);
	emit_linear(emit, joint(index, RH_JOINT_QKV), is_post ? x : h, (struct rh_view){0}, s->qkv, s->low);
	rotate(emit, layer, ropes, s);
	attention(emit, index, attended(traits, s), s->o, s->lse);
	if (is_post) {
		emit_linear(emit, joint(index, RH_JOINT_O), s->o, x, s->attended, s->low);
		emit_norm(emit, emit_norm_of(emit, index, RH_NORM_AFTER_ATTENTION), s->attended, s->x2, s->norm[RH_NORM_AFTER_ATTENTION]);
	} else if (traits->residual == RH_RESIDUAL_SANDWICH) {
		emit_linear(emit, joint(index, RH_JOINT_O), s->o, (struct rh_view){0}, s->attended, s->low);
		add_normed(emit, index, RH_NORM_AFTER_ATTENTION, s->attended, x, s->x2, s);
		emit_norm(emit, emit_norm_of(emit, index, RH_NORM_MLP), s->x2, h, s->norm[RH_NORM_MLP]);
	} else {
		upper_norm(emit, index, x, h, s);
	}
	if (traits->experts) {
		emit_experts(emit, index, h, y, s);
	} else if (is_post) {
		mlp(emit, index, s->x2, s->x2, s->transformed, s);
		emit_norm(emit, emit_norm_of(emit, index, RH_NORM_AFTER_MLP), s->transformed, y.data ? y : h, s->norm[RH_NORM_AFTER_MLP]);
	} else if (traits->residual == RH_RESIDUAL_SANDWICH) {
		mlp(emit, index, h, (struct rh_view){0}, s->transformed, s);
		add_normed(emit, index, RH_NORM_AFTER_MLP, s->transformed, s->x2, y, s);
	} else {
		mlp(emit, index, h, s->x2, y, s);
	}
	rh_arena_reset(emit->arena, keep ? inner : outer);
}

/* The weight gradients of projections that share a product: computed now, or their operands are kept. */
static void accumulate_gradients(struct rh_emit *emit, int index, enum rh_joint which, struct rh_view dy, struct rh_view x,
                                 struct rh_saved *s)
{
	if (!emit->deferred)
		emit_linear_dw(emit, joint(index, which), dy, x, s->low, s->d_low);
	s->deferred[which].dy = dy;
	s->deferred[which].x = x;
}

/* Norms behind the halves: a gradient goes through one before it reaches what a half made. */
static int has_norms_behind(const struct rh_emit *emit, int index)
{
	return emit->model->layer[index].traits.residual != RH_RESIDUAL_PRE;
}

static int is_post(const struct rh_emit *emit, int index)
{
	return emit->model->layer[index].traits.residual == RH_RESIDUAL_POST;
}

/* An operand of a weight gradient. */
static struct rh_view operand(struct rh_emit *emit, int index, enum rh_joint which, int64_t cols)
{
	return emit_take(emit_linear_operands(emit, joint(index, which)), emit->model->dtype, emit->shape.tokens, cols);
}

/* dgu, then dh2. */
static void mlp_backward(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view dy, struct rh_view dh2)
{
	int64_t mark = emit->arena->used;
	/* first its gradient, then the activation itself */
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view a = operand(emit, index, RH_JOINT_DOWN, traits->intermediate);
	emit_linear_dx(emit, joint(index, RH_JOINT_DOWN), dy, a, s->d_low);
	emit_mlp_activation_backward(emit, traits, s->gu, a);
	accumulate_gradients(emit, index, RH_JOINT_DOWN, dy, a, s);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, joint(index, RH_JOINT_GATE_UP), s->gu, dh2, s->d_low);
}

/* The gradient of what a half of the layer made, of that behind its norm: `of` says which product it is an operand of. */
static struct rh_view norm_backward(struct rh_emit *emit, int index, enum rh_norm_place place, enum rh_joint of, struct rh_view made,
                                    struct rh_view dy, const struct rh_saved *s)
{
	struct rh_view d = operand(emit, index, of, made.cols);
	emit_norm_backward(emit, emit_norm_of(emit, index, place),
	                   &(struct emit_norm_gradient){.x = made, .stats = s->norm[place], .dy = dy, .dx = d});
	return d;
}

/* dx2 = dy + what comes back through the MLP and its norm; `dx2` (T,H) is the caller's. */
static void upper_half_backward(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view dy, struct rh_view dx2)
{
	int64_t experts = emit->model->layer[index].traits.experts, mark = emit->arena->used;
	struct rh_view d = dy;
	if (has_norms_behind(emit, index))
		d = norm_backward(emit, index, RH_NORM_AFTER_MLP, RH_JOINT_DOWN, s->transformed, dy, s);
	if (experts)
		emit_experts_backward(emit, index, s, d, dx2);
	else
		mlp_backward(emit, index, s, d, dx2);
	if (is_post(emit, index)) { /* x2 is the MLP's input, and d the gradient of its residual */
		emit_add(emit, dx2, d, dx2);
		accumulate_gradients(emit, index, RH_JOINT_GATE_UP, s->gu, s->x2, s);
		rh_arena_reset(emit->arena, mark);
		return;
	}
	struct rh_view h2 = operand(emit, index, RH_JOINT_GATE_UP, emit->model->layer[index].width);
	emit_norm_backward(
	        emit, emit_norm_of(emit, index, RH_NORM_MLP),
	        &(struct emit_norm_gradient){.x = s->x2, .stats = s->norm[RH_NORM_MLP], .dy = dx2, .add = dy, .dx = dx2, .y = h2});
	if (experts)
		emit_experts_gradients(emit, index, s, h2);
	else
		accumulate_gradients(emit, index, RH_JOINT_GATE_UP, s->gu, h2, s);
	rh_arena_reset(emit->arena, mark);
}

static void attention_backward(struct rh_emit *emit, int layer, const struct rh_saved *s, struct rh_view d_o, struct parts in,
                               struct parts out)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	const struct rh_layer *of = &emit->model->layer[layer];
	int64_t mark = emit->arena->used;
	struct rh_op op = attention_op(emit, layer, RH_OP_ATTENTION_BACKWARD);
	op.operand[RH_ATTENTION_BACKWARD_Q] = in.q;
	op.operand[RH_ATTENTION_BACKWARD_K] = in.k;
	op.operand[RH_ATTENTION_BACKWARD_V] = in.v;
	op.operand[RH_ATTENTION_BACKWARD_START_Q] = emit_micro(emit, at.start_q, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_BACKWARD_START_K] = emit_micro(emit, at.start_k, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_BACKWARD_O] = s->o;
	op.operand[RH_ATTENTION_BACKWARD_LSE] = s->lse;
	op.operand[RH_ATTENTION_BACKWARD_DO] = d_o;
	op.operand[RH_ATTENTION_BACKWARD_DELTA] = emit_take(emit->arena, RH_F32, s->lse.rows, s->lse.cols);
	op.operand[RH_ATTENTION_BACKWARD_DQ] = out.q;
	op.operand[RH_ATTENTION_BACKWARD_DK] = out.k;
	op.operand[RH_ATTENTION_BACKWARD_DV] = out.v;
	op.operand[RH_ATTENTION_BACKWARD_SINK] = sinks_of(emit, layer);
	op.operand[RH_ATTENTION_BACKWARD_DSINK] = emit_gradient(emit, of, 0, of->sinks, 1, of->traits.heads);
	if (emit->model->has_attention_space && emit->model->dtype == RH_BF16 && rh_attention_uses_space(of->traits.head_dim))
		op.operand[RH_ATTENTION_BACKWARD_SPACE] = emit_take(
		        emit->arena, RH_F32, rh_attention_space_rows(in.q.rows, op.attention.documents, of->traits.head_dim), in.q.cols);
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}

/* dqkv (T, q+2kv), before rope and before the q and k norms. */
static void qkv_backward(struct rh_emit *emit, int index, const struct rh_ropes *ropes, const struct rh_saved *s, struct rh_view d_o,
                         struct rh_view dqkv)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_traits *traits = &layer->traits;
	struct parts raw = split_qkv(traits, s->qkv), d = split_qkv(traits, dqkv);
	attention_backward(emit, index, s, d_o, attended(traits, s), d);
	struct rh_view dqk = query_key(traits, dqkv);
	if (fuses_norm_and_rope(traits)) {
		struct rh_op op = norm_and_rope(emit, layer, RH_OP_QK_ROPE_BACKWARD);
		op.operand[RH_QK_ROPE_BACKWARD_X] = query_key(traits, s->qkv);
		op.operand[RH_QK_ROPE_BACKWARD_RSTD] = s->norm_qk;
		op.operand[RH_QK_ROPE_BACKWARD_TABLE] = ropes->table[traits->rope];
		op.operand[RH_QK_ROPE_BACKWARD_DY] = op.operand[RH_QK_ROPE_BACKWARD_DX] = dqk;
		op.operand[RH_QK_ROPE_BACKWARD_DQ_W] = emit_gradient(emit, layer, 0, layer->q_norm, 1, traits->head_dim);
		op.operand[RH_QK_ROPE_BACKWARD_DK_W] = emit_gradient(emit, layer, 0, layer->k_norm, 1, traits->head_dim);
		emit_op(emit, &op);
		return;
	}
	rope(emit, traits, dqk, ropes, 1);
	if (!traits->qk_norm)
		return;
	emit_norm_backward(emit, norm_q(layer),
	                   &(struct emit_norm_gradient){.x = raw.q, .stats = stats_q(traits, s), .dy = d.q, .dx = d.q});
	emit_norm_backward(emit, norm_k(layer),
	                   &(struct emit_norm_gradient){.x = raw.k, .stats = stats_k(traits, s), .dy = d.k, .dx = d.k});
}

void emit_block_backward(struct rh_emit *emit, int index, const struct rh_ropes *ropes, struct rh_saved *s, struct rh_view dy,
                         struct rh_view dx)
{
	int64_t hidden = emit->model->layer[index].width, mark = emit->arena->used;
	int behind = has_norms_behind(emit, index);
	struct rh_view dx2 = behind ? emit_act(emit, emit->shape.tokens, hidden) : operand(emit, index, RH_JOINT_O, hidden), d = dx2;
	upper_half_backward(emit, index, s, dy, dx2);
	if (behind)
		d = norm_backward(emit, index, RH_NORM_AFTER_ATTENTION, RH_JOINT_O, s->attended, dx2, s);

	struct rh_view dqkv = operand(emit, index, RH_JOINT_QKV, s->qkv.cols);
	int64_t inner = emit->arena->used;
	struct rh_view d_o = emit_act(emit, s->o.rows, s->o.cols);
	emit_linear_dx(emit, joint(index, RH_JOINT_O), d, d_o, s->d_low);
	accumulate_gradients(emit, index, RH_JOINT_O, d, s->o, s);
	qkv_backward(emit, index, ropes, s, d_o, dqkv);
	rh_arena_reset(emit->arena, inner);

	int keeps_x = is_post(emit, index) && emit_linear_operands(emit, joint(index, RH_JOINT_QKV)) == emit->arena;
	struct rh_view h = keeps_x ? s->x : operand(emit, index, RH_JOINT_QKV, hidden), stats = s->norm[RH_NORM_ATTENTION];
	struct emit_norm norm = emit_norm_of(emit, index, RH_NORM_ATTENTION);
	emit_linear_dx(emit, joint(index, RH_JOINT_QKV), dqkv, dx, s->d_low);
	if (is_post(emit, index)) { /* d is that of the sum which x is part of */
		if (dx.data)
			emit_add(emit, dx, d, dx);
		if (!keeps_x)
			emit_cast(emit, s->x, h);
	} else if (dx.data) {
		emit_norm_backward(emit, norm,
		                   &(struct emit_norm_gradient){.x = s->x, .stats = stats, .dy = dx, .add = dx2, .dx = dx, .y = h});
	} else { /* nothing below is trained: only the norm's output is needed once more */
		emit_norm(emit, norm, s->x, h, stats);
	}
	accumulate_gradients(emit, index, RH_JOINT_QKV, dqkv, h, s);
	rh_arena_reset(emit->arena, mark);
}

struct rh_arena *emit_block_dy(const struct rh_emit *emit, int index)
{
	return has_norms_behind(emit, index) ? emit->arena : emit_linear_operands(emit, joint(index, RH_JOINT_DOWN));
}

void emit_block_weights(struct rh_emit *emit, int index, const struct rh_saved *s)
{
	int experts = emit->model->layer[index].traits.experts != 0;
	if (experts)
		emit_experts_weights(emit, index, s);
	for (int which = experts ? RH_JOINT_O : RH_JOINT_DOWN; which >= 0; which--) /* in the order of the backward */
		emit_linear_dw(emit, joint(index, (enum rh_joint)which), s->deferred[which].dy, s->deferred[which].x, s->low, s->d_low);
}
