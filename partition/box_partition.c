#include "partition/box_partition.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <math.h>
#include <string.h>

/* Cells are of the first i layers in the lowest j boxes. */
struct search {
	const struct rh_box_partition_request *request;
	double *seconds;             /* (boxes, layers + 1) prefix sums */
	int64_t *fixed, *activation; /* likewise, bytes */
	double latency_s;            /* of all links, both ways */
	double *trip_s;              /* (boxes + 1, layers + 1) the shortest */
	int64_t *overshoot;          /* likewise, the least worst */
	int *last_cut;               /* likewise: the first layer of box j - 1 */
	int *cut;                    /* (boxes + 1) of the candidate */
};

static size_t cell(const struct search *at, int j, int i)
{
	return (size_t)j * (size_t)(at->request->layers + 1) + (size_t)i;
}

/* Layers [lo, hi) of box j together, where their figures are not those of each. */
static const struct rh_box_layer *stage_of(const struct search *at, int j, int lo, int hi)
{
	const struct rh_box_layer *stage = at->request->box[j].stage;
	return stage ? &stage[cell(at, lo, hi)] : NULL;
}

static double seconds_of(const struct search *at, int j, int lo, int hi)
{
	const struct rh_box_layer *stage = stage_of(at, j, lo, hi);
	return stage ? stage->seconds : at->seconds[cell(at, j, hi)] - at->seconds[cell(at, j, lo)];
}

static double transfer(const struct search *at, int link, int way, int above)
{
	double rate = at->request->bytes_per_s[2 * link + way];
	return rate > 0 ? (double)at->request->boundary_bytes[above - 1] / rate : 0;
}

/* Layers [lo, hi) as those of box j, with the link below it: what they add to the trip, and the longest of what they keep busy. */
static double add_trip(const struct search *at, int j, int lo, int hi, double *longest)
{
	double here = seconds_of(at, j, lo, hi);
	*longest = here;
	for (int way = 0; j && way < 2; way++) {
		double moves = transfer(at, j - 1, way, lo);
		*longest = fmax(*longest, moves);
		here += moves;
	}
	return here;
}

/* Bytes of layers [lo, hi) above the cap of box j, saturated. */
static int64_t exceeds(const struct search *at, int j, int lo, int hi)
{
	const struct rh_box_means *box = &at->request->box[j];
	const struct rh_box_layer *stage = stage_of(at, j, lo, hi);
	int64_t needed, fixed = stage ? stage->static_bytes : at->fixed[cell(at, j, hi)] - at->fixed[cell(at, j, lo)],
	                activation = stage ? stage->activation_bytes : at->activation[cell(at, j, hi)] - at->activation[cell(at, j, lo)];
	if (__builtin_mul_overflow(box->in_flight, activation, &needed) || __builtin_add_overflow(needed, fixed, &needed) ||
	    __builtin_sub_overflow(needed, box->cap_bytes, &needed))
		return INT64_MAX;
	return rh_max(needed, 0);
}

/* Where box j - 1 may begin, where the lowest j boxes have i layers. */
static int first_from(int j)
{
	return j - 1;
}
static int last_from(int j, int i)
{
	return j == 1 ? 0 : i - 1;
}

static int64_t least_overshoot(struct search *at)
{
	int layers = at->request->layers, boxes = at->request->boxes;
	for (int j = 1; j <= boxes; j++)
		for (int i = j; i <= layers - (boxes - j); i++) {
			int64_t *best = &at->overshoot[cell(at, j, i)];
			*best = INT64_MAX;
			for (int x = first_from(j); x <= last_from(j, i); x++) {
				int64_t before = j == 1 ? 0 : at->overshoot[cell(at, j - 1, x)];
				*best = rh_min(*best, rh_max(before, exceeds(at, j - 1, x, i)));
			}
		}
	return at->overshoot[cell(at, boxes, layers)];
}

/* The shortest trip in which each box and link is busy for less than `below`; infinite: there is none. Its cuts, and how long the busiest
 * of them is. */
static double shortest_trip(struct search *at, int64_t allowed, double below, double *busiest)
{
	int layers = at->request->layers, boxes = at->request->boxes;
	for (int j = 1; j <= boxes; j++)
		for (int i = j; i <= layers - (boxes - j); i++) {
			double *best = &at->trip_s[cell(at, j, i)], longest;
			*best = INFINITY;
			for (int x = first_from(j); x <= last_from(j, i); x++) {
				double trip = (j == 1 ? 0 : at->trip_s[cell(at, j - 1, x)]) + add_trip(at, j - 1, x, i, &longest);
				if (trip < *best && longest < below && exceeds(at, j - 1, x, i) <= allowed) {
					*best = trip;
					at->last_cut[cell(at, j, i)] = x;
				}
			}
		}
	double trip = at->trip_s[cell(at, boxes, layers)], longest;
	*busiest = 0;
	at->cut[boxes] = layers;
	for (int j = boxes; j > 0 && isfinite(trip); j--) {
		at->cut[j - 1] = at->last_cut[cell(at, j, at->cut[j])];
		(void)add_trip(at, j - 1, at->cut[j - 1], at->cut[j], &longest);
		*busiest = fmax(*busiest, longest);
	}
	return trip + at->latency_s;
}

static int is_better(const struct rh_box_partition_request *request, const struct rh_box_partition *a, const struct rh_box_partition *b)
{
	double rounds = (double)(request->micro_batches - 1);
	if (request->micro_batches)
		return rounds * a->period_s + a->trip_s < rounds * b->period_s + b->trip_s;
	return a->period_s < b->period_s || (a->period_s == b->period_s && a->trip_s < b->trip_s);
}

/* A step gets no shorter where its trip or its busiest part gets longer. So the best is among the shortest trips under ever lower bounds
 * on the busiest part. */
static void find_best(struct search *at, int *cut, struct rh_box_partition *out)
{
	int64_t allowed = least_overshoot(at), count = at->request->micro_batches, in_flight = at->request->box[0].in_flight;
	int waits = !count || count > in_flight; /* for a return, before the next micro-batch may go */
	double below = INFINITY, trip;
	for (int any = 0; isfinite(trip = shortest_trip(at, allowed, below, &below)); any = 1) {
		const struct rh_box_partition found = {fmax(below, waits ? trip / (double)in_flight : 0), trip, allowed};
		if (any && !is_better(at->request, &found, out))
			continue;
		*out = found;
		memcpy(cut, at->cut, ((size_t)at->request->boxes + 1) * sizeof *cut);
	}
}

static int add_up(struct search *at)
{
	const struct rh_box_partition_request *request = at->request;
	for (int k = 0; k < request->boxes; k++)
		for (int l = 0; l < request->layers && !request->box[k].stage; l++) {
			const struct rh_box_layer *layer = &request->box[k].layer[l];
			size_t here = cell(at, k, l);
			at->seconds[here + 1] = at->seconds[here] + layer->seconds;
			if (__builtin_add_overflow(at->fixed[here], layer->static_bytes, &at->fixed[here + 1]) ||
			    __builtin_add_overflow(at->activation[here], layer->activation_bytes, &at->activation[here + 1]))
				return rh_fail(-EOVERFLOW, "boxes: the layers' bytes up to layer %d are more than 64 bits hold", l);
		}
	for (int i = 0; i < 2 * (request->boxes - 1); i++)
		at->latency_s += request->latency_s[i];
	return 0;
}

int rh_box_partition_make(const struct rh_box_partition_request *request, int *cut, struct rh_box_partition *out)
{
	struct search at = {.request = request};
	if (request->boxes < 1 || request->boxes > request->layers)
		return rh_fail(-EINVAL, "boxes: %d for %d layers; each holds one at least", request->boxes, request->layers);
	size_t boxes = (size_t)request->boxes, cells = ((size_t)request->layers + 1) * (boxes + 1);
	at.seconds = rh_alloc(cells, sizeof *at.seconds);
	at.fixed = rh_alloc(cells, sizeof *at.fixed);
	at.activation = rh_alloc(cells, sizeof *at.activation);
	at.trip_s = rh_alloc(cells, sizeof *at.trip_s);
	at.overshoot = rh_alloc(cells, sizeof *at.overshoot);
	at.last_cut = rh_alloc(cells, sizeof *at.last_cut);
	at.cut = rh_alloc(boxes + 1, sizeof *at.cut);
	int all = at.seconds && at.fixed && at.activation && at.trip_s && at.overshoot && at.last_cut && at.cut;
	int rc = all ? add_up(&at) : -ENOMEM;
	if (!rc)
		find_best(&at, cut, out);
	rh_free(at.seconds);
	rh_free(at.fixed);
	rh_free(at.activation);
	rh_free(at.trip_s);
	rh_free(at.overshoot);
	rh_free(at.last_cut);
	rh_free(at.cut);
	return rc;
}
