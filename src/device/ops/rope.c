/* Rotary positions. */
#include "device/ops/def.h"

#include <math.h>

static void check_rope_table(struct check *check)
{
	struct rh_view position = check->op->operand[RH_ROPE_TABLE_POSITION], table = check->op->operand[RH_ROPE_TABLE_TABLE];
	require(check, position.dtype == RH_I32 && position.cols == 1, "rope_table: position is not (T,1) I32");
	require(check, table.dtype == RH_F32 && table.rows == position.rows, "rope_table: table is not (T,D) F32");
	require(check, table.cols >= 2 && table.cols % 2 == 0, "rope_table: D is odd or zero");
	require(check, table.cols <= 2 * RH_ROPE_MAX_HALF, "rope_table: D is above 256");
	require(check, check->op->rope_table.growth == 0 || check->op->rope_table.step >= 1, "rope_table: growth without a step");
}

/* The angle is an fp32 product, as in every implementation that a checkpoint was trained with: at position 1e5 its rounding matters. */
static void oracle_rope_table(const struct rh_op *op)
{
	struct rh_view position = op->operand[RH_ROPE_TABLE_POSITION], table = op->operand[RH_ROPE_TABLE_TABLE];
	int64_t half = table.cols / 2;
	for (int64_t t = 0; t < table.rows; t++) {
		double scale = (double)op->rope_table.scale;
		if (op->rope_table.growth != 0)
			scale *= 1 + (double)op->rope_table.growth * log(1 + floor(get(position, t, 0) / (double)op->rope_table.step));
		for (int64_t i = 0; i < half; i++) {
			float angle = (float)get(position, t, 0) * op->rope_table.inv_freq[i];
			put(table, t, i, cos((double)angle) * scale);
			put(table, t, half + i, sin((double)angle) * scale);
		}
	}
}

const struct op_def op_rope_table = {
        .info = {"rope_table", 2, {IN("position"), OUT("table")}},
        .check = check_rope_table,
        .oracle = oracle_rope_table,
        .flops = {RH_ROPE_TABLE_TABLE, SPECIAL + 1},
};

static void check_rope(struct check *check)
{
	struct rh_view x = check->op->operand[RH_ROPE_X], table = check->op->operand[RH_ROPE_TABLE_IN];
	int64_t heads = check->op->rope.heads;
	require(check, is_act(x.dtype), "rope: x is neither F32 nor BF16");
	require(check, heads >= 1 && x.cols % heads == 0, "rope: x is not heads*D wide");
	require(check, table.cols % 2 == 0 && (heads < 1 || table.cols <= x.cols / heads), "rope: R is odd or above D");
	int64_t apart = check->op->rope.apart, half = table.cols / 2, first = check->op->rope.first;
	require(check, first >= 0 && (heads < 1 || first + table.cols <= x.cols / heads), "rope: what is rotated begins beyond D - R");
	require(check, !apart || (apart >= half && (heads < 1 || first + apart + half <= x.cols / heads)),
	        "rope: pairs overlap, or are beyond D");
	require(check, !apart || !check->op->rope.adjacent, "rope: pairs are side by side, and apart");
	require(check, table.dtype == RH_F32 && table.rows == x.rows, "rope: table is not (T,R) F32");
	shape(check, RH_ROPE_AMAX, RH_F32, x.rows, heads, "rope: amax is not (T,heads) F32");
	require(check,
	        !check->op->operand[RH_ROPE_AMAX].data ||
	                (rh_rope_has_amax(table.cols) && table.cols * heads == x.cols && !check->op->rope.adjacent),
	        "rope: amax of heads that are not turned whole, by a power of two of threads, or of pairs side by side");
}

static void oracle_rope(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_ROPE_X], table = op->operand[RH_ROPE_TABLE_IN];
	int64_t dim = x.cols / op->rope.heads, half = table.cols / 2, apart = op->rope.apart ? op->rope.apart : half, step = 1;
	if (op->rope.adjacent)
		apart = 1, step = 2;
	for (int64_t t = 0; t < x.rows; t++) {
		for (int64_t h = 0; h < op->rope.heads; h++) {
			for (int64_t i = 0; i < half; i++) {
				int64_t at = h * dim + op->rope.first + i * step;
				double a = get(x, t, at), b = get(x, t, at + apart);
				double c = get(table, t, i), s = op->rope.inverse ? -get(table, t, half + i) : get(table, t, half + i);
				put(x, t, at, a * c - b * s);
				put(x, t, at + apart, b * c + a * s);
			}
		}
	}
}

static void cost_rope(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->other_flops = 3 * area(op->operand[RH_ROPE_TABLE_IN]) * (double)op->rope.heads;
}

static void amax_rope(const struct rh_op *op)
{
	ops_amax(op->operand[RH_ROPE_X], op->operand[RH_ROPE_TABLE_IN].cols, op->operand[RH_ROPE_AMAX]);
}

const struct op_def op_rope = {
        .info = {"rope", 3, {INOUT("x"), IN("table"), AMAX_IF("amax")}},
        .check = check_rope,
        .oracle = oracle_rope,
        .cost = cost_rope,
        .amax = amax_rope,
};
