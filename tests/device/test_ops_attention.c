#include "attention_case.h"

static const struct attention_shape shapes[] = {
        {1, 1, 4, 0, 0, 1, {1}, {1}},
        {1, 1, 8, 0, 0, 1, {5}, {5}},
        {3, 1, 64, 0, 3, 3, {90, 1, 37}, {90, 1, 37}}, /* three heads share a key head; rows outside */
        {9, 3, 64, 0, 0, 2, {49, 97}, {49, 97}},       /* SmolLM2's heads */
        {2, 2, 128, 0, 0, 1, {150}, {150}},
        {7, 1, 20, 0, 0, 2, {33, 70}, {33, 70}},             /* a group that does not divide the lanes */
        {2, 1, 13, 0, 0, 4, {0, 17, 0, 66}, {0, 17, 0, 66}}, /* odd dim, empty documents */
        {2, 2, 256, 0, 0, 1, {70}, {70}},                    /* Gemma 3 */
        {2, 1, 512, 0, 0, 2, {40, 30}, {40, 30}},            /* widest head */
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

/* Pairs of queries and keys in a contiguous part of a document's rows, a head: `part` of `parts`. The rows' keys, or the rows' queries. */
enum rows { ROWS_OF_QUERIES, ROWS_OF_KEYS };
static double pairs_of_part(const struct rh_op *op, enum rows rows, int64_t part, int64_t parts)
{
	int64_t lq = op->operand[RH_ATTENTION_Q].rows, lk = op->operand[RH_ATTENTION_K].rows, before = lk - lq,
	        window = op->attention.window;
	int64_t all = rows == ROWS_OF_KEYS ? lk : lq;
	double pairs = 0;
	for (int64_t i = all * part / parts; i < all * (part + 1) / parts; i++) {
		int64_t keys = rh_min(i + before + 1, window ? window : INT64_MAX);
		int64_t first = rh_max(i - before, 0), queries = (window ? rh_min(i - before + window, lq) : lq) - first;
		pairs += (double)rh_max(rows == ROWS_OF_KEYS ? queries : keys, 0);
	}
	return pairs;
}

/* Counted query by query: no launch has more products than were asked for. */
static void test_attention_is_split_as_finely_as_asked(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	int split = 0, rows_too = 0;
	for (int i = 0; i < 400; i++) {
		int64_t kv = case_between(&seed, 1, 4), heads = kv * case_between(&seed, 1, 4), dim = 64,
		        lq = case_between(&seed, 6000, 12000);
		int64_t lk = lq + (i % 3 ? 0 : case_between(&seed, 0, 20000));
		struct rh_op op = {.kind = i % 2 ? RH_OP_ATTENTION_BACKWARD : RH_OP_ATTENTION};
		op.operand[RH_ATTENTION_Q] = rh_view_of(&op, RH_BF16, lq, heads * dim);
		op.operand[RH_ATTENTION_K] = op.operand[RH_ATTENTION_V] = rh_view_of(&op, RH_BF16, lk, kv * dim);
		op.attention.heads = heads;
		op.attention.kv_heads = kv;
		op.attention.documents = 1;
		op.attention.longest = lq;
		op.attention.window = i % 5 ? 0 : case_between(&seed, 300, 9000);
		double flops = rh_op_cost(&op).product_flops, most = flops / (double)case_between(&seed, 1, 40), products = i % 2 ? 5 : 2;
		rh_attention_split(&op, most);
		int64_t apart = i % 2 ? kv : heads, together = (apart + op.attention.head_parts - 1) / op.attention.head_parts;
		double largest = 0;
		for (int64_t r = 0; r < op.attention.row_parts; r++)
			for (enum rows rows = ROWS_OF_QUERIES; rows <= (i % 2 ? ROWS_OF_KEYS : ROWS_OF_QUERIES); rows++)
				largest = fmax(largest, pairs_of_part(&op, rows, r, op.attention.row_parts));
		largest *= products * 2 * (double)dim * (double)(heads / apart * together);
		/* rows do not divide evenly: into 80 parts of 75 at the finest */
		assert_true(largest <= most * 1.02);
		assert_true(rh_op_launch_share(&op) * flops <= most * 1.0001 && largest <= rh_op_launch_share(&op) * flops * 1.02);
		split += op.attention.head_parts > 1;
		rows_too += op.attention.row_parts > 1;
	}
	assert_true(split > 200 && rows_too > 50);
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
	        cmocka_unit_test(test_attention_is_split_as_finely_as_asked),
	        cmocka_unit_test(test_attention_of_huge_scores_stays_finite),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
