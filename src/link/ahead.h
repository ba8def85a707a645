/* A link that decouples its two ends. A send is done as soon as its bytes are copied, so the sender continues while they are in flight.
 * A receiver may announce messages before it receives them, so that they travel without waiting for a posted receive. At most `copies`
 * messages are in flight; a send beyond them is done when the oldest is acknowledged. Everything else is the inner link's. */
#ifndef RH_LINK_AHEAD_H
#define RH_LINK_AHEAD_H

#include "link/link.h"

/* Takes over the inner link, which must let `copies` messages be posted; nobody else may use it from now on. `messages`: the most that
 * are posted and not copied yet. Closing this link waits until the peer has everything that was sent, or until the inner link's fault.
 * -ENOMEM: the inner link stays the caller's. */
int rh_ahead_open(struct rh_link *inner, int64_t copies, int64_t messages, struct rh_link **out) RH_MUST;

/* Announces the next message for which no receive is posted. It may arrive as soon as fewer than `copies` messages before it are announced
 * and not received yet, and a later receive finds it here. -ENOBUFS: `messages` announced messages may not arrive yet. */
int rh_ahead_expect(struct rh_link *link, uint64_t tag, int64_t size) RH_MUST;
/* How many announced messages may arrive and have not been received yet, and how many of these are here. */
int rh_ahead_unasked(struct rh_link *link, int64_t *expected, int64_t *here) RH_MUST;
/* Waits until `count` of them are here. */
int rh_ahead_await_unasked(struct rh_link *link, int64_t count) RH_MUST;
/* How many messages were announced or received since the link was opened. */
int64_t rh_ahead_expected(const struct rh_link *link);

/* Announces a message that no receive will take: it goes to `bytes`, which the link owns until it is here, and it does not count among
 * the link's messages. So it can be read before earlier messages are received. */
int rh_ahead_expect_apart(struct rh_link *link, uint64_t tag, void *bytes, int64_t size) RH_MUST;
/* Waits until `messages` messages are here, as rh_ahead_expected counts them. They may all arrive. */
int rh_ahead_await(struct rh_link *link, int64_t messages) RH_MUST;

#endif
