/* The optimizer on a thread of its own, block after block, while devices compute.
 *
 * It takes gradients as they arrive (rh_updater_open). Without clipping it updates each block then, while lower layers still compute their
 * gradients. With clipping all blocks wait for the last gradient, which completes the norm. Either way the next step may run meanwhile.
 *
 * Synchronous (staleness 0): each block is released as soon as it is updated, the lowest waiting one first, so that the next step's forward
 * starts while deep layers are still being updated. Weights may be updated before moments (rh_updater_weights_first).
 * Asynchronous (staleness 1; the store has published copies): a step runs with weights that lack the gradient of the step before it. When
 * its uploads of a block are over nobody reads the published weights any more: what the update before made is published, and the next step
 * may upload it while this one goes on; only then is this step's gradient used. The highest waiting block is updated first: its next
 * gradient is the first to come down.
 *
 * Locks are taken in this order: the updater's work lock, its lock, and by watches a trace's. A space's lock is taken with none of them but
 * the work lock; inside it, a trace's alone. Events are queried under the updater's lock.
 *
 * One thread (the driver) opens updates, reports uploads, awaits, and asks for norms. Arrivals may come from any thread, one for each block
 * and step (a staging's: offload/staging.h). Uploads, downloads, updates and publishing are in order because of the awaits, the
 * arrivals' events and rh_updater_finish (tests/offload/order.h says in which). */
#ifndef RH_OFFLOAD_UPDATER_H
#define RH_OFFLOAD_UPDATER_H

#include "device/device.h"
#include "offload/optimizer.h"
#include "offload/watch.h"

struct rh_updater;

/* Borrows the store, and from open to finish also its pool (but see rh_updater_pause). queue: the host queue of a simulated machine, in
 * whose virtual time updates then run; the updater destroys it, also when this fails. NULL: a thread runs the updates. */
int rh_updater_create(struct rh_store *store, struct rh_host_queue *queue, struct rh_updater **out) RH_MUST;
/* Waits for the updates in progress; the events of announced gradients must still exist. NULL is legal. */
void rh_updater_destroy(struct rh_updater *updater);

/* From now on each update makes a block's weights first, where the next step would wait for them, and its moments while that step runs.
 * This applies to synchronous AdamW without spilled state, in steps that leave the host time for it; elsewhere the call does nothing.
 * Two passes move more bytes, so do not use it with devices that compute on the host's cores. Call it before the first update is opened. */
void rh_updater_weights_first(struct rh_updater *updater);

/* From now on blocks are updated independently of one another. Gradients of up to `steps` steps whose norm was not asked for may arrive
 * in any order, and without clipping no block waits for another. Call it before the first update is opened. -ENOMEM. */
int rh_updater_by_block(struct rh_updater *updater, int64_t steps) RH_MUST;

/* Of a block whose gradient comes by rows (rh_store_by_rows), where weights are published by no copy and rh_optimizer_has_passes: from now
 * on a step reads some of its rows alone, which the caller names when the step begins. Their weights are made first, then those of all
 * other blocks, and those of its other rows last. The block's weights then count as there (rh_updater_await_weights) once these rows are;
 * rh_updater_finish waits for the rest. row: (count), borrowed until then. Rows that are named too late are not made first. */
void rh_updater_by_rows(struct rh_updater *updater, int block);
void rh_updater_rows(struct rh_updater *updater, int block, const int32_t *row, int64_t count);

/* Blocks that are updated independently clip by parts: part[b] is that of block b. Call it before rh_updater_by_block, with which it
 * works. Each part has a norm and a limit of its own, and its blocks wait for its gradients alone. -ENOMEM. */
int rh_updater_in_parts(struct rh_updater *updater, const int *part, int parts) RH_MUST;

/* From now on the store counts as one part of a model whose other parts have updaters of their own, and the norm is that of all parts.
 * Call it before the first update is opened. rh_updater_squares concerns the first opened update whose norm was not asked for: it waits
 * until all gradients whose squares count in this part have been taken; each: as rh_optimizer_squares has them. When the sum over all parts
 * is known, rh_updater_give_norm gives its root to each part. */
void rh_updater_is_of_several(struct rh_updater *updater);
int rh_updater_squares(struct rh_updater *updater, double *each) RH_MUST;
void rh_updater_give_norm(struct rh_updater *updater, double norm);
/* For a block that another part of the model shares: its announced gradient waits for the other part's sum. This call says that the sum
 * is in the store. */
void rh_updater_completes(struct rh_updater *updater, int block);

/* Opens an update: the next gradient that each block announces, after those of the updates opened before, belongs to it. max_norm > 0:
 * no block is updated before all gradients have arrived, and update->scale is multiplied by rh_optimizer_clip of their norm. At most two
 * updates may be open whose norm was not asked for, unless blocks are updated one by one. */
void rh_updater_open(struct rh_updater *updater, const struct rh_update *update, double max_norm);
/* The same of an updater in parts. max_norm: (parts). */
void rh_updater_open_parts(struct rh_updater *updater, const struct rh_update *update, const double *max_norm);
/* Staleness 1: says that all uploads of the block in this step are enqueued; they are finished when the latest records of these events
 * are reached. The gradient of the step before must have been announced. The array and its events are borrowed until the next await of
 * the block's weights, and the events are not recorded again before it. Call it once a step and trainable block, before its gradient is
 * announced. With staleness 0 it does nothing. */
void rh_updater_uploaded(struct rh_updater *updater, int block, struct rh_event *const *event, int events);
/* Announces a gradient: all of the block's gradient of this step is down when the event's latest record is reached (NULL: it is down
 * already). The gradient before it must have been taken (rh_updater_await_gradient). Does nothing unless the block's update was opened.
 * Record the event again only after the next await of this gradient. */
void rh_updater_arrives(struct rh_updater *updater, int block, struct rh_event *event);
/* The norm of the first opened update whose norm was not asked for: waits until every trainable block's gradient has been taken. A block
 * whose gradient is not finite is not updated, nor is any later one. With clipping that means no block: the step has changed nothing.
 * Without clipping earlier blocks were updated, and the run must stop. */
int rh_updater_norm(struct rh_updater *updater, double *norm) RH_MUST;
/* Of the update whose norm was asked for last, before another is opened: the norm of each part. norm: (parts). */
void rh_updater_part_norms(struct rh_updater *updater, double *norm);
/* 1 where rh_updater_norm would not wait. */
int rh_updater_has_norm(struct rh_updater *updater);
/* 1: a gradient of the update whose norm was asked for last was not finite; *block and *tensor name the first one found. */
int rh_updater_spoilt(const struct rh_updater *updater, int *block, int *tensor);

/* Waits until the block's weights are those that the next upload is to read. Negative errno: an update failed. */
int rh_updater_await_weights(struct rh_updater *updater, int block) RH_MUST;
/* 1: an update was opened whose norm has not been asked for. */
int rh_updater_is_open(struct rh_updater *updater);
/* 1: the latest update waits for all gradients. */
int rh_updater_clips(struct rh_updater *updater);
/* A counter that changes whenever an answer of rh_updater_has_weights or _has_gradient may; and a wait until it is no longer `seen`. */
int64_t rh_updater_changes(struct rh_updater *updater);
int rh_updater_await_change(struct rh_updater *updater, int64_t seen) RH_MUST;
/* Ends all waits for a change. From any thread. */
void rh_updater_wake(struct rh_updater *updater);
/* Like rh_updater_await_change, but waits only a moment: for callers that also poll something else. */
void rh_updater_await_briefly(struct rh_updater *updater, int64_t seen);
/* 1: an announced gradient has not been taken yet. Gradients that wait for another part do not count. */
int rh_updater_is_taking(struct rh_updater *updater);
/* 1: rh_updater_await_weights would not wait. */
int rh_updater_has_weights(struct rh_updater *updater, int block);
/* Waits until the block's gradient has been taken and may be overwritten. */
int rh_updater_await_gradient(struct rh_updater *updater, int block) RH_MUST;
/* 1: rh_updater_await_gradient would not wait. */
int rh_updater_has_gradient(struct rh_updater *updater, int block);
/* For one part of several (rh_updater_is_of_several), with clipping: drops the opened updates whose norm was not asked for. They have
 * changed no block. Nothing that could announce a gradient may be running. Then does what rh_updater_finish does. */
int rh_updater_abandon(struct rh_updater *updater) RH_MUST;
/* Waits until everything announced has been taken and updated. */
int rh_updater_finish(struct rh_updater *updater) RH_MUST;
/* Finishes, and publishes all blocks: from now on devices read the newest weights. No upload may be running. */
int rh_updater_flush(struct rh_updater *updater) RH_MUST;
/* The clock by which awaits take their time. */
double rh_updater_seconds(const struct rh_updater *updater);
/* Between these two the store's pool is the caller's. */
void rh_updater_pause(struct rh_updater *updater);
void rh_updater_resume(struct rh_updater *updater);

/* Holds every trainable block for a checkpoint that is written while training continues: until its release a block keeps its weights,
 * published ones too, and its state. Its gradients are taken, but its updates wait. Call it when the updater is finished and no block is
 * held. Not in virtual time. */
void rh_updater_hold(struct rh_updater *updater);
/* The checkpoint has read the block, whose updates may go on. From any thread. Does nothing where the block is not held. */
void rh_updater_release(struct rh_updater *updater, int block);
/* 1: only the hold keeps a block's update, or its publishing, from beginning now. From any thread. */
int rh_updater_awaits_release(struct rh_updater *updater);
/* Seconds in which updates waited for held blocks and for nothing else. */
double rh_updater_held_seconds(struct rh_updater *updater);

/* From now on `watch` is told of the updates that step `step` (from 0) hides: those of the step before, and its own where they do not
 * wait for the last gradient. NULL: nobody is told any more, and on return no call is running. */
void rh_updater_watch(struct rh_updater *updater, const struct rh_watch *watch, int64_t step);

/* What orders the updater's work, told before others can see that it has happened: for tests. */
struct rh_updater_moment {
	enum rh_updater_told {
		RH_TOLD_ANNOUNCED, /* by rh_updater_arrives */
		RH_TOLD_AWAITED_WEIGHTS,
		RH_TOLD_AWAITED_GRADIENT, /* the driver's two awaits are over; block -1: of all blocks */
		RH_TOLD_TAKES,            /* the thread is going to read an announced gradient; its event is reached */
		RH_TOLD_UPDATES,          /* likewise to update, by the gradient of `step` */
		RH_TOLD_UPDATED,
		RH_TOLD_PUBLISHED /* what the update of `step` made; the events of uploads were reached before */
	} told;
	int block;
	int64_t step;             /* from 0; -1: of none */
	enum rh_update_pass pass; /* of UPDATES, UPDATED */
	struct rh_event *const *event;
	int events;
};
/* From now on `tell` is told, by whichever thread; NULL: nobody is. Call it while nothing works. */
void rh_updater_tell(struct rh_updater *updater, void (*tell)(const struct rh_updater_moment *moment));

#endif
