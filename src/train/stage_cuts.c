/* Stages that update themselves: where the plan chose their cuts, checkpoints name them, and a run that goes on from one keeps them, or its
 * results would be others. */
#include "train/training.h"

#include "checkpoint/checkpoint.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/log.h"
#include "schedule/schedule.h"

static int chooses_cuts(const struct training *run)
{
	const struct rh_config *config = run->config;
	const struct rh_schedule *schedule = config->schedule ? rh_schedule_find(config->schedule) : NULL;
	return schedule && schedule->update == RH_UPDATE_LOCAL && config->mode == RH_MODE_LOCAL && config->forward_cut_count < 0;
}

int stage_cuts_keep(struct training *run, const char *checkpoint)
{
	json_t *list = NULL;
	if (!checkpoint || !chooses_cuts(run))
		return 0;
	int rc = rh_checkpoint_value(checkpoint, "forward_cuts: ", &list);
	size_t count = json_array_size(list);
	int64_t *cut = rc || !json_is_array(list) ? NULL : rh_alloc(count + 1, sizeof *cut);
	if (!rc && json_is_array(list) && !cut)
		rc = -ENOMEM;
	for (size_t i = 0; cut && i < count; i++)
		cut[i] = json_integer_value(json_array_get(list, i));
	if (cut && (int)count + 1 == run->session.device_count)
		rc = rh_session_set_cuts(&run->session, cut, (int64_t)count);
	else if (!rc)
		rh_note("%s: its run's stages were on %zu devices, this run has %d: stages are cut anew, and it goes on otherwise than it "
		        "would "
		        "have",
		        checkpoint, count + 1, run->session.device_count);
	rh_free(cut);
	json_decref(list);
	return rc;
}

int stage_cuts_note(struct training *run)
{
	const struct rh_stage_plan *stages = &run->session.plan.stages;
	if (!chooses_cuts(run) || run->session.config->forward_cut_count >= 0)
		return 0;
	int64_t count = stages->forward_stages, *cut = rh_alloc((size_t)count + 1, sizeof *cut);
	if (!cut)
		return -ENOMEM;
	for (int64_t i = 0; i < count; i++)
		cut[i] = stages->forward[i].hi;
	int rc = rh_session_set_cuts(&run->session, cut, count);
	rh_free(cut);
	return rc;
}
