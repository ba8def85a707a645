#include "forecast/forecast_bounded.h"

#include "core/minmax.h"
#include "core/tasks.h"
#include "schedule/schedule.h"

#include <math.h>

enum {
	SIMULATED_MOST = 16000, /* micro-batches times layers times steps that are simulated at once: some tenths of a second */
	WHOLE_MOST = 40000,     /* the same where rounds are too long for two shorter steps of whole rounds */
	FEWEST = 2              /* micro-batches of a shorter step, at least, however many layers there are */
};

int rh_config_pin_stages(struct rh_config *config, const struct rh_stage_plan *plan, struct rh_cuts *cuts)
{
	int rc = rh_cuts_make(plan->forward, plan->forward_stages, plan->backward, plan->backward_stages, cuts);
	config->forward_cuts = cuts->forward;
	config->forward_cut_count = cuts->forward_count;
	config->backward_cuts = cuts->backward;
	config->backward_cut_count = cuts->backward_count;
	return rc;
}

void rh_config_pin_spill(struct rh_config *config, const struct rh_forecast *planned)
{
	if (!(config->spill & RH_SPILL_AUTO))
		return;
	config->spill = planned->spill;
	config->frozen_share = planned->frozen_share;
}

/* One of the two shorter runs from which the whole step is extrapolated. */
struct shorter_run {
	struct rh_task task;
	struct rh_config config;
	const struct rh_session_machine *machine;
	struct rh_forecast_input input;
	struct rh_cuts cuts;
	struct rh_forecast_options options;
	struct rh_forecast forecast;
};

static int simulate_shorter_run(void *context)
{
	struct shorter_run *run = context;
	return rh_forecast(&run->config, run->machine, &run->input, &run->options, &run->forecast);
}

/* Prepares steps of `count` micro-batches in rounds of `round`, with the stages of what is planned. *out is zeroed. */
static int shorter_run_open(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                            const struct rh_forecast *planned, int64_t count, int64_t round, struct shorter_run *out)
{
	const struct rh_schedule *schedule = config->schedule ? rh_schedule_find(config->schedule) : NULL;
	int rc = rh_forecast_input_shorter(input, count, rh_forecast_fewest_steps(config), &out->input);
	if (rc)
		return rc;
	out->config = *config;
	out->machine = machine;
	out->config.round_micro_batches = rh_min(round, count);
	if (machine->devices > 1 && rh_schedule_has_planned_stages(schedule)) /* other schedules' stages do not depend on micro-batches */
		rc = rh_config_pin_stages(&out->config, &planned->plan, &out->cuts);
	rh_config_pin_spill(&out->config, planned);
	return rc;
}

static void shorter_run_close(struct shorter_run *run)
{
	rh_task_drop(&run->task);
	rh_forecast_free(&run->forecast);
	rh_cuts_free(&run->cuts);
	rh_forecast_input_free(&run->input);
}

/* Seconds of `count` micro-batches, on the line through a (with `from`) and b (with `to`). */
static double extrapolate_line(double a, double b, double from, double to, double count)
{
	return b + (b - a) * (count - to) / (to - from);
}

/* by_recurrence: takes the time from the slot recurrence, not from a and b. */
static void extrapolate_forecast(const struct rh_forecast *a, const struct rh_forecast *b, double from, double to,
                                 const struct rh_forecast_input *input, int by_recurrence, struct rh_forecast *out)
{
	double count = (double)input->count[0], tokens = 0;
	for (int64_t m = 0; m < input->count[0]; m++)
		tokens += (double)rh_forecast_micro(input, m).tokens;
	double busy = extrapolate_line(a->step_seconds * (1 - a->bubble), b->step_seconds * (1 - b->bubble), from, to, count);
	/* short steps of very deep stages wait for launches more than the whole step, so their times are not linear */
	busy = fmax(busy, out->scheduled_seconds * (1 - out->scheduled_idle));
	double seconds = fmax(extrapolate_line(a->step_seconds, b->step_seconds, from, to, count), busy / (1 - out->scheduled_idle));
	if (by_recurrence) {
		seconds = out->scheduled_seconds;
		busy = seconds * (1 - out->scheduled_idle);
	}
	out->tokens_per_second = tokens / seconds;
	out->step_seconds = input->tokens_a_step / out->tokens_per_second;
	out->bubble = 1 - busy / seconds;
	out->times = (struct rh_step_times){
	        .compute = extrapolate_line(a->times.compute, b->times.compute, from, to, count),
	        .weights = fmax(extrapolate_line(a->times.weights, b->times.weights, from, to, count), 0),
	        .activations = fmax(extrapolate_line(a->times.activations, b->times.activations, from, to, count), 0),
	        .gradients = fmax(extrapolate_line(a->times.gradients, b->times.gradients, from, to, count), 0),
	        .optimizer = fmax(extrapolate_line(a->times.optimizer, b->times.optimizer, from, to, count), 0)};
	out->longest_launch = b->longest_launch;
	out->product_peak_seconds = b->product_peak_seconds * input->tokens_a_step / (b->tokens_per_second * b->step_seconds);
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
	return b ? greatest_common_divisor(b, a % b) : a;
}

/* Returns the shorter step's micro-batches; *more: how many the longer one adds. *more is a period, after which the same device has the
 * same stage again, and the whole step is the shorter one and some periods. If that is too long, both numbers are simply small enough. */
static int64_t choose_shorter_steps(int64_t count, int64_t round, int64_t most, int devices, const struct rh_stage_plan *plan,
                                    int64_t *more)
{
	int64_t stages = plan->forward_stages + plan->backward_stages, period = devices / greatest_common_divisor(stages, devices);
	int64_t most_rounds = 2 * most / 3 / round, rest = (count / round) % period;
	rest = rest ? rest : period;
	if (rest + period <= most_rounds) {
		*more = period * round;
		return (rest + (most_rounds - rest - period) / period * period) * round;
	}
	int64_t half = most / 3 > round ? most / 3 / round * round : most / 3 > FEWEST ? most / 3 : FEWEST;
	*more = half;
	/* two rounds, so that sums cross rounds as in the whole step, if that is not too long */
	return half == round && 3 * round <= most && 2 * round < count ? 2 * round : half;
}

/* Extrapolates *out, whose plan is there, from a step of `few` micro-batches and one of `more` in addition. */
static int extrapolate_from_shorter_runs(const struct rh_config *config, const struct rh_session_machine *machine,
                                         const struct rh_forecast_input *input, const struct rh_forecast_options *options, int64_t few,
                                         int64_t more, struct rh_forecast *out)
{
	struct shorter_run run[2] = {0}; /* the shorter one first */
	int64_t round = out->round_micro_batches, rounds = input->count[0] > round ? 2 : 1;
	int too_few = few < machine->devices && out->scheduled_seconds > 0; /* so few micro-batches leave most devices idle */
	/* if not whole rounds, as many rounds as the step has, two at most: many short rounds would only measure uploads */
	int whole = few % round == 0 && more % round == 0, rc = 0;
	for (int i = 0; !rc && i < 2; i++) {
		int64_t count = i ? few + more : few;
		rc = shorter_run_open(config, machine, input, out, count, whole ? round : rh_round_count(count, rounds), &run[i]);
	}
	run[1].options.trace = options->trace;
	for (int i = 1; !rc && i >= 0; i--) /* the longer one takes most of the time */
		rh_task_begin(options->tasks, &run[i].task, simulate_shorter_run, &run[i]);
	if (!rc && options->planned)
		options->planned(options->context, out, &out->plan);
	for (int i = 0; !rc && i < 2; i++)
		rc = rh_task_finish(&run[i].task);
	if (!rc)
		extrapolate_forecast(&run[0].forecast, &run[1].forecast, (double)few, (double)(few + more), input, too_few, out);
	for (int i = 0; i < 2; i++)
		shorter_run_close(&run[i]);
	return rc;
}

int rh_forecast_bounded(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                        const struct rh_forecast_options *options, struct rh_forecast *out)
{
	struct rh_forecast_input none = *input;
	const struct rh_forecast_options planned = {.plan = options ? options->plan : NULL};
	int64_t few, more;
	if (input->count[0] * input->layers * input->steps <= SIMULATED_MOST)
		return rh_forecast(config, machine, input, options, out);
	none.steps = 0;
	int rc = rh_forecast(config, machine, &none, &planned, out);
	if (rc)
		return rc;
	int64_t chunks = rh_chunks_of(&input->work); /* a row's stay together */
	few = chunks * choose_shorter_steps(input->count[0] / chunks, rh_max(out->round_micro_batches / chunks, 1),
	                                    rh_max(SIMULATED_MOST / (2 * input->layers) / chunks, 1), machine->devices, &out->plan, &more);
	more *= chunks;
	/* shorter rounds than the whole step's wait more for uploads, so their times are not linear */
	int whole_rounds = few % out->round_micro_batches == 0 && more % out->round_micro_batches == 0;
	int64_t units = input->count[0] * input->layers * input->steps;
	if (few + more >= input->count[0] || (!whole_rounds && units <= WHOLE_MOST)) {
		rh_forecast_free(out);
		return rh_forecast(config, machine, input, options, out);
	}
	rc = extrapolate_from_shorter_runs(config, machine, input, options ? options : &(struct rh_forecast_options){0}, few, more, out);
	if (rc)
		rh_forecast_free(out);
	return rc;
}
