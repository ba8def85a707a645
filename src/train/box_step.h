/* What boxes tell each other of a run and of each of its steps. */
#ifndef RH_TRAIN_BOX_STEP_H
#define RH_TRAIN_BOX_STEP_H

#include "train/training.h"

/* Once, before the session starts: how many steps there are, and how large micro-batches may be. *work: of box 0; filled elsewhere. */
int box_share_run(struct training *run, struct rh_workload *work) RH_MUST;

/* The least of the boxes' steps. 1: all are this step; 0: some have another. */
int box_share_newest(struct training *run, int64_t own, int64_t *least) RH_MUST;

/* The step's micro-batches, which box 0 has filled, are in run->batch and run->micro of every box, with their counts in `flight`. Returns
 * their number, or a fault. */
int64_t box_share_step(struct training *run, int64_t step, int64_t count);

/* After the executor has finished the step: the norm of all boxes' gradients is known everywhere, and each of the step's losses. 1 in
 * *stopping: a box was asked to stop. */
int box_share_results(struct training *run, int64_t step, int *stopping) RH_MUST;

#endif
