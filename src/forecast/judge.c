#include "forecast/judge.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "core/tasks.h"
#include "forecast/forecast_bounded.h"
#include "observe/trace.h"
#include "schedule/schedule.h"
#include "session/mode.h"

/* The largest share of recompute in what devices compute: it takes as long as a forward, and a backward takes at least as long as that. */
static const double recompute_most = 1 / 3.0;

/* The simulation of one plan. */
struct judged {
	struct rh_task task;
	const struct rh_config *config;
	struct rh_session_machine machine; /* of the devices that the plan uses */
	const struct rh_forecast_input *input;
	struct rh_forecast_options options;
	struct rh_forecast forecast;
};

struct judging {
	struct rh_session *session;
	const struct rh_session_machine *machine;
	const struct rh_forecast_input *input;
	struct rh_tasks *tasks;
	struct rh_run_plans *plans; /* among them the best so far */
	int best;                   /* its number */
	double step_s, bubble;      /* its */
	double fastest_s;           /* the least step_s of all so far */
	double scale;               /* simulated over the recurrence's time: of rows in chunks, each of which it takes for the longest */
};

static int simulate(void *context)
{
	struct judged *at = context;
	return rh_forecast_bounded(at->config, &at->machine, at->input, &at->options, &at->forecast);
}

static void describe(const struct judging *at, const struct rh_run_plan *plan, struct judged *out)
{
	*out = (struct judged){
	        .config = at->session->config, .machine = *at->machine, .input = at->input, .options = {.tasks = at->tasks, .plan = plan}};
	out->machine.devices = plan->executor.devices;
}

/* 1: this plan is to be run rather than the best so far. One that uses fewer devices must be faster: saving memory is not enough. */
static int is_better(const struct judging *at, const struct rh_run_plan *plan, double step_s)
{
	const struct rh_run_plan *best = &at->plans->plan[at->best];
	return rh_run_plan_is_better(plan, step_s, best, at->step_s, rh_min_double(at->fastest_s, step_s)) &&
	       (plan->executor.devices == best->executor.devices || step_s < at->step_s);
}

static void note_best(struct judging *at, int number, const struct rh_forecast *forecast)
{
	at->best = number;
	at->step_s = forecast->step_seconds;
	at->bubble = forecast->bubble;
}

/* 1: a step has so few micro-batches that simulating it takes next to no time. */
static int is_short(const struct rh_run_plan *plan)
{
	int64_t count = plan->executor.train_micro_batches;
	return count <= rh_roundpipe_default_round(count, plan->executor.devices);
}

/* A step of this plan, as the recurrence has it. */
static double recurred_s(const struct judging *at, const struct rh_run_plan *plan)
{
	return plan->balanced.step_s * (plan->executor.chunks > 1 ? at->scale : 1);
}

/* The plan with the least lower bound, which is simulated before the others, as they may then need none; -1: all are simulated. */
static int most_promising(const struct judging *at, const struct rh_run_plans *plans, int first)
{
	int best = -1;
	for (int i = first; i < plans->count && !is_short(&plans->plan[i]); i++)
		if (best < 0 || recurred_s(at, &plans->plan[i]) < recurred_s(at, &plans->plan[best]))
			best = i;
	return best;
}

/* Looks for a better plan among plans[first] and those after it: simulates all of a short step, else each whose lower bound beats the best
 * so far. `plans` may be at->plans or others; if one of the others wins, the two change contents, so that at->plans always holds the
 * best. */
static int find_better(struct judging *at, struct rh_run_plans *plans, int first)
{
	struct judged *judged = rh_alloc(RH_RUN_PLANS_MOST, sizeof *judged);
	struct rh_run_plans *before = at->plans;
	int rc = judged ? 0 : -ENOMEM, begun[RH_RUN_PLANS_MOST] = {0}, leader = most_promising(at, plans, first);
	for (int turn = 0; judged && turn < 2; turn++) {
		for (int i = first; i < plans->count; i++) {
			if ((i == leader) != !turn)
				continue;
			const struct rh_run_plan *plan = &plans->plan[i];
			describe(at, plan, &judged[i]);
			begun[i] = !rc && (is_short(plan) || is_better(at, plan, recurred_s(at, plan)));
			if (begun[i])
				rh_task_begin(at->tasks, &judged[i].task, simulate, &judged[i]);
		}
		for (int i = first; i < plans->count; i++) {
			if ((i == leader) != !turn || !begun[i] || rc)
				continue;
			rc = rh_task_finish(&judged[i].task);
			if (rc)
				continue;
			at->fastest_s = rh_min_double(at->fastest_s, judged[i].forecast.step_seconds);
			if (is_better(at, &plans->plan[i], judged[i].forecast.step_seconds)) {
				at->plans = plans;
				note_best(at, i, &judged[i].forecast);
			}
		}
	}
	for (int i = first; judged && i < plans->count; i++) {
		rh_task_drop(&judged[i].task);
		rh_forecast_free(&judged[i].forecast);
	}
	rh_free(judged);
	if (at->plans != before) {
		struct rh_run_plans better = *plans;
		*plans = *before;
		*before = better;
		at->plans = before;
	}
	return rc;
}

static int try_devices(struct judging *at, int devices)
{
	struct rh_run_plans *plans = rh_alloc(1, sizeof *plans);
	int rc = plans ? rh_session_search(at->session, &at->input->work, devices, plans) : -ENOMEM;
	if (rc == RH_DOES_NOT_FIT)
		rh_error_clear();
	else if (!rc)
		rc = find_better(at, plans, 0);
	if (plans)
		rh_run_plans_free(plans);
	rh_free(plans);
	return rc == RH_DOES_NOT_FIT ? 0 : rc;
}

/* With few micro-batches many devices wait for weights more than they compute, and fewer devices are faster. It stops at so few that what
 * the best plan computes, recompute aside, would take them as long as its whole step takes. */
static int try_fewer_devices(struct judging *at)
{
	const struct rh_config *config = at->session->config;
	int rc = 0, is_planned = !config->schedule || rh_schedule_has_planned_stages(rh_schedule_find(config->schedule));
	if (!is_planned || !rh_mode_of(config->mode)->is_judged || config->forward_cut_count >= 0 || config->backward_cut_count >= 0 ||
	    at->plans->plan[0].bytes.host_devices)
		return 0;
	for (int devices = at->machine->devices - 1; !rc && devices > 0; devices--) {
		double busy = (1 - at->bubble) * at->plans->plan[at->best].executor.devices;
		if (devices <= busy * (1 - recompute_most))
			break;
		rc = try_devices(at, devices);
	}
	return rc;
}

static int clear_trace(struct rh_trace *trace)
{
	int devices = trace->devices;
	size_t capacity = trace->capacity;
	rh_trace_free(trace);
	return rh_trace_create(devices, capacity, trace);
}

int rh_judge(struct rh_session *session, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
             const struct rh_forecast_options *options, struct rh_run_plans *plans, int *chosen, struct rh_forecast *out)
{
	struct judging at = {
	        .session = session, .machine = machine, .input = input, .tasks = options ? options->tasks : NULL, .plans = plans};
	struct judged judged;
	describe(&at, &plans->plan[0], &judged);
	if (options)
		judged.options = *options;
	judged.options.plan = &plans->plan[0];
	judged.options.planned = NULL; /* what the caller begins then is for the plan that is chosen */
	int rc = simulate(&judged);
	note_best(&at, 0, &judged.forecast);
	at.fastest_s = at.step_s;
	at.scale = plans->plan[0].balanced.step_s > 0 ? at.step_s / plans->plan[0].balanced.step_s : 1;
	if (!rc && input->steps)
		rc = find_better(&at, plans, 1);
	if (!rc && input->steps)
		rc = try_fewer_devices(&at);
	*chosen = at.best;
	const struct rh_run_plan *best = &plans->plan[at.best];
	if (!rc && (at.best || best->executor.devices < machine->devices)) { /* it is told as the choice was */
		rh_forecast_free(&judged.forecast);
		judged.machine.devices = best->executor.devices;
		judged.options.plan = best;
		judged.options.planned = options ? options->planned : NULL;
		rc = judged.options.trace ? clear_trace(judged.options.trace) : 0;
		if (!rc)
			rc = simulate(&judged);
	} else if (!rc && options && options->planned) {
		options->planned(options->context, &judged.forecast, &judged.forecast.plan);
	}
	if (rc)
		rh_forecast_free(&judged.forecast);
	*out = judged.forecast;
	return rc;
}

int rh_forecast_judged(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                       const struct rh_forecast_options *options, struct rh_forecast *out)
{
	struct rh_session session;
	int chosen;
	*out = (struct rh_forecast){0};
	int rc = rh_session_simulate(config, machine, &session);
	if (rc)
		return rc;
	struct rh_run_plans *plans = rh_alloc(1, sizeof *plans);
	rc = plans ? rh_session_search(&session, &input->work, machine->devices, plans) : -ENOMEM;
	if (!rc)
		rc = rh_judge(&session, machine, input, options, plans, &chosen, out);
	if (plans)
		rh_run_plans_free(plans);
	rh_free(plans);
	rh_session_close(&session);
	return rc;
}
