/* Inside src/device/ops: what there is to say of an op, said in one place. A family of ops is a file; op.c walks the definitions. */
#ifndef RH_DEVICE_OPS_DEF_H
#define RH_DEVICE_OPS_DEF_H

#include "core/error.h"
#include "core/float16.h"
#include "device/op.h"

/* An op being checked, and the first fault found. */
struct check {
	const struct rh_op *op;
	const char *fault;
};

struct op_def {
	struct rh_op_info info;
	struct {
		int output, input;
	} in_place[4];                        /* pairs that may be the very same view; ends with a pair of zeros */
	void (*check)(struct check *check);   /* shapes, dtypes, parameters; that operands are there and do not overlap is op.c's */
	void (*oracle)(const struct rh_op *); /* what the op computes, as plainly as C can say it: sums in fp64, rounded once on store */
	int (*parts)(const struct rh_op *op, rh_op_run *run, void *user); /* of a fused op, in place of an oracle and of flops */
	/* cost: flops an element of one operand that are no products, or a function; neither: moves only */
	struct {
		int operand, per_element;
	} flops;
	void (*cost)(const struct rh_op *op, struct rh_op_cost *cost);
	/* Rows of an operand that are read or written; NULL: all of each, once. */
	int64_t (*touched)(const struct rh_op *op, int operand);
	void (*amax)(const struct rh_op *op); /* leaves each amax of outputs that are there; NULL: the op has none */
};

/* Flops of an exponential, a root, a quotient; multiplications, additions and comparisons count 1. */
enum { SPECIAL = 8 };

#define IN(label)                                                                                                                          \
	{                                                                                                                                  \
		label, RH_ACCESS_IN, 0, 0                                                                                                  \
	}
#define OUT(label)                                                                                                                         \
	{                                                                                                                                  \
		label, RH_ACCESS_OUT, 0, 0                                                                                                 \
	}
#define INOUT(label)                                                                                                                       \
	{                                                                                                                                  \
		label, RH_ACCESS_INOUT, 0, 0                                                                                               \
	}
#define MAYBE(label)                                                                                                                       \
	{                                                                                                                                  \
		label, RH_ACCESS_IN, 1, 0                                                                                                  \
	}
#define OUT_IF(label)                                                                                                                      \
	{                                                                                                                                  \
		label, RH_ACCESS_OUT, 1, 0                                                                                                 \
	}
#define SPACE(label)                                                                                                                       \
	{                                                                                                                                  \
		label, RH_ACCESS_NONE, 0, 0                                                                                                \
	}
#define SPACE_IF(label)                                                                                                                    \
	{                                                                                                                                  \
		label, RH_ACCESS_NONE, 1, 0                                                                                                \
	}
#define AMAX_IF(label)                                                                                                                     \
	{                                                                                                                                  \
		label, RH_ACCESS_OUT, 1, 1                                                                                                 \
	}
#define ADD_TO_IF(label)                                                                                                                   \
	{                                                                                                                                  \
		label, RH_ACCESS_INOUT, 1, 0                                                                                               \
	}

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

static inline double area(struct rh_view view)
{
	return (double)view.rows * (double)view.cols;
}

/* Bits are compared: of what is not negative they order as the numbers do, infinity above them and NaN above that. */
static inline float larger(float most, float value)
{
	uint32_t bits = rh_f32_bits(value) & 0x7fffffffu;
	return bits > rh_f32_bits(most) ? rh_bits_f32(bits) : most;
}

/* An amax (T,n) of rows [first, end) of x: of n runs of `each` columns, the last one perhaps shorter. Absent: nothing. */
void ops_amax_rows(struct rh_view x, int64_t first, int64_t end, int64_t each, struct rh_view amax);
static inline void ops_amax(struct rh_view x, int64_t each, struct rh_view amax)
{
	ops_amax_rows(x, 0, x.rows, each, amax);
}

/* Elements of host views as doubles. */
static inline double get(struct rh_view view, int64_t row, int64_t col)
{
	int64_t at = row * view.stride + col;
	RH_ASSERT(row >= 0 && row < view.rows && col >= 0 && col < view.cols);
	if (view.dtype == RH_I32)
		return ((const int32_t *)view.data)[at];
	return (double)(view.dtype == RH_F32 ? ((const float *)view.data)[at] : rh_bf16_to_f32(((const uint16_t *)view.data)[at]));
}

static inline int64_t get_index(struct rh_view view, int64_t row)
{
	return (int64_t)get(view, row, 0);
}

/* Rounded to fp32, then to the view's dtype. */
static inline void put(struct rh_view view, int64_t row, int64_t col, double value)
{
	int64_t at = row * view.stride + col;
	RH_ASSERT(row >= 0 && row < view.rows && col >= 0 && col < view.cols);
	if (view.dtype == RH_I32)
		((int32_t *)view.data)[at] = (int32_t)value;
	else if (view.dtype == RH_F32)
		((float *)view.data)[at] = (float)value;
	else
		((uint16_t *)view.data)[at] = rh_f32_to_bf16((float)value);
}

#endif
