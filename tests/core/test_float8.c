#include "check.h"

#include "core/float8.h"

#include <math.h>

struct format {
	int fraction, bias, codes; /* codes: finite ones of either sign, 0 among them */
	float largest;
	uint8_t (*to)(float value);
	float (*from)(uint8_t code);
};

static uint8_t to_e4m3(float value)
{
	return rh_f32_to_e4m3(value);
}

static uint8_t to_e5m2(float value)
{
	return rh_f32_to_e5m2(value);
}

static float from_e4m3(uint8_t code)
{
	return rh_e4m3_to_f32(code);
}

static float from_e5m2(uint8_t code)
{
	return rh_e5m2_to_f32(code);
}

static const struct format formats[] = {{3, 7, 0x7f, RH_E4M3_LARGEST, to_e4m3, from_e4m3},
                                        {2, 15, 0x7c, RH_E5M2_LARGEST, to_e5m2, from_e5m2}};

/* By the definition: 2^(e - bias) * 1.f, or 2^(1 - bias) * 0.f. */
static double worth(const struct format *f, int code)
{
	int exponent = code >> f->fraction, fraction = code & ((1 << f->fraction) - 1), ones = 1 << f->fraction;
	return exponent ? ldexp(ones + fraction, exponent - f->bias - f->fraction) : ldexp(fraction, 1 - f->bias - f->fraction);
}

static void test_float8_codes_are_worth_what_their_bits_say(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		const struct format *f = &formats[i];
		for (int code = 0; code < f->codes; code++) {
			assert_true((double)f->from((uint8_t)code) == worth(f, code));
			assert_true((double)f->from((uint8_t)(code | 0x80)) == -worth(f, code));
			assert_int_equal(f->to(f->from((uint8_t)code)), code);
			assert_int_equal(f->to(f->from((uint8_t)(code | 0x80))), code | 0x80);
		}
		assert_true(f->from((uint8_t)(f->codes - 1)) == f->largest);
		for (int code = f->codes; code < 0x80; code++)
			assert_true(isnan(f->from((uint8_t)code)) || (i == 1 && code == 0x7c && isinf(f->from((uint8_t)code))));
		assert_int_equal(f->to(NAN) & 0x7f, 0x7f);
		assert_int_equal(f->to(INFINITY), f->codes - 1);
		assert_int_equal(f->to(-2 * f->largest), 0x80 | (f->codes - 1));
	}
}

/* Against the nearest of all codes; of two as near, the one whose last bit is 0. */
static void test_float8_rounds_to_the_nearest_even(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2; i++) {
		const struct format *f = &formats[i];
		for (int n = 0; n < 20000; n++) {
			int power = (int)(check_random(&seed) % 40) - 26;
			double value = fabs((double)check_uniform(&seed)) * ldexp(1, power);
			if (n % 3 == 0) { /* a middle */
				int code = (int)(check_random(&seed) % (uint32_t)(f->codes - 1));
				value = (worth(f, code) + worth(f, code + 1)) / 2;
			}
			int best = 0;
			for (int code = 0; code < f->codes; code++) {
				double apart = fabs(worth(f, code) - value), least = fabs(worth(f, best) - value);
				best = apart < least || (apart == least && code % 2 == 0) ? code : best;
			}
			assert_int_equal(f->to((float)value), best);
			assert_int_equal(f->to((float)-value), best | 0x80);
		}
	}
}

static void test_power_scale_is_the_least_power_that_brings_within(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const float limits[] = {RH_E4M3_LARGEST, RH_E5M2_LARGEST, 4, 16, 32};
	for (int n = 0; n < 10000; n++) {
		float limit = limits[n % 5], most = fabsf(check_uniform(&seed)) * (float)ldexp(1, (int)(check_random(&seed) % 100) - 40);
		if (most == 0)
			continue;
		float scale = rh_power_scale(most, limit);
		int power;
		assert_true(frexpf(scale, &power) == 0.5f);
		assert_true(most <= limit * scale && (most > limit * scale / 2 || scale == 0x1p-60f));
	}
	assert_true(rh_power_scale(448, 448) == 1 && rh_power_scale(0, 448) == 1);
	assert_true(rh_power_scale(0x1p-140f, 448) == 0x1p-60f);
	assert_true(isnan(rh_power_scale(INFINITY, 448)) && isnan(rh_power_scale(NAN, 448)) && isnan(rh_power_scale(0x1p70f, 448)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_float8_codes_are_worth_what_their_bits_say),
	        cmocka_unit_test(test_float8_rounds_to_the_nearest_even),
	        cmocka_unit_test(test_power_scale_is_the_least_power_that_brings_within),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
