#include "train/outlook.h"

#include "core/alloc.h"

#include <stdio.h>
#include <string.h>

/* Micro-batches times layers of a step that is simulated many times over: so that all of them take some tenths of a second. */
enum { SMALL_STEP = 600 };
static const double more = 1.25; /* of a resource, to see whether it limits */

/* A load of the same shape with fewer micro-batches, for comparisons. */
static int small_load(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_load *load, int layers,
                      struct rh_config *smaller, struct rh_load *out)
{
	int64_t count = config->gradient_accumulation_steps, least = 2 * (int64_t)machine->devices;
	int64_t most = SMALL_STEP / layers > least ? SMALL_STEP / layers : least;
	*smaller = *config;
	smaller->gradient_accumulation_steps = count < most ? count : most;
	if (smaller->round_micro_batches > smaller->gradient_accumulation_steps)
		smaller->round_micro_batches = smaller->gradient_accumulation_steps;
	int rc = rh_load_synthetic(smaller, 2, out);
	if (rc)
		return rc;
	struct rh_micro_shape shape = load->micro[0];
	for (int64_t i = 0; i < out->steps * smaller->gradient_accumulation_steps; i++)
		out->micro[i] = shape;
	out->work.train = load->work.train;
	out->tokens_a_step = (double)shape.tokens * (double)smaller->gradient_accumulation_steps;
	return 0;
}

static double speed(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_load *load)
{
	struct rh_forecast forecast;
	int rc = rh_forecast(config, machine, load, NULL, &forecast);
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
                              const struct rh_load *load)
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
	double tokens = speed(config, &other, load);
	rh_free(op);
	return tokens;
}

static void find_bottleneck(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_load *load,
                            struct rh_outlook *out)
{
	double base = speed(config, machine, load);
	for (int l = 0; base > 0 && l < RH_LIMITS; l++) {
		if (l == RH_LIMIT_NVME && !out->forecast.nvme_bytes)
			continue;
		double gain = speed_with_more((enum rh_bottleneck)l, config, machine, load) / base - 1;
		if (gain > out->bottleneck_gain + 1e-4) {
			out->bottleneck_gain = gain;
			out->bottleneck = (enum rh_bottleneck)l;
		}
	}
}

static void consider(struct rh_advice *best, double gain, const char *text)
{
	if (gain <= best->gain + 0.005) /* half a percent is nothing to change a run for */
		return;
	best->gain = gain;
	snprintf(best->text, sizeof best->text, "%s", text);
}

/* Changes that a user may make without another machine. */
static void find_advice(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_load *load,
                        struct rh_outlook *out)
{
	double base = speed(config, machine, load);
	char text[128];
	struct rh_config other = *config;
	struct rh_load longer;
	if (!(base > 0))
		return;
	int roundpipe = !config->schedule || !strcmp(config->schedule, "roundpipe");
	if (!config->optimizer_staleness && roundpipe) {
		other.optimizer_staleness = 1;
		consider(&out->advice, speed(&other, machine, load) / base - 1, "optimizer_staleness: 1");
		other = *config;
	}
	if (roundpipe && !config->round_micro_batches) {
		int64_t count = config->gradient_accumulation_steps;
		for (int halves = 0; halves < 2; halves++) {
			other.round_micro_batches = halves ? (count + 1) / 2 : count;
			snprintf(text, sizeof text, "round_micro_batches: %s",
			         halves ? "half of gradient_accumulation_steps" : "gradient_accumulation_steps");
			consider(&out->advice, speed(&other, machine, load) / base - 1, text);
		}
		other = *config;
	}
	other.gradient_accumulation_steps *= 2;
	if (rh_load_synthetic(&other, 2, &longer))
		return;
	for (int64_t i = 0; i < longer.steps * other.gradient_accumulation_steps; i++)
		longer.micro[i] = load->micro[0];
	longer.work.train = load->work.train;
	longer.tokens_a_step = load->tokens_a_step * 2;
	consider(&out->advice, speed(&other, machine, &longer) / base - 1, "gradient_accumulation_steps: twice as many");
	rh_load_free(&longer);
}

/* ---- what fits ---- */

static int fits(const struct rh_config *config, const struct rh_session_machine *machine)
{
	struct rh_load load;
	struct rh_forecast forecast;
	if (rh_load_synthetic(config, 0, &load)) {
		rh_error_clear();
		return 0;
	}
	int rc = rh_forecast(config, machine, &load, NULL, &forecast);
	rh_forecast_free(&forecast);
	rh_load_free(&load);
	rh_error_clear();
	return !rc;
}

/* The largest value in [1, most] for which the configuration fits, by doubling and halving; 0: none. */
static int64_t largest(struct rh_config *config, int64_t *key, int64_t most, const struct rh_session_machine *machine)
{
	int64_t low = 0, high = 256 < most ? 256 : most;
	for (; high <= most; high = high * 4 > most && high < most ? most : high * 4) {
		*key = high;
		if (!fits(config, machine))
			break;
		low = high;
		if (high == most)
			return most;
	}
	while (high - low > (low >> 6) + 1) {
		*key = low + (high - low) / 2;
		if (fits(config, machine))
			low = *key;
		else
			high = *key;
	}
	return low;
}

static int64_t longest(const struct rh_config *config, const struct rh_session_machine *machine, int in_flight)
{
	struct rh_config other = *config;
	other.per_device_train_batch_size = 1;
	other.gradient_accumulation_steps = in_flight;
	other.round_micro_batches = 0;
	return largest(&other, &other.max_length, 1 << 22, machine);
}

/* The least that a user would have to change, what costs least first. */
static void find_mend(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_outlook *out)
{
	struct rh_config other = *config;
	char *text = out->mend.text;
	size_t room = sizeof out->mend.text;
	other.max_vram = other.max_ram = 0;
	if ((config->max_vram || config->max_ram) && fits(&other, machine)) {
		snprintf(text, room, "%s", config->max_ram ? "a larger max_ram, or none" : "a larger max_vram, or none");
		return;
	}
	other = *config;
	if (config->dtype == RH_BF16 && config->state_layout != RH_LAYOUT_SPLIT8 && config->optim == RH_OPTIM_ADAMW && !config->use_lora) {
		other.state_layout = RH_LAYOUT_SPLIT8;
		if (fits(&other, machine)) {
			snprintf(text, room, "state_layout: split8");
			return;
		}
		other = *config;
	}
	int64_t batch = largest(&other, &other.per_device_train_batch_size, config->per_device_train_batch_size, machine);
	if (batch) {
		snprintf(text, room, "per_device_train_batch_size: %lld", (long long)batch);
		return;
	}
	other = *config;
	other.per_device_train_batch_size = 1;
	int64_t length = largest(&other, &other.max_length, config->max_length, machine);
	if (length) {
		snprintf(text, room, "per_device_train_batch_size: 1 and max_length: %lld", (long long)length);
		return;
	}
	other = *config;
	other.dtype = RH_BF16;
	if (config->dtype == RH_F32 && fits(&other, machine)) {
		snprintf(text, room, "dtype: bfloat16");
		return;
	}
	other.use_lora = 1;
	other.lora_r = config->lora_r ? config->lora_r : 16;
	if (!config->use_lora && fits(&other, machine))
		snprintf(text, room, "lora_r: 16 (and dtype: bfloat16)");
}

int rh_outlook_make(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_load *load,
                    struct rh_trace *trace, struct rh_outlook *out)
{
	*out = (struct rh_outlook){.fits = 1};
	struct rh_forecast *forecast = &out->forecast;
	int rc = rh_forecast(config, machine, load, trace, forecast);
	out->fits = !rc;
	if (rc && rc != -ENOMEM)
		return rc;
	if (rc) {
		snprintf(out->why, sizeof out->why, "%s", rh_error(rc));
		rh_error_clear();
		find_mend(config, machine, out);
		return 0;
	}
	struct rh_config smaller;
	struct rh_load small;
	double light = forecast->product_peak_seconds;
	out->speed_of_light = forecast->step_seconds > 0 ? light / forecast->step_seconds : 0;
	out->run_seconds = (double)load->run_steps * forecast->step_seconds;
	out->nvme_written_bytes = forecast->nvme_step_bytes * (load->run_steps ? load->run_steps + 1 : 0);
	rc = small_load(config, machine, load, forecast->layers, &smaller, &small);
	if (rc)
		return rc;
	find_bottleneck(&smaller, machine, &small, out);
	find_advice(&smaller, machine, &small, out);
	rh_load_free(&small);
	out->longest_sequence = longest(config, machine, machine->devices);
	out->longest_sequence_single = machine->devices == 1 ? out->longest_sequence : longest(config, machine, 1);
	return 0;
}

void rh_outlook_free(struct rh_outlook *outlook)
{
	rh_forecast_free(&outlook->forecast);
}
