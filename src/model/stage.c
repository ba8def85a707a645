/* Emits the layers of a stage: what one slot does for one micro-batch. */
#include "model/half.h"

#include <string.h>

/* ---- the activation table ---- */

/* The input of the layer above layer l, in the same stage. */
static void declare_input(const struct rh_emit *emit, int l, struct emit_table *table)
{
	const struct rh_model *model = emit->model;
	rh_row_set from = model->layer[l].kind == RH_LAYER_BLOCK ? emit_block_output_from(emit, l) : 0;
	emit_row(table, RH_ROW_X, model->dtype, emit->shape.tokens, rh_boundary_cols(model, l + 1),
	         (struct emit_origin){RH_MAKER_BELOW, from, 0});
}

static void declare(const struct rh_emit *emit, int l, struct emit_table *table)
{
	const struct rh_model *model = emit->model;
	switch (model->layer[l].kind) {
	case RH_LAYER_BLOCK:
		emit_declare_block(emit, l, table);
		break;
	case RH_LAYER_HEAD:
		emit_declare_head(emit, l, table);
		break;
	case RH_LAYER_EMBEDDING:
		emit_row(table, RH_ROW_GRADIENT + RH_MLP, model->dtype, emit->shape.tokens, rh_boundary_cols(model, l + 1),
		         (struct emit_origin){RH_MAKER_BACKWARD, 0, emit->deferred && l >= model->first_trained});
		break;
	}
}

static enum rh_fate fate_of(const struct rh_emit *emit, int l, int row)
{
	return emit->fates ? rh_fate_of(&emit->fates[l], row) : RH_FATE_RECOMPUTE;
}

void rh_stage_rows(const struct rh_emit *emit, int lo, int hi, struct rh_stage_rows *out)
{
	out->emit = emit;
	out->lo = out->next = lo;
	out->hi = hi;
	out->count = out->at = 0;
	memset(out->bytes, 0, sizeof out->bytes);
}

/* As begin_stage and place_layer place them. */
static int next_layer(struct rh_stage_rows *rows)
{
	struct emit_table table = {.count = 0, .has_backward = 1};
	int l = rows->next;
	if (l == rows->hi)
		return 0;
	if (l == rows->lo)
		emit_declare_ropes(rows->emit, &table);
	if (l + 1 < rows->hi)
		declare_input(rows->emit, l, &table);
	declare(rows->emit, l, &table);
	memcpy(rows->table, table.row, (size_t)table.count * sizeof *table.row);
	rows->count = table.count;
	rows->at = 0;
	rows->next++;
	return 1;
}

int rh_stage_next_row(struct rh_stage_rows *rows, struct rh_stage_row *out)
{
	while (rows->at == rows->count)
		if (!next_layer(rows))
			return 0;
	out->is = rows->table[rows->at++];
	out->layer = rows->next - (out->is.row != RH_ROW_X);
	out->fate = fate_of(rows->emit, out->layer, out->is.row);
	out->bytes = rh_dtype_bytes(out->is.dtype, out->is.rows * out->is.cols);
	out->offset = rows->bytes[out->fate];
	if (out->is.maker != RH_MAKER_BACKWARD && !out->is.is_deferred)
		rows->bytes[out->fate] = rh_min(out->offset + rh_align_up(out->bytes, RH_ALIGN), RH_BYTES_MOST);
	return 1;
}

void rh_stage_fate_bytes(const struct rh_emit *emit, int lo, int hi, int64_t bytes[RH_FATES])
{
	struct rh_stage_rows rows;
	struct rh_stage_row row;
	rh_stage_rows(emit, lo, hi, &rows);
	while (rh_stage_next_row(&rows, &row))
		;
	memcpy(bytes, rows.bytes, sizeof rows.bytes);
}

static struct rh_arena *home_of(const struct rh_emit *emit, int l, int row)
{
	switch (fate_of(emit, l, row)) {
	case RH_FATE_KEEP:
		return emit->kept;
	case RH_FATE_SAVE:
		return emit->saved ? emit->saved : emit->arena; /* of what is carried: made again, not brought back for it */
	default:
		return emit->arena;
	}
}

void emit_place(const struct rh_emit *emit, int l, const struct emit_table *table, struct rh_activations *s)
{
	for (int i = 0; i < table->count; i++) {
		const struct rh_activation_row *row = &table->row[i];
		int is_of_backward = row->maker == RH_MAKER_BACKWARD;
		if (is_of_backward && !row->is_deferred) {
			s->view[row->row] = rh_view_of(NULL, row->dtype, row->rows, row->cols);
			continue;
		}
		s->view[row->row] =
		        emit_take(row->is_deferred ? emit->deferred : home_of(emit, l, row->row), row->dtype, row->rows, row->cols);
		s->placed |= RH_ROW_SET(row->row);
		s->wanted |= is_of_backward ? 0 : RH_ROW_SET(row->row);
	}
}

/* Views of rows that the layer does not have are not read. */
static void begin_rows(struct emit_table *table, struct rh_activations *s)
{
	table->count = 0;
	table->has_backward = 1;
	s->placed = s->wanted = 0;
}

/* Begins a stage's lowest layer, which has the tables that all its layers read. */
static struct rh_ropes place_lowest(const struct rh_emit *emit, int lo, struct rh_view x, struct rh_activations *s)
{
	struct rh_ropes ropes;
	struct emit_table table;
	begin_rows(&table, s);
	s->view[RH_ROW_X] = x;
	for (int i = 0; i < RH_ROPES; i++)
		s->view[RH_ROW_ROPE + i] = (struct rh_view){0};
	emit_declare_ropes(emit, &table);
	emit_place(emit, lo, &table, s);
	memcpy(ropes.table, &s->view[RH_ROW_ROPE], sizeof ropes.table);
	return ropes;
}

/* Places layer l's rows, and before them the input of the layer above, whose rows are *above. */
static void place_layer(const struct rh_emit *emit, int l, struct rh_activations *s, struct rh_activations *above)
{
	struct emit_table table;
	if (above) {
		begin_rows(&table, above);
		declare_input(emit, l, &table);
		emit_place(emit, l + 1, &table, above);
	}
	table.count = 0;
	table.has_backward = 1;
	declare(emit, l, &table);
	emit_place(emit, l, &table, s);
}

/* ---- what travels beside activations and gradients ---- */

/* All that any boundary of the stage has. */
static struct rh_side side_of(const struct rh_model *model, int lo, int hi)
{
	struct rh_side all = model->layer[lo].side[0];
	for (int l = lo; l < hi; l++) {
		const struct rh_side *above = &model->layer[l].side[1];
		for (int lane = 0; lane < RH_LANES; lane++)
			all.lane[lane] = rh_max(all.lane[lane], above->lane[lane]);
		all.inputs = rh_max(all.inputs, above->inputs);
	}
	return all;
}

/* What both have goes from the one to the other. */
static void copy_side(struct rh_emit *emit, struct rh_side from_has, struct rh_view from, struct rh_side to_has, struct rh_view to)
{
	int64_t from_at = 0, to_at = 0;
	for (int lane = 0; lane < RH_LANES; lane++) {
		int64_t cols = rh_min(from_has.lane[lane], to_has.lane[lane]);
		if (cols)
			emit_cast(emit, rh_view_cols(from, from_at, cols), rh_view_cols(to, to_at, cols));
		from_at += from_has.lane[lane];
		to_at += to_has.lane[lane];
	}
	int64_t inputs = rh_min(from_has.inputs, to_has.inputs); /* of the uppermost layers */
	if (inputs)
		emit_cast(emit, rh_view_cols(from, rh_side_cols(from_has) - inputs, inputs),
		          rh_view_cols(to, rh_side_cols(to_has) - inputs, inputs));
}

/* Room for what lies beside the stage's activations, or gradients, with what lies beside the boundary below `layer`. */
static struct rh_view begin_side(struct rh_emit *emit, struct rh_side has, int layer, struct rh_view boundary)
{
	struct rh_view side = rh_boundary_side(emit->model, layer, boundary), all;
	if (!rh_side_cols(has))
		return (struct rh_view){0};
	all = emit_act(emit, emit->shape.tokens, rh_side_cols(has));
	if (side.data)
		copy_side(emit, rh_boundary_has(emit->model, layer), side, has, all);
	return all;
}

/* The sums of gradients of what is borrowed begin with zeros, where no layer above the stage has added to them. The gradient of a
 * layer's own input is made by that layer alone. */
static struct rh_view begin_d_side(struct rh_emit *emit, struct rh_side has, int hi, struct rh_view dy)
{
	struct rh_view all = begin_side(emit, has, hi, dy);
	struct rh_side above = rh_boundary_has(emit->model, hi);
	int64_t at = 0;
	for (int lane = 0; lane < RH_LANES; lane++) {
		if (has.lane[lane] && !above.lane[lane])
			emit_fill(emit, rh_view_cols(all, at, has.lane[lane]));
		at += has.lane[lane];
	}
	return all;
}

/* Is any row recomputed that is made of what lies beside the stage's activations? */
static int wants_side(const struct rh_emit *emit, int lo, int hi)
{
	for (int l = lo; l < hi; l++)
		if (emit->model->layer[l].kind == RH_LAYER_BLOCK) {
			rh_row_set rows = emit_block_of_side(emit, l);
			if (rows & ~(emit->fates ? emit->fates[l].kept | emit->fates[l].saved : 0))
				return 1;
		}
	return 0;
}

/* What the stage has goes beside the boundary below `layer`, where that is wanted. */
static void leave_side(struct rh_emit *emit, struct rh_view all, int layer, struct rh_view boundary)
{
	struct rh_view side = rh_boundary_side(emit->model, layer, boundary);
	if (side.data)
		copy_side(emit, emit->has, all, rh_boundary_has(emit->model, layer), side);
}

static void narrow_boundary(struct rh_emit *emit, int layer, struct rh_view x, struct rh_view narrow)
{
	struct rh_side has = rh_boundary_has(emit->model, layer);
	int64_t mark = emit->arena->used;
	struct rh_view beside = {0};
	if (rh_side_cols(has)) {
		beside = emit_act(emit, x.rows, rh_side_cols(has));
		copy_side(emit, emit->has, emit->side, has, beside);
	}
	emit_narrow(emit, layer, x, beside, narrow);
	rh_arena_reset(emit->arena, mark);
}

/* ---- forward ---- */

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
static struct rh_view begin_load(struct rh_emit *emit, struct rh_arena *arena, int layer, struct rh_view boundary)
{
	struct rh_view below = rh_boundary_load(emit->model, layer, boundary), load;
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

/* 1: layer l of a stage has an input that is recomputed. */
static int spares_input(const struct rh_emit *emit, int l)
{
	return fate_of(emit, l, RH_ROW_X) == RH_FATE_RECOMPUTE;
}

/* Outputs of layers that are neither kept nor saved lie in two buffers, which take turns; that a boundary is wanted spares none, so that
 * memory is known by the stage alone. `ends`: the last layer writes elsewhere. */
static void begin_forward(struct rh_emit *emit, int lo, int hi, int ends, struct rh_view x, struct rh_stage_pass *pass)
{
	int spared = !ends;
	for (int l = lo + 1; l < hi && spared < 2; l++)
		spared += spares_input(emit, l);
	*pass = (struct rh_stage_pass){.mark = emit->arena->used, .x = x};
	struct rh_activations lowest;
	pass->ropes = place_lowest(emit, lo, x, &lowest);
	emit_rope_tables(emit, &lowest);
	take_spare(emit, lo + 1, hi, spared, pass);
	pass->load = begin_load(emit, emit->arena, lo, x);
	pass->side = begin_side(emit, side_of(emit->model, lo, hi), lo, x);
	emit_amax_begin(emit, &pass->amaxes);
}

/* Where a layer leaves its output: in y; absent: where the table has it, or in the spare buffer whose turn it is, which its input is never
 * in. */
static struct rh_view output_of(struct rh_emit *emit, int l, int hi, struct rh_stage_pass *pass, struct rh_view y)
{
	const struct rh_model *model = emit->model;
	RH_ASSERT(!y.data || l + 1 == hi || spares_input(emit, l + 1));
	if (y.data || model->layer[l].kind == RH_LAYER_HEAD)
		return y;
	if (l + 1 < hi && !spares_input(emit, l + 1))
		return emit_take(home_of(emit, l + 1, RH_ROW_X), model->dtype, emit->shape.tokens, rh_boundary_cols(model, l + 1));
	struct rh_view out = spare(emit, pass, l + 1);
	pass->turn ^= 1;
	return out;
}

/* Rows that are recomputed are there while their layer runs. */
static void forward_layer(struct rh_emit *emit, int l, int hi, struct rh_stage_pass *pass, struct rh_view y, const struct rh_head_out *head)
{
	struct rh_view out = output_of(emit, l, hi, pass, y);
	struct rh_activations s;
	struct emit_table table;
	int64_t mark = emit->arena->used;
	begin_rows(&table, &s);
	table.has_backward = 0;
	declare(emit, l, &table);
	emit_place(emit, l, &table, &s);
	emit->load = pass->load;
	emit->side = pass->side;
	switch (emit->model->layer[l].kind) {
	case RH_LAYER_HEAD:
		emit_head(emit, pass->x, head, 0, &s);
		leave_load(emit, head->load);
		break;
	case RH_LAYER_BLOCK:
		emit_make_inputs(emit, l, pass->x, &s);
		emit_block(emit, l, pass->x, out, &s);
		emit_block_lend(emit, l, &s);
		break;
	case RH_LAYER_EMBEDDING:
		emit_embedding(emit, out);
		emit_input_rows(emit);
		break;
	}
	rh_arena_reset(emit->arena, mark);
	leave_load(emit, rh_boundary_load(emit->model, l + 1, y));
	leave_side(emit, emit->side, l + 1, y);
	pass->x = out;
}

int rh_stage_forward(struct rh_emit *emit, int lo, int hi, struct rh_view x, const struct rh_view *boundary, const struct rh_head_out *head)
{
	struct rh_stage_pass pass;
	emit->is_backward = 0;
	int ends = emit->model->layer[hi - 1].kind == RH_LAYER_HEAD || (boundary && boundary[hi].data);
	begin_forward(emit, lo, hi, ends, x, &pass);
	emit->ropes = pass.ropes;
	emit->has = side_of(emit->model, lo, hi);
	emit->amaxes = &pass.amaxes;
	for (int l = lo; l < hi; l++) {
		struct rh_view y = boundary && emit->model->layer[l].kind != RH_LAYER_HEAD ? boundary[l + 1] : (struct rh_view){0};
		forward_layer(emit, l, hi, &pass, y, head);
	}
	rh_arena_reset(emit->arena, pass.mark);
	emit->amaxes = NULL;
	return emit->rc;
}

int rh_stage_forward_part(struct rh_emit *emit, struct rh_stage_part part, struct rh_stage_pass *pass, struct rh_view x, struct rh_view y,
                          struct rh_view narrow, const struct rh_head_out *head)
{
	emit->is_backward = 0;
	if (part.lo == part.stage_lo)
		begin_forward(emit, part.stage_lo, part.stage_hi, 1, x, pass);
	emit->ropes = pass->ropes;
	emit->has = side_of(emit->model, part.stage_lo, part.stage_hi);
	emit->amaxes = &pass->amaxes;
	for (int l = part.lo; l < part.hi; l++)
		forward_layer(emit, l, part.stage_hi, pass, l + 1 == part.hi ? y : (struct rh_view){0}, head);
	emit->amaxes = NULL;
	if (narrow.data)
		narrow_boundary(emit, part.hi, pass->x, narrow);
	if (part.hi == part.stage_hi)
		rh_arena_reset(emit->arena, pass->mark);
	return emit->rc;
}

/* ---- texts in chunks ---- */

/* What is carried is made of rows that are kept, where there are any, and of others made again. */
static void want_unkept(const struct rh_emit *emit, int l, struct rh_activations *s)
{
	if (emit->fates)
		s->wanted &= ~emit->fates[l].kept;
}

int rh_stage_carry(struct rh_emit *emit, int lo, int hi, struct rh_view x)
{
	int64_t mark = emit->arena->used;
	struct rh_arena *saved = emit->saved;
	struct rh_activations s;
	emit->is_backward = 1;
	emit->saved = NULL;
	x = emit_widened(emit, lo, x);
	emit->ropes = place_lowest(emit, lo, x, &s);
	emit->has = side_of(emit->model, lo, hi);
	emit->side = begin_side(emit, emit->has, lo, x);
	want_unkept(emit, lo, &s);
	emit_rope_tables(emit, &s);
	for (int l = lo; l < hi; l++) {
		if (emit->model->layer[l].kind == RH_LAYER_EMBEDDING) {
			x = emit_act(emit, emit->shape.tokens, rh_boundary_cols(emit->model, l + 1));
			emit_embedding(emit, x);
		}
		if (!rh_model_carriers(emit->model, l, l + 1))
			continue;
		s.placed = s.wanted = 0; /* views that are not placed are not read */
		s.view[RH_ROW_X] = x;
		place_layer(emit, l, &s, NULL);
		want_unkept(emit, l, &s);
		if (emit->model->layer[l].kind == RH_LAYER_HEAD)
			emit_head_carry(emit, x, &s);
		else
			emit_block_carry(emit, l, x, &s);
	}
	rh_arena_reset(emit->arena, mark);
	emit->saved = saved;
	return emit->rc;
}

/* ---- recompute and backward ---- */

static void want_recomputed(const struct rh_emit *emit, int l, struct rh_activations *s)
{
	if (emit->fates)
		s->wanted &= ~(emit->fates[l].kept | emit->fates[l].saved);
}

static void recompute_layer(struct rh_emit *emit, int l, int hi, struct rh_stage_state *state, const struct rh_head_out *head)
{
	struct rh_activations *s = &state->layer[l], *above = l + 1 < hi ? s + 1 : NULL;
	place_layer(emit, l, s, above);
	want_recomputed(emit, l, s);
	if (above)
		want_recomputed(emit, l + 1, above);
	struct rh_view x = s->view[RH_ROW_X], y = above ? emit_wanted(above, RH_ROW_X) : (struct rh_view){0};
	switch (emit->model->layer[l].kind) {
	case RH_LAYER_HEAD:
		emit_head(emit, x, head, 1, s);
		leave_load(emit, head->load);
		break;
	case RH_LAYER_BLOCK:
		emit_make_inputs(emit, l, x, s);
		if (s->wanted || y.data)
			emit_block(emit, l, x, y, s);
		emit_block_lend(emit, l, s);
		break;
	case RH_LAYER_EMBEDDING:
		if (y.data)
			emit_embedding(emit, y);
		if (above)
			emit_input_rows(emit);
		break;
	}
}

static void begin_stage(struct rh_emit *emit, int lo, struct rh_view x, struct rh_stage_state *state)
{
	RH_ASSERT(lo < emit->model->layers);
	state->mark = emit->arena->used;
	emit->ropes = state->ropes = place_lowest(emit, lo, emit_widened(emit, lo, x), &state->layer[lo]);
	emit_amax_begin(emit, &state->amaxes);
}

int rh_stage_recompute_part(struct rh_emit *emit, struct rh_stage_part part, struct rh_view x, struct rh_stage_state *state,
                            const struct rh_head_out *head)
{
	if (part.lo == part.stage_lo) {
		begin_stage(emit, part.lo, x, state);
		want_recomputed(emit, part.lo, &state->layer[part.lo]);
		emit_rope_tables(emit, &state->layer[part.lo]);
		state->load = begin_load(emit, emit->arena, part.lo, x);
		state->side = (struct rh_view){0};
		if (wants_side(emit, part.stage_lo, part.stage_hi))
			state->side = begin_side(emit, side_of(emit->model, part.stage_lo, part.stage_hi), part.lo,
			                         state->layer[part.lo].view[RH_ROW_X]);
	}
	emit->is_backward = 1;
	emit->ropes = state->ropes;
	emit->load = state->load;
	emit->has = side_of(emit->model, part.stage_lo, part.stage_hi);
	emit->side = state->side;
	emit->amaxes = &state->amaxes;
	for (int l = part.lo; l < part.hi; l++)
		recompute_layer(emit, l, part.stage_hi, state, head);
	emit->amaxes = NULL;
	return emit->rc;
}

int rh_stage_recompute(struct rh_emit *emit, int lo, int hi, struct rh_view x, struct rh_stage_state *state, const struct rh_head_out *head)
{
	return rh_stage_recompute_part(emit, (struct rh_stage_part){lo, hi, lo, hi}, x, state, head);
}

void rh_stage_place(struct rh_emit *emit, int lo, int hi, struct rh_view x, struct rh_stage_state *state)
{
	begin_stage(emit, lo, x, state);
	for (int l = lo; l < hi; l++)
		place_layer(emit, l, &state->layer[l], l + 1 < hi ? &state->layer[l + 1] : NULL);
}

/* Where the gradient at a layer's upper end is kept for weight gradients that are deferred; absent: nobody reads it so late. With a norm
 * behind a half another gradient is read. */
static struct rh_view own_gradient(const struct rh_emit *emit, int l, const struct rh_stage_state *state)
{
	const struct rh_layer *layer = &emit->model->layer[l];
	int row = RH_ROW_GRADIENT + RH_MLP, is_apart = layer->kind == RH_LAYER_BLOCK && layer->traits.residual != RH_RESIDUAL_PRE;
	return state->layer[l].placed & RH_ROW_SET(row) && !is_apart ? state->layer[l].view[row] : (struct rh_view){0};
}

/* The gradient goes down through two buffers in turn; the lowest layer writes the caller's. */
static void begin_backward(struct rh_emit *emit, int lo, int hi, const struct rh_stage_state *state, struct rh_view dy,
                           struct rh_stage_pass *pass)
{
	int is_fused = emit->model->layer[hi - 1].kind == RH_LAYER_HEAD;
	*pass = (struct rh_stage_pass){.x = dy};
	take_spare(emit, lo, hi, 2, pass);
	pass->load = is_fused ? state->load : begin_load(emit, emit->arena, hi, dy);
	pass->side = begin_d_side(emit, side_of(emit->model, lo, hi), hi, dy);
	struct rh_view own = own_gradient(emit, hi - 1, state);
	if (!own.data)
		return;
	pass->x = own;
	emit_cast(emit, dy, own);
}

/* The weights of a norm of the layer's input learn from the input's gradient, whether or not anybody below wants that. */
static int learns_input_norm(const struct rh_model *model, int l)
{
	const struct rh_layer *layer = &model->layer[l];
	return layer->kind == RH_LAYER_BLOCK && rh_residual_norms_input(layer->traits.residual) && model->block[layer->block[0]].trainable;
}

static void backward_layer(struct rh_emit *emit, int l, int lo, struct rh_stage_state *state, struct rh_stage_pass *pass, struct rh_view dx)
{
	const struct rh_model *model = emit->model;
	struct rh_view dy = pass->x, out = l == lo ? dx : spare(emit, pass, l);
	if (l > lo && own_gradient(emit, l - 1, state).data)
		out = own_gradient(emit, l - 1, state);
	if (l == model->first_trained)
		out = learns_input_norm(model, l) ? spare(emit, pass, l) : (struct rh_view){0};
	emit->load = pass->load;
	emit->d_side = pass->side;
	switch (model->layer[l].kind) {
	case RH_LAYER_HEAD:
		emit_head_backward(emit, &state->layer[l], out);
		break;
	case RH_LAYER_BLOCK:
		emit_block_backward(emit, l, &state->layer[l], dy, out);
		break;
	case RH_LAYER_EMBEDDING:
		emit_input_rows_backward(emit);
		if (!emit->deferred)
			emit_embedding_backward(emit, dy);
		break;
	}
	if (l == lo && l > model->first_trained) {
		leave_load(emit, rh_boundary_load(model, lo, dx));
		leave_side(emit, emit->d_side, lo, dx);
	}
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
	emit->is_backward = 1;
	if (part.hi == part.stage_hi)
		begin_backward(emit, part.stage_lo, part.stage_hi, state, dy, pass);
	emit->ropes = state->ropes;
	emit->has = side_of(emit->model, part.stage_lo, part.stage_hi);
	emit->amaxes = &state->amaxes;
	for (int l = part.hi - 1; l >= part.lo && l >= lowest; l--)
		backward_layer(emit, l, part.stage_lo, state, pass, dx);
	emit->amaxes = NULL;
	if (part.lo <= lowest)
		rh_arena_reset(emit->arena, state->mark);
	return emit->rc;
}

int rh_stage_backward(struct rh_emit *emit, int lo, int hi, struct rh_stage_state *state, struct rh_view dy, struct rh_view dx)
{
	struct rh_stage_pass pass;
	return rh_stage_backward_part(emit, (struct rh_stage_part){lo, hi, lo, hi}, state, &pass, dy, dx);
}

int rh_stage_weights(struct rh_emit *emit, int lo, int hi, struct rh_stage_state *state)
{
	for (int l = hi - 1; l >= rh_stage_lowest(emit->model, lo); l--) {
		switch (emit->model->layer[l].kind) {
		case RH_LAYER_BLOCK:
			emit_block_weights(emit, l, &state->layer[l]);
			break;
		case RH_LAYER_EMBEDDING:
			emit_embedding_backward(emit, state->layer[l].view[RH_ROW_GRADIENT + RH_MLP]);
			break;
		case RH_LAYER_HEAD:
			break; /* its gradients are made with its loss */
		}
	}
	return emit->rc;
}
