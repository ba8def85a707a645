#include "link/ahead.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>

/* A message that was sent and is not copied yet. */
struct waiting {
	uint64_t tag;
	const void *bytes;
	int64_t size;
};

/* Message n of the inner link has number n % copies of those that are sent, and of those that are expected. */
struct copy {
	char *bytes;
	size_t capacity;
};

/* A receive that is posted: message n has number n % messages. */
struct asked {
	char *bytes;
	int64_t size;
	int is_here; /* it was expected: its bytes are in a copy */
};

struct ahead {
	struct rh_link base;
	struct rh_link *inner;
	struct copy *copy;
	struct waiting *waiting; /* a ring, oldest at `copied` % messages */
	int64_t copies, messages, posted, copied;
	struct copy *expected;
	struct asked *asked;
	int64_t receives, filled; /* asked for by the receiver, and given to it */
};

static struct ahead *own(struct rh_link *link)
{
	return (struct ahead *)link;
}

static int send_copy(struct ahead *at, const struct waiting *message)
{
	struct copy *copy = &at->copy[at->inner->sends % at->copies];
	if (at->inner->is_virtual)
		return rh_link_send(at->inner, message->tag, message->bytes, message->size);
	int rc = rh_grow(&copy->bytes, &copy->capacity, (size_t)message->size, 1);
	if (rc)
		return rc;
	if (message->size)
		memcpy(copy->bytes, message->bytes, (size_t)message->size);
	return rh_link_send(at->inner, message->tag, copy->bytes, message->size);
}

/* What was expected and has arrived goes where it was asked for. */
static void fill(struct ahead *at, int64_t received)
{
	for (; at->filled < at->receives && at->filled < received; at->filled++) {
		const struct asked *asked = &at->asked[at->filled % at->messages];
		if (asked->is_here && asked->size && !at->inner->is_virtual)
			memcpy(asked->bytes, at->expected[at->filled % at->copies].bytes, (size_t)asked->size);
	}
}

/* As many as there is room for. */
static int pump(struct ahead *at, struct rh_link_progress *progress)
{
	int rc = at->inner->ops->progress(at->inner, progress);
	if (!rc)
		fill(at, progress->received);
	while (!rc && at->copied < at->posted && at->inner->sends - progress->sent < at->copies) {
		rc = send_copy(at, &at->waiting[at->copied % at->messages]);
		at->copied += !rc;
	}
	return rc;
}

static int ahead_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	struct ahead *at = own(link);
	struct rh_link_progress progress;
	if (at->posted - at->copied == at->messages)
		return -ENOBUFS;
	at->waiting[at->posted++ % at->messages] = (struct waiting){tag, bytes, size};
	return pump(at, &progress);
}

static int ahead_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	struct ahead *at = own(link);
	int is_here = at->receives < at->inner->receives;
	if (at->receives - at->filled == at->messages)
		return -ENOBUFS;
	int rc = is_here ? 0 : rh_link_receive(at->inner, tag, bytes, size);
	if (rc)
		return rc;
	at->asked[at->receives++ % at->messages] = (struct asked){bytes, size, is_here};
	return 0;
}

int rh_ahead_expect(struct rh_link *link, uint64_t tag, int64_t size)
{
	struct ahead *at = own(link);
	if (at->inner->receives - at->filled >= at->copies)
		return -ENOBUFS;
	struct copy *copy = &at->expected[at->inner->receives % at->copies];
	/* a link drops what has nowhere to go */
	int rc = at->inner->is_virtual ? 0 : rh_grow(&copy->bytes, &copy->capacity, (size_t)rh_max(size, 1), 1);
	return rc ? rc : rh_link_receive(at->inner, tag, copy->bytes, size);
}

int rh_ahead_unasked(struct rh_link *link, int64_t *expected, int64_t *here)
{
	struct ahead *at = own(link);
	struct rh_link_progress progress;
	int rc = pump(at, &progress);
	*expected = at->inner->receives - at->receives;
	*here = rc ? 0 : rh_max(progress.received - at->receives, 0);
	return rc;
}

int rh_ahead_await_unasked(struct rh_link *link, int64_t count)
{
	struct ahead *at = own(link);
	RH_ASSERT(at->receives + count <= at->inner->receives);
	return at->inner->ops->wait(at->inner, 0, at->receives + count);
}

int64_t rh_ahead_expected(const struct rh_link *link)
{
	return ((const struct ahead *)link)->inner->receives;
}

static int ahead_progress(struct rh_link *link, struct rh_link_progress *out)
{
	int rc = pump(own(link), out);
	out->sent = own(link)->copied;
	out->received = own(link)->filled;
	return rc;
}

static int ahead_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	struct ahead *at = own(link);
	struct rh_link_progress progress;
	int rc = 0;
	sent = received > at->filled ? at->posted : sent; /* what the peer answers may be among what is not copied yet */
	while (!rc && at->copied < sent) {
		rc = pump(at, &progress);
		if (!rc && at->copied < sent)
			rc = at->inner->ops->wait(at->inner, progress.sent + 1, 0);
	}
	rc = rc ? rc : at->inner->ops->wait(at->inner, 0, received); /* which was there before a fault is no fault */
	if (!rc)
		fill(at, received);
	return rc;
}

static void ahead_abort(struct rh_link *link, const char *line)
{
	own(link)->inner->ops->abort(own(link)->inner, line);
}

static void ahead_close(struct rh_link *link)
{
	struct ahead *at = own(link);
	int rc = ahead_wait(link, at->posted, 0);
	rc = rc ? rc : at->inner->ops->wait(at->inner, at->inner->sends, 0);
	if (rc)
		rh_error_clear(); /* the peer is gone: it has all that it wants */
	rh_link_close(at->inner);
	for (int64_t i = 0; i < at->copies; i++)
		rh_free(at->copy[i].bytes), rh_free(at->expected[i].bytes);
	rh_free(at->copy);
	rh_free(at->expected);
	rh_free(at->asked);
	rh_free(at->waiting);
	rh_free(at);
}

static const struct rh_link_ops ahead_ops = {.close = ahead_close,
                                             .send = ahead_send,
                                             .receive = ahead_receive,
                                             .progress = ahead_progress,
                                             .wait = ahead_wait,
                                             .abort = ahead_abort};

int rh_ahead_open(struct rh_link *inner, int64_t copies, int64_t messages, struct rh_link **out)
{
	struct ahead *made = rh_alloc(1, sizeof *made);
	if (!made)
		return -ENOMEM;
	*made = (struct ahead){.base = *inner,
	                       .inner = inner,
	                       .copy = rh_alloc((size_t)copies, sizeof *made->copy),
	                       .waiting = rh_alloc((size_t)messages, sizeof *made->waiting),
	                       .expected = rh_alloc((size_t)copies, sizeof *made->expected),
	                       .asked = rh_alloc((size_t)messages, sizeof *made->asked),
	                       .copies = copies,
	                       .messages = messages,
	                       .posted = inner->sends,
	                       .copied = inner->sends,
	                       .receives = inner->receives,
	                       .filled = inner->receives};
	made->base.ops = &ahead_ops;
	*out = &made->base;
	if (made->copy && made->waiting && made->expected && made->asked)
		return 0;
	rh_free(made->copy);
	rh_free(made->expected);
	rh_free(made->asked);
	rh_free(made->waiting);
	rh_free(made);
	return -ENOMEM;
}
