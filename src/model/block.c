/* A Llama-type transformer layer:
 *   x2 = x + O(attention(rope(norm_q(Q h)), rope(norm_k(K h)), V h)),  h = norm1(x)
 *   y  = x2 + Down(act(Gate h2) * Up h2),                             h2 = norm2(x2)
 * or, of a mixture of experts, y = x2 + the sum of weight_j Down_j(act(Gate_j h2) * Up_j h2) over the experts chosen (moe.c).
 * Kept for the backward: qkv, o, lse, x2, gate|up and the norms' rstd; h, h2 and act(gate)*up are made again on the way. Where weight
 * gradients are put off, both operands of each lie apart, in emit->late: those of a product's input and of its output's gradient. */
#include "model/emit_internal.h"

static struct emit_linears joint(int layer, enum rh_joint which)
{
	return (struct emit_linears){layer, (int)rh_joints[which].first, rh_joints[which].count};
}

struct parts {
	struct rh_view q, k, v;
};

static struct parts split_qkv(const struct rh_model_config *config, struct rh_view qkv)
{
	int64_t q = config->num_attention_heads * config->head_dim, kv = config->num_key_value_heads * config->head_dim;
	struct parts parts = {rh_view_cols(qkv, 0, q), rh_view_cols(qkv, q, kv), rh_view_cols(qkv, q + kv, kv)};
	return parts;
}

static void rope(struct rh_emit *emit, struct rh_view x, struct rh_view table, int inverse)
{
	struct rh_op op = {.kind = RH_OP_ROPE};
	op.operand[RH_ROPE_X] = x;
	op.operand[RH_ROPE_TABLE_IN] = table;
	op.rope.heads = x.cols / emit->model->config->head_dim;
	op.rope.inverse = inverse;
	emit_op(emit, &op);
}

static struct rh_op attention_op(const struct rh_emit *emit, int layer, enum rh_op_kind kind)
{
	const struct rh_model_config *config = emit->model->config;
	struct rh_op op = {.kind = kind};
	op.attention.heads = config->num_attention_heads;
	op.attention.kv_heads = config->num_key_value_heads;
	op.attention.documents = emit->shape.documents;
	op.attention.longest = emit->shape.longest;
	if (config->window && (layer - 1) % config->window_every == 0) /* layer 0 is the embedding */
		op.attention.window = config->window;
	op.attention.scale = 1.0f / __builtin_sqrtf((float)config->head_dim);
	return op;
}

/* With a cache: the new keys and values are put behind the old ones, and attention reads them all. */
static void through_cache(struct rh_emit *emit, int layer, struct rh_view *k, struct rh_view *v)
{
	int64_t bytes = rh_dtype_bytes(k->dtype, emit->cache_rows * k->cols), first = emit->shape.keys - k->rows;
	char *base = emit->cache + 2 * (layer - 1) * bytes; /* layer 0 is the embedding */
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
		through_cache(emit, layer, &in.k, &in.v);
	op.operand[RH_ATTENTION_Q] = in.q;
	op.operand[RH_ATTENTION_K] = in.k;
	op.operand[RH_ATTENTION_V] = in.v;
	op.operand[RH_ATTENTION_START_Q] = emit_micro(emit, at.start_q, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_START_K] = emit_micro(emit, at.start_k, emit->shape.documents + 1);
	op.operand[RH_ATTENTION_O] = o;
	op.operand[RH_ATTENTION_LSE] = lse;
	emit_op(emit, &op);
}

/* Where the operands of weight gradients go that are kept from the recompute on: where the others do, unless they are put off. */
static struct rh_arena *operands(const struct rh_emit *emit, struct rh_arena *arena, struct emit_linears which)
{
	struct rh_arena *late = emit_linear_operands(emit, which);
	return late == emit->arena ? arena : late;
}

static void take_saved(const struct rh_emit *emit, struct rh_arena *arena, int index, struct rh_view x, struct rh_saved *saved)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_model_config *config = emit->model->config;
	enum rh_dtype act = emit->model->dtype;
	int64_t tokens = emit->shape.tokens, heads = config->num_attention_heads, kv_heads = config->num_key_value_heads;
	int64_t q = heads * config->head_dim, kv = kv_heads * config->head_dim;
	*saved = (struct rh_saved){.x = x};
	saved->rstd1 = emit_take(arena, RH_F32, tokens, 1);
	saved->rstd2 = emit_take(arena, RH_F32, tokens, 1);
	saved->lse = emit_take(arena, RH_F32, tokens, heads);
	saved->qkv = emit_take(arena, act, tokens, q + 2 * kv);
	if (config->qk_norm) {
		saved->qk = emit_take(arena, act, tokens, q + kv);
		saved->rstd_q = emit_take(arena, RH_F32, tokens, heads);
		saved->rstd_k = emit_take(arena, RH_F32, tokens, kv_heads);
	}
	saved->o = emit_take(operands(emit, arena, joint(index, RH_JOINT_O)), act, tokens, q);
	saved->x2 = emit_take(arena, act, tokens, config->hidden_size);
	int64_t rows = config->experts ? tokens * config->experts_per_token : tokens;
	saved->gu = emit_take(operands(emit, arena, joint(index, RH_JOINT_GATE_UP)), act, rows, 2 * config->intermediate_size);
	if (config->experts)
		emit_experts_keep(emit, arena, index, saved);
	for (int p = 0; p < RH_PROJS; p++)
		if (layer->proj[p].r)
			saved->low[p] = emit_take(emit->late ? emit->late : arena, act, tokens, layer->proj[p].r);
}

static void mlp(struct rh_emit *emit, int index, struct rh_view h, struct rh_view y, struct rh_saved *s)
{
	emit_linear(emit, joint(index, RH_JOINT_GATE_UP), h, (struct rh_view){0}, s->gu, s->low);
	if (!y.data && !emit->model->layer[index].proj[RH_PROJ_DOWN].r)
		return;
	struct rh_view a = emit_act(emit, s->gu.rows, s->gu.cols / 2);
	emit_glu(emit, s->gu, a);
	emit_linear(emit, joint(index, RH_JOINT_DOWN), a, s->x2, y, s->low);
}

void emit_block(struct rh_emit *emit, int index, struct rh_view table, struct rh_view x, struct rh_view y, struct rh_saved *keep)
{
	const struct rh_model_config *config = emit->model->config;
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t tokens = emit->shape.tokens, hidden = config->hidden_size;
	int64_t q = config->num_attention_heads * config->head_dim, kv = config->num_key_value_heads * config->head_dim;
	struct rh_saved local, *s = keep ? keep : &local;
	int64_t outer = emit->arena->used;
	take_saved(emit, keep ? emit->saved : emit->arena, index, x, s);
	int64_t inner = emit->arena->used;

	struct rh_view h = emit_act(emit, tokens, hidden);
	emit_rmsnorm(emit, x, emit_weight(emit, layer, 0, layer->norm1, 1, hidden), 1, h, s->rstd1);
	emit_linear(emit, joint(index, RH_JOINT_QKV), h, (struct rh_view){0}, s->qkv, s->low);
	struct parts in = split_qkv(config, s->qkv);
	if (config->qk_norm) {
		struct rh_view q_out = rh_view_cols(s->qk, 0, q), k_out = rh_view_cols(s->qk, q, kv);
		emit_rmsnorm(emit, in.q, emit_weight(emit, layer, 0, layer->q_norm, 1, config->head_dim), config->num_attention_heads,
		             q_out, s->rstd_q);
		emit_rmsnorm(emit, in.k, emit_weight(emit, layer, 0, layer->k_norm, 1, config->head_dim), config->num_key_value_heads,
		             k_out, s->rstd_k);
		in.q = q_out;
		in.k = k_out;
	}
	rope(emit, in.q, table, 0);
	rope(emit, in.k, table, 0);
	attention(emit, index, in, s->o, s->lse);
	emit_linear(emit, joint(index, RH_JOINT_O), s->o, x, s->x2, s->low);

	emit_rmsnorm(emit, s->x2, emit_weight(emit, layer, 0, layer->norm2, 1, hidden), 1, h, s->rstd2);
	if (config->experts)
		emit_experts(emit, index, h, y, s);
	else
		mlp(emit, index, h, y, s);
	rh_arena_reset(emit->arena, keep ? inner : outer);
}

struct norm_backward {
	struct rh_view x, w, rstd, dy, add, dx, dw, y;
	int64_t groups;
};

static void rmsnorm_backward(struct rh_emit *emit, const struct norm_backward *norm)
{
	struct rh_op op = {.kind = RH_OP_RMSNORM_BACKWARD};
	op.operand[RH_RMSNORM_BACKWARD_X] = norm->x;
	op.operand[RH_RMSNORM_BACKWARD_W] = norm->w;
	op.operand[RH_RMSNORM_BACKWARD_RSTD] = norm->rstd;
	op.operand[RH_RMSNORM_BACKWARD_DY] = norm->dy;
	op.operand[RH_RMSNORM_BACKWARD_ADD] = norm->add;
	op.operand[RH_RMSNORM_BACKWARD_DX] = norm->dx;
	op.operand[RH_RMSNORM_BACKWARD_DW] = norm->dw;
	op.operand[RH_RMSNORM_BACKWARD_Y] = norm->y;
	op.rmsnorm.groups = norm->groups;
	op.rmsnorm.epsilon = (float)emit->model->config->rms_norm_eps;
	emit_op(emit, &op);
}

/* Weight gradients of projections that share a product: now, or their operands are noted. */
static void learn(struct rh_emit *emit, int index, enum rh_joint which, struct rh_view dy, struct rh_view x, struct rh_saved *s)
{
	if (!emit->late)
		emit_linear_dw(emit, joint(index, which), dy, x, s->low);
	s->late[which].dy = dy;
	s->late[which].x = x;
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
	/* first its gradient, then act(gate)*up itself */
	struct rh_view a = operand(emit, index, RH_JOINT_DOWN, emit->model->config->intermediate_size);
	emit_linear_dx(emit, joint(index, RH_JOINT_DOWN), dy, a);
	emit_glu_backward(emit, s->gu, a, (struct rh_view){0});
	learn(emit, index, RH_JOINT_DOWN, dy, a, s);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, joint(index, RH_JOINT_GATE_UP), s->gu, dh2);
}

/* dx2 = dy + what comes back through the MLP and norm2; `dx2` (T,H) is the caller's. */
static void upper_half_backward(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view dy, struct rh_view dx2)
{
	const struct rh_model_config *config = emit->model->config;
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t hidden = config->hidden_size, mark = emit->arena->used;
	if (config->experts)
		emit_experts_backward(emit, index, s, dy, dx2);
	else
		mlp_backward(emit, index, s, dy, dx2);
	struct rh_view h2 = operand(emit, index, RH_JOINT_GATE_UP, hidden);
	rmsnorm_backward(emit, &(struct norm_backward){.x = s->x2,
	                                               .w = emit_weight(emit, layer, 0, layer->norm2, 1, hidden),
	                                               .rstd = s->rstd2,
	                                               .dy = dx2,
	                                               .add = dy,
	                                               .dx = dx2,
	                                               .dw = emit_gradient(emit, layer, 0, layer->norm2, 1, hidden),
	                                               .y = h2,
	                                               .groups = 1});
	if (config->experts)
		emit_experts_learn(emit, index, s, h2);
	else
		learn(emit, index, RH_JOINT_GATE_UP, s->gu, h2, s);
	rh_arena_reset(emit->arena, mark);
}

static void attention_backward(struct rh_emit *emit, int layer, const struct rh_saved *s, struct rh_view d_o, struct parts in,
                               struct parts out)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
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
	emit_op(emit, &op);
}

/* dqkv (T, q+2kv), before rope and before the q and k norms. */
static void qkv_backward(struct rh_emit *emit, int index, struct rh_view table, const struct rh_saved *s, struct rh_view d_o,
                         struct rh_view dqkv)
{
	const struct rh_model_config *config = emit->model->config;
	const struct rh_layer *layer = &emit->model->layer[index];
	struct parts raw = split_qkv(config, s->qkv), in = raw, d = split_qkv(config, dqkv);
	if (config->qk_norm) {
		in.q = rh_view_cols(s->qk, 0, raw.q.cols);
		in.k = rh_view_cols(s->qk, raw.q.cols, raw.k.cols);
	}
	attention_backward(emit, index, s, d_o, in, d);
	rope(emit, d.q, table, 1);
	rope(emit, d.k, table, 1);
	if (!config->qk_norm)
		return;
	int64_t dim = config->head_dim;
	rmsnorm_backward(emit, &(struct norm_backward){.x = raw.q,
	                                               .w = emit_weight(emit, layer, 0, layer->q_norm, 1, dim),
	                                               .rstd = s->rstd_q,
	                                               .dy = d.q,
	                                               .dx = d.q,
	                                               .dw = emit_gradient(emit, layer, 0, layer->q_norm, 1, dim),
	                                               .groups = config->num_attention_heads});
	rmsnorm_backward(emit, &(struct norm_backward){.x = raw.k,
	                                               .w = emit_weight(emit, layer, 0, layer->k_norm, 1, dim),
	                                               .rstd = s->rstd_k,
	                                               .dy = d.k,
	                                               .dx = d.k,
	                                               .dw = emit_gradient(emit, layer, 0, layer->k_norm, 1, dim),
	                                               .groups = config->num_key_value_heads});
}

void emit_block_backward(struct rh_emit *emit, int index, struct rh_view table, struct rh_saved *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_model_config *config = emit->model->config;
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t hidden = config->hidden_size, mark = emit->arena->used;
	struct rh_view dx2 = operand(emit, index, RH_JOINT_O, hidden);
	upper_half_backward(emit, index, s, dy, dx2);

	struct rh_view dqkv = operand(emit, index, RH_JOINT_QKV, s->qkv.cols);
	int64_t inner = emit->arena->used;
	struct rh_view d_o = emit_act(emit, s->o.rows, s->o.cols);
	emit_linear_dx(emit, joint(index, RH_JOINT_O), dx2, d_o);
	learn(emit, index, RH_JOINT_O, dx2, s->o, s);
	qkv_backward(emit, index, table, s, d_o, dqkv);
	rh_arena_reset(emit->arena, inner);

	struct rh_view h = operand(emit, index, RH_JOINT_QKV, hidden), w = emit_weight(emit, layer, 0, layer->norm1, 1, hidden);
	if (dx.data) {
		emit_linear_dx(emit, joint(index, RH_JOINT_QKV), dqkv, dx);
		rmsnorm_backward(emit, &(struct norm_backward){.x = s->x,
		                                               .w = w,
		                                               .rstd = s->rstd1,
		                                               .dy = dx,
		                                               .add = dx2,
		                                               .dx = dx,
		                                               .dw = emit_gradient(emit, layer, 0, layer->norm1, 1, hidden),
		                                               .y = h,
		                                               .groups = 1});
	} else { /* nothing below is trained: only the norm's output is needed once more */
		emit_rmsnorm(emit, s->x, w, 1, h, s->rstd1);
	}
	learn(emit, index, RH_JOINT_QKV, dqkv, h, s);
	rh_arena_reset(emit->arena, mark);
}

struct rh_arena *emit_block_dy(const struct rh_emit *emit, int index)
{
	return emit_linear_operands(emit, joint(index, RH_JOINT_DOWN));
}

void emit_block_weights(struct rh_emit *emit, int index, const struct rh_saved *s)
{
	int experts = emit->model->config->experts != 0;
	if (experts)
		emit_experts_weights(emit, index, s);
	for (int which = experts ? RH_JOINT_O : RH_JOINT_DOWN; which >= 0; which--) /* in the order of the backward */
		emit_linear_dw(emit, joint(index, (enum rh_joint)which), s->late[which].dy, s->late[which].x, s->low);
}
