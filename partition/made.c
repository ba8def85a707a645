#include "partition/made.h"

#include "core/alloc.h"
#include "core/minmax.h"

int rh_made_place(struct rh_made_room *room, int64_t elements, struct rh_made_place out[RH_MADE_ARRAYS])
{
	struct rh_made_room left = *room;
	for (int a = 0; a < RH_MADE_ARRAYS; a++) {
		int64_t bytes = rh_made_array_bytes((enum rh_made_array)a, elements);
		int r = 0;
		while (r < RH_MADE_REGIONS && left.region[r].end - left.region[r].at < bytes)
			r++;
		if (r == RH_MADE_REGIONS)
			return 0;
		out[a] = (struct rh_made_place){(enum rh_made_region)r, left.region[r].at};
		left.region[r].at += bytes;
	}
	*room = left;
	return 1;
}

/* What a slot leaves of the plan's rooms. */
static struct rh_made_room room_beside(const struct rh_plan *plan, const struct rh_model *model, const struct rh_made_slot *slot,
                                       int64_t *scratch)
{
	struct rh_made_room room = {0};
	struct rh_stage stage = slot->stage;
	int64_t elements = rh_plan_gradient_layout(model, stage.lo, stage.hi, scratch);
	int64_t weights = rh_plan_upload_layout(model, stage.lo, stage.hi, stage.hi < model->layers, scratch);
	int64_t between = rh_max(plan->weight_bytes - weights - slot->next_bytes, 0) / RH_ALIGN * RH_ALIGN;
	int64_t from = slot->high ? plan->weight_bytes - weights - between : weights;
	room.region[RH_MADE_IN_GRADIENTS].at = 4 * elements;
	room.region[RH_MADE_IN_GRADIENTS].end = plan->gradient_bytes;
	room.region[RH_MADE_IN_ROUNDED].at = 2 * elements;
	room.region[RH_MADE_IN_ROUNDED].end = plan->rounded_bytes;
	room.region[RH_MADE_IN_WEIGHTS].at = from;
	room.region[RH_MADE_IN_WEIGHTS].end = from + between;
	room.region[RH_MADE_IN_OWN].end = plan->made_bytes;
	return room;
}

int rh_made_blocks(const struct rh_plan *plan, const struct rh_model *model, const struct rh_made_slot *slot, int64_t *scratch, int *block,
                   struct rh_made_place (*place)[RH_MADE_ARRAYS])
{
	struct rh_made_room room = room_beside(plan, model, slot, scratch);
	struct rh_stage stage = slot->stage;
	int count = 0, made = 0;
	if (stage.hi == 1) /* whose backward reads no weights: they are not there */
		return 0;
	for (int l = stage.lo; l < stage.hi; l++)
		for (int which = 0; which < 2; which++) {
			int b = model->layer[l].block[which], at = count;
			if (b < 0 || !model->block[b].trainable || model->block[b].uses != 1)
				continue;
			for (; at > 0 && model->block[block[at - 1]].elements < model->block[b].elements; at--)
				block[at] = block[at - 1];
			block[at] = b;
			count++;
		}
	for (int i = 0; i < count; i++) {
		block[made] = block[i];
		made += rh_made_place(&room, model->block[block[i]].elements, place[made]);
	}
	return made;
}

/* Slot i of a round of all stages. */
static struct rh_stage stage_of(const struct rh_plan *plan, int i)
{
	return i < plan->forward_stages ? plan->forward[i] : plan->backward[i - plan->forward_stages];
}

/* Of the slot that is the i-th of the step's last round. */
static int blocks_of_slot(const struct rh_plan *plan, const struct rh_model *model, int i, int devices, int64_t *scratch, int *block,
                          struct rh_made_place (*place)[RH_MADE_ARRAYS])
{
	int n = (i + devices) % (plan->forward_stages + plan->backward_stages), backward_only = n > plan->forward_stages;
	struct rh_stage next = stage_of(plan, n);
	struct rh_made_slot slot = {.stage = stage_of(plan, i)};
	slot.next_bytes = rh_plan_upload_layout(model, next.lo, next.hi, backward_only, scratch);
	return rh_made_blocks(plan, model, &slot, scratch, block, place);
}

/* What a block takes of the room of its own. */
static int64_t own_bytes(const struct rh_made_place place[RH_MADE_ARRAYS], int64_t elements)
{
	int64_t bytes = 0;
	for (int a = 0; a < RH_MADE_ARRAYS; a++)
		if (place[a].region == RH_MADE_IN_OWN)
			bytes = rh_max(bytes, place[a].at + rh_made_array_bytes((enum rh_made_array)a, elements));
	return bytes;
}

int rh_made_plan(struct rh_plan *plan, const struct rh_model *model, int devices, int64_t cap_bytes)
{
	int stages = plan->forward_stages + plan->backward_stages;
	size_t blocks = (size_t)model->blocks;
	int64_t *scratch = rh_alloc(2 * blocks, sizeof *scratch), most = 0;
	int *block = rh_alloc(blocks, sizeof *block);
	struct rh_made_place(*place)[RH_MADE_ARRAYS] = rh_alloc(blocks, sizeof *place);
	int rc = scratch && block && place ? 0 : -ENOMEM;
	plan->made_bytes = rh_max(cap_bytes - plan->device_bytes, 0) / RH_ALIGN * RH_ALIGN;
	for (int i = (int)rh_max(stages - devices, plan->forward_stages); !rc && i < stages; i++) {
		int made = blocks_of_slot(plan, model, i, devices, scratch, block, place);
		for (int k = 0; k < made; k++)
			most = rh_max(most, own_bytes(place[k], model->block[block[k]].elements));
		plan->made_blocks += made;
	}
	plan->made_bytes = most;
	plan->device_bytes += most;
	rh_free(scratch);
	rh_free(block);
	rh_free(place);
	return rc;
}
