/* What each layer costs is the sum of the ops that it emits: every layer of every family, alike ones included, whose costs are measured
 * once; and no op is lost where a stage is measured. Ops are emitted here layer by layer, into a tally of this test's own. */
#include "check.h"

#include "core/alloc.h"
#include "model/family.h"
#include "partition/costs.h"
#include "partition/stage_plan.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#define MODELS "tests/reference/models"

enum { FAMILIES_MOST = 64 };

static const struct rh_rates rates = {.product_flops_per_s = 1e12, .other_flops_per_s = 1e11, .memory_bytes_per_s = 1e11, .launch_s = 2e-6};

struct tally {
	double seconds, product_flops;
	int64_t launches;
};

static int tally_op(void *sink, const struct rh_op *op)
{
	struct tally *tally = sink;
	struct rh_op_cost cost = rh_op_cost(op);
	double arithmetic = cost.product_flops / rates.product_flops_per_s + cost.other_flops / rates.other_flops_per_s;
	tally->seconds += rates.launch_s + fmax(arithmetic, cost.bytes / rates.memory_bytes_per_s);
	tally->product_flops += cost.product_flops;
	tally->launches++;
	return 0;
}

/* Where weights and gradient sums would lie. */
struct places {
	char **weights;
	float *(*gradient)[2];
	struct rh_stage_state state;
};

static void places_make(const struct rh_model *model, struct places *out)
{
	out->weights = rh_alloc((size_t)model->blocks, sizeof *out->weights);
	out->gradient = rh_alloc((size_t)model->blocks, sizeof *out->gradient);
	assert_true(out->weights && out->gradient);
	for (int b = 0; b < model->blocks; b++) {
		out->weights[b] = (char *)((uintptr_t)1 << 50);
		out->gradient[b][0] = out->gradient[b][1] = (float *)((uintptr_t)1 << 51);
	}
	check_ok(rh_stage_state_create(model, &out->state));
}

static void places_free(struct places *places)
{
	rh_free(places->weights);
	rh_free(places->gradient);
	rh_stage_state_free(&places->state);
}

static struct rh_emit emit_to(const struct rh_model *model, const struct places *places, struct rh_micro_shape shape,
                              struct rh_arena *arena, struct tally *tally)
{
	return (struct rh_emit){.model = model,
	                        .launch = tally_op,
	                        .sink = tally,
	                        .arena = arena,
	                        .shape = shape,
	                        .micro = (char *)(uintptr_t)RH_ALIGN,
	                        .dropout = model->dropout,
	                        .loss_scale = 1,
	                        .weights = places->weights,
	                        .gradient = places->gradient};
}

static struct rh_head_out head_at(struct rh_view any, struct rh_micro_shape shape)
{
	return (struct rh_head_out){.loss = rh_view_of(any.data, RH_F32, shape.head_rows, 1),
	                            .hit = rh_view_of(any.data, RH_I32, shape.head_rows, 1)};
}

/* A layer's forward, what its backward recomputes, and its backward. */
static void emit_layer(const struct rh_model *model, struct places *places, struct rh_micro_shape shape, int l, struct tally tally[3])
{
	struct rh_arena arena = rh_arena_measuring();
	struct rh_view any = rh_view_of((char *)(uintptr_t)RH_ALIGN, model->dtype, shape.tokens, model->config->hidden_size);
	struct rh_head_out head = head_at(any, shape);
	struct rh_emit emit = emit_to(model, places, shape, &arena, &tally[0]);
	check_ok(rh_stage_forward(&emit, l, l + 1, any, NULL, &head));
	arena = rh_arena_measuring();
	emit.sink = &tally[1];
	check_ok(rh_stage_recompute(&emit, l, l + 1, any, &places->state, &head));
	emit.sink = &tally[2];
	if (l >= model->first_trained)
		check_ok(rh_stage_backward(&emit, l, l + 1, &places->state, any, any));
}

static void check_same(double is, double emitted)
{
	check_near(is, emitted, 1e-9 * fabs(emitted) + 1e-15);
}

/* A stage of layers 1 and 2 that keeps the mixers' rows recomputes the others; one that keeps all recomputes nothing. */
static void check_spared(const struct rh_model *model, struct rh_micro_shape shape, struct places *places, struct rh_costs *costs)
{
	struct rh_stage stage = {1, 3};
	struct rh_stage_places in_part = {.kept.bytes = 1, .recomputes = 1}, whole = {.kept.bytes = 1};
	struct rh_fates fates[3] = {{0}, {RH_ROW_RUN(RH_ROW_MIXER, RH_HALF_ROWS), 0}, {RH_ROW_RUN(RH_ROW_MIXER, RH_HALF_ROWS), 0}};
	struct rh_stage_plan plan = {.backward = &stage, .backward_stages = 1, .places = &in_part, .fates = fates};
	double before[3] = {0, costs->layer[1].recompute_s, costs->layer[2].recompute_s}, output = costs->layer[1].recompute_spared_s;
	check_ok(rh_costs_spare(model, &shape, &rates, &plan, costs));
	for (int l = 1; l < 3; l++) {
		struct tally tally = {0};
		struct rh_arena arena = rh_arena_measuring(), kept = rh_arena_measuring();
		struct rh_view any = rh_view_of((char *)(uintptr_t)RH_ALIGN, model->dtype, shape.tokens, model->config->hidden_size);
		struct rh_emit emit = emit_to(model, places, shape, &arena, &tally);
		emit.fates = fates;
		emit.kept = &kept;
		check_ok(rh_stage_recompute(&emit, l, l + 1, any, &places->state, NULL));
		check_same(costs->layer[l].recompute_s, tally.seconds + (l == 1 ? output : 0)); /* the upper one's input is recomputed */
		assert_true(costs->layer[l].recompute_s > 0 && costs->layer[l].recompute_s < before[l]);
	}
	plan.places = &whole;
	check_ok(rh_costs_spare(model, &shape, &rates, &plan, costs));
	assert_true(costs->layer[1].recompute_s == 0 && costs->layer[2].recompute_s == 0);
}

/* Layers that see fewer keys cost less: how many of them do. */
static int check_costs(const struct rh_model *model, struct rh_micro_shape shape)
{
	struct rh_costs costs;
	struct places places;
	int cheaper = 0;
	places_make(model, &places);
	check_ok(rh_costs_measure(model, &shape, &rates, 0, &costs));
	for (int l = 0; l < model->layers; l++) {
		struct tally tally[3] = {{0}};
		const struct rh_layer_cost *is = &costs.layer[l];
		emit_layer(model, &places, shape, l, tally);
		check_same(is->forward_s, tally[0].seconds);
		check_same(is->forward_flops, tally[0].product_flops);
		assert_int_equal(is->forward_launches, tally[0].launches);
		assert_int_equal(is->backward_launches, tally[1].launches + tally[2].launches);
		/* the head's backward holds what makes the loss: its gradients are one op with it */
		int head = model->layer[l].kind == RH_LAYER_HEAD;
		check_same(is->backward_s, tally[2].seconds + (head ? tally[1].seconds - tally[0].seconds : 0));
		check_same(is->backward_flops, tally[2].product_flops + (head ? tally[1].product_flops - tally[0].product_flops : 0));
		check_same(is->recompute_s - is->recompute_spared_s, head ? 0 : tally[1].seconds);
		cheaper += l > 1 && !head && is->forward_flops < costs.layer[1].forward_flops;
	}
	if (model->layers > 3 && model->first_trained <= 1)
		check_spared(model, shape, &places, &costs);
	rh_costs_free(&costs);
	places_free(&places);
	return cheaper;
}

/* Nobody who measures a stage has a place for its input: what is emitted, and the memory for it, are the same wherever that lies, also
 * where the arena begins. */
static void check_any_input(const struct rh_model *model, struct rh_micro_shape shape)
{
	static const uintptr_t place[] = {RH_ALIGN, (uintptr_t)1 << 49};
	struct places places;
	places_make(model, &places);
	for (int lo = 1; lo < model->layers; lo++)
		for (int hi = lo + 1; hi <= model->layers; hi++) {
			struct tally tally[2] = {{0}};
			int64_t peak[2];
			for (int i = 0; i < 2; i++) {
				struct rh_arena arena = rh_arena_measuring();
				struct rh_view any = rh_view_of((char *)place[i], model->dtype, shape.tokens, model->config->hidden_size);
				struct rh_head_out head = head_at(any, shape);
				struct rh_emit emit = emit_to(model, &places, shape, &arena, &tally[i]);
				check_ok(rh_stage_forward(&emit, lo, hi, any, NULL, &head));
				peak[i] = arena.peak;
			}
			if (peak[0] != peak[1] || tally[0].launches != tally[1].launches)
				fail_msg("%s, layers %d to %d: %lld ops in %lld bytes, or %lld in %lld", model->config->family->model_type,
				         lo, hi - 1, (long long)tally[0].launches, (long long)peak[0], (long long)tally[1].launches,
				         (long long)peak[1]);
		}
	places_free(&places);
}

/* On the attention's projections alone: experts take none. */
static int attention_module(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	*r = strstr(name, "attn") || strstr(name, "attention") ? 4 : 0;
	*scale = 2;
	return 0;
}

static void check_model(const struct rh_model_config *config)
{
	const struct rh_lora_config lora = {.module = attention_module};
	const struct rh_micro_shape shape = {.tokens = 96,
	                                     .documents = 3,
	                                     .longest = 40,
	                                     .head_rows = 50,
	                                     .typed = config->types ? 96 : 0,
	                                     .pixels = rh_model_patch(config)};
	for (int variant = 0; variant < 4; variant++) {
		struct rh_model *model;
		check_ok(rh_model_create(config, variant & 1 ? RH_BF16 : RH_F32, variant & 2 ? &lora : NULL, &model));
		(void)check_costs(model, shape);
		check_any_input(model, shape);
		rh_model_destroy(model);
	}
}

static void test_each_layer_of_each_family_costs_what_it_emits(void **state)
{
	(void)state;
	int seen[FAMILIES_MOST] = {0}, models = 0;
	DIR *dir = opendir(MODELS);
	assert_non_null(dir);
	for (struct dirent *entry; (entry = readdir(dir));) {
		char path[512];
		struct rh_model_config config;
		snprintf(path, sizeof path, MODELS "/%s/config.json", entry->d_name);
		if (*entry->d_name == '.' || access(path, R_OK))
			continue;
		check_ok(rh_model_config_load(path, &config));
		for (size_t f = 0; rh_family_at(f); f++)
			seen[f] += rh_family_at(f) == config.family;
		check_model(&config);
		rh_model_config_free(&config);
		models++;
	}
	closedir(dir);
	for (size_t f = 0; rh_family_at(f); f++)
		if (!seen[f])
			fail_msg("no reference model is of family %s", rh_family_at(f)->model_type);
	printf("%d models\n", models);
}

/* Of six layers those from the third on have a window: each has its own cost, not the one below's. */
static void test_windowed_layers_cost_less_than_full_ones(void **state)
{
	(void)state;
	struct rh_model_config config;
	struct rh_model *model;
	const struct rh_micro_shape shape = {.tokens = 96, .documents = 1, .longest = 96, .head_rows = 50};
	json_t *json = json_load_file(MODELS "/qwen2/config.json", 0, NULL);
	assert_non_null(json);
	(void)json_object_del(json, "layer_types");
	assert_int_equal(json_object_set_new(json, "num_hidden_layers", json_integer(6)), 0);
	assert_int_equal(json_object_set_new(json, "use_sliding_window", json_true()), 0);
	assert_int_equal(json_object_set_new(json, "sliding_window", json_integer(8)), 0);
	assert_int_equal(json_object_set_new(json, "max_window_layers", json_integer(2)), 0);
	check_ok(rh_model_config_parse(json, "windowed", &config));
	json_decref(json);
	check_ok(rh_model_create(&config, RH_F32, NULL, &model));
	assert_int_equal(check_costs(model, shape), 4);
	rh_model_destroy(model);
	rh_model_config_free(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_layer_of_each_family_costs_what_it_emits),
	        cmocka_unit_test(test_windowed_layers_cost_less_than_full_ones),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
