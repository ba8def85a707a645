/* Rows in chunks on emulated GPUs: losses and norms of gradients are the CPU device's, and the same bits on one GPU and on two. */
#include "train/chunk_case.h"

#include "cudaemu_control.h"

/* fp32: kernels sum in another order; bf16: every activation is rounded, some to the other neighbour. */
static void check_devices(const struct what *what, double tolerance)
{
	static const struct way cpu = {.device = "cpu:1", .is_brief = 1}, one = {.device = "emu:1", .is_brief = 1},
	                        two = {.device = "emu:2", .round = 1, .is_brief = 1};
	struct outcome expected = run(what, &cpu, RH_ATTENTION_TILE), got = run(what, &one, RH_ATTENTION_TILE),
	               other = run(what, &two, RH_ATTENTION_TILE);
	for (int step = 0; step < STEPS; step++) {
		printf("%s %s %s: loss %.6f, norm %.6f; on a CPU %.6f, %.6f\n", what->model, what->adapter ? what->adapter : "full",
		       rh_dtype_name(what->dtype), got.loss[step], got.norm[step], expected.loss[step], expected.norm[step]);
		assert_true(fabs(got.loss[step] - expected.loss[step]) <= tolerance * expected.loss[step]);
		assert_true(fabs(got.norm[step] - expected.norm[step]) <= 10 * tolerance * expected.norm[step]);
	}
	assert_true(expected.chunks > 2 && got.chunks == expected.chunks);
	assert_true(got.weights == other.weights && !memcmp(got.loss, other.loss, sizeof got.loss));
	cudaemu_release();
}

static void test_linear_attention_in_chunks_is_the_cpu_devices(void **state)
{
	(void)state;
	check_devices(&(struct what){.model = "qwen3.5", .adapter = "adapter"}, 1e-4);
	check_devices(&(struct what){.model = "qwen3.5-moe", .dtype = RH_BF16}, 5e-3);
}

static void test_attention_in_chunks_is_the_cpu_devices(void **state)
{
	(void)state;
	check_devices(&(struct what){.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25}, 1e-4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_linear_attention_in_chunks_is_the_cpu_devices),
	        cmocka_unit_test(test_attention_in_chunks_is_the_cpu_devices),
	};
	return cmocka_run_group_tests(tests, group_drives_make, group_drives_remove);
}
