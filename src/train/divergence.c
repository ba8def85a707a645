#include "train/divergence.h"

#include <math.h>

int divergence_watch(struct divergence *divergence, double loss, double norm)
{
	enum { LONG = 20, QUIET = 50, MEAN_OF = 5 };
	static const double LEARNT = 1e-3; /* a loss that has nothing left to teach in the dtype */
	int signs = 0;
	divergence->steps++;
	double counted = fmin(loss, 1.5 * divergence->most_loss), before = divergence->mean_loss;
	divergence->mean_loss += (counted - before) / (double)(divergence->steps < MEAN_OF ? divergence->steps : MEAN_OF);
	if (divergence->most_loss > 0 && divergence->mean_loss > divergence->most_loss) {
		divergence->above++;
	} else {
		divergence->above = divergence->told_loss = 0;
		divergence->was_below = 1;
	}
	if (divergence->above && !divergence->told_loss && divergence->steps >= divergence->loss_quiet_until &&
	    (divergence->was_below || divergence->above >= LONG)) {
		divergence->told_loss = 1;
		divergence->loss_quiet_until = divergence->steps + QUIET;
		signs |= DIVERGENCE_LOSS;
	}
	if (norm == 0 && loss > LEARNT && !divergence->told_zero) {
		divergence->told_zero = 1;
		signs |= DIVERGENCE_GRADIENT;
	}
	return signs;
}

double divergence_most_loss(int64_t classes, double router_coefficient, int64_t experts)
{
	static const double WORSE = 1.2;
	return classes > 1 ? WORSE * log((double)classes) + router_coefficient * (double)experts : 0;
}
