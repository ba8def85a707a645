/* fluidpipe_logits: stream. Box 2 sends its logits of a step after that step, not all of them after the epoch. One message a step replaces
 * the reports of checkpoints and of a request to stop: it carries both, and the step's rows. Box 1 collects the rows in a second table and
 * swaps the two tables when the epoch's report comes. Some rows still follow that report: those that an opportunistic step replaced, and
 * those of the epoch's steps before this process began. So both boxes' checkpoints are the same with and without the key.
 *
 * Box 1 begins no step while RH_FLUIDPIPE_UNHEARD_MOST messages of earlier steps are missing. A link takes more than that at once, so box 2
 * never waits for box 1 to receive, and the boxes cannot wait for one another. */
#ifndef RH_MODES_FLUIDPIPE_FLUIDPIPE_STREAM_H
#define RH_MODES_FLUIDPIPE_FLUIDPIPE_STREAM_H

#include "modes/boxes/box.h"
#include "train/training.h"

enum { RH_FLUIDPIPE_UNHEARD_MOST = RH_BOX_MESSAGES / 2 };

/* Of box 1: the first step whose message it has not received, the first whose message the link does not expect yet, and the first that it
 * has not begun. */
struct fluidpipe_stream {
	int64_t heard, expected, given;
	int64_t targets[RH_FLUIDPIPE_UNHEARD_MOST]; /* of step s number s % RH_FLUIDPIPE_UNHEARD_MOST */
};

/* Before a step's logits, in its message. */
struct fluidpipe_step_report {
	int64_t saved, asked; /* the newest checkpoint's step; 1: box 2 was asked to stop */
};

/* 1: box 2 sends logits after each step. 0 too where box 1 does not distil. */
int fluidpipe_streams(const struct rh_config *config);
/* Host memory of the messages in flight. */
int64_t fluidpipe_stream_bytes(const struct rh_session *session, const struct rh_workload *work);
void fluidpipe_stream_begin(const struct training *run, struct fluidpipe_stream *stream);

/* Box 2: the step is finished, and the table has its logits. */
int fluidpipe_stream_send(struct training *run, int64_t step, const struct fluidpipe_step_report *report) RH_MUST;

/* Box 1 begins the next step, which has so many targets. Not while fluidpipe_stream_is_full. */
int fluidpipe_stream_is_full(const struct fluidpipe_stream *stream);
int fluidpipe_stream_add(struct training *run, struct fluidpipe_stream *stream, int64_t targets) RH_MUST;
/* Has the link expect the messages of begun steps, as many as it has room for. */
int fluidpipe_stream_expect(struct training *run, struct fluidpipe_stream *stream) RH_MUST;
/* Waits for the next step's message. */
int fluidpipe_stream_receive(struct training *run, struct fluidpipe_stream *stream, struct fluidpipe_step_report *out) RH_MUST;

#endif
