/* Cases of ops on rows, for the CPU's kernels and CUDA's. */
#ifndef RH_TESTS_DEVICE_ROW_CASE_H
#define RH_TESTS_DEVICE_ROW_CASE_H

#include "op_case.h"

static inline struct op_case dropout_case(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DROPOUT};
	c.op.dropout.seed = (uint64_t)check_random(seed) << 32 | check_random(seed);
	c.op.dropout.step = check_random(seed);
	c.op.dropout.micro_batch = check_random(seed);
	c.op.dropout.site = check_random(seed);
	c.op.dropout.first_row = s->index % 2 ? 1 + check_random(seed) % 1000000 : 0;
	c.op.dropout.p = s->index % 5 ? (float)(check_random(seed) % 100) / 100 : 0;
	c.op.dropout.noise = s->index % 5 == 0 && s->index / 5 % 4 < 2 ? 0.1f : 0; /* of even and odd indices, which choose dtypes */
	case_operand(&c, RH_DROPOUT_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 2)
		case_operand(&c, RH_DROPOUT_ADD, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 3 == 0)
		case_alias(&c, RH_DROPOUT_Y, RH_DROPOUT_X);
	else if (s->index % 3 == 1 && s->index % 2)
		case_alias(&c, RH_DROPOUT_Y, RH_DROPOUT_ADD);
	else
		case_operand(&c, RH_DROPOUT_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	c.tolerance[RH_DROPOUT_Y] = 0x1p-16; /* x / (1 - p) is within 100, one unit of which is 2^-17; add may cancel it */
	return c;
}

static inline struct op_case scatter_rows_case(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_SCATTER_ROWS};
	int64_t rows = s->rows + case_between(seed, 0, 300);
	case_operand(&c, RH_SCATTER_ROWS_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	struct rh_view index = case_operand(&c, RH_SCATTER_ROWS_INDEX, RH_I32, s->rows, 1, 0, FILL_NONE);
	for (int64_t i = 0, at = 0; i < s->rows; i++, at++) { /* ascending, and room for those to come */
		at += case_between(seed, 0, (rows - at - (s->rows - i)) / (s->rows - i));
		case_put(index, i, 0, (double)at);
	}
	case_operand(&c, RH_SCATTER_ROWS_Y, s->dtype, rows, s->cols, s->pad, FILL_POISON);
	return c;
}

/* Lengths of heads are a few of the shape's columns, of whole chunks where these are, values with and without zeros behind them; one of the
 * two ops. */
static inline struct op_case latent_case(const struct case_shape *s, int is_backward, uint64_t *seed)
{
	int64_t heads = 1 + s->index % 3, own = s->cols, shared = s->cols % 8 ? 1 + s->index % 5 : 8,
	        value = s->cols + s->index % 2 * shared;
	int64_t wide = value + (s->index % 4 < 2 ? 0 : shared);
	const int64_t cols[4] = {heads * (own + value), shared, heads * (own + shared), heads * wide};
	static const int of_backward[4] = {RH_LATENT_BACKWARD_DKV, RH_LATENT_BACKWARD_DSHARED, RH_LATENT_BACKWARD_DK,
	                                   RH_LATENT_BACKWARD_DV};
	struct op_case c = {.seed = seed, .op = {.kind = is_backward ? RH_OP_LATENT_BACKWARD : RH_OP_LATENT, .latent = {heads, value}}};
	for (int i = 0; i < 4; i++)
		case_operand(&c, is_backward ? of_backward[i] : i, s->dtype, s->rows, cols[i], s->pad,
		             (i < 2) == is_backward ? FILL_POISON : FILL_RANDOM);
	if (is_backward)
		c.tolerance[RH_LATENT_BACKWARD_DSHARED] = 0x1p-22; /* sums of three within 3 */
	return c;
}

#endif
