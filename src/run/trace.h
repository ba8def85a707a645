/* What each stream of each device did when, in one step of the executor, and the host beside it. Devices' spans are recorded by events, so
 * that a run on a real device and one in virtual time leave the same recording. */
#ifndef RH_RUN_TRACE_H
#define RH_RUN_TRACE_H

#include "device/device.h"

#include <pthread.h>

enum rh_span_kind {
	RH_SPAN_FORWARD,
	RH_SPAN_FUSED,
	RH_SPAN_RECOMPUTE,
	RH_SPAN_BACKWARD,
	RH_SPAN_WEIGHT_GRADIENT,
	RH_SPAN_COPY, /* on a stream that is not the compute stream */
	RH_SPAN_UPDATE,
	RH_SPAN_READ, /* from NVMe */
	RH_SPAN_WRITE,
	RH_SPAN_KINDS
};
const char *rh_span_name(enum rh_span_kind kind);

/* Lanes of the host, which is device -1. A device's are its streams. */
enum rh_host_lane { RH_HOST_LANE_UPDATES, RH_HOST_LANE_READS, RH_HOST_LANE_WRITES, RH_HOST_LANES };

struct rh_trace_span {
	enum rh_span_kind kind;
	int device, lane;
	int lo, hi;          /* layers [lo, hi) */
	int64_t micro_batch; /* -1: of none */
	int64_t bytes;
	double begin_s, end_s;        /* since the recording began; until rh_trace_resolve on the device's clock */
	struct rh_event *begin, *end; /* until rh_trace_settle, of a device's */
};

struct rh_trace {
	struct rh_trace_span *span;
	size_t spans, capacity;
	int64_t forgotten; /* spans that did not fit */
	int devices;
	double seconds;       /* of the whole */
	pthread_mutex_t lock; /* of spans and forgotten, while a step is recorded */
};

/* Room for so many spans. rh_trace_free of one that was never created, all zero, is legal. */
int rh_trace_create(int devices, size_t capacity, struct rh_trace *out) RH_MUST;
void rh_trace_free(struct rh_trace *trace);

/* Around what is enqueued on stream span->lane. trace NULL, or full: nothing is recorded. rh_trace_begin returns what rh_trace_end wants.
 */
int rh_trace_begin(struct rh_trace *trace, struct rh_device *device, const struct rh_trace_span *span, struct rh_trace_span **out) RH_MUST;
int rh_trace_end(struct rh_device *device, struct rh_trace_span *span) RH_MUST;
/* A span that is over, from any thread. Those of NVMe may overlap: they are joined by rh_trace_resolve. */
void rh_trace_add(struct rh_trace *trace, const struct rh_trace_span *span);

/* Once all streams are idle: times are read off the events, which are given back. */
void rh_trace_settle(struct rh_trace *trace);
/* The end: spans are then in order of device (the host first), lane and time. */
void rh_trace_resolve(struct rh_trace *trace);

/* Chrome's trace format (chrome://tracing, Perfetto): process 0 is the host, d + 1 device d; threads are lanes. */
struct rh_text;
int rh_trace_json(const struct rh_trace *trace, const char *title, struct rh_text *out) RH_MUST;
/* A picture of the lanes: for each device one of its computation and one of each direction of copies; the host's. */
int rh_trace_svg(const struct rh_trace *trace, const char *title, struct rh_text *out) RH_MUST;
/* In text, `columns` wide: a line a device, and one for the host's updates where there were any. */
int rh_trace_text(const struct rh_trace *trace, int columns, struct rh_text *out) RH_MUST;

#endif
