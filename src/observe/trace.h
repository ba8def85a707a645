/* Records what each stream of each device, and the host, did during one step of the executor, and draws it. src/run/spans.c records
 * devices. */
#ifndef RH_OBSERVE_TRACE_H
#define RH_OBSERVE_TRACE_H

#include "core/error.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum rh_span_kind {
	RH_SPAN_FORWARD,
	RH_SPAN_FUSED,
	RH_SPAN_RECOMPUTE,
	RH_SPAN_BACKWARD,
	RH_SPAN_WEIGHT_GRADIENT,
	RH_SPAN_DEQUANTISE, /* of a stage's packed weights */
	RH_SPAN_COPY,       /* on a stream that is not the compute stream */
	RH_SPAN_UPDATE,
	RH_SPAN_READ, /* from NVMe */
	RH_SPAN_WRITE,
	RH_SPAN_KINDS
};
const char *rh_span_name(enum rh_span_kind kind);

/* Lanes of a device are its streams, computation first (enum rh_stream). Those of the host, which is device -1: */
enum { RH_DEVICE_LANES = 5 };
enum rh_host_lane { RH_HOST_LANE_UPDATES, RH_HOST_LANE_READS, RH_HOST_LANE_WRITES, RH_HOST_LANES };

struct rh_trace_span {
	enum rh_span_kind kind;
	int device, lane;
	int lo, hi;          /* layers [lo, hi) */
	int64_t micro_batch; /* -1: of none */
	int64_t bytes;
	double begin_s, end_s; /* since the recording began; until rh_trace_resolve on its clock */
};

/* Of the recording of one step: its most spans, and what one takes at most, with its two events and its line of JSON. */
enum { RH_TRACE_STEP_SPANS = 1 << 16, RH_TRACE_SPAN_BYTES = 768 };

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

/* From any thread. The trace's copy, which stays where it is; NULL: there is no room. Spans of NVMe may overlap: rh_trace_resolve joins
 * them. */
struct rh_trace_span *rh_trace_add(struct rh_trace *trace, const struct rh_trace_span *span);
/* The end: spans are then in order of device (the host first), lane and time. */
void rh_trace_resolve(struct rh_trace *trace);

/* Chrome's trace format (chrome://tracing, Perfetto): process 0 is the host, d + 1 device d; threads are lanes. */
struct rh_text;
int rh_trace_json(const struct rh_trace *trace, const char *title, struct rh_text *out) RH_MUST;
const char *rh_device_lane_name(int lane);
/* A picture of the lanes: for each device one of its computation and one of each direction of copies; the host's. */
int rh_trace_svg(const struct rh_trace *trace, const char *title, struct rh_text *out) RH_MUST;
/* In text, `columns` wide: a line a device, and one for the host's updates where there were any. */
int rh_trace_text(const struct rh_trace *trace, int columns, struct rh_text *out) RH_MUST;

#endif
