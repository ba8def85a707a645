/* What the two boxes of mode fluidpipe tell each other of a run's steps. Up goes all that box 2 trains on, and nothing comes down for it:
 *
 *   up    heads of the first steps; then of each step: the head of one to come, the micro-batches, by the executor their activations, and
 *         where box 2 distils the logits of box 1's head
 *   down  reports: a checkpoint is whole, this box was asked to stop, the last step is done; where box 1 distils an epoch's logits
 *   up    an answer to the last report
 *
 * A head has the sizes of a step's micro-batches, RH_FLUIDPIPE_AHEAD steps ahead, so that box 2 knows what to expect; after one without any
 * there is no step. So a run that is asked to stop goes on to the end of the steps that box 2 knows of. */
#ifndef RH_TRAIN_FLUIDPIPE_STEP_H
#define RH_TRAIN_FLUIDPIPE_STEP_H

#include "train/training.h"

/* Before the first step; checkpoint: that the run goes on from, or NULL. Freed with the run. */
int fluidpipe_begin(struct training *run, const char *checkpoint) RH_MUST;
void fluidpipe_free(struct training *run);

/* Before the data of each step. Where an epoch begins after another and box 1 distils, box 2 sends the last one's logits, and box 1 waits
 * for them. */
int fluidpipe_begin_epoch(struct training *run, int64_t step) RH_MUST;

/* Box 1: 1: the logits that such a step waits for are here, or it waits for none; 0: they are not. waits: returns when they are. */
int fluidpipe_take_epoch(struct training *run, int64_t step, int waits) RH_MUST;

/* Box 1 has filled the step's `count` micro-batches in run->batch, and they go to box 2. */
int fluidpipe_give_step(struct training *run, int64_t step, int64_t count) RH_MUST;
/* Box 2: likewise from there; their number, or a fault. */
int64_t fluidpipe_take_step(struct training *run, int64_t step);

/* Between two steps. Box 1 hears what box 2 has reported, without waiting; box 2 reports what is new. asked: this box was asked to stop.
 * Then run->asked is whether this step was the last. */
int fluidpipe_listen(struct training *run, int asked) RH_MUST;
/* The last step is done at this box; returns when it is at the other one, too. */
int fluidpipe_end(struct training *run) RH_MUST;

#endif
