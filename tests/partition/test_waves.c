/* The recurrence by each slot's first and last micro-batch, against that of all micro-batches. */
#include "check.h"

#include "core/alloc.h"
#include "partition/rounds.h"
#include "partition/timeline.h"
#include "partition/waves.h"

#include <math.h>

enum { LAYERS_MOST = 12, ALL_RUN = 48 };

struct instance {
	struct rh_layer_cost layer[LAYERS_MOST];
	double below_s[LAYERS_MOST + 1];
	struct rh_costs costs;
	struct rh_cost_sums sums;
	struct rh_stage forward[LAYERS_MOST], backward[LAYERS_MOST];
	struct rh_partition cuts;
	struct rh_partition_request request;
};

static uint32_t below(uint64_t *random, uint32_t limit)
{
	return check_random(random) % limit;
}

static double real(uint64_t *random)
{
	return (double)below(random, 1000) / 700;
}

static void make_instance(uint64_t *random, struct instance *out)
{
	int layers = 1 + (int)below(random, LAYERS_MOST), sums = (int)below(random, 2), top = (int)below(random, (uint32_t)layers), hi;
	*out = (struct instance){.costs = {.layer = out->layer, .layers = layers, .hop_s = below(random, 2) ? real(random) : 0}};
	for (int l = 0; l < layers; l++) {
		double forward = real(random), recompute = below(random, 3) ? forward : 0;
		out->layer[l] = (struct rh_layer_cost){.forward_s = forward,
		                                       .recompute_s = recompute,
		                                       .recompute_spared_s = recompute / 3,
		                                       .backward_s = 2 * real(random),
		                                       .upload_bytes = below(random, 100),
		                                       .boundary_bytes = below(random, 10)};
		out->below_s[l + 1] = out->below_s[l] + (sums ? 5 * real(random) : 0);
	}
	check_ok(rh_costs_sum(&out->costs, &out->sums));
	out->cuts = (struct rh_partition){.forward = out->forward, .backward = out->backward};
	for (int lo = 0; lo < top; lo = hi) {
		hi = lo + 1 + (int)below(random, (uint32_t)(top - lo));
		out->forward[out->cuts.forward_stages++] = (struct rh_stage){lo, hi};
	}
	out->backward[out->cuts.backward_stages++] = (struct rh_stage){top, layers};
	for (hi = top; hi > 0;) {
		int lo = (int)below(random, (uint32_t)hi);
		out->backward[out->cuts.backward_stages++] = (struct rh_stage){lo, hi};
		hi = lo;
	}
	int64_t rounds = 1 + below(random, below(random, 4) ? 6 : 90);
	out->request = (struct rh_partition_request){.costs = &out->costs,
	                                             .devices = 1 + (int)below(random, 8),
	                                             .micro_batches = rounds + below(random, (uint32_t)(6 * rounds)),
	                                             .rounds = rounds,
	                                             .steps = 1 + below(random, 3),
	                                             .up_bytes_per_s = 30 * below(random, 3)};
}

/* Slot i of all on device i mod N; a round's first has its input at hand. */
static int64_t lay_slots(const struct instance *of, struct rh_timeline_slot *slot)
{
	const struct rh_partition_request *request = &of->request;
	int forward = of->cuts.forward_stages, stages = forward + of->cuts.backward_stages;
	double hop = of->costs.hop_s, up = request->up_bytes_per_s, ahead[8] = {0};
	int64_t n = 0;
	for (int64_t r = 0; r < request->rounds * request->steps; r++)
		for (int s = 0; s < stages; s++, n++) {
			struct rh_stage stage = s < forward ? of->forward[s] : of->backward[s - forward];
			struct rh_timeline_slot *now = &slot[n];
			*now = (struct rh_timeline_slot){.device = (int)(n % request->devices),
			                                 .source = {-1, s ? n - 1 : -1},
			                                 .hop_s = {hop, hop},
			                                 .previous_sum = -1};
			rh_round_range(request->micro_batches, request->rounds, r % request->rounds, &now->first, &now->count);
			now->sums_s[0] = -1;
			if (up > 0) {
				double boundary = stage.lo ? (double)of->layer[stage.lo - 1].boundary_bytes : 0;
				if (n >= request->devices && request->devices % stages) /* the first ones' weights are there, and stay there
				                                                         * if the device's stage is always the same */
					now->upload_s =
					        ahead[now->device] + (double)rh_costs_upload_bytes(&of->costs, stage.lo, stage.hi) / up;
				ahead[now->device] = boundary * (double)(s > forward ? 2 : 1) * (double)now->count / up;
			}
			if (s >= forward) {
				double sums = of->below_s[stage.hi] - of->below_s[stage.lo];
				int first = r % request->rounds == 0, last = (r + 1) % request->rounds == 0;
				now->sums_s[0] = first ? 0 : sums;
				now->sums_s[1] = last ? 0 : sums;
				now->last_sum_s = of->below_s[stage.lo + 1] - of->below_s[stage.lo];
				double head = of->below_s[stage.hi] - of->below_s[stage.hi - 1];
				now->head_sum_s = s == forward && head > 0 ? head : -1;
				now->previous_sum = first ? -1 : n - stages;
			}
			if (s <= forward) {
				now->part_s[1] =
				        rh_cost_stage(&of->sums, s < forward ? RH_PASS_FORWARD : RH_PASS_FUSED, stage.lo, stage.hi);
				continue;
			}
			now->part_s[0] = rh_cost_recompute(&of->sums, stage.lo, stage.hi);
			now->part_s[1] = rh_cost_backward(&of->sums, stage.lo, stage.hi);
			for (int f = 0; f < forward; f++) /* the slot that leaves this stage's input behind */
				if (of->forward[f].lo < stage.lo && stage.lo <= of->forward[f].hi)
					now->source[0] = n - s + f;
		}
	return n;
}

static void test_waves_any_stages_as_all_micro_batches(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	int skipped = 0;
	double worst = 0;
	for (int i = 0; i < 3000; i++) {
		struct instance it;
		struct rh_timeline all;
		struct waves waves;
		make_instance(&random, &it);
		int64_t most = it.request.rounds * it.request.steps * 2 * LAYERS_MOST;
		struct rh_timeline_slot *slot = rh_alloc((size_t)most, sizeof *slot);
		assert_non_null(slot);
		check_ok(rh_timeline_run(slot, lay_slots(&it, slot), it.request.devices, &all));
		check_ok(waves_create(&it.request, &waves));
		waves_set(&waves, &it.sums, it.below_s, &it.cuts);
		double makespan = waves_run(&waves, it.request.steps, 0, HUGE_VAL);
		double apart = it.request.rounds > ALL_RUN ? 0.04 : 1e-9; /* of more not all are run, and some wait for sums only later */
		worst = fmax(worst, fabs(makespan / all.makespan_s - 1));
		check_near(makespan, all.makespan_s, apart * all.makespan_s);
		check_near(waves_busy(&waves) * (double)(it.request.micro_batches * it.request.steps), all.busy_s, 1e-9 * all.busy_s);
		double first = waves_run(&waves, 1, 0, HUGE_VAL);
		check_near(waves_run(&waves, it.request.steps, 1, HUGE_VAL), it.request.steps > 1 ? makespan - first : 0, apart * makespan);
		skipped += it.request.rounds > 40;
		waves_free(&waves);
		rh_timeline_free(&all);
		rh_cost_sums_free(&it.sums);
		rh_free(slot);
	}
	printf("%d of more than 40 rounds, at most %.2g off\n", skipped, worst);
	assert_true(skipped > 100);
}

/* A million rounds take no longer than a few, and each adds as much as the next, to 2 %. */
static void test_waves_a_million_rounds_go_on_as_some_hundred_do(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	for (int i = 0; i < 50; i++) {
		struct instance it;
		struct waves waves;
		double makespan[3];
		make_instance(&random, &it);
		it.request.devices = 8;
		const int64_t rounds[3] = {8 * 100, 8 * 150, 8 << 17};
		for (int k = 0; k < 3; k++) {
			it.request.rounds = rounds[k];
			it.request.micro_batches = 3 * rounds[k];
			check_ok(waves_create(&it.request, &waves));
			waves_set(&waves, &it.sums, it.below_s, &it.cuts);
			makespan[k] = waves_run(&waves, 1, 0, HUGE_VAL);
			waves_free(&waves);
		}
		double each = (makespan[1] - makespan[0]) / (double)(rounds[1] - rounds[0]);
		double expected = makespan[1] + each * (double)(rounds[2] - rounds[1]);
		check_near(makespan[2], expected, 0.02 * expected);
		rh_cost_sums_free(&it.sums);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_waves_any_stages_as_all_micro_batches),
	        cmocka_unit_test(test_waves_a_million_rounds_go_on_as_some_hundred_do),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
