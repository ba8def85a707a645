/* An MLP of experts, each gated:
 *   sum over the experts chosen of weight_j Down_j(act(Gate_j x) * Up_j x),   weights = softmax of Router x, or its sigmoids
 * An adapter of the experts is one of each expert, so that it too is two products of all experts.
 * Beside them there may be one MLP that all tokens share (mlp.c), whose output is added.
 * Rows are sorted by expert, so that a product of all experts is one op. Kept for the backward: the router's logits, choice and weights,
 * the order of rows, and gate|up. What Down makes is read by nothing but y: a routing weight's gradient comes of act(gate)*up (op.h,
 * ROUTER_BACKWARD), so where a layer's output is not wanted neither is made again. */
#include "model/moe.h"

struct sizes {
	int64_t tokens, hidden, wide, experts, pairs;
};

static struct sizes sizes_of(const struct rh_emit *emit, const struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	return (struct sizes){emit->shape.tokens, layer->width, traits->intermediate, traits->experts,
	                      emit->shape.tokens * traits->experts_per_token};
}

double rh_load_balancing_loss(const struct rh_model *model, int64_t tokens, const float *load)
{
	int64_t experts = model->config->experts;
	double sum = 0, routed = (double)(model->routed_layers * tokens);
	if (model->router_aux_loss_coef == 0)
		return 0;
	for (int64_t e = 0; e < experts; e++)
		sum += (double)load[e] / routed * ((double)load[experts + e] / routed);
	return (double)model->router_aux_loss_coef * (double)experts * sum;
}

static int is_full(const struct rh_emit *emit, int index)
{
	return emit->model->block[emit->model->layer[index].block[0]].trainable;
}

int moe_learns(const struct rh_emit *emit, int index)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	int learns = is_full(emit, index) || (layer->traits.mlp == RH_MLP_BESIDE && layer->proj[RH_PROJ_GATING].r);
	for (int w = 0; w < RH_ROUTED; w++)
		learns |= layer->routed[w].r != 0;
	return learns;
}

/* Rows of what an adapter reads and makes: a token's, or a pair's. */
static int64_t rows_of(struct sizes n, int which)
{
	return which == RH_ROUTED_ROUTER ? n.tokens : n.pairs;
}

static int is_shared(const struct rh_emit *emit, int index)
{
	return emit->model->layer[index].traits.shared != 0;
}

static int learns(const struct rh_emit *emit, int index, enum half_end of)
{
	return moe_learns(emit, index) || (is_shared(emit, index) && half_mlp.learns(emit, index, of));
}

void moe_declare(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	enum rh_dtype act = emit->model->dtype;
	int64_t top = layer->traits.experts_per_token;
	int is_deferred = emit->deferred && moe_learns(emit, index);
	int needs_rows = is_full(emit, index) || layer->routed[RH_ROUTED_GATE_UP].r;
	rh_row_set x = RH_ROW_SET(RH_ROW_X2), logits = RH_ROW_SET(ROUTED_LOGITS),
	           places = RH_ROW_SET(ROUTED_PLACE) | RH_ROW_SET(ROUTED_START);
	rh_row_set from[RH_ROUTED] = {[RH_ROUTED_ROUTER] = x,
	                              [RH_ROUTED_GATE_UP] = x | places | RH_ROW_SET(ROUTED_INDEX),
	                              [RH_ROUTED_DOWN] = RH_ROW_SET(ROUTED_GATE_UP) | RH_ROW_SET(ROUTED_START)};
	const struct emit_origin made = {RH_MAKER_BACKWARD, 0, is_deferred};
	emit_row(table, ROUTED_GATE_UP, act, n.pairs, 2 * n.wide, (struct emit_origin){RH_MAKER_MLP, from[RH_ROUTED_GATE_UP], is_deferred});
	enum rh_dtype logit = layer->traits.mlp == RH_MLP_BESIDE ? act : RH_F32; /* a linear's product is of its operands' dtype */
	emit_row(table, ROUTED_LOGITS, logit, n.tokens, n.experts, (struct emit_origin){RH_MAKER_MLP, x, 0});
	emit_row(table, ROUTED_INDEX, RH_I32, n.tokens, top, (struct emit_origin){RH_MAKER_MLP, logits, 0});
	emit_row(table, ROUTED_WEIGHT, RH_F32, n.tokens, top, (struct emit_origin){RH_MAKER_MLP, logits, 0});
	emit_row(table, ROUTED_PLACE, RH_I32, n.tokens, top, (struct emit_origin){RH_MAKER_MLP, x | RH_ROW_SET(ROUTED_INDEX), 0});
	emit_row(table, ROUTED_START, RH_I32, n.experts + 1, 1,
	         (struct emit_origin){RH_MAKER_MLP, x | RH_ROW_SET(ROUTED_INDEX), is_deferred});
	for (int w = 0; w < RH_ROUTED; w++)
		if (layer->routed[w].r) {
			emit_row(table, ROUTED_LOW + w, act, rows_of(n, w), layer->routed[w].r,
			         (struct emit_origin){RH_MAKER_MLP, from[w], is_deferred});
			emit_row(table, ROUTED_D_LOW + w, act, rows_of(n, w), layer->routed[w].r, made);
		}
	emit_row(table, ROUTED_D_LOGITS, act, n.tokens, n.experts, made);
	emit_row(table, ROUTED_D_DOWN, act, n.pairs, n.hidden, made);
	emit_row(table, ROUTED_HIDDEN, act, n.pairs, n.wide, made);
	if (needs_rows)
		emit_row(table, ROUTED_INPUT_ROWS, act, n.pairs, n.hidden, made);
}

static void declare(const struct rh_emit *emit, int index, struct emit_table *table)
{
	moe_declare(emit, index, table);
	if (is_shared(emit, index))
		half_mlp.declare(emit, index, table);
}

/* d = alpha a times each row's expert's matrix of b, (n,k) when trans_b, + c + its row of bias, both perhaps absent. Without starts all
 * rows are one expert's. */
struct product {
	struct rh_view a, b, start, c, bias, d;
	int trans_b;
	float alpha; /* 0: 1 */
};

static void multiply(struct rh_emit *emit, const struct product *p)
{
	struct rh_op op = {.kind = RH_OP_GROUPED_GEMM, .grouped_gemm = {p->trans_b, p->alpha == 0 ? 1 : p->alpha}};
	if (!p->start.data) {
		emit_gemm(emit,
		          &(struct emit_product){
		                  .a = p->a, .b = p->b, .c = p->c, .bias = p->bias, .d = p->d, .trans_b = p->trans_b, .alpha = p->alpha});
		return;
	}
	op.operand[RH_GROUPED_GEMM_A] = p->a;
	op.operand[RH_GROUPED_GEMM_B] = p->b;
	op.operand[RH_GROUPED_GEMM_START] = p->start;
	op.operand[RH_GROUPED_GEMM_C] = p->c;
	op.operand[RH_GROUPED_GEMM_BIAS] = p->bias;
	op.operand[RH_GROUPED_GEMM_D] = p->d;
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

/* dw += alpha dy^T x of each expert. */
static void grouped_gradient(struct rh_emit *emit, struct rh_view dy, struct rh_view x, struct rh_view start, float alpha,
                             struct rh_view dw)
{
	struct rh_op op = {.kind = RH_OP_GROUPED_GEMM_GRADIENT, .grouped_gemm = {0, alpha}};
	op.operand[RH_GROUPED_GEMM_GRADIENT_A] = dy;
	op.operand[RH_GROUPED_GEMM_GRADIENT_B] = x;
	op.operand[RH_GROUPED_GEMM_GRADIENT_START] = start;
	op.operand[RH_GROUPED_GEMM_GRADIENT_D] = dw;
	emit_op(emit, &op);
}

/* Rows of h by expert; where they are. */
static void permute(struct rh_emit *emit, const struct rh_activations *s, struct rh_view h, struct rh_view rows)
{
	struct rh_op op = {.kind = RH_OP_PERMUTE};
	op.operand[RH_PERMUTE_INDEX] = s->view[ROUTED_INDEX];
	op.operand[RH_PERMUTE_X] = h;
	op.operand[RH_PERMUTE_START] = s->view[ROUTED_START];
	op.operand[RH_PERMUTE_PLACE] = s->view[ROUTED_PLACE];
	op.operand[RH_PERMUTE_Y] = rows;
	emit_op(emit, &op);
}

static void unpermute(struct rh_emit *emit, struct rh_view rows, const struct rh_activations *s, struct rh_view weight, struct rh_view add,
                      struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_UNPERMUTE};
	op.operand[RH_UNPERMUTE_X] = rows;
	op.operand[RH_UNPERMUTE_PLACE] = s->view[ROUTED_PLACE];
	op.operand[RH_UNPERMUTE_WEIGHT] = weight;
	op.operand[RH_UNPERMUTE_ADD] = add;
	op.operand[RH_UNPERMUTE_Y] = y;
	emit_op(emit, &op);
}

static struct rh_view down_bias(const struct rh_emit *emit, const struct rh_layer *layer)
{
	struct sizes n = sizes_of(emit, layer);
	return emit_weight(emit, layer, 0, layer->own[RH_MLP][MOE_DOWN_BIAS], n.experts, n.hidden);
}

/* An adapter's matrices, of all experts one under another, or their gradients. */
struct factors {
	struct rh_view a, b;
};

static struct factors factors_of(struct rh_emit *emit, const struct rh_layer *layer, enum rh_routed which,
                                 struct rh_view (*view)(const struct rh_emit *, const struct rh_layer *, int, int, int64_t, int64_t))
{
	const struct rh_linear *of = &layer->routed[which];
	int64_t count = which == RH_ROUTED_ROUTER ? 1 : layer->traits.experts;
	return (struct factors){view(emit, layer, 1, of->lora_a, count * of->r, of->inputs),
	                        view(emit, layer, 1, of->lora_b, count * of->outputs, of->r)};
}

static struct rh_view start_of(const struct rh_activations *s, enum rh_routed which)
{
	return which == RH_ROUTED_ROUTER ? (struct rh_view){0} : s->view[ROUTED_START];
}

/* The product p with the base's matrix of all experts, or of the router, which it lacks. */
static void multiply_base(struct rh_emit *emit, const struct rh_layer *layer, enum rh_routed which, struct product p)
{
	static const int own[RH_ROUTED] = {[RH_ROUTED_ROUTER] = MOE_ROUTER, [RH_ROUTED_GATE_UP] = MOE_GATE_UP, [RH_ROUTED_DOWN] = MOE_DOWN};
	const struct rh_linear *of = &layer->routed[which];
	int64_t count = which == RH_ROUTED_ROUTER ? 1 : layer->traits.experts, mark = emit->arena->used;
	p.b = emit_matrix(emit, layer, 0, layer->own[RH_MLP][own[which]], count * of->outputs, of->inputs);
	multiply(emit, &p);
	rh_arena_reset(emit->arena, mark);
}

/* d = p's product and the adapter's part, which comes first, as in linear.c: what is rounded is the whole sum. Without d only x A^T is
 * made, which the backward needs. */
static void multiply_adapted(struct rh_emit *emit, const struct rh_layer *layer, enum rh_routed which, struct product p,
                             struct rh_activations *s)
{
	p.start = start_of(s, which);
	p.trans_b = 1;
	if (layer->routed[which].r) {
		struct factors of = factors_of(emit, layer, which, emit_weight);
		multiply(emit, &(struct product){.a = p.a, .b = of.a, .trans_b = 1, .start = p.start, .d = s->view[ROUTED_LOW + which]});
		if (p.d.data)
			multiply(emit, &(struct product){.a = s->view[ROUTED_LOW + which],
			                                 .b = of.b,
			                                 .trans_b = 1,
			                                 .start = p.start,
			                                 .alpha = layer->routed[which].scale,
			                                 .d = p.d});
		p.c = p.d;
	}
	if (p.d.data)
		multiply_base(emit, layer, which, p);
}

/* dx = dy W and the adapter's part, likewise; it leaves d_low in s->d_low. */
static void multiply_back(struct rh_emit *emit, const struct rh_layer *layer, enum rh_routed which, struct product p,
                          struct rh_activations *s)
{
	struct rh_view d_low = s->view[ROUTED_D_LOW + which];
	p.start = start_of(s, which);
	if (layer->routed[which].r) {
		struct factors of = factors_of(emit, layer, which, emit_weight);
		multiply(emit, &(struct product){.a = p.a, .b = of.b, .start = p.start, .alpha = layer->routed[which].scale, .d = d_low});
		multiply(emit, &(struct product){.a = d_low, .b = of.a, .start = p.start, .d = p.d});
		p.c = p.d;
	}
	multiply_base(emit, layer, which, p);
}

/* The gradients of an adapter of what turned x into what has the gradient dy. */
static void adapter_gradients(struct rh_emit *emit, const struct rh_layer *layer, enum rh_routed which, struct rh_view dy, struct rh_view x,
                              const struct rh_activations *s)
{
	struct rh_view start = start_of(s, which), low = s->view[ROUTED_LOW + which], d_low = s->view[ROUTED_D_LOW + which];
	float scale = layer->routed[which].scale;
	if (!layer->routed[which].r)
		return;
	struct factors d = factors_of(emit, layer, which, emit_gradient);
	if (start.data) {
		grouped_gradient(emit, d_low, x, start, 1, d.a);
		grouped_gradient(emit, dy, low, start, scale, d.b);
		return;
	}
	emit_gemm(emit, &(struct emit_product){.a = d_low, .trans_a = 1, .b = x, .c = d.a, .d = d.a});
	emit_gemm(emit, &(struct emit_product){.a = dy, .trans_a = 1, .b = low, .alpha = scale, .c = d.b, .d = d.b});
}

void moe_gather(struct rh_emit *emit, const struct rh_activations *s, struct rh_view rows, struct rh_view add, struct rh_view dx)
{
	unpermute(emit, rows, s, (struct rh_view){0}, add, dx);
}

static struct rh_view scale_of(const struct rh_emit *emit, const struct rh_layer *layer)
{
	return emit_weight(emit, layer, 0, layer->own[RH_MLP][MOE_SCALE], 1, layer->traits.experts);
}

/* What ROUTER and its backward share. */
static struct rh_op routing(enum rh_op_kind kind, const struct rh_traits *traits)
{
	return (struct rh_op){.kind = kind,
	                      .router = {.softmax = traits->softmax,
	                                 .sigmoid = traits->is_sigmoid,
	                                 .factor = traits->routed_factor,
	                                 .groups = traits->expert_groups,
	                                 .best_groups = traits->best_groups}};
}

void moe_route(struct rh_emit *emit, const struct rh_layer *layer, const struct rh_activations *s)
{
	struct rh_op op = routing(RH_OP_ROUTER, &layer->traits);
	int64_t mark = emit->arena->used;
	op.operand[RH_ROUTER_LOGITS] = s->view[ROUTED_LOGITS];
	op.operand[RH_ROUTER_INDEX] = s->view[ROUTED_INDEX];
	op.operand[RH_ROUTER_WEIGHT] = s->view[ROUTED_WEIGHT];
	op.operand[RH_ROUTER_SCALE] = scale_of(emit, layer);
	op.operand[RH_ROUTER_BIAS] = emit_weight(emit, layer, 0, layer->own[RH_MLP][MOE_CHOICE_BIAS], RH_BF16_PARTS, layer->traits.experts);
	if (emit->load.data)
		op.operand[RH_ROUTER_LOAD] = emit_take(emit->arena, RH_F32, s->view[ROUTED_LOGITS].rows, 2 * s->view[ROUTED_LOGITS].cols);
	emit_op(emit, &op);
	if (emit->load.data)
		emit_column_sum(emit, op.operand[RH_ROUTER_LOAD], emit->load);
	rh_arena_reset(emit->arena, mark);
}

void moe_forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view add, struct rh_view y, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	int64_t mark = emit->arena->used;
	rh_row_set gate_up = RH_ROW_SET(ROUTED_GATE_UP) | RH_ROW_SET(ROUTED_LOW + RH_ROUTED_GATE_UP);
	struct rh_view rows = emit_act(emit, n.pairs, n.hidden);
	if (emit_wants(s, RH_ROW_SET(ROUTED_PLACE) | RH_ROW_SET(ROUTED_START) | gate_up))
		permute(emit, s, x, rows);
	if (emit_wants(s, gate_up))
		multiply_adapted(
		        emit, layer, RH_ROUTED_GATE_UP,
		        (struct product){.a = rows,
		                         .bias = emit_weight(emit, layer, 0, layer->own[RH_MLP][MOE_GATE_UP_BIAS], n.experts, 2 * n.wide),
		                         .d = emit_wanted(s, ROUTED_GATE_UP)},
		        s);
	if (y.data || (layer->routed[RH_ROUTED_DOWN].r && emit_wants(s, RH_ROW_SET(ROUTED_LOW + RH_ROUTED_DOWN)))) {
		struct rh_view a = emit_act(emit, n.pairs, n.wide), made = y.data ? rows : y;
		emit_glu(emit, layer->traits.activation, s->view[ROUTED_GATE_UP], a);
		multiply_adapted(emit, layer, RH_ROUTED_DOWN, (struct product){.a = a, .bias = down_bias(emit, layer), .d = made}, s);
	}
	if (y.data)
		unpermute(emit, rows, s, s->view[ROUTED_WEIGHT], add, y);
	rh_arena_reset(emit->arena, mark);
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	int64_t mark = emit->arena->used;
	struct rh_view add = residual;
	if (emit_wants(s, RH_ROW_SET(ROUTED_LOGITS) | RH_ROW_SET(ROUTED_LOW + RH_ROUTED_ROUTER)))
		multiply_adapted(emit, layer, RH_ROUTED_ROUTER,
		                 (struct product){.a = x,
		                                  .bias = emit_weight(emit, layer, 0, layer->own[RH_MLP][MOE_ROUTER_BIAS], 1, n.experts),
		                                  .d = emit_wanted(s, ROUTED_LOGITS)},
		                 s);
	if (emit_wants(s, RH_ROW_SET(ROUTED_INDEX) | RH_ROW_SET(ROUTED_WEIGHT)))
		moe_route(emit, layer, s);
	if (is_shared(emit, index)) {
		emit_add_apart(emit, residual, half_mlp.forward(emit, index, x, residual, y, s), y);
		rh_arena_reset(emit->arena, mark);
		add = y;
	}
	moe_forward(emit, index, x, add, y, s);
	return NULL;
}

/* The part of routing weights' gradients that comes from Down's biases: dy b^T. */
static struct rh_view bias_dot_gradient(struct rh_emit *emit, const struct rh_layer *layer, struct rh_view dy)
{
	struct sizes n = sizes_of(emit, layer);
	if (layer->own[RH_MLP][MOE_DOWN_BIAS] < 0)
		return (struct rh_view){0};
	struct rh_view more = emit_take(emit->arena, RH_F32, n.tokens, n.experts);
	emit_gemm(emit, &(struct emit_product){.a = dy, .b = down_bias(emit, layer), .trans_b = 1, .d = more});
	return more;
}

static void router_backward(struct rh_emit *emit, const struct rh_layer *layer, const struct rh_activations *s, struct rh_view dot,
                            struct rh_view more, struct rh_view dlogits)
{
	struct rh_op op = routing(RH_OP_ROUTER_BACKWARD, &layer->traits);
	op.operand[RH_ROUTER_BACKWARD_LOGITS] = s->view[ROUTED_LOGITS];
	op.operand[RH_ROUTER_BACKWARD_INDEX] = s->view[ROUTED_INDEX];
	op.operand[RH_ROUTER_BACKWARD_WEIGHT] = s->view[ROUTED_WEIGHT];
	op.operand[RH_ROUTER_BACKWARD_PLACE] = s->view[ROUTED_PLACE];
	op.operand[RH_ROUTER_BACKWARD_DOT] = dot;
	op.operand[RH_ROUTER_BACKWARD_MORE] = more;
	if (emit->load.data) {
		double experts = (double)layer->traits.experts, routed = (double)(emit->model->routed_layers * emit->shape.tokens);
		double weight = (double)emit->model->router_aux_loss_coef * (double)emit->micro_batch_share;
		op.operand[RH_ROUTER_BACKWARD_COUNT] = rh_view_cols(emit->load, 0, layer->traits.experts);
		op.router.balance = (float)(weight * experts / (routed * routed));
	}
	op.operand[RH_ROUTER_BACKWARD_DLOGITS] = dlogits;
	op.operand[RH_ROUTER_BACKWARD_SCALE] = scale_of(emit, layer);
	struct rh_view dscale = emit_gradient(emit, layer, 0, layer->own[RH_MLP][MOE_SCALE], 1, layer->traits.experts);
	if (dscale.data)
		op.operand[RH_ROUTER_BACKWARD_DSCALE] = emit_take(emit->arena, RH_F32, dlogits.rows, dlogits.cols);
	emit_op(emit, &op);
	if (dscale.data)
		emit_column_sum(emit, op.operand[RH_ROUTER_BACKWARD_DSCALE], dscale);
}

/* Rows by expert, each its share of dy's. */
static void unpermute_backward(struct rh_emit *emit, const struct rh_activations *s, struct rh_view dy, struct rh_view rows)
{
	struct rh_op op = {.kind = RH_OP_UNPERMUTE_BACKWARD};
	op.operand[RH_UNPERMUTE_BACKWARD_DY] = dy;
	op.operand[RH_UNPERMUTE_BACKWARD_PLACE] = s->view[ROUTED_PLACE];
	op.operand[RH_UNPERMUTE_BACKWARD_WEIGHT] = s->view[ROUTED_WEIGHT];
	op.operand[RH_UNPERMUTE_BACKWARD_DX] = rows;
	emit_op(emit, &op);
}

/* Weight gradients: of an expert's down, of its gate and up, of the router. */
static void down_gradients(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	struct rh_view dw = emit_gradient(emit, layer, 0, layer->own[RH_MLP][MOE_DOWN], n.experts * n.hidden, n.wide);
	if (dw.data)
		grouped_gradient(emit, s->view[ROUTED_D_DOWN], s->view[ROUTED_HIDDEN], s->view[ROUTED_START], 1, dw);
	grouped_sum(emit, s->view[ROUTED_D_DOWN], s->view[ROUTED_START],
	            emit_gradient(emit, layer, 0, layer->own[RH_MLP][MOE_DOWN_BIAS], n.experts, n.hidden));
	adapter_gradients(emit, layer, RH_ROUTED_DOWN, s->view[ROUTED_D_DOWN], s->view[ROUTED_HIDDEN], s);
}

static void remaining_gradients(struct rh_emit *emit, int index, struct rh_view x, const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	struct rh_view dw = emit_gradient(emit, layer, 0, layer->own[RH_MLP][MOE_GATE_UP], n.experts * 2 * n.wide, n.hidden);
	struct rh_view drouter = emit_gradient(emit, layer, 0, layer->own[RH_MLP][MOE_ROUTER], n.experts, n.hidden);
	if (dw.data)
		grouped_gradient(emit, s->view[ROUTED_GATE_UP], s->view[ROUTED_INPUT_ROWS], s->view[ROUTED_START], 1, dw);
	grouped_sum(emit, s->view[ROUTED_GATE_UP], s->view[ROUTED_START],
	            emit_gradient(emit, layer, 0, layer->own[RH_MLP][MOE_GATE_UP_BIAS], n.experts, 2 * n.wide));
	struct rh_view dbias = emit_gradient(emit, layer, 0, layer->own[RH_MLP][MOE_ROUTER_BIAS], 1, n.experts);
	if (dbias.data)
		emit_column_sum(emit, s->view[ROUTED_D_LOGITS], dbias);
	if (drouter.data)
		emit_gemm(emit, &(struct emit_product){.a = s->view[ROUTED_D_LOGITS], .trans_a = 1, .b = x, .c = drouter, .d = drouter});
	adapter_gradients(emit, layer, RH_ROUTED_GATE_UP, s->view[ROUTED_GATE_UP], s->view[ROUTED_INPUT_ROWS], s);
	adapter_gradients(emit, layer, RH_ROUTED_ROUTER, s->view[ROUTED_D_LOGITS], x, s);
}

void moe_take_operands(struct rh_emit *emit, int index, struct rh_activations *s)
{
	(void)emit_operand(emit, s, ROUTED_D_LOGITS);
	for (int w = 0; w < RH_ROUTED; w++)
		if (emit->model->layer[index].routed[w].r)
			(void)emit_operand(emit, s, ROUTED_D_LOW + w);
}

struct rh_view moe_backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct sizes n = sizes_of(emit, layer);
	int64_t mark = emit->arena->used;
	struct rh_view dot = emit_take(emit->arena, RH_F32, n.pairs, 1), rows = emit_operand(emit, s, ROUTED_D_DOWN);
	struct rh_view a = emit_operand(emit, s, ROUTED_HIDDEN); /* first its gradient */
	unpermute_backward(emit, s, dy, rows);
	multiply_back(emit, layer, RH_ROUTED_DOWN, (struct product){.a = rows, .d = a}, s);
	emit_glu_backward(emit, layer->traits.activation, s->view[ROUTED_GATE_UP], a, dot);
	router_backward(emit, layer, s, dot, bias_dot_gradient(emit, layer, dy), s->view[ROUTED_D_LOGITS]);
	if (!emit->deferred)
		down_gradients(emit, index, s);
	rh_arena_reset(emit->arena, mark);
	struct rh_view back = emit_act(emit, n.pairs, n.hidden);
	multiply_back(emit, layer, RH_ROUTED_GATE_UP, (struct product){.a = s->view[ROUTED_GATE_UP], .d = back}, s);
	return back;
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	moe_take_operands(emit, index, s);
	int64_t mark = emit->arena->used;
	struct rh_view back = moe_backward(emit, index, s, dy);
	multiply_back(emit, layer, RH_ROUTED_ROUTER, (struct product){.a = s->view[ROUTED_D_LOGITS], .d = dx}, s);
	moe_gather(emit, s, back, dx, dx);
	rh_arena_reset(emit->arena, mark);
	if (!is_shared(emit, index))
		return;
	struct rh_view part = emit_act(emit, dx.rows, dx.cols);
	half_mlp.backward(emit, index, s, dy, part);
	emit_add(emit, dx, part, dx);
}

void moe_gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	if (!moe_learns(emit, index))
		return;
	if (is_full(emit, index) || layer->routed[RH_ROUTED_GATE_UP].r)
		permute(emit, s, x, emit_operand(emit, s, ROUTED_INPUT_ROWS));
	if (!emit->deferred)
		remaining_gradients(emit, index, x, s);
}

static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	if (is_shared(emit, index))
		half_mlp.gradients(emit, index, s, x);
	moe_gradients(emit, index, s, x);
}

void moe_weights(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	if (!moe_learns(emit, index))
		return;
	down_gradients(emit, index, s);
	remaining_gradients(emit, index, x, s);
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	if (is_shared(emit, index))
		half_mlp.weights(emit, index, s);
	moe_weights(emit, index, s, s->view[RH_ROW_INPUT + RH_MLP]);
}

#define EXPERTS(more_of_input, more_of_output)                                                                                             \
	{                                                                                                                                  \
		.size = moe_size, .place = moe_place, .place_adapters = moe_place_adapters,                                                \
		.of_input = RH_ROW_SET(ROUTED_LOGITS) | RH_ROW_SET(ROUTED_PLACE) | RH_ROW_SET(ROUTED_START) | RH_ROW_SET(ROUTED_GATE_UP) | \
		            RH_ROW_RUN(ROUTED_LOW, 2) | (more_of_input),                                                                   \
		.of_output = RH_ROW_SET(ROUTED_GATE_UP) | RH_ROW_SET(ROUTED_WEIGHT) | RH_ROW_SET(ROUTED_PLACE) |                           \
		             RH_ROW_SET(ROUTED_START) | (more_of_output),                                                                  \
		.declare = declare, .learns = learns, .forward = forward, .backward = backward, .gradients = gradients, .weights = weights \
	}
enum { LOW_GATE = RH_ROW_LOW + RH_PROJ_GATE, LOW_GATING = RH_ROW_LOW + RH_PROJ_GATING };
const struct rh_half half_experts = EXPERTS(0, 0);
const struct rh_half half_shared_experts =
        EXPERTS(RH_ROW_SET(MLP_GATE_UP) | RH_ROW_SET(MLP_GATING) | RH_ROW_RUN(LOW_GATE, 2) | RH_ROW_SET(LOW_GATING),
                RH_ROW_SET(MLP_GATE_UP) | RH_ROW_SET(MLP_GATING));
