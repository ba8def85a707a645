/* Chooses the updater's next task. */
#include "offload/updater_internal.h"

/* An upload of the block that is not over; NULL: all are. A device's fault ends them too. */
static struct rh_event *still_uploading(const struct updater_block *block, int *rc)
{
	for (int i = 0; i < block->upload_events; i++) {
		struct rh_event *event = block->upload_event[i];
		int reached = event->ops->event_query(event);
		*rc = reached < 0 ? reached : 0;
		if (reached < 0)
			return NULL;
		if (!reached)
			return event;
	}
	return NULL;
}

/* A block that can be published; else, of the events to listen to, the uploads that were enqueued first. */
static struct updater_task next_publishing(const struct rh_updater *updater)
{
	struct updater_task task = {.block = -1};
	if (!updater_is_stale(updater))
		return task;
	for (int b = updater->low; b <= updater->high; b++) {
		const struct updater_block *block = &updater->block[b];
		int rc = 0;
		if (!block->must_publish || block->updates_first || (block->is_held && rh_store_is_behind(updater->store, b)))
			continue;
		struct rh_event *event = still_uploading(block, &rc);
		if (!event)
			return (struct updater_task){PUBLISH, b, rc, NULL};
		if (task.block < 0 || block->upload_announcement < updater->block[task.block].upload_announcement)
			task = (struct updater_task){LISTEN, b, 0, event};
	}
	return task;
}

/* The squares of two steps are not mixed, unless each block's are kept. */
static int may_take(const struct rh_updater *updater, const struct updater_block *block)
{
	int before = (block->update + updater->step_count - 1) % updater->step_count;
	return block->state == ANNOUNCED && !block->awaits_other && (updater->is_by_block || !updater->step[before].gradients_left);
}

static struct updater_task next_taking(const struct rh_updater *updater)
{
	struct updater_task task = {.block = -1};
	const struct updater_block *block = updater->block;
	for (int b = updater->low, left = updater->count_in[ANNOUNCED]; left && b <= updater->high; b++) {
		left -= block[b].state == ANNOUNCED;
		if (!may_take(updater, &block[b]))
			continue;
		int reached = block[b].event ? block[b].event->ops->event_query(block[b].event) : 1;
		if (reached)
			return (struct updater_task){TAKE, b, reached < 0 ? reached : 0, NULL};
		if (task.block < 0 || block[b].announcement < block[task.block].announcement)
			task = (struct updater_task){LISTEN, b, 0, block[b].event};
	}
	return task;
}

/* Its gradient waits, and but for a hold nothing that it has to wait for is missing. */
static int is_due(const struct rh_updater *updater, const struct updater_block *block)
{
	const struct updater_part *part = updater_part(updater, (int)(block - updater->block));
	if (part && part->max_norm > 0 && part->gradients_left)
		return 0;
	return block->state == WAITING && (!block->must_publish || block->updates_first) &&
	       !(updater->step[block->update].max_norm > 0 && updater->step[block->update].gradients_left);
}

int updater_may_update(const struct rh_updater *updater, const struct updater_block *block)
{
	return is_due(updater, block) && !block->is_held;
}

int updater_waits_for_held(const struct rh_updater *updater)
{
	for (int b = updater->low; updater->held_blocks && b <= updater->high; b++) {
		const struct updater_block *block = &updater->block[b];
		int publishes = block->must_publish && !block->updates_first && rh_store_is_behind(updater->store, b);
		if (block->is_held && (publishes || is_due(updater, block)))
			return 1;
	}
	return 0;
}

/* Blocks by how urgent their updates are. */
int updater_in_order(const struct rh_updater *updater, int i)
{
	return updater_is_stale(updater) ? updater->blocks - 1 - i : i;
}

/* Weights now and moments later, where other blocks wait for their update or all gradients have arrived: then the next step is about to
 * wait for weights, and leaves time for the moments. */
enum rh_update_pass updater_pass(const struct rh_updater *updater, int b)
{
	int waiting = 0;
	if (updater->block[b].next_piece || updater->block[b].rows_are_done)
		return updater->block[b].pass;
	for (int other = updater->low; updater->uses_two_passes && waiting < 2 && other <= updater->high; other++)
		waiting += updater_may_update(updater, &updater->block[other]);
	int weights_first = waiting > 1 || (waiting && !updater->step[updater->block[b].update].gradients_left);
	return weights_first ? RH_UPDATE_WEIGHTS : RH_UPDATE_WHOLE;
}

static struct updater_task updating(const struct rh_updater *updater, int b)
{
	return (struct updater_task){updater_pass(updater, b) == RH_UPDATE_WEIGHTS ? WEIGHTS : UPDATE, b, 0, NULL};
}

/* Rows of a block go first, if they are known, and its others last. */
static struct updater_task next_update(const struct rh_updater *updater)
{
	int stale = updater_is_stale(updater), last = -1;
	for (int i = updater->low; updater->count_in[WAITING] && i <= updater->high; i++) {
		int b = stale ? updater->high + updater->low - i : i; /* as updater_in_order */
		const struct updater_block *block = &updater->block[b];
		if (!updater_may_update(updater, block))
			continue;
		if (!block->is_by_rows)
			return updating(updater, b);
		if (block->row && !block->rows_are_done && !block->next_piece)
			return (struct updater_task){ROWS, b, 0, NULL};
		last = b;
	}
	return last < 0 ? (struct updater_task){.block = -1} : updating(updater, last);
}

struct updater_task updater_next_task(const struct rh_updater *updater)
{
	struct updater_task none = {.block = -1}, publishing, taking;
	struct updater_task ahead = {READ_AHEAD, -1, 0, NULL};
	if (!updater->busy_blocks)
		return updater->may_read_ahead && !updater->is_ending ? ahead : none;
	publishing = next_publishing(updater);
	if (publishing.kind == PUBLISH)
		return publishing;
	taking = next_taking(updater);
	if (taking.kind == TAKE)
		return taking;
	struct updater_task update = next_update(updater);
	if (update.kind != NOTHING)
		return update;
	/* the highest block's gradient is the next to come down */
	for (int b = updater->high; updater->count_in[WEIGHTS_DONE] && b >= updater->low; b--)
		if (updater->block[b].state == WEIGHTS_DONE)
			return (struct updater_task){MOMENTS, b, 0, NULL};
	if (updater->may_read_ahead)
		return ahead;
	return publishing.kind == LISTEN ? publishing : taking; /* uploads are over long before gradients are down */
}
