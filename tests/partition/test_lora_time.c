/* What adapters add to the time of a layer on a GPU, by bytes and rates: Llama-3.1-8B, rank 16 on all linears, dropout 0.05, 8192 tokens of
 * one document, on an RTX 4090 as examples/hardware has it. */
#include "check.h"

#include "core/alloc.h"
#include "device/sim/sim.h"
#include "model/family.h"
#include "partition/costs.h"

enum { TOKENS = 8192, RANK = 16 };

static const double EXTRA_MOST = 0.15;

struct tally {
	const struct rh_hardware_device *device;
	double base_s, extra_s;
	int64_t extra_launches;
};

static int is_of_adapters(enum rh_op_kind kind)
{
	return (kind >= RH_OP_LORA_LOW && kind <= RH_OP_LORA_B_GRADIENT) || kind == RH_OP_DROPOUT;
}

static int tally_op(void *sink, const struct rh_op *op)
{
	struct tally *tally = sink;
	double seconds = rh_sim_op_seconds(tally->device, op, 1);
	if (is_of_adapters(op->kind)) {
		tally->extra_s += seconds;
		tally->extra_launches++;
	} else {
		tally->base_s += seconds;
	}
	return 0;
}

static int every_linear(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context, (void)name;
	*r = RANK;
	*scale = 2;
	return 0;
}

/* Forward, recompute and backward of layer 2, whose input has a gradient too. */
static void emit_layer(const struct rh_model *model, struct tally *tally)
{
	struct rh_arena arena = rh_arena_measuring();
	struct rh_stage_state state;
	char **weights = rh_alloc((size_t)model->blocks, sizeof *weights);
	float *(*gradient)[2] = rh_alloc((size_t)model->blocks, sizeof *gradient);
	assert_true(weights && gradient);
	for (int b = 0; b < model->blocks; b++) {
		weights[b] = (char *)((uintptr_t)1 << 50);
		gradient[b][0] = gradient[b][1] = (float *)((uintptr_t)1 << 51);
	}
	check_ok(rh_stage_state_create(model, &state));
	struct rh_view any = rh_view_of((char *)(uintptr_t)RH_ALIGN, model->dtype, TOKENS, model->config->hidden_size);
	struct rh_emit emit = {.model = model,
	                       .launch = tally_op,
	                       .sink = tally,
	                       .arena = &arena,
	                       .shape = {.tokens = TOKENS, .documents = 1, .longest = TOKENS},
	                       .micro = (char *)(uintptr_t)RH_ALIGN,
	                       .dropout = 0.05f,
	                       .loss_scale = 1,
	                       .weights = weights,
	                       .gradient = gradient};
	check_ok(rh_stage_forward(&emit, 2, 3, any, NULL, NULL));
	arena = rh_arena_measuring();
	check_ok(rh_stage_recompute(&emit, 2, 3, any, &state, NULL));
	check_ok(rh_stage_backward(&emit, 2, 3, &state, any, any));
	rh_stage_state_free(&state);
	rh_free(weights);
	rh_free(gradient);
}

static void test_adapters_with_dropout_add_few_percent_to_a_layer(void **state)
{
	(void)state;
	struct rh_model_config config;
	struct rh_hardware hardware;
	struct rh_model *model;
	const struct rh_lora_config lora = {.module = every_linear};
	check_ok(rh_model_config_load("examples/models/llama-3.1-8b", &config));
	check_ok(rh_hardware_find("examples/hardware/rtx4090x1.yaml", &hardware));
	check_ok(rh_model_create(&config, RH_BF16, &lora, &model));
	struct rh_device_grain grain = rh_device_gpu_grain();
	rh_model_cut(model, &grain);
	struct tally tally = {.device = &hardware.device};
	emit_layer(model, &tally);
	print_message("adapters: %.2f ms of a layer's other %.1f: %.1f %%, at most %.0f; %lld launches\n", tally.extra_s * 1e3,
	              tally.base_s * 1e3, 100 * tally.extra_s / tally.base_s, 100 * EXTRA_MOST, (long long)tally.extra_launches);
	assert_true(tally.extra_s > 0 && tally.extra_s <= EXTRA_MOST * tally.base_s);
	rh_model_destroy(model);
	rh_hardware_free(&hardware);
	rh_model_config_free(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_adapters_with_dropout_add_few_percent_to_a_layer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
