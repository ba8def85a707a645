/* Cuts by weights alone: what schedules other than RoundPipe take where the user names none. */
#include "partition/stage_plan.h"

static int64_t layer_elements(const struct rh_model *model, int l)
{
	int64_t elements = 0;
	for (int which = 0; which < RH_LAYER_BLOCKS; which++)
		if (model->layer[l].block[which] >= 0)
			elements += model->block[model->layer[l].block[which]].elements;
	return elements;
}

void rh_stage_plan_even_cuts(const struct rh_model *model, int stages, int64_t *cut)
{
	int64_t all = 0, below = 0;
	for (int l = 0; l < model->layers; l++)
		all += layer_elements(model, l);
	RH_ASSERT(stages >= 1 && stages <= model->layers);
	int cuts = 0;
	for (int l = 0; l + 1 < model->layers && cuts + 1 < stages; l++) {
		below += layer_elements(model, l);
		int left = model->layers - (l + 1), wanted = stages - (cuts + 1); /* layers above, and stages that each need one */
		if (left == wanted || below * stages >= all * (cuts + 1))
			cut[cuts++] = l + 1;
	}
}
