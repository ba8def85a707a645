/* Cases of the ops of mixtures of experts, for any device. */
#ifndef RH_TESTS_DEVICE_MOE_CASE_H
#define RH_TESTS_DEVICE_MOE_CASE_H

#include "op_case.h"

/* How rows are spread over experts: by chance, all to one, one each (as far as they go), none to most. */
enum moe_spread { SPREAD_RANDOM, SPREAD_ONE, SPREAD_EVEN, SPREAD_FEW, SPREADS };

static inline int64_t moe_expert(enum moe_spread spread, int64_t experts, int64_t pair, uint64_t *seed)
{
	switch (spread) {
	case SPREAD_ONE:
		return experts / 2;
	case SPREAD_EVEN:
		return (pair * 7 + 3) % experts;
	case SPREAD_FEW:
		return case_between(seed, 0, 1) * (experts - 1);
	default:
		return case_between(seed, 0, experts - 1);
	}
}

struct router_shape {
	int64_t rows, experts, top, pad;
	enum rh_dtype dtype;
	enum rh_router_softmax softmax;
	double sharpness; /* of the logits */
};

/* The same with sigmoids in place of the softmax. */
struct sigmoid_shape {
	struct router_shape as;
	int64_t groups, best_groups;
};

static inline void router_logits(struct op_case *c, const struct router_shape *s)
{
	struct rh_view logits = case_operand(c, RH_ROUTER_LOGITS, s->dtype, s->rows, s->experts, s->pad, FILL_RANDOM);
	for (int64_t r = 0; r < s->rows; r++)
		for (int64_t e = 0; e < s->experts; e++)
			case_put(logits, r, e, s->sharpness * case_get(logits, r, e));
	if (s->rows > 2) /* ties */
		for (int64_t e = 0; e < s->experts; e++)
			case_put(logits, 1, e, (double)(e % 3) / 4);
}

/* Draws a row again until its sigmoids with their biases are so far apart, or equal, that rounding a sigmoid changes no choice. */
static inline void part_choices(struct op_case *c, const struct router_shape *s)
{
	struct rh_view logits = c->op.operand[RH_ROUTER_LOGITS], bias = c->op.operand[RH_ROUTER_BIAS];
	double sum[RH_ROUTER_MAX_EXPERTS];
	for (int64_t r = 0; r < s->rows; r++)
		for (int again = 1; again;) {
			again = 0;
			for (int64_t e = 0; e < s->experts; e++) {
				sum[e] = 1 / (1 + exp(-case_get(logits, r, e)));
				for (int64_t p = 0; bias.data && p < bias.rows; p++)
					sum[e] += case_get(bias, p, e);
				for (int64_t other = 0; other < e; other++)
					again |= sum[other] != sum[e] && fabs(sum[other] - sum[e]) < 0x1p-20;
			}
			for (int64_t e = 0; again && e < s->experts; e++)
				case_put(logits, r, e, s->sharpness * (2 * (double)check_uniform(c->seed) - 1));
		}
}

/* Weights and shares are within 1; the sum of up to 1024 powers is off by 2^-20 of itself at most, each power by 2^-22. */
static inline struct op_case router_case(const struct router_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ROUTER};
	c.op.router.softmax = s->softmax;
	router_logits(&c, s);
	case_operand(&c, RH_ROUTER_INDEX, RH_I32, s->rows, s->top, s->pad, FILL_NONE);
	case_operand(&c, RH_ROUTER_WEIGHT, RH_F32, s->rows, s->top, s->pad, FILL_POISON);
	if (s->rows % 3)
		case_operand(&c, RH_ROUTER_LOAD, RH_F32, s->rows, 2 * s->experts, s->pad / 2, FILL_POISON);
	if (s->rows % 5)
		case_operand(&c, RH_ROUTER_SCALE, s->experts % 2 ? RH_F32 : RH_BF16, 1, s->experts, s->pad, FILL_RANDOM);
	c.tolerance[RH_ROUTER_WEIGHT] = c.tolerance[RH_ROUTER_LOAD] = 0x1p-20;
	return c;
}

/* With and without a bias, in one part and in three. Weights are within the factor. */
static inline struct op_case router_sigmoid_case(const struct sigmoid_shape *shape, uint64_t *seed)
{
	const struct router_shape *s = &shape->as;
	struct op_case c = router_case(s, seed);
	c.op.router.sigmoid = 1;
	c.op.router.factor = s->rows % 2 ? 1.8f : 0;
	c.op.router.groups = shape->groups;
	c.op.router.best_groups = shape->best_groups;
	c.op.operand[RH_ROUTER_LOAD] = (struct rh_view){0};
	if (s->rows % 4)
		case_operand(&c, RH_ROUTER_BIAS, s->experts % 2 ? RH_F32 : RH_BF16, s->rows % 2 ? 3 : 1, s->experts, s->pad, FILL_RANDOM);
	part_choices(&c, s);
	c.tolerance[RH_ROUTER_WEIGHT] = 0x1p-19;
	return c;
}

/* Rows without a best, or with too few numbers. */
static inline struct op_case router_unruly_case(uint64_t *seed)
{
	struct router_shape s = {4, 9, 4, 0, RH_F32, RH_ROUTER_OVER_ALL, 1};
	struct op_case c = router_case(&s, seed);
	for (int64_t e = 0; e < 9; e++) {
		case_put(c.op.operand[RH_ROUTER_LOGITS], 0, e, (double)NAN);
		case_put(c.op.operand[RH_ROUTER_LOGITS], 1, e, e == 5 ? 1 : -(double)INFINITY);
		case_put(c.op.operand[RH_ROUTER_LOGITS], 2, e, e % 2 ? (double)INFINITY : (double)NAN);
	}
	return c;
}

/* A permutation of rows * top rows. */
static inline void fill_place(struct rh_view place, uint64_t *seed)
{
	int64_t pairs = place.rows * place.cols;
	for (int64_t p = 0; p < pairs; p++)
		case_put(place, p / place.cols, p % place.cols, (double)p);
	for (int64_t p = pairs; p > 1; p--) {
		int64_t q = case_between(seed, 0, p - 1), last = p - 1;
		double kept = case_get(place, last / place.cols, last % place.cols);
		case_put(place, last / place.cols, last % place.cols, case_get(place, q / place.cols, q % place.cols));
		case_put(place, q / place.cols, q % place.cols, kept);
	}
}

/* dot is within 1, of at most 32 experts: its sum is off by 2^-19 and less, as is the weight that it is multiplied by. Of counts within 1
 * the mean is off by 2^-19 and less. dlogits of another dtype than the logits for every second row count. */
static inline struct op_case router_backward_of(struct op_case f, const struct router_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ROUTER_BACKWARD};
	rh_op_oracle(&f.op);
	c.op.router = f.op.router;
	case_take(&c, RH_ROUTER_BACKWARD_LOGITS, &f, RH_ROUTER_LOGITS);
	case_take(&c, RH_ROUTER_BACKWARD_INDEX, &f, RH_ROUTER_INDEX);
	case_take(&c, RH_ROUTER_BACKWARD_WEIGHT, &f, RH_ROUTER_WEIGHT);
	if (f.op.operand[RH_ROUTER_SCALE].data) {
		case_take(&c, RH_ROUTER_BACKWARD_SCALE, &f, RH_ROUTER_SCALE);
		case_put(c.op.operand[RH_ROUTER_BACKWARD_SCALE], 0, s->experts / 2, 0);
		for (int64_t e = 0; e < s->experts; e++) /* so that what is divided by them stays small */
			if (e != s->experts / 2)
				case_put(c.op.operand[RH_ROUTER_BACKWARD_SCALE], 0, e, e % 2 ? -0.75 : 1.5);
		case_operand(&c, RH_ROUTER_BACKWARD_DSCALE, RH_F32, s->rows, s->experts, s->pad / 2, FILL_POISON);
		c.tolerance[RH_ROUTER_BACKWARD_DSCALE] = 0x1p-18;
	}
	case_free(&f);
	fill_place(case_operand(&c, RH_ROUTER_BACKWARD_PLACE, RH_I32, s->rows, s->top, s->pad, FILL_NONE), seed);
	case_operand(&c, RH_ROUTER_BACKWARD_DOT, RH_F32, s->rows * s->top, 1, s->pad / 2, FILL_RANDOM);
	if (s->rows % 3)
		case_operand(&c, RH_ROUTER_BACKWARD_MORE, RH_F32, s->rows, s->experts, s->pad, FILL_RANDOM);
	if (s->rows % 4 && !c.op.router.sigmoid)
		case_operand(&c, RH_ROUTER_BACKWARD_COUNT, RH_F32, 1, s->experts, s->pad, FILL_RANDOM);
	c.op.router.balance = 1.5f;
	case_operand(&c, RH_ROUTER_BACKWARD_DLOGITS, s->rows % 2 ? s->dtype : RH_F32, s->rows, s->experts, s->pad / 2, FILL_POISON);
	c.tolerance[RH_ROUTER_BACKWARD_DLOGITS] = 0x1p-17;
	return c;
}

static inline struct op_case router_backward_case(const struct router_shape *s, uint64_t *seed)
{
	return router_backward_of(router_case(s, seed), s, seed);
}

static inline struct op_case router_sigmoid_backward_case(const struct sigmoid_shape *s, uint64_t *seed)
{
	return router_backward_of(router_sigmoid_case(s, seed), &s->as, seed);
}

struct permute_shape {
	int64_t rows, experts, top, cols, pad;
	enum rh_dtype dtype;
	enum moe_spread spread;
};

static inline struct op_case permute_case(const struct permute_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_PERMUTE};
	struct rh_view index = case_operand(&c, RH_PERMUTE_INDEX, RH_I32, s->rows, s->top, s->pad, FILL_NONE);
	for (int64_t p = 0; p < s->rows * s->top; p++)
		case_put(index, p / s->top, p % s->top, (double)moe_expert(s->spread, s->experts, p, seed));
	case_operand(&c, RH_PERMUTE_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_PERMUTE_START, RH_I32, s->experts + 1, 1, s->pad, FILL_NONE);
	case_operand(&c, RH_PERMUTE_PLACE, RH_I32, s->rows, s->top, s->pad / 2, FILL_NONE);
	case_operand(&c, RH_PERMUTE_Y, s->dtype, s->rows * s->top, s->cols, s->pad, FILL_POISON);
	return c;
}

/* Sums of at most 33 terms within 8: 2^-21 each. `variant` picks the optional operands. */
static inline struct op_case unpermute_case(const struct permute_shape *s, int variant, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_UNPERMUTE};
	case_operand(&c, RH_UNPERMUTE_X, s->dtype, s->rows * s->top, s->cols, s->pad, FILL_RANDOM);
	fill_place(case_operand(&c, RH_UNPERMUTE_PLACE, RH_I32, s->rows, s->top, s->pad, FILL_NONE), seed);
	if (variant % 3)
		case_operand(&c, RH_UNPERMUTE_WEIGHT, RH_F32, s->rows, s->top, s->pad, FILL_RANDOM);
	if (variant % 4)
		case_operand(&c, RH_UNPERMUTE_ADD, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (variant % 4 == 2)
		case_alias(&c, RH_UNPERMUTE_Y, RH_UNPERMUTE_ADD);
	else
		case_operand(&c, RH_UNPERMUTE_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	c.tolerance[RH_UNPERMUTE_Y] = 0x1p-17;
	return c;
}

static inline struct op_case unpermute_backward_case(const struct permute_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_UNPERMUTE_BACKWARD};
	case_operand(&c, RH_UNPERMUTE_BACKWARD_DY, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	fill_place(case_operand(&c, RH_UNPERMUTE_BACKWARD_PLACE, RH_I32, s->rows, s->top, s->pad, FILL_NONE), seed);
	case_operand(&c, RH_UNPERMUTE_BACKWARD_WEIGHT, RH_F32, s->rows, s->top, s->pad, FILL_RANDOM);
	case_operand(&c, RH_UNPERMUTE_BACKWARD_DX, s->dtype, s->rows * s->top, s->cols, s->pad, FILL_POISON);
	return c;
}

/* m is the columns of a in GROUPED_GEMM_GRADIENT, k in GROUPED_GEMM. */
struct grouped_shape {
	int64_t experts, rows, k, n, pad;
	enum rh_dtype dtype;
	enum moe_spread spread;
	int64_t lead; /* rows before the first expert's, and after the last's */
};

static inline void grouped_start(struct op_case *c, int operand, const struct grouped_shape *s, uint64_t *seed)
{
	struct rh_view start = case_operand(c, operand, RH_I32, s->experts + 1, 1, s->pad, FILL_NONE);
	for (int64_t e = 0; e <= s->experts; e++)
		case_put(start, e, 0, (double)s->lead);
	for (int64_t p = 0; p < s->rows; p++)
		for (int64_t e = moe_expert(s->spread, s->experts, p, seed) + 1; e <= s->experts; e++)
			case_put(start, e, 0, case_get(start, e, 0) + 1);
}

enum { GROUPED_TRANS_B = 1, GROUPED_C = 2, GROUPED_IN_PLACE = 4, GROUPED_BIAS = 8, GROUPED_F32 = 16, GROUPED_SCALED = 32 };

/* Sums of up to 200 products, partial sums within 16: errors of 2^-21 each, of either sign. */
static inline struct op_case grouped_gemm_case(const struct grouped_shape *s, int flags, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_GROUPED_GEMM};
	int64_t rows = s->rows + 2 * s->lead;
	enum rh_dtype out = flags & GROUPED_F32 ? RH_F32 : s->dtype;
	c.op.grouped_gemm.trans_b = !!(flags & GROUPED_TRANS_B);
	c.op.grouped_gemm.alpha = flags & GROUPED_SCALED ? -0.37f : 1;
	case_operand(&c, RH_GROUPED_GEMM_A, s->dtype, rows, s->k, s->pad, FILL_RANDOM);
	if (flags & GROUPED_TRANS_B)
		case_operand(&c, RH_GROUPED_GEMM_B, s->dtype, s->experts * s->n, s->k, s->pad, FILL_RANDOM);
	else
		case_operand(&c, RH_GROUPED_GEMM_B, s->dtype, s->experts * s->k, s->n, s->pad, FILL_RANDOM);
	grouped_start(&c, RH_GROUPED_GEMM_START, s, seed);
	if (flags & GROUPED_BIAS)
		case_operand(&c, RH_GROUPED_GEMM_BIAS, s->dtype, s->experts, s->n, s->pad, FILL_RANDOM);
	case_operand(&c, RH_GROUPED_GEMM_D, out, rows, s->n, s->pad, flags & GROUPED_IN_PLACE ? FILL_RANDOM : FILL_POISON);
	if (flags & GROUPED_IN_PLACE)
		case_alias(&c, RH_GROUPED_GEMM_C, RH_GROUPED_GEMM_D);
	else if (flags & GROUPED_C)
		case_operand(&c, RH_GROUPED_GEMM_C, out, rows, s->n, s->pad / 2, FILL_RANDOM);
	c.tolerance[RH_GROUPED_GEMM_D] = 0x1p-17;
	return c;
}

/* As above, of up to 400 rows an expert, and a sum that is in d already. */
static inline struct op_case grouped_gradient_case(const struct grouped_shape *s, int flags, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_GROUPED_GEMM_GRADIENT};
	int64_t rows = s->rows + 2 * s->lead;
	c.op.grouped_gemm.alpha = flags & GROUPED_SCALED ? -0.37f : 1;
	case_operand(&c, RH_GROUPED_GEMM_GRADIENT_A, s->dtype, rows, s->k, s->pad, FILL_RANDOM);
	case_operand(&c, RH_GROUPED_GEMM_GRADIENT_B, s->dtype, rows, s->n, s->pad, FILL_RANDOM);
	grouped_start(&c, RH_GROUPED_GEMM_GRADIENT_START, s, seed);
	case_operand(&c, RH_GROUPED_GEMM_GRADIENT_D, RH_F32, s->experts * s->k, s->n, s->pad, FILL_RANDOM);
	c.tolerance[RH_GROUPED_GEMM_GRADIENT_D] = 0x1p-16;
	return c;
}

static inline struct op_case grouped_column_case(const struct grouped_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_GROUPED_COLUMN_SUM};
	case_operand(&c, RH_GROUPED_COLUMN_SUM_X, s->dtype, s->rows + 2 * s->lead, s->n, s->pad, FILL_RANDOM);
	grouped_start(&c, RH_GROUPED_COLUMN_SUM_START, s, seed);
	case_operand(&c, RH_GROUPED_COLUMN_SUM_Y, RH_F32, s->experts, s->n, s->pad, FILL_RANDOM);
	c.tolerance[RH_GROUPED_COLUMN_SUM_Y] = 0x1p-17;
	return c;
}

#endif
