/* Teaches TCP the speed of a line before anything waits for it, and measures it.
 *
 * Congestion control that paces (BBR) sends at a multiple of the speed that a connection has reached so far. A pipeline's messages have
 * pauses between them, so a connection only ever reaches a message or two in a round trip, however fast the line is: each message takes
 * too long, and 1F1B waits for each. After the probe the connection knows the line's speed, and such messages do not make it forget. */
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

/* Both ends call it, one of them with `decides`, before other messages are posted. It sends some round trips of one byte; then it exchanges
 * 4 KiB each way at once, then twice as much, and so on, until an exchange gets no faster or has 32 MiB. This takes some seconds; over a
 * near line some milliseconds. If the line breaks, the exchange in which it does is the last one. */
int rh_link_probe(struct rh_link *link, int decides, struct rh_link_line *out) RH_MUST;

#endif
