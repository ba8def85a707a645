#include "kernel_case.h"
#include "row_case.h"

#include "cuda/kernels.h"

/* Around a chunk of 8, a warp of chunks, and two. */
static const int lengths[] = {1, 7, 8, 9, 32, 65, 255, 256, 520};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static void check_rope_table(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {
	        .seed = seed, .op.kind = RH_OP_ROPE_TABLE, .op.rope_table = {.scale = 1.25f, .growth = s->rows % 2 ? 0.1f : 0, .step = 8}};
	int64_t half = s->cols < RH_ROPE_MAX_HALF ? s->cols : RH_ROPE_MAX_HALF;
	struct rh_view position = case_operand(&c, RH_ROPE_TABLE_POSITION, RH_I32, s->rows, 1, s->pad, FILL_NONE);
	for (int64_t t = 0; t < s->rows; t++)
		case_put(position, t, 0, (double)case_between(seed, 0, 1000000));
	for (int64_t i = 0; i < half; i++)
		c.op.rope_table.inv_freq[i] = powf(10000, -(float)i / (float)half);
	case_operand(&c, RH_ROPE_TABLE_TABLE, RH_F32, s->rows, 2 * half, s->pad, FILL_POISON);
	/* one unit of values near 1, as the angles are equal; those that have grown are up to 3, by a logarithm */
	c.tolerance[RH_ROPE_TABLE_TABLE] = s->rows % 2 ? 0x1p-20 : 0x1p-23;
	kernel_check(&c, cuda_rope_table, seed);
}

static void test_rope_table_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_rope_table);
}

static void check_rope(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ROPE, .op.rope = {1 + s->index % 3, s->index % 2}};
	case_operand(&c, RH_ROPE_X, s->dtype, s->rows, c.op.rope.heads * (2 * s->cols + (s->index % 4 < 2 ? 0 : s->index % 5)), s->pad,
	             FILL_RANDOM);
	case_operand(&c, RH_ROPE_TABLE_IN, RH_F32, s->rows, 2 * s->cols, s->pad, FILL_RANDOM);
	if (s->index % 8 >= 6) /* of a wider head the elements of a pair lie farther apart */
		c.op.rope.apart = s->cols + s->index % 5;
	else if (s->index % 4 >= 2)
		c.op.rope.first = s->index % 5 / 2;
	c.op.rope.adjacent = s->index % 8 == 2 || s->index % 8 == 5;
	c.tolerance[RH_ROPE_X] = 0x1p-22; /* two products within 1 */
	if (c.op.operand[RH_ROPE_X].cols == 2 * s->cols * c.op.rope.heads && rh_rope_has_amax(2 * s->cols) && !c.op.rope.adjacent)
		case_operand(&c, RH_ROPE_AMAX, RH_F32, s->rows, c.op.rope.heads, s->pad, FILL_POISON);
	kernel_check(&c, cuda_rope, seed);
}

static void test_rope_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_rope);
}

static void check_latent(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = latent_case(s, 0, seed), b = latent_case(s, 1, seed);
	kernel_check(&c, cuda_latent, seed);
	kernel_check(&b, cuda_latent_backward, seed);
}

static void test_latent_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_latent);
}

static void check_dropout(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = dropout_case(s, seed);
	kernel_check(&c, cuda_dropout, seed);
}

static void test_dropout_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_dropout);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rope_table_equals_the_oracle),
	        cmocka_unit_test(test_rope_equals_the_oracle),
	        cmocka_unit_test(test_latent_equals_the_oracle),
	        cmocka_unit_test(test_dropout_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
