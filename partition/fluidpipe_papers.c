#include "partition/fluidpipe_papers.h"

#include <math.h>

double rh_paper_pipeline_epoch_s(const struct rh_two_stages *stages)
{
	double slot_s = fmax(stages->stage_s[0] + stages->activation_s, stages->stage_s[1] + stages->gradient_s);
	return stages->mini_batches * (stages->micro_batches + 1) * slot_s;
}

double rh_paper_fluidpipe_epoch_s(const struct rh_two_stages *stages)
{
	return stages->mini_batches * fmax(stages->fluid_stage_s[0], stages->fluid_stage_s[1] + stages->features_s) + stages->logits_s;
}

double rh_paper_fluidpipe_sequential_epoch_s(const struct rh_two_stages *stages)
{
	return stages->mini_batches * (stages->fluid_stage_s[0] + stages->features_s + stages->fluid_stage_s[1]) + stages->logits_s;
}

double rh_paper_pipeline_epoch_bytes(const struct rh_two_stages_traffic *traffic)
{
	return traffic->mini_batches * (traffic->features + traffic->gradients);
}

double rh_paper_fluidpipe_epoch_bytes(const struct rh_two_stages_traffic *traffic)
{
	return traffic->mini_batches * (traffic->features + traffic->logits_up) + traffic->logits_an_epoch;
}

int rh_paper_fluidpipe_pays_down(const struct rh_two_stages_traffic *traffic)
{
	return traffic->logits_an_epoch < traffic->mini_batches * traffic->gradients;
}

int rh_paper_fluidpipe_pays_both(const struct rh_two_stages_traffic *traffic)
{
	return 2 * traffic->logits_up < traffic->gradients;
}
