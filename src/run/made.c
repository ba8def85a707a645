/* Weights of a step's last blocks, made on the device that has their gradients (partition/made.h):
 *
 *   WEIGHTS    [x(k)] pieces of lower halves and moments, in the first windows of the device's last slot
 *   COMPUTE    ... last backward of a layer, [cast] gradient rounded, [pieces up] AdamW's weights over the weights and their lower halves
 *   GRADIENTS  [slot over] gradients of blocks that the host makes; upper halves, by which the next step's uploads may begin;
 *              gradients; lower halves
 *
 * The host makes the moments when all is down (rh_updater_made). It has made those of the step before when the first piece goes up. */
#include "run/work.h"

#include "core/alloc.h"
#include "core/minmax.h"

/* Pieces behind an activation: they go early, while the host waits for gradients and leaves its memory to them. */
enum { WINDOW_PIECES = 32 };

int made_create(const struct rh_executor_options *options, struct rh_device *device, struct rh_arena *memory, int64_t pieces,
                struct run_made *out)
{
	size_t blocks = (size_t)options->model->blocks;
	out->memory = rh_arena_take(memory, options->plan->made_bytes);
	if (!options->plan->made_blocks)
		return 0;
	out->block = rh_alloc(blocks, sizeof *out->block);
	out->place = rh_alloc(blocks, sizeof *out->place);
	out->on = rh_alloc(blocks, sizeof *out->on);
	out->weights = rh_alloc(blocks, sizeof *out->weights);
	out->whole = rh_alloc(blocks, sizeof *out->whole);
	out->bytes = rh_alloc(RH_MADE_ARRAYS * blocks, sizeof *out->bytes);
	out->piece = rh_alloc((size_t)pieces, sizeof *out->piece);
	int rc = out->block && out->place && out->on && out->weights && out->whole && out->bytes && out->piece ? 0 : -ENOMEM;
	rc = rc ? rc : device->ops->event_create(device, RH_EVENT_ORDER, &out->ready);
	rc = rc ? rc : device->ops->event_create(device, RH_EVENT_ORDER, &out->freed);
	rc = rc ? rc : device->ops->event_create(device, RH_EVENT_ORDER, &out->done);
	for (int b = 0; !rc && b < options->model->blocks; b++)
		if (options->model->block[b].trainable) {
			rc = device->ops->event_create(device, RH_EVENT_HOST, &out->weights[b]);
			rc = rc ? rc : device->ops->event_create(device, RH_EVENT_HOST, &out->whole[b]);
		}
	return rc;
}

void made_destroy(struct run_made *made, int blocks)
{
	rh_event_free(made->ready);
	rh_event_free(made->freed);
	rh_event_free(made->done);
	for (int b = 0; made->weights && b < blocks; b++)
		rh_event_free(made->weights[b]);
	for (int b = 0; made->whole && b < blocks; b++)
		rh_event_free(made->whole[b]);
	rh_free(made->block);
	rh_free(made->place);
	rh_free(made->on);
	rh_free(made->weights);
	rh_free(made->whole);
	rh_free(made->bytes);
	rh_free(made->piece);
}

/* Of a tied table the gradient is whole when all devices are idle: a scale that waits for it comes too late. */
static enum rh_made_when when_made(const struct rh_executor *executor, struct rh_update *update)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_model *model = options->model;
	enum rh_made_when when = RH_MADE_NEVER;
	if (options->plan->made_blocks && executor->trains && !executor->is_stretch && !options->stale && options->updater &&
	    !executor->staging)
		when = rh_updater_is_for_devices(options->updater, update);
	for (int b = 0; when == RH_MADE_LATE && b < model->blocks; b++)
		if (model->block[b].trainable && model->block[b].uses == 2)
			when = RH_MADE_NEVER;
	return when;
}

/* Each device's last slot of the step, and what it is likely to run next: the next step's first. */
void made_step_begins(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_model *model = options->model;
	struct rh_update update;
	enum rh_made_when makes = when_made(executor, &update);
	for (int d = 0; d < options->devices; d++)
		executor->on[d].made.comes = RH_MADE_NEVER;
	for (size_t i = 0; makes && i < executor->program.slots; i++) {
		const struct rh_slot *slot = &executor->program.slot[i];
		struct run_made *made = &executor->on[slot->device].made;
		made->comes = rh_slot_makes_gradients(slot) && slot->last_round ? makes : RH_MADE_NEVER;
		made->last = *slot;
		made->update = update;
	}
	for (size_t i = executor->program.slots; makes && i-- > 0;) {
		const struct rh_slot *slot = &executor->program.slot[i];
		int alone = slot->kind != RH_SLOT_FORWARD && slot->hi < model->layers;
		executor->on[(slot->device + executor->shift) % options->devices].made.next_bytes =
		        rh_plan_upload_layout(model, slot->lo, slot->hi, alone, executor->offset);
	}
}

static char *address(struct run_device *on, struct rh_made_place place)
{
	char *const region[RH_MADE_REGIONS] = {[RH_MADE_IN_GRADIENTS] = on->gradients.memory,
	                                       [RH_MADE_IN_ROUNDED] = on->rounded.memory,
	                                       [RH_MADE_IN_WEIGHTS] = on->weights.memory,
	                                       [RH_MADE_IN_OWN] = on->made.memory};
	return region[place.region] + place.at;
}

/* Weights that were there from before are no more. */
static void overwrite(struct work *work, int64_t at, int64_t bytes)
{
	struct run_weights *weights = &work->on->weights;
	const struct rh_model *model = work->executor->options.model;
	for (int b = 0; b < model->blocks; b++) {
		int64_t was = weights->offset[b];
		if (was >= 0 && was < at + bytes && was + rh_block_bytes(&model->block[b], model->dtype) > at)
			weights->offset[b] = -1;
	}
}

/* Where the arrays of a block lie here. */
static void place_block(struct work *work, int i)
{
	struct run_device *on = work->on;
	struct run_made *made = &on->made;
	int b = made->block[i];
	int64_t elements = work->executor->options.model->block[b].elements;
	struct rh_optimizer_arrays *arrays = &made->on[b];
	arrays->second = address(on, made->place[i][RH_MADE_SECOND]);
	arrays->first = address(on, made->place[i][RH_MADE_FIRST]);
	arrays->lower = arrays->new_lower = address(on, made->place[i][RH_MADE_LOWER]);
	arrays->upper = arrays->new_upper = on->block_weights[b];
	for (int a = 0; a < RH_MADE_ARRAYS; a++) {
		made->bytes[RH_MADE_ARRAYS * i + a] = elements * (a == RH_MADE_LOWER ? 2 : 4);
		made->in_rounded |= made->place[i][a].region == RH_MADE_IN_ROUNDED;
		if (made->place[i][a].region == RH_MADE_IN_WEIGHTS) {
			overwrite(work, made->place[i][a].at, rh_made_array_bytes((enum rh_made_array)a, elements));
			made->in_weights = 1;
		}
	}
}

/* Is the present slot the device's last of the step? */
static int is_last(const struct work *work)
{
	const struct rh_slot *slot = work->slot, *last = &work->on->made.last;
	return slot->kind == last->kind && slot->lo == last->lo && slot->hi == last->hi && slot->first == last->first;
}

void made_begin(struct work *work)
{
	struct rh_executor *executor = work->executor;
	struct run_device *on = work->on;
	struct run_made *made = &on->made;
	const struct rh_plan *plan = executor->options.plan;
	const struct rh_model *model = executor->options.model;
	const struct rh_slot *slot = work->slot;
	if (!made->comes || work->rc || !is_last(work) || (slot->kind != RH_SLOT_BACKWARD && slot->kind != RH_SLOT_FUSED) ||
	    slot->sums_stay)
		return;
	RH_ASSERT(!made->blocks);
	made->in_weights = made->in_rounded = 0;
	made->are = MADE_COMING;
	const struct rh_made_slot leaves = {.stage = {slot->lo, slot->hi}, .next_bytes = made->next_bytes, .high = on->weights.turn};
	made->blocks = rh_made_blocks(plan, model, &leaves, executor->offset, made->block, made->place);
	if (!made->blocks)
		return;
	for (int i = 0; i < made->blocks; i++) {
		place_block(work, i);
		bulk_await_gradient(work, made->block[i]);
	}
	if (made->in_weights) /* the next upload sees to it that the rest is free */
		on->weights.end[on->weights.turn].bytes =
		        rh_max(on->weights.end[on->weights.turn].bytes, on->weights.capacity - made->next_bytes);
	/* where some lies in the room of what the slot before sends down, behind that */
	int busy = made->in_rounded && on->bulk.pieces ? on->bulk.piece[on->bulk.pieces - 1].window + 1 : 0, count = (int)slot->count;
	int64_t total = 0, each = WINDOW_PIECES * executor->pieces.most;
	for (int i = 0; i < RH_MADE_ARRAYS * made->blocks; i++)
		total += made->bytes[i];
	made->first_window = busy < count ? busy : count - 1;
	made->sent = 0;
	made->pieces = rh_transfer_lay(executor->pieces, made->bytes, RH_MADE_ARRAYS * made->blocks,
	                               (int)rh_min(count - made->first_window, (total + each - 1) / each), made->piece, executor->load);
}

/* What is overwritten has been read. */
static void await_room(struct work *work)
{
	struct run_device *on = work->on;
	wait_for(work, RH_STREAM_WEIGHTS, on->made.freed);
	wait_for(work, RH_STREAM_WEIGHTS, on->gradients.freed);
	if (on->made.in_rounded)
		wait_for(work, RH_STREAM_WEIGHTS, on->rounded.freed);
	if (on->made.in_weights)
		wait_for(work, RH_STREAM_WEIGHTS, on->weights.end[!on->weights.turn].freed);
}

void made_window(struct work *work, int64_t k)
{
	struct run_made *made = &work->on->made;
	struct rh_trace_span *span = NULL;
	int first = made->sent;
	for (; made->blocks && made->sent < made->pieces && made->first_window + made->piece[made->sent].window == k; made->sent++) {
		const struct rh_transfer_piece *piece = &made->piece[made->sent];
		int b = made->block[piece->item / RH_MADE_ARRAYS];
		const struct rh_optimizer_arrays *to = &made->on[b];
		struct rh_optimizer_arrays from = rh_optimizer_host_arrays(work->executor->options.store, b);
		void *const ways[RH_MADE_ARRAYS][2] = {[RH_MADE_SECOND] = {to->second, from.second},
		                                       [RH_MADE_FIRST] = {to->first, from.first},
		                                       [RH_MADE_LOWER] = {to->lower, from.lower}};
		void *const *way = ways[piece->item % RH_MADE_ARRAYS];
		if (!made->sent)
			await_room(work);
		if (k && made->sent == first)
			wait_for(work, RH_STREAM_WEIGHTS, work->on->bulk.up[k - 1]);
		if (made->sent == first)
			span = work_begin(work, RH_SPAN_COPY, RH_STREAM_WEIGHTS, 0);
		if (!work->rc)
			work->rc = run_copy_up(work->executor, work->device, RH_STREAM_WEIGHTS, (char *)way[0] + piece->first,
			                       (char *)way[1] + piece->first, piece->bytes);
		if (span)
			span->bytes += piece->bytes;
	}
	work_end(work, span);
	if (made->sent > first && made->sent == made->pieces)
		record(work, RH_STREAM_WEIGHTS, made->ready);
}

int made_has(const struct run_device *on, int block)
{
	int i = 0;
	while (i < on->made.blocks && on->made.block[i] != block)
		i++;
	return i < on->made.blocks;
}

static void make(struct work *work, int b)
{
	struct run_made *made = &work->on->made;
	struct rh_op op;
	for (int tensor = 0;
	     !work->rc && rh_optimizer_device_op(work->executor->options.store, b, &made->update, &made->on[b], &tensor, &op);)
		launch(work, &op);
}

void made_layer(struct work *work, int b, char *gradient)
{
	struct run_made *made = &work->on->made;
	if (!made_has(work->on, b))
		return;
	RH_ASSERT(made->sent == made->pieces);
	made->on[b].gradient = gradient;
	compute_after(work, RUN_WAIT_WEIGHTS, made->ready); /* of late ones too: the host changes moments when the gradient is down */
	if (made->comes == RH_MADE_AT_ONCE)
		make(work, b);
}

/* Gradients that the host waits for go first. */
void made_sort(struct run_device *on)
{
	struct run_download *download = on->bulk.download;
	for (int i = 1; i < on->bulk.downloads; i++)
		for (int k = i; k > 0 && made_has(on, download[k - 1].sum / 2) && !made_has(on, download[k].sum / 2); k--) {
			struct run_download swap = download[k];
			download[k] = download[k - 1];
			download[k - 1] = swap;
		}
}

static void send(struct work *work, void *to, const void *from, int64_t bytes)
{
	int64_t most = work->executor->pieces.most;
	struct rh_trace_span *span = work_begin(work, RH_SPAN_COPY, RH_STREAM_GRADIENTS, bytes);
	for (int64_t first = 0; first < bytes && !work->rc; first += most)
		work->rc = run_copy_down(work->executor, work->device, RH_STREAM_GRADIENTS, (char *)to + first, (const char *)from + first,
		                         rh_min(bytes - first, most));
	work_end(work, span);
}

/* What was made goes down: what the next step's uploads wait for. */
static void send_upper(struct work *work)
{
	struct run_made *made = &work->on->made;
	const struct rh_model *model = work->executor->options.model;
	for (int b = 0; b < model->blocks; b++) {
		if (!made_has(work->on, b))
			continue;
		void *to = rh_optimizer_host_arrays(work->executor->options.store, b).new_upper;
		send(work, to, made->on[b].new_upper, model->block[b].elements * 2);
		record(work, RH_STREAM_GRADIENTS, made->weights[b]);
	}
	made->are = MADE_SENT;
}

/* The rest. */
static void send_lower(struct work *work)
{
	struct run_device *on = work->on;
	struct rh_updater *updater = work->executor->options.updater;
	struct run_made *made = &on->made;
	for (int i = 0; i < made->blocks; i++) {
		int b = made->block[i];
		void *to = rh_optimizer_host_arrays(work->executor->options.store, b).new_lower;
		send(work, to, made->on[b].new_lower, work->executor->options.model->block[b].elements * 2);
		record(work, RH_STREAM_GRADIENTS, made->whole[b]);
	}
	record(work, RH_STREAM_GRADIENTS, made->freed);
	record(work, RH_STREAM_GRADIENTS, on->gradients.freed);
	record(work, RH_STREAM_GRADIENTS, on->weights.end[on->weights.turn].freed);
	for (int i = 0; !work->rc && i < made->blocks; i++)
		rh_updater_made(updater, made->block[i], made->weights[made->block[i]], made->whole[made->block[i]]);
	made->blocks = 0;
}

void made_send(struct work *work)
{
	struct run_made *made = &work->on->made;
	RH_ASSERT(made->blocks && made->are == MADE_ENQUEUED && made->comes == RH_MADE_AT_ONCE);
	send_upper(work); /* the stream waits for the slot's end already: it is about to send gradients */
}

void made_end(struct work *work)
{
	if (work->on->made.are == MADE_SENT && work->on->made.blocks)
		send_lower(work);
}

/* Of one device. */
static int make_late(struct rh_executor *executor, struct run_device *on, const struct rh_update *update, int spoilt)
{
	struct run_made *made = &on->made;
	struct work work = {.executor = executor, .on = on, .device = on->device, .ops = on->device->ops, .micro_batch = -1};
	made->update = *update;
	for (int i = 0; !spoilt && i < made->blocks; i++)
		make(&work, made->block[i]);
	if (!spoilt) {
		record(&work, RH_STREAM_COMPUTE, made->done);
		wait_for(&work, RH_STREAM_GRADIENTS, made->done);
		send_upper(&work);
		send_lower(&work);
		record(&work, RH_STREAM_GRADIENTS, on->rounded.freed);
	}
	for (int i = 0; !work.rc && i < made->blocks; i++) { /* spoilt: as they were */
		struct rh_event *down = on->downloaded[2 * made->block[i]];
		rh_updater_made(executor->options.updater, made->block[i], down, down);
	}
	made->blocks = 0;
	return work.rc;
}

int made_late(struct rh_executor *executor)
{
	struct rh_update update;
	int rc = 0, late = 0, spoilt = 0;
	for (int d = 0; d < executor->options.devices; d++)
		late |= executor->on[d].made.blocks > 0;
	if (late)
		rc = rh_updater_await_scale(executor->options.updater, &update, &spoilt);
	for (int d = 0; late && !rc && d < executor->options.devices; d++)
		if (executor->on[d].made.blocks)
			rc = make_late(executor, &executor->on[d], &update, spoilt);
	return rc;
}
