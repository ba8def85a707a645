/* The data of flushed steps, in one message a step, ahead of them: no box waits for data when its step begins, and the messages of a link
 * are in the same order at both ends. Before step s box k of N (from 1) sends the data of step s + N - k up, and posts the receive of the
 * data that follow. A message's first number is the size of the next step's, 0: there is none. */
#ifndef RH_MODES_BOXES_BOX_FEED_H
#define RH_MODES_BOXES_BOX_FEED_H

#include "session/mode.h"

struct box_feed_step {
	char *message;
	int64_t bytes, number; /* number: of its receive on the link */
};

struct box_feed {
	struct rh_box *box;
	int64_t steps; /* of the run */
	/* The owner's. make: box 1's message of a step, whose first number is not set yet. bytes_of: of a step's message; NULL: boxes learn it
	 * from the message before. */
	int (*make)(void *context, int64_t step, struct box_feed_step *out);
	int64_t (*bytes_of)(void *context, int64_t step);
	void *context;
	/* The feed's. The first step whose data are not sent yet, and not made or awaited; -1: before the first step. */
	int64_t sent, next;
	struct box_feed_step *step; /* (boxes + 2): step s is number s mod that */
};

/* box_feed_free in any case. -ENOMEM. */
int box_feed_open(struct box_feed *feed) RH_MUST;
void box_feed_free(struct box_feed *feed);

/* Not for box 1, before a step that follows the one before at once: posts the receives that box_feed_step would post. *message: the step's,
 * which is here since the step before. */
int box_feed_expect(struct box_feed *feed, int64_t step, const char **message) RH_MUST;
/* Before each step that is run: *message is the step's, until box_feed_drop. */
int box_feed_step(struct box_feed *feed, int64_t step, const char **message) RH_MUST;
void box_feed_drop(struct box_feed *feed, int64_t step);

#endif
