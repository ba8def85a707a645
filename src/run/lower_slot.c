/* One slot. For each micro-batch m of a backward slot, say:
 *
 *   ACTIVATIONS_UP    integers(m), saved input(m), [gradient written by the slot above] gradient(m)
 *   COMPUTE           [input up] recompute(m) [gradient up] backward(m)
 *   ACTIVATIONS_DOWN  [backward(m)] gradient for the slot below
 *
 * (where backwards are split, backward(m) leaves the weight gradients of linears to a slot of their own, which needs nothing from above)
 * with two buffers of device memory for each, so that copies run one micro-batch ahead and one behind. What travels between them is in
 * lower_bulk.c. Brackets are waits. */
#include "run/lower.h"

/* The next buffer of a ring, not to be written by `writer` before its last reader is done. */
static int16_t take(struct lower_slot *slot, struct lower_ring *ring, enum rh_stream writer)
{
	int16_t buffer = rh_int16(ring->next);
	ring->next = (ring->next + 1) % ring->count;
	lower_await(slot->to, lower_lane_of(slot, writer), ring->freed[buffer], RH_WAIT_NEEDS);
	lower_await(slot->to, lower_lane_of(slot, writer), ring->read[buffer], RH_WAIT_NEEDS);
	return buffer;
}

/* A micro-batch of the slot on its way through the lanes. */
struct micro {
	struct lower_slot *slot;
	int64_t number, place; /* within the step; among the books */
	const struct rh_micro_shape *shape;
	int64_t boundary_bytes;
	int16_t buffer;
	int is_last; /* of the slot */
};

static struct rh_command command_of(const struct micro *micro, enum rh_command_kind kind, enum rh_stream stream)
{
	struct rh_command command = lower_command(micro->slot, kind, stream);
	command.micro_batch = rh_int32(micro->number);
	command.tokens = rh_int32(micro->shape->tokens);
	command.at.micro = micro->buffer;
	return command;
}

static struct rh_place here(const struct micro *micro, enum rh_room room, int64_t number, int64_t first, int64_t bytes)
{
	return lower_place(micro->slot->device, room, number, first, bytes);
}

static struct rh_place there(enum rh_room room, int64_t number, int64_t bytes)
{
	return lower_place(-1, room, number, 0, bytes);
}

static struct lower_boundary boundary_of(const struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	return (struct lower_boundary){kind, layer, micro->place, micro->slot->step, micro->boundary_bytes};
}

/* Brings a boundary from the host; the compute stream must still wait for the copy. */
static int16_t fetch(struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->to;
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	int16_t buffer = take(slot, &slot->on->boundary, RH_STREAM_ACTIVATIONS_UP);
	int on_host = lower_buffer_find(to, lower_lane_of(slot, RH_STREAM_ACTIVATIONS_UP), &boundary);
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_UP);
	copy.lo = copy.hi = layer;
	copy.block = (int)kind;
	copy.from = there(RH_ROOM_HOST_BOUNDARY, on_host, micro->boundary_bytes);
	copy.to = here(micro, RH_ROOM_BOUNDARY, buffer, 0, micro->boundary_bytes);
	lower_buffer_read(to, &boundary, on_host, slot->device, lower_add(to, &copy));
	return buffer;
}

/* Sends a boundary that command `made` leaves in a buffer of the device. */
static void send(struct micro *micro, int buffer, int64_t made, enum rh_boundary_kind kind, int layer)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->to;
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	int lane = lower_lane_of(slot, RH_STREAM_ACTIVATIONS_DOWN), on_host = lower_buffer_take(to, lane, &boundary);
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_DOWN);
	copy.lo = copy.hi = layer;
	copy.block = (int)kind;
	copy.from = here(micro, RH_ROOM_BOUNDARY, buffer, 0, micro->boundary_bytes);
	copy.to = there(RH_ROOM_HOST_BOUNDARY, on_host, micro->boundary_bytes);
	lower_await(to, lane, made, RH_WAIT_NEEDS);
	slot->on->boundary.freed[buffer] = lower_add(to, &copy);
	lower_buffer_filled(to, &boundary, on_host, slot->on->boundary.freed[buffer]);
}

/* A boundary comes from the box beside this one, or, from the host's copy, goes there. */
static struct rh_command message(struct micro *micro, enum rh_command_kind command_kind, enum lower_link link, enum rh_boundary_kind kind,
                                 int layer)
{
	struct rh_command command = command_of(micro, command_kind, RH_STREAM_COMPUTE);
	command.lane = micro->slot->to->links + (int)link;
	command.lo = command.hi = layer;
	command.block = (int)kind;
	return command;
}

static void receive(struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	struct lowering *to = micro->slot->to;
	enum lower_link link = kind == RH_BOUNDARY_ACTIVATION ? LOWER_FROM_BELOW : LOWER_FROM_ABOVE;
	struct rh_command command = message(micro, RH_COMMAND_RECEIVE, link, kind, layer);
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	int on_host = lower_buffer_take(to, command.lane, &boundary);
	if (kind == RH_BOUNDARY_GRADIENT) /* made of what this box sent: there is none before */
		lower_await(to, command.lane, to->place[micro->place].given, RH_WAIT_NEEDS);
	command.to = there(RH_ROOM_HOST_BOUNDARY, on_host, micro->boundary_bytes);
	lower_buffer_filled(to, &boundary, on_host, lower_add(to, &command));
}

static void give(struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	struct lowering *to = micro->slot->to;
	enum lower_link link = kind == RH_BOUNDARY_ACTIVATION ? LOWER_TO_ABOVE : LOWER_TO_BELOW;
	struct rh_command command = message(micro, RH_COMMAND_SEND, link, kind, layer);
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	int on_host = lower_buffer_find(to, command.lane, &boundary);
	command.from = there(RH_ROOM_HOST_BOUNDARY, on_host, micro->boundary_bytes);
	int64_t position = lower_add(to, &command);
	lower_buffer_read(to, &boundary, on_host, to->options->devices, position);
	if (kind == RH_BOUNDARY_ACTIVATION)
		to->place[micro->place].given = position;
	if (kind == RH_BOUNDARY_GRADIENT || (to->options->plan->feeds && !to->options->plan->owes_gradient))
		to->place[micro->place].through = position;
}

static void send_results(struct micro *micro, int buffer, int64_t made)
{
	struct lower_slot *slot = micro->slot;
	int64_t cols = rh_executor_score_cols(slot->to->options, slot->to->call.trains, micro->shape);
	int64_t bytes = rh_result_layout(slot->to->options->model, micro->shape, cols).bytes;
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_DOWN);
	copy.from = here(micro, RH_ROOM_RESULT, buffer, 0, bytes);
	copy.to = there(RH_ROOM_HOST_RESULT, micro->place, bytes);
	lower_await(slot->to, lower_lane_of(slot, RH_STREAM_ACTIVATIONS_DOWN), made, RH_WAIT_NEEDS);
	int64_t position = slot->on->result.freed[buffer] = slot->to->place[micro->place].output = lower_add(slot->to, &copy);
	if (!slot->to->options->plan->owes_gradient)
		slot->to->place[micro->place].through = position;
}

/* Where a saving stage keeps this micro-batch's activations; no room: it saves none. */
static struct rh_place saved_place(const struct micro *micro)
{
	const struct rh_slot *slot = micro->slot->slot;
	const struct rh_executor_options *options = micro->slot->to->options;
	const struct rh_saved_place *saved = rh_plan_saved(options->plan, slot->lo, slot->hi);
	int64_t kept = options->plan->kept_micro_batches, number = micro->number - slot->first;
	if (!saved)
		return lower_nowhere();
	if (kept) /* of all that follow one another */
		number = (slot->step * options->train_micro_batches + micro->number) % kept;
	return here(micro, RH_ROOM_SAVED, 0, saved->at + number * saved->bytes, saved->bytes);
}

/* Where a split backward keeps what its weight gradients are made of. */
static struct rh_place deferred_place(const struct micro *micro)
{
	const struct rh_slot *slot = micro->slot->slot;
	const struct rh_deferred_place *deferred = rh_plan_deferred(micro->slot->to->options->plan, slot->lo, slot->hi);
	return here(micro, RH_ROOM_DEFERRED, 0, deferred->at + micro->place % deferred->places * deferred->bytes, deferred->bytes);
}

/* Where layers keep keys and values for the calls after this one; no room: they keep none. */
static struct rh_place cache_place(const struct micro *micro, int lo, int hi)
{
	const struct rh_executor_options *options = micro->slot->to->options;
	const struct rh_model *model = options->model;
	int64_t row = rh_dtype_bytes(model->dtype, options->cache_rows), first = -1, end = 0;
	for (int l = lo; options->cache_rows && l < hi; l++) {
		if (model->layer[l].kind != RH_LAYER_BLOCK)
			continue;
		first = first < 0 ? model->layer[l].cache_column * row : first;
		end = l + 1 < model->layers && model->layer[l + 1].kind == RH_LAYER_BLOCK ? model->layer[l + 1].cache_column * row
		                                                                          : model->cache_columns * row;
	}
	if (first < 0)
		return lower_nowhere();
	return here(micro, RH_ROOM_CACHE, 0, first, end - first);
}

/* A command for each run of layers at whose end a later slot's input is made. */
static void forward(struct micro *micro, int16_t x)
{
	struct lower_slot *slot = micro->slot;
	const struct rh_executor_options *options = slot->to->options;
	int lo = slot->slot->lo, hi = slot->slot->hi, trains = slot->to->call.trains;
	for (int from = lo, l = lo + 1; l <= hi; l++) {
		int readers = rh_boundary_readers(options->plan, trains, l);
		if (!readers && l < hi)
			continue;
		int16_t buffer = -1;
		if (readers)
			buffer = take(slot, &slot->on->boundary, RH_STREAM_COMPUTE);
		struct rh_command command = command_of(micro, RH_COMMAND_FORWARD, RH_STREAM_COMPUTE);
		command.lo = from;
		command.hi = l;
		command.at.x = x;
		command.at.y = buffer;
		command.to = trains ? saved_place(micro) : cache_place(micro, from, l);
		int64_t made = lower_add(slot->to, &command);
		if (x >= 0)
			slot->on->boundary.read[x] = made;
		if (readers)
			send(micro, buffer, made, RH_BOUNDARY_ACTIVATION, l);
		if (rh_plan_gives(options->plan, l))
			give(micro, RH_BOUNDARY_ACTIVATION, l);
		x = buffer; /* the next run of layers reads it, too */
		from = l;
	}
}

static void infer_top(struct micro *micro, int16_t x)
{
	struct lower_slot *slot = micro->slot;
	struct rh_command command = command_of(micro, RH_COMMAND_FORWARD, RH_STREAM_COMPUTE);
	command.at.result = take(slot, &slot->on->result, RH_STREAM_COMPUTE);
	command.at.x = x;
	command.to = cache_place(micro, command.lo, command.hi);
	int64_t made = lower_add(slot->to, &command);
	if (x >= 0)
		slot->on->boundary.read[x] = made;
	send_results(micro, command.at.result, made);
}

/* Layers from the top down: at once, or, where their gradients become final, one by one. Returns the last command. */
static int64_t run_down(struct micro *micro, const struct rh_command *all, int16_t dx)
{
	struct lower_slot *slot = micro->slot;
	const struct rh_model *model = slot->to->options->model;
	int stage_lo = slot->slot->lo, lowest = stage_lo > model->first_trained ? stage_lo : model->first_trained;
	int ends_sums = micro->is_last && !slot->slot->sums_stay;
	int64_t last = LOWER_NEVER;
	for (int hi = slot->slot->hi, lo; hi > lowest; hi = lo) {
		lo = ends_sums ? hi - 1 : lowest;
		struct rh_command command = *all;
		command.hi = hi;
		command.lo = lo;
		command.at.dy = hi == slot->slot->hi ? all->at.dy : -1;
		command.at.dx = lo == lowest ? dx : -1;
		last = lower_add(slot->to, &command);
		if (ends_sums)
			lower_bulk_layer(slot, lo);
	}
	return last;
}

static void backward(struct micro *micro, int16_t x)
{
	struct lower_slot *slot = micro->slot;
	struct lower_device *on = slot->on;
	const struct rh_slot *of = slot->slot;
	const struct rh_model *model = slot->to->options->model;
	int fused = !rh_slot_reads_gradient(slot->to->options->plan, of), sends = of->lo > model->first_trained;
	int16_t result = -1, dx = -1, above = -1;
	if (!fused)
		above = fetch(micro, RH_BOUNDARY_GRADIENT, of->hi);
	int64_t above_up = lower_last_of(slot, RH_STREAM_ACTIVATIONS_UP);
	struct rh_place saved = saved_place(micro), deferred = lower_nowhere();
	if (of->kind == RH_SLOT_INPUT_GRADIENT)
		deferred = deferred_place(micro);
	if (fused)
		result = take(slot, &on->result, RH_STREAM_COMPUTE);
	if (saved.room == RH_ROOM_NONE) {
		struct rh_command command = command_of(micro, RH_COMMAND_RECOMPUTE, RH_STREAM_COMPUTE);
		command.at.x = x;
		command.at.result = result;
		command.from = deferred; /* operands of linears lie apart already */
		command.to = here(micro, RH_ROOM_ARENA, 0, 0, 0);
		lower_add(slot->to, &command);
	}
	if (above >= 0)
		lower_await(slot->to, lower_lane_of(slot, RH_STREAM_COMPUTE), above_up, RH_WAIT_NEEDS);
	if (sends)
		dx = take(slot, &on->boundary, RH_STREAM_COMPUTE);
	struct rh_command command = command_of(micro, RH_COMMAND_BACKWARD, RH_STREAM_COMPUTE);
	command.at.x = x;
	command.at.dy = above;
	command.at.result = result;
	command.from = saved.room == RH_ROOM_NONE ? here(micro, RH_ROOM_ARENA, 0, 0, 0) : saved;
	command.to = deferred;
	int64_t made = run_down(micro, &command, dx);
	if (fused)
		send_results(micro, result, made);
	if (sends)
		send(micro, dx, made, RH_BOUNDARY_GRADIENT, of->lo);
	if (rh_slot_gives_gradient(slot->to->options->plan, of))
		give(micro, RH_BOUNDARY_GRADIENT, of->lo);
	if (x >= 0)
		on->boundary.read[x] = made;
	if (above >= 0)
		on->boundary.read[above] = made;
}

static void weight_gradients(struct micro *micro)
{
	struct rh_command command = command_of(micro, RH_COMMAND_WEIGHT_GRADIENT, RH_STREAM_COMPUTE);
	command.from = deferred_place(micro);
	(void)run_down(micro, &command, -1);
}

static void input(struct micro *micro)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->to;
	int64_t bytes = rh_micro_layout(micro->shape).bytes;
	micro->buffer = take(slot, &slot->on->micro, RH_STREAM_ACTIVATIONS_UP);
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_UP);
	copy.from = there(RH_ROOM_HOST_MICRO, micro->place, bytes);
	copy.to = here(micro, RH_ROOM_MICRO, micro->buffer, 0, bytes);
	lower_await(to, lower_lane_of(slot, RH_STREAM_ACTIVATIONS_UP), to->place[micro->place].input, RH_WAIT_NEEDS);
	lower_add(to, &copy);
}

static void one_micro_batch(struct lower_slot *slot, int64_t number)
{
	struct lowering *to = slot->to;
	const struct rh_slot *of = slot->slot;
	const struct rh_executor_options *options = to->options;
	int64_t place = lower_first_place(to, of) + number;
	struct micro micro = {.slot = slot,
	                      .number = of->first + number,
	                      .place = place,
	                      .shape = &to->batch[place].shape,
	                      .is_last = number == of->count - 1};
	micro.boundary_bytes = rh_boundary_bytes(options->model, micro.shape->tokens);
	int reads = (of->lo > 0 || options->plan->is_fed) && of->kind != RH_SLOT_WEIGHT_GRADIENT;
	to->has_input_buffer = 0;
	input(&micro);
	if (rh_slot_takes_input(options->plan, of))
		receive(&micro, RH_BOUNDARY_ACTIVATION, of->lo);
	if (rh_slot_takes_gradient(options->plan, of))
		receive(&micro, RH_BOUNDARY_GRADIENT, of->hi);
	int16_t x = -1;
	if (reads)
		x = fetch(&micro, RH_BOUNDARY_ACTIVATION, of->lo);
	lower_await(to, lower_lane_of(slot, RH_STREAM_COMPUTE), lower_last_of(slot, RH_STREAM_ACTIVATIONS_UP), RH_WAIT_NEEDS);
	if (of->kind == RH_SLOT_FORWARD)
		forward(&micro, x);
	else if (of->kind == RH_SLOT_INFER)
		infer_top(&micro, x);
	else if (of->kind == RH_SLOT_WEIGHT_GRADIENT)
		weight_gradients(&micro);
	else
		backward(&micro, x);
	slot->on->micro.freed[micro.buffer] = lower_last_of(slot, RH_STREAM_COMPUTE);
	to->computed[place * options->devices + slot->device] = lower_last_of(slot, RH_STREAM_COMPUTE);
}

/* The step has no slot after this one with its blocks: nobody uploads them any more. */
static void end_uploads(struct lower_slot *slot)
{
	const struct rh_model *model = slot->to->options->model;
	const struct rh_slot *of = slot->slot;
	for (int l = of->lo; rh_slot_makes_gradients(of) && of->last_round && !of->sums_stay && l < of->hi; l++)
		for (int which = 0; which < 2; which++) {
			int b = model->layer[l].block[which];
			if (b >= 0 && model->block[b].trainable && model->block[b].uses == 1)
				lower_uploads_over(slot->to, b, slot->step);
		}
}

void lower_slot(struct lower_slot *slot)
{
	lower_bulk_begin(slot);
	for (int64_t number = 0; !slot->to->rc && number < slot->slot->count; number++) {
		lower_bulk_gap(slot, number);
		if (number == slot->slot->count - 1) /* the step's own gradients come after it, and those of the step before have gone */
			end_uploads(slot);
		one_micro_batch(slot, number);
		slot->on->up[number] = lower_last_of(slot, RH_STREAM_ACTIVATIONS_UP);
		slot->on->down[number] = lower_last_of(slot, RH_STREAM_ACTIVATIONS_DOWN);
	}
	if (!slot->to->rc)
		lower_bulk_end(slot);
}
