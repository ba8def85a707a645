#include "schedule/published.h"

#include "core/alloc.h"
#include "partition/anchor.h"
#include "schedule/evaluate.h"

/* The table's layers in stages; a stage without a block gets a layer that costs nothing, the head goes with the last. */
struct staged {
	struct rh_costs costs;
	struct rh_stage *stage;
	int stages;
};

static int stage_up(const struct rh_experiment *experiment, const struct rh_stage_sizes *sizes, const struct rh_costs *given,
                    struct staged *out)
{
	size_t most = (size_t)given->layers + (size_t)sizes->count;
	int block = 0, layers = 0;
	*out = (struct staged){.costs = {.layer = rh_alloc(most, sizeof *out->costs.layer), .hop_s = given->hop_s},
	                       .stage = rh_alloc((size_t)sizes->count + 1, sizeof *out->stage)};
	if (!out->costs.layer || !out->stage)
		return -ENOMEM;
	for (int i = 0; i < sizes->count; i++) {
		int last = i + 1 == sizes->count;
		if (sizes->size[i] > given->layers - 1 - block || (last && sizes->size[i] < given->layers - 1 - block))
			return rh_fail(-EINVAL, "%s: the published stages do not hold the table's %d blocks", experiment->name,
			               given->layers - 1);
		out->stage[i].lo = layers;
		for (int b = 0; b < sizes->size[i]; b++)
			out->costs.layer[layers++] = given->layer[block++];
		if (last)
			out->costs.layer[layers++] = given->layer[block++];
		else if (!sizes->size[i])
			out->costs.layer[layers++] = (struct rh_layer_cost){0};
		out->stage[i].hi = layers;
	}
	out->stages = sizes->count;
	out->costs.layers = layers;
	return 0;
}

static int evaluate(const struct rh_experiment *experiment, const struct staged *staged, const char *name, double *percent)
{
	struct rh_cost_sums sums;
	struct rh_program program = {0};
	struct rh_timeline timeline = {0};
	int rc = rh_costs_sum(&staged->costs, &sums);
	if (rc)
		return rc;
	const struct rh_schedule_request request = {.devices = (int)experiment->bubble_devices,
	                                            .micro_batches = experiment->bubble_micro_batches,
	                                            .steps = 1,
	                                            .stage = staged->stage,
	                                            .stages = staged->stages,
	                                            .sums = &sums,
	                                            .hop_s = staged->costs.hop_s};
	const struct rh_program_timing how = {
	        .schedule = rh_schedule_find(name), .sums = &sums, .devices = request.devices, .recompute = RH_RECOMPUTE_LATE};
	rc = rh_schedule_make(how.schedule, &request, &program);
	rc = rc ? rc : rh_program_evaluate(&program, &how, &timeline);
	*percent = 100 * timeline.bubble;
	rh_timeline_free(&timeline);
	rh_program_free(&program);
	rh_cost_sums_free(&sums);
	return rc;
}

static int other_row(const struct rh_experiment *experiment, const struct rh_costs *costs, enum rh_bubble_row row, double *percent)
{
	struct staged staged;
	int rc = stage_up(experiment, &experiment->bubble[row].stages, costs, &staged);
	rc = rc ? rc : evaluate(experiment, &staged, rh_bubble_row_name(row), percent);
	rh_free(staged.costs.layer);
	rh_free(staged.stage);
	return rc;
}

static int roundpipe_row(const struct rh_experiment *experiment, const struct rh_costs *costs, struct rh_bubble_row_result *out)
{
	struct rh_partition cuts;
	const struct rh_partition_request request = {.costs = costs,
	                                             .cap_bytes = INT64_MAX / 4,
	                                             .devices = (int)experiment->bubble_devices,
	                                             .micro_batches = experiment->bubble_micro_batches,
	                                             .rounds = experiment->bubble_rounds,
	                                             .steps = 1};
	int rc = rh_anchor_cuts(experiment, costs->layers, &cuts);
	rc = rc ? rc : rh_partition_time(&request, &cuts);
	out->recomputed = 100 * cuts.bubble;
	rh_partition_free(&cuts);
	rc = rc ? rc : rh_partition_make(&request, &cuts);
	if (rc)
		return rc;
	out->own = 100 * cuts.bubble;
	rh_partition_free(&cuts);
	return 0;
}

int rh_published_bubbles(const struct rh_experiment *experiment, const struct rh_layer_table *table,
                         struct rh_bubble_row_result out[RH_BUBBLE_ROWS])
{
	struct rh_costs costs;
	int rc = rh_costs_from_table(table, NULL, &costs);
	for (int row = 0; row < RH_BUBBLE_ROWS; row++) {
		out[row] = (struct rh_bubble_row_result){.published = experiment->bubble[row].percent};
		if (rc || out[row].published <= 0)
			continue;
		rc = row == RH_BUBBLE_ROUNDPIPE ? roundpipe_row(experiment, &costs, &out[row])
		                                : other_row(experiment, &costs, (enum rh_bubble_row)row, &out[row].recomputed);
	}
	rh_costs_free(&costs);
	return rc;
}
