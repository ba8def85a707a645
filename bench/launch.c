/* How much processor time does a launch cost the program itself? Whole steps of the executor over devices that do nothing: every copy,
 * launch and wait is counted and done at once. The reference is the 5 us that a GPU's driver is reckoned to take for each launch: what the
 * program adds to it should be little beside that.
 *
 * usage: launch [words of plan]: without words a table of full and LoRA training of an 8B on 1, 2, 4 and 8 devices. */
#include "config/config.h"
#include "core/alloc.h"
#include "core/log.h"
#include "forecast/forecast_input.h"
#include "forecast/machine_find.h"
#include "machine.h"
#include "offload/updater.h"
#include "session/update.h"

#include <stdlib.h>
#include <time.h>

enum { STEPS = 4, WORDS_MOST = 64, DEVICES_MOST = 64 };

static const double driver_us = 5;

static struct counts {
	int64_t launches, copies, events;
} counted;

static int null_record(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	(void)device, (void)stream, (void)event;
	counted.events++;
	return 0;
}

static int null_up(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	(void)device, (void)stream, (void)to, (void)from, (void)bytes;
	counted.copies++;
	return 0;
}

static int null_down(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	return null_up(device, stream, to, from, bytes);
}

static int null_launch(struct rh_device *device, enum rh_stream stream, const struct rh_op *op)
{
	(void)device, (void)stream, (void)op;
	counted.launches++;
	return 0;
}

static int null_synchronize(struct rh_device *device)
{
	(void)device;
	return 0;
}

/* The simulated devices of a session take no more work from here on. Their events, which nothing records, count as done. */
static void make_null(struct rh_devices *devices, struct rh_device_ops *ops)
{
	*ops = *devices->device[0]->ops;
	ops->record = ops->wait = null_record;
	ops->copy_up = null_up;
	ops->copy_down = null_down;
	ops->launch = null_launch;
	ops->synchronize = null_synchronize;
	for (int i = 0; i < devices->count; i++)
		devices->device[i]->ops = ops;
}

static void make_real(struct rh_devices *devices, const struct rh_device_ops *ops)
{
	for (int i = 0; i < devices->count; i++)
		devices->device[i]->ops = ops;
}

static double seconds_of_processor(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run_steps(struct rh_session *session, const struct rh_forecast_input *input, double *seconds)
{
	const struct rh_config *config = session->config;
	int64_t count = input->count[0];
	int32_t *zeros = rh_alloc((size_t)input->work.train.tokens + 1, sizeof *zeros);
	struct rh_micro_batch *micro = rh_alloc((size_t)count, sizeof *micro);
	int rc = zeros && micro ? 0 : -ENOMEM;
	for (int64_t m = 0; !rc && m < count; m++)
		micro[m] = rh_micro_batch_of(rh_forecast_micro(input, m), zeros);
	double began = 0, norm;
	for (int64_t step = 0; !rc && step < STEPS; step++) {
		if (step == 1) { /* the first uploads what then stays */
			began = seconds_of_processor();
			counted = (struct counts){0};
		}
		struct rh_update update = rh_update_of(config, step, config->learning_rate, 1);
		rh_updater_open(session->updater, &update, config->max_grad_norm);
		rc = rh_executor_begin(session->executor, micro, count, step, 1);
		if (!rc)
			rc = rh_executor_finish(session->executor);
		if (!rc)
			rc = rh_updater_norm(session->updater, &norm);
	}
	*seconds = seconds_of_processor() - began;
	rh_free(zeros);
	rh_free(micro);
	return rc;
}

/* Microseconds a launch. */
static int measure(int count, char **words, double *us, int *devices)
{
	struct rh_config config = {0};
	struct rh_machine_found found = {0};
	struct rh_session session = {0};
	struct rh_forecast_input input = {0};
	struct rh_device_ops ops;
	double seconds = 0;
	int rc = rh_config_load("plan", count, words, NULL, &config);
	if (!rc)
		rc = rh_machine_find(&config, &found);
	if (!rc)
		rc = rh_forecast_input_synthetic(&config, 1, &input);
	if (!rc)
		rc = rh_session_simulate(&config, &found.machine, &session);
	if (!rc)
		rc = rh_session_start(&session, &input.work);
	if (!rc) {
		const struct rh_device_ops *real = session.devices.device[0]->ops;
		make_null(&session.devices, &ops);
		rc = run_steps(&session, &input, &seconds);
		make_real(&session.devices, real);
	}
	*devices = session.devices.count;
	*us = counted.launches ? 1e6 * seconds / (double)counted.launches : 0;
	rh_session_close(&session);
	rh_forecast_input_free(&input);
	rh_machine_found_free(&found);
	rh_config_free(&config);
	return rc;
}

static int fail(int rc)
{
	fprintf(stderr, "launch: %s\n", rh_error(rc));
	return 1;
}

static void print_row(const char *name, int devices, double us)
{
	double each = counted.launches ? 1 / (double)counted.launches : 0;
	printf("%-16s %7d %10.3f %9lld %9.2f %9.2f\n", name, devices, us, (long long)(counted.launches / (STEPS - 1)),
	       (double)counted.copies * each, (double)counted.events * each);
}

static int measure_8b(const char *devices, int lora, double *us)
{
	static const char *const full[] = {"--config-name",
	                                   "examples/models/llama-3.1-8b",
	                                   "--hardware",
	                                   "rtx4090x8",
	                                   "--per-device-train-batch-size",
	                                   "1",
	                                   "--max-length",
	                                   "2048",
	                                   "--gradient-accumulation-steps",
	                                   "64",
	                                   "--gpus"};
	static const char *const adapter[] = {"--use-peft", "true", "--lora-target-modules", "all-linear"};
	enum { FULL = sizeof full / sizeof *full, ADAPTER = sizeof adapter / sizeof *adapter };
	char *words[FULL + 1 + ADAPTER];
	int count = 0, found;
	for (int i = 0; i < FULL; i++)
		words[count++] = (char *)(uintptr_t)full[i];
	words[count++] = (char *)(uintptr_t)devices;
	for (int i = 0; lora && i < ADAPTER; i++)
		words[count++] = (char *)(uintptr_t)adapter[i];
	int rc = measure(count, words, us, &found);
	if (!rc)
		print_row(lora ? "8B, LoRA" : "8B, all weights", found, *us);
	return rc;
}

int main(int argc, char **argv)
{
	static const char *const devices[] = {"1", "2", "4", "8"};
	double us = 0, most = 0;
	char machine[256];
	int found, rc = 0;
	rh_log_quiet(1);
	bench_machine(machine, sizeof machine);
	printf("%-16s %7s %10s %9s %9s %9s\n", "", "devices", "us/launch", "launches", "copies", "events");
	if (argc > 1) {
		rc = measure(argc - 1, argv + 1, &us, &found);
		if (rc)
			return fail(rc);
		print_row("", found, us);
		most = us;
	}
	for (int lora = 0; !rc && argc == 1 && lora < 2; lora++)
		for (int i = 0; !rc && i < 4; i++) {
			rc = measure_8b(devices[i], lora, &us);
			most = us > most ? us : most;
		}
	if (rc)
		return fail(rc);
	printf("(launches: of a step; copies, events: for each launch)\n");
	printf("{\"bench\": \"launch\", \"value\": %.3f, \"unit\": \"us of processor time a launch, most\", \"reference\": %.1f, "
	       "\"ratio\": %.3f, "
	       "\"machine\": \"%s\"}\n",
	       most, driver_us, driver_us / most, machine);
	return 0;
}
