#include "session/lr.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

int64_t rh_lr_warmup_steps(double warmup_steps, int64_t total_steps)
{
	double steps = warmup_steps >= 1 ? warmup_steps : ceil((double)total_steps * warmup_steps);
	return (int64_t)fmin(steps, 0x1p62);
}

/* transformers' min_lr_rate: the cosine's factor is squeezed into what lies above it. */
static double cosine_at(const struct rh_lr *lr, double progress)
{
	double factor = 0.5 * (1 + cos(pi * progress));
	return lr->scheduler == RH_LR_COSINE_WITH_MIN_LR ? factor * (1 - lr->min_rate) + lr->min_rate : factor;
}

double rh_lr_at(const struct rh_lr *lr, int64_t step)
{
	int64_t warmup = lr->warmup_steps, total = lr->total_steps;
	if (lr->scheduler == RH_LR_CONSTANT)
		return lr->base;
	if (step < warmup)
		return lr->base * ((double)step / (double)warmup);
	if (lr->scheduler == RH_LR_CONSTANT_WITH_WARMUP)
		return lr->base;
	double decaying = (double)(total > warmup ? total - warmup : 1);
	double factor = lr->scheduler == RH_LR_LINEAR ? (double)(total - step) / decaying
	                                              : cosine_at(lr, (double)(step - warmup) / decaying);
	return lr->base * fmax(0, factor);
}
