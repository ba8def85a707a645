/* Both ends of a link in one process, over a line that can be shaped: for tests and rehearsals. Frames may be lost, doubled, held up and
 * overtaken by later ones; the messages still arrive once and in order. */
#ifndef RH_LINK_PAIR_H
#define RH_LINK_PAIR_H

#include "link/link.h"

struct rh_pair_options {
	int64_t messages;                /* posted at once, each way and end */
	int64_t latency_ns;              /* one way */
	int64_t jitter_ns;               /* added to it, evenly from 0 on; frames keep their order */
	double bytes_per_second;         /* each way; 0: without bound */
	double lost, doubled, overtaken; /* shares of the frames */
	uint64_t seed;                   /* of all that is drawn */
	int64_t retry_ns;                /* silence after which an end sends again; 0: 2 * (latency + jitter) + 50 ms */
};

/* Two ends; each is closed by itself. -ENOMEM. */
int rh_pair_open(const struct rh_pair_options *options, struct rh_link *ends[2]) RH_MUST;

#endif
