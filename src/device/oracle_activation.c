/* GLU and ACTIVATION, and their derivatives. */
#include "device/oracle_internal.h"

#include <math.h>

/* f(x), and in *slope f'(x). */
static double curve(enum rh_activation act, double x, double *slope)
{
	if (act == RH_ACT_GELU) {
		double below = erfc(-x / sqrt(2)) / 2;
		*slope = below + x * exp(-x * x / 2) / sqrt(2 * acos(-1));
		return x * below;
	}
	double bend = x, bend_slope = 1;
	if (act == RH_ACT_GPT_OSS) {
		bend_slope = (double)RH_GPT_OSS_ALPHA;
		bend = bend_slope * x;
	} else if (act == RH_ACT_GELU_TANH) { /* (1 + tanh(u)) / 2 is sigmoid(2 u) */
		double root = sqrt(8 / acos(-1));
		bend = root * (x + 0.044715 * x * x * x);
		bend_slope = root * (1 + 3 * 0.044715 * x * x);
	}
	double sigmoid = 1 / (1 + exp(-bend));
	*slope = sigmoid + (sigmoid > 0 && sigmoid < 1 ? x * sigmoid * (1 - sigmoid) * bend_slope : 0);
	return x * sigmoid;
}

/* What a GLU is of: its gate and up after gpt-oss's limits, their columns, and whether the limits let gradients through. */
struct unit {
	double gate, up;
	int64_t gate_col, up_col;
	int gate_free, up_free;
};

static struct unit unit_at(const struct rh_op *op, struct rh_view gu, int64_t t, int64_t i)
{
	int paired = op->activation.act == RH_ACT_GPT_OSS;
	double limit = (double)RH_GPT_OSS_LIMIT;
	struct unit u = {.gate_col = paired ? 2 * i : i, .up_col = paired ? 2 * i + 1 : gu.cols / 2 + i, .gate_free = 1, .up_free = 1};
	u.gate = get(gu, t, u.gate_col);
	u.up = get(gu, t, u.up_col);
	if (paired) {
		u.gate_free = u.gate <= limit;
		u.up_free = fabs(u.up) <= limit;
		u.gate = fmin(u.gate, limit);
		u.up = fmin(fmax(u.up, -limit), limit) + 1;
	}
	return u;
}

void oracle_glu(const struct rh_op *op)
{
	struct rh_view gu = op->operand[RH_GLU_GU], a = op->operand[RH_GLU_A];
	double unused;
	for (int64_t t = 0; t < a.rows; t++) {
		for (int64_t i = 0; i < a.cols; i++) {
			struct unit u = unit_at(op, gu, t, i);
			put(a, t, i, curve(op->activation.act, u.gate, &unused) * u.up);
		}
	}
}

void oracle_glu_backward(const struct rh_op *op)
{
	struct rh_view gu = op->operand[RH_GLU_BACKWARD_GU], da = op->operand[RH_GLU_BACKWARD_DA];
	struct rh_view dgu = op->operand[RH_GLU_BACKWARD_DGU], a = op->operand[RH_GLU_BACKWARD_A];
	for (int64_t t = 0; t < da.rows; t++) {
		for (int64_t i = 0; i < da.cols; i++) {
			struct unit u = unit_at(op, gu, t, i);
			double slope, value = curve(op->activation.act, u.gate, &slope), d = get(da, t, i);
			put(dgu, t, u.gate_col, u.gate_free ? d * u.up * slope : 0);
			put(dgu, t, u.up_col, u.up_free ? d * value : 0);
			if (a.data)
				put(a, t, i, value * u.up);
		}
	}
}

void oracle_activation(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_ACTIVATION_X], y = op->operand[RH_ACTIVATION_Y];
	double unused;
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; c < x.cols; c++)
			put(y, r, c, curve(op->activation.act, get(x, r, c), &unused));
}

void oracle_activation_backward(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_ACTIVATION_BACKWARD_X], dy = op->operand[RH_ACTIVATION_BACKWARD_DY];
	struct rh_view dx = op->operand[RH_ACTIVATION_BACKWARD_DX], y = op->operand[RH_ACTIVATION_BACKWARD_Y];
	for (int64_t r = 0; r < x.rows; r++) {
		for (int64_t c = 0; c < x.cols; c++) {
			double slope, value = curve(op->activation.act, get(x, r, c), &slope), d = get(dy, r, c);
			put(dx, r, c, d * slope);
			if (y.data)
				put(y, r, c, value);
		}
	}
}
