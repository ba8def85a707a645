/* Experts beside an MLP, each with norms of its own (Gemma 4):
 *   norm_1(MLP(norm(x))) + norm_2(experts(norm'(x)))
 * and the experts are chosen by a linear of one more norm of x, whose product is divided by the root of its length; an expert's weight has
 * a factor of its own. x is the residual itself. The three norms of x have the same statistics, those of the layer's norm before the
 * MLP. */
#include "model/moe.h"

#include <math.h>

/* Its tensors, behind those of experts. */
enum { NORM_EXPERTS = MOE_TENSORS, NORM_ROUTER, AFTER_MLP, AFTER_EXPERTS };
_Static_assert((int)AFTER_EXPERTS < (int)RH_HALF_TENSORS, "each has its place");

/* Its rows, in places of rows that it lacks: what the MLP made and that one's gradient, what the experts made, and the two statistics of
 * the norms behind them. */
enum {
	MADE_BY_MLP = MLP_GATING,
	D_MADE_BY_MLP = MLP_D_GATING,
	MADE_BY_EXPERTS = ROUTED_LOW + RH_ROUTED_ROUTER,
	STATS = ROUTED_D_LOW + RH_ROUTED_ROUTER
};
enum { STATS_ROW = RH_ROW_NORM + RH_NORM_MLP }; /* of x */

/* ---- layout ---- */

static void size(const struct rh_model_config *config, struct rh_layer *layer)
{
	moe_size(config, layer);
	layer->proj[RH_PROJ_GATING].factor = (float)(1 / sqrt((double)layer->width));
	layer->proj[RH_PROJ_GATING].is_exact = 1;
}

/* A vector that is no norm of transformers' classes, so that its trainer decays it. */
static int place_scale(struct layout *at, const char *name, int64_t length)
{
	int tensor = layout_place_bias(at, name, NULL, 1, 1, length);
	if (!at->fault) {
		at->block->tensor[tensor].initial = (struct rh_initial){RH_INITIAL_CONSTANT, 1};
		at->block->tensor[tensor].decays = 1;
	}
	return tensor;
}

static void place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	int *own = layer->own[RH_MLP];
	moe_place(config, layer, at, kind);
	if (kind == HALF_NORMS) {
		own[NORM_EXPERTS] = layout_place_norm(at, "pre_feedforward_layernorm_2", layer->traits.norm, layer->width);
		own[AFTER_MLP] = layout_place_norm(at, "post_feedforward_layernorm_1", layer->traits.norm, layer->width);
		own[AFTER_EXPERTS] = layout_place_norm(at, "post_feedforward_layernorm_2", layer->traits.norm, layer->width);
		own[NORM_ROUTER] = place_scale(at, "router.scale", layer->width);
		own[MOE_SCALE] = place_scale(at, "router.per_expert_scale", layer->traits.experts);
	}
	if (kind == HALF_WEIGHTS && !at->fault)
		at->block->tensor[layer->proj[RH_PROJ_GATING].weight].may_pack = 0;
}

/* ---- emission ---- */

static struct emit_linears router_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_GATING, 1};
}

static struct emit_norm norm_of(const struct rh_layer *layer, int own)
{
	return (struct emit_norm){layer, layer->own[RH_MLP][own], 1, layer->width, 0};
}

static struct rh_view stats_of(const struct rh_activations *s, int own)
{
	return rh_view_cols(s->view[STATS], own == AFTER_EXPERTS, 1);
}

/* In the arena. */
static struct rh_view normed(struct rh_emit *emit, struct emit_norm norm, struct rh_view x, struct rh_view stats)
{
	struct rh_view y = emit_act(emit, x.rows, x.cols);
	emit_norm(emit, norm, x, y, stats);
	return y;
}

static int learns(const struct rh_emit *emit, int layer, enum half_end of)
{
	/* no weights are multiplied by the gradient of its output: that goes through norms first */
	return of == HALF_INPUT && (half_mlp.learns(emit, layer, HALF_INPUT) || moe_learns(emit, layer));
}

static void declare(const struct rh_emit *emit, int index, struct emit_table *table)
{
	enum rh_dtype act = emit->model->dtype;
	int64_t tokens = emit->shape.tokens, width = emit->model->layer[index].width;
	rh_row_set by_mlp = RH_ROW_SET(MLP_GATE_UP);
	rh_row_set by_experts = RH_ROW_SET(ROUTED_GATE_UP) | RH_ROW_SET(ROUTED_WEIGHT) | RH_ROW_SET(ROUTED_PLACE) | RH_ROW_SET(ROUTED_START);
	rh_row_set made = RH_ROW_SET(MADE_BY_MLP) | RH_ROW_SET(MADE_BY_EXPERTS);
	int is_deferred = emit->deferred && half_mlp.learns(emit, index, HALF_OUTPUT);
	moe_declare(emit, index, table);
	half_mlp.declare(emit, index, table);
	emit_row(table, MADE_BY_MLP, act, tokens, width, (struct emit_origin){RH_MAKER_MLP, by_mlp, 0});
	emit_row(table, MADE_BY_EXPERTS, act, tokens, width, (struct emit_origin){RH_MAKER_MLP, by_experts, 0});
	emit_row(table, STATS, RH_F32, tokens, 2, (struct emit_origin){RH_MAKER_MLP, made, 0});
	emit_row(table, D_MADE_BY_MLP, act, tokens, width, (struct emit_origin){RH_MAKER_BACKWARD, 0, is_deferred});
}

enum { LOW_GATE = RH_ROW_LOW + RH_PROJ_GATE, LOW_ROUTER = RH_ROW_LOW + RH_PROJ_GATING };
#define INPUT_OF_MLP    (RH_ROW_SET(MLP_GATE_UP) | RH_ROW_RUN(LOW_GATE, 2))
#define INPUT_OF_ROUTER (RH_ROW_SET(ROUTED_LOGITS) | RH_ROW_SET(LOW_ROUTER))
#define INPUT_OF_EXPERTS                                                                                                                   \
	(RH_ROW_SET(ROUTED_PLACE) | RH_ROW_SET(ROUTED_START) | RH_ROW_SET(ROUTED_GATE_UP) | RH_ROW_SET(ROUTED_LOW + RH_ROUTED_GATE_UP))

/* What the two make of x, where it is wanted. */
static void make(struct rh_emit *emit, int index, struct rh_view x, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct rh_view stats = s->view[STATS_ROW], none = {0}, in = none;
	int64_t mark = emit->arena->used;
	if (emit_wants(s, INPUT_OF_MLP | RH_ROW_SET(STATS_ROW)))
		in = normed(emit, emit_norm_of(emit, index, RH_NORM_MLP), x, stats);
	(void)half_mlp.forward(emit, index, in, none, emit_wanted(s, MADE_BY_MLP), s);
	rh_arena_reset(emit->arena, mark);
	if (emit_wants(s, INPUT_OF_ROUTER))
		emit_linear(emit, router_of(index), normed(emit, norm_of(layer, NORM_ROUTER), x, stats), none,
		            emit_wanted(s, ROUTED_LOGITS), s);
	rh_arena_reset(emit->arena, mark);
	if (emit_wants(s, RH_ROW_SET(ROUTED_INDEX) | RH_ROW_SET(ROUTED_WEIGHT)))
		moe_route(emit, layer, s);
	in = emit_wants(s, INPUT_OF_EXPERTS) ? normed(emit, norm_of(layer, NORM_EXPERTS), x, stats) : none;
	moe_forward(emit, index, in, none, emit_wanted(s, MADE_BY_EXPERTS), s);
	rh_arena_reset(emit->arena, mark);
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t mark = emit->arena->used;
	RH_ASSERT(!residual.data); /* a norm follows */
	make(emit, index, x, s);
	if (!y.data && !emit_wants(s, RH_ROW_SET(STATS)))
		return NULL;
	struct rh_view by_mlp = normed(emit, norm_of(layer, AFTER_MLP), s->view[MADE_BY_MLP], stats_of(s, AFTER_MLP));
	struct rh_view by_experts = normed(emit, norm_of(layer, AFTER_EXPERTS), s->view[MADE_BY_EXPERTS], stats_of(s, AFTER_EXPERTS));
	if (y.data)
		emit_add(emit, by_mlp, by_experts, y);
	rh_arena_reset(emit->arena, mark);
	return NULL;
}

/* dx = add + the gradient through a norm of x. Returns what the norm made. */
static struct rh_view norm_backward(struct rh_emit *emit, struct emit_norm norm, const struct rh_activations *s, struct rh_view dy,
                                    struct rh_view add, struct rh_view dx)
{
	struct rh_view made = emit_act(emit, dx.rows, dx.cols);
	emit_norm_backward(emit, norm,
	                   &(struct emit_norm_gradient){
	                           .x = s->view[RH_ROW_X2], .stats = s->view[STATS_ROW], .dy = dy, .add = add, .dx = dx, .y = made});
	return made;
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct rh_view d_made = emit_operand(emit, s, D_MADE_BY_MLP), none = {0};
	moe_take_operands(emit, index, s);
	int64_t mark = emit->arena->used;
	emit_norm_backward(
	        emit, norm_of(layer, AFTER_MLP),
	        &(struct emit_norm_gradient){.x = s->view[MADE_BY_MLP], .stats = stats_of(s, AFTER_MLP), .dy = dy, .dx = d_made});
	struct rh_view d = emit_act(emit, dx.rows, dx.cols);
	half_mlp.backward(emit, index, s, d_made, d);
	half_mlp.gradients(emit, index, s, norm_backward(emit, emit_norm_of(emit, index, RH_NORM_MLP), s, d, none, dx));
	rh_arena_reset(emit->arena, mark);

	d = emit_act(emit, dx.rows, dx.cols);
	emit_norm_backward(
	        emit, norm_of(layer, AFTER_EXPERTS),
	        &(struct emit_norm_gradient){.x = s->view[MADE_BY_EXPERTS], .stats = stats_of(s, AFTER_EXPERTS), .dy = dy, .dx = d});
	moe_gather(emit, s, moe_backward(emit, index, s, d), none, d);
	moe_gradients(emit, index, s, norm_backward(emit, norm_of(layer, NORM_EXPERTS), s, d, dx, dx));
	rh_arena_reset(emit->arena, mark);

	d = emit_act(emit, dx.rows, dx.cols);
	emit_linear_dx(emit, router_of(index), s->view[ROUTED_D_LOGITS], d, s);
	struct rh_view in = norm_backward(emit, norm_of(layer, NORM_ROUTER), s, d, dx, dx);
	emit_linear_gradients(emit, router_of(index), s->view[ROUTED_D_LOGITS], in, s);
	rh_arena_reset(emit->arena, mark);
}

/* All of them are in `backward`: dx is known only when each norm's input gradient is. */
static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	(void)emit, (void)index, (void)s, (void)x;
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct rh_view x = s->view[RH_ROW_INPUT + RH_MLP];
	int64_t mark = emit->arena->used;
	struct rh_view stats = emit_take(emit->arena, RH_F32, x.rows, 1);
	struct rh_activations of_mlp = *s;
	of_mlp.view[RH_ROW_INPUT + RH_MLP] = normed(emit, emit_norm_of(emit, index, RH_NORM_MLP), x, stats);
	of_mlp.view[RH_ROW_GRADIENT + RH_MLP] = s->view[D_MADE_BY_MLP];
	half_mlp.weights(emit, index, &of_mlp);
	moe_weights(emit, index, s, x);
	emit_linear_dw(emit, router_of(index), s->view[ROUTED_D_LOGITS], normed(emit, norm_of(layer, NORM_ROUTER), x, stats), s);
	rh_arena_reset(emit->arena, mark);
}

const struct rh_half half_beside = {.size = size,
                                    .place = place,
                                    .place_adapters = moe_place_adapters,
                                    .of_input = INPUT_OF_MLP | INPUT_OF_ROUTER | INPUT_OF_EXPERTS,
                                    .of_output = RH_ROW_SET(MLP_GATE_UP) | RH_ROW_SET(MADE_BY_MLP) | RH_ROW_SET(MADE_BY_EXPERTS),
                                    .declare = declare,
                                    .learns = learns,
                                    .forward = forward,
                                    .backward = backward,
                                    .gradients = gradients,
                                    .weights = weights};
