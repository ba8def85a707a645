/* Costs of a micro-batch of another size than the one that was timed. Pure. */
#ifndef RH_PARTITION_RESIZE_H
#define RH_PARTITION_RESIZE_H

#include "partition/costs.h"

struct rh_resize {
	int64_t tokens;
	/* Of every layer but the topmost (the head): what of its forward and its backward does not grow with the micro-batch as the figures
	 * stand (launches), and what takes its place. */
	double fixed_forward_s, fixed_backward_s, launch_forward_s, launch_backward_s;
	/* A pass is no faster than its weights are read; the weights' gradients no faster than fp32 sums are read and written. 0: no
	 * floor. */
	double memory_bytes_per_s;
	double slower; /* products at this size take so many times what they would at the given one; 1: the same efficiency */
};

/* time = launch + max((given - fixed) * tokens / given tokens * slower, floor). Activations, boundaries, workspace and the hop grow with
 * the tokens; weights do not. -EINVAL where the given costs do not say their tokens. */
int rh_costs_resize(const struct rh_costs *given, const struct rh_resize *how, struct rh_costs *out) RH_MUST;

#endif
