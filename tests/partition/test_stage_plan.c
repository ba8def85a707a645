/* The plan: stages that cover the model, bytes that add up and stay under the cap, cuts as given, and what it says when nothing fits. */
#include "check.h"

#include "core/alloc.h"
#include "partition/cuts.h"
#include "partition/stage_plan.h"
#include "run/lane.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench {
	struct rh_model_config config;
	struct rh_model *model;
	struct rh_stage_plan_request request;
};

static void bench_open_of(struct bench *bench, int layers, int tied, enum rh_dtype dtype, int vocabulary, const struct rh_lora_config *lora)
{
	*bench = (struct bench){0};
	json_t *json = json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "architectures", "LlamaForCausalLM", "hidden_size", 64,
	                         "intermediate_size", lora ? 32 : 160, "num_hidden_layers", layers, "num_attention_heads", 4,
	                         "num_key_value_heads", 2, "vocab_size", vocabulary, "tie_word_embeddings", tied);
	check_ok(rh_model_config_parse(json, "test", &bench->config));
	json_decref(json);
	check_ok(rh_model_create(&bench->config, dtype, lora, &bench->model));
	struct rh_micro_shape shape = {.tokens = 48, .documents = 3, .longest = 30, .head_rows = 20};
	bench->request = (struct rh_stage_plan_request){.model = bench->model,
	                                                .trains = 1,
	                                                .train = shape,
	                                                .devices = 2,
	                                                .train_round = 4,
	                                                .device_cap_bytes = INT64_C(1) << 40,
	                                                .forward_cut_count = -1,
	                                                .backward_cut_count = -1};
}

static void bench_open(struct bench *bench, int layers, int tied, enum rh_dtype dtype)
{
	bench_open_of(bench, layers, tied, dtype, 500, NULL);
}

static int adapt(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	*r = strstr(name, "layers.") ? 4 : 0;
	*scale = 2;
	return 0;
}

static enum rh_form pack(const void *context, const struct rh_tensor *tensor)
{
	(void)context;
	return tensor->rows > 1 ? RH_FORM_Q8_0 : RH_FORM_PLAIN;
}

/* Adapters of packed weights. */
static void bench_open_packed(struct bench *bench, int layers, int tied, enum rh_dtype dtype)
{
	bench_open_of(bench, layers, tied, dtype, 40, &(struct rh_lora_config){.module = adapt});
	rh_model_freeze(bench->model);
	rh_model_pack(bench->model, pack, NULL);
	assert_true(rh_model_is_packed(bench->model));
}

static void bench_close(struct bench *bench)
{
	rh_model_destroy(bench->model);
	rh_model_config_free(&bench->config);
}

/* Stages meet without gap or overlap, are counted in full, and hold no more than was reserved for one. A device's bytes are those of its
 * rooms, into which the executor cuts its memory. */
static void check_plan(const struct bench *bench, const struct rh_stage_plan *plan)
{
	int layers = bench->model->layers, at = layers;
	int64_t *offset = rh_alloc(2 * (size_t)bench->model->blocks, sizeof *offset), weights = 0, gradients = 0, kept = 0;
	for (int i = 0; i < plan->backward_stages; i++) {
		struct rh_stage stage = plan->backward[i];
		assert_int_equal(stage.hi, at);
		assert_true(stage.lo < stage.hi);
		at = stage.lo;
		int64_t up = rh_stage_plan_upload_layout(bench->model, stage.lo, stage.hi, i > 0, offset);
		int64_t sums = rh_stage_plan_gradient_layout(bench->model, stage.lo, stage.hi, offset);
		weights = up > weights ? up : weights;
		gradients = sums > gradients ? sums : gradients;
		assert_int_equal(plan->places[i].kept.offset, kept);
		kept += plan->places[i].kept.bytes * bench->request.train_round;
		assert_true(!plan->places[i].kept.bytes || (i > 0 && bench->request.devices == 1));
	}
	assert_int_equal(at, 0);
	for (int i = 0; i < plan->forward_stages; i++) {
		struct rh_stage stage = plan->forward[i];
		assert_int_equal(stage.lo, at);
		assert_true(stage.lo < stage.hi);
		at = stage.hi;
		int64_t up = rh_stage_plan_upload_layout(bench->model, stage.lo, stage.hi, 0, offset);
		weights = up > weights ? up : weights;
	}
	rh_free(offset);
	assert_int_equal(at, plan->backward[0].lo);
	assert_int_equal(plan->kept_bytes, kept);
	assert_true(plan->weight_bytes >= weights && plan->weight_bytes <= 2 * weights);
	assert_true(plan->weight_bytes == weights || plan->backward_stages + plan->forward_stages > 1);
	assert_int_equal(plan->gradient_bytes, 4 * gradients);
	assert_int_equal(plan->rounded_bytes, bench->model->dtype == RH_BF16 ? 2 * gradients : 0);
	struct rh_room_size room[RH_ROOMS] = {0};
	int64_t bytes = 0;
	rh_rooms_of_device(plan, room);
	for (int r = 0; r < RH_ROOMS; r++) {
		bytes += room[r].count * room[r].bytes;
		assert_int_equal(room[r].bytes % RH_ALIGN, 0);
	}
	assert_int_equal(plan->device_bytes, bytes);
	assert_true(plan->device_bytes <= bench->request.device_cap_bytes);
}

static void test_plan_under_any_cap_covers_the_model_and_stays_below(void **state)
{
	(void)state;
	for (int variant = 0; variant < 4; variant++) {
		struct bench bench;
		bench_open(&bench, 6, variant & 1, variant & 2 ? RH_BF16 : RH_F32);
		int stages = 0, rc = 0;
		for (int64_t cap = 1 << 24; !rc; cap -= cap / 16) {
			struct rh_stage_plan plan;
			bench.request.device_cap_bytes = cap;
			rc = rh_stage_plan_make(&bench.request, &plan);
			if (rc)
				break;
			check_plan(&bench, &plan);
			int now = plan.forward_stages + plan.backward_stages;
			assert_true(now >= stages); /* less memory never means fewer stages */
			stages = now;
			rh_stage_plan_free(&plan);
		}
		assert_int_equal(rc, RH_DOES_NOT_FIT);
		assert_non_null(strstr(rh_error(rc), "the device's "));
		printf("%d stages at the end, then: %s\n", stages, rh_error(rc));
		assert_true(stages >= 6);
		bench_close(&bench);
	}
}

static void test_one_device_saves_what_memory_it_has_to_spare(void **state)
{
	(void)state;
	struct bench bench;
	struct rh_stage_plan plan;
	bench_open(&bench, 6, 1, RH_F32);
	bench.request.devices = 1;
	int most = 0, least = 100, rc = 0;
	for (int64_t cap = 1 << 24; !rc; cap -= cap / 32) {
		bench.request.device_cap_bytes = cap;
		rc = rh_stage_plan_make(&bench.request, &plan);
		if (rc)
			break;
		check_plan(&bench, &plan);
		int saving = 0, above = 1;
		for (int i = 1; i < plan.backward_stages; i++) {
			struct rh_stage stage = plan.backward[i];
			assert_true(above || !plan.places[i].kept.bytes); /* those next below the fused one */
			above = plan.places[i].kept.bytes > 0;
			saving += above;
			int forward = 0; /* it saves in the forward stage of the same layers */
			for (int f = 0; above && f < plan.forward_stages; f++)
				forward += plan.forward[f].lo == stage.lo && plan.forward[f].hi == stage.hi;
			assert_int_equal(forward, above);
		}
		most = saving > most ? saving : most;
		least = saving < least ? saving : least;
		rh_stage_plan_free(&plan);
	}
	printf("%d to %d stages saving\n", least, most);
	assert_true(most >= 4 && least == 0);
	bench_close(&bench);
}

/* Where the host's memory holds few boundaries: fewer stages than would be best, or none at all. */
static void test_no_more_stages_than_are_allowed(void **state)
{
	(void)state;
	struct bench bench;
	struct rh_stage_plan plan;
	bench_open(&bench, 6, 1, RH_F32);
	bench.request.devices = 1;
	int fewer = 0, none = 0;
	for (int64_t cap = 1 << 24; cap > 1 << 18; cap -= cap / 8) {
		bench.request.device_cap_bytes = cap;
		bench.request.stages_most = 0;
		int rc = rh_stage_plan_make(&bench.request, &plan);
		int stages = rc ? 0 : plan.forward_stages + plan.backward_stages;
		if (rc)
			break;
		rh_stage_plan_free(&plan);
		for (int most = stages - 1; most > 0; most--) {
			bench.request.stages_most = most;
			rc = rh_stage_plan_make(&bench.request, &plan);
			assert_true(!rc || rc == RH_DOES_NOT_FIT);
			if (!rc) {
				check_plan(&bench, &plan);
				assert_true(plan.forward_stages + plan.backward_stages <= most);
				rh_stage_plan_free(&plan);
			}
			fewer += !rc;
			none += rc != 0;
		}
	}
	rh_error_clear();
	printf("%d plans with fewer stages, %d times there was none\n", fewer, none);
	assert_true(fewer > 0 && none > 0);
	bench_close(&bench);
}

/* With an embedding smaller than a layer: a room for a layer and an embedding is too small for the next layer's weights. */
static void test_next_weights_are_prefetched_wherever_there_is_room(void **state)
{
	(void)state;
	struct bench bench;
	struct rh_stage_plan plan;
	bench_open_of(&bench, 6, 0, RH_BF16, 100, NULL);
	bench.request.devices = 1;
	int64_t layer = rh_stage_plan_layer_upload(bench.model, 1), cuts[] = {1, 2, 3, 4, 5, 6, 7};
	assert_true(rh_stage_plan_layer_upload(bench.model, 0) < layer && bench.model->layers == 8);
	bench.request.forward_cuts = bench.request.backward_cuts = cuts;
	bench.request.backward_cut_count = 7;
	bench.request.forward_cut_count = 6;
	check_ok(rh_stage_plan_make(&bench.request, &plan)); /* each layer a stage, and nothing saved */
	int64_t enough = plan.device_bytes;
	assert_true(plan.weight_bytes >= 2 * layer);
	rh_stage_plan_free(&plan);
	bench.request.forward_cut_count = bench.request.backward_cut_count = -1;
	int times[2] = {0};
	for (bench.request.device_cap_bytes = 2 * enough;; bench.request.device_cap_bytes -= enough / 64) {
		if (rh_stage_plan_make(&bench.request, &plan))
			break;
		check_plan(&bench, &plan);
		int prefetches = plan.backward_stages == 1 || plan.weight_bytes >= 2 * layer;
		assert_int_equal(prefetches, bench.request.device_cap_bytes >= enough);
		times[prefetches]++;
		rh_stage_plan_free(&plan);
	}
	assert_true(times[0] && times[1]);
	bench_close(&bench);
}

static void test_plan_with_cuts_takes_them(void **state)
{
	(void)state;
	struct bench bench;
	struct rh_stage_plan plan;
	const int64_t forward[] = {1, 3}, backward[] = {2, 5};
	bench_open(&bench, 5, 1, RH_F32); /* layers 0 to 6 */
	bench.request.forward_cuts = forward;
	bench.request.backward_cuts = backward;
	bench.request.forward_cut_count = bench.request.backward_cut_count = 2;
	check_ok(rh_stage_plan_make(&bench.request, &plan));
	check_plan(&bench, &plan);
	const struct rh_stage up[] = {{0, 1}, {1, 3}, {3, 5}}, down[] = {{5, 7}, {2, 5}, {0, 2}};
	assert_int_equal(plan.forward_stages, 3);
	assert_int_equal(plan.backward_stages, 3);
	assert_memory_equal(plan.forward, up, sizeof up);
	assert_memory_equal(plan.backward, down, sizeof down);
	/* two micro-batches each of: an input, the gradient from above, the gradient below; no stage keeps more */
	assert_int_equal(plan.boundary_buffers, 6);
	rh_stage_plan_free(&plan);

	bench.request.forward_cut_count = bench.request.backward_cut_count = 0; /* no cut: one of each */
	check_ok(rh_stage_plan_make(&bench.request, &plan));
	check_plan(&bench, &plan);
	assert_int_equal(plan.backward_stages, 1);
	assert_int_equal(plan.forward_stages, 0);
	rh_stage_plan_free(&plan);

	bench.request.forward_cut_count = 2; /* alone, they bound the fused stage */
	bench.request.backward_cut_count = -1;
	check_ok(rh_stage_plan_make(&bench.request, &plan));
	check_plan(&bench, &plan);
	assert_true(plan.backward[0].lo >= 3);
	rh_stage_plan_free(&plan);
	bench_close(&bench);
}

static void test_plan_with_impossible_cuts_says_which(void **state)
{
	(void)state;
	static const struct {
		int64_t forward[2], backward[2], forwards, backwards;
		const char *part;
	} cases[] = {
	        {{0}, {0}, 1, -1, "forward_cuts: 0 is not a layer's number"},
	        {{0}, {7}, -1, 1, "backward_cuts: 7 is not a layer's number"},
	        {{3, 3}, {0}, 2, -1, "forward_cuts: 3 is not a layer's number"},
	        {{4}, {2, 4}, 1, 2, "forward_cuts: 4 lies in the fused stage"},
	        {{1}, {0}, 1, 0, "forward_cuts: 1 lies in the fused stage"},
	};
	struct bench bench;
	struct rh_stage_plan plan;
	bench_open(&bench, 5, 0, RH_F32);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		bench.request.forward_cuts = cases[i].forward;
		bench.request.backward_cuts = cases[i].backward;
		bench.request.forward_cut_count = cases[i].forwards;
		bench.request.backward_cut_count = cases[i].backwards;
		int rc = rh_stage_plan_make(&bench.request, &plan);
		assert_int_equal(rc, -EINVAL);
		if (!strstr(rh_error(rc), cases[i].part))
			fail_msg("'%s' is not in: %s", cases[i].part, rh_error(rc));
	}
	bench_close(&bench);
}

static void test_plan_of_a_deep_model_is_quick(void **state)
{
	(void)state;
	struct bench bench;
	struct rh_stage_plan plan;
	struct timespec began, ended;
	bench_open(&bench, 126, 0, RH_BF16);
	bench.request.device_cap_bytes = 3 << 20;
	clock_gettime(CLOCK_MONOTONIC, &began);
	check_ok(rh_stage_plan_make(&bench.request, &plan));
	clock_gettime(CLOCK_MONOTONIC, &ended);
	check_plan(&bench, &plan);
	double seconds = (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) * 1e-9;
	printf("128 layers in %d stages: %.3f s\n", plan.forward_stages + plan.backward_stages, seconds);
	assert_true(seconds < 30); /* sanitizers and busy machines included */
	rh_stage_plan_free(&plan);
	bench_close(&bench);
}

/* The chunk of logits is as devices want it, and the plan has room for just that; then finer and finer. */
static double seconds_of_plan(const struct bench *bench, struct rh_stage_plan *plan)
{
	struct timespec began, ended;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
	check_ok(rh_stage_plan_make(&bench->request, plan));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
	return (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) * 1e-9;
}

/* Many such plans are made where the longest sequence is looked for. */
static void test_plan_of_the_deepest_model_takes_milliseconds(void **state)
{
	(void)state;
	struct bench bench;
	struct rh_stage_plan plan;
	bench_open(&bench, 1024, 0, RH_BF16);
	for (int devices = 1; devices < 3; devices++) {
		bench.request.devices = devices;
		bench.request.device_cap_bytes = 20 << 20;
		double seconds = seconds_of_plan(&bench, &plan);
		printf("%d devices, 1026 layers in %d stages: %.4f s\n", devices, plan.forward_stages + plan.backward_stages, seconds);
		check_plan(&bench, &plan);
		assert_true(seconds < 1); /* sanitizers included */
		rh_stage_plan_free(&plan);
	}
	bench_close(&bench);
}

static void check_same_plan(const struct rh_stage_plan *a, const struct rh_stage_plan *b)
{
	assert_int_equal(a->forward_stages, b->forward_stages);
	assert_int_equal(a->backward_stages, b->backward_stages);
	assert_memory_equal(a->forward, b->forward, (size_t)a->forward_stages * sizeof *a->forward);
	assert_memory_equal(a->backward, b->backward, (size_t)a->backward_stages * sizeof *a->backward);
	assert_memory_equal(a->places, b->places, (size_t)a->backward_stages * sizeof *a->places);
	assert_int_equal(a->weight_bytes, b->weight_bytes);
	assert_int_equal(a->arena_bytes, b->arena_bytes);
	assert_int_equal(a->kept_bytes, b->kept_bytes);
	assert_int_equal(a->device_bytes, b->device_bytes);
}

/* A layer that differs in what nobody reads makes each stage be emitted as it is. With 4: every third layer attends to all, the others to a
 * window, turned by another table. With 8: adapters, and weights that each product makes plain for itself. */
static void test_what_many_alike_layers_take_is_what_they_emit(void **state)
{
	(void)state;
	for (int variant = 0; variant < 16; variant++) {
		struct bench bench;
		int most = 0;
		(variant & 8 ? bench_open_packed : bench_open)(&bench, variant & 1 ? 24 : 94, variant & 1, variant & 2 ? RH_BF16 : RH_F32);
		bench.request.plain = variant & 8 ? RH_PLAIN_BY_PRODUCT : RH_PLAIN_ANYWHERE;
		for (int l = 1; variant & 4 && l < bench.model->layers - 1; l++) {
			bench.model->layer[l].traits.window = l % 3 ? 7 : 0;
			bench.model->layer[l].traits.rope = l % 3 != 0;
		}
		bench.request.devices = 1 + (variant & 1);
		bench.request.infer = (struct rh_micro_shape){.tokens = 60, .documents = 2, .longest = 40, .head_rows = 60};
		for (int64_t cap = variant & 8 ? 120000 : INT64_C(3) << (variant & 1 ? 19 : 21); cap < 1 << 25; cap += cap / 4) {
			struct rh_stage_plan alike, emitted;
			bench.request.device_cap_bytes = cap;
			bench.model->layer[2].types = -1;
			int rc = rh_stage_plan_make(&bench.request, &alike);
			bench.model->layer[2].types = 0;
			assert_int_equal(rh_stage_plan_make(&bench.request, &emitted), rc);
			if (rc)
				continue;
			check_same_plan(&alike, &emitted);
			most = alike.backward_stages > most ? alike.backward_stages : most;
			rh_stage_plan_free(&alike);
			rh_stage_plan_free(&emitted);
		}
		assert_true(most > bench.model->layers / 3);
		printf("variant %d: up to %d backward stages of %d layers\n", variant, most, bench.model->layers);
		bench_close(&bench);
	}
}

/* What is needed is what was compared: never less than there is. */
static void test_refusal_of_given_cuts_needs_more_than_there_is(void **state)
{
	(void)state;
	struct bench bench;
	const int64_t cut[] = {3, 5};
	struct rh_stage_plan plan;
	bench_open(&bench, 6, 0, RH_BF16);
	bench.request.forward_cuts = bench.request.backward_cuts = cut;
	bench.request.forward_cut_count = 1;
	bench.request.backward_cut_count = 2;
	check_ok(rh_stage_plan_make(&bench.request, &plan));
	int64_t most = plan.device_bytes;
	rh_stage_plan_free(&plan);
	bench.request.device_cap_bytes = most;
	check_ok(rh_stage_plan_make(&bench.request, &plan));
	rh_stage_plan_free(&plan);
	for (int64_t cap = most - 1; cap > 1 << 19; cap -= cap / 8) {
		bench.request.device_cap_bytes = cap;
		assert_int_equal(rh_stage_plan_make(&bench.request, &plan), RH_DOES_NOT_FIT);
		const char *line = rh_error(RH_DOES_NOT_FIT), *needs = strstr(line, "at least ");
		assert_non_null(needs);
		if (strtod(needs + 9, NULL) < strtod(strstr(line, "device's ") + 9, NULL))
			fail_msg("%s", line);
		assert_null(strstr(line, "raise"));
	}
	bench.request.cap_key = "max_ram";
	assert_int_equal(rh_stage_plan_make(&bench.request, &plan), RH_DOES_NOT_FIT);
	assert_non_null(strstr(rh_error(RH_DOES_NOT_FIT), "; raise max_ram, or lower max_length"));
	bench_close(&bench);
}

/* Whichever layer needs the most: with what the line says, stages of single layers fit, and with a tenth of a MiB less they do not. */
static void test_refusal_says_what_is_enough(void **state)
{
	(void)state;
	for (int tokens = 16; tokens <= 1 << 14; tokens *= 32) {
		struct bench bench;
		struct rh_stage_plan plan;
		bench_open(&bench, 6, 0, RH_BF16);
		bench.request.train.tokens = bench.request.train.longest = bench.request.train.head_rows = tokens;
		bench.request.device_cap_bytes = 1 << 16;
		assert_int_equal(rh_stage_plan_make(&bench.request, &plan), RH_DOES_NOT_FIT);
		printf("%d tokens: %s\n", tokens, rh_error(RH_DOES_NOT_FIT));
		double needs = strtod(strstr(rh_error(RH_DOES_NOT_FIT), "at least ") + 9, NULL) * 1048576, tenth = 1048576 / 10.0;
		bench.request.device_cap_bytes = (int64_t)(needs + tenth / 2);
		check_ok(rh_stage_plan_make(&bench.request, &plan));
		rh_stage_plan_free(&plan);
		bench.request.device_cap_bytes = (int64_t)(needs - tenth);
		assert_int_equal(rh_stage_plan_make(&bench.request, &plan), RH_DOES_NOT_FIT);
		bench_close(&bench);
	}
}

/* That memory is refused to the planner itself is no verdict on the run. */
static void test_refused_allocations_are_no_verdict(void **state)
{
	(void)state;
	struct bench bench;
	bench_open(&bench, 6, 0, RH_F32);
	bench.request.device_cap_bytes = 3 << 20;
	int rc = -ENOMEM;
	for (uint64_t n = 1; rc; n++) {
		struct rh_stage_plan plan;
		rh_alloc_fail_nth(n);
		rc = rh_stage_plan_make(&bench.request, &plan);
		rh_alloc_fail_nth(0);
		assert_true(!rc || rc == -ENOMEM);
		if (!rc)
			rh_stage_plan_free(&plan);
	}
	bench_close(&bench);
}

static void test_head_is_cut_as_devices_want_it(void **state)
{
	(void)state;
	const int64_t vocabulary = 150000;
	const struct rh_device_grain gpu = rh_device_gpu_grain(), any = {0};
	for (int tied = 0; tied < 2; tied++) {
		struct bench bench;
		struct rh_stage_plan plan;
		bench_open_of(&bench, 2, tied, RH_BF16, (int)vocabulary, NULL);
		bench.request.train = (struct rh_micro_shape){.tokens = 3000, .documents = 3, .longest = 1000, .head_rows = 2000};
		int64_t arena = 0;
		for (int finer = 0; finer < 3; finer++) {
			const int64_t rows[] = {27, gpu.head_rows_trained, gpu.head_rows_trained / 2};
			if (finer < 2)
				rh_model_cut(bench.model, finer ? &gpu : &any);
			else
				assert_true(rh_model_cut_finer(bench.model));
			assert_int_equal(rh_head_chunk(bench.model, 2000), rows[finer]);
			assert_int_equal(rh_head_chunk(bench.model, 20), 20);
			check_ok(rh_stage_plan_make(&bench.request, &plan));
			arena = finer ? arena : plan.arena_bytes - rh_align_up(4 * vocabulary * rows[0], RH_ALIGN);
			assert_int_equal(plan.arena_bytes, arena + rh_align_up(4 * vocabulary * rows[finer], RH_ALIGN));
			rh_stage_plan_free(&plan);
		}
		while (rh_model_cut_finer(bench.model))
			;
		assert_int_equal(rh_head_chunk(bench.model, 2000), 27);
		rh_model_freeze(bench.model);
		rh_model_cut(bench.model, &gpu);
		assert_int_equal(rh_head_chunk(bench.model, 2000), gpu.head_rows_frozen);
		bench_close(&bench);
	}
}

/* Cuts lie between stages, not before the first one. Backward stages begin with the fused one, at the model's end. */
static void test_stages_give_the_cuts_that_make_them(void **state)
{
	(void)state;
	const struct rh_stage forward[] = {{.lo = 0, .hi = 2}, {.lo = 2, .hi = 3}, {.lo = 3, .hi = 5}},
	                      backward[] = {{.lo = 5, .hi = 8}, {.lo = 1, .hi = 5}, {.lo = 0, .hi = 1}};
	struct rh_cuts cuts;
	check_ok(rh_cuts_make(forward, 3, backward, 3, &cuts));
	assert_int_equal(cuts.forward_count, 2);
	assert_true(cuts.forward[0] == 2 && cuts.forward[1] == 3);
	assert_int_equal(cuts.backward_count, 2);
	assert_true(cuts.backward[0] == 1 && cuts.backward[1] == 5);
	rh_cuts_free(&cuts);
	check_ok(rh_cuts_make(forward, 3, backward, 1, &cuts)); /* the fused stage ends where the forward stages do */
	assert_int_equal(cuts.backward_count, 1);
	assert_int_equal(cuts.backward[0], 5);
	rh_cuts_free(&cuts);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_plan_under_any_cap_covers_the_model_and_stays_below),
	        cmocka_unit_test(test_one_device_saves_what_memory_it_has_to_spare),
	        cmocka_unit_test(test_no_more_stages_than_are_allowed),
	        cmocka_unit_test(test_next_weights_are_prefetched_wherever_there_is_room),
	        cmocka_unit_test(test_plan_with_cuts_takes_them),
	        cmocka_unit_test(test_stages_give_the_cuts_that_make_them),
	        cmocka_unit_test(test_plan_with_impossible_cuts_says_which),
	        cmocka_unit_test(test_plan_of_a_deep_model_is_quick),
	        cmocka_unit_test(test_plan_of_the_deepest_model_takes_milliseconds),
	        cmocka_unit_test(test_what_many_alike_layers_take_is_what_they_emit),
	        cmocka_unit_test(test_refusal_of_given_cuts_needs_more_than_there_is),
	        cmocka_unit_test(test_refusal_says_what_is_enough),
	        cmocka_unit_test(test_refused_allocations_are_no_verdict),
	        cmocka_unit_test(test_head_is_cut_as_devices_want_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
