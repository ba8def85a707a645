/* Weights up and gradients down. A slot's weights travel while the device's slot before computes, and its gradients while the next one
 * does, cut into pieces (offload/transfer.h) that each go behind the activations of one micro-batch, in the gap until the next one's
 * (slot i+N: the device's next slot; with RoundPipe N is the number of devices):
 *
 *   ACTIVATIONS_UP    x(0)      x(1)      ...  of slot i                 COMPUTE  ... slot i: last backward, [round] gradient
 *   WEIGHTS           [x(0)] pieces of slot i+N, gap 0                   GRADIENTS  [round] pieces, gap 0 of slot i+N
 *                     [x(1)] pieces, gap 1 ...                                      [y(0) of slot i+N down] pieces, gap 1 ...
 *
 * What slot i computes with and what slot i+N is to compute with lie at the two ends of the room for weights; gradients leave from their
 * rounded copy, so that the next slot's sums need not wait for them. Sums in fp32 (between rounds, or where nothing is rounded) leave at
 * once, layer by layer as they become final: what comes next on the device needs their place. They come the same way: a layer's first
 * backward waits for its own sums alone.
 *
 * A synchronous step's first slots have no slot before. Their blocks go up in any order, each as soon as it is updated, and in their first
 * micro-batch each layer waits for its own alone.
 *
 * Of the embedding's table only the rows may travel that a step's tokens name (run/table.c). On a device they lie at the front of the
 * table's place, in the order that the step's micro-batches number them, as do those of its gradient. */
#include "run/lower.h"

#include "core/minmax.h"

/* Pieces of gradients in one gap: 128 MiB at RH_TRANSFER_MOST, some ms. */
enum { GAP_PIECES = 16 };

static void compute_after(struct lower_slot *slot, int64_t position)
{
	lower_await(slot->lowering, lower_lane_of(slot, RH_STREAM_COMPUTE), position, RH_WAIT_NEEDS);
}

/* Adds a bulk copy to this lane. */
static int64_t copy(struct lower_slot *slot, int lane, int block, struct rh_place from, struct rh_place to)
{
	struct rh_command command = lower_command(slot, RH_COMMAND_COPY, RH_STREAM_WEIGHTS);
	command.lane = lane;
	command.block = block;
	command.source = from;
	command.target = to;
	return lower_add(slot->lowering, &command);
}

/* ---- weights ---- */

static int comes_in_pages(const struct lowering *to, int b)
{
	return rh_store_pages(to->options->store, b) >= 0;
}

/* Lays out the blocks of the slot's stage in its upload: to->offset. Returns their bytes. */
static int64_t lay_out(const struct lower_slot *slot)
{
	const struct lowering *to = slot->lowering;
	return rh_stage_plan_upload_layout(to->options->model, slot->slot->lo, slot->slot->hi, rh_slot_makes_gradients(slot->slot),
	                                   to->offset);
}

/* What lies in place of a table whose rows are not known yet; below it, the rows of a call. */
enum { ROWS_UNKNOWN = -1 };

/* The version of the block's weights that the slot reads: the newest, or, in a backward with a stash, that of its forward. One slot was
 * the forward of all micro-batches of a slot. Rows of a table are a version of their own in each call. */
static int64_t wanted(const struct lower_slot *slot, int b)
{
	const struct lowering *to = slot->lowering;
	const struct rh_model *model = to->options->model;
	const struct rh_slot *program_slot = slot->slot;
	if (lower_is_by_rows(to, b))
		return slot->is_ahead ? ROWS_UNKNOWN : ROWS_UNKNOWN - to->call.number;
	if (!rh_store_options(to->options->store)->stash || program_slot->kind != RH_SLOT_BACKWARD || !model->block[b].trainable)
		return to->block[b].version;
	int l = program_slot->lo;
	while (!rh_layer_has_block(&model->layer[l], b))
		l++;
	return to->versions.of[lower_first_index(to, program_slot) * model->layers + l].forward;
}

/* Bytes of the block that an upload for the slot sends. */
static int64_t sent_bytes(const struct lower_slot *slot, int b)
{
	const struct rh_model *model = slot->lowering->options->model;
	if (lower_is_by_rows(slot->lowering, b))
		return slot->is_ahead ? 0 : rh_dtype_bytes(model->dtype, slot->lowering->call.table.elements);
	return rh_block_bytes(&model->block[b], model->dtype);
}

/* 1: the stage lies in the room already, alone or within another one, as a backward's does within its forward's. The slot reads it there.
 * What was updated since is sent there again, and not while the slot before computes: it is less than half. */
static int stays(struct lower_slot *slot, int64_t bytes, int64_t *at)
{
	struct lower_weights *weights = &slot->state->weights;
	const struct rh_model *model = slot->lowering->options->model;
	const int64_t *offset = slot->lowering->offset;
	int64_t stale = 0;
	*at = -1;
	for (int b = 0; b < model->blocks; b++) {
		int64_t begin = weights->offset[b] - offset[b];
		if (offset[b] < 0)
			continue;
		if (weights->offset[b] < 0 || begin < 0 || (*at >= 0 && begin != *at))
			return 0;
		*at = begin;
		stale += weights->version[b] == wanted(slot, b) ? 0 : sent_bytes(slot, b);
	}
	int end = 2 * *at + bytes > weights->capacity;
	if (*at < 0 || 2 * stale >= bytes)
		return 0;
	weights->turn = end;
	weights->end[end].bytes = rh_max(weights->end[end].bytes, end ? weights->capacity - *at : *at + bytes);
	return 1;
}

/* This lane's next command waits for the readers of the bytes that it overwrites. */
static void await_room(struct lower_slot *slot, int lane)
{
	const struct lower_weights *weights = &slot->state->weights;
	int end = weights->turn;
	lower_await(slot->lowering, lane, weights->end[end].freed, RH_WAIT_NEEDS);
	if (weights->end[end].bytes + weights->end[!end].bytes > weights->capacity) /* the two ends' bytes overlap */
		lower_await(slot->lowering, lane, weights->end[!end].freed, RH_WAIT_NEEDS);
}

/* Chooses where the stage's blocks lie, and how much of each to send: bytes[b], 0 if it lies there already. 1: something is to be sent. */
static int place_weights(struct lower_slot *slot)
{
	struct lower_weights *weights = &slot->state->weights;
	struct lowering *to = slot->lowering;
	const struct rh_model *model = to->options->model;
	int64_t *offset = to->offset, at = 0;
	int64_t all = lay_out(slot);
	int any = 0;
	if (!stays(slot, all, &at)) {
		int end = weights->turn ^= 1;
		weights->end[end].bytes = all;
		at = end ? weights->capacity - all : 0;
	}
	slot->weights = at;
	for (int b = 0; b < model->blocks; b++) {
		int64_t length = rh_block_bytes(&model->block[b], model->dtype), was = weights->offset[b];
		int there = offset[b] >= 0 && was == at + offset[b] && weights->version[b] == wanted(slot, b);
		to->bytes[b] = offset[b] < 0 || there ? 0 : sent_bytes(slot, b);
		any |= to->bytes[b] > 0;
		if (!there && was >= 0 && was < at + all && was + length > at)
			weights->offset[b] = -1; /* overwritten now */
		if (offset[b] < 0)
			continue;
		weights->offset[b] = at + offset[b];
		weights->version[b] = wanted(slot, b);
	}
	return any;
}

/* One copy of a block's bytes. It waits for the update that made them. */
static void send_piece(struct lower_slot *slot, int lane, int b, int64_t first, int64_t bytes)
{
	struct lowering *to = slot->lowering;
	struct lower_weights *weights = &slot->state->weights;
	struct rh_place from = lower_bytes(-1, RH_ROOM_HOST_WEIGHTS, b, first, bytes);
	int64_t age = lower_is_by_rows(to, b) ? 0 : to->block[b].version - wanted(slot, b);
	if (age) { /* this version was put into the stash by the update that followed it */
		from.room = RH_ROOM_HOST_STASH;
		int64_t number = to->block[b].stashed_versions - age;
		from.number += rh_int32(number % rh_store_options(to->options->store)->stash * to->options->model->blocks);
	}
	lower_await(to, lane, to->block[b].ready, RH_WAIT_NEEDS);
	lower_await(to, lane, weights->sent[b], RH_WAIT_NEEDS); /* it may be on another lane: a wait for this copy is one for both */
	if (comes_in_pages(to, b)) {
		from.room = RH_ROOM_PAGES;
		from = lower_page(to, lane, slot->step, from);
	}
	weights->sent[b] = copy(slot, lane, b, from, lower_bytes(slot->device, RH_ROOM_WEIGHTS, b, weights->offset[b] + first, bytes));
	if (from.room == RH_ROOM_HOST_FRAME)
		to->drives.copied[from.number] = weights->sent[b];
	if (to->block[b].uploaded_step != to->call.number)
		for (int d = 0; d < to->options->planned.devices; d++)
			to->uploaded[b * to->options->planned.devices + d] = LOWER_NEVER;
	to->block[b].uploaded_step = to->call.number;
	to->uploaded[b * to->options->planned.devices + slot->device] = weights->sent[b];
}

/* Sends pieces in the gaps of the device's slot before. */
static void send_in_gaps(struct lower_slot *slot)
{
	struct lowering *to = slot->lowering;
	const struct lower_device *on = slot->state;
	int lane = lower_lane_of(slot, RH_STREAM_WEIGHTS), gap = -1;
	int pieces = rh_transfer_lay(to->limits.pieces, to->bytes, to->options->model->blocks, on->gaps, to->piece, to->load);
	if (pieces)
		await_room(slot, lane);
	for (int p = 0, joined; p < pieces; p += joined) {
		const struct rh_transfer_piece *piece = &to->piece[p];
		int64_t bytes;
		joined = rh_transfer_joined(piece, comes_in_pages(to, piece->item) ? 1 : pieces - p, &bytes);
		if (gap != piece->gap)
			lower_await(to, lane, on->copied_up[piece->gap], RH_WAIT_PACES);
		gap = piece->gap;
		send_piece(slot, lane, piece->item, piece->first, bytes);
	}
}

/* Sends all blocks at once and in any order: each has a lane of its own. */
static void send_blocks(struct lower_slot *slot)
{
	struct lowering *to = slot->lowering;
	int blocks = to->options->model->blocks;
	for (int b = 0; b < blocks; b++) {
		int lane = to->free + slot->device * blocks + b;
		if (!to->bytes[b])
			continue;
		await_room(slot, lane);
		int64_t most = comes_in_pages(to, b) ? to->limits.pieces.most_bytes : to->bytes[b];
		for (int64_t first = 0; first < to->bytes[b]; first += most)
			send_piece(slot, lane, b, first, rh_min(to->bytes[b] - first, most));
	}
}

/* The table, or its rows, where the stage's other blocks were sent ahead. */
static void send_table(struct lower_slot *slot)
{
	struct lowering *to = slot->lowering;
	struct lower_weights *weights = &slot->state->weights;
	int table = rh_model_table(to->options->model), blocks = to->options->model->blocks;
	(void)lay_out(slot);
	if (to->offset[table] < 0 || weights->version[table] == wanted(slot, table))
		return;
	for (int b = 0; b < blocks; b++)
		to->bytes[b] = b == table ? sent_bytes(slot, b) : 0;
	weights->version[table] = wanted(slot, table);
	send_blocks(slot);
}

static void send_weights(struct lower_slot *slot)
{
	if (!place_weights(slot))
		return;
	if (slot->state->gaps)
		send_in_gaps(slot);
	else
		send_blocks(slot);
}

/* Computation waits for the uploads that it reads. Where no slot computes meanwhile, each layer's first waits for its own alone; but what
 * is made of the weights once is made of all of them. */
static void await_weights(struct lower_slot *slot, int is_leading)
{
	const struct lowering *to = slot->lowering;
	enum rh_slot_kind kind = slot->slot->kind;
	slot->by_layer = is_leading && to->call.trains && to->options->planned.chunks <= 1 && !to->options->plan->plain_bytes &&
	                 kind != RH_SLOT_INFER && kind != RH_SLOT_WEIGHT_GRADIENT;
	if (slot->by_layer)
		return;
	(void)lay_out(slot);
	for (int b = 0; b < slot->lowering->options->model->blocks; b++)
		if (slot->lowering->offset[b] >= 0)
			compute_after(slot, slot->state->weights.sent[b]);
}

/* Makes of the stage's weights what its products read, unless it lies there. What a block of another stage has where they go is lost. */
static void make_plain(struct lower_slot *slot)
{
	struct lowering *to = slot->lowering;
	struct lower_plain *plain = &slot->state->plain;
	int64_t all = rh_stage_plan_plain_layout(to->options->model, slot->slot->lo, slot->slot->hi, to->offset);
	int is_there = 1;
	if (!all || !to->options->plan->plain_bytes)
		return;
	for (int b = 0; b < to->options->model->blocks; b++)
		is_there &= to->offset[b] < 0 || (plain->offset[b] == to->offset[b] && plain->version[b] == wanted(slot, b));
	if (is_there)
		return;
	struct rh_command command = lower_command(slot, RH_COMMAND_DEQUANTISE, RH_STREAM_COMPUTE);
	command.operands = lower_operands(slot);
	command.target = lower_bytes(slot->device, RH_ROOM_PLAIN, slot->slot->lo, 0, all);
	lower_add(to, &command);
	for (int b = 0; b < to->options->model->blocks; b++) {
		if (to->offset[b] >= 0 || plain->offset[b] < all)
			plain->offset[b] = to->offset[b];
		if (to->offset[b] >= 0)
			plain->version[b] = wanted(slot, b);
	}
}

static void upload_weights(struct lower_slot *slot)
{
	struct lower_device *on = slot->state;
	int is_leading = on->ahead.kind >= 0 || !on->gaps;
	if (on->ahead.kind >= 0) {
		slot->weights = on->ahead.weights; /* lower_bulk_keep made sure that the uploads begun ahead are of this slot */
		send_table(slot);
	} else {
		send_weights(slot);
	}
	on->ahead.kind = -1;
	await_weights(slot, is_leading);
	make_plain(slot);
}

void lower_bulk_ahead(struct lowering *to, int device, const struct rh_slot *expected)
{
	struct lower_slot slot = {
	        .lowering = to, .state = &to->device[device], .device = device, .slot = expected, .step = to->call.step + 1, .is_ahead = 1};
	RH_ASSERT(!slot.state->gaps);
	slot.state->ahead.kind = (int)expected->kind;
	slot.state->ahead.lo = expected->lo;
	slot.state->ahead.hi = expected->hi;
	slot.state->ahead.first = to->ring.end;
	send_weights(&slot);
	slot.state->ahead.weights = slot.weights;
}

void lower_bulk_keep(struct lowering *to, int device, const struct rh_slot *first)
{
	struct lower_device *on = &to->device[device];
	const struct rh_model *model = to->options->model;
	if (first && (int)first->kind == on->ahead.kind && first->lo == on->ahead.lo && first->hi == on->ahead.hi)
		return;
	for (int b = 0; b < model->blocks; b++) {
		if (on->weights.sent[b] < on->ahead.first)
			continue;
		on->weights.offset[b] = -1;
		/* no slot waits for this upload: without these waits an update might overwrite its source, or an upload its target */
		for (int d = 0; d < to->options->planned.devices; d++)
			lower_await(to, lower_lane(d, RH_STREAM_COMPUTE), on->weights.sent[b], RH_WAIT_NEEDS);
		lower_await(to, lower_lane(device, RH_STREAM_WEIGHTS), on->weights.sent[b], RH_WAIT_NEEDS);
		for (int other = 0; other < model->blocks; other++)
			lower_await(to, to->free + device * model->blocks + other, on->weights.sent[b], RH_WAIT_NEEDS);
	}
	on->ahead.kind = -1;
}

/* ---- gradients ---- */

static int64_t send_down(struct lower_slot *slot, int sum, struct rh_place from, struct rh_place to, int64_t first, int64_t bytes)
{
	int lane = lower_lane_of(slot, RH_STREAM_GRADIENTS);
	from.first += first;
	to.first = first;
	from.bytes = to.bytes = bytes;
	lower_await(slot->lowering, lane, slot->lowering->block[sum / 2].taken, RH_WAIT_NEEDS);
	return copy(slot, lane, sum / 2, from, to);
}

/* Bytes at which a sum lies in the room of sums, while slot->lowering->offset holds the stage's layout. */
static int64_t sum_at(const struct lower_slot *slot, int sum)
{
	(void)rh_stage_plan_gradient_layout(slot->lowering->options->model, slot->slot->lo, slot->slot->hi, slot->lowering->offset);
	return slot->lowering->offset[sum] * 4;
}

/* Where a final gradient goes, whole. */
static struct rh_place gradient_place(const struct lowering *to, int b)
{
	int64_t bytes = rh_dtype_bytes(to->options->model->dtype, lower_elements(to, b));
	return lower_is_by_rows(to, b) ? lower_bytes(-1, RH_ROOM_HOST_ROWS, to->call.table.index, 0, bytes)
	                               : lower_bytes(-1, RH_ROOM_HOST_GRADIENT, b, 0, bytes);
}

/* A final gradient in the store's dtype: rounded now, sent in the gaps of the device's next slot. */
static void round_sum(struct lower_slot *slot, int sum)
{
	struct lower_device *on = slot->state;
	int64_t elements = lower_elements(slot->lowering, sum / 2), at = sum_at(slot, sum);
	struct rh_command command = lower_command(slot, RH_COMMAND_ROUND, RH_STREAM_COMPUTE);
	if (!on->downloads)
		compute_after(slot, on->rounded_sent);
	command.block = sum / 2;
	command.source = lower_bytes(slot->device, RH_ROOM_SUMS, sum, at, elements * 4);
	command.target = lower_bytes(slot->device, RH_ROOM_ROUNDED, sum, at / 2, elements * 2);
	on->rounded = on->sums_read = lower_add(slot->lowering, &command);
	on->download[on->downloads++] = (struct lower_download){
	        .sum = sum, .step = slot->step, .offset = at / 2, .bytes = elements * 2, .to = gradient_place(slot->lowering, sum / 2)};
}

static void send_sum(struct lower_slot *slot, int sum)
{
	struct lowering *to = slot->lowering;
	const struct rh_block *block = &to->options->model->block[sum / 2];
	int is_final = slot->slot->last_round && block->uses == 1;
	int64_t at = sum_at(slot, sum), all = lower_elements(to, sum / 2) * 4;
	struct rh_place from = lower_bytes(slot->device, RH_ROOM_SUMS, sum, at, 0);
	struct rh_place where = is_final ? gradient_place(to, sum / 2) : lower_bytes(-1, RH_ROOM_HOST_SUM, sum, 0, 0);
	lower_await(to, lower_lane_of(slot, RH_STREAM_GRADIENTS), lower_last_of(slot, RH_STREAM_COMPUTE), RH_WAIT_NEEDS);
	to->summed[sum] = slot->state->sums_sent = send_down(slot, sum, from, where, 0, all);
	if (is_final) /* a block of two uses arrives when the step is over */
		lower_arrived(to, sum / 2, slot->step, to->summed[sum], slot->device, where);
}

/* Sends a finished sum to the store: after the last round as the gradient, in the store's dtype; before, or where a block's two uses are
 * added up later, as a running sum. A sum that the store has no place for stays on the device until the step is over (lower_fold). */
static void end_sum(struct lower_slot *slot, int sum)
{
	struct lowering *to = slot->lowering;
	const struct rh_model *model = to->options->model;
	const struct rh_block *block = &model->block[sum / 2];
	if (block->uses == 2 && sum % 2 == 0 && !rh_store_sum(to->options->store, sum / 2, 0)) {
		to->unsent_sum.device = slot->device;
		to->unsent_sum.block = sum / 2;
		to->unsent_sum.first = sum_at(slot, sum);
	} else if (slot->slot->last_round && block->uses == 1 && model->dtype != RH_F32) {
		round_sum(slot, sum);
	} else {
		send_sum(slot, sum);
	}
}

/* The sum of one of the layer's blocks; -1: it has none. */
static int sum_of(const struct lower_slot *slot, int l, int which)
{
	const struct rh_model *model = slot->lowering->options->model;
	int b = model->layer[l].block[which];
	return b >= 0 && model->block[b].trainable ? 2 * b + model->layer[l].use[which] : -1;
}

void lower_bulk_weights(struct lower_slot *slot, int lo, int hi)
{
	const struct rh_model *model = slot->lowering->options->model;
	if (!slot->by_layer)
		return;
	(void)lay_out(slot);
	for (int l = lo; l < hi; l++)
		for (int which = 0, b; which < RH_LAYER_BLOCKS; which++)
			if ((b = model->layer[l].block[which]) >= 0 && slot->lowering->offset[b] >= 0)
				compute_after(slot, slot->state->weights.sent[b]);
}

void lower_bulk_sums(struct lower_slot *slot, int l)
{
	for (int which = 0, sum; which < RH_LAYER_BLOCKS; which++)
		if ((sum = sum_of(slot, l, which)) >= 0)
			compute_after(slot, slot->state->fetched[sum]);
}

void lower_bulk_layer(struct lower_slot *slot, int l)
{
	for (int which = 0, sum; which < RH_LAYER_BLOCKS; which++)
		if ((sum = sum_of(slot, l, which)) >= 0)
			end_sum(slot, sum);
}

static void clear_sum(struct lower_slot *slot, int sum, int64_t at, int64_t bytes)
{
	struct rh_command clear = lower_command(slot, RH_COMMAND_CLEAR, RH_STREAM_COMPUTE);
	clear.block = sum / 2;
	clear.target = lower_bytes(slot->device, RH_ROOM_SUMS, sum, at, bytes);
	lower_add(slot->lowering, &clear);
}

/* Uploads a sum that another device may have sent to the store. */
static int64_t fetch_sum(struct lower_slot *slot, int sum, int64_t at, int64_t bytes)
{
	struct lowering *to = slot->lowering;
	int lane = lower_lane_of(slot, RH_STREAM_WEIGHTS);
	RH_ASSERT(to->summed[sum] != LOWER_NEVER);
	lower_await(to, lane, to->summed[sum], RH_WAIT_NEEDS);
	return copy(slot, lane, sum / 2, lower_bytes(-1, RH_ROOM_HOST_SUM, sum, 0, bytes),
	            lower_bytes(slot->device, RH_ROOM_SUMS, sum, at, bytes));
}

/* Sums begin at zero in the step's first round; later rounds add to the sums of those before, which come in the order of the backward. */
static void begin_sums(struct lower_slot *slot)
{
	struct lowering *to = slot->lowering;
	const struct rh_model *model = to->options->model;
	struct lower_device *on = slot->state;
	int clears = slot->slot->first_round;
	if (slot->slot->sums_there || !rh_stage_plan_gradient_layout(model, slot->slot->lo, slot->slot->hi, to->offset))
		return;
	int lane = lower_lane_of(slot, clears ? RH_STREAM_COMPUTE : RH_STREAM_WEIGHTS);
	lower_await(to, lane, on->sums_sent, RH_WAIT_NEEDS);
	lower_await(to, lane, on->sums_read, RH_WAIT_NEEDS);
	slot->adds = !clears;
	for (int sum = 2 * model->blocks - 1; sum >= 0; sum--) {
		int64_t at = to->offset[sum] * 4, bytes = lower_elements(to, sum / 2) * 4;
		if (at < 0)
			continue;
		if (clears)
			clear_sum(slot, sum, at, bytes);
		else
			on->fetched[sum] = fetch_sum(slot, sum, at, bytes);
	}
}

/* Puts gradients that the previous slot has rounded into gaps of this one: GAP_PIECES pieces each, or more where `gaps` are too few. With
 * fewer pieces in a gap the update would wait longer, with more an activation. */
static void lay_downloads(struct lower_slot *slot, int gaps)
{
	struct lower_device *on = slot->state;
	struct lowering *to = slot->lowering;
	int64_t total = 0, each = GAP_PIECES * to->limits.pieces.most_bytes;
	if (!on->downloads)
		return;
	for (int i = 0; i < on->downloads; i++)
		total += to->bytes[i] = on->download[i].left = on->download[i].bytes;
	gaps = (int)rh_min(gaps, (total + each - 1) / each);
	on->pieces = rh_transfer_lay(to->limits.pieces, to->bytes, on->downloads, gaps, on->piece, to->load);
	on->next_piece = 0;
	lower_await(to, lower_lane_of(slot, RH_STREAM_GRADIENTS), on->rounded, RH_WAIT_NEEDS);
}

void lower_bulk_gap(struct lower_slot *slot, int64_t k)
{
	struct lower_device *on = slot->state;
	int first = on->next_piece;
	for (; on->next_piece < on->pieces && on->piece[on->next_piece].gap == k; on->next_piece++) {
		const struct rh_transfer_piece *piece = &on->piece[on->next_piece];
		struct lower_download *from = &on->download[piece->item];
		if (k && on->next_piece == first)
			lower_await(slot->lowering, lower_lane_of(slot, RH_STREAM_GRADIENTS), on->copied_down[k - 1], RH_WAIT_PACES);
		int64_t bytes;
		on->next_piece += rh_transfer_joined(piece, on->pieces - on->next_piece, &bytes) - 1;
		on->rounded_sent = send_down(slot, from->sum, lower_bytes(slot->device, RH_ROOM_ROUNDED, from->sum, from->offset, 0),
		                             from->to, piece->first, bytes);
		from->left -= bytes;
		if (!from->left)
			lower_arrived(slot->lowering, from->sum / 2, from->step, on->rounded_sent, slot->device, from->to);
	}
	if (on->next_piece == on->pieces && on->pieces)
		on->pieces = on->downloads = on->next_piece = 0;
}

void lower_bulk_begin(struct lower_slot *slot)
{
	upload_weights(slot);
	lay_downloads(slot, (int)slot->slot->count);
	if (rh_slot_makes_gradients(slot->slot))
		begin_sums(slot);
}

void lower_bulk_end(struct lower_slot *slot)
{
	struct lower_device *on = slot->state;
	int64_t last = lower_last_of(slot, RH_STREAM_COMPUTE);
	if (rh_slot_makes_gradients(slot->slot))
		on->sums_read = last;
	on->weights.end[on->weights.turn].freed = last;
	on->gaps = (int)slot->slot->count;
}

void lower_bulk_left(struct lowering *to, int device)
{
	struct lower_slot slot = {.lowering = to, .state = &to->device[device], .device = device, .step = to->call.step};
	if (slot.state->pieces)
		return; /* they leave in the gaps of the slot that is being lowered */
	lay_downloads(&slot, 1);
	lower_bulk_gap(&slot, 0);
}
