/* Checks of ops, shared by the files that hold them. */
#ifndef RH_DEVICE_OP_CHECK_H
#define RH_DEVICE_OP_CHECK_H

#include "device/op.h"

/* An op being checked, and the first fault found. */
struct check {
	const struct rh_op *op;
	const char *fault;
};

static inline void require(struct check *check, int condition, const char *fault)
{
	if (!condition && !check->fault)
		check->fault = fault;
}

/* Operand, if present, is (rows, cols) of the dtype. */
static inline void shape(struct check *check, int operand, enum rh_dtype dtype, int64_t rows, int64_t cols, const char *fault)
{
	struct rh_view view = check->op->operand[operand];
	if (view.data)
		require(check, view.dtype == dtype && view.rows == rows && view.cols == cols, fault);
}

static inline int is_act(enum rh_dtype dtype)
{
	return dtype == RH_F32 || dtype == RH_BF16;
}

typedef void op_check(struct check *check);

/* op_moe.c */
op_check op_check_router, op_check_router_backward, op_check_permute, op_check_unpermute, op_check_unpermute_backward,
        op_check_grouped_gemm, op_check_grouped_gemm_gradient, op_check_grouped_column_sum;

#endif
