#include "modes/boxes/box.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/text.h"
#include "link/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A message on its way: `number` of its link. */
struct rh_box_letter {
	struct rh_box_letter *next;
	const struct rh_link *link;
	int64_t number;
	char bytes[];
};

int rh_box_cuts(const struct rh_config *config, int layers, int *first)
{
	int boxes = (int)config->boxes;
	RH_ASSERT((int)config->box_cuts.count == boxes - 1);
	first[0] = 0;
	first[boxes] = layers;
	for (int k = 1; k < boxes; k++)
		first[k] = atoi(config->box_cuts.item[k - 1]);
	if (first[boxes - 1] >= layers)
		return rh_fail(-EINVAL, "box_cuts: %d is not a layer of this model; they are 0 (embedding) to %d (head)", first[boxes - 1],
		               layers - 1);
	return 0;
}

/* What a link to the box below, or above, needs. */
struct side {
	const char *address, *peer;
	int lower; /* box of the two */
	struct rh_link **link;
};

static int open_link(const struct rh_config *config, const struct side *side, const char *greeting)
{
	int box = (int)config->box - 1, way = side->lower != box;
	double mbit = rh_config_link(config, &config->link_mbit_per_second, side->lower, way);
	const struct rh_transport_options options = {
	        .box = box,
	        .neighbour = side->lower == box ? box + 1 : side->lower,
	        .address = side->address,
	        .identity = config->link_identity,
	        .peer = side->peer,
	        .device = config->device,
	        .greeting = greeting,
	        .messages = RH_BOX_MESSAGES,
	        .bytes_per_s = mbit * 1e6 / 8,
	        .timing = {.timeout_ns = (int64_t)(config->link_timeout * 1e9), .give_up_ns = (int64_t)(config->link_give_up * 1e9)}};
	return rh_transport_open(config->link_transport, &options, side->link);
}

/* Both ends greet alike, so both name the same link by its lower box. */
static int greeting_of(const struct rh_config *config, const char *model, int lower, struct rh_text *out)
{
	int rc = rh_text_printf(out, "boxes linked=%d and %d\n%s", lower + 1, lower + 2, model);
	return rc ? rc : rh_config_print_shared(config, out);
}

/* Letters of a link that is closed. */
static void forget_link(struct rh_box *box, const struct rh_link *link)
{
	for (struct rh_box_letter **at = &box->letter, *letter; (letter = *at);) {
		if (letter->link != link) {
			at = &letter->next;
			continue;
		}
		*at = letter->next;
		rh_free(letter);
	}
}

/* A byte each way: both ends are there, and greet alike. */
static int say_hello(struct rh_box *box, struct rh_link *link)
{
	char hello = 1, theirs;
	int rc = rh_link_receive(link, 0, &theirs, 1);
	if (!rc)
		rc = rh_box_give(box, link, 0, &hello, 1);
	return rc ? rc : link->ops->wait(link, link->sends, link->receives);
}

static int meet(const struct rh_config *config, struct rh_box *box, const struct side *side)
{
	int rc = say_hello(box, *side->link), is_lower = side->lower == box->number;
	struct rh_link_line line;
	if (rc || !rh_transport_traits(config->link_transport).measures_line)
		return rc;
	rc = rh_link_probe(*side->link, is_lower, &line);
	if (!rc && is_lower)
		box->line_above = line;
	return rc;
}

static int meet_neighbour(const struct rh_config *config, const char *model, const struct side *side, struct rh_box *box)
{
	struct rh_text greeting = {0};
	int rc = greeting_of(config, model, side->lower, &greeting);
	if (!rc)
		rc = open_link(config, side, greeting.bytes);
	if (!rc)
		rc = meet(config, box, side);
	rh_text_free(&greeting);
	return rc;
}

static void leave_neighbour(struct rh_box *box, const struct side *side)
{
	rh_link_close(*side->link);
	forget_link(box, *side->link);
	*side->link = NULL;
}

static int has_gone(int rc)
{
	return rc == -ESTALE || rc == -ECONNRESET;
}

/* A neighbour that is started again while this box waits for it, or for the other one, is met anew: whenever one has been met, or has gone,
 * all are looked at again. */
static int meet_each(const struct rh_config *config, const char *model, const struct side *side, int sides, struct rh_box *box)
{
	struct rh_link_progress progress;
	for (int i = 0; i < sides;) {
		struct rh_link *link = *side[i].link;
		int rc = link ? link->ops->progress(link, &progress) : meet_neighbour(config, model, &side[i], box);
		if (rc && !has_gone(rc))
			return rc;
		if (rc)
			leave_neighbour(box, &side[i]);
		i = link && !rc ? i + 1 : 0;
	}
	return 0;
}

/* A box that has met its neighbours may have lost one of them since then: none goes on before all have passed a byte up and down. */
static int meet_all(const struct rh_config *config, const char *model, const struct side *side, int sides, struct rh_box *box)
{
	char ready = 1;
	for (;;) {
		int rc = meet_each(config, model, side, sides, box);
		if (rc)
			return rc;
		rc = rh_box_pass_up(box, 0, &ready, 1);
		if (!rc)
			rc = rh_box_pass_down(box, 0, &ready, 1);
		if (!has_gone(rc))
			return rc;
		for (int i = 0; i < sides; i++) /* what they said is of a round that not all took part in */
			leave_neighbour(box, &side[i]);
	}
}

int rh_box_open(const struct rh_config *config, const char *model, struct rh_box *out)
{
	int number = (int)config->box - 1, boxes = (int)config->boxes;
	*out = (struct rh_box){.boxes = boxes, .number = number};
	const struct side below = {config->link_below, config->link_peer_below, number - 1, &out->link_below},
	                  above = {config->link_above, config->link_peer_above, number, &out->link_above};
	const struct side side[] = {number ? below : above, above};
	int sides = (number > 0) + (number + 1 < boxes);
	rh_note("box %d of %d: waiting for its neighbour%s", number + 1, boxes, sides > 1 ? "s" : "");
	int rc = meet_all(config, model, side, sides, out);
	if (rc)
		rh_box_close(out, rc);
	return rc;
}

/* Letters of the link that the peer has. */
static int forget_letters(struct rh_box *box, struct rh_link *link)
{
	struct rh_link_progress progress;
	int rc = link->ops->progress(link, &progress);
	for (struct rh_box_letter **at = &box->letter, *letter; !rc && (letter = *at);) {
		if (letter->link != link || letter->number > progress.sent) {
			at = &letter->next;
			continue;
		}
		*at = letter->next;
		rh_free(letter);
	}
	return rc;
}

void rh_box_close(struct rh_box *box, int rc)
{
	struct rh_link *const links[] = {box->link_below, box->link_above};
	char line[RH_ERROR_LINE];
	snprintf(line, sizeof line, "%s", rc ? rh_error(rc) : "");
	for (int i = 0; i < 2; i++) {
		if (links[i] && rc)
			links[i]->ops->abort(links[i], line);
		else if (links[i] && links[i]->ops->wait(links[i], links[i]->sends, 0))
			rh_error_clear(); /* the peer is gone: it has all that it wants */
		rh_link_close(links[i]);
	}
	for (struct rh_box_letter *letter = box->letter, *next; letter; letter = next) {
		next = letter->next;
		rh_free(letter);
	}
	rh_free(box->relay);
	if (rc)
		(void)!rh_fail(rc, "%s", line);
	*box = (struct rh_box){0};
}

int rh_box_take(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	if (!link || !size)
		return 0;
	int rc = rh_link_receive(link, tag, bytes, size);
	return rc ? rc : link->ops->wait(link, 0, link->receives);
}

int rh_box_give(struct rh_box *box, struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	if (!link || !size)
		return 0;
	int64_t before = link->sends + 1 - RH_BOX_MESSAGES; /* as many adapters as a model has are more than a link takes at once */
	int rc = before > 0 ? link->ops->wait(link, before, 0) : 0;
	if (!rc)
		rc = forget_letters(box, link);
	struct rh_box_letter *letter = rc ? NULL : rh_alloc(1, sizeof *letter + (size_t)size);
	if (!letter)
		return rc ? rc : -ENOMEM;
	memcpy(letter->bytes, bytes, (size_t)size);
	*letter = (struct rh_box_letter){.next = box->letter, .link = link, .number = link->sends + 1};
	box->letter = letter;
	return rh_link_send(link, tag, letter->bytes, size);
}

int rh_box_pass_up(struct rh_box *box, uint64_t tag, void *bytes, int64_t size)
{
	int rc = rh_box_take(box->link_below, tag, bytes, size);
	return rc ? rc : rh_box_give(box, box->link_above, tag, bytes, size);
}

int rh_box_pass_down(struct rh_box *box, uint64_t tag, void *bytes, int64_t size)
{
	int rc = rh_box_take(box->link_above, tag, bytes, size);
	return rc ? rc : rh_box_give(box, box->link_below, tag, bytes, size);
}
