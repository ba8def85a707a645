/* A drive without io_uring: threads that pread and pwrite, one for each request at the drive. */
#include "offload/drive_internal.h"

#include "core/alloc.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MOST = 16 };

struct threads {
	struct rh_drive base;
	struct rh_drive_options options;
	pthread_t thread[THREADS_MOST];
	int count;
	pthread_mutex_t lock; /* of all that follows */
	pthread_cond_t changed;
	struct drive_line line;
	int busy, ending;
};

static struct threads *threads_of(struct rh_drive *drive)
{
	return (struct threads *)drive;
}

static void carry_out(const struct threads *threads, struct rh_drive_request *request)
{
	ssize_t result;
	do {
		char *memory = (char *)request->memory + request->moved;
		size_t bytes = (size_t)drive_next_bytes(request);
		off_t offset = request->offset + request->moved;
		result = request->kind == RH_DRIVE_READ ? pread(threads->options.descriptor, memory, bytes, offset)
		                                        : pwrite(threads->options.descriptor, memory, bytes, offset);
	} while (!drive_advance(request, result < 0 ? -errno : result, threads->options.unit));
}

static void *work(void *context)
{
	struct threads *threads = context;
	pthread_mutex_lock(&threads->lock);
	for (;;) {
		while (!threads->line.first && !threads->ending)
			pthread_cond_wait(&threads->changed, &threads->lock);
		struct rh_drive_request *request = drive_line_take(&threads->line);
		if (!request)
			break;
		threads->busy++;
		pthread_mutex_unlock(&threads->lock);
		carry_out(threads, request);
		request->done(request);
		pthread_mutex_lock(&threads->lock);
		threads->busy--;
		pthread_cond_broadcast(&threads->changed);
	}
	pthread_mutex_unlock(&threads->lock);
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
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)seconds;
	pthread_mutex_lock(&threads->lock);
	threads->ending = 1;
	pthread_cond_broadcast(&threads->changed);
	int late = 0;
	while (!late && (threads->busy || threads->line.first))
		late = pthread_cond_timedwait(&threads->changed, &threads->lock, &until) == ETIMEDOUT;
	late = threads->busy || threads->line.first;
	pthread_mutex_unlock(&threads->lock);
	if (late)
		return; /* threads wait for the drive to the end of the process */
	for (int i = 0; i < threads->count; i++)
		pthread_join(threads->thread[i], NULL);
	pthread_mutex_destroy(&threads->lock);
	pthread_cond_destroy(&threads->changed);
	rh_free(threads);
}

static const struct rh_drive_ops ops = {"threads", threads_submit, threads_attach, threads_close};

int drive_threads_open(const struct rh_drive_options *options, struct rh_drive **out)
{
	struct threads *threads = rh_alloc(1, sizeof *threads);
	if (!threads)
		return -ENOMEM;
	threads->base.ops = &ops;
	threads->options = *options;
	pthread_mutex_init(&threads->lock, NULL);
	pthread_cond_init(&threads->changed, NULL);
	int wanted = options->depth < THREADS_MOST ? options->depth : THREADS_MOST, rc = 0;
	for (; !rc && threads->count < wanted; threads->count += !rc)
		rc = -pthread_create(&threads->thread[threads->count], NULL, work, threads);
	if (rc && !threads->count) {
		threads_close(&threads->base, 0);
		return rc;
	}
	*out = &threads->base; /* fewer threads than wanted are a shallower queue */
	return 0;
}
