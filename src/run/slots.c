/* One slot, enqueued. For each micro-batch m of a backward slot, say:
 *
 *   ACTIVATIONS_UP    integers(m), saved input(m), [gradient written by the slot above] gradient(m)
 *   COMPUTE           [input up] recompute(m) [gradient up] backward(m)
 *   ACTIVATIONS_DOWN  [backward(m)] gradient for the slot below
 *
 * (where backwards are split, backward(m) leaves the weight gradients of linears to a slot of their own, which needs nothing from above)
 * with two buffers of device memory for each, so that copies run one micro-batch ahead and one behind. What travels between them is in
 * bulk.c. Brackets are events. */
#include "run/work.h"

#include <math.h>
#include <string.h>

/* A launch on its device's clock (turns.c), in KiB that the device's memory moves in that time. By a GPU's usual shares: they need only
 * tell short slots from long ones. */
static int64_t launch_time(const struct rh_op *op)
{
	enum { FLOPS_A_BYTE = 160, LAUNCH_KIB = 4 << 10 };
	struct rh_op_cost cost = rh_op_cost(op);
	return LAUNCH_KIB + (int64_t)(fmax(cost.bytes, (cost.product_flops + cost.other_flops) / FLOPS_A_BYTE) / 1024);
}

static int emitted(void *sink, const struct rh_op *op)
{
	struct work *work = sink;
	if (work->executor->options.devices > 1) /* one alone is given all in turn */
		work->on->at.clock += launch_time(op);
	return work->ops->launch(work->device, RH_STREAM_COMPUTE, op);
}

static void layer_done(void *sink, int layer)
{
	bulk_layer(sink, layer);
}

/* The next buffer of a ring, not to be written by `writer` before its last reader is done. */
static struct run_buffer *take(struct work *work, struct run_ring *ring, enum rh_stream writer)
{
	struct run_buffer *buffer = &ring->buffer[ring->next];
	ring->next = (ring->next + 1) % ring->count;
	if (writer == RH_STREAM_COMPUTE)
		compute_after(work, RUN_WAIT_ACTIVATIONS, buffer->freed);
	else
		wait_for(work, writer, buffer->freed);
	return buffer;
}

static int ends_model(const struct work *work)
{
	return work->slot->hi == work->executor->options.model->layers;
}

static struct rh_view boundary_view(const struct work *work, const struct run_buffer *buffer)
{
	const struct rh_model *model = work->executor->options.model;
	return rh_view_of(buffer->memory, model->dtype, work->emit.shape.tokens, model->config->hidden_size);
}

/* Brings a boundary from the host; the compute stream must still wait for the buffer. */
static struct run_buffer *fetch(struct work *work, enum rh_boundary_kind kind, int layer, int64_t m)
{
	struct rh_boundaries *boundaries = &work->executor->boundaries;
	struct run_buffer *here = take(work, &work->on->boundary, RH_STREAM_ACTIVATIONS_UP);
	struct rh_boundary_buffer *buffer;
	if (!work->rc)
		work->rc = rh_boundary_find(boundaries, kind, layer, m, &buffer);
	if (work->rc)
		return here;
	if (buffer->written_by >= 0)
		wait_for(work, RH_STREAM_ACTIVATIONS_UP, buffer->written[buffer->written_by]);
	copy_up(work, RH_STREAM_ACTIVATIONS_UP, here->memory, buffer->memory, rh_view_bytes(boundary_view(work, here)));
	record(work, RH_STREAM_ACTIVATIONS_UP, here->ready);
	buffer->read_by |= (uint64_t)1 << work->slot->device;
	record(work, RH_STREAM_ACTIVATIONS_UP, buffer->read[work->slot->device]);
	return here;
}

/* Sends a boundary to the host once what was enqueued on the compute stream is done. */
static void send(struct work *work, struct run_buffer *here, enum rh_boundary_kind kind, int layer, int64_t m, int readers)
{
	struct rh_boundaries *boundaries = &work->executor->boundaries;
	struct rh_boundary_buffer *buffer;
	if (!work->rc)
		work->rc = rh_boundary_acquire(boundaries, kind, layer, m, readers, &buffer);
	if (work->rc)
		return;
	record(work, RH_STREAM_COMPUTE, here->ready);
	wait_for(work, RH_STREAM_ACTIVATIONS_DOWN, here->ready);
	for (int d = 0; d < work->executor->options.devices; d++)
		if (buffer->read_by >> d & 1)
			wait_for(work, RH_STREAM_ACTIVATIONS_DOWN, buffer->read[d]);
	buffer->read_by = 0;
	copy_down(work, RH_STREAM_ACTIVATIONS_DOWN, buffer->memory, here->memory, rh_view_bytes(boundary_view(work, here)));
	record(work, RH_STREAM_ACTIVATIONS_DOWN, here->freed);
	buffer->written_by = work->slot->device;
	buffer->clock = work->on->at.clock;
	record(work, RH_STREAM_ACTIVATIONS_DOWN, buffer->written[buffer->written_by]);
	if (!work->rc)
		work->rc = rh_boundary_sent(boundaries, buffer);
}

/* The head's results: their place on the device, and afterwards their way to the host. */
static struct run_buffer *begin_results(struct work *work, struct rh_head_out *head)
{
	const struct rh_executor_options *options = &work->executor->options;
	int64_t rows = work->emit.shape.head_rows, cols = work->executor->trains ? 0 : options->score_cols;
	struct run_buffer *buffer = take(work, &work->on->result, RH_STREAM_COMPUTE);
	struct rh_result_layout at = rh_plan_result_layout(&work->emit.shape, cols);
	struct rh_view scores = rh_view_of(buffer->memory + at.scores, RH_F32, rows, cols);
	*head = (struct rh_head_out){.loss = rh_view_of(buffer->memory + at.loss, RH_F32, rows, 1),
	                             .hit = rh_view_of(buffer->memory + at.hit, RH_I32, rows, 1)};
	if (cols && options->infer_logits)
		head->logits = scores;
	else if (cols)
		head->choice = scores;
	return buffer;
}

static void end_results(struct work *work, struct run_buffer *buffer, int64_t m)
{
	int64_t cols = work->executor->trains ? 0 : work->executor->options.score_cols;
	record(work, RH_STREAM_COMPUTE, buffer->ready);
	wait_for(work, RH_STREAM_ACTIVATIONS_DOWN, buffer->ready);
	copy_down(work, RH_STREAM_ACTIVATIONS_DOWN, work->executor->result[m], buffer->memory,
	          rh_plan_result_layout(&work->emit.shape, cols).bytes);
	record(work, RH_STREAM_ACTIVATIONS_DOWN, buffer->freed);
}

/* Where a saving stage keeps one micro-batch's activations. */
static struct rh_arena saved_arena(const struct work *work, const struct rh_saved_place *place)
{
	char *base = work->on->saved + place->at + (work->micro_batch - work->slot->first) * place->bytes;
	return (struct rh_arena){.base = base, .capacity = place->bytes};
}

/* Where a split backward keeps what its weight gradients are made of. */
static struct rh_arena late_arena(const struct work *work, int64_t m)
{
	const struct rh_late_place *place = rh_plan_late(work->executor->options.plan, work->slot->lo, work->slot->hi);
	char *base = work->on->late + place->at + m % place->places * place->bytes;
	return (struct rh_arena){.base = base, .capacity = place->bytes};
}

/* Layers [lo, hi) forward; boundaries that a later slot reads are kept. */
static void forward(struct work *work, struct rh_view x, int64_t m)
{
	const struct rh_plan *plan = work->executor->options.plan;
	struct run_device *on = work->on;
	int lo = work->slot->lo, hi = work->slot->hi, first_kept = on->boundary.next, trains = work->executor->trains;
	memset(on->kept, 0, ((size_t)work->executor->options.model->layers + 1) * sizeof *on->kept);
	for (int l = lo + 1; l <= hi; l++)
		if (rh_boundary_readers(plan, trains, l))
			on->kept[l] = boundary_view(work, take(work, &on->boundary, RH_STREAM_COMPUTE));
	const struct rh_saved_place *saving = trains ? rh_plan_saved(plan, lo, hi) : NULL;
	if (!work->rc && saving) {
		struct rh_arena saved = saved_arena(work, saving);
		work->emit.saved = &saved;
		work->rc = rh_stage_save(&work->emit, lo, hi, x, on->kept[hi], &on->state, NULL);
	} else if (!work->rc) {
		work->rc = rh_stage_forward(&work->emit, lo, hi, x, on->kept, NULL);
	}
	for (int l = lo + 1; l <= hi; l++) {
		int readers = rh_boundary_readers(plan, trains, l);
		if (!readers)
			continue;
		struct run_buffer *buffer = &on->boundary.buffer[first_kept];
		first_kept = (first_kept + 1) % on->boundary.count;
		send(work, buffer, RH_BOUNDARY_ACTIVATION, l, m, readers);
	}
}

static void infer_top(struct work *work, struct rh_view x, int64_t m)
{
	struct rh_head_out head;
	struct run_buffer *results = begin_results(work, &head);
	if (!work->rc)
		work->rc = rh_stage_forward(&work->emit, work->slot->lo, work->slot->hi, x, NULL, &head);
	end_results(work, results, m);
}

/* What the backward needs: saved by the stage's forward slot on this device, or computed now (for the fused stage with the loss). */
static void restore(struct work *work, struct rh_view x, const struct rh_head_out *head)
{
	const struct rh_slot *slot = work->slot;
	const struct rh_saved_place *saving = rh_plan_saved(work->executor->options.plan, slot->lo, slot->hi);
	struct rh_emit naming = work->emit;
	struct rh_arena saved;
	if (work->rc)
		return;
	if (saving) {
		saved = saved_arena(work, saving);
		naming.launch = NULL;
		naming.saved = &saved;
		work->rc = rh_stage_save(&naming, slot->lo, slot->hi, x, (struct rh_view){0}, &work->on->state, NULL);
	} else {
		work->emit.saved = work->emit.arena;
		work->rc = rh_stage_save(&work->emit, slot->lo, slot->hi, x, (struct rh_view){0}, &work->on->state, head);
	}
}

/* Backward once its activations and the gradient from above are there. */
static void backward(struct work *work, struct rh_view x, int64_t m)
{
	const struct rh_slot *slot = work->slot;
	int fused = ends_model(work), sends = slot->lo > work->executor->options.model->first_trained;
	struct run_buffer *above = fused ? NULL : fetch(work, RH_BOUNDARY_GRADIENT, slot->hi, m), *below = NULL, *results = NULL;
	struct rh_head_out head = {0};
	struct rh_view dy = {0}, dx = {0};
	struct rh_arena late;
	if (slot->kind == RH_SLOT_INPUT_GRADIENT) {
		late = late_arena(work, m);
		work->emit.late = &late;
	}
	if (fused)
		results = begin_results(work, &head);
	restore(work, x, &head);
	if (above) {
		work_end(work, work->span);
		compute_after(work, RUN_WAIT_ACTIVATIONS, above->ready);
		work->span = work_begin(work, RH_SPAN_BACKWARD, RH_STREAM_COMPUTE, 0);
		dy = boundary_view(work, above);
	}
	if (sends) {
		below = take(work, &work->on->boundary, RH_STREAM_COMPUTE);
		dx = boundary_view(work, below);
	}
	work->phase = RH_SPAN_BACKWARD;
	if (!work->rc) {
		int rc = rh_stage_backward(&work->emit, slot->lo, slot->hi, &work->on->state, dy, dx);
		work->rc = work->rc ? work->rc : rc; /* the first: bulk_layer has had its turn in between */
	}
	work->emit.late = NULL;
	if (results)
		end_results(work, results, m);
	if (below)
		send(work, below, RH_BOUNDARY_GRADIENT, slot->lo, m, 1);
	if (above) {
		record(work, RH_STREAM_COMPUTE, above->freed);
		rh_boundary_release(&work->executor->boundaries, RH_BOUNDARY_GRADIENT, slot->hi, m);
	}
}

/* The weight gradients that an earlier slot of this device put off, whose operands are named by going its way again. */
static void weight_gradients(struct work *work, int64_t m)
{
	const struct rh_slot *slot = work->slot;
	struct run_buffer any = {.memory = work->on->arena.base};
	struct rh_view x = boundary_view(work, &any);
	struct rh_head_out head = {.loss = x};
	struct rh_arena late = late_arena(work, m);
	struct rh_emit naming = work->emit;
	naming.launch = NULL;
	naming.layer_done = NULL;
	naming.saved = naming.arena;
	naming.late = &late;
	if (!work->rc)
		work->rc = rh_stage_save(&naming, slot->lo, slot->hi, x, (struct rh_view){0}, &work->on->state, &head);
	if (!work->rc)
		work->rc = rh_stage_backward(&naming, slot->lo, slot->hi, &work->on->state, x, x);
	if (!work->rc) {
		int rc = rh_stage_weights(&work->emit, slot->lo, slot->hi, &work->on->state);
		work->rc = work->rc ? work->rc : rc;
	}
}

/* What the compute stream does first for a micro-batch. */
static enum rh_span_kind first_span(const struct work *work)
{
	switch (work->slot->kind) {
	case RH_SLOT_FORWARD:
	case RH_SLOT_INFER:
		return RH_SPAN_FORWARD;
	case RH_SLOT_WEIGHT_GRADIENT:
		return RH_SPAN_WEIGHT_GRADIENT;
	default:
		return ends_model(work) ? RH_SPAN_FUSED : RH_SPAN_RECOMPUTE;
	}
}

/* Where a micro-batch of the slot's step has its books and its staging. */
static int64_t place_of(const struct rh_executor *executor, const struct rh_slot *slot, int64_t micro_batch)
{
	return micro_batch + slot->step % executor->steps_held * executor->options.train_micro_batches;
}

static void micro_batch(struct work *work, int64_t number)
{
	struct rh_executor *executor = work->executor;
	const struct rh_slot *slot = work->slot;
	int64_t place = place_of(executor, slot, number);
	struct rh_view x = {0};
	work->emit.micro_batch = (uint32_t)number;
	work->micro_batch = number;
	work->emit.shape = executor->batch[place].shape;
	struct run_buffer *micro = take(work, &work->on->micro, RH_STREAM_ACTIVATIONS_UP), *input = NULL;
	copy_up(work, RH_STREAM_ACTIVATIONS_UP, micro->memory, executor->micro[place], rh_micro_layout(&work->emit.shape).bytes);
	work->emit.micro = micro->memory;
	if (slot->lo > 0 && slot->kind != RH_SLOT_WEIGHT_GRADIENT) {
		input = fetch(work, RH_BOUNDARY_ACTIVATION, slot->lo, place);
		x = boundary_view(work, input);
	}
	record(work, RH_STREAM_ACTIVATIONS_UP, micro->ready);
	compute_after(work, RUN_WAIT_ACTIVATIONS, micro->ready);
	work->phase = first_span(work);
	work->span = work_begin(work, work->phase, RH_STREAM_COMPUTE, 0);
	if (slot->kind == RH_SLOT_FORWARD)
		forward(work, x, place);
	else if (slot->kind == RH_SLOT_INFER)
		infer_top(work, x, place);
	else if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
		weight_gradients(work, place);
	else
		backward(work, x, place);
	work_end(work, work->span);
	record(work, RH_STREAM_COMPUTE, micro->freed);
	if (input) {
		record(work, RH_STREAM_COMPUTE, input->freed);
		rh_boundary_release(&executor->boundaries, RH_BOUNDARY_ACTIVATION, slot->lo, place);
	}
}

/* *ready: not before the boundary was sent. */
static int is_there(const struct rh_executor *executor, enum rh_boundary_kind kind, int layer, int64_t place, int64_t *ready)
{
	const struct rh_boundary_buffer *buffer = rh_boundary_there(&executor->boundaries, kind, layer, place);
	if (buffer && buffer->clock > *ready)
		*ready = buffer->clock;
	return buffer != NULL;
}

int run_slot_inputs(const struct rh_executor *executor, const struct rh_slot *slot, int64_t number, int64_t *ready)
{
	int64_t place = place_of(executor, slot, slot->first + number);
	int from_above = rh_slot_makes_gradients(slot) && slot->hi < executor->options.model->layers;
	if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
		return 1;
	return (!slot->lo || is_there(executor, RH_BOUNDARY_ACTIVATION, slot->lo, place, ready)) &&
	       (!from_above || is_there(executor, RH_BOUNDARY_GRADIENT, slot->hi, place, ready));
}

int run_slot_begin(struct rh_executor *executor, const struct rh_slot *slot)
{
	struct run_device *on = &executor->on[slot->device];
	struct work *work = &executor->work[slot->device];
	RH_ASSERT(slot->count > 0);
	on->place = executor->is_stretch ? 0 : (int)slot->step;
	*work = (struct work){.executor = executor, .on = on, .device = on->device, .ops = on->device->ops, .present = *slot};
	work->slot = &work->present;
	work->micro_batch = -1;
	work->emit = (struct rh_emit){.model = executor->options.model,
	                              .launch = emitted,
	                              .sink = work,
	                              .arena = &on->arena,
	                              .step = (uint32_t)run_step_number(executor, slot),
	                              .seed = executor->options.seed,
	                              .dropout = executor->trains ? executor->options.model->dropout : 0,
	                              .loss_scale = executor->loss_scale[slot->step % executor->steps_held],
	                              .weights = on->block_weights,
	                              .gradient = on->block_gradient,
	                              .cache = on->cache,
	                              .cache_rows = executor->options.cache_rows};
	if (executor->trains && !executor->is_stretch)
		work->rc = run_waits_begin(work_waits(work), work->device);
	bulk_begin(work);
	return work->rc;
}

int run_slot_window(struct rh_executor *executor, int device, int64_t number)
{
	bulk_window(&executor->work[device], number);
	return executor->work[device].rc;
}

int run_slot_next(struct rh_executor *executor, int device, int64_t number)
{
	struct work *work = &executor->work[device];
	int is_last = number == work->slot->count - 1;
	if (is_last && !work->slot->sums_stay)
		work->emit.layer_done = layer_done;
	micro_batch(work, work->slot->first + number);
	work->micro_batch = -1;
	bulk_arrived(work, number);
	if (is_last)
		bulk_end(work);
	return work->rc;
}

int run_slot(struct rh_executor *executor, const struct rh_slot *slot)
{
	int rc = run_slot_begin(executor, slot);
	for (int64_t number = 0; !rc && number < slot->count; number++) {
		rc = run_slot_window(executor, slot->device, number);
		rc = rc ? rc : run_slot_next(executor, slot->device, number);
	}
	return rc;
}
