/* Shows TCP what a line carries, before anything waits for it, and measures it.
 *
 * Congestion control that paces (BBR) sends at a multiple of the speed that a connection has reached so far. A pipeline's messages come
 * with pauses between them, so that a connection reaches a message or two in a round trip, however fast the line is: each message is
 * stretched, and 1F1B waits for each. After the probe the connection knows the line's speed, and such messages do not make it forget. */
#ifndef RH_LINK_PROBE_H
#define RH_LINK_PROBE_H

#include "link/link.h"

/* Messages that the link must take at once. */
enum { RH_LINK_PROBE_MESSAGES = 32 };

/* A line as its end sees it. */
struct rh_link_line {
	double latency_s;      /* one way: half of a round trip */
	double bytes_per_s[2]; /* to the other end, and from it, while both send; 0: the line broke before it was known */
};

/* Both ends call it, one of them with `decides`, before other messages are posted. Some round trips of one byte; then rounds of 4 KiB and
 * more, each twice as large as the one before, go both ways at once, until they get no faster or have 32 MiB: for some seconds. Near lines
 * are through after some milliseconds. Of a line that breaks, the round in which it does is the last one. */
int rh_link_probe(struct rh_link *link, int decides, struct rh_link_line *out) RH_MUST;

#endif
