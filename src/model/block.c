/* A transformer layer: two halves, mixer and MLP (half.h), and how each joins the residual. The mixer makes x2 of x, the MLP y of x2:
 *   pre       x2 = x + half(norm(x))
 *   sandwich  x2 = x + norm'(half(norm(x)))
 *   post      x2 = norm'(x + half(x))
 * Kept for the backward: x2, the norms' statistics, what norm' reads (`made`), and what the halves say. What the norms before halves make
 * is made again on the way. Where weight gradients are deferred, both operands of each lie apart, in emit->deferred: those of a product's
 * input and of its output's gradient. */
#include "model/half.h"

#define ROW(KIND, name) &half_##name,
static const struct rh_half *const mixers[] = {RH_MIXER_KINDS(ROW)}, *const mlps[] = {RH_MLP_KINDS(ROW)};

const struct rh_half *half_of(const struct rh_layer *layer, enum rh_half_place which)
{
	return which == RH_MIXER ? mixers[layer->traits.mixer] : mlps[layer->traits.mlp];
}

static enum rh_norm_place before(enum rh_half_place which)
{
	return which == RH_MIXER ? RH_NORM_MIXER : RH_NORM_MLP;
}

static enum rh_norm_place behind(enum rh_half_place which)
{
	return which == RH_MIXER ? RH_NORM_AFTER_MIXER : RH_NORM_AFTER_MLP;
}

static struct rh_view take_width(struct rh_emit *emit, int index, struct rh_arena *arena)
{
	return emit_take(arena, emit->model->dtype, emit->shape.tokens, emit->model->layer[index].width);
}

/* Where an operand of a half's weight gradients goes. */
static struct rh_arena *operands(const struct rh_emit *emit, int index, enum rh_half_place which, enum half_end of)
{
	return emit->deferred && half_of(&emit->model->layer[index], which)->learns(emit, index, of) ? emit->deferred : emit->arena;
}

void emit_take_kept(const struct rh_emit *emit, struct rh_arena *arena, const struct emit_activations *list)
{
	for (int i = 0; i < list->count; i++) {
		const struct emit_activation *row = &list->row[i];
		*row->view = emit_take(row->is_deferred ? emit->deferred : arena, row->dtype, row->rows, row->cols);
	}
}

/* All that the layer's backward reads beside x. */
static void list_kept(const struct rh_emit *emit, int index, struct rh_saved *s, struct emit_activations *list)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_half *mlp = half_of(layer, RH_MLP);
	enum rh_residual residual = layer->traits.residual;
	enum rh_dtype act = emit->model->dtype;
	int64_t tokens = emit->shape.tokens;
	for (int n = 0; n < RH_NORMS; n++)
		if (layer->norm[n] >= 0)
			emit_keep(list, &s->norm[n], RH_F32, tokens, emit_norm_stats_cols(emit_norm_of(emit, index, (enum rh_norm_place)n)),
			          0);
	for (int which = 0; which < RH_HALVES && residual != RH_RESIDUAL_PRE; which++)
		emit_keep(list, &s->made[which], act, tokens, layer->width, 0);
	emit_keep(list, &s->x2, act, tokens, layer->width,
	          residual == RH_RESIDUAL_POST && emit->deferred && mlp->learns(emit, index, HALF_INPUT));
	half_of(layer, RH_MIXER)->keeps(emit, index, s, list);
	mlp->keeps(emit, index, s, list);
	for (int p = 0; p < RH_PROJS; p++)
		if (layer->proj[p].r)
			emit_keep(list, &s->low[p], act, tokens, layer->proj[p].r, emit->deferred != NULL);
}

static void take_kept(const struct rh_emit *emit, struct rh_arena *arena, int index, struct rh_view x, struct rh_saved *s)
{
	struct emit_activations list;
	list.count = 0; /* rows behind it are not read */
	*s = (struct rh_saved){.x = x};
	list_kept(emit, index, s, &list);
	emit_take_kept(emit, arena, &list);
}

/* x2 = x + sum, where there is a sum; h = its norm. */
static void norm_of_sum(struct rh_emit *emit, int index, struct rh_view x, void *sum, struct rh_view h, const struct rh_saved *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	struct emit_norm norm = emit_norm_of(emit, index, RH_NORM_MLP);
	if (sum && emit_norm_is_rms(&layer->traits)) {
		struct rh_op op = {.kind = RH_OP_ADD_RMSNORM,
		                   .qk_rope = {.epsilon = layer->traits.epsilon, .offset = emit_norm_offset(&layer->traits)}};
		op.operand[RH_ADD_RMSNORM_A] = x;
		op.operand[RH_ADD_RMSNORM_B] = rh_view_of(sum, x.dtype, x.rows, x.cols);
		op.operand[RH_ADD_RMSNORM_W] = emit_weight(emit, layer, 0, norm.tensor, 1, norm.length);
		op.operand[RH_ADD_RMSNORM_SUM] = s->x2;
		op.operand[RH_ADD_RMSNORM_Y] = h;
		op.operand[RH_ADD_RMSNORM_RSTD] = s->norm[RH_NORM_MLP];
		emit_op(emit, &op);
		return;
	}
	emit_add_apart(emit, x, sum, s->x2);
	emit_norm(emit, norm, s->x2, h, s->norm[RH_NORM_MLP]);
}

/* y of x, and of h = norm(x) where the half reads that; y absent: only what the backward reads is made. Returns what is still to be added
 * to x to make y, or NULL. */
static void *half_forward(struct rh_emit *emit, int index, enum rh_half_place which, struct rh_view x, struct rh_view h, struct rh_view y,
                          struct rh_saved *s)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	const struct rh_half *half = half_of(layer, which);
	if (layer->traits.residual == RH_RESIDUAL_PRE)
		return half->forward(emit, index, h, x, y, s);
	struct emit_norm norm = emit_norm_of(emit, index, behind(which));
	struct rh_view made = s->made[which], stats = s->norm[behind(which)], none = {0};
	if (layer->traits.residual == RH_RESIDUAL_POST) {
		emit_add_apart(emit, x, half->forward(emit, index, x, x, made, s), made);
		emit_norm(emit, norm, made, y.data ? y : h, stats);
		return NULL;
	}
	(void)half->forward(emit, index, h, none, made, s);
	struct rh_view normed = emit_act(emit, made.rows, made.cols);
	emit_norm(emit, norm, made, normed, stats);
	if (y.data)
		emit_add(emit, x, normed, y);
	return NULL;
}

void emit_block(struct rh_emit *emit, int index, struct rh_view x, struct rh_view y, struct rh_saved *keep)
{
	struct rh_saved local, *s = keep ? keep : &local;
	int is_post = emit->model->layer[index].traits.residual == RH_RESIDUAL_POST;
	int64_t outer = emit->arena->used;
	take_kept(emit, keep ? emit->saved : emit->arena, index, x, s);
	int64_t inner = emit->arena->used;
	struct rh_view h = take_width(emit, index, emit->arena);
	int64_t mark = emit->arena->used;
	if (!is_post)
		emit_norm(emit, emit_norm_of(emit, index, RH_NORM_MIXER), x, h, s->norm[RH_NORM_MIXER]);
	void *sum = half_forward(emit, index, RH_MIXER, x, h, s->x2, s);
	if (!is_post)
		norm_of_sum(emit, index, x, sum, h, s);
	rh_arena_reset(emit->arena, mark);
	emit_add_apart(emit, s->x2, half_forward(emit, index, RH_MLP, s->x2, h, y, s), y);
	rh_arena_reset(emit->arena, keep ? inner : outer);
}

/* Where the gradient of a half's y is kept: without a norm behind the half it is an operand of weight gradients. */
static struct rh_arena *dy_arena(const struct rh_emit *emit, int index, enum rh_half_place which)
{
	int is_pre = emit->model->layer[index].traits.residual == RH_RESIDUAL_PRE;
	return is_pre ? operands(emit, index, which, HALF_OUTPUT) : emit->arena;
}

/* dx of dy, absent: not wanted; and the half's gradients. */
static void half_backward(struct rh_emit *emit, int index, enum rh_half_place which, struct rh_saved *s, struct rh_view x,
                          struct rh_view dy, struct rh_view dx)
{
	const struct rh_half *half = half_of(&emit->model->layer[index], which);
	enum rh_residual residual = emit->model->layer[index].traits.residual;
	struct rh_view stats = s->norm[before(which)], input = x, d = dy;
	struct rh_arena *inputs = operands(emit, index, which, HALF_INPUT);
	int64_t mark = emit->arena->used;
	if (residual != RH_RESIDUAL_PRE) {
		d = take_width(emit, index, operands(emit, index, which, HALF_OUTPUT));
		emit_norm_backward(emit, emit_norm_of(emit, index, behind(which)),
		                   &(struct emit_norm_gradient){.x = s->made[which], .stats = s->norm[behind(which)], .dy = dy, .dx = d});
	}
	half->backward(emit, index, s, d, dx);
	if (residual != RH_RESIDUAL_POST) {
		struct emit_norm norm = emit_norm_of(emit, index, before(which));
		input = take_width(emit, index, inputs);
		if (dx.data)
			emit_norm_backward(emit, norm,
			                   &(struct emit_norm_gradient){.x = x, .stats = stats, .dy = dx, .add = dy, .dx = dx, .y = input});
		else /* nothing below is trained: only the norm's output is needed once more */
			emit_norm(emit, norm, x, input, stats);
	} else { /* d is the gradient of a sum that x is part of */
		if (dx.data)
			emit_add(emit, dx, d, dx);
		if (which == RH_MIXER && inputs != emit->arena) { /* x2 lies there from the start */
			input = take_width(emit, index, inputs);
			emit_cast(emit, x, input);
		}
	}
	half->gradients(emit, index, s, input);
	rh_arena_reset(emit->arena, mark);
}

void emit_block_backward(struct rh_emit *emit, int index, struct rh_saved *s, struct rh_view dy, struct rh_view dx)
{
	int64_t mark = emit->arena->used;
	struct rh_view dx2 = take_width(emit, index, dy_arena(emit, index, RH_MIXER));
	half_backward(emit, index, RH_MLP, s, s->x2, dy, dx2);
	half_backward(emit, index, RH_MIXER, s, s->x, dx2, dx);
	rh_arena_reset(emit->arena, mark);
}

struct rh_arena *emit_block_dy(const struct rh_emit *emit, int index)
{
	return dy_arena(emit, index, RH_MLP);
}

void emit_block_weights(struct rh_emit *emit, int index, const struct rh_saved *s)
{
	for (int which = RH_HALVES - 1; which >= 0; which--) /* in the order of the backward */
		half_of(&emit->model->layer[index], (enum rh_half_place)which)->weights(emit, index, s);
}
