#include "forecast/stress.h"

#include "core/clock.h"
#include "core/minmax.h"
#include "forecast/judge.h"

#include <stdio.h>
#include <string.h>

const char *const rh_placement_name[RH_PLACEMENTS] = {"device", "host", "nvme"};

struct rh_config rh_stress_config(const struct rh_config *config, const struct rh_hardware *hardware, enum rh_placement placement,
                                  int64_t tokens)
{
	struct rh_config out = *config;
	out.per_device_train_batch_size = 1;
	out.gradient_accumulation_steps = 1;
	out.round_micro_batches = 0;
	out.max_length = tokens;
	out.max_steps = 1;
	out.optimizer_staleness = 0;
	out.forward_cut_count = out.backward_cut_count = placement == RH_PLACEMENT_DEVICE ? 0 : -1;
	if (placement == RH_PLACEMENT_DEVICE)
		out.sequence_chunk = 0; /* more than one layer in a stage: rows are whole */
	if (placement != RH_PLACEMENT_NVME)
		out.spill = 0;
	else if (!out.spill)
		out.spill = RH_SPILL_AUTO;
	if (placement == RH_PLACEMENT_NVME && !out.max_nvme)
		out.max_nvme = hardware->nvme.bytes;
	return out;
}

/* Why nothing can lie in this place; NULL: something can. */
static const char *obstacle(const struct rh_config *config, const struct rh_session_machine *machine, enum rh_placement placement)
{
	const struct rh_config own = rh_stress_config(config, machine->hardware, placement, config->max_length);
	if (placement != RH_PLACEMENT_NVME)
		return NULL;
	if (!own.max_nvme)
		return "nvme_dirs and max_nvme name no drive";
	return NULL;
}

static void find_positions(const struct rh_config *config, const struct rh_session_machine *machine, int64_t *positions, int *is_learned)
{
	struct rh_session session;
	*positions = 0;
	*is_learned = 0;
	if (!rh_session_simulate(config, machine, &session)) {
		*positions = rh_model_longest(session.model_config);
		*is_learned = session.model->layer[0].positions >= 0;
	}
	rh_session_close(&session);
	rh_error_clear();
}

/* The largest buffer of the budget that binds, of those that grow with the length. */
static void name_buffer(const struct rh_forecast *is, struct rh_stress_found *out)
{
	const struct rh_stage_plan *plan = &is->plan;
	const struct {
		const char *name;
		int64_t bytes;
	} on_device[] = {{"activations of a stage", plan->arena_bytes + plan->kept_bytes},
	                 {"keys, values and states that layers carry", plan->cache_bytes},
	                 {"boundary activations", plan->boundary_bytes * plan->boundary_buffers}};
	const char *name = "saved layer inputs";
	int64_t most = 0;
	for (size_t i = 0; i < sizeof on_device / sizeof *on_device && !strcmp(out->budget, "max_vram"); i++)
		if (on_device[i].bytes > most) {
			most = on_device[i].bytes;
			name = on_device[i].name;
		}
	if (!strcmp(out->budget, "max_ram") && is->host_devices && is->device_bytes * is->host_devices > is->boundary_bytes)
		name = "the CPU devices' memory";
	if (!strcmp(out->budget, "max_nvme"))
		name = "what lies on NVMe";
	snprintf(out->buffer, sizeof out->buffer, "%s", *out->budget ? name : "");
}

/* One step in virtual time. */
static int simulate(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_forecast *out)
{
	struct rh_forecast_input input;
	*out = (struct rh_forecast){0};
	int rc = rh_forecast_input_of_machine(config, machine, NULL, &input);
	if (!rc)
		rc = rh_forecast_judged(config, machine, &input, NULL, out);
	rh_forecast_input_free(&input);
	return rc;
}

static int predict_longest(const struct rh_config *config, const struct rh_session_machine *machine, enum rh_placement placement,
                           struct rh_stress_found *out)
{
	const struct rh_config own = rh_stress_config(config, machine->hardware, placement, out->tokens);
	struct rh_forecast forecast;
	int rc = simulate(&own, machine, &forecast);
	if (!rc) {
		out->device_bytes = forecast.device_bytes;
		out->ram_bytes = forecast.ram_bytes;
		out->nvme_bytes = forecast.nvme_bytes;
		out->step_seconds = forecast.step_seconds;
		out->tokens_per_second = forecast.tokens_per_second;
		name_buffer(&forecast, out);
	}
	rh_forecast_free(&forecast);
	return rc;
}

/* Lengths that double, up to the longest. */
static int predict_shorter(const struct rh_config *config, const struct rh_session_machine *machine, enum rh_placement placement,
                           double until_s, struct rh_stress_found *out)
{
	enum { FIRST = 1024 };
	int64_t length = FIRST;
	int rc = 0;
	while (length << (RH_STRESS_POINTS - 2) < out->tokens)
		length *= 2;
	for (; !rc && length < out->tokens && out->points < RH_STRESS_POINTS - 1 && rh_clock_seconds() < until_s; length *= 2) {
		const struct rh_config own = rh_stress_config(config, machine->hardware, placement, length);
		struct rh_forecast forecast;
		rc = simulate(&own, machine, &forecast);
		if (rc == RH_DOES_NOT_FIT) { /* as fewer chunks of a shorter row may need more memory */
			rh_error_clear();
			rc = 0;
		} else if (!rc) {
			out->point[out->points].tokens = length;
			out->point[out->points++].tokens_per_second = forecast.tokens_per_second;
		}
		rh_forecast_free(&forecast);
	}
	out->point[out->points].tokens = out->tokens;
	out->point[out->points++].tokens_per_second = out->tokens_per_second;
	return rc;
}

int rh_stress_predict(const struct rh_config *config, const struct rh_session_machine *machine, enum rh_placement placement, double until_s,
                      struct rh_stress_found *out)
{
	struct rh_config own = rh_stress_config(config, machine->hardware, placement, config->max_length);
	struct rh_longest longest = {0};
	int is_learned;
	*out = (struct rh_stress_found){0};
	const char *why = obstacle(config, machine, placement);
	if (why) {
		snprintf(out->why, sizeof out->why, "%s", why);
		return 0;
	}
	find_positions(&own, machine, &out->positions, &is_learned);
	int64_t most = is_learned && out->positions ? out->positions : RH_LONGEST_MOST;
	int rc = rh_longest_find(&own, machine, 1, most, NULL, &longest);
	if (rc)
		return rc;
	out->tokens = longest.tokens;
	out->chunk = longest.chunk;
	snprintf(out->budget, sizeof out->budget, "%s", longest.budget ? longest.budget : "");
	if (!out->tokens) {
		snprintf(out->why, sizeof out->why, "not even a short one fits");
		return 0;
	}
	rc = predict_longest(config, machine, placement, out);
	return rc ? rc : predict_shorter(config, machine, placement, until_s, out);
}
