/* An MLP with a gate, Down(act(Gate x) * Up x), or without one, Down(act(Up x)): then Gate's place is Up's. Its rows of the activation
 * table: gate|up, and act(gate) * up, which the backward makes again on the way. */
#include "model/half.h"

enum { GATE_UP = RH_ROW_MLP, HIDDEN };

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

static void declare(const struct rh_emit *emit, int layer, struct emit_table *table)
{
	const struct rh_linear *proj = emit->model->layer[layer].proj;
	int64_t tokens = emit->shape.tokens, wide = proj[RH_PROJ_GATE].outputs + proj[RH_PROJ_UP].outputs;
	int gate_up_is_deferred = emit->deferred && learns(emit, layer, HALF_INPUT);
	int hidden_is_deferred = emit->deferred && learns(emit, layer, HALF_OUTPUT);
	emit_row(table, GATE_UP, emit->model->dtype, tokens, wide,
	         (struct emit_origin){RH_MAKER_MLP, RH_ROW_SET(RH_ROW_X2), gate_up_is_deferred});
	emit_row(table, HIDDEN, emit->model->dtype, tokens, emit->model->layer[layer].traits.intermediate,
	         (struct emit_origin){RH_MAKER_BACKWARD, 0, hidden_is_deferred});
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

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct rh_view gu = s->view[GATE_UP];
	if (emit_wants(s, RH_ROW_SET(GATE_UP)) || emit_wants_low(s, gate_up_of(index)))
		emit_linear(emit, gate_up_of(index), x, (struct rh_view){0}, emit_wanted(s, GATE_UP), s);
	if (!y.data && !emit_wants_low(s, down_of(index)))
		return NULL;
	struct rh_view a = emit_act(emit, gu.rows, layer->traits.intermediate);
	activate(emit, &layer->traits, gu, a);
	return emit_linear_apart(emit, down_of(index), a, residual, y, s);
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	struct rh_view gu = s->view[GATE_UP];
	int64_t mark = emit->arena->used;
	struct rh_view a = emit_operand(emit, s, HIDDEN); /* first its gradient, then the activation itself */
	emit_linear_dx(emit, down_of(index), dy, a, s);
	activation_backward(emit, &emit->model->layer[index].traits, gu, a);
	emit_linear_gradients(emit, down_of(index), dy, a, s);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, gate_up_of(index), gu, dx, s);
}

static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	emit_linear_gradients(emit, gate_up_of(index), s->view[GATE_UP], x, s);
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	emit_linear_dw(emit, down_of(index), s->view[RH_ROW_GRADIENT + RH_MLP], s->view[HIDDEN], s);
	emit_linear_dw(emit, gate_up_of(index), s->view[GATE_UP], s->view[RH_ROW_INPUT + RH_MLP], s);
}

const struct rh_half half_mlp = {.size = size,
                                 .place = place,
                                 .of_input = RH_ROW_SET(GATE_UP) | RH_ROW_RUN(RH_ROW_LOW + RH_PROJ_GATE, 2),
                                 .of_output = RH_ROW_SET(GATE_UP),
                                 .declare = declare,
                                 .learns = learns,
                                 .forward = forward,
                                 .backward = backward,
                                 .gradients = gradients,
                                 .weights = weights};
