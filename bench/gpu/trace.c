/* A training run whose device calls are recorded: each copy and each op between two events of its stream. Linked with
 * --wrap=rh_devices_open and --wrap=rh_executor_finish, so that the run is the product's own, down to the session.
 *
 * Idle time of the compute stream, between two ops of a step, is put down to what the later op waited for: copies of weights or
 * activations, another device, or the host that had not enqueued it yet; what nothing explains is said as such. */
#include "bench/gpu/spans.h"

#include "bench/gpu/bench.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "core/alloc.h"
#include "cuda/device.h"
#include "run/executor.h"
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Where an event of the run was last recorded: the span that it stands for. */
struct mark {
	const struct rh_event *event;
	int stream;
	int64_t span; /* -1: none of this step */
};

struct traced {
	struct rh_device base;
	struct rh_device_ops table; /* base.ops */
	struct rh_device *inner;
	struct spans spans;
	size_t timed;           /* spans that have their times */
	struct rh_event **pool; /* two a span, made as they are needed and kept */
	size_t pool_count, pool_capacity;
	int64_t searches, evictions; /* of products' algorithms, so far */
	int64_t last[RH_STREAMS];    /* span; -1 */
	int64_t waited[RH_STREAMS];  /* the span that the stream's next command waits for; -1 */
	enum span_cause cause[RH_STREAMS];
	struct mark *mark;
	size_t marks, mark_capacity;
};

static struct traced *devices[64]; /* of the one run */
static int device_count;
static int64_t room; /* that plans count on in each of them */
static int spent;    /* of one device's memory plans leave too little to the GPU's libraries */
static FILE *chrome;

static struct traced *own(struct rh_device *device)
{
	return (struct traced *)device;
}

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct mark *mark_of(struct traced *on, const struct rh_event *event)
{
	for (size_t i = 0; i < on->marks; i++)
		if (on->mark[i].event == event)
			return &on->mark[i];
	return NULL;
}

static int next_event(struct traced *on, size_t index, struct rh_event **out)
{
	while (index >= on->pool_count) {
		int rc = rh_grow(&on->pool, &on->pool_capacity, on->pool_count + 1, sizeof(struct rh_event *));
		if (!rc)
			rc = on->inner->ops->event_create(on->inner, RH_EVENT_TIMED, &on->pool[on->pool_count]);
		if (rc)
			return rc;
		on->pool_count++;
	}
	*out = on->pool[index];
	return 0;
}

/* Begins a span; its two events are 2i and 2i + 1 of the pool. */
static int begin(struct traced *on, enum rh_stream stream, const struct span *like)
{
	struct rh_event *from;
	int rc = next_event(on, 2 * on->spans.count + 1, &from);
	if (!rc)
		rc = rh_grow(&on->spans.span, &on->spans.capacity, on->spans.count + 1, sizeof *on->spans.span);
	if (rc)
		return rc;
	struct span *span = &on->spans.span[on->spans.count];
	*span = *like;
	span->stream = stream;
	span->waited = on->waited[stream];
	span->cause = on->cause[stream];
	on->waited[stream] = -1;
	on->cause[stream] = SPAN_NOTHING;
	span->enqueued_ns = now_ns();
	return on->inner->ops->record(on->inner, stream, on->pool[2 * on->spans.count]);
}

static int end(struct traced *on, enum rh_stream stream, int rc)
{
	struct span *span = &on->spans.span[on->spans.count];
	span->host_ns = now_ns() - span->enqueued_ns;
	if (!rc)
		rc = on->inner->ops->record(on->inner, stream, on->pool[2 * on->spans.count + 1]);
	on->last[stream] = (int64_t)on->spans.count++;
	return rc;
}

static int traced_launch(struct rh_device *base, enum rh_stream stream, const struct rh_op *op)
{
	struct traced *on = own(base);
	struct rh_op_cost cost = rh_op_cost(op);
	int rc = begin(on, stream, &(struct span){.name = rh_op_info(op->kind)->name, .flops = cost.product_flops, .bytes = cost.bytes});
	return rc ? rc : end(on, stream, on->inner->ops->launch(on->inner, stream, op));
}

static int traced_up(struct rh_device *base, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	struct traced *on = own(base);
	int rc = begin(on, stream, &(struct span){.name = "up", .bytes = (double)bytes});
	return rc ? rc : end(on, stream, on->inner->ops->copy_up(on->inner, stream, to, from, bytes));
}

static int traced_down(struct rh_device *base, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	struct traced *on = own(base);
	int rc = begin(on, stream, &(struct span){.name = "down", .bytes = (double)bytes});
	return rc ? rc : end(on, stream, on->inner->ops->copy_down(on->inner, stream, to, from, bytes));
}

static int traced_record(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	struct traced *on = own(base);
	struct mark *mark = mark_of(on, event);
	if (!mark) {
		int rc = rh_grow(&on->mark, &on->mark_capacity, on->marks + 1, sizeof *on->mark);
		if (rc)
			return rc;
		mark = &on->mark[on->marks++];
	}
	*mark = (struct mark){event, stream, on->last[stream]};
	return on->inner->ops->record(on->inner, stream, event);
}

/* Of several waits before one command the last that names a span of this step is kept: events of one kind are recorded in order. */
static int traced_wait(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	static const enum span_cause cause_of[RH_STREAMS] = {[RH_STREAM_COMPUTE] = SPAN_COMPUTE,
	                                                     [RH_STREAM_WEIGHTS] = SPAN_WEIGHTS,
	                                                     [RH_STREAM_ACTIVATIONS_UP] = SPAN_ACTIVATIONS,
	                                                     [RH_STREAM_ACTIVATIONS_DOWN] = SPAN_ACTIVATIONS,
	                                                     [RH_STREAM_GRADIENTS] = SPAN_GRADIENTS};
	struct traced *on = own(base);
	struct mark *mark = mark_of(on, event);
	if (mark && mark->stream != (int)stream && mark->span > on->waited[stream]) {
		on->waited[stream] = mark->span;
		on->cause[stream] = cause_of[mark->stream];
	} else if (!mark && on->waited[stream] < 0) { /* another device's, or never recorded */
		on->cause[stream] = SPAN_ELSEWHERE;
	}
	return on->inner->ops->wait(on->inner, stream, event);
}

static int is_cuda(const struct rh_device *device)
{
	return rh_cuda_kind() && !strcmp(device->ops->kind, rh_cuda_kind());
}

/* Launches are the process's: with several workers the first one's line has all of them. */
static void count_launches(struct traced *on)
{
	static int64_t before;
	int64_t launches = rh_cuda_launches();
	int64_t searches = is_cuda(on->inner) ? rh_cuda_choice_misses(on->inner) : 0;
	int64_t evictions = is_cuda(on->inner) ? rh_cuda_evictions(on->inner) : 0;
	if (on->spans.seen) {
		on->spans.launches += launches - before;
		on->spans.searches += searches - on->searches;
		on->spans.evictions += evictions - on->evictions;
	}
	on->searches = searches;
	on->evictions = evictions;
	before = launches;
}

/* All times are read while the device's clock is young. */
static int traced_synchronize(struct rh_device *base)
{
	struct traced *on = own(base);
	const struct rh_device_ops *ops = on->inner->ops;
	int rc = 0;
	for (int s = 0; !rc && s < RH_STREAMS; s++)
		if (on->last[s] >= 0)
			rc = ops->event_sync(on->pool[2 * on->last[s] + 1]);
	for (; !rc && on->timed < on->spans.count; on->timed++) {
		on->spans.span[on->timed].from_ns = ops->event_time_ns(on->pool[2 * on->timed]);
		on->spans.span[on->timed].to_ns = ops->event_time_ns(on->pool[2 * on->timed + 1]);
	}
	int fault = ops->synchronize(on->inner);
	return rc ? rc : fault;
}

/* After a step: the device is idle and its spans have their times. */
static void end_step(struct traced *on)
{
	count_launches(on);
	if (on->spans.count && on->timed == on->spans.count)
		spans_step(&on->spans, on->base.index, chrome);
	on->spans.count = on->timed = 0;
	for (size_t i = 0; i < on->marks; i++)
		on->mark[i].span = -1;
	for (int s = 0; s < RH_STREAMS; s++)
		on->last[s] = on->waited[s] = -1;
}

static void traced_memory(struct rh_device *base, struct rh_device_memory *out)
{
	own(base)->inner->ops->memory(own(base)->inner, out);
}

static int traced_reserve(struct rh_device *base, int64_t bytes, void **out)
{
	return own(base)->inner->ops->reserve(own(base)->inner, bytes, out);
}

static int traced_event_create(struct rh_device *base, enum rh_event_use use, struct rh_event **out)
{
	return own(base)->inner->ops->event_create(own(base)->inner, use, out);
}

static int traced_pin(struct rh_device *base, void *host, int64_t bytes)
{
	return own(base)->inner->ops->pin ? own(base)->inner->ops->pin(own(base)->inner, host, bytes) : 0;
}

static void traced_unpin(struct rh_device *base, void *host, int64_t bytes)
{
	if (own(base)->inner->ops->unpin)
		own(base)->inner->ops->unpin(own(base)->inner, host, bytes);
}

/* Of what a plan leaves of a GPU to kernels and libraries, which go there when first used: what a run has left. Below 0, one that used all
 * of its room would have ended. */
static void tell_room(struct traced *on)
{
	struct rh_device_memory memory = {0};
	on->inner->ops->memory(on->inner, &memory);
	int64_t left = memory.free_bytes - (room - memory.reserved_bytes);
	spent |= left < 0;
	bench_line("room", "\"what\": \"memory left for the GPU's libraries\", \"value\": %.1f, \"unit\": \"MiB\"", (double)left / 0x1p20);
}

static void traced_close(struct rh_device *base)
{
	struct traced *on = own(base);
	if (is_cuda(on->inner) && device_count == 1) /* several may share a GPU */
		tell_room(on);
	for (size_t i = 0; i < on->pool_count; i++)
		on->pool[i]->ops->event_destroy(on->pool[i]);
	on->inner->ops->close(on->inner);
	rh_free(on->pool);
	on->pool = NULL;
	on->pool_count = 0;
	on->inner = NULL; /* the sums are read after the run */
}

static int wrap(struct rh_device *inner, struct rh_device **out)
{
	struct traced *on = rh_alloc(1, sizeof *on);
	if (!on)
		return -ENOMEM;
	on->table = *inner->ops;
	on->table.close = traced_close;
	on->table.memory = traced_memory;
	on->table.reserve = traced_reserve;
	on->table.event_create = traced_event_create;
	on->table.record = traced_record;
	on->table.wait = traced_wait;
	on->table.copy_up = traced_up;
	on->table.copy_down = traced_down;
	on->table.launch = traced_launch;
	on->table.synchronize = traced_synchronize;
	on->table.pin = traced_pin;
	on->table.unpin = traced_unpin;
	on->base = *inner;
	on->base.ops = &on->table;
	on->inner = inner;
	for (int s = 0; s < RH_STREAMS; s++)
		on->last[s] = on->waited[s] = -1;
	devices[device_count++] = on;
	*out = &on->base;
	return 0;
}

int __real_rh_devices_open(const char *spec, int count, int64_t cap_bytes, struct rh_devices *out);
int __wrap_rh_devices_open(const char *spec, int count, int64_t cap_bytes, struct rh_devices *out);

static int tracing;

int __wrap_rh_devices_open(const char *spec, int count, int64_t cap_bytes, struct rh_devices *out)
{
	int rc = tracing ? rh_devices_room(spec, &room) : 0;
	if (!rc)
		rc = __real_rh_devices_open(spec, count, cap_bytes, out);
	for (int i = 0; tracing && !rc && i < out->count && device_count < 64; i++)
		rc = wrap(out->device[i], &out->device[i]);
	return rc;
}

/* A traced run leaves no model: of the 8B that is 16 GB which nobody reads. */
int __real_rh_output_save(const struct rh_session *session, const char *dir);
int __wrap_rh_output_save(const struct rh_session *session, const char *dir);

int __wrap_rh_output_save(const struct rh_session *session, const char *dir)
{
	return tracing ? 0 : __real_rh_output_save(session, dir);
}

int __real_rh_executor_finish(struct rh_executor *executor);
int __wrap_rh_executor_finish(struct rh_executor *executor);

/* Of joined steps the next one's slots may be enqueued: they count here. The executor does not wait for these steps' devices itself. */
int __wrap_rh_executor_finish(struct rh_executor *executor)
{
	int rc = __real_rh_executor_finish(executor);
	for (int d = 0; d < device_count; d++) {
		if (!rc)
			rc = traced_synchronize(&devices[d]->base);
		end_step(devices[d]);
	}
	return rc;
}

/* argv: the trace's file, then a configuration and keys as of `roundhouse train`. */
int bench_trace(int argc, char **argv)
{
	struct rh_config config;
	struct rh_train_result result;
	chrome = fopen(argv[0], "w");
	if (!chrome)
		return rh_fail(-errno, "%s: cannot be written", argv[0]);
	fputs("[", chrome);
	int rc = rh_config_load("train", argc - 1, argv + 1, NULL, &config);
	if (!rc) {
		tracing = 1;
		rc = rh_train(&config, &result);
		rh_config_free(&config);
	}
	fputs("{}]\n", chrome);
	if (fclose(chrome) && !rc)
		rc = rh_fail(-EIO, "%s: cannot be written", argv[0]);
	if (!rc && spent)
		rc = rh_fail(-ENOMEM, "kernels and libraries took more of the GPU's memory than plans leave them (LOADED_LATER_BYTES)");
	for (int d = 0; d < device_count; d++) {
		if (!rc && !devices[d]->spans.steps)
			rc = rh_fail(-EINVAL, "no step but the first was seen: there is nothing to report");
		if (!rc)
			spans_report(&devices[d]->spans, d, result.tokens_per_second);
		rh_free(devices[d]->spans.span);
		rh_free(devices[d]->mark);
		rh_free(devices[d]);
	}
	return rc;
}
