#include "modes/boxes/box_stretch.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/minmax.h"
#include "modes/boxes/box_data.h"
#include "modes/boxes/box_letters.h"

#include <math.h>
#include <string.h>

/* Messages of a step on their way. */
struct box_step {
	char *data; /* the message: size of the data `ahead.data` steps later, 0: there are none; shapes; arrays */
	int64_t data_bytes;
	int data_taken, data_sent; /* by this box; by the box above, or there is none */
	char *results;             /* the message, which may be sent on when the step's place in the flights is another step's */
	int64_t results_bytes;
	int results_taken, results_sent; /* likewise; by the box below */
	struct box_squares squares, sent;
};

struct box_stretch {
	struct box_letters letters;
	struct rh_mode_run *run;
	struct box_step *step; /* step s is number s mod `steps` */
	int64_t steps;
	int64_t until, made;        /* box 1: the first step that is of another stretch; data are made of steps below */
	int64_t *next_bytes;        /* (ahead.data): of the first steps */
	struct box_results results; /* the newest */
};

/* The data of a step wait at box 1 from when the step `ahead` before tells their size; at others until their step begins and they are sent
 * on. */
static int64_t steps_kept(const struct rh_session *session)
{
	struct rh_boxes_ahead ahead = box_ahead_of(session);
	return rh_max(3 * ahead.data + 3, ahead.shares + 2);
}

static struct box_step *step_of(const struct box_stretch *stretch, int64_t step)
{
	return &stretch->step[step % stretch->steps];
}

static int64_t header_bytes(const struct rh_mode_run *run)
{
	return box_data_header_bytes(run->flights->micro_batches);
}

static void forget_data(struct box_step *at)
{
	if (!at->data_taken || !at->data_sent)
		return;
	rh_free(at->data);
	at->data = NULL;
}

static void forget_results(struct box_step *at)
{
	if (!at->results_taken || !at->results_sent)
		return;
	rh_free(at->results);
	at->results = NULL;
}

static int new_data(const struct box_stretch *stretch, int64_t step, int64_t bytes)
{
	struct box_step *at = step_of(stretch, step);
	at->data = rh_alloc((size_t)bytes, 1);
	at->data_bytes = bytes;
	at->data_taken = 0;
	at->data_sent = !stretch->run->session->box.link_above;
	return at->data ? 0 : -ENOMEM;
}

/* ---- box 1 ---- */

/* Makes the data of the next step, or ends the stretch before it. 1: done; 0: it cannot be yet, or is not wanted. */
static int make_next(struct box_stretch *stretch)
{
	struct rh_mode_run *run = stretch->run;
	int64_t step = stretch->made;
	const struct box_requests *asked = &stretch->results.requests;
	int rests = asked->stop || asked->save || asked->rest || run->rest_requested;
	if (step >= stretch->until || (rests && step > stretch->letters.first)) {
		stretch->letters.last = step - 1;
		return 1;
	}
	if (step_of(stretch, step)->data)
		return 0;
	struct box_step *at = step_of(stretch, step);
	int rc = box_data_make(run, step, &at->data, &at->data_bytes);
	if (rc)
		return rc;
	at->data_taken = 1; /* it makes them anew when the step begins */
	at->data_sent = !run->session->box.link_above;
	stretch->made++;
	return 1;
}

/* Is it known whether there is such a step? */
static int decides(struct box_stretch *stretch, int64_t step)
{
	int rc = 1;
	while (rc > 0 && stretch->made <= step && stretch->letters.last == INT64_MAX)
		rc = make_next(stretch);
	return rc;
}

/* 1: the message of the step's data is complete. */
static int complete(struct box_stretch *stretch, int64_t step)
{
	int64_t later = step + stretch->letters.ahead.data;
	int rc = decides(stretch, later), is_there = later <= stretch->letters.last;
	if (rc > 0)
		*(int64_t *)(void *)step_of(stretch, step)->data = is_there ? step_of(stretch, later)->data_bytes : 0;
	return rc;
}

/* ---- messages ---- */

static int data_bytes(struct box_stretch *stretch, const struct rh_letter *letter, void **bytes, int64_t *size)
{
	struct box_step *at = step_of(stretch, letter->step);
	int rc = 1;
	if (letter->way == RH_LETTER_TO_ABOVE && !stretch->run->session->box.number)
		rc = complete(stretch, letter->step);
	if (letter->way == RH_LETTER_FROM_BELOW) {
		if (at->data)
			return 0;
		rc = new_data(stretch, letter->step, at->data_bytes);
		rc = rc ? rc : 1;
	}
	*bytes = at->data;
	*size = at->data_bytes;
	return rc;
}

/* Those of the boxes below, and this one's. */
static void add_squares(struct box_stretch *stretch, int64_t step)
{
	const struct rh_mode_run *run = stretch->run;
	struct box_step *at = step_of(stretch, step);
	double own = rh_flight_of(run->flights, step)->norm;
	at->sent = run->session->box.number ? at->squares : (struct box_squares){.saved = INT64_MAX};
	at->sent.sum += own * own;
	box_squares_ask(run, &at->sent);
}

static int squares_bytes(struct box_stretch *stretch, const struct rh_letter *letter, void **bytes, int64_t *size)
{
	struct box_step *at = step_of(stretch, letter->step);
	int is_sent = letter->way == RH_LETTER_TO_ABOVE;
	if (is_sent)
		add_squares(stretch, letter->step);
	*bytes = is_sent ? &at->sent : &at->squares;
	*size = sizeof at->squares;
	return 1;
}

static int new_results(const struct box_stretch *stretch, int64_t step)
{
	struct box_step *at = step_of(stretch, step);
	at->results_bytes = box_results_bytes(stretch->run, step);
	at->results = rh_alloc((size_t)at->results_bytes, 1);
	at->results_taken = 0;
	at->results_sent = !stretch->run->session->box.link_below;
	return at->results ? 0 : -ENOMEM;
}

static int results_bytes(struct box_stretch *stretch, const struct rh_letter *letter, void **bytes, int64_t *size)
{
	struct box_step *at = step_of(stretch, letter->step);
	int is_new = letter->way == RH_LETTER_FROM_ABOVE, rc = 0;
	if (is_new && at->results)
		return 0;
	if (is_new)
		rc = new_results(stretch, letter->step);
	*bytes = at->results;
	*size = at->results_bytes;
	return rc ? rc : 1;
}

static int bytes_of(void *context, const struct rh_letter *letter, void **bytes, int64_t *size)
{
	struct box_stretch *stretch = context;
	switch ((enum box_message)letter->kind) {
	case BOX_BATCHES:
		return data_bytes(stretch, letter, bytes, size);
	case BOX_SQUARES:
		return squares_bytes(stretch, letter, bytes, size);
	default:
		return results_bytes(stretch, letter, bytes, size);
	}
}

/* A norm of zero or none says nothing of shares. */
static void note_norm(struct rh_mode_run *run, int64_t step, double norm)
{
	double *own = &rh_flight_of(run->flights, step)->norm;
	rh_run_state_share(run->state, step, norm > 0 && isfinite(norm) && *own > 0 ? *own / norm : 0);
	*own = norm;
}

static int results_come(struct box_stretch *stretch, int64_t step)
{
	struct rh_mode_run *run = stretch->run;
	struct box_step *at = step_of(stretch, step);
	if (run->session->box.link_above) {
		box_results_pack(run, step, &stretch->results, at->results, BOX_PACK_IN);
	} else {
		int rc = new_results(stretch, step);
		if (rc)
			return rc;
		add_squares(stretch, step);
		stretch->results = box_results_of(&at->sent);
		box_results_pack(run, step, &stretch->results, at->results, BOX_PACK_OUT);
	}
	note_norm(run, step, stretch->results.norm);
	at->results_taken = 1;
	forget_results(at);
	return run->tell(run->context, step);
}

/* The end of the stretch is known from the size that is not there. */
static int data_come(struct box_stretch *stretch, int64_t step)
{
	struct box_letters *letters = &stretch->letters;
	int64_t later = step + letters->ahead.data, bytes;
	memcpy(&bytes, step_of(stretch, step)->data, sizeof bytes);
	if (bytes && bytes < header_bytes(stretch->run))
		return rh_fail(-EPROTO, "box 1 speaks of %lld bytes of micro-batches", (long long)bytes);
	if (!bytes)
		letters->last = rh_min(letters->last, later - 1);
	else
		step_of(stretch, later)->data_bytes = bytes;
	return 0;
}

static int come(void *context, enum box_message kind, int64_t step)
{
	struct box_stretch *stretch = context;
	if (kind == BOX_BATCHES)
		return data_come(stretch, step);
	return kind == BOX_RESULTS ? results_come(stretch, step) : 0;
}

static int gone(void *context, enum box_message kind, int64_t step)
{
	struct box_step *at = step_of(context, step);
	at->data_sent |= kind == BOX_BATCHES;
	at->results_sent |= kind == BOX_RESULTS;
	if (kind == BOX_BATCHES)
		forget_data(at);
	if (kind == BOX_RESULTS)
		forget_results(at);
	return 0;
}

/* ---- steps ---- */

int box_stretch_reserve(struct rh_mode_run *run, struct box_stretch **out)
{
	struct box_stretch *stretch = *out = rh_alloc(1, sizeof *stretch);
	if (!stretch)
		return -ENOMEM;
	struct rh_boxes_ahead ahead = box_ahead_of(run->session);
	*stretch = (struct box_stretch){.run = run, .steps = steps_kept(run->session)};
	stretch->letters = (struct box_letters){
	        .box = &run->session->box, .ahead = ahead, .bytes_of = bytes_of, .come = come, .gone = gone, .context = stretch};
	stretch->step = rh_alloc((size_t)stretch->steps, sizeof *stretch->step);
	stretch->next_bytes = rh_alloc((size_t)ahead.data, sizeof *stretch->next_bytes);
	if (ahead.shares > RH_NORM_SHARES)
		return rh_fail(-EINVAL, "admission_limits: box 1's have %lld steps in flight before a step's norm is known, at most %d are",
		               (long long)ahead.shares, RH_NORM_SHARES);
	return stretch->step && stretch->next_bytes ? 0 : -ENOMEM;
}

void box_stretch_free(struct box_stretch *stretch)
{
	for (int64_t i = 0; stretch && stretch->step && i < stretch->steps; i++) {
		rh_free(stretch->step[i].data);
		rh_free(stretch->step[i].results);
	}
	if (stretch) {
		rh_free(stretch->next_bytes);
		rh_free(stretch->step);
	}
	rh_free(stretch);
}

/* The sizes of the first steps' data. */
static int share_sizes(struct box_stretch *stretch)
{
	struct rh_mode_run *run = stretch->run;
	struct box_letters *letters = &stretch->letters;
	int64_t ahead = letters->ahead.data, first = letters->first;
	int is_first = !run->session->box.number, rc = is_first ? decides(stretch, first + ahead - 1) : 1;
	if (rc <= 0)
		return rc ? rc : -EPROTO;
	for (int64_t i = 0; is_first && i < ahead; i++)
		stretch->next_bytes[i] = first + i <= letters->last ? step_of(stretch, first + i)->data_bytes : 0;
	rc = rh_box_pass_up(&run->session->box, box_tag_of(first, BOX_STRETCH), stretch->next_bytes, ahead * (int64_t)sizeof(int64_t));
	for (int64_t i = 0; !rc && !is_first && i < ahead; i++) {
		int64_t bytes = stretch->next_bytes[i];
		if (!bytes && i)
			letters->last = rh_min(letters->last, first + i - 1);
		else if (bytes < header_bytes(run) || letters->last < first + i)
			rc = rh_fail(-EPROTO, "box 1 speaks of %lld bytes of micro-batches", (long long)bytes);
		else
			rc = new_data(stretch, first + i, bytes);
	}
	return rc;
}

/* And these data, as one message. */
static int share_first(struct box_stretch *stretch)
{
	struct rh_mode_run *run = stretch->run;
	struct box_letters *letters = &stretch->letters;
	int64_t first = letters->first, end = rh_min(first + letters->ahead.data - 1, letters->last) + 1, bytes = 0;
	int is_first = !run->session->box.number, rc = 1;
	for (int64_t s = first; rc > 0 && is_first && s < end; s++)
		rc = complete(stretch, s);
	if (rc <= 0)
		return rc ? rc : -EPROTO;
	for (int64_t s = first; s < end; s++)
		bytes += step_of(stretch, s)->data_bytes;
	char *message = rh_alloc((size_t)bytes, 1), *at = message;
	if (!message)
		return -ENOMEM;
	for (int64_t s = first; is_first && s < end; at += step_of(stretch, s++)->data_bytes)
		memcpy(at, step_of(stretch, s)->data, (size_t)step_of(stretch, s)->data_bytes);
	rc = rh_box_pass_up(&run->session->box, box_tag_of(first, BOX_SHAPES), message, bytes);
	at = message;
	for (int64_t s = first; !rc && s < end; at += step_of(stretch, s++)->data_bytes) {
		memcpy(step_of(stretch, s)->data, at, (size_t)step_of(stretch, s)->data_bytes);
		step_of(stretch, s)->data_sent = 1;
		if (!is_first)
			rc = data_come(stretch, s);
		forget_data(step_of(stretch, s));
	}
	rh_free(message);
	return rc;
}

int box_stretch_begin(struct rh_mode_run *run, int64_t until, int64_t *count, const struct rh_letters **letters)
{
	struct box_stretch *stretch = run->own;
	int64_t first = run->state->step;
	int is_first = !run->session->box.number;
	for (int64_t i = 0; i < stretch->steps; i++) { /* of a stretch before, which a fault or a return may have ended */
		struct box_step *at = &stretch->step[i];
		rh_free(at->data);
		rh_free(at->results);
		*at = (struct box_step){0};
	}
	box_letters_begin(&stretch->letters, first);
	stretch->until = is_first ? until : INT64_MAX;
	stretch->made = first;
	stretch->results.requests = (struct box_requests){0};
	run->rest_requested = 0;
	int rc = share_sizes(stretch);
	if (!rc)
		rc = share_first(stretch);
	if (!rc && !is_first)
		*count = box_data_count(step_of(stretch, first)->data);
	*letters = &stretch->letters.letters;
	return rc;
}

int64_t box_stretch_data(struct rh_mode_run *run, int64_t step)
{
	struct box_stretch *stretch = run->own;
	struct box_letters *letters = &stretch->letters;
	int is_first = !run->session->box.number, rc = is_first ? decides(stretch, step + letters->ahead.data) : 1;
	if (rc < 0 || step > letters->last)
		return rc < 0 ? rc : 0;
	if (!rc || !box_letters_may_begin(letters, step))
		return -EAGAIN;
	if (is_first)
		return rh_flights_fill(run->flights, run->session, run->data, step);
	struct box_step *at = step_of(stretch, step);
	int64_t count = box_data_take(run, step, at->data);
	at->data_taken = 1;
	forget_data(at);
	return count;
}

void box_stretch_ended(struct rh_mode_run *run, int64_t step)
{
	struct box_stretch *stretch = run->own;
	stretch->letters.ended = step + 1;
}

int box_stretch_rest(struct rh_mode_run *run, int64_t first, int64_t steps)
{
	struct box_stretch *stretch = run->own;
	RH_ASSERT(stretch->letters.results_here == first + steps);
	box_results_heed(run, &stretch->results);
	return 0;
}
