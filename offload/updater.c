/* The updater's calls: what others announce, await and ask. The work is in updater_work.c. */
#include "offload/updater_internal.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/hooks.h"
#include "core/thread.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void rh_updater_tell(struct rh_updater *updater, void (*tell)(const struct rh_updater_moment *moment))
{
	updater->tell = tell;
}

double rh_updater_seconds(const struct rh_updater *updater)
{
	return updater->queue ? updater->queue->ops->seconds(updater->queue) : rh_clock_seconds();
}

void rh_updater_watch(struct rh_updater *updater, const struct rh_watch *watch, int64_t step)
{
	pthread_mutex_lock(&updater->lock);
	updater->watched_step = step;
	updater->watch = watch ? *watch : (struct rh_watch){0};
	pthread_mutex_unlock(&updater->lock);
}

/* One block more to work on; the lock is held. */
static void note_work(struct rh_updater *updater, int b)
{
	int none = updater->low > updater->high;
	updater->low = none || b < updater->low ? b : updater->low;
	updater->high = none || b > updater->high ? b : updater->high;
	updater->busy_blocks++;
}

/* The lock is held, and given away meanwhile. */
static void wait_a_moment(struct rh_updater *updater)
{
	static const double MOMENT_SECONDS = 2e-4;
	struct timespec until = rh_cond_deadline(MOMENT_SECONDS);
	(void)pthread_cond_timedwait(&updater->changed, &updater->lock, &until);
}

/* The lock is held, and given away meanwhile. */
static void wait_changed(struct rh_updater *updater)
{
	if (updater->queue) {
		pthread_mutex_unlock(&updater->lock);
		updater->queue->ops->await_change(updater->queue);
		pthread_mutex_lock(&updater->lock);
	} else {
		pthread_cond_wait(&updater->changed, &updater->lock);
	}
}

static int make_steps(struct rh_updater *updater, int norms_pending)
{
	rh_free(updater->step);
	updater->step_count = norms_pending + 1;
	updater->latest_update = updater->step_count - 1; /* a block's first gradient is of update 0 */
	updater->step = rh_alloc((size_t)updater->step_count, sizeof *updater->step);
	return updater->step ? 0 : -ENOMEM;
}

int rh_updater_by_block(struct rh_updater *updater, int64_t steps)
{
	size_t blocks = (size_t)updater->blocks;
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(!updater->norms_pending && !updater->announcements);
	int rc = make_steps(updater, (int)steps);
	if (!rc && !updater->block_norms) {
		updater->block_norms = rh_alloc((size_t)updater->step_count * blocks, sizeof *updater->block_norms);
		rc = updater->block_norms ? 0 : -ENOMEM;
	}
	if (!rc && updater->parts && !updater->part_memory) {
		updater->part_memory = rh_alloc((size_t)updater->step_count * (size_t)updater->parts, sizeof *updater->part_memory);
		rc = updater->part_memory ? 0 : -ENOMEM;
	}
	for (int i = 0; !rc && i < updater->step_count; i++) {
		updater->step[i].block_norm = updater->block_norms + (size_t)i * blocks;
		updater->step[i].part = updater->parts ? updater->part_memory + (size_t)i * (size_t)updater->parts : NULL;
	}
	updater->is_by_block = 1;
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

int rh_updater_in_parts(struct rh_updater *updater, const int *part, int parts)
{
	int *own = rh_alloc((size_t)updater->blocks, sizeof *own);
	if (!own)
		return -ENOMEM;
	memcpy(own, part, (size_t)updater->blocks * sizeof *own);
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(!updater->is_by_block && !updater->part_of);
	updater->part_of = own;
	updater->parts = parts;
	pthread_mutex_unlock(&updater->lock);
	return 0;
}

/* Gradients come from the top, as a first guess. */
static void make_order(struct rh_updater *updater)
{
	for (int b = updater->blocks - 1; b >= 0; b--)
		if (rh_store_block(updater->store, b)->trainable)
			updater->update_order[updater->update_order_count++] = b;
}

int rh_updater_create(struct rh_store *store, struct rh_host_queue *queue, struct rh_updater **out)
{
	struct rh_updater *updater = rh_alloc(1, sizeof *updater);
	if (!updater) {
		if (queue)
			queue->ops->destroy(queue);
		return -ENOMEM;
	}
	updater->store = store;
	updater->blocks = rh_store_blocks(store);
	pthread_mutex_init(&updater->work_lock, NULL);
	pthread_mutex_init(&updater->lock, NULL);
	rh_cond_init(&updater->changed);
	updater->block = rh_alloc((size_t)updater->blocks, sizeof *updater->block);
	updater->update_order = rh_alloc((size_t)updater->blocks, sizeof *updater->update_order);
	updater->expected = rh_alloc((size_t)updater->blocks, sizeof *updater->expected);
	updater->last_listed = updater->high = -1;
	int rc = make_steps(updater, NORMS_PENDING);
	rc = updater->block && updater->update_order && updater->expected ? rc : -ENOMEM;
	if (!rc)
		make_order(updater);
	const char *spoil = getenv(RH_HOOK_SPOIL_STEPS);
	if (spoil && !queue && sscanf(spoil, "%" SCNd64 "-%" SCNd64, &updater->spoil_first, &updater->spoil_last) == 1)
		updater->spoil_last = updater->spoil_first;
	updater->spoil_block = updater->update_order_count ? updater->update_order[updater->update_order_count - 1] : -1; /* the lowest */
	struct rh_host_worker worker = {updater_next_job, updater, &updater->changes};
	updater->queue = queue;
	if (queue)
		queue->ops->serve(queue, &worker);
	else if (!rc)
		updater->has_thread = !(rc = rh_thread_start(&updater->thread, updater_work, updater));
	if (rc) {
		int told = updater->block && updater->update_order && updater->expected && updater->step;
		rh_updater_destroy(updater);
		return told ? rh_fail(rc, "cannot start the optimizer's thread: %s", strerror(-rc)) : rc;
	}
	*out = updater;
	return 0;
}

/* 1: a wait for this of the block, or of any (block < 0), would not be over. */
static int is_pending(struct rh_updater *updater, enum rh_updater_told what, int block)
{
	int first = block < 0 ? 0 : block, end = block < 0 ? updater->blocks : block + 1;
	for (int b = first; b < end; b++) {
		const struct updater_block *at = &updater->block[b];
		int pending = what == RH_TOLD_AWAITED_GRADIENT ? at->state != FREE
		              : updater_is_stale(updater)      ? at->must_publish
		                                               : at->state != FREE && at->state != WEIGHTS_DONE && !at->rows_are_done;
		if (pending)
			return 1;
	}
	return 0;
}

void rh_updater_by_rows(struct rh_updater *updater, int block)
{
	RH_ASSERT(!updater_is_stale(updater) && rh_optimizer_has_passes(updater->store));
	pthread_mutex_lock(&updater->lock);
	updater->block[block].is_by_rows = updater->has_rows = 1;
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_rows(struct rh_updater *updater, int b, const int32_t *row, int64_t count)
{
	struct updater_block *block = &updater->block[b];
	pthread_mutex_lock(&updater->lock);
	if (block->is_by_rows && (block->state == ANNOUNCED || block->state == WAITING)) {
		block->row = row;
		block->rows = count;
		updater_tell(updater);
	}
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_destroy(struct rh_updater *updater)
{
	if (!updater)
		return;
	pthread_mutex_lock(&updater->lock);
	updater->is_ending = 1;
	updater_tell(updater);
	pthread_mutex_unlock(&updater->lock);
	if (updater->has_thread)
		pthread_join(updater->thread, NULL);
	if (updater->queue)
		updater->queue->ops->destroy(updater->queue);
	pthread_cond_destroy(&updater->changed);
	pthread_mutex_destroy(&updater->lock);
	pthread_mutex_destroy(&updater->work_lock);
	rh_free(updater->block);
	rh_free(updater->update_order);
	rh_free(updater->expected);
	rh_free(updater->step);
	rh_free(updater->block_norms);
	rh_free(updater->part_memory);
	rh_free(updater->part_of);
	rh_free(updater);
}

void rh_updater_weights_first(struct rh_updater *updater)
{
	double whole = 0, apart = 0;
	if (updater_is_stale(updater) || !rh_optimizer_has_passes(updater->store))
		return;
	for (int b = 0; b < updater->blocks; b++) {
		struct rh_store_traffic traffic = rh_store_traffic(updater->store, b);
		whole += traffic.take + traffic.update;
		apart += traffic.take + traffic.weights + traffic.moments;
	}
	updater->two_pass_traffic = whole > 0 ? apart / whole : 1;
	updater->uses_two_passes = 1;
}

/* A step is over: decides whether the next one, which takes about as long, updates in two passes. These move more bytes, which must be
 * spare in that time. */
static void choose_passes(struct rh_updater *updater)
{
	static const double SPARE = 0.05;
	double now = rh_updater_seconds(updater), worked = updater->worked_s * (updater->uses_two_passes ? 1 : updater->two_pass_traffic);
	if (updater->opened_s > 0 && updater->two_pass_traffic > 0)
		updater->uses_two_passes = worked < (1 - SPARE) * (now - updater->opened_s);
	updater->opened_s = now;
	updater->worked_s = 0;
}

/* The lock is held. */
static void open_part(struct rh_updater *updater, int p, double max_norm)
{
	struct updater_part *part = &updater->step[updater->latest_update].part[p];
	*part = (struct updater_part){.max_norm = max_norm, .scale = 1};
	for (int b = 0; b < updater->blocks && !rh_fault_code(&updater->fault); b++)
		part->gradients_left += rh_store_block(updater->store, b)->trainable && updater->part_of[b] == p;
}

static void open_update(struct rh_updater *updater, const struct rh_update *update, double max_norm, const double *of_parts)
{
	int trained = 0;
	for (int b = 0; b < updater->blocks; b++)
		trained += rh_store_block(updater->store, b)->trainable != 0;
	pthread_mutex_lock(&updater->lock);
	choose_passes(updater);
	RH_ASSERT(updater->norms_pending < updater->step_count - 1);
	updater->norms_pending++;
	updater->latest_update = (updater->latest_update + 1) % updater->step_count;
	for (int b = 0; b < updater->blocks; b++)
		RH_ASSERT(updater->block[b].state == FREE || updater->block[b].update != updater->latest_update);
	updater->step[updater->latest_update].update = *update;
	updater->step[updater->latest_update].max_norm = max_norm;
	updater->step[updater->latest_update].gradients_left = rh_fault_code(&updater->fault) ? 0 : trained + updater->is_part;
	updater->step[updater->latest_update].spoilt = 0;
	for (int p = 0; p < updater->parts; p++)
		open_part(updater, p, of_parts[p]);
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_open(struct rh_updater *updater, const struct rh_update *update, double max_norm)
{
	RH_ASSERT(!updater->parts);
	open_update(updater, update, max_norm, NULL);
}

void rh_updater_open_parts(struct rh_updater *updater, const struct rh_update *update, const double *max_norm)
{
	RH_ASSERT(updater->parts && updater->is_by_block);
	open_update(updater, update, 0, max_norm);
}

void rh_updater_uploaded(struct rh_updater *updater, int b, struct rh_event *const *event, int events)
{
	struct updater_block *block = &updater->block[b];
	pthread_mutex_lock(&updater->lock);
	if (updater_is_stale(updater) && !rh_fault_code(&updater->fault)) {
		if (!block->must_publish)
			note_work(updater, b);
		block->must_publish = 1;
		block->updates_first = block->state != FREE;
		block->upload_event = event;
		block->upload_events = events;
		block->upload_announcement = updater->announcements++;
		updater_tell(updater);
	}
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_arrives(struct rh_updater *updater, int b, struct rh_event *event)
{
	struct updater_block *block = &updater->block[b];
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(block->state == FREE || rh_fault_code(&updater->fault));
	int opened = block->next_update != (updater->latest_update + 1) % updater->step_count;
	if (opened && !rh_fault_code(&updater->fault)) {
		note_work(updater, b);
		updater_set_state(updater, block, ANNOUNCED);
		block->update = block->next_update;
		block->next_update = (block->update + 1) % updater->step_count;
		block->announcement = updater->announcements++;
		block->event = event;
		block->awaits_other = rh_store_block(updater->store, b)->shared != RH_SHARED_NOT;
		updater_note(updater, (struct rh_updater_moment){.told = RH_TOLD_ANNOUNCED, .block = b});
		updater_tell(updater);
	}
	pthread_mutex_unlock(&updater->lock);
}

static int await(struct rh_updater *updater, enum rh_updater_told what, int block)
{
	pthread_mutex_lock(&updater->lock);
	while (is_pending(updater, what, block))
		wait_changed(updater);
	updater_note(updater, (struct rh_updater_moment){.told = what, .block = block});
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

static int is_done(struct rh_updater *updater, enum rh_updater_told what, int block)
{
	pthread_mutex_lock(&updater->lock);
	int pending = is_pending(updater, what, block);
	pthread_mutex_unlock(&updater->lock);
	return !pending;
}

int rh_updater_has_weights(struct rh_updater *updater, int block)
{
	return is_done(updater, RH_TOLD_AWAITED_WEIGHTS, block);
}

int rh_updater_has_gradient(struct rh_updater *updater, int block)
{
	return is_done(updater, RH_TOLD_AWAITED_GRADIENT, block);
}

int rh_updater_await_weights(struct rh_updater *updater, int block)
{
	return await(updater, RH_TOLD_AWAITED_WEIGHTS, block);
}

int rh_updater_is_open(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	int is = updater->norms_pending > 0;
	pthread_mutex_unlock(&updater->lock);
	return is;
}

int rh_updater_clips(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	int clips = updater->norms_pending > 0 && updater->step[updater->latest_update].max_norm > 0;
	pthread_mutex_unlock(&updater->lock);
	return clips;
}

int64_t rh_updater_changes(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	int64_t changes = updater->changes;
	pthread_mutex_unlock(&updater->lock);
	return changes;
}

int rh_updater_await_change(struct rh_updater *updater, int64_t seen)
{
	pthread_mutex_lock(&updater->lock);
	while (updater->changes == seen && !rh_fault_code(&updater->fault))
		wait_changed(updater);
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

void rh_updater_wake(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	updater_tell(updater);
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_await_briefly(struct rh_updater *updater, int64_t seen)
{
	pthread_mutex_lock(&updater->lock);
	if (updater->changes == seen && updater->queue)
		wait_changed(updater);
	else if (updater->changes == seen)
		wait_a_moment(updater);
	pthread_mutex_unlock(&updater->lock);
}

int rh_updater_is_taking(struct rh_updater *updater)
{
	int coming = 0;
	pthread_mutex_lock(&updater->lock);
	for (int b = 0; b < updater->blocks; b++)
		coming |= updater->block[b].state == ANNOUNCED && !updater->block[b].awaits_other;
	pthread_mutex_unlock(&updater->lock);
	return coming;
}

int rh_updater_await_gradient(struct rh_updater *updater, int block)
{
	return await(updater, RH_TOLD_AWAITED_GRADIENT, block);
}

/* The first update whose norm was not asked for. The lock is held. */
static int first_pending(const struct rh_updater *updater)
{
	RH_ASSERT(updater->norms_pending > 0);
	return (updater->latest_update + updater->step_count + 1 - updater->norms_pending) % updater->step_count;
}

/* Gradients that have arrived, or are about to, are taken and not used; others do not arrive any more. */
int rh_updater_abandon(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	for (; updater->norms_pending; updater->norms_pending--) {
		int index = first_pending(updater);
		struct updater_step *step = &updater->step[index];
		RH_ASSERT(updater->is_part && step->max_norm > 0 && (step->gradients_left || rh_fault_code(&updater->fault)));
		step->spoilt = 1;
		step->bad_block = step->bad_tensor = -1;
		step->gradients_left = 0;
		for (int b = 0; b < updater->blocks; b++)
			step->gradients_left += updater->block[b].state == ANNOUNCED && updater->block[b].update == index;
	}
	for (int b = 0; b < updater->blocks; b++) /* the other box's sum does not come any more */
		updater->block[b].awaits_other = 0;
	updater_tell(updater);
	pthread_mutex_unlock(&updater->lock);
	return rh_updater_finish(updater);
}

int rh_updater_finish(struct rh_updater *updater)
{
	int rc = await(updater, RH_TOLD_AWAITED_GRADIENT, -1);
	pthread_mutex_lock(&updater->lock);
	updater->may_read_ahead = 0;
	pthread_mutex_unlock(&updater->lock);
	rh_updater_pause(updater); /* the store and its pool are the caller's from now on: no reading ahead is in progress */
	rh_updater_resume(updater);
	return rc;
}

int rh_updater_has_norm(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	int has = !updater->step[first_pending(updater)].gradients_left;
	pthread_mutex_unlock(&updater->lock);
	return has;
}

void rh_updater_is_of_several(struct rh_updater *updater)
{
	updater->is_part = 1;
}

/* Gradients of this update that are not taken yet, without a head's table that waits for the other box's sum: its squares do not count
 * here. The lock is held. */
static int squares_left(const struct rh_updater *updater, int index)
{
	int left = updater->step[index].gradients_left - 1;
	for (int b = 0; left > 0 && b < updater->blocks; b++) {
		const struct updater_block *block = &updater->block[b];
		int waits = block->state == ANNOUNCED && block->awaits_other && block->update == index;
		left -= waits && rh_store_block(updater->store, b)->shared == RH_SHARED_BY_HEAD;
	}
	return left;
}

int rh_updater_squares(struct rh_updater *updater, double *each)
{
	pthread_mutex_lock(&updater->lock);
	int index = first_pending(updater);
	while (squares_left(updater, index) > 0)
		wait_changed(updater);
	(void)rh_optimizer_squares(updater->store, each);
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

void rh_updater_give_norm(struct rh_updater *updater, double norm)
{
	pthread_mutex_lock(&updater->lock);
	int index = first_pending(updater);
	RH_ASSERT(updater->is_part);
	while (updater->step[index].gradients_left > 1) /* a head's table, which did not count in the squares */
		wait_changed(updater);
	updater->step[index].norm = norm;
	updater->step[index].gradients_left = 0;
	if (updater->step[index].max_norm > 0)
		updater->step[index].update.scale *= rh_optimizer_clip(norm, updater->step[index].max_norm);
	if (!isfinite(norm) && !updater->step[index].spoilt) { /* another part's */
		updater->step[index].spoilt = 1;
		updater->step[index].bad_block = updater->step[index].bad_tensor = -1;
	}
	updater_tell(updater);
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_completes(struct rh_updater *updater, int block)
{
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(updater->block[block].awaits_other || rh_fault_code(&updater->fault));
	updater->block[block].awaits_other = 0;
	updater_tell(updater);
	pthread_mutex_unlock(&updater->lock);
}

int rh_updater_norm(struct rh_updater *updater, double *norm)
{
	pthread_mutex_lock(&updater->lock);
	int index = updater->told = first_pending(updater);
	updater->norms_pending--;
	while (updater->step[index].gradients_left)
		wait_changed(updater);
	*norm = rh_fault_code(&updater->fault) ? 0 : updater->step[index].norm;
	updater->bad_block = updater->step[index].spoilt ? updater->step[index].bad_block : -1;
	updater->bad_tensor = updater->step[index].bad_tensor;
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

void rh_updater_part_norms(struct rh_updater *updater, double *norm)
{
	pthread_mutex_lock(&updater->lock);
	for (int p = 0; p < updater->parts; p++)
		norm[p] = updater_norm_of(updater, &updater->step[updater->told], p);
	pthread_mutex_unlock(&updater->lock);
}

int rh_updater_spoilt(const struct rh_updater *updater, int *block, int *tensor)
{
	*block = updater->bad_block;
	*tensor = updater->bad_tensor;
	return updater->bad_block >= 0;
}

void rh_updater_hold(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	for (int b = 0; b < updater->blocks; b++) {
		struct updater_block *block = &updater->block[b];
		RH_ASSERT(!block->is_held && (block->state == FREE || rh_fault_code(&updater->fault)));
		block->is_held = rh_store_block(updater->store, b)->trainable != 0;
		updater->held_blocks += block->is_held;
	}
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_release(struct rh_updater *updater, int block)
{
	pthread_mutex_lock(&updater->lock);
	updater->held_blocks -= updater->block[block].is_held;
	updater->block[block].is_held = 0;
	updater_tell(updater);
	pthread_mutex_unlock(&updater->lock);
}

int rh_updater_awaits_release(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	int awaits = updater_waits_for_held(updater);
	pthread_mutex_unlock(&updater->lock);
	return awaits;
}

double rh_updater_held_seconds(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	double seconds = updater->held_s;
	pthread_mutex_unlock(&updater->lock);
	return seconds;
}

/* Waits until nobody reads its published weights either. */
static void await_release(struct rh_updater *updater, int block)
{
	pthread_mutex_lock(&updater->lock);
	while (updater->block[block].is_held)
		pthread_cond_wait(&updater->changed, &updater->lock);
	pthread_mutex_unlock(&updater->lock);
}

int rh_updater_flush(struct rh_updater *updater)
{
	int rc = rh_updater_finish(updater);
	for (int b = 0; !rc && b < updater->blocks; b++)
		if (rh_store_is_behind(updater->store, b))
			await_release(updater, b);
	if (!rc)
		rc = await(updater, RH_TOLD_AWAITED_WEIGHTS, -1);
	for (int b = 0; !rc && updater_is_stale(updater) && b < updater->blocks; b++)
		rh_store_publish(updater->store, b);
	return rc;
}

void rh_updater_pause(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->work_lock);
}

void rh_updater_resume(struct rh_updater *updater)
{
	pthread_mutex_unlock(&updater->work_lock);
}
