/* Clipping where the stages of one box's devices update themselves: each device clips its own gradient, to max_grad_norm times the share
 * that its norm had in the norm of all a fixed number of steps before, as boxes of mode paci do. That number is the steps in flight: when a
 * step begins, the one so many before it has ended on all devices. */
#include "train/training.h"

#include "run/executor.h"

#include <math.h>

/* Before a norm is known: by the device's count of trained parameters. */
static void expect_shares(const struct rh_session *session, int devices, double *share)
{
	const struct rh_model *model = session->model;
	double all = 0;
	for (int d = 0; d < devices; d++)
		share[d] = 0;
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable) {
			share[rh_session_stage_of(session, b)] += (double)model->block[b].elements;
			all += (double)model->block[b].elements;
		}
	for (int d = 0; d < devices; d++)
		share[d] = sqrt(share[d] / all);
}

static double *shares_of(struct rh_run_state *state, int64_t step)
{
	return state->device_share[step % RH_DEVICE_SHARES];
}

int device_shares_begin(struct training *run)
{
	int devices = rh_session_clipping_devices(&run->session);
	int64_t ahead = devices ? rh_executor_steps_in_flight(run->session.executor) : 0;
	if (devices > RH_SHARING_DEVICES)
		return rh_fail(-EINVAL, "max_grad_norm: at most %d devices clip apart, and there are %d; write 0", RH_SHARING_DEVICES,
		               devices);
	if (ahead >= RH_DEVICE_SHARES)
		return rh_fail(
		        -EINVAL,
		        "admission_limits: the first device has %lld steps in flight before a step's norm is known, at most %d may be: "
		        "lower it, raise gradient_accumulation_steps, or write max_grad_norm: 0",
		        (long long)ahead, RH_DEVICE_SHARES - 1);
	for (int64_t s = 0; run->state.share_devices != devices && s < RH_DEVICE_SHARES; s++)
		for (int d = 0; d < RH_SHARING_DEVICES; d++)
			run->state.device_share[s][d] = 0; /* other devices': stage_cuts.c has said so */
	run->state.share_devices = devices;
	return 0;
}

void device_shares_open(struct training *run, int64_t step, const struct rh_update *update)
{
	int64_t known = step - rh_executor_steps_in_flight(run->session.executor);
	double share[RH_SHARING_DEVICES];
	int devices = run->state.share_devices;
	expect_shares(&run->session, devices, share);
	for (int d = 0; d < devices; d++) {
		double then = known >= 0 ? shares_of(&run->state, known)[d] : 0;
		share[d] = (then > 0 ? then : share[d]) * run->config->max_grad_norm;
	}
	rh_updater_open_parts(run->session.updater, update, share);
}

/* A norm of zero or none says nothing of shares: they are those of the step before. */
void device_shares_note(struct training *run, int64_t step, double norm)
{
	double *share = shares_of(&run->state, step), part[RH_SHARING_DEVICES];
	int devices = run->state.share_devices;
	rh_updater_part_norms(run->session.updater, part);
	for (int d = 0; d < devices; d++)
		share[d] = norm > 0 && isfinite(norm) && part[d] > 0 ? part[d] / norm : step ? shares_of(&run->state, step - 1)[d] : 0;
}
