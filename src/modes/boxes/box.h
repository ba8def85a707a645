/* One of several boxes that train one model together (mode: sync-pp): its layers, its neighbours, and the messages between boxes that
 * the executor does not send (it sends activations and their gradients).
 *
 * Box 0 holds the lowest layers and has the data. Its messages go up from box to box, results come down. Each message has its place in
 * the order of a step, which is the same at both ends of a link:
 *
 *   up    the step's micro-batches
 *         activations, by the executor;     down: their gradients
 *         the gradient of a table that both ends train, up and down (box_table.h)
 *   up    squares of the gradients, added box by box
 *   down  their norm, and the losses that the last box has */
#ifndef RH_MODES_BOXES_BOX_H
#define RH_MODES_BOXES_BOX_H

#include "config/config.h"
#include "link/link.h"
#include "link/probe.h"

struct rh_box {
	int boxes, number; /* from 0 */
	int lo, hi;        /* its layers of the whole model */
	int64_t trained;   /* parameters of all boxes */
	double norm_share; /* this box's expected share of the norm of all boxes' gradients, from its count of trained parameters */
	struct rh_link *link_below, *link_above; /* NULL: there is no box */
	struct rh_link_line line_above;          /* to the box above, as measured at the start; zeros: it was not */
	struct rh_box_letter *letter;            /* messages that were sent and are not acknowledged yet */
	int64_t table_bytes;                     /* of a sum that the ends exchange (box_table.h), 0: none; set when the layers are known */
	int64_t piece_bytes;                     /* the sum is sent in pieces of this size */
	int64_t table_sent;                      /* number of its last message in the link */
	char *relay;                             /* memory for its pieces, in a box between the two ends; else NULL */
};

/* The most messages of a link that are posted and not finished, the executor's among them. */
enum { RH_BOX_MESSAGES = 64 };

/* The layers of each box by the key box_cuts, which must be set: first[k] is the first layer of box k, first[boxes] = layers. -EINVAL: a
 * cut is above the model's layers. */
int rh_box_cuts(const struct rh_config *config, int layers, int *first) RH_MUST;

/* Opens the links and waits for the neighbours, who must agree in configuration and in `model` (name=value lines). Which layers are the
 * box's is not known yet. */
int rh_box_open(const struct rh_config *config, const char *model, struct rh_box *out) RH_MUST;
/* rc: 0, or the fault that the run ends with, of which the neighbours are told. */
void rh_box_close(struct rh_box *box, int rc);

/* Is this one of several boxes that share their steps? In other modes `boxes` is 0. */
static inline int rh_box_is_linked(const struct rh_box *box)
{
	return box->boxes > 1;
}

/* Sends bytes of box 0 to all others; or those of the last box. All boxes call it with the same size. */
int rh_box_pass_up(struct rh_box *box, uint64_t tag, void *bytes, int64_t size) RH_MUST;
int rh_box_pass_down(struct rh_box *box, uint64_t tag, void *bytes, int64_t size) RH_MUST;
/* Receives from the box below or above, or sends to it; does nothing where there is none. What is sent is copied first. */
int rh_box_take(struct rh_link *link, uint64_t tag, void *bytes, int64_t size) RH_MUST;
int rh_box_give(struct rh_box *box, struct rh_link *link, uint64_t tag, const void *bytes, int64_t size) RH_MUST;

#endif
