/* A command becomes calls of its device: waits, the copy or the launches, and records of what others wait for. Numbers become addresses
 * here and nowhere else. */
#include "core/minmax.h"
#include "run/executor_internal.h"

enum { MARK_LAUNCHES = 24 }; /* launches between two marks, which tell the dispatcher how far a device has come */

static const struct rh_lane *lane_of(const struct rh_executor *executor, const struct rh_command *command)
{
	return &executor->lowering.lanes.lane[command->lane];
}

static int stream_of(const struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_lane *lane = lane_of(executor, command);
	return lower_lane(lane->owner, lane->stream);
}

/* ---- order ---- */

int issue_mark(struct rh_executor *executor, const struct ring_command *command, const struct rh_stream_mark **out)
{
	int stream = stream_of(executor, &command->lowered);
	int64_t launched = executor->dispatcher.device[stream / RH_STREAMS].launched;
	return rh_marks_find(&executor->dispatcher.stream[stream].marks, command->sequence, launched, out);
}

static int wait_for(struct rh_executor *executor, const struct rh_command *command, const struct ring_command *other)
{
	int own = stream_of(executor, command), stream = stream_of(executor, &other->lowered);
	struct rh_device *device = executor->options.device[own / RH_STREAMS];
	int64_t *seen = &executor->dispatcher.stream[own].seen[stream];
	const struct rh_stream_mark *mark;
	if (own == stream || *seen >= other->sequence)
		return 0;
	int rc = issue_mark(executor, other, &mark);
	if (rc)
		return rc;
	*seen = mark->issued;
	struct rh_stalls *stalls = own % RH_STREAMS == RH_STREAM_COMPUTE ? run_stalls_of(executor, command) : NULL;
	if (stalls)
		rc = rh_stalls_open(stalls, dispatcher_stall_kind(&other->lowered));
	if (!rc)
		rc = device->ops->wait(device, (enum rh_stream)(own % RH_STREAMS), mark->event);
	return rc || !stalls ? rc : rh_stalls_close(stalls);
}

static int wait_for_all(struct rh_executor *executor, const struct rh_command *command)
{
	const struct run_ring *ring = &executor->lowering.ring;
	int rc = 0;
	for (int i = 0; !rc && i < command->waits; i++) {
		const struct ring_command *other = ring_wait(ring, command, i);
		if (other && lane_of(executor, &other->lowered)->queue == RH_QUEUE_STREAM)
			rc = wait_for(executor, command, other);
	}
	return rc;
}

/* ---- copies ---- */

static char *device_address(const struct rh_executor *executor, struct rh_place place)
{
	return run_piece(executor->device[place.device].room, place.room, place.number) + place.first;
}

char *run_host_address(const struct rh_executor *executor, struct rh_place place)
{
	struct rh_store *store = executor->options.store;
	int blocks = rh_store_blocks(store), number = place.number;
	const void *base;
	switch (place.room) {
	case RH_ROOM_HOST_WEIGHTS:
		base = rh_store_weights(store, number);
		break;
	case RH_ROOM_HOST_STASH:
		base = rh_store_stashed(store, number % blocks, number / blocks);
		break;
	case RH_ROOM_HOST_GRADIENT:
		base = rh_store_gradient(store, number);
		break;
	case RH_ROOM_HOST_SUM:
		base = rh_store_sum(store, number / 2, number % 2);
		break;
	default:
		base = run_piece(executor->room, place.room, number);
	}
	return (char *)(uintptr_t)base + place.first;
}

static int copy_weights(struct rh_executor *executor, struct rh_device *device, const struct rh_command *command)
{
	struct rh_event *uploaded = executor->uploaded[command->block * executor->options.planned.devices + device->index];
	char *to = device_address(executor, command->target);
	executor->version[command->block] = rh_store_version(executor->options.store, command->block);
	int rc = run_table_index(executor, command) >= 0
	                 ? run_table_up(executor, device, command, to)
	                 : rh_host_copy_up(&executor->copies, device, RH_STREAM_WEIGHTS, to, run_host_address(executor, command->source),
	                                   command->source.bytes);
	return rc || !uploaded ? rc : device->ops->record(device, RH_STREAM_WEIGHTS, uploaded);
}

int issue_await(struct rh_executor *executor, const struct rh_command *command, enum rh_stream stream)
{
	for (int i = 0; i < command->waits; i++) {
		const struct ring_command *other = ring_wait(&executor->lowering.ring, command, i);
		const struct rh_lane *lane = other ? lane_of(executor, &other->lowered) : NULL;
		const struct rh_stream_mark *mark;
		if (!lane || lane->queue != RH_QUEUE_STREAM || (stream != RH_STREAMS && lane->stream != stream))
			continue;
		int rc = issue_mark(executor, other, &mark);
		if (!rc)
			rc = mark->event->ops->event_sync(mark->event);
		if (rc)
			return rc;
	}
	return rh_host_copies_finish(&executor->copies);
}

/* After the last piece of a gradient that the optimizer is to be told of: records the event that says so. */
static int note_gradient(struct rh_executor *executor, struct rh_device *device, const struct rh_command *command)
{
	struct rh_store *store = executor->options.store;
	int b = command->block;
	int is_by_rows = command->target.room == RH_ROOM_HOST_ROWS;
	if (!ring_of(command)->is_asked || (command->target.room != RH_ROOM_HOST_GRADIENT && !is_by_rows))
		return 0;
	int rc = device->ops->record(device, RH_STREAM_GRADIENTS,
	                             executor->downloaded[b * executor->options.planned.devices + device->index]);
	int64_t bytes = rh_dtype_bytes(executor->options.model->dtype, executor->options.model->block[b].elements);
	if (rc || is_by_rows || !rh_host_is_staged(&executor->copies, rh_store_gradient(store, b), bytes))
		return rc;
	return dispatcher_stage_arrival(executor, device->index, b);
}

/* A test has this gradient lost on its way. */
static int is_dropped(const struct rh_executor *executor, const struct rh_command *command)
{
	int dropped = executor->options.dropped_gradient - 1, number = command->target.number;
	return dropped >= 0 && ((command->target.room == RH_ROOM_HOST_GRADIENT && number == dropped) ||
	                        (command->target.room == RH_ROOM_HOST_ROWS && command->block == dropped) ||
	                        (command->target.room == RH_ROOM_HOST_SUM && number / 2 == dropped));
}

static int copy(struct rh_executor *executor, struct rh_device *device, enum rh_stream stream, const struct rh_command *command)
{
	int is_upload = command->source.device < 0, rc = 0;
	if (command->target.room == RH_ROOM_WEIGHTS)
		return copy_weights(executor, device, command);
	if (!is_upload && is_dropped(executor, command))
		return note_gradient(executor, device, command);
	if (!is_upload) {
		rc = rh_host_copy_down(&executor->copies, device, stream, run_host_address(executor, command->target),
		                       device_address(executor, command->source), command->source.bytes);
		return rc ? rc : note_gradient(executor, device, command);
	}
	const char *from = run_host_address(executor, command->source);
	if (command->source.room == RH_ROOM_HOST_SUM &&
	    rh_host_is_staged(&executor->copies, from, command->source.bytes)) /* the host reads it now, not the stream later */
		rc = issue_await(executor, command, RH_STREAM_GRADIENTS);
	return rc ? rc
	          : rh_host_copy_up(&executor->copies, device, stream, device_address(executor, command->target), from,
	                            command->source.bytes);
}

/* ---- computation ---- */

int issue_launch(void *sink, const struct rh_op *op)
{
	const struct run_device *on = sink;
	on->executor->dispatcher.device[on->index].launched++;
	return on->device->ops->launch(on->device, RH_STREAM_COMPUTE, op);
}

/* Tells emit where the blocks of the command's stage lie. */
static void name_blocks(struct run_device *on, const struct rh_command *command)
{
	const struct rh_model *model = on->executor->options.model;
	int64_t *offset = on->executor->offset;
	int is_backward = command->operands.is_backward_upload;
	if (on->stage.lo == command->stage.lo && on->stage.hi == command->stage.hi && on->stage_weights == command->operands.weights &&
	    on->is_backward_upload == is_backward)
		return;
	(void)rh_stage_plan_upload_layout(model, command->stage.lo, command->stage.hi, is_backward, offset);
	for (int b = 0; b < model->blocks; b++)
		on->emit.weights[b] = offset[b] < 0 ? NULL : on->room[RH_ROOM_WEIGHTS].base + command->operands.weights + offset[b];
	(void)rh_stage_plan_plain_layout(model, command->stage.lo, command->stage.hi, offset);
	for (int b = 0; on->emit.plain && b < model->blocks; b++)
		on->emit.plain[b] = offset[b] < 0 ? NULL : on->room[RH_ROOM_PLAIN].base + offset[b];
	(void)rh_stage_plan_gradient_layout(model, command->stage.lo, command->stage.hi, offset);
	for (int i = 0; i < 2 * model->blocks; i++)
		on->emit.gradient[i / 2][i % 2] = offset[i] < 0 ? NULL : (float *)(void *)on->room[RH_ROOM_SUMS].base + offset[i];
	on->stage = command->stage;
	on->stage_weights = command->operands.weights;
	on->is_backward_upload = is_backward;
}

static struct rh_view boundary_view(const struct run_device *on, int layer, int number)
{
	if (number < 0)
		return (struct rh_view){0};
	return rh_boundary_view(on->executor->options.model, layer, on->emit.shape.tokens, run_piece(on->room, RH_ROOM_BOUNDARY, number));
}

/* The same of a copy in 8 bits. */
static struct rh_view narrow_view(const struct run_device *on, int layer, int number)
{
	if (number < 0)
		return (struct rh_view){0};
	return rh_narrow_boundary_view(on->executor->options.model, layer, on->emit.shape.tokens,
	                               run_piece(on->room, RH_ROOM_BOUNDARY, number));
}

/* What a backward slot reads below its stage. */
static struct rh_view saved_input(const struct run_device *on, const struct rh_command *command)
{
	int is_narrow = on->executor->trains && rh_stage_plan_narrows(on->executor->options.plan, command->lo);
	return is_narrow ? narrow_view(on, command->lo, command->operands.x) : boundary_view(on, command->lo, command->operands.x);
}

/* Where mixers of the stage carry what, in training of texts in chunks: the stage's from the room's start on. */
static void name_carried(struct run_device *on, const struct rh_stage *stage)
{
	const struct rh_executor *executor = on->executor;
	int64_t first;
	on->emit.cache = on->emit.sums = on->room[RH_ROOM_CACHE].base;
	on->emit.cache_layer = executor->trains ? stage->lo : 0;
	if (executor->trains && on->emit.sums)
		on->emit.sums +=
		        rh_model_cache_range(executor->options.model, stage->lo, stage->hi, executor->options.planned.cache_rows, &first);
}

static void begin_emission(struct run_device *on, const struct rh_command *command)
{
	struct rh_executor *executor = on->executor;
	name_blocks(on, command);
	if (command->micro_batch < 0)
		return;
	on->emit.step = (uint32_t)command->step;
	on->emit.micro_batch = (uint32_t)(command->micro_batch / rh_max(executor->trains ? executor->options.planned.chunks : 1, 1));
	const struct run_book *book = run_book_of(executor, command);
	on->emit.shape = executor->lowering.batch[book->first + command->micro_batch].shape;
	on->emit.micro = run_piece(on->room, RH_ROOM_MICRO, command->operands.micro);
	on->emit.dropout = executor->trains ? executor->options.model->dropout : 0;
	on->emit.drop = executor->trains ? executor->options.model->drop : (struct rh_model_dropout){0};
	on->emit.loss_scale = book->loss_scale;
	name_carried(on, &command->stage);
	on->emit.micro_batch_share = 1 / (float)book->count;
}

static struct rh_head_out results(struct run_device *on, int number)
{
	const struct rh_executor_options *options = &on->executor->options;
	int trains = on->executor->trains;
	if (number < 0)
		return (struct rh_head_out){0};
	return rh_result_views(options->model, &on->emit.shape, rh_executor_score_cols(options, trains, &on->emit.shape),
	                       options->planned.logit_cols && !trains, run_piece(on->room, RH_ROOM_RESULT, number));
}

static struct rh_arena arena_of(const struct run_device *on, struct rh_place place)
{
	char *base = on->room[place.room].base + place.first;
	return (struct rh_arena){.base = base, .capacity = place.bytes};
}

static struct rh_stage_part part_of(const struct rh_command *command)
{
	return (struct rh_stage_part){command->lo, command->hi, command->stage.lo, command->stage.hi};
}

/* Tells emit where the stage's activations lie that are not recomputed. kept: a place, if it is one for them. */
static void begin_activations(struct run_device *on, const struct rh_command *command, struct rh_place kept)
{
	const struct rh_executor_options *options = &on->executor->options;
	const struct rh_stage_plan *plan = options->plan;
	on->emit.fates = on->executor->trains ? plan->fates : NULL;
	on->kept = kept.room == RH_ROOM_KEPT ? arena_of(on, kept) : (struct rh_arena){0};
	on->saved = (struct rh_arena){0};
	if (command->operands.saving >= 0)
		on->saved = (struct rh_arena){.base = run_piece(on->room, RH_ROOM_SAVING, command->operands.saving),
		                              .capacity = plan->saving_bytes};
}

static int forward(struct run_device *on, const struct rh_command *command)
{
	struct rh_head_out head = results(on, command->operands.result);
	int begins = command->lo == command->stage.lo, trains = on->executor->trains;
	if (begins || (trains && command->lo == rh_stage_plan_piece(on->executor->options.plan, command->stage, command->lo).lo))
		begin_activations(on, command, command->source);
	return rh_stage_forward_part(&on->emit, part_of(command), &on->pass, boundary_view(on, command->lo, command->operands.x),
	                             boundary_view(on, command->hi, command->operands.y),
	                             narrow_view(on, command->hi, command->operands.narrow), &head);
}

static int recompute(struct run_device *on, const struct rh_command *command)
{
	struct rh_head_out head = results(on, command->operands.result);
	int is_first = command->lo == command->stage.lo;
	if (is_first)
		begin_activations(on, command, command->source);
	if (is_first && command->source.room == RH_ROOM_DEFERRED) /* from here on operands of deferred weight gradients are kept there */
		on->deferred_arena = arena_of(on, command->source);
	on->emit.deferred = command->source.room == RH_ROOM_DEFERRED ? &on->deferred_arena : NULL;
	int rc = rh_stage_recompute_part(&on->emit, part_of(command), saved_input(on, command), &on->state, &head);
	on->emit.deferred = NULL;
	return rc;
}

static int backward(struct run_device *on, const struct rh_command *command)
{
	const struct rh_stage *stage = &command->stage;
	const struct rh_stage_places *places = rh_stage_plan_piece(on->executor->options.plan, *stage, stage->lo).places;
	if (command->hi == stage->hi && places && !places->recomputes) { /* all lie where the stage's forward left them */
		begin_activations(on, command, command->source);
		rh_stage_place(&on->emit, stage->lo, stage->hi, boundary_view(on, stage->lo, command->operands.x), &on->state);
	}
	on->emit.deferred = command->target.room == RH_ROOM_DEFERRED ? &on->deferred_arena : NULL;
	int rc = rh_stage_backward_part(&on->emit, part_of(command), &on->state, &on->pass,
	                                boundary_view(on, command->hi, command->operands.dy),
	                                boundary_view(on, command->lo, command->operands.dx));
	on->emit.deferred = NULL;
	return rc;
}

/* What an earlier slot of this device deferred. Of its activations only those are there that are operands. */
static int weight_gradients(struct run_device *on, const struct rh_command *command)
{
	const struct rh_stage *stage = &command->stage;
	if (command->hi == stage->hi) {
		struct rh_emit placing = on->emit;
		struct rh_arena gone = rh_arena_measuring(), operands = arena_of(on, command->source);
		placing.arena = &gone;
		placing.deferred = &operands;
		placing.fates = NULL;
		rh_stage_place(&placing, stage->lo, stage->hi, (struct rh_view){0}, &on->state);
	}
	return rh_stage_weights(&on->emit, command->lo, command->hi, &on->state);
}

/* The stage's packed weights, from where they lie. */
static int dequantise(struct run_device *on, const struct rh_command *command)
{
	const struct rh_model *model = on->executor->options.model;
	int64_t *packed = on->executor->offset, *plain = packed + model->blocks;
	(void)rh_stage_plan_upload_layout(model, command->stage.lo, command->stage.hi, command->operands.is_backward_upload, packed);
	(void)rh_stage_plan_plain_layout(model, command->stage.lo, command->stage.hi, plain);
	for (int b = 0; b < model->blocks; b++) {
		if (plain[b] < 0)
			continue;
		int rc = rh_block_make_plain(&on->emit, b, on->room[RH_ROOM_WEIGHTS].base + command->operands.weights + packed[b],
		                             on->room[RH_ROOM_PLAIN].base + command->target.first + plain[b]);
		if (rc)
			return rc;
	}
	return 0;
}

static int clear(struct run_device *on, const struct rh_command *command)
{
	struct rh_op fill = {.kind = RH_OP_FILL};
	fill.operand[RH_FILL_Y] = rh_view_of(on->room[RH_ROOM_SUMS].base + command->target.first, RH_F32, 1, command->target.bytes / 4);
	return issue_launch(on, &fill);
}

static int round_sum(struct run_device *on, const struct rh_command *command)
{
	struct rh_op cast = {.kind = RH_OP_CAST};
	int64_t elements = command->source.bytes / 4;
	cast.operand[RH_CAST_X] = rh_view_of(on->room[RH_ROOM_SUMS].base + command->source.first, RH_F32, 1, elements);
	cast.operand[RH_CAST_Y] =
	        rh_view_of(on->room[RH_ROOM_ROUNDED].base + command->target.first, on->executor->options.model->dtype, 1, elements);
	return issue_launch(on, &cast);
}

static int compute(struct run_device *on, const struct rh_command *command)
{
	if (command->kind == RH_COMMAND_CLEAR)
		return clear(on, command);
	if (command->kind == RH_COMMAND_ROUND)
		return round_sum(on, command);
	if (command->kind == RH_COMMAND_DEQUANTISE)
		return dequantise(on, command);
	begin_emission(on, command);
	switch (command->kind) {
	case RH_COMMAND_FORWARD:
		return forward(on, command);
	case RH_COMMAND_CARRY:
		begin_activations(on, command, command->source);
		return rh_stage_carry(&on->emit, command->lo, command->hi, saved_input(on, command));
	case RH_COMMAND_RECOMPUTE:
		return recompute(on, command);
	case RH_COMMAND_BACKWARD:
		return backward(on, command);
	default:
		return weight_gradients(on, command);
	}
}

static int begin_compute(struct rh_executor *executor, struct rh_device *device, const struct rh_command *command)
{
	struct dispatch_device *at = &executor->dispatcher.device[device->index];
	struct rh_stalls *stalls = run_stalls_of(executor, command);
	int rc = executor->trains ? rh_stalls_begin(stalls) : 0;
	if (!rc && at->is_stalled)
		rc = rh_stalls_close(stalls);
	at->is_stalled = 0;
	return rc;
}

/* A computation may be the last on its device of two steps: its own, and a later one that computes nothing there. Their stalls end. */
static int end_compute(struct rh_executor *executor, struct rh_device *device, const struct rh_command *command)
{
	int rc = 0;
	for (int index = 0; !rc && index < RUN_FLIGHT; index++) {
		struct run_flight *flight = &executor->device[device->index].flight[index];
		if (flight->computed != command->position)
			continue;
		flight->computed = LOWER_NEVER;
		rc = rh_stalls_end(&flight->stalls);
	}
	return rc;
}

int issue_command(struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_lane *lane = lane_of(executor, command);
	struct rh_device *device = executor->options.device[lane->owner];
	int stream = lower_lane(lane->owner, lane->stream);
	struct rh_stream_marks *marks = &executor->dispatcher.stream[stream].marks;
	struct ring_command *at = ring_of(command);
	executor->dispatcher.step = command->step;
	int rc = lane->stream == RH_STREAM_COMPUTE ? begin_compute(executor, device, command) : 0;
	if (!rc)
		rc = wait_for_all(executor, command);
	if (!rc)
		rc = run_span_begin(executor, command, stream);
	if (!rc)
		rc = lane->stream == RH_STREAM_COMPUTE ? compute(&executor->device[lane->owner], command)
		                                       : copy(executor, device, lane->stream, command);
	if (!rc)
		rc = run_span_end(executor, command, stream);
	at->sequence = ++marks->issued;
	int64_t launched = executor->dispatcher.device[lane->owner].launched;
	int is_worth_it = lane->stream == RH_STREAM_COMPUTE && launched - rh_marks_latest(marks).launched >= MARK_LAUNCHES;
	if (!rc && (at->is_wanted || is_worth_it))
		rc = rh_marks_record(marks, launched);
	return rc || lane->stream != RH_STREAM_COMPUTE ? rc : end_compute(executor, device, command);
}
