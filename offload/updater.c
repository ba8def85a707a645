#include "offload/updater.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

/* A trainable block's gradient of one step:
 *
 *   FREE --announce (arrives)--> COMING --thread: event reached, squares summed (take_arrived)--> WAITING
 *   WAITING --thread: published, all there that it has to wait for, updated piece by piece (update)--> FREE
 */
enum state { FREE, COMING, WAITING };
enum { STEPS = 3 }; /* updates: of the step that is enqueued, of the one that is not over, of the one before that, which blocks wait for */

struct block {
	enum state state;
	int which, next; /* of the updates: its gradient's, and that of the gradient to be announced next */
	int64_t number;  /* of the announcement */
	struct rh_event *event;
	/* Staleness 1: what is newest is to be published once these events are reached, and uploads must wait. behind: of the step before there
	 * is a gradient that is to be in it. */
	int publishes, behind;
	struct rh_event *const *uploaded;
	int uploads;
	int64_t upload_number;
	int64_t updated; /* steps that it has been updated by */
	/* Of its update, the thread's own. */
	int named; /* it may be updated, and is known to */
	int piece; /* the next */
	double began;
};

struct rh_updater {
	struct rh_store *store;
	int blocks;
	struct rh_host_queue *queue; /* whose clock is virtual, in place of the thread; else NULL */
	pthread_t thread;
	int started;
	pthread_mutex_t turn; /* held while a block is worked on: whoever holds it has the store's pool */
	pthread_mutex_t lock; /* of all that follows; inside turn */
	pthread_cond_t changed;
	struct block *block;
	/* A step's gradients may arrive while some of the step before are still to come, and blocks of that one wait. */
	struct {
		struct rh_update update;
		double max_norm, norm;
		int left;   /* gradients that are still to be taken: then the norm is known */
		int spoilt; /* a gradient was not finite */
	} step[STEPS];
	/* Trainable blocks, a ring: those that could be updated one after the other; latest: of these, -1 before the first. The thread's own */
	int *order, ordered, latest;
	int *line;  /* those that may be updated now, and what comes after them; the thread's own */
	int which;  /* the latest */
	int untold; /* updates whose norm is to be asked for, the latest ones */
	int64_t announced;
	int busy;  /* blocks that are not FREE, and those to be published */
	int ahead; /* there may be something to be read ahead, by whoever has nothing else to do */
	struct rh_watch watch;
	int64_t watched_step;
	double task_began; /* of a virtual clock */
	int ending;
	struct rh_fault fault; /* of a task */
	/* recording; changed while nothing works */
	struct rh_order_log *log;
	int lane;
	int64_t token;
	int64_t (*event_token)(struct rh_event *event);
};

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

static int is_stale(const struct rh_updater *updater)
{
	return rh_store_options(updater->store)->published;
}

/* The rest of the thread's work is per block: the lock is held at start and end, and not in between. */

static void publish(struct rh_updater *updater, int b)
{
	struct block *block = &updater->block[b];
	pthread_mutex_unlock(&updater->lock);
	for (int i = 0; updater->log && i < block->uploads; i++)
		note(updater, RH_ORDER_WAIT, updater->event_token(block->uploaded[i]), 0);
	rh_store_publish(updater->store, b);
	if (block->updated)
		note(updater, RH_ORDER_PUBLISH, b, block->updated - 1);
	note(updater, RH_ORDER_SIGNAL, block_token(updater, READY, b), 0);
	pthread_mutex_lock(&updater->lock);
	block->publishes = 0;
	updater->busy--;
	pthread_cond_broadcast(&updater->changed);
}

static void take_arrived(struct rh_updater *updater, int b)
{
	struct block *block = &updater->block[b];
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
	block->state = WAITING;
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

/* What is to be done next, most urgent first: publishing holds up the next step; taking makes the norm, and the order of updates, known. */
struct task {
	enum { NOTHING, PUBLISH, TAKE, UPDATE, READ_AHEAD, LISTEN } what;
	int block;
	int rc;                 /* of a device */
	struct rh_event *event; /* LISTEN: to this one */
};

/* Of a block's uploads that are not over; NULL: all are. A device's fault ends them too. */
static struct rh_event *still_uploading(const struct block *block, int *rc)
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
static struct task next_publishing(const struct rh_updater *updater)
{
	struct task task = {.block = -1};
	for (int b = 0; b < updater->blocks; b++) {
		const struct block *block = &updater->block[b];
		int rc = 0;
		if (!block->publishes || block->behind)
			continue;
		struct rh_event *event = still_uploading(block, &rc);
		if (!event)
			return (struct task){PUBLISH, b, rc, NULL};
		if (task.block < 0 || block->upload_number < updater->block[task.block].upload_number)
			task = (struct task){LISTEN, b, 0, event};
	}
	return task;
}

/* The squares of two steps are not mixed. */
static int may_take(const struct rh_updater *updater, const struct block *block)
{
	return block->state == COMING && !updater->step[(block->which + STEPS - 1) % STEPS].left;
}

static struct task next_taking(const struct rh_updater *updater)
{
	struct task task = {.block = -1};
	const struct block *block = updater->block;
	for (int b = 0; b < updater->blocks; b++) {
		if (!may_take(updater, &block[b]))
			continue;
		int reached = block[b].event ? block[b].event->ops->event_query(block[b].event) : 1;
		if (reached)
			return (struct task){TAKE, b, reached < 0 ? reached : 0, NULL};
		if (task.block < 0 || block[b].number < block[task.block].number)
			task = (struct task){LISTEN, b, 0, block[b].event};
	}
	return task;
}

static int may_update(const struct rh_updater *updater, const struct block *block)
{
	return block->state == WAITING && (!block->publishes || block->behind) &&
	       !(updater->step[block->which].max_norm > 0 && updater->step[block->which].left);
}

/* Blocks by how urgent their updates are. */
static int in_order(const struct rh_updater *updater, int i)
{
	return is_stale(updater) ? updater->blocks - 1 - i : i;
}

static struct task next_task(const struct rh_updater *updater)
{
	struct task none = {.block = -1}, publishing, taking;
	struct task ahead = {READ_AHEAD, -1, 0, NULL};
	if (!updater->busy)
		return updater->ahead && !updater->ending ? ahead : none;
	publishing = next_publishing(updater);
	if (publishing.what == PUBLISH)
		return publishing;
	taking = next_taking(updater);
	if (taking.what == TAKE)
		return taking;
	for (int i = 0; i < updater->blocks; i++) {
		int b = in_order(updater, i);
		if (may_update(updater, &updater->block[b]))
			return (struct task){UPDATE, b, 0, NULL};
	}
	if (updater->ahead)
		return ahead;
	return publishing.what == LISTEN ? publishing : taking; /* uploads are over long before gradients are down */
}

static int do_quick(struct rh_updater *updater, struct task task)
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
		int b = in_order(updater, i);
		if (may_update(updater, &updater->block[b]))
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

/* The next piece of a block. */
static int update(struct rh_updater *updater, int b)
{
	struct block *block = &updater->block[b];
	struct rh_update update = updater->step[block->which].update;
	int spoilt = updater->step[block->which].spoilt, stale = is_stale(updater), rc = 0;
	int begins = !block->piece, pieces = rh_optimizer_pieces(updater->store, b);
	pthread_mutex_unlock(&updater->lock);
	if (begins) {
		block->began = updater->queue ? updater->task_began : rh_clock_seconds();
		note(updater, RH_ORDER_WAIT, whole_token(updater, 0), 0);
		note(updater, RH_ORDER_TAKE, b, update.step - 1);
		note(updater, RH_ORDER_UPDATE, b, update.step - 1);
		if (!stale)
			note(updater, RH_ORDER_PUBLISH, b, update.step - 1);
	}
	if (!spoilt && pieces)
		rc = rh_optimizer_update_piece(updater->store, b, block->piece, &update);
	int ends = rc || spoilt || ++block->piece >= pieces;
	if (ends && !stale)
		note(updater, RH_ORDER_SIGNAL, block_token(updater, READY, b), 0);
	if (ends) {
		note(updater, RH_ORDER_SIGNAL, block_token(updater, TAKEN, b), 0);
		note(updater, RH_ORDER_SIGNAL, whole_token(updater, 1), 0);
	}
	pthread_mutex_lock(&updater->lock);
	updater->ahead = !updater->queue;
	if (!ends)
		return 0;
	block->piece = block->named = 0;
	block->state = FREE;
	block->behind = 0;
	block->updated = update.step;
	updater->busy--;
	if (updater->watch.did && is_watched(updater, block->which))
		updater->watch.did(updater->watch.context, RH_WATCHED_UPDATE, b, 0, block->began, rh_updater_seconds(updater));
	pthread_cond_broadcast(&updater->changed);
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

static int do_task(struct rh_updater *updater, struct task task)
{
	if (task.what == PUBLISH || task.what == TAKE)
		return do_quick(updater, task);
	if (task.what == UPDATE)
		return update(updater, updater->queue ? task.block : choose_update(updater));
	if (task.what == READ_AHEAD)
		return go_ahead(updater);
	pthread_mutex_unlock(&updater->lock);
	int rc = task.event->ops->event_sync(task.event);
	pthread_mutex_lock(&updater->lock);
	return rc;
}

/* After a fault nothing is pending any more: whoever waits is told. */
static void give_up(struct rh_updater *updater, int rc)
{
	rh_fault_keep(&updater->fault, rc);
	for (int b = 0; b < updater->blocks; b++)
		updater->block[b] = (struct block){0};
	for (int i = 0; i < STEPS; i++)
		updater->step[i].left = 0;
	updater->busy = 0;
	pthread_cond_broadcast(&updater->changed);
}

static void *work(void *context)
{
	struct rh_updater *updater = context;
	for (;;) {
		struct task task;
		pthread_mutex_lock(&updater->lock);
		while ((task = next_task(updater)).what == NOTHING && !updater->ending)
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
	struct task task = {.block = (int)(argument / 8)};
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
	struct task task = next_task(updater);
	if (task.what == NOTHING || task.what == LISTEN)
		return 0;
	struct rh_store_traffic traffic = rh_store_traffic(updater->store, task.block);
	int pieces = rh_optimizer_pieces(updater->store, task.block);
	updater->task_began = rh_updater_seconds(updater);
	*job = (struct rh_host_job){.work = task.what == UPDATE ? RH_HOST_OPTIMIZER : RH_HOST_MEMORY,
	                            .bytes = task.what == UPDATE    ? traffic.update / pieces
	                                     : task.what == PUBLISH ? traffic.publish
	                                                            : traffic.take,
	                            .nvme_bytes = task.what == UPDATE ? traffic.nvme / pieces : 0,
	                            .run = run_task,
	                            .context = updater,
	                            .argument = 8 * (int64_t)task.block + (int)task.what};
	return 1;
}

/* The lock is held, and given away meanwhile. */
static void wait_changed(struct rh_updater *updater)
{
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
	updater->latest = -1;
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
static int is_pending(const struct rh_updater *updater, enum recorded what, int block)
{
	int first = block < 0 ? 0 : block, end = block < 0 ? updater->blocks : block + 1;
	for (int b = first; b < end; b++) {
		const struct block *at = &updater->block[b];
		if (what == READY && is_stale(updater) ? at->publishes : at->state != FREE)
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
	while (updater->queue && updater->block && !rh_fault_code(&updater->fault) && next_task(updater).what != NOTHING)
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

void rh_updater_open(struct rh_updater *updater, const struct rh_update *update, double max_norm)
{
	int trained = 0;
	for (int b = 0; b < updater->blocks; b++)
		trained += rh_store_block(updater->store, b)->trainable != 0;
	pthread_mutex_lock(&updater->lock);
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
	struct block *block = &updater->block[b];
	pthread_mutex_lock(&updater->lock);
	if (is_stale(updater) && !rh_fault_code(&updater->fault)) {
		updater->busy += !block->publishes;
		block->publishes = 1;
		block->behind = block->state != FREE;
		block->uploaded = event;
		block->uploads = events;
		block->upload_number = updater->announced++;
		pthread_cond_broadcast(&updater->changed);
	}
	pthread_mutex_unlock(&updater->lock);
}

void rh_updater_arrives(struct rh_updater *updater, int b, struct rh_event *event)
{
	struct block *block = &updater->block[b];
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(block->state == FREE || rh_fault_code(&updater->fault));
	int opened = block->next != (updater->which + 1) % STEPS;
	if (opened && !rh_fault_code(&updater->fault)) {
		updater->busy++;
		block->state = COMING;
		block->which = block->next;
		block->next = (block->which + 1) % STEPS;
		block->number = updater->announced++;
		block->event = event;
		rh_order_log_add(updater->log, RH_ORDER_SIGNAL, updater->lane + 1, block_token(updater, ANNOUNCED, b), 0);
		pthread_cond_broadcast(&updater->changed);
	}
	pthread_mutex_unlock(&updater->lock);
}

static int await(struct rh_updater *updater, enum recorded what, int block)
{
	pthread_mutex_lock(&updater->lock);
	while (is_pending(updater, what, block))
		wait_changed(updater);
	rh_order_log_add(updater->log, RH_ORDER_WAIT, updater->lane + 1,
	                 block < 0 ? whole_token(updater, 1) : block_token(updater, what, block), 0);
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
	for (int b = 0; !rc && is_stale(updater) && b < updater->blocks; b++)
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
