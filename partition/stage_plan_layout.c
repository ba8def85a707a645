/* Where things lie: in an upload, in a stage's gradients, among the results, on a device. */
#include "partition/stage_plan.h"

struct rh_stage_piece rh_stage_plan_piece(const struct rh_stage_plan *plan, struct rh_stage slot, int layer)
{
	for (int i = 0; i < plan->backward_stages; i++) {
		const struct rh_stage *stage = &plan->backward[i];
		const struct rh_stage_places *places = &plan->places[i];
		if (layer < stage->lo || layer >= stage->hi)
			continue;
		return (struct rh_stage_piece){.stage = *stage,
		                               .lo = stage->lo > slot.lo ? stage->lo : slot.lo,
		                               .hi = stage->hi < slot.hi ? stage->hi : slot.hi,
		                               .places = places->kept.bytes || places->saved.bytes ? places : NULL};
	}
	return (struct rh_stage_piece){.stage = slot, .lo = slot.lo, .hi = slot.hi};
}

const struct rh_deferred_place *rh_stage_plan_deferred(const struct rh_stage_plan *plan, int lo, int hi)
{
	int i = 0;
	while (i < plan->backward_stages && (plan->backward[i].lo != lo || plan->backward[i].hi != hi))
		i++;
	RH_ASSERT(i < plan->backward_stages && plan->deferred[i].places > 0);
	return &plan->deferred[i];
}

static int64_t block_upload(const struct rh_model *model, int b)
{
	return rh_align_up(rh_block_bytes(&model->block[b], model->dtype), RH_ALIGN);
}

static int64_t block_gradients(const struct rh_model *model, int b)
{
	return rh_align_up(model->block[b].elements, RH_ALIGN / 2);
}

int64_t rh_stage_plan_upload_layout(const struct rh_model *model, int lo, int hi, int is_backward, int64_t *offset)
{
	int64_t bytes = 0;
	for (int b = 0; b < model->blocks; b++)
		offset[b] = -1;
	if (is_backward && hi == 1 && rh_model_has_embedding(model) && !rh_model_embedding_reads_back(model))
		return 0;
	for (int l = lo; l < hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which];
			if (b < 0 || offset[b] >= 0 || rh_block_stays(&model->block[b]))
				continue;
			offset[b] = bytes;
			bytes += block_upload(model, b);
		}
	return bytes;
}

int64_t rh_stage_plan_plain_layout(const struct rh_model *model, int lo, int hi, int64_t *offset)
{
	int64_t bytes = 0;
	for (int b = 0; b < model->blocks; b++)
		offset[b] = -1;
	for (int l = lo; l < hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = rh_model_plain_block(model, l, which);
			if (b < 0)
				continue;
			offset[b] = bytes;
			bytes += rh_block_plain_bytes(&model->block[b], model->dtype);
		}
	return bytes;
}

int64_t rh_stage_plan_gradient_layout(const struct rh_model *model, int lo, int hi, int64_t *offset)
{
	int64_t elements = 0;
	for (int i = 0; i < 2 * model->blocks; i++)
		offset[i] = -1;
	for (int l = lo; l < hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which];
			if (b < 0 || !model->block[b].trainable)
				continue;
			offset[2 * b + model->layer[l].use[which]] = elements;
			elements += block_gradients(model, b);
		}
	return elements;
}

int64_t rh_stage_plan_layer_upload(const struct rh_model *model, int l)
{
	const int *block = model->layer[l].block;
	int64_t bytes = 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++)
		bytes += block[which] < 0 || rh_block_stays(&model->block[block[which]]) ? 0 : block_upload(model, block[which]);
	return bytes;
}

int64_t rh_stage_plan_layer_gradients(const struct rh_model *model, int l)
{
	const int *block = model->layer[l].block;
	int64_t elements = 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++)
		elements += block[which] < 0 || !model->block[block[which]].trainable ? 0 : block_gradients(model, block[which]);
	return elements;
}

int64_t rh_stage_plan_layer_plain(const struct rh_model *model, int l)
{
	int64_t bytes = 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
		int b = rh_model_plain_block(model, l, which);
		bytes += b < 0 ? 0 : rh_block_plain_bytes(&model->block[b], model->dtype);
	}
	return bytes;
}
