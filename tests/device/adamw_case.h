/* Cases of ADAMW_WEIGHTS: zeros, subnormal numbers, moments and gradients whose squares overflow, among what is usual; new weights are
 * finite. */
#ifndef RH_TESTS_DEVICE_ADAMW_CASE_H
#define RH_TESTS_DEVICE_ADAMW_CASE_H

#include "op_case.h"

#include "core/split.h"

struct adamw_element {
	uint16_t gradient, upper, lower;
	float first, second;
};

static inline struct adamw_element adamw_element(uint64_t *seed)
{
	float gradient = check_uniform(seed), weight = check_uniform(seed), first = check_uniform(seed) * 0.1f;
	float second = fabsf(check_uniform(seed)) * 0.01f;
	switch (check_random(seed) % 12) {
	case 0:
		gradient = check_random(seed) % 2 ? 0.0f : -0.0f, weight = check_random(seed) % 2 ? 0.0f : -0.0f, first = second = 0;
		break;
	case 1: /* of a first step */
		first = second = 0;
		break;
	case 2:
		gradient *= 1e-38f, first *= 1e-38f, second *= 1e-37f;
		break;
	case 3:
		gradient *= 1e30f, first *= 1e25f;
		break;
	case 4:
		second = 3.4e38f * fabsf(check_uniform(seed)), first *= 1e19f;
		break;
	case 5:
		second = INFINITY;
		break;
	case 6:
		weight *= 1e-38f, first *= 1e-36f;
		break;
	case 7:
		weight *= 1e38f;
		break;
	case 8: /* halves at the edge of the split's rounding */
		weight = rh_bits_f32((rh_f32_bits(weight) & 0xffff0000u) | (0x7ffeu + check_random(seed) % 4));
		gradient *= 1e-20f;
		break;
	default:
		break;
	}
	uint32_t bits = rh_f32_bits(weight);
	return (struct adamw_element){rh_f32_to_bf16(gradient), rh_split_upper(bits), rh_split_lower(bits), first, second};
}

/* Of two steps: usual ones; another way to the first moment, no decay. */
static const struct rh_adamw_terms adamw_terms[2] = {{.scale = 0.7f,
                                                      .keep = 0.99f,
                                                      .minus_step = -1e-3f,
                                                      .lerp = 0.1f,
                                                      .beta2 = 0.999f,
                                                      .one_minus_beta2 = 0.001f,
                                                      .inverse_root = 31.6f,
                                                      .epsilon = 1e-8f},
                                                     {.scale = 1,
                                                      .keep = 1,
                                                      .minus_step = -0.1f,
                                                      .lerp = -0.4f,
                                                      .lerp_from_end = 1,
                                                      .beta2 = 0.9f,
                                                      .one_minus_beta2 = 0.1f,
                                                      .inverse_root = 1.5f,
                                                      .epsilon = 1e-6f}};

/* Of n elements; which of the places that it writes are its inputs' and where arrays begin, by the index. */
static inline struct op_case adamw_case(int64_t n, int index, uint64_t *seed)
{
	static const enum rh_dtype dtypes[] = {RH_BF16, RH_BF16, RH_I16, RH_F32, RH_F32, RH_BF16, RH_I16};
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_ADAMW_WEIGHTS, .adamw_weights = adamw_terms[index % 2]}, .exact = 1};
	for (int i = 0; i <= RH_ADAMW_WEIGHTS_NEW_LOWER; i++) {
		int64_t skipped = index % 3 ? 0 : case_between(seed, 0, 7);
		if ((i == RH_ADAMW_WEIGHTS_NEW_UPPER && index & 2) || (i == RH_ADAMW_WEIGHTS_NEW_LOWER && index & 4)) {
			case_alias(&c, i, i == RH_ADAMW_WEIGHTS_NEW_UPPER ? RH_ADAMW_WEIGHTS_UPPER : RH_ADAMW_WEIGHTS_LOWER);
			continue;
		}
		struct rh_view view = rh_view_cols(case_operand(&c, i, dtypes[i], 1, n + skipped, 0, FILL_NONE), skipped, n);
		view.stride = n;
		c.op.operand[i] = view;
	}
	for (int64_t k = 0; k < n; k++) {
		struct adamw_element e = adamw_element(seed);
		((uint16_t *)c.op.operand[RH_ADAMW_WEIGHTS_GRADIENT].data)[k] = e.gradient;
		((uint16_t *)c.op.operand[RH_ADAMW_WEIGHTS_UPPER].data)[k] = e.upper;
		((uint16_t *)c.op.operand[RH_ADAMW_WEIGHTS_LOWER].data)[k] = e.lower;
		((float *)c.op.operand[RH_ADAMW_WEIGHTS_FIRST].data)[k] = e.first;
		((float *)c.op.operand[RH_ADAMW_WEIGHTS_SECOND].data)[k] = e.second;
	}
	return c;
}

/* Around the 8 elements of a thread, the 64 of a piece and the 2048 of a block; nothing. */
static inline void adamw_each(void (*check)(struct op_case *c, uint64_t *seed))
{
	static const int lengths[] = {0, 1, 7, 8, 9, 63, 64, 65, 255, 1000, 2047, 2048, 2056, 5003};
	uint64_t seed = check_seed();
	for (int i = 0, index = 0; i < (int)(sizeof lengths / sizeof *lengths); i++)
		for (int k = 0; k < 12; k++, index++) {
			struct op_case c = adamw_case(lengths[i], index, &seed);
			check(&c, &seed);
		}
}

#endif
