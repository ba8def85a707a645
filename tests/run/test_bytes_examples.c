/* What a plan says of bytes is what the executor then takes, to the byte, for each model of examples/models. Its config.json has fewer
 * layers and smaller sizes here; every other word is as published. It is trained as its YAML says (all weights or an adapter, in that
 * dtype), on one and on eight devices: as many as rtx4090x1 and rtx4090x8 have. With room and with little. */
#include "bytes_case.h"

#include "config/config.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"

#include <string.h>

enum {
	MICROS = 3,
	DOCUMENTS = 3,
	LENGTH = 19,
	TOKENS = DOCUMENTS * LENGTH,
	LAYERS = 7, /* more than Gemma 3's period of six */
	VOCABULARY = 311,
	HEAD = 8,
	KEY_VALUE_HEADS = 4,
	EXPERTS = 16,
	WINDOW = 8,
	IMAGE = 48,
	PIXELS_MOST = 3 * 16 * 16
};

/* ---- a published config.json made small ---- */

/* The value under the first of two names that the file has; 0: neither. */
static int64_t size_of(const json_t *json, const char *key, const char *other)
{
	const json_t *value = json_object_get(json, key);
	return json_integer_value(value ? value : json_object_get(json, other));
}

/* Sets what the file says, and only that. */
static void shrink(json_t *json, const char *key, int64_t value)
{
	if (json_is_integer(json_object_get(json, key)))
		assert_int_equal(json_object_set_new(json, key, json_integer(value)), 0);
}

/* Query heads for a key/value head stay as many; widths keep their proportions to what all heads have together. */
static void shrink_widths(json_t *json)
{
	static const char *const widths[] = {"hidden_size", "n_embd", "intermediate_size", "moe_intermediate_size",
	                                     "query_pre_attn_scalar"};
	int64_t hidden = size_of(json, "hidden_size", "n_embd"), heads = size_of(json, "num_attention_heads", "n_head");
	int64_t pairs = size_of(json, "num_key_value_heads", ""), head = size_of(json, "head_dim", "");
	int64_t fewer = pairs ? heads / pairs * KEY_VALUE_HEADS : KEY_VALUE_HEADS, all = heads * (head ? head : hidden / heads);
	assert_true(heads > 0 && all > 0);
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
		shrink(json, widths[i], size_of(json, widths[i], "") * fewer * HEAD / all);
	shrink(json, "num_attention_heads", fewer);
	shrink(json, "n_head", fewer);
	shrink(json, "num_key_value_heads", KEY_VALUE_HEADS);
	shrink(json, "head_dim", HEAD);
}

static json_t *small_config(const char *model)
{
	char path[128];
	json_t *json;
	snprintf(path, sizeof path, "examples/models/%s/config.json", model);
	check_ok(rh_json_load(path, &json));
	json_t *text = json_incref(json_object_get(json, "text_config")), *types;
	if (text) { /* a larger model cannot begin at random: its text model by itself */
		json_decref(json);
		json = text;
	}
	shrink_widths(json);
	shrink(json, "num_hidden_layers", LAYERS);
	shrink(json, "n_layer", LAYERS);
	shrink(json, "max_window_layers", LAYERS);
	assert_int_equal(json_object_set_new(json, "vocab_size", json_integer(VOCABULARY)), 0); /* Gemma 3's file leaves it out */
	shrink(json, "num_experts", EXPERTS);
	shrink(json, "num_local_experts", EXPERTS);
	shrink(json, "sliding_window", WINDOW);
	shrink(json, "image_size", IMAGE);
	while ((types = json_object_get(json, "layer_types")) && json_array_size(types) > LAYERS)
		json_array_remove(types, LAYERS);
	return json;
}

/* ---- a run of it ---- */

struct run {
	char dir[64];
	struct rh_config config;
	struct rh_session session;
};

static void load_config(struct run *run, const char *model, const char *device)
{
	char yaml[128], path[128], flag[] = "--config_name", named[] = "--model_name_or_path", none[] = "null", on[] = "--device", to[16];
	snprintf(yaml, sizeof yaml, "examples/models/%s.yaml", model);
	snprintf(path, sizeof path, "%s/config.json", run->dir);
	snprintf(to, sizeof to, "%s", device);
	char *argv[] = {yaml, named, none, flag, path, on, to};
	json_t *json = small_config(model);
	assert_int_equal(json_dump_file(json, path, 0), 0);
	json_decref(json);
	check_ok(rh_config_load("plan", sizeof argv / sizeof *argv, argv, NULL, &run->config));
}

/* All micro-batches of a step are alike, so that the largest is really met. */
struct micro {
	struct rh_micro_batch batch;
	int32_t id[TOKENS], position[TOKENS], type[TOKENS], start[DOCUMENTS + 1], head_row[TOKENS], target[TOKENS];
	float pixel[TOKENS * PIXELS_MOST], loss[TOKENS];
	double load_balancing_loss;
};

/* Texts of next tokens, texts with a label at their first token, or images with one at their class token. */
static void make_micro(const struct rh_model_config *model, struct micro *out)
{
	int64_t across = model->image_size ? model->image_size / model->patch_size : 0;
	int32_t length = model->image_size ? 1 + (int32_t)(across * across) : LENGTH, rows = 0;
	int64_t pixels = model->image_size ? model->num_channels * model->patch_size * model->patch_size : 0;
	assert_true(length <= LENGTH && pixels <= PIXELS_MOST);
	*out = (struct micro){0};
	for (int32_t t = 0; t < DOCUMENTS * length; t++) {
		out->position[t] = t % length;
		out->id[t] = (int32_t)((model->image_size ? t % length > 0 : 5 * t + 3) % model->vocab_size);
		out->type[t] = t % length > length / 2;
		if (model->task == RH_TASK_CAUSAL_LM ? t % length + 1 < length : t % length == 0)
			out->head_row[rows++] = t;
	}
	for (int32_t d = 0; d <= DOCUMENTS; d++)
		out->start[d] = d * length;
	out->batch = (struct rh_micro_batch){.shape = {.tokens = DOCUMENTS * length,
	                                               .documents = DOCUMENTS,
	                                               .longest = length,
	                                               .head_rows = rows,
	                                               .typed = model->types ? DOCUMENTS * length : 0,
	                                               .pixels = pixels},
	                                     .ids = out->id,
	                                     .position = out->position,
	                                     .start_q = out->start,
	                                     .start_k = out->start,
	                                     .head_row = out->head_row,
	                                     .target = out->target,
	                                     .type = model->types ? out->type : NULL,
	                                     .pixel = pixels ? out->pixel : NULL,
	                                     .loss = out->loss,
	                                     .load_balancing_loss = &out->load_balancing_loss};
}

/* The device's bytes; 0: refused. cap: 0: all. */
static int64_t check_run(const char *model, const char *device, int64_t cap)
{
	static struct micro micro;
	struct run run = {0};
	snprintf(run.dir, sizeof run.dir, "%s/rh-bytes-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(run.dir));
	load_config(&run, model, device);
	run.config.max_vram = cap;
	check_ok(rh_session_open(&run.config, RH_SESSION_TRAINS, &run.session));
	make_micro(run.session.model_config, &micro);
	struct rh_workload work = {.train = micro.batch.shape, .train_micro_batches = MICROS};
	int rc = rh_session_start(&run.session, &work);
	int64_t bytes = 0;
	if (!rc) {
		struct rh_micro_batch batch[MICROS] = {micro.batch, micro.batch, micro.batch};
		float scale = 1.0f / (float)(MICROS * micro.batch.shape.head_rows);
		check_ok(rh_executor_begin(run.session.executor, batch, MICROS, 0, scale));
		check_ok(rh_executor_finish(run.session.executor));
		check_device_bytes(&run.session);
		check_host_bytes(&run.session);
		bytes = run.session.plan.stages.device_bytes;
		assert_true(!cap || bytes <= cap);
	}
	assert_true(!rc || (rc == RH_DOES_NOT_FIT && cap));
	rh_session_close(&run.session);
	rh_config_free(&run.config);
	check_ok(rh_dir_remove(run.dir));
	return bytes;
}

static void test_bytes_of_each_example_are_those_taken(void **state)
{
	(void)state;
	static const char *const models[] = {"qwen3-1.7b",  "qwen3-32b",  "qwen3-235b-a22b", "llama-3.1-8b", "llama-3.1-70b",
	                                     "gpt-oss-20b", "mistral-7b", "gemma-3-27b",     "gpt2-medium",  "bert-large",
	                                     "vit-large",   "qwen3-8b",   "qwen3-30b-a3b",   "qwen3.5-9b"};
	static const char *const devices[] = {"cpu:1", "cpu:8"};
	for (size_t m = 0; m < sizeof models / sizeof *models; m++)
		for (int d = 0; d < 2; d++) {
			int64_t all = check_run(models[m], devices[d], 0), least = all;
			assert_true(all > 0);
			for (int cut = 0; cut < 3; cut++) {
				int64_t bytes = check_run(models[m], devices[d], all * (9 - 2 * cut) / 10);
				least = bytes ? bytes : least;
			}
			printf("%s on %s: %.1f KiB of a device, %.1f under the smallest cap that fits\n", models[m], devices[d],
			       (double)all / 1024, (double)least / 1024);
		}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes_of_each_example_are_those_taken)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
