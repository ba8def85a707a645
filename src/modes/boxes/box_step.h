/* The messages between boxes of a run and what those of its steps hold, beside those of the executor, which sends activations and their
 * gradients. Box 0 holds the lowest layers and has the data; the last box has the losses. Each message has its place in the order of a
 * step, which is the same at both ends of a link: box_flush.h, box_letters.h. */
#ifndef RH_MODES_BOXES_BOX_STEP_H
#define RH_MODES_BOXES_BOX_STEP_H

#include "session/mode.h"

/* Call it once, before the session starts: shares how many steps there are, and how large micro-batches may be. Box 0 gives run->work;
 * elsewhere it is filled in. */
int box_share_run(struct rh_mode_run *run) RH_MUST;

/* *least: the smallest of the boxes' numbers. Returns 1: all boxes have this one; 0: some have another. */
int box_share_least(struct rh_session *session, int64_t own, int64_t *least) RH_MUST;

/* The messages of a step; a step's number is in the tag's upper part, so that boxes that are not at the same step find out at once. */
enum box_message {
	BOX_LEAST,
	BOX_RUN,
	BOX_STRETCH,
	BOX_SHAPES,
	BOX_BATCHES,
	BOX_TABLE,
	BOX_SQUARES,
	BOX_RESULTS,
	BOX_EVAL_SHAPES,
	BOX_EVAL_BATCHES,
	BOX_EVAL_RESULT,
	BOX_HEAD,
	BOX_REPORT,
	BOX_LOGITS,
	BOX_STEP_MESSAGES
};
uint64_t box_tag_of(int64_t step, enum box_message message);

/* Evaluation: the last box has added up the results and sends them to all boxes. */
int box_share_tally(struct rh_session *session, void *tally, int64_t bytes) RH_MUST;

/* What boxes were asked for: to stop, for a checkpoint by a file SAVE, or to come to rest for another reason. */
struct box_requests {
	int64_t stop, save, rest;
};

/* Without a flush, from the lowest box to the highest: each adds its own. */
struct box_squares {
	double sum;
	struct box_requests requests;
	int64_t saved; /* the newest checkpoint that all of them have */
};

/* Then down again, with the micro-batches' load balancing losses and the tokens' losses behind it. */
struct box_results {
	double norm;
	struct box_requests requests;
	int64_t saved;
};

/* Adds what this box is asked for. And: what the highest box makes of all boxes' squares. */
void box_squares_ask(const struct rh_mode_run *run, struct box_squares *squares);
struct box_results box_results_of(const struct box_squares *squares);
/* Of a step that is in run->flights: the bytes of the message, or of its losses alone; copies between it and the flights. */
enum box_pack { BOX_PACK_IN, BOX_PACK_OUT };
int64_t box_losses_bytes(const struct rh_mode_run *run, int64_t step);
void box_losses_pack(const struct rh_mode_run *run, int64_t step, char *message, enum box_pack way);
int64_t box_results_bytes(const struct rh_mode_run *run, int64_t step);
void box_results_pack(const struct rh_mode_run *run, int64_t step, struct box_results *results, char *message, enum box_pack way);
/* What all boxes were asked for, in run. */
void box_results_heed(struct rh_mode_run *run, const struct box_results *results);

#endif
