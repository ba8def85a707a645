/* The messages between boxes of a run and of each of its steps. */
#ifndef RH_MODES_BOXES_BOX_STEP_H
#define RH_MODES_BOXES_BOX_STEP_H

#include "train/training.h"

/* Call it once, before the session starts: shares how many steps there are, and how large micro-batches may be. Box 0 gives *work;
 * elsewhere it is filled in. */
int box_share_run(struct training *run, struct rh_workload *work) RH_MUST;

/* *least: the smallest of the boxes' numbers. Returns 1: all boxes have this one; 0: some have another. */
int box_share_least(struct training *run, int64_t own, int64_t *least) RH_MUST;

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

/* A step's micro-batches as messages. */
struct box_data {
	int64_t *shapes; /* (1 + 4 a micro-batch): how many micro-batches; tokens, documents, longest and targets of each */
	char *batches;   /* arrays of 32-bit integers, one after the other */
};
/* How many numbers `shapes` has for as many micro-batches as a step may have; and fills them in for `count` batches. */
int64_t box_shapes_items(const struct training *run);
void box_shapes_of(const struct rh_batch *batch, int64_t count, int64_t *shapes);
/* Tokens of micro-batch m of such shapes, and bytes of all their arrays as a message. */
int64_t box_shapes_tokens(const int64_t *shapes, int64_t m);
int64_t box_shapes_targets(const int64_t *shapes); /* of all */
int64_t box_shapes_bytes(const int64_t *shapes, int names_samples);
/* Gives the batches, `most` of them, the shapes that box 1 sent. */
int box_shapes_set(struct rh_batch *batches, int64_t most, const int64_t *shapes) RH_MUST;
/* Bytes of the message that holds the batches' arrays; and copies between the arrays and the message. */
int64_t box_batches_bytes(const struct rh_batch *batch, int64_t count);
void box_batches_pack(const struct rh_batch *batch, int64_t count, char *message, int is_out);
/* Reserves memory for the data of run->flights steps. Freed with the run. */
int box_data_reserve(struct training *run) RH_MUST;
void box_data_free(struct training *run);

/* Box 0 has filled the step's `count` micro-batches in run->batch: sends them to all boxes, which keep them. */
int box_share_data(struct training *run, int64_t step, int64_t count) RH_MUST;
/* Puts kept micro-batches into run->batch and run->micro, with their counts in `flight`. Their number, or a fault. Not for box 0. */
int64_t box_take_data(struct training *run, int64_t step);

/* A stretch: box 0 tells all boxes how many steps it has, and how many micro-batches each step. */
int box_share_stretch(struct training *run, int64_t first, int64_t *steps, int64_t *count) RH_MUST;

/* Evaluation: box 0 has made `count` micro-batches of rows from `row` on and sends them to all boxes, whose batches have room for them. */
int box_share_rows(struct rh_session *session, int64_t row, struct rh_batch *batch, int64_t count) RH_MUST;
/* The last box has added up the results and sends them to all boxes. */
int box_share_tally(struct rh_session *session, void *tally, int64_t bytes) RH_MUST;

/* Call it when the executor has finished `steps` steps (one, unless they were a stretch). All boxes learn the norm of all boxes'
 * gradients, and each step's losses. A stretch has its norms in `flight`: this box's before the call, all boxes' after it; of a single
 * step the updater has the norm. run->stop_requested and save_requested: this box's requests before the call, all boxes' after it. */
int box_share_results(struct training *run, int64_t first, int64_t steps) RH_MUST;

#endif
