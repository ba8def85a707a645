/* The messages of a step that is flushed, beside the executor's: as training sends them, and in virtual time.
 *
 *   up    the step's micro-batches, ahead of it (box_feed.h)
 *   down  behind the step's last gradient: what boxes are asked for, the squares of the gradients of the box and of those above it, tensor
 *         by tensor, and results, which the last box has
 *   up    before the next step's first activation: the norm, for which box 1 has added up the squares in the order of the layers, and what
 *         all boxes are asked for
 *
 * No message waits for a trip of its own: receives are posted with those of the step's last activation and gradient (rh_executor_follow),
 * and where the next step begins at once the receives of its first activations are posted before the norm comes (rh_executor_expect). So
 * all boxes know of that step when they learn what they are asked for, and do it behind that step.
 *
 * Where both ends keep one table (box_table.h) its pieces come behind the squares and before the norm. */
#ifndef RH_MODES_BOXES_BOX_FLUSH_H
#define RH_MODES_BOXES_BOX_FLUSH_H

#include "modes/boxes/box_feed.h"
#include "modes/boxes/box_step.h"
#include "modes/boxes/box_table.h"

/* What boxes tell each other of a step behind it. */
struct box_words {
	struct box_requests requests;
	int64_t saved; /* the newest checkpoint that all of them have */
	double norm;   /* on the way up */
};

struct box_flush {
	struct rh_session *session;
	struct box_feed feed;
	int64_t own, results_bytes; /* squares of this box; bytes of the step's results */
	char *taken, *given;        /* the messages from above and to below: words, squares, results */
	size_t taken_capacity, given_capacity;
	struct box_words up;                                                       /* from below */
	int64_t up_number;                                                         /* of its receive on the link */
	struct rh_follower above[1 + BOX_TABLE_FIRST], below[BOX_TABLE_FIRST + 1]; /* the messages that follow a step's */
	int64_t pieces[2];                                                         /* of a table, among these: from below, from above */
	struct box_requests heard; /* behind the step before: what is to be done behind this one */
	int64_t *tokens;           /* (micro-batches) scratch */
};

/* box_flush_close in any case, also of one that is zero. The owner fills in the feed's members. -ENOMEM. */
int box_flush_open(struct box_flush *flush, int64_t micro_batches) RH_MUST;
void box_flush_close(struct box_flush *flush);

/* Of a whole model: tensors of layers from `lo` on whose squares count in the boxes that hold these layers. */
int64_t box_flush_squares(const struct rh_model *model, int lo);

/* Before a step begins. results_bytes: of what the last box tells of it. */
int box_flush_begin(struct box_flush *flush, int64_t step, int64_t results_bytes) RH_MUST;

struct box_flush_end {
	struct box_words words; /* this box's; on return what all boxes know, and do now */
	int continues;          /* the next step begins at once unless boxes are asked for something else */
	/* The sizes of the next step's micro-batches. Their number, or a fault. */
	int64_t (*next)(void *context, int64_t step, const char *message, int64_t *tokens);
	void *context;
};
/* Memory of the step's results: of the last box before box_flush_end, of all boxes behind it. */
char *box_flush_results(const struct box_flush *flush);
/* When the executor has finished the step. */
int box_flush_end(struct box_flush *flush, int64_t step, struct box_flush_end *end) RH_MUST;

#endif
