/* Mode paci's messages beside activations and gradients, in their places in the order of steps that nothing flushes (struct rh_letters):
 *
 *   up    before step s's first activation: the data of step s + ahead.data; squares of the gradients of step s - ahead.results, to which
 *         each box adds its own
 *   down  before step s's first gradient: the results of step s - ahead.results
 *
 * When a stretch begins all boxes have the data of its first `ahead.data` steps; behind its end come the squares and results that are left.
 * A box is done with a step's gradients before it begins the forward before which their squares go up (rh_dispatch_ahead), so that no
 * activation waits for them. Training and its forecast send the same messages: what is in them is the owner's. */
#ifndef RH_MODES_BOXES_BOX_LETTERS_H
#define RH_MODES_BOXES_BOX_LETTERS_H

#include "modes/boxes/box_step.h"
#include "run/executor.h"
#include "schedule/dispatch.h"

struct box_letters {
	const struct rh_box *box;
	struct rh_boxes_ahead ahead;
	struct rh_letters letters; /* for the executor */
	int64_t first, last;       /* steps of the stretch; last: INT64_MAX until it is known */
	/* of all steps below these: this box has the data; the squares of the boxes below; its own gradients; the results */
	int64_t data_here, squares_here, ended, results_here;
	/* The owner's. bytes_of: memory of a letter, filled in where it is sent. 1: it is there; 0: not yet; or a fault. come: a letter has
	 * come, or in the highest box the results are known. gone: its memory is the owner's again. */
	int (*bytes_of)(void *context, const struct rh_letter *letter, void **bytes, int64_t *size);
	int (*come)(void *context, enum box_message kind, int64_t step);
	int (*gone)(void *context, enum box_message kind, int64_t step);
	void *context;
};

/* How far ahead and later: of the session's admission limits and units. */
struct rh_boxes_ahead box_ahead_of(const struct rh_session *session);
/* The owner has set box, ahead and what is the owner's. A stretch begins with step `first`. */
void box_letters_begin(struct box_letters *letters, int64_t first);
/* 1: the step's data are here, and the results of the step whose norm it is clipped by. */
int box_letters_may_begin(const struct box_letters *letters, int64_t step);

#endif
