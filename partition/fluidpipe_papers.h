/* What the two FluidPipe papers say an epoch takes, as closed formulas: `plan` prints them beside what it simulates. Pure.
 *
 * They are coarser than a simulation. The pipeline's adds each transfer to the computing of its stage, whichever of the two is hidden; no
 * formula knows latency apart from transfers, how many messages are in flight, or that one link carries all micro-batches in turn. */
#ifndef RH_PARTITION_FLUIDPIPE_PAPERS_H
#define RH_PARTITION_FLUIDPIPE_PAPERS_H

/* Seconds; of two stages, each on its own box. */
struct rh_two_stages {
	double mini_batches, micro_batches; /* steps of an epoch; micro-batches of a step */
	double stage_s[2];                  /* forward and backward of a micro-batch */
	double activation_s, gradient_s;    /* a micro-batch's way up, and its gradient's way down */
	/* FluidPipe's: a whole step at each stage, with auxiliary head and distillation; a step's features and logits up; once an epoch all
	 * logits of stage 2 down, 0 without distillation at stage 1. */
	double fluid_stage_s[2], features_s, logits_s;
};

/* N_b (m + 1) max(t_1 + t_a, t_2 + t_g). */
double rh_paper_pipeline_epoch_s(const struct rh_two_stages *stages);
/* N_b max(tau_1, tau_2 + tau_a) + tau_d. */
double rh_paper_fluidpipe_epoch_s(const struct rh_two_stages *stages);
/* N_b (tau_1 + tau_a + tau_2) + tau_d: without any overlap, the opportunistic paper's upper bound. */
double rh_paper_fluidpipe_sequential_epoch_s(const struct rh_two_stages *stages);

/* Bytes. */
struct rh_two_stages_traffic {
	double mini_batches;
	double features, gradients;        /* of a step: up, and down */
	double logits_up, logits_an_epoch; /* of a step with distillation at stage 2; of an epoch with distillation at stage 1 */
};

/* N_b (lambda + beta), and N_b (lambda + lambda_p) + gamma. */
double rh_paper_pipeline_epoch_bytes(const struct rh_two_stages_traffic *traffic);
double rh_paper_fluidpipe_epoch_bytes(const struct rh_two_stages_traffic *traffic);
/* The papers' conditions under which no more bytes travel than with gradients: gamma < N_b beta where box 1 alone distils, and
 * 2 N_b lambda_p < N_b beta where both do. 1: it holds. */
int rh_paper_fluidpipe_pays_down(const struct rh_two_stages_traffic *traffic);
int rh_paper_fluidpipe_pays_both(const struct rh_two_stages_traffic *traffic);

#endif
