/* The slot that is being enqueued, for slots.c and bulk.c. The first fault stops what follows. */
#ifndef RH_RUN_WORK_H
#define RH_RUN_WORK_H

#include "run/executor_internal.h"

struct work {
	struct rh_executor *executor;
	struct run_device *on;
	struct rh_device *device;
	const struct rh_device_ops *ops;
	const struct rh_slot *slot;
	struct rh_emit emit;
	int rc;
};

static inline void wait_for(struct work *work, enum rh_stream stream, struct rh_event *event)
{
	if (!work->rc)
		work->rc = work->ops->wait(work->device, stream, event);
}

/* The same for the compute stream, and the time is booked. */
static inline void compute_after(struct work *work, enum run_wait_kind kind, struct rh_event *event)
{
	if (!work->rc)
		work->rc = run_waits_for(&work->on->waits, work->device, kind, event);
}

static inline void record(struct work *work, enum rh_stream stream, struct rh_event *event)
{
	if (!work->rc)
		work->rc = work->ops->record(work->device, stream, event);
}

static inline void copy_up(struct work *work, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	if (!work->rc && bytes)
		work->rc = run_copy_up(work->executor, work->device, stream, to, from, bytes);
}

static inline void copy_down(struct work *work, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	if (!work->rc && bytes)
		work->rc = run_copy_down(work->executor, work->device, stream, to, from, bytes);
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
 * bulk_end       the slot is over */
void bulk_begin(struct work *work);
void bulk_window(struct work *work, int64_t k);
void bulk_arrived(struct work *work, int64_t k);
void bulk_layer(struct work *work, int layer);
void bulk_end(struct work *work);
/* After the last slot: what its devices have left is sent down at once. */
int bulk_flush(struct rh_executor *executor, int device);

#endif
