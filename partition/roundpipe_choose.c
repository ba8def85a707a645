/* The choice: the partitions that lockstep ranks best, and their neighbours, are compared by the slot recurrence. */
#include "partition/roundpipe_internal.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/waves.h"

#include <math.h>

/* Slots that the choice may run through the recurrence, which is what bounds its time; rounds of a step that cost anything there; and
 * starts that climb. */
enum { CHOICE_MOST = 1000000, ROUNDS_RUN = 16, STARTS = 4 };

/* How a run of layers is shared out to a number of stages. */
enum share { SHARE_AS_PACKED, SHARE_LARGE_FIRST, SHARE_SMALL_FIRST, SHARES };

/* makespan_s is too little, but at least `most`, where it is more than that. */
static void time_partition(const struct searching *at, struct waves *waves, double most, struct rh_partition *partition)
{
	const struct rh_partition_request *request = at->request;
	waves_set(waves, &at->sums, at->below_s, partition);
	partition->makespan_s = waves_run(waves, request->steps, 0, most);
	double busy = waves_busy(waves) * (double)request->micro_batches * (double)request->steps;
	partition->bubble = partition->makespan_s > 0 ? 1 - busy / (request->devices * partition->makespan_s) : 0;
}

int rh_partition_time(const struct rh_partition_request *request, struct rh_partition *partition)
{
	struct searching at = {0};
	struct waves waves = {0};
	int rc = searching_open(request, &at);
	if (!rc)
		rc = waves_create(request, &waves);
	if (!rc)
		time_partition(&at, &waves, HUGE_VAL, partition);
	waves_free(&waves);
	searching_close(&at);
	return rc;
}

/* Cut number c moved by one layer. Cuts: between forward stages, the fused stage's lower end (which is the last forward stage's upper end
 * and the second backward stage's too), between backward stages. 0 when a stage would be empty. */
static int move_cut(struct rh_partition *partition, int cut, int by)
{
	int inner = partition->forward_stages - 1;
	struct rh_stage *up = partition->forward, *down = partition->backward;
	if (cut < inner) {
		up[cut].hi = up[cut + 1].lo = up[cut].hi + by;
		return up[cut].hi > up[cut].lo && up[cut + 1].hi > up[cut + 1].lo;
	}
	int i = cut - (inner < 0 ? 0 : inner);
	if (i + 1 >= partition->backward_stages && i > 0)
		return 0;
	down[i].lo += by;
	int good = down[i].hi > down[i].lo;
	if (i + 1 < partition->backward_stages) {
		down[i + 1].hi = down[i].lo;
		good = good && down[i + 1].hi > down[i + 1].lo;
	}
	if (i == 0) {
		if (inner < 0 || (partition->backward_stages == 1 && down[0].lo > 0))
			return 0;
		up[inner].hi = down[0].lo;
		good = good && up[inner].hi > up[inner].lo;
	}
	return good;
}

/* Slots that one run of the recurrence takes. */
static int64_t slots_of(const struct rh_partition_request *request, const struct rh_partition *partition)
{
	return rh_min(request->rounds, ROUNDS_RUN) * request->steps * (partition->forward_stages + partition->backward_stages);
}

/* First improvement over all cuts, round and round, until none helps or the budget is spent. */
static void climb(struct searching *at, struct waves *waves, int64_t budget, struct rh_partition *best, struct rh_partition *scratch)
{
	for (int again = 1; again;) {
		again = 0;
		int cuts = best->forward_stages + best->backward_stages - 1;
		for (int move = 0; move < 2 * cuts; move++) {
			partition_copy(scratch, best);
			budget -= slots_of(at->request, scratch);
			if (budget < 0)
				return;
			if (!move_cut(scratch, move / 2, move % 2 ? 1 : -1) || !searching_fits(at, scratch))
				continue;
			time_partition(at, waves, best->makespan_s, scratch);
			if (scratch->makespan_s < best->makespan_s * (1 - 1e-12)) {
				partition_copy(best, scratch);
				again = 1;
			}
		}
	}
}

/* Layers [lo, hi) in `stages` even shares, bottom up or top down: each takes up to what is left, evenly, or just past it. 0 when there are
 * more stages than layers. */
static int share_out(const struct searching *at, enum rh_pass pass, int lo, int hi, int stages, enum share share, struct rh_stage *out)
{
	int down = pass != RH_PASS_FORWARD;
	if (stages > hi - lo)
		return 0;
	for (int i = 0; i < stages; i++) {
		int left = stages - i, size = 1, most = hi - lo - (left - 1);
		double even = rh_cost_stage(&at->sums, pass, lo, hi) / left * (1 + 1e-12);
		while (size < most) {
			int next = size + (share == SHARE_SMALL_FIRST);
			double seconds = rh_cost_stage(&at->sums, pass, down ? hi - next : lo, down ? hi : lo + next);
			if (share == SHARE_SMALL_FIRST ? seconds > even : seconds * (1 + 1e-9) >= even)
				break;
			size++;
		}
		if (i + 1 == stages)
			size = hi - lo;
		out[i] = down ? (struct rh_stage){hi - size, hi} : (struct rh_stage){lo, lo + size};
		lo += down ? 0 : size;
		hi -= down ? size : 0;
	}
	return 1;
}

struct choice {
	struct searching *searching;
	struct waves waves;
	struct rh_partition scratch, start[STARTS]; /* by makespan_s */
	int starts;
	int64_t budget;
};

static void try_start(struct choice *choice)
{
	struct rh_partition *now = &choice->scratch;
	if (!searching_fits(choice->searching, now))
		return;
	choice->budget -= slots_of(choice->searching->request, now);
	if (choice->budget < 0)
		return;
	time_partition(choice->searching, &choice->waves, choice->starts < STARTS ? HUGE_VAL : choice->start[STARTS - 1].makespan_s, now);
	int place = choice->starts < STARTS ? choice->starts++ : STARTS;
	if (place == STARTS && now->makespan_s >= choice->start[--place].makespan_s)
		return;
	struct rh_partition storage = choice->start[place];
	for (; place > 0 && choice->start[place - 1].makespan_s > now->makespan_s; place--)
		choice->start[place] = choice->start[place - 1];
	choice->start[place] = storage;
	partition_copy(&choice->start[place], now);
}

/* A partition that lockstep kept, the same with a stage more of either kind, and each shared out in other ways. */
static void try_variants(struct choice *choice, const struct rh_partition *kept)
{
	struct rh_partition *now = &choice->scratch;
	int bottom = choice->searching->first_trained, top = kept->backward[0].lo;
	for (int v = 0; v < 4 * SHARES * SHARES; v++) {
		enum share up = (enum share)(v % SHARES), down = (enum share)(v / SHARES % SHARES);
		int more_up = v / (SHARES * SHARES) % 2, more_down = v / (SHARES * SHARES) / 2;
		if ((more_up && up == SHARE_AS_PACKED) || (more_down && down == SHARE_AS_PACKED))
			continue;
		partition_copy(now, kept);
		now->forward_stages += more_up;
		now->backward_stages += more_down;
		if (up != SHARE_AS_PACKED && !share_out(choice->searching, RH_PASS_FORWARD, 0, top, now->forward_stages, up, now->forward))
			continue;
		if (down != SHARE_AS_PACKED && (now->backward_stages < 2 || !share_out(choice->searching, RH_PASS_BACKWARD, bottom, top,
		                                                                       now->backward_stages - 1, down, now->backward + 1)))
			continue;
		try_start(choice);
	}
}

static int choose(struct searching *at, struct rh_partition kept[KEPT], int count, struct rh_partition *out)
{
	struct choice choice = {.searching = at, .budget = CHOICE_MOST / 2};
	int rc = waves_create(at->request, &choice.waves);
	if (!rc)
		rc = partition_create(at->layers, &choice.scratch);
	for (int i = 0; !rc && i < STARTS; i++)
		rc = partition_create(at->layers, &choice.start[i]);
	for (int i = 0; !rc && i < count; i++) {
		if (i == 0)
			choice.budget = INT64_MAX / 2; /* whatever its size, the best is among the starts */
		try_variants(&choice, &kept[i]);
		choice.budget = i == 0 ? CHOICE_MOST / 2 : choice.budget;
	}
	int best = 0;
	for (int i = 0; !rc && i < choice.starts; i++) {
		climb(at, &choice.waves, CHOICE_MOST / 2 / choice.starts, &choice.start[i], &choice.scratch);
		best = choice.start[i].makespan_s < choice.start[best].makespan_s ? i : best;
	}
	if (!rc && !choice.starts)
		rc = rh_fail(RH_DOES_NOT_FIT, "max_vram: no stages of these layers fit the device; take smaller micro-batches");
	if (!rc)
		partition_copy(out, &choice.start[best]);
	waves_free(&choice.waves);
	rh_partition_free(&choice.scratch);
	for (int i = 0; i < STARTS; i++)
		rh_partition_free(&choice.start[i]);
	return rc;
}

int rh_partition_make(const struct rh_partition_request *request, struct rh_partition *out)
{
	struct searching at = {0};
	*out = (struct rh_partition){0};
	struct rh_partition kept[KEPT] = {{0}};
	int count = 0;
	int rc = searching_open(request, &at);
	if (rc)
		goto out;
	rc = searching_remember(&at);
	if (rc)
		goto out;
	rc = partition_create(at.layers, out);
	if (rc)
		goto out;
	rc = lockstep_search(&at, kept, &count);
	if (rc)
		goto out;
	rc = choose(&at, kept, count, out);
out:
	for (int i = 0; i < KEPT; i++)
		rh_partition_free(&kept[i]);
	searching_close(&at);
	if (rc)
		rh_partition_free(out);
	return rc;
}
