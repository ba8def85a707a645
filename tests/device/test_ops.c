#include "row_case.h"

#include "core/philox.h"

/* Every op is tried on lengths around the vectors' and the tasks' sizes, in both dtypes, packed and with padded rows. */
static const int lengths[] = {1, 3, 4, 15, 16, 17, 64, 67, 130, 576, 1031};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static void each_shape(void (*check)(const struct case_shape *shape, uint64_t *seed))
{
	uint64_t seed = check_seed();
	int index = 0;
	for (int i = 0; i < LENGTHS; i++) {
		for (int k = 0; k < 8; k++) {
			int64_t rows = k % 4 == 3 ? case_between(&seed, 100, 140) : case_between(&seed, 0, 9);
			struct case_shape shape = {k & 1 ? RH_BF16 : RH_F32, rows, lengths[i], k & 2 ? case_between(&seed, 1, 9) : 0,
			                           index++};
			check(&shape, &seed);
		}
	}
}

static void check_fill(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_FILL};
	case_operand(&c, RH_FILL_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	case_check(&c);
}

static void test_fill_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_fill);
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
	case_check(&c);
}

static void test_cast_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_cast);
}

/* Every float whose low half is 0, 1, 0x7fff, 0x8000, 0x8001 or 0xffff: ties, their neighbours, infinities, NaNs. */
static void test_cast_rounds_to_nearest_even(void **state)
{
	(void)state;
	const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
	static float x[65536];
	static uint16_t y[65536];
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
		for (int k = 0; k < 6; k++) {
			struct op_case c = {.op.kind = RH_OP_CAST};
			for (uint32_t i = 0; i < 65536; i++)
				x[i] = rh_bits_f32(i << 16 | low[k]);
			c.op.operand[RH_CAST_X] = rh_view_of(x, RH_F32, 1, 65536);
			c.op.operand[RH_CAST_Y] = rh_view_of(y, RH_BF16, 1, 65536);
			case_run(&c, isa, 1);
			for (uint32_t i = 0; i < 65536; i++)
				assert_int_equal(y[i], rh_f32_to_bf16(x[i]));
		}
	}
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
	case_check(&c);
}

static void test_add_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_add);
}

static void check_column_sum(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_COLUMN_SUM};
	case_operand(&c, RH_COLUMN_SUM_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_COLUMN_SUM_Y, RH_F32, 1, s->cols, s->pad, FILL_RANDOM);
	c.tolerance[RH_COLUMN_SUM_Y] = 0x1p-18; /* up to 140 terms, partial sums within 16: errors of 2^-21 each, of either sign */
	case_check(&c);
}

static void test_column_sum_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_column_sum);
}

static void check_rmsnorm(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_RMSNORM, .op.rmsnorm = {s->index % 2 ? 3 : 1, 1e-5f, s->index % 3 ? 0 : 1}};
	int64_t wide = c.op.rmsnorm.groups * s->cols;
	case_operand(&c, RH_RMSNORM_X, s->dtype, s->rows, wide, s->pad, FILL_RANDOM);
	case_operand(&c, RH_RMSNORM_W, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	case_operand(&c, RH_RMSNORM_RSTD, RH_F32, s->rows, c.op.rmsnorm.groups, s->pad, FILL_POISON);
	if (s->index % 3 == 0)
		case_alias(&c, RH_RMSNORM_Y, RH_RMSNORM_X);
	else
		case_operand(&c, RH_RMSNORM_Y, s->dtype, s->rows, wide, s->pad, FILL_POISON);
	if (s->index % 4)
		case_operand(&c, RH_RMSNORM_AMAX, RH_F32, s->rows, c.op.rmsnorm.groups, s->pad, FILL_POISON);
	case_check(&c); /* a sum of squares has no cancellation: the relative tolerance is enough */
}

static void test_rmsnorm_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_rmsnorm);
}

static void check_rmsnorm_backward(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {
	        .seed = seed, .op.kind = RH_OP_RMSNORM_BACKWARD, .op.rmsnorm = {s->index % 5 ? 1 : 3, 1e-5f, s->index % 3 ? 0 : 1}};
	int64_t groups = c.op.rmsnorm.groups, wide = groups * s->cols;
	struct rh_view x = case_operand(&c, RH_RMSNORM_BACKWARD_X, s->dtype, s->rows, wide, s->pad, FILL_RANDOM);
	case_operand(&c, RH_RMSNORM_BACKWARD_W, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	struct rh_view rstd = case_operand(&c, RH_RMSNORM_BACKWARD_RSTD, RH_F32, s->rows, groups, s->pad, FILL_RANDOM);
	for (int64_t t = 0; t < s->rows; t++)
		for (int64_t g = 0; g < groups; g++)
			case_put(rstd, t, g, 1 + 0.5 * case_get(rstd, t, g));
	(void)x;
	case_operand(&c, RH_RMSNORM_BACKWARD_DY, s->dtype, s->rows, wide, s->pad, FILL_RANDOM);
	if (s->index % 2)
		case_operand(&c, RH_RMSNORM_BACKWARD_ADD, s->dtype, s->rows, wide, s->pad, FILL_RANDOM);
	if (s->index % 3 == 0)
		case_alias(&c, RH_RMSNORM_BACKWARD_DX, RH_RMSNORM_BACKWARD_DY);
	else if (s->index % 3 == 1 && s->index % 2)
		case_alias(&c, RH_RMSNORM_BACKWARD_DX, RH_RMSNORM_BACKWARD_ADD);
	else
		case_operand(&c, RH_RMSNORM_BACKWARD_DX, s->dtype, s->rows, wide, s->pad, FILL_POISON);
	if (s->index % 4 < 3)
		case_operand(&c, RH_RMSNORM_BACKWARD_DW, RH_F32, 1, s->cols, 0, FILL_RANDOM);
	if (s->index % 4 > 1)
		case_operand(&c, RH_RMSNORM_BACKWARD_Y, s->dtype, s->rows, wide, s->pad, FILL_POISON);
	if (s->index % 3)
		case_operand(&c, RH_RMSNORM_BACKWARD_DX_AMAX, RH_F32, s->rows, groups, s->pad, FILL_POISON);
	if (s->index % 8 > 1 && s->index % 4 > 1)
		case_operand(&c, RH_RMSNORM_BACKWARD_Y_AMAX, RH_F32, s->rows, groups, s->pad, FILL_POISON);
	/* dx: a difference of terms within 4, in few roundings. dw: up to 420 terms within 2. In bf16 the difference is rounded once,
	 * so a relative tolerance of the result does. */
	c.tolerance[RH_RMSNORM_BACKWARD_DX] = 0x1p-19;
	c.tolerance[RH_RMSNORM_BACKWARD_DW] = 0x1p-17;
	case_check(&c);
}

static void test_rmsnorm_backward_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_rmsnorm_backward);
}

static void check_rope_table(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ROPE_TABLE, .op.rope_table.scale = 1.25f};
	int64_t half = s->cols < RH_ROPE_MAX_HALF ? s->cols : RH_ROPE_MAX_HALF;
	struct rh_view position = case_operand(&c, RH_ROPE_TABLE_POSITION, RH_I32, s->rows, 1, s->pad, FILL_NONE);
	for (int64_t t = 0; t < s->rows; t++)
		case_put(position, t, 0, (double)case_between(seed, 0, 1000000));
	for (int64_t i = 0; i < half; i++)
		c.op.rope_table.inv_freq[i] = powf(10000, -(float)i / (float)half);
	case_operand(&c, RH_ROPE_TABLE_TABLE, RH_F32, s->rows, 2 * half, s->pad, FILL_POISON);
	c.tolerance[RH_ROPE_TABLE_TABLE] = 0x1p-23; /* one unit of values near 1; the angles are equal */
	case_check(&c);
}

static void test_rope_table_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_rope_table);
}

static void check_rope(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ROPE, .op.rope = {1 + s->index % 3, s->index % 2}};
	int64_t still = s->index % 4 < 2 ? 0 : s->index % 5; /* of each head's elements */
	case_operand(&c, RH_ROPE_X, s->dtype, s->rows, c.op.rope.heads * (2 * s->cols + still), s->pad, FILL_RANDOM);
	case_operand(&c, RH_ROPE_TABLE_IN, RH_F32, s->rows, 2 * s->cols, s->pad, FILL_RANDOM);
	if (s->index % 8 >= 6) /* of a wider head the elements of a pair lie farther apart */
		c.op.rope.apart = s->cols + s->index % 5;
	else /* what stays lies before it, too */
		c.op.rope.first = still / 2;
	c.op.rope.adjacent = s->index % 8 == 2 || s->index % 8 == 5;
	c.tolerance[RH_ROPE_X] = 0x1p-22; /* two products within 1 */
	if (c.op.operand[RH_ROPE_X].cols == 2 * s->cols * c.op.rope.heads && rh_rope_has_amax(2 * s->cols) && !c.op.rope.adjacent)
		case_operand(&c, RH_ROPE_AMAX, RH_F32, s->rows, c.op.rope.heads, s->pad, FILL_POISON);
	case_check(&c);
}

static void test_rope_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_rope);
}

/* The table of real positions, forward and back: what was there to within two roundings of values within 2. */
static void test_rope_inverse_undoes_rope(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case table = {.seed = &seed, .op.kind = RH_OP_ROPE_TABLE, .op.rope_table.scale = 1};
	struct rh_view position = case_operand(&table, RH_ROPE_TABLE_POSITION, RH_I32, 50, 1, 0, FILL_NONE);
	for (int64_t t = 0; t < 50; t++)
		case_put(position, t, 0, (double)(t * 20011));
	for (int i = 0; i < 32; i++)
		table.op.rope_table.inv_freq[i] = powf(10000, -(float)i / 32);
	case_operand(&table, RH_ROPE_TABLE_TABLE, RH_F32, 50, 64, 0, FILL_POISON);
	case_run(&table, rh_cpu_best_isa(), 1);
	struct op_case c = {.seed = &seed, .op.kind = RH_OP_ROPE, .op.rope = {3, 0}};
	case_operand(&c, RH_ROPE_X, RH_F32, 50, 3 * 64, 0, FILL_RANDOM);
	c.op.operand[RH_ROPE_TABLE_IN] = table.op.operand[RH_ROPE_TABLE_TABLE];
	static float before[50 * 192];
	memcpy(before, c.op.operand[RH_ROPE_X].data, sizeof before);
	case_run(&c, rh_cpu_best_isa(), 1);
	c.op.rope.inverse = 1;
	case_run(&c, rh_cpu_best_isa(), 1);
	for (int i = 0; i < 50 * 192; i++)
		assert_true(fabsf(before[i] - ((float *)c.op.operand[RH_ROPE_X].data)[i]) < 0x1p-21f);
	case_free(&c);
	case_free(&table);
}

static void check_latent(const struct case_shape *s, uint64_t *seed)
{
	for (int is_backward = 0; is_backward < 2; is_backward++) {
		struct op_case c = latent_case(s, is_backward, seed);
		case_check(&c);
	}
}

static void test_latent_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_latent);
}

static void fill_index(struct rh_view index, int64_t below, uint64_t *seed)
{
	for (int64_t t = 0; t < index.rows; t++)
		case_put(index, t, 0, (double)case_between(seed, 0, below - 1));
}

static void check_embedding(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_EMBEDDING, .op.embedding.scale = s->index % 2 ? 0 : 1.375f};
	fill_index(case_operand(&c, RH_EMBEDDING_IDS, RH_I32, s->rows, 1, s->pad, FILL_NONE), 37, seed);
	case_operand(&c, RH_EMBEDDING_TABLE, s->dtype, 37, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_EMBEDDING_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	case_check(&c);
}

static void test_embedding_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_embedding);
}

static void check_embedding_backward(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_EMBEDDING_BACKWARD, .op.embedding.scale = s->index % 2 ? 0 : 1.375f};
	fill_index(case_operand(&c, RH_EMBEDDING_BACKWARD_IDS, RH_I32, s->rows, 1, 0, FILL_NONE), 7, seed);
	case_operand(&c, RH_EMBEDDING_BACKWARD_DY, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_EMBEDDING_BACKWARD_DTABLE, RH_F32, 7, s->cols, s->pad, FILL_RANDOM);
	c.tolerance[RH_EMBEDDING_BACKWARD_DTABLE] = 0x1p-20; /* each row that is scaled is rounded; rows are few and below 2 */
	case_check(&c);                                      /* the oracle rounds after each row too */
}

static void test_embedding_backward_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_embedding_backward);
}

static void check_gather(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_GATHER_ROWS};
	case_operand(&c, RH_GATHER_ROWS_X, s->dtype, 29, s->cols, s->pad, FILL_RANDOM);
	fill_index(case_operand(&c, RH_GATHER_ROWS_INDEX, RH_I32, s->rows, 1, 0, FILL_NONE), 29, seed);
	case_operand(&c, RH_GATHER_ROWS_Y, s->dtype, s->rows, s->cols, s->pad / 2, FILL_POISON);
	case_check(&c);
}

static void test_gather_rows_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_gather);
}

static void check_scatter(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = scatter_rows_case(s, seed);
	case_check(&c);
}

static void test_scatter_rows_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_scatter);
}

static void check_dropout(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = dropout_case(s, seed);
	case_check(&c);
}

static void test_dropout_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_dropout);
}

/* A million elements at p = 0.1: kept 900000 give or take 4 standard deviations of 300, and different in the next step. */
static void test_dropout_keeps_its_share(void **state)
{
	(void)state;
	enum { N = 1000 };
	static float x[N * N], y[N * N], z[N * N];
	for (int i = 0; i < N * N; i++)
		x[i] = 1;
	struct op_case c = {.op.kind = RH_OP_DROPOUT, .op.dropout = {42, 1, 2, 3, 0.1f}};
	c.op.operand[RH_DROPOUT_X] = rh_view_of(x, RH_F32, N, N);
	c.op.operand[RH_DROPOUT_Y] = rh_view_of(y, RH_F32, N, N);
	case_run(&c, rh_cpu_best_isa(), 2);
	c.op.dropout.step++;
	c.op.operand[RH_DROPOUT_Y].data = z;
	case_run(&c, rh_cpu_best_isa(), 2);
	int kept = 0, both = 0;
	for (int i = 0; i < N * N; i++) {
		assert_true(y[i] == 0 || fabsf(y[i] - 1 / 0.9f) < 1e-6f);
		kept += y[i] > 0;
		both += y[i] > 0 && z[i] > 0;
	}
	assert_in_range(kept, 900000 - 1200, 900000 + 1200);
	assert_in_range(both, 810000 - 1600, 810000 + 1600);
}

/* A million numbers uniform in +-0.5: mean 0 and variance 1/12, give or take 4 standard deviations of 2.9e-4 and 7.5e-5; each tenth of the
 * range has its share; others in the next step, and the same where a part is made by itself. */
static void test_noise_is_uniform(void **state)
{
	(void)state;
	enum { N = 1000, FIRST = 300 };
	static float x[N * N], y[N * N], z[N * N];
	struct op_case c = {.op.kind = RH_OP_DROPOUT, .op.dropout = {.seed = 42, .step = 1, .noise = 0.5f}};
	double sum = 0, squares = 0, both = 0;
	int tenth[10] = {0};
	memset(x, 0, sizeof x);
	c.op.operand[RH_DROPOUT_X] = rh_view_of(x, RH_F32, N, N);
	c.op.operand[RH_DROPOUT_Y] = rh_view_of(y, RH_F32, N, N);
	case_run(&c, rh_cpu_best_isa(), 2);
	c.op.dropout.step++;
	c.op.operand[RH_DROPOUT_Y].data = z;
	case_run(&c, rh_cpu_best_isa(), 2);
	for (int i = 0; i < N * N; i++) {
		assert_true(y[i] >= -0.5f && y[i] < 0.5f);
		sum += (double)y[i];
		squares += (double)y[i] * (double)y[i];
		both += (double)y[i] * (double)z[i];
		tenth[(int)((y[i] + 0.5f) * 10)]++;
	}
	check_near(sum / N / N, 0, 4 * 2.9e-4);
	check_near(squares / N / N, 1.0 / 12, 4 * 7.5e-5);
	check_near(both / N / N, 0, 4.0 / 12 / N);
	for (int i = 0; i < 10; i++)
		assert_in_range(tenth[i], 100000 - 1200, 100000 + 1200);
	c.op.dropout.step--;
	c.op.dropout.first_row = FIRST;
	c.op.operand[RH_DROPOUT_X].rows = c.op.operand[RH_DROPOUT_Y].rows = N - FIRST;
	case_run(&c, rh_cpu_best_isa(), 1);
	assert_memory_equal(z, y + FIRST * N, sizeof(float) * (N - FIRST) * N);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_fill_equals_the_oracle),
	        cmocka_unit_test(test_cast_equals_the_oracle),
	        cmocka_unit_test(test_cast_rounds_to_nearest_even),
	        cmocka_unit_test(test_add_equals_the_oracle),
	        cmocka_unit_test(test_column_sum_equals_the_oracle),
	        cmocka_unit_test(test_rmsnorm_equals_the_oracle),
	        cmocka_unit_test(test_rmsnorm_backward_equals_the_oracle),
	        cmocka_unit_test(test_rope_table_equals_the_oracle),
	        cmocka_unit_test(test_rope_equals_the_oracle),
	        cmocka_unit_test(test_rope_inverse_undoes_rope),
	        cmocka_unit_test(test_latent_equals_the_oracle),
	        cmocka_unit_test(test_embedding_equals_the_oracle),
	        cmocka_unit_test(test_embedding_backward_equals_the_oracle),
	        cmocka_unit_test(test_gather_rows_equals_the_oracle),
	        cmocka_unit_test(test_scatter_rows_equals_the_oracle),
	        cmocka_unit_test(test_dropout_equals_the_oracle),
	        cmocka_unit_test(test_dropout_keeps_its_share),
	        cmocka_unit_test(test_noise_is_uniform),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
