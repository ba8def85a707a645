#include "modes/boxes/box_table.h"

#include "core/alloc.h"
#include "core/hooks.h"
#include "core/minmax.h"

#include <stdlib.h>

/* Bytes of a piece, and how many pieces may be in flight in each direction of a link: 16 MiB, which 1 Gbit/s carries in 134 ms. */
enum { PIECE_BYTES = 1 << 20, PIECES = 16 };

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

/* At an end: its only link goes towards the other one. */
static int swap(struct rh_session *session, int b, uint64_t tag)
{
	struct rh_box *box = &session->box;
	struct rh_link *link = box->link_above ? box->link_above : box->link_below;
	int own = rh_shared_use(session->model->block[b].shared);
	const char *mine = (const char *)rh_store_sum(session->store, b, own);
	char *theirs = (char *)rh_store_sum(session->store, b, !own);
	int64_t sends = link->sends, receives = link->receives, pieces = 0;
	for (int64_t first = 0; first < box->table_bytes; first += box->piece_bytes, pieces++) {
		int rc = await(link, sends, receives, pieces - PIECES + 1, pieces - PIECES + 1);
		if (!rc)
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
static int pass_on(struct rh_box *box, uint64_t tag)
{
	enum { AHEAD = PIECES / 2 };
	int64_t pieces = (box->table_bytes + box->piece_bytes - 1) / box->piece_bytes;
	char *second = box->relay ? box->relay + box_table_relay_bytes(box) / 2 : NULL;
	const struct relay way[2] = {{box, box->link_below, box->link_above, box->relay, box->link_below->receives, box->link_above->sends},
	                             {box, box->link_above, box->link_below, second, box->link_above->receives, box->link_below->sends}};
	int nearer = box->number > box->boxes - 1 - box->number, rc = 0;
	for (int64_t turn = 0; !rc && turn < pieces + AHEAD; turn++)
		for (int i = 0; !rc && i < 2; i++) {
			const struct relay *relay = &way[i ? !nearer : nearer];
			if (turn < pieces)
				rc = expect_piece(relay, turn, tag);
			if (!rc && turn >= AHEAD)
				rc = pass_on_piece(relay, turn - AHEAD, tag);
		}
	for (int i = 0; !rc && i < 2; i++)
		rc = await(way[i].to, way[i].sends, 0, pieces, 0);
	return rc;
}

int box_table_exchange(struct rh_session *session, uint64_t tag)
{
	int b = rh_model_shared_block(session->model);
	if (!session->box.table_bytes)
		return 0;
	int rc = b < 0 ? pass_on(&session->box, tag) : swap(session, b, tag);
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
