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
	assert_int_equal(rh_form_bytes(RH_FORM_MXFP4, 3, 72), 3 * 39);
	assert_int_equal(rh_form_bytes(RH_FORM_Q8_0, (int64_t)1 << 20, (int64_t)1 << 20), ((int64_t)1 << 40) / 32 * 34);
}

static void test_form_is_found_by_type_and_place_of_scales(void **state)
{
	(void)state;
	for (int f = RH_FORM_PLAIN + 1; f < RH_FORMS; f++) {
		const struct rh_form_traits *traits = rh_form_traits((enum rh_form)f);
		assert_int_equal(rh_form_of(traits->element, traits->run > 0), f);
		assert_int_equal(rh_form_of(traits->element, !traits->run), RH_FORM_PLAIN);
	}
	assert_int_equal(rh_form_of(RH_F32, 0), RH_FORM_PLAIN);
	assert_int_equal(rh_form_of(RH_BF16, 0), RH_FORM_PLAIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_form_bytes_are_those_of_elements_and_scales),
	                                   cmocka_unit_test(test_form_is_found_by_type_and_place_of_scales)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
