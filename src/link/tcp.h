/* The link over TCP: with TLS 1.3 between boxes that have named each other's certificate, or plain on one machine. A thread of the link's
 * own makes the connection, and makes it anew when it breaks. */
#ifndef RH_LINK_TCP_H
#define RH_LINK_TCP_H

#include "link/link.h"

struct rh_tcp_options {
	const char *address;  /* HOST:PORT or [IPv6]:PORT; a listener's may be PORT alone */
	int listens;          /* one end listens, the other connects */
	const char *identity; /* this box's key file (identity.h); NULL: plain, and only on this machine */
	const char *peer;     /* the hash of the peer's certificate; NULL with identity */
	const char *greeting; /* name=value lines that must be equal at both ends; at most FRAME_TEXT bytes */
	int64_t messages;     /* posted at once, each way */
	double bytes_per_s;   /* the line's speed: it sends at most 5 % faster; 0: unknown, as fast as the system lets it */
	struct rh_link_timing timing;
};

/* Returns at once; the first connection comes when the peer is there. -EINVAL: addresses, keys; -EADDRINUSE and others of a listener. */
int rh_tcp_open(const struct rh_tcp_options *options, struct rh_link **out) RH_MUST;
/* The port that a listening end has (asked for port 0, the system chooses one). */
int rh_tcp_port(const struct rh_link *link);

#endif
