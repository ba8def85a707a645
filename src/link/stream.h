/* A connection's bytes: TCP as it is, or TLS over it. Non-blocking; the owner polls the descriptor for what a call says it wants. */
#ifndef RH_LINK_STREAM_H
#define RH_LINK_STREAM_H

#include "core/error.h"

#include <stdint.h>

struct stream {
	const struct stream_ops *ops;
	int descriptor;
};

/* All required. *wants: POLLIN or POLLOUT, set with -EAGAIN. Other negative codes mean that the connection is of no use any more and come
 * with a line. -EACCES: it is the wrong peer, or this box is refused; -ECONNRESET: anything else, whatever errno the system gives, as the
 * link's own codes (-EPROTO, -ECONNABORTED, ...) are among these. */
struct stream_ops {
	/* Closes the descriptor too. */
	void (*close)(struct stream *stream);
	/* 0 once the peer is known to be the right one. */
	int (*greet)(struct stream *stream, short *wants);
	/* Bytes read, or 0: the peer has closed its direction. */
	int64_t (*read)(struct stream *stream, void *bytes, int64_t size, short *wants);
	int64_t (*write)(struct stream *stream, const void *bytes, int64_t size, short *wants);
	/* Closes this direction: no more bytes will be written. */
	void (*finish)(struct stream *stream);
};

/* Both take over the descriptor, on errors too. -ENOMEM. */
int stream_plain(int descriptor, struct stream **out) RH_MUST;

static inline void stream_close(struct stream *stream)
{
	if (stream)
		stream->ops->close(stream);
}

#endif
