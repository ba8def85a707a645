/* Boxes that update themselves cannot skip a step whose gradient is not finite: by the time that one box sees it others have made updates
 * with what it spoiled, and there is no log to undo them by. When all boxes are at rest they return to the newest checkpoint that all of
 * them have, train up to that step again, and leave it out. All boxes know all losses and norms, so all see the same bad step. */
#include "train/training.h"

#include "core/alloc.h"
#include "core/log.h"
#include "modes/boxes/box_step.h"

#include <inttypes.h>
#include <math.h>

int box_agree_on_checkpoint(struct training *run, char **checkpoint)
{
	const int64_t own = *checkpoint ? run->state.step : -1;
	int64_t step = own, least = own;
	int agrees = !rh_box_is_linked(&run->session.box);
	while (!agrees) {
		agrees = box_share_least(run, step, &least);
		if (agrees || step == least)
			continue;
		rh_free(*checkpoint);
		*checkpoint = NULL;
		int rc = rh_checkpoint_newest(run->config->output_dir, least + 1, checkpoint);
		rh_trainer_state_free(&run->trainer);
		if (!rc)
			rc = *checkpoint ? rh_checkpoint_state(*checkpoint, run->config, &run->state, &run->trainer)
			                 : rh_trainer_state_create(&run->trainer);
		if (rc)
			return rc;
		step = *checkpoint ? run->state.step : -1;
	}
	if (agrees > 0 && step < 0 && own >= 0)
		return rh_fail(-EINVAL,
		               "resume_from_checkpoint: this box has one of step %" PRId64
		               " to go on from, but another has none, or none of a step that this one has: all go on, or all begin anew",
		               own);
	run->saving.newest = step;
	run->saving.common = rh_box_is_linked(&run->session.box) ? step : INT64_MAX;
	return agrees < 0 ? agrees : 0;
}

int box_return(struct training *run, int64_t bad, double loss, double norm)
{
	char *checkpoint = NULL;
	int rc = saving_collect(run, RH_CHECKPOINT_WAIT);
	if (!rc)
		rc = rh_checkpoint_newest(run->config->output_dir, bad + 1, &checkpoint);
	if (rc)
		goto out;
	rh_trainer_state_free(&run->trainer);
	rc = checkpoint ? rh_checkpoint_state(checkpoint, run->config, &run->state, &run->trainer) : rh_trainer_state_create(&run->trainer);
	if (!rc)
		rc = box_agree_on_checkpoint(run, &checkpoint);
	if (!rc && !checkpoint)
		rc = rh_fail(-EDOM,
		             "step %" PRId64
		             ": the loss is %g and the gradient norm %g, and there is no checkpoint of all boxes to return to "
		             "(lower learning_rate, check the data, or save sooner: save_steps)",
		             bad + 1, loss, norm);
	if (rc)
		goto out;
	rh_note("warning: step %" PRId64 ": the loss is %g and the gradient norm %g; all boxes return to %s, and will leave that step out",
	        bad + 1, loss, norm, checkpoint);
	rc = trouble_leave_out(run, bad);
	if (!rc)
		rc = rh_checkpoint_load(checkpoint, &run->session);
	if (!rc)
		rc = train_go_on(run);
out:
	rh_free(checkpoint);
	return rc;
}
