/* RoundPipe's published bubbles (arXiv 2604.27085, its artifact's simulator made causal): 16 micro-batches in two rounds on 8 GPUs, with
 * the cuts it used. And what our own partitioner makes of the same layers. */
#include "partition/published_layers.h"

#include "partition/roundpipe.h"

#include <string.h>

enum { GPUS = 8, LAYERS_MOST = 96 };

/* Layers in each stage; the fused stage holds `fused` layers and the head. */
static const struct known {
	const char *name;
	double bubble_percent;
	double joined_percent[2]; /* many steps of 10, and of 16 micro-batches, without a flush */
	int forward[32], fused, backward[96];
} known_cuts[] = {
        {"qwen3-1.7b", 19.07, {2.3, 0.7}, {7, 7, 7, 7}, 0, {3, 3, 3, 3, 3, 3, 3, 3, 2, 2}},
        {"llama-3.1-8b", 14.28, {1.6, 0.5}, {5, 5, 5, 5, 6, 6}, 0, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
        {"gpt-oss-20b", 15.02, {1.8, 1.4}, {4, 5, 5, 5, 5}, 0, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
        {"qwen3-32b", 6.91, {2.0, 0.7}, {2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, 0, {-1, 64}},
        {"qwen3-235b-lora", 3.29, {0.2, 0.0}, {-2, 47}, 0, {-1, 94}},
};

/* {-a, n}: n stages of a layers. */
static int stage_size(const int *list, int i)
{
	return list[0] < 0 ? (i < list[1] ? -list[0] : 0) : list[i];
}

/* Idle share of the steps in the middle, from a short and a long run. */
static double steady_percent(const struct rh_partition_request *request, struct rh_partition *cuts)
{
	struct rh_partition_request run = *request;
	double span = 0, busy = 0;
	for (int k = 0; k < 2; k++) {
		run.steps = k ? 96 : 48;
		check_ok(rh_partition_time(&run, cuts));
		span += (k ? 1 : -1) * cuts->makespan_s;
		busy += (k ? 1 : -1) * cuts->makespan_s * (1 - cuts->bubble);
	}
	return 100 * (1 - busy / span);
}

static double published(const struct rh_partition_request *request, const struct known *known)
{
	struct rh_stage forward[LAYERS_MOST], backward[LAYERS_MOST];
	struct rh_partition cuts = {.forward = forward, .backward = backward};
	int at = 0, layers = request->costs->layers;
	for (int i = 0, size; (size = stage_size(known->forward, i)); i++, at += size)
		forward[cuts.forward_stages++] = (struct rh_stage){at, at + size};
	assert_int_equal(at, layers - 1 - known->fused);
	backward[cuts.backward_stages++] = (struct rh_stage){at, layers};
	for (int i = 0, size; (size = stage_size(known->backward, i)); i++, at -= size)
		backward[cuts.backward_stages++] = (struct rh_stage){at - size, at};
	assert_int_equal(at, 0);
	check_ok(rh_partition_time(request, &cuts));
	struct rh_partition_request joined = *request;
	joined.rounds = 1;
	double steady[2];
	for (int k = 0; k < 2; k++) {
		joined.micro_batches = k ? 16 : 10;
		steady[k] = steady_percent(&joined, &cuts);
	}
	check_ok(rh_partition_time(request, &cuts));
	printf("%-16s joined: %.2f %% (published %.1f) at 10, %.2f %% (%.1f) at 16\n", known->name, steady[0], known->joined_percent[0],
	       steady[1], known->joined_percent[1]);
	for (int k = 0; k < 2; k++)
		check_near(steady[k], known->joined_percent[k], 0.2);
	printf("%-16s their cuts: %d + %d stages, %8.2f ms, bubble %5.2f %% (published %5.2f)\n", known->name, cuts.forward_stages,
	       cuts.backward_stages, cuts.makespan_s * 1e3, cuts.bubble * 100, known->bubble_percent);
	return cuts.bubble * 100;
}

static void test_published_bubbles_are_reproduced_and_beaten(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof known_cuts / sizeof known_cuts[0]; i++) {
		struct rh_costs costs;
		struct rh_partition ours;
		published_costs(&published_layers[i], &costs);
		assert_string_equal(known_cuts[i].name, published_layers[i].name);
		struct rh_partition_request request = {
		        .costs = &costs, .cap_bytes = INT64_MAX, .devices = GPUS, .micro_batches = 16, .rounds = 2, .steps = 1};
		double theirs = published(&request, &known_cuts[i]);
		check_near(theirs, known_cuts[i].bubble_percent, 0.05);
		check_ok(rh_partition_make(&request, &ours));
		printf("%-16s our cuts:   %d + %d stages, %8.2f ms, bubble %5.2f %%\n", "", ours.forward_stages, ours.backward_stages,
		       ours.makespan_s * 1e3, ours.bubble * 100);
		assert_true(ours.bubble * 100 <= theirs);
		rh_partition_free(&ours);
		for (int k = 0; k < 2; k++) {
			struct rh_partition_request joined = request;
			joined.rounds = 1;
			joined.micro_batches = k ? 16 : 10;
			joined.steps = 6;
			check_ok(rh_partition_make(&joined, &ours));
			printf("%-16s our cuts for joined steps of %d: %d + %d stages, %.2f %%\n", "", k ? 16 : 10, ours.forward_stages,
			       ours.backward_stages, steady_percent(&joined, &ours));
			rh_partition_free(&ours);
		}
		rh_costs_free(&costs);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_published_bubbles_are_reproduced_and_beaten),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
