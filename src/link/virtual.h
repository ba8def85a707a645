/* Both ends of a link in virtual time, on the clock that the boxes' simulated machines share. It moves no bytes.
 *
 * A message starts when it has been sent, the notice of its posted receive has reached the sender (latency_s of the other direction),
 * and the line is free. It occupies the line for size / bytes_per_s and arrives latency_s later; its acknowledgement takes the other
 * direction's latency. */
#ifndef RH_LINK_VIRTUAL_H
#define RH_LINK_VIRTUAL_H

#include "device/sim/clock.h"
#include "link/link.h"

/* One direction. */
struct rh_virtual_line {
	double latency_s, bytes_per_s; /* 0: without bound */
};

/* way[i]: from end i to the other. messages: posted at once, each way. The clock is borrowed; the host that drives an end closes it.
 * -ENOMEM. */
int rh_virtual_open(struct rh_sim_clock *clock, const struct rh_virtual_line way[2], int64_t messages, struct rh_link *ends[2]) RH_MUST;

#endif
