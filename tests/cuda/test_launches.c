/* How often a transformer layer launches on a GPU for one micro-batch: forward, recompute and backward, of the kinds of layer that the
 * targets are for. At some 5 us a launch, they and not the arithmetic bound short micro-batches on many GPUs. */
#include "check.h"

#include "cuda/device.h"
#include "cudaemu_control.h"
#include "launches.h"
#include "model/emit_internal.h"

enum { TOKENS = 40, DEVICE_BYTES = 32 << 20, MOST_FULL = 35, MOST_LORA = 70 };

struct rig {
	struct rh_model_config config;
	struct rh_model *model;
	struct rh_device *device;
	char *base, *weights[8];
	float *gradient[8][2];
	int64_t used;
	struct rh_arena arena;
	struct rh_emit emit;
	struct rh_stage_state state;
};

static int launch(void *sink, const struct rh_op *op)
{
	struct rig *rig = sink;
	return rig->device->ops->launch(rig->device, RH_STREAM_COMPUTE, op);
}

static int every_linear(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context, (void)name;
	*r = 16;
	*scale = 2;
	return 0;
}

static void *take(struct rig *rig, int64_t bytes)
{
	void *at = rig->base + rig->used;
	rig->used += rh_align_up(bytes, 256);
	assert_true(rig->used <= DEVICE_BYTES);
	return at;
}

/* Two layers with the head size of the tensor cores' kernels, in bf16; everything zero, a document of all tokens. */
static void rig_open(struct rig *rig, const char *family, int lora)
{
	static const char zeros[1 << 20];
	*rig = (struct rig){.config = {.family = rh_family_find(family),
	                               .vocab_size = 64,
	                               .hidden_size = 128,
	                               .intermediate_size = 192,
	                               .num_hidden_layers = 2,
	                               .num_attention_heads = 4,
	                               .num_key_value_heads = 2,
	                               .head_dim = 64,
	                               .qk_norm = family[0] == 'q',
	                               .rms_norm_eps = 1e-6,
	                               .initializer_range = 0.02}};
	rig->config.rope[0].theta = 10000;
	struct rh_lora_config adapters = {.module = every_linear};
	struct rh_cuda_options options = {.gpu = 0, .cap_bytes = DEVICE_BYTES};
	void *base;
	check_ok(rh_model_create(&rig->config, RH_BF16, lora ? &adapters : NULL, &rig->model));
	struct rh_device_grain grain = rh_cuda_grain();
	rh_model_cut(rig->model, &grain);
	check_ok(rh_cuda_open(0, &options, &rig->device));
	check_ok(rig->device->ops->reserve(rig->device, DEVICE_BYTES, &base));
	rig->base = base;
	for (int64_t at = 0; at < DEVICE_BYTES; at += (int64_t)sizeof zeros)
		check_ok(rig->device->ops->copy_up(rig->device, RH_STREAM_COMPUTE, rig->base + at, zeros, sizeof zeros));
	assert_in_range(rig->model->blocks, 1, 8);
	for (int b = 0; b < rig->model->blocks; b++) {
		rig->weights[b] = take(rig, 2 * rig->model->block[b].elements);
		rig->gradient[b][0] = rig->gradient[b][1] = take(rig, 4 * rig->model->block[b].elements);
	}
	rig->emit = (struct rh_emit){.model = rig->model,
	                             .launch = launch,
	                             .sink = rig,
	                             .arena = &rig->arena,
	                             .shape = {.tokens = TOKENS, .documents = 1, .longest = TOKENS},
	                             .weights = rig->weights,
	                             .gradient = rig->gradient,
	                             .dropout = lora ? 0.05f : 0,
	                             .loss_scale = 1};
	struct rh_micro_layout at = rh_micro_layout(&rig->emit.shape);
	static const int32_t all = TOKENS;
	rig->emit.micro = take(rig, at.bytes);
	check_ok(rig->device->ops->copy_up(rig->device, RH_STREAM_COMPUTE, rig->emit.micro + at.start_q + 4, &all, 4));
	check_ok(rig->device->ops->copy_up(rig->device, RH_STREAM_COMPUTE, rig->emit.micro + at.start_k + 4, &all, 4));
	check_ok(rh_stage_state_create(rig->model, &rig->state));
}

static void rig_close(struct rig *rig)
{
	rh_stage_state_free(&rig->state);
	rig->device->ops->close(rig->device);
	rh_model_destroy(rig->model);
	cudaemu_release();
}

static int64_t launched(struct rig *rig)
{
	check_ok(rig->device->ops->synchronize(rig->device));
	return rh_cuda_launches();
}

/* Launches of layers [1, hi): a stage's forward, and its recompute and backward in another. */
static int64_t count(struct rig *rig, int hi)
{
	int64_t mark = rig->used, before;
	struct rh_view view[4], boundary[4] = {{0}};
	for (int i = 0; i < 4; i++)
		view[i] = rh_view_of(take(rig, 2 * TOKENS * rig->config.hidden_size), RH_BF16, TOKENS, rig->config.hidden_size);
	boundary[hi] = view[1];
	rig->arena = (struct rh_arena){rig->base + rig->used, DEVICE_BYTES - rig->used, 0, 0};
	before = launched(rig);
	check_ok(rh_stage_forward(&rig->emit, 1, hi, view[0], boundary, NULL));
	check_ok(rh_stage_recompute(&rig->emit, 1, hi, view[0], &rig->state, NULL));
	check_ok(rh_stage_backward(&rig->emit, 1, hi, &rig->state, view[2], view[3]));
	rig->used = mark;
	return launched(rig) - before;
}

/* What one layer more adds: what a stage launches once, as its table of angles, is in both. */
static void check_layer(const char *what, const char *family, int lora, int64_t most)
{
	struct rig rig;
	rig_open(&rig, family, lora);
	int64_t layer = count(&rig, 3) - count(&rig, 2);
	print_message("%s: %lld launches a layer and micro-batch, at most %lld\n", what, (long long)layer, (long long)most);
	assert_in_range(layer, 1, most);
	rig_close(&rig);
}

static void test_launches_of_a_fully_trained_layer_are_few(void **state)
{
	(void)state;
	check_layer("Qwen3, full", "qwen3", 0, MOST_FULL);
	check_layer("Llama, full", "llama", 0, MOST_FULL);
}

static void test_launches_of_a_layer_with_adapters_are_few(void **state)
{
	(void)state;
	check_layer("Qwen3, LoRA on all linears, dropout", "qwen3", 1, MOST_LORA);
	check_layer("Llama, LoRA on all linears, dropout", "llama", 1, MOST_LORA);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_launches_of_a_fully_trained_layer_are_few),
	        cmocka_unit_test(test_launches_of_a_layer_with_adapters_are_few),
	};
	atexit(kernel_write_launches);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
