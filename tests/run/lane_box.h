/* A box among several whose neighbours are made up: what it sends arrives at once, and what it waits for is there. So a box runs alone. */
#ifndef RH_TESTS_RUN_LANE_BOX_H
#define RH_TESTS_RUN_LANE_BOX_H

#include "modes/fluidpipe/fluidpipe.h"

static inline void lane_link_close(struct rh_link *link)
{
	(void)link;
}

static inline int lane_link_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	(void)link, (void)tag, (void)bytes, (void)size;
	return 0;
}

static inline int lane_link_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	(void)link, (void)tag, (void)bytes, (void)size;
	return 0;
}

static inline int lane_link_progress(struct rh_link *link, struct rh_link_progress *out)
{
	*out = (struct rh_link_progress){.sent = link->sends, .received = link->receives};
	return 0;
}

static inline int lane_link_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	(void)link, (void)sent, (void)received;
	return 0;
}

static inline void lane_link_abort(struct rh_link *link, const char *line)
{
	(void)link, (void)line;
}

static const struct rh_link_ops lane_link_ops = {.close = lane_link_close,
                                                 .send = lane_link_send,
                                                 .receive = lane_link_receive,
                                                 .progress = lane_link_progress,
                                                 .wait = lane_link_wait,
                                                 .abort = lane_link_abort};

struct lane_neighbours {
	struct rh_link below, above;
};

/* The session is this box's from now on, by its configuration; before it is planned. */
static inline int lane_box_join(struct rh_session *session, struct lane_neighbours *neighbours)
{
	int boxes = (int)session->config->boxes, number = (int)session->config->box - 1, layers = session->model->layers;
	neighbours->below.ops = neighbours->above.ops = &lane_link_ops;
	neighbours->below.is_virtual = neighbours->above.is_virtual = 1; /* no bytes are there */
	session->box = (struct rh_box){.boxes = boxes,
	                               .number = number,
	                               .lo = layers * number / boxes,
	                               .hi = layers * (number + 1) / boxes,
	                               .norm_share = 1,
	                               .link_below = number ? &neighbours->below : NULL,
	                               .link_above = number + 1 < boxes ? &neighbours->above : NULL};
	if (session->config->mode == RH_MODE_FLUIDPIPE)
		return rh_fluidpipe_take_part(session);
	rh_model_keep(session->model, session->box.lo, session->box.hi);
	return 0;
}

/* The norm of a step, as if the other boxes' gradients were zero. */
static inline int lane_box_norm(struct rh_updater *updater)
{
	int rc = rh_updater_squares(updater, NULL);
	if (!rc)
		rh_updater_give_norm(updater, 1);
	return rc;
}

#endif
