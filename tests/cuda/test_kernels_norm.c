#include "kernel_case.h"

#include "cuda/kernels.h"

/* Around a chunk, a warp's chunks, the longest vector of a warp, and of a block's one round. */
static const int lengths[] = {1, 7, 8, 9, 64, 100, 255, 256, 257, 1024, 1025, 2056};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static void check_rmsnorm(const struct case_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_RMSNORM, .op.rmsnorm = {s->index % 2 ? 3 : 1, 1e-5f, s->index % 3 ? 0 : 1}};
	int64_t rows = s->cols > 500 ? s->rows % 7 : s->rows, wide = c.op.rmsnorm.groups * s->cols;
	case_operand(&c, RH_RMSNORM_X, s->dtype, rows, wide, s->pad, FILL_RANDOM);
	case_operand(&c, RH_RMSNORM_W, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	case_operand(&c, RH_RMSNORM_RSTD, RH_F32, rows, c.op.rmsnorm.groups, s->pad, FILL_POISON);
	if (s->index % 3 == 0)
		case_alias(&c, RH_RMSNORM_Y, RH_RMSNORM_X);
	else
		case_operand(&c, RH_RMSNORM_Y, s->dtype, rows, wide, s->pad, FILL_POISON);
	if (s->index % 4)
		case_operand(&c, RH_RMSNORM_AMAX, RH_F32, rows, c.op.rmsnorm.groups, s->pad, FILL_POISON);
	kernel_check(&c, cuda_rmsnorm, seed); /* a sum of squares has no cancellation: the relative tolerance is enough */
}

static void test_rmsnorm_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_rmsnorm);
}

/* bf16 of whole chunks stays in registers: of a lane's one chunk, of several, of a block's one and more. */
static const int whole[] = {8, 128, 256, 264, 1024, 1032, 2048, 2056, 4096, 4104, 8192, 8200};
enum { WHOLE = sizeof whole / sizeof whole[0] };

static void test_rmsnorm_of_whole_chunks_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(whole, WHOLE, check_rmsnorm);
}

/* With room for blocks' parts, as the device runs it. */
static int backward_within(const struct rh_op *op, struct CUstream_st *stream)
{
	static _Alignas(16) char room[RH_RMSNORM_PART_BYTES];
	return cuda_rmsnorm_backward_within(op, room, stream);
}

static void check_backward(const struct case_shape *s, uint64_t *seed, kernel_entry *kernel)
{
	struct op_case c = {
	        .seed = seed, .op.kind = RH_OP_RMSNORM_BACKWARD, .op.rmsnorm = {s->index % 5 ? 1 : 3, 1e-5f, s->index % 3 ? 0 : 1}};
	int64_t groups = c.op.rmsnorm.groups, wide = groups * s->cols, rows = s->cols > 500 && s->rows < 200 ? s->rows % 7 : s->rows;
	case_operand(&c, RH_RMSNORM_BACKWARD_X, s->dtype, rows, wide, s->pad, FILL_RANDOM);
	case_operand(&c, RH_RMSNORM_BACKWARD_W, s->dtype, 1, s->cols, 0, FILL_RANDOM);
	struct rh_view rstd = case_operand(&c, RH_RMSNORM_BACKWARD_RSTD, RH_F32, rows, groups, s->pad, FILL_RANDOM);
	for (int64_t t = 0; t < rows; t++)
		for (int64_t g = 0; g < groups; g++)
			case_put(rstd, t, g, 1 + 0.5 * case_get(rstd, t, g));
	case_operand(&c, RH_RMSNORM_BACKWARD_DY, s->dtype, rows, wide, s->pad, FILL_RANDOM);
	if (s->index % 2)
		case_operand(&c, RH_RMSNORM_BACKWARD_ADD, s->dtype, rows, wide, s->pad, FILL_RANDOM);
	if (s->index % 3 == 0)
		case_alias(&c, RH_RMSNORM_BACKWARD_DX, RH_RMSNORM_BACKWARD_DY);
	else if (s->index % 3 == 1 && s->index % 2)
		case_alias(&c, RH_RMSNORM_BACKWARD_DX, RH_RMSNORM_BACKWARD_ADD);
	else
		case_operand(&c, RH_RMSNORM_BACKWARD_DX, s->dtype, rows, wide, s->pad, FILL_POISON);
	if (s->index % 4 < 3)
		case_operand(&c, RH_RMSNORM_BACKWARD_DW, RH_F32, 1, s->cols, 0, FILL_RANDOM);
	if (s->index % 4 > 1)
		case_operand(&c, RH_RMSNORM_BACKWARD_Y, s->dtype, rows, wide, s->pad, FILL_POISON);
	if (s->index % 3)
		case_operand(&c, RH_RMSNORM_BACKWARD_DX_AMAX, RH_F32, rows, groups, s->pad, FILL_POISON);
	if (s->index % 8 > 1 && s->index % 4 > 1)
		case_operand(&c, RH_RMSNORM_BACKWARD_Y_AMAX, RH_F32, rows, groups, s->pad, FILL_POISON);
	/* dx: a difference of terms within 4, in few roundings. dw: up to 420 terms within 2. In bf16 the difference is rounded once,
	 * so a relative tolerance of the result does. */
	c.tolerance[RH_RMSNORM_BACKWARD_DX] = 0x1p-19;
	c.tolerance[RH_RMSNORM_BACKWARD_DW] = 0x1p-17;
	kernel_check(&c, kernel, seed);
}

static void check_rmsnorm_backward(const struct case_shape *s, uint64_t *seed)
{
	check_backward(s, seed, cuda_rmsnorm_backward);
}

static void check_rmsnorm_backward_within(const struct case_shape *s, uint64_t *seed)
{
	check_backward(s, seed, backward_within);
}

static void test_rmsnorm_backward_equals_the_oracle(void **state)
{
	(void)state;
	kernel_each_shape(lengths, LENGTHS, check_rmsnorm_backward);
}

static void test_rmsnorm_backward_in_one_pass_equals_the_oracle(void **state)
{
	(void)state;
	static const struct case_shape turns = {RH_BF16, 300, 1032, 0, 1}; /* more vectors than blocks */
	uint64_t seed = check_seed();
	kernel_each_shape(whole, WHOLE, check_rmsnorm_backward_within);
	check_rmsnorm_backward_within(&turns, &seed);
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rmsnorm_equals_the_oracle),
	        cmocka_unit_test(test_rmsnorm_of_whole_chunks_equals_the_oracle),
	        cmocka_unit_test(test_rmsnorm_backward_equals_the_oracle),
	        cmocka_unit_test(test_rmsnorm_backward_in_one_pass_equals_the_oracle),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
