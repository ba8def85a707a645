/* The gated delta rule with its convolution and its gate: kernels against the oracle, which is its definition token by token; the oracle
 * against differences; a document in runs; speed is bench/delta.c's. */
#include "delta_case.h"
#include "derivative.h"

static const struct delta_shape shapes[] = {
        {1, 1, 4, 4, 0, 1, {1}},
        {1, 1, 16, 16, 0, 1, {63}},
        {1, 2, 16, 8, 0, 1, {64}},
        {2, 4, 8, 12, 0, 1, {65}},
        {2, 2, 5, 7, 3, 3, {90, 1, 37}},            /* rows outside */
        {1, 3, 128, 128, 0, 2, {70, 130}},          /* Qwen3.5's heads */
        {2, 6, 12, 20, 0, 6, {0, 64, 0, 66, 1, 0}}, /* empty documents */
        {1, 1, 8, 8, 0, 1, {4097}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void test_delta_equals_its_definition(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < SHAPES; i++)
		for (int bf16 = 0; bf16 < 2; bf16++) {
			struct op_case c = delta_case(&shapes[i], bf16 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, &seed),
			               state_alone = case_clone(&c);
			state_alone.op.operand[RH_DELTA_O] = (struct rh_view){0};
			case_check(&c);
			case_check(&state_alone);
		}
}

static void test_delta_backward_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < SHAPES; i++)
		for (int bf16 = 0; bf16 < 2; bf16++) {
			struct op_case c = delta_backward_case(&shapes[i], bf16 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, &seed);
			case_check(&c);
		}
}

static void test_conv_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < SHAPES - 1; i++)
		for (int taps = 1; taps <= RH_CONV_MOST; taps += taps < 5 ? 3 : 4)
			for (int bf16 = 0; bf16 < 2; bf16++) {
				struct op_case forward = conv_case(&shapes[i], taps, bf16 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, &seed);
				struct op_case backward =
				        conv_backward_case(&shapes[i], taps, bf16 ? RH_BF16 : RH_F32, i % 3 ? 0 : 5, &seed);
				case_check(&forward);
				case_check(&backward);
			}
}

static void test_gate_equals_the_oracle(void **state)
{
	(void)state;
	static const int64_t lengths[] = {1, 3, 16, 17, 67, 128, 256};
	uint64_t seed = check_seed();
	for (int i = 0; i < 56; i++) {
		int64_t rows = i % 4 == 3 ? case_between(&seed, 100, 140) : case_between(&seed, 0, 9);
		struct case_shape shape = {i & 8 ? RH_BF16 : RH_F32, rows, lengths[i % 7], i & 16 ? 5 : 0, i};
		struct op_case forward = gate_case(&shape, &seed), backward = gate_backward_case(&shape, &seed);
		case_check(&forward);
		case_check(&backward);
	}
}

/* Rows [first, end) of a document, as of one that ends there. */
static struct rh_op run_of(const struct rh_op *whole, int64_t first, int64_t end, int32_t *starts, int rows, int last)
{
	struct rh_op op = *whole;
	starts[0] = 0;
	starts[1] = (int32_t)(end - first);
	for (int i = 0; i <= last; i++)
		if (op.operand[i].rows == rows)
			op.operand[i] = rh_view_rows(op.operand[i], first, end - first);
	op.operand[op.kind == RH_OP_CONV ? RH_CONV_START : RH_DELTA_START] = rh_view_of(starts, RH_I32, 2, 1);
	return op;
}

/* As generation has it: a prompt, then token after token, with what the layer carries. in, end: before a run, and behind it. */
static void runs_equal_the_whole(struct op_case whole, int rows, int out, int in, int end)
{
	static const int64_t cuts[] = {0, 70, 71, 72, 100, 163, 170};
	struct op_case parts = case_clone(&whole);
	struct cpu_context context = {.isa = rh_cpu_best_isa()};
	check_ok(rh_pool_create(1, &context.pool));
	check_ok(cpu_run(&context, &whole.op));
	for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
		int32_t starts[2];
		struct rh_op op = run_of(&parts.op, cuts[i], cuts[i + 1], starts, rows, out);
		op.operand[in] = op.operand[i ? end : in];
		assert_null(rh_op_fault(&op));
		check_ok(cpu_run(&context, &op));
	}
	rh_pool_destroy(context.pool);
	for (int which = 0; which < 2; which++) {
		struct rh_view a = whole.op.operand[which ? end : out], b = parts.op.operand[which ? end : out];
		for (int64_t r = 0; r < a.rows; r++)
			for (int64_t k = 0; k < a.cols; k++)
				assert_true(fabs(case_get(a, r, k) - case_get(b, r, k)) < 1e-5);
	}
	case_free(&whole);
	case_free(&parts);
}

static void test_runs_of_a_document_equal_it_at_once(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	const struct delta_shape s = {2, 4, 16, 20, 0, 1, {170}};
	runs_equal_the_whole(delta_case(&s, RH_F32, 0, &seed), 170, RH_DELTA_O, RH_DELTA_STATE, RH_DELTA_END);
	runs_equal_the_whole(conv_case(&s, 4, RH_F32, 0, &seed), 170, RH_CONV_Y, RH_CONV_TAIL, RH_CONV_END);
}

static void run_on_cpu(struct rh_op *op, void *context)
{
	check_ok(cpu_run(context, op));
}

static void test_packed_runs_equal_the_documents_at_once(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct cpu_context context = {.isa = rh_cpu_best_isa()};
	check_ok(rh_pool_create(3, &context.pool));
	for (int bf16 = 0; bf16 < 2; bf16++)
		delta_check_runs(bf16 ? RH_BF16 : RH_F32, run_on_cpu, &context, &seed);
	rh_pool_destroy(context.pool);
}

/* A document's rows do not depend on what is packed around them, to the last bit. */
static void test_a_packed_document_equals_it_alone(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	const struct delta_shape packed = {2, 4, 16, 24, 0, 3, {61, 113, 20}}, alone = {2, 4, 16, 24, 0, 1, {113}};
	struct op_case all = delta_case(&packed, RH_F32, 0, &seed), one = delta_case(&alone, RH_F32, 0, &seed);
	for (int i = RH_DELTA_Q; i <= RH_DELTA_A; i++) {
		int64_t row = all.op.operand[i].cols * 4;
		memcpy(one.op.operand[i].data, (char *)all.op.operand[i].data + 61 * row, (size_t)(113 * row));
	}
	for (int i = RH_DELTA_A_LOG; i <= RH_DELTA_DT_BIAS; i++)
		memcpy(one.op.operand[i].data, all.op.operand[i].data, 16);
	memset(one.op.operand[RH_DELTA_STATE].data, 0, 4 * 16 * 24 * 4);
	case_run(&all, rh_cpu_best_isa(), 1);
	case_run(&one, rh_cpu_best_isa(), 1);
	assert_memory_equal(one.op.operand[RH_DELTA_O].data, (char *)all.op.operand[RH_DELTA_O].data + 61 * 4 * 24 * 4, 113 * 4 * 24 * 4);
	case_free(&all);
	case_free(&one);
}

static void zero(struct rh_view view)
{
	for (int64_t r = 0; r < view.rows; r++)
		for (int64_t k = 0; k < view.cols; k++)
			case_put(view, r, k, 0);
}

static struct rh_view put_again(struct op_case *c, int operand, int64_t rows, int64_t cols, enum op_fill fill)
{
	free(c->buffer[operand].bytes);
	return case_operand(c, operand, RH_F32, rows, cols, 0, fill);
}

/* A loss of the outputs, or of the state behind the documents; both begin with a state. */
static void check_delta_derivative(int of_end, uint64_t *seed)
{
	double cotangent[MOST];
	const struct delta_shape s = {1, 2, 3, 4, 0, 2, {5, 3}};
	struct op_case f = delta_case(&s, RH_F32, 0, seed), b = delta_backward_case(&s, RH_F32, 0, seed);
	for (int i = RH_DELTA_Q; i <= RH_DELTA_K; i++) /* long vectors: their directions turn little within a step */
		for (int64_t r = 0; r < f.op.operand[i].rows; r++)
			for (int64_t k = 0; k < f.op.operand[i].cols; k++)
				case_put(f.op.operand[i], r, k, 4 * case_get(f.op.operand[i], r, k));
	take_inputs(&b, &f);
	for (int i = RH_DELTA_BACKWARD_DA_LOG; i <= RH_DELTA_BACKWARD_DDT_BIAS; i++)
		zero(put_again(&b, i, 1, s.heads, FILL_NONE));
	put_again(&f, RH_DELTA_STATE, 6, 4, FILL_RANDOM);
	put_again(&f, RH_DELTA_END, 6, 4, FILL_POISON);
	free(b.buffer[RH_DELTA_BACKWARD_STATE].bytes);
	case_take(&b, RH_DELTA_BACKWARD_STATE, &f, RH_DELTA_STATE);
	put_again(&b, RH_DELTA_BACKWARD_D_END, 6, 4, FILL_NONE);
	put_again(&b, RH_DELTA_BACKWARD_D_STATE, 6, 4, FILL_POISON);
	cotangent_for(b.op.operand[of_end ? RH_DELTA_BACKWARD_D_END : RH_DELTA_BACKWARD_DO], cotangent, seed);
	zero(b.op.operand[of_end ? RH_DELTA_BACKWARD_DO : RH_DELTA_BACKWARD_D_END]);
	rh_op_oracle(&b.op);
	int output = of_end ? RH_DELTA_END : RH_DELTA_O;
	for (int i = RH_DELTA_Q; i <= RH_DELTA_DT_BIAS; i++)
		check_derivative(&f, output, cotangent, i, b.op.operand[RH_DELTA_BACKWARD_DQ + i]);
	check_derivative(&f, output, cotangent, RH_DELTA_STATE, b.op.operand[RH_DELTA_BACKWARD_D_STATE]);
	case_free(&f);
	case_free(&b);
}

static void test_delta_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	check_delta_derivative(0, &seed);
	check_delta_derivative(1, &seed);
}

static void test_conv_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	const struct delta_shape s = {1, 2, 3, 4, 0, 2, {7, 3}};
	struct op_case f = conv_case(&s, 4, RH_F32, 0, &seed), b = conv_backward_case(&s, 4, RH_F32, 0, &seed);
	put_again(&f, RH_CONV_TAIL, 3, 8, FILL_RANDOM);
	put_again(&f, RH_CONV_END, 3, 8, FILL_POISON);
	take_inputs(&b, &f);
	free(b.buffer[RH_CONV_BACKWARD_TAIL].bytes);
	case_take(&b, RH_CONV_BACKWARD_TAIL, &f, RH_CONV_TAIL);
	b.op.operand[RH_CONV_BACKWARD_D_END] = b.op.operand[RH_CONV_BACKWARD_D_TAIL] = (struct rh_view){0};
	zero(put_again(&b, RH_CONV_BACKWARD_DW, 8, 4, FILL_NONE));
	cotangent_for(b.op.operand[RH_CONV_BACKWARD_DY], cotangent, &seed);
	rh_op_oracle(&b.op);
	check_derivative(&f, RH_CONV_Y, cotangent, RH_CONV_X, b.op.operand[RH_CONV_BACKWARD_DX]);
	check_derivative(&f, RH_CONV_Y, cotangent, RH_CONV_W, b.op.operand[RH_CONV_BACKWARD_DW]);
	case_free(&f);
	case_free(&b);
}

static void test_gate_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	for (int index = 0; index < 8; index++) {
		struct case_shape s = {RH_F32, 5, 9, 1, index};
		struct op_case f = gate_case(&s, &seed), b = gate_backward_case(&s, &seed);
		struct rh_op *op = &b.op;
		int is_normed = op->operand[RH_GATE_BACKWARD_W].data != NULL;
		memcpy(op->operand[RH_GATE_BACKWARD_X].data, f.op.operand[RH_GATE_X].data, f.buffer[RH_GATE_X].size);
		memcpy(op->operand[RH_GATE_BACKWARD_Z].data, f.op.operand[RH_GATE_Z].data, f.buffer[RH_GATE_Z].size);
		rh_op_oracle(&f.op);
		if (is_normed) {
			memcpy(op->operand[RH_GATE_BACKWARD_W].data, f.op.operand[RH_GATE_W].data, f.buffer[RH_GATE_W].size);
			memcpy(op->operand[RH_GATE_BACKWARD_RSTD].data, f.op.operand[RH_GATE_RSTD].data, f.buffer[RH_GATE_RSTD].size);
			free(b.buffer[RH_GATE_BACKWARD_DW].bytes);
			zero(case_operand(&b, RH_GATE_BACKWARD_DW, RH_F32, 1, 9, 0, FILL_NONE));
		}
		cotangent_for(op->operand[RH_GATE_BACKWARD_DY], cotangent, &seed);
		rh_op_oracle(op);
		check_derivative(&f, RH_GATE_Y, cotangent, RH_GATE_X, op->operand[RH_GATE_BACKWARD_DX]);
		check_derivative(&f, RH_GATE_Y, cotangent, RH_GATE_Z, op->operand[RH_GATE_BACKWARD_DZ]);
		if (is_normed)
			check_derivative(&f, RH_GATE_Y, cotangent, RH_GATE_W, op->operand[RH_GATE_BACKWARD_DW]);
		case_free(&f);
		case_free(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_delta_equals_its_definition),
	        cmocka_unit_test(test_delta_backward_equals_the_oracle),
	        cmocka_unit_test(test_conv_equals_the_oracle),
	        cmocka_unit_test(test_gate_equals_the_oracle),
	        cmocka_unit_test(test_runs_of_a_document_equal_it_at_once),
	        cmocka_unit_test(test_packed_runs_equal_the_documents_at_once),
	        cmocka_unit_test(test_a_packed_document_equals_it_alone),
	        cmocka_unit_test(test_delta_backward_is_the_derivative),
	        cmocka_unit_test(test_conv_backward_is_the_derivative),
	        cmocka_unit_test(test_gate_backward_is_the_derivative),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
