/* A step on a machine: closed forms of the recurrence, micro-batches of other sizes, and the published experiments, under the system that
 * published them and under this one. */
#include "check.h"

#include "core/alloc.h"
#include "partition/anchor.h"
#include "partition/resize.h"

#include <string.h>
#include <time.h>

enum { LAYERS_MOST = 32 };

/* `layers` equal ones, each a stage that takes a second forward and none to recompute; the topmost fused. */
struct rig {
	struct rh_layer_cost layer[LAYERS_MOST];
	struct rh_costs costs;
	struct rh_cost_sums sums;
	struct rh_stage forward[LAYERS_MOST], backward[LAYERS_MOST];
	struct rh_partition cuts;
	double trained[LAYERS_MOST];
	struct rh_step_request request;
};

static void rig_make(int layers, struct rig *out)
{
	*out = (struct rig){.costs = {.layers = layers, .tokens = 8}};
	out->costs.layer = out->layer;
	for (int l = 0; l < layers; l++)
		out->layer[l] = (struct rh_layer_cost){.forward_s = l + 1 == layers ? 0 : 1, .backward_s = 1};
	check_ok(rh_costs_sum(&out->costs, &out->sums));
	for (int l = 0; l + 1 < layers; l++)
		out->forward[l] = (struct rh_stage){l, l + 1};
	for (int i = 0; i < layers; i++)
		out->backward[i] = (struct rh_stage){layers - 1 - i, layers - i};
	out->cuts = (struct rh_partition){
	        .forward = out->forward, .backward = out->backward, .forward_stages = layers - 1, .backward_stages = layers};
	out->request = (struct rh_step_request){.longer = &out->sums, .shorter = &out->sums, .trained = out->trained, .cuts = &out->cuts};
}

static struct rh_step_estimate time_of(const struct rig *rig)
{
	struct rh_step_estimate time;
	check_ok(rh_step_estimate(&rig->request, &time));
	return time;
}

static void test_equal_slots_idle_as_the_formula_says(void **state)
{
	(void)state;
	int compared = 0;
	for (int layers = 2; layers <= 12; layers++)
		for (int devices = 1; devices <= 8; devices++)
			for (int64_t rounds = 1; rounds <= 3; rounds++)
				for (int64_t each = devices; each <= devices + 3; each++) {
					struct rig rig;
					int s = 2 * layers - 1;
					if (s < devices && rounds > 1)
						continue;
					rig_make(layers, &rig);
					for (int l = 0; l < layers; l++)
						rig.trained[l] = 1; /* the next step waits for the update */
					rig.request.devices = devices;
					rig.request.rounds = rounds;
					rig.request.round_micro_batches = each;
					rig.request.sequences = rounds * each;
					int64_t n = devices, r = (rounds * s - 1) % n + 1;
					double idle = (double)(n * (r - 1) + (n - r) * each), slots = (double)(rounds * each * s);
					struct rh_step_estimate time = time_of(&rig);
					check_near(time.busy_s, slots, 1e-9);
					check_near(time.schedule_s, (slots + idle) / devices, 1e-9);
					check_near(time.period_s, time.schedule_s, 1e-9);
					rh_cost_sums_free(&rig.sums);
					compared++;
				}
	printf("%d combinations\n", compared);
	assert_true(compared > 500);
}

/* Where all micro-batches are alike only the first and the last of each slot are run, and of rounds that repeat a few. */
static void test_alike_micro_batches_as_each_by_itself(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	for (int i = 0; i < 400; i++) {
		struct rig rig;
		struct rh_step_estimate each, alike;
		rig_make(2 + (int)(check_random(&random) % 8), &rig);
		rh_cost_sums_free(&rig.sums);
		for (int l = 0; l < rig.costs.layers; l++) {
			rig.layer[l].forward_s = (double)(check_random(&random) % 100) / 70;
			rig.layer[l].recompute_s = rig.layer[l].forward_s * (double)(check_random(&random) % 2);
			rig.layer[l].backward_s = (double)(1 + check_random(&random) % 100) / 40;
			rig.layer[l].upload_bytes = check_random(&random) % 100;
			rig.layer[l].boundary_bytes = check_random(&random) % 10;
			rig.trained[l] = (double)(check_random(&random) % 100);
		}
		rig.costs.hop_s = (double)(check_random(&random) % 3) / 7;
		check_ok(rh_costs_sum(&rig.costs, &rig.sums));
		struct rh_cost_sums same = rig.sums;
		rig.request.devices = 1 + (int)(check_random(&random) % 8);
		rig.request.rounds = 1 + check_random(&random) % (i % 4 ? 5 : 100);
		rig.request.round_micro_batches = 1 + check_random(&random) % 6;
		rig.request.sequences = rig.request.rounds * rig.request.round_micro_batches;
		rig.request.stale = (int)(check_random(&random) % 2);
		rig.request.gradients_block = (int)(check_random(&random) % 2);
		rig.request.rates = (struct rh_step_rates){.up_bytes_per_s = 30 * (double)(check_random(&random) % 3),
		                                           .down_bytes_per_s = 100 * (double)(check_random(&random) % 2)};
		rig.request.bytes = (struct rh_step_bytes){.carried = (double)(check_random(&random) % 2) / 8};
		alike = time_of(&rig);
		rig.request.longer = &same;
		each = time_of(&rig);
		check_near(alike.schedule_s, each.schedule_s, 1e-9 * each.schedule_s);
		check_near(alike.period_s, each.period_s, 1e-9 * each.period_s);
		check_near(alike.busy_s, each.busy_s, 1e-9 * each.busy_s);
		check_near(alike.copied_bytes, each.copied_bytes, 1e-9 * each.copied_bytes);
		rig.request.longer = &rig.sums;
		rig.request.schedule_alone = 1;
		alike = time_of(&rig);
		check_near(alike.schedule_s, each.schedule_s, 1e-9 * each.schedule_s);
		check_near(alike.bubble, each.bubble, 1e-9);
		rh_cost_sums_free(&rig.sums);
	}
}

static void test_update_is_exposed_by_what_comes_last(void **state)
{
	(void)state;
	struct rig rig;
	rig_make(1, &rig);
	rig.trained[0] = 1e9;
	rig.request.devices = 1;
	rig.request.rounds = 1;
	rig.request.round_micro_batches = rig.request.sequences = 10;
	rig.request.bytes = (struct rh_step_bytes){.gradient = 2, .carried = 4, .updated = 26};
	rig.request.rates = (struct rh_step_rates){.update_bytes_per_s = 26e9};
	check_near(time_of(&rig).period_s, 11, 1e-6); /* ten seconds of work, one of update */
	rig.request.bytes.weights = rig.request.bytes.moments = 18;
	check_near(time_of(&rig).period_s, 10 + 18.0 / 26, 1e-6); /* moments while the next step runs */
	rig.request.rates.update_bytes_per_s = 0.9e9;             /* 36 bytes would take longer than a step with one pass */
	check_near(time_of(&rig).period_s, 10 + 26 / 0.9, 1e-6);
	rig.request.bytes.weights = rig.request.bytes.moments = 0;
	rig.request.rates.update_bytes_per_s = 26e9;
	rig.request.rates.down_bytes_per_s = 4e9; /* half a second, and all of a layer's gradient is there before its update begins */
	check_near(time_of(&rig).period_s, 11.5, 1e-6);
	rig.request.stale = 1;
	check_near(time_of(&rig).period_s, 10, 1e-6);
	rig.request.rates.host_bytes_per_s = 1e9; /* 26 GB and 2 GB of gradients over one memory */
	struct rh_step_estimate time = time_of(&rig);
	assert_true(time.host_bound);
	check_near(time.period_s, 28, 0.05);
	check_near(time.exposed, 1 - 10.0 / 28, 1e-3);
	rig.request.update = RH_STEP_AS_A_WHOLE;
	rig.request.stale = 0;
	rig.request.rates = (struct rh_step_rates){.update_bytes_per_s = 10e9};
	rig.request.bytes = (struct rh_step_bytes){.gradient = 2, .taken = 10, .updated = 28, .published = 8};
	check_near(time_of(&rig).period_s, 10 + 4.6, 1e-6);
	rig.trained[0] = 0;
	check_near(time_of(&rig).exposed, 0, 1e-12);
	rh_cost_sums_free(&rig.sums);
}

/* A device has one room for sums: those of one slot leave before the next one's come, or begin. Forward, fused and backward take a second
 * each, sums one each way; the recurrence of slots says the same. */
static void test_sums_between_rounds_take_turns(void **state)
{
	(void)state;
	struct rig rig;
	static const double sum_s[2] = {1, 1};
	rig_make(2, &rig);
	rig.trained[0] = rig.trained[1] = 1e9;
	rig.request.devices = 1;
	rig.request.round_micro_batches = 1;
	rig.request.rounds = rig.request.sequences = 2;
	rig.request.bytes = (struct rh_step_bytes){.carried = 4};
	rig.request.rates = (struct rh_step_rates){.up_bytes_per_s = 4e9, .down_bytes_per_s = 4e9};
	check_near(time_of(&rig).schedule_s, 9, 1e-9); /* 1 1 - 1 | 1 - 1 - 1 */
	rig.request.sums_apart = 1;
	check_near(time_of(&rig).schedule_s, 6, 1e-9);
	struct rh_partition_request request = {
	        .costs = &rig.costs, .cap_bytes = INT64_MAX, .devices = 1, .micro_batches = 2, .rounds = 2, .steps = 1, .sum_s = sum_s};
	check_ok(rh_partition_time(&request, &rig.cuts));
	check_near(rig.cuts.makespan_s, 9, 1e-9);
	request.sum_s = NULL;
	check_ok(rh_partition_time(&request, &rig.cuts));
	check_near(rig.cuts.makespan_s, 6, 1e-9);
	rh_cost_sums_free(&rig.sums);
}

static void test_impossible_counts_are_refused(void **state)
{
	(void)state;
	struct rig rig;
	struct rh_step_estimate time;
	rig_make(2, &rig);
	assert_int_equal(rh_step_estimate(&rig.request, &time), -EINVAL);
	rig.request.devices = 1;
	rig.request.rounds = 2;
	rig.request.round_micro_batches = rig.request.sequences = 1;
	assert_int_equal(rh_step_estimate(&rig.request, &time), -EINVAL);
	rh_cost_sums_free(&rig.sums);
}

static void test_other_sizes_keep_what_does_not_grow(void **state)
{
	(void)state;
	struct rh_layer_cost layer[2] = {{.forward_s = 5, .recompute_s = 5, .backward_s = 12, .weight_gradient_s = 6, .upload_bytes = 100},
	                                 {.forward_s = 3, .backward_s = 6, .weight_gradient_s = 3, .boundary_bytes = 64}};
	struct rh_costs given = {.layer = layer, .layers = 2, .hop_s = 1, .tokens = 8}, is;
	struct rh_resize how = {.tokens = 16, .fixed_forward_s = 1, .fixed_backward_s = 2, .launch_forward_s = 0.5, .slower = 1};
	check_ok(rh_costs_resize(&given, &how, &is));
	check_near(is.layer[0].forward_s, 0.5 + 4 * 2, 1e-12);
	check_near(is.layer[0].recompute_s, 0.5 + 4 * 2, 1e-12);
	check_near(is.layer[0].backward_s, 10 * 2, 1e-12);
	check_near(is.layer[1].forward_s, 6, 1e-12); /* the head has no fixed part */
	check_near(is.hop_s, 2, 1e-12);
	assert_int_equal(is.layer[1].boundary_bytes, 128);
	assert_int_equal(is.layer[0].upload_bytes, 100);
	rh_costs_free(&is);
	how = (struct rh_resize){.tokens = 1, .slower = 1, .memory_bytes_per_s = 50}; /* weights are read in two seconds */
	check_ok(rh_costs_resize(&given, &how, &is));
	check_near(is.layer[0].forward_s, 2, 1e-12);
	check_near(is.layer[0].backward_s, 0.75 + 2, 1e-12); /* no sums here, so the weights' gradients have no floor */
	rh_costs_free(&is);
	given.tokens = 0;
	assert_int_equal(rh_costs_resize(&given, &how, &is), -EINVAL);
}

struct anchor {
	struct rh_experiment experiment;
	struct rh_layer_table table;
	struct rh_peer peer;
	struct rh_hardware hardware;
};

static void anchor_open(const char *name, struct anchor *out)
{
	char path[256];
	snprintf(path, sizeof path, "examples/anchors/%s.yaml", name);
	check_ok(rh_experiment_read(path, &out->experiment));
	check_ok(rh_layer_table_read(out->experiment.layers, &out->table));
	check_ok(rh_peer_read(out->experiment.system, &out->peer));
	check_ok(rh_hardware_read("examples/hardware/rtx4090x8.yaml", &out->hardware));
}

static void anchor_close(struct anchor *anchor)
{
	rh_experiment_free(&anchor->experiment);
	rh_layer_table_free(&anchor->table);
	rh_peer_free(&anchor->peer);
	rh_hardware_free(&anchor->hardware);
}

static struct rh_anchor_result predicted(const struct anchor *anchor, int published, int devices, int stale)
{
	struct rh_anchor_result result;
	const struct rh_anchor_request request = {.experiment = &anchor->experiment,
	                                          .table = &anchor->table,
	                                          .as = published ? &anchor->peer : NULL,
	                                          .hardware = &anchor->hardware,
	                                          .devices = devices,
	                                          .stale = stale};
	check_ok(rh_anchor_predict(&request, &result));
	return result;
}

static const char *const names[] = {"qwen3-1.7b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-32b", "qwen3-235b-lora"};
enum { NAMES = sizeof names / sizeof *names };

/* Tokens a second on eight GPUs within 10 % (stale) and 15 %, and on one within 2 %, with one set of rates; the one that is an exception
 * says why in its file, and is no slower than predicted only where it is one. */
static void test_published_throughput_is_reproduced(void **state)
{
	(void)state;
	for (int i = 0; i < NAMES; i++) {
		struct anchor anchor;
		anchor_open(names[i], &anchor);
		for (int run = 0; run < 3; run++) { /* async, sync, one GPU */
			struct rh_anchor_result is = predicted(&anchor, 1, run == 2 ? 1 : 8, run != 1);
			double off = 100 * (is.tokens_per_s / is.published_tokens_per_s - 1), most = run == 0 ? 10 : run == 1 ? 15 : 2;
			printf("%-16s %-6s %8.0f tokens/s, published %6.0f, off by %+6.1f %%\n", names[i],
			       run == 0   ? "async"
			       : run == 1 ? "sync"
			                  : "1 GPU",
			       is.tokens_per_s, is.published_tokens_per_s, off);
			assert_true(is.published_tokens_per_s > 0);
			if (anchor.experiment.exception)
				assert_true(off > most); /* MoE launches: else the exception has no reason */
			else
				assert_true(off <= most && off >= -most);
			rh_anchor_result_free(&is);
		}
		anchor_close(&anchor);
	}
}

/* The same box and batches, micro-batches, rounds and cuts free: idle time by the schedule at most 1 % with stale updates and 3 % with
 * synchronous ones, and 2 points more for the update. gpt-oss-20b synchronous may have 4 and 4: its 24 blocks do not share out over 8
 * devices beside a head as heavy as 1.85 of them (one device has four backward blocks), and the next step's first slot waits for four
 * blocks and the embedding, whose weights come last. */
static void test_own_plans_hardly_idle(void **state)
{
	(void)state;
	for (int i = 0; i < NAMES; i++) {
		struct anchor anchor;
		anchor_open(names[i], &anchor);
		for (int stale = 0; stale < 2; stale++) {
			clock_t begin = clock();
			struct rh_anchor_result is = predicted(&anchor, 0, 8, stale);
			double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
			int tight = !stale && !strcmp(names[i], "gpt-oss-20b");
			printf("%-16s %-5s %3d micro-batches in %d rounds, %2d + %2d stages: %6.0f tokens/s, bubble %5.2f %%, exposed "
			       "%5.2f %% "
			       "(%.2f s of search)\n",
			       names[i], stale ? "async" : "sync", (int)is.micro_batches, (int)is.rounds, is.cuts.forward_stages,
			       is.cuts.backward_stages, is.tokens_per_s, 100 * is.time.bubble, 100 * is.time.exposed, seconds);
			assert_true(100 * is.time.bubble <= (stale ? 1 : tight ? 4 : 3));
			assert_true(100 * is.time.exposed <= (tight ? 4 : 2));
			assert_true(is.host_bytes < (double)anchor.hardware.host.ram);
			assert_true(is.cuts.device_bytes <= anchor.hardware.device.memory - anchor.hardware.device.reserved);
			struct rh_anchor_result theirs = predicted(&anchor, 1, 8, stale);
			assert_true(is.tokens_per_s > theirs.tokens_per_s * 0.999);
			rh_anchor_result_free(&theirs);
			rh_anchor_result_free(&is);
		}
		anchor_close(&anchor);
	}
}

static void test_prediction_with_no_memory_fails_cleanly(void **state)
{
	(void)state;
	struct anchor anchor;
	anchor_open("gpt-oss-20b", &anchor);
	for (int as = 0; as < 2; as++) {
		const struct rh_anchor_request request = {.experiment = &anchor.experiment,
		                                          .table = &anchor.table,
		                                          .as = as ? &anchor.peer : NULL,
		                                          .hardware = &anchor.hardware,
		                                          .devices = 8};
		for (uint64_t nth = 1; nth < 200; nth += 1 + nth / 8) {
			struct rh_anchor_result result;
			rh_alloc_fail_nth(nth);
			int rc = rh_anchor_predict(&request, &result);
			rh_alloc_fail_nth(0);
			assert_true(rc == 0 || rc == -ENOMEM);
			rh_anchor_result_free(&result);
		}
	}
	anchor_close(&anchor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_equal_slots_idle_as_the_formula_says),
	        cmocka_unit_test(test_alike_micro_batches_as_each_by_itself),
	        cmocka_unit_test(test_update_is_exposed_by_what_comes_last),
	        cmocka_unit_test(test_sums_between_rounds_take_turns),
	        cmocka_unit_test(test_impossible_counts_are_refused),
	        cmocka_unit_test(test_other_sizes_keep_what_does_not_grow),
	        cmocka_unit_test(test_published_throughput_is_reproduced),
	        cmocka_unit_test(test_own_plans_hardly_idle),
	        cmocka_unit_test(test_prediction_with_no_memory_fails_cleanly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
