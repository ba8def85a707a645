/* RoundPipe's partitioner against brute force over all partitions, and what the choice by the slot recurrence is worth. */
#include "check.h"

#include "core/alloc.h"
#include "partition/roundpipe_internal.h"
#include "partition/roundpipe_long.h"

#include <float.h>
#include <string.h>

enum { LAYERS_MOST = 7 };

struct instance {
	struct rh_layer_cost layer[LAYERS_MOST];
	struct rh_costs costs;
	struct rh_partition_request request;
};

static uint32_t below(uint64_t *random, uint32_t limit)
{
	return check_random(random) % limit;
}

/* Whole seconds and bytes, so that sums are exact. Every third layer may be free, and one may be huge. */
static void make_instance(uint64_t *random, int kind, struct instance *out)
{
	*out = (struct instance){0};
	int layers = 1 + (int)below(random, LAYERS_MOST - (kind == 0));
	for (int l = 0; l < layers; l++) {
		struct rh_layer_cost *layer = &out->layer[l];
		uint32_t most = kind == 1 ? 3 : 12;
		layer->forward_s = below(random, most);
		layer->recompute_s = l + 1 == layers ? 0 : layer->forward_s;
		layer->recompute_spared_s = kind == 3 && layer->recompute_s > 0 ? below(random, (uint32_t)layer->recompute_s + 1) : 0;
		layer->backward_s = below(random, 2 * most);
		layer->upload_bytes = below(random, most);
		layer->gradient_bytes = below(random, most);
		layer->saved_bytes = below(random, most);
		layer->boundary_bytes = 1 + below(random, 2);
		layer->forward_workspace_bytes = below(random, most);
		layer->backward_workspace_bytes = below(random, most);
	}
	if (kind == 2) {
		struct rh_layer_cost *huge = &out->layer[below(random, (uint32_t)layers)];
		huge->forward_s = huge->backward_s = 1000;
		huge->upload_bytes = 300;
	}
	out->costs = (struct rh_costs){.layer = out->layer, .layers = layers, .hop_s = below(random, 3)};
	out->costs.first_trained = below(random, 3) ? 0 : (int)below(random, (uint32_t)layers);
	int64_t micro_batches = 1 + below(random, 20);
	out->request = (struct rh_partition_request){.costs = &out->costs,
	                                             .cap_bytes = INT64_MAX / 4,
	                                             .devices = 1 + (int)below(random, 8),
	                                             .micro_batches = micro_batches,
	                                             .rounds = 1 + below(random, (uint32_t)micro_batches),
	                                             .steps = 1};
}

struct brute {
	const struct instance *instance;
	struct rh_cost_sums sums;
	double best;
	int64_t least_bytes, pick_bytes; /* over all partitions; of one drawn at random */
	uint32_t seen;
	uint64_t *random;
};

struct extent {
	int64_t bytes, upload;
	double slowest;
	int stages;
};

static struct extent with_stage(const struct brute *at, struct extent so_far, enum rh_pass pass, int lo, int hi)
{
	int64_t bytes = rh_costs_stage_bytes(&at->instance->costs, pass, lo, hi), upload = 0;
	for (int l = lo; l < hi; l++)
		upload += at->instance->layer[l].upload_bytes;
	double seconds = rh_cost_stage(&at->sums, pass, lo, hi);
	so_far.bytes = bytes > so_far.bytes ? bytes : so_far.bytes;
	so_far.upload = upload > so_far.upload ? upload : so_far.upload;
	so_far.slowest = seconds > so_far.slowest ? seconds : so_far.slowest;
	so_far.stages++;
	return so_far;
}

static void judge(struct brute *at, struct extent all)
{
	const struct rh_partition_request *request = &at->instance->request;
	int64_t bytes = all.bytes + (all.stages > 1 ? all.upload : 0);
	double n = request->devices, figure = ((double)request->micro_batches * all.stages + n * (n - 1)) * all.slowest;
	if (bytes < at->least_bytes)
		at->least_bytes = bytes;
	if (below(at->random, ++at->seen) == 0)
		at->pick_bytes = bytes;
	if (bytes <= request->cap_bytes && figure < at->best)
		at->best = figure;
}

/* All ways to cut what is left of [bottom, hi) backward, then of [lo, top) forward. */
static void cut_forward(struct brute *at, struct extent so_far, int lo, int top)
{
	if (lo == top)
		judge(at, so_far);
	for (int hi = lo + 1; hi <= top; hi++)
		cut_forward(at, with_stage(at, so_far, RH_PASS_FORWARD, lo, hi), hi, top);
}

static void cut_backward(struct brute *at, struct extent so_far, int hi, int top)
{
	int bottom = at->instance->costs.first_trained;
	if (hi <= bottom)
		cut_forward(at, so_far, 0, top);
	for (int lo = hi - 1; lo >= bottom; lo--)
		cut_backward(at, with_stage(at, so_far, RH_PASS_BACKWARD, lo, hi), lo, top);
}

static void try_all(struct brute *at)
{
	int layers = at->instance->costs.layers;
	at->best = DBL_MAX;
	at->least_bytes = INT64_MAX;
	at->seen = 0;
	for (int lo = layers - 1; lo >= 0; lo--)
		cut_backward(at, with_stage(at, (struct extent){0}, RH_PASS_FUSED, lo, layers), lo, lo);
}

static void check_cover(const struct instance *instance, const struct rh_partition *found)
{
	int at = instance->costs.layers, bottom = instance->costs.first_trained;
	for (int i = 0; i < found->backward_stages; i++) {
		assert_int_equal(found->backward[i].hi, at);
		assert_true(found->backward[i].lo < at);
		at = found->backward[i].lo;
	}
	assert_true(at <= bottom && (at == bottom || found->backward_stages == 1));
	at = 0;
	for (int i = 0; i < found->forward_stages; i++) {
		assert_int_equal(found->forward[i].lo, at);
		assert_true(found->forward[i].hi > at);
		at = found->forward[i].hi;
	}
	assert_int_equal(at, found->backward[0].lo);
	assert_true(found->device_bytes <= instance->request.cap_bytes);
}

/* What the search begins with. */
static int lockstep(const struct rh_partition_request *request, struct rh_partition *out)
{
	struct searching at = {0};
	struct rh_partition kept[KEPT] = {{0}};
	int count = 0, rc = searching_open(request, &at);
	if (!rc)
		rc = searching_remember(&at);
	if (!rc)
		rc = lockstep_search(&at, kept, &count);
	*out = kept[0];
	for (int i = 1; i < KEPT; i++)
		rh_partition_free(&kept[i]);
	searching_close(&at);
	return rc;
}

/* Returns 1 where something fits. */
static int compare(const struct instance *instance, struct brute *at)
{
	struct rh_partition found, chosen;
	try_all(at);
	int rc = lockstep(&instance->request, &found);
	if (at->best == DBL_MAX) {
		assert_int_equal(rc, RH_DOES_NOT_FIT);
		assert_non_null(strstr(rh_error(rc), "max_vram"));
		rh_partition_free(&found);
		return 0;
	}
	check_ok(rc);
	check_cover(instance, &found);
	check_near(found.lockstep_s, at->best, 0);
	check_ok(rh_partition_make(&instance->request, &chosen));
	check_cover(instance, &chosen);
	check_ok(rh_partition_time(&instance->request, &found));
	assert_true(chosen.makespan_s <= found.makespan_s);
	rh_partition_free(&found);
	rh_partition_free(&chosen);
	return 1;
}

static void test_lockstep_optimum_equals_brute_force(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	int feasible = 0, infeasible = 0;
	for (int round = 0; round < 1200; round++) {
		struct instance instance;
		make_instance(&random, round % 4, &instance);
		struct brute at = {.instance = &instance, .random = &random};
		check_ok(rh_costs_sum(&instance.costs, &at.sums));
		feasible += compare(&instance, &at);
		/* budgets that fit some partition exactly or miss it by a byte; and the smallest that fits any */
		int64_t caps[] = {at.pick_bytes, at.pick_bytes - 1, at.least_bytes, at.least_bytes - 1,
		                  (at.least_bytes + at.pick_bytes) / 2};
		for (int c = 0; c < 5; c++) {
			instance.request.cap_bytes = caps[c];
			int fits = compare(&instance, &at);
			assert_int_equal(fits, caps[c] >= at.least_bytes);
			feasible += fits;
			infeasible += !fits;
		}
		rh_cost_sums_free(&at.sums);
	}
	printf("%d instances fit, %d do not\n", feasible, infeasible);
	assert_true(feasible > 4000 && infeasible > 1000);
}

static void test_partition_with_no_memory_fails_cleanly(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	struct instance instance;
	make_instance(&random, 0, &instance);
	int rc = -ENOMEM;
	for (uint64_t nth = 1; rc; nth++) {
		struct rh_partition found;
		rh_alloc_fail_nth(nth);
		rc = rh_partition_make(&instance.request, &found);
		rh_alloc_fail_nth(0);
		assert_true(rc == 0 || rc == -ENOMEM);
		rh_partition_free(&found);
	}
}

static void test_partition_of_impossible_counts_is_refused(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	struct instance instance;
	make_instance(&random, 0, &instance);
	struct rh_partition found;
	const struct rh_partition_request good = instance.request;
	for (int i = 0; i < 4; i++) {
		struct rh_partition_request bad = good;
		if (i == 0)
			bad.devices = 0;
		else if (i == 1)
			bad.micro_batches = 0;
		else if (i == 2)
			bad.rounds = bad.micro_batches + 1;
		else
			bad.steps = 0;
		assert_int_equal(rh_partition_make(&bad, &found), -EINVAL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_lockstep_optimum_equals_brute_force),
	        cmocka_unit_test(test_partition_with_no_memory_fails_cleanly),
	        cmocka_unit_test(test_partition_of_impossible_counts_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
