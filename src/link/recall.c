#include "link/recall.h"

#include "core/alloc.h"

#include <string.h>

/* A receive of the view: number n is n % messages of these. */
struct posted {
	uint64_t tag;
	const void *bytes;
	int64_t size, message; /* of the inner link, counted from 1; 0: was supplied */
};

struct recall {
	struct rh_link base;
	struct rh_link *inner;
	int64_t messages, filled;
	struct posted *posted;
	struct posted *supplied; /* number n is n % messages */
	int64_t supplies, taken;
	int64_t *outgoing; /* send number n is n % messages: the inner link's message, counted from 1; 0: was dropped */
	int64_t sent;
	int drops;
	void (*look)(void *context, uint64_t tag, const void *bytes, int64_t size);
	void *context;
};

static struct recall *own(struct rh_link *link)
{
	return (struct recall *)link;
}

static int recall_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	struct recall *at = own(link);
	if (at->base.sends - at->sent == at->messages)
		return -ENOBUFS;
	int rc = at->drops ? 0 : rh_link_send(at->inner, tag, bytes, size);
	at->outgoing[at->base.sends % at->messages] = at->drops ? 0 : at->inner->sends;
	return rc;
}

void rh_recall_drop(struct rh_link *view, int drops)
{
	own(view)->drops = drops;
}

int rh_recall_supply(struct rh_link *view, uint64_t tag, const void *bytes, int64_t size)
{
	struct recall *at = own(view);
	RH_ASSERT(at->filled == at->base.receives);
	if (at->supplies - at->taken == at->messages)
		return -ENOBUFS;
	at->supplied[at->supplies++ % at->messages] = (struct posted){.tag = tag, .bytes = bytes, .size = size};
	return 0;
}

static int recall_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	struct recall *at = own(link);
	struct posted *posted = &at->posted[at->base.receives % at->messages];
	if (at->base.receives - at->filled == at->messages)
		return -ENOBUFS;
	if (at->taken == at->supplies) {
		int rc = rh_link_receive(at->inner, tag, bytes, size);
		*posted = (struct posted){.tag = tag, .bytes = bytes, .size = size, .message = at->inner->receives};
		return rc;
	}
	const struct posted *supplied = &at->supplied[at->taken++ % at->messages];
	RH_ASSERT(supplied->tag == tag && supplied->size == size);
	if (size)
		memcpy(bytes, supplied->bytes, (size_t)size);
	*posted = (struct posted){.tag = tag, .bytes = bytes, .size = size};
	return 0;
}

static void fill(struct recall *at, int64_t received)
{
	for (; at->filled < at->base.receives; at->filled++) {
		const struct posted *posted = &at->posted[at->filled % at->messages];
		if (posted->message > received)
			return;
		if (posted->message && at->look)
			at->look(at->context, posted->tag, posted->bytes, posted->size);
	}
}

static void count_sent(struct recall *at, int64_t sent)
{
	while (at->sent < at->base.sends && at->outgoing[at->sent % at->messages] <= sent)
		at->sent++;
}

static int recall_progress(struct rh_link *link, struct rh_link_progress *out)
{
	struct recall *at = own(link);
	int rc = at->inner->ops->progress(at->inner, out);
	if (!rc) {
		fill(at, out->received);
		count_sent(at, out->sent);
	}
	out->sent = at->sent;
	out->received = at->filled;
	return rc;
}

static int recall_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	struct recall *at = own(link);
	struct rh_link_progress progress;
	RH_ASSERT(received <= at->base.receives && sent <= at->base.sends);
	int64_t in = received > at->filled ? at->posted[(received - 1) % at->messages].message : 0,
	        out = sent > at->sent ? at->outgoing[(sent - 1) % at->messages] : 0;
	int rc = in || out ? at->inner->ops->wait(at->inner, out, in) : 0;
	return rc ? rc : recall_progress(link, &progress);
}

static void recall_abort(struct rh_link *link, const char *line)
{
	own(link)->inner->ops->abort(own(link)->inner, line);
}

static void recall_close(struct rh_link *link)
{
	struct recall *at = own(link);
	rh_free(at->posted);
	rh_free(at->supplied);
	rh_free(at->outgoing);
	rh_free(at);
}

static const struct rh_link_ops recall_ops = {.close = recall_close,
                                              .send = recall_send,
                                              .receive = recall_receive,
                                              .progress = recall_progress,
                                              .wait = recall_wait,
                                              .abort = recall_abort};

int rh_recall_open(struct rh_link *inner, int64_t messages, void (*look)(void *context, uint64_t tag, const void *bytes, int64_t size),
                   void *context, struct rh_link **out)
{
	struct recall *made = rh_alloc(1, sizeof *made);
	if (!made)
		return -ENOMEM;
	*made = (struct recall){.base = {.ops = &recall_ops, .is_virtual = inner->is_virtual},
	                        .inner = inner,
	                        .messages = messages,
	                        .posted = rh_alloc((size_t)messages, sizeof *made->posted),
	                        .supplied = rh_alloc((size_t)messages, sizeof *made->supplied),
	                        .outgoing = rh_alloc((size_t)messages, sizeof *made->outgoing),
	                        .look = look,
	                        .context = context};
	*out = &made->base;
	if (made->posted && made->supplied && made->outgoing)
		return 0;
	recall_close(&made->base);
	*out = NULL;
	return -ENOMEM;
}
