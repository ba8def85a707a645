#include "session/lr.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

int64_t rh_lr_warmup_steps(double warmup_steps, int64_t total_steps)
{
	double steps = warmup_steps >= 1 ? warmup_steps : ceil((double)total_steps * warmup_steps);
	return (int64_t)fmin(steps, 0x1p62);
}

static double floored(double factor, double floor)
{
	return factor * (1 - floor) + floor;
}

static double half_cosine(double progress)
{
	return 0.5 * (1 + cos(pi * progress));
}

static double polynomial_at(const struct rh_lr *lr, double progress)
{
	double end = lr->shape.min_rate * lr->base, left = progress < 1 ? pow(1 - progress, lr->shape.power) : 0;
	return ((lr->base - end) * left + end) / lr->base;
}

static double inverse_sqrt_at(const struct rh_lr *lr, int64_t step)
{
	double warmup = (double)lr->warmup_steps, scale = lr->shape.timescale > 0 ? lr->shape.timescale : warmup > 0 ? warmup : 10000;
	return 1 / sqrt(((double)step + (scale - warmup)) / scale);
}

/* Of the steps behind the warm-up: at the top, then down to the last rate and on at it. */
static double stable_decay_at(const struct rh_lr *lr, int64_t step)
{
	const struct rh_lr_shape *shape = &lr->shape;
	double left = (double)(lr->total_steps - lr->warmup_steps), stable = shape->stable_steps;
	stable = stable >= 0 ? stable : left - shape->decay_steps;
	double at = (double)(step - lr->warmup_steps) - stable, progress = at / fmax(1, shape->decay_steps);
	if (at < 0)
		return 1;
	if (at >= shape->decay_steps)
		return shape->min_rate;
	double factor = shape->decay == RH_LR_DECAY_LINEAR   ? 1 - progress
	                : shape->decay == RH_LR_DECAY_1_SQRT ? 1 - sqrt(progress)
	                                                     : half_cosine(progress);
	return floored(factor, shape->min_rate);
}

/* Behind the warm-up, as a share of the base. */
static double factor_at(const struct rh_lr *lr, int64_t step)
{
	int64_t warmup = lr->warmup_steps, total = lr->total_steps;
	double decaying = (double)(total > warmup ? total - warmup : 1), progress = (double)(step - warmup) / decaying;
	switch (lr->scheduler) {
	case RH_LR_LINEAR:
		return (double)(total - step) / decaying;
	case RH_LR_COSINE:
		return half_cosine(progress);
	case RH_LR_COSINE_WITH_MIN_LR:
		return floored(half_cosine(progress), lr->shape.min_rate);
	case RH_LR_COSINE_WITH_RESTARTS:
		return progress >= 1 ? 0 : half_cosine(fmod(lr->shape.cycles * progress, 1));
	case RH_LR_POLYNOMIAL:
		return polynomial_at(lr, progress);
	case RH_LR_INVERSE_SQRT:
		return inverse_sqrt_at(lr, step);
	case RH_LR_WARMUP_STABLE_DECAY:
		return stable_decay_at(lr, step);
	case RH_LR_CONSTANT:
	case RH_LR_CONSTANT_WITH_WARMUP:
		break;
	}
	return 1;
}

double rh_lr_at(const struct rh_lr *lr, int64_t step)
{
	if (lr->scheduler == RH_LR_CONSTANT)
		return lr->base;
	if (step >= lr->warmup_steps)
		return lr->base * fmax(0, factor_at(lr, step));
	double rise = (double)step / (double)lr->warmup_steps;
	return lr->base * (lr->scheduler == RH_LR_WARMUP_STABLE_DECAY ? floored(rise, lr->shape.min_rate) : rise);
}
