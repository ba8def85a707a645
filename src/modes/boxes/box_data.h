/* Micro-batches as messages: box 0 has the rows, and the others get what it makes of them. */
#ifndef RH_MODES_BOXES_BOX_DATA_H
#define RH_MODES_BOXES_BOX_DATA_H

#include "session/mode.h"

/* A step's micro-batches as messages. */
struct box_data {
	int64_t *shapes; /* (1 + 4 a micro-batch): how many micro-batches; tokens, documents, longest and targets of each */
	char *batches;   /* arrays of 32-bit integers, one after the other */
};
/* How many numbers `shapes` has for as many micro-batches as a step may have; and fills them in for `count` batches. */
int64_t box_shapes_items(const struct rh_mode_run *run);
void box_shapes_of(const struct rh_batch *batch, int64_t count, int64_t *shapes);
/* Bytes of the shapes of so many micro-batches at most, and of the size of later data (box_stretch.h). */
int64_t box_data_header_bytes(int64_t micro_batches);
/* Tokens of micro-batch m of such shapes, and bytes of all their arrays as a message. */
int64_t box_shapes_tokens(const int64_t *shapes, int64_t m);
int64_t box_shapes_targets(const int64_t *shapes); /* of all */
int64_t box_shapes_bytes(const int64_t *shapes, int names_samples);
/* Gives the batches, `most` of them, the shapes that box 1 sent. */
int box_shapes_set(struct rh_batch *batches, int64_t most, const int64_t *shapes) RH_MUST;
/* Bytes of the message that holds the batches' arrays; and copies between the arrays and the message. */
int64_t box_batches_bytes(const struct rh_batch *batch, int64_t count);
void box_batches_pack(const struct rh_batch *batch, int64_t count, char *message, int is_out);
/* Memory for the data of run->flights->count steps; box_data_free in any case, also of NULL. */
int box_data_reserve(const struct rh_mode_run *run, struct box_data **out) RH_MUST;
void box_data_free(const struct rh_mode_run *run, struct box_data *data);

/* A step's micro-batches as one message: the size of later data, which the caller sets; shapes; arrays. Box 0 makes it of its rows, in
 * run->flights->batch (rh_free); the others take it, and get the number of micro-batches, or a fault. */
int box_data_make(const struct rh_mode_run *run, int64_t step, char **message, int64_t *bytes) RH_MUST;
int64_t box_data_take(struct rh_mode_run *run, int64_t step, const char *message);
int64_t box_data_count(const char *message);
/* The tokens of each micro-batch of the message. Their number; -EPROTO: more than a step has. */
int64_t box_data_sizes(const struct rh_mode_run *run, const char *message, int64_t *tokens);
/* Makes the kept ones the step's micro-batches in run->flights. Their number, or a fault. Not for box 0. */
int64_t box_take_data(struct rh_mode_run *run, int64_t step, const struct box_data *data);

/* Evaluation: box 0 has made `count` micro-batches of rows from `row` on and sends them to all boxes, whose batches have room for them. */
int box_share_rows(struct rh_session *session, int64_t row, struct rh_batch *batch, int64_t count) RH_MUST;

#endif
