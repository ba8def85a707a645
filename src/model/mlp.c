/* An MLP with a gate, Down(act(Gate x) * Up x), or without one, Down(act(Up x)): then Gate's place is Up's. One beside experts may count in
 * each token by the sigmoid of a linear of one row, Down(sigmoid(Gating x) * act(Gate x) * Up x).
 * Its rows of the activation table: gate|up; what Gating makes; and the input of Down, which the backward makes again on the way. */
#include "model/moe.h"

static void size(const struct rh_model_config *config, struct rh_layer *layer)
{
	const struct rh_traits *traits = &layer->traits;
	int64_t wide = traits->shared ? traits->shared : traits->intermediate;
	layout_size(config, layer, RH_PROJ_GATE, layer->width, wide, 0);
	layout_size(config, layer, RH_PROJ_UP, layer->width, traits->mlp == RH_MLP_PLAIN ? 0 : wide, 1);
	layout_size(config, layer, RH_PROJ_DOWN, wide, layer->width, 0);
	if (rh_model_names(config)->mlp[RH_PROJ_GATING - RH_PROJ_MLP] && traits->experts)
		layout_size(config, layer, RH_PROJ_GATING, layer->width, traits->mlp == RH_MLP_BESIDE ? traits->experts : 1, 0);
}

static void place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	if (kind == HALF_WEIGHTS)
		layout_weights(config, layer, at, RH_PROJ_MLP, RH_PROJ_PER_LAYER_GATE - RH_PROJ_MLP);
	if (kind == HALF_BIASES)
		layout_biases(config, layer, at, RH_PROJ_MLP, RH_PROJ_PER_LAYER_GATE - RH_PROJ_MLP);
}

static struct emit_linears gate_up_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_GATE, 2};
}

static struct emit_linears down_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_DOWN, 1};
}

static struct emit_linears gating_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_GATING, 1};
}

static int has_gating(const struct rh_emit *emit, int layer)
{
	return emit->model->layer[layer].traits.mlp == RH_MLP_SHARED && emit->model->layer[layer].proj[RH_PROJ_GATING].outputs != 0;
}

static int64_t width_of(const struct rh_emit *emit, int layer)
{
	return emit->model->layer[layer].proj[RH_PROJ_DOWN].inputs;
}

static int learns(const struct rh_emit *emit, int layer, enum half_end of)
{
	if (of == HALF_OUTPUT)
		return emit_linear_learns(emit, down_of(layer));
	return emit_linear_learns(emit, gate_up_of(layer)) || emit_linear_learns(emit, gating_of(layer));
}

static void declare(const struct rh_emit *emit, int layer, struct emit_table *table)
{
	const struct rh_linear *proj = emit->model->layer[layer].proj;
	int64_t tokens = emit->shape.tokens, wide = proj[RH_PROJ_GATE].outputs + proj[RH_PROJ_UP].outputs;
	int input_is_deferred = emit->deferred && learns(emit, layer, HALF_INPUT);
	int hidden_is_deferred = emit->deferred && learns(emit, layer, HALF_OUTPUT);
	enum rh_dtype act = emit->model->dtype;
	emit_row(table, MLP_GATE_UP, act, tokens, wide, (struct emit_origin){RH_MAKER_MLP, RH_ROW_SET(RH_ROW_X2), input_is_deferred});
	emit_row(table, MLP_HIDDEN, act, tokens, width_of(emit, layer), (struct emit_origin){RH_MAKER_BACKWARD, 0, hidden_is_deferred});
	if (!has_gating(emit, layer))
		return;
	emit_row(table, MLP_GATING, act, tokens, 1, (struct emit_origin){RH_MAKER_MLP, RH_ROW_SET(RH_ROW_X2), 0});
	emit_row(table, MLP_D_GATING, act, tokens, 1, (struct emit_origin){RH_MAKER_BACKWARD, 0, input_is_deferred});
}

static void activate(struct rh_emit *emit, const struct rh_traits *traits, struct rh_view gu, struct rh_view a)
{
	struct rh_op op = {.kind = RH_OP_ACTIVATION, .activation.act = traits->activation};
	if (traits->mlp != RH_MLP_PLAIN) {
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
	if (traits->mlp != RH_MLP_PLAIN) {
		emit_glu_backward(emit, traits->activation, gu, da, (struct rh_view){0});
		return;
	}
	op.operand[RH_ACTIVATION_BACKWARD_X] = op.operand[RH_ACTIVATION_BACKWARD_DX] = gu;
	op.operand[RH_ACTIVATION_BACKWARD_DY] = op.operand[RH_ACTIVATION_BACKWARD_Y] = da;
	emit_op(emit, &op);
}

/* The input of Down, in the arena. */
static struct rh_view hidden(struct rh_emit *emit, int index, const struct rh_view *view)
{
	struct rh_op op = {.kind = RH_OP_GATE, .gate.f = RH_GATE_SIGMOID};
	struct rh_view a = emit_act(emit, view[MLP_GATE_UP].rows, width_of(emit, index));
	activate(emit, &emit->model->layer[index].traits, view[MLP_GATE_UP], a);
	if (!has_gating(emit, index))
		return a;
	struct rh_view y = emit_act(emit, a.rows, a.cols);
	op.operand[RH_GATE_X] = a;
	op.operand[RH_GATE_Z] = view[MLP_GATING];
	op.operand[RH_GATE_Y] = y;
	emit_op(emit, &op);
	return y;
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	if (emit_wants(s, RH_ROW_SET(MLP_GATE_UP)) || emit_wants_low(s, gate_up_of(index)))
		emit_linear(emit, gate_up_of(index), x, (struct rh_view){0}, emit_wanted(s, MLP_GATE_UP), s);
	if (has_gating(emit, index) && (emit_wants(s, RH_ROW_SET(MLP_GATING)) || emit_wants_low(s, gating_of(index))))
		emit_linear(emit, gating_of(index), x, (struct rh_view){0}, emit_wanted(s, MLP_GATING), s);
	if (!y.data && !emit_wants_low(s, down_of(index)))
		return NULL;
	return emit_linear_apart(emit, down_of(index), hidden(emit, index, s->view), residual, y, s);
}

/* d, the gradient of Down's input, becomes that input; gate|up become their gradients, and that of Gating's product is made. */
static void gated_backward(struct rh_emit *emit, int index, const struct rh_view *view, struct rh_view d)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_op op = {.kind = RH_OP_GATE_BACKWARD, .gate.f = RH_GATE_SIGMOID};
	struct rh_view a = emit_act(emit, d.rows, d.cols), da = emit_act(emit, d.rows, d.cols);
	activate(emit, traits, view[MLP_GATE_UP], a);
	op.operand[RH_GATE_BACKWARD_X] = a;
	op.operand[RH_GATE_BACKWARD_Z] = view[MLP_GATING];
	op.operand[RH_GATE_BACKWARD_DY] = op.operand[RH_GATE_BACKWARD_Y] = d;
	op.operand[RH_GATE_BACKWARD_DX] = da;
	op.operand[RH_GATE_BACKWARD_DZ] = view[MLP_D_GATING];
	emit_op(emit, &op);
	activation_backward(emit, traits, view[MLP_GATE_UP], da);
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	struct rh_view gu = s->view[MLP_GATE_UP];
	if (has_gating(emit, index))
		(void)emit_operand(emit, s, MLP_D_GATING);
	int64_t mark = emit->arena->used;
	struct rh_view a = emit_operand(emit, s, MLP_HIDDEN); /* first its gradient, then Down's input itself */
	emit_linear_dx(emit, down_of(index), dy, a, s);
	if (has_gating(emit, index))
		gated_backward(emit, index, s->view, a);
	else
		activation_backward(emit, &emit->model->layer[index].traits, gu, a);
	emit_linear_gradients(emit, down_of(index), dy, a, s);
	rh_arena_reset(emit->arena, mark);
	emit_linear_dx(emit, gate_up_of(index), gu, dx, s);
	if (has_gating(emit, index))
		emit_linear_more_dx(emit, gating_of(index), s->view[MLP_D_GATING], dx, s);
}

/* Of the linears that read x. */
static void input_gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	emit_linear_dw(emit, gate_up_of(index), s->view[MLP_GATE_UP], x, s);
	if (has_gating(emit, index))
		emit_linear_dw(emit, gating_of(index), s->view[MLP_D_GATING], x, s);
}

static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	if (!emit->deferred)
		input_gradients(emit, index, s, x);
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	emit_linear_dw(emit, down_of(index), s->view[RH_ROW_GRADIENT + RH_MLP], s->view[MLP_HIDDEN], s);
	input_gradients(emit, index, s, s->view[RH_ROW_INPUT + RH_MLP]);
}

const struct rh_half half_mlp = {.size = size,
                                 .place = place,
                                 .of_input = RH_ROW_SET(MLP_GATE_UP) | RH_ROW_RUN(RH_ROW_LOW + RH_PROJ_GATE, 2),
                                 .of_output = RH_ROW_SET(MLP_GATE_UP),
                                 .declare = declare,
                                 .learns = learns,
                                 .forward = forward,
                                 .backward = backward,
                                 .gradients = gradients,
                                 .weights = weights};
