/* Boxes in one virtual time, against closed forms: the time that a micro-batch adds to 1F1B, and the period of PACI, with latency and
 * transfer. Layers take the same time each; embedding and head take little beside them. */
#include "train/deep.h"

#include "config/hardware.h"
#include "train/forecast_boxes.h"

#include <math.h>
#include <unistd.h>

enum { BOXES_MOST = 4, BLOCKS_EACH = 6, HIDDEN = 32, HANG_S = 300 };

struct boxes {
	struct deep deep;
	struct rh_hardware hardware;
	struct rh_session_machine machine[BOXES_MOST];
	struct rh_virtual_line line[BOXES_MOST - 1][2];
	int first[BOXES_MOST + 1], boxes;
};

/* A device that takes a fixed time for each launch and none for anything else. */
static void boxes_open(struct boxes *at, int boxes, enum rh_mode mode, const char *schedule)
{
	*at = (struct boxes){.boxes = boxes};
	deep_open(&at->deep, "qwen3", boxes * BLOCKS_EACH);
	struct rh_config *config = &at->deep.rig.config;
	config->mode = mode;
	config->boxes = boxes;
	config->schedule = (char *)(uintptr_t)schedule;
	config->per_device_train_batch_size = 1;
	config->max_length = 64;
	config->max_grad_norm = 0;
	at->hardware = (struct rh_hardware){.name = (char *)(uintptr_t)"paced", .devices = 1};
	for (int p = 0; p < RH_PRODUCTS; p++)
		at->hardware.device.peak[p] = 1e18;
	at->hardware.device.other_flops_per_s = at->hardware.device.memory_bytes_per_s = 1e18;
	at->hardware.device.launch_s = 2e-4;
	at->hardware.device.memory = (int64_t)1 << 40;
	at->hardware.link = (struct rh_hardware_link){.up_bytes_per_s = 1e15, .down_bytes_per_s = 1e15, .both_bytes_per_s = 2e15};
	at->hardware.host = (struct rh_hardware_host){.cores = 64, .dram_bytes_per_s = 1e16};
	for (int l = 0; l < RH_LAYOUTS; l++)
		at->hardware.host.optimizer_bytes_per_s[l] = 1e15;
	for (int k = 0; k < boxes; k++)
		at->machine[k] = (struct rh_session_machine){.hardware = &at->hardware, .devices = 1};
	for (int k = 0; k <= boxes; k++) /* the embedding is the first box's, the head the last one's */
		at->first[k] = k * BLOCKS_EACH + (k > 0) + (k == boxes);
}

static void boxes_close(struct boxes *at)
{
	at->deep.rig.config.schedule = NULL;
	deep_close(&at->deep);
}

/* Of a step without a link's time, each box's computation of a micro-batch: all that its device does. */
struct timed {
	double step_s, box_s[BOXES_MOST];
};

static struct timed timed_of(struct boxes *at, int64_t micro_batches, double latency_s, double transfer_s)
{
	struct rh_forecast_input input;
	struct rh_forecast box[BOXES_MOST];
	struct rh_config *config = &at->deep.rig.config;
	struct timed out;
	config->gradient_accumulation_steps = micro_batches;
	check_ok(rh_forecast_input_synthetic(config, 2, &input));
	double bytes = (double)config->max_length * HIDDEN * (config->dtype == RH_F32 ? 4 : 2);
	for (int k = 0; k + 1 < at->boxes; k++)
		for (int way = 0; way < 2; way++)
			at->line[k][way] = (struct rh_virtual_line){latency_s, transfer_s > 0 ? bytes / transfer_s : 0};
	const struct rh_boxes_request request = {config, at->machine, at->first, at->line, &input};
	check_ok(rh_forecast_boxes(&request, box));
	out.step_s = box[0].step_seconds;
	for (int k = 0; k < at->boxes; k++) {
		out.box_s[k] = (1 - box[k].bubble) * box[k].step_seconds / (double)micro_batches;
		rh_forecast_free(&box[k]);
	}
	rh_forecast_input_free(&input);
	return out;
}

/* 3 %: what begin and end of a step, which the formula leaves out, may hide or add. */
static void check_share(const char *what, int boxes, double is, double formula)
{
	printf("%s, %d boxes: %.4f s, formula %.4f\n", what, boxes, is, formula);
	assert_true(fabs(is - formula) <= 0.03 * formula);
}

/* The first box sends all activations before it takes the first gradient: with fewer buffers than these take, the boxes would wait for each
 * other. Each link is passed up and down once by the micro-batches, once by the norm. */
static void test_gpipe_of_many_micro_batches_ends(void **state)
{
	(void)state;
	enum { MICRO_BATCHES = 24 };
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++) {
		struct boxes at;
		boxes_open(&at, boxes, RH_MODE_SYNC_PP, "gpipe");
		struct timed alone = timed_of(&at, MICRO_BATCHES, 0, 0), slow = timed_of(&at, MICRO_BATCHES, 0.1, 0);
		assert_true(alone.step_s >= MICRO_BATCHES * alone.box_s[0]);
		assert_true(slow.step_s >= 0.99 * 4 * (boxes - 1) * 0.1);
		boxes_close(&at);
	}
}

/* N micro-batches are in flight, and each passes all boxes and, up and down, all links; or the slowest box is busy all the time. */
static double period_of(const struct timed *alone, int boxes, double link_s)
{
	double sum = 2 * (boxes - 1) * link_s, slowest = 0;
	for (int k = 0; k < boxes; k++) {
		sum += alone->box_s[k];
		slowest = fmax(slowest, alone->box_s[k]);
	}
	return fmax(slowest, sum / boxes);
}

static const struct {
	double latency_s, transfer_s;
} lines[] = {{0, 0}, {0.025, 0}, {0.025, 0.004}};
enum { LINES = sizeof lines / sizeof *lines, THREE = 3 };

static void test_1f1b_micro_batch_takes_its_share_of_a_round_trip(void **state)
{
	(void)state;
	struct boxes at;
	boxes_open(&at, THREE, RH_MODE_SYNC_PP, "1f1b");
	struct timed alone = timed_of(&at, 4 * THREE, 0, 0);
	for (int i = 0; i < LINES; i++) {
		double less = timed_of(&at, 4 * THREE, lines[i].latency_s, lines[i].transfer_s).step_s,
		       more = timed_of(&at, 8 * THREE, lines[i].latency_s, lines[i].transfer_s).step_s;
		check_share("1f1b", THREE, (more - less) / (4 * THREE),
		            period_of(&alone, THREE, lines[i].latency_s + lines[i].transfer_s));
	}
	boxes_close(&at);
}

static void test_paci_period_is_that_of_its_admission_limits(void **state)
{
	(void)state;
	struct boxes at;
	boxes_open(&at, THREE, RH_MODE_PACI, "paci");
	struct timed alone = timed_of(&at, 4 * THREE, 0, 0);
	for (int i = 0; i < LINES; i++) {
		struct timed is = timed_of(&at, 4 * THREE, lines[i].latency_s, lines[i].transfer_s);
		check_share("paci", THREE, is.step_s / (4 * THREE),
		            period_of(&alone, THREE, lines[i].latency_s + lines[i].transfer_s));
	}
	boxes_close(&at);
}

/* A box that does not fit ends the others, and is named. */
static void test_box_that_does_not_fit_is_named(void **state)
{
	(void)state;
	struct boxes at;
	struct rh_forecast_input input;
	struct rh_forecast box[2];
	struct rh_hardware small;
	boxes_open(&at, 2, RH_MODE_SYNC_PP, "1f1b");
	at.deep.rig.config.gradient_accumulation_steps = 4;
	check_ok(rh_forecast_input_synthetic(&at.deep.rig.config, 2, &input));
	small = at.hardware;
	small.device.memory = 1 << 16;
	at.machine[1].hardware = &small;
	const struct rh_boxes_request request = {&at.deep.rig.config, at.machine, at.first, at.line, &input};
	assert_int_equal(rh_forecast_boxes(&request, box), RH_DOES_NOT_FIT);
	assert_non_null(strstr(rh_error(RH_DOES_NOT_FIT), "box 2"));
	rh_forecast_free(&box[0]);
	rh_forecast_free(&box[1]);
	rh_forecast_input_free(&input);
	boxes_close(&at);
}

int main(void)
{
	alarm(HANG_S);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gpipe_of_many_micro_batches_ends),
	        cmocka_unit_test(test_1f1b_micro_batch_takes_its_share_of_a_round_trip),
	        cmocka_unit_test(test_paci_period_is_that_of_its_admission_limits),
	        cmocka_unit_test(test_box_that_does_not_fit_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
