/* Cases of attention over packed documents, for any device. */
#ifndef RH_TESTS_DEVICE_ATTENTION_CASE_H
#define RH_TESTS_DEVICE_ATTENTION_CASE_H

#include "op_case.h"

#include "core/minmax.h"

/* `lead` rows of q and k belong to no document, nor do as many at the end. */
struct attention_shape {
	int heads, kv_heads, dim, window, lead;
	int documents;
	int lq[8], lk[8]; /* rows of each document's q and k */
};

/* Above 0: the cases that are made from now on drop so much. What is kept is larger by 1 / (1 - p), and so is its error. */
static float attention_drops;

static inline void attention_put_dropout(struct op_case *c)
{
	c->op.attention.p = attention_drops;
	c->op.attention.seed = 0x123456789abcdefu;
	c->op.attention.step = 7;
	c->op.attention.micro_batch = 3;
	c->op.attention.site = 11;
	c->op.attention.first_q = 5;
	c->op.attention.first_k = 2;
}

/* Sinks from -1 to 3: from little to most of what a query sees. */
static inline void attention_put_sinks(struct op_case *c, int operand, const struct attention_shape *s, enum rh_dtype dtype)
{
	struct rh_view sink = case_operand(c, operand, dtype, 1, s->heads, 0, FILL_RANDOM);
	for (int h = 0; h < s->heads; h++)
		case_put(sink, 0, h, 1 + 2 * case_get(sink, 0, h));
}

static inline void attention_put_starts(struct op_case *c, int operand, const struct attention_shape *s, const int *length)
{
	struct rh_view view = case_operand(c, operand, RH_I32, s->documents + 1, 1, 0, FILL_NONE);
	int32_t at = s->lead;
	for (int d = 0; d <= s->documents; d++) {
		case_put(view, d, 0, at);
		at += d < s->documents ? length[d] : 0;
	}
}

static inline int attention_rows(const struct attention_shape *s, const int *length)
{
	int rows = 2 * s->lead;
	for (int d = 0; d < s->documents; d++)
		rows += length[d];
	return rows;
}

static inline void attention_put_inputs(struct op_case *c, const struct attention_shape *s, enum rh_attention_direction direction,
                                        enum rh_dtype dtype, int64_t pad)
{
	int q_rows = attention_rows(s, s->lq), k_rows = attention_rows(s, s->lk);
	c->op.attention.heads = s->heads;
	c->op.attention.kv_heads = s->kv_heads;
	c->op.attention.documents = s->documents;
	c->op.attention.window = s->window;
	c->op.attention.direction = direction;
	c->op.attention.scale = 2.0f / sqrtf((float)s->dim); /* sharper than usual: neighbours differ more */
	for (int d = 0; d < s->documents; d++)
		if (s->lq[d] > c->op.attention.longest)
			c->op.attention.longest = s->lq[d];
	attention_put_dropout(c);
	attention_put_starts(c, RH_ATTENTION_START_Q, s, s->lq);
	attention_put_starts(c, RH_ATTENTION_START_K, s, s->lk);
	case_operand(c, RH_ATTENTION_Q, dtype, q_rows, s->heads * s->dim, pad, FILL_RANDOM);
	case_operand(c, RH_ATTENTION_K, dtype, k_rows, s->kv_heads * s->dim, pad, FILL_RANDOM);
	case_operand(c, RH_ATTENTION_V, dtype, k_rows, s->kv_heads * s->dim, pad, FILL_RANDOM);
}

/* Nothing is rounded to bf16 but operands. o is a mean of values within 1: its error is that of the scores (at most dim products of 2^-24
 * each, and the exponential's argument up to 2 sqrt(dim)), some 2^-18; lse likewise. */
static inline struct op_case attention_case(const struct attention_shape *s, enum rh_attention_direction direction, enum rh_dtype dtype,
                                            int64_t pad, int sinks, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ATTENTION};
	attention_put_inputs(&c, s, direction, dtype, pad);
	case_operand(&c, RH_ATTENTION_O, dtype, attention_rows(s, s->lq), s->heads * s->dim, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_LSE, RH_F32, attention_rows(s, s->lq), s->heads, pad, FILL_POISON);
	if (s->dim <= RH_AMAX_HEAD_DIM)
		case_operand(&c, RH_ATTENTION_AMAX, RH_F32, attention_rows(s, s->lq), s->heads, pad, FILL_POISON);
	if (sinks)
		attention_put_sinks(&c, RH_ATTENTION_SINK, s, dtype);
	c.tolerance[RH_ATTENTION_O] = c.tolerance[RH_ATTENTION_LSE] = attention_drops > 0 ? 0x1p-16 : 0x1p-17;
	return c;
}

/* o and lse are the oracle's. p is off by 2^-18 as in forward; dp and delta are sums of dim products, sqrt(dim) in size, at most 16; dk and
 * dv add up the queries that see a key, whose p fall off with their number. */
static inline struct op_case attention_backward_case(const struct attention_shape *s, enum rh_attention_direction direction,
                                                     enum rh_dtype dtype, int64_t pad, int sinks, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_ATTENTION_BACKWARD};
	uint64_t forward_seed = *seed;
	struct op_case forward = attention_case(s, direction, dtype, pad, sinks, &forward_seed);
	rh_op_oracle(&forward.op);
	attention_put_inputs(&c, s, direction, dtype, pad);
	int q_rows = attention_rows(s, s->lq), k_rows = attention_rows(s, s->lk), wide = s->heads * s->dim, narrow = s->kv_heads * s->dim;
	case_operand(&c, RH_ATTENTION_BACKWARD_O, dtype, q_rows, wide, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_LSE, RH_F32, q_rows, s->heads, pad, FILL_POISON);
	memcpy(c.buffer[RH_ATTENTION_BACKWARD_O].bytes, forward.buffer[RH_ATTENTION_O].bytes, forward.buffer[RH_ATTENTION_O].size);
	memcpy(c.buffer[RH_ATTENTION_BACKWARD_LSE].bytes, forward.buffer[RH_ATTENTION_LSE].bytes, forward.buffer[RH_ATTENTION_LSE].size);
	if (sinks) {
		case_take(&c, RH_ATTENTION_BACKWARD_SINK, &forward, RH_ATTENTION_SINK);
		case_operand(&c, RH_ATTENTION_BACKWARD_DSINK, RH_F32, 1, s->heads, 0, FILL_RANDOM);
		c.tolerance[RH_ATTENTION_BACKWARD_DSINK] = 0x1p-10; /* 200 terms, each off by 2^-18 at most */
	}
	case_free(&forward);
	case_operand(&c, RH_ATTENTION_BACKWARD_DO, dtype, q_rows, wide, pad, FILL_RANDOM);
	case_operand(&c, RH_ATTENTION_BACKWARD_DELTA, RH_F32, q_rows, s->heads, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_DQ, dtype, q_rows, wide, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_DK, dtype, k_rows, narrow, pad, FILL_POISON);
	case_operand(&c, RH_ATTENTION_BACKWARD_DV, dtype, k_rows, narrow, pad, FILL_POISON);
	for (int i = RH_ATTENTION_BACKWARD_DELTA; i <= RH_ATTENTION_BACKWARD_DV; i++)
		c.tolerance[i] = attention_drops > 0 ? 0x1p-14 : 0x1p-15;
	return c;
}

enum { SUM_SHAPES = 2 };
static const struct attention_shape attention_sum_shapes[SUM_SHAPES] = {{4, 2, 4, 0, 2, 3, {70, 5, 20}, {200, 5, 20}},
                                                                        {3, 1, 4, 40, 0, 2, {60, 9}, {100, 9}}};

/* Of queries that end their documents, with sums of later ones. With a D of 4 the scale is 1, and devices agree on the unit of dk_sum. */
static inline struct op_case attention_backward_with_sums(const struct attention_shape *s, enum rh_dtype dtype, uint64_t *seed)
{
	struct op_case c = attention_backward_case(s, RH_ATTENTION_CAUSAL, dtype, 0, 0, seed);
	assert_int_equal(s->dim, 4);
	int q_rows = attention_rows(s, s->lq), k_rows = attention_rows(s, s->lk), narrow = s->kv_heads * s->dim;
	for (int i = RH_ATTENTION_BACKWARD_DK; i <= RH_ATTENTION_BACKWARD_DV; i++) {
		free(c.buffer[i].bytes);
		case_operand(&c, i, dtype, q_rows, narrow, 0, FILL_POISON);
	}
	for (int i = RH_ATTENTION_BACKWARD_DK_SUM; i <= RH_ATTENTION_BACKWARD_DV_SUM; i++) {
		case_operand(&c, i, RH_F32, k_rows, narrow, 0, FILL_RANDOM);
		c.tolerance[i] = c.tolerance[RH_ATTENTION_BACKWARD_DK];
	}
	return c;
}

/* Cuts of a packed row, at multiples of RH_ATTENTION_TILE within its second document. */
enum { RUN_FIRST = 70, RUN_MIDDLE = 3 * RH_ATTENTION_TILE + 11, RUN_LAST = 20, RUN_ROWS = RUN_FIRST + RUN_MIDDLE + RUN_LAST, RUNS = 3 };

/* Rows [begin, end) of a packed row: what of `whole`'s operands an op of these queries reads and writes. Keys: from where the document of
 * the first query begins. */
static inline struct rh_op attention_run(const struct rh_op *whole, int64_t begin, int64_t end, int32_t *starts)
{
	static const int32_t document[] = {0, RUN_FIRST, RUN_FIRST + RUN_MIDDLE, RUN_ROWS};
	struct rh_op op = *whole;
	int is_backward = whole->kind == RH_OP_ATTENTION_BACKWARD, last = is_backward ? RH_ATTENTION_BACKWARD_DV : RH_ATTENTION_LSE, n = 0;
	int64_t keys = 0;
	for (int d = 0; d < 3; d++) {
		if (document[d + 1] <= begin || document[d] >= end)
			continue;
		keys = n ? keys : document[d];
		starts[n] = (int32_t)(rh_max(document[d], begin) - begin);
		starts[8 + n++] = document[d] - (int32_t)keys;
	}
	starts[n] = (int32_t)(end - begin);
	starts[8 + n] = (int32_t)(end - keys);
	op.attention.documents = n;
	op.attention.longest = 0;
	for (int i = 0; i < n; i++)
		op.attention.longest = rh_max(op.attention.longest, starts[i + 1] - starts[i]);
	for (int i = 0; i <= last; i++)
		op.operand[i] = rh_view_rows(whole->operand[i], i == RH_ATTENTION_K || i == RH_ATTENTION_V ? keys : begin,
		                             end - (i == RH_ATTENTION_K || i == RH_ATTENTION_V ? keys : begin));
	if (!is_backward && whole->operand[RH_ATTENTION_AMAX].data)
		op.operand[RH_ATTENTION_AMAX] = rh_view_rows(whole->operand[RH_ATTENTION_AMAX], begin, end - begin);
	op.operand[RH_ATTENTION_START_Q] = rh_view_of(starts, RH_I32, n + 1, 1);
	op.operand[RH_ATTENTION_START_K] = rh_view_of(starts + 8, RH_I32, n + 1, 1);
	return op;
}

/* A packed row in runs, the last one first in the backward: bit-equal to the row at once. Frees nothing of `whole`, whose outputs become
 * those of the row at once. run: runs an op. */
static inline void attention_check_runs(struct op_case *whole, void (*run)(struct rh_op *op, void *context), void *context)
{
	const int64_t cut[RUNS + 1] = {0, RUN_FIRST + RH_ATTENTION_TILE, RUN_FIRST + 3 * RH_ATTENTION_TILE, RUN_ROWS};
	int is_backward = whole->op.kind == RH_OP_ATTENTION_BACKWARD;
	struct op_case parts = case_clone(whole);
	struct rh_view k = whole->op.operand[RH_ATTENTION_K];
	float *sum[2] = {calloc((size_t)(k.rows * k.cols), sizeof(float)), calloc((size_t)(k.rows * k.cols), sizeof(float))};
	run(&whole->op, context);
	for (int i = 0; i < RUNS; i++) {
		int32_t starts[16];
		int at = is_backward ? RUNS - 1 - i : i;
		struct rh_op op = attention_run(&parts.op, cut[at], cut[at + 1], starts);
		int64_t rows = op.operand[RH_ATTENTION_K].rows, first = cut[at + 1] - rows;
		for (int s = 0; is_backward && s < 2; s++)
			op.operand[RH_ATTENTION_BACKWARD_DK_SUM + s] = rh_view_of(sum[s] + first * k.cols, RH_F32, rows, k.cols);
		assert_null(rh_op_fault(&op));
		run(&op, context);
	}
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (whole->buffer[i].bytes && i != RH_ATTENTION_BACKWARD_SPACE && i != RH_ATTENTION_BACKWARD_DSINK)
			assert_memory_equal(whole->buffer[i].bytes, parts.buffer[i].bytes, whole->buffer[i].size);
	case_free(&parts);
	free(sum[0]);
	free(sum[1]);
}

/* q, k and v become columns of one wide buffer, as a fused projection leaves them. The case has no sinks: the buffer is theirs. */
static inline void attention_fuse(struct op_case *c)
{
	struct rh_op *op = &c->op;
	int64_t from = 0, cols = 0;
	for (int i = RH_ATTENTION_Q; i <= RH_ATTENTION_V; i++)
		cols += op->operand[i].cols;
	struct rh_view q = op->operand[RH_ATTENTION_Q], wide = case_operand(c, RH_ATTENTION_SINK, q.dtype, q.rows, cols, 0, FILL_POISON);
	op->operand[RH_ATTENTION_SINK] = (struct rh_view){0};
	for (int i = RH_ATTENTION_Q; i <= RH_ATTENTION_V; i++) {
		struct rh_view to = rh_view_cols(wide, from, op->operand[i].cols);
		from += to.cols;
		for (int64_t r = 0; r < to.rows; r++)
			for (int64_t k = 0; k < to.cols; k++)
				case_put(to, r, k, case_get(op->operand[i], r, k));
		op->operand[i] = to;
		c->buffer_of[i] = RH_ATTENTION_SINK;
	}
}

#endif
