/* Signs that a run learns nothing any more: a loss worse than guessing, gradients of nothing. Pure; one call a step. */
#ifndef RH_TRAIN_DIVERGENCE_H
#define RH_TRAIN_DIVERGENCE_H

#include <stdint.h>

/* Zeroed, but for most_loss. */
struct divergence {
	double most_loss; /* above it the model is worse than one that guesses; 0: not known */
	int64_t steps;
	double mean_loss; /* of about five steps, each counted as 1.5 most_loss at most: of few rows and classes losses vary */
	int64_t above;    /* steps in a row with a mean above it */
	int was_below;    /* the mean was below it before these */
	int told_loss;    /* since it was last below */
	int told_zero;
	int64_t loss_quiet_until; /* the step before which a loss is not told again */
};

/* What is to be said of a step, as bits. */
enum divergence_sign { DIVERGENCE_LOSS = 1, DIVERGENCE_GRADIENT = 2 };

/* A loss is told of when its mean is above most_loss after it was below, or for 20 steps; not again before it was below, nor within 50
 * steps.
 * A gradient of zero is told of once, unless there is no loss left to learn from. */
int divergence_watch(struct divergence *divergence, double loss, double norm);

/* 1.2 ln(classes), and what the routers' loss may add to it: coefficient times experts. 0 for fewer than two classes. */
double divergence_most_loss(int64_t classes, double router_coefficient, int64_t experts);

#endif
