/* GLU, ACTIVATION, LAYERNORM and their backwards as cases: `index` picks optionals and aliases. */
#ifndef RH_TESTS_DEVICE_ACTIVATION_CASE_H
#define RH_TESTS_DEVICE_ACTIVATION_CASE_H

#include "op_case.h"

/* Some gates far out, where the sigmoid is 0 or 1 in fp32 (and, of gpt-oss's, ups: both are beyond their limits). */
static inline void spread_gates(struct rh_view gu, int64_t cols)
{
	for (int64_t t = 0; t < gu.rows; t++)
		for (int64_t i = t % 3; i < cols; i += 3)
			case_put(gu, t, i, case_get(gu, t, i) * (i % 2 ? 10 : 200));
}

/* With gates up to 200: SiLU is all relative, but that the sigmoid of -88 and below may be flushed to zero. GELU's e^(-x^2/2) and
 * gelu_tanh's sigmoid have arguments that are off by 2^-24 of themselves: where that is more than a unit of the result the result is below
 * 2^-3. */
static inline double curve_tolerance(enum rh_activation act)
{
	return act == RH_ACT_SILU ? 1e-30 : 0x1p-24;
}

static inline struct op_case glu_case(enum rh_activation act, const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_GLU, .activation = {act}}};
	spread_gates(case_operand(&c, RH_GLU_GU, s->dtype, s->rows, 2 * s->cols, s->pad, FILL_RANDOM), s->cols);
	case_operand(&c, RH_GLU_A, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	if (s->index % 3)
		case_operand(&c, RH_GLU_AMAX, RH_F32, s->rows, rh_glu_parts(s->cols), s->pad, FILL_POISON);
	c.tolerance[RH_GLU_A] = curve_tolerance(act);
	return c;
}

static inline struct op_case glu_backward_case(enum rh_activation act, const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_GLU_BACKWARD, .activation = {act}}};
	spread_gates(case_operand(&c, RH_GLU_BACKWARD_GU, s->dtype, s->rows, 2 * s->cols, s->pad, FILL_RANDOM), s->cols);
	case_operand(&c, RH_GLU_BACKWARD_DA, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 2)
		case_alias(&c, RH_GLU_BACKWARD_DGU, RH_GLU_BACKWARD_GU);
	else
		case_operand(&c, RH_GLU_BACKWARD_DGU, s->dtype, s->rows, 2 * s->cols, s->pad, FILL_POISON);
	if (s->index % 3 == 1)
		case_alias(&c, RH_GLU_BACKWARD_A, RH_GLU_BACKWARD_DA);
	else if (s->index % 3 == 2)
		case_operand(&c, RH_GLU_BACKWARD_A, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	/* The slope passes through zero (SiLU's 1 + gate (1 - sigmoid) at gate -1.28), and 1 - sigmoid is absolute to 2^-24: with gates up
	 * to 200 in which that difference still counts below 20. gpt-oss's ups are 8 at most where others' are 1, its gates 7. */
	c.tolerance[RH_GLU_BACKWARD_DGU] = 0x1p-19;
	c.tolerance[RH_GLU_BACKWARD_A] = curve_tolerance(act);
	/* a row's largest |da a| are some hundreds (8 * 7 for gpt-oss), up to 576 of them in sums of either sign */
	if (s->index % 4 > 1)
		case_operand(&c, RH_GLU_BACKWARD_DOT, RH_F32, s->rows, 1, s->pad, FILL_POISON);
	c.tolerance[RH_GLU_BACKWARD_DOT] = 0x1p-9;
	if (s->index % 5)
		case_operand(&c, RH_GLU_BACKWARD_DGU_AMAX, RH_F32, s->rows, rh_glu_parts(s->cols), s->pad, FILL_POISON);
	if (s->index % 5 != 1 && s->index % 3)
		case_operand(&c, RH_GLU_BACKWARD_A_AMAX, RH_F32, s->rows, rh_glu_parts(s->cols), s->pad, FILL_POISON);
	return c;
}

static inline struct op_case activation_case(enum rh_activation act, const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_ACTIVATION, .activation = {act}}};
	if (act == RH_ACT_TANH && s->index % 3 == 1)
		c.op.activation.cap = 2.5f;
	spread_gates(case_operand(&c, RH_ACTIVATION_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM), s->cols);
	if (s->index % 2)
		case_alias(&c, RH_ACTIVATION_Y, RH_ACTIVATION_X);
	else
		case_operand(&c, RH_ACTIVATION_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	c.tolerance[RH_ACTIVATION_Y] = curve_tolerance(act);
	return c;
}

static inline struct op_case activation_backward_case(enum rh_activation act, const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_ACTIVATION_BACKWARD, .activation = {act}}};
	spread_gates(case_operand(&c, RH_ACTIVATION_BACKWARD_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM), s->cols);
	case_operand(&c, RH_ACTIVATION_BACKWARD_DY, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 3 == 0)
		case_alias(&c, RH_ACTIVATION_BACKWARD_DX, RH_ACTIVATION_BACKWARD_DY);
	else if (s->index % 3 == 1)
		case_alias(&c, RH_ACTIVATION_BACKWARD_DX, RH_ACTIVATION_BACKWARD_X);
	else
		case_operand(&c, RH_ACTIVATION_BACKWARD_DX, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	if (s->index % 3 && s->index % 4 == 1)
		case_alias(&c, RH_ACTIVATION_BACKWARD_Y, RH_ACTIVATION_BACKWARD_DY);
	else if (s->index % 4 > 1)
		case_operand(&c, RH_ACTIVATION_BACKWARD_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	c.tolerance[RH_ACTIVATION_BACKWARD_DX] = 0x1p-19;
	c.tolerance[RH_ACTIVATION_BACKWARD_Y] = curve_tolerance(act);
	return c;
}

/* x has a mean of 3: a sum of squares less the mean's would lose four bits. xhat is at most sqrt(n), of random x 2; the mean is off by some
 * 2^-24 of 3 whatever n is, which rstd (up to 3; 316 where n is 1 and all is epsilon) makes an error of xhat. */
static inline struct op_case layernorm_case(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_LAYERNORM, .layernorm = {1e-5f}}};
	struct rh_view x = case_operand(&c, RH_LAYERNORM_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	for (int64_t t = 0; t < x.rows; t++)
		for (int64_t i = 0; i < x.cols; i++)
			case_put(x, t, i, case_get(x, t, i) + 3);
	case_operand(&c, RH_LAYERNORM_W, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	if (s->index % 2)
		case_operand(&c, RH_LAYERNORM_B, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	case_operand(&c, RH_LAYERNORM_STATS, RH_F32, s->rows, 2, s->pad, FILL_POISON);
	if (s->index % 3 == 0)
		case_alias(&c, RH_LAYERNORM_Y, RH_LAYERNORM_X);
	else
		case_operand(&c, RH_LAYERNORM_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	c.tolerance[RH_LAYERNORM_Y] = s->cols < 16 ? 0x1p-12 : 0x1p-18;
	c.tolerance[RH_LAYERNORM_STATS] = s->cols < 16 ? 0x1p-12 : 0x1p-18;
	return c;
}

static inline struct op_case layernorm_backward_case(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_LAYERNORM_BACKWARD}};
	case_operand(&c, RH_LAYERNORM_BACKWARD_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_LAYERNORM_BACKWARD_W, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	if (s->index % 2)
		case_operand(&c, RH_LAYERNORM_BACKWARD_B, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	struct rh_view stats = case_operand(&c, RH_LAYERNORM_BACKWARD_STATS, RH_F32, s->rows, 2, s->pad, FILL_RANDOM);
	for (int64_t t = 0; t < s->rows; t++)
		case_put(stats, t, 1, 1 + 0.5 * case_get(stats, t, 1));
	case_operand(&c, RH_LAYERNORM_BACKWARD_DY, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 2)
		case_operand(&c, RH_LAYERNORM_BACKWARD_ADD, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 3 == 0)
		case_alias(&c, RH_LAYERNORM_BACKWARD_DX, RH_LAYERNORM_BACKWARD_DY);
	else if (s->index % 3 == 1 && s->index % 2)
		case_alias(&c, RH_LAYERNORM_BACKWARD_DX, RH_LAYERNORM_BACKWARD_ADD);
	else
		case_operand(&c, RH_LAYERNORM_BACKWARD_DX, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	if (s->index % 4 < 3)
		case_operand(&c, RH_LAYERNORM_BACKWARD_DW, RH_F32, 1, s->cols, 0, FILL_RANDOM);
	if (s->index % 5 < 3)
		case_operand(&c, RH_LAYERNORM_BACKWARD_DB, RH_F32, 1, s->cols, 0, FILL_RANDOM);
	if (s->index % 4 > 1)
		case_operand(&c, RH_LAYERNORM_BACKWARD_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	/* dx: a difference of terms within 5, in few roundings. dw and db: up to 140 terms within 3. y: xhat may nearly be -b / w. */
	c.tolerance[RH_LAYERNORM_BACKWARD_DX] = 0x1p-18;
	c.tolerance[RH_LAYERNORM_BACKWARD_DW] = c.tolerance[RH_LAYERNORM_BACKWARD_DB] = 0x1p-17;
	c.tolerance[RH_LAYERNORM_BACKWARD_Y] = 0x1p-21;
	return c;
}

#endif
