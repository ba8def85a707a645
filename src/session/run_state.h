/* Where a run stands, for checkpoints, modes and the training loops. */
#ifndef RH_SESSION_RUN_STATE_H
#define RH_SESSION_RUN_STATE_H

#include <stdint.h>

/* Where a run stands between two steps. */
struct rh_run_state {
	int64_t step;                    /* done */
	double loss_since_log, run_loss; /* sums over steps */
	int64_t steps_since_log;
	int64_t tokens, trained_tokens; /* since the run began */
	int64_t skipped_steps;          /* whose gradient was not finite: in no sum */
	int64_t drift_since_log;        /* the largest drift of a micro-batch (struct train_versions) since the last logged line */
	double norm_share; /* where each of several boxes updates itself: this box's norm / the norm of all; 0: not known yet */
	int64_t idle_steps, idle_steps_of_epoch; /* opportunistic ones, beside `step`: so far, and in this epoch */
	int64_t data_rows, data_tokens;          /* of the rows trained on; 0 where a checkpoint of an earlier version does not say */
};

#endif
