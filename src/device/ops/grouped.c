/* A product, or a sum, for each expert of a mixture. */
#include "device/ops/def.h"

/* The number of experts; 1 when start is no list of them. */
static int64_t experts_of(struct check *check, int operand)
{
	struct rh_view start = check->op->operand[operand];
	int right = start.dtype == RH_I32 && start.cols == 1 && start.rows >= 2 && start.rows <= RH_ROUTER_MAX_EXPERTS + 1;
	require(check, right, "grouped: start is not (E+1,1) I32, or there are too many experts");
	return right ? start.rows - 1 : 1;
}

/* Whether `rows` are `each` for every expert. */
static int stacked(int64_t rows, int64_t experts, int64_t each)
{
	int64_t all;
	return !__builtin_mul_overflow(experts, each, &all) && rows == all;
}

/* The share of the experts that have rows, where only the number of rows is known: at most one an expert. */
static double share_touched(const struct rh_op *op, int start, int rows_of)
{
	double experts = (double)op->operand[start].rows - 1, rows = (double)op->operand[rows_of].rows;
	return rows < experts ? rows / experts : 1;
}

static void check_grouped_gemm(struct check *check)
{
	struct rh_view a = check->op->operand[RH_GROUPED_GEMM_A], b = check->op->operand[RH_GROUPED_GEMM_B];
	struct rh_view d = check->op->operand[RH_GROUPED_GEMM_D];
	int trans_b = check->op->grouped_gemm.trans_b;
	int64_t experts = experts_of(check, RH_GROUPED_GEMM_START);
	require(check, is_act(a.dtype), "grouped_gemm: a is neither F32 nor BF16");
	require(check, b.dtype == a.dtype, "grouped_gemm: b has another dtype than a");
	require(check, d.dtype == a.dtype || d.dtype == RH_F32, "grouped_gemm: d is neither F32 nor of a's dtype");
	require(check, d.rows == a.rows, "grouped_gemm: rows of a and d differ");
	require(check, a.rows <= RH_MOE_MAX_PAIRS, "grouped_gemm: a has too many rows");
	require(check, stacked(b.rows, experts, trans_b ? d.cols : a.cols) && b.cols == (trans_b ? a.cols : d.cols),
	        "grouped_gemm: b is not a matrix an expert, one under another");
	shape(check, RH_GROUPED_GEMM_C, d.dtype, d.rows, d.cols, "grouped_gemm: c is not shaped and typed as d");
	shape(check, RH_GROUPED_GEMM_BIAS, a.dtype, experts, d.cols, "grouped_gemm: bias is not (E,n) of a's dtype");
}

static void oracle_grouped_gemm(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_GROUPED_GEMM_A], b = op->operand[RH_GROUPED_GEMM_B], start = op->operand[RH_GROUPED_GEMM_START];
	struct rh_view c = op->operand[RH_GROUPED_GEMM_C], bias = op->operand[RH_GROUPED_GEMM_BIAS], d = op->operand[RH_GROUPED_GEMM_D];
	for (int64_t e = 0; e < start.rows - 1; e++) {
		for (int64_t m = get_index(start, e); m < get_index(start, e + 1); m++) {
			for (int64_t n = 0; n < d.cols; n++) {
				double sum = 0;
				for (int64_t k = 0; k < a.cols; k++)
					sum += get(a, m, k) *
					       (op->grouped_gemm.trans_b ? get(b, e * d.cols + n, k) : get(b, e * a.cols + k, n));
				sum *= (double)op->grouped_gemm.alpha;
				sum += c.data ? get(c, m, n) : 0;
				sum += bias.data ? get(bias, e, n) : 0;
				put(d, m, n, sum);
			}
		}
	}
}

/* All rows are some expert's: what an expert has is known on the device alone. */
static void cost_grouped_gemm(const struct rh_op *op, struct rh_op_cost *cost)
{
	const struct rh_view *view = op->operand;
	struct rh_view d = view[RH_GROUPED_GEMM_D];
	cost->product_flops = 2 * area(d) * (double)view[RH_GROUPED_GEMM_A].cols;
	cost->other_flops = area(d) * ((view[RH_GROUPED_GEMM_C].data != NULL) + (view[RH_GROUPED_GEMM_BIAS].data != NULL));
}

/* The matrix of an expert without rows is not read. */
static int64_t grouped_gemm_touched(const struct rh_op *op, int operand)
{
	double rows = (double)op->operand[operand].rows;
	return operand == RH_GROUPED_GEMM_B ? (int64_t)(rows * share_touched(op, RH_GROUPED_GEMM_START, RH_GROUPED_GEMM_A)) : (int64_t)rows;
}

const struct op_def op_grouped_gemm = {
        .info = {"grouped_gemm", 6, {IN("a"), IN("b"), IN("start"), MAYBE("c"), MAYBE("bias"), OUT("d")}},
        .in_place = {{RH_GROUPED_GEMM_D, RH_GROUPED_GEMM_C}},
        .check = check_grouped_gemm,
        .oracle = oracle_grouped_gemm,
        .cost = cost_grouped_gemm,
        .touched = grouped_gemm_touched,
};

static void check_grouped_gemm_gradient(struct check *check)
{
	struct rh_view a = check->op->operand[RH_GROUPED_GEMM_GRADIENT_A], b = check->op->operand[RH_GROUPED_GEMM_GRADIENT_B];
	struct rh_view d = check->op->operand[RH_GROUPED_GEMM_GRADIENT_D];
	int64_t experts = experts_of(check, RH_GROUPED_GEMM_GRADIENT_START);
	require(check, is_act(a.dtype), "grouped_gemm_gradient: a is neither F32 nor BF16");
	require(check, b.dtype == a.dtype && b.rows == a.rows, "grouped_gemm_gradient: b is not (R,n) of a's dtype");
	require(check, a.rows <= RH_MOE_MAX_PAIRS, "grouped_gemm_gradient: a has too many rows");
	require(check, d.dtype == RH_F32 && stacked(d.rows, experts, a.cols) && d.cols == b.cols,
	        "grouped_gemm_gradient: d is not (E*m,n) F32");
}

static void oracle_grouped_gemm_gradient(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_GROUPED_GEMM_GRADIENT_A], b = op->operand[RH_GROUPED_GEMM_GRADIENT_B];
	struct rh_view start = op->operand[RH_GROUPED_GEMM_GRADIENT_START], d = op->operand[RH_GROUPED_GEMM_GRADIENT_D];
	for (int64_t e = 0; e < start.rows - 1; e++) {
		for (int64_t m = 0; m < a.cols; m++) {
			for (int64_t n = 0; n < b.cols; n++) {
				double sum = 0;
				for (int64_t r = get_index(start, e); r < get_index(start, e + 1); r++)
					sum += get(a, r, m) * get(b, r, n);
				put(d, e * a.cols + m, n, get(d, e * a.cols + m, n) + (double)op->grouped_gemm.alpha * sum);
			}
		}
	}
}

static void cost_grouped_gemm_gradient(const struct rh_op *op, struct rh_op_cost *cost)
{
	const struct rh_view *view = op->operand;
	cost->product_flops = 2 * area(view[RH_GROUPED_GEMM_GRADIENT_A]) * (double)view[RH_GROUPED_GEMM_GRADIENT_B].cols;
	cost->other_flops = area(view[RH_GROUPED_GEMM_GRADIENT_D]);
}

static int64_t grouped_gemm_gradient_touched(const struct rh_op *op, int operand)
{
	double rows = (double)op->operand[operand].rows;
	double share = share_touched(op, RH_GROUPED_GEMM_GRADIENT_START, RH_GROUPED_GEMM_GRADIENT_A);
	return operand == RH_GROUPED_GEMM_GRADIENT_D ? (int64_t)(rows * share) : (int64_t)rows;
}

const struct op_def op_grouped_gemm_gradient = {
        .info = {"grouped_gemm_gradient", 4, {IN("a"), IN("b"), IN("start"), INOUT("d")}},
        .check = check_grouped_gemm_gradient,
        .oracle = oracle_grouped_gemm_gradient,
        .cost = cost_grouped_gemm_gradient,
        .touched = grouped_gemm_gradient_touched,
};

static void check_grouped_column_sum(struct check *check)
{
	struct rh_view x = check->op->operand[RH_GROUPED_COLUMN_SUM_X];
	int64_t experts = experts_of(check, RH_GROUPED_COLUMN_SUM_START);
	require(check, is_act(x.dtype), "grouped_column_sum: x is neither F32 nor BF16");
	require(check, x.rows <= RH_MOE_MAX_PAIRS, "grouped_column_sum: x has too many rows");
	shape(check, RH_GROUPED_COLUMN_SUM_Y, RH_F32, experts, x.cols, "grouped_column_sum: y is not (E,c) F32");
}

static void oracle_grouped_column_sum(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_GROUPED_COLUMN_SUM_X], start = op->operand[RH_GROUPED_COLUMN_SUM_START];
	struct rh_view y = op->operand[RH_GROUPED_COLUMN_SUM_Y];
	for (int64_t e = 0; e < start.rows - 1; e++) {
		for (int64_t c = 0; c < x.cols; c++) {
			double sum = 0;
			for (int64_t r = get_index(start, e); r < get_index(start, e + 1); r++)
				sum += get(x, r, c);
			put(y, e, c, get(y, e, c) + sum);
		}
	}
}

const struct op_def op_grouped_column_sum = {
        .info = {"grouped_column_sum", 3, {IN("x"), IN("start"), INOUT("y")}},
        .check = check_grouped_column_sum,
        .oracle = oracle_grouped_column_sum,
        .flops = {RH_GROUPED_COLUMN_SUM_X, 1},
};
