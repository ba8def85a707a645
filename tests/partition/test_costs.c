/* The profile: products counted by hand, bytes as the plan lays them out, and its printed form read back. */
#include "check.h"

#include "core/alloc.h"
#include "partition/costs.h"
#include "partition/cuts.h"
#include "partition/roundpipe.h"
#include "partition/stage_plan.h"

#include <math.h>
#include <string.h>

struct bench {
	struct rh_model_config config;
	struct rh_model *model;
	struct rh_micro_shape shape;
	struct rh_costs costs;
};

static const struct rh_rates rates = {.product_flops_per_s = 1e12, .other_flops_per_s = 1e11, .memory_bytes_per_s = 1e11, .launch_s = 2e-6};

static int lora_module(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	(void)name;
	*r = 8;
	*scale = 2;
	return 0;
}

static void bench_open(struct bench *bench, enum rh_dtype dtype, int lora)
{
	const struct rh_lora_config adapter = {.module = lora_module};
	*bench = (struct bench){.shape = {.tokens = 48, .documents = 3, .longest = 30, .head_rows = 20}};
	json_t *json = json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i}", "architectures", "LlamaForCausalLM", "hidden_size", 64,
	                         "intermediate_size", 160, "num_hidden_layers", 3, "num_attention_heads", 4, "num_key_value_heads", 2,
	                         "vocab_size", 500);
	check_ok(rh_model_config_parse(json, "test", &bench->config));
	json_decref(json);
	check_ok(rh_model_create(&bench->config, dtype, lora ? &adapter : NULL, &bench->model));
	check_ok(rh_costs_measure(bench->model, &bench->shape, &rates, 14, &bench->costs));
}

static void bench_close(struct bench *bench)
{
	rh_costs_free(&bench->costs);
	rh_model_destroy(bench->model);
	rh_model_config_free(&bench->config);
}

static void test_profile_counts_products_as_by_hand(void **state)
{
	(void)state;
	struct bench bench;
	bench_open(&bench, RH_F32, 0);
	const struct rh_costs *costs = &bench.costs;
	assert_int_equal(costs->layers, 5);
	/* q, o: 64x64; k, v: 32x64; gate, up, down: 160x64; attention: two products over half a square of the longest document */
	double linear = 2.0 * 48 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 160 * 64), attention = 2.0 * 48 * 15 * 64;
	check_near(costs->layer[1].forward_flops, linear + 2 * attention, 1e-3);
	check_near(costs->layer[1].backward_flops, 2 * linear + 5 * attention, 1);
	/* head: logits, then two gradients of the same size */
	check_near(costs->layer[4].forward_flops, 2.0 * 20 * 500 * 64, 1);
	check_near(costs->layer[4].backward_flops, 2 * 2.0 * 20 * 500 * 64, 1);
	for (int l = 0; l < 5; l++) {
		const struct rh_layer_cost *layer = &costs->layer[l];
		assert_true(layer->forward_s > 0 && layer->weight_gradient_s <= layer->backward_s);
		assert_true(layer->recompute_spared_s >= 0 && layer->recompute_spared_s <= layer->recompute_s);
	}
	assert_true(costs->layer[1].weight_gradient_s > 0.2 * costs->layer[1].backward_s);
	check_near(costs->layer[4].recompute_s, 0, 0);
	bench_close(&bench);
}

static void test_profile_has_the_plans_bytes(void **state)
{
	(void)state;
	for (int variant = 0; variant < 4; variant++) {
		struct bench bench;
		bench_open(&bench, variant & 1 ? RH_BF16 : RH_F32, variant >> 1);
		int64_t *offset = rh_alloc(2 * (size_t)bench.model->blocks, sizeof *offset);
		assert_int_equal(bench.costs.first_trained, bench.model->first_trained);
		for (int l = 0; l < bench.costs.layers; l++) {
			const struct rh_layer_cost *layer = &bench.costs.layer[l];
			assert_int_equal(layer->upload_bytes, rh_stage_plan_upload_layout(bench.model, l, l + 1, 0, offset));
			int64_t sums = rh_stage_plan_gradient_layout(bench.model, l, l + 1, offset);
			assert_int_equal(layer->gradient_bytes, sums * (variant & 1 ? 6 : 4));
			assert_int_equal(layer->optimizer_bytes > 0, sums > 0);
		}
		rh_free(offset);
		bench_close(&bench);
	}
}

/* From ops to costs to cuts to a plan that has these stages. */
static void test_partition_of_measured_costs_makes_a_plan(void **state)
{
	(void)state;
	for (int lora = 0; lora < 2; lora++) {
		struct bench bench;
		struct rh_partition found;
		struct rh_stage_plan plan;
		struct rh_cuts cuts;
		bench_open(&bench, RH_F32, lora);
		const struct rh_partition_request request = {
		        .costs = &bench.costs, .cap_bytes = INT64_C(1) << 40, .devices = 3, .micro_batches = 8, .rounds = 2, .steps = 1};
		check_ok(rh_partition_make(&request, &found));
		check_ok(rh_cuts_make(found.forward, found.forward_stages, found.backward, found.backward_stages, &cuts));
		const struct rh_stage_plan_request asked = {.model = bench.model,
		                                            .trains = 1,
		                                            .train = bench.shape,
		                                            .device_cap_bytes = INT64_C(1) << 40,
		                                            .devices = 3,
		                                            .train_round = 4,
		                                            .crosses_rounds = 1,
		                                            .forward_cuts = cuts.forward,
		                                            .backward_cuts = cuts.backward,
		                                            .forward_cut_count = cuts.forward_count,
		                                            .backward_cut_count = cuts.backward_count};
		check_ok(rh_stage_plan_make(&asked, &plan));
		assert_int_equal(plan.forward_stages, found.forward_stages);
		assert_int_equal(plan.backward_stages, found.backward_stages);
		assert_true(found.backward_stages > 1);
		assert_memory_equal(plan.forward, found.forward, (size_t)found.forward_stages * sizeof *plan.forward);
		assert_memory_equal(plan.backward, found.backward, (size_t)found.backward_stages * sizeof *plan.backward);
		rh_stage_plan_free(&plan);
		rh_cuts_free(&cuts);
		rh_partition_free(&found);
		bench_close(&bench);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_profile_counts_products_as_by_hand),
	        cmocka_unit_test(test_profile_has_the_plans_bytes),
	        cmocka_unit_test(test_partition_of_measured_costs_makes_a_plan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
