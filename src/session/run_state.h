/* Where a run stands, for checkpoints, modes and the training loops. */
#ifndef RH_SESSION_RUN_STATE_H
#define RH_SESSION_RUN_STATE_H

#include "observe/report.h"

#include <stdint.h>

enum { RH_NORM_SHARES = 256 }; /* the most steps between a norm and the step that is clipped by its share */

/* Of one box whose devices' stages update themselves: the most devices that clip apart, and the most steps between a norm and the step that
 * is clipped by its share. */
enum { RH_SHARING_DEVICES = 64, RH_DEVICE_SHARES = 64 };

/* Where a run stands between two steps. */
struct rh_run_state {
	int64_t step;                    /* done */
	double loss_since_log, run_loss; /* sums over steps */
	int64_t steps_since_log;
	struct rh_figures figures_since_log; /* of losses over answers */
	int64_t tokens, trained_tokens; /* since the run began */
	int64_t skipped_steps;          /* whose gradient was not finite: in no sum */
	int64_t drift_since_log;        /* the largest drift of a micro-batch (struct train_versions) since the last logged line */
	/* Where each of several boxes updates itself: this box's norm / the norm of all, of step s at s mod RH_NORM_SHARES; 0: not known. */
	double norm_share[RH_NORM_SHARES];
	/* Likewise each device's of one box, of step s at s mod RH_DEVICE_SHARES. share_devices: how many there are; 0: none. */
	int share_devices;
	double device_share[RH_DEVICE_SHARES][RH_SHARING_DEVICES];
	int64_t idle_steps, idle_steps_of_epoch; /* opportunistic ones, beside `step`: so far, and in this epoch */
	int64_t data_rows, data_tokens;          /* of the rows trained on; 0 where a checkpoint of an earlier version does not say */
	int64_t sequence_chunk;                  /* rows are cut into chunks of so many tokens; 0: they are not; below 0: not known yet */
};

/* Of an earlier step, if it is none of the last RH_NORM_SHARES: 0. */
static inline double rh_run_state_share_of(const struct rh_run_state *state, int64_t step)
{
	return step < 0 ? 0 : state->norm_share[step % RH_NORM_SHARES];
}
/* Notes a step's share; 0: its norm says nothing, and the share is that of the step before. */
static inline void rh_run_state_share(struct rh_run_state *state, int64_t step, double share)
{
	state->norm_share[step % RH_NORM_SHARES] = share > 0 ? share : rh_run_state_share_of(state, step - 1);
}

#endif
