/* Coding for the wire: exact in the mean, near each time, in place, and the same in each run. */
#include "check.h"

#include "core/float16.h"
#include "link/wire.h"

#include <math.h>
#include <string.h>

enum { ROWS = 7, COLS = 37, VALUES = ROWS * COLS };

static void fill(float *value, uint64_t seed)
{
	for (int i = 0; i < VALUES; i++) {
		float size = ldexpf(1, (int)(check_random(&seed) % 30) - 20);
		value[i] = i / COLS == 3 ? 0 : size * ((float)check_random(&seed) / 2147483648.0f - 1);
	}
}

static void store(enum rh_dtype dtype, const float *value, char *memory)
{
	for (int i = 0; i < VALUES; i++) {
		uint16_t half = rh_f32_to_bf16(value[i]);
		memcpy(memory + i * rh_dtype_bytes(dtype, 1), dtype == RH_F32 ? (const void *)&value[i] : &half,
		       (size_t)rh_dtype_bytes(dtype, 1));
	}
}

static float load(enum rh_dtype dtype, const char *memory, int i)
{
	uint16_t half;
	float value;
	if (dtype == RH_F32)
		return memcpy(&value, memory + i * 4, 4), value;
	return memcpy(&half, memory + i * 2, 2), rh_bf16_to_f32(half);
}

static float largest_of(const float *value, int row)
{
	float largest = 0;
	for (int i = row * COLS; i < (row + 1) * COLS; i++)
		largest = fmaxf(largest, fabsf(value[i]));
	return largest;
}

/* Through the wire: the coded bytes alone arrive. */
static void pass(enum rh_wire wire, enum rh_dtype dtype, const struct rh_wire_draw *draw, const float *value, char *memory)
{
	char sent[VALUES * 4 + 64];
	int64_t bytes = rh_wire_bytes(wire, dtype, ROWS, COLS);
	store(dtype, value, sent);
	rh_wire_code(wire, dtype, ROWS, COLS, draw, sent);
	memset(memory, 0x5a, VALUES * 4);
	memcpy(memory, sent, (size_t)bytes);
	rh_wire_decode(wire, dtype, ROWS, COLS, memory);
}

static void test_bf16_is_the_nearest_and_as_is_is_untouched(void **state)
{
	(void)state;
	float value[VALUES];
	char memory[VALUES * 4];
	fill(value, check_seed());
	pass(RH_WIRE_BF16, RH_F32, NULL, value, memory);
	for (int i = 0; i < VALUES; i++)
		assert_true(load(RH_F32, memory, i) == rh_bf16_to_f32(rh_f32_to_bf16(value[i])));
	assert_int_equal(rh_wire_bytes(RH_WIRE_BF16, RH_F32, ROWS, COLS), VALUES * 2);
	assert_int_equal(rh_wire_bytes(RH_WIRE_BF16, RH_BF16, ROWS, COLS), VALUES * 2);
	assert_int_equal(rh_wire_bytes(RH_WIRE_INT8, RH_BF16, ROWS, COLS), ROWS * (COLS + 4));
	assert_int_equal(rh_wire_bytes(RH_WIRE_AS_IS, RH_F32, ROWS, COLS), VALUES * 4);
	pass(RH_WIRE_AS_IS, RH_F32, NULL, value, memory);
	assert_memory_equal(memory, value, sizeof value);
	pass(RH_WIRE_BF16, RH_BF16, NULL, value, memory);
	for (int i = 0; i < VALUES; i++)
		assert_true(load(RH_BF16, memory, i) == rh_bf16_to_f32(rh_f32_to_bf16(value[i])));
}

/* One step at most from the value each time; the mean of N draws within 5 of its standard deviations, each at most step / 2 / sqrt(N). */
static void test_int8_is_near_each_time_and_exact_in_the_mean(void **state)
{
	(void)state;
	enum { DRAWS = 4000 };
	static const enum rh_dtype dtypes[] = {RH_F32, RH_BF16};
	float value[VALUES];
	char memory[VALUES * 4];
	for (int d = 0; d < 2; d++) {
		static double sum[VALUES];
		memset(sum, 0, sizeof sum);
		fill(value, check_seed());
		for (int i = 0; i < VALUES && dtypes[d] == RH_BF16; i++)
			value[i] = rh_bf16_to_f32(rh_f32_to_bf16(value[i]));
		for (int n = 0; n < DRAWS; n++) {
			struct rh_wire_draw draw = {.seed = 42, .box = 1, .step = (uint32_t)n / 8, .micro_batch = (uint32_t)n % 8};
			pass(RH_WIRE_INT8, dtypes[d], &draw, value, memory);
			for (int i = 0; i < VALUES; i++) {
				double largest = (double)largest_of(value, i / COLS),
				       apart = (double)load(dtypes[d], memory, i) - (double)value[i];
				double rounded = dtypes[d] == RH_BF16 ? 0x1p-8 * largest : 1e-6 * largest; /* where the result is stored */
				assert_true(fabs(apart) <= largest / 127 + rounded);
				sum[i] += apart;
			}
		}
		for (int i = 0; i < VALUES; i++) {
			double step = (double)largest_of(value, i / COLS) / 127, own = fabs((double)value[i]) + step;
			double bound = 5 * step / 2 / sqrt(DRAWS) + (dtypes[d] == RH_BF16 ? 0x1p-9 * own : 1e-6 * own);
			if (!(fabs(sum[i] / DRAWS) <= bound))
				fail_msg("value %d (%g) is off by %g in the mean, bound %g", i, (double)value[i], sum[i] / DRAWS, bound);
		}
	}
}

static void test_int8_draws_are_each_message_s_own_and_repeat(void **state)
{
	(void)state;
	float value[VALUES];
	static const struct rh_wire_draw draw[] = {{1, 0, 5, 2, 0}, {1, 0, 5, 2, 0}, {2, 0, 5, 2, 0}, {1, 1, 5, 2, 0},
	                                           {1, 0, 6, 2, 0}, {1, 0, 5, 3, 0}, {1, 0, 5, 2, 1}};
	enum { DRAWN = sizeof draw / sizeof *draw };
	char memory[DRAWN][VALUES * 4];
	fill(value, check_seed());
	for (int i = 0; i < DRAWN; i++)
		pass(RH_WIRE_INT8, RH_F32, &draw[i], value, memory[i]);
	assert_memory_equal(memory[0], memory[1], sizeof memory[0]);
	for (int i = 2; i < DRAWN; i++)
		assert_memory_not_equal(memory[0], memory[i], sizeof memory[0]);
}

/* A gradient that is not finite must still be found where the norm is made. */
static void test_int8_of_a_value_that_is_not_finite_is_a_row_of_nans(void **state)
{
	(void)state;
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	float value[VALUES];
	char memory[VALUES * 4];
	for (int b = 0; b < 3; b++) {
		fill(value, check_seed());
		value[2 * COLS + 5] = bad[b];
		pass(RH_WIRE_INT8, RH_F32, &(struct rh_wire_draw){.seed = 1}, value, memory);
		for (int i = 0; i < VALUES; i++)
			assert_int_equal(isnan(load(RH_F32, memory, i)) != 0, i / COLS == 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_bf16_is_the_nearest_and_as_is_is_untouched),
	        cmocka_unit_test(test_int8_is_near_each_time_and_exact_in_the_mean),
	        cmocka_unit_test(test_int8_draws_are_each_message_s_own_and_repeat),
	        cmocka_unit_test(test_int8_of_a_value_that_is_not_finite_is_a_row_of_nans),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
