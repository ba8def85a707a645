#include "kernel_case.h"
#include "preference_case.h"
#include "row_case.h"

#include "cuda/kernels.h"

/* Around a chunk of 8, a warp of chunks, and two. */
static const int lengths[] = {1, 7, 8, 9, 32, 65, 255, 256, 520};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static void fill_index(struct rh_view index, int64_t below, uint64_t *seed)
{
	for (int64_t t = 0; t < index.rows; t++)
		case_put(index, t, 0, (double)case_between(seed, 0, below - 1));
}

static void check_fill(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_FILL};
	case_operand(&c, RH_FILL_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	kernel_check(&c, cuda_fill, seed);
}

static void test_fill_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_fill);
}

static void check_cast(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_CAST};
	struct rh_view x = case_operand(&c, RH_CAST_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->rows > 2)
		case_put(x, 1, 0, (double)NAN);
	if (s->index % 3 == 0)
		case_alias(&c, RH_CAST_Y, RH_CAST_X);
	else
		case_operand(&c, RH_CAST_Y, s->index % 3 == 1 ? RH_F32 : RH_BF16, s->rows, s->cols, s->pad / 2, FILL_POISON);
	kernel_check(&c, cuda_cast, seed);
}

static void test_cast_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_cast);
}

static void check_add(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ADD};
	case_operand(&c, RH_ADD_A, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 5)
		case_operand(&c, RH_ADD_B, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 3 == 1)
		case_operand(&c, RH_ADD_SCALE, s->dtype, 1, 1, 0, FILL_RANDOM);
	if (s->index % 3 < 2)
		case_alias(&c, RH_ADD_Y, s->index % 3 || s->index % 5 == 0 ? RH_ADD_A : RH_ADD_B);
	else
		case_operand(&c, RH_ADD_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	kernel_check(&c, cuda_add, seed);
}

static void test_add_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_add);
}

static void check_column_sum(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_COLUMN_SUM};
	case_operand(&c, RH_COLUMN_SUM_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_COLUMN_SUM_Y, RH_F32, 1, s->cols, s->pad, FILL_RANDOM);
	c.tolerance[RH_COLUMN_SUM_Y] = 0x1p-18; /* up to 140 terms, partial sums within 16: errors of 2^-21 each, of either sign */
	kernel_check(&c, cuda_column_sum, seed);
}

static void test_column_sum_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_column_sum);
}

static void check_embedding(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_EMBEDDING, .op.embedding.scale = s->index % 2 ? 0 : 1.375f};
	fill_index(case_operand(&c, RH_EMBEDDING_IDS, RH_I32, s->rows, 1, s->pad, FILL_NONE), 37, seed);
	case_operand(&c, RH_EMBEDDING_TABLE, s->dtype, 37, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_EMBEDDING_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	kernel_check(&c, cuda_embedding, seed);
}

static void test_embedding_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_embedding);
}

static void check_embedding_backward(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_EMBEDDING_BACKWARD, .op.embedding.scale = s->index % 2 ? 0 : 1.375f};
	fill_index(case_operand(&c, RH_EMBEDDING_BACKWARD_IDS, RH_I32, s->rows, 1, 0, FILL_NONE), 7, seed);
	case_operand(&c, RH_EMBEDDING_BACKWARD_DY, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_EMBEDDING_BACKWARD_DTABLE, RH_F32, 7, s->cols, s->pad, FILL_RANDOM);
	c.tolerance[RH_EMBEDDING_BACKWARD_DTABLE] = 0x1p-20; /* each row that is scaled is rounded; rows are few and below 2 */
	kernel_check(&c, cuda_embedding_backward, seed);     /* the oracle rounds after each row too */
}

static void test_embedding_backward_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_embedding_backward);
}

/* More ids than a block looks at in one go, some of which come again only behind that. */
static void test_embedding_backward_of_many_tokens_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case c = {.seed = &seed, .op.kind = RH_OP_EMBEDDING_BACKWARD};
	fill_index(case_operand(&c, RH_EMBEDDING_BACKWARD_IDS, RH_I32, 2500, 1, 0, FILL_NONE), 900, &seed);
	case_operand(&c, RH_EMBEDDING_BACKWARD_DY, RH_BF16, 2500, 24, 0, FILL_RANDOM);
	case_operand(&c, RH_EMBEDDING_BACKWARD_DTABLE, RH_F32, 900, 24, 0, FILL_RANDOM);
	kernel_check(&c, cuda_embedding_backward, &seed);
}

static void check_gather(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_GATHER_ROWS};
	case_operand(&c, RH_GATHER_ROWS_X, s->dtype, 29, s->cols, s->pad, FILL_RANDOM);
	fill_index(case_operand(&c, RH_GATHER_ROWS_INDEX, RH_I32, s->rows, 1, 0, FILL_NONE), 29, seed);
	case_operand(&c, RH_GATHER_ROWS_Y, s->dtype, s->rows, s->cols, s->pad / 2, FILL_POISON);
	kernel_check(&c, cuda_gather_rows, seed);
}

static void test_gather_rows_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_gather);
}

static void check_scatter(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = scatter_rows_case(s, seed);
	kernel_check(&c, cuda_scatter_rows, seed);
}

static void test_scatter_rows_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_scatter);
}

static void check_preference(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = preference_case(s, (enum rh_preference_loss)(s->index % RH_PREFERENCE_LOSSES), seed);
	kernel_check(&c, cuda_preference, seed);
}

static void test_preference_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_preference);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_fill_equals_the_oracle),
	        cmocka_unit_test(test_cast_equals_the_oracle),
	        cmocka_unit_test(test_add_equals_the_oracle),
	        cmocka_unit_test(test_column_sum_equals_the_oracle),
	        cmocka_unit_test(test_embedding_equals_the_oracle),
	        cmocka_unit_test(test_embedding_backward_equals_the_oracle),
	        cmocka_unit_test(test_embedding_backward_of_many_tokens_equals_the_oracle),
	        cmocka_unit_test(test_gather_rows_equals_the_oracle),
	        cmocka_unit_test(test_scatter_rows_equals_the_oracle),
	        cmocka_unit_test(test_preference_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
