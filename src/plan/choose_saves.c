/* Stages that save activations in host memory rather than recompute them. */
#include "plan/plan_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/rounds.h"

int planning_may_save(const struct planning *planning)
{
	const struct rh_stage_plan_request *stages = &planning->stages;
	const struct rh_run_machine *machine = &planning->request->machine;
	return stages->trains && stages->devices == 1 && machine->device_room && !rh_model_is_part(stages->model) &&
	       !stages->model->saves_narrow && !stages->deferral && !stages->kept_micro_batches &&
	       !stages->fates && stages->forward_cut_count < 0 && stages->backward_cut_count < 0 && planning->balance.up_bytes_per_s > 0 &&
	       planning->balance.down_bytes_per_s > 0;
}

int planning_weigh_saves(struct planning *planning, int64_t bytes_free)
{
	static const double share[SAVES - 1] = {1, 0.5, 1};
	const struct rh_hardware *hardware = planning->request->machine.hardware;
	const struct rh_hardware_link *link = &hardware->link;
	const struct rh_rates rates = {.device = &hardware->device, .share = 1};
	int64_t places = planning->executor.train_micro_batches * rh_max(planning->costs.layers - 2, 1);
	const struct rh_save_request request = {.model = planning->stages.model,
	                                        .shape = &planning->stages.train,
	                                        .rates = &rates,
	                                        .costs = &planning->costs,
	                                        .up_bytes_per_s = link->up_bytes_per_s,
	                                        .down_bytes_per_s = link->down_bytes_per_s,
	                                        .share = share,
	                                        .first_most_bytes = rh_max(bytes_free, 0) / places,
	                                        .levels = SAVES - 1};
	size_t layers = (size_t)planning->costs.layers;
	planning->each_layer = rh_alloc(layers, sizeof *planning->each_layer);
	planning->saves = rh_alloc((SAVES - 1) * layers, sizeof *planning->saves);
	if (!planning->each_layer || !planning->saves)
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
