/* Checks of the ops of mixtures of experts. */
#include "device/op_check.h"

/* index, place: (T,k) I32; logits (T,E). */
static void check_choice(struct check *check, struct rh_view logits, int index, int weight)
{
	struct rh_view chosen = check->op->operand[index];
	enum rh_router_softmax over = check->op->router.softmax;
	require(check, is_act(logits.dtype), "router: the logits are neither F32 nor BF16");
	require(check, logits.cols <= RH_ROUTER_MAX_EXPERTS, "router: too many experts");
	require(check, chosen.dtype == RH_I32 && chosen.rows == logits.rows, "router: index is not (T,k) I32");
	require(check, chosen.cols >= 1 && chosen.cols <= logits.cols && chosen.cols <= RH_ROUTER_MAX_TOP,
	        "router: k is not in 1..E, or too large");
	shape(check, weight, RH_F32, chosen.rows, chosen.cols, "router: weight is not (T,k) F32");
	require(check, over == RH_ROUTER_OVER_ALL || over == RH_ROUTER_OVER_CHOSEN, "router: no such softmax");
}

void op_check_router(struct check *check)
{
	check_choice(check, check->op->operand[RH_ROUTER_LOGITS], RH_ROUTER_INDEX, RH_ROUTER_WEIGHT);
}

void op_check_router_backward(struct check *check)
{
	struct rh_view logits = check->op->operand[RH_ROUTER_BACKWARD_LOGITS], index = check->op->operand[RH_ROUTER_BACKWARD_INDEX];
	struct rh_view dlogits = check->op->operand[RH_ROUTER_BACKWARD_DLOGITS];
	check_choice(check, logits, RH_ROUTER_BACKWARD_INDEX, RH_ROUTER_BACKWARD_WEIGHT);
	shape(check, RH_ROUTER_BACKWARD_DWEIGHT, RH_F32, index.rows, index.cols, "router_backward: dweight is not (T,k) F32");
	require(check, is_act(dlogits.dtype) && dlogits.rows == logits.rows && dlogits.cols == logits.cols,
	        "router_backward: dlogits are not (T,E) F32 or BF16");
}

enum { MAX_PAIRS = 1 << 30 }; /* kernels count beyond the end, in an I32 */

/* Operand (T,k) I32 with T*k = rows. */
static void check_pairs(struct check *check, int operand, int64_t rows, const char *fault)
{
	struct rh_view pairs = check->op->operand[operand];
	int64_t count = 0;
	require(check, pairs.dtype == RH_I32 && pairs.cols >= 1, fault);
	require(check, !__builtin_mul_overflow(pairs.rows, pairs.cols, &count) && count <= MAX_PAIRS && count == rows, fault);
}

void op_check_permute(struct check *check)
{
	struct rh_view index = check->op->operand[RH_PERMUTE_INDEX], x = check->op->operand[RH_PERMUTE_X];
	struct rh_view start = check->op->operand[RH_PERMUTE_START], y = check->op->operand[RH_PERMUTE_Y];
	require(check, is_act(x.dtype), "permute: x is neither F32 nor BF16");
	require(check, y.dtype == x.dtype && y.cols == x.cols, "permute: y is not (T*k,c) of x's dtype");
	check_pairs(check, RH_PERMUTE_INDEX, y.rows, "permute: index is not (T,k) I32, or y has not T*k rows");
	require(check, index.rows == x.rows, "permute: rows of index and x differ");
	require(check, start.dtype == RH_I32 && start.cols == 1 && start.rows >= 2 && start.rows <= RH_ROUTER_MAX_EXPERTS + 1,
	        "permute: start is not (E+1,1) I32, or there are too many experts");
	shape(check, RH_PERMUTE_PLACE, RH_I32, index.rows, index.cols, "permute: place is not (T,k) I32");
}

void op_check_unpermute(struct check *check)
{
	struct rh_view x = check->op->operand[RH_UNPERMUTE_X], place = check->op->operand[RH_UNPERMUTE_PLACE];
	require(check, is_act(x.dtype), "unpermute: x is neither F32 nor BF16");
	check_pairs(check, RH_UNPERMUTE_PLACE, x.rows, "unpermute: place is not (T,k) I32, or x has not T*k rows");
	shape(check, RH_UNPERMUTE_WEIGHT, RH_F32, place.rows, place.cols, "unpermute: weight is not (T,k) F32");
	shape(check, RH_UNPERMUTE_ADD, x.dtype, place.rows, x.cols, "unpermute: add is not (T,c) of x's dtype");
	shape(check, RH_UNPERMUTE_Y, x.dtype, place.rows, x.cols, "unpermute: y is not (T,c) of x's dtype");
}

void op_check_unpermute_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_UNPERMUTE_BACKWARD_X], place = check->op->operand[RH_UNPERMUTE_BACKWARD_PLACE];
	require(check, is_act(x.dtype), "unpermute_backward: x is neither F32 nor BF16");
	check_pairs(check, RH_UNPERMUTE_BACKWARD_PLACE, x.rows, "unpermute_backward: place is not (T,k) I32, or x has not T*k rows");
	shape(check, RH_UNPERMUTE_BACKWARD_WEIGHT, RH_F32, place.rows, place.cols, "unpermute_backward: weight is not (T,k) F32");
	shape(check, RH_UNPERMUTE_BACKWARD_DY, x.dtype, place.rows, x.cols, "unpermute_backward: dy is not (T,c) of x's dtype");
	shape(check, RH_UNPERMUTE_BACKWARD_DX, x.dtype, x.rows, x.cols, "unpermute_backward: dx is not shaped and typed as x");
	shape(check, RH_UNPERMUTE_BACKWARD_DWEIGHT, RH_F32, place.rows, place.cols, "unpermute_backward: dweight is not (T,k) F32");
}

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

void op_check_grouped_gemm(struct check *check)
{
	struct rh_view a = check->op->operand[RH_GROUPED_GEMM_A], b = check->op->operand[RH_GROUPED_GEMM_B];
	struct rh_view d = check->op->operand[RH_GROUPED_GEMM_D];
	int trans_b = check->op->grouped_gemm.trans_b;
	int64_t experts = experts_of(check, RH_GROUPED_GEMM_START);
	require(check, is_act(a.dtype), "grouped_gemm: a is neither F32 nor BF16");
	require(check, b.dtype == a.dtype, "grouped_gemm: b has another dtype than a");
	require(check, d.dtype == a.dtype || d.dtype == RH_F32, "grouped_gemm: d is neither F32 nor of a's dtype");
	require(check, d.rows == a.rows, "grouped_gemm: rows of a and d differ");
	require(check, a.rows <= MAX_PAIRS, "grouped_gemm: a has too many rows");
	require(check, stacked(b.rows, experts, trans_b ? d.cols : a.cols) && b.cols == (trans_b ? a.cols : d.cols),
	        "grouped_gemm: b is not a matrix an expert, one under another");
	shape(check, RH_GROUPED_GEMM_C, d.dtype, d.rows, d.cols, "grouped_gemm: c is not shaped and typed as d");
	shape(check, RH_GROUPED_GEMM_BIAS, a.dtype, experts, d.cols, "grouped_gemm: bias is not (E,n) of a's dtype");
}

void op_check_grouped_gemm_gradient(struct check *check)
{
	struct rh_view a = check->op->operand[RH_GROUPED_GEMM_GRADIENT_A], b = check->op->operand[RH_GROUPED_GEMM_GRADIENT_B];
	struct rh_view d = check->op->operand[RH_GROUPED_GEMM_GRADIENT_D];
	int64_t experts = experts_of(check, RH_GROUPED_GEMM_GRADIENT_START);
	require(check, is_act(a.dtype), "grouped_gemm_gradient: a is neither F32 nor BF16");
	require(check, b.dtype == a.dtype && b.rows == a.rows, "grouped_gemm_gradient: b is not (R,n) of a's dtype");
	require(check, a.rows <= MAX_PAIRS, "grouped_gemm_gradient: a has too many rows");
	require(check, d.dtype == RH_F32 && stacked(d.rows, experts, a.cols) && d.cols == b.cols,
	        "grouped_gemm_gradient: d is not (E*m,n) F32");
}

void op_check_grouped_column_sum(struct check *check)
{
	struct rh_view x = check->op->operand[RH_GROUPED_COLUMN_SUM_X];
	int64_t experts = experts_of(check, RH_GROUPED_COLUMN_SUM_START);
	require(check, is_act(x.dtype), "grouped_column_sum: x is neither F32 nor BF16");
	require(check, x.rows <= MAX_PAIRS, "grouped_column_sum: x has too many rows");
	shape(check, RH_GROUPED_COLUMN_SUM_Y, RH_F32, experts, x.cols, "grouped_column_sum: y is not (E,c) F32");
}
