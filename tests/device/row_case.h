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

#endif
