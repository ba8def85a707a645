/* Logits that the two boxes of mode fluidpipe send each other, so that each distils the other's on the same samples.
 *
 *   up    after a step's activations: the logits of box 1's head for the step's samples. Box 2 distils them in the same step
 *   down  after an epoch, or after each step: box 2's logits of the samples, with their ids. Box 1 distils them in the next epoch
 *
 * A box with alpha 1 does not distil: the logits for it are neither made nor kept nor sent. A sample without a teacher's logits is
 * trained by its label alone. The logits that box 1 distils, and those that box 2 collects for it, are part of their checkpoints. */
#ifndef RH_MODES_FLUIDPIPE_FLUIDPIPE_LOGITS_H
#define RH_MODES_FLUIDPIPE_FLUIDPIPE_LOGITS_H

#include "train/training.h"

/* Adds to the workload the logits of micro-batches, and the memory that both boxes take for logits. Before the session starts. */
void fluidpipe_logits_plan(const struct rh_session *session, int64_t samples, int64_t targets, struct rh_workload *work);
/* Numbers that are told of a target: its logits, or with fluidpipe_top_k ids and shares. */
int64_t fluidpipe_logits_columns(const struct rh_session *session);

/* Before the first step. checkpoint: NULL: the run begins. Freed with the run. */
int fluidpipe_logits_begin(struct training *run, const char *checkpoint) RH_MUST;
void fluidpipe_logits_free(struct training *run);

/* Bytes of the logits that go up in a step of such targets; 0: none do. */
int64_t fluidpipe_logits_bytes(const struct rh_session *session, int64_t targets);
/* Box 2: the memory that a step's logits are received into. Valid until the step behind those that box 2 knows of begins. */
void *fluidpipe_logits_place(const struct training *run, int64_t step);

/* The step's `count` micro-batches are filled: points them at their teacher's logits, and at memory for their own. */
void fluidpipe_logits_attach(struct training *run, int64_t step, int64_t count);
/* The executor has finished the step. Box 1 sends its logits, box 2 keeps them. */
int fluidpipe_logits_finish(struct training *run, int64_t step) RH_MUST;

/* Where logits stream (fluidpipe_stream.h). Bytes of a row on its way down: its number and its logits. */
int64_t fluidpipe_logits_row_bytes(const struct rh_session *session);
/* How many of the rows that are still to go down behind an epoch the next message carries. */
int64_t fluidpipe_logits_piece(const struct rh_session *session, int64_t rows);
/* Box 2: the rows that the last finished step kept: their numbers, then their logits. They need not go behind the epoch. */
void fluidpipe_logits_pack_step(struct training *run, int64_t rows, char *message);
/* Box 1: likewise, into the table of the next epoch. */
int fluidpipe_logits_collect(struct training *run, int64_t rows, const char *message) RH_MUST;

/* Box 2: samples of the epoch that is over whose logits are still to go down, or 0 where box 1 does not distil; sends these logits, and
 * forgets all. */
int64_t fluidpipe_logits_kept(const struct training *run);
int fluidpipe_logits_send(struct training *run, int64_t epoch) RH_MUST;
/* Box 1: the logits of an epoch, of so many samples. */
int fluidpipe_logits_receive(struct training *run, int64_t epoch, int64_t samples) RH_MUST;

/* For opportunistic steps (idle_steps.h): bytes of box 1's logits of a target, which box 2 keeps with a sample; 0: box 2 does not
 * distil. May be called before fluidpipe_logits_begin. */
int64_t fluidpipe_logits_target_bytes(const struct rh_session *session);
/* Box 2: box 1's logits for micro-batch m of the step in run->batch; NULL: none were sent. */
const float *fluidpipe_logits_received(const struct training *run, int64_t step, int64_t m);
/* As fluidpipe_logits_attach for a step of `count` micro-batches behind step `after`. came: box 2: what it kept with their samples,
 * target by target. Both losses are multiplied by `scale`. 1: so it is; 0: nothing is distilled, and the caller scales the task's loss.
 * */
int fluidpipe_logits_attach_idle(struct training *run, int64_t after, int64_t count, const float *came, const double scale[2]);
/* An opportunistic step is finished: its logits replace those that box 2 keeps for box 1. */
int fluidpipe_logits_finish_idle(struct training *run, int64_t count) RH_MUST;
/* The task's and the distillation's loss of target i of micro-batch m, of a step that is finished. */
void fluidpipe_logits_losses(const struct training *run, int64_t m, int64_t i, double out[2]);

/* Says how many samples were learnt from their labels alone where a teacher was wanted. */
void fluidpipe_logits_report(const struct training *run);

#endif
