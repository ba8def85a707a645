#include "train/forecast_bounded.h"

#include "core/minmax.h"
#include "core/tasks.h"
#include "schedule/schedule.h"

#include <math.h>

/* Micro-batches times layers times steps that are simulated at once: some tenths of a second; and micro-batches of however many layers. */
enum { SIMULATED_MOST = 16000, FEWEST = 2 };
/* The same where rounds are too long for two shorter steps of whole rounds. */
enum { WHOLE_MOST = 40000 };

int rh_config_pin_stages(struct rh_config *config, const struct rh_plan *plan, struct rh_cuts *cuts)
{
	int rc = rh_cuts_make(plan->forward, plan->forward_stages, plan->backward, plan->backward_stages, cuts);
	config->forward_cuts = cuts->forward;
	config->forward_cut_count = cuts->forward_count;
	config->backward_cuts = cuts->backward;
	config->backward_cut_count = cuts->backward_count;
	return rc;
}

/* Steps of `count` micro-batches, in rounds of so many, with a plan's stages. */
struct piece {
	struct rh_task task;
	struct rh_config config;
	const struct rh_session_machine *machine;
	struct rh_forecast_input input;
	struct rh_cuts cuts;
	struct rh_forecast_options options;
	struct rh_forecast forecast;
};

static int run_piece(void *context)
{
	struct piece *piece = context;
	return rh_forecast(&piece->config, piece->machine, &piece->input, &piece->options, &piece->forecast);
}

/* *out is zeroed. */
static int piece_open(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                      const struct rh_plan *plan, int64_t count, int64_t round, struct piece *out)
{
	const struct rh_schedule *schedule = config->schedule ? rh_schedule_find(config->schedule) : NULL;
	int rc = rh_forecast_input_shorter(input, count, 2, &out->input);
	if (rc)
		return rc;
	out->config = *config;
	out->machine = machine;
	out->config.round_micro_batches = rh_min(round, count);
	if (machine->devices > 1 && rh_schedule_is_roundpipe(schedule)) /* others' stages do not depend on micro-batches */
		rc = rh_config_pin_stages(&out->config, plan, &out->cuts);
	return rc;
}

static void piece_close(struct piece *piece)
{
	rh_task_drop(&piece->task);
	rh_forecast_free(&piece->forecast);
	rh_cuts_free(&piece->cuts);
	rh_forecast_input_free(&piece->input);
}

/* Seconds of `count` micro-batches, on the line through a (with `from`) and b (with `to`). */
static double extrapolate_line(double a, double b, double from, double to, double count)
{
	return b + (b - a) * (count - to) / (to - from);
}

/* by_recurrence: of the time they say nothing, the recurrence of slots does. */
static void extrapolate_forecast(const struct rh_forecast *a, const struct rh_forecast *b, double from, double to,
                                 const struct rh_forecast_input *input, int by_recurrence, struct rh_forecast *out)
{
	double count = (double)input->count[0], tokens = 0;
	for (int64_t m = 0; m < input->count[0]; m++)
		tokens += (double)rh_forecast_micro(input, m).tokens;
	double busy = extrapolate_line(a->step_seconds * (1 - a->bubble), b->step_seconds * (1 - b->bubble), from, to, count);
	/* short steps of very deep stages wait for launches more than the whole does: what they take is no line; the recurrence knows better */
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
	out->product_peak_seconds = b->product_peak_seconds * input->tokens_a_step / (b->tokens_per_second * b->step_seconds);
}

static int64_t divisor(int64_t a, int64_t b)
{
	return b ? divisor(b, a % b) : a;
}

/* How many micro-batches of the input's are simulated, and how many more in the longer try: whole rounds, of which after *more the same
 * device has the same stage again, and as many over as in the whole where that is not too long. */
static int64_t choose(int64_t round, int devices, const struct rh_forecast_input *input, const struct rh_plan *plan, int64_t *more)
{
	int64_t count = input->count[0], most = SIMULATED_MOST / (2 * input->layers);
	int64_t stages = plan->forward_stages + plan->backward_stages, again = devices / divisor(stages, devices);
	int64_t most_rounds = 2 * most / 3 / round, over = (count / round) % again;
	over = over ? over : again;
	if (over + again <= most_rounds) {
		*more = again * round;
		return (over + (most_rounds - over - again) / again * again) * round;
	}
	int64_t half = most / 3 > round ? most / 3 / round * round : most / 3 > FEWEST ? most / 3 : FEWEST;
	*more = half;
	/* sums cross rounds in the whole: in both then, where that is not too long */
	return half == round && 3 * round <= most && 2 * round < count ? 2 * round : half;
}

/* The rest of *out, whose plan is there, from steps of `few` micro-batches and of so many more. */
static int simulate_pieces(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                           const struct rh_forecast_options *options, int64_t few, int64_t more, struct rh_forecast *out)
{
	struct piece piece[2] = {0}; /* the shorter one first */
	int64_t round = out->round_micro_batches, rounds = input->count[0] > round ? 2 : 1;
	int too_few = few < machine->devices && out->scheduled_seconds > 0; /* of very many layers: most devices idle beside them */
	/* rounds; else one where the step has one, and two: many short ones would be all uploads */
	int whole = few % round == 0 && more % round == 0, rc = 0;
	for (int i = 0; !rc && i < 2; i++) {
		int64_t count = i ? few + more : few;
		rc = piece_open(config, machine, input, &out->plan, count, whole ? round : rh_round_count(count, rounds), &piece[i]);
	}
	piece[1].options.trace = options->trace;
	for (int i = 1; !rc && i >= 0; i--) /* the longer one takes most of the time */
		rh_task_begin(options->tasks, &piece[i].task, run_piece, &piece[i]);
	if (!rc && options->planned)
		options->planned(options->context, out, &out->plan);
	for (int i = 0; !rc && i < 2; i++)
		rc = rh_task_finish(&piece[i].task);
	if (!rc)
		extrapolate_forecast(&piece[0].forecast, &piece[1].forecast, (double)few, (double)(few + more), input, too_few, out);
	for (int i = 0; i < 2; i++)
		piece_close(&piece[i]);
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
	few = choose(out->round_micro_batches, machine->devices, input, &out->plan, &more);
	/* shorter rounds than the whole's wait for uploads more than these, and what they take is no line */
	int whole_rounds = few % out->round_micro_batches == 0 && more % out->round_micro_batches == 0;
	int64_t units = input->count[0] * input->layers * input->steps;
	if (few + more >= input->count[0] || (!whole_rounds && units <= WHOLE_MOST)) {
		rh_forecast_free(out);
		return rh_forecast(config, machine, input, options, out);
	}
	rc = simulate_pieces(config, machine, input, options ? options : &(struct rh_forecast_options){0}, few, more, out);
	if (rc)
		rh_forecast_free(out);
	return rc;
}
