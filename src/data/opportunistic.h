/* Opportunistic training (FluidPipe): which samples the additional steps of idle time train on. A pure function of the seed, of the
 * losses that were recorded, of which samples may be drawn, and of the draw's number; it reads no clock.
 *
 * A sample's score is the weighed sum of its task loss and its distillation loss (0 of a sample without teacher logits). Its slope is that
 * of the least squares line through its last RH_SCORES scores, 0 of fewer than two. Samples are drawn without repetition:
 *   random         all alike
 *   difficulty     largest slope first
 *   eh-difficulty  a share of easy samples, one of hard ones, the rest of those between (diversity). Easy: the last score is below the 30 %
 *                  quantile of all samples' last scores and the slope is not positive; hard: it is above the 70 % quantile, or the slope
 *                  is positive. What a pool lacks comes from diversity, then from easy, then from hard. Before a whole batch has scores
 *                  all are diversity
 *   task-loss, distillation-loss: the largest last one first
 * Ties, and samples of one pool, are in an order drawn anew for each draw. */
#ifndef RH_DATA_OPPORTUNISTIC_H
#define RH_DATA_OPPORTUNISTIC_H

#include "config/config.h"

enum { RH_SCORES = 5 };

/* What is known of a sample; all zero: nothing. Saved with checkpoints as it is. */
struct rh_sample_history {
	float score[RH_SCORES]; /* the oldest first */
	float task, distillation;
	int32_t scores;
};

struct rh_opportunistic;

struct rh_opportunistic_options {
	enum rh_opportunistic_sampler sampler;
	uint64_t seed;
	double task_weight, distillation_weight; /* of a score */
	double easy_share, hard_share;           /* of a draw from pools */
};

/* For samples 0 to `samples` - 1. All may be drawn until rh_opportunistic_allow_none. Takes rh_opportunistic_bytes. */
int rh_opportunistic_create(int64_t samples, const struct rh_opportunistic_options *options, struct rh_opportunistic **out) RH_MUST;
void rh_opportunistic_free(struct rh_opportunistic *all);
int64_t rh_opportunistic_bytes(int64_t samples);

/* A sample was trained on, with these losses; distillation 0: without teacher logits. */
void rh_opportunistic_record(struct rh_opportunistic *all, int64_t sample, float task, float distillation);

/* No sample may be drawn, as when box 2's epoch begins; one may, or may not. */
void rh_opportunistic_allow_none(struct rh_opportunistic *all);
void rh_opportunistic_allow(struct rh_opportunistic *all, int64_t sample, int may);

/* Draws up to `count` samples into `sample`; returns how many: fewer where fewer may be drawn. */
int64_t rh_opportunistic_draw(struct rh_opportunistic *all, uint64_t draw, int64_t count, int64_t *sample);

/* (samples) borrowed: what a checkpoint saves and sets. */
struct rh_sample_history *rh_opportunistic_history(struct rh_opportunistic *all);

/* Slope of the least squares line through scores at 0, 1, 2, ...; 0 of fewer than two. */
double rh_score_slope(const float *score, int count);
/* Quantile `share` of `count` values, which it sorts, interpolated linearly. */
double rh_quantile(float *value, int64_t count, double share);

#endif
