/* Cases of CONV, DELTA and GATE, for any device. */
#ifndef RH_TESTS_DEVICE_DELTA_CASE_H
#define RH_TESTS_DEVICE_DELTA_CASE_H

#include "op_case.h"

/* `lead` rows belong to no document, nor do as many at the end. */
struct delta_shape {
	int key_heads, heads, k, v, lead;
	int documents, length[6];
};

static inline int delta_rows_of(const struct delta_shape *s)
{
	int rows = 2 * s->lead;
	for (int d = 0; d < s->documents; d++)
		rows += s->length[d];
	return rows;
}

static inline void delta_put_starts(struct op_case *c, int operand, const struct delta_shape *s)
{
	struct rh_view view = case_operand(c, operand, RH_I32, s->documents + 1, 1, 0, FILL_NONE);
	int32_t at = s->lead;
	for (int d = 0; d <= s->documents; d++) {
		case_put(view, d, 0, at);
		at += d < s->documents ? s->length[d] : 0;
	}
}

static inline void delta_put_inputs(struct op_case *c, const struct delta_shape *s, enum rh_dtype dtype, int64_t pad)
{
	int rows = delta_rows_of(s);
	c->op.delta.heads = s->heads;
	c->op.delta.key_heads = s->key_heads;
	c->op.delta.documents = s->documents;
	case_operand(c, RH_DELTA_Q, dtype, rows, s->key_heads * s->k, pad, FILL_RANDOM);
	case_operand(c, RH_DELTA_K, dtype, rows, s->key_heads * s->k, pad, FILL_RANDOM);
	case_operand(c, RH_DELTA_V, dtype, rows, s->heads * s->v, pad, FILL_RANDOM);
	case_operand(c, RH_DELTA_B, dtype, rows, s->heads, pad, FILL_RANDOM);
	struct rh_view a = case_operand(c, RH_DELTA_A, dtype, rows, s->heads, pad, FILL_RANDOM);
	for (int t = 0; t < rows; t++) /* tokens that keep nearly all of the state, and some that forget it */
		for (int h = 0; h < s->heads; h++)
			case_put(a, t, h, check_random(c->seed) % 40 ? 3 * case_get(a, t, h) - 3 : 25);
	case_operand(c, RH_DELTA_A_LOG, dtype, 1, s->heads, 0, FILL_RANDOM);
	case_operand(c, RH_DELTA_DT_BIAS, dtype, 1, s->heads, 0, FILL_RANDOM);
	delta_put_starts(c, RH_DELTA_START, s);
}

/* Everything is fp32 inside. Vectors q and k are of length 1, values within 1: o is some 0.1, and its error that of the chunks' sums and of
 * exponentials of sums of g, some 2^-20. */
static inline struct op_case delta_case(const struct delta_shape *s, enum rh_dtype dtype, int64_t pad, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DELTA};
	delta_put_inputs(&c, s, dtype, pad);
	case_operand(&c, RH_DELTA_O, dtype, delta_rows_of(s), s->heads * s->v, pad, FILL_POISON);
	if (s->documents == 1)
		case_operand(&c, RH_DELTA_STATE, RH_F32, s->heads * s->k, s->v, pad, FILL_RANDOM);
	c.tolerance[RH_DELTA_O] = c.tolerance[RH_DELTA_STATE] = 1e-5;
	return c;
}

/* Gradients are sums over later tokens, whose weights fall off; those of gates also over a state's elements. */
static inline struct op_case delta_backward_case(const struct delta_shape *s, enum rh_dtype dtype, int64_t pad, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DELTA_BACKWARD};
	int rows = delta_rows_of(s), is_trained = check_random(seed) % 3 != 0;
	delta_put_inputs(&c, s, dtype, pad);
	case_operand(&c, RH_DELTA_BACKWARD_DO, dtype, rows, s->heads * s->v, pad, FILL_RANDOM);
	case_operand(&c, RH_DELTA_BACKWARD_DQ, dtype, rows, s->key_heads * s->k, pad, FILL_POISON);
	case_operand(&c, RH_DELTA_BACKWARD_DK, dtype, rows, s->key_heads * s->k, pad, FILL_POISON);
	case_operand(&c, RH_DELTA_BACKWARD_DV, dtype, rows, s->heads * s->v, pad, FILL_POISON);
	case_operand(&c, RH_DELTA_BACKWARD_DB, dtype, rows, s->heads, pad, FILL_POISON);
	case_operand(&c, RH_DELTA_BACKWARD_DA, dtype, rows, s->heads, pad, FILL_POISON);
	if (is_trained) {
		case_operand(&c, RH_DELTA_BACKWARD_DA_LOG, RH_F32, 1, s->heads, 0, FILL_RANDOM);
		case_operand(&c, RH_DELTA_BACKWARD_DDT_BIAS, RH_F32, 1, s->heads, 0, FILL_RANDOM);
	}
	int64_t space = rh_delta_space(rows, s->documents, s->heads, s->k, s->v);
	case_operand(&c, RH_DELTA_BACKWARD_SPACE, RH_F32, 1, space, 0, FILL_POISON);
	for (int i = RH_DELTA_BACKWARD_DQ; i <= RH_DELTA_BACKWARD_DA; i++)
		c.tolerance[i] = 2e-5;
	c.tolerance[RH_DELTA_BACKWARD_DA_LOG] = c.tolerance[RH_DELTA_BACKWARD_DDT_BIAS] = 1e-4; /* sums over all tokens */
	return c;
}

/* Columns: those of the shape's values. */
static inline void conv_put_inputs(struct op_case *c, const struct delta_shape *s, int taps, enum rh_dtype dtype, int64_t pad)
{
	c->op.conv.documents = s->documents;
	case_operand(c, RH_CONV_X, dtype, delta_rows_of(s), s->heads * s->v, pad, FILL_RANDOM);
	case_operand(c, RH_CONV_W, dtype, s->heads * s->v, taps, 0, FILL_RANDOM);
	delta_put_starts(c, RH_CONV_START, s);
}

static inline struct op_case conv_case(const struct delta_shape *s, int taps, enum rh_dtype dtype, int64_t pad, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_CONV};
	conv_put_inputs(&c, s, taps, dtype, pad);
	case_operand(&c, RH_CONV_Y, dtype, delta_rows_of(s), s->heads * s->v, pad, FILL_POISON);
	if (s->documents == 1)
		case_operand(&c, RH_CONV_TAIL, dtype, taps - 1, s->heads * s->v, pad, FILL_RANDOM);
	c.tolerance[RH_CONV_Y] = 0x1p-20; /* 8 products within 1 */
	return c;
}

static inline struct op_case conv_backward_case(const struct delta_shape *s, int taps, enum rh_dtype dtype, int64_t pad, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_CONV_BACKWARD};
	conv_put_inputs(&c, s, taps, dtype, pad);
	case_operand(&c, RH_CONV_BACKWARD_DY, dtype, delta_rows_of(s), s->heads * s->v, pad, FILL_RANDOM);
	case_operand(&c, RH_CONV_BACKWARD_DX, dtype, delta_rows_of(s), s->heads * s->v, pad, FILL_POISON);
	if (check_random(seed) % 3)
		case_operand(&c, RH_CONV_BACKWARD_DW, RH_F32, s->heads * s->v, taps, 0, FILL_RANDOM);
	c.tolerance[RH_CONV_BACKWARD_DX] = 0x1p-19;
	c.tolerance[RH_CONV_BACKWARD_DW] = 0x1p-14; /* 400 terms within 1 */
	return c;
}

/* Of every second pair of cases each row has one gate. */
static inline int64_t gates_of(const struct case_shape *s)
{
	return s->index / 4 % 2 ? 1 : s->cols;
}

static inline void gate_put_inputs(struct op_case *c, const struct case_shape *s, int is_normed, int w)
{
	c->op.gate.f = s->index % 4 < 2 ? RH_GATE_SILU : RH_GATE_SIGMOID;
	c->op.gate.epsilon = 1e-3f;
	case_operand(c, RH_GATE_X, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	case_operand(c, RH_GATE_Z, s->dtype, s->rows, gates_of(s), s->pad, FILL_RANDOM);
	if (is_normed)
		case_operand(c, w, s->dtype, 1, s->cols, 0, FILL_RANDOM);
}

/* Roots of means of squares of 1e-3 at least: values up to 32. */
static inline struct op_case gate_case(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_GATE};
	int is_normed = s->index / 2 % 2; /* of both dtypes, which alternate */
	gate_put_inputs(&c, s, is_normed, RH_GATE_W);
	case_operand(&c, RH_GATE_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	if (is_normed)
		case_operand(&c, RH_GATE_RSTD, RH_F32, s->rows, 1, s->pad, FILL_POISON);
	c.tolerance[RH_GATE_Y] = c.tolerance[RH_GATE_RSTD] = 0x1p-18;
	return c;
}

static inline struct op_case gate_backward_case(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_GATE_BACKWARD};
	int is_normed = s->index / 2 % 2; /* of both dtypes, which alternate */
	gate_put_inputs(&c, s, is_normed, RH_GATE_BACKWARD_W);
	if (is_normed) {
		struct rh_view rstd = case_operand(&c, RH_GATE_BACKWARD_RSTD, RH_F32, s->rows, 1, s->pad, FILL_NONE);
		for (int64_t t = 0; t < s->rows; t++)
			case_put(rstd, t, 0, 0.5 + (double)(check_random(seed) % 1000) / 500);
	}
	case_operand(&c, RH_GATE_BACKWARD_DY, s->dtype, s->rows, s->cols, s->pad, FILL_RANDOM);
	if (s->index % 3 == 0)
		case_alias(&c, RH_GATE_BACKWARD_DX, RH_GATE_BACKWARD_DY);
	else
		case_operand(&c, RH_GATE_BACKWARD_DX, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	case_operand(&c, RH_GATE_BACKWARD_DZ, s->dtype, s->rows, gates_of(s), s->pad, FILL_POISON);
	if (is_normed && s->index % 3 != 1)
		case_operand(&c, RH_GATE_BACKWARD_DW, RH_F32, 1, s->cols, 0, FILL_RANDOM);
	if (s->index % 3 && s->index % 5 == 1)
		case_alias(&c, RH_GATE_BACKWARD_Y, RH_GATE_BACKWARD_DY);
	else if (s->index % 5)
		case_operand(&c, RH_GATE_BACKWARD_Y, s->dtype, s->rows, s->cols, s->pad, FILL_POISON);
	c.tolerance[RH_GATE_BACKWARD_DX] = c.tolerance[RH_GATE_BACKWARD_DZ] = c.tolerance[RH_GATE_BACKWARD_Y] = 0x1p-18;
	c.tolerance[RH_GATE_BACKWARD_DW] = 0x1p-15; /* 140 terms */
	if (gates_of(s) == 1)
		c.tolerance[RH_GATE_BACKWARD_DZ] = 0x1p-15; /* 1,025 terms at most */
	return c;
}

#endif
