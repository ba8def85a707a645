/* An outlook is the same, to the last bit, however many threads it is made on. */
#include "train/deep.h"

#include "core/tasks.h"
#include "core/text.h"
#include "forecast/outlook.h"
#include "observe/trace.h"

enum { DEVICES = 8 };

struct asked {
	struct rh_config config;
	struct rh_session_machine machine;
	struct rh_forecast_input input;
	struct rh_text told;
};

static int tell(struct rh_text *out, const struct rh_outlook *look, const struct rh_trace *trace)
{
	const struct rh_forecast *is = &look->forecast;
	int rc = rh_text_printf(out, "%d '%s' %lld %lld\n", look->fits, look->refusal, (long long)look->spilled_ram_bytes,
	                        (long long)look->ram_needed_bytes);
	for (int i = 0; !rc && i < look->mends; i++)
		rc = rh_text_printf(out, "%s\n", look->mend[i].text);
	if (!rc)
		rc = rh_text_printf(out, "%a %s %a '%s' %a %lld\n", look->speed_of_light, rh_bottleneck_name(look->bottleneck),
		                    look->bottleneck_gain, look->advice.text, look->advice.gain, (long long)look->longest.tokens);
	if (!rc)
		rc = rh_text_printf(out, "%a %a %a %a %lld %lld %lld %d+%d\n", is->tokens_per_second, is->step_seconds, is->bubble,
		                    is->product_peak_seconds, (long long)is->device_bytes, (long long)is->ram_bytes,
		                    (long long)is->round_micro_batches, is->plan.forward_stages, is->plan.backward_stages);
	for (int i = 0; !rc && i < is->plan.backward_stages; i++)
		rc = rh_text_printf(out, " %d-%d", is->plan.backward[i].lo, is->plan.backward[i].hi);
	if (!rc)
		rc = rh_text_printf(out, "\n%zu spans, %a s\n", trace->spans, trace->seconds);
	return rc || !look->fits ? rc : rh_trace_text(trace, 100, out);
}

static int look_and_tell(struct rh_tasks *tasks, void *context)
{
	struct asked *asked = context;
	struct rh_trace trace;
	struct rh_outlook look;
	rh_text_free(&asked->told);
	int rc = rh_trace_create(DEVICES, 1 << 18, &trace);
	if (rc)
		return rc;
	rc = rh_outlook_make(&asked->config, &asked->machine, &asked->input, tasks, &trace, &look);
	if (!rc)
		rc = tell(&asked->told, &look, &trace);
	rh_outlook_free(&look);
	rh_trace_free(&trace);
	return rc;
}

static void check_same(const struct rh_config *config, const struct rh_session_machine *machine, int layers, const char *part)
{
	static const int threads[] = {5, 2, 1};
	struct asked asked = {.config = *config, .machine = *machine};
	check_ok(rh_forecast_input_synthetic(config, 2, &asked.input));
	asked.input.layers = layers;
	check_ok(look_and_tell(NULL, &asked));
	char *alone = strdup(asked.told.bytes);
	if (!strstr(alone, part))
		fail_msg("'%s' is not in %s", part, alone);
	for (size_t i = 0; i < (CHECK_THREADS_ONLY ? 1 : sizeof threads / sizeof *threads); i++) {
		check_ok(rh_tasks_run(threads[i], look_and_tell, &asked));
		assert_string_equal(asked.told.bytes, alone);
	}
	free(alone);
	rh_text_free(&asked.told);
	rh_forecast_input_free(&asked.input);
}

/* A step simulated whole; one gone on with from shorter ones; of another schedule; one that does not fit; of updates alone; on devices that
 * are the host's cores. */
static void test_the_outlook_is_the_same_on_any_number_of_threads(void **state)
{
	(void)state;
	struct deep deep;
	struct rh_hardware hardware;
	enum { LAYERS = CHECK_THREADS_ONLY ? 6 : 24, MANY = CHECK_THREADS_ONLY ? 1200 : 400 };
	deep_open(&deep, "qwen3", LAYERS);
	check_ok(rh_hardware_find("examples/hardware/rtx4090x8.yaml", &hardware));
	struct rh_session_machine machine = {.hardware = &hardware, .devices = DEVICES, .ram_bytes = hardware.host.ram};
	struct rh_config *config = &deep.rig.config;
	config->per_device_train_batch_size = 1;
	config->max_length = 1024;
	config->gradient_accumulation_steps = 16;
	check_same(config, &machine, LAYERS + 2, "compute");
	config->gradient_accumulation_steps = MANY;
	check_same(config, &machine, LAYERS + 2, "compute");
	config->schedule = "looped-bfs";
	check_same(config, &machine, LAYERS + 2, "spans");
	config->schedule = NULL;
	config->gradient_accumulation_steps = 16;
	config->max_ram = 40 << 20;
	check_same(config, &machine, LAYERS + 2, "max_ram: ");
	config->max_ram = 0;
	hardware.host.optimizer_bytes_per_s[RH_LAYOUT_SPLIT] = 1e6; /* nothing but updates */
	config->dtype = RH_BF16;
	config->state_layout = RH_LAYOUT_SPLIT;
	check_same(config, &machine, LAYERS + 2, "optimizer");
	hardware.device.on_host_cores = 1;
	machine.devices = 2;
	check_same(config, &machine, LAYERS + 2, "spans");
	rh_hardware_free(&hardware);
	deep_close(&deep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_the_outlook_is_the_same_on_any_number_of_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
