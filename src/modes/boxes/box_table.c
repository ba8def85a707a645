#include "modes/boxes/box_table.h"

#include "core/alloc.h"
#include "core/hooks.h"
#include "core/minmax.h"

#include <stdlib.h>

/* Bytes of a piece, and how many pieces may be in flight in each direction of a link: 16 MiB, which 1 Gbit/s carries in 134 ms. */
enum { PIECE_BYTES = 1 << 20, PIECES = BOX_TABLE_FIRST, RELAYED = PIECES / 2 /* expected ahead of when they are passed on */ };

void box_table_note(struct rh_session *session)
{
	const struct rh_model *model = session->model;
	const char *text = getenv(RH_HOOK_PIECE_BYTES);
	int64_t asked = text ? strtol(text, NULL, 10) : 0;
	session->box.piece_bytes = asked > 0 ? asked : PIECE_BYTES;
	session->box.table_bytes = 0;
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].uses == 2 && model->block[b].trainable)
			session->box.table_bytes = model->block[b].elements * (int64_t)sizeof(float);
}

static int is_between(const struct rh_box *box)
{
	return box->number > 0 && box->number + 1 < box->boxes;
}

int64_t box_table_relay_bytes(const struct rh_box *box)
{
	return is_between(box) ? 2 * rh_min(box->table_bytes, PIECES * box->piece_bytes) : 0;
}

int box_table_reserve(struct rh_session *session)
{
	struct rh_box *box = &session->box;
	int64_t bytes = box_table_relay_bytes(box);
	if (bytes && !session->machine)
		box->relay = rh_alloc((size_t)bytes, 1);
	return bytes && !session->machine && !box->relay ? -ENOMEM : 0;
}

/* The last piece may be shorter. */
static int64_t bytes_of(const struct rh_box *box, int64_t piece)
{
	return rh_min(box->table_bytes - piece * box->piece_bytes, box->piece_bytes);
}

/* Waits until that many messages of the exchange are sent and received; `sends` and `receives`: the link's counts before it. */
static int await(struct rh_link *link, int64_t sends, int64_t receives, int64_t sent, int64_t received)
{
	return link->ops->wait(link, sent > 0 ? sends + sent : 0, received > 0 ? receives + received : 0);
}

static int64_t pieces_of(const struct rh_box *box)
{
	return (box->table_bytes + box->piece_bytes - 1) / box->piece_bytes;
}

static int64_t first_of(const struct rh_box *box)
{
	return rh_min(pieces_of(box), is_between(box) ? RELAYED : PIECES);
}

int box_table_is_first(const struct rh_session *session)
{
	return first_of(&session->box) == pieces_of(&session->box);
}

/* Where an end receives the other one's sum. */
static char *theirs_of(const struct rh_session *session, int b)
{
	return (char *)rh_store_sum(session->store, b, !rh_shared_use(session->model->block[b].shared));
}

int box_table_first(const struct rh_session *session, enum rh_letter_way way, uint64_t tag, struct rh_follower *out)
{
	const struct rh_box *box = &session->box;
	int is_below = way == RH_LETTER_FROM_BELOW, b = rh_model_shared_block(session->model);
	if (!box->table_bytes || !(is_below ? box->link_below : box->link_above))
		return 0;
	char *to = b >= 0 ? theirs_of(session, b) : box->relay;
	if (b < 0 && to && !is_below)
		to += box_table_relay_bytes(box) / 2;
	for (int64_t piece = 0; piece < first_of(box); piece++)
		out[piece] = (struct rh_follower){tag, to ? to + piece * box->piece_bytes : NULL, bytes_of(box, piece)};
	return (int)first_of(box);
}

/* At an end: its only link goes towards the other one. */
static int swap(struct rh_session *session, int b, uint64_t tag, const int64_t before[])
{
	struct rh_box *box = &session->box;
	struct rh_link *link = box->link_above ? box->link_above : box->link_below;
	const char *mine = (const char *)rh_store_sum(session->store, b, rh_shared_use(session->model->block[b].shared));
	char *theirs = theirs_of(session, b);
	int64_t sends = link->sends, receives = before[box->link_above ? RH_LETTER_FROM_ABOVE : RH_LETTER_FROM_BELOW], pieces = 0;
	for (int64_t first = 0; first < box->table_bytes; first += box->piece_bytes, pieces++) {
		int rc = await(link, sends, receives, pieces - PIECES + 1, pieces - PIECES + 1);
		if (!rc && pieces >= first_of(box))
			rc = rh_link_receive(link, tag, theirs + first, bytes_of(box, pieces));
		if (!rc)
			rc = rh_link_send(link, tag, mine + first, bytes_of(box, pieces));
		if (rc)
			return rc;
	}
	box->table_sent = link->sends;
	return await(link, sends, receives, 0, pieces);
}

/* One direction through a box between the ends. */
struct relay {
	const struct rh_box *box;
	struct rh_link *from, *to;
	char *room;              /* of PIECES pieces; NULL: the links are virtual */
	int64_t receives, sends; /* the links' counts before the exchange */
};

static char *place_of(const struct relay *relay, int64_t piece)
{
	return relay->room ? relay->room + piece % PIECES * relay->box->piece_bytes : NULL;
}

/* Its place is free once the piece that lay there is with the peer. */
static int expect_piece(const struct relay *relay, int64_t piece, uint64_t tag)
{
	if (piece < first_of(relay->box))
		return 0;
	int rc = await(relay->to, relay->sends, 0, piece - PIECES + 1, 0);
	return rc ? rc : rh_link_receive(relay->from, tag, place_of(relay, piece), bytes_of(relay->box, piece));
}

static int pass_on_piece(const struct relay *relay, int64_t piece, uint64_t tag)
{
	int rc = await(relay->from, 0, relay->receives, 0, piece + 1);
	return rc ? rc : rh_link_send(relay->to, tag, place_of(relay, piece), bytes_of(relay->box, piece));
}

/* The pieces of both directions in turn, those first that come from the nearer end; each is expected half of the room ahead of when it is
 * passed on. Returns when none needs its place any more. */
static int pass_on(struct rh_box *box, uint64_t tag, const int64_t before[])
{
	int64_t pieces = pieces_of(box), below = before[RH_LETTER_FROM_BELOW], above = before[RH_LETTER_FROM_ABOVE];
	char *second = box->relay ? box->relay + box_table_relay_bytes(box) / 2 : NULL;
	const struct relay way[2] = {{box, box->link_below, box->link_above, box->relay, below, box->link_above->sends},
	                             {box, box->link_above, box->link_below, second, above, box->link_below->sends}};
	int nearer = box->number > box->boxes - 1 - box->number, rc = 0;
	for (int64_t turn = 0; !rc && turn < pieces + RELAYED; turn++)
		for (int i = 0; !rc && i < 2; i++) {
			const struct relay *relay = &way[i ? !nearer : nearer];
			if (turn < pieces)
				rc = expect_piece(relay, turn, tag);
			if (!rc && turn >= RELAYED)
				rc = pass_on_piece(relay, turn - RELAYED, tag);
		}
	for (int i = 0; !rc && i < 2; i++)
		rc = await(way[i].to, way[i].sends, 0, pieces, 0);
	return rc;
}

int box_table_exchange(struct rh_session *session, uint64_t tag, const int64_t before[])
{
	int b = rh_model_shared_block(session->model);
	if (!session->box.table_bytes)
		return 0;
	int rc = b < 0 ? pass_on(&session->box, tag, before) : swap(session, b, tag, before);
	if (!rc && b >= 0)
		rh_updater_completes(session->updater, b);
	return rc;
}

int box_table_settle(struct rh_session *session)
{
	struct rh_box *box = &session->box;
	struct rh_link *link = box->link_above ? box->link_above : box->link_below;
	return box->table_sent ? link->ops->wait(link, box->table_sent, 0) : 0;
}
