/* Prepares a plan for a schedule other than RoundPipe: stages that forward and backward share, the same number on each device, and how
 * many weight gradients each defers. */
#include "plan/plan_internal.h"

#include "core/alloc.h"
#include "schedule/evaluate.h"

#include <stdio.h>

static int find_schedule(const struct rh_config *config, const struct rh_schedule **out)
{
	const char *name = config->schedule ? config->schedule : "roundpipe";
	*out = rh_schedule_find(name);
	if (!*out || (*out)->update == RH_UPDATE_STALE)
		return rh_fail(-EINVAL, "schedule: '%s' is not one that runs; choose %s (roundpipe-async: optimizer_staleness: 1)", name,
		               rh_schedule_names());
	return 0;
}

/* Local updates: refuses settings that need all gradients or two stages at once, because stages do not wait for each other. */
static int check_local(const struct rh_run_request *request, const struct rh_schedule *schedule)
{
	const struct rh_config *config = request->config;
	if (config->optimizer_staleness)
		return rh_fail(-EINVAL, "optimizer_staleness: schedule %s has a staleness of its own; leave it 0", schedule->name);
	if (rh_model_trains_tied(request->model)) /* rh_session_open unties those that train all weights */
		return rh_fail(
		        -EINVAL,
		        "lora_modules_to_save: under schedule %s each stage updates itself, but this model's embedding is its head too, "
		        "in another stage; leave it out, or choose another schedule",
		        schedule->name);
	return 0;
}

/* Cuts the stages that forward and backward share: as the user says, or evenly, two for each device if the schedule allows it and the
 * layers suffice. */
static int cut_for(const struct rh_schedule *schedule, struct planning *planning)
{
	const struct rh_config *config = planning->request->config;
	struct rh_stage_plan_request *request = &planning->stages;
	int layers = request->model->layers, devices = request->devices;
	if (config->backward_cut_count >= 0)
		return rh_fail(-EINVAL, "backward_cuts: schedule %s cuts forward and backward alike; give forward_cuts alone",
		               schedule->name);
	if (config->forward_cut_count < 0) {
		int each = schedule->stages_most > 1 && layers >= 2 * devices ? 2 : schedule->stages_least;
		if (layers < each * devices)
			return rh_fail(-EINVAL, "device: schedule %s needs %s for each of %d devices, the model has %d; use fewer",
			               schedule->name, each > 1 ? "two layers" : "a layer", devices, layers);
		planning->cuts = rh_alloc((size_t)(each * devices), sizeof *planning->cuts);
		if (!planning->cuts)
			return -ENOMEM;
		rh_stage_plan_even_cuts(request->model, each * devices, planning->cuts);
		request->forward_cuts = planning->cuts;
		request->forward_cut_count = each * devices - 1;
	}
	int64_t stages = request->forward_cut_count + 1;
	if (stages % devices || stages / devices > schedule->stages_most || stages / devices < schedule->stages_least)
		return rh_fail(-EINVAL,
		               "forward_cuts: schedule %s puts the same number of stages, %d to %d, on each of %d devices; these are %lld",
		               schedule->name, schedule->stages_least, schedule->stages_most, devices, (long long)stages);
	/* the fused stage begins at the last cut, so forward stages end there */
	request->backward_cuts = request->forward_cuts;
	request->backward_cut_count = request->forward_cut_count;
	if (request->forward_cut_count)
		request->forward_cut_count--;
	return 0;
}

/* Finds how many weight gradients each stage defers, under a schedule that splits backwards: top down, as the plan wants it. */
static int find_deferrals(const struct rh_schedule *schedule, int64_t micro_batches, struct planning *planning)
{
	const struct rh_stage_plan_request *request = &planning->stages;
	int stages = (int)request->backward_cut_count + 1;
	struct rh_stage *stage = rh_alloc((size_t)stages, sizeof *stage);
	struct rh_deferral *upward = rh_alloc((size_t)stages, sizeof *upward);
	struct rh_program program = {0};
	planning->deferral = rh_alloc((size_t)stages, sizeof *planning->deferral);
	struct rh_schedule_request asked = {
	        .devices = request->devices, .micro_batches = micro_batches, .steps = 1, .stage = stage, .stages = stages};
	int64_t period;
	int rc = stage && upward && planning->deferral ? rh_schedule_fewer(schedule, &asked, &asked.micro_batches, &period) : -ENOMEM;
	if (!rc)
		rc = rh_schedule_make(schedule, &asked, &program); /* defers as many as the whole step */
	if (!rc)
		rh_program_deferrals(&program, stages, upward);
	for (int s = 0; !rc && s < stages; s++)
		planning->deferral[s] = upward[stages - 1 - s];
	planning->stages.deferral = planning->deferral;
	rh_program_free(&program);
	rh_free(stage);
	rh_free(upward);
	return rc;
}

/* Checks max_version_drift in box 1, or on the first of `parts` devices, whose admission limit is the largest, so that all boxes agree. */
static int check_drift(const struct rh_run_request *request, int64_t parts, int64_t unit)
{
	int64_t most = request->config->max_version_drift, limit = request->admission_limit ? request->admission_limit[0] : parts,
	        units = rh_round_count(request->work->train_micro_batches, unit), needed = most ? (limit - 1 + most - 1) / most : 0;
	if (units >= needed)
		return 0;
	return rh_fail(-EINVAL,
	               "max_version_drift: %lld, but with %lld %s in flight %s and an update each %lld it may be %lld; write "
	               "gradient_accumulation_steps: %lld%s",
	               (long long)most, (long long)limit, request->order ? "units" : "micro-batches",
	               request->order ? "in box 1" : "on the first device", (long long)units, (long long)((limit - 1 + units - 1) / units),
	               (long long)(needed * unit), unit > 1 ? " (a unit is a round of round_micro_batches)" : "");
}

/* Each device of one box has a limit. */
static int check_limits(const struct rh_run_request *request)
{
	size_t limits = request->config->admission_limits.count;
	int devices = request->machine.devices;
	if (!limits || (int)limits == devices)
		return 0;
	return rh_fail(-EINVAL, "admission_limits: %zu limits for %d device%s; each has one", limits, devices, devices == 1 ? "" : "s");
}

/* The box's stages are not cut yet; it has at most one for each layer. */
static int find_box_deferrals(const struct rh_schedule *schedule, struct planning *planning)
{
	const struct rh_run_request *request = planning->request;
	const struct rh_dispatch dispatch = {.model = request->model,
	                                     .schedule = schedule,
	                                     .devices = planning->stages.devices,
	                                     .train_micro_batches = request->work->train_micro_batches,
	                                     .boxes = &planning->boxes};
	planning->deferral = rh_alloc((size_t)request->model->layers, sizeof *planning->deferral);
	planning->stages.deferral = planning->deferral;
	return planning->deferral ? rh_dispatch_boxes_deferrals(&dispatch, request->model->layers, planning->deferral) : -ENOMEM;
}

/* 1: the schedule orders units over boxes, and updates as this mode's boxes do. A box is one stage to it, with which schedules of several
 * stages a device would be others by another name. */
static int orders_boxes(const struct rh_schedule *schedule, const struct rh_mode_order *order)
{
	return schedule->update == order->update && schedule->stages_most == 1;
}

/* "gpipe, 1f1b or zb-h1". */
static void list_schedules(const struct rh_mode_order *order, char *text, size_t bytes)
{
	int left = 0;
	size_t used = 0;
	text[0] = 0;
	for (int i = 0; i < rh_schedule_count; i++)
		left += orders_boxes(&rh_schedules[i], order);
	for (int i = 0; i < rh_schedule_count && used < bytes; i++)
		if (orders_boxes(&rh_schedules[i], order)) {
			const char *then = --left > 1 ? ", " : left ? " or " : "";
			used += (size_t)snprintf(text + used, bytes - used, "%s%s", rh_schedules[i].name, then);
		}
}

int rh_run_check_boxes(const struct rh_config *config, const struct rh_mode_order *order)
{
	const struct rh_schedule *schedule;
	char names[256];
	if (!order || !order->orders_boxes)
		return 0;
	int rc = find_schedule(config, &schedule);
	if (rc || orders_boxes(schedule, order))
		return rc;
	list_schedules(order, names, sizeof names);
	return rh_fail(-EINVAL, "schedule: '%s' does not order boxes in mode %s; choose %s", schedule->name, rh_mode_name(config->mode),
	               names);
}

/* One of several boxes: the schedule orders units over boxes, and inside a box stages are packed as full as memory allows. Unless
 * round_micro_batches sets it, a unit is one micro-batch for each device. */
static int join_boxes(const struct rh_schedule *schedule, struct planning *planning)
{
	const struct rh_run_request *request = planning->request;
	const struct rh_config *config = request->config;
	int devices = planning->stages.devices;
	planning->boxes = (struct rh_boxes){.boxes = (int)config->boxes, .box = (int)config->box - 1};
	if (!request->order->orders_boxes)
		return 0;
	int rc = rh_run_check_boxes(config, request->order);
	if (!rc && schedule->update == RH_UPDATE_LOCAL)
		rc = check_local(request, schedule);
	if (rc)
		return rc;
	planning->boxes.unit = config->round_micro_batches ? config->round_micro_batches : devices;
	rc = check_drift(request, planning->boxes.boxes, planning->boxes.unit);
	if (rc)
		return rc;
	planning->store.crosses_rounds = planning->stages.crosses_rounds =
	        rh_boxes_cross_rounds(schedule, request->work->train_micro_batches, planning->boxes.unit);
	return schedule->splits_backward ? find_box_deferrals(schedule, planning) : 0;
}

struct rh_dispatch planning_dispatch(const struct planning *planning)
{
	const struct rh_executor_plan *planned = &planning->executor;
	return (struct rh_dispatch){.model = planning->request->model,
	                            .schedule = planned->schedule,
	                            .devices = planned->devices,
	                            .train_micro_batches = planned->train_micro_batches,
	                            .admission_limit = planning->request->admission_limit,
	                            .boxes = planning_boxes(planning)};
}

/* Local updates: chooses what a backward uses beside the present weights. */
static int choose_backward(struct planning *planning)
{
	const struct rh_run_request *request = planning->request;
	const struct rh_executor_plan *planned = &planning->executor;
	const struct rh_boxes *boxes = planning_boxes(planning);
	const struct rh_dispatch dispatch = planning_dispatch(planning);
	enum rh_paci_backward backward = request->config->paci_backward;
	if (backward == RH_BACKWARD_RECOMPUTE)
		return 0;
	if (!rh_dispatch_is_local(&dispatch))
		return rh_fail(-EINVAL,
		               "paci_backward: has no effect under schedule %s, in which no update comes between forward and backward; "
		               "remove it",
		               planned->schedule->name);
	if (backward == RH_BACKWARD_STASH)
		planning->store.stash = (int)rh_dispatch_drift_bound(&dispatch, 0);
	else if (boxes && planned->devices > 1)
		return rh_fail(-EINVAL, "paci_backward: stored keeps activations on the device that made them, and a box of several deals "
		                        "layers out anew; give each box one device, or write recompute");
	else if (!boxes && request->model->first_trained > 0)
		return rh_fail(-EINVAL, "paci_backward: stored works in one box where all layers are trained; write recompute or stash");
	else
		planning->stages.kept_micro_batches = rh_dispatch_admission_limit(&dispatch, 0) * (boxes ? boxes->unit : 1);
	return 0;
}

/* Checks paci_update_delay: an update has to be published before the next one's gradient arrives. */
static int check_delay(const struct planning *planning)
{
	const struct rh_config *config = planning->request->config;
	const struct rh_executor_plan *planned = &planning->executor;
	int64_t unit = planning->boxes.unit ? planning->boxes.unit : 1, units = rh_round_count(planned->train_micro_batches, unit);
	if (!config->paci_update_delay)
		return 0;
	if (planned->schedule->update != RH_UPDATE_LOCAL)
		return rh_fail(-EINVAL,
		               "paci_update_delay: has no effect under schedule %s, whose updates come between two steps; remove it",
		               planned->schedule->name);
	if (config->paci_backward == RH_BACKWARD_STASH)
		return rh_fail(-EINVAL,
		               "paci_update_delay: a stash keeps what updates overwrite, and these overwrite nothing that is read; "
		               "leave paci_backward out, or write paci_update_delay: 0");
	if (config->paci_update_delay < units)
		return 0;
	return rh_fail(-EINVAL,
	               "paci_update_delay: %lld, but a step has %lld unit%s: the next update would come before this one is published; "
	               "write %lld%s",
	               (long long)config->paci_update_delay, (long long)units, units == 1 ? "" : "s", (long long)units - 1,
	               unit > 1 ? " (a unit is a round of round_micro_batches)" : "");
}

static int arrange_schedule(struct planning *planning)
{
	const struct rh_run_request *request = planning->request;
	int64_t count = request->work->train_micro_batches;
	const struct rh_schedule *schedule;
	int rc = find_schedule(request->config, &schedule);
	if (rc)
		return rc;
	planning->executor.schedule = schedule;
	if (request->order)
		return join_boxes(schedule, planning);
	if (rh_schedule_has_planned_stages(schedule))
		return 0;
	if (schedule->update == RH_UPDATE_LOCAL) {
		rc = check_local(request, schedule);
		if (!rc)
			rc = check_limits(request);
		if (!rc)
			rc = check_drift(request, request->machine.devices, 1);
	}
	if (!rc)
		rc = cut_for(schedule, planning);
	/* a device of one stage keeps its sums until they are whole */
	int loops = planning->stages.backward_cut_count + 1 > planning->stages.devices;
	planning->store.crosses_rounds = planning->stages.crosses_rounds = loops && count > 1;
	if (!rc && schedule->splits_backward)
		rc = find_deferrals(schedule, count, planning);
	return rc;
}

int planning_schedule(struct planning *planning)
{
	int rc = arrange_schedule(planning);
	if (!rc && planning->executor.schedule->splits_backward && planning->request->model->drop.residual > 0)
		rc = rh_fail(-EINVAL,
		             "model_dropout: what a half adds to the residual is not dropped where backwards are split; choose another "
		             "schedule than %s, or write model_dropout: false",
		             planning->executor.schedule->name);
	if (!rc && planning->executor.schedule->splits_backward && planning->request->model->dora)
		rc = rh_fail(
		        -EINVAL,
		        "use_dora: its gradients need the weights, which split backwards do not have when they are made; choose another "
		        "schedule than %s",
		        planning->executor.schedule->name);
	if (!rc)
		rc = check_delay(planning);
	return rc ? rc : choose_backward(planning);
}
