/* What the updater does next. */
#include "offload/updater_internal.h"

/* Of a block's uploads that are not over; NULL: all are. A device's fault ends them too. */
static struct rh_event *still_uploading(const struct updater_block *block, int *rc)
{
	for (int i = 0; i < block->uploads; i++) {
		struct rh_event *event = block->uploaded[i];
		int reached = event->ops->event_query(event);
		*rc = reached < 0 ? reached : 0;
		if (reached < 0)
			return NULL;
		if (!reached)
			return event;
	}
	return NULL;
}

/* What can be published; else, among what is listened to, the uploads that were enqueued first. */
static struct updater_task next_publishing(const struct rh_updater *updater)
{
	struct updater_task task = {.block = -1};
	if (!updater_is_stale(updater))
		return task;
	for (int b = updater->low; b <= updater->high; b++) {
		const struct updater_block *block = &updater->block[b];
		int rc = 0;
		if (!block->publishes || block->behind || (block->held && rh_store_is_behind(updater->store, b)))
			continue;
		struct rh_event *event = still_uploading(block, &rc);
		if (!event)
			return (struct updater_task){PUBLISH, b, rc, NULL};
		if (task.block < 0 || block->upload_number < updater->block[task.block].upload_number)
			task = (struct updater_task){LISTEN, b, 0, event};
	}
	return task;
}

/* The squares of two steps are not mixed, unless each block's are kept. */
static int may_take(const struct rh_updater *updater, const struct updater_block *block)
{
	int before = (block->which + updater->steps - 1) % updater->steps;
	return block->state == COMING && (updater->is_apart || !updater->step[before].left);
}

static struct updater_task next_taking(const struct rh_updater *updater)
{
	struct updater_task task = {.block = -1};
	const struct updater_block *block = updater->block;
	for (int b = updater->low, left = updater->in[COMING]; left && b <= updater->high; b++) {
		left -= block[b].state == COMING;
		if (!may_take(updater, &block[b]))
			continue;
		int reached = block[b].event ? block[b].event->ops->event_query(block[b].event) : 1;
		if (reached)
			return (struct updater_task){TAKE, b, reached < 0 ? reached : 0, NULL};
		if (task.block < 0 || block[b].number < block[task.block].number)
			task = (struct updater_task){LISTEN, b, 0, block[b].event};
	}
	return task;
}

int updater_may_update(const struct rh_updater *updater, const struct updater_block *block)
{
	return block->state == WAITING && !block->held && (!block->publishes || block->behind) &&
	       !(updater->step[block->which].max_norm > 0 && updater->step[block->which].left);
}

int updater_waits_for_held(const struct rh_updater *updater)
{
	for (int b = updater->low; updater->held && b <= updater->high; b++) {
		struct updater_block block = updater->block[b];
		int publishes = block.publishes && !block.behind && rh_store_is_behind(updater->store, b), held = block.held;
		block.held = 0;
		if (held && (publishes || updater_may_update(updater, &block)))
			return 1;
	}
	return 0;
}

/* Blocks by how urgent their updates are. */
int updater_in_order(const struct rh_updater *updater, int i)
{
	return updater_is_stale(updater) ? updater->blocks - 1 - i : i;
}

/* Weights alone, where other blocks' wait or no gradient is to come any more: the next step is about to wait for them, and has time for
 * the moments. */
static int is_in_two(const struct rh_updater *updater, int b)
{
	int waiting = 0;
	if (updater->block[b].piece)
		return updater->block[b].pass == RH_UPDATE_WEIGHTS;
	for (int other = updater->low; updater->in_two && waiting < 2 && other <= updater->high; other++)
		waiting += updater_may_update(updater, &updater->block[other]);
	return waiting > 1 || (waiting && !updater->step[updater->block[b].which].left);
}

struct updater_task updater_next_task(const struct rh_updater *updater)
{
	struct updater_task none = {.block = -1}, publishing, taking;
	struct updater_task ahead = {READ_AHEAD, -1, 0, NULL};
	if (!updater->busy)
		return updater->ahead && !updater->ending ? ahead : none;
	publishing = next_publishing(updater);
	if (publishing.what == PUBLISH)
		return publishing;
	taking = next_taking(updater);
	if (taking.what == TAKE)
		return taking;
	int stale = updater_is_stale(updater);
	for (int i = updater->low; updater->in[WAITING] && i <= updater->high; i++) {
		int b = stale ? updater->high + updater->low - i : i; /* as updater_in_order */
		if (updater_may_update(updater, &updater->block[b]))
			return (struct updater_task){is_in_two(updater, b) ? WEIGHTS : UPDATE, b, 0, NULL};
	}
	/* the highest block's gradient is the next to come down */
	for (int b = updater->high; updater->in[HALF] && b >= updater->low; b--)
		if (updater->block[b].state == HALF)
			return (struct updater_task){MOMENTS, b, 0, NULL};
	if (updater->ahead)
		return ahead;
	return publishing.what == LISTEN ? publishing : taking; /* uploads are over long before gradients are down */
}
