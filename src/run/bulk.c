/* Weights up and gradients down. A slot's weights travel while the device's slot before computes, and its gradients while the next one
 * does, cut into pieces (offload/transfer.h) that each go behind the activations of one micro-batch:
 *
 *   ACTIVATIONS_UP    x(0)      x(1)      ...  of slot i                 COMPUTE  ... slot i: last backward, [cast] gradient rounded
 *   WEIGHTS           [x(0)] pieces of slot i+N, window 0                GRADIENTS  [cast] pieces, window 0 of slot i+N
 *                     [x(1)] pieces, window 1 ...                                   [y(0) of slot i+N down] pieces, window 1 ...
 *
 * What slot i computes with and what slot i+N is to compute with lie at the two ends of the room for weights; gradients leave from their
 * rounded copy, so that the next slot's sums need not wait for them. Sums in fp32 (between rounds, or where nothing is rounded) leave at
 * once, layer by layer as they become final: what comes next on the device needs their place. But where the step before's gradient has not
 * been taken yet they stay until that slot comes.
 *
 * A synchronous step's first slots have no slot before. Their blocks go up one by one as they are updated, while the step before ends
 * (bulk_next_step) and while the host waits for others or goes on with others (bulk_upload_ahead). */
#include "run/work.h"

#include "core/minmax.h"

#include <string.h>

/* Pieces of gradients behind an activation, where there are many: 128 MiB at RH_TRANSFER_MOST, some ms. */
enum { WINDOW_PIECES = 16 };

/* While the host waits for an update it enqueues nothing: the devices' compute streams wait too. */
static int book(struct rh_executor *executor, enum run_wait_kind kind, int is_over)
{
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.devices; d++) {
		struct run_waits *waits = &executor->on[d].flight[executor->on[d].place].waits;
		struct rh_device *device = executor->options.device[d];
		rc = is_over ? run_waits_release(waits, device) : run_waits_hold(waits, device, kind);
	}
	return rc;
}

static void await_update(struct work *work, enum run_wait_kind kind, int block)
{
	struct rh_executor *executor = work->executor;
	struct rh_updater *updater = executor->options.updater;
	if (!updater || work->rc)
		return;
	int weights = kind == RUN_WAIT_WEIGHTS;
	int waits = !(weights ? rh_updater_has_weights(updater, block) : rh_updater_has_gradient(updater, block));
	if (waits && weights)
		work->rc = bulk_upload_ahead(executor);
	if (work->rc)
		return;
	double began = rh_updater_seconds(updater);
	if (waits)
		work->rc = book(executor, kind, 0);
	if (!work->rc)
		work->rc = weights ? rh_updater_await_weights(updater, block) : rh_updater_await_gradient(updater, block);
	if (!work->rc && waits)
		work->rc = book(executor, kind, 1);
	executor->flight[work->on->place].awaited_s += rh_updater_seconds(updater) - began;
}

void bulk_await_gradient(struct work *work, int block)
{
	await_update(work, RUN_WAIT_GRADIENTS, block);
}

/* Pieces that follow one another on a stream are one span of the trace, NULL where nothing is recorded. */
static void piece_up(struct work *work, struct rh_trace_span *span, void *to, const void *from, int64_t bytes)
{
	if (!work->rc)
		work->rc = run_copy_up(work->executor, work->device, RH_STREAM_WEIGHTS, to, from, bytes);
	if (span)
		span->bytes += bytes;
}

static void piece_down(struct work *work, struct rh_trace_span *span, void *to, const void *from, int64_t bytes)
{
	if (!work->rc)
		work->rc = run_copy_down(work->executor, work->device, RH_STREAM_GRADIENTS, to, from, bytes);
	if (span)
		span->bytes += bytes;
}

/* Where the next upload goes, once what is read there has been. */
static int64_t make_room(struct work *work, int64_t bytes)
{
	struct run_weights *weights = &work->on->weights;
	int end = weights->turn ^= 1;
	wait_for(work, RH_STREAM_WEIGHTS, weights->end[end].freed);
	if (bytes + weights->end[!end].bytes > weights->capacity) /* the other end's reaches over here */
		wait_for(work, RH_STREAM_WEIGHTS, weights->end[!end].freed);
	weights->end[end].bytes = bytes;
	return end ? weights->capacity - bytes : 0;
}

static int is_there(const struct work *work, int b, int64_t at)
{
	const struct run_weights *weights = &work->on->weights;
	const struct rh_executor_options *options = &work->executor->options;
	return weights->offset[b] == at && (!options->updater || rh_updater_has_weights(options->updater, b)) &&
	       weights->version[b] == rh_store_version(options->store, b);
}

/* Does all of the stage lie at an end already, as where a device has only one? Then it is read there again. */
static int stays(struct work *work, int64_t bytes, int64_t *at)
{
	struct run_weights *weights = &work->on->weights;
	const int64_t *offset = work->executor->offset;
	for (int end = 0; bytes && end < 2; end++) {
		int all = 1;
		*at = end ? weights->capacity - bytes : 0;
		for (int b = 0; all && b < work->executor->options.model->blocks; b++)
			all = offset[b] < 0 || is_there(work, b, *at + offset[b]);
		if (!all)
			continue;
		weights->turn = end;
		if (weights->end[end].bytes < bytes) /* else a slot before may still read the rest of what it had there */
			weights->end[end].bytes = bytes;
		return 1;
	}
	return 0;
}

static int wants_backward_alone(const struct rh_model *model, const struct rh_slot *slot)
{
	return slot->kind != RH_SLOT_FORWARD && slot->hi < model->layers;
}

/* Where the stage's blocks will lie; bytes[b]: how much of each is to be sent, 0 for what lies there from before. */
static void place_weights(struct work *work, int64_t *bytes)
{
	struct run_weights *weights = &work->on->weights;
	const struct rh_executor_options *options = &work->executor->options;
	const struct rh_model *model = options->model;
	int64_t *offset = work->executor->offset;
	int64_t all = rh_plan_upload_layout(model, work->slot->lo, work->slot->hi, wants_backward_alone(model, work->slot), offset);
	int64_t at;
	if (!stays(work, all, &at))
		at = make_room(work, all);
	for (int b = 0; b < model->blocks; b++) {
		int64_t length = rh_block_bytes(&model->block[b], model->dtype), was = weights->offset[b];
		int there = offset[b] >= 0 && is_there(work, b, at + offset[b]);
		bytes[b] = offset[b] < 0 || there ? 0 : length;
		if (!there && was >= 0 && was < at + all && was + length > at)
			weights->offset[b] = -1; /* overwritten now */
		if (offset[b] < 0)
			continue;
		weights->offset[b] = at + offset[b];
		work->on->block_weights[b] = weights->memory + weights->offset[b];
	}
}

/* From memory, or page by page from NVMe. */
static void send_weights(struct work *work, struct rh_trace_span *span, int b, int64_t first, int64_t bytes)
{
	struct rh_executor *executor = work->executor;
	char *to = work->on->block_weights[b] + first;
	const char *from = rh_store_weights(executor->options.store, b);
	if (from) {
		piece_up(work, span, to, from + first, bytes);
		return;
	}
	if (!work->rc)
		work->rc = run_feed_up(executor->feed, work->slot->device, RH_STREAM_WEIGHTS, to, b, first, bytes);
	if (span)
		span->bytes += bytes;
}

/* The device's upload of these blocks is enqueued: bytes[b] of each, 0 of the others. */
static void note_uploads(struct work *work, const int64_t *bytes)
{
	struct rh_executor *executor = work->executor;
	int64_t number = executor->flight[work->on->place].number;
	for (int b = 0; executor->trains && b < executor->options.model->blocks; b++) {
		struct rh_event *event = work->on->uploaded[b];
		int at = 0;
		if (!bytes[b] || !event)
			continue;
		record(work, RH_STREAM_WEIGHTS, event);
		if (executor->uploads[b].step != number) /* the step's first: what was borrowed has been given back */
			executor->uploads[b].count = 0;
		executor->uploads[b].step = number;
		while (at < executor->uploads[b].count && executor->uploads[b].event[at] != event)
			at++;
		executor->uploads[b].event[at] = event;
		executor->uploads[b].count += at == executor->uploads[b].count;
	}
}

/* The step of this number uploads the block no more. */
static void uploads_end(struct rh_executor *executor, int b, int64_t number)
{
	if (executor->options.updater)
		rh_updater_uploaded(executor->options.updater, b, executor->uploads[b].event,
		                    executor->uploads[b].step == number ? executor->uploads[b].count : 0);
}

static int has_weights(const struct rh_executor *executor, int b)
{
	return !executor->options.updater || rh_updater_has_weights(executor->options.updater, b);
}

/* After a fault nothing was waited for: the update may be going on. */
static void await_weights(struct work *work, int b)
{
	if (work->executor->options.model->block[b].trainable)
		await_update(work, RUN_WAIT_WEIGHTS, b);
	if (!work->rc)
		work->on->weights.version[b] = rh_store_version(work->executor->options.store, b);
}

/* All of a block that the stage wants, but not before its update is over. */
static void send_block(struct work *work, int b)
{
	struct rh_executor *executor = work->executor;
	struct run_upload *upload = &work->on->upload;
	await_weights(work, b);
	struct rh_trace_span *span = work_begin(work, RH_SPAN_COPY, RH_STREAM_WEIGHTS, 0);
	for (int64_t first = 0; first < upload->bytes[b]; first += executor->pieces.most)
		send_weights(work, span, b, first, rh_min(upload->bytes[b] - first, executor->pieces.most));
	work_end(work, span);
	upload->sent[b] = 1;
}

/* Blocks on NVMe are read in the order of slots, and a tied table's gradient is whole when the step is over. */
static int may_go_ahead(const struct rh_executor *executor, int b)
{
	return executor->options.model->block[b].uses == 1 && rh_store_weights(executor->options.store, b);
}

/* Those whose update is over; `all`: also those that go in their slot's turn alone. Returns the lowest that is left, -1: none. */
static int send_ready(struct work *work, int all)
{
	struct rh_executor *executor = work->executor;
	const struct run_upload *upload = &work->on->upload;
	int left = -1;
	for (int b = 0; b < executor->options.model->blocks; b++) {
		if (!upload->bytes[b] || upload->sent[b])
			continue;
		if (has_weights(executor, b) && (all || may_go_ahead(executor, b)))
			send_block(work, b);
		else if (left < 0)
			left = b;
	}
	return left;
}

static void begin_upload(struct work *work)
{
	struct run_upload *upload = &work->on->upload;
	if (!upload->begun)
		place_weights(work, upload->bytes);
	if (!upload->begun)
		memset(upload->sent, 0, (size_t)work->executor->options.model->blocks);
	upload->begun = 1;
}

int bulk_upload_ahead(struct rh_executor *executor)
{
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.devices; d++) {
		struct run_device *on = &executor->on[d];
		struct work work = {.executor = executor, .on = on, .device = on->device, .ops = on->device->ops, .micro_batch = -1};
		work.slot = on->upload.first;
		if (!work.slot || on->bulk.windows)
			continue;
		begin_upload(&work);
		(void)send_ready(&work, 0);
		rc = work.rc;
	}
	return rc;
}

/* In the windows of the device's slot before. */
static void upload_in_windows(struct work *work)
{
	struct rh_executor *executor = work->executor;
	struct run_bulk *bulk = &work->on->bulk;
	struct rh_transfer_piece *piece = executor->piece;
	struct rh_trace_span *span = NULL;
	int blocks = executor->options.model->blocks, window = -1;
	int pieces = rh_transfer_lay(executor->pieces, work->on->upload.bytes, blocks, bulk->windows, piece, executor->load);
	for (int p = 0; p < pieces; p++) {
		int b = piece[p].item;
		await_weights(work, b);
		if (window != piece[p].window) {
			work_end(work, span);
			wait_for(work, RH_STREAM_WEIGHTS, bulk->up[piece[p].window]);
			span = work_begin(work, RH_SPAN_COPY, RH_STREAM_WEIGHTS, 0);
		}
		window = piece[p].window;
		send_weights(work, span, b, piece[p].first, piece[p].bytes);
	}
	work_end(work, span);
}

static void upload_weights(struct work *work)
{
	struct run_upload *upload = &work->on->upload;
	struct run_weights *weights = &work->on->weights;
	upload->first = NULL;
	begin_upload(work);
	if (work->on->bulk.windows)
		upload_in_windows(work);
	for (int b; !work->on->bulk.windows && (b = send_ready(work, 1)) >= 0;)
		send_block(work, b);
	upload->begun = 0;
	note_uploads(work, upload->bytes);
	record(work, RH_STREAM_WEIGHTS, weights->end[weights->turn].ready);
	compute_after(work, RUN_WAIT_WEIGHTS, weights->end[weights->turn].ready);
}

/* What was sent ahead nobody waits for: the step's first ops do, so that its updates do not overwrite what is still read. */
static int wait_for_forgotten(struct rh_executor *executor, struct run_device *on)
{
	struct work work = {.executor = executor, .on = on, .device = on->device, .ops = on->device->ops, .micro_batch = -1};
	struct rh_event *ready = on->weights.end[on->weights.turn].ready;
	record(&work, RH_STREAM_WEIGHTS, ready);
	for (int d = 0; d < executor->options.devices; d++) {
		work.device = executor->options.device[d];
		wait_for(&work, RH_STREAM_COMPUTE, ready);
	}
	return work.rc;
}

/* What was sent ahead of a step that may begin otherwise, or with other weights than were there. */
static int keep_or_forget(struct rh_executor *executor, struct run_device *on)
{
	const struct rh_model *model = executor->options.model;
	struct run_upload *upload = &on->upload;
	const struct rh_slot *is = upload->first, *was = &upload->expected;
	int comes = is && is->kind == was->kind && is->lo == was->lo && is->hi == was->hi;
	if (!upload->begun)
		return 0;
	(void)rh_plan_upload_layout(model, was->lo, was->hi, wants_backward_alone(model, was), executor->offset);
	for (int b = 0; b < model->blocks; b++) {
		int there = has_weights(executor, b) && on->weights.version[b] == rh_store_version(executor->options.store, b);
		if (executor->offset[b] < 0 || (there && (!upload->bytes[b] || upload->sent[b])))
			continue;
		upload->bytes[b] = rh_block_bytes(&model->block[b], model->dtype);
		upload->sent[b] = 0;
		if (!comes)
			on->weights.offset[b] = -1;
	}
	upload->begun = comes;
	return comes ? 0 : wait_for_forgotten(executor, on);
}

int bulk_step_begins(struct rh_executor *executor)
{
	int rc = 0;
	for (int d = 0; d < executor->options.devices; d++)
		executor->on[d].upload.first = NULL;
	for (size_t i = executor->program.slots; executor->trains && !executor->is_stretch && !executor->options.stale && i-- > 0;)
		executor->on[executor->program.slot[i].device].upload.first = &executor->program.slot[i];
	for (int d = 0; !rc && d < executor->options.devices; d++)
		rc = keep_or_forget(executor, &executor->on[d]);
	made_step_begins(executor);
	return rc;
}

/* Blocks that devices want and do not have. */
static int wanted(const struct rh_executor *executor, char *block)
{
	const struct rh_executor_options *options = &executor->options;
	int any = 0;
	for (int b = 0; b < options->model->blocks; b++) {
		block[b] = 0;
		for (int d = 0; d < options->devices && may_go_ahead(executor, b); d++) {
			const struct run_upload *upload = &executor->on[d].upload;
			block[b] |= upload->first && upload->bytes[b] && !upload->sent[b];
		}
		any |= block[b];
	}
	return any;
}

int bulk_next_step(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	int devices = options->devices, b = 0, rc = 0;
	for (int d = 0; d < devices; d++)
		executor->on[d].upload.first = NULL;
	for (size_t i = executor->program.slots; i-- > 0;) {
		struct run_upload *upload = &executor->on[(executor->program.slot[i].device + executor->shift) % devices].upload;
		upload->expected = executor->program.slot[i];
		upload->first = &upload->expected;
	}
	while (!rc && b >= 0 && !(rc = bulk_upload_ahead(executor)) && wanted(executor, executor->wanted))
		rc = rh_updater_await_any(options->updater, executor->wanted, &b);
	return rc;
}

static int64_t piece_at(const struct rh_executor *executor, int64_t first, int64_t all)
{
	return all - first < executor->pieces.most ? all - first : executor->pieces.most;
}

/* A copy that went through the staging is there when its thread says so, on that thread. */
static void arrives_staged(void *context, int which)
{
	struct rh_executor *executor = context;
	int sums = 2 * executor->options.model->blocks, sum = which % sums;
	rh_updater_arrives(executor->options.updater, sum / 2, executor->on[which / sums].downloaded[sum]);
}

/* All of a sum is on its way down. A block of two uses arrives when the step is over. */
static void sent(struct work *work, int sum, int is_final)
{
	struct rh_executor *executor = work->executor;
	record(work, RH_STREAM_GRADIENTS, work->on->downloaded[sum]);
	executor->summed_on[sum] = (int)(work->on - executor->on);
	if (!is_final || !executor->options.updater || work->rc)
		return;
	const struct rh_block *block = &executor->options.model->block[sum / 2];
	if (run_is_staged(executor, rh_store_gradient(executor->options.store, sum / 2),
	                  rh_dtype_bytes(executor->options.model->dtype, block->elements)))
		work->rc = rh_staging_then(executor->staging, arrives_staged, executor,
		                           executor->summed_on[sum] * 2 * executor->options.model->blocks + sum);
	else if (made_has(work->on, sum / 2))
		rh_updater_promised(executor->options.updater, sum / 2, work->on->downloaded[sum]);
	else
		rh_updater_arrives(executor->options.updater, sum / 2, work->on->downloaded[sum]);
}

/* A final gradient in the store's dtype: rounded now, sent in the windows of the device's next slot. */
static void round_sum(struct work *work, int i)
{
	struct run_device *on = work->on;
	const struct rh_model *model = work->executor->options.model;
	int64_t elements = model->block[i / 2].elements;
	const float *sum = on->block_gradient[i / 2][i % 2];
	char *rounded = on->rounded.memory + 2 * (sum - (const float *)on->gradients.memory);
	struct rh_op cast = {.kind = RH_OP_CAST};
	cast.operand[RH_CAST_X] = rh_view_of(on->block_gradient[i / 2][i % 2], RH_F32, 1, elements);
	cast.operand[RH_CAST_Y] = rh_view_of(rounded, model->dtype, 1, elements);
	if (!on->bulk.downloads) {
		RH_ASSERT(!on->bulk.pieces); /* what was left is on its way since this slot's last window at the latest */
		compute_after(work, RUN_WAIT_GRADIENTS, on->rounded.freed);
	}
	launch(work, &cast);
	on->bulk.download[on->bulk.downloads++] = (struct run_download){
	        .sum = i, .to = rh_store_gradient(work->executor->options.store, i / 2), .from = rounded, .bytes = elements * 2};
	made_layer(work, i / 2, rounded);
}

/* What made the sum is over for the stream. */
static void send_now(struct work *work, int i, int is_final)
{
	struct run_device *on = work->on;
	struct rh_store *store = work->executor->options.store;
	char *to = is_final ? rh_store_gradient(store, i / 2) : (char *)rh_store_sum(store, i / 2, i % 2);
	const char *from = (const char *)on->block_gradient[i / 2][i % 2];
	await_update(work, RUN_WAIT_GRADIENTS, i / 2);
	struct rh_trace_span *span = work_begin(work, RH_SPAN_COPY, RH_STREAM_GRADIENTS, 0);
	for (int64_t first = 0, all = work->executor->options.model->block[i / 2].elements * 4; first < all;
	     first += work->executor->pieces.most)
		piece_down(work, span, to + first, from + first, piece_at(work->executor, first, all));
	work_end(work, span);
	sent(work, i, is_final);
}

/* The host does not wait here for the gradient before to be taken: it has slots of other devices to enqueue. */
static void send_sum(struct work *work, int i)
{
	struct run_device *on = work->on;
	struct rh_updater *updater = work->executor->options.updater;
	int is_final = work->slot->last_round && work->executor->options.model->block[i / 2].uses == 1;
	on->bulk.sums_leave = 1;
	if (updater && !rh_updater_has_gradient(updater, i / 2)) {
		on->bulk.late[on->bulk.lates++] = (struct run_late_sum){i, is_final};
		return;
	}
	record(work, RH_STREAM_COMPUTE, on->gradients.ready);
	wait_for(work, RH_STREAM_GRADIENTS, on->gradients.ready);
	send_now(work, i, is_final);
}

enum late { MAY_WAIT, MUST_LEAVE };

static void send_late(struct work *work, enum late late)
{
	struct run_bulk *bulk = &work->on->bulk;
	struct rh_updater *updater = work->executor->options.updater;
	for (int i = 0; i < bulk->lates && late == MAY_WAIT; i++)
		if (!rh_updater_has_gradient(updater, bulk->late[i].sum / 2))
			return;
	if (!bulk->lates)
		return;
	wait_for(work, RH_STREAM_GRADIENTS, work->on->gradients.ready);
	for (int i = 0; i < bulk->lates; i++)
		send_now(work, bulk->late[i].sum, bulk->late[i].is_final);
	record(work, RH_STREAM_GRADIENTS, work->on->gradients.freed);
	bulk->lates = 0;
}

/* Sums that the slot goes on from have left the devices that have them. */
static void send_needed(struct work *work)
{
	struct rh_executor *executor = work->executor;
	for (int d = 0; d < executor->options.devices && !work->rc; d++) {
		struct run_device *on = &executor->on[d];
		struct work other = {.executor = executor, .on = on, .device = on->device, .ops = on->device->ops, .micro_batch = -1};
		int needed = 0;
		for (int i = 0; i < on->bulk.lates; i++)
			needed |= executor->offset[on->bulk.late[i].sum] >= 0;
		if (needed)
			send_late(&other, MUST_LEAVE);
		work->rc = other.rc;
	}
}

/* The host waits for a sum to be down. */
static int await_sum(struct rh_executor *executor, int i)
{
	struct rh_event *event = executor->on[executor->summed_on[i]].downloaded[i];
	int rc = run_await(executor, event);
	return rc ? rc : rh_staging_finish(executor->staging);
}

/* Sums begin at zero in the step's first round; later rounds go on from the sum that another device may have left in the store. */
static void begin_gradients(struct work *work)
{
	struct rh_executor *executor = work->executor;
	struct run_device *on = work->on;
	const struct rh_model *model = executor->options.model;
	int64_t *offset = executor->offset;
	if (work->slot->sums_there || !rh_plan_gradient_layout(model, work->slot->lo, work->slot->hi, offset))
		return;
	if (!work->slot->first_round)
		send_needed(work);
	if (work->slot->first_round)
		compute_after(work, RUN_WAIT_GRADIENTS, on->gradients.freed);
	else
		wait_for(work, RH_STREAM_WEIGHTS, on->gradients.freed);
	for (int i = 0; i < 2 * model->blocks; i++) {
		if (offset[i] < 0)
			continue;
		int64_t elements = model->block[i / 2].elements;
		float *sum = (float *)on->gradients.memory + offset[i];
		on->block_gradient[i / 2][i % 2] = sum;
		if (work->slot->first_round) {
			struct rh_op fill = {.kind = RH_OP_FILL};
			fill.operand[RH_FILL_Y] = rh_view_of(sum, RH_F32, 1, elements);
			launch(work, &fill);
			continue;
		}
		RH_ASSERT(executor->summed_on[i] >= 0);
		wait_for(work, RH_STREAM_WEIGHTS, executor->on[executor->summed_on[i]].downloaded[i]);
		const char *from = (const char *)rh_store_sum(executor->options.store, i / 2, i % 2);
		if (!work->rc && run_is_staged(executor, from, elements * 4)) /* read here and now, not by the device */
			work->rc = await_sum(executor, i);
		struct rh_trace_span *span = work_begin(work, RH_SPAN_COPY, RH_STREAM_WEIGHTS, 0);
		for (int64_t first = 0, all = elements * 4; first < all; first += executor->pieces.most)
			piece_up(work, span, (char *)sum + first, from + first, piece_at(executor, first, all));
		work_end(work, span);
	}
	if (!work->slot->first_round) {
		record(work, RH_STREAM_WEIGHTS, on->gradients.ready);
		compute_after(work, RUN_WAIT_GRADIENTS, on->gradients.ready);
	}
}

/* Where a finished sum goes: the stored gradient, rounded to its dtype, after the last round; the running sum before, or when two uses meet
 * later. A sum that the store has no place for stays where it is, to be folded in when the step is over. */
static void end_sum(struct work *work, int i)
{
	struct rh_executor *executor = work->executor;
	const struct rh_model *model = executor->options.model;
	if (model->block[i / 2].uses == 2 && i % 2 == 0 && !rh_store_sum(executor->options.store, i / 2, 0)) {
		executor->left.device = work->slot->device;
		executor->left.block = i / 2;
		executor->left.sum = (const char *)work->on->block_gradient[i / 2][0];
	} else if (work->slot->last_round && model->block[i / 2].uses == 1 && model->dtype != RH_F32) {
		round_sum(work, i);
	} else {
		send_sum(work, i);
	}
}

void bulk_layer(struct work *work, int l)
{
	const struct rh_model *model = work->executor->options.model;
	run_recorded_layer(work->executor, work->slot->device, l);
	for (int which = 0; which < 2; which++) {
		int b = model->layer[l].block[which];
		if (b < 0 || !model->block[b].trainable)
			continue;
		end_sum(work, 2 * b + model->layer[l].use[which]);
	}
}

void bulk_uploads_over(struct work *work)
{
	const struct rh_model *model = work->executor->options.model;
	for (int l = work->slot->lo; l < work->slot->hi; l++)
		for (int which = 0; which < 2; which++) {
			int b = model->layer[l].block[which];
			if (b >= 0 && model->block[b].trainable && model->block[b].uses == 1)
				uploads_end(work->executor, b, work->executor->flight[work->on->place].number);
		}
	work->uploads_over = 1;
}

/* What the slot before rounded is laid into `windows`, or fewer: the update waits for it, and an activation for a piece at most. */
static void lay_downloads(struct work *work, int windows)
{
	struct run_bulk *bulk = &work->on->bulk;
	struct rh_transfer_limits limits = work->executor->pieces;
	int64_t *bytes = work->executor->item_bytes;
	if (!bulk->downloads)
		return;
	int64_t total = 0;
	for (int i = 0; i < bulk->downloads; i++)
		total += bytes[i] = bulk->download[i].left = bulk->download[i].bytes;
	windows = (int)rh_min(windows, (total + WINDOW_PIECES * limits.most - 1) / (WINDOW_PIECES * limits.most));
	bulk->pieces = rh_transfer_lay(limits, bytes, bulk->downloads, windows, bulk->piece, work->executor->load);
	bulk->sent = 0;
	wait_for(work, RH_STREAM_GRADIENTS, work->on->rounded.ready);
}

void bulk_window(struct work *work, int64_t k)
{
	struct run_bulk *bulk = &work->on->bulk;
	struct rh_trace_span *span = NULL;
	int first = bulk->sent;
	for (; bulk->sent < bulk->pieces && bulk->piece[bulk->sent].window == k; bulk->sent++) {
		const struct rh_transfer_piece *piece = &bulk->piece[bulk->sent];
		struct run_download *from = &bulk->download[piece->item];
		if (k && bulk->sent == first)
			wait_for(work, RH_STREAM_GRADIENTS, bulk->down[k - 1]);
		if (made_has(work->on, from->sum / 2) && work->on->made.are == MADE_ENQUEUED && work->on->made.comes == RH_MADE_AT_ONCE) {
			work_end(work, span);
			span = NULL;
			made_send(work);
		}
		await_update(work, RUN_WAIT_GRADIENTS, from->sum / 2);
		if (!span)
			span = work_begin(work, RH_SPAN_COPY, RH_STREAM_GRADIENTS, 0);
		piece_down(work, span, from->to + piece->first, from->from + piece->first, piece->bytes);
		from->left -= piece->bytes;
		if (!from->left)
			sent(work, from->sum, 1);
	}
	work_end(work, span);
	if (bulk->pieces && bulk->sent == bulk->pieces) {
		record(work, RH_STREAM_GRADIENTS, work->on->rounded.freed);
		bulk->pieces = bulk->downloads = 0;
	}
	if (work->slot)
		made_window(work, k);
}

void bulk_arrived(struct work *work, int64_t k)
{
	record(work, RH_STREAM_ACTIVATIONS_UP, work->on->bulk.up[k]);
	record(work, RH_STREAM_ACTIVATIONS_DOWN, work->on->bulk.down[k]);
}

void bulk_begin(struct work *work)
{
	int makes = rh_slot_makes_gradients(work->slot);
	upload_weights(work);
	send_late(work, makes && !work->slot->sums_there ? MUST_LEAVE : MAY_WAIT);
	lay_downloads(work, (int)work->slot->count);
	if (makes)
		begin_gradients(work);
	made_begin(work);
}

void bulk_end(struct work *work)
{
	struct run_device *on = work->on;
	if (rh_slot_makes_gradients(work->slot)) {
		if (on->bulk.downloads)
			record(work, RH_STREAM_COMPUTE, on->rounded.ready);
		if (on->bulk.sums_leave) { /* read by downloads, and by what was rounded since the last of them was enqueued */
			record(work, RH_STREAM_COMPUTE, on->gradients.ready);
			wait_for(work, RH_STREAM_GRADIENTS, on->gradients.ready);
			if (!on->bulk.lates)
				record(work, RH_STREAM_GRADIENTS, on->gradients.freed);
		} else if (rh_plan_gradient_layout(work->executor->options.model, work->slot->lo, work->slot->hi, work->executor->offset)) {
			record(work, RH_STREAM_COMPUTE,
			       on->gradients.freed); /* of a slot without sums: the slot's before may still leave */
		}
		on->bulk.sums_leave = 0;
	}
	record(work, RH_STREAM_COMPUTE, on->weights.end[on->weights.turn].freed);
	on->bulk.windows = (int)work->slot->count;
	on->made.are = on->made.blocks ? MADE_ENQUEUED : MADE_COMING;
}

int bulk_send_left(struct rh_executor *executor, int device)
{
	struct run_device *on = &executor->on[device];
	struct work work = {.executor = executor, .on = on, .device = on->device, .ops = on->device->ops, .micro_batch = -1};
	send_late(&work, MUST_LEAVE);
	if (on->made.are == MADE_ENQUEUED)
		made_sort(on);
	lay_downloads(&work, 1);
	bulk_window(&work, 0);
	made_end(&work);
	return work.rc;
}

int bulk_flush(struct rh_executor *executor, int device)
{
	int rc = bulk_send_left(executor, device);
	executor->on[device].bulk.windows = 0;
	return rc;
}

void bulk_uploads_end(struct rh_executor *executor)
{
	const struct rh_model *model = executor->options.model;
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable && model->block[b].uses == 2)
			uploads_end(executor, b, executor->flight[executor->first].number);
}
