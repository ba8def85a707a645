/* Backward ops of the oracle against finite differences of the forward ones. */
#ifndef RH_TESTS_DEVICE_DERIVATIVE_H
#define RH_TESTS_DEVICE_DERIVATIVE_H

#include "op_case.h"

/* The loss is the sum of output times a fixed cotangent. A derivative is taken by five points h apart: the fourth-order formula leaves
 * h^4/30 of a fifth derivative, and fp32 outputs 2^-24/h of the loss's terms: 3e-8 and 2e-6 for h = 1/32. */
static const double derivative_step = 0x1p-5;

static inline double loss(const struct op_case *forward, int output, const double *cotangent)
{
	struct op_case run = case_clone(forward);
	rh_op_oracle(&run.op);
	struct rh_view y = run.op.operand[output];
	double sum = 0;
	for (int64_t r = 0; r < y.rows; r++)
		for (int64_t k = 0; k < y.cols; k++)
			sum += case_get(y, r, k) * cotangent[r * y.cols + k];
	case_free(&run);
	return sum;
}

static inline void check_derivative(struct op_case *forward, int output, const double *cotangent, int input, struct rh_view gradient)
{
	struct rh_view x = forward->op.operand[input];
	assert_true(gradient.rows == x.rows && gradient.cols == x.cols);
	for (int64_t r = 0; r < x.rows; r++) {
		for (int64_t k = 0; k < x.cols; k++) {
			double at = case_get(x, r, k), value[5];
			for (int i = 0; i < 5; i++) {
				case_put(x, r, k, at + (i - 2) * derivative_step);
				value[i] = loss(forward, output, cotangent);
			}
			case_put(x, r, k, at);
			double want = (value[0] - 8 * value[1] + 8 * value[3] - value[4]) / (12 * derivative_step),
			       got = case_get(gradient, r, k);
			if (fabs(got - want) > 1e-4 + 1e-4 * fabs(want)) {
				print_error("%s: gradient of %s[%d][%d] is %.7g, by differences %.7g\n", rh_op_info(forward->op.kind)->name,
				            rh_op_info(forward->op.kind)->operand[input].name, (int)r, (int)k, got, want);
				fail();
			}
		}
	}
}

enum { MOST = 4096 };

/* Random cotangent, written to operand `to` of the backward op. */
static inline void cotangent_for(struct rh_view to, double *cotangent, uint64_t *seed)
{
	assert_true(to.rows * to.cols <= MOST);
	for (int64_t r = 0; r < to.rows; r++) {
		for (int64_t k = 0; k < to.cols; k++) {
			case_put(to, r, k, (double)check_uniform(seed));
			cotangent[r * to.cols + k] = case_get(to, r, k);
		}
	}
}

#endif
