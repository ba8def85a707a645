#include "run/lower.h"

#include "core/alloc.h"

void lower_await(struct lowering *to, int lane, int64_t position, enum rh_wait_for why)
{
	const struct ring_command *other = ring_find(&to->ring, position);
	if (other && other->lowered.lane != lane && !to->rc)
		to->rc = rh_waits_add(&to->lane[lane].pending, (struct rh_wait){position, other->lowered.lane, why});
}

int64_t lower_add(struct lowering *to, const struct rh_command *command)
{
	struct rh_waits *pending = &to->lane[command->lane].pending;
	if (to->rc)
		return LOWER_NEVER;
	to->lane[command->lane].last = to->ring.end;
	to->rc = ring_add(&to->ring, command, pending);
	if (to->ring.keeps && !to->rc)
		to->rc = rh_lanes_add(&to->lanes, command, pending);
	pending->count = pending->paces = 0;
	return to->lane[command->lane].last;
}

struct rh_command lower_command(const struct lower_slot *slot, enum rh_command_kind kind, enum rh_stream stream)
{
	struct rh_command command = lower_command_on(kind, lower_lane(slot->device, stream), slot->step);
	if (slot->slot) {
		command.lo = command.stage.lo = slot->slot->lo;
		command.hi = command.stage.hi = slot->slot->hi;
	}
	return command;
}

struct rh_operands lower_operands(const struct lower_slot *slot)
{
	return (struct rh_operands){.weights = slot->weights,
	                            .is_backward_upload = (uint8_t)rh_slot_makes_gradients(slot->slot),
	                            .micro = -1,
	                            .x = -1,
	                            .y = -1,
	                            .dy = -1,
	                            .dx = -1,
	                            .result = -1,
	                            .saving = -1};
}

/* ---- what is kept between calls ---- */

static void make_ring(struct lowering *to, struct lower_ring *ring, int count)
{
	ring->count = count;
	ring->freed = rh_region_take(&to->memory, count, sizeof *ring->freed);
	ring->read = rh_region_take(&to->memory, count, sizeof *ring->read);
}

static void make_device(struct lowering *to, struct lower_device *on)
{
	const struct rh_stage_plan *plan = to->options->plan;
	const struct lower_limits *limits = &to->limits;
	int64_t blocks = to->options->model->blocks;
	on->weights.capacity = plan->weight_bytes;
	on->weights.offset = rh_region_take(&to->memory, blocks, sizeof(int64_t));
	on->weights.version = rh_region_take(&to->memory, blocks, sizeof(int64_t));
	on->weights.sent = rh_region_take(&to->memory, blocks, sizeof(int64_t));
	on->plain.offset = rh_region_take(&to->memory, blocks, sizeof(int64_t));
	on->plain.version = rh_region_take(&to->memory, blocks, sizeof(int64_t));
	make_ring(to, &on->boundary, plan->boundary_buffers);
	make_ring(to, &on->micro, RH_PLAN_MICRO_BUFFERS);
	make_ring(to, &on->result, RH_PLAN_RESULT_BUFFERS);
	make_ring(to, &on->saving, RH_PLAN_SAVING_BUFFERS);
	on->copied_up = rh_region_take(&to->memory, limits->gaps, sizeof(int64_t));
	on->copied_down = rh_region_take(&to->memory, limits->gaps, sizeof(int64_t));
	on->download = rh_region_take(&to->memory, 2 * blocks, sizeof *on->download);
	on->fetched = rh_region_take(&to->memory, 2 * blocks, sizeof(int64_t));
	on->piece = rh_region_take(&to->memory, limits->most_pieces, sizeof *on->piece);
	on->ahead.kind = -1;
}

int lower_lanes(struct lowering *to, int count, struct rh_lane lane)
{
	int first = to->lanes.lanes;
	for (int i = 0; !to->rc && i < count; i++) {
		int number = rh_lanes_add_lane(&to->lanes, lane);
		to->rc = number < 0 ? number : 0;
	}
	return first;
}

static void make_lanes(struct lowering *to)
{
	int devices = to->options->planned.devices, blocks = to->options->model->blocks;
	for (int i = 0; i < devices * RH_STREAMS; i++)
		(void)lower_lanes(to, 1, (struct rh_lane){RH_QUEUE_STREAM, (enum rh_stream)(i % RH_STREAMS), i / RH_STREAMS});
	to->caller = lower_lanes(to, 1, (struct rh_lane){.queue = RH_QUEUE_CALLER});
	to->optimizer = lower_lanes(to, 2 * blocks + 1, (struct rh_lane){.queue = RH_QUEUE_OPTIMIZER});
	to->free = to->lanes.lanes;
	for (int d = 0; d < devices; d++)
		(void)lower_lanes(to, blocks, (struct rh_lane){RH_QUEUE_STREAM, RH_STREAM_WEIGHTS, d});
	to->links = to->options->boxes ? to->lanes.lanes : -1;
	for (int i = 0; to->options->boxes && i < LOWER_LINKS; i++)
		(void)lower_lanes(to, 1, (struct rh_lane){.queue = i % 2 ? RH_QUEUE_SENDS : RH_QUEUE_RECEIVES, .owner = i / 2});
}

int lower_create(const struct rh_executor_options *options, const struct lower_limits *limits, struct lowering *to)
{
	int64_t blocks = options->model->blocks, devices = options->planned.devices, micro_batches = limits->micro_batches;
	const struct rh_boundary_needs *needs = &limits->boundaries;
	int buffers[RH_BOUNDARY_POOLS] = {needs->count - needs->to_above - needs->to_below, needs->to_above, needs->to_below};
	for (int size = 0; size < RH_BOUNDARY_SIZES; size++) {
		buffers[RH_BOUNDARY_SHORTER + size] = needs->of_size[size];
		buffers[RH_BOUNDARY_OWN] -= needs->of_size[size];
	}
	*to = (struct lowering){.options = options, .limits = *limits, .unsent_sum = {.block = -1}};
	to->rc = ring_create(&to->ring);
	make_lanes(to);
	lower_drives_create(to, needs);
	if (!to->rc)
		to->rc = rh_boundaries_create(buffers, options->model->layers, micro_batches, &to->boundaries);
	struct rh_region *memory = &to->memory;
	to->batch = rh_region_take(memory, micro_batches, sizeof *to->batch);
	to->lane = rh_region_take(memory, to->lanes.lanes, sizeof *to->lane);
	to->device = rh_region_take(memory, devices, sizeof *to->device);
	to->block = rh_region_take(memory, blocks, sizeof *to->block);
	to->micro = rh_region_take(memory, micro_batches, sizeof *to->micro);
	to->summed = rh_region_take(memory, 2 * blocks, sizeof(int64_t));
	to->uploaded = rh_region_take(memory, blocks * devices, sizeof(int64_t));
	to->computed = rh_region_take(memory, micro_batches * devices, sizeof(int64_t));
	to->buffer_filled = rh_region_take(memory, needs->count, sizeof(int64_t));
	to->buffer_read = rh_region_take(memory, needs->count * (devices + 1), sizeof(int64_t));
	if (options->plan->saved_bytes) {
		int64_t kept = options->plan->kept_micro_batches;
		to->saved.micro_batches = kept ? kept : options->planned.train_round;
		int64_t places = options->model->layers * to->saved.micro_batches;
		to->saved.filled = rh_region_take(memory, places, sizeof(int64_t));
		to->saved.read = rh_region_take(memory, places, sizeof(int64_t));
	}
	to->offset = rh_region_take(memory, 2 * blocks, sizeof(int64_t));
	to->bytes = rh_region_take(memory, 2 * blocks, sizeof(int64_t));
	to->load = rh_region_take(memory, limits->gaps, sizeof(int64_t));
	to->piece = rh_region_take(memory, limits->most_pieces, sizeof *to->piece);
	lower_versions_create(to);
	for (int64_t d = 0; to->device && d < devices; d++)
		make_device(to, &to->device[d]);
	to->rc = to->rc ? to->rc : memory->rc;
	if (to->rc)
		return to->rc;
	for (int64_t b = 0; b < blocks; b++) {
		to->trainable += options->model->block[b].trainable != 0;
		for (int64_t d = 0; d < devices; d++)
			to->device[d].weights.offset[b] = to->device[d].plain.offset[b] = -1;
	}
	to->expected = to->trainable;
	return 0;
}

void lower_destroy(struct lowering *to)
{
	for (int i = 0; to->lane && i < to->lanes.lanes; i++)
		rh_free(to->lane[i].pending.wait);
	rh_region_free(&to->memory);
	rh_program_free(&to->program);
	rh_dispatch_steps_close(&to->steps);
	rh_boundaries_destroy(&to->boundaries);
	lower_drives_destroy(to);
	ring_destroy(&to->ring);
	rh_lanes_free(&to->lanes);
}

/* ---- calls ---- */

void lower_input(struct lowering *to, int64_t step, int64_t first, int64_t count)
{
	for (int64_t index = first; index < first + count; index++) {
		struct rh_command command = lower_command_on(RH_COMMAND_INPUT, to->caller, step);
		command.micro_batch = rh_int32(index - first);
		command.target = lower_bytes(-1, RH_ROOM_HOST_MICRO, index, 0, rh_micro_layout(&to->batch[index].shape).bytes);
		if (to->call.table.elements)
			command.source = lower_bytes(-1, RH_ROOM_HOST_ROWS, to->call.table.index, 0,
			                             rh_dtype_bytes(to->options->model->dtype, to->call.table.elements));
		for (int d = 0; d < to->options->planned.devices; d++)
			lower_await(to, to->caller, to->computed[index * to->options->planned.devices + d], RH_WAIT_NEEDS);
		to->micro[index].input = lower_add(to, &command);
		to->micro[index].last_command = LOWER_NEVER;
	}
}

void lower_output(struct lowering *to, int64_t step, int64_t first, int64_t count)
{
	for (int64_t index = first; index < first + count; index++) {
		struct rh_command command = lower_command_on(RH_COMMAND_OUTPUT, to->caller, step);
		const struct rh_micro_shape *shape = &to->batch[index].shape;
		int64_t cols = rh_executor_score_cols(to->options, to->call.trains, shape);
		int64_t bytes = rh_result_layout(to->options->model, shape, cols).bytes;
		command.micro_batch = rh_int32(index - first);
		command.tokens = rh_int32(shape->tokens);
		command.source = lower_bytes(-1, RH_ROOM_HOST_RESULT, index, 0, bytes);
		lower_await(to, to->caller, to->micro[index].output, RH_WAIT_NEEDS);
		lower_add(to, &command);
	}
}

/* The program's first slot on this device, NULL: none. shift: added to the devices of its slots. */
static const struct rh_slot *first_slot(const struct lowering *to, int device, int shift)
{
	const struct rh_program *program = &to->program;
	for (size_t i = 0; i < program->slots; i++)
		if ((program->slot[i].device + shift) % to->options->planned.devices == device)
			return &program->slot[i];
	return NULL;
}

void lower_begin(struct lowering *to, const struct lower_call *call)
{
	int devices = to->options->planned.devices;
	to->call = *call;
	to->next_slot = 0;
	to->makes_gradients = 0;
	for (int d = 0; d < devices; d++)
		to->device[d].last_slot = -1;
	for (size_t i = to->program.slots; i-- > 0;) {
		struct lower_device *on = &to->device[to->program.slot[i].device];
		on->last_slot = on->last_slot < 0 ? (int64_t)i : on->last_slot;
	}
	for (int d = 0; d < devices; d++)
		to->device[d].last_slot = to->is_open ? INT64_MAX : to->device[d].last_slot;
	for (int d = 0; d < devices; d++)
		if (to->device[d].ahead.kind >= 0)
			lower_bulk_keep(to, d, first_slot(to, d, 0));
	if (!to->rc)
		to->rc = lower_drives_begin(to);
	if (!call->is_local)
		lower_input(to, call->step, call->first_index, call->micro_batches);
}

/* Called before a step's first slot that makes gradients: all devices but one send down the gradients of the previous step that they still
 * have. The slot's device may send its own in the slot's gaps. */
static void send_left(struct lowering *to, int but)
{
	for (int d = 0; d < to->options->planned.devices; d++)
		if (d != but)
			lower_bulk_left(to, d);
}

void lower_next_slot(struct lowering *to)
{
	const struct rh_slot *slot = &to->program.slot[to->next_slot++];
	struct lower_device *on = &to->device[slot->device];
	struct lower_slot present = {.lowering = to, .state = on, .device = slot->device, .slot = slot, .step = to->call.step + slot->step};
	RH_ASSERT(slot->count > 0);
	if (rh_slot_makes_gradients(slot) && !to->makes_gradients && !to->call.is_local)
		send_left(to, slot->device);
	to->makes_gradients |= rh_slot_makes_gradients(slot);
	if (to->call.is_local)
		lower_versions_note(to, slot);
	to->latest_step = present.step;
	lower_slot(&present);
	/* with local updates the next slot with these layers needs the update, whichever device it is on */
	int updates = rh_slot_makes_gradients(slot) && slot->last_round;
	int is_last = on->last_slot == (int64_t)to->next_slot - 1 && !to->call.is_joined;
	if (to->call.is_local ? updates : is_last)
		lower_bulk_left(to, slot->device); /* else gradients go in the gaps of the device's next slot */
}

void lower_ahead(struct lowering *to)
{
	for (int d = 0; d < to->options->planned.devices; d++) {
		const struct rh_slot *first = first_slot(to, d, to->call.shift);
		if (first)
			lower_bulk_ahead(to, d, first);
	}
}

void lower_end(struct lowering *to)
{
	send_left(to, -1);
	if (to->call.trains && !to->call.is_local)
		lower_fold(to, to->call.step);
	for (int b = 0; to->call.is_local && b < to->options->model->blocks; b++)
		lower_uploads_over(to, b, to->latest_step + 1);
	for (int d = 0; d < to->options->planned.devices; d++)
		to->device[d].gaps = 0;
}
