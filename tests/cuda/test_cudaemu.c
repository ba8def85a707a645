/* The emulation itself: what it computes, and what it finds. */
#include "check.h"

#include "core/float16.h"
#include "cudaemu_control.h"
#include "probe.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_mma_multiplies(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	float a[16 * 16], b[16 * 8], d[16 * 8];
	uint16_t a16[16 * 16], b16[16 * 8];
	for (int i = 0; i < 16 * 16; i++) {
		a16[i] = rh_f32_to_bf16(check_uniform(&seed));
		a[i] = rh_bf16_to_f32(a16[i]);
	}
	for (int i = 0; i < 16 * 8; i++) {
		b16[i] = rh_f32_to_bf16(check_uniform(&seed));
		b[i] = rh_bf16_to_f32(b16[i]);
	}
	check_ok(probe_product_bf16(a16, b16, d, NULL));
	for (int row = 0; row < 16; row++) {
		for (int col = 0; col < 8; col++) {
			double sum = 0;
			for (int k = 0; k < 16; k++)
				sum += (double)a[row * 16 + k] * (double)b[k * 8 + col];
			assert_true(fabs(sum - (double)d[row * 8 + col]) < 0x1p-19); /* 16 products within 1, sums rounded */
		}
	}
}

static void test_warp_functions(void **state)
{
	(void)state;
	float x[32], out[128];
	uint32_t positive = 0;
	for (int i = 0; i < 32; i++) {
		x[i] = (float)(i * 7 % 32 - 16);
		positive |= (uint32_t)(x[i] > 0) << i;
	}
	for (int order = 0; order < CUDAEMU_ORDERS; order++) {
		cudaemu_set_order((enum cudaemu_order)order, 5);
		check_ok(probe_warp(x, out, NULL));
		for (int i = 0; i < 32; i++) {
			assert_true(out[i] == -16 && out[32 + i] == 15 && out[64 + i] == x[(i + 31) % 32]);
			assert_int_equal(rh_f32_bits(out[96 + i]), positive);
		}
	}
}

static void test_copy_async_lands_at_the_wait(void **state)
{
	(void)state;
	_Alignas(16) float x[256], y[256];
	for (int i = 0; i < 256; i++)
		x[i] = (float)(i + 1);
	check_ok(probe_copy(x, y, 199, 1, NULL));
	for (int i = 0; i < 256; i++)
		assert_true(y[i] == (i < 199 ? x[i] : 0));
	check_ok(probe_copy(x, y, 199, 0, NULL));
	for (int i = 0; i < 256; i++)
		assert_true(isnan(y[i]));
}

typedef int reverse_entry(const float *x, float *y, enum probe_barrier barrier, struct CUstream_st *stream);

static void check_reverse(reverse_entry *reverse)
{
	float x[64], y[CUDAEMU_ORDERS][64];
	for (int i = 0; i < 64; i++)
		x[i] = (float)i;
	for (int order = 0; order < CUDAEMU_ORDERS; order++) {
		cudaemu_set_order((enum cudaemu_order)order, 7);
		check_ok(reverse(x, y[order], PROBE_WITH_BARRIER, NULL));
		for (int i = 0; i < 64; i++)
			assert_true(y[order][i] == x[63 - i]);
	}
	for (int order = 0; order < CUDAEMU_ORDERS; order++) {
		cudaemu_set_order((enum cudaemu_order)order, 7);
		check_ok(reverse(x, y[order], PROBE_WITHOUT_BARRIER, NULL));
	}
	assert_memory_not_equal(y[CUDAEMU_ASCENDING], y[CUDAEMU_DESCENDING], sizeof y[0]);
	assert_memory_not_equal(y[CUDAEMU_ASCENDING], y[CUDAEMU_RANDOM], sizeof y[0]);
}

static void test_orders_find_a_missing_barrier(void **state)
{
	(void)state;
	check_reverse(probe_reverse);
	check_reverse(probe_reverse_dynamic);
}

/* Runs the fault in a child; its error text in `said`, and whether it died. */
static int dies_of(enum probe_fault fault, char *said, size_t size)
{
	int ends[2], status;
	assert_int_equal(pipe(ends), 0);
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child) {
		float *y = calloc(68, sizeof *y);
		signal(SIGABRT, SIG_DFL);
		dup2(ends[1], STDERR_FILENO);
		_exit(!y || probe_fault(fault, y, NULL) < 0);
	}
	close(ends[1]);
	size_t length = 0;
	for (ssize_t got; (got = read(ends[0], said + length, size - 1 - length)) > 0;)
		length += (size_t)got;
	said[length] = 0;
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void test_wrong_kernels_abort(void **state)
{
	(void)state;
	static const char *const words[PROBE_FAULTS] = {
	        [PROBE_HALF_AT_BARRIER] = "divergent barrier at", [PROBE_TWO_BARRIERS] = "divergent barrier: this thread is at",
	        [PROBE_HALF_WARP_SHUFFLES] = "divergent warp",    [PROBE_TWO_WARP_FUNCTIONS] = "different warp-wide functions",
	        [PROBE_MISALIGNED] = "no multiple of 16",         [PROBE_DYNAMIC_TOO_LONG] = "dynamic array second",
	        [PROBE_DYNAMIC_OVERLAP] = "dynamic array second", [PROBE_SHARED_TOO_LARGE] = "at most 101376",
	        [PROBE_EMPTY_GRID] = "a grid of (0,1,1)",
	};
	static char said[1 << 16];
	cudaemu_set_order(CUDAEMU_ASCENDING, 0);
	for (int fault = 0; fault < PROBE_FAULTS; fault++) {
		int died = dies_of((enum probe_fault)fault, said, sizeof said);
		if (!died || !strstr(said, words[fault]))
			print_error("fault %d: %s, saying: %s\n", fault, died ? "died" : "lived", said);
		assert_true(died && strstr(said, words[fault]));
	}
}

static void test_asan_sees_shared_overflows(void **state)
{
	(void)state;
#ifdef __SANITIZE_ADDRESS__
	static char said[1 << 16];
	assert_true(dies_of(PROBE_SHARED_OVERFLOW, said, sizeof said));
	assert_non_null(strstr(said, "heap-buffer-overflow"));
#else
	printf("without AddressSanitizer: the same program built with it checks this\n");
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_mma_multiplies),
	        cmocka_unit_test(test_warp_functions),
	        cmocka_unit_test(test_copy_async_lands_at_the_wait),
	        cmocka_unit_test(test_orders_find_a_missing_barrier),
	        cmocka_unit_test(test_wrong_kernels_abort),
	        cmocka_unit_test(test_asan_sees_shared_overflows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
