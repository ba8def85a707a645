/* Host buffers of boundaries, given out as copies from devices are issued: first in, first out. */
#include "run/dispatcher_internal.h"

#include "core/alloc.h"

#include <string.h>

/* What a micro-batch of the slot takes of the host's buffers, and how many it is the last to read. */
static void count_buffers(const struct rh_executor *executor, const struct rh_slot *slot, int *writes, int *frees)
{
	const struct rh_executor_options *options = &executor->options;
	int forward = slot->kind == RH_SLOT_FORWARD, trains = executor->trains;
	const struct rh_plan *plan = options->plan;
	int reads = slot->lo > 0 || plan->is_fed, goes = rh_slot_gives_gradient(plan, slot);
	/* what another box gets is given back by who reads it here, where somebody does */
	int others = rh_boundary_readers(plan, trains, slot->lo) - rh_plan_gives(plan, slot->lo);
	*writes = !forward && slot->kind != RH_SLOT_INFER && slot->lo > options->model->first_trained;
	for (int l = slot->lo + 1; forward && l <= slot->hi; l++)
		*writes += rh_boundary_readers(plan, trains, l) > 0,
		        goes += rh_plan_gives(plan, l) && rh_boundary_readers(plan, trains, l) == 1;
	*writes += rh_slot_takes_input(plan, slot) + rh_slot_takes_gradient(plan, slot);
	*frees = rh_slot_reads_gradient(plan, slot) + (forward ? others == 1 : reads) + goes;
}

int dispatcher_take_slot(struct rh_executor *executor, const struct rh_slot *slot)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	if (executor->lowering.drives.down)
		return 0;
	int rc = rh_grow(&dispatcher->slot, &dispatcher->slot_capacity, dispatcher->slots + 1, sizeof *dispatcher->slot), writes = 0,
	    frees = 0;
	if (rc)
		return rc;
	if (slot->kind != RH_SLOT_WEIGHT_GRADIENT)
		count_buffers(executor, slot, &writes, &frees);
	dispatcher->present_slot = dispatcher->first_slot + (int64_t)dispatcher->slots;
	dispatcher->slot[dispatcher->slots++] =
	        (struct dispatch_slot){.writes = writes, .taken = writes * slot->count, .given = frees * slot->count};
	return 0;
}

static void pass_slots(struct run_dispatcher *dispatcher)
{
	while (dispatcher->oldest_slot < dispatcher->slots && !dispatcher->slot[dispatcher->oldest_slot].taken &&
	       !dispatcher->slot[dispatcher->oldest_slot].given)
		dispatcher->oldest_slot++;
}

/* By the slots before this one. */
static int64_t to_be_taken(const struct run_dispatcher *dispatcher, int64_t slot)
{
	int64_t taken = 0;
	for (int64_t i = (int64_t)dispatcher->oldest_slot; i < slot; i++)
		taken += dispatcher->slot[i].taken;
	return taken;
}

/* Is there a buffer for a boundary that a device sends, and after it still one for each that the slots before have to send? Slots were
 * counted one after the other when the buffers were: the oldest can always go on. */
int dispatcher_has_buffer(struct rh_executor *executor, const struct rh_command *command)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	int64_t own = ring_of(command)->slot - dispatcher->first_slot;
	int64_t unused = executor->boundaries.free_count;
	if (!unused)
		return 0;
	pass_slots(dispatcher);
	if (own == (int64_t)dispatcher->oldest_slot)
		return 1;
	if (command->kind == RH_COMMAND_RECEIVE && executor->is_stretch && unused <= to_be_taken(dispatcher, own))
		return 0; /* received far ahead of time: slots before it would wait for buffers that come back a round trip later */
	unused--;
	for (size_t i = dispatcher->oldest_slot; i < dispatcher->slots; i++) {
		const struct dispatch_slot *slot = &dispatcher->slot[i];
		int64_t taken = slot->taken - ((int64_t)i == own);
		if (taken && (unused < slot->writes || unused < taken - slot->given))
			return 0;
		unused += slot->given - taken;
	}
	return 1;
}

void dispatcher_count_buffer(struct run_dispatcher *dispatcher, int64_t slot, int is_taken, int is_given)
{
	struct dispatch_slot *at = &dispatcher->slot[slot - dispatcher->first_slot];
	at->taken -= is_taken;
	at->given -= is_given;
	RH_ASSERT(at->taken >= 0 && at->given >= 0);
}

void dispatcher_forget_slots(struct run_dispatcher *dispatcher)
{
	pass_slots(dispatcher);
	dispatcher->slots -= dispatcher->oldest_slot;
	memmove(dispatcher->slot, dispatcher->slot + dispatcher->oldest_slot, dispatcher->slots * sizeof *dispatcher->slot);
	dispatcher->first_slot += (int64_t)dispatcher->oldest_slot;
	dispatcher->oldest_slot = 0;
}
