#include "op_case.h"

struct shape {
	int heads, kv_heads, dim, window;
	int documents;
	int lq[8], lk[8];
};

static enum rh_attention_direction direction; /* of the cases made */

/* Sinks from -1 to 3: from little to most of what a query sees. */
static void put_sinks(struct op_case *c, int operand, const struct shape *s, enum rh_dtype dtype)
{
	struct rh_view sink = case_operand(c, operand, dtype, 1, s->heads, 0, FILL_RANDOM);
	for (int h = 0; h < s->heads; h++)
		case_put(sink, 0, h, 1 + 2 * case_get(sink, 0, h));
}

static int32_t *starts(struct op_case *c, int operand)
{
	return c->op.operand[operand].data;
}

/* q, k, v and the documents; returns the rows of q and k. */
static void fill_inputs(struct op_case *c, const struct shape *s, enum rh_dtype dtype, int64_t pad, int64_t total[2])
{
	total[0] = total[1] = 0;
	c->op.attention.heads = s->heads;
	c->op.attention.kv_heads = s->kv_heads;
	c->op.attention.documents = s->documents;
	c->op.attention.window = s->window;
	c->op.attention.direction = direction;
	c->op.attention.scale = 2.0f / sqrtf((float)s->dim); /* sharper than usual: neighbours differ more */
	case_operand(c, RH_ATTENTION_START_Q, RH_I32, s->documents + 1, 1, 0, FILL_NONE);
	case_operand(c, RH_ATTENTION_START_K, RH_I32, s->documents + 1, 1, 0, FILL_NONE);
	for (int d = 0; d <= s->documents; d++) {
		starts(c, RH_ATTENTION_START_Q)[d] = (int32_t)total[0];
		starts(c, RH_ATTENTION_START_K)[d] = (int32_t)total[1];
		if (d == s->documents)
			break;
		total[0] += s->lq[d];
		total[1] += s->lk[d];
		if (s->lq[d] > c->op.attention.longest)
			c->op.attention.longest = s->lq[d];
	}
	case_operand(c, RH_ATTENTION_Q, dtype, total[0], s->heads * s->dim, pad, FILL_RANDOM);
	case_operand(c, RH_ATTENTION_K, dtype, total[1], s->kv_heads * s->dim, pad, FILL_RANDOM);
	case_operand(c, RH_ATTENTION_V, dtype, total[1], s->kv_heads * s->dim, pad, FILL_RANDOM);
}

static struct op_case forward_case(const struct shape *s, enum rh_dtype dtype, int64_t pad, int sinks, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ATTENTION};
	int64_t total[2];
	fill_inputs(&c, s, dtype, pad, total);
	case_operand(&c, RH_ATTENTION_O, dtype, total[0], s->heads * s->dim, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_LSE, RH_F32, total[0], s->heads, pad, FILL_POISON);
	if (sinks)
		put_sinks(&c, RH_ATTENTION_SINK, s, dtype);
	/* o is a mean of values within 1: its error is that of the scores (at most dim products of 2^-24 each, and the exponential's
	 * argument up to 2 sqrt(dim)), some 2^-18; lse likewise. */
	c.tolerance[RH_ATTENTION_O] = c.tolerance[RH_ATTENTION_LSE] = 0x1p-17;
	return c;
}

/* o and lse are the oracle's. */
static struct op_case backward_case(const struct shape *s, enum rh_dtype dtype, int64_t pad, int sinks, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ATTENTION_BACKWARD};
	uint64_t forward_seed = *seed;
	struct op_case forward = forward_case(s, dtype, pad, sinks, &forward_seed);
	rh_op_oracle(&forward.op);
	int64_t total[2], wide = s->heads * s->dim, narrow = s->kv_heads * s->dim;
	fill_inputs(&c, s, dtype, pad, total);
	case_operand(&c, RH_ATTENTION_BACKWARD_O, dtype, total[0], wide, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_LSE, RH_F32, total[0], s->heads, pad, FILL_POISON);
	memcpy(c.buffer[RH_ATTENTION_BACKWARD_O].bytes, forward.buffer[RH_ATTENTION_O].bytes, forward.buffer[RH_ATTENTION_O].size);
	memcpy(c.buffer[RH_ATTENTION_BACKWARD_LSE].bytes, forward.buffer[RH_ATTENTION_LSE].bytes, forward.buffer[RH_ATTENTION_LSE].size);
	if (sinks) {
		case_take(&c, RH_ATTENTION_BACKWARD_SINK, &forward, RH_ATTENTION_SINK);
		case_operand(&c, RH_ATTENTION_BACKWARD_DSINK, RH_F32, 1, s->heads, 0, FILL_RANDOM);
		c.tolerance[RH_ATTENTION_BACKWARD_DSINK] = 0x1p-10; /* 200 terms, each off by 2^-18 at most */
	}
	case_free(&forward);
	case_operand(&c, RH_ATTENTION_BACKWARD_DO, dtype, total[0], wide, pad, FILL_RANDOM);
	case_operand(&c, RH_ATTENTION_BACKWARD_DELTA, RH_F32, total[0], s->heads, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_DQ, dtype, total[0], wide, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_DK, dtype, total[1], narrow, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_DV, dtype, total[1], narrow, pad, FILL_POISON);
	/* p is off by 2^-18 as in forward; dp and delta are sums of dim products, sqrt(dim) in size, at most 16; dk and dv add up the
	 * queries that see a key, whose p fall off with their number. */
	for (int i = RH_ATTENTION_BACKWARD_DELTA; i <= RH_ATTENTION_BACKWARD_DV; i++)
		c.tolerance[i] = 0x1p-15;
	return c;
}

static const struct shape shapes[] = {
        {1, 1, 4, 0, 1, {1}, {1}},
        {1, 1, 8, 0, 1, {5}, {5}},
        {3, 1, 64, 0, 3, {90, 1, 37}, {90, 1, 37}}, /* three heads share a key head */
        {9, 3, 64, 0, 2, {49, 97}, {49, 97}},       /* SmolLM2's heads */
        {2, 2, 128, 0, 1, {150}, {150}},
        {7, 1, 20, 0, 2, {33, 70}, {33, 70}},             /* a group that does not divide the lanes */
        {2, 1, 13, 0, 4, {0, 17, 0, 66}, {0, 17, 0, 66}}, /* odd dim, empty documents */
        {2, 2, 256, 0, 1, {70}, {70}},                    /* widest head */
        {4, 2, 16, 24, 2, {200, 11}, {200, 11}},          /* sliding window */
        {4, 4, 32, 1, 1, {80}, {80}},                     /* window of one: each sees itself */
        {6, 2, 32, 0, 3, {1, 7, 3}, {130, 7, 64}},        /* a cache: fewer queries than keys */
        {6, 2, 32, 50, 3, {1, 20, 3}, {130, 90, 64}},     /* a cache and a window */
        {2, 1, 8, 0, 2, {9, 40}, {4, 40}},                /* more queries than keys: some see none */
        {2, 1, 8, 0, 2, {3, 4}, {0, 4}},                  /* no keys at all */
        {52, 1, 12, 0, 1, {23}, {23}},                    /* more heads in a group than lanes */
        {4, 2, 64, 0, 8, {3, 1, 4, 1, 5, 9, 2, 6}, {3, 1, 4, 1, 5, 9, 2, 6}},
};

static void test_attention_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		for (int k = 0; k < 4; k++) {
			direction = k / 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL;
			struct op_case c = forward_case(&shapes[i], k % 2 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, i % 3 != 1, &seed);
			case_check(&c);
		}
	}
	direction = RH_ATTENTION_CAUSAL;
}

static void test_attention_backward_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		for (int k = 0; k < 4; k++) {
			direction = k / 2 ? RH_ATTENTION_BOTH : RH_ATTENTION_CAUSAL;
			struct op_case c = backward_case(&shapes[i], k % 2 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, i % 3 != 1, &seed);
			case_check(&c);
		}
	}
	direction = RH_ATTENTION_CAUSAL;
}

/* q, k and v as columns of one wide buffer, as a fused projection leaves them. */
static void test_attention_reads_a_fused_projection(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct shape s = {4, 2, 24, 0, 2, {50, 31}, {50, 31}};
	struct op_case c = forward_case(&s, RH_F32, 0, 0, &seed);
	struct op_case want = case_clone(&c);
	rh_op_oracle(&want.op);
	struct rh_view wide = case_operand(&c, RH_ATTENTION_LSE + 1, RH_F32, 81, 8 * 24, 0, FILL_POISON);
	c.op.operand[RH_ATTENTION_LSE + 1] = (struct rh_view){0};
	int64_t from[3] = {0, 4 * 24, 6 * 24};
	for (int i = 0; i < 3; i++) {
		struct rh_view to = rh_view_cols(wide, from[i], c.op.operand[i].cols);
		for (int64_t r = 0; r < to.rows; r++)
			for (int64_t k = 0; k < to.cols; k++)
				case_put(to, r, k, case_get(c.op.operand[i], r, k));
		c.op.operand[i] = to;
	}
	assert_null(rh_op_fault(&c.op));
	case_run(&c, (enum rh_cpu_isa)case_best_isa(), 2);
	for (int64_t r = 0; r < 81; r++)
		for (int64_t k = 0; k < 4 * 24; k++)
			assert_true(fabs(case_get(c.op.operand[RH_ATTENTION_O], r, k) - case_get(want.op.operand[RH_ATTENTION_O], r, k)) <
			            0x1p-17);
	case_free(&want);
	case_free(&c);
}

/* A document's result does not depend on what is packed around it. */
static void test_attention_of_a_packed_document_equals_it_alone(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct shape packed = {6, 2, 64, 0, 3, {61, 113, 20}, {61, 113, 20}}, alone = {6, 2, 64, 0, 1, {113}, {113}};
	struct op_case all = forward_case(&packed, RH_F32, 0, 0, &seed), one = forward_case(&alone, RH_F32, 0, 0, &seed);
	for (int i = RH_ATTENTION_Q; i <= RH_ATTENTION_V; i++) {
		int64_t row = all.op.operand[i].cols * 4;
		memcpy(one.op.operand[i].data, (char *)all.op.operand[i].data + 61 * row, (size_t)(113 * row));
	}
	case_run(&all, (enum rh_cpu_isa)case_best_isa(), 1);
	case_run(&one, (enum rh_cpu_isa)case_best_isa(), 1);
	assert_memory_equal(one.op.operand[RH_ATTENTION_O].data, (char *)all.op.operand[RH_ATTENTION_O].data + 61 * 6 * 64 * 4,
	                    113 * 6 * 64 * 4);
	case_free(&all);
	case_free(&one);
}

/* Scores of a thousand and more: the running maximum keeps the exponentials in range. */
static void test_attention_of_huge_scores_stays_finite(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct shape s = {2, 1, 16, 0, 1, {100}, {100}};
	struct op_case c = forward_case(&s, RH_F32, 0, 0, &seed);
	c.op.attention.scale = 1000;
	c.tolerance[RH_ATTENTION_O] = c.tolerance[RH_ATTENTION_LSE] = 0x1p-7; /* scores of 5000 are off by 2^-10 */
	case_check(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_attention_equals_the_oracle),
	        cmocka_unit_test(test_attention_backward_equals_the_oracle),
	        cmocka_unit_test(test_attention_reads_a_fused_projection),
	        cmocka_unit_test(test_attention_of_a_packed_document_equals_it_alone),
	        cmocka_unit_test(test_attention_of_huge_scores_stays_finite),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
