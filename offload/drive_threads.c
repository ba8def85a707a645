/* A drive without io_uring: threads that call pread and pwrite, one thread for each request in flight. */
#include "offload/drive_internal.h"

#include "core/alloc.h"
#include "core/thread.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { THREADS_MOST = 16 };

struct threads {
	struct rh_drive base;
	struct rh_drive_options options; /* its descriptor is our own: a call that stalls outlives the caller's */
	pthread_t thread[THREADS_MOST];
	int count;
	pthread_mutex_t lock; /* of all that follows */
	pthread_cond_t changed;
	struct drive_line line;
	int busy;    /* threads that have a request */
	int telling; /* of these, in `done` */
	int ending, abandoned;
	int holders; /* threads, and who has it open: the last of them frees it */
};

static struct threads *threads_of(struct rh_drive *drive)
{
	return (struct threads *)drive;
}

/* One call for a request, without the lock, and without the request: once abandoned it is no longer there. */
static int64_t call(struct threads *threads, struct rh_drive_request request)
{
	int descriptor = threads->options.descriptor;
	char *memory = (char *)request.memory + request.moved;
	size_t bytes = (size_t)drive_next_bytes(&request);
	off_t offset = request.offset + request.moved;
	pthread_mutex_unlock(&threads->lock);
	int reads = request.kind == RH_DRIVE_READ;
	ssize_t moved = reads ? pread(descriptor, memory, bytes, offset) : pwrite(descriptor, memory, bytes, offset);
	int64_t result = moved < 0 ? -errno : moved;
	if (request.delay_ms)
		drive_delay(request.delay_ms);
	pthread_mutex_lock(&threads->lock);
	return result;
}

/* Lock held, and given away meanwhile. */
static void carry_out(struct threads *threads, struct rh_drive_request *request)
{
	int over = 0;
	while (!over) {
		int64_t result = call(threads, *request);
		if (threads->abandoned)
			return;
		over = drive_advance(request, result, threads->options.unit);
	}
	threads->telling++;
	pthread_mutex_unlock(&threads->lock);
	request->done(request);
	pthread_mutex_lock(&threads->lock);
	threads->telling--;
}

/* The lock is held at the call, and released. */
static void leave_threads(struct threads *threads)
{
	int last = !--threads->holders;
	pthread_mutex_unlock(&threads->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&threads->lock);
	pthread_cond_destroy(&threads->changed);
	close(threads->options.descriptor);
	rh_free(threads);
}

static void *work(void *context)
{
	struct threads *threads = context;
	pthread_mutex_lock(&threads->lock);
	for (;;) {
		while (!threads->line.first && !threads->ending)
			pthread_cond_wait(&threads->changed, &threads->lock);
		struct rh_drive_request *request = threads->abandoned ? NULL : drive_line_take(&threads->line);
		if (!request)
			break;
		threads->busy++;
		carry_out(threads, request);
		threads->busy--;
		pthread_cond_broadcast(&threads->changed);
	}
	leave_threads(threads);
	return NULL;
}

static void threads_submit(struct rh_drive *drive, struct rh_drive_request *request)
{
	struct threads *threads = threads_of(drive);
	pthread_mutex_lock(&threads->lock);
	drive_line_add(&threads->line, request);
	pthread_cond_broadcast(&threads->changed);
	pthread_mutex_unlock(&threads->lock);
}

static void threads_attach(struct rh_drive *drive, void *memory, int64_t bytes)
{
	(void)drive, (void)memory, (void)bytes; /* nothing to register with */
}

static void threads_close(struct rh_drive *drive, double seconds)
{
	struct threads *threads = threads_of(drive);
	struct timespec until = rh_cond_deadline(seconds);
	int late = 0, count = threads->count;
	pthread_t thread[THREADS_MOST];
	memcpy(thread, threads->thread, sizeof thread);
	pthread_mutex_lock(&threads->lock);
	threads->ending = 1;
	pthread_cond_broadcast(&threads->changed);
	while (!late && (threads->busy || threads->line.first))
		late = pthread_cond_timedwait(&threads->changed, &threads->lock, &until) == ETIMEDOUT;
	threads->abandoned = threads->busy || threads->line.first;
	while (threads->abandoned && threads->telling)
		pthread_cond_wait(&threads->changed, &threads->lock);
	int abandoned = threads->abandoned;
	leave_threads(threads);
	for (int i = 0; i < count; i++)
		if (abandoned)
			pthread_detach(thread[i]); /* it waits for the drive */
		else
			pthread_join(thread[i], NULL);
}

static const struct rh_drive_ops ops = {"threads", threads_submit, threads_attach, threads_close};

int drive_threads_open(const struct rh_drive_options *options, struct rh_drive **out)
{
	struct threads *threads = rh_alloc(1, sizeof *threads);
	if (!threads)
		return -ENOMEM;
	threads->base.ops = &ops;
	threads->options = *options;
	threads->options.descriptor = fcntl(options->descriptor, F_DUPFD_CLOEXEC, 0);
	if (threads->options.descriptor < 0) {
		int rc = -errno;
		rh_free(threads);
		return rc;
	}
	pthread_mutex_init(&threads->lock, NULL);
	rh_cond_init(&threads->changed);
	int wanted = options->depth < THREADS_MOST ? options->depth : THREADS_MOST, rc = 0;
	threads->holders = 1;
	pthread_mutex_lock(&threads->lock);
	for (; !rc && threads->count < wanted; threads->count += !rc)
		rc = rh_thread_start(&threads->thread[threads->count], work, threads);
	threads->holders += threads->count;
	pthread_mutex_unlock(&threads->lock);
	if (rc && !threads->count) {
		threads_close(&threads->base, 0);
		return rc;
	}
	*out = &threads->base; /* fewer threads than wanted are a shallower queue */
	return 0;
}
