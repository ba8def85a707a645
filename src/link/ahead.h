/* A link that does not wait for its two users. Its sends are done as soon as their bytes are copied, so that the sender goes on while they
 * travel; and what a receiver expects may come before it is asked for, so that no message waits for its receive to be known to the sender.
 * At most `copies` are on their way, and a send beyond them is done when the oldest of them is. Everything else is the inner link's. */
#ifndef RH_LINK_AHEAD_H
#define RH_LINK_AHEAD_H

#include "link/link.h"

/* Takes the inner link, which lets `copies` be posted, and from now on is used by nobody else. `messages`: posted at once and not copied
 * yet. Closing the outer one waits until the peer has all that was sent, or for the inner one's fault. -ENOMEM: the inner link stays the
 * caller's. */
int rh_ahead_open(struct rh_link *inner, int64_t copies, int64_t messages, struct rh_link **out) RH_MUST;

/* The next message that no receive was posted for: it may come now, and the receive that asks for it later finds it here. -ENOBUFS: so many
 * (`copies`) have not been asked for yet. */
int rh_ahead_expect(struct rh_link *link, uint64_t tag, int64_t size) RH_MUST;
/* Messages that were expected and not asked for yet, and how many of them are here. */
int rh_ahead_unasked(struct rh_link *link, int64_t *expected, int64_t *here) RH_MUST;
/* Waits until so many of them are here. */
int rh_ahead_await_unasked(struct rh_link *link, int64_t count) RH_MUST;
/* Messages that were expected or asked for. */
int64_t rh_ahead_expected(const struct rh_link *link);

/* Likewise, but no receive asks for it later: it goes to `bytes`, which the link owns until it is here, and is not among the messages that
 * the link counts. So it can be read before those that were sent earlier are asked for. */
int rh_ahead_expect_apart(struct rh_link *link, uint64_t tag, void *bytes, int64_t size) RH_MUST;
/* Until so many messages are here, as rh_ahead_expected counts them. */
int rh_ahead_await(struct rh_link *link, int64_t messages) RH_MUST;

#endif
