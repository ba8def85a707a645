/* An MLP with a gate, Down(act(Gate x) * Up x), or without one, Down(act(Up x)): then Gate's place is Up's. Kept for the backward: gate|up;
 * act(gate) * up is made again on the way. */
#include "model/half.h"

enum { GATE_UP };

static void size(const struct rh_model_config *config, struct rh_layer *layer)
{
	int64_t wide = layer->traits.intermediate;
	layout_size(config, layer, RH_PROJ_GATE, layer->width, wide, 0);
	layout_size(config, layer, RH_PROJ_UP, layer->width, layer->traits.mlp == RH_MLP_PLAIN ? 0 : wide, 1);
	layout_size(config, layer, RH_PROJ_DOWN, wide, layer->width, 0);
}

static void place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	if (kind == HALF_WEIGHTS)
		layout_weights(config, layer, at, RH_PROJ_MLP, RH_PROJS - RH_PROJ_MLP);
	if (kind == HALF_BIASES)
		layout_biases(config, layer, at, RH_PROJ_MLP, RH_PROJS - RH_PROJ_MLP);
}

static struct emit_linears gate_up_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_GATE, 2};
}

static struct emit_linears down_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_DOWN, 1};
}

static int learns(const struct rh_emit *emit, int layer, enum half_end of)
{
	return emit_linear_learns(emit, of == HALF_INPUT ? gate_up_of(layer) : down_of(layer));
}

static void keeps(const struct rh_emit *emit, int layer, struct rh_saved *s, struct emit_activations *list)
{
	const struct rh_linear *proj = emit->model->layer[layer].proj;
	emit_keep(list, &s->own[RH_MLP][GATE_UP], emit->model->dtype, emit->shape.tokens,
	          proj[RH_PROJ_GATE].outputs + proj[RH_PROJ_UP].outputs, emit->deferred && learns(emit, layer, HALF_INPUT));
}

static void activate(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view gu, struct rh_view a)
{
	struct rh_op op = {.kind = RH_OP_ACTIVATION, .activation.act = traits->activation};
	if (traits->mlp == RH_MLP_GATED) {
		emit_glu(emit, traits->activation, gu, a);
		return;
	}
	op.operand[RH_ACTIVATION_X] = gu;
	op.operand[RH_ACTIVATION_Y] = a;
	emit_op(emit, &op);
}

/* gu becomes its gradient, da becomes a. */
static void activation_backward(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view gu, struct rh_view da)
{
	struct rh_op op = {.kind = RH_OP_ACTIVATION_BACKWARD, .activation.act = traits->activation};
	if (traits->mlp == RH_MLP_GATED) {
		emit_glu_backward(emit, traits->activation, gu, da, (struct rh_view){0});
		return;
	}
	op.operand[RH_ACTIVATION_BACKWARD_X] = op.operand[RH_ACTIVATION_BACKWARD_DX] = gu;
	op.operand[RH_ACTIVATION_BACKWARD_DY] = op.operand[RH_ACTIVATION_BACKWARD_Y] = da;
	emit_op(emit, &op);
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_saved *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct rh_view gu = s->own[RH_MLP][GATE_UP];
	emit_linear(emit, gate_up_of(index), x, (struct rh_view){0}, gu, s->low);
	if (!y.data && !layer->proj[RH_PROJ_DOWN].r)
		return NULL;
	struct rh_view a = emit_act(emit, gu.rows, layer->traits.intermediate);
	activate(emit, &layer->traits, gu, a);
	return emit_linear_apart(emit, down_of(index), a, residual, y, s->low);
}

static void backward(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view gu = s->own[RH_MLP][GATE_UP];
	int64_t mark = emit->arena->used;
	/* first its gradient, then the activation itself */
	struct rh_view a = emit_take(emit_linear_operands(emit, down_of(index)), emit->model->dtype, gu.rows, traits->intermediate);
	emit_linear_dx(emit, down_of(index), dy, a, s->d_low);
	activation_backward(emit, traits, gu, a);
	emit_linear_gradients(emit, down_of(index), dy, a, s);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, gate_up_of(index), gu, dx, s->d_low);
}

static void gradients(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view x)
{
	emit_linear_gradients(emit, gate_up_of(index), s->own[RH_MLP][GATE_UP], x, s);
}

static void weights(struct rh_emit *emit, int index, const struct rh_saved *s)
{
	emit_linear_deferred(emit, down_of(index), s);
	emit_linear_deferred(emit, gate_up_of(index), s);
}

const struct rh_half half_mlp = {.size = size,
                                 .place = place,
                                 .keeps = keeps,
                                 .learns = learns,
                                 .forward = forward,
                                 .backward = backward,
                                 .gradients = gradients,
                                 .weights = weights};
