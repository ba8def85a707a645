/* One slot. For each micro-batch m of a backward slot:
 *
 *   ACTIVATIONS_UP    integers(m), input(m), saved activations(m), [gradient written by the slot above] gradient(m)
 *   COMPUTE           [input up] recompute(m) [gradient up] backward(m)
 *   ACTIVATIONS_DOWN  [backward(m)] gradient for the slot below
 *
 * Brackets are waits. Each of these activations and gradients has two buffers of device memory, so that copies run one micro-batch ahead
 * and one behind. Where backwards are split, backward(m) leaves the linears' weight gradients to a slot of their own, which needs nothing
 * from above. Weights and weight gradients: lower_bulk.c.
 *
 * Of a text in chunks micro-batches are the chunks: forward in the order of tokens, which adds to what mixers carry; backward with
 * carry(c) of all chunks first, ascending, then recompute(c) and backward(c) descending. */
#include "core/minmax.h"
#include "run/lower.h"

/* Takes the next buffer of a ring: `writer` waits until the buffer's last readers are done. */
static int16_t take(struct lower_slot *slot, struct lower_ring *ring, enum rh_stream writer)
{
	int16_t buffer = rh_int16(ring->next);
	ring->next = (ring->next + 1) % ring->count;
	lower_await(slot->lowering, lower_lane_of(slot, writer), ring->freed[buffer], RH_WAIT_NEEDS);
	lower_await(slot->lowering, lower_lane_of(slot, writer), ring->read[buffer], RH_WAIT_NEEDS);
	return buffer;
}

/* A micro-batch of the slot on its way through the lanes. */
struct micro {
	struct lower_slot *slot;
	int64_t number, index; /* within the step; among the micro-batches that are kept at once */
	const struct rh_micro_shape *shape;
	int16_t buffer;
	int is_first, is_last; /* that the slot runs */
};

static struct rh_command command_of(const struct micro *micro, enum rh_command_kind kind, enum rh_stream stream)
{
	struct rh_command command = lower_command(micro->slot, kind, stream);
	command.micro_batch = rh_int32(micro->number);
	command.tokens = rh_int32(micro->shape->tokens);
	return command;
}

/* A computation of layers. */
static struct rh_command computation(const struct micro *micro, enum rh_command_kind kind)
{
	struct rh_command command = command_of(micro, kind, RH_STREAM_COMPUTE);
	command.operands = lower_operands(micro->slot);
	command.operands.micro = micro->buffer;
	command.chunk = rh_int16(micro->shape->chunk);
	command.operands.later_chunks = rh_uint8(rh_max(micro->shape->chunks, 1) - 1 - micro->shape->chunk);
	return command;
}

static struct rh_place here(const struct micro *micro, enum rh_room room, int64_t number, int64_t first, int64_t bytes)
{
	return lower_bytes(micro->slot->device, room, number, first, bytes);
}

static struct rh_place there(enum rh_room room, int64_t number, int64_t bytes)
{
	return lower_bytes(-1, room, number, 0, bytes);
}

static int64_t boundary_bytes(const struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	const struct rh_model *model = micro->slot->lowering->options->model;
	return kind == RH_BOUNDARY_NARROW ? rh_narrow_boundary_shape(model, layer, micro->shape->tokens).bytes
	                                  : rh_boundary_shape(model, layer, micro->shape->tokens).bytes;
}

/* The boundary at this layer. */
static struct lower_boundary boundary_of(const struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	return (struct lower_boundary){kind, layer, micro->index, micro->slot->step, boundary_bytes(micro, kind, layer)};
}

/* A command that moves a boundary: a copy between device and host, or a message to or from the box beside this one. */
static struct rh_command mover(const struct micro *micro, enum rh_command_kind kind, int lane, int layer)
{
	struct rh_command command = command_of(micro, kind, RH_STREAM_COMPUTE);
	command.lane = lane;
	command.lo = command.hi = layer;
	return command;
}

static struct rh_command message(const struct micro *micro, enum rh_command_kind kind, int lane, const struct lower_boundary *boundary)
{
	struct rh_command command = mover(micro, kind, lane, boundary->layer);
	command.boundary = boundary->kind;
	return command;
}

/* Adds a command that brings the boundary to the host once command `made` is over. Returns its position. */
static int64_t add_filler(const struct micro *micro, struct rh_command *command, const struct lower_boundary *boundary, int64_t made)
{
	struct lowering *to = micro->slot->lowering;
	int buffer = lower_buffer_take(to, command->lane, boundary);
	lower_await(to, command->lane, made, RH_WAIT_NEEDS);
	command->target = lower_buffer_place(to, buffer, boundary->bytes);
	int64_t position = lower_add(to, command);
	lower_buffer_filled(to, boundary, buffer, position);
	return position;
}

/* Adds a command that reads the boundary on the host, for the last time or not. reader: as in lower_buffer_read. */
enum reading { READS_AGAIN, READS_LAST };
static int64_t add_reader(const struct micro *micro, struct rh_command *command, const struct lower_boundary *boundary, int reader,
                          enum reading reading)
{
	struct lowering *to = micro->slot->lowering;
	int buffer = lower_buffer_find(to, command->lane, boundary);
	command->source = lower_buffer_place(to, buffer, boundary->bytes);
	int64_t position = lower_add(to, command);
	if (reading == READS_LAST)
		lower_buffer_read(to, boundary, buffer, reader, position);
	else
		lower_buffer_read_again(to, boundary, buffer, reader, position);
	return position;
}

/* Uploads a boundary; the compute stream must still wait for the copy. */
static int16_t fetch(struct micro *micro, enum rh_boundary_kind kind, int layer, enum reading reading)
{
	struct lower_slot *slot = micro->slot;
	int16_t buffer = take(slot, &slot->state->boundary, RH_STREAM_ACTIVATIONS_UP);
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	struct rh_command copy = mover(micro, RH_COMMAND_COPY, lower_lane_of(slot, RH_STREAM_ACTIVATIONS_UP), layer);
	copy.target = here(micro, RH_ROOM_BOUNDARY, buffer, 0, boundary.bytes);
	add_reader(micro, &copy, &boundary, slot->device, reading);
	return buffer;
}

/* Downloads a boundary that command `made` leaves in a buffer of the device. */
static void send(struct micro *micro, int buffer, int64_t made, enum rh_boundary_kind kind, int layer)
{
	struct lower_slot *slot = micro->slot;
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	struct rh_command copy = mover(micro, RH_COMMAND_COPY, lower_lane_of(slot, RH_STREAM_ACTIVATIONS_DOWN), layer);
	copy.source = here(micro, RH_ROOM_BOUNDARY, buffer, 0, boundary.bytes);
	slot->state->boundary.freed[buffer] = add_filler(micro, &copy, &boundary, made);
}

static void receive(struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	struct lowering *to = micro->slot->lowering;
	int is_gradient = kind == RH_BOUNDARY_GRADIENT; /* it answers an activation that this box sends first */
	if (!is_gradient && micro->slot->slot && micro->slot->step == to->ahead.step && micro->number < to->ahead.count)
		return;
	int lane = to->links + (int)(is_gradient ? LOWER_FROM_ABOVE : LOWER_FROM_BELOW);
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	struct rh_command command = message(micro, RH_COMMAND_RECEIVE, lane, &boundary);
	add_filler(micro, &command, &boundary, is_gradient ? to->micro[micro->index].sent : LOWER_NEVER);
}

void lower_expect(struct lowering *to, int64_t step, int64_t first, const int64_t *tokens, int64_t count)
{
	struct lower_slot slot = {.lowering = to, .step = step};
	to->has_input_buffer = 0;
	count = to->links < 0 ? 0 : rh_min(count, to->limits.boundaries.from_below);
	for (int64_t m = 0; m < count; m++) {
		const struct rh_micro_shape shape = {.tokens = tokens[m]};
		struct micro micro = {.slot = &slot, .number = m, .index = first + m, .shape = &shape};
		receive(&micro, RH_BOUNDARY_ACTIVATION, 0);
	}
	to->ahead.step = step;
	to->ahead.count = count;
}

/* Sends the host's copy to the box beside this one. */
static void give(struct micro *micro, enum rh_boundary_kind kind, int layer)
{
	struct lowering *to = micro->slot->lowering;
	const struct rh_stage_plan *plan = to->options->plan;
	int is_gradient = kind == RH_BOUNDARY_GRADIENT, lane = to->links + (int)(is_gradient ? LOWER_TO_BELOW : LOWER_TO_ABOVE);
	const struct lower_boundary boundary = boundary_of(micro, kind, layer);
	struct rh_command command = message(micro, RH_COMMAND_SEND, lane, &boundary);
	int64_t position = add_reader(micro, &command, &boundary, to->options->planned.devices, READS_LAST);
	if (!is_gradient)
		to->micro[micro->index].sent = position;
	if (is_gradient || (plan->feeds && !plan->owes_gradient))
		to->micro[micro->index].last_command = position;
}

static void send_results(struct micro *micro, int buffer, int64_t made)
{
	struct lower_slot *slot = micro->slot;
	int64_t cols = rh_executor_score_cols(slot->lowering->options, slot->lowering->call.trains, micro->shape);
	int64_t bytes = rh_result_layout(slot->lowering->options->model, micro->shape, cols).bytes;
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_DOWN);
	copy.source = here(micro, RH_ROOM_RESULT, buffer, 0, bytes);
	copy.target = there(RH_ROOM_HOST_RESULT, micro->index, bytes);
	lower_await(slot->lowering, lower_lane_of(slot, RH_STREAM_ACTIVATIONS_DOWN), made, RH_WAIT_NEEDS);
	int64_t position = slot->state->result.freed[buffer] = slot->lowering->micro[micro->index].output =
	        lower_add(slot->lowering, &copy);
	if (!slot->lowering->options->plan->owes_gradient)
		slot->lowering->micro[micro->index].last_command = position;
}

/* The slot's layers whose activations are placed with those of `layer`. */
static struct rh_stage_piece piece_of(const struct micro *micro, int layer)
{
	const struct rh_slot *slot = micro->slot->slot;
	return rh_stage_plan_piece(micro->slot->lowering->options->plan, (struct rh_stage){slot->lo, slot->hi}, layer);
}

/* Which of the stage's places is the micro-batch's. */
static int64_t place_number(const struct micro *micro)
{
	const struct rh_executor_options *options = micro->slot->lowering->options;
	int64_t kept = options->plan->kept_micro_batches;
	if (!kept)
		return micro->number - micro->slot->slot->first;
	return (micro->slot->slot->step * options->planned.train_micro_batches + micro->number) % kept; /* counted over all steps */
}

static struct rh_place kept_place(const struct micro *micro, const struct rh_stage_piece *piece)
{
	const struct rh_stage_places *places = piece->places;
	if (!places || !places->kept.bytes)
		return lower_nowhere();
	return here(micro, RH_ROOM_KEPT, 0, places->kept.offset + place_number(micro) * places->kept.bytes, places->kept.bytes);
}

/* A copy of a piece's saved activations between a buffer of the device and their place in host memory. */
struct saved_copy {
	struct rh_place host, buffer;
};

static int64_t saved_bytes(const struct micro *micro, int lo, int hi)
{
	const struct rh_executor_options *options = micro->slot->lowering->options;
	const struct rh_emit emit = {.model = options->model, .shape = *micro->shape, .fates = options->plan->fates};
	int64_t bytes[RH_FATES];
	rh_stage_fate_bytes(&emit, lo, hi, bytes);
	return bytes[RH_FATE_SAVE];
}

/* A piece of a stage that saves may have no rows to save. */
static int saves(const struct micro *micro, const struct rh_stage_piece *piece)
{
	return piece->places && piece->places->saved.bytes && saved_bytes(micro, piece->lo, piece->hi);
}

static struct saved_copy saved_copy(const struct micro *micro, const struct rh_stage_piece *piece, int buffer)
{
	const struct rh_stage_places *places = piece->places;
	int64_t first = places->saved.offset + place_number(micro) * places->saved.bytes + saved_bytes(micro, piece->stage.lo, piece->lo),
	        bytes = saved_bytes(micro, piece->lo, piece->hi);
	return (struct saved_copy){.host = lower_bytes(-1, RH_ROOM_HOST_SAVED, 0, first, bytes),
	                           .buffer = here(micro, RH_ROOM_SAVING, buffer, 0, bytes)};
}

/* Where a micro-batch's of the layers that begin with this one stand in lowering.saved. */
static int64_t saved_index(const struct micro *micro, int layer)
{
	return layer * micro->slot->lowering->saved.micro_batches + place_number(micro);
}

/* Brings them from the buffer in which command `made` leaves them to the host, once the stage's backward, perhaps on another device, has
 * read what was there before. */
static void send_saved(struct micro *micro, const struct rh_stage_piece *piece, int16_t buffer, int64_t made)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->lowering;
	int lane = lower_lane_of(slot, RH_STREAM_ACTIVATIONS_DOWN);
	struct saved_copy of = saved_copy(micro, piece, buffer);
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_DOWN);
	copy.source = of.buffer;
	copy.target = of.host;
	lower_await(to, lane, made, RH_WAIT_NEEDS);
	lower_await(to, lane, to->saved.read[saved_index(micro, piece->stage.lo)], RH_WAIT_NEEDS);
	slot->state->saving.freed[buffer] = to->saved.filled[saved_index(micro, piece->lo)] = lower_add(to, &copy);
}

/* Brings them back; the compute stream must still wait for the copy. */
static int16_t fetch_saved(struct micro *micro, const struct rh_stage_piece *piece)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->lowering;
	int lane = lower_lane_of(slot, RH_STREAM_ACTIVATIONS_UP);
	int16_t buffer = take(slot, &slot->state->saving, RH_STREAM_ACTIVATIONS_UP);
	struct saved_copy of = saved_copy(micro, piece, buffer);
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_UP);
	copy.source = of.host;
	copy.target = of.buffer;
	for (int l = piece->lo; l < piece->hi; l++)
		lower_await(to, lane, to->saved.filled[saved_index(micro, l)], RH_WAIT_NEEDS);
	to->saved.read[saved_index(micro, piece->stage.lo)] = lower_add(to, &copy);
	return buffer;
}

/* Where a split backward keeps the operands of its weight gradients. */
static struct rh_place deferred_place(const struct micro *micro)
{
	const struct rh_slot *slot = micro->slot->slot;
	const struct rh_deferred_place *deferred = rh_stage_plan_deferred(micro->slot->lowering->options->plan, slot->lo, slot->hi);
	return here(micro, RH_ROOM_DEFERRED, 0, deferred->offset + micro->index % deferred->places * deferred->bytes, deferred->bytes);
}

/* Where layers keep keys and values for the calls after this one; no room: they keep none. */
static struct rh_place cache_place(const struct micro *micro, int lo, int hi)
{
	const struct rh_executor_options *options = micro->slot->lowering->options;
	int64_t first, bytes = rh_model_cache_range(options->model, lo, hi, options->planned.cache_rows, &first);
	return bytes && micro->shape->keys ? here(micro, RH_ROOM_CACHE, 0, first, bytes) : lower_nowhere();
}

/* The same for a text in chunks. No room: the text is whole. */
enum carried { CARRIED_FORWARD, CARRIED_BACK };
static struct rh_place carried_place(const struct micro *micro, int lo, int hi, enum carried carried)
{
	const struct rh_executor_options *options = micro->slot->lowering->options;
	int64_t first, begin, rows = options->planned.cache_rows, bytes = rh_model_cache_range(options->model, lo, hi, rows, &first);
	if (!micro->shape->keys || !bytes)
		return lower_nowhere();
	(void)rh_model_cache_range(options->model, micro->slot->slot->lo, micro->slot->slot->hi, rows, &begin);
	bytes += carried == CARRIED_BACK ? rh_model_carried_back_bytes(options->model, lo, hi, rows, options->planned.chunks) : 0;
	return here(micro, RH_ROOM_CACHE, 0, first - begin, bytes);
}

/* The slot's first micro-batch, whose layers wait for their weights one by one. */
static int awaits_weights(const struct micro *micro)
{
	return micro->slot->by_layer && micro->is_first;
}

/* Adds a command for each run of layers whose output a later slot reads; for a slot with results only one. Layers that wait for their
 * weights one by one have one each. Each backward stage begins with such an output, so that no command is of two pieces. */
static void forward(struct micro *micro, int16_t x)
{
	struct lower_slot *slot = micro->slot;
	struct lower_device *on = slot->state;
	const struct rh_executor_options *options = slot->lowering->options;
	int lo = slot->slot->lo, hi = slot->slot->hi, trains = slot->lowering->call.trains, infers = slot->slot->kind == RH_SLOT_INFER;
	int16_t saving = -1;
	struct rh_stage_piece piece = {.lo = -1};
	for (int from = lo, l = infers ? hi : lo + 1; l <= hi; l++) {
		int readers = infers ? 0 : rh_boundary_readers(options->plan, trains, l);
		int narrow_readers = infers ? 0 : rh_boundary_narrow_readers(options->plan, trains, l);
		if (!readers && !narrow_readers && l < hi && !awaits_weights(micro))
			continue;
		if (awaits_weights(micro))
			lower_bulk_weights(slot, from, l);
		if (trains)
			piece = piece_of(micro, from);
		struct rh_command command = computation(micro, RH_COMMAND_FORWARD);
		command.lo = from;
		command.hi = l;
		command.operands.x = x;
		if (readers)
			command.operands.y = take(slot, &on->boundary, RH_STREAM_COMPUTE);
		if (narrow_readers)
			command.operands.narrow = take(slot, &on->boundary, RH_STREAM_COMPUTE);
		if (infers)
			command.operands.result = take(slot, &on->result, RH_STREAM_COMPUTE);
		command.source = trains ? kept_place(micro, &piece) : lower_nowhere();
		command.target = trains ? carried_place(micro, from, l, CARRIED_FORWARD) : cache_place(micro, from, l);
		if (from == piece.lo)
			saving = saves(micro, &piece) ? take(slot, &on->saving, RH_STREAM_COMPUTE) : -1;
		command.operands.saving = saving;
		int64_t made = lower_add(slot->lowering, &command);
		if (x >= 0)
			on->boundary.read[x] = made;
		if (infers)
			send_results(micro, command.operands.result, made);
		if (readers)
			send(micro, command.operands.y, made, RH_BOUNDARY_ACTIVATION, l);
		if (narrow_readers)
			send(micro, command.operands.narrow, made, RH_BOUNDARY_NARROW, l);
		if (saving >= 0 && l == piece.hi)
			send_saved(micro, &piece, saving, made);
		if (!infers && rh_stage_plan_gives(options->plan, l))
			give(micro, RH_BOUNDARY_ACTIVATION, l);
		x = command.operands.y;
		from = l;
	}
}

/* The slot's first micro-batch, which adds to sums that are still coming. */
static int awaits_sums(const struct micro *micro)
{
	return micro->slot->adds && micro->is_first;
}

/* Adds commands for the layers from the bottom up: one for all, or, where each waits for its weights, one for each. */
static void run_up(struct micro *micro, const struct rh_command *all, int16_t x)
{
	const struct lower_slot *slot = micro->slot;
	for (int lo = slot->slot->lo, hi; lo < slot->slot->hi; lo = hi) {
		hi = awaits_weights(micro) ? lo + 1 : slot->slot->hi;
		if (awaits_weights(micro))
			lower_bulk_weights(micro->slot, lo, hi);
		struct rh_command command = *all;
		command.lo = lo;
		command.hi = hi;
		command.operands.x = lo == slot->slot->lo ? x : -1;
		lower_add(slot->lowering, &command);
	}
}

/* Adds commands for the layers from the top down: one for all, or, where sums come or become final, one for each. Returns the last. */
static int64_t run_down(struct micro *micro, const struct rh_command *all, int16_t dx)
{
	struct lower_slot *slot = micro->slot;
	const struct rh_model *model = slot->lowering->options->model;
	int stage_lo = slot->slot->lo, lowest = stage_lo > model->first_trained ? stage_lo : model->first_trained;
	int ends_sums = micro->is_last && !slot->slot->sums_stay;
	int64_t last = LOWER_NEVER;
	for (int hi = slot->slot->hi, lo; hi > lowest; hi = lo) {
		lo = ends_sums || awaits_sums(micro) ? hi - 1 : lowest;
		if (awaits_sums(micro))
			lower_bulk_sums(slot, lo);
		struct rh_command command = *all;
		command.hi = hi;
		command.lo = lo;
		command.operands.dy = hi == slot->slot->hi ? all->operands.dy : -1;
		command.operands.dx = lo == lowest ? dx : -1;
		last = lower_add(slot->lowering, &command);
		if (ends_sums)
			lower_bulk_layer(slot, lo);
	}
	return last;
}

static void backward(struct micro *micro, int16_t x, int16_t saving)
{
	struct lower_slot *slot = micro->slot;
	struct lower_device *on = slot->state;
	const struct rh_slot *program_slot = slot->slot;
	const struct rh_model *model = slot->lowering->options->model;
	int fused = !rh_slot_reads_gradient(slot->lowering->options->plan, program_slot), sends = program_slot->lo > model->first_trained;
	int16_t result = -1, dx = -1, above = -1;
	if (!fused)
		above = fetch(micro, RH_BOUNDARY_GRADIENT, program_slot->hi, READS_LAST);
	int64_t above_up = lower_last_of(slot, RH_STREAM_ACTIVATIONS_UP);
	struct rh_stage_piece piece = piece_of(micro, program_slot->lo);
	const struct rh_stage_places *places = piece.places;
	struct rh_place kept = kept_place(micro, &piece), carried = carried_place(micro, program_slot->lo, program_slot->hi, CARRIED_BACK);
	struct rh_place deferred = program_slot->kind == RH_SLOT_INPUT_GRADIENT ? deferred_place(micro) : lower_nowhere();
	int recomputes = !places || places->recomputes;
	if (fused)
		result = take(slot, &on->result, RH_STREAM_COMPUTE);
	if (fused && awaits_sums(micro) && program_slot->hi == model->layers)
		lower_bulk_sums(slot, program_slot->hi - 1); /* a head's gradient comes with its loss */
	if (recomputes) {
		struct rh_command command = computation(micro, RH_COMMAND_RECOMPUTE);
		command.operands.result = result;
		command.operands.saving = saving;
		command.source = places ? kept : deferred;
		command.target = carried.room == RH_ROOM_CACHE ? carried : here(micro, RH_ROOM_ARENA, 0, 0, 0);
		run_up(micro, &command, x);
	} else if (awaits_weights(micro)) {
		lower_bulk_weights(slot, program_slot->lo, program_slot->hi);
	}
	if (above >= 0)
		lower_await(slot->lowering, lower_lane_of(slot, RH_STREAM_COMPUTE), above_up, RH_WAIT_NEEDS);
	if (sends)
		dx = take(slot, &on->boundary, RH_STREAM_COMPUTE);
	struct rh_command command = computation(micro, RH_COMMAND_BACKWARD);
	command.operands.x = x;
	command.operands.dy = above;
	command.operands.result = result;
	command.operands.saving = saving;
	command.source = recomputes && kept.room == RH_ROOM_NONE ? here(micro, RH_ROOM_ARENA, 0, 0, 0) : kept;
	command.target = carried.room == RH_ROOM_CACHE ? carried : deferred;
	int64_t made = run_down(micro, &command, dx);
	if (fused)
		send_results(micro, result, made);
	if (sends)
		send(micro, dx, made, RH_BOUNDARY_GRADIENT, program_slot->lo);
	if (rh_slot_gives_gradient(slot->lowering->options->plan, program_slot))
		give(micro, RH_BOUNDARY_GRADIENT, program_slot->lo);
	if (x >= 0)
		on->boundary.read[x] = made;
	if (above >= 0)
		on->boundary.read[above] = made;
	if (saving >= 0)
		on->saving.read[saving] = made;
}

/* What the slot's mixer carries of a chunk. */
static void carry(struct micro *micro, int16_t x)
{
	struct rh_command command = computation(micro, RH_COMMAND_CARRY);
	command.operands.x = x;
	struct rh_stage_piece piece = piece_of(micro, micro->slot->slot->lo);
	command.source = kept_place(micro, &piece);
	command.target = carried_place(micro, micro->slot->slot->lo, micro->slot->slot->hi, CARRIED_BACK);
	int64_t made = lower_add(micro->slot->lowering, &command);
	if (x >= 0)
		micro->slot->state->boundary.read[x] = made;
}

static void weight_gradients(struct micro *micro)
{
	struct rh_command command = computation(micro, RH_COMMAND_WEIGHT_GRADIENT);
	command.source = deferred_place(micro);
	(void)run_down(micro, &command, -1);
}

static void input(struct micro *micro)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->lowering;
	struct rh_micro_layout at = rh_micro_layout(micro->shape);
	int64_t bytes = slot->slot->lo ? at.row : at.bytes; /* rows of a table are for the embedding */
	micro->buffer = take(slot, &slot->state->micro, RH_STREAM_ACTIVATIONS_UP);
	struct rh_command copy = command_of(micro, RH_COMMAND_COPY, RH_STREAM_ACTIVATIONS_UP);
	copy.source = there(RH_ROOM_HOST_MICRO, micro->index, bytes);
	copy.target = here(micro, RH_ROOM_MICRO, micro->buffer, 0, bytes);
	lower_await(to, lower_lane_of(slot, RH_STREAM_ACTIVATIONS_UP), to->micro[micro->index].input, RH_WAIT_NEEDS);
	lower_add(to, &copy);
}

/* A micro-batch of the slot: `number` within it. */
static struct micro micro_of(struct lower_slot *slot, int64_t number)
{
	struct lowering *to = slot->lowering;
	int64_t index = lower_first_index(to, slot->slot) + number;
	return (struct micro){.slot = slot, .number = slot->slot->first + number, .index = index, .shape = &to->batch[index].shape};
}

/* Its integers go up, and its input where the slot reads one: the buffer, or -1; and what is saved, where that is asked for. */
static int16_t begin_micro_batch(struct micro *micro, enum reading reading, int16_t *saving)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->lowering;
	const struct rh_slot *program_slot = slot->slot;
	const struct rh_stage_plan *plan = to->options->plan;
	int reads = (program_slot->lo > 0 || plan->is_fed) && program_slot->kind != RH_SLOT_WEIGHT_GRADIENT;
	to->has_input_buffer = 0;
	input(micro);
	if (rh_slot_takes_input(plan, program_slot))
		receive(micro, RH_BOUNDARY_ACTIVATION, program_slot->lo);
	if (rh_slot_takes_gradient(plan, program_slot))
		receive(micro, RH_BOUNDARY_GRADIENT, program_slot->hi);
	int16_t x = -1;
	if (reads)
		x = fetch(micro, rh_boundary_input(plan, program_slot), program_slot->lo, reading);
	struct rh_stage_piece piece = piece_of(micro, program_slot->lo);
	int is_saved = program_slot->kind != RH_SLOT_WEIGHT_GRADIENT && rh_slot_makes_gradients(program_slot) && saves(micro, &piece);
	if (saving)
		*saving = is_saved ? fetch_saved(micro, &piece) : -1;
	lower_await(to, lower_lane_of(slot, RH_STREAM_COMPUTE), lower_last_of(slot, RH_STREAM_ACTIVATIONS_UP), RH_WAIT_NEEDS);
	return x;
}

static void end_micro_batch(const struct micro *micro)
{
	struct lower_slot *slot = micro->slot;
	struct lowering *to = slot->lowering;
	slot->state->micro.freed[micro->buffer] = lower_last_of(slot, RH_STREAM_COMPUTE);
	to->computed[micro->index * to->options->planned.devices + slot->device] = lower_last_of(slot, RH_STREAM_COMPUTE);
}

static void one_micro_batch(struct micro *micro)
{
	const struct rh_slot *program_slot = micro->slot->slot;
	int16_t saving, x = begin_micro_batch(micro, READS_LAST, &saving);
	if (!rh_slot_makes_gradients(program_slot))
		forward(micro, x);
	else if (program_slot->kind == RH_SLOT_WEIGHT_GRADIENT)
		weight_gradients(micro);
	else
		backward(micro, x, saving);
	end_micro_batch(micro);
}

/* A backward slot first makes what its mixer carries of all chunks of a text: of the saved inputs alone, before its gradient is there. */
static void carry_text(struct lower_slot *slot, int64_t first, int64_t chunks)
{
	if (!rh_slot_makes_gradients(slot->slot) || !rh_model_carriers(slot->lowering->options->model, slot->slot->lo, slot->slot->hi))
		return;
	for (int64_t c = 0; c < chunks && !slot->lowering->rc; c++) {
		struct micro micro = micro_of(slot, first + c);
		carry(&micro, begin_micro_batch(&micro, READS_AGAIN, NULL));
		end_micro_batch(&micro);
	}
}

/* Ends the uploads of the slot's blocks: the step has no later slot with them, or their previous update is published now. */
static void end_uploads(struct lower_slot *slot)
{
	const struct rh_model *model = slot->lowering->options->model;
	for (int l = slot->slot->lo; l < slot->slot->hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which];
			if (b >= 0 && model->block[b].trainable && model->block[b].uses == 1)
				lower_uploads_over(slot->lowering, b, slot->step);
		}
}

/* What the gap behind a place is paced by. */
static void note_copies(struct lower_slot *slot, int64_t place)
{
	slot->state->copied_up[place] = lower_last_of(slot, RH_STREAM_ACTIVATIONS_UP);
	slot->state->copied_down[place] = lower_last_of(slot, RH_STREAM_ACTIVATIONS_DOWN);
}

/* The micro-batches of one text, `each` places of which the last may be empty: forward in the order of its chunks, backward the last chunk
 * first. ends: with the slot's last one its blocks' uploads are over. */
static void lower_text(struct lower_slot *slot, int64_t first, int64_t each, int ends)
{
	int64_t chunks = rh_max(micro_of(slot, first).shape->chunks, 1);
	int descends = rh_slot_makes_gradients(slot->slot), is_last_text = first + each == slot->slot->count;
	if (chunks > 1)
		carry_text(slot, first, chunks);
	for (int64_t k = 0; !slot->lowering->rc && k < chunks; k++) {
		lower_bulk_gap(slot, first + k);
		/* behind the slot's last micro-batch its own gradients are next: those of the slot before have left by then */
		for (int64_t empty = chunks; k == chunks - 1 && empty < each; empty++) {
			note_copies(slot, first + empty - 1);
			lower_bulk_gap(slot, first + empty);
		}
		struct micro micro = micro_of(slot, first + (descends ? chunks - 1 - k : k));
		micro.is_first = !first && !k;
		micro.is_last = is_last_text && k == chunks - 1;
		if (micro.is_last && ends) /* the previous step's gradients have been sent, this step's have not */
			end_uploads(slot);
		one_micro_batch(&micro);
		note_copies(slot, first + k);
	}
	for (int64_t empty = chunks; empty < each; empty++)
		note_copies(slot, first + empty);
}

void lower_slot(struct lower_slot *slot)
{
	const struct rh_slot *program_slot = slot->slot;
	const struct lowering *to = slot->lowering;
	int ends = rh_slot_makes_gradients(program_slot) && program_slot->last_round && !program_slot->sums_stay && !to->call.is_local;
	int64_t each = to->call.trains ? rh_max(to->options->planned.chunks, 1) : 1;
	lower_bulk_begin(slot);
	for (int64_t first = 0; !to->rc && first < program_slot->count; first += each)
		lower_text(slot, first, each, ends);
	if (!slot->lowering->rc)
		lower_bulk_end(slot);
	if (rh_dispatch_publishes(&slot->lowering->limits.dispatch, program_slot))
		end_uploads(slot);
}
