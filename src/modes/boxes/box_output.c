#include "modes/boxes/box_output.h"

#include "checkpoint/checkpoint.h"
#include "core/alloc.h"
#include "core/minmax.h"

enum { PIECE = 1 << 18 }; /* elements of a message */

/* Tensors of the whole adapter, on their way down. */
struct collecting {
	struct rh_session *session;
	struct rh_model *whole; /* its adapters alone */
	struct rh_store *store; /* theirs, in fp32; of box 0 */
	float *piece;
	uint64_t messages;
};

/* The whole model's adapters as blocks of their own, which nobody trains any more. */
static int make_whole(struct collecting *at)
{
	struct rh_session *session = at->session;
	const struct rh_store_options options = {.dtype = RH_F32};
	int rc = rh_model_create(session->model_config, RH_F32, &session->adapter.lora, &at->whole);
	if (rc)
		return rc;
	rh_model_keep_trained(at->whole);
	rh_model_freeze(at->whole);
	at->piece = rh_alloc(PIECE, sizeof *at->piece);
	if (!at->piece)
		return -ENOMEM;
	return session->box.number ? 0 : rh_store_create(at->whole->block, at->whole->blocks, &options, session->pool, &at->store);
}

/* This box's block of that number in the whole model; -1: another box has it. */
static int own_block(const struct rh_model *model, int number)
{
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].number == number)
			return b;
	return -1;
}

static int pass_tensor(struct collecting *at, int block, int tensor)
{
	struct rh_session *session = at->session;
	struct rh_box *box = &session->box;
	const struct rh_tensor *of = &at->whole->block[block].tensor[tensor];
	int own = own_block(session->model, at->whole->block[block].number), rc = 0;
	for (int64_t first = 0, all = of->rows * of->cols, count; !rc && first < all; first += count) {
		uint64_t tag = UINT64_MAX - at->messages++;
		count = rh_min(all - first, PIECE);
		int64_t bytes = count * (int64_t)sizeof *at->piece;
		rc = own >= 0 ? rh_store_get(session->store, own, tensor, first, count, at->piece)
		              : rh_box_take(box->link_above, tag, at->piece, bytes);
		if (!rc)
			rc = box->number ? rh_box_give(box, box->link_below, tag, at->piece, bytes)
			                 : rh_store_set(at->store, block, tensor, first, count, at->piece);
	}
	return rc;
}

/* From the highest layer down, as far as this box's lowest. */
static int pass_all(struct collecting *at)
{
	const struct rh_model *own = at->session->model;
	/* the box's first layer has it; a tied table, which the head uses too, is a lower block */
	int lowest = own->block[own->layer[0].block[0]].number, rc = 0;
	for (int b = at->whole->blocks - 1; !rc && b >= 0 && at->whole->block[b].number >= lowest; b--)
		for (int t = 0; !rc && t < at->whole->block[b].tensors; t++)
			rc = pass_tensor(at, b, t);
	return rc;
}

int64_t box_output_bytes(const struct rh_session *session)
{
	enum { TENSOR_PARTS = 32 }; /* alignment and what the store adds: a part in so many */
	const struct rh_box *box = &session->box;
	int64_t kept = box->number ? rh_min(box->trained, (int64_t)RH_BOX_MESSAGES * PIECE) : box->trained + box->trained / TENSOR_PARTS;
	return session->lora && rh_box_is_linked(box) ? (kept + PIECE) * (int64_t)sizeof(float) : 0;
}

int box_output_is_here(const struct rh_session *session)
{
	return !session->lora || !session->box.number;
}

int box_output_save(struct rh_session *session, const char *dir)
{
	struct collecting at = {.session = session};
	if (!session->lora)
		return rh_output_save(session, dir);
	int rc = make_whole(&at);
	if (!rc)
		rc = pass_all(&at);
	if (!rc && !session->box.number) {
		struct rh_session whole = *session;
		whole.model = at.whole;
		whole.store = at.store;
		rc = rh_output_save(&whole, dir);
	}
	rh_store_destroy(at.store);
	rh_model_destroy(at.whole);
	rh_free(at.piece);
	return rc;
}
