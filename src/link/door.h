/* Makes the connections of a TCP link: one end listens, the other connects. Both yield streams whose peer has been verified. Addresses
 * are HOST:PORT, [IPv6]:PORT, and for a listener also PORT. Owned by the link's thread. */
#ifndef RH_LINK_DOOR_H
#define RH_LINK_DOOR_H

#include "link/stream.h"
#include "link/tls.h"

#include <poll.h>

/* Connections that come before their peer is known. An honest peer needs one, and speaks first; strangers may send many, so that these
 * have room for a flood and no claim to it:
 *
 *   accepted --its first bytes are TLS's (or a plain link's)--> greets --the peer's key--> given out
 *
 * Of those that have said nothing the oldest makes place for the next. One that greets keeps its place for a second at least, unless its
 * source holds more places than the newcomer's would: a flood from one address keeps nobody else out. */
enum { DOOR_SILENT = 128, DOOR_GREETING = 64, DOOR_GUESTS = DOOR_SILENT + DOOR_GREETING, DOOR_POLLS = DOOR_GUESTS + 1 };

/* Where a connection comes from: an address of IPv4, or a network of IPv6 (64 bits), which one host may have whole. */
struct door_source {
	unsigned char bytes[8];
};

struct door_guest {
	int is_there, descriptor;
	struct stream *stream; /* has the descriptor; NULL: nothing was said yet */
	int is_connecting;
	short wants;
	int64_t since_ns; /* accepted; once it greets: since then */
	struct door_source source;
};

struct door {
	/* set by the caller of door_open */
	const char *address; /* borrowed */
	struct tls *tls;     /* borrowed; NULL: plain, on this machine only */
	int listens;
	int64_t patience_ns;  /* the time in which a connection must have greeted */
	uint64_t bytes_per_s; /* a connection sends no faster; 0: as the system likes */
	/* the door's own */
	int listener; /* descriptor, -1: none */
	struct door_guest guest[DOOR_GUESTS];
	int64_t deaf_until_ns;        /* no descriptor was to be had: nothing is accepted before */
	int64_t next_try_ns, wait_ns; /* for the end that connects */
	unsigned tries;
	int has_opened;       /* 1: a connection was made once, so the address is right */
	int64_t next_note_ns; /* no note before: strangers must not fill the log */
};

/* -EINVAL: the address; -EADDRINUSE and others of a listener. */
int door_open(struct door *door) RH_MUST;
void door_close(struct door *door);
/* The port that a listener has, 0: none. */
int door_port(const struct door *door);

/* Fills in what to poll, in an array of DOOR_POLLS; returns how many. *deadline_ns is lowered to the time of the next door_step, if that
 * is earlier. The end that connects does so while `is_wanted`. */
int door_polls(struct door *door, int is_wanted, int64_t now_ns, struct pollfd *polls, int64_t *deadline_ns);
/* Advances all pending connections. *out: a stream with the right peer, NULL: none yet. -EACCES at the end that connects, until
 * it has met its peer once: the wrong peer, or the peer refused. */
int door_step(struct door *door, int is_wanted, int64_t now_ns, struct stream **out) RH_MUST;

/* -ETIMEDOUT, with the line of a connection that has taken longer than patience_ns. */
int door_fail_late(const struct door *door) RH_MUST;
/* Notes that a connection was refused, with the line of `rc`; of many refusals only some. */
void door_note_refusal(struct door *door, int rc, int64_t now_ns);

#endif
