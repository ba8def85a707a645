/* Small runs whose every op is an emulated CUDA kernel, beside the same runs on the CPU device; and a GPU that breaks in the middle of one.
 */
#include "train/deep.h"
#include "train/packed.h"

#include "core/file.h"
#include "core/hooks.h"
#include "cudaemu_control.h"
#include "run/executor_internal.h"
#include "runtime.h"
#include "train/train.h"

/* A loss is a mean over the tokens of MICROS micro-batches. In bf16 a value near the middle of two rounds either way, which from then on
 * moves every loss by some thousandths of a token's: fewer tokens would measure that and not the kernels. */
enum { STEPS = 10, FEW = 2, MICROS = 4 };

struct what {
	const char *model, *adapter;
	enum rh_dtype dtype;
	double tolerance;
	int steps, chunk, fp8; /* the latter two of the emulated run alone; 0: as on the CPU */
	double balance;        /* router_aux_loss_coef */
};

/* Every step trains on the same few micro-batches, so that losses move. */
static void losses_of(const struct what *what, const char *device, double *loss)
{
	struct rig rig;
	rig_open(&rig, what->model, what->adapter);
	rig.config.dtype = what->dtype;
	rig.config.router_aux_loss_coef = what->balance;
	rig.config.device = (char *)(uintptr_t)device;
	if (strncmp(device, "cpu", 3)) {
		rig.config.accumulation = what->chunk ? RH_ACCUMULATION_FP16 : RH_ACCUMULATION_FP32;
		rig.config.accumulation_chunk = what->chunk;
		rig.config.fp8 = what->fp8;
	}
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	for (int step = 0; step < what->steps; step++) {
		loss[step] = rig_step(&rig, &in, step * MICROS % (in.micros - MICROS + 1), MICROS, step);
		rig_update(&rig, 1e-3, step);
	}
	rig_close(&rig);
}

static void same_losses(const struct what *what)
{
	static const char *const devices[] = {"emu:1", "emu:2"};
	double cpu[STEPS], emu[2][STEPS], worst = 0;
	size_t bytes = (size_t)what->steps * sizeof cpu[0];
	losses_of(what, "cpu:1", cpu);
	for (int d = 0; d < 2; d++) {
		losses_of(what, devices[d], emu[d]);
		for (int step = 0; step < what->steps; step++)
			worst = fabs(emu[d][step] - cpu[step]) > worst ? fabs(emu[d][step] - cpu[step]) : worst;
	}
	printf("%s %s %s%s%s: losses %.5f to %.5f, at most %.2g from the CPU device's\n", what->model,
	       what->adapter ? what->adapter : "full", rh_dtype_name(what->dtype), what->chunk ? ", fp16 sums" : "",
	       what->fp8 ? ", fp8" : "", cpu[0], cpu[what->steps - 1], worst);
	assert_true(worst <= what->tolerance);
	assert_memory_equal(emu[0], emu[1], bytes); /* where a run is executed never changes a bit of it */
	assert_int_equal(runtime_held(), 0);
	cudaemu_release();
}

static void test_fp32_lora_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"qwen3", "adapter", RH_F32, 1e-4, STEPS, 0, 0, 0});
}

static void test_fp32_full_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"qwen3", NULL, RH_F32, 1e-4, STEPS, 0, 0, 0});
}

static void test_bf16_lora_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"qwen3", "adapter", RH_BF16, 5e-3, STEPS, 0, 0, 0});
}

static void test_bf16_full_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"qwen3", NULL, RH_BF16, 5e-3, STEPS, 0, 0, 0});
}

/* Attention in both directions, LayerNorm, GELU; a head for hidden tokens, for labels of texts and for those of images. */
static void test_fp32_encoder_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"bert-mlm", NULL, RH_F32, 1e-4, STEPS, 0, 0, 0});
	same_losses(&(struct what){"bert-cls", "adapter", RH_F32, 1e-4, STEPS, 0, 0, 0});
	same_losses(&(struct what){"vit", NULL, RH_F32, 1e-4, STEPS, 0, 0, 0});
}

/* The gated delta rule, and attention with gates. */
static void test_linear_attention_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"qwen3.5", "adapter", RH_F32, 1e-4, FEW, 0, 0, 0});
	same_losses(&(struct what){"qwen3.5", NULL, RH_BF16, 5e-3, FEW, 0, 0, 0});
	same_losses(&(struct what){"qwen3.5-moe", "adapter", RH_F32, 1e-4, FEW, 0, 0, 0});
	same_losses(&(struct what){"qwen3.5-moe", NULL, RH_BF16, 5e-3, FEW, 0, 0, 0});
	same_losses(&(struct what){"qwen3-next", "adapter", RH_F32, 1e-4, FEW, 0, 0, 0});
	same_losses(&(struct what){"qwen3-next", NULL, RH_BF16, 5e-3, FEW, 0, 0, 0});
}

/* Latent attention; sigmoids that choose experts. */
static void test_latent_attention_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"glm4-lite", "adapter", RH_F32, 1e-4, FEW, 0, 0, 0});
	same_losses(&(struct what){"glm4-lite", NULL, RH_BF16, 5e-3, FEW, 0, 0, 0});
	same_losses(&(struct what){"deepseek3", NULL, RH_F32, 1e-4, FEW, 0, 0, 0});
}

/* Heads of two sizes, values that are keys, capped logits. */
static void test_losses_of_two_kinds_of_heads_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"gemma4", "adapter", RH_F32, 1e-4, FEW, 0, 0, 0});
	same_losses(&(struct what){"gemma4", NULL, RH_BF16, 5e-3, FEW, 0, 0, 0});
	same_losses(&(struct what){"gemma4-moe", NULL, RH_F32, 1e-4, FEW, 0, 0, 0});
}

static void test_losses_of_balanced_experts_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(&(struct what){"qwen3-moe", "adapter", RH_F32, 1e-4, STEPS, 0, 0, 0.5});
	same_losses(&(struct what){"gpt-oss", NULL, RH_F32, 1e-4, FEW, 0, 0, 0.5});
}

static void test_bf16_encoder_losses_are_the_cpu_devices(void **state)
{
	(void)state;
	same_losses(
	        &(struct what){"bert-mlm", "adapter", RH_BF16, 1e-2, STEPS, 0, 0, 0}); /* one token in seven is trained: twice the noise */
	same_losses(&(struct what){"bert-cls", NULL, RH_BF16, 5e-3, STEPS, 0, 0, 0});
	same_losses(&(struct what){"vit", "adapter", RH_BF16, 5e-3, STEPS, 0, 0, 0});
}

/* fp16 sums and fp8. Under AddressSanitizer they take minutes: there their kernels are tested by test_kernels_scaled, and this with
 * RH_LONG=1. */
static void same_losses_narrow(const struct what *what)
{
#ifdef __SANITIZE_ADDRESS__
	if (!getenv("RH_LONG")) {
		printf("skipped: %s in narrow products under AddressSanitizer takes minutes: RH_LONG=1\n",
		       what->adapter ? "LoRA" : "full training");
		skip();
	}
#endif
	same_losses(what);
}

/* Beside bf16's own tolerance as much again: sums of chunks are rounded too, to 2^-12 of themselves. (Ten steps: 5.1e-3 and 1.6e-3.) */
static void packed_losses(const struct packed_case *is, double loss[PACKED_STEPS])
{
	struct rig rig;
	struct rig_input in;
	check_ok(packed_open(&rig, is, &in));
	assert_int_equal(rig.session.plan.stages.plain_bytes > 0, !is->is_plain && !is->cap);
	packed_train(&rig, &in, loss);
	rig_close(&rig);
}

/* A base that stays packed, made plain by the emulated kernels: once a slot, and for each product. */
static void test_losses_on_packed_bases_are_those_on_plain_ones(void **state)
{
	(void)state;
	static const char *const files[] = {"tests/reference/models/gguf-llama/model.gguf",
	                                    "tests/reference/models/gguf-qwen3-moe/model.gguf", "tests/reference/ckpt/gpt-oss"};
	for (int i = 0; i < 6; i++) {
		struct packed_case is = {.file = files[i / 2], .device = "emu:1", .dtype = i % 2 ? RH_BF16 : RH_F32, .is_plain = 1};
		double plain[PACKED_STEPS], packed[PACKED_STEPS];
		packed_losses(&is, plain);
		is.is_plain = 0;
		packed_losses(&is, packed);
		assert_memory_equal(plain, packed, sizeof plain);
		is.device = "emu:2";
		packed_losses(&is, packed);
		assert_memory_equal(plain, packed, sizeof plain);
		is.device = "cpu:1";
		packed_losses(&is, packed);
		assert_true(fabs(plain[PACKED_STEPS - 1] - packed[PACKED_STEPS - 1]) < (i % 2 ? 2e-2 : 1e-4));
		cudaemu_release();
	}
}

/* A base that is stored as 8-bit products take it, beside one that each product quantises: the same bits. */
static void test_fp8_losses_on_a_base_in_8_bits_are_those_on_one_that_products_quantise(void **state)
{
	(void)state;
	struct packed_case is = {.file = "tests/reference/models/qwen3", .device = "emu:1", .dtype = RH_BF16, .is_plain = 1, .fp8 = 1};
	double plain[PACKED_STEPS], stored[PACKED_STEPS];
	packed_losses(&is, plain);
	is.is_plain = 0;
	packed_losses(&is, stored);
	assert_memory_equal(plain, stored, sizeof plain);
	is.device = "emu:2";
	packed_losses(&is, stored);
	assert_memory_equal(plain, stored, sizeof plain);
	cudaemu_release();
}

static void test_fp16_sums_lora_losses_are_near_bf16(void **state)
{
	(void)state;
	same_losses_narrow(&(struct what){"qwen3", "adapter", RH_BF16, 1e-2, FEW, 32, 0, 0});
}

static void test_fp16_sums_full_losses_are_near_bf16(void **state)
{
	(void)state;
	same_losses_narrow(&(struct what){"qwen3", NULL, RH_BF16, 1e-2, FEW, 32, 0, 0});
}

/* Operands are off by up to 2^-4 of themselves, either way, gradients by 2^-3: sixteen times bf16's, and so is the tolerance. (Ten steps:
 * 5.2e-2 and 3.6e-2.) The MLP's last product, 56 deep, stays in bf16. */
static void test_fp8_lora_losses_are_near_bf16(void **state)
{
	(void)state;
	same_losses_narrow(&(struct what){"qwen3", "adapter", RH_BF16, 8e-2, FEW, 0, 1, 0});
}

static void test_fp8_full_losses_are_near_bf16(void **state)
{
	(void)state;
	same_losses_narrow(&(struct what){"qwen3", NULL, RH_BF16, 8e-2, FEW, 0, 1, 0});
}

/* Boundaries go to NVMe and come back as the host waits for their copies. `ram`: most memory, 0 any; gets what was taken. Nonzero: it is
 * too little. */
static int spilled_losses(int spill, int64_t *ram, int steps, double *loss, int64_t *written)
{
	char dir[] = "/tmp/rh-cuda-XXXXXX", *dirs[] = {dir};
	struct deep deep;
	struct rh_config *config = &deep.rig.config;
	assert_non_null(mkdtemp(dir));
	deep_open(&deep, "qwen3", 6);
	deep_cut(&deep);
	config->dtype = RH_BF16;
	config->state_layout = RH_LAYOUT_SPLIT;
	config->device = (char *)(uintptr_t) "emu:1";
	config->max_vram = 4 << 20; /* so that max_ram is not spent on devices */
	config->max_ram = *ram;
	config->spill = spill;
	config->max_nvme = spill ? 1 << 30 : 0;
	config->nvme_dirs = (struct rh_list){.item = dirs, .count = 1};
	struct rig_input in = rig_input(&deep.rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS, .train_steps = FEW};
	check_ok(rh_session_open(config, RH_SESSION_TRAINS, &deep.rig.session));
	int rc = rh_session_start(&deep.rig.session, &work);
	*ram = rc ? *ram : deep.rig.session.plan.bytes.total;
	for (int step = 0; !rc && step < steps; step++)
		loss[step] = rig_step(&deep.rig, &in, step * MICROS % (in.micros - MICROS + 1), MICROS, step);
	if (deep.rig.session.space && !rc) {
		struct rh_space_stats stats;
		rh_space_stats(deep.rig.session.space, &stats);
		*written = stats.written_bytes[0];
	}
	deep_close(&deep);
	assert_int_equal(rmdir(dir), 0);
	return rc;
}

static void test_boundaries_on_nvme_are_those_in_memory(void **state)
{
	(void)state;
	double memory[FEW], nvme[FEW];
	int64_t any = 0, least = 0, ram = 0, written = 0;
	assert_int_equal(spilled_losses(0, &any, FEW, memory, &written), 0);
	for (; !spilled_losses(RH_SPILL_ACTIVATIONS, &ram, 0, nvme, &written); ram--)
		least = ram;
	assert_int_equal(spilled_losses(RH_SPILL_ACTIVATIONS, &least, FEW, nvme, &written), 0);
	assert_true(written > 0);
	assert_memory_equal(memory, nvme, sizeof memory);
	assert_int_equal(runtime_held(), 0);
	cudaemu_release();
}

/* Four GPUs whose streams hold a small part of a slot, as they do in real models: while the host waits for room on one the others have
 * work, and the losses are those of streams that hold everything. */
static void test_full_streams_starve_no_gpu(void **state)
{
	(void)state;
	enum { MANY = 16, LAYERS = 8, HOLDS = 64, ROOMY = 1 << 20 };
	double loss[2];
	struct runtime_queues queues = {0};
	for (int i = 0; i < 2; i++) {
		struct deep deep;
		deep_open(&deep, "qwen3", LAYERS);
		deep_cut(&deep);
		deep.rig.config.dtype = RH_BF16;
		deep.rig.config.device = (char *)(uintptr_t) "emu:4";
		deep.rig.config.round_micro_batches = MANY;
		struct rig_input in = rig_input(&deep.rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MANY};
		runtime_set_queues(7, i ? HOLDS : ROOMY);
		rig_start(&deep.rig, RH_SESSION_TRAINS, &work);
		assert_true(in.micros >= MANY);
		(void)runtime_queues();
		loss[i] = rig_step(&deep.rig, &in, 0, MANY, 0);
		queues = runtime_queues();
		deep_close(&deep);
	}
	runtime_set_queues(0, 0);
	printf("streams of %d commands: %lld calls found one full, %lld commands went by while a GPU had nothing\n", HOLDS,
	       (long long)queues.full, (long long)queues.starved);
	assert_true(loss[0] == loss[1]);
	assert_true(queues.threads >= 4);                                              /* a worker a GPU, and who waits for room on one */
	assert_true(queues.full > 100 && queues.full < 2900 && queues.starved < 4200); /* slot by slot: 3854, 5602; so: 1953, 2896 */
	assert_int_equal(runtime_held(), 0);
	cudaemu_release();
}

/* A whole run through rh_train. */
static int train(const char *dir, const char *out, const char *resume)
{
	char rows[128], output[128], model[128];
	struct rh_config config;
	struct rh_train_result result;
	snprintf(rows, sizeof rows, "%s/rows.jsonl", dir);
	snprintf(output, sizeof output, "%s/%s", dir, out);
	snprintf(model, sizeof model, "%s/hf", dir);
	const char *argv[] = {"--model_name_or_path",
	                      model,
	                      "--train_file",
	                      rows,
	                      "--output_dir",
	                      output,
	                      "--device",
	                      "emu:2",
	                      "--max_length",
	                      "48",
	                      "--max_steps",
	                      "6",
	                      "--save_steps",
	                      "2",
	                      "--per_device_train_batch_size",
	                      "1",
	                      "--lora_r",
	                      "2",
	                      "--gradient_accumulation_steps",
	                      "2",
	                      "--learning_rate",
	                      "1e-3",
	                      "--dtype",
	                      "float32",
	                      "--resume_from_checkpoint",
	                      resume};
	int argc = (int)(sizeof argv / sizeof *argv) - (resume ? 0 : 2);
	rh_log_quiet(1);
	check_ok(rh_config_load("train", argc, (char **)(uintptr_t)argv, NULL, &config));
	int rc = rh_train(&config, &result);
	rh_config_free(&config);
	return rc;
}

static void copy(const char *from, const char *dir, const char *name)
{
	char path[256];
	struct rh_bytes map;
	check_ok(rh_file_load(from, &map));
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(map.bytes, 1, map.length, file), map.length);
	assert_int_equal(fclose(file), 0);
	rh_bytes_free(&map);
}

static void same_file(const char *a, const char *b)
{
	struct rh_bytes one, two;
	check_ok(rh_file_load(a, &one));
	check_ok(rh_file_load(b, &two));
	assert_int_equal(one.length, two.length);
	assert_memory_equal(one.bytes, two.bytes, one.length);
	rh_bytes_free(&one);
	rh_bytes_free(&two);
}

/* A launch in step 5 or so finds the GPU's memory wrong: the run ends with one line, and goes on from its last checkpoint to the same
 * weights. */
static void test_a_gpu_that_breaks_leaves_the_last_checkpoint(void **state)
{
	(void)state;
	char dir[] = "/tmp/rh-cuda-XXXXXX", path[2][256];
	assert_non_null(mkdtemp(dir));
	snprintf(path[0], sizeof path[0], "%s/hf", dir);
	check_ok(rh_dir_make(path[0]));
	copy("tests/reference/models/gguf-qwen2/config.json", path[0], "config.json");
	copy("tests/reference/models/gguf-qwen2/model.safetensors", path[0], "model.safetensors");
	copy("tests/reference/interchange/tokenizer.json", path[0], "tokenizer.json");
	copy("tests/reference/interchange/tokenizer_config.json", path[0], "tokenizer_config.json");
	snprintf(path[0], sizeof path[0], "%s/rows.jsonl", dir);
	FILE *file = fopen(path[0], "w");
	assert_non_null(file);
	for (int i = 0; i < 12; i++)
		fprintf(file, "{\"prompt\": \"%d the cat\", \"completion\": \" sat on %d mats\"}\n", i, i * 7 % 5);
	assert_int_equal(fclose(file), 0);

	runtime_fail_nth(0, "cudaPeek", cudaSuccess);
	check_ok(train(dir, "whole", NULL));
	uint64_t launches = runtime_fail_nth(0, "cudaPeek", cudaSuccess);
	printf("%llu launches\n", (unsigned long long)launches);
	runtime_fail_nth(launches * 3 / 4, "cudaPeek", cudaErrorECCUncorrectable);
	int rc = train(dir, "broken", NULL);
	printf("%s\n", rh_error(rc));
	assert_int_equal(rc, -EIO);
	assert_non_null(strstr(rh_error(rc), "device emu:"));
	assert_non_null(strstr(rh_error(rc), "uncorrectable ECC error"));
	assert_null(strchr(rh_error(rc), '\n'));
	assert_int_equal(runtime_held(), 0);

	runtime_fail_nth(0, "cudaPeek", cudaSuccess);
	check_ok(train(dir, "broken", "true"));
	snprintf(path[0], sizeof path[0], "%s/whole/adapter_model.safetensors", dir);
	snprintf(path[1], sizeof path[1], "%s/broken/adapter_model.safetensors", dir);
	same_file(path[0], path[1]);
	check_ok(rh_dir_remove(dir));
	cudaemu_release();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_fp32_lora_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_fp32_full_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_bf16_lora_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_bf16_full_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_fp32_encoder_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_bf16_encoder_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_linear_attention_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_latent_attention_losses_are_the_cpu_devices),
	        cmocka_unit_test(test_losses_of_two_kinds_of_heads_are_the_cpu_devices),
	        cmocka_unit_test(test_losses_of_balanced_experts_are_the_cpu_devices),
	        cmocka_unit_test(test_losses_on_packed_bases_are_those_on_plain_ones),
	        cmocka_unit_test(test_fp8_losses_on_a_base_in_8_bits_are_those_on_one_that_products_quantise),
	        cmocka_unit_test(test_fp16_sums_lora_losses_are_near_bf16),
	        cmocka_unit_test(test_fp16_sums_full_losses_are_near_bf16),
	        cmocka_unit_test(test_fp8_lora_losses_are_near_bf16),
	        cmocka_unit_test(test_fp8_full_losses_are_near_bf16),
	        cmocka_unit_test(test_boundaries_on_nvme_are_those_in_memory),
	        cmocka_unit_test(test_full_streams_starve_no_gpu),
	        cmocka_unit_test(test_a_gpu_that_breaks_leaves_the_last_checkpoint),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
