/* Layers that are searched as one, where there are too many to cut between any two: groups of as many as leave few enough, the lowest
 * layer, the lowest trained one's beginning and the topmost layer kept apart. Pure. */
#ifndef RH_PARTITION_GROUPS_H
#define RH_PARTITION_GROUPS_H

#include "partition/roundpipe.h"

struct groups {
	struct rh_partition_request request; /* of groups, in the place of layers */
	struct rh_costs costs;
	int *first; /* (groups + 1) layers */
	int each;   /* layers in most groups; 1: none are made, and nothing else is set */
	double *sum_s;
};

int groups_create(const struct rh_partition_request *request, struct groups *out) RH_MUST;
void groups_free(struct groups *groups);
/* Stages of groups as stages of layers. */
void groups_spread(const struct groups *groups, struct rh_partition *partition);

#endif
