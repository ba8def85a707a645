/* A transformer layer: two halves, mixer and MLP (half.h), and how each joins the residual. The mixer makes x2 of x, the MLP y of x2:
 *   pre       x2 = x + half(norm(x))
 *   sandwich  x2 = x + norm'(half(norm(x)))
 *   behind    x2 = x + norm'(half(x))
 *   post      x2 = norm'(x + half(x))
 * A layer with an input of its own has a third one: then the MLP makes x3, and y = x3 + norm'(half(x3)).
 * Where the layer has a scalar, y of a sandwich, or behind, is multiplied by it.
 * Rows of the activation table: x2, x3, the norms' statistics, what norm' reads (`made`), and what the halves declare. What the norms
 * before halves make is made again on the way. Where weight gradients are deferred, both operands of each lie apart, in
 * emit->deferred: those of
 * a product's input and of its output's gradient. */
#include "model/half.h"

#define ROW(KIND, name) &half_##name,
static const struct rh_half *const mixers[] = {RH_MIXER_KINDS(ROW)}, *const mlps[] = {RH_MLP_KINDS(ROW)};

const struct rh_half *half_of(const struct rh_layer *layer, enum rh_half_place which)
{
	if (which == RH_PER_LAYER)
		return layer->traits.per_layer ? &half_per_layer : NULL;
	return which == RH_MIXER ? mixers[layer->traits.mixer] : mlps[layer->traits.mlp];
}

static int halves_of(const struct rh_layer *layer)
{
	return layer->traits.per_layer ? RH_HALVES : RH_PER_LAYER;
}

static enum rh_norm_place before(enum rh_half_place which)
{
	return which == RH_MIXER ? RH_NORM_MIXER : RH_NORM_MLP;
}

static enum rh_norm_place behind(enum rh_half_place which)
{
	return which == RH_MIXER ? RH_NORM_AFTER_MIXER : which == RH_MLP ? RH_NORM_AFTER_MLP : RH_NORM_AFTER_PER_LAYER;
}

/* How a half joins the residual: an MLP with norms of its own reads the residual itself, and so does a layer's own input's. */
static enum rh_residual residual_of(const struct rh_layer *layer, enum rh_half_place which)
{
	if (which == RH_PER_LAYER)
		return RH_RESIDUAL_BEHIND;
	return which == RH_MLP && layer->traits.mlp == RH_MLP_BESIDE ? RH_RESIDUAL_BEHIND : layer->traits.residual;
}

static struct rh_view take_width(struct rh_emit *emit, int index)
{
	return emit_act(emit, emit->shape.tokens, emit->model->layer[index].width);
}

/* Does the backward read the half's input, or the gradient of its output, for weight gradients that it defers? */
static int defers(const struct rh_emit *emit, int index, enum rh_half_place which, enum half_end of)
{
	return emit->deferred && half_of(&emit->model->layer[index], which)->learns(emit, index, of);
}

/* The row that is the input of a half, or of the norm before it. */
static int input_row(enum rh_half_place which)
{
	return which == RH_MIXER ? RH_ROW_X : which == RH_MLP ? RH_ROW_X2 : RH_ROW_X3;
}

/* Rows that the input of a half is made of, and those that its output is. */
static rh_row_set input_of(enum rh_half_place which)
{
	return RH_ROW_SET(input_row(which));
}

static rh_row_set output_of(const struct rh_layer *layer, enum rh_half_place which)
{
	enum rh_residual residual = residual_of(layer, which);
	rh_row_set made = residual == RH_RESIDUAL_PRE ? half_of(layer, which)->of_output : RH_ROW_SET(RH_ROW_MADE + which);
	return residual == RH_RESIDUAL_POST ? made : made | input_of(which);
}

rh_row_set emit_block_output_from(const struct rh_emit *emit, int index)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	return output_of(layer, (enum rh_half_place)(halves_of(layer) - 1));
}

static void declare_norms(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	for (int n = 0; n < RH_NORMS; n++) {
		if (layer->norm[n] < 0)
			continue;
		enum rh_half_place which = n == RH_NORM_AFTER_PER_LAYER                     ? RH_PER_LAYER
		                           : n == RH_NORM_MIXER || n == RH_NORM_AFTER_MIXER ? RH_MIXER
		                                                                            : RH_MLP;
		rh_row_set from = n == (int)before(which) ? input_of(which) : RH_ROW_SET(RH_ROW_MADE + which);
		int64_t cols = emit_norm_stats_cols(emit_norm_of(emit, index, (enum rh_norm_place)n));
		enum rh_maker maker = which == RH_MIXER ? RH_MAKER_MIXER : RH_MAKER_MLP;
		emit_row(table, RH_ROW_NORM + n, RH_F32, emit->shape.tokens, cols, (struct emit_origin){maker, from, 0});
	}
}

/* What a half's linears have: low activations, and operands of weight gradients. */
static void declare_low(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	for (int p = 0; p < RH_PROJS; p++) {
		enum rh_half_place which = p < RH_PROJ_MLP ? RH_MIXER : p < RH_PROJ_PER_LAYER_GATE ? RH_MLP : RH_PER_LAYER;
		if (!layer->proj[p].r)
			continue;
		const struct rh_half *half = half_of(layer, which);
		enum rh_maker maker = which == RH_MIXER ? RH_MAKER_MIXER : RH_MAKER_MLP;
		rh_row_set low = RH_ROW_SET(RH_ROW_LOW + p);
		rh_row_set from = half->of_input & low ? input_of(which) : half->between & low ? half->of_between : half->of_output;
		int is_deferred = emit->deferred != NULL;
		if (p == RH_PROJ_PER_LAYER_INPUTS) {
			maker = RH_MAKER_MIXER;
			from = RH_ROW_SET(RH_ROW_X);
		}
		emit_row(table, RH_ROW_LOW + p, emit->model->dtype, emit->shape.tokens, layer->proj[p].r,
		         (struct emit_origin){maker, from, is_deferred});
		emit_row(table, RH_ROW_D_LOW + p, emit->model->dtype, emit->shape.tokens, layer->proj[p].r,
		         (struct emit_origin){RH_MAKER_BACKWARD, 0, is_deferred});
	}
}

static void declare_operands(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	enum rh_dtype act = emit->model->dtype;
	int64_t tokens = emit->shape.tokens;
	for (int which = 0; which < halves_of(layer); which++) {
		enum rh_half_place half = (enum rh_half_place)which;
		/* behind a residual without a norm before the MLP its input is x2 itself, which is there from the start */
		int is_apart = rh_residual_norms_input(residual_of(layer, half)) || half == RH_MIXER;
		emit_row(table, RH_ROW_INPUT + which, act, tokens, layer->width,
		         (struct emit_origin){RH_MAKER_BACKWARD, 0, is_apart && defers(emit, index, half, HALF_INPUT)});
		emit_row(table, RH_ROW_GRADIENT + which, act, tokens, layer->width,
		         (struct emit_origin){RH_MAKER_BACKWARD, 0, defers(emit, index, half, HALF_OUTPUT)});
	}
}

void emit_declare_block(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	enum rh_residual residual = layer->traits.residual;
	enum rh_dtype act = emit->model->dtype;
	int64_t tokens = emit->shape.tokens;
	int x2_is_deferred = !rh_residual_norms_input(residual_of(layer, RH_MLP)) && defers(emit, index, RH_MLP, HALF_INPUT);
	declare_norms(emit, index, table);
	RH_ASSERT(halves_of(layer) == RH_PER_LAYER || residual == RH_RESIDUAL_SANDWICH);
	for (int which = 0; which < halves_of(layer) && residual != RH_RESIDUAL_PRE; which++) {
		rh_row_set from = half_of(layer, (enum rh_half_place)which)->of_output;
		if (residual == RH_RESIDUAL_POST)
			from |= input_of((enum rh_half_place)which);
		emit_row(table, RH_ROW_MADE + which, act, tokens, layer->width,
		         (struct emit_origin){which == RH_MIXER ? RH_MAKER_MIXER : RH_MAKER_MLP, from, 0});
	}
	emit_row(table, RH_ROW_X2, act, tokens, layer->width,
	         (struct emit_origin){RH_MAKER_MIXER, output_of(layer, RH_MIXER), x2_is_deferred});
	if (layer->traits.per_layer)
		emit_row(table, RH_ROW_X3, act, tokens, layer->width,
		         (struct emit_origin){RH_MAKER_MLP, output_of(layer, RH_MLP), defers(emit, index, RH_PER_LAYER, HALF_INPUT)});
	for (int which = 0; which < halves_of(layer); which++)
		half_of(layer, (enum rh_half_place)which)->declare(emit, index, table);
	declare_low(emit, index, table);
	declare_operands(emit, index, table);
}

/* x2 = x + sum, where there is a sum; h = its norm. */
static void norm_of_sum(struct rh_emit *emit, int index, struct rh_view x, void *sum, struct rh_view h, const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct emit_norm norm = emit_norm_of(emit, index, RH_NORM_MLP);
	if (sum && emit_norm_is_rms(&layer->traits)) {
		struct rh_op op = {.kind = RH_OP_ADD_RMSNORM,
		                   .qk_rope = {.epsilon = layer->traits.epsilon, .offset = emit_norm_offset(&layer->traits)}};
		op.operand[RH_ADD_RMSNORM_A] = x;
		op.operand[RH_ADD_RMSNORM_B] = rh_view_of(sum, x.dtype, x.rows, x.cols);
		op.operand[RH_ADD_RMSNORM_W] = emit_weight(emit, layer, 0, norm.tensor, 1, norm.length);
		op.operand[RH_ADD_RMSNORM_SUM] = s->view[RH_ROW_X2];
		op.operand[RH_ADD_RMSNORM_Y] = h;
		op.operand[RH_ADD_RMSNORM_RSTD] = s->view[RH_ROW_NORM + RH_NORM_MLP];
		op.operand[RH_ADD_RMSNORM_AMAX] = emit_amax(emit, h, h.cols, 1);
		emit_op(emit, &op);
		return;
	}
	emit_add_apart(emit, x, sum, s->view[RH_ROW_X2]);
	emit_norm(emit, norm, s->view[RH_ROW_X2], h, s->view[RH_ROW_NORM + RH_NORM_MLP]);
}

/* sum = x + what dropout leaves of what the half makes of h. */
static void half_dropped(struct rh_emit *emit, int index, enum rh_half_place which, struct rh_view x, struct rh_view h, struct rh_view sum,
                         struct rh_activations *s)
{
	struct rh_view made = emit_act(emit, sum.rows, sum.cols);
	(void)half_of(&emit->model->layer[index], which)->forward(emit, index, h, (struct rh_view){0}, made, s);
	emit_dropout(emit, (struct emit_drop){index, (int)which, emit->drop.residual}, made, x, sum);
}

/* What y is multiplied by; absent: nothing. */
static struct rh_view scalar_of(const struct rh_emit *emit, const struct rh_layer *layer, enum rh_half_place which)
{
	return (int)which == halves_of(layer) - 1 ? emit_weight(emit, layer, 0, layer->scalar, 1, 1) : (struct rh_view){0};
}

/* y of x, and of h = norm(x) where the half reads that; y absent: it is not made. Returns what is still to be added to x to make y, or
 * NULL. */
static void *half_forward(struct rh_emit *emit, int index, enum rh_half_place which, struct rh_view x, struct rh_view h, struct rh_view y,
                          struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_half *half = half_of(layer, which);
	enum rh_residual residual = residual_of(layer, which);
	int drops = emit->drop.residual > 0;
	if (residual == RH_RESIDUAL_PRE && drops && y.data)
		half_dropped(emit, index, which, x, h, y, s);
	else if (residual == RH_RESIDUAL_PRE)
		return half->forward(emit, index, h, x, y, s);
	if (residual == RH_RESIDUAL_PRE)
		return NULL;
	RH_ASSERT(!drops || residual == RH_RESIDUAL_POST);
	struct emit_norm norm = emit_norm_of(emit, index, behind(which));
	int made = RH_ROW_MADE + (int)which, stats = RH_ROW_NORM + (int)behind(which), norms = y.data || emit_wants(s, RH_ROW_SET(stats));
	if (residual == RH_RESIDUAL_POST) {
		struct rh_view sum = emit_wanted(s, made);
		if (drops && sum.data)
			half_dropped(emit, index, which, x, x, sum, s);
		else
			emit_add_apart(emit, x, half->forward(emit, index, x, x, sum, s), sum);
		if (norms)
			emit_norm(emit, norm, s->view[made], y.data ? y : h, s->view[stats]);
		return NULL;
	}
	(void)half->forward(emit, index, h, (struct rh_view){0}, emit_wanted(s, made), s);
	if (!norms)
		return NULL;
	struct rh_view normed = emit_act(emit, x.rows, x.cols);
	emit_norm(emit, norm, s->view[made], normed, s->view[stats]);
	if (y.data)
		emit_add_scaled(emit, x, normed, scalar_of(emit, layer, which), y);
	return NULL;
}

void emit_block(struct rh_emit *emit, int index, struct rh_view x, struct rh_view y, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	int norms_input = rh_residual_norms_input(layer->traits.residual), is_post = layer->traits.residual == RH_RESIDUAL_POST;
	int64_t outer = emit->arena->used;
	struct rh_view h = take_width(emit, index);
	int64_t mark = emit->arena->used;
	if (norms_input && emit_wants(s, half_of(layer, RH_MIXER)->of_input | RH_ROW_SET(RH_ROW_NORM + RH_NORM_MIXER)))
		emit_norm(emit, emit_norm_of(emit, index, RH_NORM_MIXER), x, h, s->view[RH_ROW_NORM + RH_NORM_MIXER]);
	void *sum = half_forward(emit, index, RH_MIXER, x, norms_input || is_post ? h : x, emit_wanted(s, RH_ROW_X2), s);
	norms_input = rh_residual_norms_input(residual_of(layer, RH_MLP));
	if (norms_input && (sum || emit_wants(s, half_of(layer, RH_MLP)->of_input | RH_ROW_SET(RH_ROW_NORM + RH_NORM_MLP))))
		norm_of_sum(emit, index, x, sum, h, s);
	rh_arena_reset(emit->arena, mark);
	struct rh_view x2 = s->view[RH_ROW_X2], y2 = layer->traits.per_layer ? emit_wanted(s, RH_ROW_X3) : y;
	emit_add_apart(emit, x2, half_forward(emit, index, RH_MLP, x2, norms_input || is_post ? h : x2, y2, s), y2);
	rh_arena_reset(emit->arena, outer);
	if (!layer->traits.per_layer)
		return;
	(void)half_forward(emit, index, RH_PER_LAYER, s->view[RH_ROW_X3], s->view[RH_ROW_X3], y, s);
	rh_arena_reset(emit->arena, outer);
}

rh_row_set emit_block_of_side(const struct rh_emit *emit, int index)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	rh_row_set mixer = layer->traits.keys == RH_KEYS_BORROWED ? half_of(layer, RH_MIXER)->of_side : 0;
	return mixer | (layer->traits.per_layer ? half_of(layer, RH_PER_LAYER)->of_side : 0);
}

void emit_block_lend(struct rh_emit *emit, int index, const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	if (layer->traits.keys == RH_KEYS_LENT && emit->side.data)
		half_of(layer, RH_MIXER)->lend(emit, index, s);
}

void emit_block_carry(struct rh_emit *emit, int index, struct rh_view x, struct rh_activations *s)
{
	const struct rh_half *mixer = half_of(&emit->model->layer[index], RH_MIXER);
	s->wanted &= mixer->to_carry;
	if (s->wanted)
		emit_block(emit, index, x, (struct rh_view){0}, s);
	mixer->carry(emit, index, s);
}

/* dx of dy, absent: not wanted; and the half's gradients. */
static void half_backward(struct rh_emit *emit, int index, enum rh_half_place which, struct rh_activations *s, struct rh_view x,
                          struct rh_view dy, struct rh_view dx)
{
	const struct rh_half *half = half_of(&emit->model->layer[index], which);
	enum rh_residual residual = residual_of(&emit->model->layer[index], which);
	struct rh_view stats = s->view[RH_ROW_NORM + before(which)], input = x, d = dy;
	int64_t mark = emit->arena->used;
	if (residual != RH_RESIDUAL_PRE) {
		d = emit_operand(emit, s, RH_ROW_GRADIENT + (int)which);
		emit_norm_backward(
		        emit, emit_norm_of(emit, index, behind(which)),
		        &(struct emit_norm_gradient){
		                .x = s->view[RH_ROW_MADE + which], .stats = s->view[RH_ROW_NORM + behind(which)], .dy = dy, .dx = d});
	}
	struct rh_view made = d; /* the gradient of what the half made */
	if (emit->drop.residual > 0) {
		made = emit_act(emit, d.rows, d.cols);
		emit_dropout(emit, (struct emit_drop){index, (int)which, emit->drop.residual}, d, (struct rh_view){0}, made);
	}
	half->backward(emit, index, s, made, dx);
	if (rh_residual_norms_input(residual)) {
		struct emit_norm norm = emit_norm_of(emit, index, before(which));
		input = emit_operand(emit, s, RH_ROW_INPUT + (int)which);
		if (dx.data)
			emit_norm_backward(emit, norm,
			                   &(struct emit_norm_gradient){.x = x, .stats = stats, .dy = dx, .add = dy, .dx = dx, .y = input});
		else /* nothing below is trained: only the norm's output is needed once more */
			emit_norm(emit, norm, x, input, stats);
	} else { /* behind a norm of the sum d is the gradient of what x is part of */
		if (dx.data)
			emit_add(emit, dx, residual == RH_RESIDUAL_POST ? d : dy, dx);
		if (which == RH_MIXER && defers(emit, index, which, HALF_INPUT)) { /* x2 lies there from the start */
			input = emit_operand(emit, s, RH_ROW_INPUT + (int)which);
			emit_cast(emit, x, input);
		}
	}
	half->gradients(emit, index, s, input);
	rh_arena_reset(emit->arena, mark);
}

/* Without a norm behind the half the gradient of its output is that of x2. */
void emit_block_backward(struct rh_emit *emit, int index, struct rh_activations *s, struct rh_view dy, struct rh_view dx)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	int is_pre = layer->traits.residual == RH_RESIDUAL_PRE;
	int64_t mark = emit->arena->used;
	if (layer->scalar >= 0) {
		struct rh_view scaled = take_width(emit, index);
		emit_add_scaled(emit, dy, (struct rh_view){0}, emit_weight(emit, layer, 0, layer->scalar, 1, 1), scaled);
		dy = scaled;
	}
	if (layer->traits.per_layer) {
		struct rh_view dx3 = take_width(emit, index);
		half_backward(emit, index, RH_PER_LAYER, s, s->view[RH_ROW_X3], dy, dx3);
		dy = dx3;
	}
	struct rh_view dx2 = is_pre ? emit_operand(emit, s, RH_ROW_GRADIENT + RH_MIXER) : take_width(emit, index);
	half_backward(emit, index, RH_MLP, s, s->view[RH_ROW_X2], dy, dx2);
	half_backward(emit, index, RH_MIXER, s, s->view[RH_ROW_X], dx2, dx);
	emit_make_inputs_backward(emit, index, s, dx);
	rh_arena_reset(emit->arena, mark);
}

void emit_block_weights(struct rh_emit *emit, int index, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	if (!rh_residual_norms_input(residual_of(layer, RH_MLP)))
		s->view[RH_ROW_INPUT + RH_MLP] = s->view[RH_ROW_X2];
	if (layer->traits.per_layer)
		s->view[RH_ROW_INPUT + RH_PER_LAYER] = s->view[RH_ROW_X3];
	for (int which = halves_of(layer) - 1; which >= 0; which--) /* in the order of the backward */
		half_of(layer, (enum rh_half_place)which)->weights(emit, index, s);
}
