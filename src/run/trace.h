/* What each stream of each device did when, in one step of the executor: recorded by events, so that a run on a real device and one in
 * virtual time leave the same recording. */
#ifndef RH_RUN_TRACE_H
#define RH_RUN_TRACE_H

#include "device/device.h"

enum rh_span_kind {
	RH_SPAN_FORWARD,
	RH_SPAN_FUSED,
	RH_SPAN_RECOMPUTE,
	RH_SPAN_BACKWARD,
	RH_SPAN_WEIGHT_GRADIENT,
	RH_SPAN_COPY,   /* on a stream that is not the compute stream */
	RH_SPAN_UPDATE, /* the host's: device -1 */
	RH_SPAN_KINDS
};
const char *rh_span_name(enum rh_span_kind kind);

struct rh_trace_span {
	enum rh_span_kind kind;
	int device, lo, hi; /* layers [lo, hi) */
	enum rh_stream stream;
	int64_t micro_batch; /* -1: of none */
	int64_t bytes;
	double begin_s, end_s; /* since the recording began; set by rh_trace_resolve */
	struct rh_event *begin, *end;
};

struct rh_trace {
	struct rh_trace_span *span;
	size_t spans, capacity;
	int64_t forgotten; /* spans that did not fit */
	int devices;
	double seconds; /* of the whole */
};

/* Room for so many spans; events are made as they are first needed, and used again. */
int rh_trace_create(int devices, size_t capacity, struct rh_trace *out) RH_MUST;
void rh_trace_free(struct rh_trace *trace);
/* Forgets what was recorded. */
void rh_trace_reset(struct rh_trace *trace);

/* Around what is enqueued on a stream. trace NULL, or full: nothing is recorded. rh_trace_begin returns what rh_trace_end wants. */
int rh_trace_begin(struct rh_trace *trace, struct rh_device *device, const struct rh_trace_span *span, struct rh_trace_span **out) RH_MUST;
int rh_trace_end(struct rh_device *device, struct rh_trace_span *span) RH_MUST;

/* Once all streams are idle. Spans are then in order of device, stream and time; events are given back. */
void rh_trace_resolve(struct rh_trace *trace);

/* Chrome's trace format (chrome://tracing, Perfetto). */
struct rh_text;
int rh_trace_json(const struct rh_trace *trace, const char *name, struct rh_text *out) RH_MUST;
/* A picture of the lanes: one for each device's computation, one for its copies, the host's. */
int rh_trace_svg(const struct rh_trace *trace, const char *title, struct rh_text *out) RH_MUST;
/* In text, `columns` wide: a line a device. */
int rh_trace_text(const struct rh_trace *trace, int columns, struct rh_text *out) RH_MUST;

#endif
