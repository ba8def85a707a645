#include "device/cpu/queue.h"

#include "core/alloc.h"
#include "device/worker.h"

#include <pthread.h>
#include <stdatomic.h>
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

/* With their payloads: a packed op, struct copying, struct cpu_event *, struct mark, when it was enqueued. */
enum command_kind { COMMAND_OP, COMMAND_COPY, COMMAND_RECORD, COMMAND_WAIT, COMMAND_STAMP };

struct copying {
	void *dst;
	const void *src;
	int64_t bytes;
};

struct cpu_stream {
	struct cpu_context context;
	struct rh_fault *fault;
	int device;
	struct rh_worker *worker;
	const struct rh_cpu_pace *pace; /* NULL: none */
	double bytes_per_s;             /* of its copies by that pace */
	int64_t due_ns;                 /* of a paced stream: when what it has carried out would be over */
};

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- paced streams ---- */

/* A stream that begins later than it could have, because its thread woke up late, makes up for it. */
static void pace_begin(struct cpu_stream *stream, int64_t at_ns)
{
	stream->due_ns = at_ns > stream->due_ns ? at_ns : stream->due_ns;
}

static void pace_sleep(const struct cpu_stream *stream)
{
	const struct timespec due = {.tv_sec = stream->due_ns / 1000000000, .tv_nsec = stream->due_ns % 1000000000};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
		;
}

static void pace_add(struct cpu_stream *stream, double seconds)
{
	enum { FAR_NS = 1000000 }; /* that it may be ahead, until someone waits for it */
	stream->due_ns += (int64_t)(seconds * 1e9);
	if (stream->due_ns - now_ns() > FAR_NS)
		pace_sleep(stream);
}

static void wait_mark(struct mark mark)
{
	if (mark.stream)
		rh_worker_await(mark.stream->worker, mark.number);
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
	int64_t now = now_ns();
	pthread_mutex_lock(&event->lock);
	if (event->mark.stream == stream && event->mark.number == number) /* else it has moved on */
		event->time_ns = now;
	pthread_mutex_unlock(&event->lock);
	event_release(event);
}

/* ---- the thread ---- */

static void run_op(struct cpu_stream *stream, const void *from)
{
	struct rh_op op;
	if (rh_fault_code(stream->fault))
		return;
	rh_op_unpack(from, &op);
	rh_error_clear();
	int rc = cpu_run(&stream->context, &op);
	if (stream->pace)
		pace_add(stream, stream->pace->op_seconds(stream->pace->context, &op));
	if (rc < 0)
		rh_fault_keep(stream->fault, rh_fail_in(rc, "device cpu:%d, %s", stream->device, rh_op_info(op.kind)->name));
}

/* After a fault nothing is computed or copied any more, but events are still reached, so that nobody hangs. */
static void run_command(void *context, int kind, const void *payload, uint64_t number)
{
	struct cpu_stream *stream = context;
	struct copying copy;
	struct cpu_event *event;
	struct mark mark;
	int64_t stamp;
	switch ((enum command_kind)kind) {
	case COMMAND_STAMP:
		memcpy(&stamp, payload, sizeof stamp);
		pace_begin(stream, stamp);
		return;
	case COMMAND_RECORD:
		memcpy(&event, payload, sizeof event);
		if (stream->pace)
			pace_sleep(stream);
		reach_record(stream, event, number);
		return;
	case COMMAND_WAIT:
		memcpy(&mark, payload, sizeof mark);
		stamp = !stream->pace || rh_worker_has_done(mark.stream->worker, mark.number);
		wait_mark(mark);
		if (!stamp)
			pace_begin(stream, now_ns());
		return;
	case COMMAND_COPY:
		memcpy(&copy, payload, sizeof copy);
		if (!rh_fault_code(stream->fault))
			memcpy(copy.dst, copy.src, (size_t)copy.bytes);
		if (stream->pace)
			pace_add(stream, (double)copy.bytes / stream->bytes_per_s);
		return;
	case COMMAND_OP:
		run_op(stream, payload);
		return;
	}
}

int cpu_stream_open(int device, enum rh_stream kind, const struct rh_cpu_options *options, struct rh_fault *fault, struct cpu_stream **out)
{
	struct cpu_stream *stream = rh_alloc(1, sizeof *stream);
	if (!stream)
		return -ENOMEM;
	enum rh_cpu_isa best = rh_cpu_best_isa();
	int goes_up = kind == RH_STREAM_ACTIVATIONS_UP || kind == RH_STREAM_WEIGHTS;
	stream->context.isa = options->isa < best ? options->isa : best;
	stream->fault = fault;
	stream->device = device;
	stream->pace = options->pace;
	stream->bytes_per_s = !options->pace ? 0 : goes_up ? options->pace->up_bytes_per_s : options->pace->down_bytes_per_s;
	int rc = rh_pool_create(kind == RH_STREAM_COMPUTE ? options->threads : 1, &stream->context.pool);
	if (!rc) {
		rc = rh_worker_open(kind == RH_STREAM_COMPUTE ? COMPUTE_RING_BYTES : COPY_RING_BYTES, run_command, stream, &stream->worker);
		if (rc)
			rc = rh_fail(rc, "device cpu:%d: cannot start the thread of stream %d: %s", device, (int)kind, strerror(-rc));
	}
	if (rc)
		cpu_stream_close(stream);
	else
		*out = stream;
	return rc;
}

void cpu_stream_close(struct cpu_stream *stream)
{
	if (!stream)
		return;
	rh_worker_close(stream->worker);
	rh_pool_destroy(stream->context.pool);
	rh_free(stream);
}

/* A command whose payload is these bytes. */
static void enqueue(struct cpu_stream *stream, enum command_kind kind, const void *payload, size_t bytes)
{
	uint64_t number;
	memcpy(rh_worker_claim(stream->worker, (int)kind, bytes, &number), payload, bytes);
	rh_worker_publish(stream->worker);
}

/* A paced stream begins nothing before it was enqueued. */
static void stamp(struct cpu_stream *stream)
{
	if (!stream->pace)
		return;
	int64_t now = now_ns();
	enqueue(stream, COMMAND_STAMP, &now, sizeof now);
}

void cpu_stream_op(struct cpu_stream *stream, const struct rh_op *op)
{
	uint64_t number;
	stamp(stream);
	rh_op_pack(op, rh_worker_claim(stream->worker, COMMAND_OP, rh_op_packed_bytes(op), &number));
	rh_worker_publish(stream->worker);
}

void cpu_stream_copy(struct cpu_stream *stream, void *dst, const void *src, int64_t bytes)
{
	const struct copying copy = {dst, src, bytes};
	stamp(stream);
	enqueue(stream, COMMAND_COPY, &copy, sizeof copy);
}

void cpu_stream_record(struct cpu_stream *stream, struct cpu_event *event)
{
	struct mark mark = {.stream = stream};
	atomic_fetch_add_explicit(&event->references, 1, memory_order_relaxed);
	memcpy(rh_worker_claim(stream->worker, COMMAND_RECORD, sizeof event, &mark.number), &event, sizeof event);
	pthread_mutex_lock(&event->lock); /* inside the worker's lock: its thread takes it only after publishing, without that */
	event->mark = mark;
	pthread_mutex_unlock(&event->lock);
	rh_worker_publish(stream->worker);
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
	enqueue(stream, COMMAND_WAIT, &mark, sizeof mark);
}

void cpu_stream_drain(struct cpu_stream *stream)
{
	rh_worker_drain(stream->worker);
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
	return rh_worker_has_done(mark.stream->worker, mark.number);
}

int64_t cpu_event_time_ns(struct cpu_event *event)
{
	RH_ASSERT(event->use == RH_EVENT_TIMED);
	pthread_mutex_lock(&event->lock);
	int64_t time_ns = event->time_ns;
	pthread_mutex_unlock(&event->lock);
	return time_ns;
}
