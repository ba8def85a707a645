#include "partition/waves.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/rounds.h"

#include <string.h>

enum { MIDDLE_ROUNDS_RUN = 48 }; /* six times the turns of eight devices */

int waves_create(const struct rh_partition_request *request, struct waves *out)
{
	size_t stages = 2 * (size_t)request->costs->layers, devices = (size_t)request->devices;
	*out = (struct waves){.request = request, .times = 1 + 4 * devices + stages};
	out->stage = rh_alloc(stages, sizeof *out->stage);
	out->first = rh_alloc(stages + out->times + 2 * devices, sizeof *out->first);
	out->slots = rh_alloc(devices, sizeof *out->slots);
	if (!out->stage || !out->first || !out->slots) {
		waves_free(out);
		return -ENOMEM;
	}
	out->end = out->first + stages;
	out->free = out->end + 1;
	out->free_before = out->free + devices;
	out->sums_end = out->free_before + devices;
	out->weights_end = out->sums_end + devices;
	out->last = out->weights_end + devices;
	out->load = out->last + stages;
	out->ahead = out->load + devices;
	return 0;
}

void waves_free(struct waves *waves)
{
	rh_free(waves->stage);
	rh_free(waves->first);
	rh_free(waves->slots);
	*waves = (struct waves){0};
}

/* Seconds that a stage's copies take up the link, where its rate is known. */
static void set_uploads(const struct waves *waves, struct rh_stage is, int backward_only, struct wave_stage *stage)
{
	const struct rh_costs *costs = waves->request->costs;
	double rate = waves->request->up_bytes_per_s;
	if (rate <= 0)
		return;
	stage->upload_s = (double)rh_costs_upload_bytes(costs, is.lo, is.hi) / rate;
	if (is.lo)
		stage->activation_s = (double)costs->layer[is.lo - 1].boundary_bytes * (backward_only ? 2 : 1) / rate;
}

void waves_set(struct waves *waves, const struct rh_cost_sums *sums, const double *below_s, const struct rh_partition *cuts)
{
	int forward = cuts->forward_stages, saved = forward - 1;
	waves->forward = forward;
	waves->stages = forward + cuts->backward_stages;
	for (int s = 0; s < waves->stages; s++) {
		struct rh_stage is = s < forward ? cuts->forward[s] : cuts->backward[s - forward];
		struct wave_stage *stage = &waves->stage[s];
		*stage = (struct wave_stage){.saved = -1};
		if (s <= forward) {
			stage->rest_s = rh_cost_stage(sums, s < forward ? RH_PASS_FORWARD : RH_PASS_FUSED, is.lo, is.hi);
		} else {
			stage->recompute_s = rh_cost_recompute(sums, is.lo, is.hi);
			stage->rest_s = rh_cost_backward(sums, is.lo, is.hi);
			while (saved >= 0 &&
			       cuts->forward[saved].lo >= is.lo) /* the slot that leaves this stage's input behind: further down */
				saved--;
			stage->saved = saved;
		}
		if (waves->request->devices % waves->stages) /* else each device always runs one stage, whose weights stay there */
			set_uploads(waves, is, s > forward, stage);
		if (s >= forward && below_s) {
			double head_s = below_s[is.hi] - below_s[is.hi - 1];
			stage->sums_s = below_s[is.hi] - below_s[is.lo];
			stage->last_sum_s = below_s[is.lo + 1] - below_s[is.lo];
			stage->head_sum_s = head_s > 0 ? head_s : -1;
		}
	}
}

double waves_busy(const struct waves *waves)
{
	double busy = 0;
	for (int s = 0; s < waves->stages; s++)
		busy += waves->stage[s].recompute_s + waves->stage[s].rest_s;
	return busy;
}

/* A round of so many micro-batches. adds: to gradient sums that are there; goes_on: with them. */
struct wave_round {
	int64_t count;
	int adds, goes_on;
};

/* When the weights of a device's next slot are there. A run begins with those of each device's first slot in place: they went up while the
 * step before it ended. */
static double uploaded(struct waves *waves, const struct wave_stage *stage, int device, int64_t count)
{
	if (waves->slots[device]++ && waves->request->up_bytes_per_s > 0)
		waves->weights_end[device] =
		        rh_max_double(waves->weights_end[device], waves->free_before[device]) + waves->ahead[device] + stage->upload_s;
	waves->ahead[device] = stage->activation_s * (double)count;
	return waves->weights_end[device];
}

/* When a stage's gradient sums are on the host, if its last micro-batch ends then: each layer's leaves as soon as it is whole. */
static double sums_down(const struct wave_stage *stage, double last)
{
	return last + rh_max_double(stage->last_sum_s, stage->sums_s - stage->rest_s);
}

static void run_round(struct waves *waves, struct wave_round round, int *turn)
{
	const struct rh_partition_request *request = waves->request;
	double hop = request->costs->hop_s, beyond = (double)(round.count - 1);
	double first_before = 0, last_before = 0;
	for (int s = 0; s < waves->stages; s++) {
		const struct wave_stage *stage = &waves->stage[s];
		int device = *turn, backward = s >= waves->forward;
		double ready = rh_max_double(waves->free[device], uploaded(waves, stage, device, round.count));
		double each = stage->recompute_s + stage->rest_s;
		if (backward && !round.adds)
			ready = rh_max_double(ready, waves->sums_end[device]);
		else if (s == waves->forward && stage->head_sum_s >= 0) /* the head's gradient comes with its loss */
			ready = rh_max_double(ready, rh_max_double(waves->sums_end[device], waves->last[s]) + stage->head_sum_s);
		double first = ready + stage->recompute_s, last = 0;
		if (stage->saved >= 0) {
			first = rh_max_double(ready, waves->first[stage->saved] + hop) + stage->recompute_s;
			last = waves->last[stage->saved] + hop + each;
		}
		if (s) {
			first = rh_max_double(first, first_before + hop);
			last = rh_max_double(last, last_before + hop + stage->rest_s);
		}
		first += stage->rest_s;
		if (backward && round.adds) { /* a layer's backward waits for its own sums alone */
			double up = rh_max_double(waves->sums_end[device] + stage->sums_s,
			                          sums_down(stage, waves->last[s]) + stage->last_sum_s);
			first = rh_max_double(first, up);
		}
		last = rh_max_double(last, first + beyond * each);
		waves->first[s] = first_before = first;
		waves->free_before[device] = waves->free[device];
		waves->last[s] = waves->free[device] = last_before = last;
		if (backward)
			waves->sums_end[device] = round.goes_on ? sums_down(stage, last) : last;
		*waves->end = rh_max_double(*waves->end, last);
		*turn = device + 1 < request->devices ? device + 1 : 0;
	}
}

static int64_t divisor(int64_t a, int64_t b)
{
	return b ? divisor(b, a % b) : a;
}

/* The end is no sooner than if no device idled any more, with so many micro-batches to come: nor than if none of those did that take turns,
 * which are as many as there are rounds until turns are the same. The means of rounds that are not run may be off by the last of these. */
static double end_lower_bound(const struct waves *waves, int64_t again, double to_come)
{
	int devices = waves->request->devices, groups = (int)(devices / again);
	double all = 0, most = 0, each = 0;
	for (int g = 0; g < groups; g++) {
		double sum = waves->load[g] * to_come;
		for (int d = g; d < devices; d += groups)
			sum += waves->free[d];
		all += sum;
		most = rh_max_double(most, sum);
	}
	each = most / (double)again * (1 - 1e-8);
	return rh_max_double(all / devices * (1 - 1e-12), each);
}

/* The seconds of a micro-batch's slots, for each group of devices that take turns. */
static void share_load(struct waves *waves, int64_t again)
{
	int groups = (int)(waves->request->devices / again);
	memset(waves->load, 0, (size_t)groups * sizeof *waves->load);
	for (int s = 0; s < waves->stages; s++)
		waves->load[s % groups] += waves->stage[s].recompute_s + waves->stage[s].rest_s;
}

/* So many rounds, each of which lets all times be later by `each_s`, are not run. Returns how many. */
static int64_t skip_rounds(struct waves *waves, double each_s, int64_t count)
{
	for (size_t i = 0; i < waves->times; i++)
		waves->end[i] += each_s * (double)count;
	return count;
}

double waves_run(struct waves *waves, int64_t steps, int after_first, double most)
{
	const struct rh_partition_request *request = waves->request;
	int64_t rounds = request->rounds, longer = request->micro_batches % rounds, unused;
	int64_t again = request->devices / divisor(waves->stages, request->devices); /* rounds, after which turns are the same */
	int64_t run_most = rh_max(MIDDLE_ROUNDS_RUN / again, 2) * again;
	double begun = 0, to_come = (double)request->micro_batches * (double)steps;
	int turn = 0;
	memset(waves->end, 0, waves->times * sizeof *waves->end);
	memset(waves->slots, 0, (size_t)request->devices * sizeof *waves->slots);
	memset(waves->ahead, 0, (size_t)request->devices * sizeof *waves->ahead);
	share_load(waves, again);
	double least = end_lower_bound(waves, again, to_come);
	if (least > most && !after_first)
		return least;
	for (int64_t step = 0; step < steps; step++) {
		int64_t alike = 0; /* the first round of those that are as this one */
		double turns_ago = 0;
		for (int64_t r = 0; r < rounds; r++) {
			int64_t next = r < 1 ? 1 : r < longer ? longer : r + 1 < rounds ? rounds - 1 : rounds; /* of another kind */
			struct wave_round round = {.adds = r > 0, .goes_on = r + 1 < rounds};
			int64_t over = r;
			rh_round_range(request->micro_batches, rounds, r, &unused, &round.count);
			run_round(waves, round, &turn);
			if (r <= 1 || r == longer || r + 1 == rounds)
				alike = r;
			if (r - alike == run_most - again)
				turns_ago = *waves->end;
			if (r - alike == run_most)
				r += skip_rounds(waves, (*waves->end - turns_ago) / (double)again, (next - 1 - r) / again * again);
			to_come -= (double)round.count * (double)(r + 1 - over);
			if (!step && after_first && r + 1 == rounds)
				begun = *waves->end;
			least = rh_max_double(*waves->end, end_lower_bound(waves, again, to_come)) - begun;
			if (least > most && (begun > 0 || !after_first))
				return least;
		}
	}
	return *waves->end - begun;
}
