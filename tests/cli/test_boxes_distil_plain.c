/* Mode fluidpipe with distillation, two processes: what both boxes compute is, bit for bit, what a plain loop over two models computes that
 * hands logits from one to the other. */
#include "cli/distil_plain.h"

static void test_both_boxes_compute_what_a_plain_loop_does(void **state)
{
	(void)state;
	static const char *const keys[] = {"fluidpipe_recipe: FP-DB\n", "fluidpipe_recipe: FP-DT-EL\n", "fluidpipe_alpha1: 0.25\n",
	                                   "fluidpipe_alpha2: 0\nfluidpipe_kl: reverse\nfluidpipe_temperature: 3\n",
	                                   "fluidpipe_recipe: FP-DB-EL\nfluidpipe_weighting: sum\nfluidpipe_temperature: 2\n"};
	static const char *const options[] = {"", "--device cpu:2", "--fluidpipe_ahead 1"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		struct scratch scratch;
		open_images(&scratch, keys[i]);
		check_plain(scratch, options[i % 3]);
	}
}

/* Copies of a text are samples of their own: what box 2 made of one is not the other's. */
static void test_texts_that_an_epoch_has_twice_have_logits_of_their_own(void **state)
{
	(void)state;
	struct scratch scratch;
	open_texts(&scratch, "fluidpipe_recipe: FP-DB\n");
	check_plain(scratch, "");
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_both_boxes_compute_what_a_plain_loop_does),
	        cmocka_unit_test(test_texts_that_an_epoch_has_twice_have_logits_of_their_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
