/* Cuts for schedules that bind stages to devices, where the user names none: PACI's partitioner (partition/box_partition.h), to which each
 * stage is a box with a device's memory. What a stage takes of a device is found by emitting its ops. Where steps are flushed, layers
 * then move while that shortens the step by the recurrence of the schedule's own order (schedule/step_clock.h), which the partitioner does
 * not know. */
#include "plan/plan_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/box_partition.h"
#include "schedule/step_clock.h"

#include <string.h>

struct cutting {
	const struct planning *planning;
	const struct rh_stage_plan_request *request;
	int stages, layers;
	struct rh_box_layer *stage; /* (stages, layers + 1, layers + 1) */
	struct rh_box_means *means; /* (stages) */
	int64_t *boundary;          /* (layers) */
	double *line;               /* of each link, both ways: latencies, then rates */
	int *cut, *moved;           /* (stages + 1) the cuts; scratch */
	struct rh_cost_sums sums;
	struct rh_step_clock *clock; /* NULL: the partitioner's cuts stand */
	int64_t *given;              /* (stages - 1): the same as a request has them */
};

/* ---- what stages take ---- */

/* The share of a micro-batch in what a layer's update takes, where a stage waits for it before its next slot. */
static double update_seconds(const struct cutting *at, int l)
{
	const struct planning *planning = at->planning;
	const struct rh_hardware *hardware = planning->request->machine.hardware;
	const struct rh_model *model = at->request->model;
	const struct rh_store_options *store = &planning->store;
	double down = hardware->link.down_bytes_per_s, up = hardware->link.up_bytes_per_s,
	       host = hardware->host.optimizer_bytes_per_s[store->layout], seconds = 0;
	if (planning->executor.schedule->update != RH_UPDATE_LOCAL || planning->executor.stale)
		return 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
		int b = model->layer[l].block[which];
		if (b < 0 || !model->block[b].trainable)
			continue;
		struct rh_store_traffic traffic = rh_store_traffic_of(&model->block[b], store);
		double bytes = (double)rh_dtype_bytes(model->dtype, model->block[b].elements);
		seconds +=
		        (down > 0 ? bytes / down : 0) + (up > 0 ? bytes / up : 0) + (host > 0 ? (traffic.take + traffic.update) / host : 0);
	}
	return seconds / (double)planning->executor.train_micro_batches;
}

/* Where its forward's activations are kept, a stage recomputes none. */
static double compute_seconds(const struct cutting *at, const struct rh_cost_sums *sums, int lo, int hi)
{
	int trained = (int)rh_max(lo, sums->costs->first_trained);
	double forward = rh_cost_forward(sums, lo, hi);
	if (trained >= hi)
		return forward;
	int recomputes = hi < at->layers && !at->request->kept_micro_batches;
	return forward + (recomputes ? rh_cost_recompute(sums, trained, hi) : 0) + rh_cost_backward(sums, trained, hi);
}

static int measure_stages(struct cutting *at)
{
	size_t layers = (size_t)at->layers + 1;
	struct rh_stage_plan_sizer *sizer = NULL;
	int rc = rh_stage_plan_sizer_create(at->request, &sizer);
	for (int lo = 0; !rc && lo < at->layers; lo++) {
		double updates = 0;
		for (int hi = lo + 1; hi <= at->layers; hi++) {
			updates += update_seconds(at, hi - 1);
			struct rh_box_layer stage = {.seconds = compute_seconds(at, &at->sums, lo, hi) + updates};
			for (int s = 0; s < at->stages; s++) { /* deferrals are top down */
				const struct rh_deferral *deferral = at->request->deferral;
				int64_t deferred = deferral ? deferral[at->stages - 1 - s].micro_batches : 0;
				stage.static_bytes = rh_stage_plan_sizer_stage_bytes(sizer, (struct rh_stage){lo, hi}, deferred);
				at->stage[((size_t)s * layers + (size_t)lo) * layers + (size_t)hi] = stage;
			}
		}
	}
	rh_stage_plan_sizer_destroy(sizer);
	return rc;
}

/* An activation goes down from one device and up to the next: through the host. */
static void measure_lines(struct cutting *at)
{
	const struct rh_hardware *hardware = at->planning->request->machine.hardware;
	const struct rh_hardware_link *link = &hardware->link;
	double dram = hardware->host.dram_bytes_per_s, rate = dram > 0 ? dram / 4 : 0; /* each copy reads and writes */
	size_t ways = 2 * ((size_t)at->stages - 1);
	if (link->down_bytes_per_s > 0 && link->up_bytes_per_s > 0)
		rate = 1 / (1 / link->down_bytes_per_s + 1 / link->up_bytes_per_s);
	for (size_t i = 0; i < ways; i++) {
		at->line[i] = 2 * link->latency_s;
		at->line[ways + i] = rate;
	}
	for (int l = 0; l < at->layers; l++)
		at->boundary[l] = at->planning->costs.layer[l].boundary_bytes;
}

/* ---- cuts ---- */

static const struct rh_box_layer *stage_of(const struct cutting *at, int s, int lo, int hi)
{
	size_t layers = (size_t)at->layers + 1;
	return &at->stage[((size_t)s * layers + (size_t)lo) * layers + (size_t)hi];
}

/* A layer goes from one stage to another: those between them move by one. 0: a stage would be empty or larger than so many bytes. */
static int move_layer(struct cutting *at, int from, int to, int64_t bytes)
{
	if (from == to)
		return 0;
	int low = from < to ? from : to, high = from < to ? to : from, way = from < to ? -1 : 1;
	memcpy(at->moved, at->cut, ((size_t)at->stages + 1) * sizeof *at->cut);
	for (int s = low + 1; s <= high; s++)
		at->moved[s] += way;
	for (int s = low; s <= high; s++)
		if (at->moved[s] >= at->moved[s + 1] || stage_of(at, s, at->moved[s], at->moved[s + 1])->static_bytes > bytes)
			return 0;
	return 1;
}

/* Moves layers while that shortens the step. */
static int improve(struct cutting *at, int64_t bytes)
{
	static const double noticed = 1e-6; /* of a step */
	double best, now;
	int stages = at->stages, moves = stages * stages, rc = rh_step_clock_time(at->clock, at->cut, &best);
	for (int move = 0, last = 0; !rc && move < last + moves; move++) {
		if (!move_layer(at, move % moves / stages, move % stages, bytes))
			continue;
		rc = rh_step_clock_time(at->clock, at->moved, &now);
		if (rc || now >= best * (1 - noticed))
			continue;
		best = now;
		memcpy(at->cut, at->moved, ((size_t)stages + 1) * sizeof *at->cut);
		last = move;
	}
	return rc;
}

/* The fastest cuts whose stages each take at most so many bytes; or, where there are none, those that exceed them least. */
static int cut_for_bytes(struct cutting *at, int64_t bytes, struct rh_box_partition *out)
{
	const struct rh_executor_plan *planned = &at->planning->executor;
	int is_local = planned->schedule->update == RH_UPDATE_LOCAL;
	int64_t count = planned->train_micro_batches, each = at->stages / at->request->devices;
	const struct rh_dispatch dispatch = planning_dispatch(at->planning);
	for (int s = 0; s < at->stages; s++) {
		at->means[s].stage = at->stage + (size_t)s * ((size_t)at->layers + 1) * ((size_t)at->layers + 1);
		at->means[s].cap_bytes = bytes;
		at->means[s].in_flight = is_local ? rh_dispatch_admission_limit(&dispatch, s) : count * each;
	}
	/* a device of several stages runs each of them as often: a step is as long as one of so many more micro-batches */
	const struct rh_box_partition_request request = {.boxes = at->stages,
	                                                 .layers = at->layers,
	                                                 .box = at->means,
	                                                 .boundary_bytes = at->boundary,
	                                                 .latency_s = at->line,
	                                                 .bytes_per_s = at->line + 2 * ((size_t)at->stages - 1),
	                                                 .micro_batches = is_local ? 0 : count * each};
	int rc = rh_box_partition_make(&request, at->cut, out);
	return rc || !at->clock || out->overshoot_bytes ? rc : improve(at, bytes);
}

static int plan_cuts(struct cutting *at, const int *cut, int64_t cap, struct rh_stage_plan *out)
{
	struct rh_stage_plan_request request = *at->request;
	for (int s = 1; s < at->stages; s++)
		at->given[s - 1] = cut[s];
	request.device_cap_bytes = cap;
	request.forward_cuts = request.backward_cuts = at->given;
	request.backward_cut_count = at->stages - 1;
	request.forward_cut_count = rh_max(at->stages - 2, 0); /* the fused stage begins at the last cut */
	return rh_stage_plan_make(&request, out);
}

/* Devices reserve the most that any of them needs of each kind, so stages that fit one by one may not fit together: halves the bytes that
 * lie between the least stages, whose plan is in *out, and what a device has. */
static int search_below(struct cutting *at, int64_t least, struct rh_stage_plan *out)
{
	enum { HALVINGS = 8 };
	int64_t below = least, above = at->request->device_cap_bytes;
	struct rh_box_partition found;
	int rc = 0;
	for (int i = 0; !rc && i < HALVINGS; i++) {
		struct rh_stage_plan plan = {0};
		int64_t middle = below + (above - below) / 2;
		rc = cut_for_bytes(at, middle, &found);
		if (!rc)
			rc = plan_cuts(at, at->cut, at->request->device_cap_bytes, &plan);
		if (rc == RH_DOES_NOT_FIT) {
			rh_error_clear();
			above = middle;
			rc = 0;
		} else if (!rc) {
			rh_stage_plan_free(out);
			*out = plan;
			below = middle;
		}
	}
	return rc;
}

/* What devices reserve for these cuts. */
static int count_device(struct cutting *at, const int *cut, int64_t *bytes)
{
	struct rh_stage_plan plan = {0};
	int rc = plan_cuts(at, cut, RH_BYTES_MOST, &plan);
	*bytes = plan.device_bytes;
	rh_stage_plan_free(&plan);
	return rc;
}

/* Moves layers while devices then reserve less. *least: what they reserve at last. */
static int shrink(struct cutting *at, int64_t *least)
{
	int stages = at->stages, moves = stages * stages, rc = count_device(at, at->cut, least);
	for (int move = 0, last = 0; !rc && move < last + moves; move++) {
		int64_t now;
		if (!move_layer(at, move % moves / stages, move % stages, RH_BYTES_MOST))
			continue;
		rc = count_device(at, at->moved, &now);
		if (rc || now >= *least)
			continue;
		*least = now;
		memcpy(at->cut, at->moved, ((size_t)stages + 1) * sizeof *at->cut);
		last = move;
	}
	return rc;
}

static int refuse(const struct cutting *at, int64_t least)
{
	const struct rh_stage_plan_request *request = at->request;
	const char *key = request->cap_key;
	int64_t cap = request->device_cap_bytes;
	return rh_fail(RH_DOES_NOT_FIT,
	               "the device's %.1f MiB cannot hold a stage of %d on %d devices, however they are cut: it takes %.1f MiB, %.1f more; "
	               "%s%s%slower max_length or per_device_train_batch_size, or take more devices%s",
	               (double)cap / 1048576, at->stages, request->devices, (double)least / 1048576, (double)(least - cap) / 1048576,
	               key ? "raise " : "", key ? key : "", key ? ", " : "",
	               request->deferral             ? ", or a schedule that defers less (zb-1p) or nothing (1f1b)"
	               : request->kept_micro_batches ? ", or write paci_backward: recompute"
	                                             : "");
}

/* From the cuts whose largest stage is the least: those that fit, or the line that says how much is missing. */
static int squeeze(struct cutting *at, struct rh_stage_plan *out)
{
	int64_t cap = at->request->device_cap_bytes, least, by_weight;
	int rc = shrink(at, &least);
	if (!rc && least <= cap)
		return plan_cuts(at, at->cut, cap, out);
	for (int s = 0; s <= at->stages; s++) /* with which quick plans are made: where they fit, others are to fit too */
		at->moved[s] = !s ? 0 : s == at->stages ? at->layers : (int)at->planning->cuts[s - 1];
	if (!rc)
		rc = count_device(at, at->moved, &by_weight);
	if (!rc && by_weight <= cap)
		return plan_cuts(at, at->moved, cap, out);
	return rc ? rc : refuse(at, least < by_weight ? least : by_weight);
}

static int choose(struct cutting *at, struct rh_stage_plan *out)
{
	struct rh_box_partition found;
	int64_t cap = at->request->device_cap_bytes;
	int rc = cut_for_bytes(at, cap, &found);
	if (!rc && !found.overshoot_bytes) {
		rc = plan_cuts(at, at->cut, cap, out);
		if (rc != RH_DOES_NOT_FIT)
			return rc;
		rh_error_clear();
		rc = cut_for_bytes(at, 0, &found);
	}
	if (!rc)
		rc = plan_cuts(at, at->cut, cap, out);
	if (!rc)
		return search_below(at, rh_min(found.overshoot_bytes, cap), out);
	if (rc != RH_DOES_NOT_FIT)
		return rc;
	rh_error_clear();
	return squeeze(at, out);
}

static int open_cutting(struct cutting *at, enum cutter cutter)
{
	size_t stages = (size_t)at->stages, layers = (size_t)at->layers;
	const struct rh_schedule *schedule = at->planning->executor.schedule;
	const struct rh_dispatch dispatch = planning_dispatch(at->planning);
	at->stage = rh_alloc(stages * (layers + 1) * (layers + 1), sizeof *at->stage);
	at->means = rh_alloc(stages, sizeof *at->means);
	at->boundary = rh_alloc(layers, sizeof *at->boundary);
	at->line = rh_alloc(4 * (stages - 1) + 1, sizeof *at->line);
	at->cut = rh_alloc(stages + 1, sizeof *at->cut);
	at->moved = rh_alloc(stages + 1, sizeof *at->moved);
	at->given = rh_alloc(stages, sizeof *at->given);
	int rc = at->stage && at->means && at->boundary && at->line && at->cut && at->moved && at->given ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_costs_sum(&at->planning->costs, &at->sums);
	if (!rc)
		rc = measure_stages(at);
	if (!rc)
		measure_lines(at);
	if (rc || cutter != CUT_FOR_STEP)
		return rc;
	double up = schedule->swaps ? at->planning->request->machine.hardware->link.up_bytes_per_s : 0;
	return rh_step_clock_open(&dispatch, at->stages, &at->sums, up, &at->clock);
}

int planning_cut_devices(const struct planning *planning, const struct rh_stage_plan_request *request, enum cutter cutter,
                         struct rh_stage_plan *out)
{
	struct cutting at = {
	        .planning = planning, .request = request, .stages = (int)request->backward_cut_count + 1, .layers = request->model->layers};
	int rc = open_cutting(&at, cutter);
	if (!rc)
		rc = choose(&at, out);
	rh_step_clock_close(at.clock);
	rh_cost_sums_free(&at.sums);
	rh_free(at.stage);
	rh_free(at.means);
	rh_free(at.boundary);
	rh_free(at.line);
	rh_free(at.cut);
	rh_free(at.moved);
	rh_free(at.given);
	return rc;
}
