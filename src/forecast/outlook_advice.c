/* Finds by trials what would help a run most: changes that a user may make without another machine. */
#include "forecast/outlook_internal.h"

#include "core/minmax.h"

#include <math.h>
#include <stdio.h>

static void consider(struct rh_advice *best, double gain, const char *text)
{
	if (gain <= best->gain + 0.005) /* half a percent is nothing to change a run for */
		return;
	best->gain = gain;
	snprintf(best->text, sizeof best->text, "%s", text);
}

/* 1: the small step has fewer micro-batches than the whole one, so the two tell the time of one micro-batch more on as many devices. */
static int marginal_cost_is_known(const struct outlook_small *small, const struct rh_forecast_input *input)
{
	double count = (double)input->count[0], each = (double)input->micro[0].tokens;
	return input->work.chunks < 2 && small->used.devices == small->devices && input->count[0] > small->input.count[0] &&
	       fabs(input->tokens_a_step / count - each) < each / 100;
}

static int may_be_stale(const struct rh_config *config)
{
	return !config->optimizer_staleness && outlook_is_roundpipe(config);
}

static void begin_larger_batch(const struct outlook_small *small, struct outlook_changes *changes)
{
	struct rh_config other = small->config;
	changes->larger = small->used;
	changes->larger.devices = (int)rh_min(2 * small->used.devices, small->devices);
	other.gradient_accumulation_steps *= 2;
	if (small->round && outlook_is_roundpipe(&other))
		other.round_micro_batches = rh_min(small->round, outlook_micro_batches(&other, &small->input));
	if (outlook_input_alike(&other, &small->input, &changes->longer))
		rh_error_clear(); /* of so many nothing is known */
	else
		outlook_try_begin(small->tasks, &other, &changes->larger, &changes->longer, &changes->larger_batch);
}

void outlook_changes_begin(const struct outlook_small *small, const struct rh_forecast_input *input, struct outlook_changes *changes)
{
	struct rh_config other = small->config;
	if (!marginal_cost_is_known(small, input))
		begin_larger_batch(small, changes);
	if (!may_be_stale(&small->config))
		return;
	other.optimizer_staleness = 1;
	outlook_try_begin(small->tasks, &other, &small->used, &small->input, &changes->stale);
}

void outlook_changes_close(struct outlook_changes *changes)
{
	rh_task_drop(&changes->stale.task);
	rh_task_drop(&changes->larger_batch.task);
	rh_forecast_input_free(&changes->longer);
}

/* The gain of twice the micro-batches in a step, which pays the time of a step's two ends only once for all. Where the time of one
 * micro-batch more is not known, a step with twice as many is simulated. */
static double gain_of_larger_batch(const struct outlook_small *small, const struct rh_forecast_input *input,
                                   struct outlook_changes *changes, const struct rh_forecast *whole)
{
	const struct rh_forecast *base = &small->base.forecast;
	double count = (double)input->count[0], few = (double)small->input.count[0], step = whole->step_seconds;
	if (!marginal_cost_is_known(small, input))
		return changes->longer.micro ? outlook_try_finish(&changes->larger_batch) / base->tokens_per_second - 1 : 0;
	double further = count * (step - base->step_seconds) / (count - few);
	return 2 * step / (step + fmin(fmax(further, 0), step)) - 1;
}

/* The gain of joining steps: it saves as much of the step as of the small one, but no more than devices idle. */
static double gain_of_staleness(const struct outlook_small *small, struct outlook_changes *changes, const struct rh_forecast *whole)
{
	double base = small->base.forecast.tokens_per_second, joined = outlook_try_finish(&changes->stale), step = whole->step_seconds;
	if (joined <= base)
		return 0;
	double saved = small->input.tokens_a_step * (1 / base - 1 / joined);
	return step / (step - fmin(saved, step * whole->bubble)) - 1;
}

/* Where drives or the update hold steps up: of fewer bytes of state. What a small step saves, each step does. */
static void consider_state(const struct outlook_small *small, struct rh_outlook *out)
{
	const struct rh_config *config = &small->config;
	struct outlook_try tried[2] = {0};
	double step = out->forecast.step_seconds, tokens = small->input.tokens_a_step;
	char text[128];
	if ((out->bottleneck != RH_LIMIT_NVME && out->bottleneck != RH_LIMIT_OPTIMIZER) || config->optim != RH_OPTIM_ADAMW ||
	    config->use_lora || config->dtype != RH_BF16 || config->state_layout == RH_LAYOUT_SPLIT8)
		return;
	for (int factored = 0; factored < 2; factored++) {
		struct rh_config other = *config;
		if (factored)
			other.optim = RH_OPTIM_ADAFACTOR;
		else
			other.state_layout = RH_LAYOUT_SPLIT8;
		other.spill = config->spill ? RH_SPILL_AUTO : 0;
		outlook_try_begin(small->tasks, &other, &small->used, &small->input, &tried[factored]);
	}
	for (int factored = 0; factored < 2; factored++) {
		double faster = outlook_try_finish(&tried[factored]);
		if (faster <= 0)
			continue;
		double saved = tokens / small->base.forecast.tokens_per_second - tokens / faster;
		snprintf(text, sizeof text, "%s%s (other results)", factored ? "optim: adafactor" : "state_layout: split8",
		         tried[factored].config.spill == config->spill ? "" : ", spill: auto");
		consider(&out->advice, step / (step - fmin(saved, 0.99 * step)) - 1, text);
	}
}

/* The whole step's micro-batches in one round and in two. */
static void consider_rounds(const struct outlook_small *small, int64_t whole, struct rh_outlook *out)
{
	struct outlook_try tried[2] = {0};
	char text[128];
	int64_t count = small->config.gradient_accumulation_steps;
	for (int halves = 0; halves < 2; halves++) {
		struct rh_config other = small->config;
		other.round_micro_batches = halves ? (count + 1) / 2 : count;
		if (other.round_micro_batches != small->base.forecast.round_micro_batches)
			outlook_try_begin(small->tasks, &other, &small->used, &small->input, &tried[halves]);
	}
	for (int halves = 0; halves < 2; halves++) {
		double tokens = outlook_try_finish(&tried[halves]);
		snprintf(text, sizeof text, "round_micro_batches: %lld", (long long)(halves ? (whole + 1) / 2 : whole));
		consider(&out->advice, tokens / small->base.forecast.tokens_per_second - 1, text);
	}
}

/* The chunks that are compared: those of now first, 0: none further. Of whole rows, where a step has too few of them for all devices. */
static void list_chunks(const struct outlook_small *small, const struct rh_workload *work, int64_t chunk[3])
{
	const struct rh_config *config = &small->config;
	int64_t eighth = 256;
	while (16 * eighth <= work->train.tokens)
		eighth *= 2;
	if (work->chunks > 1) {
		chunk[0] = work->chunk;
		chunk[1] = work->chunk / 2;
		chunk[2] = work->chunk / 4;
	} else if (small->devices > 1 && config->per_device_train_batch_size == 1 && outlook_is_roundpipe(config) && config->boxes < 2 &&
	           config->gradient_accumulation_steps < 2 * small->devices && 16 * 256 <= work->train.tokens) {
		chunk[0] = work->train.tokens;
		chunk[1] = eighth;
		chunk[2] = eighth / 2;
	}
}

/* More and shorter chunks keep more devices busy, and each computes less well. */
static void consider_chunks(const struct outlook_small *small, const struct rh_workload *work, struct rh_outlook *out)
{
	enum { CHUNKS = 3, LEAST = 256 };
	struct outlook_try tried[CHUNKS] = {0};
	struct rh_forecast_input input[CHUNKS] = {0};
	struct rh_session_machine machine = small->used;
	int64_t chunk[CHUNKS] = {0};
	double tokens[CHUNKS] = {0};
	char text[128];
	machine.devices = small->devices;
	list_chunks(small, work, chunk);
	for (int i = 0; i < CHUNKS && chunk[i] >= LEAST; i++) {
		struct rh_config other = small->config;
		other.sequence_chunk = chunk[i];
		other.max_length = work->chunks > 1 ? work->row.tokens : work->train.tokens;
		other.round_micro_batches = 0;
		other.forward_cut_count = other.backward_cut_count = -1;
		if (rh_forecast_input_of_machine(&other, &machine, NULL, &input[i])) {
			rh_error_clear(); /* rows of this model are not cut, or there are too many chunks */
			break;
		}
		outlook_try_begin(small->tasks, &other, i ? &machine : &small->used, &input[i], &tried[i]);
	}
	for (int i = 0; i < CHUNKS; i++) {
		tokens[i] = input[i].micro ? outlook_try_finish(&tried[i]) : 0;
		rh_forecast_input_free(&input[i]);
	}
	for (int i = 1; i < CHUNKS && tokens[0] > 0; i++) {
		snprintf(text, sizeof text, "sequence_chunk: %lld (other results, within rounding)", (long long)chunk[i]);
		consider(&out->advice, tokens[i] / tokens[0] - 1, text);
	}
}

/* Changes with other training results are marked. */
void outlook_advise(const struct outlook_small *small, const struct rh_forecast_input *input, struct outlook_changes *changes,
                    struct rh_outlook *out)
{
	char text[128];
	const struct rh_config *config = &small->config;
	int64_t whole = input->work.train_micro_batches / rh_chunks_of(&input->work); /* rows */
	if (may_be_stale(config))
		consider(&out->advice, gain_of_staleness(small, changes, &out->forecast), "optimizer_staleness: 1 (other results)");
	if (outlook_is_roundpipe(config) && !config->round_micro_batches && out->forecast.host_devices &&
	    input->work.chunks < 2) /* else the plan has chosen them */
		consider_rounds(small, whole, out);
	consider_state(small, out);
	consider_chunks(small, &input->work, out);
	snprintf(text, sizeof text, "gradient_accumulation_steps: %lld (another batch size)", (long long)(2 * whole));
	consider(&out->advice, gain_of_larger_batch(small, input, changes, &out->forecast), text);
}
