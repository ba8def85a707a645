#include "train/forecast/judge.h"

#include "core/tasks.h"
#include "observe/trace.h"
#include "train/forecast/forecast_bounded.h"

/* The simulation of one plan. */
struct judged {
	struct rh_task task;
	const struct rh_config *config;
	const struct rh_session_machine *machine;
	const struct rh_forecast_input *input;
	struct rh_forecast_options options;
	struct rh_forecast forecast;
};

static int simulate(void *context)
{
	struct judged *at = context;
	return rh_forecast_bounded(at->config, at->machine, at->input, &at->options, &at->forecast);
}

static int clear_trace(struct rh_trace *trace)
{
	int devices = trace->devices;
	size_t capacity = trace->capacity;
	rh_trace_free(trace);
	return rh_trace_create(devices, capacity, trace);
}

/* The number of the best plan, once judged[0] has been simulated. */
static int find_best(struct judged judged[RH_RUN_PLANS_MOST], const struct rh_run_plans *plans, int *out)
{
	const struct rh_run_plan *plan = plans->plan;
	int best = 0, rc = 0, begun[RH_RUN_PLANS_MOST] = {0};
	for (int i = 1; i < plans->count; i++) {
		begun[i] = rh_run_plan_is_better(&plan[i], plan[i].balanced.step_s, &plan[0], judged[0].forecast.step_seconds);
		if (!begun[i])
			continue;
		judged[i] = judged[0];
		judged[i].forecast = (struct rh_forecast){0};
		judged[i].options = (struct rh_forecast_options){.tasks = judged[0].options.tasks, .plan = &plan[i]};
		rh_task_begin(judged[0].options.tasks, &judged[i].task, simulate, &judged[i]);
	}
	for (int i = 1; i < plans->count; i++) {
		if (begun[i] && !rc)
			rc = rh_task_finish(&judged[i].task);
		if (begun[i] && !rc &&
		    rh_run_plan_is_better(&plan[i], judged[i].forecast.step_seconds, &plan[best], judged[best].forecast.step_seconds))
			best = i;
	}
	for (int i = 1; i < plans->count; i++) {
		rh_task_drop(&judged[i].task);
		rh_forecast_free(&judged[i].forecast);
	}
	*out = best;
	return rc;
}

int rh_judge(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
             const struct rh_forecast_options *options, const struct rh_run_plans *plans, int *chosen, struct rh_forecast *out)
{
	struct judged judged[RH_RUN_PLANS_MOST] = {{.config = config, .machine = machine, .input = input}};
	if (options)
		judged->options = *options;
	judged->options.plan = &plans->plan[0];
	*chosen = 0;
	int rc = simulate(judged);
	if (!rc && input->steps)
		rc = find_best(judged, plans, chosen);
	if (!rc && *chosen) { /* it is told as the choice was */
		rh_forecast_free(&judged->forecast);
		judged->options.plan = &plans->plan[*chosen];
		rc = judged->options.trace ? clear_trace(judged->options.trace) : 0;
		if (!rc)
			rc = simulate(judged);
	}
	if (rc)
		rh_forecast_free(&judged->forecast);
	*out = judged->forecast;
	return rc;
}

int rh_forecast_judged(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                       const struct rh_forecast_options *options, struct rh_forecast *out)
{
	struct rh_session session;
	struct rh_run_plans plans = {0};
	int chosen;
	*out = (struct rh_forecast){0};
	int rc = rh_session_simulate(config, machine, &session);
	if (rc)
		return rc;
	rc = rh_session_search(&session, &input->work, &plans);
	if (!rc)
		rc = rh_judge(config, machine, input, options, &plans, &chosen, out);
	rh_run_plans_free(&plans);
	rh_session_close(&session);
	return rc;
}
