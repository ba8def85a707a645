/* GLU and ACTIVATION, and their derivatives. */
#include "device/ops/def.h"

#include <math.h>

/* `other`: that which the op does not have. */
static void check_act(struct check *check, enum rh_activation other)
{
	enum rh_activation act = check->op->activation.act;
	require(check, act >= 0 && act < RH_ACTS && act != other, "glu, activation: no such function");
}

/* f(x), and in *slope f'(x). */
static double curve(enum rh_activation act, double x, double *slope)
{
	if (act == RH_ACT_GELU) {
		double below = erfc(-x / sqrt(2)) / 2;
		*slope = below + x * exp(-x * x / 2) / sqrt(2 * acos(-1));
		return x * below;
	}
	if (act == RH_ACT_TANH) {
		*slope = 1 - tanh(x) * tanh(x);
		return tanh(x);
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

static void check_glu(struct check *check)
{
	check_act(check, RH_ACT_TANH);
	struct rh_view gu = check->op->operand[RH_GLU_GU];
	require(check, is_act(gu.dtype), "glu: gu is neither F32 nor BF16");
	require(check, gu.cols % 2 == 0, "glu: gu is not 2I wide");
	shape(check, RH_GLU_A, gu.dtype, gu.rows, gu.cols / 2, "glu: a is not (T,I) of gu's dtype");
	shape(check, RH_GLU_AMAX, RH_F32, gu.rows, rh_glu_parts(gu.cols / 2), "glu: amax is not (T,rh_glu_parts(I)) F32");
}

static void oracle_glu(const struct rh_op *op)
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

static void amax_glu(const struct rh_op *op)
{
	ops_amax(op->operand[RH_GLU_A], RH_GLU_RUN, op->operand[RH_GLU_AMAX]);
}

const struct op_def op_glu = {
        .info = {"glu", 3, {IN("gu"), OUT("a"), AMAX_IF("amax")}},
        .check = check_glu,
        .oracle = oracle_glu,
        .flops = {RH_GLU_A, SPECIAL + 4},
        .amax = amax_glu,
};

static void check_glu_backward(struct check *check)
{
	check_act(check, RH_ACT_TANH);
	struct rh_view gu = check->op->operand[RH_GLU_BACKWARD_GU];
	require(check, is_act(gu.dtype), "glu_backward: gu is neither F32 nor BF16");
	require(check, gu.cols % 2 == 0, "glu_backward: gu is not 2I wide");
	shape(check, RH_GLU_BACKWARD_DA, gu.dtype, gu.rows, gu.cols / 2, "glu_backward: da is not (T,I) of gu's dtype");
	shape(check, RH_GLU_BACKWARD_DGU, gu.dtype, gu.rows, gu.cols, "glu_backward: dgu is not shaped and typed as gu");
	shape(check, RH_GLU_BACKWARD_A, gu.dtype, gu.rows, gu.cols / 2, "glu_backward: a is not (T,I) of gu's dtype");
	shape(check, RH_GLU_BACKWARD_DOT, RH_F32, gu.rows, 1, "glu_backward: dot is not (T,1) F32");
	int64_t parts = rh_glu_parts(gu.cols / 2);
	shape(check, RH_GLU_BACKWARD_DGU_AMAX, RH_F32, gu.rows, parts, "glu_backward: dgu_amax is not (T,rh_glu_parts(I)) F32");
	shape(check, RH_GLU_BACKWARD_A_AMAX, RH_F32, gu.rows, parts, "glu_backward: a_amax is not (T,rh_glu_parts(I)) F32");
	require(check, !check->op->operand[RH_GLU_BACKWARD_A_AMAX].data || check->op->operand[RH_GLU_BACKWARD_A].data,
	        "glu_backward: a_amax without a");
}

static void oracle_glu_backward(const struct rh_op *op)
{
	struct rh_view gu = op->operand[RH_GLU_BACKWARD_GU], da = op->operand[RH_GLU_BACKWARD_DA];
	struct rh_view dgu = op->operand[RH_GLU_BACKWARD_DGU], a = op->operand[RH_GLU_BACKWARD_A], dot = op->operand[RH_GLU_BACKWARD_DOT];
	for (int64_t t = 0; t < da.rows; t++) {
		double sum = 0;
		for (int64_t i = 0; i < da.cols; i++) {
			struct unit u = unit_at(op, gu, t, i);
			double slope, value = curve(op->activation.act, u.gate, &slope), d = get(da, t, i);
			put(dgu, t, u.gate_col, u.gate_free ? d * u.up * slope : 0);
			put(dgu, t, u.up_col, u.up_free ? d * value : 0);
			sum += d * value * u.up;
			if (a.data)
				put(a, t, i, value * u.up);
		}
		if (dot.data)
			put(dot, t, 0, sum);
	}
}

static void amax_glu_backward(const struct rh_op *op)
{
	struct rh_view dgu = op->operand[RH_GLU_BACKWARD_DGU], amax = op->operand[RH_GLU_BACKWARD_DGU_AMAX];
	int64_t cols = dgu.cols / 2;
	ops_amax(op->operand[RH_GLU_BACKWARD_A], RH_GLU_RUN, op->operand[RH_GLU_BACKWARD_A_AMAX]);
	if (op->activation.act == RH_ACT_GPT_OSS) { /* gates and ups alternate */
		ops_amax(dgu, 2 * RH_GLU_RUN, amax);
		return;
	}
	ops_amax(rh_view_cols(dgu, 0, cols), RH_GLU_RUN, amax);
	for (int64_t r = 0; amax.data && r < dgu.rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			float *most = (float *)amax.data + r * amax.stride + c / RH_GLU_RUN;
			*most = larger(*most, (float)get(dgu, r, cols + c));
		}
}

const struct op_def op_glu_backward = {
        .info = {"glu_backward", 7, {IN("gu"), IN("da"), OUT("dgu"), OUT_IF("a"), OUT_IF("dot"), AMAX_IF("dgu_amax"), AMAX_IF("a_amax")}},
        .in_place = {{RH_GLU_BACKWARD_DGU, RH_GLU_BACKWARD_GU}, {RH_GLU_BACKWARD_A, RH_GLU_BACKWARD_DA}},
        .check = check_glu_backward,
        .oracle = oracle_glu_backward,
        .flops = {RH_GLU_BACKWARD_DA, SPECIAL + 10},
        .amax = amax_glu_backward,
};

static void check_activation(struct check *check)
{
	struct rh_view x = check->op->operand[RH_ACTIVATION_X];
	check_act(check, RH_ACT_GPT_OSS);
	require(check, is_act(x.dtype), "activation: x is neither F32 nor BF16");
	shape(check, RH_ACTIVATION_Y, x.dtype, x.rows, x.cols, "activation: y is not shaped and typed as x");
	require(check, check->op->activation.cap >= 0 && (check->op->activation.cap == 0 || check->op->activation.act == RH_ACT_TANH),
	        "activation: a cap below 0, or of another curve than tanh");
}

static void oracle_activation(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_ACTIVATION_X], y = op->operand[RH_ACTIVATION_Y];
	double unused, cap = op->activation.cap > 0 ? (double)op->activation.cap : 1;
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; c < x.cols; c++)
			put(y, r, c, cap * curve(op->activation.act, get(x, r, c) / cap, &unused));
}

const struct op_def op_activation = {
        .info = {"activation", 2, {IN("x"), OUT("y")}},
        .in_place = {{RH_ACTIVATION_Y, RH_ACTIVATION_X}},
        .check = check_activation,
        .oracle = oracle_activation,
        .flops = {RH_ACTIVATION_X, SPECIAL + 4},
};

static void check_activation_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_ACTIVATION_BACKWARD_X];
	check_act(check, RH_ACT_GPT_OSS);
	require(check, is_act(x.dtype), "activation_backward: x is neither F32 nor BF16");
	require(check, check->op->activation.cap == 0, "activation_backward: has no cap");
	shape(check, RH_ACTIVATION_BACKWARD_DY, x.dtype, x.rows, x.cols, "activation_backward: dy is not shaped and typed as x");
	shape(check, RH_ACTIVATION_BACKWARD_DX, x.dtype, x.rows, x.cols, "activation_backward: dx is not shaped and typed as x");
	shape(check, RH_ACTIVATION_BACKWARD_Y, x.dtype, x.rows, x.cols, "activation_backward: y is not shaped and typed as x");
}

static void oracle_activation_backward(const struct rh_op *op)
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

const struct op_def op_activation_backward = {
        .info = {"activation_backward", 4, {IN("x"), IN("dy"), OUT("dx"), OUT_IF("y")}},
        .in_place = {{RH_ACTIVATION_BACKWARD_DX, RH_ACTIVATION_BACKWARD_X},
                     {RH_ACTIVATION_BACKWARD_DX, RH_ACTIVATION_BACKWARD_DY},
                     {RH_ACTIVATION_BACKWARD_Y, RH_ACTIVATION_BACKWARD_DY}},
        .check = check_activation_backward,
        .oracle = oracle_activation_backward,
        .flops = {RH_ACTIVATION_BACKWARD_X, SPECIAL + 8},
};
