/* GATE: a product with a function of a gate, with or without an RMSNorm before it; and its gradient. */
#include "device/ops/def.h"

#include <math.h>

/* f(z), and in *slope f'(z). */
static double gated(enum rh_gate f, double z, double *slope)
{
	double s = 1 / (1 + exp(-z));
	*slope = f == RH_GATE_SIGMOID ? s * (1 - s) : s + z * s * (1 - s);
	return f == RH_GATE_SIGMOID ? s : z * s;
}

/* Of a row: as many as elements, or one. */
static int64_t gates(const struct rh_op *op)
{
	return op->operand[RH_GATE_Z].cols;
}

static double gate_at(struct rh_view z, int64_t row, int64_t col)
{
	return get(z, row, z.cols == 1 ? 0 : col);
}

static void check_parts(struct check *check, int w, int rstd)
{
	struct rh_view x = check->op->operand[RH_GATE_X];
	require(check, is_act(x.dtype) && x.cols >= 1, "gate: x is neither F32 nor BF16, or empty");
	require(check, check->op->gate.f >= 0 && check->op->gate.f < RH_GATES, "gate: no such function");
	require(check, check->op->gate.epsilon >= 0, "gate: epsilon is negative");
	require(check, !check->op->operand[w].data == !check->op->operand[rstd].data, "gate: w without rstd, or rstd without w");
	shape(check, RH_GATE_Z, x.dtype, x.rows, gates(check->op) == 1 ? 1 : x.cols,
	      "gate: z is neither shaped as x nor (r,1), of x's dtype");
	shape(check, w, x.dtype, 1, x.cols, "gate: w is not (1,n) of x's dtype");
	shape(check, rstd, RH_F32, x.rows, 1, "gate: rstd is not (r,1) F32");
}

static void check_gate(struct check *check)
{
	struct rh_view x = check->op->operand[RH_GATE_X];
	check_parts(check, RH_GATE_W, RH_GATE_RSTD);
	shape(check, RH_GATE_Y, x.dtype, x.rows, x.cols, "gate: y is not shaped and typed as x");
}

static void oracle_gate(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_GATE_X], z = op->operand[RH_GATE_Z], w = op->operand[RH_GATE_W];
	struct rh_view y = op->operand[RH_GATE_Y], rstd = op->operand[RH_GATE_RSTD];
	for (int64_t t = 0; t < x.rows; t++) {
		double squares = 0, slope;
		for (int64_t i = 0; i < x.cols; i++)
			squares += get(x, t, i) * get(x, t, i);
		double r = w.data ? 1 / sqrt(squares / (double)x.cols + (double)op->gate.epsilon) : 1;
		if (w.data)
			put(rstd, t, 0, r);
		for (int64_t i = 0; i < x.cols; i++)
			put(y, t, i, get(x, t, i) * r * (w.data ? get(w, 0, i) : 1) * gated(op->gate.f, gate_at(z, t, i), &slope));
	}
}

static void cost_gate(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->other_flops = (4 + 2 * SPECIAL) * area(op->operand[RH_GATE_X]);
}

const struct op_def op_gate = {
        .info = {"gate", 5, {IN("x"), IN("z"), MAYBE("w"), OUT("y"), OUT_IF("rstd")}},
        .check = check_gate,
        .oracle = oracle_gate,
        .cost = cost_gate,
};

static void check_gate_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_GATE_BACKWARD_X];
	check_parts(check, RH_GATE_BACKWARD_W, RH_GATE_BACKWARD_RSTD);
	shape(check, RH_GATE_BACKWARD_DY, x.dtype, x.rows, x.cols, "gate_backward: dy is not shaped and typed as x");
	shape(check, RH_GATE_BACKWARD_DX, x.dtype, x.rows, x.cols, "gate_backward: dx is not shaped and typed as x");
	shape(check, RH_GATE_BACKWARD_DZ, x.dtype, x.rows, gates(check->op), "gate_backward: dz is not shaped and typed as z");
	shape(check, RH_GATE_BACKWARD_DW, RH_F32, 1, x.cols, "gate_backward: dw is not (1,n) F32");
	shape(check, RH_GATE_BACKWARD_Y, x.dtype, x.rows, x.cols, "gate_backward: y is not shaped and typed as x");
}

/* With xhat = x rstd and s = dy w f(z): dx = rstd (s - xhat mean(s xhat)), dz = dy xhat w f'(z), dw = sum of dy xhat f(z). */
static void oracle_gate_backward(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_GATE_BACKWARD_X], z = view[RH_GATE_BACKWARD_Z], w = view[RH_GATE_BACKWARD_W];
	struct rh_view rstd = view[RH_GATE_BACKWARD_RSTD], dy = view[RH_GATE_BACKWARD_DY], y = view[RH_GATE_BACKWARD_Y];
	struct rh_view dw = view[RH_GATE_BACKWARD_DW];
	double slope;
	for (int64_t i = 0; i < x.cols && w.data && dw.data; i++) {
		double sum = 0;
		for (int64_t t = 0; t < x.rows; t++)
			sum += get(dy, t, i) * get(x, t, i) * get(rstd, t, 0) * gated(op->gate.f, gate_at(z, t, i), &slope);
		put(dw, 0, i, get(dw, 0, i) + sum);
	}
	for (int64_t t = 0; t < x.rows; t++) {
		double r = w.data ? get(rstd, t, 0) : 1, mean = 0, of_row = 0;
		for (int64_t i = 0; i < x.cols && w.data; i++)
			mean += get(dy, t, i) * get(w, 0, i) * gated(op->gate.f, gate_at(z, t, i), &slope) * get(x, t, i) * r /
			        (double)x.cols;
		for (int64_t i = 0; i < x.cols; i++) {
			double xhat = get(x, t, i) * r, weight = w.data ? get(w, 0, i) : 1, f = gated(op->gate.f, gate_at(z, t, i), &slope);
			double d = get(dy, t, i);
			put(view[RH_GATE_BACKWARD_DX], t, i, r * (d * weight * f - xhat * mean));
			of_row += d * xhat * weight * slope;
			if (gates(op) > 1)
				put(view[RH_GATE_BACKWARD_DZ], t, i, d * xhat * weight * slope);
			if (y.data)
				put(y, t, i, xhat * weight * f);
		}
		if (gates(op) == 1)
			put(view[RH_GATE_BACKWARD_DZ], t, 0, of_row);
	}
}

static void cost_gate_backward(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->other_flops = (16 + 2 * SPECIAL) * area(op->operand[RH_GATE_BACKWARD_X]);
}

const struct op_def op_gate_backward = {
        .info = {"gate_backward",
                 9,
                 {IN("x"), IN("z"), MAYBE("w"), MAYBE("rstd"), IN("dy"), OUT("dx"), OUT("dz"), ADD_TO_IF("dw"), OUT_IF("y")}},
        .in_place = {{RH_GATE_BACKWARD_DX, RH_GATE_BACKWARD_DY}, {RH_GATE_BACKWARD_Y, RH_GATE_BACKWARD_DY}},
        .check = check_gate_backward,
        .oracle = oracle_gate_backward,
        .cost = cost_gate_backward,
};
