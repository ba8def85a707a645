/* Norms of rows, or of each head of a row, whatever their kind. */
#include "model/emit_internal.h"

struct emit_norm emit_norm_of(const struct rh_emit *emit, int layer, enum rh_norm_place place)
{
	const struct rh_layer *of = &emit->model->layer[layer];
	int is_behind = of->kind == RH_LAYER_BLOCK && place >= RH_NORM_AFTER_MIXER;
	return (struct emit_norm){of, of->norm[place], 1, of->width, is_behind ? of->traits.epsilon_behind : 0};
}

int64_t emit_norm_stats_cols(struct emit_norm norm)
{
	return emit_norm_is_rms(&norm.layer->traits) ? norm.groups : 2;
}

struct rh_view emit_norm_stats(struct rh_arena *arena, struct emit_norm norm, int64_t rows)
{
	return emit_take(arena, RH_F32, rows, emit_norm_stats_cols(norm));
}

static struct rh_view weight_of(const struct rh_emit *emit, struct emit_norm norm)
{
	return emit_weight(emit, norm.layer, 0, norm.tensor, 1, norm.length);
}

/* The weight of an RMSNorm, and the offset that the op adds to it. A norm without a weight gets zeros in the arena, and offset 1. */
static struct rh_view rms_weight(struct rh_emit *emit, struct emit_norm norm, float *offset)
{
	*offset = norm.tensor < 0 ? 1 : emit_norm_offset(&norm.layer->traits);
	if (norm.tensor >= 0)
		return weight_of(emit, norm);
	struct rh_view zeros = emit_act(emit, 1, norm.length);
	emit_fill(emit, zeros);
	return zeros;
}

/* Products read norms of whole rows, not those of heads. */
static struct rh_view amax_of(struct rh_emit *emit, struct emit_norm norm, struct rh_view y)
{
	int is_read = norm.layer->kind == RH_LAYER_BLOCK && norm.groups == 1 && y.cols == norm.layer->width;
	return is_read ? emit_amax(emit, y, y.cols, 1) : (struct rh_view){0};
}

static float epsilon_of(struct emit_norm norm)
{
	return norm.epsilon == 0 ? norm.layer->traits.epsilon : norm.epsilon;
}

/* A LayerNorm's bias is the tensor behind its weight. */
static int bias_of(struct emit_norm norm)
{
	return norm.tensor < 0 ? -1 : norm.tensor + 1;
}

float emit_norm_offset(const struct rh_traits *traits)
{
	return traits->norm == RH_NORM_RMS_PLUS_ONE ? 1 : 0;
}

int emit_norm_is_rms(const struct rh_traits *traits)
{
	return traits->norm == RH_NORM_RMS || traits->norm == RH_NORM_RMS_PLUS_ONE;
}

static void layernorm(struct rh_emit *emit, struct emit_norm norm, struct rh_view x, struct rh_view y, struct rh_view stats)
{
	struct rh_op op = {.kind = RH_OP_LAYERNORM, .layernorm.epsilon = norm.layer->traits.epsilon};
	RH_ASSERT(norm.groups == 1);
	op.operand[RH_LAYERNORM_X] = x;
	op.operand[RH_LAYERNORM_W] = weight_of(emit, norm);
	op.operand[RH_LAYERNORM_B] = emit_weight(emit, norm.layer, 0, bias_of(norm), 1, norm.length);
	op.operand[RH_LAYERNORM_Y] = y;
	op.operand[RH_LAYERNORM_STATS] = stats;
	emit_op(emit, &op);
}

static void layernorm_backward(struct rh_emit *emit, struct emit_norm norm, const struct emit_norm_gradient *gradient)
{
	struct rh_op op = {.kind = RH_OP_LAYERNORM_BACKWARD, .layernorm.epsilon = norm.layer->traits.epsilon};
	op.operand[RH_LAYERNORM_BACKWARD_X] = gradient->x;
	op.operand[RH_LAYERNORM_BACKWARD_W] = weight_of(emit, norm);
	op.operand[RH_LAYERNORM_BACKWARD_B] = emit_weight(emit, norm.layer, 0, bias_of(norm), 1, norm.length);
	op.operand[RH_LAYERNORM_BACKWARD_STATS] = gradient->stats;
	op.operand[RH_LAYERNORM_BACKWARD_DY] = gradient->dy;
	op.operand[RH_LAYERNORM_BACKWARD_ADD] = gradient->add;
	op.operand[RH_LAYERNORM_BACKWARD_DX] = gradient->dx;
	op.operand[RH_LAYERNORM_BACKWARD_DW] = emit_gradient(emit, norm.layer, 0, norm.tensor, 1, norm.length);
	op.operand[RH_LAYERNORM_BACKWARD_DB] = emit_gradient(emit, norm.layer, 0, bias_of(norm), 1, norm.length);
	op.operand[RH_LAYERNORM_BACKWARD_Y] = gradient->y;
	emit_op(emit, &op);
}

void emit_norm(struct rh_emit *emit, struct emit_norm norm, struct rh_view x, struct rh_view y, struct rh_view stats)
{
	if (!emit_norm_is_rms(&norm.layer->traits)) {
		layernorm(emit, norm, x, y, stats);
		return;
	}
	struct rh_op op = {.kind = RH_OP_RMSNORM};
	int64_t mark = emit->arena->used;
	op.operand[RH_RMSNORM_X] = x;
	op.operand[RH_RMSNORM_W] = rms_weight(emit, norm, &op.rmsnorm.offset);
	op.operand[RH_RMSNORM_Y] = y;
	op.operand[RH_RMSNORM_RSTD] = stats;
	op.operand[RH_RMSNORM_AMAX] = amax_of(emit, norm, y);
	op.rmsnorm.groups = norm.groups;
	op.rmsnorm.epsilon = epsilon_of(norm);
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}

void emit_norm_backward(struct rh_emit *emit, struct emit_norm norm, const struct emit_norm_gradient *gradient)
{
	if (!emit_norm_is_rms(&norm.layer->traits)) {
		layernorm_backward(emit, norm, gradient);
		return;
	}
	struct rh_op op = {.kind = RH_OP_RMSNORM_BACKWARD};
	int64_t mark = emit->arena->used;
	op.operand[RH_RMSNORM_BACKWARD_X] = gradient->x;
	op.operand[RH_RMSNORM_BACKWARD_W] = rms_weight(emit, norm, &op.rmsnorm.offset);
	op.operand[RH_RMSNORM_BACKWARD_RSTD] = gradient->stats;
	op.operand[RH_RMSNORM_BACKWARD_DY] = gradient->dy;
	op.operand[RH_RMSNORM_BACKWARD_ADD] = gradient->add;
	op.operand[RH_RMSNORM_BACKWARD_DX] = gradient->dx;
	op.operand[RH_RMSNORM_BACKWARD_DW] = emit_gradient(emit, norm.layer, 0, norm.tensor, 1, norm.length);
	op.operand[RH_RMSNORM_BACKWARD_Y] = gradient->y;
	op.operand[RH_RMSNORM_BACKWARD_DX_AMAX] = amax_of(emit, norm, gradient->dx);
	op.operand[RH_RMSNORM_BACKWARD_Y_AMAX] = amax_of(emit, norm, gradient->y);
	op.rmsnorm.groups = norm.groups;
	op.rmsnorm.epsilon = epsilon_of(norm);
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}
