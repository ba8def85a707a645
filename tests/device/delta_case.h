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

/* What is read of one end of the documents, and what is left of the other; may they be one place? */
struct delta_ends {
	int in, out;
	enum rh_dtype dtype;
	int64_t rows, cols;
	int may_alias;
};

/* Each of them, in one place or in two; a few are absent. */
static inline void delta_put_ends(struct op_case *c, const struct delta_shape *s, struct delta_ends ends, int64_t pad)
{
	uint64_t draw = check_random(c->seed);
	if (s->documents == 1 || draw % 4)
		case_operand(c, ends.in, ends.dtype, ends.rows, ends.cols, pad, FILL_RANDOM);
	if (c->op.operand[ends.in].data && ends.may_alias && draw / 4 % 2)
		case_alias(c, ends.out, ends.in);
	else if (s->documents == 1 || draw / 8 % 4)
		case_operand(c, ends.out, ends.dtype, ends.rows, ends.cols, pad, FILL_POISON);
}

/* Everything is fp32 inside. Vectors q and k are of length 1, values within 1: o is some 0.1, and its error that of the chunks' sums and of
 * exponentials of sums of g, some 2^-20. */
static inline struct op_case delta_case(const struct delta_shape *s, enum rh_dtype dtype, int64_t pad, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DELTA};
	delta_put_inputs(&c, s, dtype, pad);
	case_operand(&c, RH_DELTA_O, dtype, delta_rows_of(s), s->heads * s->v, pad, FILL_POISON);
	delta_put_ends(&c, s, (struct delta_ends){RH_DELTA_STATE, RH_DELTA_END, RH_F32, s->heads * s->k, s->v, s->documents == 1}, pad);
	c.tolerance[RH_DELTA_O] = c.tolerance[RH_DELTA_END] = 1e-5;
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
	if (check_random(seed) % 4)
		case_operand(&c, RH_DELTA_BACKWARD_STATE, RH_F32, s->heads * s->k, s->v, pad, FILL_RANDOM);
	delta_put_ends(
	        &c, s,
	        (struct delta_ends){RH_DELTA_BACKWARD_D_END, RH_DELTA_BACKWARD_D_STATE, RH_F32, s->heads * s->k, s->v, s->documents == 1},
	        pad);
	c.tolerance[RH_DELTA_BACKWARD_D_STATE] = 2e-5;
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
	delta_put_ends(&c, s, (struct delta_ends){RH_CONV_TAIL, RH_CONV_END, dtype, taps - 1, s->heads * s->v, 1}, pad);
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
	if (check_random(seed) % 4)
		case_operand(&c, RH_CONV_BACKWARD_TAIL, dtype, taps - 1, s->heads * s->v, pad, FILL_RANDOM);
	delta_put_ends(&c, s, (struct delta_ends){RH_CONV_BACKWARD_D_END, RH_CONV_BACKWARD_D_TAIL, RH_F32, taps - 1, s->heads * s->v, 1},
	               pad);
	c.tolerance[RH_CONV_BACKWARD_DX] = c.tolerance[RH_CONV_BACKWARD_D_TAIL] = 0x1p-19;
	c.tolerance[RH_CONV_BACKWARD_DW] = 0x1p-14; /* 400 terms within 1 */
	return c;
}

static inline void same_bits(struct rh_view a, struct rh_view b)
{
	for (int64_t r = 0; r < a.rows; r++)
		assert_memory_equal((char *)a.data + rh_dtype_bytes(a.dtype, r * a.stride),
		                    (char *)b.data + rh_dtype_bytes(b.dtype, r * b.stride), (size_t)rh_dtype_bytes(a.dtype, a.cols));
}

/* Packed documents as one op, and cut at multiples of the rule's grid within a document: 70 and 134 of the second. */
enum { PACKED_ROWS = 330, PACKED_RUNS = 3 };
static const struct delta_shape packed_whole = {2, 4, 16, 20, 0, 3, {70, 230, 30}};
static const struct {
	int first, end, documents, start[4];
} packed_run[PACKED_RUNS] = {{0, 134, 2, {0, 70, 134}}, {134, 198, 1, {0, 64}}, {198, 330, 2, {0, 102, 132}}};

/* What its operands of PACKED_ROWS rows are of one run. */
static inline struct rh_op packed_op(const struct rh_op *whole, int run, int32_t *starts)
{
	struct rh_op op = *whole;
	int first = packed_run[run].first, rows = packed_run[run].end - first, documents = packed_run[run].documents;
	for (int i = 0; i < rh_op_info(op.kind)->operands; i++)
		if (op.operand[i].rows == PACKED_ROWS)
			op.operand[i] = rh_view_rows(op.operand[i], first, rows);
	for (int d = 0; d <= documents; d++)
		starts[d] = packed_run[run].start[d];
	if (op.kind == RH_OP_CONV || op.kind == RH_OP_CONV_BACKWARD)
		op.conv.documents = documents;
	else
		op.delta.documents = documents;
	op.operand[op.kind == RH_OP_CONV || op.kind == RH_OP_CONV_BACKWARD ? RH_CONV_START : RH_DELTA_START] =
	        rh_view_of(starts, RH_I32, documents + 1, 1);
	return op;
}

/* Who runs an op. */
struct delta_way {
	void (*run)(struct rh_op *op, void *context);
	void *context;
};

static inline void run_checked(struct delta_way way, struct rh_op *op)
{
	assert_null(rh_op_fault(op));
	way.run(op, way.context);
}

/* An op's ends; -1: it has none. */
struct ends {
	int state, in, out;
};

/* The documents are the other case's. */
static inline void take_inputs(struct op_case *c, const struct op_case *from)
{
	int is_conv = c->op.kind == RH_OP_CONV || c->op.kind == RH_OP_CONV_BACKWARD;
	for (int i = 0; i <= (is_conv ? (int)RH_CONV_START : (int)RH_DELTA_START); i++) {
		free(c->buffer[i].bytes);
		case_take(c, i, from, i);
	}
}

static inline void drop(struct rh_op *op, struct ends ends)
{
	for (int i = 0; i < 3; i++) {
		int operand = (&ends.state)[i];
		if (operand >= 0)
			op->operand[operand] = (struct rh_view){0};
	}
}

/* Forward upwards, each run beginning with what the one before left; backward downwards, with gradients of what is behind it, and with what
 * the forwards had. All outputs of rows, and what is added up but for rounding, are those of the packed documents at once. */
static inline void packed_runs_equal_the_whole(struct op_case forward, struct op_case backward, struct ends of_forward,
                                               struct ends of_backward, struct delta_way way)
{
	static float state[PACKED_RUNS + 1][64 * 24], gradient[2][64 * 24]; /* before each run */
	take_inputs(&forward, &backward);
	struct op_case parts = case_clone(&forward), back = case_clone(&backward);
	enum rh_dtype dtype = forward.op.kind == RH_OP_CONV ? forward.op.operand[RH_CONV_X].dtype : RH_F32;
	int64_t rows = backward.op.kind == RH_OP_CONV_BACKWARD ? 3 : 64, cols = backward.op.kind == RH_OP_CONV_BACKWARD ? 80 : 20;
	int32_t starts[4];
	drop(&forward.op, of_forward);
	drop(&backward.op, of_backward);
	run_checked(way, &forward.op);
	run_checked(way, &backward.op);
	for (int run = 0; run < PACKED_RUNS; run++) {
		struct rh_op op = packed_op(&parts.op, run, starts);
		drop(&op, of_forward);
		if (run)
			op.operand[of_forward.in] = rh_view_of(state[run], dtype, rows, cols);
		op.operand[of_forward.out] = rh_view_of(state[run + 1], dtype, rows, cols);
		run_checked(way, &op);
	}
	for (int run = PACKED_RUNS - 1; run >= 0; run--) {
		struct rh_op op = packed_op(&back.op, run, starts);
		drop(&op, of_backward);
		if (run)
			op.operand[of_backward.state] = rh_view_of(state[run], dtype, rows, cols);
		if (run + 1 < PACKED_RUNS)
			op.operand[of_backward.in] = rh_view_of(gradient[(run + 1) % 2], RH_F32, rows, cols);
		if (run)
			op.operand[of_backward.out] = rh_view_of(gradient[run % 2], RH_F32, rows, cols);
		run_checked(way, &op);
	}
	for (int i = 0; i < rh_op_info(forward.op.kind)->operands; i++)
		if (rh_op_info(forward.op.kind)->operand[i].access == RH_ACCESS_OUT)
			same_bits(forward.op.operand[i], parts.op.operand[i]);
	for (int i = 0; i < rh_op_info(backward.op.kind)->operands; i++) {
		struct rh_view a = backward.op.operand[i], b = back.op.operand[i];
		if (rh_op_info(backward.op.kind)->operand[i].access == RH_ACCESS_OUT)
			same_bits(a, b);
		for (int64_t r = 0; rh_op_info(backward.op.kind)->operand[i].access == RH_ACCESS_INOUT && r < a.rows; r++)
			for (int64_t k = 0; k < a.cols; k++)
				assert_true(fabs(case_get(a, r, k) - case_get(b, r, k)) < 1e-4);
	}
	case_free(&forward);
	case_free(&backward);
	case_free(&parts);
	case_free(&back);
}

/* Both ops and their gradients. */
static inline void delta_check_runs(enum rh_dtype dtype, void (*run)(struct rh_op *op, void *context), void *context, uint64_t *seed)
{
	const struct delta_shape *s = &packed_whole;
	struct delta_way way = {run, context};
	packed_runs_equal_the_whole(delta_case(s, dtype, 0, seed), delta_backward_case(s, dtype, 0, seed),
	                            (struct ends){-1, RH_DELTA_STATE, RH_DELTA_END},
	                            (struct ends){RH_DELTA_BACKWARD_STATE, RH_DELTA_BACKWARD_D_END, RH_DELTA_BACKWARD_D_STATE}, way);
	packed_runs_equal_the_whole(conv_case(s, 4, dtype, 0, seed), conv_backward_case(s, 4, dtype, 0, seed),
	                            (struct ends){-1, RH_CONV_TAIL, RH_CONV_END},
	                            (struct ends){RH_CONV_BACKWARD_TAIL, RH_CONV_BACKWARD_D_END, RH_CONV_BACKWARD_D_TAIL}, way);
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
