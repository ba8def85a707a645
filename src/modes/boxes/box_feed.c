#include "modes/boxes/box_feed.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "modes/boxes/box_step.h"

#include <string.h>

static struct box_feed_step *step_of(const struct box_feed *feed, int64_t step)
{
	return &feed->step[step % (feed->box->boxes + 2)];
}

int box_feed_open(struct box_feed *feed)
{
	feed->sent = feed->next = -1;
	feed->step = rh_alloc((size_t)feed->box->boxes + 2, sizeof *feed->step);
	return feed->step ? 0 : -ENOMEM;
}

void box_feed_free(struct box_feed *feed)
{
	for (int64_t i = 0; feed->step && i < feed->box->boxes + 2; i++)
		rh_free(feed->step[i].message);
	rh_free(feed->step);
	feed->step = NULL;
}

void box_feed_drop(struct box_feed *feed, int64_t step)
{
	rh_free(step_of(feed, step)->message);
	step_of(feed, step)->message = NULL;
}

/* Bytes of a step's message, which the message before it tells; of the first step they are there. */
static int find_bytes(struct box_feed *feed, int64_t step, int64_t *bytes)
{
	const struct box_feed_step *before = step_of(feed, step - 1);
	struct rh_link *below = feed->box->link_below;
	int is_first = feed->sent == step, rc = is_first ? 0 : below->ops->wait(below, 0, before->number);
	if (rc)
		return rc;
	if (feed->bytes_of)
		*bytes = feed->bytes_of(feed->context, step);
	else if (is_first)
		*bytes = step_of(feed, step)->bytes;
	else
		memcpy(bytes, before->message, sizeof *bytes);
	if (!rc && *bytes < (int64_t)sizeof *bytes)
		rc = rh_fail(-EPROTO, "box 1 speaks of %lld bytes of micro-batches", (long long)*bytes);
	return rc;
}

static int await(struct box_feed *feed, int64_t step)
{
	struct box_feed_step *at = step_of(feed, step);
	struct rh_link *below = feed->box->link_below;
	int64_t bytes;
	int rc = find_bytes(feed, step, &bytes);
	if (rc)
		return rc;
	rh_free(at->message); /* of a step that was left out */
	*at = (struct box_feed_step){.message = rh_alloc((size_t)bytes, 1), .bytes = bytes};
	rc = at->message ? rh_link_receive(below, box_tag_of(step, BOX_BATCHES), at->message, bytes) : -ENOMEM;
	at->number = below->receives;
	return rc;
}

/* Box 1's. The message before this one learns its size. */
static int make(struct box_feed *feed, int64_t step)
{
	struct box_feed_step *at = step_of(feed, step), *before = step_of(feed, step - 1);
	rh_free(at->message);
	*at = (struct box_feed_step){0};
	int rc = feed->make(feed->context, step, at);
	if (!rc && step > feed->sent && before->message)
		memcpy(before->message, &at->bytes, sizeof at->bytes);
	return rc;
}

static int add_next(struct box_feed *feed)
{
	return feed->box->number ? await(feed, feed->next) : make(feed, feed->next);
}

static int send(struct box_feed *feed, int64_t step)
{
	const struct box_feed_step *at = step_of(feed, step);
	struct rh_link *below = feed->box->link_below;
	int rc = below ? below->ops->wait(below, 0, at->number) : 0;
	return rc ? rc : rh_box_give(feed->box, feed->box->link_above, box_tag_of(step, BOX_BATCHES), at->message, at->bytes);
}

/* The size of the first message. */
static int begin(struct box_feed *feed, int64_t step)
{
	struct box_feed_step *at = step_of(feed, step);
	feed->sent = feed->next = step;
	int rc = feed->box->number ? 0 : make(feed, step);
	if (!rc)
		rc = rh_box_pass_up(feed->box, box_tag_of(step, BOX_SHAPES), &at->bytes, sizeof at->bytes);
	feed->next += !feed->box->number;
	return rc;
}

/* How many steps ahead this box sends a step's data. */
static int64_t depth_of(const struct box_feed *feed)
{
	return feed->box->boxes - 1 - feed->box->number;
}

static int add_up_to(struct box_feed *feed, int64_t step)
{
	int rc = 0;
	for (; !rc && feed->next <= rh_min(step + depth_of(feed) + 1, feed->steps - 1); feed->next += !rc)
		rc = add_next(feed);
	return rc;
}

int box_feed_expect(struct box_feed *feed, int64_t step, const char **message)
{
	struct rh_link *below = feed->box->link_below;
	int rc = add_up_to(feed, step);
	*message = step_of(feed, step)->message;
	return rc ? rc : below->ops->wait(below, 0, step_of(feed, step)->number);
}

int box_feed_step(struct box_feed *feed, int64_t step, const char **message)
{
	struct rh_link *below = feed->box->link_below;
	int64_t last = feed->steps - 1, depth = depth_of(feed);
	int rc = feed->sent < 0 ? begin(feed, step) : 0;
	if (!rc)
		rc = add_up_to(feed, step);
	for (; !rc && feed->sent <= rh_min(step + depth, last); feed->sent += !rc)
		rc = send(feed, feed->sent);
	if (!rc && below)
		rc = below->ops->wait(below, 0, step_of(feed, step)->number);
	*message = step_of(feed, step)->message;
	return rc;
}
