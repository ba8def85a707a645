/* The optimizer on a thread of its own: block after block in the order in which the next step reads them, while that step already runs.
 *
 * Synchronous (staleness 0): each block is released as soon as it is updated, the first layer first, so that the next step's forward starts
 * while deep layers are still being updated.
 * Asynchronous (staleness 1; the store has published copies): a step runs with weights that lack the gradient of the step before it. At
 * the border of two steps every block's latest weights are published, and then the border's gradients are taken while the next step runs.
 *
 * One thread drives: begin, any number of awaits, finish, and again. DESIGN.md 4's orderings are held by await and finish alone. */
#ifndef RH_OFFLOAD_UPDATER_H
#define RH_OFFLOAD_UPDATER_H

#include "offload/optimizer.h"
#include "offload/order.h"

struct rh_updater;

/* Borrows the store, and its pool from begin to finish. */
int rh_updater_create(struct rh_store *store, struct rh_updater **out) RH_MUST;
/* Lets an update in progress end. NULL is legal. */
void rh_updater_destroy(struct rh_updater *updater);

struct rh_update {
	struct rh_optimizer_settings settings;
	double learning_rate, scale; /* as rh_optimizer_update takes them */
	int64_t step;                /* counts from 1 */
};
/* Starts the update of every trainable block; the stored gradients are final. The one before is finished. */
void rh_updater_begin(struct rh_updater *updater, const struct rh_update *update);

/* Waits until the block's weights are those that a step begun after the latest begin reads. Negative errno: an update failed. */
int rh_updater_await_weights(struct rh_updater *updater, int block) RH_MUST;
/* 1 where that would not wait. */
int rh_updater_has_weights(struct rh_updater *updater, int block);
/* Waits until the block's gradient has been taken and may be overwritten. */
int rh_updater_await_gradient(struct rh_updater *updater, int block) RH_MUST;
/* Waits for all. */
int rh_updater_finish(struct rh_updater *updater) RH_MUST;
/* Finishes, and publishes: from now on devices read the newest weights. Nothing may be uploading. */
int rh_updater_flush(struct rh_updater *updater) RH_MUST;

/* From now on what the updater does is recorded: its thread is `lane`, the one that drives it lane + 1; tokens are from `token` on, two for
 * each block and two more. Steps of the recording count from 0. Borrows the log; NULL: no more. */
void rh_updater_record(struct rh_updater *updater, struct rh_order_log *log, int lane, int64_t token);

#endif
