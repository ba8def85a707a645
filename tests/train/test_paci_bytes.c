/* What a box of mode paci holds beside one of a pipeline with a flush, from the same forecasts that `plan` prints; and what its updates
 * cost in time. */
#include "train/virtual_boxes.h"

#include "core/minmax.h"
#include "forecast/forecast_limits.h"

#include <math.h>
#include <unistd.h>

enum { THREE = 3, PAGE = 4096 };
static const int blocks[BOXES_MOST] = {4, 6, 5, 0};

struct asked {
	enum rh_mode mode;
	enum rh_paci_backward backward;
	int64_t accumulation, limit;  /* limit: of the first box; 0: PACI's own */
	double optimizer_bytes_per_s; /* 0: at once */
	int64_t delay, max_ram;
	enum rh_dtype dtype;
};

struct told {
	int64_t store, saved, device, kept;
	double step_s, busy_s; /* a step; what the device computes of it */
};

static void asked_open(const struct asked *asked, struct boxes *at, struct rh_forecast_input *input)
{
	boxes_open(at, THREE, blocks, asked->mode, asked->mode == RH_MODE_PACI ? "paci" : "1f1b");
	struct rh_config *config = &at->deep.rig.config;
	config->paci_backward = asked->backward;
	config->gradient_accumulation_steps = asked->accumulation;
	config->paci_update_delay = asked->delay;
	config->max_ram = asked->max_ram;
	config->dtype = asked->dtype;
	config->state_layout = asked->dtype == RH_F32 ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT;
	for (int k = 0; k < THREE && asked->optimizer_bytes_per_s > 0; k++)
		for (int l = 0; l < RH_LAYOUTS; l++)
			at->hardware[k].host.optimizer_bytes_per_s[l] = asked->optimizer_bytes_per_s;
	check_ok(rh_forecast_input_synthetic(config, 2, input));
}

/* 0, or RH_DOES_NOT_FIT where there is a max_ram. */
static int ask(const struct asked *asked, struct told told[THREE])
{
	struct boxes at;
	struct rh_forecast_input input;
	struct rh_forecast box[BOXES_MOST];
	struct rh_admission_limits limits;
	asked_open(asked, &at, &input);
	struct rh_config *config = &at.deep.rig.config;
	rh_admission_limits_set(THREE, asked->limit ? asked->limit : 1, &limits);
	if (asked->limit)
		config->admission_limits = limits.list;
	const struct rh_boxes_request request = {config, at.machine, at.first, at.line, &input};
	int rc = rh_forecast_boxes(&request, box);
	assert_true(!rc || (asked->max_ram && rc == RH_DOES_NOT_FIT));
	if (rc)
		rh_error_clear();
	for (int k = 0; k < THREE; k++) {
		told[k] = (struct told){.store = box[k].store_bytes,
		                        .saved = box[k].plan.kept_bytes,
		                        .device = box[k].device_bytes,
		                        .kept = box[k].plan.kept_micro_batches,
		                        .step_s = box[k].step_seconds,
		                        .busy_s = (1 - box[k].bubble) * box[k].step_seconds};
		rh_forecast_free(&box[k]);
	}
	config->admission_limits = (struct rh_list){0};
	rh_forecast_input_free(&input);
	boxes_close(&at);
	return rc;
}

static void test_parameters_and_optimizer_take_what_they_take_with_a_flush(void **state)
{
	(void)state;
	struct told flushed[THREE], own[THREE];
	(void)ask(&(struct asked){.mode = RH_MODE_SYNC_PP, .accumulation = 8}, flushed);
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8}, own);
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
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STORED, .accumulation = 8, .limit = 1}, one);
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STORED, .accumulation = 8}, own);
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STORED, .accumulation = 8, .limit = 7}, wide);
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
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 1}, plain);
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STASH, .accumulation = 1}, often);
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .backward = RH_BACKWARD_STASH, .accumulation = 8}, seldom);
	for (int k = 0; k < THREE; k++) {
		int64_t versions = THREE - 1 - k, more = often[k].store - plain[k].store;
		assert_true(versions ? fabs((double)more / (double)versions - 0.25 * (double)plain[k].store) < 0.02 * (double)plain[k].store
		                     : more == 0);
		if (versions) /* one, at a = 8 */
			assert_true(llabs((seldom[k].store - plain[k].store) * versions - more) <= (versions + 1) * PAGE);
	}
}

/* Bytes of a second copy of a box's trained weights, as the store lays out its blocks. */
static int64_t copy_bytes(int box, enum rh_dtype dtype)
{
	struct boxes at;
	struct rh_session session;
	int64_t bytes = 0;
	boxes_open(&at, THREE, blocks, RH_MODE_PACI, "paci");
	at.deep.rig.config.dtype = dtype;
	check_ok(rh_session_simulate(&at.deep.rig.config, &at.machine[box], &session));
	for (int l = at.first[box]; l < at.first[box + 1]; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = session.model->layer[l].block[which];
			bytes += b < 0 ? 0 : rh_align_up(rh_dtype_bytes(dtype, session.model->block[b].elements), RH_ALIGN);
		}
	rh_session_close(&session);
	boxes_close(&at);
	return bytes;
}

/* Two bytes a parameter in bf16, four in fp32, and nothing else. Whole pages are reserved. */
static void test_updates_beside_take_a_second_copy(void **state)
{
	(void)state;
	static const enum rh_dtype dtypes[] = {RH_F32, RH_BF16};
	for (int i = 0; i < 2; i++) {
		struct told block[THREE], beside[THREE];
		(void)ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8, .dtype = dtypes[i]}, block);
		(void)ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8, .dtype = dtypes[i], .delay = 3}, beside);
		for (int k = 0; k < THREE; k++) {
			assert_true(llabs(beside[k].store - block[k].store - copy_bytes(k, dtypes[i])) < PAGE);
			assert_int_equal(beside[k].device, block[k].device);
		}
	}
}

/* The least max_ram with which all boxes fit. */
static int64_t least_ram(struct asked asked)
{
	struct told told[THREE];
	int64_t low = 1, high = (int64_t)1 << 32;
	while (high - low > 1) {
		asked.max_ram = (low + high) / 2;
		if (ask(&asked, told))
			low = asked.max_ram;
		else
			high = asked.max_ram;
	}
	return high;
}

static void test_max_ram_counts_the_second_copy_to_the_byte(void **state)
{
	(void)state;
	struct asked asked = {.mode = RH_MODE_PACI, .accumulation = 4, .dtype = RH_BF16};
	struct told block[THREE], beside[THREE];
	int64_t least = least_ram(asked), more = 0;
	(void)ask(&asked, block);
	asked.delay = 2;
	(void)ask(&asked, beside);
	for (int k = 0; k < THREE; k++)
		more = rh_max(more, beside[k].store - block[k].store);
	assert_true(more > 0);
	assert_int_equal(least_ram(asked) - least, more); /* the largest box has most of everything */
}

/* An update blocks its box: a step of a micro-batches takes a T, and so much of the update as the last backward does not hide. */
static void test_updates_block_their_box(void **state)
{
	(void)state;
	struct told quick[THREE], slow[THREE];
	static const double rate = 1e7;
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8}, quick);
	(void)ask(&(struct asked){.mode = RH_MODE_PACI, .accumulation = 8, .optimizer_bytes_per_s = rate}, slow);
	double update_s = 0;
	for (int k = 0; k < THREE; k++) /* fp32 AdamW: gradient, master and moments, all but the gradient both ways */
		update_s = fmax(update_s, 28.0 / 16 * (double)slow[k].store / rate);
	printf("a step %.5f s, with an update of %.5f s in the largest box %.5f s\n", quick[0].step_s, update_s, slow[0].step_s);
	assert_true(slow[0].step_s > quick[0].step_s + 0.1 * update_s);
	assert_true(slow[0].step_s < 1.03 * (quick[0].step_s + update_s));
}

/* Beside its box an update costs nothing where it is published late enough. Published too soon it costs more than one that blocks: the box
 * waits for weights and moments, and a blocked box for weights alone. */
static void test_updates_beside_cost_no_time(void **state)
{
	(void)state;
	struct asked asked = {.mode = RH_MODE_PACI, .accumulation = 8};
	struct told quick[THREE], block[THREE], beside[6][THREE];
	static const double rate = 1e7; /* an update takes 5.3 units' time */
	(void)ask(&asked, quick);
	asked.optimizer_bytes_per_s = rate;
	(void)ask(&asked, block);
	for (asked.delay = 1; asked.delay < 6; asked.delay++)
		(void)ask(&asked, beside[asked.delay]);
	double period = quick[0].step_s / 8;
	printf("a step %.5f s; with updates that block %.5f, published 1 to 5 units later %.5f %.5f %.5f %.5f %.5f\n", quick[0].step_s,
	       block[0].step_s, beside[1][0].step_s, beside[2][0].step_s, beside[3][0].step_s, beside[4][0].step_s, beside[5][0].step_s);
	assert_true(block[0].step_s > 1.1 * quick[0].step_s);
	for (int e = 1; e < 4; e++) /* each unit of delay hides a unit's time */
		assert_true(fabs(beside[e][0].step_s - beside[e + 1][0].step_s - period) < 0.1 * period);
	assert_true(beside[5][0].step_s < 1.02 * quick[0].step_s);
}

static int64_t chosen_delay(const struct asked *asked, double unit_s[2])
{
	struct boxes at;
	struct rh_forecast_input input;
	int64_t delay;
	asked_open(asked, &at, &input);
	const struct rh_boxes_request request = {&at.deep.rig.config, at.machine, at.first, at.line, &input};
	check_ok(rh_forecast_delay(&request, &delay, unit_s));
	rh_forecast_input_free(&input);
	boxes_close(&at);
	return delay;
}

/* The smallest that hides the update; none where the update is quick, or the second copy does not fit. */
static void test_delay_is_chosen_by_period_and_memory(void **state)
{
	(void)state;
	enum { UNITS = 8 };
	struct asked asked = {.mode = RH_MODE_PACI, .accumulation = UNITS, .optimizer_bytes_per_s = 1e7};
	struct told told[THREE];
	double unit_s[2];
	int64_t delay = chosen_delay(&asked, unit_s);
	printf("paci_update_delay %lld: %.5f s a unit, %.5f without\n", (long long)delay, unit_s[0], unit_s[1]);
	assert_true(delay > 0 && 1.03 * unit_s[0] < unit_s[1]);
	asked.delay = UNITS - 1;
	(void)ask(&asked, told);
	assert_true(UNITS * unit_s[0] <= 1.03 * told[0].step_s);
	asked.delay = delay - 1;
	double best_s = told[0].step_s;
	(void)ask(&asked, told);
	assert_true(told[0].step_s > 1.03 * best_s);
	asked.delay = 0;
	asked.max_ram = least_ram(asked);
	assert_int_equal(chosen_delay(&asked, unit_s), 0);
	asked.max_ram = 0;
	asked.optimizer_bytes_per_s = 0;
	assert_int_equal(chosen_delay(&asked, unit_s), 0);
}

int main(void)
{
	limit_time(HANG_S);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_parameters_and_optimizer_take_what_they_take_with_a_flush),
	        cmocka_unit_test(test_stored_activations_are_those_of_the_admission_limit),
	        cmocka_unit_test(test_stash_holds_as_many_versions_as_the_bound),
	        cmocka_unit_test(test_updates_beside_take_a_second_copy),
	        cmocka_unit_test(test_max_ram_counts_the_second_copy_to_the_byte),
	        cmocka_unit_test(test_updates_block_their_box),
	        cmocka_unit_test(test_updates_beside_cost_no_time),
	        cmocka_unit_test(test_delay_is_chosen_by_period_and_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
