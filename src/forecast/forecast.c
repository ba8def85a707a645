#include "forecast/forecast.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "device/sim/sim.h"
#include "forecast/forecast_check.h"
#include "forecast/forecast_steps.h"
#include "observe/trace.h"
#include "partition/costs.h"
#include "session/mode.h"

#include <math.h>

static int64_t most_tokens(const struct rh_forecast_input *input)
{
	int64_t most = input->work.train.tokens;
	for (int64_t i = 0, s = 0; s < input->steps; s++)
		for (int64_t m = 0; m < input->count[s]; m++, i++)
			most = rh_max(most, rh_forecast_micro(input, i).tokens);
	return most;
}

/* Runs the input's steps. */
static int run_steps(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                     const struct rh_forecast_options *options, struct forecast_check *check, struct rh_forecast *out)
{
	struct forecast_steps steps = {0};
	int local = session->plan.executor.schedule->update == RH_UPDATE_LOCAL;
	int rc = (local ? forecast_run_stretch : forecast_run_steps)(
	        session, input, zeros, (struct forecast_observers){options ? options->trace : NULL, check}, &steps);
	out->drift = steps.drift;
	out->drift_count = steps.drift_count;
	if (rc)
		return rc;
	out->times = steps.times;
	out->drained_seconds = steps.drained_s;
	out->tokens_per_second = steps.seconds > 0 ? (double)steps.tokens / steps.seconds : 0;
	out->step_seconds = out->tokens_per_second > 0 ? input->tokens_a_step / out->tokens_per_second : 0;
	out->bubble = steps.seconds > 0 ? fmax(1 - steps.busy_s / steps.seconds, 0) : 0;
	return 0;
}

/* The precision of the run's linears. */
static enum rh_product product_of(const struct rh_config *config)
{
	if (config->dtype == RH_F32)
		return RH_PRODUCT_F32;
	return config->fp8 ? RH_PRODUCT_F8 : config->accumulation == RH_ACCUMULATION_FP16 ? RH_PRODUCT_F16_F16 : RH_PRODUCT_BF16;
}

/* Of a row, in its chunks: those of the first step's last row. */
static int count_row(const struct rh_session *session, const struct rh_forecast_input *input, double *flops, int64_t *tokens,
                     struct rh_longest_launch *longest)
{
	struct rh_rates rates = {.device = &session->machine->hardware->device, .share = 1};
	int64_t chunks = rh_chunks_of(&input->work), first = rh_max(input->count[0] - chunks, 0);
	int rc = 0;
	for (int64_t c = 0; !rc && c < chunks; c++) {
		struct rh_micro_shape shape = rh_forecast_micro(input, first + c);
		struct rh_costs costs;
		if (!shape.tokens)
			continue;
		rc = rh_costs_measure(session->model, &shape, &rates, 0, &costs);
		for (int l = 0; !rc && l < costs.layers; l++) {
			*flops += costs.layer[l].forward_flops + (l >= costs.first_trained ? costs.layer[l].backward_flops : 0);
			*longest = costs.layer[l].longest.seconds > longest->seconds ? costs.layer[l].longest : *longest;
		}
		if (!rc)
			rh_costs_free(&costs);
		*tokens += shape.tokens;
	}
	return rc;
}

/* Counts each product of forward and backward once, without recompute, and finds the longest launch. */
static int count_products(struct rh_session *session, const struct rh_forecast_input *input, struct rh_forecast *out)
{
	const struct rh_hardware_device *device = &session->machine->hardware->device;
	double peak = rh_hardware_peak(device, product_of(session->config)), flops = 0;
	int64_t tokens = 0;
	int rc = count_row(session, input, &flops, &tokens, &out->longest_launch);
	double micros = tokens > 0 ? input->tokens_a_step / (double)tokens : 0, all = device->on_host_cores ? 1 : session->machine->devices;
	out->product_peak_seconds = peak > 0 ? flops * micros / (peak * all) : 0;
	return rc;
}

static int64_t limited(int64_t budget)
{
	return budget >= INT64_MAX / 2 ? 0 : budget;
}

/* Everything that is known before the simulation, except the plan itself. */
static void describe_plan(const struct rh_session *session, const struct rh_forecast_input *input, struct rh_forecast *out)
{
	const struct rh_run_bytes *bytes = &session->plan.bytes;
	int known = !bytes->host_devices; /* not for CPU devices: idle cores speed up the others */
	struct rh_boundary_shape sent = rh_boundary_shape(session->model, rh_model_meeting(session->model), input->work.train.tokens);
	int64_t unit = rh_max(session->plan.boxes.unit, 1); /* 0 in mode fluidpipe, whose boxes have programs of their own */
	*out = (struct rh_forecast){
	        .device_bytes = bytes->device,
	        .device_budget = limited(bytes->device_budget),
	        .ram_bytes = bytes->total,
	        .ram_budget = limited(bytes->total_budget),
	        .store_bytes = bytes->store,
	        .boundary_bytes = bytes->boundaries,
	        .data_bytes = bytes->data,
	        .nvme_bytes = bytes->nvme,
	        .nvme_step_bytes = bytes->nvme_step,
	        .nvme_run_bytes = input->run_steps ? rh_run_plan_nvme_writes(&session->plan, input->run_steps) : 0,
	        .nvme_budget = bytes->nvme ? session->config->max_nvme : 0,
	        .spill = session->plan.store.spill,
	        .frozen_share = session->plan.store.frozen_share,
	        .host_devices = bytes->host_devices,
	        .devices = session->device_count,
	        .layers = session->model->layers,
	        .round_micro_batches = session->plan.executor.train_round,
	        .unit = unit,
	        .unit_bytes = unit * rh_wire_bytes((enum rh_wire)session->config->link_dtype, session->model->dtype, sent.rows, sent.cols),
	        .scheduled_idle = known ? session->plan.balanced.idle : 0,
	        .scheduled_seconds = known ? session->plan.balanced.step_s : 0,
	        .packed = session->plan.balanced.packed};
}

/* The workload of one of several boxes: only the first reads rows. */
static int share_work(const struct rh_session *session, const struct rh_forecast_input *input, struct rh_workload *out)
{
	*out = input->work;
	if (session->box.number)
		out->data_bytes = out->reading_bytes = out->train.pixels = out->train.typed = 0;
	const struct rh_mode_steps *mode = &rh_session_mode(session)->steps;
	return mode->plan ? mode->plan(session, input->rows, input->targets, out) : 0;
}

int rh_forecast(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                const struct rh_forecast_options *options, struct rh_forecast *out)
{
	struct rh_session session;
	struct rh_workload work;
	*out = (struct rh_forecast){0};
	const struct rh_hardware_device *device = &machine->hardware->device;
	enum rh_product product = product_of(config);
	if (!(rh_hardware_peak(device, product) > 0))
		return rh_fail(-ENODATA, "hardware %s: peaks has no %s, in which this run computes; add it, or change %s",
		               machine->hardware->name, rh_product_name(product), product == RH_PRODUCT_F8 ? "fp8" : "dtype");
	int32_t *zeros = rh_alloc((size_t)most_tokens(input) + 1, sizeof *zeros);
	struct forecast_check *check = NULL;
	int rc = zeros ? rh_session_simulate(config, machine, &session) : -ENOMEM;
	if (rc) {
		rh_free(zeros);
		return rc;
	}
	rc = share_work(&session, input, &work);
	if (!rc)
		rc = options && options->plan ? rh_session_follow(&session, &work, options->plan)
		                              : rh_session_plan(&session, &work, RH_STAGES_CHOSEN);
	if (!rc && input->steps)
		rc = rh_session_start(&session, &work);
	if (!rc) {
		describe_plan(&session, input, out);
		if (rh_session_mode(&session)->forecast.describe)
			rh_session_mode(&session)->forecast.describe(&session, out);
		if (options && options->planned)
			options->planned(options->context, out, &session.plan.stages);
	}
	if (!rc && input->steps && options && options->check)
		rc = forecast_check_open(&session, &check);
	if (!rc && input->steps)
		rc = run_steps(&session, input, zeros, options, check, out);
	if (!rc && check)
		rc = forecast_check_run(check, options->check);
	forecast_check_close(check);
	if (!rc && input->steps)
		rc = count_products(&session, input, out);
	if (!rc && input->steps && rh_preference_refers(&config->preference) && config->boxes < 2 &&
	    session.plan.executor.schedule->update != RH_UPDATE_LOCAL)
		rc = forecast_run_reference(&session, input, zeros, &out->reference_tokens_per_second);
	if (!rc) {
		out->plan = session.plan.stages;
		session.plan.stages = (struct rh_stage_plan){0};
	}
	if (rc)
		rh_box_close(&session.box, rc); /* tells the boxes beside it */
	rh_session_close(&session);
	rh_free(zeros);
	return rc;
}

void rh_forecast_free(struct rh_forecast *forecast)
{
	rh_stage_plan_free(&forecast->plan);
	rh_free(forecast->drift);
	forecast->drift = NULL;
}
