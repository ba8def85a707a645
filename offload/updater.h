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
 * One thread drives: open, any number of uploads, arrivals and awaits, norm, and again; but arrivals may come from any thread, one of a
 * block and step (a staging's: offload/staging.h). The orderings (offload/order.h) are held by the
 * awaits, the events of arrivals and finish. */
#ifndef RH_OFFLOAD_UPDATER_H
#define RH_OFFLOAD_UPDATER_H

#include "device/device.h"
#include "offload/optimizer.h"
#include "offload/order.h"
#include "offload/watch.h"

struct rh_updater;

/* Borrows the store, and its pool from begin or open to finish (but see rh_updater_pause). queue: of a simulated machine, whose time
 * updates then take, and which is the updater's to destroy, also when this fails; NULL: a thread does them. */
int rh_updater_create(struct rh_store *store, struct rh_host_queue *queue, struct rh_updater **out) RH_MUST;
/* Lets updates in progress end, so that the events of arrivals must still be there. NULL is legal. */
void rh_updater_destroy(struct rh_updater *updater);

/* From now on a block's weights are updated first where the next step would wait for them, and its moments while that step runs. For
 * synchronous AdamW without spilled state, in steps that leave the host time for it; else it does nothing. Two passes move more bytes, so
 * it is not for devices that compute on the host's cores. Call it before the first update is opened. */
void rh_updater_weights_first(struct rh_updater *updater);

/* Blocks are updated one by one: of up to `steps` steps whose norm was not asked for, gradients arrive in any order, and without clipping
 * no block waits for another. Call it before the first update is opened. -ENOMEM. */
int rh_updater_by_block(struct rh_updater *updater, int64_t steps) RH_MUST;

/* From now on the store holds a part of a model whose other parts have updaters of their own: the norm is that of all. Before the first
 * update is opened. Then, for the first opened update whose norm was not asked for: when all of this part's gradients have been taken their
 * squares are added to *squares, which are those of the layers below; and when the sum of all parts is known its root is given to each. */
void rh_updater_is_of_several(struct rh_updater *updater);
int rh_updater_add_squares(struct rh_updater *updater, double *squares) RH_MUST;
void rh_updater_give_norm(struct rh_updater *updater, double norm);
/* Of a block that another part shares: its announced gradient waits until the other part's sum is in the store, too, which this says. */
void rh_updater_completes(struct rh_updater *updater, int block);

/* A block's next gradient to be announced, after those of the updates opened before, is this update's. max_norm > 0: no block is updated
 * before all have arrived, and update->scale is multiplied by rh_optimizer_clip of their norm. Two at most whose norm was not asked for,
 * unless blocks are updated one by one. */
void rh_updater_open(struct rh_updater *updater, const struct rh_update *update, double max_norm);
/* Staleness 1: the step's uploads of the block are all enqueued, and over when the latest records of these events are reached; the gradient
 * of the step before has been announced. Array and events are borrowed until the next await of the block's weights, and not recorded again
 * before it. Else does nothing. Once a step and trainable block, before its gradient is announced. */
void rh_updater_uploaded(struct rh_updater *updater, int block, struct rh_event *const *event, int events);
/* All of the block's gradient of this step will be down when the event's latest record is reached (NULL: it is); the gradient before it has
 * been taken (rh_updater_await_gradient). Does nothing unless its update was opened. The event is recorded again only after the next await
 * of this gradient. */
void rh_updater_arrives(struct rh_updater *updater, int block, struct rh_event *event);
/* Of the first opened update whose norm was not asked for: waits until every trainable block's gradient has been taken. A block whose
 * gradient is not finite is not updated, nor is what comes after it. With clipping that is every block: the step has changed nothing.
 * Without, blocks before it were updated: the run must stop. */
int rh_updater_norm(struct rh_updater *updater, double *norm) RH_MUST;
/* 1 where that would not wait. */
int rh_updater_has_norm(struct rh_updater *updater);
/* 1: a gradient of the update whose norm was told last was not finite; the first that was found, in a block's tensor. */
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
/* Whoever waits for a change goes on. From any thread. */
void rh_updater_wake(struct rh_updater *updater);
/* Waits until it is no longer `seen`, but only a moment: for callers that poll something else as well. */
void rh_updater_pass(struct rh_updater *updater, int64_t seen);
/* 1: announced gradients have not all been taken, of those that wait for no other part. */
int rh_updater_is_taking(struct rh_updater *updater);
/* 1: rh_updater_await_weights would not wait. */
int rh_updater_has_weights(struct rh_updater *updater, int block);
/* Waits until the block's gradient has been taken and may be overwritten. */
int rh_updater_await_gradient(struct rh_updater *updater, int block) RH_MUST;
/* 1: rh_updater_await_gradient would not wait. */
int rh_updater_has_gradient(struct rh_updater *updater, int block);
/* Gives up the opened updates whose norm was not asked for, of a part (rh_updater_is_of_several) with clipping: no block has been changed
 * by them. Nothing that could announce a gradient is running. Then as rh_updater_finish. */
int rh_updater_abandon(struct rh_updater *updater) RH_MUST;
/* Waits until everything announced has been taken and updated. */
int rh_updater_finish(struct rh_updater *updater) RH_MUST;
/* Finishes, and publishes: from now on devices read the newest weights. Nothing may be uploading. */
int rh_updater_flush(struct rh_updater *updater) RH_MUST;
/* The clock by which awaits take their time. */
double rh_updater_seconds(const struct rh_updater *updater);
/* Between these two the store's pool is the caller's. */
void rh_updater_pause(struct rh_updater *updater);
void rh_updater_resume(struct rh_updater *updater);

/* For a checkpoint that is written beside the training: every trainable block keeps its weights, published ones too, and its state until it
 * is released; its gradients are taken, and its updates wait. Finished, and no block is held. Not in virtual time. */
void rh_updater_hold(struct rh_updater *updater);
/* Whoever has read the block: from any thread. Nothing where it is not held. */
void rh_updater_release(struct rh_updater *updater, int block);
/* 1: the update of a held block, or its publishing, could begin now. From any thread. */
int rh_updater_awaits_release(struct rh_updater *updater);
/* Seconds that updates have waited for held blocks, and for nothing else. */
double rh_updater_held_seconds(struct rh_updater *updater);

/* Told from now on of the updates that a step hides (counted from 0): the step before's, and its own where they do not wait for the last
 * gradient. NULL: no more, and none is being told of any more. */
void rh_updater_watch(struct rh_updater *updater, const struct rh_watch *watch, int64_t step);

/* From now on what the updater does is recorded: its thread is `lane`, the one that drives it lane + 1; tokens are from `token` on, three
 * for each block and two more; event_token names the token of an event (called by both). Steps of the recording count from 0. Borrows the
 * log; NULL: no more. */
void rh_updater_record(struct rh_updater *updater, struct rh_order_log *log, int lane, int64_t token,
                       int64_t (*event_token)(struct rh_event *));

#endif
