/* How connections of a TCP link come about: one end listens, the other connects. Either gives streams whose peer is known. Addresses are
 * HOST:PORT, [IPv6]:PORT, and of a listener also PORT. Owned by the link's thread. */
#ifndef RH_LINK_DOOR_H
#define RH_LINK_DOOR_H

#include "link/stream.h"
#include "link/tls.h"

#include <poll.h>

/* Strangers may hold this many connections half open, each for patience_ns, or for a second where others wait; an honest peer needs one. */
enum { DOOR_PENDING = 64, DOOR_POLLS = DOOR_PENDING + 1 };

struct door {
	const char *address;   /* borrowed */
	struct tls *tls;       /* borrowed; NULL: plain, on this machine only */
	int listens, listener; /* descriptor, -1: none */
	int64_t patience_ns;   /* a connection may take to greet */
	struct door_pending {
		struct stream *stream; /* NULL: free */
		int is_connecting;
		short wants;
		int64_t since_ns;
	} pending[DOOR_PENDING];
	int64_t next_try_ns, wait_ns; /* of one that connects */
	unsigned tries;
	int64_t next_note_ns; /* strangers do not fill the log */
};

/* -EINVAL: the address; -EADDRINUSE and others of a listener. */
int door_open(struct door *door, const char *address, int listens, int64_t patience_ns, struct tls *tls) RH_MUST;
void door_close(struct door *door);
/* The port that a listener has, 0: none. */
int door_port(const struct door *door);

/* What to poll, into DOOR_POLLS places; returns how many. *deadline_ns is lowered to when the door wants to be asked at the latest. A door
 * that connects does so while `is_wanted`. */
int door_polls(struct door *door, int is_wanted, int64_t now_ns, struct pollfd *polls, int64_t *deadline_ns);
/* Moves all on. *out: a stream with the right peer, NULL: none yet. -EACCES of a door that connects: the wrong peer, or refused. */
int door_step(struct door *door, int is_wanted, int64_t now_ns, struct stream **out) RH_MUST;

/* Logs that a connection was refused, with the line of `rc`; not each of many. */
void door_note_refusal(struct door *door, int rc, int64_t now_ns);

#endif
