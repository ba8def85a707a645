/* DoRA: a linear's rows are given lengths of their own. Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation"; as PEFT has it. */
#include "device/ops/def.h"

#include <math.h>

/* The module of row `row`, and which of its rows it is. */
static int module_of(const struct rh_op *op, int64_t row, int64_t *own)
{
	int m = 0;
	for (; m < RH_LORA_MODULES - 1 && row >= op->lora.out[m]; m++)
		row -= op->lora.out[m];
	*own = row;
	return m;
}

static int64_t all_rows(const struct rh_op *op)
{
	int64_t rows = 0;
	for (int m = 0; m < RH_LORA_MODULES; m++)
		rows += op->lora.out[m];
	return rows;
}

static void check_dora_norm(struct check *check)
{
	const struct rh_op *op = check->op;
	struct rh_view w = op->operand[RH_DORA_NORM_W];
	require(check, is_act(w.dtype), "dora_norm: w is neither F32 nor BF16");
	require(check, w.rows == all_rows(op), "dora_norm: w's rows are not the modules' outputs");
	shape(check, RH_DORA_NORM_G, RH_F32, w.rows, 2, "dora_norm: g is not (out,2) F32");
	for (int m = 0; m < RH_LORA_MODULES; m++) {
		struct rh_view a = op->operand[RH_DORA_NORM_AS + m], b = op->operand[RH_DORA_NORM_BS + m];
		struct rh_view magnitude = op->operand[RH_DORA_NORM_MS + m];
		require(check, (a.data != NULL) == (b.data != NULL) && (a.data != NULL) == (magnitude.data != NULL),
		        "dora_norm: a module has some of a, b and m, and not the others");
		shape(check, RH_DORA_NORM_AS + m, w.dtype, b.cols, w.cols, "dora_norm: a is not (r,in) of w's dtype");
		shape(check, RH_DORA_NORM_BS + m, w.dtype, op->lora.out[m], a.rows, "dora_norm: b is not (out,r) of w's dtype");
		shape(check, RH_DORA_NORM_MS + m, w.dtype, 1, op->lora.out[m], "dora_norm: m is not (1,out) of w's dtype");
	}
}

static void oracle_dora_norm(const struct rh_op *op)
{
	struct rh_view w = op->operand[RH_DORA_NORM_W], g = op->operand[RH_DORA_NORM_G];
	for (int64_t o = 0; o < w.rows; o++) {
		int64_t own;
		int m = module_of(op, o, &own);
		struct rh_view a = op->operand[RH_DORA_NORM_AS + m], b = op->operand[RH_DORA_NORM_BS + m];
		double squares = 0;
		for (int64_t i = 0; a.data && i < w.cols; i++) {
			double sum = 0;
			for (int64_t k = 0; k < a.rows; k++)
				sum += get(b, own, k) * get(a, k, i);
			sum = get(w, o, i) + (double)op->lora.scale[m] * sum;
			squares += sum * sum;
		}
		put(g, o, 0, a.data ? get(op->operand[RH_DORA_NORM_MS + m], 0, own) / sqrt(squares) : 1);
		put(g, o, 1, a.data ? 1 / sqrt(squares) : 0);
	}
}

static void cost_dora_norm(const struct rh_op *op, struct rh_op_cost *cost)
{
	for (int m = 0; m < RH_LORA_MODULES; m++) /* no tensor core makes these products */
		cost->other_flops += (2 * (double)op->operand[RH_DORA_NORM_AS + m].rows + 2) * (double)op->lora.out[m] *
		                     (double)op->operand[RH_DORA_NORM_AS + m].cols;
}

const struct op_def op_dora_norm = {
        .info = {"dora_norm",
                 11,
                 {IN("w"), MAYBE("a_0"), MAYBE("a_1"), MAYBE("a_2"), MAYBE("b_0"), MAYBE("b_1"), MAYBE("b_2"), MAYBE("m_0"), MAYBE("m_1"),
                  MAYBE("m_2"), OUT("g")}},
        .check = check_dora_norm,
        .oracle = oracle_dora_norm,
        .cost = cost_dora_norm,
};

static void check_dora_scale(struct check *check)
{
	struct rh_view x = check->op->operand[RH_DORA_SCALE_X];
	require(check, is_act(x.dtype), "dora_scale: x is neither F32 nor BF16");
	shape(check, RH_DORA_SCALE_G, RH_F32, x.cols, 2, "dora_scale: g is not (out,2) F32");
	shape(check, RH_DORA_SCALE_BIAS, x.dtype, 1, x.cols, "dora_scale: bias is not (1,out) of x's dtype");
	shape(check, RH_DORA_SCALE_C, x.dtype, x.rows, x.cols, "dora_scale: c is not shaped and typed as x");
	shape(check, RH_DORA_SCALE_Y, x.dtype, x.rows, x.cols, "dora_scale: y is not shaped and typed as x");
}

static void oracle_dora_scale(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_DORA_SCALE_X], g = op->operand[RH_DORA_SCALE_G], bias = op->operand[RH_DORA_SCALE_BIAS];
	struct rh_view c = op->operand[RH_DORA_SCALE_C], y = op->operand[RH_DORA_SCALE_Y];
	for (int64_t t = 0; t < x.rows; t++)
		for (int64_t o = 0; o < x.cols; o++)
			put(y, t, o, get(x, t, o) * get(g, o, 0) + (bias.data ? get(bias, 0, o) : 0) + (c.data ? get(c, t, o) : 0));
}

const struct op_def op_dora_scale = {
        .info = {"dora_scale", 5, {IN("x"), IN("g"), MAYBE("bias"), MAYBE("c"), OUT("y")}},
        .in_place = {{RH_DORA_SCALE_Y, RH_DORA_SCALE_X}, {RH_DORA_SCALE_Y, RH_DORA_SCALE_C}},
        .check = check_dora_scale,
        .oracle = oracle_dora_scale,
        .flops = {RH_DORA_SCALE_X, 3},
};

static void check_dora_gradient(struct check *check)
{
	const struct rh_op *op = check->op;
	struct rh_view dy = op->operand[RH_DORA_GRADIENT_DY];
	require(check, is_act(dy.dtype), "dora_gradient: dy is neither F32 nor BF16");
	require(check, dy.cols == all_rows(op), "dora_gradient: dy's columns are not the modules' outputs");
	shape(check, RH_DORA_GRADIENT_U, dy.dtype, dy.rows, dy.cols, "dora_gradient: u is not shaped and typed as dy");
	shape(check, RH_DORA_GRADIENT_G, RH_F32, dy.cols, 2, "dora_gradient: g is not (out,2) F32");
	for (int m = 0; m < RH_LORA_MODULES; m++)
		shape(check, RH_DORA_GRADIENT_DMS + m, RH_F32, 1, op->lora.out[m], "dora_gradient: dm is not (1,out) F32");
}

static void oracle_dora_gradient(const struct rh_op *op)
{
	struct rh_view dy = op->operand[RH_DORA_GRADIENT_DY], u = op->operand[RH_DORA_GRADIENT_U], g = op->operand[RH_DORA_GRADIENT_G];
	for (int64_t o = 0; o < dy.cols; o++) {
		int64_t own;
		struct rh_view dm = op->operand[RH_DORA_GRADIENT_DMS + module_of(op, o, &own)];
		double sum = 0;
		for (int64_t t = 0; dm.data && t < dy.rows; t++)
			sum += get(dy, t, o) * get(u, t, o);
		if (dm.data)
			put(dm, 0, own, get(dm, 0, own) + sum * get(g, o, 1));
	}
}

const struct op_def op_dora_gradient = {
        .info = {"dora_gradient", 6, {IN("dy"), IN("u"), IN("g"), ADD_TO_IF("dm_0"), ADD_TO_IF("dm_1"), ADD_TO_IF("dm_2")}},
        .check = check_dora_gradient,
        .oracle = oracle_dora_gradient,
        .flops = {RH_DORA_GRADIENT_DY, 2},
};
