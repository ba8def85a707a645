/* Reads and writes of blocks' weights and gradients: recorded while a run is enqueued, checked afterwards.
 *
 * A lane is anything that runs in order: a device's stream, a host thread. It holds operations on blocks, and signals of and waits for
 * tokens (a device's event, a condition of the host), which order lanes among themselves. An operation comes before another only if lanes
 * and tokens say so. The time at which they happened to run does not count: so a missing wait is found even when it did no harm.
 *
 * The five orderings, for each block that is not only uploaded, steps counted from 0, staleness s (0 sync, 1 async):
 *   1  PUBLISH p      comes after every UPLOAD of steps up to p + s, which want the weights before
 *   2  UPLOAD t       comes after PUBLISH t - 1 - s, if that is a step
 *   3  TAKE t         comes after every DOWNLOAD t, of which there is one at least
 *   4  DOWNLOAD t     comes after TAKE of the last earlier step that downloaded
 *   5  TAKE t and PUBLISH t - 1 come after UPDATE t - 1; TAKE t (the first: moments may be made later) and PUBLISH t - 1 before UPDATE t */
#ifndef RH_OFFLOAD_ORDER_H
#define RH_OFFLOAD_ORDER_H

#include "core/error.h"

#include <stdint.h>

enum rh_order_kind {
	RH_ORDER_UPLOAD,   /* a device reads the block's upload form, for a step */
	RH_ORDER_DOWNLOAD, /* a device writes the block's gradient or running sum, of a step */
	RH_ORDER_TAKE,     /* the optimizer is done reading the gradient of a step (its own copy, or the update itself) */
	RH_ORDER_UPDATE,   /* master and state change by the gradient of a step */
	RH_ORDER_PUBLISH,  /* the upload form changes to what the update of a step made */
	RH_ORDER_SIGNAL,   /* the token now marks all that its lane did before; a later signal moves the mark */
	RH_ORDER_WAIT      /* what follows on the lane comes after the token's latest signal; never signalled: no wait */
};

struct rh_order_event {
	enum rh_order_kind kind;
	int lane;
	int64_t subject; /* block, or token; from 0 */
	int64_t step;    /* of operations */
};

struct rh_order_fault {
	int ordering;                        /* 1..5; 0: none */
	struct rh_order_event first, second; /* the second does not come after the first, as it must; first.lane -1: the first is missing */
};

/* 0, and *out says what is broken first (in the order of the recorded events), if anything is. -ENOMEM. Pure. Memory and time grow with
 * events times lanes. */
int rh_order_check(const struct rh_order_event *event, int64_t count, int staleness, struct rh_order_fault *out) RH_MUST;

/* "ordering 2: UPLOAD of block 3, step 4, on lane 1 does not come after PUBLISH of ..., step 3" */
void rh_order_describe(const struct rh_order_fault *fault, char *text, size_t bytes);

/* A recording that any thread may add to. Add a signal before it is given, and a wait after it has been waited for; if the two are only
 * enqueued, add both then. It holds `capacity` events and drops later ones. A NULL recording records nothing. */
struct rh_order_log;
int rh_order_log_create(int64_t capacity, struct rh_order_log **out) RH_MUST;
void rh_order_log_destroy(struct rh_order_log *log);
void rh_order_log_add(struct rh_order_log *log, enum rh_order_kind kind, int lane, int64_t what, int64_t step);
/* The recorded events; *forgotten: how many events were dropped. Valid until the next add. */
const struct rh_order_event *rh_order_log_events(struct rh_order_log *log, int64_t *count, int64_t *forgotten);

#endif
