/* Which of a few frames of memory is given to something else: the one whose content costs least to give away, of equals the one longest
 * unused. */
#ifndef RH_OFFLOAD_FRAME_CHOICE_H
#define RH_OFFLOAD_FRAME_CHOICE_H

#include <stdint.h>

struct rh_frame_choice {
	int frame; /* begins as -1: none may be given away */
	int cost;
	uint64_t used;
};

/* `used`: when the frame was used last, in turns. */
static inline void rh_frame_offer(struct rh_frame_choice *best, int frame, int cost, uint64_t used)
{
	if (best->frame < 0 || cost < best->cost || (cost == best->cost && used < best->used))
		*best = (struct rh_frame_choice){frame, cost, used};
}

#endif
