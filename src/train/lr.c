#include "train/lr.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

int64_t rh_lr_warmup_steps(double warmup_steps, int64_t total_steps)
{
	double steps = warmup_steps >= 1 ? warmup_steps : ceil((double)total_steps * warmup_steps);
	return (int64_t)fmin(steps, 0x1p62);
}

double rh_lr_at(enum rh_scheduler scheduler, double base, int64_t warmup_steps, int64_t total_steps, int64_t step)
{
	if (scheduler == RH_LR_CONSTANT)
		return base;
	if (step < warmup_steps)
		return base * ((double)step / (double)warmup_steps);
	if (scheduler == RH_LR_CONSTANT_WITH_WARMUP)
		return base;
	double decaying = (double)(total_steps > warmup_steps ? total_steps - warmup_steps : 1);
	double factor = scheduler == RH_LR_LINEAR ? (double)(total_steps - step) / decaying
	                                          : 0.5 * (1 + cos(pi * ((double)(step - warmup_steps) / decaying)));
	return base * fmax(0, factor);
}
