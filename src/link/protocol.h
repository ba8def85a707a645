/* The state of one end of a link, without I/O, thread or clock: which frame to send next, and what an arrived frame changes. The owner
 * locks it.
 *
 *   posted --protocol_next--> in flight --peer's STATE--> done          (sends)
 *   posted --STATE tells the peer--> filling --last byte--> filled     (receives)
 *
 * Frames may be lost, doubled or out of order: a payload counts only where it continues what has arrived, and protocol_rewind sends again
 * what is not acknowledged. */
#ifndef RH_LINK_PROTOCOL_H
#define RH_LINK_PROTOCOL_H

#include "link/frame.h"

struct protocol_message {
	uint64_t tag;
	char *bytes;
	int64_t size;
};

/* Posted messages: those with numbers done..posted-1 are in `message`, at their number mod capacity. */
struct protocol_queue {
	struct protocol_message *message;
	int64_t posted, done;
	int64_t offset; /* of message `done`: bytes that the receiving end has */
};

/* One end of the protocol. More than 20 members: what each direction has sent and received, what the peer knows of it, and when. */
struct protocol {
	uint64_t id;      /* of this process's end, random */
	uint64_t peer;    /* the peer's, from its HELLO; 0: none yet */
	int64_t capacity; /* messages posted at once, a direction */
	struct protocol_queue out, in;
	struct {
		int64_t number, offset; /* the next byte to send */
	} next;
	int64_t allowed; /* how many of our sends the peer has posted receives for */
	struct {
		int64_t done, offset; /* `done` and `offset` of `in` that were last sent to the peer */
		int64_t ping_ns;
	} acknowledged;
	int is_state_due, is_pong_due, is_bye_due, has_said_bye, has_heard_bye;
	uint64_t pong;
	int64_t moved;                  /* how often more of a message has arrived or been acknowledged */
	int64_t heard_ns;               /* when the last frame arrived */
	int64_t progress_ns;            /* when the peer last acknowledged more, or there was nothing to acknowledge */
	int64_t shortest_echo_ns;       /* 0: none yet */
	int64_t heartbeat_ns, retry_ns; /* retry: sends again after so long without progress; INT64_MAX: the transport loses nothing */
	char abort_line[512];           /* to tell the peer; empty: none */
	int is_abort_due;
};

/* id: not 0. -ENOMEM. */
int protocol_open(struct protocol *protocol, uint64_t id, int64_t capacity, int64_t heartbeat_ns, int64_t retry_ns) RH_MUST;
void protocol_close(struct protocol *protocol);

/* -ENOBUFS: `capacity` are posted already. */
int protocol_send(struct protocol *protocol, uint64_t tag, const void *bytes, int64_t size) RH_MUST;
int protocol_receive(struct protocol *protocol, uint64_t tag, void *bytes, int64_t size) RH_MUST;

/* 1: no byte of a message has arrived or been acknowledged. */
int protocol_is_unused(const struct protocol *protocol);
/* A connection begins: all that is unacknowledged is sent again, and the peer learns what has arrived. */
void protocol_rewind(struct protocol *protocol, int64_t now_ns);
/* 1: *out is the next frame, whose payload is borrowed until the message is done; 0: nothing to say before protocol_deadline. */
int protocol_next(struct protocol *protocol, int64_t now_ns, struct frame *out) RH_MUST;
int64_t protocol_deadline(const struct protocol *protocol);

/* Where the payload of a decoded DATA frame goes; *into NULL: it is read and dropped. -EPROTO: not what this box expects. */
int protocol_expect(const struct protocol *protocol, const struct frame *frame, char **into) RH_MUST;
/* A frame that arrived whole and passed frame_check; `payload`: of ABORT. -EPROTO, or -ECONNABORTED where the peer ends the link. */
int protocol_take(struct protocol *protocol, int64_t now_ns, const struct frame *frame, const char *payload) RH_MUST;

#endif
