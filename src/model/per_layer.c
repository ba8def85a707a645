/* A layer's own input (Gemma 4's small models), which joins the residual behind its MLP:
 *   y = x + norm(Out(act(Gate x) * input))
 * The inputs of all layers lie beside the activations, (T, layers * size): rows of a wide table from the embedding on, to which the lowest
 * layer, whose x is what the embedding made, adds norm(Inputs x), the norm over each layer's part. What both are multiplied by together is
 * a factor of Out, as the norm behind it and the products are linear in it. */
#include "model/half.h"

#include <math.h>

/* Its tensors; and its rows of the activation table: gate|input, the input of Out, and of the lowest layer what Inputs makes. */
enum { INPUTS_NORM };
enum { GATED = RH_ROW_PER_LAYER, HIDDEN, PROJECTED, STATS, D_PROJECTED };
_Static_assert(D_PROJECTED - GATED < RH_PER_LAYER_ROWS, "each has its place");

static void size(const struct rh_model_config *config, struct rh_layer *layer)
{
	int64_t own = layer->traits.per_layer;
	layout_size(config, layer, RH_PROJ_PER_LAYER_GATE, layer->width, own, 0);
	layout_size(config, layer, RH_PROJ_PER_LAYER_OUT, own, layer->width, 0);
	layer->proj[RH_PROJ_PER_LAYER_OUT].factor = sqrtf(0.5f);
	if (!layer->traits.makes_inputs)
		return;
	layout_size(config, layer, RH_PROJ_PER_LAYER_INPUTS, layer->width, config->num_hidden_layers * own, 0);
	layer->proj[RH_PROJ_PER_LAYER_INPUTS].factor = 1 / sqrtf((float)layer->width);
}

static void place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind)
{
	const char *prefix = at->prefix;
	if (kind == HALF_WEIGHTS)
		layout_weights(config, layer, at, RH_PROJ_PER_LAYER_GATE, 2);
	if (!layer->traits.makes_inputs)
		return;
	at->prefix = ""; /* modules of the model, not of a layer */
	if (kind == HALF_NORMS)
		layer->own[RH_PER_LAYER][INPUTS_NORM] =
		        layout_place_norm(at, rh_model_names(config)->inputs_norm, layer->traits.norm, layer->traits.per_layer);
	if (kind == HALF_WEIGHTS)
		layout_weights(config, layer, at, RH_PROJ_PER_LAYER_INPUTS, 1);
	at->prefix = prefix;
}

static struct emit_linears gate_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_PER_LAYER_GATE, 1};
}

static struct emit_linears out_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_PER_LAYER_OUT, 1};
}

static struct emit_linears inputs_of(int layer)
{
	return (struct emit_linears){layer, RH_PROJ_PER_LAYER_INPUTS, 1};
}

static struct emit_norm inputs_norm(const struct rh_emit *emit, int layer)
{
	const struct rh_layer *of = &emit->model->layer[layer];
	int64_t own = of->traits.per_layer;
	return (struct emit_norm){of, of->own[RH_PER_LAYER][INPUTS_NORM], of->proj[RH_PROJ_PER_LAYER_INPUTS].outputs / own, own, 0};
}

static int learns(const struct rh_emit *emit, int layer, enum half_end of)
{
	return emit_linear_learns(emit, of == HALF_INPUT ? gate_of(layer) : out_of(layer));
}

static void declare(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t tokens = emit->shape.tokens, own = layer->traits.per_layer, all = layer->proj[RH_PROJ_PER_LAYER_INPUTS].outputs;
	int input_is_deferred = emit->deferred && learns(emit, index, HALF_INPUT);
	int hidden_is_deferred = emit->deferred && learns(emit, index, HALF_OUTPUT);
	enum rh_dtype act = emit->model->dtype;
	emit_row(table, GATED, act, tokens, 2 * own, (struct emit_origin){RH_MAKER_MLP, RH_ROW_SET(RH_ROW_X3), input_is_deferred});
	emit_row_side(table, RH_SIDE_FROM);
	emit_row(table, HIDDEN, act, tokens, own, (struct emit_origin){RH_MAKER_BACKWARD, 0, hidden_is_deferred});
	if (!layer->traits.makes_inputs)
		return;
	emit_row(table, PROJECTED, act, tokens, all, (struct emit_origin){RH_MAKER_MIXER, RH_ROW_SET(RH_ROW_X), 0});
	emit_row_side(table, RH_SIDE_TO);
	emit_row(table, STATS, RH_F32, tokens, emit_norm_stats_cols(inputs_norm(emit, index)),
	         (struct emit_origin){RH_MAKER_MIXER, RH_ROW_SET(PROJECTED), 0});
	emit_row_side(table, RH_SIDE_TO);
	emit_row(table, D_PROJECTED, act, tokens, all, (struct emit_origin){RH_MAKER_BACKWARD, 0, 0});
}

/* Those of all layers from this one on, beside activations or gradients; and this one's. */
static struct rh_view inputs_from(const struct rh_emit *emit, struct rh_view side, int index)
{
	int64_t cols = emit->model->layer[index].side[0].inputs;
	return rh_view_cols(side, rh_side_cols(emit->has) - cols, cols);
}

static struct rh_view own_input(const struct rh_emit *emit, struct rh_view side, int index)
{
	return rh_view_cols(inputs_from(emit, side, index), 0, emit->model->layer[index].traits.per_layer);
}

void emit_make_inputs(struct rh_emit *emit, int index, struct rh_view x, struct rh_activations *s)
{
	if (!emit->model->layer[index].traits.makes_inputs)
		return;
	struct rh_view projected = s->view[PROJECTED];
	int64_t mark = emit->arena->used;
	if (emit_wants(s, RH_ROW_SET(PROJECTED)) || emit_wants_low(s, inputs_of(index)))
		emit_linear(emit, inputs_of(index), x, (struct rh_view){0}, emit_wanted(s, PROJECTED), s);
	if (emit->side.data || emit_wants(s, RH_ROW_SET(STATS))) {
		struct rh_view normed = emit_act(emit, projected.rows, projected.cols), all = inputs_from(emit, emit->side, index);
		emit_norm(emit, inputs_norm(emit, index), projected, normed, s->view[STATS]);
		if (all.data)
			emit_add(emit, all, normed, all);
	}
	rh_arena_reset(emit->arena, mark);
}

void emit_make_inputs_backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dx)
{
	if (!emit->model->layer[index].traits.makes_inputs)
		return;
	int64_t mark = emit->arena->used;
	struct rh_view d = emit_operand(emit, s, D_PROJECTED);
	emit_norm_backward(
	        emit, inputs_norm(emit, index),
	        &(struct emit_norm_gradient){
	                .x = s->view[PROJECTED], .stats = s->view[STATS], .dy = inputs_from(emit, emit->d_side, index), .dx = d});
	emit_linear_more_dx(emit, inputs_of(index), d, dx, s);
	emit_linear_dw(emit, inputs_of(index), d, s->view[RH_ROW_X], s);
	rh_arena_reset(emit->arena, mark);
}

static void *forward(struct rh_emit *emit, int index, struct rh_view x, struct rh_view residual, struct rh_view y, struct rh_activations *s)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view gated = s->view[GATED], none = {0};
	int wants = emit_wants(s, RH_ROW_SET(GATED));
	if (wants || emit_wants_low(s, gate_of(index)))
		emit_linear(emit, gate_of(index), x, none, wants ? rh_view_cols(gated, 0, traits->per_layer) : none, s);
	if (wants)
		emit_cast(emit, own_input(emit, emit->side, index), rh_view_cols(gated, traits->per_layer, traits->per_layer));
	if (!y.data && !emit_wants_low(s, out_of(index)))
		return NULL;
	struct rh_view a = emit_act(emit, gated.rows, traits->per_layer);
	emit_glu(emit, traits->activation, gated, a);
	return emit_linear_apart(emit, out_of(index), a, residual, y, s);
}

static void backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_traits *traits = &emit->model->layer[index].traits;
	struct rh_view gated = s->view[GATED];
	int64_t mark = emit->arena->used;
	struct rh_view a = emit_operand(emit, s, HIDDEN); /* first its gradient, then Out's input itself */
	emit_linear_dx(emit, out_of(index), dy, a, s);
	emit_glu_backward(emit, traits->activation, gated, a, (struct rh_view){0});
	emit_linear_gradients(emit, out_of(index), dy, a, s);
	rh_arena_reset(emit->arena, mark);
	emit_cast(emit, rh_view_cols(gated, traits->per_layer, traits->per_layer), own_input(emit, emit->d_side, index));
	emit_linear_dx(emit, gate_of(index), rh_view_cols(gated, 0, traits->per_layer), dx, s);
}

static void input_gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	struct rh_view d_gate = rh_view_cols(s->view[GATED], 0, emit->model->layer[index].traits.per_layer);
	emit_linear_dw(emit, gate_of(index), d_gate, x, s);
}

static void gradients(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view x)
{
	if (!emit->deferred)
		input_gradients(emit, index, s, x);
}

static void weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	emit_linear_dw(emit, out_of(index), s->view[RH_ROW_GRADIENT + RH_PER_LAYER], s->view[HIDDEN], s);
	input_gradients(emit, index, s, s->view[RH_ROW_INPUT + RH_PER_LAYER]);
}

const struct rh_half half_per_layer = {.size = size,
                                       .place = place,
                                       .of_input = RH_ROW_SET(GATED) | RH_ROW_SET(RH_ROW_LOW + RH_PROJ_PER_LAYER_GATE),
                                       .of_output = RH_ROW_SET(GATED),
                                       .of_side = RH_ROW_SET(GATED),
                                       .declare = declare,
                                       .learns = learns,
                                       .forward = forward,
                                       .backward = backward,
                                       .gradients = gradients,
                                       .weights = weights};
