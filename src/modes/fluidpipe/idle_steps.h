/* Opportunistic steps of mode fluidpipe: while a box waits for the other one it trains again. Box 2 waits for the next step's features,
 * and trains on samples that it has received in this epoch. Box 1 waits between two epochs for box 2's logits, where it distils, and
 * trains on any of its rows. The training loop makes these steps, between two others; each is logged in output_dir/opportunistic.jsonl:
 *
 *   {"after": 12, "samples": [[3, 9], [4, 1]], "loss": 0.693}     behind step 12, micro-batches of these samples
 *   {"restart": 13}                                               went on from step 13's checkpoint, without the samples of before
 *
 * How many steps there are depends on the line's speed, and nothing else does: with fluidpipe_idle_replay the log says how many, and the
 * run is the same, bit for bit.
 *
 * A step is made only where the wait is likely to be as long as the step, by what waits and steps took so far; so there are none where
 * they do not pay. */
#ifndef RH_MODES_FLUIDPIPE_IDLE_STEPS_H
#define RH_MODES_FLUIDPIPE_IDLE_STEPS_H

#include "train/training.h"

struct idle_steps;

/* 1: this box makes opportunistic steps. */
int idle_steps_are_wanted(const struct rh_session *session);
/* Adds the host memory and NVMe that these steps take to the workload. samples: of the training set. -EINVAL: fluidpipe_idle_store or
 * fluidpipe_idle_spill is too small. */
int idle_steps_plan(const struct rh_session *session, int64_t samples, struct rh_workload *work) RH_MUST;

/* Call it before the session starts: replaces the session's link by a view that can deliver samples again, or drop what is sent. Freed
 * with the run, after the session. */
int idle_steps_create(struct training *run) RH_MUST;
void idle_steps_free(struct training *run);
/* Opens the logs; output_dir must exist. checkpoint: the one that the run continues, or NULL. */
int idle_steps_begin(struct training *run, const char *checkpoint) RH_MUST;

/* The step's micro-batches are in run->batch, and its features come next. */
int idle_steps_expect(struct training *run, int64_t step) RH_MUST;
/* Its losses are known. */
void idle_steps_record(struct training *run, int64_t step);
/* Call it before the next step: makes as many opportunistic steps as there is time for. */
int idle_steps_make(struct training *run) RH_MUST;
/* Says how many there were, and why no more. */
void idle_steps_report(const struct training *run);

#endif
