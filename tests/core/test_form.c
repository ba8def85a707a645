/* The table of forms. */
#include "check.h"

#include "core/form.h"

static void test_form_bytes_are_those_of_elements_and_scales(void **state)
{
	(void)state;
	assert_int_equal(rh_form_bytes(RH_FORM_Q8_0, 3, 64), 3 * 2 * 34);
	assert_int_equal(rh_form_scale_bytes(RH_FORM_Q8_0, 3, 64), 0);
	assert_int_equal(rh_form_element_bytes(RH_FORM_MXFP4, 3, 72), 3 * 36);
	assert_int_equal(rh_form_scale_bytes(RH_FORM_MXFP4, 3, 72), 3 * 3); /* the last run of a row is shorter */
	assert_int_equal(rh_form_bytes(RH_FORM_MXFP4, 3, 72), 3 * 39 + 3);  /* up to whole words */
	assert_int_equal(rh_form_bytes(RH_FORM_Q8_0, (int64_t)1 << 20, (int64_t)1 << 20), ((int64_t)1 << 40) / 32 * 34);
}

/* Elements, a scale for 64 of them or for 128 x 128, and what scales are made of: bytes a parameter, of 4096 x 4096. */
static void test_form_bytes_of_a_parameter(void **state)
{
	(void)state;
	static const struct {
		enum rh_form form;
		double bytes;
	} cases[] = {{RH_FORM_NF4, 0.5625},         {RH_FORM_NF4_NESTED, 0.516}, {RH_FORM_BNB_FP4_NESTED, 0.516}, {RH_FORM_NVFP4, 0.5625},
	             {RH_FORM_MXFP4, 0.53125},      {RH_FORM_INT8, 1.0},         {RH_FORM_FP8_BLOCKS, 1.0},       {RH_FORM_FP8, 1.0},
	             {RH_FORM_Q4_0, 0.5625},        {RH_FORM_Q4_K, 0.5625},      {RH_FORM_Q4_1, 0.625},           {RH_FORM_Q8_0, 1.0625},
	             {RH_FORM_NVFP4_BLOCKS, 0.5625}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int64_t side = 1024; side <= 4096; side *= 4) {
			double bytes = (double)rh_form_bytes(cases[i].form, side, side) / (double)(side * side);
			assert_true(bytes >= cases[i].bytes * 0.999 && bytes <= cases[i].bytes * 1.01);
		}
	assert_int_equal(rh_form_bytes(RH_FORM_FP8_BLOCKS, 129, 200), 129 * 200 + 4 * 2 * 2);
	assert_int_equal(rh_form_bytes(RH_FORM_INT8, 3, 21), 64 + 3 * 4);
	assert_int_equal(rh_form_bytes(RH_FORM_NF4_NESTED, 3, 64), 96 + 4 + 4 * (1 + 257)); /* three scales, and one byte of nothing */
	assert_int_equal(rh_form_bytes(RH_FORM_NVFP4, 3, 16), 24 + 4 + 8); /* three scales, and one byte of nothing; two factors */
	assert_true(rh_form_takes(RH_FORM_NVFP4, 48) && !rh_form_takes(RH_FORM_NVFP4, 40));
	assert_true(rh_form_takes(RH_FORM_FP8, 3) && !rh_form_takes(RH_FORM_NF4, 96) && rh_form_takes(RH_FORM_Q8_0, 96));
}

static void test_form_is_found_by_type(void **state)
{
	(void)state;
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++) {
		const struct rh_form_traits *traits = rh_form_traits((enum rh_form)f);
		assert_int_equal(rh_form_of(traits->element), traits->run ? RH_FORM_PLAIN : f);
	}
	assert_int_equal(rh_form_of(RH_F32), RH_FORM_PLAIN);
	assert_int_equal(rh_form_of(RH_BF16), RH_FORM_PLAIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_form_bytes_are_those_of_elements_and_scales),
	                                   cmocka_unit_test(test_form_bytes_of_a_parameter), cmocka_unit_test(test_form_is_found_by_type)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
