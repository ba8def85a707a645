/* `plan --compare`: what each schedule would take. */
#include "cli/plan.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/tasks.h"
#include "forecast/judge.h"
#include "schedule/schedule.h"

#include <stdio.h>

static const double gib = 1 << 30;

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
int plan_compare(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
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
