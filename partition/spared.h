/* What a recompute need not make again of an experiment's block (config/experiment.h): by emitting the block's ops. Pure. */
#ifndef RH_PARTITION_SPARED_H
#define RH_PARTITION_SPARED_H

#include "config/experiment.h"
#include "partition/costs.h"

/* The share of a block's forward that the topmost layer of a backward stage spares, in a micro-batch of so many tokens on that device; 0
 * where the experiment does not say what its blocks are. In bf16, weights all trained. -EINVAL for blocks that cannot be. */
int rh_spared_share(const struct rh_experiment *experiment, const struct rh_hardware_device *device, int64_t tokens, double *share) RH_MUST;

#endif
