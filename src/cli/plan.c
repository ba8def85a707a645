/* `roundhouse plan`: does it fit, how fast will it be, what would help; the answer first. Computes nothing itself: outlook.h does. */
#include "cli/plan.h"
#include "cli/output.h"
#include "cli/plan_boxes.h"
#include "cli/verbs.h"
#include "core/file.h"
#include "core/log.h"
#include "core/minmax.h"
#include "core/tasks.h"
#include "core/wrap.h"
#include "forecast/forecast_bounded.h"
#include "machine/machine.h"
#include "observe/trace.h"
#include "schedule/schedule.h"

#include <stdio.h>

enum { STEPS = 3, SPANS = 1 << 20, THREADS_MOST = 8 };

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
	rh_config_pin_spill(&same, planned);
	if (rh_schedule_has_rounds(config->schedule ? rh_schedule_find(config->schedule) : NULL)) {
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
		rc = plan_put(&text, found, input, &look, &trace, config);
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
		rc = config->compare ? plan_compare(config, &found, &input, tasks) : tell(config, &found, &input, tasks);
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
