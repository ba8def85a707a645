#include "train/outlook_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "train/forecast_bounded.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Micro-batches times layers of a step that is simulated many times over, so that all of them take some tenths of a second; where there are
 * two micro-batches for each device; and of however many layers. */
enum { SMALL_STEP = 600, DEEP_STEP = 3000, FEWEST = 2 };
static const double more = 1.25; /* of a resource, to see whether it limits */

const char *rh_bottleneck_name(enum rh_bottleneck limit)
{
	static const char *const names[RH_LIMITS] = {"compute", "upload", "download", "dram", "optimizer", "nvme"};
	return names[limit];
}

/* Two steps of the configuration's micro-batches, all as the first of `input`. */
static int alike_input(const struct rh_config *config, const struct rh_forecast_input *input, struct rh_forecast_input *out)
{
	int rc = rh_forecast_input_synthetic(config, 2, out);
	if (rc)
		return rc;
	for (int64_t i = 0; i < out->steps * config->gradient_accumulation_steps; i++)
		out->micro[i] = input->micro[0];
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
	int64_t most = rh_max(SMALL_STEP / layers, least);
	*smaller = *config;
	smaller->gradient_accumulation_steps = count < most ? count : most;
	if (smaller->round_micro_batches > smaller->gradient_accumulation_steps)
		smaller->round_micro_batches = smaller->gradient_accumulation_steps;
	return alike_input(smaller, input, out);
}

/* A step for comparisons. */
struct small {
	struct rh_config config;
	struct rh_forecast_input input;
	struct rh_forecast base;
};

static int is_roundpipe(const struct rh_config *config)
{
	return !config->schedule || !strcmp(config->schedule, "roundpipe");
}

static double speed(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input)
{
	struct rh_forecast forecast;
	int rc = rh_forecast(config, machine, input, NULL, &forecast);
	double tokens = rc ? 0 : forecast.tokens_per_second;
	rh_forecast_free(&forecast);
	rh_error_clear();
	return tokens;
}

static void widen_link(struct rh_hardware_link *link, int up)
{
	*(up ? &link->up_bytes_per_s : &link->down_bytes_per_s) *= more;
	link->both_bytes_per_s *= more;
}

/* `op`: room for the device's own rates. */
static void widen_compute(struct rh_hardware_device *device, struct rh_hardware_op *op)
{
	for (int p = 0; p < RH_PRODUCTS; p++)
		device->peak[p] *= more;
	for (size_t i = 0; i < device->ops; i++) {
		op[i] = device->op[i];
		op[i].flops_per_s *= more;
		op[i].bytes_per_s *= more;
	}
	device->op = op;
	device->other_flops_per_s *= more;
	device->memory_bytes_per_s *= more;
	device->launch_s /= more;
}

/* Of the machine with a quarter more of one thing; 0 where that cannot be said. */
static double speed_with_more(enum rh_bottleneck what, const struct rh_config *config, const struct rh_session_machine *machine,
                              const struct rh_forecast_input *input)
{
	struct rh_hardware wider = *machine->hardware;
	struct rh_session_machine other = {.hardware = &wider, .devices = machine->devices, .ram_bytes = machine->ram_bytes};
	struct rh_hardware_op *op = rh_alloc(wider.device.ops, sizeof *op);
	if (!op && wider.device.ops)
		return 0;
	switch (what) {
	case RH_LIMIT_COMPUTE:
		widen_compute(&wider.device, op);
		break;
	case RH_LIMIT_UPLOAD:
	case RH_LIMIT_DOWNLOAD:
		widen_link(&wider.link, what == RH_LIMIT_UPLOAD);
		widen_link(&wider.pcie_switch, what == RH_LIMIT_UPLOAD);
		break;
	case RH_LIMIT_DRAM:
		wider.host.dram_bytes_per_s *= more;
		break;
	case RH_LIMIT_OPTIMIZER:
		for (int l = 0; l < RH_LAYOUTS; l++)
			wider.host.optimizer_bytes_per_s[l] *= more;
		break;
	default:
		wider.nvme.read_bytes_per_s *= more;
		wider.nvme.write_bytes_per_s *= more;
		wider.nvme.mixed_bytes_per_s *= more;
	}
	double tokens = speed(config, &other, input);
	rh_free(op);
	return tokens;
}

/* Tries resource after resource until what is left cannot save more. A step's time is the longest chain of things that wait for one
 * another, each held up by one resource; a quarter more of a resource saves at most a fifth of what the chain spends on it. So no resource
 * saves more than a fifth of the whole less what those tried before have saved. */
static void find_bottleneck(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                            const struct rh_forecast *base, struct rh_outlook *out)
{
	double time = 1 / base->tokens_per_second, left = time * (1 - 1 / more), most = 0;
	for (int l = 0; l < RH_LIMITS && most < left; l++) {
		if (l == RH_LIMIT_NVME && !out->forecast.nvme_bytes)
			continue;
		double tokens = speed_with_more((enum rh_bottleneck)l, config, machine, input), saved = tokens > 0 ? time - 1 / tokens : 0;
		left -= saved > 0 ? saved : 0;
		if (saved <= most)
			continue;
		most = saved;
		out->bottleneck_gain = tokens * time - 1;
		out->bottleneck = (enum rh_bottleneck)l;
	}
}

static void consider(struct rh_advice *best, double gain, const char *text)
{
	if (gain <= best->gain + 0.005) /* half a percent is nothing to change a run for */
		return;
	best->gain = gain;
	snprintf(best->text, sizeof best->text, "%s", text);
}

/* Of twice the micro-batches in a step, which spends its two ends' time once for all. Where the small step has fewer than the whole, the
 * two say what a micro-batch more takes; else twice as many are simulated. */
static double gain_of_twice(const struct rh_config *config, const struct rh_session_machine *machine, const struct small *small,
                            const struct rh_forecast_input *input, const struct rh_forecast *whole)
{
	double count = (double)input->count[0], few = (double)small->input.count[0], each = (double)input->micro[0].tokens;
	if (count > few && fabs(input->tokens_a_step / count - each) < each / 100) {
		double step = whole->step_seconds, further = count * (step - small->base.step_seconds) / (count - few);
		return 2 * step / (step + fmin(fmax(further, 0), step)) - 1;
	}
	struct rh_config other = *config;
	struct rh_forecast_input longer;
	other.gradient_accumulation_steps *= 2;
	if (alike_input(&other, &small->input, &longer))
		return 0;
	double tokens = speed(&other, machine, &longer);
	rh_forecast_input_free(&longer);
	return tokens / small->base.tokens_per_second - 1;
}

/* Of joining steps: what a step saves is what the small one does, and no more than the devices idle. */
static double gain_of_staleness(const struct rh_session_machine *machine, const struct small *small, const struct rh_forecast *whole)
{
	struct rh_config other = small->config;
	other.optimizer_staleness = 1;
	double joined = speed(&other, machine, &small->input), step = whole->step_seconds;
	if (joined <= small->base.tokens_per_second)
		return 0;
	double saved = small->input.tokens_a_step * (1 / small->base.tokens_per_second - 1 / joined);
	return step / (step - fmin(saved, step * whole->bubble)) - 1;
}

/* Where drives or the update hold steps up: of fewer bytes of state. What a small step saves, each step does. */
static void consider_state(const struct rh_session_machine *machine, const struct small *small, struct rh_outlook *out)
{
	const struct rh_config *config = &small->config;
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
		double faster = speed(&other, machine, &small->input);
		if (faster <= 0)
			continue;
		double saved = tokens / small->base.tokens_per_second - tokens / faster;
		snprintf(text, sizeof text, "%s%s (other results)", factored ? "optim: adafactor" : "state_layout: split8",
		         other.spill == config->spill ? "" : ", spill: auto");
		consider(&out->advice, step / (step - fmin(saved, 0.99 * step)) - 1, text);
	}
}

/* Changes that a user may make without another machine; those that train otherwise are marked. */
static void find_advice(const struct rh_session_machine *machine, const struct small *small, const struct rh_forecast_input *input,
                        struct rh_outlook *out)
{
	char text[128];
	const struct rh_config *config = &small->config;
	struct rh_config other = *config;
	double base = small->base.tokens_per_second;
	int64_t whole = input->work.train_micro_batches;
	int roundpipe = is_roundpipe(config);
	if (!config->optimizer_staleness && roundpipe)
		consider(&out->advice, gain_of_staleness(machine, small, &out->forecast), "optimizer_staleness: 1 (other results)");
	if (roundpipe && !config->round_micro_batches && out->forecast.host_devices) { /* else the plan has chosen them */
		int64_t count = config->gradient_accumulation_steps;
		for (int halves = 0; halves < 2; halves++) {
			other.round_micro_batches = halves ? (count + 1) / 2 : count;
			if (other.round_micro_batches == small->base.round_micro_batches)
				continue;
			snprintf(text, sizeof text, "round_micro_batches: %lld", (long long)(halves ? (whole + 1) / 2 : whole));
			consider(&out->advice, speed(&other, machine, &small->input) / base - 1, text);
		}
	}
	consider_state(machine, small, out);
	snprintf(text, sizeof text, "gradient_accumulation_steps: %lld (another batch size)", (long long)(2 * whole));
	consider(&out->advice, gain_of_twice(config, machine, small, input, &out->forecast), text);
}

/* Bottleneck and advice, from small steps with the whole one's stages, which are not searched for anew. */
static int compare(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                   struct rh_outlook *out)
{
	struct small small = {0};
	struct rh_cuts cuts = {0};
	int chosen = machine->devices > 1 && is_roundpipe(config) && config->forward_cut_count < 0 && config->backward_cut_count < 0;
	int rc = small_input(config, machine, input, out->forecast.layers, &small.config, &small.input);
	if (!rc && chosen)
		rc = rh_config_pin_stages(&small.config, &out->forecast.plan, &cuts);
	if (!rc && !rh_forecast(&small.config, machine, &small.input, NULL, &small.base) && small.base.tokens_per_second > 0) {
		find_bottleneck(&small.config, machine, &small.input, &small.base, out);
		find_advice(machine, &small, input, out);
	}
	rh_forecast_free(&small.base);
	rh_cuts_free(&cuts);
	rh_forecast_input_free(&small.input);
	if (!rc)
		rh_error_clear(); /* a smaller step that cannot be had: nothing is advised */
	return rc;
}

int rh_outlook_make(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                    struct rh_trace *trace, struct rh_outlook *out)
{
	*out = (struct rh_outlook){.fits = 1};
	struct rh_forecast *forecast = &out->forecast;
	int rc = rh_forecast_bounded(config, machine, input, trace, forecast);
	out->fits = !rc;
	if (rc && rc != RH_DOES_NOT_FIT)
		return rc;
	if (rc) {
		snprintf(out->why, sizeof out->why, "%s", rh_error(rc));
		rh_error_clear();
		outlook_mend(config, machine, out);
		return 0;
	}
	double light = forecast->product_peak_seconds;
	out->speed_of_light = forecast->step_seconds > 0 ? light / forecast->step_seconds : 0;
	out->run_seconds = (double)input->run_steps * forecast->step_seconds;
	out->nvme_written_bytes = forecast->nvme_run_bytes;
	rc = compare(config, machine, input, out);
	if (rc)
		return rc;
	out->longest_sequence = outlook_longest(config, machine);
	return 0;
}

void rh_outlook_free(struct rh_outlook *outlook)
{
	rh_forecast_free(&outlook->forecast);
}
