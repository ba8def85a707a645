/* Weights that devices make. In a synchronous step the last wave of slots ends all at once, and the next step waits for the host, which has
 * all their blocks to update by then. Their weights can be made where their gradients are: while such a slot computes, what its blocks'
 * weights are made of (lower halves and both moments, 10 bytes an element) comes up, after it an op makes them, and they go down.
 *
 * It lies where the device has room at that time: behind the slot's sums and behind their rounded copy, both rooms being the largest
 * stage's; between the slot's weights and those that the device runs next; and in a room of its own. A block's arrays lie each whole. */
#ifndef RH_PARTITION_MADE_H
#define RH_PARTITION_MADE_H

#include "partition/plan.h"

enum rh_made_array { RH_MADE_SECOND, RH_MADE_FIRST, RH_MADE_LOWER, RH_MADE_ARRAYS };
/* In the order in which they are taken: what the slot before sends down must have left the rounded sums. */
enum rh_made_region { RH_MADE_IN_GRADIENTS, RH_MADE_IN_WEIGHTS, RH_MADE_IN_OWN, RH_MADE_IN_ROUNDED, RH_MADE_REGIONS };

/* Bytes of each region that are free: [at, end). */
struct rh_made_room {
	struct {
		int64_t at, end;
	} region[RH_MADE_REGIONS];
};

struct rh_made_place {
	enum rh_made_region region;
	int64_t at;
};

static inline int64_t rh_made_array_bytes(enum rh_made_array array, int64_t elements)
{
	return rh_align_up(elements * (array == RH_MADE_LOWER ? 2 : 4), RH_ALIGN);
}

/* 1: `out` says where a block's arrays lie, and the room is less by them; 0: it is too little for all of them. */
int rh_made_place(struct rh_made_room *room, int64_t elements, struct rh_made_place out[RH_MADE_ARRAYS]);

struct rh_made_slot {
	struct rh_stage stage;
	int64_t next_bytes; /* of the weights that the device runs next */
	int high;           /* the stage's lie at the upper end of their room */
};

/* The blocks of a slot whose weights are made, the largest first: block[] and place[], for each of the model's blocks at most. Returns how
 * many. scratch: as rh_plan_gradient_layout's offset. */
int rh_made_blocks(const struct rh_plan *plan, const struct rh_model *model, const struct rh_made_slot *slot, int64_t *scratch, int *block,
                   struct rh_made_place (*place)[RH_MADE_ARRAYS]);

/* Gives the plan of RoundPipe's stages a room of its own for it: as much as its last wave of slots takes, and at most what the cap leaves.
 * Sets made_bytes and made_blocks, and adds to device_bytes. -ENOMEM. */
int rh_made_plan(struct rh_plan *plan, const struct rh_model *model, int devices, int64_t cap_bytes) RH_MUST;

#endif
