/* Shows TCP what a line carries, before anything waits for it.
 *
 * Congestion control that paces (BBR) sends at a multiple of the speed that a connection has reached so far. A pipeline's messages come
 * with pauses between them, so that a connection reaches a message or two in a round trip, however fast the line is: each message is
 * stretched, and 1F1B waits for each. After the probe the connection knows the line's speed, and such messages do not make it forget. */
#ifndef RH_LINK_PROBE_H
#define RH_LINK_PROBE_H

#include "link/link.h"

/* Messages that the link must take at once. */
enum { RH_LINK_PROBE_MESSAGES = 32 };

/* Both ends call it, one of them with `decides`, before other messages are posted. Rounds of 4 KiB and more, each twice as large as the one
 * before, go both ways at once, until they get no faster or have 32 MiB: for some seconds. Of a line whose round trip takes less than some
 * milliseconds, and of one that breaks, one round is enough. */
int rh_link_probe(struct rh_link *link, int decides) RH_MUST;

#endif
