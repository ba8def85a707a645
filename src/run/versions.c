/* Stages that update themselves, slot by slot, as they are lowered: PACI's admission rule is asserted, and a micro-batch's drift is noted,
 * the updates that a layer had between the micro-batch's forward and its backward (arXiv 2606.07881, equation 8). Which weights a command
 * reads is settled here: it waits for the upload of the version that lowering counts (generation of struct lower_block). */
#include "run/executor_internal.h"

#include "core/alloc.h"

#include <string.h>

int run_versions_create(struct rh_executor *executor)
{
	size_t layers = (size_t)executor->options.model->layers;
	struct run_versions *versions = &executor->versions;
	versions->of_forward = rh_alloc((size_t)executor->micro_batches * layers, sizeof *versions->of_forward);
	versions->drift = rh_alloc((size_t)executor->micro_batches, sizeof *versions->drift);
	versions->unresolved = rh_alloc(layers, sizeof *versions->unresolved);
	return versions->of_forward && versions->drift && versions->unresolved ? 0 : -ENOMEM;
}

void run_versions_destroy(struct rh_executor *executor)
{
	rh_free(executor->versions.of_forward);
	rh_free(executor->versions.drift);
	rh_free(executor->versions.unresolved);
}

void run_versions_begin(struct rh_executor *executor)
{
	memset(executor->versions.unresolved, 0, (size_t)executor->options.model->layers * sizeof *executor->versions.unresolved);
}

/* How many updates a layer had so far; of a frozen one 0. All its trained blocks have as many. */
static int64_t version_of(const struct rh_executor *executor, int layer)
{
	const struct rh_model *model = executor->options.model;
	for (int i = 0; i < 2; i++) {
		int block = model->layer[layer].block[i];
		if (block >= 0 && model->block[block].trainable)
			return executor->lowering.block[block].generation;
	}
	return 0;
}

static void note_forward(struct rh_executor *executor, const struct rh_slot *slot, int layer, int64_t place)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_dispatch dispatch = run_dispatch(options);
	struct run_versions *versions = &executor->versions;
	int64_t unit = options->boxes ? options->boxes->unit : 1;
	versions->unresolved[layer] += slot->count;
	RH_ASSERT(versions->unresolved[layer] <= unit * rh_dispatch_admission_limit(&dispatch, slot->stage));
	for (int64_t m = place; m < place + slot->count; m++)
		versions->of_forward[m * options->model->layers + layer] = version_of(executor, layer);
}

static void note_backward(struct rh_executor *executor, const struct rh_slot *slot, int layer, int64_t place)
{
	struct run_versions *versions = &executor->versions;
	int64_t version = version_of(executor, layer);
	versions->unresolved[layer] -= slot->count;
	for (int64_t m = place; m < place + slot->count; m++) {
		int64_t drift = version - versions->of_forward[m * executor->options.model->layers + layer];
		RH_ASSERT(drift <= rh_executor_drift_bound(executor));
		if (drift > versions->drift[m])
			versions->drift[m] = drift;
	}
}

int64_t rh_executor_drift_bound(const struct rh_executor *executor)
{
	const struct rh_dispatch dispatch = run_dispatch(&executor->options);
	return rh_dispatch_drift_bound(&dispatch);
}

void run_versions_note(struct rh_executor *executor, const struct rh_slot *slot, int64_t place)
{
	const struct rh_plan *plan = executor->options.plan;
	int lowest = plan->backward_stages ? plan->backward[plan->backward_stages - 1].lo : slot->hi; /* frozen below: without a backward */
	for (int l = slot->lo > lowest ? slot->lo : lowest; slot->kind != RH_SLOT_FUSED && l < slot->hi; l++)
		if (slot->kind == RH_SLOT_FORWARD)
			note_forward(executor, slot, l, place);
		else
			note_backward(executor, slot, l, place);
}
