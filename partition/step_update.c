/* The host's update within a step's recurrence: by gradients as they arrive, the most urgent layer first, or all as one; at what other
 * copies leave of the host's memory. */
#include "partition/step_internal.h"

#include "core/minmax.h"

#include <math.h>
#include <string.h>

/* What the update may move at t, and until when: less while that travels of which devices make weights, and what they made. */
static double rate_at(const struct stepping *at, double t, double *until)
{
	const struct rh_step_rates *rates = &at->request->rates;
	double left = t < at->last_s ? at->left_rate : rates->host_bytes_per_s, least = rates->host_bytes_per_s / 8;
	*until = t < at->last_s ? at->last_s : HUGE_VAL;
	for (int i = 0; i < SURGES; i++) {
		const struct surge *is = &at->surge[i];
		if (is->bytes <= 0 || t >= is->end)
			continue;
		left -= t >= is->begin ? is->bytes / (is->end - is->begin) : 0;
		*until = step_lesser(*until, t >= is->begin ? is->end : is->begin);
	}
	return step_lesser(rates->update_bytes_per_s, rh_max_double(left, least));
}

/* When the worker has moved so many bytes. A synchronous step's other copies are over when its arithmetic is. */
static double worked(const struct stepping *at, double t, double bytes)
{
	if (at->update_rate <= 0 || at->request->stale)
		return t + step_take(bytes, at->update_rate);
	for (;;) {
		double until, rate = rate_at(at, t, &until);
		if (rate <= 0 || t + bytes / rate <= until)
			return t + step_take(bytes, rate);
		bytes -= (until - t) * rate;
		t = until;
	}
}

/* One pass over so many parameters, from t on; it ends then. */
static double pass(struct stepping *at, double t, double parameters, double each)
{
	double bytes = parameters * each, end = worked(at, t, bytes);
	at->updated_bytes += bytes;
	at->worked_s += end - t;
	return end;
}

/* What the worker moves from t to end. */
static double moved(const struct stepping *at, double t, double end)
{
	double bytes = 0;
	if (at->request->stale)
		return at->update_rate * (end - t);
	for (double until; t < end; t = until) {
		double rate = rate_at(at, t, &until);
		until = fmin(until, end);
		bytes += rate * (until - t);
	}
	return bytes;
}

/* The same of what is left, until a gradient arrives: updates go by pieces, and what comes down meanwhile may be more urgent. */
static double pass_until(struct stepping *at, double t, double *parameters, double each, double arrives)
{
	double all = *parameters, end = worked(at, t, all * each);
	*parameters = end > arrives && each > 0 ? rh_max_double(all - moved(at, t, arrives) / each, 0) : 0;
	return *parameters > 0 ? pass(at, t, all - *parameters, each) : pass(at, t, all, each);
}

/* Of the layers in this state whose gradient is there by t, the first from the bottom or from the top; -1: none. *count: of them. */
static int first_of(const struct stepping *at, int state, double t, int from_top, int *count)
{
	int found = -1;
	*count = 0;
	for (int i = 0; i < at->layers; i++) {
		int l = from_top ? at->layers - 1 - i : i;
		if (at->state[l] != state || (state == COMING && at->arrived[l] > t))
			continue;
		found = found < 0 ? l : found;
		++*count;
	}
	return found;
}

/* What the host makes of a layer's weights, and what it owes then. */
static void begin_update(struct stepping *at, int l, int in_two)
{
	const struct rh_step_bytes *bytes = &at->request->bytes;
	double trained = step_trained_in(at, (struct rh_stage){l, l + 1}), made = step_made_in(at, (struct rh_stage){l, l + 1});
	at->owed[l] = in_two ? trained : made;
	at->left[l] = trained - made;
	at->each[l] = in_two ? bytes->weights : bytes->updated + bytes->published;
}

static void end_update(struct stepping *at, int l)
{
	at->state[l] = at->owed[l] > 0 ? HALF : DONE;
}

/* The next gradient that is to come after t. */
static double next_arrival(const struct stepping *at, double t)
{
	double next = HUGE_VAL;
	for (int l = 0; l < at->layers; l++)
		next = at->state[l] == COMING && at->arrived[l] > t && at->arrived[l] < next ? at->arrived[l] : next;
	return next;
}

/* The same where it takes no time, and each is whole: new weights are there as soon as their gradients are. */
static void update_at_once(struct stepping *at, double *gate)
{
	const struct rh_step_bytes *bytes = &at->request->bytes;
	double begun = at->worker_s;
	for (int l = 0; l < at->layers; l++) {
		struct rh_stage layer = {l, l + 1};
		double trained = step_trained_in(at, layer), made = step_made_in(at, layer), there = rh_max_double(begun, at->arrived[l]);
		gate[l] = made > 0 ? at->made_s[l] : 0;
		if (trained <= 0)
			continue;
		gate[l] = made < trained ? rh_max_double(gate[l], there) : gate[l];
		at->worker_s = rh_max_double(at->worker_s, there);
		at->updated_bytes +=
		        trained * bytes->taken + (trained - made) * (bytes->updated + bytes->published) + made * bytes->moments;
	}
}

/* One worker, as offload/updater_work.c has it: gradients are taken as they arrive, before all else; then the lowest layer that waits is
 * updated, its weights alone where others wait or nothing is to come; moments when nothing waits. */
void step_update_as_they_arrive(struct stepping *at, double *gate)
{
	const struct rh_step_bytes *bytes = &at->request->bytes;
	double t = at->worker_s;
	int coming = 0, count, l;
	if (at->update_rate <= 0 && !at->in_two) {
		update_at_once(at, gate);
		return;
	}
	for (l = 0; l < at->layers; l++) {
		struct rh_stage layer = {l, l + 1};
		int trained = step_trained_in(at, layer) > 0;
		gate[l] = step_made_in(at, layer) > 0 ? at->made_s[l] : 0;
		at->state[l] = trained ? COMING : DONE;
		coming += trained;
	}
	for (;;) {
		if ((l = first_of(at, COMING, t, 0, &count)) >= 0) {
			double trained = step_trained_in(at, (struct rh_stage){l, l + 1});
			t = pass(at, t, trained, bytes->taken);
			at->state[l] = WAITING;
			at->left[l] = -1;
			if (step_made_in(at, (struct rh_stage){l, l + 1}) >= trained) {
				begin_update(at, l, 1);
				end_update(at, l); /* nothing is left of it but moments */
			}
			coming--;
			at->taken_s = at->update_rate > 0 ? t : 0;
		} else if ((l = first_of(at, WAITING, t, 0, &count)) >= 0) {
			if (at->left[l] < 0)
				begin_update(at, l, at->in_two && (count > 1 || !coming));
			t = pass_until(at, t, &at->left[l], at->each[l], next_arrival(at, t));
			gate[l] = rh_max_double(gate[l], t);
			if (at->left[l] <= 0)
				end_update(at, l);
		} else if ((l = first_of(at, HALF, t, 1, &count)) >= 0) {
			t = pass_until(at, t, &at->owed[l], bytes->moments, next_arrival(at, t));
			if (at->owed[l] <= 0)
				at->state[l] = DONE;
		} else if (coming) {
			t = next_arrival(at, t);
		} else {
			break;
		}
	}
	at->worker_s = t;
}

/* Published bottom up. A stale step publishes first what the step before left, once all its own weights have gone up. */
static void publish(struct stepping *at, double begin)
{
	double t = rh_max_double(at->worker_s, begin);
	for (int l = 0; l < at->layers; l++) {
		t = worked(at, t, step_trained_in(at, (struct rh_stage){l, l + 1}) * at->request->bytes.published);
		at->gate[l] = t;
	}
	at->worker_s = t;
}

/* One worker: gradients are taken from the top down as they arrive, then all are updated, then published. */
void step_update_as_a_whole(struct stepping *at)
{
	const struct rh_step_request *request = at->request;
	double trained = step_trained_in(at, (struct rh_stage){0, at->layers});
	if (trained <= 0)
		return;
	if (request->stale)
		publish(at, at->uploaded_s);
	double t = at->worker_s;
	for (int l = at->layers - 1; l >= 0; l--)
		t = worked(at, rh_max_double(t, at->arrived[l]), step_trained_in(at, (struct rh_stage){l, l + 1}) * request->bytes.taken);
	at->worker_s = worked(at, t, trained * request->bytes.updated);
	if (!request->stale) {
		publish(at, at->worker_s);
		for (int l = 0; l < at->layers; l++)
			at->gate[l] = at->worker_s; /* the step after begins when all are there */
	}
}
