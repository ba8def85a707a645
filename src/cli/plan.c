/* `roundhouse plan`: does it fit, how fast will it be, what would help; the answer first. Computes nothing itself: outlook.h does. */
#include "cli/output.h"
#include "cli/plan_boxes.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/minmax.h"
#include "core/tasks.h"
#include "core/text.h"
#include "core/wrap.h"
#include "forecast/forecast_bounded.h"
#include "forecast/judge.h"
#include "forecast/machine_find.h"
#include "forecast/outlook.h"
#include "machine/machine.h"
#include "observe/trace.h"
#include "partition/roundpipe.h"
#include "schedule/schedule.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 3, SPANS = 1 << 20, COLUMNS = 100, COLUMNS_LEAST = 60, THREADS_MOST = 8 };

static const double gib = 1 << 30;

/* ---- for programs ---- */

static json_t *tier(int64_t used, int64_t budget)
{
	return json_pack("{s:I, s:o}", "used_bytes", (json_int_t)used, "budget_bytes", budget ? json_integer(budget) : json_null());
}

static json_t *stages_json(const struct rh_stage_plan *plan)
{
	json_t *list = json_array();
	for (int i = 0; i < plan->forward_stages; i++)
		json_array_append_new(list, json_pack("{s:s, s:i, s:i}", "pass", "forward", "first_layer", plan->forward[i].lo,
		                                      "last_layer", plan->forward[i].hi - 1));
	for (int i = 0; i < plan->backward_stages; i++)
		json_array_append_new(list, json_pack("{s:s, s:i, s:i}", "pass", i ? "backward" : "fused", "first_layer",
		                                      plan->backward[i].lo, "last_layer", plan->backward[i].hi - 1));
	return list;
}

static json_t *advice_json(const struct rh_advice *advice)
{
	return *advice->text ? json_pack("{s:s, s:f}", "change", advice->text, "gain", advice->gain) : json_null();
}

static json_t *mends_json(const struct rh_outlook *look)
{
	json_t *list = json_array();
	for (int i = 0; i < look->mends; i++)
		json_array_append_new(list, json_string(look->mend[i].text));
	return list;
}

static json_t *known(double value)
{
	return value > 0 ? json_real(value) : json_null();
}

static json_t *plan_json(const struct rh_machine_found *found, const struct rh_forecast_input *input, const struct rh_outlook *look)
{
	const struct rh_forecast *is = &look->forecast;
	if (!look->fits)
		return json_pack("{s:b, s:s, s:s, s:o, s:o, s:o, s:o, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n}", "fits", 0, "hardware",
		                 found->hardware.name, "why", look->refusal, "mend", advice_json(&look->mend[0]), "mends", mends_json(look),
		                 "max_ram_needed_bytes", look->ram_needed_bytes ? json_integer(look->ram_needed_bytes) : json_null(),
		                 "rates_assumed", json_boolean(found->assumed), "tokens_per_second", "step_seconds", "bubble", "bottleneck",
		                 "longest_sequence", "speed_of_light", "tiers", "stages");
	json_t *out = json_pack("{s:b, s:s, s:o, s:i, s:i, s:f, s:f, s:f, s:f, s:s, s:f, s:o, s:I}", "fits", 1, "hardware",
	                        found->hardware.name, "rates_assumed", json_boolean(found->assumed), "devices", found->machine.devices,
	                        "devices_used", is->devices, "tokens_per_second", is->tokens_per_second, "step_seconds", is->step_seconds,
	                        "bubble", is->bubble, "speed_of_light", look->speed_of_light, "bottleneck",
	                        rh_bottleneck_name(look->bottleneck), "bottleneck_gain", look->bottleneck_gain, "advice",
	                        advice_json(&look->advice), "longest_sequence", (json_int_t)look->longest_sequence);
	json_t *rest =
	        json_pack("{s:I, s:{s:o, s:o, s:o}, s:o, s:o, s:o, s:I, s:{s:f, s:f, s:f, s:f, s:f}, s:b, s:s?, s:I, s:I, s:o}",
	                  "round_micro_batches", (json_int_t)is->round_micro_batches, "tiers", "vram",
	                  tier(is->host_devices ? 0 : is->device_bytes, is->host_devices ? 0 : is->device_budget), "ram",
	                  tier(is->ram_bytes, is->ram_budget), "nvme", tier(is->nvme_bytes, is->nvme_budget), "stages",
	                  stages_json(&is->plan), "run_steps", input->run_steps ? json_integer(input->run_steps) : json_null(),
	                  "run_seconds", known(look->run_seconds), "nvme_written_bytes", (json_int_t)look->nvme_written_bytes, "step_parts",
	                  "compute", is->times.compute, "weights", is->times.weights, "activations", is->times.activations, "gradients",
	                  is->times.gradients, "optimizer", is->times.optimizer, "rows_assumed_full", input->synthetic, "rows_uncounted",
	                  input->uncounted, "nvme_step_bytes", (json_int_t)is->nvme_step_bytes, "model_positions",
	                  (json_int_t)input->positions, "stages_packed", json_boolean(is->packed));
	if (!out || !rest || json_object_update(out, rest)) {
		json_decref(out);
		out = NULL;
	}
	json_decref(rest);
	return out;
}

/* ---- for people ---- */

static int put_stages(struct rh_text *out, const struct rh_forecast *is)
{
	const struct rh_stage_plan *plan = &is->plan;
	int rc = rh_text_printf(out, "stages       forward");
	for (int i = 0; i < plan->forward_stages && !rc; i++)
		rc = rh_text_printf(out, "%s %d-%d", i && i % 12 == 0 ? "\n                    " : "", plan->forward[i].lo,
		                    plan->forward[i].hi - 1);
	if (!rc)
		rc = rh_text_printf(out, "%s\n             forward, loss and backward %d-%d\n", plan->forward_stages ? "" : " none",
		                    plan->backward[0].lo, plan->backward[0].hi - 1);
	for (int i = 1; i < plan->backward_stages && !rc; i++)
		rc = rh_text_printf(out, "%s %d-%d",
		                    i == 1        ? "             backward"
		                    : i % 12 == 1 ? "\n                     "
		                                  : "",
		                    plan->backward[i].lo, plan->backward[i].hi - 1);
	if (!rc)
		rc = rh_text_printf(out, "%s", plan->backward_stages > 1 ? "\n" : "");
	if (!rc)
		rc = rh_text_printf(out, "             (layer 0 is the embedding, %d the head)\n", plan->backward[0].hi - 1);
	if (!rc && is->packed)
		rc = rh_text_printf(out, "             (packed as full as memory allows: cuts are searched for in up to %d layers)\n",
		                    RH_PARTITION_LAYERS_MOST);
	return rc;
}

/* Prints the rounds of RoundPipe; the other schedules have none. */
static int put_rounds(struct rh_text *out, const struct rh_forecast *is, int64_t micro_batches)
{
	int64_t rounds = rh_round_count(micro_batches, is->round_micro_batches);
	if (rounds < 2)
		return 0;
	return rh_text_printf(out, "rounds       %lld of up to %lld micro-batches\n", (long long)rounds,
	                      (long long)is->round_micro_batches);
}

static int put_tier(struct rh_text *out, const char *name, int64_t used, int64_t budget, const char *what)
{
	int rc = rh_text_printf(out, "%-12s %.2f GiB", name, (double)used / gib);
	if (!rc && budget)
		rc = rh_text_printf(out, " of %.2f", (double)budget / gib);
	return rc ? rc : rh_text_printf(out, "%s\n", what);
}

static int put_tiers(struct rh_text *out, const struct rh_forecast *is)
{
	char what[256];
	const struct rh_stage_plan *plan = &is->plan;
	snprintf(what, sizeof what, ": weights %.2f, gradients %.2f, activations %.2f, boundaries %.2f", (double)plan->weight_bytes / gib,
	         (double)(plan->gradient_bytes + plan->rounded_bytes) / gib, (double)(plan->arena_bytes + plan->saved_bytes) / gib,
	         (double)(plan->boundary_buffers * plan->boundary_bytes) / gib);
	int rc = put_tier(out, is->host_devices ? "each device" : "each GPU", is->device_bytes, is->device_budget, what);
	int length = snprintf(what, sizeof what, ": weights and optimizer %.2f, boundary activations %.2f", (double)is->store_bytes / gib,
	                      (double)is->boundary_bytes / gib);
	int64_t devices = is->host_devices * is->device_bytes, rest = is->ram_bytes - is->store_bytes - is->boundary_bytes - devices;
	if (is->host_devices)
		length += snprintf(what + length, sizeof what - (size_t)length, ", devices %.2f", (double)devices / gib);
	snprintf(what + length, sizeof what - (size_t)length, ", program and data %.2f", (double)rest / gib);
	if (!rc)
		rc = put_tier(out, "host", is->ram_bytes, is->ram_budget, what);
	snprintf(what, sizeof what, ": %.2f GiB written a step", (double)is->nvme_step_bytes / gib);
	return rc || !is->nvme_bytes ? rc : put_tier(out, "NVMe", is->nvme_bytes, is->nvme_budget, what);
}

static int put_time(struct rh_text *out, double seconds)
{
	if (seconds < 120)
		return rh_text_printf(out, "%.1f s", seconds);
	if (seconds < 7200)
		return rh_text_printf(out, "%.1f minutes", seconds / 60);
	return seconds < 172800 ? rh_text_printf(out, "%.1f hours", seconds / 3600) : rh_text_printf(out, "%.1f days", seconds / 86400);
}

/* Memory may hold more than the model knows positions for. */
static int put_length(struct rh_text *out, int64_t tokens, int64_t positions)
{
	if (positions && tokens > positions)
		return rh_text_printf(out, "%lld tokens (the model's context; memory would hold %lld)", (long long)positions,
		                      (long long)tokens);
	return rh_text_printf(out, "%lld tokens", (long long)tokens);
}

/* The longest sequence with one row a micro-batch, which may be another batch size than the rest of the plan has. */
static int put_longest(struct rh_text *out, int64_t positions, const struct rh_outlook *look, int64_t batch)
{
	int rc = rh_text_printf(out, "longest      ");
	if (!rc)
		rc = put_length(out, look->longest_sequence, positions);
	return rc ? rc : rh_text_printf(out, "%s\n", batch > 1 ? " at per_device_train_batch_size: 1" : "");
}

static int put_speed(struct rh_text *out, const struct rh_config *config, const struct rh_forecast_input *input,
                     const struct rh_outlook *look)
{
	const struct rh_forecast *is = &look->forecast;
	int rc = rh_text_printf(out, "speed        %.1f tokens/s, %.4g s a step; idle %.1f %%; %.1f %% of the devices' peak (MFU)\n",
	                        is->tokens_per_second, is->step_seconds, 100 * is->bubble, 100 * look->speed_of_light);
	if (!rc && input->run_steps) {
		rc = rh_text_printf(out, "whole run    %lld steps, ", (long long)input->run_steps);
		if (!rc)
			rc = put_time(out, look->run_seconds);
		if (!rc && look->nvme_written_bytes)
			rc = rh_text_printf(out, "; %.2f GiB written to NVMe", (double)look->nvme_written_bytes / gib);
		if (!rc)
			rc = rh_text_printf(out, "\n");
	}
	if (!rc)
		rc = rh_text_printf(out, "bottleneck   %s (25 %% faster, it would give %.1f %% more tokens/s)\n",
		                    rh_bottleneck_name(look->bottleneck), 100 * look->bottleneck_gain);
	if (!rc && *look->advice.text)
		rc = rh_text_printf(out, "helps most   %s: %.1f %% more tokens/s\n", look->advice.text, 100 * look->advice.gain);
	return rc || input->of_images ? rc : put_longest(out, input->positions, look, config->per_device_train_batch_size);
}

static int put_head(struct rh_text *out, const struct rh_machine_found *found, const struct rh_forecast_input *input)
{
	int rc = rh_text_printf(out, "machine      %s, %d device%s%s\n", found->hardware.name, found->machine.devices,
	                        found->machine.devices == 1 ? "" : "s",
	                        found->assumed ? " (rates are guesses: roundhouse doctor --save local measures them)" : "");
	const char *taken = input->of_images ? "are images" : "taken to be max_length tokens each, all of them trained";
	if (!rc && input->synthetic)
		rc = rh_text_printf(out, "rows         %s (%s)\n", taken, input->uncounted);
	return rc;
}

static int put_share(struct rh_text *out, int64_t used, int64_t budget, const char *where)
{
	if (budget)
		return rh_text_printf(out, "%.1f of %.1f GiB %s", (double)used / gib, (double)budget / gib, where);
	return rh_text_printf(out, "%.1f GiB %s", (double)used / gib, where);
}

/* The answer, before what it is made of. */
static int put_answer(struct rh_text *out, const struct rh_outlook *look)
{
	const struct rh_forecast *is = &look->forecast;
	int rc = look->fits ? rh_text_printf(out, "fits         ") : rh_text_printf(out, "does not fit %s\n", look->refusal);
	if (!rc && look->fits) {
		rc = put_share(out, is->device_bytes, is->device_budget, is->host_devices ? "on each device, " : "on each GPU, ");
		if (!rc)
			rc = put_share(out, is->ram_bytes, is->ram_budget, "of host memory");
		if (!rc && is->nvme_bytes) {
			rc = rh_text_printf(out, ", ");
			if (!rc)
				rc = put_share(out, is->nvme_bytes, is->nvme_budget, "of NVMe");
		}
		return rc ? rc : rh_text_printf(out, "\n");
	}
	if (!rc && look->spilled_ram_bytes)
		rc = rh_text_printf(out, "NVMe         is not enough: with all there that may be, %.1f GiB of host memory are needed\n",
		                    (double)look->spilled_ram_bytes / gib);
	for (int i = 0; i < look->mends && !rc; i++)
		rc = rh_text_printf(out, "%s %s\n", i ? "          or" : "would fit    with", look->mend[i].text);
	return rc || look->mends ? rc : rh_text_printf(out, "would fit    on a larger machine, or a smaller model\n");
}

static int put_plan(struct rh_text *out, const struct rh_machine_found *found, const struct rh_forecast_input *input,
                    const struct rh_outlook *look, const struct rh_trace *trace, const struct rh_config *config)
{
	int64_t max_length = config->max_length;
	int rc = put_answer(out, look);
	if (!rc && input->positions && !input->of_images && max_length > input->positions)
		rc = rh_text_printf(out,
		                    "warning      max_length %lld is above the %lld positions that the model knows: train refuses it\n",
		                    (long long)max_length, (long long)input->positions);
	if (!rc)
		rc = put_head(out, found, input);
	if (!look->fits)
		return rc;
	if (!rc && look->forecast.devices < found->machine.devices)
		rc = rh_text_printf(out, "devices      %d used: a step takes no less time on more of them\n", look->forecast.devices);
	if (!rc)
		rc = put_tiers(out, &look->forecast);
	if (!rc)
		rc = put_stages(out, &look->forecast);
	if (!rc)
		rc = put_rounds(out, &look->forecast, input->count[0]);
	if (!rc)
		rc = put_speed(out, config, input, look);
	if (!rc)
		rc = rh_text_printf(
		        out, "drawn below  one step: %.4g s from its first update or upload to its last download; steps may overlap\n",
		        trace->seconds);
	int terminal = rh_columns_of(stdout), columns = terminal >= COLUMNS_LEAST && terminal < COLUMNS ? terminal : COLUMNS;
	return rc ? rc : rh_trace_text(trace, columns, out);
}

/* ---- all schedules ---- */

static json_t *compared_json(const char *name, const struct rh_forecast *is, int rc)
{
	if (rc)
		return json_pack("{s:s, s:b, s:s}", "schedule", name, "fits", 0, "why", rh_error(rc));
	return json_pack("{s:s, s:b, s:f, s:f, s:f, s:I}", "schedule", name, "fits", 1, "tokens_per_second", is->tokens_per_second,
	                 "step_seconds", is->step_seconds, "bubble", is->bubble, "device_bytes", (json_int_t)is->device_bytes);
}

static void put_compared(const char *name, const struct rh_forecast *is, int rc)
{
	if (rc)
		printf("%-22s %12s\n", name, rc == RH_DOES_NOT_FIT ? "does not fit" : "cannot be");
	else
		printf("%-22s %12.1f %10.4g %8.2f %10.2f\n", name, is->tokens_per_second, is->step_seconds, 100 * is->bubble,
		       (double)is->device_bytes / gib);
}

/* A schedule's forecast. */
struct compared {
	struct rh_task task;
	const char *name;
	struct rh_config config;
	const struct rh_session_machine *machine;
	const struct rh_forecast_input *input;
	struct rh_tasks *tasks;
	struct rh_forecast forecast;
};

static int run_compared(void *context)
{
	struct compared *one = context;
	const struct rh_forecast_options options = {.tasks = one->tasks};
	return rh_forecast_judged(&one->config, one->machine, one->input, &options, &one->forecast);
}

/* Begins all, the last first: the first is what its owner asks for first and does itself, the last takes as long. How many there are. */
static int begin_all(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
                     struct rh_tasks *tasks, struct compared *all)
{
	int count = 0;
	for (int i = 0; i < rh_schedule_count + 1; i++) {
		int stale = i == rh_schedule_count;
		const struct rh_schedule *schedule = stale ? rh_schedule_find("roundpipe") : &rh_schedules[i];
		if (!stale && schedule->update != RH_UPDATE_FLUSHES)
			continue;
		struct compared *one = &all[count++];
		*one = (struct compared){.name = stale ? "roundpipe, staleness 1" : schedule->name,
		                         .config = *config,
		                         .machine = &found->machine,
		                         .input = input,
		                         .tasks = tasks};
		one->config.schedule = (char *)(uintptr_t)schedule->name;
		one->config.optimizer_staleness = stale;
	}
	for (int i = count - 1; i >= 0; i--)
		rh_task_begin(tasks, &all[i].task, run_compared, &all[i]);
	return count;
}

/* Schedules that this run cannot have are explained below the others, with one reason of each kind. */
static int compare(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
                   struct rh_tasks *tasks)
{
	enum { UNFIT, INVALID, KINDS };
	static const char *const head[KINDS] = {"does not fit", "cannot be"};
	char why[KINDS][RH_ERROR_LINE] = {"", ""};
	struct compared *all = rh_alloc((size_t)rh_schedule_count + 1, sizeof *all);
	if (!all)
		return -ENOMEM;
	json_t *list = json_array();
	int count = begin_all(config, found, input, tasks, all), rc = 0, any = 0;
	if (!config->json)
		printf("%-22s %12s %10s %8s %10s\n", "schedule", "tokens/s", "s a step", "idle %", "GiB/device");
	for (int i = 0; i < count && !rc; i++) {
		const struct compared *one = &all[i];
		rc = rh_task_finish(&all[i].task);
		if (rc && rc != RH_DOES_NOT_FIT && rc != -EINVAL)
			break;
		any |= !rc;
		if (config->json)
			json_array_append_new(list, compared_json(one->name, &one->forecast, rc));
		else
			put_compared(one->name, &one->forecast, rc);
		char *reason = why[rc == RH_DOES_NOT_FIT ? UNFIT : INVALID];
		if (rc && !*reason)
			snprintf(reason, RH_ERROR_LINE, "%s: %s", one->name, rh_error(rc));
		rc = 0;
	}
	for (int kind = 0; !rc && !config->json && kind < KINDS; kind++)
		if (*why[kind])
			printf("%s: %s\n", head[kind], why[kind]);
	if (!rc && config->json)
		rc = verb_print_json(json_pack("{s:O}", "schedules", list));
	for (int i = 0; i < count; i++) {
		rh_task_drop(&all[i].task);
		rh_forecast_free(&all[i].forecast);
	}
	rh_free(all);
	json_decref(list);
	return rc ? rc : any ? 0 : VERB_SAYS_NO;
}

/* ---- the verb ---- */

static int write_svg(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_trace *trace)
{
	struct rh_text svg = {0};
	char title[256];
	if (!config->gantt)
		return 0;
	snprintf(title, sizeof title, "%s: one step of %s", found->hardware.name,
	         config->model_name_or_path ? config->model_name_or_path : config->config_name);
	int rc = rh_trace_svg(trace, title, &svg);
	if (!rc)
		rc = rh_file_write_whole(config->gantt, svg.bytes, svg.length);
	rh_text_free(&svg);
	return rc;
}

/* --check: the steps of the plan that was found, on lanes. */
static int put_check(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
                     const struct rh_forecast *planned, struct rh_forecast_check *check)
{
	const struct rh_forecast_options options = {.check = check};
	struct rh_config same = *config;
	struct rh_cuts cuts = {0};
	struct rh_forecast forecast = {0};
	struct rh_session_machine used = found->machine;
	int rc = 0;
	used.devices = planned->devices;
	if (rh_schedule_is_roundpipe(config->schedule ? rh_schedule_find(config->schedule) : NULL)) {
		same.round_micro_batches = planned->round_micro_batches;
		if (used.devices > 1)
			rc = rh_config_pin_stages(&same, &planned->plan, &cuts);
	}
	if (!rc)
		rc = rh_forecast(&same, &used, input, &options, &forecast);
	rh_forecast_free(&forecast);
	rh_cuts_free(&cuts);
	if (rc || config->json)
		return rc;
	printf("check        %lld commands on %d lanes with %lld waits: %s\n", (long long)check->commands, check->lanes,
	       (long long)check->waits, check->text[0] ? check->text : "each finds what it needs, in whatever order a run takes");
	return 0;
}

static json_t *check_json(const struct rh_forecast_check *check)
{
	json_t *fault = check->text[0] ? json_string(check->text) : json_null();
	return json_pack("{s:I, s:i, s:I, s:o}", "commands", (json_int_t)check->commands, "lanes", check->lanes, "waits",
	                 (json_int_t)check->waits, "fault", fault);
}

static int tell(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
                struct rh_tasks *tasks)
{
	struct rh_outlook look;
	struct rh_trace trace;
	struct rh_text text = {0};
	struct rh_forecast_check check = {0};
	int rc = rh_trace_create(found->machine.devices, SPANS, &trace);
	if (rc)
		return rc;
	rc = rh_outlook_make(config, &found->machine, input, tasks, &trace, &look);
	if (!rc && look.fits)
		rc = write_svg(config, found, &trace);
	if (!rc && !config->json)
		rc = put_plan(&text, found, input, &look, &trace, config);
	if (!rc && !config->json)
		rh_put_line(stdout, text.bytes);
	if (!rc && config->check && look.fits)
		rc = put_check(config, found, input, &look.forecast, &check);
	if (!rc && config->json) {
		json_t *json = plan_json(found, input, &look);
		if (json && config->check && look.fits)
			(void)json_object_set_new(json, "check", check_json(&check));
		rc = verb_print_json(json);
	}
	rh_text_free(&text);
	rh_trace_free(&trace);
	rh_outlook_free(&look);
	return rc ? rc : look.fits && !check.text[0] ? 0 : VERB_SAYS_NO;
}

static int plan(struct rh_tasks *tasks, void *context)
{
	const struct rh_config *config = context;
	struct rh_machine_found found;
	struct rh_session session = {0};
	struct rh_forecast_input input = {0};
	int rc = rh_machine_find(config, &found);
	if (rc)
		return rc;
	rc = rh_session_simulate(config, &found.machine, &session);
	if (!rc)
		rc = rh_forecast_input_make(config, &session, STEPS, &input);
	rh_session_close(&session);
	if (!rc && config->mode != RH_MODE_LOCAL)
		rc = plan_boxes(config, &found, &input, tasks);
	else if (!rc)
		rc = config->compare ? compare(config, &found, &input, tasks) : tell(config, &found, &input, tasks);
	rh_forecast_input_free(&input);
	rh_machine_found_free(&found);
	return rc;
}

int verb_plan(const struct rh_config *config)
{
	struct rh_config own = *config;
	int rc = config->gantt ? verb_check_output(config, "gantt", config->gantt, OUTPUT_SVG) : 0;
	return rc ? rc : rh_tasks_run((int)rh_min(rh_machine_cores(), THREADS_MOST), plan, &own);
}
