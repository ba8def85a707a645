/* Every schedule on many (M, N, S): each forward and backward once, dependencies and devices kept, memory in flight as theory says, and
 * idle time as the closed forms say for equal stages. */
#include "check.h"

#include "core/alloc.h"
#include "schedule/evaluate.h"

#include <math.h>
#include <string.h>

/* Model stages of one layer each, all equal, with activations kept. */
struct rig {
	struct rh_layer_cost *layer;
	struct rh_stage *stage;
	struct rh_costs costs;
	struct rh_cost_sums sums;
	struct rh_schedule_request request;
	const struct rh_schedule *schedule;
	struct rh_program program;
	struct rh_timeline timeline;
	int64_t *peak;
};

struct times {
	double forward, input, weight, hop;
};

static void rig_open(struct rig *rig, const char *name, int devices, int stages, int64_t micro_batches, int64_t steps, struct times times)
{
	*rig = (struct rig){.schedule = rh_schedule_find(name)};
	assert_non_null(rig->schedule);
	rig->layer = rh_alloc((size_t)stages, sizeof *rig->layer);
	rig->stage = rh_alloc((size_t)stages, sizeof *rig->stage);
	rig->peak = rh_alloc((size_t)devices, sizeof *rig->peak);
	for (int s = 0; s < stages; s++) {
		rig->layer[s] = (struct rh_layer_cost){
		        .forward_s = times.forward, .backward_s = times.input + times.weight, .weight_gradient_s = times.weight};
		rig->stage[s] = (struct rh_stage){s, s + 1};
	}
	rig->costs = (struct rh_costs){.layer = rig->layer, .layers = stages, .hop_s = times.hop};
	check_ok(rh_costs_sum(&rig->costs, &rig->sums));
	rig->request = (struct rh_schedule_request){.devices = devices,
	                                            .micro_batches = micro_batches,
	                                            .steps = steps,
	                                            .stage = rig->stage,
	                                            .stages = stages,
	                                            .sums = &rig->sums,
	                                            .hop_s = times.hop};
}

static void rig_run(struct rig *rig)
{
	check_ok(rh_schedule_make(rig->schedule, &rig->request, &rig->program));
	const struct rh_program_timing how = {.schedule = rig->schedule, .sums = &rig->sums, .devices = rig->request.devices};
	check_ok(rh_program_evaluate(&rig->program, &how, &rig->timeline));
	rh_program_in_flight(&rig->program, rig->request.devices, rig->peak);
}

static void rig_close(struct rig *rig)
{
	rh_free(rig->layer);
	rh_free(rig->stage);
	rh_free(rig->peak);
	rh_cost_sums_free(&rig->sums);
	rh_program_free(&rig->program);
	rh_timeline_free(&rig->timeline);
}

static int64_t most_held(const struct rig *rig)
{
	int64_t most = 0;
	for (int d = 0; d < rig->request.devices; d++)
		most = rig->peak[d] > most ? rig->peak[d] : most;
	return most;
}

enum part { PART_FORWARD, PART_INPUT, PART_WEIGHT, PARTS };

/* Ends of parts by stage and micro-batch over all steps, found in the program without the evaluator's help; -1: not yet. */
static double *collect(const struct rig *rig, int64_t all)
{
	size_t cells = (size_t)PARTS * (size_t)rig->request.stages * (size_t)all;
	double *end = malloc(cells * sizeof *end);
	assert_non_null(end);
	for (size_t i = 0; i < cells; i++)
		end[i] = -1;
	return end;
}

/* Does everything run once, after what it reads, on a device that is free? */
static void check_program(const struct rig *rig)
{
	const struct rh_schedule_request *request = &rig->request;
	int64_t all = request->micro_batches * request->steps, stages = request->stages, parts_seen = 0;
	double *end = collect(rig, all), *free_at = calloc((size_t)request->devices, sizeof *free_at);
	int *device = malloc((size_t)stages * sizeof *device);
	assert_true(free_at && device);
	memset(device, -1, (size_t)stages * sizeof *device);
	for (size_t i = 0; i < rig->program.slots; i++) {
		const struct rh_slot *slot = &rig->program.slot[i];
		assert_int_equal(slot->lo, request->stage[slot->stage].lo);
		assert_int_equal(slot->hi, request->stage[slot->stage].hi);
		assert_true(device[slot->stage] == -1 || device[slot->stage] == slot->device);
		device[slot->stage] = slot->device;
		for (int64_t k = 0; k < slot->count; k++) {
			int64_t m = slot->step * request->micro_batches + slot->first + k, place = rig->timeline.offset[i] + k;
			enum part part = slot->kind == RH_SLOT_FORWARD           ? PART_FORWARD
			                 : slot->kind == RH_SLOT_WEIGHT_GRADIENT ? PART_WEIGHT
			                                                         : PART_INPUT;
			double *own = &end[(part * stages + slot->stage) * all + m], before = 0;
			int64_t from = part == PART_FORWARD ? slot->stage - 1 : part == PART_WEIGHT ? slot->stage : slot->stage + 1;
			assert_true(*own < 0);
			if (from >= 0 && from < stages) {
				before = end[((part == PART_WEIGHT ? PART_INPUT : part) * stages + from) * all + m];
				assert_true(before >= 0);
				before += device[from] != slot->device ? rig->costs.hop_s : 0;
			}
			if (part == PART_INPUT)
				assert_true(end[(PART_FORWARD * stages + slot->stage) * all + m] >= 0);
			/* gradients are summed in the order of micro-batches */
			if (part == (rig->schedule->splits_backward ? PART_WEIGHT : PART_INPUT) && m % request->micro_batches)
				assert_true(own[-1] >= 0);
			assert_true(rig->timeline.start[place] >= before);
			assert_true(rig->timeline.start[place] >= free_at[slot->device]);
			*own = free_at[slot->device] = rig->timeline.end[place];
			parts_seen += slot->kind == RH_SLOT_BACKWARD ? 2 : 1;
			assert_int_equal(slot->kind == RH_SLOT_BACKWARD, slot->kind != RH_SLOT_FORWARD && !rig->schedule->splits_backward);
		}
	}
	assert_int_equal(parts_seen, 3 * stages * all);
	free(end);
	free(free_at);
	free(device);
}

static void test_every_schedule_runs_everything_once_in_order(void **state)
{
	(void)state;
	static const struct times choices[] = {{1, 1, 1, 0}, {2, 3, 1, 0.5}, {1, 2, 3, 4}};
	int programs = 0;
	for (int k = 0; k < rh_schedule_count; k++) {
		if (!rh_schedules[k].stages_least)
			continue;
		for (int devices = 1; devices <= 6; devices++)
			for (int loops = rh_schedules[k].stages_least; loops <= 3 && loops <= rh_schedules[k].stages_most; loops++)
				for (int64_t m = 1; m <= 13; m += m < 6 ? 1 : 3)
					for (int t = 0; t < 3; t++) {
						struct rig rig;
						rig_open(&rig, rh_schedules[k].name, devices, devices * loops, m, 1 + t, choices[t]);
						if (rig.schedule->name[0] == 'i' && loops > 1 && m % devices) {
							assert_int_equal(rh_schedule_make(rig.schedule, &rig.request, &rig.program),
							                 RH_NO_ORDER);
						} else {
							rig_run(&rig);
							check_program(&rig);
							programs++;
						}
						rig_close(&rig);
					}
	}
	printf("%d programs\n", programs);
}

/* GPipe (arXiv 1811.06965) and 1F1B (arXiv 2006.09503): (p-1)/(m+p-1); what is held: m, and p less the stage's number. */
static void test_flushed_one_stage_schedules_idle_as_the_formula_says(void **state)
{
	(void)state;
	for (int p = 1; p <= 9; p++)
		for (int64_t m = 1; m <= 40; m++)
			for (int k = 0; k < 2; k++) {
				struct rig rig;
				rig_open(&rig, k ? "1f1b" : "gpipe", p, p, m, 1, (struct times){1, 1.5, 0.5, 0});
				rig_run(&rig);
				check_near(rig.timeline.bubble, (p - 1) / (double)(m + p - 1), 1e-12);
				for (int d = 0; d < p; d++)
					assert_int_equal(rig.peak[d], k && p - d < m ? p - d : m);
				rig_close(&rig);
			}
}

/* The textbook's table for S = 4 (papers: pipeline-schedules-textbook), four decimals. */
static void test_textbook_table_for_four_stages(void **state)
{
	(void)state;
	static const double bubble[] = {0.7500, 0.6000, 0.4286, 0.2727, 0.1579, 0.0857, 0.0448};
	for (int i = 0; i < 7; i++)
		for (int k = 0; k < 2; k++) {
			struct rig rig;
			rig_open(&rig, k ? "1f1b" : "gpipe", 4, 4, 1 << i, 1, (struct times){1, 0.5, 0.5, 0});
			rig_run(&rig);
			check_near(round(rig.timeline.bubble * 1e4) / 1e4, bubble[i], 1e-9);
			check_near(round((1 - rig.timeline.bubble) * 1e4) / 1e4, 1 - bubble[i], 1e-9);
			rig_close(&rig);
		}
}

/* Interleaved (arXiv 2104.04473, 2.2): (p-1)/(vm+p-1) for p | m. Looped BFS (arXiv 2211.05953): p(p-1)/(mK+p(p-1)) for K stages, m >= p. */
static void test_looped_schedules_idle_as_the_formula_says(void **state)
{
	(void)state;
	for (int p = 1; p <= 8; p++)
		for (int v = 1; v <= 5; v++)
			for (int64_t m = p; m <= 5 * p; m++) {
				struct rig rig;
				double n = p;
				rig_open(&rig, "looped-bfs", p, p * v, m, 1, (struct times){1, 1.5, 0.5, 0});
				rig_run(&rig);
				check_near(rig.timeline.bubble, n * (n - 1) / ((double)m * p * v + n * (n - 1)), 1e-12);
				assert_int_equal(most_held(&rig), m * v);
				rig_close(&rig);
				if (m % p)
					continue;
				rig_open(&rig, "interleaved-1f1b", p, p * v, m, 1, (struct times){1, 1.5, 0.5, 0});
				rig_run(&rig);
				check_near(rig.timeline.bubble, (n - 1) / ((double)m * v + n - 1), 1e-12);
				int64_t ahead = v == 1 ? p : 2 * (p - 1) + (v - 1) * p + 1; /* 2104.04473's warm-up, and the one in hand */
				assert_int_equal(rig.peak[0], ahead < m * v ? ahead : m * v);
				rig_close(&rig);
			}
}

/* A latency of L one way, in forwards of 1 and backwards of b (T = 1 + b): GPipe (m+p-1)T + 2(p-1)L; 1F1B (m+p-1)T +
 * L(2(p-1)(q+1) + 2max(0,r-2)), q = floor((m-1)/p), r = m-pq. */
static void test_latency_adds_what_the_formula_says(void **state)
{
	(void)state;
	for (int p = 2; p <= 9; p++)
		for (int64_t m = 1; m <= 40; m++)
			for (int l = 0; l < 3; l++) {
				double latency = (const double[]){0.25, 1, 16}[l];
				int64_t q = (m - 1) / p, r = m - p * q;
				struct rig rig;
				rig_open(&rig, "gpipe", p, p, m, 1, (struct times){1, 1.5, 0.5, latency});
				rig_run(&rig);
				check_near(rig.timeline.makespan_s, 3.0 * (double)(m + p - 1) + 2 * (p - 1) * latency, 1e-9);
				rig_close(&rig);
				rig_open(&rig, "1f1b", p, p, m, 1, (struct times){1, 1.5, 0.5, latency});
				rig_run(&rig);
				double trips = (double)(2 * (p - 1) * (q + 1) + 2 * (r > 2 ? r - 2 : 0));
				check_near(rig.timeline.makespan_s, 3.0 * (double)(m + p - 1) + latency * trips, 1e-9);
				rig_close(&rig);
			}
}

static double span_beyond_work(const struct rig *rig, struct times t)
{
	return rig->timeline.longest_span_s -
	       (double)rig->request.micro_batches * (t.forward + t.input + t.weight) * rig->request.stages / rig->request.devices;
}

/* arXiv 2401.10241, Table 1: from a device's first forward to its last weight gradient, the longest, less its work. H1 (p-1)(F+B-W) within
 * p activations, H2 (p-1)(F+B-2W) within 2p-1; both for W <= F and W <= B and enough micro-batches. */
static void test_zero_bubble_by_hand_idles_as_the_formula_says(void **state)
{
	(void)state;
	static const struct times choices[] = {{1, 1, 1, 0}, {2, 3, 1, 0}, {1, 2, 1, 0}, {3, 4, 2, 0}, {5, 4, 2, 0}, {4, 5, 4, 0}};
	for (int p = 1; p <= 9; p++)
		for (int64_t m = 2 * p; m <= 5 * p + 3; m++)
			for (int t = 0; t < 6; t++) {
				struct times now = choices[t];
				struct rig rig;
				rig_open(&rig, "1f1b", p, p, m, 1, now);
				rig_run(&rig);
				check_near(span_beyond_work(&rig, now), (p - 1) * (now.forward + now.input + now.weight), 1e-9);
				rig_close(&rig);
				rig_open(&rig, "zb-h1", p, p, m, 1, now);
				rig_run(&rig);
				check_near(span_beyond_work(&rig, now), (p - 1) * (now.forward + now.input - now.weight), 1e-9);
				assert_int_equal(most_held(&rig), p);
				rig_close(&rig);
				rig_open(&rig, "zb-h2", p, p, m, 1, now);
				rig_run(&rig);
				check_near(span_beyond_work(&rig, now), (p - 1) * (now.forward + now.input - 2 * now.weight), 1e-9);
				assert_int_equal(most_held(&rig), 2 * p - 1);
				rig_close(&rig);
			}
}

/* ZB-1p and ZB-2p: within p and 2p activations, and never longer than the order by hand that has the same memory. */
static void test_zero_bubble_by_search_is_no_worse_than_by_hand(void **state)
{
	(void)state;
	static const struct times choices[] = {{1, 1, 1, 0}, {2, 3, 1, 0.2}, {1, 2, 3, 0}, {10, 11, 7, 1}};
	for (int p = 1; p <= 8; p++)
		for (int64_t m = 1; m <= 4 * p; m += p < 3 ? 1 : 3)
			for (int t = 0; t < 4; t++)
				for (int k = 1; k <= 2; k++) {
					struct rig hand, found;
					rig_open(&hand, k == 1 ? "zb-h1" : "zb-h2", p, p, m, 1, choices[t]);
					rig_open(&found, k == 1 ? "zb-1p" : "zb-2p", p, p, m, 1, choices[t]);
					rig_run(&hand);
					rig_run(&found);
					assert_true(found.timeline.longest_span_s <= hand.timeline.longest_span_s);
					assert_true(most_held(&found) <= k * p);
					rig_close(&hand);
					rig_close(&found);
				}
}

/* ZB-V at F = B = W (arXiv 2401.10241, 6): no idle time, from a device's first forward to its last weight gradient, within p whole
 * activations (2p of stages), on every device. */
static void test_zero_bubble_v_at_equal_times_never_idles(void **state)
{
	(void)state;
	const struct times equal = {1, 1, 1, 0};
	for (int p = 1; p <= 16; p++)
		for (int64_t m = 2 * p; m <= 5 * p + 3; m += p < 9 ? 1 : 3) {
			struct rig rig;
			rig_open(&rig, "zb-v", p, 2 * p, m, 1, equal);
			rig_run(&rig);
			assert_int_equal(most_held(&rig), 2 * p);
			check_near(span_beyond_work(&rig, equal), 0, 1e-9);
			rig_close(&rig);
		}
}

/* Mean time from one micro-batch's last backward to the next one's, in the middle of the run. */
static double period_of(const struct rig *rig)
{
	double first = -1, last = -1;
	int64_t all = rig->request.micro_batches * rig->request.steps, begin = all / 3, stages = rig->request.stages;
	int64_t count = (all / 3 / stages) * stages; /* whole turns of the slowest cycle */
	for (size_t i = 0; i < rig->program.slots; i++) {
		const struct rh_slot *slot = &rig->program.slot[i];
		int64_t m = slot->step * rig->request.micro_batches + slot->first;
		if (slot->stage || slot->kind != RH_SLOT_BACKWARD)
			continue;
		first = m == begin ? rig->timeline.end[rig->timeline.offset[i]] : first;
		last = m == begin + count ? rig->timeline.end[rig->timeline.offset[i]] : last;
	}
	return (last - first) / (double)count;
}

/* PACI (arXiv 2606.07881): its own admission limit pays 2L(N-1)/N a micro-batch, the latency-aware one hides the latency; asynchronous 1F1B
 * likewise. */
static void test_paci_period_is_as_the_window_allows(void **state)
{
	(void)state;
	for (int n = 1; n <= 8; n++)
		for (int l = 0; l < 5; l++) {
			double latency = (const double[]){0, 0.5, 1, 3, 10}[l];
			const struct times now = {1, 1.5, 0.5, latency};
			int64_t admission_limit[8], step = 1 + (int64_t)ceil(2 * latency / 3);
			struct rig rig;
			rig_open(&rig, "paci", n, n, 8, 60, now);
			rig_run(&rig);
			check_program(&rig);
			check_near(period_of(&rig), 3 + 2 * latency * (n - 1) / n, 1e-9);
			for (int d = 0; d < n; d++)
				assert_int_equal(rig.peak[d], n - d);
			rig_close(&rig);
			rig_open(&rig, "paci", n, n, 8, 60, now);
			for (int s = 0; s < n; s++)
				admission_limit[s] = 1 + (n - 1 - s) * step;
			rig.request.admission_limit = admission_limit;
			rig_run(&rig);
			check_program(&rig);
			check_near(period_of(&rig), 3, 1e-9);
			for (int d = 0; d < n; d++)
				assert_true(rig.peak[d] <= admission_limit[d]);
			rig_close(&rig);
			rig_open(&rig, "1f1b-async", n, n, 8, 60, now);
			rig_run(&rig);
			check_near(period_of(&rig), 3 + 2 * latency * (n - 1) / n, 1e-9);
			rig_close(&rig);
		}
}

/* Versions crossed by a micro-batch at a stage with admission limit w under an update every a backwards: at most ceil((w-1)/a). */
static void test_paci_crosses_no_more_versions_than_bounded(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	for (int round = 0; round < 200; round++) {
		int n = 1 + (int)(check_random(&random) % 7);
		int64_t all = 120, updates = 1 + check_random(&random) % 6, admission_limit[8];
		struct rig rig;
		rig_open(&rig, "paci", n, n, all, 1, (struct times){1, 1, 1, check_random(&random) % 4});
		for (int s = 0; s < n; s++) {
			rig.layer[s].forward_s = 1 + check_random(&random) % 4;
			rig.layer[s].backward_s = 2 + check_random(&random) % 4;
			admission_limit[s] = 1 + (n - 1 - s) + (int64_t)(check_random(&random) % 3);
		}
		rh_cost_sums_free(&rig.sums);
		check_ok(rh_costs_sum(&rig.costs, &rig.sums));
		rig.request.admission_limit = admission_limit;
		rig_run(&rig);
		check_program(&rig);
		for (int s = 0; s < n; s++) {
			int64_t backwards = 0, version_at[120];
			for (size_t i = 0; i < rig.program.slots; i++) {
				const struct rh_slot *slot = &rig.program.slot[i];
				if (slot->stage != s)
					continue;
				if (slot->kind == RH_SLOT_FORWARD)
					version_at[slot->first] = backwards / updates;
				else
					assert_true(backwards++ / updates - version_at[slot->first] <=
					            (admission_limit[s] - 1 + updates - 1) / updates);
			}
		}
		rig_close(&rig);
	}
}

/* Table 2 of the PACI paper: its PACI row is its 1F1B-flush row over the flush's share of busy time. */
static void test_paci_table_2_row_from_its_1f1b_row(void **state)
{
	(void)state;
	static const struct {
		int gpus;
		int64_t micro_batches[3];
		double flush[3], paci[3];
	} rows[] = {
	        {8, {24, 32, 64}, {11.80, 12.50, 13.60}, {15.24, 15.23, 15.09}},
	        {8, {24, 32, 64}, {3.50, 3.70, 4.03}, {4.52, 4.51, 4.47}},
	        {16, {48, 64, 128}, {1.40, 1.49, 1.64}, {1.84, 1.84, 1.83}},
	        {32, {96, 128, 256}, {0.76, 0.80, 0.88}, {1.01, 0.99, 0.99}},
	};
	for (int r = 0; r < 4; r++)
		for (int i = 0; i < 3; i++) {
			struct rig rig;
			rig_open(&rig, "1f1b", rows[r].gpus, rows[r].gpus, rows[r].micro_batches[i], 1, (struct times){1, 1, 1, 0});
			rig_run(&rig);
			double paci = rows[r].flush[i] / (1 - rig.timeline.bubble);
			check_near(round(paci * 100) / 100, rows[r].paci[i], 1e-9);
			rig_close(&rig);
		}
}

/* The nth allocation fails, for n = 1, 2, 3... until all goes well: an error each time, and nothing leaks. */
static void test_every_schedule_without_memory_fails_cleanly(void **state)
{
	(void)state;
	for (int k = 0; k < rh_schedule_count; k++) {
		int rc = -ENOMEM;
		for (uint64_t nth = 1; rh_schedules[k].stages_least && rc; nth++) {
			struct rig rig;
			rig_open(&rig, rh_schedules[k].name, 3, 3 * rh_schedules[k].stages_least, 6, 2, (struct times){1, 1, 1, 1});
			const struct rh_program_timing how = {.schedule = rig.schedule, .sums = &rig.sums, .devices = 3};
			rh_alloc_fail_nth(nth);
			rc = rh_schedule_make(rig.schedule, &rig.request, &rig.program);
			if (!rc)
				rc = rh_program_evaluate(&rig.program, &how, &rig.timeline);
			rh_alloc_fail_nth(0);
			assert_true(rc == 0 || rc == -ENOMEM);
			rig_close(&rig);
		}
	}
}

static void test_requests_that_do_not_go_together_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		int devices, stages;
		int64_t micro_batches, admission_limit;
		const char *line;
		int code;
	} cases[] = {
	        {"gpipe", 4, 8, 4, 0, "schedule gpipe: 8 model stages do not go onto 4 devices; give each 1", -EINVAL},
	        {"looped-bfs", 4, 6, 4, 0, "6 model stages do not go onto 4 devices; give each 1 or more, all the same", -EINVAL},
	        {"zb-v", 4, 4, 4, 0, "give each 2", -EINVAL},
	        {"interleaved-1f1b", 4, 8, 6, 0, "6 micro-batches are no multiple of 4 devices", RH_NO_ORDER},
	        {"1f1b", 4, 4, 0, 0, "counts from 1", -EINVAL},
	        {"roundpipe", 4, 4, 4, 0, "needs a plan", -EINVAL},
	        {"paci", 2, 2, 4, -1, "stage 0's admission limit is -1", -EINVAL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct rig rig;
		const int64_t admission_limit[] = {cases[i].admission_limit, 1};
		rig_open(&rig, cases[i].name, cases[i].devices, cases[i].stages, cases[i].micro_batches, 1, (struct times){1, 1, 1, 0});
		rig.request.admission_limit = cases[i].admission_limit ? admission_limit : NULL;
		int code = cases[i].code;
		assert_int_equal(rh_schedule_make(rig.schedule, &rig.request, &rig.program), code);
		if (!strstr(rh_error(code), cases[i].line))
			fail_msg("'%s' is not in: %s", cases[i].line, rh_error(code));
		rig_close(&rig);
	}
	assert_null(rh_schedule_find("zb-w"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_schedule_runs_everything_once_in_order),
	        cmocka_unit_test(test_flushed_one_stage_schedules_idle_as_the_formula_says),
	        cmocka_unit_test(test_textbook_table_for_four_stages),
	        cmocka_unit_test(test_looped_schedules_idle_as_the_formula_says),
	        cmocka_unit_test(test_latency_adds_what_the_formula_says),
	        cmocka_unit_test(test_zero_bubble_by_hand_idles_as_the_formula_says),
	        cmocka_unit_test(test_zero_bubble_by_search_is_no_worse_than_by_hand),
	        cmocka_unit_test(test_zero_bubble_v_at_equal_times_never_idles),
	        cmocka_unit_test(test_paci_period_is_as_the_window_allows),
	        cmocka_unit_test(test_paci_crosses_no_more_versions_than_bounded),
	        cmocka_unit_test(test_paci_table_2_row_from_its_1f1b_row),
	        cmocka_unit_test(test_every_schedule_without_memory_fails_cleanly),
	        cmocka_unit_test(test_requests_that_do_not_go_together_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
