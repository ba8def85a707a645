/* What a box of mode paci holds beside one of a pipeline with a flush, from the same forecasts that `plan` prints; and what its updates
 * cost in time. */
#include "train/virtual_boxes.h"

#include "core/minmax.h"
#include "train/forecast_limits.h"

#include <math.h>
#include <unistd.h>

enum { THREE = 3, PAGE = 4096 };
static const int blocks[BOXES_MOST] = {4, 6, 5, 0};

struct asked {
	enum rh_mode mode;
	enum rh_paci_backward backward;
	int64_t accumulation, limit; /* limit: of the first box; 0: PACI's own */
	double optimizer_bytes_per_s; /* 0: at once */
};

struct told {
	int64_t store, saved, device, kept;
	double step_s, busy_s; /* a step; what the device computes of it */
};

static void ask(const struct asked *asked, struct told told[THREE])
{
	struct boxes at;
	struct rh_forecast_input input;
	struct rh_forecast box[BOXES_MOST];
	struct rh_admission_limits limits;
	boxes_open(&at, THREE, blocks, asked->mode, asked->mode == RH_MODE_PACI ? "paci" : "1f1b");
	struct rh_config *config = &at.deep.rig.config;
	config->paci_backward = asked->backward;
	config->gradient_accumulation_steps = asked->accumulation;
	rh_admission_limits_set(THREE, asked->limit ? asked->limit : 1, &limits);
	if (asked->limit)
		config->admission_limits = limits.list;
	for (int k = 0; k < THREE && asked->optimizer_bytes_per_s > 0; k++)
		for (int l = 0; l < RH_LAYOUTS; l++)
			at.hardware[k].host.optimizer_bytes_per_s[l] = asked->optimizer_bytes_per_s;
	check_ok(rh_forecast_input_synthetic(config, 2, &input));
	const struct rh_boxes_request request = {config, at.machine, at.first, at.line, &input};
	check_ok(rh_forecast_boxes(&request, box));
	for (int k = 0; k < THREE; k++) {
		told[k] = (struct told){.store = box[k].store_bytes,
		                        .saved = box[k].plan.saved_bytes,
		                        .device = box[k].device_bytes,
		                        .kept = box[k].plan.kept_micro_batches,
		                        .step_s = box[k].step_seconds,
		                        .busy_s = (1 - box[k].bubble) * box[k].step_seconds};
		rh_forecast_free(&box[k]);
	}
	config->admission_limits = (struct rh_list){0};
	rh_forecast_input_free(&input);
	boxes_close(&at);
}

static void test_parameters_and_optimizer_take_what_they_take_with_a_flush(void **state)
{
	(void)state;
	struct told flushed[THREE], own[THREE];
	ask(&(struct asked){.mode = RH_MODE_SYNC_PP, .accumulation = 8}, flushed);
	ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8}, own);
	for (int k = 0; k < THREE; k++) {
		assert_int_equal(own[k].store, flushed[k].store);
		assert_int_equal(own[k].saved, 0);
	}
}

/* Of as many micro-batches as the admission limit says, and not one more. The last box's only stage is fused. */
static void test_stored_activations_are_those_of_the_admission_limit(void **state)
{
	(void)state;
	struct told one[THREE], own[THREE], wide[THREE];
	ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STORED, .accumulation = 8, .limit = 1}, one);
	ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STORED, .accumulation = 8}, own);
	ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STORED, .accumulation = 8, .limit = 7}, wide);
	static const int64_t wide_limit[] = {7, 4, 1};
	assert_int_equal(own[THREE - 1].saved, 0);
	for (int k = 0; k + 1 < THREE; k++) {
		int64_t each = own[k].saved / (THREE - k);
		assert_int_equal(own[k].kept, THREE - k);
		assert_int_equal(wide[k].kept, wide_limit[k]);
		assert_true(each > 0);
		assert_int_equal(one[k].kept, 1);
		assert_int_equal(one[k].saved, each);
		assert_int_equal(wide[k].saved, each * wide_limit[k]);
		assert_int_equal(wide[k].device - own[k].device, wide[k].saved - own[k].saved);
	}
}

/* As many older versions of the weights as the drift's bound says: a quarter each of what fp32 AdamW keeps of them in all. */
static void test_stash_holds_as_many_versions_as_the_bound(void **state)
{
	(void)state;
	struct told plain[THREE], often[THREE], seldom[THREE];
	ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 1}, plain);
	ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STASH, .accumulation = 1}, often);
	ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STASH, .accumulation = 8}, seldom);
	for (int k = 0; k < THREE; k++) {
		int64_t versions = THREE - 1 - k, more = often[k].store - plain[k].store;
		assert_true(versions ? fabs((double)more / (double)versions - 0.25 * (double)plain[k].store) < 0.02 * (double)plain[k].store
		                     : more == 0);
		if (versions) /* one, at a = 8 */
			assert_true(llabs((seldom[k].store - plain[k].store) * versions - more) <= (versions + 1) * PAGE);
	}
}

/* An update blocks its box: a step of a micro-batches takes a T, and so much of the update as the last backward does not hide. */
static void test_updates_block_their_box(void **state)
{
	(void)state;
	struct told quick[THREE], slow[THREE];
	static const double rate = 1e7;
	ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8}, quick);
	ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8, .optimizer_bytes_per_s = rate}, slow);
	double update_s = 0;
	for (int k = 0; k < THREE; k++) /* fp32 AdamW: gradient, master and moments, all but the gradient both ways */
		update_s = fmax(update_s, 28.0 / 16 * (double)slow[k].store / rate);
	printf("a step %.5f s, with an update of %.5f s in the largest box %.5f s\n", quick[0].step_s, update_s, slow[0].step_s);
	assert_true(slow[0].step_s > quick[0].step_s + 0.1 * update_s);
	assert_true(slow[0].step_s < 1.03 * (quick[0].step_s + update_s));
}

int main(void)
{
	alarm(HANG_S);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_parameters_and_optimizer_take_what_they_take_with_a_flush),
	        cmocka_unit_test(test_stored_activations_are_those_of_the_admission_limit),
	        cmocka_unit_test(test_stash_holds_as_many_versions_as_the_bound),
	        cmocka_unit_test(test_updates_block_their_box),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
