#include "plan/balance.h"

#include "core/alloc.h"
#include "device/sim/sim.h"
#include "partition/cuts.h"
#include "partition/roundpipe_long.h"
#include "partition/rounds.h"

#include <string.h>

/* Joined steps that are timed; of these the first ones, which begin with idle devices, are subtracted. */
enum { STEPS_JOINED = 12, STEPS_BEFORE = 4 };

/* A boundary activation from one device to the next: down, and up. */
static double hop_seconds(const struct rh_stage_plan_request *request, const struct rh_hardware *hardware)
{
	const struct rh_hardware_link *link = &hardware->link;
	double bytes = (double)rh_boundary_most_bytes(request->model, request->train.tokens);
	double dram = hardware->host.dram_bytes_per_s, seconds = 2 * link->latency_s;
	if (link->down_bytes_per_s > 0 && link->up_bytes_per_s > 0)
		return seconds + bytes / link->down_bytes_per_s + bytes / link->up_bytes_per_s;
	return seconds + (dram > 0 ? 4 * bytes / dram : 0); /* each copy reads and writes */
}

static struct rh_rates rates_of(const struct rh_stage_plan_request *request, const struct rh_hardware *hardware)
{
	return (struct rh_rates){.device = &hardware->device, .share = hardware->device.on_host_cores ? 1.0 / request->devices : 1};
}

int rh_balance_costs(const struct rh_stage_plan_request *request, const struct rh_hardware *hardware, struct rh_costs *out)
{
	const struct rh_rates rates = rates_of(request, hardware);
	int rc = rh_costs_measure(request->model, &request->train, &rates, 0, out);
	if (!rc)
		out->hop_s = hop_seconds(request, hardware);
	return rc;
}

/* The time of a step with a plan's stages. */
static int time_plan(const struct rh_partition_request *request, const struct rh_stage_plan *plan, struct rh_balanced *out)
{
	struct rh_partition timed = {.forward = plan->forward,
	                             .backward = plan->backward,
	                             .forward_stages = plan->forward_stages,
	                             .backward_stages = plan->backward_stages};
	int rc = rh_partition_time(request, &timed);
	*out = (struct rh_balanced){.step_s = timed.makespan_s / (double)request->steps, .idle = timed.bubble};
	return rc;
}

/* As time_plan, for one of many joined steps. */
static int time_joined(const struct rh_partition_request *request, const struct rh_stage_plan *plan, struct rh_balanced *out)
{
	struct rh_partition_request joined = *request;
	struct rh_balanced before;
	joined.steps = STEPS_BEFORE;
	int rc = time_plan(&joined, plan, &before);
	if (rc)
		return rc;
	joined.steps = STEPS_JOINED;
	rc = time_plan(&joined, plan, out);
	if (rc)
		return rc;
	double busy = out->step_s * (1 - out->idle);
	out->step_s = (out->step_s * STEPS_JOINED - before.step_s * STEPS_BEFORE) / (STEPS_JOINED - STEPS_BEFORE);
	out->idle = 1 - busy / out->step_s;
	return 0;
}

/* The partitioner's stages as a plan; RH_DOES_NOT_FIT where nothing fits. */
static int plan_by_costs(const struct rh_balance *balance, const struct rh_partition_request *asked, struct rh_stage_plan *out)
{
	struct rh_stage_plan_request request = *balance->request;
	struct rh_partition found;
	int rc = (balance->long_rounds ? rh_partition_long_rounds : rh_partition_make)(asked, &found);
	if (rc)
		return rc;
	struct rh_cuts cuts;
	rc = rh_cuts_make(found.forward, found.forward_stages, found.backward, found.backward_stages, &cuts);
	request.forward_cuts = cuts.forward;
	request.backward_cuts = cuts.backward;
	request.forward_cut_count = cuts.forward_count;
	request.backward_cut_count = cuts.backward_count;
	if (!rc)
		rc = rh_stage_plan_make(&request, out);
	rh_cuts_free(&cuts);
	rh_partition_free(&found);
	return rc;
}

int rh_balance_plan(const struct rh_balance *balance, struct rh_stage_plan *plan, struct rh_balanced *out)
{
	const struct rh_stage_plan_request *request = balance->request;
	struct rh_stage_plan better = {0};
	struct rh_balanced now;
	struct rh_partition_request asked = {.costs = balance->costs,
	                                     .cap_bytes = request->device_cap_bytes,
	                                     .devices = request->devices,
	                                     .micro_batches = balance->micro_batches,
	                                     .rounds = rh_round_count(balance->micro_batches, request->train_round),
	                                     .steps = balance->steps,
	                                     .stages_most = balance->stages_most,
	                                     .sum_s = balance->sum_s};
	int rc = time_plan(&asked, plan, out);
	out->packed = balance->costs->layers > RH_PARTITION_LAYERS_MOST;
	if (rc || out->packed)
		return rc;
	rc = rh_stage_plan_sizer_create(request, &asked.sizer);
	if (!rc)
		rc = plan_by_costs(balance, &asked, &better);
	rh_stage_plan_sizer_destroy(asked.sizer);
	if (rc == RH_DOES_NOT_FIT) { /* the packed plan stands */
		rh_error_clear();
		return 0;
	}
	if (!rc)
		rc = time_plan(&asked, &better, &now);
	if (!rc && now.step_s < out->step_s) {
		struct rh_stage_plan packed = *plan;
		*plan = better;
		better = packed;
		*out = now;
	}
	rh_stage_plan_free(&better);
	return rc;
}

int rh_balance_step(const struct rh_balance *balance, const struct rh_stage_plan_request *asked, int joined,
                    const struct rh_stage_plan *plan, struct rh_balanced *out)
{
	size_t layers = (size_t)balance->costs->layers;
	struct rh_costs costs = *balance->costs;
	costs.layer = rh_alloc(layers, sizeof *costs.layer);
	if (!costs.layer)
		return -ENOMEM;
	memcpy(costs.layer, balance->costs->layer, layers * sizeof *costs.layer);
	const struct rh_rates rates = rates_of(asked, balance->hardware);
	int rc = rh_costs_spare(asked->model, &asked->train, &rates, plan, &costs);
	const struct rh_partition_request request = {.costs = &costs,
	                                             .devices = asked->devices,
	                                             .micro_batches = balance->micro_batches,
	                                             .rounds = rh_round_count(balance->micro_batches, asked->train_round),
	                                             .steps = 1,
	                                             .sum_s = balance->sum_s,
	                                             .up_bytes_per_s = balance->up_bytes_per_s};
	struct rh_balanced now = {0};
	if (!rc)
		rc = (joined ? time_joined : time_plan)(&request, plan, &now);
	out->step_s = now.step_s;
	out->idle = now.idle;
	rh_free(costs.layer);
	return rc;
}
