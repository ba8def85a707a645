#include "link/stream.h"

#include "core/alloc.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void plain_close(struct stream *stream)
{
	close(stream->descriptor);
	rh_free(stream);
}

static int plain_greet(struct stream *stream, short *wants)
{
	(void)stream, (void)wants;
	return 0;
}

static int64_t outcome(ssize_t moved, short event, short *wants)
{
	if (moved >= 0)
		return moved;
	if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
		*wants = event;
		return -EAGAIN;
	}
	return rh_fail(-ECONNRESET, "the connection broke: %s", strerror(errno));
}

static int64_t plain_read(struct stream *stream, void *bytes, int64_t size, short *wants)
{
	return outcome(recv(stream->descriptor, bytes, (size_t)size, 0), POLLIN, wants);
}

static int64_t plain_write(struct stream *stream, const void *bytes, int64_t size, short *wants)
{
	return outcome(send(stream->descriptor, bytes, (size_t)size, MSG_NOSIGNAL), POLLOUT, wants);
}

static void plain_finish(struct stream *stream)
{
	shutdown(stream->descriptor, SHUT_WR);
}

static const struct stream_ops plain_ops = {
        .close = plain_close, .greet = plain_greet, .read = plain_read, .write = plain_write, .finish = plain_finish};

int stream_plain(int descriptor, struct stream **out)
{
	*out = rh_alloc(1, sizeof **out);
	if (!*out) {
		close(descriptor);
		return -ENOMEM;
	}
	**out = (struct stream){.ops = &plain_ops, .descriptor = descriptor};
	return 0;
}
