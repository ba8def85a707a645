/* Predictions in bounded time: what is gone on with from shorter steps is what the whole step takes, and a deep model's outlook is soon
 * there. */
#include "train/deep.h"

#include "core/text.h"
#include "forecast/forecast_bounded.h"
#include "forecast/outlook.h"
#include "observe/trace.h"

#include <time.h>

enum { DEVICES = 8, MICRO_BATCHES = 320 };

static double seconds_of_processor(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void machine_open(struct rh_hardware *hardware, struct rh_session_machine *machine)
{
	check_ok(rh_hardware_find("examples/hardware/rtx4090x8.yaml", hardware));
	*machine = (struct rh_session_machine){.hardware = hardware, .devices = DEVICES, .ram_bytes = hardware->host.ram};
}

static int count(const char *text, const char *part)
{
	int found = 0;
	for (; (text = strstr(text, part)); text++)
		found++;
	return found;
}

/* All devices have a row with boxes, all layers' backward stages are named in theirs, and copies; in text no line is wider than a
 * terminal's. */
static void check_pictures(const struct rh_trace *trace, const struct rh_stage_plan *plan)
{
	struct rh_text svg = {0}, text = {0};
	check_ok(rh_trace_svg(trace, "94 layers <&>", &svg));
	assert_non_null(strstr(svg.bytes, "94 layers &lt;&amp;>"));
	assert_int_equal(count(svg.bytes, ">device "), DEVICES);
	assert_true(count(svg.bytes, "<path") >= 4 * DEVICES && svg.length < 1 << 20);
	for (int i = 0; i < plan->backward_stages; i++) {
		char name[32];
		struct rh_stage stage = plan->backward[i];
		snprintf(name, sizeof name, stage.hi - stage.lo > 1 ? ">%d-%d</text>" : ">%d</text>", stage.lo, stage.hi - 1);
		int named = count(svg.bytes, name);
		snprintf(name, sizeof name, ">%d-</text>", stage.lo); /* in two lines */
		assert_true(named > 0 || count(svg.bytes, name) > 0);
	}
	check_ok(rh_trace_text(trace, 100, &text));
	for (char *line = strtok(text.bytes, "\n"); line; line = strtok(NULL, "\n"))
		assert_true(strlen(line) <= 100);
	rh_text_free(&svg);
	rh_text_free(&text);
}

/* How far a prediction in bounded time is from the whole step's simulation: of so many layers and micro-batches, in rounds (0: chosen). */
static void check_bounded(int layers, int64_t micro_batches, int64_t round, int staleness, double most)
{
	struct deep deep;
	struct rh_hardware hardware;
	struct rh_session_machine machine;
	struct rh_forecast_input input;
	struct rh_forecast whole, bounded;
	deep_open(&deep, "qwen3", layers);
	machine_open(&hardware, &machine);
	deep.rig.config.per_device_train_batch_size = 1;
	deep.rig.config.max_length = 2048;
	deep.rig.config.gradient_accumulation_steps = micro_batches;
	deep.rig.config.round_micro_batches = round;
	deep.rig.config.optimizer_staleness = staleness;
	check_ok(rh_forecast_input_synthetic(&deep.rig.config, 2, &input));
	check_ok(rh_forecast(&deep.rig.config, &machine, &input, NULL, &whole));
	input.layers = whole.layers;
	check_ok(rh_forecast_bounded(&deep.rig.config, &machine, &input, NULL, &bounded));
	printf("%d layers, %lld micro-batches in rounds of %lld: %.4g s a step, bounded %.4g; idle %.2f and %.2f %%\n", layers,
	       (long long)micro_batches, (long long)whole.round_micro_batches, whole.step_seconds, bounded.step_seconds, 100 * whole.bubble,
	       100 * bounded.bubble);
	check_near(bounded.step_seconds / whole.step_seconds, 1, most);
	check_near(bounded.tokens_per_second / whole.tokens_per_second, 1, most);
	check_near(bounded.bubble, whole.bubble, most);
	check_near(bounded.product_peak_seconds / whole.product_peak_seconds, 1, 1e-9);
	assert_int_equal(bounded.ram_bytes, whole.ram_bytes);
	assert_int_equal(bounded.device_bytes, whole.device_bytes);
	/* in virtual time devices wait, whatever else this machine does */
	assert_true(whole.times.compute > 0 && whole.times.weights + whole.times.activations + whole.times.gradients > 0);
	assert_true(bounded.times.compute > 0 && bounded.times.weights + bounded.times.activations + bounded.times.gradients > 0);
	rh_forecast_free(&whole);
	rh_forecast_free(&bounded);
	rh_forecast_input_free(&input);
	rh_hardware_free(&hardware);
	deep_close(&deep);
}

static void test_long_steps_go_on_as_shorter_ones_do(void **state)
{
	(void)state;
	check_bounded(32, MICRO_BATCHES, 0, 0, 0.01);
	check_bounded(32, MICRO_BATCHES, 16, 0, 0.01);
}

/* Rounds too long to simulate several of: shorter ones would be all uploads, and what goes on from them a step faster than its products. */
static void test_steps_of_long_rounds_of_many_layers_are_no_faster_than_they_can_be(void **state)
{
	(void)state;
	check_bounded(94, 192, 32, 0, 0.015);
	check_bounded(94, 192, 48, 1, 0.015);
	check_bounded(94, 192, 0, 0, 0.015);
}

static void test_the_outlook_of_a_deep_model_is_soon_there(void **state)
{
	(void)state;
	struct deep deep;
	struct rh_hardware hardware;
	struct rh_session_machine machine;
	struct rh_forecast_input input;
	struct rh_trace trace;
	struct rh_outlook look;
	deep_open(&deep, "qwen3", 94);
	machine_open(&hardware, &machine);
	deep.rig.config.per_device_train_batch_size = 1;
	deep.rig.config.max_length = 2048;
	deep.rig.config.gradient_accumulation_steps = 64;
	check_ok(rh_trace_create(DEVICES, 1 << 20, &trace));
	check_ok(rh_forecast_input_synthetic(&deep.rig.config, 2, &input));
	input.layers = 96;
	double began = seconds_of_processor();
	check_ok(rh_outlook_make(&deep.rig.config, &machine, &input, NULL, &trace, &look));
	printf("94 layers on 8 devices, with advice: %.2f s of processor time, %.0f ms a step, limited by %s\n",
	       seconds_of_processor() - began, 1e3 * look.forecast.step_seconds, rh_bottleneck_name(look.bottleneck));
	assert_true(look.fits && look.longest.tokens > 0 && trace.spans > 0);
	assert_true(look.forecast.bubble < 0.05);
	check_pictures(&trace, &look.forecast.plan);
	rh_outlook_free(&look);
	rh_forecast_input_free(&input);
	rh_trace_free(&trace);
	rh_hardware_free(&hardware);
	deep_close(&deep);
}

/* Frozen weights on NVMe: they are not in memory, and what each upload reads takes its time. */
static void test_frozen_weights_on_nvme_are_reckoned_with(void **state)
{
	(void)state;
	struct deep deep;
	struct rh_hardware hardware;
	struct rh_session_machine machine;
	struct rh_forecast_input input;
	struct rh_forecast in_memory, fast, slow;
	deep_open(&deep, "qwen3", 12);
	machine_open(&hardware, &machine);
	struct rh_config *config = &deep.rig.config;
	config->per_device_train_batch_size = config->gradient_accumulation_steps = 2;
	config->max_length = 64;
	config->max_vram = 2 << 20; /* so many stages that weights come again in each step */
	machine.devices = 1;
	config->use_lora = 1;
	config->lora_r = 4;
	config->lora_alpha = 8;
	static char *targets[] = {"all-linear"};
	config->lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	check_ok(rh_forecast_input_synthetic(config, 2, &input));
	check_ok(rh_forecast(config, &machine, &input, NULL, &in_memory));
	config->spill = RH_SPILL_WEIGHTS;
	config->max_nvme = (int64_t)1 << 40;
	hardware.nvme.read_bytes_per_s = 1e12;
	check_ok(rh_forecast(config, &machine, &input, NULL, &fast));
	hardware.nvme.read_bytes_per_s = 1e7;
	check_ok(rh_forecast(config, &machine, &input, NULL, &slow));
	assert_true(fast.nvme_bytes > 0);
	assert_true(fast.store_bytes + fast.nvme_bytes / 2 < in_memory.store_bytes + (4 << 20)); /* a page's window comes instead */
	assert_true(slow.step_seconds > (double)slow.nvme_bytes / 1e7 / 2 && slow.step_seconds > 2 * fast.step_seconds);
	printf("a step: weights in memory %.3g ms, on a fast drive %.3g, on a slow one %.3g\n", 1e3 * in_memory.step_seconds,
	       1e3 * fast.step_seconds, 1e3 * slow.step_seconds);
	config->lora_target_modules = (struct rh_list){0};
	rh_forecast_free(&in_memory);
	rh_forecast_free(&fast);
	rh_forecast_free(&slow);
	rh_forecast_input_free(&input);
	rh_hardware_free(&hardware);
	deep_close(&deep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_long_steps_go_on_as_shorter_ones_do),
	        cmocka_unit_test(test_steps_of_long_rounds_of_many_layers_are_no_faster_than_they_can_be),
	        cmocka_unit_test(test_the_outlook_of_a_deep_model_is_soon_there),
	        cmocka_unit_test(test_frozen_weights_on_nvme_are_reckoned_with),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
