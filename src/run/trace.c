#include "run/trace.h"

#include "core/alloc.h"

#include <math.h>
#include <stdlib.h>

const char *rh_span_name(enum rh_span_kind kind)
{
	static const char *const names[RH_SPAN_KINDS] = {"forward", "fused", "recompute", "backward", "weight gradient", "copy", "update"};
	return names[kind];
}

int rh_trace_create(int devices, size_t capacity, struct rh_trace *out)
{
	*out = (struct rh_trace){.span = rh_alloc(capacity, sizeof *out->span), .capacity = capacity, .devices = devices};
	return out->span ? 0 : -ENOMEM;
}

static void drop_events(struct rh_trace *trace)
{
	for (size_t i = 0; i < trace->spans; i++) {
		struct rh_trace_span *span = &trace->span[i];
		if (span->begin)
			span->begin->ops->event_destroy(span->begin);
		if (span->end)
			span->end->ops->event_destroy(span->end);
		span->begin = span->end = NULL;
	}
}

void rh_trace_reset(struct rh_trace *trace)
{
	drop_events(trace);
	trace->spans = 0;
	trace->forgotten = 0;
	trace->seconds = 0;
}

void rh_trace_free(struct rh_trace *trace)
{
	drop_events(trace);
	rh_free(trace->span);
	*trace = (struct rh_trace){0};
}

int rh_trace_begin(struct rh_trace *trace, struct rh_device *device, const struct rh_trace_span *span, struct rh_trace_span **out)
{
	*out = NULL;
	if (!trace)
		return 0;
	if (trace->spans == trace->capacity) {
		trace->forgotten++;
		return 0;
	}
	struct rh_trace_span *now = &trace->span[trace->spans];
	*now = *span;
	int rc = device->ops->event_create(device, &now->begin);
	if (!rc)
		trace->spans++;
	if (!rc)
		rc = device->ops->event_create(device, &now->end);
	if (!rc)
		rc = device->ops->record(device, span->stream, now->begin);
	if (!rc)
		*out = now;
	return rc;
}

int rh_trace_end(struct rh_device *device, struct rh_trace_span *span)
{
	return span ? device->ops->record(device, span->stream, span->end) : 0;
}

static int by_place(const void *a, const void *b)
{
	const struct rh_trace_span *x = a, *y = b;
	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	if (x->stream != y->stream)
		return x->stream < y->stream ? -1 : 1;
	if (x->begin_s < y->begin_s || x->begin_s > y->begin_s)
		return x->begin_s < y->begin_s ? -1 : 1;
	return (x->end_s > y->end_s) - (x->end_s < y->end_s);
}

void rh_trace_resolve(struct rh_trace *trace)
{
	double first = HUGE_VAL;
	for (size_t i = 0; i < trace->spans; i++) {
		struct rh_trace_span *span = &trace->span[i];
		if (span->begin) {
			span->begin_s = (double)span->begin->ops->event_time_ns(span->begin) * 1e-9;
			span->end_s = (double)span->end->ops->event_time_ns(span->end) * 1e-9;
		}
		first = fmin(first, span->begin_s);
	}
	drop_events(trace);
	trace->seconds = 0;
	for (size_t i = 0; i < trace->spans; i++) {
		struct rh_trace_span *span = &trace->span[i];
		span->begin_s -= first;
		span->end_s = fmax(span->end_s - first, span->begin_s);
		trace->seconds = fmax(trace->seconds, span->end_s);
	}
	if (trace->spans)
		qsort(trace->span, trace->spans, sizeof *trace->span, by_place);
}
