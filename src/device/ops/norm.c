/* RMSNORM and LAYERNORM, and their gradients. */
#include "device/ops/def.h"

#include <math.h>

static void check_rmsnorm(struct check *check)
{
	struct rh_view x = check->op->operand[RH_RMSNORM_X], w = check->op->operand[RH_RMSNORM_W];
	int64_t groups = check->op->rmsnorm.groups;
	require(check, is_act(x.dtype), "rmsnorm: x is neither F32 nor BF16");
	require(check, w.dtype == x.dtype && w.rows == 1 && w.cols >= 1, "rmsnorm: w is not (1,n) of x's dtype");
	require(check, groups >= 1 && x.cols % groups == 0 && x.cols / groups == w.cols, "rmsnorm: x is not groups*n wide");
	require(check, check->op->rmsnorm.epsilon >= 0, "rmsnorm: epsilon is negative");
	shape(check, RH_RMSNORM_Y, x.dtype, x.rows, x.cols, "rmsnorm: y is not shaped and typed as x");
	shape(check, RH_RMSNORM_RSTD, RH_F32, x.rows, groups, "rmsnorm: rstd is not (T,groups) F32");
	shape(check, RH_RMSNORM_AMAX, RH_F32, x.rows, groups, "rmsnorm: amax is not (T,groups) F32");
}

static void oracle_rmsnorm(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_RMSNORM_X], w = op->operand[RH_RMSNORM_W];
	struct rh_view y = op->operand[RH_RMSNORM_Y], rstd = op->operand[RH_RMSNORM_RSTD];
	double offset = (double)op->rmsnorm.offset;
	int64_t n = w.cols;
	for (int64_t t = 0; t < x.rows; t++) {
		for (int64_t g = 0; g < op->rmsnorm.groups; g++) {
			double squares = 0;
			for (int64_t i = 0; i < n; i++)
				squares += get(x, t, g * n + i) * get(x, t, g * n + i);
			double r = 1 / sqrt(squares / (double)n + (double)op->rmsnorm.epsilon);
			put(rstd, t, g, r);
			for (int64_t i = 0; i < n; i++)
				put(y, t, g * n + i, get(x, t, g * n + i) * r * (offset + get(w, 0, i)));
		}
	}
}

static void cost_rmsnorm(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->other_flops = 4 * area(op->operand[RH_RMSNORM_X]) + SPECIAL * area(op->operand[RH_RMSNORM_RSTD]);
}

static void amax_rmsnorm(const struct rh_op *op)
{
	ops_amax(op->operand[RH_RMSNORM_Y], op->operand[RH_RMSNORM_W].cols, op->operand[RH_RMSNORM_AMAX]);
}

const struct op_def op_rmsnorm = {
        .info = {"rmsnorm", 5, {IN("x"), IN("w"), OUT("y"), OUT("rstd"), AMAX_IF("amax")}},
        .in_place = {{RH_RMSNORM_Y, RH_RMSNORM_X}},
        .check = check_rmsnorm,
        .oracle = oracle_rmsnorm,
        .cost = cost_rmsnorm,
        .amax = amax_rmsnorm,
};

static void check_rmsnorm_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_RMSNORM_BACKWARD_X], w = check->op->operand[RH_RMSNORM_BACKWARD_W];
	int64_t groups = check->op->rmsnorm.groups;
	require(check, is_act(x.dtype), "rmsnorm_backward: x is neither F32 nor BF16");
	require(check, w.dtype == x.dtype && w.rows == 1 && w.cols >= 1, "rmsnorm_backward: w is not (1,n) of x's dtype");
	require(check, groups >= 1 && x.cols % groups == 0 && x.cols / groups == w.cols, "rmsnorm_backward: x is not groups*n wide");
	shape(check, RH_RMSNORM_BACKWARD_RSTD, RH_F32, x.rows, groups, "rmsnorm_backward: rstd is not (T,groups) F32");
	shape(check, RH_RMSNORM_BACKWARD_DY, x.dtype, x.rows, x.cols, "rmsnorm_backward: dy is not shaped and typed as x");
	shape(check, RH_RMSNORM_BACKWARD_ADD, x.dtype, x.rows, x.cols, "rmsnorm_backward: add is not shaped and typed as x");
	shape(check, RH_RMSNORM_BACKWARD_DX, x.dtype, x.rows, x.cols, "rmsnorm_backward: dx is not shaped and typed as x");
	shape(check, RH_RMSNORM_BACKWARD_DW, RH_F32, 1, w.cols, "rmsnorm_backward: dw is not (1,n) F32");
	shape(check, RH_RMSNORM_BACKWARD_Y, x.dtype, x.rows, x.cols, "rmsnorm_backward: y is not shaped and typed as x");
	shape(check, RH_RMSNORM_BACKWARD_DX_AMAX, RH_F32, x.rows, groups, "rmsnorm_backward: dx_amax is not (T,groups) F32");
	shape(check, RH_RMSNORM_BACKWARD_Y_AMAX, RH_F32, x.rows, groups, "rmsnorm_backward: y_amax is not (T,groups) F32");
	require(check, !check->op->operand[RH_RMSNORM_BACKWARD_Y_AMAX].data || check->op->operand[RH_RMSNORM_BACKWARD_Y].data,
	        "rmsnorm_backward: y_amax without y");
}

/* With xhat = x rstd and s = dy w: dx = rstd (s - xhat mean(s xhat)), dw = sum of dy xhat. */
static void oracle_rmsnorm_backward(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_RMSNORM_BACKWARD_X], w = op->operand[RH_RMSNORM_BACKWARD_W];
	struct rh_view rstd = op->operand[RH_RMSNORM_BACKWARD_RSTD], dy = op->operand[RH_RMSNORM_BACKWARD_DY];
	struct rh_view add = op->operand[RH_RMSNORM_BACKWARD_ADD], dx = op->operand[RH_RMSNORM_BACKWARD_DX];
	struct rh_view dw = op->operand[RH_RMSNORM_BACKWARD_DW], y = op->operand[RH_RMSNORM_BACKWARD_Y];
	double offset = (double)op->rmsnorm.offset;
	int64_t n = w.cols, groups = op->rmsnorm.groups;
	for (int64_t i = 0; i < n && dw.data; i++) {
		double sum = 0;
		for (int64_t t = 0; t < x.rows; t++)
			for (int64_t g = 0; g < groups; g++)
				sum += get(dy, t, g * n + i) * get(x, t, g * n + i) * get(rstd, t, g);
		put(dw, 0, i, get(dw, 0, i) + sum);
	}
	for (int64_t t = 0; t < x.rows; t++) {
		for (int64_t g = 0; g < groups; g++) {
			double r = get(rstd, t, g), mean = 0;
			for (int64_t i = 0; i < n; i++)
				mean += get(dy, t, g * n + i) * (offset + get(w, 0, i)) * get(x, t, g * n + i) * r / (double)n;
			for (int64_t i = 0; i < n; i++) {
				double xhat = get(x, t, g * n + i) * r;
				double gradient = r * (get(dy, t, g * n + i) * (offset + get(w, 0, i)) - xhat * mean);
				put(dx, t, g * n + i, gradient + (add.data ? get(add, t, g * n + i) : 0));
				if (y.data)
					put(y, t, g * n + i, xhat * (offset + get(w, 0, i)));
			}
		}
	}
}

static void cost_rmsnorm_backward(const struct rh_op *op, struct rh_op_cost *cost)
{
	const struct rh_view *view = op->operand;
	int adds = view[RH_RMSNORM_BACKWARD_ADD].data != NULL, weighs = view[RH_RMSNORM_BACKWARD_DW].data != NULL;
	cost->other_flops = area(view[RH_RMSNORM_BACKWARD_X]) * (8 + adds + 2 * weighs);
}

static void amax_rmsnorm_backward(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	int64_t n = view[RH_RMSNORM_BACKWARD_W].cols;
	ops_amax(view[RH_RMSNORM_BACKWARD_DX], n, view[RH_RMSNORM_BACKWARD_DX_AMAX]);
	ops_amax(view[RH_RMSNORM_BACKWARD_Y], n, view[RH_RMSNORM_BACKWARD_Y_AMAX]);
}

const struct op_def op_rmsnorm_backward = {
        .info = {"rmsnorm_backward",
                 10,
                 {IN("x"), IN("w"), IN("rstd"), IN("dy"), MAYBE("add"), OUT("dx"), ADD_TO_IF("dw"), OUT_IF("y"), AMAX_IF("dx_amax"),
                  AMAX_IF("y_amax")}},
        .in_place = {{RH_RMSNORM_BACKWARD_DX, RH_RMSNORM_BACKWARD_ADD}, {RH_RMSNORM_BACKWARD_DX, RH_RMSNORM_BACKWARD_DY}},
        .check = check_rmsnorm_backward,
        .oracle = oracle_rmsnorm_backward,
        .cost = cost_rmsnorm_backward,
        .amax = amax_rmsnorm_backward,
};

static void check_layernorm(struct check *check)
{
	struct rh_view x = check->op->operand[RH_LAYERNORM_X];
	require(check, is_act(x.dtype) && x.cols >= 1, "layernorm: x is neither F32 nor BF16, or empty");
	require(check, check->op->layernorm.epsilon >= 0, "layernorm: epsilon is negative");
	shape(check, RH_LAYERNORM_W, x.dtype, 1, x.cols, "layernorm: w is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_B, x.dtype, 1, x.cols, "layernorm: b is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_Y, x.dtype, x.rows, x.cols, "layernorm: y is not shaped and typed as x");
	shape(check, RH_LAYERNORM_STATS, RH_F32, x.rows, 2, "layernorm: stats are not (T,2) F32");
}

static void oracle_layernorm(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_LAYERNORM_X], w = op->operand[RH_LAYERNORM_W], b = op->operand[RH_LAYERNORM_B];
	struct rh_view y = op->operand[RH_LAYERNORM_Y], stats = op->operand[RH_LAYERNORM_STATS];
	for (int64_t t = 0; t < x.rows; t++) {
		double mean = 0, variance = 0;
		for (int64_t i = 0; i < x.cols; i++)
			mean += get(x, t, i) / (double)x.cols;
		for (int64_t i = 0; i < x.cols; i++)
			variance += (get(x, t, i) - mean) * (get(x, t, i) - mean) / (double)x.cols;
		double rstd = 1 / sqrt(variance + (double)op->layernorm.epsilon);
		put(stats, t, 0, mean);
		put(stats, t, 1, rstd);
		for (int64_t i = 0; i < x.cols; i++)
			put(y, t, i, (get(x, t, i) - mean) * rstd * get(w, 0, i) + (b.data ? get(b, 0, i) : 0));
	}
}

static void cost_layernorm(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->other_flops = 7 * area(op->operand[RH_LAYERNORM_X]) + SPECIAL * (double)op->operand[RH_LAYERNORM_X].rows;
}

const struct op_def op_layernorm = {
        .info = {"layernorm", 5, {IN("x"), IN("w"), MAYBE("b"), OUT("y"), OUT("stats")}},
        .in_place = {{RH_LAYERNORM_Y, RH_LAYERNORM_X}},
        .check = check_layernorm,
        .oracle = oracle_layernorm,
        .cost = cost_layernorm,
};

static void check_layernorm_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_LAYERNORM_BACKWARD_X];
	require(check, is_act(x.dtype) && x.cols >= 1, "layernorm_backward: x is neither F32 nor BF16, or empty");
	shape(check, RH_LAYERNORM_BACKWARD_W, x.dtype, 1, x.cols, "layernorm_backward: w is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_BACKWARD_B, x.dtype, 1, x.cols, "layernorm_backward: b is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_BACKWARD_STATS, RH_F32, x.rows, 2, "layernorm_backward: stats are not (T,2) F32");
	shape(check, RH_LAYERNORM_BACKWARD_DY, x.dtype, x.rows, x.cols, "layernorm_backward: dy is not shaped and typed as x");
	shape(check, RH_LAYERNORM_BACKWARD_ADD, x.dtype, x.rows, x.cols, "layernorm_backward: add is not shaped and typed as x");
	shape(check, RH_LAYERNORM_BACKWARD_DX, x.dtype, x.rows, x.cols, "layernorm_backward: dx is not shaped and typed as x");
	shape(check, RH_LAYERNORM_BACKWARD_DW, RH_F32, 1, x.cols, "layernorm_backward: dw is not (1,n) F32");
	shape(check, RH_LAYERNORM_BACKWARD_DB, RH_F32, 1, x.cols, "layernorm_backward: db is not (1,n) F32");
	shape(check, RH_LAYERNORM_BACKWARD_Y, x.dtype, x.rows, x.cols, "layernorm_backward: y is not shaped and typed as x");
}

/* With xhat = (x - mean) rstd and s = dy w: dx = rstd (s - mean(s) - xhat mean(s xhat)), dw = sum of dy xhat, db = sum of dy. */
static void oracle_layernorm_backward(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_LAYERNORM_BACKWARD_X], w = view[RH_LAYERNORM_BACKWARD_W], b = view[RH_LAYERNORM_BACKWARD_B];
	struct rh_view stats = view[RH_LAYERNORM_BACKWARD_STATS], dy = view[RH_LAYERNORM_BACKWARD_DY];
	struct rh_view add = view[RH_LAYERNORM_BACKWARD_ADD], dx = view[RH_LAYERNORM_BACKWARD_DX], y = view[RH_LAYERNORM_BACKWARD_Y];
	struct rh_view dw = view[RH_LAYERNORM_BACKWARD_DW], db = view[RH_LAYERNORM_BACKWARD_DB];
	double n = (double)x.cols;
	for (int64_t i = 0; i < x.cols; i++) {
		double of_w = 0, of_b = 0;
		for (int64_t t = 0; t < x.rows; t++) {
			of_w += get(dy, t, i) * (get(x, t, i) - get(stats, t, 0)) * get(stats, t, 1);
			of_b += get(dy, t, i);
		}
		if (dw.data)
			put(dw, 0, i, get(dw, 0, i) + of_w);
		if (db.data)
			put(db, 0, i, get(db, 0, i) + of_b);
	}
	for (int64_t t = 0; t < x.rows; t++) {
		double mean = get(stats, t, 0), rstd = get(stats, t, 1), s = 0, s_xhat = 0;
		for (int64_t i = 0; i < x.cols; i++) {
			s += get(dy, t, i) * get(w, 0, i) / n;
			s_xhat += get(dy, t, i) * get(w, 0, i) * (get(x, t, i) - mean) * rstd / n;
		}
		for (int64_t i = 0; i < x.cols; i++) {
			double xhat = (get(x, t, i) - mean) * rstd, base = add.data ? get(add, t, i) : 0;
			put(dx, t, i, base + rstd * (get(dy, t, i) * get(w, 0, i) - s - xhat * s_xhat));
			if (y.data)
				put(y, t, i, xhat * get(w, 0, i) + (b.data ? get(b, 0, i) : 0));
		}
	}
}

static void cost_layernorm_backward(const struct rh_op *op, struct rh_op_cost *cost)
{
	const struct rh_view *view = op->operand;
	int adds = view[RH_LAYERNORM_BACKWARD_ADD].data != NULL, weighs = view[RH_LAYERNORM_BACKWARD_DW].data != NULL;
	cost->other_flops = area(view[RH_LAYERNORM_BACKWARD_X]) * (11 + adds + 2 * weighs + (view[RH_LAYERNORM_BACKWARD_DB].data != NULL));
}

const struct op_def op_layernorm_backward = {
        .info = {"layernorm_backward",
                 10,
                 {IN("x"), IN("w"), MAYBE("b"), IN("stats"), IN("dy"), MAYBE("add"), OUT("dx"), ADD_TO_IF("dw"), ADD_TO_IF("db"),
                  OUT_IF("y")}},
        .in_place = {{RH_LAYERNORM_BACKWARD_DX, RH_LAYERNORM_BACKWARD_ADD}, {RH_LAYERNORM_BACKWARD_DX, RH_LAYERNORM_BACKWARD_DY}},
        .check = check_layernorm_backward,
        .oracle = oracle_layernorm_backward,
        .cost = cost_layernorm_backward,
};
