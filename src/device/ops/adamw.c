/* The weights' half of AdamW's update. */
#include "device/ops/def.h"

static void check_adamw_weights(struct check *check)
{
	int64_t n = check->op->operand[RH_ADAMW_WEIGHTS_GRADIENT].cols;
	shape(check, RH_ADAMW_WEIGHTS_GRADIENT, RH_BF16, 1, n, "adamw_weights: the gradient is not (1,n) BF16");
	shape(check, RH_ADAMW_WEIGHTS_UPPER, RH_BF16, 1, n, "adamw_weights: upper is not (1,n) BF16");
	shape(check, RH_ADAMW_WEIGHTS_LOWER, RH_I16, 1, n, "adamw_weights: lower is not (1,n) I16");
	shape(check, RH_ADAMW_WEIGHTS_FIRST, RH_F32, 1, n, "adamw_weights: the first moment is not (1,n) F32");
	shape(check, RH_ADAMW_WEIGHTS_SECOND, RH_F32, 1, n, "adamw_weights: the second moment is not (1,n) F32");
	shape(check, RH_ADAMW_WEIGHTS_NEW_UPPER, RH_BF16, 1, n, "adamw_weights: new upper is not (1,n) BF16");
	shape(check, RH_ADAMW_WEIGHTS_NEW_LOWER, RH_I16, 1, n, "adamw_weights: new lower is not (1,n) I16");
}

static void oracle_adamw_weights(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	const uint16_t *gradient = view[RH_ADAMW_WEIGHTS_GRADIENT].data;
	const uint16_t *upper = view[RH_ADAMW_WEIGHTS_UPPER].data, *lower = view[RH_ADAMW_WEIGHTS_LOWER].data;
	const float *first = view[RH_ADAMW_WEIGHTS_FIRST].data, *second = view[RH_ADAMW_WEIGHTS_SECOND].data;
	uint16_t *new_upper = view[RH_ADAMW_WEIGHTS_NEW_UPPER].data, *new_lower = view[RH_ADAMW_WEIGHTS_NEW_LOWER].data;
	for (int64_t i = 0; i < view[RH_ADAMW_WEIGHTS_GRADIENT].cols; i++) {
		uint32_t bits = rh_adamw_split(&op->adamw_weights, gradient[i], upper[i], lower[i], first[i], second[i]);
		new_upper[i] = rh_split_upper(bits);
		new_lower[i] = rh_split_lower(bits);
	}
}

const struct op_def op_adamw_weights = {
        .info = {"adamw_weights",
                 7,
                 {IN("gradient"), IN("upper"), IN("lower"), IN("first"), IN("second"), OUT("new_upper"), OUT("new_lower")}},
        .in_place = {{RH_ADAMW_WEIGHTS_NEW_UPPER, RH_ADAMW_WEIGHTS_UPPER}, {RH_ADAMW_WEIGHTS_NEW_LOWER, RH_ADAMW_WEIGHTS_LOWER}},
        .check = check_adamw_weights,
        .oracle = oracle_adamw_weights,
        .flops = {RH_ADAMW_WEIGHTS_GRADIENT, 14 + 2 * SPECIAL},
};
