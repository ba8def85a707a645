#include "partition/timeline.h"

#include "core/alloc.h"
#include "core/minmax.h"

struct lane {
	double free_s;     /* the device's compute */
	double upload_s;   /* end of its last upload */
	double ended_s[2]; /* its last slot, and the one before it */
	double room_s;     /* for gradient sums: free */
	double first_s;
	int begun;
};

/* End of micro-batch m in slot `source`. */
static double end_of_output(const struct rh_timeline_slot *slot, const struct rh_timeline *at, int64_t from, int64_t m)
{
	RH_ASSERT(m >= slot[from].first && m < slot[from].first + slot[from].count);
	return at->end[at->offset[from] + m - slot[from].first];
}

static double slot_ready(const struct rh_timeline_slot *slot, const struct rh_timeline *at, int64_t i, struct lane *lane,
                         const double *ended_before)
{
	double ready = lane->free_s;
	if (slot[i].upload_s > 0) {
		lane->upload_s = rh_max_double(lane->upload_s, lane->ended_s[1]) + slot[i].upload_s;
		ready = rh_max_double(ready, lane->upload_s);
	}
	if (slot[i].sums_s[0] >= 0 && slot[i].previous_sum < 0)
		ready = rh_max_double(ready, lane->room_s); /* sums begin at zero */
	if (slot[i].previous_sum >= 0 && slot[i].head_sum_s >= 0)
		ready = rh_max_double(ready,
		                      rh_max_double(lane->room_s, at->end[at->offset[slot[i].previous_sum + 1] - 1]) + slot[i].head_sum_s);
	return rh_max_double(ready, ended_before[slot[i].barrier]);
}

/* When the last of a slot's sums is on the host, if its last micro-batch ends then. */
static double sums_down(const struct rh_timeline_slot *slot, double end)
{
	return slot->sums_s[1] > 0 ? end + rh_max_double(slot->last_sum_s, slot->sums_s[1] - slot->part_s[1]) : end;
}

/* When the last of the sums to which the slot adds is on its device: the first micro-batch cannot end before. */
static double sums_up(const struct rh_timeline_slot *slot, const struct rh_timeline *at, int64_t i, const struct lane *lane)
{
	int64_t before = slot[i].previous_sum;
	if (before < 0)
		return 0;
	double down = sums_down(&slot[before], at->end[at->offset[before + 1] - 1]);
	return rh_max_double(lane->room_s + slot[i].sums_s[0], down + slot[i].last_sum_s);
}

static void run_slot(const struct rh_timeline_slot *slot, struct rh_timeline *at, int64_t i, struct lane *lane, double ready)
{
	const struct rh_timeline_slot *now = &slot[i];
	for (int64_t m = now->first; m < now->first + now->count; m++) {
		int64_t place = at->offset[i] + m - now->first;
		double t = ready;
		for (int part = 0; part < 2; part++) {
			RH_ASSERT(now->source[part] < i);
			if (now->source[part] >= 0)
				t = rh_max_double(t, end_of_output(slot, at, now->source[part], m) + now->hop_s[part]);
			if (part == 0 || now->part_s[0] <= 0)
				at->start[place] = t;
			t += now->part_s[part];
		}
		if (m == now->first)
			t = rh_max_double(t, sums_up(slot, at, i, lane));
		at->end[place] = ready = t;
		if (!lane->begun || at->start[place] < lane->first_s)
			lane->first_s = at->start[place];
		lane->begun = 1;
		at->busy_s += now->part_s[0] + now->part_s[1];
	}
	lane->free_s = ready;
	if (now->sums_s[0] >= 0)
		lane->room_s = sums_down(now, ready);
	lane->ended_s[1] = lane->ended_s[0];
	lane->ended_s[0] = ready;
}

int rh_timeline_run(const struct rh_timeline_slot *slot, int64_t slots, int devices, struct rh_timeline *out)
{
	int64_t entries = 0;
	for (int64_t i = 0; i < slots; i++)
		entries += slot[i].count;
	*out = (struct rh_timeline){.offset = rh_alloc((size_t)slots + 1, sizeof *out->offset),
	                            .start = rh_alloc((size_t)entries, sizeof *out->start),
	                            .end = rh_alloc((size_t)entries, sizeof *out->end)};
	struct lane *lane = rh_alloc((size_t)devices, sizeof *lane);
	double *ended_before = rh_alloc((size_t)slots + 1, sizeof *ended_before); /* [i]: when slots before i have ended */
	int rc = out->offset && out->start && out->end && lane && ended_before ? 0 : -ENOMEM;
	for (int64_t i = 0; !rc && i < slots; i++) {
		RH_ASSERT(slot[i].previous_sum < i && slot[i].barrier <= i && slot[i].count > 0);
		struct lane *on = &lane[slot[i].device];
		out->offset[i + 1] = out->offset[i] + slot[i].count;
		run_slot(slot, out, i, on, slot_ready(slot, out, i, on, ended_before));
		ended_before[i + 1] = rh_max_double(ended_before[i], on->free_s);
	}
	for (int d = 0; !rc && d < devices; d++) {
		out->makespan_s = rh_max_double(out->makespan_s, lane[d].free_s);
		out->longest_span_s = rh_max_double(out->longest_span_s, lane[d].free_s - lane[d].first_s);
	}
	out->bubble = !rc && out->makespan_s > 0 ? 1 - out->busy_s / (devices * out->makespan_s) : 0;
	rh_free(lane);
	rh_free(ended_before);
	if (rc)
		rh_timeline_free(out);
	return rc;
}

void rh_timeline_free(struct rh_timeline *timeline)
{
	rh_free(timeline->offset);
	rh_free(timeline->start);
	rh_free(timeline->end);
	*timeline = (struct rh_timeline){0};
}
