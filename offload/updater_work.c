/* The work of the updater's thread, or of the host queue in virtual time: one task after the other, each on one block. The lock is held
 * when a task begins and when it ends, and not in between. */
#include "offload/updater_internal.h"

#include "core/clock.h"

#include <limits.h>
#include <math.h>
#include <string.h>

static int is_at_rest(const struct updater_block *block)
{
	return block->state == FREE && !block->must_publish;
}

/* One block less to work on; the lock is held. */
static void note_rest(struct rh_updater *updater)
{
	updater->busy_blocks--;
	while (updater->low <= updater->high && is_at_rest(&updater->block[updater->low]))
		updater->low++;
	while (updater->low <= updater->high && is_at_rest(&updater->block[updater->high]))
		updater->high--;
}

static void publish(struct rh_updater *updater, int b)
{
	struct updater_block *block = &updater->block[b];
	int64_t announcement = block->upload_announcement;
	pthread_mutex_unlock(&updater->lock);
	rh_store_publish(updater->store, b);
	updater_note(updater, (struct rh_updater_moment){.told = RH_TOLD_PUBLISHED,
	                                                 .block = b,
	                                                 .step = block->updates_done - 1,
	                                                 .event = block->upload_event,
	                                                 .events = block->upload_events});
	pthread_mutex_lock(&updater->lock);
	/* where there was no update yet nobody waits for this, and the next step's uploads may be over meanwhile: then it is to be done again */
	if (block->upload_announcement == announcement) {
		block->must_publish = 0;
		note_rest(updater);
	}
	updater_tell(updater);
}

/* Where blocks are updated one by one: when the last gradient of a step is taken, the store may hold other blocks' squares of a later
 * step. */
double updater_norm_of(const struct rh_updater *updater, const struct updater_step *step, int part)
{
	double squares = 0;
	for (int b = 0; b < updater->blocks; b++)
		if (rh_store_block(updater->store, b)->trainable && (part < 0 || updater->part_of[b] == part))
			squares += step->block_norm[b] * step->block_norm[b];
	return sqrt(squares);
}

/* The last gradient of a part makes its scale known. */
static void take_of_part(struct rh_updater *updater, int b)
{
	struct updater_part *part = updater_part(updater, b);
	const struct updater_step *step = &updater->step[updater->block[b].update];
	if (!part || --part->gradients_left || part->max_norm == 0)
		return;
	part->scale = rh_optimizer_clip(updater_norm_of(updater, step, updater->part_of[b]), part->max_norm);
}

static void take_arrived(struct rh_updater *updater, int b)
{
	struct updater_block *block = &updater->block[b];
	int index = block->update, last = !updater->is_part && updater->step[index].gradients_left == 1;
	pthread_mutex_unlock(&updater->lock);
	updater_note(updater,
	             (struct rh_updater_moment){.told = RH_TOLD_TAKES, .block = b, .event = &block->event, .events = block->event != NULL});
	rh_optimizer_take(updater->store, b);
	int64_t step = updater->step[index].update.step;
	if (step >= updater->spoil_first && step <= updater->spoil_last && b == updater->spoil_block)
		rh_optimizer_spoil(updater->store, b);
	double own = rh_optimizer_block_norm(updater->store, b);
	int finite = isfinite(own);
	if (updater->is_by_block)
		updater->step[index].block_norm[b] = own;
	double norm = !last                  ? 0
	              : updater->is_by_block ? updater_norm_of(updater, &updater->step[index], -1)
	                                     : rh_optimizer_taken_norm(updater->store);
	pthread_mutex_lock(&updater->lock);
	if (!finite && !updater->step[index].spoilt) {
		updater->step[index].bad_block = b;
		updater->step[index].bad_tensor = rh_optimizer_not_finite(updater->store, b);
	}
	updater->step[index].spoilt |= !finite;
	updater->step[index].gradients_left--;
	take_of_part(updater, b);
	if (last && updater->step[index].max_norm > 0)
		updater->step[index].update.scale *= rh_optimizer_clip(norm, updater->step[index].max_norm);
	if (last)
		updater->step[index].norm = norm;
	updater_set_state(updater, block, WAITING);
	updater_tell(updater);
}

static int place_of(const struct rh_updater *updater, int block)
{
	int place = 0;
	while (updater->update_order[place] != block)
		place++;
	return place;
}

/* A block may be updated from now on: its place in the order is behind the block that was listed before it. */
static void list_block(struct rh_updater *updater, int b)
{
	int *order = updater->update_order, at = place_of(updater, b);
	updater->block[b].is_listed = 1;
	if (updater->last_listed >= 0 && updater->last_listed != b) {
		memmove(order + at, order + at + 1, (size_t)(updater->update_order_count - at - 1) * sizeof *order);
		order[updater->update_order_count - 1] = -1;
		int to = place_of(updater, updater->last_listed) + 1;
		memmove(order + to + 1, order + to, (size_t)(updater->update_order_count - to - 1) * sizeof *order);
		order[to] = b;
	}
	updater->last_listed = b;
}

/* Reads from NVMe begin: of the blocks that may be updated, then of those that are expected next, because they followed these the last
 * time. After a step's last block these are the next step's first ones, whose reads overlap its computation. */
static void read_ahead(struct rh_updater *updater, int waiting)
{
	int count = waiting, from = updater->last_listed < 0 ? 0 : place_of(updater, updater->last_listed) + 1;
	for (int i = 0; i < updater->update_order_count; i++) {
		int b = updater->update_order[(from + i) % updater->update_order_count];
		if (!updater->block[b].is_listed)
			updater->expected[count++] = b;
	}
	rh_store_expect(updater->store, updater->expected, count);
}

static int is_watched(const struct rh_updater *updater, int index)
{
	int64_t step = updater->step[index].update.step - 1;
	int is_before = step == updater->watched_step - 1 && !updater->is_by_block;
	return is_before || (step == updater->watched_step && updater->step[index].max_norm == 0);
}

static int do_quick(struct rh_updater *updater, struct updater_task task)
{
	if (!task.rc && task.kind == PUBLISH)
		publish(updater, task.block);
	else if (!task.rc)
		take_arrived(updater, task.block);
	return task.rc;
}

/* The block to work on: the one whose next piece is nearest to being in memory, the most urgent first. While the most urgent one's piece is
 * being read, pieces of others that are in memory are updated, which frees their frames. The lock is held at start and end. */
static int choose_update(struct rh_updater *updater)
{
	int count = 0, best = 0, least = INT_MAX;
	for (int i = 0; i < updater->blocks; i++) {
		int b = updater_in_order(updater, i);
		if (updater_may_update(updater, &updater->block[b]))
			updater->expected[count++] = b;
	}
	pthread_mutex_unlock(&updater->lock);
	for (int i = 0; i < count; i++)
		if (!updater->block[updater->expected[i]].is_listed)
			list_block(updater, updater->expected[i]);
	read_ahead(updater, count);
	for (int i = 0; i < count && least > 0; i++) {
		int b = updater->expected[i], distance = rh_optimizer_distance(updater->store, b, updater->block[b].next_piece);
		if (distance < least) {
			least = distance;
			best = b;
		}
	}
	pthread_mutex_lock(&updater->lock);
	return best;
}

static double task_began(const struct rh_updater *updater)
{
	return updater->queue ? updater->task_began_s : rh_clock_seconds();
}

/* A block's update, or a pass of it, is over. */
static void tell_updated(struct rh_updater *updater, int b, double began)
{
	if (updater->watch.notify && is_watched(updater, updater->block[b].update))
		updater->watch.notify(updater->watch.context, RH_WATCHED_UPDATE, b, 0, began, rh_updater_seconds(updater));
	updater_tell(updater);
}

/* The next piece of a block's update, or of a pass of it. */
static int update(struct rh_updater *updater, int b, enum rh_update_pass pass)
{
	struct updater_block *block = &updater->block[b];
	struct rh_update update = updater->step[block->update].update;
	struct rh_updater_moment moment = {.told = RH_TOLD_UPDATES, .block = b, .step = update.step - 1, .pass = pass};
	const struct updater_part *part = updater_part(updater, b);
	int spoilt = updater->step[block->update].spoilt, rc = 0;
	update.scale *= part ? part->scale : 1;
	int begins = !block->next_piece, pieces = rh_optimizer_pieces(updater->store, b);
	block->pass = pass;
	pthread_mutex_unlock(&updater->lock);
	if (begins) {
		block->began_s = task_began(updater);
		updater_note(updater, moment);
		if (pass != RH_UPDATE_MOMENTS)
			rh_store_stash(updater->store, b);
	}
	if (!spoilt && pieces)
		rc = rh_optimizer_update_piece(updater->store, b, block->next_piece, &update, pass);
	int ends = rc || spoilt || ++block->next_piece >= pieces;
	moment.told = RH_TOLD_UPDATED;
	if (ends)
		updater_note(updater, moment);
	pthread_mutex_lock(&updater->lock);
	updater->may_read_ahead = !updater->queue;
	if (!ends)
		return 0;
	block->next_piece = block->is_listed = block->rows_are_done = 0;
	block->row = NULL;
	updater_set_state(updater, block, pass == RH_UPDATE_WEIGHTS ? WEIGHTS_DONE : FREE);
	if (block->state == FREE) {
		block->updates_first = 0;
		block->updates_done = update.step;
		note_rest(updater);
	}
	tell_updated(updater, b, block->began_s);
	return rc;
}

/* The rows of a block that the next step reads. */
static int update_rows(struct rh_updater *updater, int b)
{
	struct updater_block *block = &updater->block[b];
	struct rh_update update = updater->step[block->update].update;
	int spoilt = updater->step[block->update].spoilt, rc = 0;
	block->pass = updater_pass(updater, b);
	pthread_mutex_unlock(&updater->lock);
	if (!spoilt)
		rc = rh_optimizer_update_rows(updater->store, b, block->row, block->rows, &update, block->pass);
	pthread_mutex_lock(&updater->lock);
	block->rows_are_done = 1;
	updater_tell(updater);
	return rc;
}

/* Reads ahead without the lock, unless somebody has taken the pool since (rh_updater_finish). */
static int read_ahead_unlocked(struct rh_updater *updater)
{
	if (!updater->may_read_ahead)
		return 0;
	pthread_mutex_unlock(&updater->lock);
	read_ahead(updater, 0);
	int more = rh_store_advance(updater->store);
	pthread_mutex_lock(&updater->lock);
	updater->may_read_ahead &= more > 0;
	return more < 0 ? more : 0;
}

static int run(struct rh_updater *updater, struct updater_task task)
{
	if (task.kind == PUBLISH || task.kind == TAKE)
		return do_quick(updater, task);
	if (task.kind == ROWS)
		return update_rows(updater, task.block);
	if (task.kind == UPDATE) /* a block by rows has nothing on NVMe to choose by */
		return update(updater, updater->queue || updater->has_rows ? task.block : choose_update(updater), RH_UPDATE_WHOLE);
	if (task.kind == WEIGHTS)
		return update(updater, task.block, RH_UPDATE_WEIGHTS);
	if (task.kind == MOMENTS)
		return update(updater, task.block, RH_UPDATE_MOMENTS);
	if (task.kind == READ_AHEAD)
		return read_ahead_unlocked(updater);
	pthread_mutex_unlock(&updater->lock);
	int rc = task.event->ops->event_sync(task.event);
	pthread_mutex_lock(&updater->lock);
	return rc;
}

static int do_task(struct rh_updater *updater, struct updater_task task)
{
	double began = task_began(updater);
	int rc = run(updater, task);
	updater->worked_s += task.kind == LISTEN ? 0 : rh_updater_seconds(updater) - began;
	return rc;
}

/* After a fault nothing is pending any more: whoever waits is told. */
static void give_up(struct rh_updater *updater, int rc)
{
	rh_fault_keep(&updater->fault, rc);
	for (int b = 0; b < updater->blocks; b++)
		updater->block[b] =
		        (struct updater_block){.is_held = updater->block[b].is_held, .is_by_rows = updater->block[b].is_by_rows};
	for (int i = 0; i < updater->step_count; i++) {
		updater->step[i].gradients_left = 0;
		for (int p = 0; updater->step[i].part && p < updater->parts; p++)
			updater->step[i].part[p].gradients_left = 0;
	}
	memset(updater->count_in, 0, sizeof updater->count_in);
	updater->busy_blocks = 0;
	updater->low = 0;
	updater->high = -1;
	updater_tell(updater);
}

/* The lock is held, and given away meanwhile. */
static void wait_for_task(struct rh_updater *updater)
{
	int waits = updater_waits_for_held(updater);
	double began = waits ? rh_clock_seconds() : 0;
	pthread_cond_wait(&updater->changed, &updater->lock);
	updater->held_s += waits ? rh_clock_seconds() - began : 0;
}

void *updater_work(void *context)
{
	struct rh_updater *updater = context;
	for (;;) {
		struct updater_task task;
		pthread_mutex_lock(&updater->lock);
		while ((task = updater_next_task(updater)).kind == NOTHING && !updater->is_ending)
			wait_for_task(updater);
		pthread_mutex_unlock(&updater->lock);
		if (task.kind == NOTHING)
			return NULL;
		if (task.kind != LISTEN)
			pthread_mutex_lock(&updater->work_lock);
		pthread_mutex_lock(&updater->lock);
		int rc = do_task(updater, task);
		if (rc)
			give_up(updater, rc);
		pthread_mutex_unlock(&updater->lock);
		if (task.kind != LISTEN)
			pthread_mutex_unlock(&updater->work_lock);
	}
}

/* The same in virtual time, where a task is what it costs. */

/* A job's argument: the block, and the kind of its task in the lowest digit. */
static int64_t pack(const struct updater_task *task)
{
	RH_ASSERT(task->block >= 0);
	return (int64_t)task->block * TASK_KINDS + (int)task->kind;
}

static struct updater_task unpack(int64_t argument)
{
	return (struct updater_task){.kind = (enum updater_task_kind)(argument % TASK_KINDS), .block = (int)(argument / TASK_KINDS)};
}

static int run_task(void *context, int64_t argument)
{
	struct rh_updater *updater = context;
	struct updater_task task = unpack(argument);
	pthread_mutex_lock(&updater->lock);
	int rc = do_task(updater, task);
	if (rc)
		give_up(updater, rc);
	pthread_mutex_unlock(&updater->lock);
	return 0; /* told to whoever awaits */
}

int updater_next_job(void *context, struct rh_host_job *job)
{
	struct rh_updater *updater = context;
	struct updater_task task = {.kind = NOTHING};
	if (!updater->is_ending) /* what virtual time is not given for is nobody's */
		task = updater_next_task(updater);
	if (task.kind == NOTHING || task.kind == LISTEN)
		return 0;
	struct rh_store_traffic traffic = rh_store_traffic(updater->store, task.block);
	int pieces = rh_optimizer_pieces(updater->store, task.block);
	const struct updater_block *block = &updater->block[task.block];
	double rows = block->row ? (double)block->rows / (double)rh_store_block(updater->store, task.block)->tensor[0].rows : 0,
	       rest = block->rows_are_done ? 1 - rows : 1;
	const double bytes[TASK_KINDS] = {
	        [PUBLISH] = traffic.publish,
	        [TAKE] = traffic.take,
	        [ROWS] = rows * (updater_pass(updater, task.block) == RH_UPDATE_WEIGHTS ? traffic.weights : traffic.update),
	        [UPDATE] = rest * traffic.update / pieces,
	        [WEIGHTS] = rest * traffic.weights / pieces,
	        [MOMENTS] = traffic.moments / pieces};
	updater->task_began_s = rh_updater_seconds(updater);
	*job = (struct rh_host_job){.work = task.kind == PUBLISH || task.kind == TAKE ? RH_HOST_MEMORY : RH_HOST_OPTIMIZER,
	                            .bytes = bytes[task.kind],
	                            .nvme_bytes = task.kind == UPDATE ? traffic.nvme / pieces : 0,
	                            .run = run_task,
	                            .context = updater,
	                            .argument = pack(&task)};
	return 1;
}
