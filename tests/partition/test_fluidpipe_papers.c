/* The papers' formulas at points where the answer is known without them. */
#include "check.h"

#include "partition/fluidpipe_papers.h"

/* 4 ms forward and 8 ms backward a stage, four micro-batches a step, transfers that take no time. */
static const struct rh_two_stages even = {
        .mini_batches = 10, .micro_batches = 4, .stage_s = {0.012, 0.012}, .fluid_stage_s = {0.048, 0.048}};

static void test_pipeline_fills_and_drains_once_a_step(void **state)
{
	(void)state;
	struct rh_two_stages stages = even;
	check_near(rh_paper_pipeline_epoch_s(&stages), 10 * 0.060, 1e-12); /* five slots of 12 ms */
	stages.gradient_s = 0.005;
	check_near(rh_paper_pipeline_epoch_s(&stages), 10 * 5 * 0.017, 1e-12); /* the slower stage's transfer alone counts */
	stages.activation_s = 0.008;
	check_near(rh_paper_pipeline_epoch_s(&stages), 10 * 5 * 0.020, 1e-12);
	stages.micro_batches = 1;
	check_near(rh_paper_pipeline_epoch_s(&stages), 10 * 2 * 0.020, 1e-12);
}

static void test_fluidpipe_is_as_fast_as_its_slower_stage(void **state)
{
	(void)state;
	struct rh_two_stages stages = even;
	check_near(rh_paper_fluidpipe_epoch_s(&stages), 0.48, 1e-12);
	check_near(rh_paper_fluidpipe_sequential_epoch_s(&stages), 0.96, 1e-12);
	stages.features_s = 0.002; /* is stage 2's alone */
	stages.logits_s = 0.03;
	check_near(rh_paper_fluidpipe_epoch_s(&stages), 10 * 0.050 + 0.03, 1e-12);
	stages.fluid_stage_s[0] = 0.060; /* as by an auxiliary head */
	check_near(rh_paper_fluidpipe_epoch_s(&stages), 10 * 0.060 + 0.03, 1e-12);
	check_near(rh_paper_fluidpipe_sequential_epoch_s(&stages), 10 * 0.110 + 0.03, 1e-12);
}

/* FluidPipe sends less exactly where two logits take less than one gradient: for a causal language model with V > d / 2 and distillation
 * both ways it does not. */
static void test_traffic_breaks_even_at_two_logits_a_gradient(void **state)
{
	(void)state;
	struct rh_two_stages_traffic traffic = {.mini_batches = 100, .features = 512 * 1024 * 2, .gradients = 512 * 1024 * 2};
	check_near(rh_paper_pipeline_epoch_bytes(&traffic), 100.0 * 2 * 1048576, 0.5);
	check_near(rh_paper_fluidpipe_epoch_bytes(&traffic), 100.0 * 1048576, 0.5);
	for (int vocabulary = 510; vocabulary <= 514; vocabulary += 2) { /* d is 1024 */
		traffic.logits_up = 512.0 * vocabulary * 2;
		traffic.logits_an_epoch = traffic.mini_batches * traffic.logits_up;
		double apart = rh_paper_fluidpipe_epoch_bytes(&traffic) - rh_paper_pipeline_epoch_bytes(&traffic);
		assert_true(vocabulary < 512 ? apart < 0 : vocabulary > 512 ? apart > 0 : apart == 0);
		assert_int_equal(rh_paper_fluidpipe_pays_both(&traffic), apart < 0);
		assert_true(rh_paper_fluidpipe_pays_down(&traffic));
	}
	traffic.logits_an_epoch = traffic.mini_batches * traffic.gradients; /* where box 1 alone distils */
	assert_false(rh_paper_fluidpipe_pays_down(&traffic));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_pipeline_fills_and_drains_once_a_step),
	        cmocka_unit_test(test_fluidpipe_is_as_fast_as_its_slower_stage),
	        cmocka_unit_test(test_traffic_breaks_even_at_two_logits_a_gradient),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
