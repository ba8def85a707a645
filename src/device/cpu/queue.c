#include "device/cpu/queue.h"

#include "core/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* Commands depend only on commands enqueued before them (a wait names a record already made), so blocking on a full ring cannot deadlock.
 */
enum { RING = 256 };

struct mark { /* command number `number` of `stream`; stream NULL: nothing to wait for */
	struct cpu_stream *stream;
	uint64_t number;
};

struct cpu_event {
	struct rh_event base;
	struct rh_fault *fault;
	enum rh_event_use use;
	_Atomic int references; /* the owner's and one for each record not yet reached */
	pthread_mutex_t lock;
	struct mark mark; /* the latest record; protected by lock, as is time_ns */
	int64_t time_ns;
};

enum command_kind { COMMAND_OP, COMMAND_COPY, COMMAND_RECORD, COMMAND_WAIT };

struct command {
	enum command_kind kind;
	union {
		struct rh_op op;
		struct {
			void *dst;
			const void *src;
			int64_t bytes;
		} copy;
		struct cpu_event *record;
		struct mark wait;
	};
};

struct cpu_stream {
	struct cpu_context context;
	struct rh_fault *fault;
	int device;
	enum rh_stream stream;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;     /* something was enqueued, or stop */
	pthread_cond_t progress; /* done has grown */
	uint64_t enqueued, done; /* protected by lock, as are waiters and stop */
	int waiters, stop;
	struct command
	        ring[RING]; /* command n is in ring[n % RING]; those in [done, enqueued) belong to the thread, the rest to the enqueuer */
};

/* Waits until `stream` has done its first `number` commands. Call with the lock held. */
static void wait_done(struct cpu_stream *stream, uint64_t number)
{
	stream->waiters++;
	while (stream->done < number)
		pthread_cond_wait(&stream->progress, &stream->lock);
	stream->waiters--;
}

static void wait_mark(struct mark mark)
{
	if (!mark.stream)
		return;
	pthread_mutex_lock(&mark.stream->lock);
	wait_done(mark.stream, mark.number);
	pthread_mutex_unlock(&mark.stream->lock);
}

static void event_release(struct cpu_event *event)
{
	if (atomic_fetch_sub_explicit(&event->references, 1, memory_order_acq_rel) != 1)
		return;
	pthread_mutex_destroy(&event->lock);
	rh_free(event);
}

static void reach_record(struct cpu_stream *stream, struct cpu_event *event, uint64_t number)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&event->lock);
	if (event->mark.stream == stream && event->mark.number == number) /* else it has moved on */
		event->time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
	pthread_mutex_unlock(&event->lock);
	event_release(event);
}

/* After a fault nothing is computed or copied any more, but events are still reached, so that nobody hangs. */
static void run_command(struct cpu_stream *stream, struct command *command, uint64_t number)
{
	switch (command->kind) {
	case COMMAND_RECORD:
		reach_record(stream, command->record, number);
		return;
	case COMMAND_WAIT:
		wait_mark(command->wait);
		return;
	case COMMAND_COPY:
		if (!rh_fault_code(stream->fault))
			memcpy(command->copy.dst, command->copy.src, (size_t)command->copy.bytes);
		return;
	case COMMAND_OP:
		if (rh_fault_code(stream->fault))
			return;
		rh_error_clear();
		int rc = cpu_run(&stream->context, &command->op);
		if (rc < 0)
			rh_fault_keep(stream->fault,
			              rh_fail_in(rc, "device cpu:%d, %s", stream->device, rh_op_info(command->op.kind)->name));
	}
}

static void *stream_main(void *argument)
{
	struct cpu_stream *stream = argument;
	pthread_mutex_lock(&stream->lock);
	for (;;) {
		while (stream->done == stream->enqueued && !stream->stop)
			pthread_cond_wait(&stream->work, &stream->lock);
		if (stream->done == stream->enqueued)
			break;
		uint64_t number = stream->done + 1;
		pthread_mutex_unlock(&stream->lock);
		run_command(stream, &stream->ring[stream->done % RING], number); /* only this thread changes done */
		pthread_mutex_lock(&stream->lock);
		stream->done = number;
		if (stream->waiters)
			pthread_cond_broadcast(&stream->progress);
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

int cpu_stream_open(int device, enum rh_stream kind, int threads, enum rh_cpu_isa isa, struct rh_fault *fault, struct cpu_stream **out)
{
	struct cpu_stream *stream = rh_alloc(1, sizeof *stream);
	if (!stream)
		return -ENOMEM;
	stream->context.isa = isa;
	stream->fault = fault;
	stream->device = device;
	stream->stream = kind;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->work, NULL);
	pthread_cond_init(&stream->progress, NULL);
	int rc = rh_pool_create(threads, &stream->context.pool);
	if (!rc) {
		int fault_code = pthread_create(&stream->thread, NULL, stream_main, stream);
		if (fault_code)
			rc = rh_fail(-fault_code, "device cpu:%d: cannot start the thread of stream %d: %s", device, (int)kind,
			             strerror(fault_code));
	}
	if (!rc) {
		*out = stream;
		return 0;
	}
	rh_pool_destroy(stream->context.pool);
	pthread_cond_destroy(&stream->progress);
	pthread_cond_destroy(&stream->work);
	pthread_mutex_destroy(&stream->lock);
	rh_free(stream);
	return rc;
}

void cpu_stream_close(struct cpu_stream *stream)
{
	if (!stream)
		return;
	pthread_mutex_lock(&stream->lock);
	stream->stop = 1;
	pthread_cond_signal(&stream->work);
	pthread_mutex_unlock(&stream->lock);
	pthread_join(stream->thread, NULL);
	rh_pool_destroy(stream->context.pool);
	pthread_cond_destroy(&stream->progress);
	pthread_cond_destroy(&stream->work);
	pthread_mutex_destroy(&stream->lock);
	rh_free(stream);
}

/* The slot for the next command; the lock is held from here to publish(). */
static struct command *claim(struct cpu_stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	while (stream->enqueued - stream->done >= RING) /* a loop: another host thread may have come first */
		wait_done(stream, stream->enqueued - RING + 1);
	return &stream->ring[stream->enqueued % RING];
}

static void publish(struct cpu_stream *stream)
{
	if (stream->enqueued++ == stream->done)
		pthread_cond_signal(&stream->work);
	pthread_mutex_unlock(&stream->lock);
}

void cpu_stream_op(struct cpu_stream *stream, const struct rh_op *op)
{
	struct command *command = claim(stream);
	command->kind = COMMAND_OP;
	command->op = *op;
	publish(stream);
}

void cpu_stream_copy(struct cpu_stream *stream, void *dst, const void *src, int64_t bytes)
{
	struct command *command = claim(stream);
	command->kind = COMMAND_COPY;
	command->copy.dst = dst;
	command->copy.src = src;
	command->copy.bytes = bytes;
	publish(stream);
}

void cpu_stream_record(struct cpu_stream *stream, struct cpu_event *event)
{
	atomic_fetch_add_explicit(&event->references, 1, memory_order_relaxed);
	struct command *command = claim(stream);
	command->kind = COMMAND_RECORD;
	command->record = event;
	pthread_mutex_lock(&event->lock); /* inside the stream's lock: the thread takes it only after publish, without the stream's */
	event->mark = (struct mark){stream, stream->enqueued + 1};
	pthread_mutex_unlock(&event->lock);
	publish(stream);
}

static struct mark event_mark(struct cpu_event *event)
{
	pthread_mutex_lock(&event->lock);
	struct mark mark = event->mark;
	pthread_mutex_unlock(&event->lock);
	return mark;
}

void cpu_stream_wait(struct cpu_stream *stream, struct cpu_event *event)
{
	struct mark mark = event_mark(event);
	if (!mark.stream || mark.stream == stream) /* a stream's own past is done by the time it gets there */
		return;
	struct command *command = claim(stream);
	command->kind = COMMAND_WAIT;
	command->wait = mark;
	publish(stream);
}

void cpu_stream_drain(struct cpu_stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	wait_done(stream, stream->enqueued);
	pthread_mutex_unlock(&stream->lock);
}

int cpu_event_create(const struct rh_device_ops *ops, struct rh_fault *fault, enum rh_event_use use, struct cpu_event **out)
{
	struct cpu_event *event = rh_alloc(1, sizeof *event);
	if (!event)
		return -ENOMEM;
	event->base.ops = ops;
	event->fault = fault;
	event->use = use;
	atomic_init(&event->references, 1);
	pthread_mutex_init(&event->lock, NULL);
	*out = event;
	return 0;
}

void cpu_event_destroy(struct cpu_event *event)
{
	if (event)
		event_release(event);
}

int cpu_event_sync(struct cpu_event *event)
{
	RH_ASSERT(event->use != RH_EVENT_ORDER);
	wait_mark(event_mark(event));
	return rh_fault_get(event->fault);
}

int cpu_event_query(struct cpu_event *event)
{
	RH_ASSERT(event->use != RH_EVENT_ORDER);
	int fault = rh_fault_get(event->fault);
	struct mark mark = event_mark(event);
	if (fault || !mark.stream)
		return fault ? fault : 1;
	pthread_mutex_lock(&mark.stream->lock);
	int done = mark.stream->done >= mark.number;
	pthread_mutex_unlock(&mark.stream->lock);
	return done;
}

int64_t cpu_event_time_ns(struct cpu_event *event)
{
	RH_ASSERT(event->use == RH_EVENT_TIMED);
	pthread_mutex_lock(&event->lock);
	int64_t time_ns = event->time_ns;
	pthread_mutex_unlock(&event->lock);
	return time_ns;
}
