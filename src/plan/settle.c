/* Makes a candidate the plan, copies a plan for another session of the same run, and counts its writes to NVMe. */
#include "plan/plan_internal.h"

#include "core/minmax.h"
#include "core/size.h"
#include "partition/rounds.h"
#include "schedule/schedule.h"

/* Where a call has fewer stages than there are devices, it runs in as many rounds as it takes for each device to have work. Rounds of
 * forwards do not wait for one another. */
int64_t planning_infer_round(const struct planning *planning, const struct rh_stage_plan *stages)
{
	const struct rh_executor_plan *planned = &planning->executor;
	int64_t count = planned->infer_micro_batches,
	        in_round = rh_max(stages->forward_stages + rh_stage_plan_backward_stages(stages, 0), 1);
	int64_t rounds = planning->boxes.boxes || planned->cache_rows ? 1 : rh_round_count(planned->devices, in_round);
	return rh_min(rh_roundpipe_default_round(count, planned->devices), rh_round_count(count, rounds));
}

void planning_settle(struct planning *planning, struct candidate *candidate, struct rh_run_plan *out)
{
	planning_apply(planning, &candidate->choice);
	planning->executor.spare_boundaries = candidate->spare;
	planning->executor.table_rows = candidate->table_rows;
	planning->executor.infer_round = planning_infer_round(planning, &candidate->stages);
	planning->executor.train_round = rh_min(planning->executor.train_round, planning->executor.train_micro_batches);
	*out = (struct rh_run_plan){.stages = candidate->stages,
	                            .spill = candidate->choice.spill,
	                            .bytes = candidate->bytes,
	                            .balanced = candidate->balanced,
	                            .grain = planning->request->machine.grain,
	                            .head_rows = candidate->head_rows,
	                            .executor = planning->executor,
	                            .store = planning->store,
	                            .boxes = planning->boxes};
	candidate->stages = (struct rh_stage_plan){0};
}

int rh_run_plan_copy(const struct rh_run_plan *plan, struct rh_run_plan *out)
{
	*out = *plan;
	return rh_stage_plan_copy(&plan->stages, &out->stages);
}

void rh_run_plan_cut_head(const struct rh_run_plan *plan, struct rh_model *model)
{
	rh_model_cut(model, &plan->grain);
	while (model->head_rows > plan->head_rows && rh_model_cut_finer(model))
		;
}

void rh_run_plan_free(struct rh_run_plan *plan)
{
	rh_stage_plan_free(&plan->stages);
	*plan = (struct rh_run_plan){0};
}

void rh_run_plans_free(struct rh_run_plans *plans)
{
	for (int i = 0; i < RH_RUN_PLANS_MOST; i++)
		rh_run_plan_free(&plans->plan[i]);
	plans->count = 0;
}

int64_t rh_run_plan_nvme_writes(const struct rh_run_plan *plan, int64_t steps)
{
	int64_t each = plan->bytes.nvme_step;
	if (each && steps > (INT64_MAX / 2 - plan->bytes.nvme_loaded) / each)
		return INT64_MAX;
	return each * steps + plan->bytes.nvme_loaded;
}

int rh_run_plan_check_nvme(const struct rh_run_plan *plan, const struct rh_config *config, int64_t steps)
{
	int64_t needed = plan->bytes.nvme, writes = rh_run_plan_nvme_writes(plan, steps);
	if (!needed)
		return 0;
	if (needed > config->max_nvme)
		return rh_fail(-ENOSPC, "max_nvme: the run needs %s of NVMe and may have %s; raise it to %lld bytes, or spill less",
		               rh_size(needed).text, rh_size(config->max_nvme).text, (long long)needed);
	if (config->max_nvme_writes && writes > config->max_nvme_writes)
		return rh_fail(
		        -EDQUOT,
		        "max_nvme_writes: the run will write %.1f MiB to NVMe (%.1f a step, %lld steps) and may write %.1f; raise it, "
		        "spill less, or train fewer steps",
		        (double)writes / 1048576, (double)plan->bytes.nvme_step / 1048576, (long long)steps,
		        (double)config->max_nvme_writes / 1048576);
	return 0;
}
