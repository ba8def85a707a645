/* The interface of links: an ordered channel of tagged tensors between two boxes.
 *
 * Each direction delivers messages in the order in which they were sent. A receive is posted with the tag and the size that the program
 * expects next; a message that differs is a fault of both ends. A message leaves only once its receive is posted at the peer: this is
 * the back-pressure, and the bytes go straight into the posted memory. A send is done when the peer has acknowledged the whole message:
 * then its memory may be reused, and nothing is lost if the connection broke before. A broken connection is made anew, and messages
 * continue from the byte that the peer has.
 *
 * Instances: pair.h (both ends in one process, with faults), tcp.h (TCP with TLS 1.3, or plain TCP on this machine), mpi.h, nccl.h (over
 * a TCP link), virtual.h (both ends in virtual time).
 *
 * Only one host thread may post and wait on an end. */
#ifndef RH_LINK_LINK_H
#define RH_LINK_LINK_H

#include "core/error.h"

#include <stdint.h>

struct rh_link {
	const struct rh_link_ops *ops;
	int is_virtual;          /* moves no bytes, so what is sent need not be prepared */
	int64_t sends, receives; /* messages posted by rh_link_send and rh_link_receive: progress counts up to these */
};

/* Counts since the link was opened. */
struct rh_link_progress {
	int64_t sent;                       /* messages that the peer has acknowledged */
	int64_t received;                   /* posted receives that are filled */
	int64_t bytes_sent, bytes_received; /* on the wire: payload, headers and frames sent again; without TLS records and TCP headers */
	int64_t reconnects;
	double latency_s; /* half of the shortest echo; 0: none was measured yet */
};

/* Every slot is required. */
struct rh_link_ops {
	/* Sends BYE where all sends are done; else the peer sees a broken connection. NULL is legal for rh_link_close. */
	void (*close)(struct rh_link *link);
	/* `bytes` (size >= 0) stay unchanged until the message is done. Messages are counted from 1. -ENOBUFS: as many are posted as the link
	 * was opened for; else the link's fault. */
	int (*send)(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size);
	/* Fills `bytes`, which the link owns until then. The same errors. */
	int (*receive)(struct rh_link *link, uint64_t tag, void *bytes, int64_t size);
	/* 0, or the link's fault: -EPROTO (the peer's messages are not what this box expects), -EINVAL (the boxes greet differently),
	 * -ECONNRESET (the peer has closed the link), -ECONNABORTED (it stopped; the line says why), -ESTALE (it was started anew),
	 * -ETIMEDOUT (no connection for link_give_up), -EACCES (the peer is not the one that was named). */
	int (*progress)(struct rh_link *link, struct rh_link_progress *out);
	/* Waits until `sent` sends are done and `received` receives are filled, counted since opening. Returns 0, or the link's fault. */
	int (*wait)(struct rh_link *link, int64_t sent, int64_t received);
	/* Ends the link for both ends: the peer's fault carries this line. */
	void (*abort)(struct rh_link *link, const char *line);
};

void rh_link_close(struct rh_link *link);
int rh_link_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size) RH_MUST;
int rh_link_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size) RH_MUST;

/* How a link behaves in time; 0: the default. */
struct rh_link_timing {
	int64_t heartbeat_ns; /* 5 s, or a quarter of the timeout: silence after which an end says that it is alive */
	int64_t timeout_ns;   /* 60 s: silence after which the connection counts as broken (`link_timeout`) */
	int64_t give_up_ns;   /* 1 h: time without a connection after which the link is at fault (`link_give_up`) */
};

enum { RH_LINK_FRAME_BYTES = 256 << 10 }; /* payload of a frame at most: what a heartbeat may have to wait for */

#endif
