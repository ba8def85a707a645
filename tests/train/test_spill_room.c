/* A model whose training state is more than three times the memory that the run may have trains from NVMe to the same weights, and its
 * process stays within. Quick: what NVMe saves of a smaller one. */
#include "cli/runner.h"

#include <inttypes.h>
#include <jansson.h>

struct shape {
	int hidden, layers;
};

static int64_t parameters(struct shape shape)
{
	int64_t h = shape.hidden;
	return shape.layers * (16 * h * h + 2 * h) + 2 * 8192 * h + h;
}

static void world_open(struct scratch *scratch, struct shape shape)
{
	/* on a disk: tmpfs would count as memory */
	snprintf(scratch->dir, sizeof scratch->dir, "build/rh-room-XXXXXX");
	snprintf(scratch->logs, sizeof scratch->logs, "build/rh-log-XXXXXX");
	assert_non_null(mkdtemp(scratch->dir));
	assert_non_null(mkdtemp(scratch->logs));
	copy_model(scratch->dir);
	check_ok(rh_dir_make(path_of("%s/a", scratch->dir)));
	check_ok(rh_dir_make(path_of("%s/b", scratch->dir)));
	FILE *file = fopen(path_of("%s/hf/config.json", scratch->dir), "w");
	assert_non_null(file);
	fprintf(file,
	        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
	        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": 64, \"vocab_size\": "
	        "8192, "
	        "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	        "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}",
	        shape.hidden, 4 * shape.hidden, shape.layers, shape.hidden / 64, shape.hidden / 64);
	assert_int_equal(fclose(file), 0);
	file = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	for (int row = 0; row < 6; row++)
		fprintf(file, "{\"prompt\": \"the cat %d\", \"completion\": \" sat on the mat\"}\n", row);
	assert_int_equal(fclose(file), 0);
}

static int64_t figure(const struct ran *ran, const char *of, const char *tier)
{
	json_error_t error;
	json_t *out = json_loads(ran->out, 0, &error), *peak = json_object_get(out, of);
	if (!strcmp(of, "plan"))
		peak = json_object_get(peak, "peak_bytes");
	int64_t value = json_integer_value(json_object_get(peak, tier));
	json_decref(out);
	return value;
}

static struct ran train(const struct scratch *scratch, const char *out, const char *more)
{
	return run_line(
	        scratch,
	        "train --config_name %s/hf --train_file %s/rows.jsonl --output_dir %s/%s --max_length 32 --device cpu:1 --max_steps 3 "
	        "--save_strategy no --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --learning_rate 1e-3 --bf16 true "
	        "--state_layout plain --logging_steps 1 --max_vram 260MiB --json %s",
	        scratch->dir, scratch->dir, scratch->dir, out, more);
}

static void test_state_three_times_the_memory(void **state)
{
	(void)state;
	struct scratch scratch;
	int is_long = getenv("RH_LONG") != NULL;
	struct shape shape = is_long ? (struct shape){1024, 28} : (struct shape){512, 6};
	int64_t all = parameters(shape), training = 16 * all, may = training / 3;
	world_open(&scratch, shape);
	struct ran whole = train(&scratch, "whole", "");
	if (whole.status)
		fail_msg("%s", whole.err);
	if (!is_long) /* the program's own allowance is most of so small a run: what NVMe takes of it */
		may = figure(&whole, "plan", "ram") - 7 * all;
	struct ran spilled =
	        train(&scratch, "spilled",
	              path_of("--spill auto --nvme_dirs %s/a,%s/b --max_nvme 16GiB --max_ram %" PRId64, scratch.dir, scratch.dir, may));
	if (spilled.status)
		fail_msg("%s", spilled.err);
	int64_t planned = figure(&spilled, "plan", "ram"), peak = figure(&spilled, "peak_bytes", "ram");
	printf("%.0f M parameters, %.2f GB of training state: memory allowed %.3f GB, planned %.3f, peak %.3f (all in memory: %.3f); %.3f "
	       "GB on "
	       "NVMe\n",
	       (double)all * 1e-6, (double)training * 1e-9, (double)may * 1e-9, (double)planned * 1e-9, (double)peak * 1e-9,
	       (double)figure(&whole, "peak_bytes", "ram") * 1e-9, (double)figure(&spilled, "peak_bytes", "nvme") * 1e-9);
	assert_true(planned <= may && (!CHECK_RESIDENT || peak <= may));
	assert_true(figure(&spilled, "peak_bytes", "nvme") > 8 * all);
	assert_true(same_file(path_of("%s/whole/model.safetensors", scratch.dir), path_of("%s/spilled/model.safetensors", scratch.dir)));
	run_free(&whole);
	run_free(&spilled);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_state_three_times_the_memory)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
