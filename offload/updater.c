#include "offload/updater.h"

#include "core/alloc.h"

#include <pthread.h>
#include <string.h>

struct rh_updater {
	struct rh_store *store;
	pthread_t thread;
	int started;
	pthread_mutex_t lock; /* of all that follows */
	pthread_cond_t changed;
	struct rh_update update;
	int working, ending;
	int ready, taken; /* blocks below these have their weights, and have given their gradient */
	int rc;
	char line[512]; /* what the thread said with rc */
	/* recording; changed while nothing works */
	struct rh_order_log *log;
	int lane;
	int64_t token;
};

/* Tokens of the recording: a block's weights are ready, its gradient is taken; an update begins, it is done. */
enum recorded { READY, TAKEN };

static int64_t block_token(const struct rh_updater *updater, enum recorded what, int block)
{
	return updater->token + 2 * block + what;
}

static int64_t whole_token(const struct rh_updater *updater, int done)
{
	return updater->token + 2 * rh_store_blocks(updater->store) + done;
}

static void note(struct rh_updater *updater, enum rh_order_kind kind, int64_t what, int64_t step)
{
	rh_order_log_add(updater->log, kind, updater->lane, what, step);
}

void rh_updater_record(struct rh_updater *updater, struct rh_order_log *log, int lane, int64_t token)
{
	updater->log = log;
	updater->lane = lane;
	updater->token = token;
}

static void advance(struct rh_updater *updater, int *mark, int to)
{
	pthread_mutex_lock(&updater->lock);
	*mark = to;
	pthread_cond_broadcast(&updater->changed);
	pthread_mutex_unlock(&updater->lock);
}

static int update_all(struct rh_updater *updater, const struct rh_update *update)
{
	struct rh_store *store = updater->store;
	int blocks = rh_store_blocks(store), stale = rh_store_options(store)->published, rc = 0;
	for (int b = 0; stale && b < blocks; b++) {
		rh_store_publish(store, b);
		if (update->step > 1 && rh_store_block(store, b)->trainable)
			note(updater, RH_ORDER_PUBLISH, b, update->step - 2);
		note(updater, RH_ORDER_SIGNAL, block_token(updater, READY, b), 0);
		advance(updater, &updater->ready, b + 1);
	}
	for (int b = 0; !rc && b < blocks; b++) {
		if (rh_store_block(store, b)->trainable) {
			note(updater, RH_ORDER_TAKE, b, update->step - 1);
			note(updater, RH_ORDER_UPDATE, b, update->step - 1);
			if (!stale)
				note(updater, RH_ORDER_PUBLISH, b, update->step - 1);
			rc = rh_optimizer_update(store, b, &update->settings, update->learning_rate, update->scale, update->step);
		}
		if (!stale)
			note(updater, RH_ORDER_SIGNAL, block_token(updater, READY, b), 0);
		note(updater, RH_ORDER_SIGNAL, block_token(updater, TAKEN, b), 0);
		if (!stale)
			advance(updater, &updater->ready, b + 1);
		advance(updater, &updater->taken, b + 1);
	}
	return rc;
}

static void *work(void *context)
{
	struct rh_updater *updater = context;
	pthread_mutex_lock(&updater->lock);
	for (;;) {
		while (!updater->working && !updater->ending)
			pthread_cond_wait(&updater->changed, &updater->lock);
		if (!updater->working)
			break;
		struct rh_update update = updater->update;
		pthread_mutex_unlock(&updater->lock);
		note(updater, RH_ORDER_WAIT, whole_token(updater, 0), 0);
		int rc = update_all(updater, &update);
		note(updater, RH_ORDER_SIGNAL, whole_token(updater, 1), 0);
		pthread_mutex_lock(&updater->lock);
		updater->rc = rc;
		if (rc)
			strncpy(updater->line, rh_error(rc), sizeof updater->line - 1);
		updater->working = 0;
		pthread_cond_broadcast(&updater->changed);
	}
	pthread_mutex_unlock(&updater->lock);
	return NULL;
}

int rh_updater_create(struct rh_store *store, struct rh_updater **out)
{
	struct rh_updater *updater = rh_alloc(1, sizeof *updater);
	if (!updater)
		return -ENOMEM;
	updater->store = store;
	updater->ready = updater->taken = rh_store_blocks(store);
	pthread_mutex_init(&updater->lock, NULL);
	pthread_cond_init(&updater->changed, NULL);
	int rc = -pthread_create(&updater->thread, NULL, work, updater);
	updater->started = !rc;
	if (rc) {
		rh_updater_destroy(updater);
		return rh_fail(rc, "cannot start the optimizer's thread: %s", strerror(-rc));
	}
	*out = updater;
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
	pthread_cond_destroy(&updater->changed);
	pthread_mutex_destroy(&updater->lock);
	rh_free(updater);
}

void rh_updater_begin(struct rh_updater *updater, const struct rh_update *update)
{
	pthread_mutex_lock(&updater->lock);
	RH_ASSERT(!updater->working && !updater->rc);
	updater->update = *update;
	updater->ready = updater->taken = 0;
	rh_order_log_add(updater->log, RH_ORDER_SIGNAL, updater->lane + 1, whole_token(updater, 0), 0);
	updater->working = 1;
	pthread_cond_broadcast(&updater->changed);
	pthread_mutex_unlock(&updater->lock);
}

/* Until *mark is at least `wanted`, or the thread has nothing more to do. */
static int await(struct rh_updater *updater, const int *mark, int wanted)
{
	pthread_mutex_lock(&updater->lock);
	while (updater->working && *mark < wanted)
		pthread_cond_wait(&updater->changed, &updater->lock);
	int rc = *mark < wanted || !updater->working ? updater->rc : 0;
	int64_t token =
	        wanted == INT32_MAX ? whole_token(updater, 1) : block_token(updater, mark == &updater->ready ? READY : TAKEN, wanted - 1);
	rh_order_log_add(updater->log, RH_ORDER_WAIT, updater->lane + 1, token, 0);
	if (rc)
		rc = rh_fail_copy(rc, updater->line);
	pthread_mutex_unlock(&updater->lock);
	return rc;
}

int rh_updater_has_weights(struct rh_updater *updater, int block)
{
	pthread_mutex_lock(&updater->lock);
	int has = !updater->working || updater->ready > block;
	pthread_mutex_unlock(&updater->lock);
	return has;
}

int rh_updater_await_weights(struct rh_updater *updater, int block)
{
	return await(updater, &updater->ready, block + 1);
}

int rh_updater_await_gradient(struct rh_updater *updater, int block)
{
	return await(updater, &updater->taken, block + 1);
}

int rh_updater_finish(struct rh_updater *updater)
{
	return await(updater, &updater->taken, INT32_MAX);
}

int rh_updater_flush(struct rh_updater *updater)
{
	int rc = rh_updater_finish(updater);
	for (int b = 0; !rc && rh_store_options(updater->store)->published && b < rh_store_blocks(updater->store); b++)
		rh_store_publish(updater->store, b);
	return rc;
}
