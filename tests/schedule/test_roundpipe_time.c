/* RoundPipe in time: the idle formula for equal slots, joined steps, and that the partitioner's recurrence and the evaluator of
 * programs agree; the published bubbles of the other schedules with the cuts they were given. */
#include "check.h"

#include "core/alloc.h"
#include "partition/roundpipe.h"
#include "schedule/evaluate.h"

#include <math.h>
#include <string.h>

/* `forward` forward stages of a layer each and `backward` backward stages below the fused one; every slot takes 1 and recomputes nothing.
 */
struct rig {
	struct rh_layer_cost layer[40];
	struct rh_stage up[40], down[41];
	struct rh_costs costs;
	struct rh_cost_sums sums;
	struct rh_stage_plan plan;
	struct rh_program program;
	struct rh_timeline timeline;
};

static void rig_open(struct rig *rig, int forward, int backward)
{
	*rig = (struct rig){.plan = {.forward = rig->up, .backward = rig->down}};
	RH_ASSERT(backward <= forward && forward < 40);
	for (int l = 0; l < forward; l++) {
		rig->layer[l].forward_s = 1;
		rig->up[l] = (struct rh_stage){l, l + 1};
	}
	rig->layer[forward].backward_s = 1;
	rig->down[0] = (struct rh_stage){forward, forward + 1};
	for (int b = 0, hi = forward; b < backward; b++) {
		int lo = b + 1 == backward ? 0 : hi - 1;
		rig->down[b + 1] = (struct rh_stage){lo, hi};
		rig->layer[lo].backward_s = 1;
		hi = lo;
	}
	rig->plan.forward_stages = forward;
	rig->plan.backward_stages = backward + 1;
	rig->costs = (struct rh_costs){.layer = rig->layer, .layers = forward + 1};
	check_ok(rh_costs_sum(&rig->costs, &rig->sums));
}

static void rig_run(struct rig *rig, const char *name, int devices, int64_t micro_batches, int64_t most, int64_t steps,
                    enum rh_recompute recompute)
{
	const struct rh_schedule *schedule = rh_schedule_find(name);
	const struct rh_schedule_request request = {
	        .devices = devices, .micro_batches = micro_batches, .steps = steps, .plan = &rig->plan, .round_micro_batches = most};
	const struct rh_program_timing how = {.schedule = schedule, .sums = &rig->sums, .devices = devices, .recompute = recompute};
	rh_timeline_free(&rig->timeline);
	check_ok(rh_schedule_make(schedule, &request, &rig->program));
	check_ok(rh_program_evaluate(&rig->program, &how, &rig->timeline));
}

static void rig_close(struct rig *rig)
{
	rh_cost_sums_free(&rig->sums);
	rh_program_free(&rig->program);
	rh_timeline_free(&rig->timeline);
}

static double idle_of(const struct rig *rig, int devices)
{
	return devices * rig->timeline.makespan_s - rig->timeline.busy_s;
}

/* N(r-1) + (N-r)M_R with r = ((R*S-1) mod N) + 1, for M_R >= N, equal rounds, and S >= N or R = 1. */
static void test_flushed_step_of_equal_slots_idles_as_the_formula_says(void **state)
{
	(void)state;
	int cases = 0;
	for (int n = 1; n <= 8; n++)
		for (int forward = 0; forward <= 12; forward++)
			for (int backward = forward > 0; backward <= forward; backward += backward < 2 ? 1 : 3)
				for (int64_t rounds = 1; rounds <= 4; rounds++)
					for (int64_t size = n; size <= 3 * n; size += 1 + n / 2) {
						int64_t s = forward + backward + 1, r = (rounds * s - 1) % n + 1;
						if (s < n && rounds > 1)
							continue;
						struct rig rig;
						rig_open(&rig, forward, backward);
						rig_run(&rig, "roundpipe", n, rounds * size, size, 1, RH_RECOMPUTE_LATE);
						double idle = (double)(n * (r - 1) + (n - r) * size);
						check_near(idle_of(&rig, n), idle, 1e-9);
						check_near(rig.timeline.bubble, idle / ((double)(rounds * size * s) + idle), 1e-12);
						assert_true(idle >= n * (n - 1));
						/* the same slots, two fifths of a backward one being recompute: late it changes nothing,
						 * ahead it can only help */
						for (int l = 0; l < forward; l++) {
							rig.layer[l].recompute_s = 0.4 * rig.layer[l].backward_s;
							rig.layer[l].backward_s *= 0.6;
						}
						rh_cost_sums_free(&rig.sums);
						check_ok(rh_costs_sum(&rig.costs, &rig.sums));
						rig_run(&rig, "roundpipe", n, rounds * size, size, 1, RH_RECOMPUTE_LATE);
						check_near(idle_of(&rig, n), idle, 1e-9);
						rig_run(&rig, "roundpipe", n, rounds * size, size, 1, RH_RECOMPUTE_AHEAD);
						assert_true(idle_of(&rig, n) <= idle + 1e-9);
						rig_close(&rig);
						cases++;
					}
	printf("%d cases\n", cases);
}

/* Joined, many steps idle no more than one. */
static void test_joined_steps_idle_little(void **state)
{
	(void)state;
	for (int n = 2; n <= 8; n += 2) {
		struct rig rig;
		rig_open(&rig, 2 * n, 2 * n - 1);
		rig_run(&rig, "roundpipe", n, 2 * n, n, 1, RH_RECOMPUTE_LATE);
		double one = idle_of(&rig, n), length = rig.timeline.makespan_s;
		rig_run(&rig, "roundpipe", n, 2 * n, n, 20, RH_RECOMPUTE_LATE);
		check_near(rig.timeline.makespan_s, 20 * length, 1e-9);
		rig_run(&rig, "roundpipe-async", n, 2 * n, n, 20, RH_RECOMPUTE_LATE);
		check_near(idle_of(&rig, n), one, 1e-9);
		rig_close(&rig);
	}
}

/* Random stages, times and hops: the two recurrences are one. */
static void test_partitioners_recurrence_agrees_with_the_programs(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	for (int round = 0; round < 400; round++) {
		int forward = (int)(check_random(&random) % 9), devices = 1 + (int)(check_random(&random) % 6);
		struct rig rig;
		rig_open(&rig, forward, forward ? 1 + (int)(check_random(&random) % (uint32_t)forward) : 0);
		for (int l = 0; l <= forward; l++) {
			rig.layer[l] =
			        (struct rh_layer_cost){.forward_s = check_random(&random) % 9, .backward_s = check_random(&random) % 9};
			rig.layer[l].recompute_s = l < forward ? rig.layer[l].forward_s : 0;
		}
		rig.layer[forward].forward_s += 1;
		rig.costs.hop_s = check_random(&random) % 4;
		rh_cost_sums_free(&rig.sums);
		check_ok(rh_costs_sum(&rig.costs, &rig.sums));
		int64_t m = 1 + check_random(&random) % 14, most = 1 + check_random(&random) % (uint32_t)m,
		        rounds = rh_round_count(m, most);
		rig_run(&rig, "roundpipe-async", devices, m, most, 1, RH_RECOMPUTE_AHEAD);
		const struct rh_partition_request request = {
		        .costs = &rig.costs, .cap_bytes = INT64_MAX, .devices = devices, .micro_batches = m, .rounds = rounds, .steps = 1};
		struct rh_partition cuts = {.forward = rig.up,
		                            .backward = rig.down,
		                            .forward_stages = rig.plan.forward_stages,
		                            .backward_stages = rig.plan.backward_stages};
		check_ok(rh_partition_time(&request, &cuts));
		check_near(cuts.makespan_s, rig.timeline.makespan_s, 1e-9);
		check_near(cuts.bubble, rig.timeline.bubble, 1e-12);
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_flushed_step_of_equal_slots_idles_as_the_formula_says),
	        cmocka_unit_test(test_joined_steps_idle_little),
	        cmocka_unit_test(test_partitioners_recurrence_agrees_with_the_programs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
