#include "partition/roundpipe_long.h"

#include "core/minmax.h"
#include "partition/roundpipe_internal.h"
#include "partition/waves.h"

#include <math.h>

enum {
	STARTS = 6,                /* candidates that are improved and run in full */
	FUSED_MOST = 2,            /* layers of the fused stage that are tried */
	MANY_LAYERS = 8,           /* for each device */
	MOVED_SLOTS_MOST = 150000, /* slots of the recurrence that improving one of them may take */
	JOINED_SLOTS_MOST = 800,   /* of joined steps after the first, for each candidate, where not all turns fit in one */
	JOINED_LAYERS = 72,        /* of more layers there are more candidates: fewer each */
};

struct long_rounds {
	struct searching *searching;
	struct waves waves;
	struct rh_partition start[STARTS], scratch; /* by makespan_s */
	int starts;
	int64_t steps; /* run: of joined ones so many that in those after the first each device has had each place in the round, or nearly */
};

/* As waves_run, of joined steps those after the first. */
static double run(struct long_rounds *how, const struct rh_partition *cuts, double most)
{
	waves_set(&how->waves, &how->searching->sums, how->searching->below_s, cuts);
	return waves_run(&how->waves, how->steps, how->steps > 1, most);
}

/* [lo, hi) in even shares of time, each stage up to its share of what is left or just past it. Each has a layer; there are no more stages
 * than layers. */
static void share(const struct searching *at, enum rh_pass pass, int lo, int hi, int stages, int large_first, struct rh_stage *out)
{
	int down = pass != RH_PASS_FORWARD;
	for (int i = 0; i < stages; i++) {
		int left = stages - i, size = 1, most = hi - lo - (left - 1);
		double even = rh_cost_stage(&at->sums, pass, lo, hi) / left;
		while (size < most) {
			int next = size + !large_first;
			double seconds = rh_cost_stage(&at->sums, pass, down ? hi - next : lo, down ? hi : lo + next);
			if (large_first ? seconds * (1 + 1e-9) >= even : seconds > even * (1 + 1e-9))
				break;
			size++;
		}
		size = left == 1 ? hi - lo : size;
		out[i] = down ? (struct rh_stage){hi - size, hi} : (struct rh_stage){lo, lo + size};
		lo += down ? 0 : size;
		hi -= down ? size : 0;
	}
}

/* Does it fit? A device holds the weights of a slot and of the one that it runs next. Sets what searching_measure does. */
static int fits(struct long_rounds *how, struct rh_partition *cuts)
{
	int forward = cuts->forward_stages, stages = forward + cuts->backward_stages, devices = how->searching->request->devices;
	int64_t rest = 0, both = 0;
	if (how->searching->request->sizer)
		return searching_fits(how->searching, cuts);
	searching_measure(how->searching, cuts);
	for (int s = 0; s < stages; s++) {
		int64_t upload[2] = {0, 0};
		for (int k = 0; k < 2; k++) {
			int i = (s + k * devices) % stages;
			struct rh_stage stage = i < forward ? cuts->forward[i] : cuts->backward[i - forward];
			enum rh_pass pass = i < forward ? RH_PASS_FORWARD : i == forward ? RH_PASS_FUSED : RH_PASS_BACKWARD;
			upload[k] = k && i == s ? 0 : searching_upload(how->searching, pass, stage.lo, stage.hi);
			if (!k) {
				int64_t other = searching_bytes(how->searching, pass, stage.lo, stage.hi) - upload[0];
				rest = other > rest ? other : rest;
			}
		}
		both = upload[0] + upload[1] > both ? upload[0] + upload[1] : both;
	}
	cuts->device_bytes = rest + both;
	return cuts->device_bytes <= how->searching->request->cap_bytes;
}

/* Keeps the best candidate for each remainder of stages by devices, because the remainder decides how devices take turns. */
static void consider(struct long_rounds *how)
{
	struct rh_partition *now = &how->scratch;
	int most_stages = how->searching->request->stages_most, devices = how->searching->request->devices;
	int stages = now->forward_stages + now->backward_stages, place = 0;
	if (most_stages && stages > most_stages)
		return;
	while (place < how->starts && (how->start[place].forward_stages + how->start[place].backward_stages) % devices != stages % devices)
		place++;
	double most = place < how->starts     ? how->start[place].makespan_s
	              : how->starts == STARTS ? how->start[STARTS - 1].makespan_s
	                                      : HUGE_VAL;
	int known = most == HUGE_VAL; /* what is run whole in any case is asked first whether it fits */
	if (known && !fits(how, now))
		return;
	double seconds = run(how, now, most);
	if (seconds >= most || (!known && !fits(how, now)))
		return;
	now->makespan_s = seconds;
	if (place == how->starts)
		place = how->starts < STARTS ? how->starts++ : STARTS - 1;
	struct rh_partition storage = how->start[place];
	for (; place > 0 && how->start[place - 1].makespan_s > seconds; place--)
		how->start[place] = how->start[place - 1];
	how->start[place] = storage;
	partition_copy(&how->start[place], now);
}

/* Counts of stages worth trying for so many layers: those that make the largest stage smaller, and some more of each, as what counts is
 * also what is left when the devices are dealt their slots. The next one above `count`; 0 when there is none. */
static int next_count(int layers, int count, int devices)
{
	for (count++; count <= layers; count++) {
		int largest = (layers + count - 1) / count, fewest = (layers + largest - 1) / largest;
		if (count - fewest <= devices)
			return count;
	}
	return 0;
}

static void try_forward(struct long_rounds *how, int top, double slot)
{
	struct searching *at = how->searching;
	double forward = rh_cost_stage(&at->sums, RH_PASS_FORWARD, 0, top);
	how->scratch.forward_stages = 0;
	if (!top)
		consider(how);
	for (int f = next_count(top, 0, at->request->devices); f; f = next_count(top, f, at->request->devices)) {
		if (forward / f > slot * 3 / 2 || forward / f < slot / 4)
			continue;
		how->scratch.forward_stages = f;
		for (int large = 0; large < 2; large++) {
			share(at, RH_PASS_FORWARD, 0, top, f, large, how->scratch.forward);
			consider(how);
		}
	}
}

/* All counts whose forward slots are from a quarter to one and a half times as long as the backward ones. Of very many layers each device
 * gets four backward stages at least: fewer are too coarse to share out evenly. */
static void try_counts(struct long_rounds *how)
{
	struct searching *at = how->searching;
	struct rh_partition *now = &how->scratch;
	int layers = at->layers, bottom = at->first_trained, devices = at->request->devices;
	for (int fused = 1; fused <= FUSED_MOST && fused <= layers; fused++) {
		int top = layers - fused, trained = top > bottom ? top - bottom : 0;
		now->backward[0] = (struct rh_stage){top, layers};
		now->backward_stages = 1;
		if (!trained)
			try_forward(how, top, rh_cost_stage(&at->sums, RH_PASS_FUSED, top, layers));
		double backward = rh_cost_stage(&at->sums, RH_PASS_BACKWARD, bottom, bottom + trained);
		int least = trained >= MANY_LAYERS * devices - FUSED_MOST ? MANY_LAYERS / 2 * devices - 1 : 0;
		for (int b = next_count(trained, least, devices); b; b = next_count(trained, b, devices))
			for (int large = 0; large < 2; large++) {
				share(at, RH_PASS_BACKWARD, bottom, top, b, large, now->backward + 1);
				now->backward_stages = 1 + b;
				try_forward(how, top, backward / b);
			}
	}
}

/* A layer less at the end of stage `from` and one more in stage `to` of the same list, the cuts between them moved along. The list runs
 * upwards (step 1) or downwards. 0 where a stage would be empty. */
static int shift(struct rh_stage *list, int from, int to, int up)
{
	int way = from < to ? 1 : -1, by = up ? -way : way;
	if (list[from].hi - list[from].lo < 2)
		return 0;
	for (int i = from; i != to; i += way) {
		struct rh_stage *a = &list[i], *b = &list[i + way];
		if ((way > 0) == up)
			a->hi = b->lo = a->hi + by;
		else
			a->lo = b->hi = a->lo + by;
	}
	return 1;
}

static void climb(struct long_rounds *how, struct rh_partition *best)
{
	int64_t left = MOVED_SLOTS_MOST / ((best->forward_stages + best->backward_stages) * how->steps * how->searching->request->rounds);
	struct rh_partition *now = &how->scratch;
	for (int again = 1; again;) {
		again = 0;
		for (int list = 0; list < 2; list++) {
			int first = list, count = list ? best->backward_stages : best->forward_stages;
			for (int from = first; from < count; from++)
				for (int to = first; to < count; to++) {
					if (from == to || left-- <= 0)
						continue;
					partition_copy(now, best);
					if (!shift(list ? now->backward : now->forward, from, to, !list))
						break;
					double seconds = run(how, now, best->makespan_s);
					if (seconds >= best->makespan_s * (1 - 1e-9) || !fits(how, now))
						continue;
					now->makespan_s = seconds;
					partition_copy(best, now);
					again = 1;
				}
		}
		again = again && left > 0;
	}
}

static int choose(struct long_rounds *how, struct rh_partition *out)
{
	try_counts(how);
	if (!how->starts)
		return rh_fail(RH_DOES_NOT_FIT, "max_vram: no stages of these layers fit the device; take smaller micro-batches");
	int best = -1;
	for (int i = 0; i < how->starts; i++) {
		climb(how, &how->start[i]);
		best = best < 0 || how->start[i].makespan_s < how->start[best].makespan_s ? i : best;
	}
	partition_copy(out, &how->start[best]);
	return 0;
}

int rh_partition_long_rounds(const struct rh_partition_request *request, struct rh_partition *out)
{
	struct searching at = {0};
	*out = (struct rh_partition){0};
	int rc = searching_open(request, &at);
	struct long_rounds how = {.searching = &at, .steps = 1};
	size_t stages = 2 * (size_t)request->costs->layers;
	if (request->steps > 1) {
		int64_t turns = (request->devices + request->rounds - 1) / request->rounds;
		int64_t layers = rh_max(request->costs->layers, JOINED_LAYERS);
		int64_t most = JOINED_SLOTS_MOST * JOINED_LAYERS / (request->rounds * (int64_t)stages * layers);
		how.steps += turns < most ? turns : rh_max(most, 1);
	}
	if (rc)
		goto out;
	rc = searching_remember(&at);
	if (rc)
		goto out;
	rc = waves_create(request, &how.waves);
	if (rc)
		goto out;
	rc = partition_create(at.layers, &how.scratch);
	for (int i = 0; !rc && i < STARTS; i++)
		rc = partition_create(at.layers, &how.start[i]);
	if (rc)
		goto out;
	rc = partition_create(at.layers, out);
	if (rc)
		goto out;
	rc = choose(&how, out);
out:
	for (int i = 0; i < STARTS; i++)
		rh_partition_free(&how.start[i]);
	rh_partition_free(&how.scratch);
	waves_free(&how.waves);
	searching_close(&at);
	if (rc)
		rh_partition_free(out);
	return rc;
}
