/* Which command the ops are that a device's compute stream is given. What a command says of its operands is read off the ops' own. */
#include "run/record_internal.h"

#include "core/alloc.h"

static struct run_device *device_on(const struct rh_recorder *recorder, int device)
{
	return &recorder->executor->on[device];
}

static int is_within(const void *at, const char *room, int64_t bytes)
{
	return room && (const char *)at >= room && (const char *)at < room + bytes;
}

static struct rh_place place_in(int device, enum rh_room room, int number, const void *at, const char *memory, int64_t bytes)
{
	return (struct rh_place){.room = room, .device = device, .number = number, .first = (const char *)at - memory, .bytes = bytes};
}

static int in_ring(const struct run_ring *ring, const void *at, int64_t bytes)
{
	for (int i = 0; i < ring->count; i++)
		if (is_within(at, ring->buffer[i].memory, bytes))
			return i;
	return -1;
}

struct rh_place record_device_place(const struct rh_recorder *recorder, int device, const void *at, int64_t bytes)
{
	const struct run_device *on = device_on(recorder, device);
	const struct rh_plan *plan = recorder->executor->options.plan;
	const struct {
		enum rh_room room;
		const char *memory;
		int64_t bytes;
	} one[] = {{RH_ROOM_WEIGHTS, on->weights.memory, plan->weight_bytes},
	           {RH_ROOM_SUMS, on->gradients.memory, plan->gradient_bytes},
	           {RH_ROOM_ROUNDED, on->rounded.memory, plan->rounded_bytes},
	           {RH_ROOM_SAVED, on->saved, plan->saved_bytes},
	           {RH_ROOM_LATE, on->late, plan->late_bytes},
	           {RH_ROOM_CACHE, on->cache, plan->cache_bytes},
	           {RH_ROOM_ARENA, on->arena.base, plan->arena_bytes}};
	const struct {
		enum rh_room room;
		const struct run_ring *ring;
		int64_t bytes;
	} many[] = {{RH_ROOM_BOUNDARY, &on->boundary, plan->boundary_bytes},
	            {RH_ROOM_MICRO, &on->micro, plan->micro_bytes},
	            {RH_ROOM_RESULT, &on->result, plan->result_bytes}};
	for (size_t i = 0; i < sizeof one / sizeof *one; i++)
		if (is_within(at, one[i].memory, one[i].bytes))
			return place_in(device, one[i].room, 0, at, one[i].memory, bytes);
	for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
		int buffer = in_ring(many[i].ring, at, many[i].bytes);
		if (buffer >= 0)
			return place_in(device, many[i].room, buffer, at, many[i].ring->buffer[buffer].memory, bytes);
	}
	RH_ASSERT(!"an address that is in no room of the device");
	return (struct rh_place){0};
}

/* Number of the sum of the device's present slot that is added up at this place. */
static int sum_at(const struct rh_recorder *recorder, int device, const void *at)
{
	const struct run_device *on = device_on(recorder, device);
	const struct rh_model *model = recorder->executor->options.model;
	const struct rh_slot *slot = recorder->executor->work[device].slot;
	for (int i = 0; i < 2 * (slot->hi - slot->lo); i++) {
		const struct rh_layer *layer = &model->layer[slot->lo + i / 2];
		int b = layer->block[i % 2], use = layer->use[i % 2];
		if (b >= 0 && model->block[b].trainable && (const void *)on->block_gradient[b][use] == at)
			return 2 * b + use;
	}
	RH_ASSERT(!"no gradient sum");
	return -1;
}

static enum rh_command_kind kind_of(enum rh_span_kind phase)
{
	return phase == RH_SPAN_FORWARD           ? RH_COMMAND_FORWARD
	       : phase == RH_SPAN_BACKWARD        ? RH_COMMAND_BACKWARD
	       : phase == RH_SPAN_WEIGHT_GRADIENT ? RH_COMMAND_WEIGHT_GRADIENT
	                                          : RH_COMMAND_RECOMPUTE;
}

static struct rh_place stage_place(const struct rh_recorder *recorder, int device, enum rh_room room)
{
	const struct work *work = &recorder->executor->work[device];
	const struct rh_plan *plan = recorder->executor->options.plan;
	struct rh_place place = {.room = room, .device = device};
	int64_t m = work->micro_batch;
	if (room == RH_ROOM_SAVED) {
		const struct rh_saved_place *saved = rh_plan_saved(plan, work->slot->lo, work->slot->hi);
		place.bytes = saved->bytes;
		place.first = saved->at + (m - work->slot->first) * saved->bytes;
	} else if (room == RH_ROOM_LATE) {
		const struct rh_late_place *late = rh_plan_late(plan, work->slot->lo, work->slot->hi);
		int64_t at = m + work->slot->step % recorder->executor->steps_held * recorder->executor->options.train_micro_batches;
		place.bytes = late->bytes;
		place.first = late->at + at % late->places * late->bytes;
	} else if (room == RH_ROOM_CACHE) {
		place.bytes = plan->cache_bytes;
	} else {
		place.bytes = plan->arena_bytes;
	}
	return place;
}

/* Where the weights' layout of the stage begins. */
static int64_t weights_begin(const struct rh_recorder *recorder, int device)
{
	const struct rh_executor *executor = recorder->executor;
	const struct rh_model *model = executor->options.model;
	const struct run_device *on = device_on(recorder, device);
	const struct rh_slot *slot = executor->work[device].slot;
	int is_backward = slot->kind != RH_SLOT_FORWARD && slot->hi < model->layers;
	(void)rh_plan_upload_layout(model, slot->lo, slot->hi, is_backward, executor->offset);
	for (int b = 0; b < model->blocks; b++)
		if (executor->offset[b] >= 0)
			return on->block_weights[b] - on->weights.memory - executor->offset[b];
	return 0;
}

static void begin(struct rh_recorder *recorder, int device)
{
	const struct rh_executor *executor = recorder->executor;
	const struct work *work = &executor->work[device];
	const struct rh_slot *slot = work->slot;
	struct record_compute *compute = &recorder->compute[device];
	int64_t place = work->micro_batch + slot->step % executor->steps_held * executor->options.train_micro_batches;
	struct rh_command *command = &compute->command;
	enum rh_command_kind kind = kind_of(work->phase);
	int goes_on = command->kind == kind && command->stage.lo == slot->lo && command->stage.hi == slot->hi &&
	              command->micro_batch == recorder->place[place].micro_batch && command->step == recorder->place[place].step;
	struct rh_stage stage = {slot->lo, slot->hi}, rest = stage;
	int x = -1;
	if (goes_on && kind == RH_COMMAND_FORWARD) {
		rest.lo = command->hi;
		x = command->at.y;
	} else if (goes_on) {
		rest.hi = command->lo;
	}
	compute->begun = 1;
	compute->ends = 0;
	compute->phase = work->phase;
	*command = (struct rh_command){.kind = kind,
	                               .lane = device * RH_STREAMS + RH_STREAM_COMPUTE,
	                               .step = recorder->place[place].step,
	                               .micro_batch = recorder->place[place].micro_batch,
	                               .tokens = work->emit.shape.tokens,
	                               .block = -1,
	                               .stage = stage,
	                               .lo = rest.lo,
	                               .hi = rest.hi,
	                               .at = {.x = x, .y = -1, .dy = -1, .dx = -1, .result = -1}};
	command->at.weights = weights_begin(recorder, device);
	command->at.micro = in_ring(&device_on(recorder, device)->micro, work->emit.micro, executor->options.plan->micro_bytes);
	if (kind == RH_COMMAND_RECOMPUTE)
		command->to = stage_place(recorder, device, RH_ROOM_ARENA);
	else if (kind == RH_COMMAND_BACKWARD)
		command->from = stage_place(recorder, device, RH_ROOM_ARENA);
	else if (kind == RH_COMMAND_WEIGHT_GRADIENT)
		command->from = stage_place(recorder, device, RH_ROOM_LATE);
}

void record_flush(struct rh_recorder *recorder, int device, int layer)
{
	struct record_compute *compute = &recorder->compute[device];
	struct rh_command *command = &compute->command;
	if (!compute->begun && layer < 0)
		return;
	int is_empty = !compute->begun; /* the layer has no ops of this kind */
	if (is_empty)
		begin(recorder, device);
	compute->begun = 0;
	if (layer >= 0 && command->kind == RH_COMMAND_FORWARD)
		command->hi = layer;
	else if (layer >= 0)
		command->lo = layer;
	if (is_empty || command->lo >= command->hi)
		return;
	record_add(recorder, command);
}

/* Of a boundary buffer that is read: what it holds tells which operand it is. */
static enum rh_boundary_kind *boundary_kind(const struct rh_recorder *recorder, int device, int buffer)
{
	const struct rh_executor *executor = recorder->executor;
	return &recorder->kind[executor->boundaries.count + device * executor->options.plan->boundary_buffers + buffer];
}

static int is_layers_block(const struct rh_model *model, int lo, int hi, int b)
{
	int is = 0;
	for (int l = lo; l < hi; l++)
		is |= model->layer[l].block[0] == b || model->layer[l].block[1] == b;
	return is;
}

/* Weights and sums that an op touches are those of the command's layers, where its stage has them. */
static void expect_own_block(const struct rh_recorder *recorder, int device, const struct rh_place *place)
{
	const struct rh_executor *executor = recorder->executor;
	const struct rh_model *model = executor->options.model;
	const struct run_device *on = device_on(recorder, device);
	const struct rh_command *command = &recorder->compute[device].command;
	for (int i = 0; i < 2 * model->blocks; i++) {
		const struct rh_block *block = &model->block[i / 2];
		int64_t first = place->room == RH_ROOM_WEIGHTS ? on->block_weights[i / 2] - on->weights.memory
		                                               : (const char *)on->block_gradient[i / 2][i % 2] - on->gradients.memory;
		int64_t bytes = place->room == RH_ROOM_WEIGHTS ? rh_dtype_bytes(model->dtype, block->elements) : 4 * block->elements;
		if (place->first >= first && place->first + place->bytes <= first + bytes &&
		    is_layers_block(model, command->lo, command->hi, i / 2))
			return;
	}
	RH_ASSERT(!"an op touches what its layers have not");
}

/* What one operand says of its command. */
static void take_operand(struct rh_recorder *recorder, int device, struct rh_view view, enum rh_access access)
{
	struct rh_command *command = &recorder->compute[device].command;
	const struct run_device *on = device_on(recorder, device);
	struct rh_place place = record_device_place(recorder, device, view.data, rh_view_bytes(view));
	int writes = access != RH_ACCESS_IN;
	enum rh_boundary_kind *kind;
	switch (place.room) {
	case RH_ROOM_WEIGHTS:
	case RH_ROOM_SUMS:
		expect_own_block(recorder, device, &place);
		break;
	case RH_ROOM_BOUNDARY:
		kind = boundary_kind(recorder, device, place.number);
		if (!writes && place.number != command->at.y && place.number != command->at.dx)
			*(*kind == RH_BOUNDARY_GRADIENT ? &command->at.dy : &command->at.x) = place.number;
		if (writes)
			*kind = command->kind == RH_COMMAND_BACKWARD ? RH_BOUNDARY_GRADIENT : RH_BOUNDARY_ACTIVATION;
		if (writes)
			*(command->kind == RH_COMMAND_BACKWARD ? &command->at.dx : &command->at.y) = place.number;
		for (int l = command->lo + 1; writes && command->kind == RH_COMMAND_FORWARD && l < command->hi; l++)
			if (on->kept[l].data == view.data)
				recorder->compute[device].ends = l;
		break;
	case RH_ROOM_RESULT:
		command->at.result = place.number;
		break;
	case RH_ROOM_SAVED:
		*(command->kind == RH_COMMAND_BACKWARD ? &command->from : &command->to) = stage_place(recorder, device, RH_ROOM_SAVED);
		break;
	case RH_ROOM_LATE:
		if (command->kind == RH_COMMAND_BACKWARD && writes)
			command->to = stage_place(recorder, device, RH_ROOM_LATE);
		break;
	case RH_ROOM_CACHE:
		command->to = stage_place(recorder, device, RH_ROOM_CACHE);
		break;
	default:
		break;
	}
}

/* A boundary was made in the middle of a forward, and this op is the next layer's. */
static int begins_layer(const struct rh_recorder *recorder, int device, const struct rh_op *op)
{
	const struct rh_model *model = recorder->executor->options.model;
	const struct run_device *on = device_on(recorder, device);
	const struct record_compute *compute = &recorder->compute[device];
	for (int i = 0; compute->ends && i < rh_op_info(op->kind)->operands; i++)
		for (int b = 0; op->operand[i].data && b < model->blocks; b++)
			if (is_within(op->operand[i].data, on->block_weights[b], rh_dtype_bytes(model->dtype, model->block[b].elements)) &&
			    is_layers_block(model, compute->ends, compute->command.hi, b) &&
			    !is_layers_block(model, compute->command.lo, compute->ends, b))
				return 1;
	return 0;
}

/* Zeros to sums, and sums to their rounded copy: commands of their own. */
static void launch_sum(struct rh_recorder *recorder, int device, const struct rh_op *op)
{
	const struct work *work = &recorder->executor->work[device];
	const struct rh_executor *executor = recorder->executor;
	int is_fill = op->kind == RH_OP_FILL;
	struct rh_view sum = is_fill ? op->operand[RH_FILL_Y] : op->operand[RH_CAST_X];
	struct rh_command command = {
	        .kind = is_fill ? RH_COMMAND_CLEAR : RH_COMMAND_ROUND, .lane = device * RH_STREAMS + RH_STREAM_COMPUTE, .micro_batch = -1};
	int64_t first = work->slot->first + work->slot->step % executor->steps_held * executor->options.train_micro_batches;
	struct rh_place place = record_device_place(recorder, device, sum.data, rh_view_bytes(sum));
	place.number = sum_at(recorder, device, sum.data);
	command.step = recorder->place[first].step;
	command.block = place.number / 2;
	command.stage = (struct rh_stage){work->slot->lo, work->slot->hi};
	*(is_fill ? &command.to : &command.from) = place;
	if (!is_fill) {
		command.to = record_device_place(recorder, device, op->operand[RH_CAST_Y].data, rh_view_bytes(op->operand[RH_CAST_Y]));
		command.to.number = place.number;
	}
	record_add(recorder, &command);
}

static int is_of_sums(const struct rh_recorder *recorder, int device, const struct rh_op *op)
{
	const struct run_device *on = device_on(recorder, device);
	const void *at = op->kind == RH_OP_FILL ? op->operand[RH_FILL_Y].data : op->kind == RH_OP_CAST ? op->operand[RH_CAST_X].data : NULL;
	const void *to = op->kind == RH_OP_CAST ? op->operand[RH_CAST_Y].data : at;
	int64_t bytes = recorder->executor->options.plan->gradient_bytes, rounded = recorder->executor->options.plan->rounded_bytes;
	return at && is_within(at, on->gradients.memory, bytes) && (op->kind == RH_OP_FILL || is_within(to, on->rounded.memory, rounded));
}

void record_launch(struct rh_recorder *recorder, int device, const struct rh_op *op)
{
	struct record_compute *compute = &recorder->compute[device];
	const struct work *work = &recorder->executor->work[device];
	const struct rh_op_info *info = rh_op_info(op->kind);
	RH_ASSERT(op->kind != RH_OP_ADAMW_WEIGHTS);
	if (is_of_sums(recorder, device, op)) {
		record_flush(recorder, device, -1);
		launch_sum(recorder, device, op);
		return;
	}
	if (compute->begun && compute->phase != work->phase)
		record_flush(recorder, device, -1);
	else if (compute->begun && begins_layer(recorder, device, op))
		record_flush(recorder, device, compute->ends);
	if (!compute->begun)
		begin(recorder, device);
	for (int i = 0; i < info->operands; i++)
		if (op->operand[i].data && info->operand[i].access != RH_ACCESS_NONE)
			take_operand(recorder, device, op->operand[i], info->operand[i].access);
}
