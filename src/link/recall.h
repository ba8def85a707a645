/* An executor's view of a link, in which messages can be replayed and dropped: a message is shown to `look` before its receive counts as
 * filled, a receive may be filled from memory instead of the link, and sends may be dropped. Others may use the link itself beside the
 * view. */
#ifndef RH_LINK_RECALL_H
#define RH_LINK_RECALL_H

#include "link/link.h"

/* look: may be NULL; called with each message that the link delivered for a receive of the view. inner: borrowed; stays open when the
 * view is closed. messages: the most receives posted, and the most messages supplied, at once. */
int rh_recall_open(struct rh_link *inner, int64_t messages, void (*look)(void *context, uint64_t tag, const void *bytes, int64_t size),
                   void *context, struct rh_link **out) RH_MUST;

/* Supplies a message for the next receive, or the next ones in this order; tag and size must be those of the receive. `bytes` stay until
 * then. No other receive of the view may be pending. -ENOBUFS: `messages` supplied messages have not been received yet. */
int rh_recall_supply(struct rh_link *view, uint64_t tag, const void *bytes, int64_t size) RH_MUST;

/* drops 1: from now on sends are dropped; each is done at once, and the peer never sees it. */
void rh_recall_drop(struct rh_link *view, int drops);

#endif
