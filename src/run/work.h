/* The slot that is being enqueued, for slots.c and bulk.c. The first fault stops what follows. */
#ifndef RH_RUN_WORK_H
#define RH_RUN_WORK_H

#include "run/executor_internal.h"
#include "run/trace.h"

struct work {
	struct rh_executor *executor;
	struct run_device *on;
	struct rh_device *device;
	const struct rh_device_ops *ops;
	const struct rh_slot *slot; /* NULL: what one before has left is sent */
	struct rh_slot present;     /* it: lists of slots move */
	struct rh_emit emit;
	int rc;
	int64_t micro_batch;        /* -1: none */
	enum rh_span_kind phase;    /* what the compute stream does for it */
	int uploads_over;           /* the step's, of the slot's blocks: the updater has been told */
	struct rh_trace_span *span; /* of the compute stream, that is open */
};

/* Of the slot's step. */
static inline int64_t run_step_number(const struct rh_executor *executor, const struct rh_slot *slot)
{
	return executor->trains && !executor->is_stretch ? executor->flight[slot->step].step : executor->step + slot->step;
}

static inline int work_is_traced(const struct work *work)
{
	const struct rh_executor *executor = work->executor;
	int64_t step = work->slot             ? run_step_number(executor, work->slot)
	               : executor->is_stretch ? executor->step + work->on->owes.step
	                                      : executor->step;
	return executor->trace && executor->trains && step == executor->traced_step;
}

/* From here to work_end the stream does this. */
static inline struct rh_trace_span *work_begin(struct work *work, enum rh_span_kind kind, enum rh_stream stream, int64_t bytes)
{
	struct rh_trace_span *open = NULL;
	if (work->rc || !work_is_traced(work))
		return NULL;
	struct rh_trace_span span = {.kind = kind,
	                             .device = (int)(work->on - work->executor->on),
	                             .lane = (int)stream,
	                             .lo = work->slot ? work->slot->lo : 0,
	                             .hi = work->slot ? work->slot->hi : 0,
	                             .micro_batch = work->micro_batch,
	                             .bytes = bytes};
	work->rc = rh_trace_begin(work->executor->trace, work->device, &span, &open);
	return open;
}

static inline void work_end(struct work *work, struct rh_trace_span *span)
{
	if (!work->rc)
		work->rc = rh_trace_end(work->device, span);
}

static inline void wait_for(struct work *work, enum rh_stream stream, struct rh_event *event)
{
	if (!work->rc)
		work->rc = work->ops->wait(work->device, stream, event);
}

static inline struct run_waits *work_waits(struct work *work)
{
	return &work->on->flight[work->on->place].waits;
}

/* The same for the compute stream, and the time is booked. */
static inline void compute_after(struct work *work, enum run_wait_kind kind, struct rh_event *event)
{
	if (!work->rc)
		work->rc = run_waits_for(work_waits(work), work->device, kind, event);
}

static inline void record(struct work *work, enum rh_stream stream, struct rh_event *event)
{
	if (!work->rc)
		work->rc = work->ops->record(work->device, stream, event);
}

static inline void copy_up(struct work *work, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	struct rh_trace_span *span = bytes ? work_begin(work, RH_SPAN_COPY, stream, bytes) : NULL;
	if (!work->rc && bytes)
		work->rc = run_copy_up(work->executor, work->device, stream, to, from, bytes);
	work_end(work, span);
}

static inline void copy_down(struct work *work, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	struct rh_trace_span *span = bytes ? work_begin(work, RH_SPAN_COPY, stream, bytes) : NULL;
	if (!work->rc && bytes)
		work->rc = run_copy_down(work->executor, work->device, stream, to, from, bytes);
	work_end(work, span);
}

static inline void launch(struct work *work, const struct rh_op *op)
{
	if (!work->rc)
		work->rc = work->ops->launch(work->device, RH_STREAM_COMPUTE, op);
}

/* bulk.c: weights up and gradients down, among the activations of slots.c.
 *
 * bulk_begin     the slot's weights, in the windows of the device's slot before; its gradient sums; what that slot left to be sent down is
 *                laid into this slot's windows
 * bulk_window    before micro-batch number k of the slot: what goes down meanwhile
 * bulk_arrived   after it: activations are enqueued, windows end
 * bulk_layer     a layer's gradients are final in this slot
 * bulk_end       the slot is over
 * bulk_uploads_over
 *                its step uploads the slot's blocks no more, and what the step before left has been announced: they can be published */
/* Before the slots of executor->program. */
int bulk_step_begins(struct rh_executor *executor) RH_MUST;
/* After the last of them, once all gradients are announced: while they come down, what of the next step's first slots has been updated goes
 * up, if that step will be as this one. Where updates wait for the last gradient or are stale that is little, or nothing. Uploads may be
 * under way on return. */
int bulk_next_step(struct rh_executor *executor) RH_MUST;
/* The host is about to wait for an update, or to go on with a device that does not: what others need first in this step, and is there, goes
 * up meanwhile. */
int bulk_upload_ahead(struct rh_executor *executor) RH_MUST;
void bulk_begin(struct work *work);
void bulk_window(struct work *work, int64_t k);
void bulk_arrived(struct work *work, int64_t k);
void bulk_layer(struct work *work, int layer);
void bulk_end(struct work *work);
void bulk_uploads_over(struct work *work);
/* Before the next slot: what the device has left is sent down at once. The same after the last one of all. */
int bulk_send_left(struct rh_executor *executor, int device);
int bulk_flush(struct rh_executor *executor, int device);
/* The host waits until a gradient has been taken. */
void bulk_await_gradient(struct work *work, int block);
/* After the step's last slot: the uploads of blocks that the updater has not been told of are over. */
void bulk_uploads_end(struct rh_executor *executor);

/* made.c, by bulk.c alone:
 *
 * made_begin     of the device's last slot of the step: which weights are made, and where; what they are made of
 * made_window    goes up in its windows, behind what the slot before sends down
 * made_layer     a block's rounded gradient is made: now its weights are
 * made_sort      before what the slot rounded is laid into windows
 * made_send      the slot is over: their upper halves go down, before their gradients do
 * made_end       the rest, after these
 * made_has       of the block they are
 * made_late      where the step clips: once its scale is known they are made and go down, all gradients being on their way */
void made_step_begins(struct rh_executor *executor);
void made_begin(struct work *work);
void made_window(struct work *work, int64_t k);
void made_layer(struct work *work, int block, char *gradient);
void made_sort(struct run_device *on);
void made_send(struct work *work);
void made_end(struct work *work);
int made_has(const struct run_device *on, int block);
int made_late(struct rh_executor *executor) RH_MUST;

#endif
