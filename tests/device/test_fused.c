/* Fused ops on the CPU device: against the oracle, and bit for bit what their parts leave. */
#include "fused_case.h"

#include "device/device.h"

static int run_part(void *context, const struct rh_op *part)
{
	return cpu_run(context, part);
}

/* The kernels of each instruction set against the oracle (case_check); and the parts alone, on one thread. */
static void check(struct op_case *c, uint64_t *seed)
{
	(void)seed;
	struct op_case whole = case_clone(c), parts = case_clone(c);
	struct cpu_context context = {.isa = RH_CPU_BASE};
	assert_null(rh_op_fault(&c->op));
	case_run(&whole, RH_CPU_BASE, 2);
	check_ok(rh_pool_create(1, &context.pool));
	check_ok(rh_op_parts(&parts.op, run_part, &context));
	rh_pool_destroy(context.pool);
	rh_op_amax(&parts.op);
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (c->buffer[i].bytes)
			assert_memory_equal(whole.buffer[i].bytes, parts.buffer[i].bytes, c->buffer[i].size);
	case_free(&whole);
	case_free(&parts);
	case_check(c);
}

static void test_add_rmsnorm_equals_its_parts(void **state)
{
	(void)state;
	fused_add_rmsnorm_each(check);
}

static void test_qk_rope_equals_its_parts(void **state)
{
	(void)state;
	fused_heads_each(check);
}

static void test_lora_equals_its_parts(void **state)
{
	(void)state;
	fused_lora_each(check);
}

/* The six ops of one adapter, worked out by hand: x (2,2), A (1,2), B (2,1), scale 2. */
static void test_lora_of_one_adapter_known_answers(void **state)
{
	(void)state;
	float x[] = {1, 2, 3, -1}, a[] = {0.5f, 0.25f}, b[] = {4, -2}, dy[] = {1, 0, 0.5f, 1}, low[2], y[4], d_low[2], dx[4], da[] = {1, 1},
	      db[] = {0, 0};
	struct rh_op op = {.lora = {.out = {2}, .scale = {2}}};
	struct {
		enum rh_op_kind kind;
		float *wide, *low, *matrix;
		int64_t rows, cols;
	} steps[] = {{RH_OP_LORA_LOW, x, low, a, 1, 2},
	             {RH_OP_LORA_PART, y, low, b, 2, 1},
	             {RH_OP_LORA_LOW_GRADIENT, dy, d_low, b, 2, 1},
	             {RH_OP_LORA_INPUT_GRADIENT, dx, d_low, a, 1, 2},
	             {RH_OP_LORA_A_GRADIENT, x, d_low, da, 1, 2},
	             {RH_OP_LORA_B_GRADIENT, dy, low, db, 2, 1}};
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		op.kind = steps[i].kind;
		op.operand[RH_LORA_WIDE] = rh_view_of(steps[i].wide, RH_F32, 2, 2);
		op.operand[RH_LORA_LOWS] = rh_view_of(steps[i].low, RH_F32, 2, 1);
		op.operand[RH_LORA_MATRICES] = rh_view_of(steps[i].matrix, RH_F32, steps[i].rows, steps[i].cols);
		assert_null(rh_op_fault(&op));
		rh_op_oracle(&op);
	}
	const float want_low[] = {1, 1.25f}, want_y[] = {8, -4, 10, -5}, want_d_low[] = {8, 0}, want_dx[] = {4, 2, 0, 0};
	const float want_da[] = {9, 17}, want_db[] = {3.25f, 2.5f};
	assert_memory_equal(low, want_low, sizeof low);
	assert_memory_equal(y, want_y, sizeof y);
	assert_memory_equal(d_low, want_d_low, sizeof d_low);
	assert_memory_equal(dx, want_dx, sizeof dx);
	assert_memory_equal(da, want_da, sizeof da);
	assert_memory_equal(db, want_db, sizeof db);
}

/* A device keeps ops until their turn: all of what says which elements are dropped must come through. */
static void test_lora_through_the_device_drops_the_same(void **state)
{
	(void)state;
	enum { ROWS = 9, IN = 40, RANK = 4, BYTES = 64 << 10 };
	struct rh_cpu_options options = {.threads = 1, .cap_bytes = BYTES};
	struct cpu_context context = {.isa = RH_CPU_BASE};
	struct rh_device *device;
	float x[ROWS * IN], a[RANK * IN], space[ROWS * IN], want[ROWS * RANK], got[ROWS * RANK];
	struct rh_op op = {.kind = RH_OP_LORA_LOW,
	                   .lora = {.out = {8}, .scale = {1}, .p = 0.5f, .site = {5}, .step = 7, .micro_batch = 3, .seed = 1ull << 40 | 9}};
	uint64_t seed = check_seed();
	void *base;
	for (int i = 0; i < ROWS * IN; i++)
		x[i] = check_uniform(&seed);
	for (int i = 0; i < RANK * IN; i++)
		a[i] = check_uniform(&seed);
	op.operand[RH_LORA_WIDE] = rh_view_of(x, RH_F32, ROWS, IN);
	op.operand[RH_LORA_LOWS] = rh_view_of(want, RH_F32, ROWS, RANK);
	op.operand[RH_LORA_MATRICES] = rh_view_of(a, RH_F32, RANK, IN);
	op.operand[RH_LORA_SPACE] = rh_view_of(space, RH_F32, ROWS, IN);
	check_ok(rh_pool_create(1, &context.pool));
	check_ok(cpu_run(&context, &op));
	rh_pool_destroy(context.pool);

	check_ok(rh_cpu_open(0, &options, &device));
	check_ok(device->ops->reserve(device, BYTES, &base));
	char *at = base;
	op.operand[RH_LORA_WIDE].data = at, op.operand[RH_LORA_MATRICES].data = at + 8192;
	op.operand[RH_LORA_LOWS].data = at + 16384, op.operand[RH_LORA_SPACE].data = at + 24576;
	check_ok(device->ops->copy_up(device, RH_STREAM_COMPUTE, at, x, sizeof x));
	check_ok(device->ops->copy_up(device, RH_STREAM_COMPUTE, at + 8192, a, sizeof a));
	check_ok(device->ops->launch(device, RH_STREAM_COMPUTE, &op));
	check_ok(device->ops->copy_down(device, RH_STREAM_COMPUTE, got, at + 16384, sizeof got));
	check_ok(device->ops->synchronize(device));
	device->ops->close(device);
	for (int i = 0; i < ROWS * RANK; i++)
		assert_true(fabsf(got[i] - want[i]) <= 1e-5f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_add_rmsnorm_equals_its_parts),
	        cmocka_unit_test(test_qk_rope_equals_its_parts),
	        cmocka_unit_test(test_lora_equals_its_parts),
	        cmocka_unit_test(test_lora_of_one_adapter_known_answers),
	        cmocka_unit_test(test_lora_through_the_device_drops_the_same),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
