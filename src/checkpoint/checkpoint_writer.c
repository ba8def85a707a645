#include "checkpoint/checkpoint_writer.h"

#include "checkpoint/checkpoint_internal.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/pages.h"
#include "core/thread.h"

#include <string.h>

/* IDLE --begin--> WRITING --the thread: it is over--> WRITTEN --collect--> IDLE */
enum writer_state { IDLE, WRITING, WRITTEN };

struct rh_checkpoint_writer {
	const struct rh_session *session;
	struct rh_write_ring ring; /* the thread's own; of no bytes: there is none */
	struct rh_checkpoint_extra extra[RH_CHECKPOINT_EXTRAS];
	int extras;
	pthread_t thread;
	int started;
	pthread_mutex_t lock; /* of all that follows */
	pthread_cond_t changed;
	enum writer_state state;
	int ending;
	struct checkpoint_job job;     /* the thread's own while it is WRITING */
	struct checkpoint_fixed fixed; /* likewise */
	struct rh_fault fault;         /* of the job */
	double seconds;                /* that it took */
	struct rh_log_kept log;        /* meanwhile: told when it is collected, by the thread that draws the status line */
};

static void release(void *context, int block)
{
	const struct rh_checkpoint_writer *writer = context;
	rh_updater_release(writer->session->updater, block);
}

static int is_awaited(void *context)
{
	const struct rh_checkpoint_writer *writer = context;
	return rh_updater_awaits_release(writer->session->updater);
}

static void *work(void *context)
{
	struct rh_checkpoint_writer *writer = context;
	if (writer->ring.size) /* here, so that the first step need not wait for it */
		rh_pages_make(writer->ring.bytes, writer->ring.size);
	pthread_mutex_lock(&writer->lock);
	for (;;) {
		while (writer->state != WRITING && !writer->ending)
			pthread_cond_wait(&writer->changed, &writer->lock);
		if (writer->state != WRITING)
			break;
		pthread_mutex_unlock(&writer->lock);
		double began = rh_clock_seconds();
		struct rh_log_kept *before = rh_log_keep(&writer->log);
		rh_error_clear();
		int rc = checkpoint_job_write(&writer->job);
		for (int b = 0; b < writer->session->model->blocks; b++) /* after a fault some are held */
			release(writer, b);
		rh_fault_keep(&writer->fault, rc);
		(void)rh_log_keep(before);
		pthread_mutex_lock(&writer->lock);
		writer->seconds = rh_clock_seconds() - began;
		writer->state = WRITTEN;
		pthread_cond_broadcast(&writer->changed);
	}
	pthread_mutex_unlock(&writer->lock);
	return NULL;
}

static int make_ring(struct rh_checkpoint_writer *writer, int64_t bytes)
{
	if (!bytes)
		return 0;
	writer->ring = (struct rh_write_ring){.is_awaited = is_awaited, .context = writer};
	int rc = rh_pages_map_empty(bytes, &writer->ring.bytes);
	if (rc)
		return rh_fail(rc, "cannot map %.1f MiB for checkpoints: %s", (double)bytes / 1048576, strerror(-rc));
	writer->ring.size = bytes;
	return 0;
}

int rh_checkpoint_writer_create(const struct rh_session *session, int64_t ring_bytes, struct rh_checkpoint_writer **out)
{
	struct rh_checkpoint_writer *writer = rh_alloc(1, sizeof *writer);
	if (!writer)
		return -ENOMEM;
	writer->session = session;
	pthread_mutex_init(&writer->lock, NULL);
	rh_cond_init(&writer->changed);
	int rc = make_ring(writer, ring_bytes);
	if (rc)
		goto out;
	rc = rh_thread_start(&writer->thread, work, writer);
	writer->started = !rc;
	if (rc)
		rc = rh_fail(rc, "cannot start the thread that writes checkpoints: %s", strerror(-rc));
out:
	if (rc)
		rh_checkpoint_writer_destroy(writer);
	else
		*out = writer;
	return rc;
}

void rh_checkpoint_writer_add(struct rh_checkpoint_writer *writer, const struct rh_checkpoint_extra *extra)
{
	RH_ASSERT(writer->state == IDLE && writer->extras < RH_CHECKPOINT_EXTRAS);
	writer->extra[writer->extras++] = *extra;
}

void rh_checkpoint_writer_destroy(struct rh_checkpoint_writer *writer)
{
	if (!writer)
		return;
	pthread_mutex_lock(&writer->lock);
	writer->ending = 1;
	pthread_cond_broadcast(&writer->changed);
	pthread_mutex_unlock(&writer->lock);
	if (writer->started)
		pthread_join(writer->thread, NULL);
	checkpoint_job_free(&writer->job);
	checkpoint_fixed_forget(&writer->fixed);
	rh_log_forget(&writer->log);
	if (writer->ring.size)
		rh_pages_unmap(writer->ring.bytes, writer->ring.size);
	pthread_cond_destroy(&writer->changed);
	pthread_mutex_destroy(&writer->lock);
	rh_free(writer);
}

/* The lock is held, and given away meanwhile. */
static void wait_written(struct rh_checkpoint_writer *writer)
{
	while (writer->state == WRITING)
		pthread_cond_wait(&writer->changed, &writer->lock);
}

int rh_checkpoint_stands_still(const struct rh_session *session)
{
	return (rh_store_options(session->store)->spill & (RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS | RH_SPILL_WEIGHTS)) != 0;
}

int rh_checkpoint_writer_begin(struct rh_checkpoint_writer *writer, const struct rh_run_state *state,
                               const struct rh_trainer_state *trainer, int64_t common)
{
	RH_ASSERT(writer->state == IDLE); /* then the thread touches nothing */
	int rc = checkpoint_job_make(writer->session, state, trainer, &writer->fixed, &writer->job);
	for (int i = 0; !rc && i < writer->extras; i++) {
		writer->job.extra[i].name = writer->extra[i].name;
		rc = writer->extra[i].print(writer->extra[i].context, &writer->job.extra[i].text);
	}
	if (rc) {
		checkpoint_job_free(&writer->job);
		return rc;
	}
	writer->job.kept.common = common;
	int stands_still = rh_checkpoint_stands_still(writer->session);
	writer->fault = (struct rh_fault){0};
	if (!stands_still) {
		writer->job.written = release;
		writer->job.context = writer;
		writer->job.ring = writer->ring.size ? &writer->ring : NULL;
		rh_updater_hold(writer->session->updater);
	}
	pthread_mutex_lock(&writer->lock);
	writer->state = WRITING;
	pthread_cond_broadcast(&writer->changed);
	if (stands_still)
		wait_written(writer);
	pthread_mutex_unlock(&writer->lock);
	return 0;
}

int rh_checkpoint_writer_collect(struct rh_checkpoint_writer *writer, enum rh_checkpoint_wait wait, int64_t *step, double *seconds)
{
	*step = -1;
	*seconds = 0;
	pthread_mutex_lock(&writer->lock);
	if (wait == RH_CHECKPOINT_WAIT)
		wait_written(writer);
	int over = writer->state == WRITTEN;
	writer->state = over ? IDLE : writer->state;
	pthread_mutex_unlock(&writer->lock);
	if (!over)
		return 0;
	*step = writer->job.kept.newest;
	*seconds = writer->seconds;
	checkpoint_job_free(&writer->job);
	rh_log_say(&writer->log);
	return rh_fault_get(&writer->fault);
}
