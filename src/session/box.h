/* This box among several: its layers, its links to its neighbours, and messages over them beside those of the executor (which sends
 * activations and their gradients). Which messages there are, and when, is the mode's (session/mode.h). */
#ifndef RH_SESSION_BOX_H
#define RH_SESSION_BOX_H

#include "config/config.h"
#include "link/link.h"
#include "link/probe.h"

struct rh_box {
	int boxes, number;     /* from 0 */
	int lo, hi;            /* its layers of the whole model */
	int64_t trained;       /* parameters of all boxes */
	int64_t squares_above; /* tensors whose gradients' squares the boxes above have (modes/boxes/box_flush.h) */
	double norm_share;     /* this box's expected share of the norm of all boxes' gradients, from its count of trained parameters */
	struct rh_link *link_below, *link_above; /* NULL: there is no box */
	struct rh_link_line line_above;          /* to the box above, as measured at the start; zeros: it was not */
	struct rh_box_letter *letter;            /* messages that were sent and are not acknowledged yet */
	int64_t table_bytes; /* of a sum that the ends exchange (modes/boxes/box_table.h), 0: none; set when the layers are known */
	int64_t piece_bytes; /* the sum is sent in pieces of this size */
	int64_t table_sent;  /* number of its last message in the link */
	char *relay;         /* memory for its pieces, in a box between the two ends; else NULL */
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

/* Is this one of several boxes? Alone `boxes` is 0. */
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
