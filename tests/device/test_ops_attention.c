#include "attention_case.h"

static const struct attention_shape shapes[] = {
        {1, 1, 4, 0, 0, 1, {1}, {1}},
        {1, 1, 8, 0, 0, 1, {5}, {5}},
        {3, 1, 64, 0, 3, 3, {90, 1, 37}, {90, 1, 37}}, /* three heads share a key head; rows outside */
        {9, 3, 64, 0, 0, 2, {49, 97}, {49, 97}},       /* SmolLM2's heads */
        {2, 2, 128, 0, 0, 1, {150}, {150}},
        {7, 1, 20, 0, 0, 2, {33, 70}, {33, 70}},             /* a group that does not divide the lanes */
        {2, 1, 13, 0, 0, 4, {0, 17, 0, 66}, {0, 17, 0, 66}}, /* odd dim, empty documents */
        {2, 2, 256, 0, 0, 1, {70}, {70}},                    /* widest head */
        {4, 2, 16, 24, 0, 2, {200, 11}, {200, 11}},          /* sliding window */
        {4, 4, 32, 1, 0, 1, {80}, {80}},                     /* window of one: each sees itself */
        {6, 2, 32, 0, 0, 3, {1, 7, 3}, {130, 7, 64}},        /* a cache: fewer queries than keys */
        {6, 2, 32, 50, 0, 3, {1, 20, 3}, {130, 90, 64}},     /* a cache and a window */
        {2, 1, 8, 0, 0, 2, {9, 40}, {4, 40}},                /* more queries than keys: some see none */
        {2, 1, 8, 0, 0, 2, {3, 4}, {0, 4}},                  /* no keys at all */
        {52, 1, 12, 0, 0, 1, {23}, {23}},                    /* more heads in a group than lanes */
        {4, 2, 64, 0, 0, 8, {3, 1, 4, 1, 5, 9, 2, 6}, {3, 1, 4, 1, 5, 9, 2, 6}},
};

static void test_attention_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		for (int k = 0; k < 4; k++) {
			struct op_case c = attention_case(&shapes[i], k / 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL,
			                                  k % 2 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, i % 3 != 1, &seed);
			case_check(&c);
		}
	}
}

static void test_attention_backward_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		for (int k = 0; k < 4; k++) {
			struct op_case c = attention_backward_case(&shapes[i], k / 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL,
			                                           k % 2 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, i % 3 != 1, &seed);
			case_check(&c);
		}
	}
}

static void test_attention_that_drops_equals_the_oracle(void **state)
{
	attention_drops = 0.3f;
	test_attention_equals_the_oracle(state);
	test_attention_backward_equals_the_oracle(state);
	attention_drops = 0;
}

static void test_attention_reads_a_fused_projection(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct attention_shape s = {4, 2, 24, 0, 0, 2, {50, 31}, {50, 31}};
	struct op_case c = attention_case(&s, RH_ATTENTION_CAUSAL, RH_F32, 0, 0, &seed);
	attention_fuse(&c);
	case_check(&c);
}

/* A document's result does not depend on what is packed around it. */
static void test_attention_of_a_packed_document_equals_it_alone(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct attention_shape packed = {6, 2, 64, 0, 0, 3, {61, 113, 20}, {61, 113, 20}}, alone = {6, 2, 64, 0, 0, 1, {113}, {113}};
	struct op_case all = attention_case(&packed, RH_ATTENTION_CAUSAL, RH_F32, 0, 0, &seed),
	               one = attention_case(&alone, RH_ATTENTION_CAUSAL, RH_F32, 0, 0, &seed);
	for (int i = RH_ATTENTION_Q; i <= RH_ATTENTION_V; i++) {
		int64_t row = all.op.operand[i].cols * 4;
		memcpy(one.op.operand[i].data, (char *)all.op.operand[i].data + 61 * row, (size_t)(113 * row));
	}
	case_run(&all, rh_cpu_best_isa(), 1);
	case_run(&one, rh_cpu_best_isa(), 1);
	assert_memory_equal(one.op.operand[RH_ATTENTION_O].data, (char *)all.op.operand[RH_ATTENTION_O].data + 61 * 6 * 64 * 4,
	                    113 * 6 * 64 * 4);
	case_free(&all);
	case_free(&one);
}

struct run_on {
	enum rh_cpu_isa isa;
	struct rh_pool *pool;
};

static void run_on_cpu(struct rh_op *op, void *context)
{
	struct run_on *on = context;
	struct cpu_context cpu = {.isa = on->isa, .pool = on->pool};
	check_ok(cpu_run(&cpu, op));
}

/* Groups of heads that divide the tiles and that do not, a window, sinks, both dtypes. */
static void test_attention_in_runs_equals_it_at_once(void **state)
{
	(void)state;
	static const int heads[][2] = {{4, 2}, {3, 1}, {7, 1}, {2, 2}};
	uint64_t seed = check_seed();
	struct run_on on = {RH_CPU_BASE, NULL};
	check_ok(rh_pool_create(2, &on.pool));
	for (int i = 0; i < 16; i++) {
		const int rows[] = {RUN_FIRST, RUN_MIDDLE, RUN_LAST};
		struct attention_shape s = {heads[i / 4][0], heads[i / 4][1], i / 4 == 3 ? 20 : 32, i % 2 ? 150 : 0, 0, 3, {0}, {0}};
		memcpy(s.lq, rows, sizeof rows);
		memcpy(s.lk, rows, sizeof rows);
		enum rh_dtype dtype = i / 2 % 2 ? RH_BF16 : RH_F32;
		struct op_case forward = attention_case(&s, RH_ATTENTION_CAUSAL, dtype, 0, i % 2, &seed);
		struct op_case backward = attention_backward_case(&s, RH_ATTENTION_CAUSAL, dtype, 0, i % 2, &seed);
		for (on.isa = RH_CPU_BASE; on.isa <= rh_cpu_best_isa(); on.isa++) {
			attention_check_runs(&forward, run_on_cpu, &on);
			attention_check_runs(&backward, run_on_cpu, &on);
		}
		case_free(&forward);
		case_free(&backward);
	}
	rh_pool_destroy(on.pool);
}

/* What an op with sums adds, and which rows it writes, against the oracle. */
static void test_attention_backward_with_sums_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * SUM_SHAPES; i++) {
		struct op_case c = attention_backward_with_sums(&attention_sum_shapes[i / 2], i % 2 ? RH_BF16 : RH_F32, &seed);
		case_check(&c);
	}
}

/* Scores of a thousand and more: the running maximum keeps the exponentials in range. */
static void test_attention_of_huge_scores_stays_finite(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct attention_shape s = {2, 1, 16, 0, 0, 1, {100}, {100}};
	struct op_case c = attention_case(&s, RH_ATTENTION_CAUSAL, RH_F32, 0, 0, &seed);
	c.op.attention.scale = 1000;
	c.tolerance[RH_ATTENTION_O] = c.tolerance[RH_ATTENTION_LSE] = 0x1p-7; /* scores of 5000 are off by 2^-10 */
	case_check(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_attention_equals_the_oracle),
	        cmocka_unit_test(test_attention_backward_equals_the_oracle),
	        cmocka_unit_test(test_attention_that_drops_equals_the_oracle),
	        cmocka_unit_test(test_attention_reads_a_fused_projection),
	        cmocka_unit_test(test_attention_of_a_packed_document_equals_it_alone),
	        cmocka_unit_test(test_attention_in_runs_equals_it_at_once),
	        cmocka_unit_test(test_attention_backward_with_sums_equals_the_oracle),
	        cmocka_unit_test(test_attention_of_huge_scores_stays_finite),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
