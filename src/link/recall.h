/* An executor's view of a link, in which messages can be given again and dropped: what the link brings is looked at before the receiver
 * is told of it, a receive may be filled from memory in place of the link, and what is sent may go nowhere. Others may use the link
 * itself beside the view. */
#ifndef RH_LINK_RECALL_H
#define RH_LINK_RECALL_H

#include "link/link.h"

/* look: NULL, or each message that the link brought for a receive of the view, once it is there. inner: borrowed; stays open when the
 * view is closed. messages: receives posted at once, and messages supplied at once. */
int rh_recall_open(struct rh_link *inner, int64_t messages, void (*look)(void *context, uint64_t tag, const void *bytes, int64_t size),
                   void *context, struct rh_link **out) RH_MUST;

/* The next receives find these messages, in the order in which they were supplied; their tags and sizes are these. `bytes` stay until
 * then. No other receive of the view is pending. -ENOBUFS: so many have not been asked for yet. */
int rh_recall_supply(struct rh_link *view, uint64_t tag, const void *bytes, int64_t size) RH_MUST;

/* Whether what is sent from now on is dropped: it is done at once, and the peer never sees it. */
void rh_recall_drop(struct rh_link *view, int drops);

#endif
