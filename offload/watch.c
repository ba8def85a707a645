#include "offload/watch.h"

#include "model/model.h"
#include "observe/trace.h"

static int layer_of(const struct rh_model *model, int block)
{
	int l = 0;
	while (l < model->layers - 1 && !rh_layer_has_block(&model->layer[l], block))
		l++;
	return l;
}

void rh_watch_trace_notify(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s)
{
	static const enum rh_span_kind kind[] = {
	        [RH_WATCHED_UPDATE] = RH_SPAN_UPDATE, [RH_WATCHED_READ] = RH_SPAN_READ, [RH_WATCHED_WRITE] = RH_SPAN_WRITE};
	static const enum rh_host_lane lane[] = {[RH_WATCHED_UPDATE] = RH_HOST_LANE_UPDATES,
	                                         [RH_WATCHED_READ] = RH_HOST_LANE_READS,
	                                         [RH_WATCHED_WRITE] = RH_HOST_LANE_WRITES};
	const struct rh_watch_trace *into = context;
	struct rh_trace_span span = {.kind = kind[what],
	                             .device = -1,
	                             .lane = (int)lane[what],
	                             .micro_batch = -1,
	                             .bytes = bytes,
	                             .begin_s = began_s,
	                             .end_s = ended_s};
	if (block >= 0) {
		span.lo = layer_of(into->model, block);
		span.hi = span.lo + 1;
	}
	(void)rh_trace_add(into->trace, &span);
}
