#include "observe/trace.h"

#include "core/alloc.h"

#include <math.h>
#include <stdlib.h>

const char *rh_span_name(enum rh_span_kind kind)
{
	static const char *const names[RH_SPAN_KINDS] = {"forward",    "fused", "recompute", "backward",  "weight gradient",
	                                                 "dequantise", "copy",  "update",    "NVMe read", "NVMe write"};
	return names[kind];
}

const char *rh_device_lane_name(int lane)
{
	static const char *const names[RH_DEVICE_LANES] = {"compute", "weights up", "activations up", "activations down", "gradients down"};
	return names[lane];
}

int rh_trace_create(int devices, size_t capacity, struct rh_trace *out)
{
	*out = (struct rh_trace){.span = rh_alloc(capacity, sizeof *out->span), .capacity = capacity, .devices = devices};
	if (!out->span)
		return -ENOMEM;
	pthread_mutex_init(&out->lock, NULL);
	return 0;
}

void rh_trace_free(struct rh_trace *trace)
{
	if (!trace->span)
		return;
	rh_free(trace->span);
	pthread_mutex_destroy(&trace->lock);
	*trace = (struct rh_trace){0};
}

struct rh_trace_span *rh_trace_add(struct rh_trace *trace, const struct rh_trace_span *span)
{
	struct rh_trace_span *now = NULL;
	pthread_mutex_lock(&trace->lock);
	if (trace->spans < trace->capacity) {
		now = &trace->span[trace->spans++];
		*now = *span;
	} else {
		trace->forgotten++;
	}
	pthread_mutex_unlock(&trace->lock);
	return now;
}

static int by_place(const void *a, const void *b)
{
	const struct rh_trace_span *x = a, *y = b;
	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	if (x->lane != y->lane)
		return x->lane < y->lane ? -1 : 1;
	if (x->begin_s < y->begin_s || x->begin_s > y->begin_s)
		return x->begin_s < y->begin_s ? -1 : 1;
	return (x->end_s > y->end_s) - (x->end_s < y->end_s);
}

static int is_transfer(const struct rh_trace_span *span)
{
	return span->kind == RH_SPAN_READ || span->kind == RH_SPAN_WRITE;
}

/* Transfers from and to NVMe count from the first of the other spans to the last, and those that overlap are one. */
static void join_transfers(struct rh_trace *trace)
{
	size_t kept = 0;
	for (size_t i = 0; i < trace->spans; i++) {
		struct rh_trace_span *span = &trace->span[i], *last = kept ? &trace->span[kept - 1] : NULL;
		if (is_transfer(span)) {
			span->begin_s = fmax(span->begin_s, 0);
			span->end_s = fmin(span->end_s, trace->seconds);
			if (span->end_s <= span->begin_s)
				continue;
		}
		if (is_transfer(span) && last && last->kind == span->kind && span->begin_s <= last->end_s) {
			last->end_s = fmax(last->end_s, span->end_s);
			last->bytes += span->bytes;
		} else {
			trace->span[kept++] = *span;
		}
	}
	trace->spans = kept;
}

void rh_trace_resolve(struct rh_trace *trace)
{
	double first = HUGE_VAL;
	for (size_t i = 0; i < trace->spans; i++)
		if (!is_transfer(&trace->span[i]))
			first = fmin(first, trace->span[i].begin_s);
	trace->seconds = 0;
	for (size_t i = 0; i < trace->spans; i++) {
		struct rh_trace_span *span = &trace->span[i];
		span->begin_s -= first;
		span->end_s = fmax(span->end_s - first, span->begin_s);
		if (!is_transfer(span))
			trace->seconds = fmax(trace->seconds, span->end_s);
	}
	if (trace->spans)
		qsort(trace->span, trace->spans, sizeof *trace->span, by_place);
	join_transfers(trace);
}
