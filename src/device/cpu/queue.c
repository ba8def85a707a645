#include "device/cpu/queue.h"

#include "core/alloc.h"
#include "core/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

/* Commands depend only on commands enqueued before them (a wait names a record already made), so blocking on a full ring cannot deadlock.
 * But devices whose commands come later starve meanwhile: a slot has some thousands of ops. */
enum { COMPUTE_RING_BYTES = 5 << 18, COPY_RING_BYTES = 16 << 10 };

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

/* SKIP: nothing follows up to the ring's end. */
enum command_kind { COMMAND_OP, COMMAND_COPY, COMMAND_RECORD, COMMAND_WAIT, COMMAND_SKIP };

/* Followed by its payload: an op without what it does not use, struct copying, struct cpu_event *, struct mark. */
struct command {
	enum command_kind kind;
	uint32_t bytes; /* of all, a multiple of 8 */
};

struct copying {
	void *dst;
	const void *src;
	int64_t bytes;
};

struct cpu_stream {
	struct cpu_context context;
	struct rh_fault *fault;
	int device;
	enum rh_stream stream;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;     /* something was enqueued, or stop */
	pthread_cond_t progress; /* done has come to what somebody waits for */
	pthread_cond_t room;     /* half of the ring is free */
	uint64_t enqueued, done; /* commands; protected by lock, as is all up to stop */
	uint64_t wanted;         /* no waiter waits for less; UINT64_MAX: nobody waits */
	uint64_t written, read;  /* bytes of the ring, ever */
	int crowded, stop;       /* somebody waits for room */
	size_t bytes;            /* of the ring, in which [read, written) belongs to the thread, the rest to the enqueuer */
	char *ring;
};

/* Waits until `stream` has done its first `number` commands. Call with the lock held. */
static void wait_done(struct cpu_stream *stream, uint64_t number)
{
	while (stream->done < number) {
		if (number < stream->wanted)
			stream->wanted = number;
		pthread_cond_wait(&stream->progress, &stream->lock);
	}
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

/* ---- ops in the ring ---- */

static size_t payload_of(const struct rh_op *op, size_t *parameters)
{
	enum { SHORT = 72 }; /* what all but one kind need of the parameters */
	_Static_assert(sizeof op->attention <= SHORT && sizeof op->dropout <= SHORT && sizeof op->scaled_gemm <= SHORT &&
	                       sizeof op->dequantise <= SHORT && sizeof op->qk_rope <= SHORT &&
	                       sizeof op->lora <= SHORT,
	               "parameters that are longer must be told apart");
	size_t all = sizeof *op - offsetof(struct rh_op, gemm);
	*parameters = op->kind == RH_OP_ROPE_TABLE ? all : SHORT;
	return sizeof op->kind + 4 + *parameters + (size_t)rh_op_info(op->kind)->operands * sizeof op->operand[0];
}

static void put_op(char *to, const struct rh_op *op)
{
	size_t parameters;
	payload_of(op, &parameters);
	memcpy(to, &op->kind, sizeof op->kind);
	memcpy(to + 8, &op->gemm, parameters);
	memcpy(to + 8 + parameters, op->operand, (size_t)rh_op_info(op->kind)->operands * sizeof op->operand[0]);
}

static void take_op(const char *from, struct rh_op *op)
{
	size_t parameters;
	memset(op, 0, sizeof *op);
	memcpy(&op->kind, from, sizeof op->kind);
	payload_of(op, &parameters);
	memcpy(&op->gemm, from + 8, parameters);
	memcpy(op->operand, from + 8 + parameters, (size_t)rh_op_info(op->kind)->operands * sizeof op->operand[0]);
}

/* ---- the thread ---- */

static void run_op(struct cpu_stream *stream, const char *from)
{
	struct rh_op op;
	if (rh_fault_code(stream->fault))
		return;
	take_op(from, &op);
	rh_error_clear();
	int rc = cpu_run(&stream->context, &op);
	if (rc < 0)
		rh_fault_keep(stream->fault, rh_fail_in(rc, "device cpu:%d, %s", stream->device, rh_op_info(op.kind)->name));
}

/* After a fault nothing is computed or copied any more, but events are still reached, so that nobody hangs. */
static void run_command(struct cpu_stream *stream, const struct command *command, uint64_t number)
{
	const char *payload = (const char *)(command + 1);
	struct copying copy;
	struct cpu_event *event;
	struct mark mark;
	switch (command->kind) {
	case COMMAND_RECORD:
		memcpy(&event, payload, sizeof event);
		reach_record(stream, event, number);
		return;
	case COMMAND_WAIT:
		memcpy(&mark, payload, sizeof mark);
		wait_mark(mark);
		return;
	case COMMAND_COPY:
		memcpy(&copy, payload, sizeof copy);
		if (!rh_fault_code(stream->fault))
			memcpy(copy.dst, copy.src, (size_t)copy.bytes);
		return;
	case COMMAND_OP:
		run_op(stream, payload);
		return;
	case COMMAND_SKIP:
		return;
	}
}

/* What the next command is, the lock held: a ring's end that was left empty is gone over. */
static const struct command *next_command(struct cpu_stream *stream)
{
	const struct command *command = (const void *)(stream->ring + stream->read % stream->bytes);
	if (command->kind == COMMAND_SKIP) {
		stream->read += command->bytes;
		command = (const void *)(stream->ring + stream->read % stream->bytes);
	}
	return command;
}

/* The lock is held. */
static void command_done(struct cpu_stream *stream, uint64_t number, uint32_t bytes)
{
	stream->done = number;
	stream->read += bytes;
	if (stream->done >= stream->wanted) {
		stream->wanted = UINT64_MAX; /* those who still wait say so again */
		pthread_cond_broadcast(&stream->progress);
	}
	if (stream->crowded && stream->written - stream->read <= stream->bytes / 2) {
		stream->crowded = 0;
		pthread_cond_broadcast(&stream->room);
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
		const struct command *command = next_command(stream);
		pthread_mutex_unlock(&stream->lock);
		run_command(stream, command, number); /* only this thread changes done and read */
		pthread_mutex_lock(&stream->lock);
		command_done(stream, number, command->bytes);
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

static void stream_free(struct cpu_stream *stream)
{
	rh_pool_destroy(stream->context.pool);
	pthread_cond_destroy(&stream->room);
	pthread_cond_destroy(&stream->progress);
	pthread_cond_destroy(&stream->work);
	pthread_mutex_destroy(&stream->lock);
	rh_free(stream->ring);
	rh_free(stream);
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
	stream->wanted = UINT64_MAX;
	stream->bytes = kind == RH_STREAM_COMPUTE ? COMPUTE_RING_BYTES : COPY_RING_BYTES;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->work, NULL);
	pthread_cond_init(&stream->progress, NULL);
	pthread_cond_init(&stream->room, NULL);
	stream->ring = rh_alloc(stream->bytes, 1);
	int rc = stream->ring ? rh_pool_create(threads, &stream->context.pool) : -ENOMEM;
	if (!rc) {
		int fault_code = -rh_thread_start(&stream->thread, stream_main, stream);
		if (fault_code)
			rc = rh_fail(-fault_code, "device cpu:%d: cannot start the thread of stream %d: %s", device, (int)kind,
			             strerror(fault_code));
	}
	if (!rc) {
		*out = stream;
		return 0;
	}
	stream_free(stream);
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
	stream_free(stream);
}

/* Room for the next command, whose payload is filled in; the lock is held from here to publish(). */
static void *claim(struct cpu_stream *stream, enum command_kind kind, size_t payload)
{
	size_t bytes = (sizeof(struct command) + payload + 7) / 8 * 8;
	RH_ASSERT(bytes <= stream->bytes / 4);
	pthread_mutex_lock(&stream->lock);
	for (;;) { /* another host thread may come first */
		size_t at = stream->written % stream->bytes, left = stream->bytes - at, skip = left < bytes ? left : 0;
		if (stream->written - stream->read + skip + bytes > stream->bytes) {
			stream->crowded = 1;
			pthread_cond_wait(&stream->room, &stream->lock);
			continue;
		}
		struct command *command = (void *)(stream->ring + at);
		if (skip) {
			*command = (struct command){COMMAND_SKIP, (uint32_t)skip};
			command = (void *)stream->ring;
		}
		stream->written += skip + bytes;
		*command = (struct command){kind, (uint32_t)bytes};
		return command + 1;
	}
}

static void publish(struct cpu_stream *stream)
{
	if (stream->enqueued++ == stream->done)
		pthread_cond_signal(&stream->work);
	pthread_mutex_unlock(&stream->lock);
}

void cpu_stream_op(struct cpu_stream *stream, const struct rh_op *op)
{
	size_t parameters;
	put_op(claim(stream, COMMAND_OP, payload_of(op, &parameters)), op);
	publish(stream);
}

void cpu_stream_copy(struct cpu_stream *stream, void *dst, const void *src, int64_t bytes)
{
	const struct copying copy = {dst, src, bytes};
	memcpy(claim(stream, COMMAND_COPY, sizeof copy), &copy, sizeof copy);
	publish(stream);
}

void cpu_stream_record(struct cpu_stream *stream, struct cpu_event *event)
{
	atomic_fetch_add_explicit(&event->references, 1, memory_order_relaxed);
	memcpy(claim(stream, COMMAND_RECORD, sizeof event), &event, sizeof event);
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
	memcpy(claim(stream, COMMAND_WAIT, sizeof mark), &mark, sizeof mark);
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
