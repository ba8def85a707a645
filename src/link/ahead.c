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

/* A message that is announced and not posted to the inner link yet: `copies` messages before it are not received. */
struct planned {
	uint64_t tag;
	char *apart; /* NULL: a receive will ask for it */
	int64_t size;
};

/* Message n of the inner link has number n % copies of those that are sent, and of those that are expected. */
struct copy {
	char *bytes;
	size_t capacity;
};

/* A receive that is posted: the n-th has number n % messages. */
struct asked {
	char *bytes;
	int64_t size, message; /* of the inner link's messages, this one */
	int is_here;           /* it was expected: its bytes are in a copy */
};

struct ahead {
	struct rh_link base;
	struct rh_link *inner;
	struct copy *copy;
	struct waiting *waiting; /* a ring, oldest at `copied` % messages */
	int64_t copies, messages, posted, copied;
	struct copy *expected;
	struct planned *planned; /* message n has number n % messages */
	int64_t announced;       /* messages that are announced or asked for; those from inner->receives on are in `planned` */
	struct asked *request;
	int64_t receives, filled; /* asked for by the receiver, and given to it */
	char *is_taken;           /* message n, taken apart, has number n % (copies + messages) */
	int64_t next;             /* the inner link's first message that nobody asked for */
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

/* Moves an announced message that has arrived to the receive that asks for it. */
static void fill(struct ahead *at, int64_t received)
{
	for (; at->filled < at->receives; at->filled++) {
		const struct asked *asked = &at->request[at->filled % at->messages];
		if (asked->message >= received)
			break;
		if (asked->is_here && asked->size && !at->inner->is_virtual)
			memcpy(asked->bytes, at->expected[asked->message % at->copies].bytes, (size_t)asked->size);
	}
}

static char *taken_flag(struct ahead *at, int64_t message)
{
	return &at->is_taken[message % (at->copies + at->messages)];
}

/* Messages that were taken apart are nobody's to ask for. */
static int64_t next_message(struct ahead *at)
{
	while (at->next < at->inner->receives && *taken_flag(at, at->next))
		at->next++;
	return at->next;
}

/* The first message that may still be in a copy. */
static int64_t oldest_message(struct ahead *at)
{
	return at->filled < at->receives ? at->request[at->filled % at->messages].message : next_message(at);
}

/* Lets the next announced message arrive, at `bytes` or, NULL, in a copy. */
static int post_planned(struct ahead *at, char *bytes)
{
	const struct planned *planned = &at->planned[at->inner->receives % at->messages];
	struct copy *copy = &at->expected[at->inner->receives % at->copies];
	int rc = 0;
	*taken_flag(at, at->inner->receives) = planned->apart != NULL;
	bytes = planned->apart ? planned->apart : bytes;
	if (!bytes && !at->inner->is_virtual) { /* a link drops what has nowhere to go */
		rc = rh_grow(&copy->bytes, &copy->capacity, (size_t)rh_max(planned->size, 1), 1);
		bytes = copy->bytes;
	}
	return rc ? rc : rh_link_receive(at->inner, planned->tag, bytes, planned->size);
}

/* As many as there is room for. */
static int post_more(struct ahead *at)
{
	int rc = 0;
	while (!rc && at->inner->receives < at->announced && at->inner->receives - oldest_message(at) < at->copies)
		rc = post_planned(at, NULL);
	return rc;
}

/* As many as there is room for, both ways. */
static int pump(struct ahead *at, struct rh_link_progress *progress)
{
	int rc = at->inner->ops->progress(at->inner, progress);
	if (!rc)
		fill(at, progress->received);
	if (!rc)
		rc = post_more(at);
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
	int64_t message = next_message(at);
	int is_here = message < at->inner->receives, rc = 0;
	if (at->receives - at->filled == at->messages)
		return -ENOBUFS;
	for (; !rc && message == at->inner->receives && message < at->announced; message = next_message(at)) {
		const struct planned *planned = &at->planned[message % at->messages];
		RH_ASSERT(planned->apart || (planned->tag == tag && planned->size == size));
		if (!planned->apart)
			break;
		rc = post_planned(at, NULL);
	}
	if (!rc && !is_here) {
		int is_planned = message < at->announced;
		rc = is_planned ? post_planned(at, bytes) : rh_link_receive(at->inner, tag, bytes, size);
		at->announced += !is_planned;
	}
	if (rc)
		return rc;
	*taken_flag(at, message) = 0;
	at->request[at->receives++ % at->messages] = (struct asked){bytes, size, message, is_here};
	at->next++;
	return 0;
}

static int announce(struct ahead *at, const struct planned *planned)
{
	int rc = post_more(at);
	if (rc || at->announced - at->inner->receives == at->messages)
		return rc ? rc : -ENOBUFS;
	at->planned[at->announced++ % at->messages] = *planned;
	return post_more(at);
}

int rh_ahead_expect(struct rh_link *link, uint64_t tag, int64_t size)
{
	return announce(own(link), &(struct planned){tag, NULL, size});
}

int rh_ahead_unasked(struct rh_link *link, int64_t *expected, int64_t *here)
{
	struct ahead *at = own(link);
	struct rh_link_progress progress;
	int rc = pump(at, &progress);
	int64_t next = next_message(at);
	*expected = at->inner->receives - next;
	*here = rc ? 0 : rh_max(progress.received - next, 0);
	return rc;
}

int rh_ahead_await_unasked(struct rh_link *link, int64_t count)
{
	struct ahead *at = own(link);
	int64_t messages = next_message(at) + count;
	RH_ASSERT(messages <= at->inner->receives);
	return at->inner->ops->wait(at->inner, 0, messages);
}

int rh_ahead_expect_apart(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	RH_ASSERT(bytes);
	return announce(own(link), &(struct planned){tag, bytes, size});
}

int64_t rh_ahead_expected(const struct rh_link *link)
{
	return ((const struct ahead *)link)->announced;
}

static int ahead_progress(struct rh_link *link, struct rh_link_progress *out)
{
	int rc = pump(own(link), out);
	out->sent = own(link)->copied;
	out->received = own(link)->filled;
	return rc;
}

/* Until so many sends are copied, and so many messages of the inner link are here. */
static int wait_inner(struct ahead *at, int64_t sent, int64_t received)
{
	struct rh_link_progress progress;
	int rc = 0;
	while (!rc && at->copied < sent) {
		rc = pump(at, &progress);
		if (!rc && at->copied < sent)
			rc = at->inner->ops->wait(at->inner, progress.sent + 1, 0);
	}
	if (!rc)
		rc = at->inner->ops->wait(at->inner, 0, received); /* which was there before a fault is no fault */
	if (!rc)
		fill(at, received);
	return rc;
}

static int ahead_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	struct ahead *at = own(link);
	if (received <= at->filled)
		return wait_inner(at, sent, 0);
	RH_ASSERT(received <= at->receives);
	/* what the peer answers may be among what is not copied yet */
	return wait_inner(at, at->posted, at->request[(received - 1) % at->messages].message + 1);
}

int rh_ahead_await(struct rh_link *link, int64_t messages)
{
	struct ahead *at = own(link);
	struct rh_link_progress progress;
	int rc = pump(at, &progress);
	RH_ASSERT(rc || messages <= at->inner->receives);
	return rc ? rc : wait_inner(at, at->posted, messages);
}

static void ahead_abort(struct rh_link *link, const char *line)
{
	own(link)->inner->ops->abort(own(link)->inner, line);
}

static void ahead_close(struct rh_link *link)
{
	struct ahead *at = own(link);
	int rc = ahead_wait(link, at->posted, 0);
	if (!rc)
		rc = at->inner->ops->wait(at->inner, at->inner->sends, 0);
	if (rc)
		rh_error_clear(); /* the peer is gone: it has all that it wants */
	rh_link_close(at->inner);
	for (int64_t i = 0; i < at->copies; i++)
		rh_free(at->copy[i].bytes), rh_free(at->expected[i].bytes);
	rh_free(at->copy);
	rh_free(at->expected);
	rh_free(at->planned);
	rh_free(at->request);
	rh_free(at->is_taken);
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
	                       .planned = rh_alloc((size_t)messages, sizeof *made->planned),
	                       .request = rh_alloc((size_t)messages, sizeof *made->request),
	                       .is_taken = rh_alloc((size_t)(copies + messages), 1),
	                       .copies = copies,
	                       .messages = messages,
	                       .posted = inner->sends,
	                       .copied = inner->sends,
	                       .announced = inner->receives,
	                       .receives = inner->receives,
	                       .filled = inner->receives,
	                       .next = inner->receives};
	made->base.ops = &ahead_ops;
	*out = &made->base;
	if (made->copy && made->waiting && made->expected && made->planned && made->request && made->is_taken)
		return 0;
	rh_free(made->copy);
	rh_free(made->expected);
	rh_free(made->planned);
	rh_free(made->request);
	rh_free(made->is_taken);
	rh_free(made->waiting);
	rh_free(made);
	return -ENOMEM;
}
