/* Version drift as the executor notes it, unit by unit, in virtual time: within the bound whatever the devices' and the links' speeds, and
 * the closed form's where boxes are equal. */
#include "train/virtual_boxes.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "forecast/forecast_limits.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_MOST = 12, STEPS = 8 };

/* Micro-batches of any number of tokens: each unit takes another time, on boxes and lines. */
static void vary(struct rh_forecast_input *input, uint64_t *random)
{
	int64_t count = input->steps * input->work.train_micro_batches, most = input->work.train.tokens;
	rh_free(input->micro);
	input->micro = rh_alloc((size_t)count, sizeof *input->micro);
	assert_non_null(input->micro);
	input->alike = 0;
	for (int64_t m = 0; m < count; m++) {
		int64_t tokens = 2 + (int64_t)(check_random(random) % (uint64_t)(most - 1));
		input->micro[m] = input->work.train;
		input->micro[m].tokens = input->micro[m].longest = tokens;
		input->micro[m].head_rows = tokens - 1;
	}
}

/* Simulates the boxes, which the caller frees. delay: paci_update_delay. random: NULL: all micro-batches are alike. */
static void simulate(struct boxes *at, int64_t accumulation, int64_t delay, const struct rh_admission_limits *limits, uint64_t *random,
                     struct rh_forecast *box)
{
	struct rh_forecast_input input;
	struct rh_config *config = &at->deep.rig.config;
	config->gradient_accumulation_steps = accumulation;
	config->paci_update_delay = delay;
	config->admission_limits = limits ? limits->list : (struct rh_list){0};
	check_ok(rh_forecast_input_synthetic(config, random ? STEPS : 2, &input));
	if (random)
		vary(&input, random);
	const struct rh_boxes_request request = {config, at->machine, at->first, at->line, &input};
	check_ok(rh_forecast_boxes(&request, box));
	config->admission_limits = (struct rh_list){0};
	rh_forecast_input_free(&input);
}

static int64_t limit_of(const struct rh_admission_limits *limits, int boxes, int k)
{
	return limits ? atoll(limits->list.item[k]) : boxes - k;
}

static double draw(uint64_t *random, double most)
{
	return most * (double)(check_random(random) % 1000) / 1000;
}

/* Boxes and lines of any speed; one box stalls: it takes twenty times as long as it would. */
static void disturb(struct boxes *at, uint64_t *random)
{
	int stalled = (int)(check_random(random) % (uint64_t)at->boxes);
	for (int k = 0; k < at->boxes; k++) {
		double slower = k == stalled ? 20 : 1;
		at->hardware[k].device.launch_s = (1e-4 + draw(random, 4e-4)) * slower;
		at->hardware[k].device.memory_bytes_per_s = 1e8 / slower; /* so that tokens count */
	}
	for (int k = 0; k + 1 < at->boxes; k++)
		for (int way = 0; way < 2; way++)
			at->line[k][way] = (struct rh_virtual_line){draw(random, 0.05), 1e5 + draw(random, 1e7)};
}

/* Of any number that falls from box to box. */
static void draw_limits(int boxes, uint64_t *random, struct rh_admission_limits *out)
{
	int64_t limit = 1 + check_random(random) % LIMIT_MOST;
	rh_admission_limits_set(boxes, 1, out);
	for (int k = 0; k < boxes; k++) {
		snprintf(out->text[k], sizeof out->text[k], "%lld", (long long)limit);
		limit = 1 + (int64_t)(check_random(random) % (uint64_t)limit);
	}
}

static void test_drift_keeps_to_its_bound_in_random_runs(void **state)
{
	(void)state;
	int runs = getenv("RH_LONG") ? 500 : 60;
	uint64_t random = check_seed();
	int64_t drifted = 0, at_bound[2] = {0};
	for (int run = 0; run < runs; run++) {
		struct boxes at;
		struct rh_forecast box[BOXES_MOST];
		struct rh_admission_limits drawn, *limits = check_random(&random) % 4 ? &drawn : NULL;
		int boxes = 2 + (int)(check_random(&random) % (BOXES_MOST - 1)), blocks[BOXES_MOST];
		int64_t accumulation = 1 + check_random(&random) % 6, delay = (int64_t)(check_random(&random) % (uint64_t)accumulation);
		for (int k = 0; k < boxes; k++)
			blocks[k] = 1 + (int)(check_random(&random) % 2);
		draw_limits(boxes, &random, &drawn);
		boxes_open(&at, boxes, blocks, RH_MODE_PACI, "paci");
		disturb(&at, &random);
		simulate(&at, accumulation, delay, limits, &random, box);
		for (int k = 0; k < boxes; k++) {
			int64_t bound = k + 1 == boxes ? 0 : (limit_of(limits, boxes, k) - 1 + accumulation - 1) / accumulation, most = 0;
			for (int64_t m = 0; m < box[k].drift_count; m++)
				most = rh_max(most, box[k].drift[m]);
			if (most > bound)
				fail_msg("run %d: box %d of %d drifts by %lld, bound %lld", run, k + 1, boxes, (long long)most,
				         (long long)bound);
			drifted += most > 0;
			at_bound[delay > 0] += bound > 0 && most == bound;
			rh_forecast_free(&box[k]);
		}
		boxes_close(&at);
	}
	printf("%d runs: %lld boxes drifted; as far as their bound %lld whose updates block them and %lld others\n", runs,
	       (long long)drifted, (long long)at_bound[0], (long long)at_bound[1]);
	assert_true(at_bound[0] > runs / 4 && at_bound[1] > runs / 4); /* else the bound was not tried */
}

/* Limits that a link of whole periods' round trip fills.
 * Unit m, counted from 0: its forward had the updates of the first m - K backwards, its backward those of the first m, K = w - 1. An update
 * that is published e backwards later is missing from both, so that the bound stays ceil(K / a). */
static void check_closed_form(int boxes, int64_t accumulation, int64_t delay, int64_t trips)
{
	static const int equal[BOXES_MOST] = {2, 2, 2, 2};
	struct boxes at;
	struct rh_forecast box[BOXES_MOST];
	struct rh_admission_limits limits;
	rh_admission_limits_set(boxes, 1 + (boxes - 1) * (1 + trips), &limits);
	boxes_open(&at, boxes, equal, RH_MODE_PACI, "paci");
	simulate(&at, accumulation, delay, trips ? &limits : NULL, NULL, box);
	for (int k = 0; k < boxes; k++) {
		int64_t ahead = limit_of(&limits, boxes, k) - 1, most = 0;
		assert_true(box[k].drift_count >= 8 * accumulation);
		for (int64_t m = 0; m < box[k].drift_count; m++) {
			int64_t formula = rh_max(0, m - delay) / accumulation - rh_max(0, m - ahead - delay) / accumulation;
			most = rh_max(most, box[k].drift[m]);
			if (box[k].drift[m] != formula)
				fail_msg("box %d of %d, %lld in flight, a = %lld, e = %lld: unit %lld drifts by %lld, formula %lld", k + 1,
				         boxes, (long long)ahead + 1, (long long)accumulation, (long long)delay, (long long)m,
				         (long long)box[k].drift[m], (long long)formula);
		}
		assert_int_equal(most, (ahead + accumulation - 1) / accumulation); /* neither less with a delay nor more */
		rh_forecast_free(&box[k]);
	}
	boxes_close(&at);
}

static void test_drift_of_equal_boxes_is_the_closed_form(void **state)
{
	(void)state;
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++)
		for (int64_t accumulation = 1; accumulation <= 4; accumulation++)
			for (int64_t delay = 0; delay < accumulation; delay++)
				for (int64_t trips = 0; trips <= 2; trips += 2)
					check_closed_form(boxes, accumulation, delay, trips);
}

int main(void)
{
	limit_time(HANG_S);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_drift_keeps_to_its_bound_in_random_runs),
	        cmocka_unit_test(test_drift_of_equal_boxes_is_the_closed_form),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
