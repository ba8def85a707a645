/* Layers strung together: what one slot does for one micro-batch. */
#include "model/emit_internal.h"

static struct rh_view hidden_act(struct rh_emit *emit)
{
	return emit_act(emit, emit->shape.tokens, emit->model->config->hidden_size);
}

/* Where layer l leaves what it makes of x: at the boundary if that is kept, else in the spare buffer that x is not in. */
static struct rh_view upper_end(const struct rh_view *boundary, int l, const struct rh_view spare[2], struct rh_view x)
{
	return boundary && boundary[l + 1].data ? boundary[l + 1] : spare[spare[0].data == x.data];
}

int rh_stage_forward(struct rh_emit *emit, int lo, int hi, struct rh_view x, const struct rh_view *boundary, const struct rh_head_out *head)
{
	const struct rh_model *model = emit->model;
	int64_t mark = emit->arena->used;
	struct rh_ropes ropes = emit_rope_tables(emit, emit->arena);
	struct rh_view spare[2] = {{0}, {0}};
	/* two buffers take turns; that a boundary is kept spares none, so that memory is known by the stage alone */
	int ends = model->layer[hi - 1].kind == RH_LAYER_HEAD || (boundary && boundary[hi].data), inner = hi - lo - ends;
	for (int i = 0; i < 2 && i < inner; i++)
		spare[i] = hidden_act(emit);
	for (int l = lo; l < hi; l++) {
		struct rh_view y = {0};
		switch (model->layer[l].kind) {
		case RH_LAYER_HEAD:
			emit_head(emit, x, head, NULL);
			break;
		case RH_LAYER_BLOCK:
			y = upper_end(boundary, l, spare, x);
			emit_block(emit, l, &ropes, x, y, NULL);
			break;
		case RH_LAYER_EMBEDDING:
			y = upper_end(boundary, l, spare, x);
			emit_embedding(emit, y);
			break;
		}
		x = y;
	}
	rh_arena_reset(emit->arena, mark);
	return emit->rc;
}

int rh_stage_save(struct rh_emit *emit, int lo, int hi, struct rh_view x, struct rh_view y, struct rh_stage_state *state,
                  const struct rh_head_out *head)
{
	const struct rh_model *model = emit->model;
	state->mark = emit->arena->used;
	state->ropes = emit_rope_tables(emit, emit->saved);
	for (int l = lo; l < hi; l++) {
		struct rh_saved *saved = &state->layer[l];
		struct rh_view out = l + 1 == hi ? y : (struct rh_view){0};
		if (l + 1 < hi && model->layer[l].kind != RH_LAYER_HEAD)
			out = emit_take(emit->saved, model->dtype, emit->shape.tokens, model->config->hidden_size);
		switch (model->layer[l].kind) {
		case RH_LAYER_HEAD:
			emit_head(emit, x, head, saved);
			break;
		case RH_LAYER_BLOCK:
			emit_block(emit, l, &state->ropes, x, out, saved);
			break;
		case RH_LAYER_EMBEDDING:
			*saved = (struct rh_saved){0};
			if (out.data)
				emit_embedding(emit, out);
			break;
		}
		x = out;
	}
	return emit->rc;
}

/* Where the gradient at a layer's upper end belongs: emit->late if the layer puts something off that reads it. */
static struct rh_arena *gradient_arena(const struct rh_emit *emit, int l)
{
	const struct rh_model *model = emit->model;
	if (!emit->late || l < model->first_trained)
		return emit->arena;
	switch (model->layer[l].kind) {
	case RH_LAYER_BLOCK:
		return emit_block_dy(emit, l);
	case RH_LAYER_EMBEDDING:
		return emit->late;
	case RH_LAYER_HEAD:
		break;
	}
	return emit->arena;
}

static struct rh_view late_hidden(struct rh_emit *emit)
{
	return emit_take(emit->late, emit->model->dtype, emit->shape.tokens, emit->model->config->hidden_size);
}

int rh_stage_backward(struct rh_emit *emit, int lo, int hi, struct rh_stage_state *state, struct rh_view dy, struct rh_view dx)
{
	const struct rh_model *model = emit->model;
	/* The gradient goes down through two buffers in turn; the lowest layer writes the caller's. */
	struct rh_view spare[2] = {hidden_act(emit), hidden_act(emit)};
	int turn = 0;
	if (gradient_arena(emit, hi - 1) != emit->arena) {
		struct rh_view kept = late_hidden(emit);
		emit_cast(emit, dy, kept);
		dy = kept;
	}
	for (int l = hi - 1; l >= lo; l--) {
		struct rh_view out = l == lo ? dx : spare[turn];
		if (l > lo && gradient_arena(emit, l - 1) != emit->arena)
			out = late_hidden(emit);
		if (l == model->first_trained)
			out = (struct rh_view){0};
		switch (model->layer[l].kind) {
		case RH_LAYER_HEAD:
			emit_head_backward(emit, &state->layer[l], out);
			break;
		case RH_LAYER_BLOCK:
			emit_block_backward(emit, l, &state->ropes, &state->layer[l], dy, out);
			break;
		case RH_LAYER_EMBEDDING:
			if (!emit->late)
				emit_embedding_backward(emit, dy);
			state->layer[l].late[0].dy = dy;
			break;
		}
		if (emit->layer_done)
			emit->layer_done(emit->sink, l);
		if (l == model->first_trained)
			break; /* a fused stage may hold frozen layers below */
		dy = out;
		turn ^= 1;
	}
	rh_arena_reset(emit->arena, state->mark);
	return emit->rc;
}

int rh_stage_weights(struct rh_emit *emit, int lo, int hi, const struct rh_stage_state *state)
{
	int lowest = lo > emit->model->first_trained ? lo : emit->model->first_trained;
	for (int l = hi - 1; l >= lowest; l--) {
		switch (emit->model->layer[l].kind) {
		case RH_LAYER_BLOCK:
			emit_block_weights(emit, l, &state->layer[l]);
			break;
		case RH_LAYER_EMBEDDING:
			emit_embedding_backward(emit, state->layer[l].late[0].dy);
			break;
		case RH_LAYER_HEAD:
			break; /* its gradients are made with its loss */
		}
		if (emit->layer_done)
			emit->layer_done(emit->sink, l);
	}
	return emit->rc;
}
