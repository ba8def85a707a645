/* Stages that save activations in host memory rather than recompute them. */
#include "plan/plan_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/rounds.h"

#include <math.h>
#include <string.h>

int planning_may_save(const struct planning *planning)
{
	const struct rh_stage_plan_request *stages = &planning->stages;
	const struct rh_run_machine *machine = &planning->request->machine;
	return stages->trains && machine->device_room && !rh_model_is_part(stages->model) &&
	       (stages->devices == 1 || !stages->train.chunks) && !stages->model->saves_narrow && !stages->deferral &&
	       !stages->kept_micro_batches && !stages->fates && stages->forward_cut_count < 0 && stages->backward_cut_count < 0 &&
	       planning->balance.up_bytes_per_s > 0 && planning->balance.down_bytes_per_s > 0;
}

static struct rh_save_request save_request(const struct planning *planning, const struct rh_rates *rates)
{
	const struct rh_hardware *hardware = planning->request->machine.hardware;
	return (struct rh_save_request){.model = planning->stages.model,
	                                .shape = &planning->stages.train,
	                                .rates = rates,
	                                .costs = &planning->costs,
	                                .up_bytes_per_s = hardware->link.up_bytes_per_s,
	                                .down_bytes_per_s = hardware->link.down_bytes_per_s,
	                                .host_bytes_per_s = hardware->host.dram_bytes_per_s,
	                                .devices = planning->stages.devices};
}

int planning_weigh_saves(struct planning *planning, int64_t bytes_free)
{
	const struct rh_rates rates = {.device = &planning->request->machine.hardware->device, .share = 1};
	int64_t places = planning->executor.train_micro_batches * rh_max(planning->costs.layers - 2, 1);
	const struct rh_save_level level[SAVES - 1] = {[SAVES_FITTING - 1] = {1, 0, rh_max(bytes_free, 0) / places},
	                                               [SAVES_INPUTS - 1] = {0, 0, INT64_MAX},
	                                               [SAVES_HALF - 1] = {0.5, 0, INT64_MAX},
	                                               [SAVES_HOST - 1] = {1, 1, INT64_MAX},
	                                               [SAVES_ALL - 1] = {1, 0, INT64_MAX}};
	struct rh_save_request request = save_request(planning, &rates);
	request.level = level;
	request.levels = SAVES - 1;
	size_t layers = (size_t)planning->costs.layers;
	if (!planning->saves) { /* else this is another choice of what goes to NVMe */
		planning->each_layer = rh_alloc(layers, sizeof *planning->each_layer);
		planning->saves = rh_alloc((SAVES - 1) * layers, sizeof *planning->saves);
		planning->shared.fates = rh_alloc(layers, sizeof *planning->shared.fates);
		planning->shared.costs = planning->costs;
		planning->shared.costs.layer = rh_alloc(layers, sizeof *planning->shared.costs.layer);
	}
	if (!planning->each_layer || !planning->saves || !planning->shared.fates || !planning->shared.costs.layer)
		return -ENOMEM;
	for (size_t l = 0; l < layers; l++)
		planning->each_layer[l] = (int64_t)l + 1;
	return rh_costs_choose_saved(&request, planning->saves);
}

void planning_cut_saves(const struct planning *planning, const struct choice *choice, struct rh_stage_plan_request *request)
{
	request->backward_cuts = planning->each_layer;
	request->backward_cut_count = choice->fused;
	if (choice->saves)
		request->fates = planning->saves + ((int)choice->saves - 1) * planning->costs.layers;
}

int planning_try_saves(struct planning *planning, struct choice choice, struct candidate *out)
{
	enum { SMALLER = 4 }; /* fused stages that are tried */
	int top = planning->costs.layers - 1, last = (int)rh_min(choice.fused + SMALLER, top), rc = RH_DOES_NOT_FIT;
	int64_t least = rh_max(planning->executor.chunks, 1); /* a text's chunks stay together */
	for (choice.cutter = CUT_BELOW_FUSED; choice.round > 0; choice.round = choice.round > least ? choice.round / 2 : 0) {
		for (; rc == RH_DOES_NOT_FIT; choice.fused++) {
			candidate_free(out);
			rh_error_clear();
			rc = planning_fit(planning, &choice, out);
			if (!out->no_stages_fit || choice.fused == last)
				break;
		}
		if (rc != RH_DOES_NOT_FIT || out->no_stages_fit || planning->request->config->round_micro_batches)
			break;
	}
	return rc;
}

int planning_share_saves(struct planning *planning, const struct choice *choice, struct rh_stage_plan_request *request,
                         struct rh_balance *balance)
{
	const struct rh_rates rates = {.device = &planning->request->machine.hardware->device, .share = 1};
	const struct rh_save_request asked = save_request(planning, &rates);
	size_t layers = (size_t)planning->costs.layers;
	const struct rh_fates *level = planning->saves + (size_t)(choice->saves - 1) * layers;
	const struct rh_fates *inputs = planning->saves + (SAVES_INPUTS - 1) * layers;
	struct rh_fates *fates = planning->shared.fates;
	for (size_t l = 0; l < layers; l++)
		fates[l] = (int)l < choice->saves_from ? inputs[l] : level[l];
	memcpy(planning->shared.costs.layer, planning->costs.layer, layers * sizeof *planning->costs.layer);
	request->fates = fates;
	balance->costs = &planning->shared.costs;
	return rh_costs_save(&asked, fates, planning->shared.costs.layer);
}

int planning_are_saves_alike(const struct planning *planning, enum saves a, enum saves b)
{
	size_t each = (size_t)planning->costs.layers;
	return !memcmp(planning->saves + (size_t)(a - 1) * each, planning->saves + (size_t)(b - 1) * each, each * sizeof *planning->saves);
}

/* Where a step is flushed, it begins with the update, which needs the host's memory while the lower layers' forwards do: these may save
 * inputs alone. */
int planning_shared_saves(struct planning *planning, int *number, struct choice *choice)
{
	enum { WAYS = 3, LOW = 4 }; /* the lower layers are a part of all in so many */
	static const enum saves way[2][WAYS] = {{SAVES_ALL, SAVES_HOST, SAVES_INPUTS}, {SAVES_ALL, SAVES_HALF, SAVES_INPUTS}};
	planning_apply(planning, choice);
	int joins = rh_executor_joins(&planning->executor, planning->stages.model);
	const enum saves *ways = way[joins != 0];
	while (*number > 0 && *number < WAYS && planning_are_saves_alike(planning, ways[*number], ways[*number - 1]))
		++*number;
	if (*number == WAYS)
		return 0;
	choice->saves = ways[(*number)++];
	choice->saves_from = !joins && choice->saves != SAVES_INPUTS ? planning->costs.layers / LOW : 0;
	return 1;
}

/* Seconds by which copies through the host's memory exceed the first round's forward, beside the update that a flushed step begins with. */
double planning_host_late(const struct planning *planning, const struct candidate *candidate)
{
	double rate = planning->request->machine.hardware->host.dram_bytes_per_s, bytes = (double)candidate->stages.saved_bytes, busy_s = 0;
	const struct rh_stage_plan *stages = &candidate->stages;
	const struct rh_model *model = planning->stages.model;
	int64_t round = planning->stages.train_round;
	if (!(rate > 0) || candidate->joined)
		return 0;
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable)
			bytes += rh_store_traffic_of(&model->block[b], &planning->store).update;
	bytes += (double)rh_bytes_times(stages->boundary_bytes, stages->forward_stages + stages->backward_stages) * (double)round;
	for (int l = 0; l < stages->backward[0].lo; l++)
		busy_s += planning->costs.layer[l].forward_s * (double)round / planning->stages.devices;
	return fmax(bytes / rate - busy_s, 0);
}

/* Where the choice's plan needs more host memory than there is: how many of the layers from choice->saves_from on may save. */
static int layers_that_fit(const struct planning *planning, const struct candidate *candidate)
{
	const struct rh_run_bytes *bytes = &candidate->bytes;
	const struct rh_stage_plan *stages = &candidate->stages;
	int64_t spare = planning->stages.devices * planning->stages.train_round - candidate->spare, saved = stages->saved_bytes;
	int64_t room = bytes->total_budget - (bytes->total - saved) - spare * stages->boundary_bytes;
	int layers = planning->costs.layers - 1 - candidate->choice.saves_from;
	return saved > 0 && room > 0 ? (int)((double)layers * fmin((double)room / (double)saved, 1)) : 0;
}

int planning_try_shared_saves(struct planning *planning, struct choice choice, struct candidate *out)
{
	enum { TRIES = 4 }; /* with fewer layers stages are cut anew, so that their bytes are only estimated */
	int64_t spare = planning->stages.devices * choice.round;
	for (int again = 0; again < TRIES; again++) {
		int rc = planning_fit(planning, &choice, out);
		if (rc && (rc != RH_DOES_NOT_FIT || out->no_stages_fit || out->cap_bytes < 0))
			return rc;
		if (!rc && out->spare >= spare)
			return 0;
		int layers = layers_that_fit(planning, out), all = planning->costs.layers - 1;
		candidate_free(out);
		rh_error_clear();
		if (layers < all / 8)
			break;
		choice.saves_from = (int)rh_max(all - layers, choice.saves_from + 1);
	}
	return RH_DOES_NOT_FIT;
}
