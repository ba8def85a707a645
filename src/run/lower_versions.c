/* With local updates, as each slot is lowered: asserts PACI's admission rule, and notes the versions of layers' weights at a
 * micro-batch's forward and backward. They differ by its drift (arXiv 2606.07881, equation 8). They are known at lowering, because a
 * command waits for the upload of the version that lowering counts (struct lower_block). */
#include "run/lower.h"

void lower_versions_create(struct lowering *to)
{
	int64_t layers = to->options->model->layers, micro_batches = to->limits.micro_batches;
	to->versions.of = rh_region_take(&to->memory, micro_batches * layers, sizeof *to->versions.of);
	to->versions.unresolved = rh_region_take(&to->memory, layers, sizeof(int64_t));
}

/* The version of a layer's trained blocks, which all have the same; 0: it is frozen. Its differences count updates. */
static int64_t version_of(const struct lowering *to, int layer)
{
	const struct rh_model *model = to->options->model;
	for (int i = 0; i < RH_LAYER_BLOCKS; i++) {
		int block = model->layer[layer].block[i];
		if (block >= 0 && model->block[block].trainable)
			return to->block[block].version;
	}
	return 0;
}

static void note_layer(struct lowering *to, const struct rh_slot *slot, int layer)
{
	const struct rh_dispatch *dispatch = &to->limits.dispatch;
	int64_t *unresolved = &to->versions.unresolved[layer], first = lower_first_index(to, slot), version = version_of(to, layer);
	int64_t most = rh_dispatch_admission_limit(dispatch, slot->stage) * (dispatch->boxes ? dispatch->boxes->unit : 1);
	*unresolved += slot->kind == RH_SLOT_FORWARD ? slot->count : slot->kind == RH_SLOT_BACKWARD ? -slot->count : 0;
	RH_ASSERT(*unresolved >= 0 && *unresolved <= most);
	for (int64_t index = first; index < first + slot->count; index++) {
		struct rh_versions *versions = &to->versions.of[index * to->options->model->layers + layer];
		versions->forward = slot->kind == RH_SLOT_BACKWARD ? versions->forward : version;
		versions->backward = version;
		RH_ASSERT(version - versions->forward <= rh_dispatch_drift_bound(dispatch, slot->stage));
	}
}

void lower_versions_note(struct lowering *to, const struct rh_slot *slot)
{
	const struct rh_stage_plan *plan = to->options->plan;
	int lowest = plan->backward_stages ? plan->backward[plan->backward_stages - 1].lo : slot->hi; /* layers below are frozen */
	for (int l = slot->lo > lowest ? slot->lo : lowest; l < slot->hi; l++)
		note_layer(to, slot, l);
}
