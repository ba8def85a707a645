/* The choice: what lockstep calls best, and its neighbours, by the slot recurrence. */
#include "partition/roundpipe_internal.h"
#include "partition/rounds.h"

#include "core/alloc.h"

#include <string.h>

/* Micro-batches of slots that the choice may run through the recurrence, which is what bounds its time; and starts that climb. */
enum { CHOICE_MOST = 4000000, STARTS = 4 };

/* How a run of layers is shared out to a number of stages. */
enum share { SHARE_AS_PACKED, SHARE_LARGE_FIRST, SHARE_SMALL_FIRST, SHARES };

/* The slots of the steps: slot i of all on device i mod N; a round's first has its input at hand. */
static int64_t lay_slots(const struct searching *at, const struct rh_partition *partition, struct rh_timeline_slot *slot)
{
	const struct rh_partition_request *request = at->request;
	int forward = partition->forward_stages, stages = forward + partition->backward_stages;
	double hop = request->costs->hop_s;
	int64_t n = 0;
	for (int64_t r = 0; r < request->rounds * request->steps; r++)
		for (int s = 0; s < stages; s++, n++) {
			struct rh_stage stage = s < forward ? partition->forward[s] : partition->backward[s - forward];
			struct rh_timeline_slot *now = &slot[n];
			*now = (struct rh_timeline_slot){
			        .device = (int)(n % request->devices), .from = {-1, s ? n - 1 : -1}, .hop_s = {hop, hop}, .after = -1};
			rh_round_range(request->micro_batches, request->rounds, r % request->rounds, &now->first, &now->count);
			now->sums_s[0] = -1;
			if (s >= forward) {
				double sums = searching_sums(at, stage.lo, stage.hi);
				int first = r % request->rounds == 0, last = (r + 1) % request->rounds == 0;
				now->sums_s[0] = first ? 0 : sums;
				now->sums_s[1] = last ? 0 : sums;
				now->after = first ? -1 : n - stages;
			}
			if (s <= forward) {
				now->part_s[1] =
				        rh_cost_stage(&at->sums, s < forward ? RH_PASS_FORWARD : RH_PASS_FUSED, stage.lo, stage.hi);
				continue;
			}
			now->part_s[0] = rh_cost_recompute(&at->sums, stage.lo, stage.hi);
			now->part_s[1] = rh_cost_backward(&at->sums, stage.lo, stage.hi);
			for (int f = 0; f < forward; f++) /* the slot that leaves this stage's input behind */
				if (partition->forward[f].lo < stage.lo && stage.lo <= partition->forward[f].hi)
					now->from[0] = n - s + f;
		}
	return n;
}

/* Room for any partition's slots. */
static int slots_create(const struct searching *at, struct rh_timeline_slot **out)
{
	size_t most = (size_t)(at->request->rounds * at->request->steps) * 2 * (size_t)at->layers;
	*out = rh_alloc(most, sizeof **out);
	return *out ? 0 : -ENOMEM;
}

static int time_partition(const struct searching *at, struct rh_timeline_slot *slot, struct rh_partition *partition)
{
	struct rh_timeline timeline;
	int64_t slots = lay_slots(at, partition, slot);
	int rc = rh_timeline_run(slot, slots, at->request->devices, &timeline);
	if (rc)
		return rc;
	partition->makespan_s = timeline.makespan_s;
	partition->bubble = timeline.bubble;
	rh_timeline_free(&timeline);
	return 0;
}

int searching_time(const struct searching *at, struct rh_partition *partition)
{
	struct rh_timeline_slot *slot = NULL;
	int rc = slots_create(at, &slot);
	rc = rc ? rc : time_partition(at, slot, partition);
	rh_free(slot);
	return rc;
}

int rh_partition_time(const struct rh_partition_request *request, struct rh_partition *partition)
{
	struct searching at = {0};
	int rc = searching_open(request, &at);
	rc = rc ? rc : searching_time(&at, partition);
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

/* First improvement over all cuts, round and round, until none helps or the budget is spent. */
static int climb(struct searching *at, struct rh_timeline_slot *slot, int64_t *budget, struct rh_partition *best,
                 struct rh_partition *scratch)
{
	int64_t micro_batches = at->request->micro_batches * at->request->steps;
	for (int again = 1; again;) {
		again = 0;
		int cuts = best->forward_stages + best->backward_stages - 1;
		for (int move = 0; move < 2 * cuts; move++) {
			partition_copy(scratch, best);
			*budget -= micro_batches * (cuts + 1);
			if (*budget < 0)
				return 0;
			if (!move_cut(scratch, move / 2, move % 2 ? 1 : -1) || !searching_measure(at, scratch))
				continue;
			int rc = time_partition(at, slot, scratch);
			if (rc)
				return rc;
			if (scratch->makespan_s < best->makespan_s * (1 - 1e-12)) {
				partition_copy(best, scratch);
				again = 1;
			}
		}
	}
	return 0;
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
	struct searching *at;
	struct rh_timeline_slot *slot;
	struct rh_partition scratch, start[STARTS]; /* by makespan_s */
	int starts;
	int64_t budget;
};

static int try_start(struct choice *choice)
{
	struct rh_partition *now = &choice->scratch;
	const struct rh_partition_request *request = choice->at->request;
	if (!searching_measure(choice->at, now))
		return 0;
	choice->budget -= request->micro_batches * request->steps * (now->forward_stages + now->backward_stages);
	int rc = choice->budget < 0 ? 0 : time_partition(choice->at, choice->slot, now);
	if (rc || choice->budget < 0)
		return rc;
	int place = choice->starts < STARTS ? choice->starts++ : STARTS;
	if (place == STARTS && now->makespan_s >= choice->start[--place].makespan_s)
		return 0;
	struct rh_partition storage = choice->start[place];
	for (; place > 0 && choice->start[place - 1].makespan_s > now->makespan_s; place--)
		choice->start[place] = choice->start[place - 1];
	choice->start[place] = storage;
	partition_copy(&choice->start[place], now);
	return 0;
}

/* A partition that lockstep kept, the same with a stage more of either kind, and each shared out in other ways. */
static int try_variants(struct choice *choice, const struct rh_partition *kept)
{
	struct rh_partition *now = &choice->scratch;
	int bottom = choice->at->first_trained, top = kept->backward[0].lo, rc = 0;
	for (int v = 0; !rc && v < 4 * SHARES * SHARES; v++) {
		enum share up = (enum share)(v % SHARES), down = (enum share)(v / SHARES % SHARES);
		int more_up = v / (SHARES * SHARES) % 2, more_down = v / (SHARES * SHARES) / 2;
		if ((more_up && up == SHARE_AS_PACKED) || (more_down && down == SHARE_AS_PACKED))
			continue;
		partition_copy(now, kept);
		now->forward_stages += more_up;
		now->backward_stages += more_down;
		if (up != SHARE_AS_PACKED && !share_out(choice->at, RH_PASS_FORWARD, 0, top, now->forward_stages, up, now->forward))
			continue;
		if (down != SHARE_AS_PACKED && (now->backward_stages < 2 || !share_out(choice->at, RH_PASS_BACKWARD, bottom, top,
		                                                                       now->backward_stages - 1, down, now->backward + 1)))
			continue;
		rc = try_start(choice);
	}
	return rc;
}

static int choose(struct searching *at, struct rh_partition kept[KEPT], int count, struct rh_partition *out)
{
	struct choice choice = {.at = at, .budget = CHOICE_MOST / 2};
	int rc = slots_create(at, &choice.slot);
	rc = rc ? rc : partition_create(at->layers, &choice.scratch);
	for (int i = 0; !rc && i < STARTS; i++)
		rc = partition_create(at->layers, &choice.start[i]);
	for (int i = 0; !rc && i < count; i++) {
		if (i == 0)
			choice.budget = INT64_MAX / 2; /* whatever its size, the best is among the starts */
		rc = try_variants(&choice, &kept[i]);
		choice.budget = i == 0 ? CHOICE_MOST / 2 : choice.budget;
	}
	int best = 0;
	for (int i = 0; !rc && i < choice.starts; i++) {
		choice.budget = CHOICE_MOST / 2 / choice.starts;
		rc = climb(at, choice.slot, &choice.budget, &choice.start[i], &choice.scratch);
		best = choice.start[i].makespan_s < choice.start[best].makespan_s ? i : best;
	}
	if (!rc)
		partition_copy(out, &choice.start[best]);
	rh_free(choice.slot);
	rh_partition_free(&choice.scratch);
	for (int i = 0; i < STARTS; i++)
		rh_partition_free(&choice.start[i]);
	return rc;
}

int rh_partition_make(const struct rh_partition_request *request, struct rh_partition *out)
{
	struct searching at = {0};
	struct rh_partition kept[KEPT] = {{0}};
	int count = 0;
	*out = (struct rh_partition){0};
	int rc = searching_open(request, &at);
	rc = rc ? rc : partition_create(at.layers, out);
	rc = rc ? rc : lockstep_search(&at, kept, &count);
	rc = rc ? rc : choose(&at, kept, count, out);
	for (int i = 0; i < KEPT; i++)
		rh_partition_free(&kept[i]);
	searching_close(&at);
	if (rc)
		rh_partition_free(out);
	return rc;
}
