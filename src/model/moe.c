/* The experts of a transformer layer, each a gated MLP:
 *   y = x2 + sum over the experts chosen of weight_j Down_j(act(Gate_j h) * Up_j h),   weights = softmax of Router h
 * Rows are sorted by expert, so that a product of all experts is one op. Kept for the backward: the router's logits, choice and weights,
 * the order of rows, and gate|up. What Down makes is read by nothing but y: a routing weight's gradient comes of act(gate)*up (op.h,
 * ROUTER_BACKWARD), so where a layer's output is not wanted neither is made again. */
#include "model/emit_internal.h"

enum { LATE_ROUTER = RH_JOINTS };

struct sizes {
	int64_t tokens, hidden, wide, experts, pairs;
};

static struct sizes sizes_of(const struct rh_emit *emit, const struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	return (struct sizes){emit->shape.tokens, emit->model->config->hidden_size, traits->intermediate, traits->experts,
	                      emit->shape.tokens * traits->experts_per_token};
}

static int learns(const struct rh_emit *emit, int index)
{
	return emit->model->block[emit->model->layer[index].block[0]].trainable;
}

/* Where operands of weight gradients belong. */
static struct rh_arena *late_or(const struct rh_emit *emit, int index, struct rh_arena *arena)
{
	return emit->late && learns(emit, index) ? emit->late : arena;
}

void emit_experts_keep(const struct rh_emit *emit, struct rh_arena *arena, int index, struct rh_saved *saved)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	int64_t top = layer->traits.experts_per_token;
	saved->router = emit_take(arena, RH_F32, n.tokens, n.experts);
	saved->index = emit_take(arena, RH_I32, n.tokens, top);
	saved->weight = emit_take(arena, RH_F32, n.tokens, top);
	saved->place = emit_take(arena, RH_I32, n.tokens, top);
	saved->start = emit_take(late_or(emit, index, arena), RH_I32, n.experts + 1, 1);
}

/* d = a times each row's expert's matrix of b, (n,k) when trans_b, + its row of bias, or absent. */
static void grouped(struct rh_emit *emit, struct rh_view a, struct rh_view b, int trans_b, struct rh_view start, struct rh_view bias,
                    struct rh_view d)
{
	struct rh_op op = {.kind = RH_OP_GROUPED_GEMM, .grouped_gemm = {trans_b, 1}};
	op.operand[RH_GROUPED_GEMM_A] = a;
	op.operand[RH_GROUPED_GEMM_B] = b;
	op.operand[RH_GROUPED_GEMM_START] = start;
	op.operand[RH_GROUPED_GEMM_BIAS] = bias;
	op.operand[RH_GROUPED_GEMM_D] = d;
	emit_op(emit, &op);
}

/* db (E,c) += sums over the rows of each expert; absent: not wanted. */
static void grouped_sum(struct rh_emit *emit, struct rh_view dy, struct rh_view start, struct rh_view db)
{
	struct rh_op op = {.kind = RH_OP_GROUPED_COLUMN_SUM};
	if (!db.data)
		return;
	op.operand[RH_GROUPED_COLUMN_SUM_X] = dy;
	op.operand[RH_GROUPED_COLUMN_SUM_START] = start;
	op.operand[RH_GROUPED_COLUMN_SUM_Y] = db;
	emit_op(emit, &op);
}

static void grouped_gradient(struct rh_emit *emit, struct rh_view dy, struct rh_view x, struct rh_view start, struct rh_view dw)
{
	struct rh_op op = {.kind = RH_OP_GROUPED_GEMM_GRADIENT, .grouped_gemm = {0, 1}};
	op.operand[RH_GROUPED_GEMM_GRADIENT_A] = dy;
	op.operand[RH_GROUPED_GEMM_GRADIENT_B] = x;
	op.operand[RH_GROUPED_GEMM_GRADIENT_START] = start;
	op.operand[RH_GROUPED_GEMM_GRADIENT_D] = dw;
	emit_op(emit, &op);
}

/* Rows of h by expert; where they are. */
static void permute(struct rh_emit *emit, const struct rh_saved *s, struct rh_view h, struct rh_view rows)
{
	struct rh_op op = {.kind = RH_OP_PERMUTE};
	op.operand[RH_PERMUTE_INDEX] = s->index;
	op.operand[RH_PERMUTE_X] = h;
	op.operand[RH_PERMUTE_START] = s->start;
	op.operand[RH_PERMUTE_PLACE] = s->place;
	op.operand[RH_PERMUTE_Y] = rows;
	emit_op(emit, &op);
}

static void unpermute(struct rh_emit *emit, struct rh_view rows, const struct rh_saved *s, struct rh_view weight, struct rh_view add,
                      struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_UNPERMUTE};
	op.operand[RH_UNPERMUTE_X] = rows;
	op.operand[RH_UNPERMUTE_PLACE] = s->place;
	op.operand[RH_UNPERMUTE_WEIGHT] = weight;
	op.operand[RH_UNPERMUTE_ADD] = add;
	op.operand[RH_UNPERMUTE_Y] = y;
	emit_op(emit, &op);
}

static struct rh_view router_weight(const struct rh_emit *emit, const struct rh_layer *layer)
{
	struct sizes n = sizes_of(emit, layer);
	return emit_weight(emit, layer, 0, layer->router, n.experts, n.hidden);
}

static struct rh_view gate_up_weight(const struct rh_emit *emit, const struct rh_layer *layer)
{
	struct sizes n = sizes_of(emit, layer);
	return emit_weight(emit, layer, 0, layer->experts_gate_up, n.experts * 2 * n.wide, n.hidden);
}

static struct rh_view down_weight(const struct rh_emit *emit, const struct rh_layer *layer)
{
	struct sizes n = sizes_of(emit, layer);
	return emit_weight(emit, layer, 0, layer->experts_down, n.experts * n.hidden, n.wide);
}

static struct rh_view down_bias(const struct rh_emit *emit, const struct rh_layer *layer)
{
	struct sizes n = sizes_of(emit, layer);
	return emit_weight(emit, layer, 0, layer->down_bias, n.experts, n.hidden);
}

void emit_experts(struct rh_emit *emit, int index, struct rh_view h, struct rh_view y, struct rh_saved *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	int64_t mark = emit->arena->used;
	emit_gemm(emit, &(struct emit_product){.a = h,
	                                       .b = router_weight(emit, layer),
	                                       .trans_b = 1,
	                                       .bias = emit_weight(emit, layer, 0, layer->router_bias, 1, n.experts),
	                                       .d = s->router});
	struct rh_op op = {.kind = RH_OP_ROUTER, .router.softmax = layer->traits.softmax};
	op.operand[RH_ROUTER_LOGITS] = s->router;
	op.operand[RH_ROUTER_INDEX] = s->index;
	op.operand[RH_ROUTER_WEIGHT] = s->weight;
	emit_op(emit, &op);
	struct rh_view rows = emit_act(emit, n.pairs, n.hidden);
	permute(emit, s, h, rows);
	grouped(emit, rows, gate_up_weight(emit, layer), 1, s->start,
	        emit_weight(emit, layer, 0, layer->gate_up_bias, n.experts, 2 * n.wide), s->gu);
	if (y.data) {
		struct rh_view a = emit_act(emit, n.pairs, n.wide);
		emit_glu(emit, layer->traits.activation, s->gu, a);
		grouped(emit, a, down_weight(emit, layer), 1, s->start, down_bias(emit, layer), rows);
		unpermute(emit, rows, s, s->weight, s->x2, y);
	}
	rh_arena_reset(emit->arena, mark);
}

/* What biases of Down add to the gradients of routing weights: dy b^T. */
static struct rh_view more_of(struct rh_emit *emit, const struct rh_layer *layer, struct rh_view dy)
{
	struct sizes n = sizes_of(emit, layer);
	if (layer->down_bias < 0)
		return (struct rh_view){0};
	struct rh_view more = emit_take(emit->arena, RH_F32, n.tokens, n.experts);
	emit_gemm(emit, &(struct emit_product){.a = dy, .b = down_bias(emit, layer), .trans_b = 1, .d = more});
	return more;
}

static void router_backward(struct rh_emit *emit, const struct rh_layer *layer, const struct rh_saved *s, struct rh_view dot,
                            struct rh_view more, struct rh_view dlogits)
{
	struct rh_op op = {.kind = RH_OP_ROUTER_BACKWARD, .router.softmax = layer->traits.softmax};
	op.operand[RH_ROUTER_BACKWARD_LOGITS] = s->router;
	op.operand[RH_ROUTER_BACKWARD_INDEX] = s->index;
	op.operand[RH_ROUTER_BACKWARD_WEIGHT] = s->weight;
	op.operand[RH_ROUTER_BACKWARD_PLACE] = s->place;
	op.operand[RH_ROUTER_BACKWARD_DOT] = dot;
	op.operand[RH_ROUTER_BACKWARD_MORE] = more;
	op.operand[RH_ROUTER_BACKWARD_DLOGITS] = dlogits;
	emit_op(emit, &op);
}

/* Rows by expert, each its share of dy's. */
static void unpermute_backward(struct rh_emit *emit, const struct rh_saved *s, struct rh_view dy, struct rh_view rows)
{
	struct rh_op op = {.kind = RH_OP_UNPERMUTE_BACKWARD};
	op.operand[RH_UNPERMUTE_BACKWARD_DY] = dy;
	op.operand[RH_UNPERMUTE_BACKWARD_PLACE] = s->place;
	op.operand[RH_UNPERMUTE_BACKWARD_WEIGHT] = s->weight;
	op.operand[RH_UNPERMUTE_BACKWARD_DX] = rows;
	emit_op(emit, &op);
}

/* Weight gradients: of an expert's down, of its gate and up, of the router. */
static void learn_down(struct rh_emit *emit, int index, const struct rh_saved *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	struct rh_view dw = emit_gradient(emit, layer, 0, layer->experts_down, n.experts * n.hidden, n.wide);
	if (dw.data)
		grouped_gradient(emit, s->late[RH_JOINT_DOWN].dy, s->late[RH_JOINT_DOWN].x, s->start, dw);
	grouped_sum(emit, s->late[RH_JOINT_DOWN].dy, s->start, emit_gradient(emit, layer, 0, layer->down_bias, n.experts, n.hidden));
}

static void learn_rest(struct rh_emit *emit, int index, const struct rh_saved *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	struct rh_view dw = emit_gradient(emit, layer, 0, layer->experts_gate_up, n.experts * 2 * n.wide, n.hidden);
	struct rh_view drouter = emit_gradient(emit, layer, 0, layer->router, n.experts, n.hidden);
	if (dw.data)
		grouped_gradient(emit, s->late[RH_JOINT_GATE_UP].dy, s->late[RH_JOINT_GATE_UP].x, s->start, dw);
	grouped_sum(emit, s->late[RH_JOINT_GATE_UP].dy, s->start,
	            emit_gradient(emit, layer, 0, layer->gate_up_bias, n.experts, 2 * n.wide));
	struct rh_view dbias = emit_gradient(emit, layer, 0, layer->router_bias, 1, n.experts);
	if (dbias.data)
		emit_column_sum(emit, s->late[LATE_ROUTER].dy, dbias);
	if (drouter.data)
		emit_gemm(emit,
		          &(struct emit_product){
		                  .a = s->late[LATE_ROUTER].dy, .trans_a = 1, .b = s->late[LATE_ROUTER].x, .c = drouter, .d = drouter});
}

void emit_experts_backward(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view dy, struct rh_view dh)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	enum rh_dtype act = emit->model->dtype;
	struct sizes n = sizes_of(emit, layer);
	struct rh_arena *operands = late_or(emit, index, emit->arena);
	struct rh_view dlogits = emit_take(operands, act, n.tokens, n.experts);
	int64_t mark = emit->arena->used;
	struct rh_view dot = emit_take(emit->arena, RH_F32, n.pairs, 1), rows = emit_take(operands, act, n.pairs, n.hidden);
	struct rh_view a = emit_take(operands, act, n.pairs, n.wide); /* first its gradient */
	unpermute_backward(emit, s, dy, rows);
	grouped(emit, rows, down_weight(emit, layer), 0, s->start, (struct rh_view){0}, a);
	emit_glu_backward(emit, layer->traits.activation, s->gu, a, dot);
	router_backward(emit, layer, s, dot, more_of(emit, layer, dy), dlogits);
	s->late[RH_JOINT_DOWN].dy = rows;
	s->late[RH_JOINT_DOWN].x = a;
	s->late[RH_JOINT_GATE_UP].dy = s->gu;
	s->late[LATE_ROUTER].dy = dlogits;
	if (!emit->late)
		learn_down(emit, index, s);
	rh_arena_reset(emit->arena, mark);

	struct rh_view back = emit_act(emit, n.pairs, n.hidden);
	grouped(emit, s->gu, gate_up_weight(emit, layer), 0, s->start, (struct rh_view){0}, back);
	emit_gemm(emit, &(struct emit_product){.a = dlogits, .b = router_weight(emit, layer), .d = dh});
	unpermute(emit, back, s, (struct rh_view){0}, dh, dh);
	rh_arena_reset(emit->arena, mark);
}

void emit_experts_learn(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view h)
{
	struct sizes n = sizes_of(emit, &emit->model->layer[index]);
	if (!learns(emit, index))
		return;
	struct rh_view rows = emit_take(late_or(emit, index, emit->arena), emit->model->dtype, n.pairs, n.hidden);
	permute(emit, s, h, rows);
	s->late[RH_JOINT_GATE_UP].x = rows;
	s->late[LATE_ROUTER].x = h;
	if (!emit->late)
		learn_rest(emit, index, s);
}

void emit_experts_weights(struct rh_emit *emit, int index, const struct rh_saved *s)
{
	learn_down(emit, index, s);
	learn_rest(emit, index, s);
}
