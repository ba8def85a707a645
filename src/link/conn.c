#include "link/conn.h"

#include <poll.h>

enum { DROP_BYTES = 4096 };

void conn_open(struct conn *conn, struct stream *stream)
{
	*conn = (struct conn){.stream = stream, .in_wants = POLLIN};
}

void conn_close(struct conn *conn)
{
	stream_close(conn->stream);
	conn->stream = NULL;
}

/* Reads up to `size` bytes and counts them; 0: they are all there. */
static int fill(struct conn *conn, char *bytes, int64_t size, int64_t *got)
{
	while (*got < size) {
		int64_t moved = conn->stream->ops->read(conn->stream, bytes + *got, size - *got, &conn->in_wants);
		if (moved <= 0)
			return moved ? (int)moved : -EPIPE;
		*got += moved;
		conn->bytes_in += moved;
	}
	return 0;
}

static int drop_payload(struct conn *conn)
{
	char dropped[DROP_BYTES];
	while (conn->in.got < conn->in.frame.length) {
		int64_t left = conn->in.frame.length - conn->in.got, here = 0;
		int rc = fill(conn, dropped, left < DROP_BYTES ? left : DROP_BYTES, &here);
		conn->in.got += here;
		if (rc)
			return rc;
	}
	return 0;
}

static int begin_payload(struct conn *conn, const struct conn_peer *peer)
{
	int rc = frame_decode(conn->in.header, &conn->in.frame);
	conn->in.got = 0;
	conn->in.target = conn->text;
	if (!rc && conn->in.frame.type == FRAME_DATA)
		rc = peer->expect(peer->context, &conn->in.frame, &conn->in.target);
	return rc;
}

static int read_frame(struct conn *conn, const struct conn_peer *peer)
{
	int is_new = conn->in.header_got < FRAME_HEADER;
	int rc = fill(conn, (char *)conn->in.header, FRAME_HEADER, &conn->in.header_got);
	if (!rc && is_new)
		rc = begin_payload(conn, peer);
	if (rc)
		return rc;
	const struct frame *frame = &conn->in.frame;
	rc = conn->in.target ? fill(conn, conn->in.target, frame->length, &conn->in.got) : drop_payload(conn);
	if (rc)
		return rc;
	conn->in.header_got = 0;
	if (conn->in.target && !frame_check(conn->in.header, frame_hash(conn->in.target, frame->length)))
		return rh_fail(-EBADMSG, "the connection broke: a frame was damaged on its way");
	return peer->take(peer->context, frame, conn->text);
}

int conn_read(struct conn *conn, const struct conn_peer *peer, int frames)
{
	int rc = 0;
	while (!rc && frames-- > 0)
		rc = read_frame(conn, peer);
	conn->has_more = !rc;
	return rc;
}

static int drain(struct conn *conn, const char *bytes, int64_t size, int64_t *sent)
{
	while (*sent < size) {
		int64_t moved = conn->stream->ops->write(conn->stream, bytes + *sent, size - *sent, &conn->out_wants);
		if (moved < 0)
			return (int)moved;
		*sent += moved;
		conn->bytes_out += moved;
	}
	return 0;
}

int conn_write(struct conn *conn, const struct conn_peer *peer, int frames)
{
	for (; frames > 0; frames--) {
		conn->out_wants = 0;
		if (!conn->out.is_open) {
			if (!peer->next(peer->context, &conn->out.frame))
				return 0;
			frame_encode(&conn->out.frame, conn->out.header);
			conn->out.header_sent = conn->out.sent = 0;
			conn->out.is_open = 1;
		}
		int rc = drain(conn, (const char *)conn->out.header, FRAME_HEADER, &conn->out.header_sent);
		if (!rc)
			rc = drain(conn, conn->out.frame.payload, conn->out.frame.length, &conn->out.sent);
		if (rc)
			return rc;
		conn->out.is_open = 0;
	}
	conn->out_wants = POLLOUT;
	return 0;
}
