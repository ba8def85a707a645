/* The messages between the two boxes of mode fluidpipe. Up goes everything that box 2 trains on; no step of box 1 waits for an answer:
 *
 *   up    the heads of the first steps. Then for each step: the head of a later step, the micro-batches, their activations (by the
 *         executor) and, where box 2 distils, the logits of box 1's head
 *   down  reports: a checkpoint is whole, this box was asked to stop, the last step is done. Where box 1 distils: an epoch's logits,
 *         or a step's logits after each step (fluidpipe_stream.h)
 *   up    an answer to the last report
 *
 * A head is the sizes of a step's micro-batches, sent rh_fluidpipe_steps_ahead steps ahead, so that box 2 knows what to expect. An empty
 * head says that no further step follows. So a run that is asked to stop continues to the last step whose head box 2 has. */
#ifndef RH_MODES_FLUIDPIPE_FLUIDPIPE_STEP_H
#define RH_MODES_FLUIDPIPE_FLUIDPIPE_STEP_H

#include "train/training.h"

/* Call it before the first step. checkpoint: the one that the run continues, or NULL. Freed with the run. */
int fluidpipe_begin(struct training *run, const char *checkpoint) RH_MUST;
void fluidpipe_free(struct training *run);

/* Call it before the data of each step. Where a new epoch begins and box 1 distils, box 2 sends the last epoch's logits, and box 1 waits
 * for them. */
int fluidpipe_begin_epoch(struct training *run, int64_t step) RH_MUST;

/* Box 1, before such a step: 1: the logits are here, or it needs none; 0: they are not. waits: waits for them. */
int fluidpipe_take_epoch(struct training *run, int64_t step, int waits) RH_MUST;

/* Box 1 has filled the step's `count` micro-batches in run->batch, and they go to box 2. */
int fluidpipe_give_step(struct training *run, int64_t step, int64_t count) RH_MUST;
/* Box 2: takes those micro-batches; returns their number, or a fault. */
int64_t fluidpipe_take_step(struct training *run, int64_t step);

/* Call it between two steps. Box 1 takes the reports that box 2 has sent, without waiting; box 2 reports what is new. asked: this box
 * was asked to stop. Afterwards run->stop_requested says whether this step was the last. */
int fluidpipe_listen(struct training *run, int asked) RH_MUST;
/* The last step is done at this box: returns when it is done at the other one, too. */
int fluidpipe_end(struct training *run) RH_MUST;

#endif
