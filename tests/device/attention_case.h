/* Cases of attention over packed documents, for any device. */
#ifndef RH_TESTS_DEVICE_ATTENTION_CASE_H
#define RH_TESTS_DEVICE_ATTENTION_CASE_H

#include "op_case.h"

/* `lead` rows of q and k belong to no document, nor do as many at the end. */
struct attention_shape {
	int heads, kv_heads, dim, window, lead;
	int documents;
	int lq[8], lk[8]; /* rows of each document's q and k */
};

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
	if (sinks)
		attention_put_sinks(&c, RH_ATTENTION_SINK, s, dtype);
	c.tolerance[RH_ATTENTION_O] = c.tolerance[RH_ATTENTION_LSE] = 0x1p-17;
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
		c.tolerance[i] = 0x1p-15;
	return c;
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
