/* GROUPED_GEMM and its gradient: one matrix product an expert, in order, each spread over the pool. The order of an element's sum is a
 * function of the shape of its expert's product (gemm.c: few rows go another way than many), not of the other experts or of threads. */
#include "core/error.h"
#include "device/cpu/kernels.h"

/* Rows of an expert. */
struct group {
	int64_t expert, first, rows;
};

static struct group group_at(const struct rh_view *start, int64_t expert, int64_t all)
{
	const int32_t *at = start->data;
	int64_t first = at[expert * start->stride], end = at[(expert + 1) * start->stride];
	RH_ASSERT(first >= 0 && first <= end && end <= all);
	return (struct group){expert, first, end - first};
}

/* Matrix `i` of equal ones that lie one under another. */
static struct rh_view stacked(struct rh_view all, int64_t i, int64_t rows)
{
	return rh_view_rows(all, i * rows, rows);
}

/* Absent views stay absent. */
static struct rh_op product_of(const struct rh_op *op, struct group group)
{
	const struct rh_view *view = op->operand;
	struct rh_view b = view[RH_GROUPED_GEMM_B], d = view[RH_GROUPED_GEMM_D];
	int trans_b = op->grouped_gemm.trans_b;
	struct rh_op product = {.kind = RH_OP_GEMM, .gemm = {0, trans_b, op->grouped_gemm.alpha}};
	product.operand[RH_GEMM_A] = rh_view_rows(view[RH_GROUPED_GEMM_A], group.first, group.rows);
	product.operand[RH_GEMM_B] = stacked(b, group.expert, trans_b ? d.cols : view[RH_GROUPED_GEMM_A].cols);
	product.operand[RH_GEMM_D] = rh_view_rows(d, group.first, group.rows);
	if (view[RH_GROUPED_GEMM_C].data)
		product.operand[RH_GEMM_C] = rh_view_rows(view[RH_GROUPED_GEMM_C], group.first, group.rows);
	if (view[RH_GROUPED_GEMM_BIAS].data)
		product.operand[RH_GEMM_BIAS] = stacked(view[RH_GROUPED_GEMM_BIAS], group.expert, 1);
	return product;
}

static struct rh_op gradient_of(const struct rh_op *op, struct group group)
{
	const struct rh_view *view = op->operand;
	struct rh_op product = {.kind = RH_OP_GEMM, .gemm = {1, 0, op->grouped_gemm.alpha}};
	product.operand[RH_GEMM_A] = rh_view_rows(view[RH_GROUPED_GEMM_GRADIENT_A], group.first, group.rows);
	product.operand[RH_GEMM_B] = rh_view_rows(view[RH_GROUPED_GEMM_GRADIENT_B], group.first, group.rows);
	product.operand[RH_GEMM_D] = stacked(view[RH_GROUPED_GEMM_GRADIENT_D], group.expert, view[RH_GROUPED_GEMM_GRADIENT_A].cols);
	product.operand[RH_GEMM_C] = product.operand[RH_GEMM_D];
	return product;
}

int cpu_grouped_gemm(struct cpu_context *context, const struct rh_op *op)
{
	int gradient = op->kind == RH_OP_GROUPED_GEMM_GRADIENT;
	const struct rh_view *start = &op->operand[gradient ? RH_GROUPED_GEMM_GRADIENT_START : RH_GROUPED_GEMM_START];
	int64_t all = op->operand[0].rows; /* of a */
	for (int64_t expert = 0; expert < start->rows - 1; expert++) {
		struct group group = group_at(start, expert, all);
		if (!group.rows)
			continue;
		struct rh_op product = gradient ? gradient_of(op, group) : product_of(op, group);
		int rc = cpu_gemm(context, &product);
		if (rc)
			return rc;
	}
	return 0;
}
