/* Frames over one stream: each written and read whole, however the stream cuts them. Owned by one thread. */
#ifndef RH_LINK_CONN_H
#define RH_LINK_CONN_H

#include "link/frame.h"
#include "link/stream.h"

/* Supplies a connection with frames to write, and takes those that arrive. */
struct conn_peer {
	/* 1: *out is the next frame to write, its payload valid until the next call; 0: none now. */
	int (*next)(void *context, struct frame *out);
	/* Where a DATA frame's payload goes; *into NULL: dropped. */
	int (*expect)(void *context, const struct frame *frame, char **into);
	/* A frame that arrived whole and unharmed; payload: of HELLO and ABORT. */
	int (*take)(void *context, const struct frame *frame, const char *payload);
	void *context;
};

struct conn {
	struct stream *stream; /* owned; NULL: closed */
	struct {
		unsigned char header[FRAME_HEADER];
		struct frame frame;
		char *target; /* NULL: dropped */
		int64_t header_got, got;
	} in;
	struct {
		unsigned char header[FRAME_HEADER];
		struct frame frame;
		int64_t header_sent, sent;
		int is_open; /* a frame is begun */
	} out;
	char text[FRAME_TEXT];
	int64_t bytes_in, bytes_out;
	int has_more;              /* reading stopped at its limit of frames; more may be there */
	short in_wants, out_wants; /* poll events that reading and writing wait for; out_wants 0: nothing to write */
};

/* Takes over the stream. */
void conn_open(struct conn *conn, struct stream *stream);
void conn_close(struct conn *conn);

/* Reads what is there, at most `frames` frames; -EAGAIN: no more now. -EPIPE, without a line: the peer has closed its direction.
 * -EBADMSG: a frame was damaged in flight. */
int conn_read(struct conn *conn, const struct conn_peer *peer, int frames) RH_MUST;
/* Writes the frames that `next` gives, until it has none, or `frames` were written (both return 0), or the stream is full (-EAGAIN). */
int conn_write(struct conn *conn, const struct conn_peer *peer, int frames) RH_MUST;

#endif
