#include "modes/boxes/box_letters.h"

#include "core/minmax.h"

struct rh_boxes_ahead box_ahead_of(const struct rh_session *session)
{
	const struct rh_run_plan *plan = &session->plan;
	return rh_dispatch_ahead(session->admission_limit ? session->admission_limit[0] : session->box.boxes,
	                         rh_round_count(plan->executor.train_micro_batches, plan->boxes.unit));
}

/* The ways of a message of this kind in this box, in the order in which it passes. Returns how many. */
static int ways_of(const struct rh_box *box, enum box_message kind, enum rh_letter_way way[2])
{
	int is_down = kind == BOX_RESULTS, ways = 0;
	if (is_down ? box->link_above : box->link_below)
		way[ways++] = is_down ? RH_LETTER_FROM_ABOVE : RH_LETTER_FROM_BELOW;
	if (is_down ? box->link_below : box->link_above)
		way[ways++] = is_down ? RH_LETTER_TO_BELOW : RH_LETTER_TO_ABOVE;
	return ways;
}

/* Takes the message's letters from *i; 1: letter *i was one of them, and is in *out. */
static int takes(const struct box_letters *at, enum box_message kind, int64_t step, int *i, struct rh_letter *out)
{
	enum rh_letter_way way[2];
	int ways = ways_of(at->box, kind, way), is_here = *i < ways;
	if (is_here)
		*out = (struct rh_letter){.way = way[*i], .kind = (int)kind, .step = step};
	*i -= ways;
	return is_here;
}

static int letter_at(void *context, enum rh_letter_place place, int64_t step, int i, struct rh_letter *out)
{
	const struct box_letters *at = context;
	int64_t data = step + at->ahead.data, results = step - at->ahead.results;
	if (place == RH_LETTER_AHEAD)
		return (data <= at->last && takes(at, BOX_BATCHES, data, &i, out)) ||
		       (results >= at->first && takes(at, BOX_SQUARES, results, &i, out));
	if (place == RH_LETTER_BACKWARD)
		return results >= at->first && takes(at, BOX_RESULTS, results, &i, out);
	for (int64_t left = rh_max(at->first, results + 1); left <= step; left++)
		if (takes(at, BOX_SQUARES, left, &i, out) || takes(at, BOX_RESULTS, left, &i, out))
			return 1;
	return 0;
}

/* May a message go on from this box? */
static int may_send(struct box_letters *at, enum box_message kind, int64_t step)
{
	switch (kind) {
	case BOX_BATCHES:
		return !at->box->number || at->data_here > step;
	case BOX_SQUARES:
		return at->ended > step && (!at->box->number || at->squares_here > step);
	default:
		return at->box->link_above ? at->results_here > step : at->ended > step && at->squares_here > step;
	}
}

static int letter_open(void *context, const struct rh_letter *letter, uint64_t *tag, void **bytes, int64_t *size)
{
	struct box_letters *at = context;
	enum box_message kind = (enum box_message)letter->kind;
	int sends = letter->way == RH_LETTER_TO_BELOW || letter->way == RH_LETTER_TO_ABOVE;
	if (sends && !may_send(at, kind, letter->step))
		return 0;
	if (sends && kind == BOX_RESULTS && !at->box->link_above && at->results_here <= letter->step) { /* they begin here */
		at->results_here = letter->step + 1;
		int rc = at->come(at->context, kind, letter->step);
		if (rc)
			return rc;
	}
	*tag = box_tag_of(letter->step, kind);
	return at->bytes_of(at->context, letter, bytes, size);
}

static int letter_close(void *context, const struct rh_letter *letter)
{
	struct box_letters *at = context;
	enum box_message kind = (enum box_message)letter->kind;
	if (letter->way == RH_LETTER_TO_BELOW || letter->way == RH_LETTER_TO_ABOVE)
		return at->gone(at->context, kind, letter->step);
	*(kind == BOX_BATCHES ? &at->data_here : kind == BOX_SQUARES ? &at->squares_here : &at->results_here) = letter->step + 1;
	return at->come(at->context, kind, letter->step);
}

int box_letters_may_begin(const struct box_letters *at, int64_t step)
{
	int64_t known = step - at->ahead.shares;
	return (!at->box->number || at->data_here > step) && (known < at->first || at->results_here > known);
}

void box_letters_begin(struct box_letters *at, int64_t first)
{
	at->letters = (struct rh_letters){.at = letter_at, .open = letter_open, .close = letter_close, .context = at};
	at->first = at->ended = at->squares_here = at->results_here = first;
	at->data_here = first + at->ahead.data;
	at->last = INT64_MAX;
}
