/* What a device did in a step, as spans of time on its streams, and the sums over a run's steps but the first. */
#ifndef RH_BENCH_GPU_SPANS_H
#define RH_BENCH_GPU_SPANS_H

#include "device/device.h"

#include <stdio.h>

/* What an op of the compute stream waited for while the stream was idle. */
enum span_cause {
	SPAN_NOTHING,
	SPAN_COMPUTE,
	SPAN_WEIGHTS,
	SPAN_ACTIVATIONS,
	SPAN_GRADIENTS,
	SPAN_ELSEWHERE,
	SPAN_HOST,
	SPAN_LAUNCH,
	SPAN_CAUSES
};

struct span {
	const char *name;
	enum rh_stream stream;
	double flops, bytes;
	int64_t enqueued_ns, host_ns; /* when the host asked for it, and how long the asking took */
	int64_t from_ns, to_ns;
	int64_t waited; /* span of this device that it waited for, or -1 */
	enum span_cause cause;
};

struct spans {
	struct span *span;
	size_t count, capacity;
	/* of all steps but the first */
	int64_t steps, ops, copies, launches;                                      /* launches: of kernels and products */
	int64_t searches;                                                          /* of products' algorithms, with cuBLASLt's heuristics */
	int64_t evictions;                                                         /* of algorithms from their table */
	double wall, compute, up, down, up_hidden, down_hidden, idle[SPAN_CAUSES]; /* seconds */
	double bytes_up, bytes_down, bulk_bytes[2], bulk_seconds[2];               /* bulk: copies of a MiB or more, up and down; seconds
	                                                                              in which any was under way */
	const char *longest;                                                       /* op of the compute stream */
	int64_t longest_ns;
	double flops, host_seconds; /* host: enqueueing ops */
	double between;             /* from a step's end to the next one's start: the host's optimizer, and what else it does then */
	int64_t last_end;           /* ns */
	int64_t seen;
};

/* Adds the spans of one step; `chrome`, if any, gets them as events of a Chrome trace in the run's second step. */
void spans_step(struct spans *spans, int device, FILE *chrome);
/* One line of JSON. */
void spans_report(const struct spans *spans, int device, double tokens_per_second);

#endif
