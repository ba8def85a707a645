/* What lanes tell the optimizer and ask it, and what the host adds itself. */
#include "run/executor_internal.h"

/* 1: all that the command waits for has ended; 0: not yet, and the host may not wait; or a fault. */
static int has_settled(struct rh_executor *executor, const struct rh_command *command, int may_wait)
{
	if (!may_wait)
		return executor->copies.staging ? 0 : dispatcher_waits_have_ended(executor, command);
	int rc = issue_await(executor, command, RH_STREAMS);
	return rc ? rc : 1;
}

/* The staging's thread calls this when a gradient's copy through the staging has arrived. */
static void arrives_staged(void *context, int which)
{
	struct rh_executor *executor = context;
	int block = which / executor->options.planned.devices;
	rh_updater_arrives(executor->options.updater, block, executor->downloaded[which]);
	atomic_store_explicit(&executor->arriving[block], 0, memory_order_release);
}

/* 1: told; 0: not yet; or a fault. */
static int tell_arrived(struct rh_executor *executor, const struct rh_command *command, int may_wait)
{
	const struct rh_executor_options *options = &executor->options;
	int b = command->block, device = command->sender;
	int64_t bytes = rh_dtype_bytes(options->model->dtype, options->model->block[b].elements);
	if (options->model->block[b].uses == 2 || device < 0) {
		int rc = has_settled(executor, command, may_wait);
		if (rc > 0) {
			run_table_arrives(executor, command);
			rh_updater_arrives(options->updater, b, NULL);
		}
		return rc;
	}
	int is_by_rows = command->source.room == RH_ROOM_HOST_ROWS;
	if (is_by_rows || !rh_host_is_staged(&executor->copies, rh_store_gradient(options->store, b), bytes)) {
		run_table_arrives(executor, command);
		rh_updater_arrives(options->updater, b, executor->downloaded[b * options->planned.devices + device]);
		return 1;
	}
	int rc = may_wait ? rh_host_copies_finish(&executor->copies) : 0;
	return rc ? rc : !atomic_load_explicit(&executor->arriving[b], memory_order_acquire);
}

int dispatcher_stage_arrival(struct rh_executor *executor, int device, int block)
{
	atomic_store_explicit(&executor->arriving[block], 1, memory_order_relaxed);
	return rh_staging_then(executor->copies.staging, arrives_staged, executor, block * executor->options.planned.devices + device);
}

/* The host's addition, once the device has sent what is added. */
static int add_use(struct rh_executor *executor, const struct rh_command *command, int may_wait)
{
	struct rh_updater *updater = executor->options.updater;
	int64_t each = rh_dtype_bytes(executor->options.model->dtype, 1);
	int rc = has_settled(executor, command, may_wait);
	if (rc <= 0)
		return rc;
	if (updater)
		rh_updater_pause(updater);
	rh_store_add_use(executor->options.store, command->block, command->target.first / each, command->target.bytes / each,
	                 (const float *)(void *)run_host_address(executor, command->source));
	if (updater)
		rh_updater_resume(updater);
	return 1;
}

/* While the last step is being finished an update's fault is not returned here: the next step returns it, or the norm. */
static int served(const struct rh_executor *executor, int rc)
{
	if (rc && executor->dispatcher.is_ending)
		rh_error_clear();
	return rc ? rc * !executor->dispatcher.is_ending : 1;
}

/* 1: done; 0: not yet; or a fault. */
static int serve(struct rh_executor *executor, const struct rh_command *command, int may_wait)
{
	struct rh_updater *updater = executor->options.updater;
	switch (command->kind) {
	case RH_COMMAND_GRADIENT_ARRIVED:
		return tell_arrived(executor, command, may_wait);
	case RH_COMMAND_UPLOADS_OVER:
		/* of devices that have not uploaded the block the events are of an earlier step */
		rh_updater_uploaded(updater, command->block, &executor->uploaded[command->block * executor->options.planned.devices],
		                    executor->options.planned.devices);
		return 1;
	case RH_COMMAND_WEIGHTS_READY:
		if (!rh_updater_has_weights(updater, command->block))
			return 0;
		return served(executor, rh_updater_await_weights(updater, command->block));
	case RH_COMMAND_GRADIENT_TAKEN:
		if (!rh_updater_has_gradient(updater, command->block))
			return 0;
		return served(executor, rh_updater_await_gradient(updater, command->block));
	case RH_COMMAND_HOST_ADD:
		return add_use(executor, command, may_wait);
	default:
		return 1;
	}
}

int dispatcher_serve(struct rh_executor *executor, int may_wait)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	dispatcher->is_due = 0;
	dispatcher->changes = executor->options.updater ? rh_updater_changes(executor->options.updater) : 0;
	int any = dispatcher_serve_drives(executor);
	if (any < 0)
		return any;
	struct dispatch_ready *ready = &dispatcher->ready[executor->options.planned.devices];
	for (int i = 0; i < ready->count; i++) {
		int lane = ready->lane[i], rc = 1;
		while (rc > 0 && dispatcher_is_ready(dispatcher, lane)) {
			rc = serve(executor, &dispatcher->lane[lane].head->lowered, may_wait && !any);
			if (rc <= 0)
				break;
			dispatcher_end_head(executor, lane);
			any = 1;
		}
		if (rc < 0)
			return rc;
		if (!dispatcher_is_ready(dispatcher, lane))
			dispatcher_unlist(dispatcher, ready, i--);
	}
	return any;
}
