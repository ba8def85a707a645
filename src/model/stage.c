/* Emits the layers of a stage: what one slot does for one micro-batch. */
#include "model/emit_internal.h"

/* A fresh boundary below layer l. */
static struct rh_view take_boundary(const struct rh_emit *emit, struct rh_arena *arena, int l)
{
	return emit_take(arena, emit->model->dtype, emit->shape.tokens, rh_boundary_cols(emit->model, l));
}

/* Takes `count` spare buffers, each with room for any of the boundaries [lo, hi]. */
static void take_spare(struct rh_emit *emit, int lo, int hi, int count, struct rh_stage_pass *pass)
{
	int64_t widest = 0;
	for (int l = lo; l <= hi; l++)
		widest = rh_max(widest, rh_boundary_cols(emit->model, l));
	for (int i = 0; i < count; i++)
		pass->spare[i] = emit_act(emit, emit->shape.tokens, widest);
}

/* The spare buffer whose turn it is, as the boundary below layer l. */
static struct rh_view spare(const struct rh_emit *emit, const struct rh_stage_pass *pass, int l)
{
	return rh_boundary_view(emit->model, l, emit->shape.tokens, pass->spare[pass->turn].data);
}

/* The load of the layers below a boundary, which may be the model's beginning. */
static struct rh_view begin_load(struct rh_emit *emit, struct rh_arena *arena, struct rh_view boundary)
{
	struct rh_view below = rh_boundary_load(emit->model, boundary), load;
	if (emit->model->router_aux_loss_coef == 0)
		return (struct rh_view){0};
	load = emit_take(arena, RH_F32, 1, 2 * emit->model->config->experts);
	if (below.data)
		emit_cast(emit, below, load);
	else
		emit_fill(emit, load);
	return load;
}

/* emit->load goes to where it is wanted. */
static void leave_load(struct rh_emit *emit, struct rh_view to)
{
	if (emit->load.data && to.data)
		emit_cast(emit, emit->load, to);
}

/* Two buffers take turns; that a boundary is kept spares none, so that memory is known by the stage alone. `ends`: the last layer writes
 * elsewhere. */
static void begin_forward(struct rh_emit *emit, int lo, int hi, int ends, struct rh_view x, struct rh_stage_pass *pass)
{
	*pass = (struct rh_stage_pass){.mark = emit->arena->used, .x = x};
	pass->ropes = emit_rope_tables(emit, emit->arena);
	take_spare(emit, lo + 1, hi, hi - lo - ends < 2 ? hi - lo - ends : 2, pass);
	pass->load = begin_load(emit, emit->arena, x);
}

/* y: where the layer leaves its output; absent: in the spare buffer whose turn it is, which its input is never in. */
static void forward_layer(struct rh_emit *emit, int l, struct rh_stage_pass *pass, struct rh_view y, const struct rh_head_out *head)
{
	struct rh_view out = y.data ? y : spare(emit, pass, l + 1);
	emit->load = pass->load;
	switch (emit->model->layer[l].kind) {
	case RH_LAYER_HEAD:
		emit_head(emit, pass->x, head, NULL);
		leave_load(emit, head->load);
		break;
	case RH_LAYER_BLOCK:
		emit_block(emit, l, pass->x, out, NULL);
		break;
	case RH_LAYER_EMBEDDING:
		emit_embedding(emit, out);
		break;
	}
	leave_load(emit, rh_boundary_load(emit->model, y));
	pass->x = out;
	pass->turn ^= !y.data;
}

int rh_stage_forward(struct rh_emit *emit, int lo, int hi, struct rh_view x, const struct rh_view *boundary, const struct rh_head_out *head)
{
	struct rh_stage_pass pass;
	int ends = emit->model->layer[hi - 1].kind == RH_LAYER_HEAD || (boundary && boundary[hi].data);
	begin_forward(emit, lo, hi, ends, x, &pass);
	emit->ropes = pass.ropes;
	for (int l = lo; l < hi; l++) {
		struct rh_view y = boundary && emit->model->layer[l].kind != RH_LAYER_HEAD ? boundary[l + 1] : (struct rh_view){0};
		forward_layer(emit, l, &pass, y, head);
	}
	rh_arena_reset(emit->arena, pass.mark);
	return emit->rc;
}

int rh_stage_forward_part(struct rh_emit *emit, struct rh_stage_part part, struct rh_stage_pass *pass, struct rh_view x, struct rh_view y,
                          const struct rh_head_out *head)
{
	if (part.lo == part.stage_lo)
		begin_forward(emit, part.stage_lo, part.stage_hi, 1, x, pass);
	emit->ropes = pass->ropes;
	for (int l = part.lo; l < part.hi; l++)
		forward_layer(emit, l, pass, l + 1 == part.hi ? y : (struct rh_view){0}, head);
	if (part.hi == part.stage_hi)
		rh_arena_reset(emit->arena, pass->mark);
	return emit->rc;
}

int rh_stage_save(struct rh_emit *emit, int lo, int hi, struct rh_view x, struct rh_view y, struct rh_stage_state *state,
                  const struct rh_head_out *head)
{
	const struct rh_model *model = emit->model;
	state->mark = emit->arena->used;
	emit->ropes = state->ropes = emit_rope_tables(emit, emit->saved);
	emit->load = state->load = begin_load(emit, emit->saved, x);
	for (int l = lo; l < hi; l++) {
		struct rh_saved *saved = &state->layer[l];
		struct rh_view out = l + 1 == hi ? y : (struct rh_view){0};
		if (l + 1 < hi && model->layer[l].kind != RH_LAYER_HEAD)
			out = take_boundary(emit, emit->saved, l + 1);
		switch (model->layer[l].kind) {
		case RH_LAYER_HEAD:
			emit_head(emit, x, head, saved);
			leave_load(emit, head->load);
			break;
		case RH_LAYER_BLOCK:
			emit_block(emit, l, x, out, saved);
			break;
		case RH_LAYER_EMBEDDING:
			*saved = (struct rh_saved){0};
			if (out.data)
				emit_embedding(emit, out);
			break;
		}
		x = out;
	}
	leave_load(emit, rh_boundary_load(model, y));
	return emit->rc;
}

/* Where the gradient at a layer's upper end belongs: emit->deferred if the layer puts something off that reads it. */
static struct rh_arena *gradient_arena(const struct rh_emit *emit, int l)
{
	const struct rh_model *model = emit->model;
	if (!emit->deferred || l < model->first_trained)
		return emit->arena;
	switch (model->layer[l].kind) {
	case RH_LAYER_BLOCK:
		return emit_block_dy(emit, l);
	case RH_LAYER_EMBEDDING:
		return emit->deferred;
	case RH_LAYER_HEAD:
		break;
	}
	return emit->arena;
}

/* The gradient goes down through two buffers in turn; the lowest layer writes the caller's. */
static void begin_backward(struct rh_emit *emit, int lo, int hi, const struct rh_stage_state *state, struct rh_view dy,
                           struct rh_stage_pass *pass)
{
	int is_fused = emit->model->layer[hi - 1].kind == RH_LAYER_HEAD;
	*pass = (struct rh_stage_pass){.x = dy};
	take_spare(emit, lo, hi, 2, pass);
	pass->load = is_fused ? state->load : begin_load(emit, emit->arena, dy);
	if (gradient_arena(emit, hi - 1) == emit->arena)
		return;
	pass->x = take_boundary(emit, emit->deferred, hi);
	emit_cast(emit, dy, pass->x);
}

/* The weights of a norm of the layer's input learn from the input's gradient, whether or not anybody below wants that. */
static int learns_input_norm(const struct rh_model *model, int l)
{
	const struct rh_layer *layer = &model->layer[l];
	return layer->kind == RH_LAYER_BLOCK && layer->traits.residual != RH_RESIDUAL_POST && model->block[layer->block[0]].trainable;
}

static void backward_layer(struct rh_emit *emit, int l, int lo, struct rh_stage_state *state, struct rh_stage_pass *pass, struct rh_view dx)
{
	const struct rh_model *model = emit->model;
	struct rh_view dy = pass->x, out = l == lo ? dx : spare(emit, pass, l);
	if (l > lo && gradient_arena(emit, l - 1) != emit->arena)
		out = take_boundary(emit, emit->deferred, l);
	if (l == model->first_trained)
		out = learns_input_norm(model, l) ? spare(emit, pass, l) : (struct rh_view){0};
	emit->load = pass->load;
	switch (model->layer[l].kind) {
	case RH_LAYER_HEAD:
		emit_head_backward(emit, &state->layer[l], out);
		break;
	case RH_LAYER_BLOCK:
		emit_block_backward(emit, l, &state->layer[l], dy, out);
		break;
	case RH_LAYER_EMBEDDING:
		if (!emit->deferred)
			emit_embedding_backward(emit, dy);
		state->layer[l].deferred[0].dy = dy;
		break;
	}
	if (l == lo && l > model->first_trained)
		leave_load(emit, rh_boundary_load(model, dx));
	pass->x = out;
	pass->turn ^= 1;
}

int rh_stage_lowest(const struct rh_model *model, int lo)
{
	return lo > model->first_trained ? lo : model->first_trained;
}

int rh_stage_backward_part(struct rh_emit *emit, struct rh_stage_part part, struct rh_stage_state *state, struct rh_stage_pass *pass,
                           struct rh_view dy, struct rh_view dx)
{
	int lowest = rh_stage_lowest(emit->model, part.stage_lo);
	if (part.hi == part.stage_hi)
		begin_backward(emit, part.stage_lo, part.stage_hi, state, dy, pass);
	emit->ropes = state->ropes;
	for (int l = part.hi - 1; l >= part.lo && l >= lowest; l--)
		backward_layer(emit, l, part.stage_lo, state, pass, dx);
	if (part.lo <= lowest)
		rh_arena_reset(emit->arena, state->mark);
	return emit->rc;
}

int rh_stage_backward(struct rh_emit *emit, int lo, int hi, struct rh_stage_state *state, struct rh_view dy, struct rh_view dx)
{
	struct rh_stage_pass pass;
	return rh_stage_backward_part(emit, (struct rh_stage_part){lo, hi, lo, hi}, state, &pass, dy, dx);
}

int rh_stage_name_saved(const struct rh_emit *emit, int lo, int hi, struct rh_view x, struct rh_arena saved, struct rh_stage_state *state)
{
	struct rh_emit naming = *emit;
	naming.launch = NULL;
	naming.saved = &saved;
	return rh_stage_save(&naming, lo, hi, x, (struct rh_view){0}, state, NULL);
}

/* The way of the input's gradient is gone again, with any view in place of the boundaries. */
int rh_stage_name_deferred(const struct rh_emit *emit, int lo, int hi, struct rh_arena deferred, struct rh_stage_state *state)
{
	struct rh_emit naming = *emit;
	struct rh_view x = rh_boundary_view(emit->model, lo, emit->shape.tokens, emit->arena->base);
	struct rh_view dy = rh_boundary_view(emit->model, hi, emit->shape.tokens, emit->arena->base);
	struct rh_head_out head = {.loss = x};
	naming.launch = NULL;
	naming.saved = naming.arena;
	naming.deferred = &deferred;
	int rc = rh_stage_save(&naming, lo, hi, x, (struct rh_view){0}, state, &head);
	return rc ? rc : rh_stage_backward(&naming, lo, hi, state, dy, x);
}

int rh_stage_weights(struct rh_emit *emit, int lo, int hi, const struct rh_stage_state *state)
{
	for (int l = hi - 1; l >= rh_stage_lowest(emit->model, lo); l--) {
		switch (emit->model->layer[l].kind) {
		case RH_LAYER_BLOCK:
			emit_block_weights(emit, l, &state->layer[l]);
			break;
		case RH_LAYER_EMBEDDING:
			emit_embedding_backward(emit, state->layer[l].deferred[0].dy);
			break;
		case RH_LAYER_HEAD:
			break; /* its gradients are made with its loss */
		}
	}
	return emit->rc;
}
