#include "offload/updater_internal.h"

#include "core/alloc.h"
#include "core/clock.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include <time.h>

/* Tokens of the recording: a block's weights are ready, its gradient is taken, or announced; an update begins, it is done. */
enum recorded { READY, TAKEN, ANNOUNCED, RECORDED };

static int64_t block_token(const struct rh_updater *updater, enum recorded what, int block)
{
	return updater->token + RECORDED * block + what;
}

static int64_t whole_token(const struct rh_updater *updater, int done)
{
	return updater->token + RECORDED * updater->blocks + done;
}

static void note(struct rh_updater *updater, enum rh_order_kind kind, int64_t what, int64_t step)
{
	rh_order_log_add(updater->log, kind, updater->lane, what, step);
}

void rh_updater_record(struct rh_updater *updater, struct rh_order_log *log, int lane, int64_t token,
                       int64_t (*event_token)(struct rh_event *))
{
	updater->log = log;
	updater->lane = lane;
	updater->token = token;
	updater->event_token = event_token;
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

/* There is something to do for a block; the lock is held. */
static void wake(struct rh_updater *updater, int b)
{
	int none = updater->low > updater->high;
	updater->low = none || b < updater->low ? b : updater->low;
	updater->high = none || b > updater->high ? b : updater->high;
	updater->busy++;
}

static int rests(const struct updater_block *block)
{
	return block->state == FREE && !block->publishes;
}

/* One thing less; the lock is held. */
static void rest(struct rh_updater *updater)
{
	updater->busy--;
	while (updater->low <= updater->high && rests(&updater->block[updater->low]))
		updater->low++;
	while (updater->low <= updater->high && rests(&updater->block[updater->high]))
		updater->high--;
}

/* The rest of the thread's work is per block: the lock is held at start and end, and not in between. */

static void publish(struct rh_updater *updater, int b)
{
	struct updater_block *block = &updater->block[b];
	pthread_mutex_unlock(&updater->lock);
	for (int i = 0; updater->log && i < block->uploads; i++)
		note(updater, RH_ORDER_WAIT, updater->event_token(block->uploaded[i]), 0);
	rh_store_publish(updater->store, b);
	if (block->updated)
		note(updater, RH_ORDER_PUBLISH, b, block->updated - 1);
	note(updater, RH_ORDER_SIGNAL, block_token(updater, READY, b), 0);
	pthread_mutex_lock(&updater->lock);
	block->publishes = 0;
	rest(updater);
	pthread_cond_broadcast(&updater->changed);
}

static void take_arrived(struct rh_updater *updater, int b)
{
	struct updater_block *block = &updater->block[b];
	int which = block->which, last = updater->step[which].left == 1;
	pthread_mutex_unlock(&updater->lock);
	note(updater, RH_ORDER_WAIT, block_token(updater, ANNOUNCED, b), 0);
	if (block->event && updater->log)
		note(updater, RH_ORDER_WAIT, updater->event_token(block->event), 0);
	rh_optimizer_take(updater->store, b);
	int finite = isfinite(rh_optimizer_block_norm(updater->store, b));
	double norm = last ? rh_optimizer_taken_norm(updater->store) : 0;
	pthread_mutex_lock(&updater->lock);
	updater->step[which].spoilt |= !finite;
	updater->step[which].left--;
	if (last && updater->step[which].max_norm > 0)
		updater->step[which].update.scale *= rh_optimizer_clip(norm, updater->step[which].max_norm);
	if (last)
		updater->step[which].norm = norm;
	block->state = block->made || block->promised ? HALF : WAITING;
	pthread_cond_broadcast(&updater->changed);
}

/* Gradients come from the top, as a first guess. */
static void make_order(struct rh_updater *updater)
{
	for (int b = updater->blocks - 1; b >= 0; b--)
		if (rh_store_block(updater->store, b)->trainable)
			updater->order[updater->ordered++] = b;
}

static int place_of(const struct rh_updater *updater, int block)
{
	int place = 0;
	while (updater->order[place] != block)
		place++;
	return place;
}

/* A block may be updated from now on: in the order it comes after the one of which that was found before. */
static void name(struct rh_updater *updater, int b)
{
	int *order = updater->order, at = place_of(updater, b);
	updater->block[b].named = 1;
	if (updater->latest >= 0 && updater->latest != b) {
		memmove(order + at, order + at + 1, (size_t)(updater->ordered - at - 1) * sizeof *order);
		order[updater->ordered - 1] = -1;
		int to = place_of(updater, updater->latest) + 1;
		memmove(order + to + 1, order + to, (size_t)(updater->ordered - to - 1) * sizeof *order);
		order[to] = b;
	}
	updater->latest = b;
}

/* What of blocks is on NVMe starts on its way: of those that may be updated, in line, then of those that are likely to come next, which
 * came after these the last time. After a step's last block these are the next step's first ones, which come while it computes. */
static void read_ahead(struct rh_updater *updater, int waiting)
{
	int count = waiting, from = updater->latest < 0 ? 0 : place_of(updater, updater->latest) + 1;
	for (int i = 0; i < updater->ordered; i++) {
		int b = updater->order[(from + i) % updater->ordered];
		if (!updater->block[b].named)
			updater->line[count++] = b;
	}
	rh_store_expect(updater->store, updater->line, count);
}

static int is_watched(const struct rh_updater *updater, int which)
{
	int64_t step = updater->step[which].update.step - 1;
	return step == updater->watched_step - 1 || (step == updater->watched_step && updater->step[which].max_norm == 0);
}

static int do_quick(struct rh_updater *updater, struct updater_task task)
{
	if (!task.rc && task.what == PUBLISH)
		publish(updater, task.block);
	else if (!task.rc)
		take_arrived(updater, task.block);
	return task.rc;
}

/* The block whose update goes on: what the most urgent one needs is read before anything else, but while it is on its way pieces of others
 * that are there need not wait, whose room it wants. The lock is held at start and end. */
static int choose_update(struct rh_updater *updater)
{
	int count = 0, best = 0, least = INT_MAX;
	for (int i = 0; i < updater->blocks; i++) {
		int b = updater_in_order(updater, i);
		if (updater_may_update(updater, &updater->block[b]))
			updater->line[count++] = b;
	}
	pthread_mutex_unlock(&updater->lock);
	for (int i = 0; i < count; i++)
		if (!updater->block[updater->line[i]].named)
			name(updater, updater->line[i]);
	read_ahead(updater, count);
	for (int i = 0; i < count && least > 0; i++) {
		int b = updater->line[i], distance = rh_optimizer_distance(updater->store, b, updater->block[b].piece);
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
	return updater->queue ? updater->task_began : rh_clock_seconds();
}

/* A block's update, or a pass of it, is over. */
static void tell(struct rh_updater *updater, int b, double began)
{
	if (updater->watch.did && is_watched(updater, updater->block[b].which))
		updater->watch.did(updater->watch.context, RH_WATCHED_UPDATE, b, 0, began, rh_updater_seconds(updater));
	pthread_cond_broadcast(&updater->changed);
}

static void note_begin(struct rh_updater *updater, int b, const struct rh_update *update, enum rh_update_pass pass)
{
	const struct updater_block *block = &updater->block[b];
	if (pass != RH_UPDATE_MOMENTS)
		note(updater, RH_ORDER_WAIT, whole_token(updater, 0), 0);
	note(updater, RH_ORDER_TAKE, b, update->step - 1);
	if (pass == RH_UPDATE_MOMENTS && block->made && updater->log) {
		note(updater, RH_ORDER_WAIT, updater->event_token(block->whole), 0);
		note(updater, RH_ORDER_SIGNAL, block_token(updater, READY, b), 0);
	}
	if (pass != RH_UPDATE_MOMENTS || block->made)
		note(updater, RH_ORDER_UPDATE, b, update->step - 1);
	if (pass != RH_UPDATE_MOMENTS && !updater_is_stale(updater))
		note(updater, RH_ORDER_PUBLISH, b, update->step - 1);
}

static void note_end(struct rh_updater *updater, int b, enum rh_update_pass pass)
{
	if (pass != RH_UPDATE_MOMENTS && !updater_is_stale(updater))
		note(updater, RH_ORDER_SIGNAL, block_token(updater, READY, b), 0);
	if (pass == RH_UPDATE_WEIGHTS)
		return;
	note(updater, RH_ORDER_SIGNAL, block_token(updater, TAKEN, b), 0);
	note(updater, RH_ORDER_SIGNAL, whole_token(updater, 1), 0);
}

/* The next piece of a block's update, or of a pass of it. */
static int update(struct rh_updater *updater, int b, enum rh_update_pass pass)
{
	struct updater_block *block = &updater->block[b];
	struct rh_update update = updater->step[block->which].update;
	int spoilt = updater->step[block->which].spoilt, rc = 0;
	int begins = !block->piece, pieces = rh_optimizer_pieces(updater->store, b);
	block->pass = pass;
	pthread_mutex_unlock(&updater->lock);
	if (begins) {
		block->began = task_began(updater);
		note_begin(updater, b, &update, pass);
	}
	if (!spoilt && pieces)
		rc = rh_optimizer_update_piece(updater->store, b, block->piece, &update, pass);
	int ends = rc || spoilt || ++block->piece >= pieces;
	if (ends && !rc && !spoilt && pass == RH_UPDATE_MOMENTS && block->made)
		rc = rh_optimizer_check_weights(updater->store, b, &update);
	if (ends)
		note_end(updater, b, pass);
	pthread_mutex_lock(&updater->lock);
	updater->ahead = !updater->queue;
	if (!ends)
		return 0;
	block->piece = block->named = 0;
	block->state = pass == RH_UPDATE_WEIGHTS ? HALF : FREE;
	if (block->state == FREE) {
		block->made = block->whole = NULL;
		block->behind = 0;
		block->updated = update.step;
		rest(updater);
	}
	tell(updater, b, block->began);
	return rc;
}

/* Unless somebody has the pool since (rh_updater_finish). */
static int go_ahead(struct rh_updater *updater)
{
	if (!updater->ahead)
		return 0;
	pthread_mutex_unlock(&updater->lock);
	read_ahead(updater, 0);
	int more = rh_store_advance(updater->store);
	pthread_mutex_lock(&updater->lock);
	updater->ahead &= more > 0;
	return more < 0 ? more : 0;
}

static int run(struct rh_updater *updater, struct updater_task task)
{
	if (task.what == PUBLISH || task.what == TAKE)
		return do_quick(updater, task);
	if (task.what == UPDATE)
		return update(updater, updater->queue ? task.block : choose_update(updater), RH_UPDATE_WHOLE);
	if (task.what == WEIGHTS)
		return update(updater, task.block, RH_UPDATE_WEIGHTS);
	if (task.what == MOMENTS)
		return task.rc ? task.rc : update(updater, task.block, RH_UPDATE_MOMENTS);
	if (task.what == READ_AHEAD)
		return go_ahead(updater);
	pthread_mutex_unlock(&updater->lock);
	int rc = task.event->ops->event_sync(task.event);
	pthread_mutex_lock(&updater->lock);
	return rc;
}

static int do_task(struct rh_updater *updater, struct updater_task task)
{
	double began = task_began(updater);
	int rc = run(updater, task);
	updater->worked_s += task.what == LISTEN ? 0 : rh_updater_seconds(updater) - began;
	return rc;
}

/* After a fault nothing is pending any more: whoever waits is told. */
static void give_up(struct rh_updater *updater, int rc)
{
	rh_fault_keep(&updater->fault, rc);
	for (int b = 0; b < updater->blocks; b++)
		updater->block[b] = (struct updater_block){0};
	for (int i = 0; i < STEPS; i++)
		updater->step[i].left = 0;
	updater->busy = 0;
	updater->low = 0;
	updater->high = -1;
	pthread_cond_broadcast(&updater->changed);
}

static void *work(void *context)
{
	struct rh_updater *updater = context;
	for (;;) {
		struct updater_task task;
		pthread_mutex_lock(&updater->lock);
		while ((task = updater_next_task(updater)).what == NOTHING && !updater->ending)
			pthread_cond_wait(&updater->changed, &updater->lock);
		pthread_mutex_unlock(&updater->lock);
		if (task.what == NOTHING)
			return NULL;
		if (task.what != LISTEN)
			pthread_mutex_lock(&updater->turn);
		pthread_mutex_lock(&updater->lock);
		int rc = do_task(updater, task);
		if (rc)
			give_up(updater, rc);
		pthread_mutex_unlock(&updater->lock);
		if (task.what != LISTEN)
			pthread_mutex_unlock(&updater->turn);
	}
}

/* The same in virtual time, where a task is what it costs. */

static int run_task(void *context, int64_t argument)
{
	struct rh_updater *updater = context;
	struct updater_task task = {.block = (int)(argument / 8)};
	task.what = (int)(argument % 8);
	pthread_mutex_lock(&updater->lock);
	int rc = do_task(updater, task);
	if (rc)
		give_up(updater, rc);
	pthread_mutex_unlock(&updater->lock);
	return 0; /* told to whoever awaits */
}

static int next_job(void *context, struct rh_host_job *job)
{
	struct rh_updater *updater = context;
	struct updater_task task = updater_next_task(updater);
	if (task.what == NOTHING || task.what == LISTEN)
		return 0;
	struct rh_store_traffic traffic = rh_store_traffic(updater->store, task.block);
	int pieces = rh_optimizer_pieces(updater->store, task.block);
	const double bytes[] = {[PUBLISH] = traffic.publish,
	                        [TAKE] = traffic.take,
	                        [UPDATE] = traffic.update / pieces,
	                        [WEIGHTS] = traffic.weights / pieces,
	                        [MOMENTS] = traffic.moments / pieces};
	updater->task_began = rh_updater_seconds(updater);
	*job = (struct rh_host_job){.work = task.what == PUBLISH || task.what == TAKE ? RH_HOST_MEMORY : RH_HOST_OPTIMIZER,
	                            .bytes = bytes[task.what],
	                            .nvme_bytes = task.what == UPDATE ? traffic.nvme / pieces : 0,
	                            .run = run_task,
	                            .context = updater,
	                            .argument = 8 * (int64_t)task.block + (int)task.what};
	return 1;
}

/* Weights that a device makes, and has not. A device's fault ends that too. The lock is held, and given away meanwhile: a virtual clock may
 * go on when it is asked for an event. */
static int is_being_made(struct rh_updater *updater, const struct updater_block *block)
{
	struct rh_event *event = block->made;
	if (!event)
		return block->promised;
	pthread_mutex_unlock(&updater->lock);
	int reached = event->ops->event_query(event);
	pthread_mutex_lock(&updater->lock);
	return !reached && block->made;
}

/* The lock is held, and given away meanwhile. Of a device's event nobody tells. */
static void wait_changed(struct rh_updater *updater)
{
	static const long POLL_NS = 200000;
	int polls = 0;
	for (int b = 0; b < updater->blocks; b++)
		polls |= updater->block[b].made != NULL;
	if (!updater->queue && polls) {
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += POLL_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		(void)pthread_cond_timedwait(&updater->changed, &updater->lock, &until);
		return;
	}
	if (!updater->queue) {
		pthread_cond_wait(&updater->changed, &updater->lock);
		return;
	}
	pthread_mutex_unlock(&updater->lock);
	updater->queue->ops->pass(updater->queue);
	pthread_mutex_lock(&updater->lock);
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
	pthread_mutex_init(&updater->turn, NULL);
	pthread_mutex_init(&updater->lock, NULL);
	pthread_cond_init(&updater->changed, NULL);
	updater->block = rh_alloc((size_t)updater->blocks, sizeof *updater->block);
	updater->order = rh_alloc((size_t)updater->blocks, sizeof *updater->order);
	updater->line = rh_alloc((size_t)updater->blocks, sizeof *updater->line);
	updater->latest = updater->high = -1;
	updater->which = STEPS - 1; /* a block's first gradient is of update 0 */
	int rc = updater->block && updater->order && updater->line ? 0 : -ENOMEM;
	if (!rc)
		make_order(updater);
	struct rh_host_worker worker = {next_job, updater};
	updater->queue = queue;
	if (queue)
		queue->ops->serve(queue, &worker);
	else if (!rc)
		updater->started = !(rc = -pthread_create(&updater->thread, NULL, work, updater));
	if (rc) {
		int told = updater->block && updater->order && updater->line;
		rh_updater_destroy(updater);
		return told ? rh_fail(rc, "cannot start the optimizer's thread: %s", strerror(-rc)) : rc;
	}
	*out = updater;
	return 0;
}

/* What a wait is for. */
static int is_pending(struct rh_updater *updater, enum recorded what, int block)
{
	int first = block < 0 ? 0 : block, end = block < 0 ? updater->blocks : block + 1;
	for (int b = first; b < end; b++) {
		const struct updater_block *at = &updater->block[b];
		int pending = what == TAKEN               ? at->state != FREE
		              : updater_is_stale(updater) ? at->publishes
		              : at->made || at->promised  ? is_being_made(updater, at)
		                                          : at->state != FREE && at->state != HALF;
		if (pending)
			return 1;
	}
	return 0;
}

void rh_updater_destroy(struct rh_updater *updater)
{
	if (!updater)
		return;
	pthread_mutex_lock(&updater->lock);
	updater->ending = 1;
	pthread_cond_broadcast(&updater->changed);
	pthread_mutex_unlock(&updater->lock);
	if (updater->started)
		pthread_join(updater->thread, NULL);
	while (updater->queue && updater->block && !rh_fault_code(&updater->fault) && updater_next_task(updater).what != NOTHING)
		updater->queue->ops->pass(updater->queue);
	if (updater->queue)
		updater->queue->ops->destroy(updater->queue);
	pthread_cond_destroy(&updater->changed);
	pthread_mutex_destroy(&updater->lock);
	pthread_mutex_destroy(&updater->turn);
	rh_free(updater->block);
	rh_free(updater->order);
	rh_free(updater->line);
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
	updater->apart = whole > 0 ? apart / whole : 1;
	updater->in_two = 1;
}

/* A step has gone by. Is there time for two passes in the next one, which will be about as long? Where the host has hardly any left they
 * would take more of the step than they spare at its beginning. */
static void look_back(struct rh_updater *updater)
{
	static const double SPARE = 0.05;
	double now = rh_updater_seconds(updater), worked = updater->worked_s * (updater->in_two ? 1 : updater->apart);
	if (updater->opened_s > 0 && updater->apart > 0)
		updater->in_two = worked < (1 - SPARE) * (now - updater->opened_s);
	updater->opened_s = now;
	updater->worked_s = 0;
}

void rh_updater_open(struct rh_updater *updater, const struct rh_update *update, double max_norm)
{
	int trained = 0;
	for (int b = 0; b < updater->blocks; b++)
		trained += rh_store_block(updater->store, b)->trainable != 0;
	pthread_mutex_lock(&updater->lock);
	look_back(updater);
	RH_ASSERT(updater->untold < STEPS - 1);
	updater->untold++;
	updater->which = (updater->which + 1) % STEPS;
	for (int b = 0; b < updater->blocks; b++)
		RH_ASSERT(updater->block[b].state == FREE || updater->block[b].which != updater->which);
	updater->step[updater->which].update = *update;
	updater->step[updater->which].max_norm = max_norm;
	updater->step[updater->which].left = rh_fault_code(&updater->fault) ? 0 : trained;
	updater->step[updater->which].spoilt = 0;
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_uploaded(struct rh_updater *updater, int b, struct rh_event *const *event, int events)
{
	struct updater_block *block = &updater->block[b];
	pthread_mutex_lock(&updater->lock);
	if (updater_is_stale(updater) && !rh_fault_code(&updater->fault)) {
		if (!block->publishes)
			wake(updater, b);
		block->publishes = 1;
		block->behind = block->state != FREE;
		block->uploaded = event;
		block->uploads = events;
		block->upload_number = updater->announced++;
		pthread_cond_broadcast(&updater->changed);
	}
	pthread_mutex_unlock(&updater->lock);
}

enum rh_made_when rh_updater_is_for_devices(struct rh_updater *updater, struct rh_update *update)
{
	enum rh_made_when when = RH_MADE_NEVER;
	pthread_mutex_lock(&updater->lock);
	if (updater->untold > 0 && rh_optimizer_has_device_pass(updater->store))
		when = updater->step[updater->which].max_norm > 0 ? RH_MADE_LATE : RH_MADE_AT_ONCE;
	*update = updater->step[updater->which].update;
	pthread_mutex_unlock(&updater->lock);
	return when;
}

static void announce(struct rh_updater *updater, int b, struct rh_event *event, int promised)
{
	struct updater_block *block = &updater->block[b];
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(block->state == FREE || rh_fault_code(&updater->fault));
	int opened = block->next != (updater->which + 1) % STEPS;
	if (opened && !rh_fault_code(&updater->fault)) {
		wake(updater, b);
		block->state = COMING;
		block->which = block->next;
		block->next = (block->which + 1) % STEPS;
		block->number = updater->announced++;
		block->event = event;
		block->promised = promised;
		rh_order_log_add(updater->log, RH_ORDER_SIGNAL, updater->lane + 1, block_token(updater, ANNOUNCED, b), 0);
		pthread_cond_broadcast(&updater->changed);
	}
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_arrives(struct rh_updater *updater, int b, struct rh_event *event)
{
	announce(updater, b, event, 0);
}

void rh_updater_promised(struct rh_updater *updater, int b, struct rh_event *event)
{
	announce(updater, b, event, 1);
}

void rh_updater_made(struct rh_updater *updater, int b, struct rh_event *weights, struct rh_event *whole)
{
	struct updater_block *block = &updater->block[b];
	rh_optimizer_weights_arrived(updater->store, b);
	pthread_mutex_lock(&updater->lock);
	if (!rh_fault_code(&updater->fault)) {
		block->made = weights;
		block->whole = whole;
		block->promised = 0;
		pthread_cond_broadcast(&updater->changed);
	}
	pthread_mutex_unlock(&updater->lock);
}

int rh_updater_await_scale(struct rh_updater *updater, struct rh_update *update, int *spoilt)
{
	pthread_mutex_lock(&updater->lock);
	int which = updater->which;
	while (updater->step[which].left)
		wait_changed(updater);
	*update = updater->step[which].update;
	*spoilt = updater->step[which].spoilt;
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

static int await(struct rh_updater *updater, enum recorded what, int block)
{
	pthread_mutex_lock(&updater->lock);
	while (is_pending(updater, what, block))
		wait_changed(updater);
	rh_order_log_add(updater->log, RH_ORDER_WAIT, updater->lane + 1,
	                 block < 0 ? whole_token(updater, 1) : block_token(updater, what, block), 0);
	if (updater->log && what == READY && block >= 0 && updater->block[block].made)
		rh_order_log_add(updater->log, RH_ORDER_WAIT, updater->lane + 1, updater->event_token(updater->block[block].made), 0);
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

static int has(struct rh_updater *updater, enum recorded what, int block)
{
	pthread_mutex_lock(&updater->lock);
	int pending = is_pending(updater, what, block);
	pthread_mutex_unlock(&updater->lock);
	return !pending;
}

int rh_updater_has_weights(struct rh_updater *updater, int block)
{
	return has(updater, READY, block);
}

int rh_updater_has_gradient(struct rh_updater *updater, int block)
{
	return has(updater, TAKEN, block);
}

int rh_updater_await_weights(struct rh_updater *updater, int block)
{
	return await(updater, READY, block);
}

int rh_updater_is_open(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->lock);
	int is = updater->untold > 0;
	pthread_mutex_unlock(&updater->lock);
	return is;
}

int rh_updater_await_any(struct rh_updater *updater, const char *wanted, int *block)
{
	pthread_mutex_lock(&updater->lock);
	for (int coming = 1; coming;) {
		*block = -1;
		coming = 0;
		for (int b = 0; b < updater->blocks; b++) {
			if (wanted[b] && *block < 0 && !is_pending(updater, READY, b))
				*block = b;
			coming |= updater->block[b].state == COMING;
		}
		coming &= *block < 0;
		if (coming)
			wait_changed(updater);
	}
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

int rh_updater_await_gradient(struct rh_updater *updater, int block)
{
	return await(updater, TAKEN, block);
}

int rh_updater_finish(struct rh_updater *updater)
{
	int rc = await(updater, TAKEN, -1);
	pthread_mutex_lock(&updater->lock);
	updater->ahead = 0;
	pthread_mutex_unlock(&updater->lock);
	rh_updater_pause(updater); /* the store and its pool are the caller's from now on: no reading ahead is in progress */
	rh_updater_resume(updater);
	return rc;
}

int rh_updater_norm(struct rh_updater *updater, double *norm)
{
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(updater->untold > 0);
	int which = (updater->which + STEPS + 1 - updater->untold--) % STEPS;
	while (updater->step[which].left)
		wait_changed(updater);
	*norm = rh_fault_code(&updater->fault) ? 0 : updater->step[which].norm;
	int rc = rh_fault_get(&updater->fault);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

int rh_updater_flush(struct rh_updater *updater)
{
	int rc = rh_updater_finish(updater);
	rc = rc ? rc : await(updater, READY, -1);
	for (int b = 0; !rc && updater_is_stale(updater) && b < updater->blocks; b++)
		rh_store_publish(updater->store, b);
	return rc;
}

void rh_updater_pause(struct rh_updater *updater)
{
	pthread_mutex_lock(&updater->turn);
}

void rh_updater_resume(struct rh_updater *updater)
{
	pthread_mutex_unlock(&updater->turn);
}
