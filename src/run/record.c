#include "run/record.h"

#include "core/alloc.h"
#include "run/executor_internal.h"

struct rh_recorder {
	struct rh_executor *executor;
};

int rh_recorder_create(struct rh_executor *executor, struct rh_recorder **out)
{
	struct rh_recorder *recorder = rh_alloc(1, sizeof *recorder);
	if (!recorder)
		return -ENOMEM;
	recorder->executor = executor;
	executor->lowering.ring.keeps = 1;
	executor->lowering.lanes.first = executor->lowering.ring.end;
	*out = recorder;
	return 0;
}

void rh_recorder_destroy(struct rh_recorder *recorder)
{
	if (recorder)
		recorder->executor->lowering.ring.keeps = 0;
	rh_free(recorder);
}

const struct rh_lanes *rh_recorder_lanes(const struct rh_recorder *recorder)
{
	return &recorder->executor->lowering.lanes;
}

void rh_recorder_rooms(const struct rh_recorder *recorder, struct rh_check_options *out)
{
	const struct rh_executor *executor = recorder->executor;
	const struct rh_executor_options *options = &executor->options;
	*out = (struct rh_check_options){.model = options->model,
	                                 .plan = options->plan,
	                                 .devices = options->devices,
	                                 .stale = options->stale,
	                                 .crosses_rounds = rh_store_options(options->store)->crosses_rounds};
	rh_check_rooms(out, executor->micro_batches);
	out->room[RH_ROOM_HOST_BOUNDARY] = (struct rh_check_room){executor->needs.count, executor->needs.bytes_each};
	out->room[RH_ROOM_RECORD] = (struct rh_check_room){executor->needs.records, executor->needs.bytes_each};
	if (options->page_bytes)
		out->room[RH_ROOM_HOST_FRAME] = (struct rh_check_room){LOWER_FRAMES, options->page_bytes};
	out->room[RH_ROOM_HOST_FOLD] = (struct rh_check_room){2, LOWER_FOLD_ELEMENTS * 4};
}

int rh_recorder_flushed(struct rh_recorder *recorder, int64_t step)
{
	lower_flush(&recorder->executor->lowering, step);
	return dispatcher_take(recorder->executor, DISPATCH_DONE);
}
