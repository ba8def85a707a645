/* RoundPipe's published comparison (arXiv 2604.27085, its artifact's simulator): bubbles of the other schedules on 8 GPUs, 16
 * micro-batches, with the cuts it gave them. They recompute only once the gradient is there. And
 * joined steps. */
#include "partition/published_layers.h"

#include "schedule/evaluate.h"

#include <math.h>
#include <string.h>

enum { GPUS = 8, LAYERS_MOST = 104, STAGES_MOST = 96 };

/* Runs of {stages, blocks in each}, bottom up; the head goes with the last stage. */
struct cuts {
	int runs[4][2];
};

static const struct known {
	const char *name;
	struct cuts one, looped;                     /* one stage a GPU; several */
	double gpipe, one_f_one_b, bfs, interleaved; /* bubbles, percent */
} known_bubbles[] = {
        {"qwen3-1.7b", {{{2, 3}, {5, 4}, {1, 2}}}, {{{18, 1}, {5, 2}, {1, 0}}}, 36.13, 35.19, 25.01, 27.75},
        {"llama-3.1-8b", {{{8, 4}}}, {{{32, 1}}}, 42.08, 42.08, 29.20, 30.64},
        {"gpt-oss-20b", {{{8, 3}}}, {{{24, 1}}}, 41.73, 41.73, 30.39, 30.94},
        {"qwen3-32b", {{{8, 8}}}, {{{64, 1}}}, 34.88, 34.88, 13.68, 15.15},
        {"qwen3-235b-lora", {{{1, 11}, {6, 12}, {1, 11}}}, {{{1, 0}, {94, 1}, {1, 0}}}, 31.18, 31.21, 4.39, 5.96},
};

/* The table's layers; a stage without a block gets a layer that costs nothing. */
struct rig {
	struct rh_layer_cost layer[LAYERS_MOST];
	struct rh_stage stage[STAGES_MOST];
	struct rh_costs costs;
	int stages;
};

static void build(const char *name, const struct cuts *cuts, struct rig *out)
{
	struct rh_costs given;
	int model = 0;
	while (strcmp(published_layers[model].name, name))
		assert_true(++model < PUBLISHED_MODELS);
	published_costs(&published_layers[model], &given);
	*out = (struct rig){.costs = {.layer = out->layer, .hop_s = given.hop_s}};
	int block = 0, layers = 0;
	for (int r = 0; r < 4; r++)
		for (int i = 0; i < cuts->runs[r][0]; i++) {
			struct rh_stage *stage = &out->stage[out->stages++];
			stage->lo = layers;
			for (int b = 0; b < cuts->runs[r][1]; b++)
				out->layer[layers++] = given.layer[block++];
			if (block == given.layers - 1 && (r == 3 || !cuts->runs[r + 1][0]) && i + 1 == cuts->runs[r][0])
				out->layer[layers++] = given.layer[block++];
			if (layers == stage->lo)
				layers++;
			stage->hi = layers;
		}
	assert_int_equal(block, given.layers);
	out->costs.layers = layers;
	rh_costs_free(&given);
}

static double bubble_of(const char *schedule, const struct known *known, const struct cuts *cuts)
{
	struct rig *rig = rh_alloc(1, sizeof *rig);
	struct rh_cost_sums sums;
	struct rh_program program = {0};
	struct rh_timeline timeline;
	assert_non_null(rig);
	build(known->name, cuts, rig);
	rig->costs.layer = rig->layer;
	check_ok(rh_costs_sum(&rig->costs, &sums));
	const struct rh_schedule_request request = {.devices = GPUS,
	                                            .micro_batches = 16,
	                                            .steps = 1,
	                                            .stage = rig->stage,
	                                            .stages = rig->stages,
	                                            .sums = &sums,
	                                            .hop_s = rig->costs.hop_s};
	const struct rh_program_timing how = {.schedule = rh_schedule_find(schedule), .sums = &sums, .devices = GPUS};
	check_ok(rh_schedule_make(how.schedule, &request, &program));
	check_ok(rh_program_evaluate(&program, &how, &timeline));
	double bubble = timeline.bubble * 100;
	rh_timeline_free(&timeline);
	rh_program_free(&program);
	rh_cost_sums_free(&sums);
	rh_free(rig);
	return bubble;
}

static void test_other_schedules_bubbles_are_as_published(void **state)
{
	(void)state;
	double worst = 0;
	for (size_t i = 0; i < sizeof known_bubbles / sizeof known_bubbles[0]; i++) {
		const struct known *known = &known_bubbles[i];
		const double ours[] = {bubble_of("gpipe", known, &known->one), bubble_of("1f1b", known, &known->one),
		                       bubble_of("looped-bfs", known, &known->looped),
		                       bubble_of("interleaved-1f1b", known, &known->looped)};
		const double theirs[] = {known->gpipe, known->one_f_one_b, known->bfs, known->interleaved};
		printf("%-16s gpipe %.2f (%.2f) 1f1b %.2f (%.2f) looped bfs %.2f (%.2f) interleaved %.2f (%.2f)\n", known->name, ours[0],
		       theirs[0], ours[1], theirs[1], ours[2], theirs[2], ours[3], theirs[3]);
		for (int k = 0; k < 4; k++)
			worst = fmax(worst, fabs(ours[k] - theirs[k]));
	}
	printf("worst %.3f points\n", worst);
	assert_true(worst <= 0.5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_other_schedules_bubbles_are_as_published),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
