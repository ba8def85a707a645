#include "forecast/outlook_internal.h"

#include "core/minmax.h"
#include "forecast/forecast_bounded.h"
#include "forecast/judge.h"

#include <stdio.h>
#include <string.h>

/* Micro-batches times layers of a step that is simulated many times over, so that all of them take some tenths of a second; where there are
 * two micro-batches for each device; and of however many layers. */
enum { SMALL_STEP = 600, DEEP_STEP = 3000, FEWEST = 2 };

int outlook_input_alike(const struct rh_config *config, const struct rh_forecast_input *input, struct rh_forecast_input *out)
{
	if (input->work.chunks > 1)
		return rh_forecast_input_of_first_row(input, config->gradient_accumulation_steps, rh_forecast_fewest_steps(config), out);
	int rc = rh_forecast_input_synthetic(config, rh_forecast_fewest_steps(config), out);
	if (rc)
		return rc;
	*out->micro = *input->micro;
	out->work.train = input->work.train;
	out->tokens_a_step = (double)input->micro[0].tokens * (double)config->gradient_accumulation_steps;
	return 0;
}

/* Fewer micro-batches of the same shape, for comparisons. */
static int small_input(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                       int layers, struct rh_config *smaller, struct rh_forecast_input *out)
{
	int64_t count = config->gradient_accumulation_steps,
	        least = rh_max(rh_min(2 * (int64_t)machine->devices, DEEP_STEP / layers), FEWEST);
	least = rh_max(least / rh_chunks_of(&input->work), 1);
	int64_t most = rh_max(SMALL_STEP / layers / rh_chunks_of(&input->work), least),
	        over = most > machine->devices ? (count - most) % machine->devices : 0;
	*smaller = *config;
	/* where devices take micro-batches in turn, the last turn is as full as in the whole step */
	smaller->gradient_accumulation_steps = count <= most ? count : over ? most + over - machine->devices : most;
	smaller->round_micro_batches = rh_min(smaller->round_micro_batches, outlook_micro_batches(smaller, input));
	return outlook_input_alike(smaller, input, out);
}

int outlook_is_roundpipe(const struct rh_config *config)
{
	return !config->schedule || !strcmp(config->schedule, "roundpipe");
}

static int run_try(void *context)
{
	struct outlook_try *what = context;
	int rc = rh_forecast(&what->config, what->machine, what->input, NULL, &what->forecast);
	rh_forecast_free(&what->forecast);
	if (rc)
		what->forecast = (struct rh_forecast){0};
	return 0;
}

void outlook_try_begin(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine,
                       const struct rh_forecast_input *input, struct outlook_try *out)
{
	out->config = *config;
	out->machine = machine;
	out->input = input;
	rh_task_begin(tasks, &out->task, run_try, out);
}

double outlook_try_finish(struct outlook_try *what)
{
	return rh_task_finish(&what->task) ? 0 : what->forecast.tokens_per_second;
}

/* With the whole run's stages and rounds, which are not searched for anew. */
int outlook_small_open(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                       const struct rh_stage_plan *plan, const struct rh_forecast *whole, struct outlook_small *out)
{
	int chosen = whole->devices > 1 && outlook_is_roundpipe(config) && config->forward_cut_count < 0 && config->backward_cut_count < 0;
	out->used = *machine;
	out->used.devices = whole->devices;
	out->devices = machine->devices;
	out->round = whole->host_devices ? 0 : whole->round_micro_batches;
	int rc = small_input(config, &out->used, input, whole->layers, &out->config, &out->input);
	if (!rc && out->round && outlook_is_roundpipe(config))
		out->config.round_micro_batches = rh_min(out->round, outlook_micro_batches(&out->config, &out->input));
	if (!rc && chosen)
		rc = rh_config_pin_stages(&out->config, plan, &out->cuts);
	rh_config_pin_spill(&out->config, whole);
	return rc;
}

void outlook_small_close(struct outlook_small *small)
{
	rh_task_drop(&small->base.task);
	rh_cuts_free(&small->cuts);
	rh_forecast_input_free(&small->input);
}

/* Bottleneck and advice, from small steps beside the whole one. */
struct comparison {
	const struct rh_config *config;
	const struct rh_session_machine *machine;
	const struct rh_forecast_input *input;
	struct outlook_small small;
	struct outlook_limits limits;
	struct outlook_changes changes;
	int rc;
};

static void end_comparison(struct comparison *at)
{
	struct rh_tasks *tasks = at->small.tasks;
	outlook_changes_close(&at->changes);
	outlook_limits_close(&at->limits);
	outlook_small_close(&at->small);
	at->changes = (struct outlook_changes){0};
	at->limits = (struct outlook_limits){0};
	at->small = (struct outlook_small){.tasks = tasks};
}

static void begin_comparison(void *context, const struct rh_forecast *so_far, const struct rh_stage_plan *plan)
{
	struct comparison *at = context;
	at->rc = outlook_small_open(at->config, at->machine, at->input, plan, so_far, &at->small);
	if (at->rc)
		return;
	outlook_changes_begin(&at->small, at->input, &at->changes); /* first: what takes longest is among them */
	outlook_try_begin(at->small.tasks, &at->small.config, &at->small.used, &at->small.input, &at->small.base);
	outlook_limits_begin(&at->small, &at->limits);
}

/* A smaller step that cannot be had: nothing is advised. */
static void finish_comparison(struct comparison *at, struct rh_outlook *out)
{
	if (!(outlook_try_finish(&at->small.base) > 0))
		return;
	outlook_limits_find(&at->small, &at->limits, out);
	outlook_advise(&at->small, at->input, &at->changes, out);
}

static int look(struct comparison *at, struct rh_tasks *tasks, struct rh_trace *trace, struct outlook_longest longest[2],
                struct rh_outlook *out)
{
	enum { ALL, SINGLE };
	const struct rh_forecast_options options = {.trace = trace, .tasks = tasks, .planned = begin_comparison, .context = at};
	struct rh_forecast *forecast = &out->forecast;
	int rc = rh_forecast_judged(at->config, at->machine, at->input, &options, forecast);
	out->fits = !rc;
	if (rc && rc != RH_DOES_NOT_FIT)
		return rc;
	if (rc) {
		snprintf(out->refusal, sizeof out->refusal, "%s", rh_error(rc));
		atomic_store(&longest[ALL].unwanted, 1);
		atomic_store(&longest[SINGLE].unwanted, 1);
		return outlook_mend(tasks, at->config, at->machine, at->input, out);
	}
	double light = forecast->product_peak_seconds;
	out->speed_of_light = forecast->step_seconds > 0 ? light / forecast->step_seconds : 0;
	out->run_seconds = (double)at->input->run_steps * forecast->step_seconds;
	out->nvme_written_bytes = forecast->nvme_run_bytes;
	if (at->rc)
		return at->rc;
	finish_comparison(at, out);
	rc = rh_task_finish(&longest[ALL].task);
	if (!rc)
		rc = rh_task_finish(&longest[SINGLE].task);
	if (!rc && !at->input->of_images) {
		out->longest = longest[ALL].found;
		out->longest_single = longest[SINGLE].found;
	}
	return rc;
}

int rh_outlook_make(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                    struct rh_tasks *tasks, struct rh_trace *trace, struct rh_outlook *out)
{
	struct comparison at = {.config = config, .machine = machine, .input = input, .small = {.tasks = tasks}};
	struct outlook_longest longest[2];
	*out = (struct rh_outlook){.fits = 1};
	for (int i = 0; i < 2; i++)
		outlook_longest_begin(tasks, config, machine, i ? 1 : machine->devices, &longest[i]);
	int rc = look(&at, tasks, trace, longest, out);
	for (int i = 0; i < 2; i++) {
		atomic_store(&longest[i].unwanted, 1);
		rh_task_drop(&longest[i].task);
	}
	end_comparison(&at);
	return rc;
}

void rh_outlook_free(struct rh_outlook *outlook)
{
	rh_forecast_free(&outlook->forecast);
}
