/* Keeps what an executor lowers, for the checker. */
#include "run/check.h"
#include "run/executor_internal.h"

void rh_record_begin(struct rh_executor *executor)
{
	executor->lowering.ring.keeps = 1;
	executor->lowering.lanes.first = executor->lowering.ring.end;
}

void rh_record_end(struct rh_executor *executor)
{
	executor->lowering.ring.keeps = 0;
}

const struct rh_lanes *rh_record_lanes(const struct rh_executor *executor)
{
	return &executor->lowering.lanes;
}

void rh_record_rooms(const struct rh_executor *executor, struct rh_check_options *out)
{
	const struct rh_executor_options *options = &executor->options;
	*out = (struct rh_check_options){.model = options->model,
	                                 .plan = options->plan,
	                                 .devices = options->planned.devices,
	                                 .chunks = options->planned.chunks,
	                                 .stale = options->planned.stale,
	                                 .crosses_rounds = rh_store_options(options->store)->crosses_rounds};
	const struct rh_boundary_needs *needs = &executor->lowering.limits.boundaries;
	rh_check_rooms(out, executor->lowering.limits.micro_batches);
	out->room[RH_ROOM_HOST_BOUNDARY] = (struct rh_room_size){needs->count, needs->bytes_each};
	if (needs->sizes) /* buffers of several sizes are one piece */
		out->room[RH_ROOM_HOST_BOUNDARY] = (struct rh_room_size){1, needs->bytes};
	out->room[RH_ROOM_RECORD] = (struct rh_room_size){needs->records, needs->bytes_each};
	if (options->page_bytes)
		out->room[RH_ROOM_HOST_FRAME] = (struct rh_room_size){LOWER_FRAMES, options->page_bytes};
	out->room[RH_ROOM_HOST_ROWS] = (struct rh_room_size){run_table_steps(options), run_table_stride(options)};
	out->room[RH_ROOM_HOST_FOLD] = (struct rh_room_size){2, LOWER_FOLD_ELEMENTS * 4};
}

int rh_record_flushed(struct rh_executor *executor, int64_t step)
{
	lower_flush(&executor->lowering, step);
	return dispatcher_take(executor, DISPATCH_DONE);
}
