/* A step's recording: what devices do, by events (work.h), and what the host does beside them, as the updater and the space tell it. */
#include "run/executor_internal.h"
#include "run/trace.h"

static int layer_of(const struct rh_model *model, int block)
{
	int l = 0;
	while (l < model->layers - 1 && model->layer[l].block[0] != block && model->layer[l].block[1] != block)
		l++;
	return l;
}

static void did(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s)
{
	static const enum rh_span_kind kind[] = {
	        [RH_WATCHED_UPDATE] = RH_SPAN_UPDATE, [RH_WATCHED_READ] = RH_SPAN_READ, [RH_WATCHED_WRITE] = RH_SPAN_WRITE};
	static const enum rh_host_lane lane[] = {[RH_WATCHED_UPDATE] = RH_HOST_LANE_UPDATES,
	                                         [RH_WATCHED_READ] = RH_HOST_LANE_READS,
	                                         [RH_WATCHED_WRITE] = RH_HOST_LANE_WRITES};
	struct rh_executor *executor = context;
	struct rh_trace_span span = {.kind = kind[what],
	                             .device = -1,
	                             .lane = (int)lane[what],
	                             .micro_batch = -1,
	                             .bytes = bytes,
	                             .begin_s = began_s,
	                             .end_s = ended_s};
	if (block >= 0) {
		span.lo = layer_of(executor->options.model, block);
		span.hi = span.lo + 1;
	}
	rh_trace_add(executor->trace, &span);
}

void rh_executor_trace(struct rh_executor *executor, struct rh_trace *trace, int64_t step)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_watch watch = {did, executor};
	struct rh_space *space = rh_store_options(options->store)->space;
	if (trace) { /* before anyone tells of anything */
		executor->trace = trace;
		executor->traced_step = step;
	}
	if (options->updater)
		rh_updater_watch(options->updater, trace ? &watch : NULL, step);
	if (space)
		rh_space_watch(space, trace ? &watch : NULL);
	if (!trace)
		executor->trace = NULL;
}
