/* Round trip: a model that is loaded and saved untrained is, tensor by tensor, the bits of the files that it came from, in their layout. */
#include "rig.h"

#include "core/file.h"
#include "core/float16.h"
#include "weights/tensors.h"

#include <unistd.h>

static const char *const models[] = {"llama3",     "qwen2",         "mistral",        "phi3",       "gemma3",      "qwen3-moe",
                                     "gpt-oss",    "gpt2",          "gemma3-vision",  "mistral3",   "bert-mlm",    "bert-cls",
                                     "vit",        "qwen3.5",       "qwen3.5-vision", "granite4",   "qwen3.5-moe", "qwen3.5-moe-vision",
                                     "gemma4",     "gemma4-vision", "muse-glimmer",   "gemma4-moe", "glm4-lite",   "qwen3-next",
                                     "gemma4-e2b", "deepseek3"};

static void check_tensor(const struct rh_source *was, const struct rh_source *is, const struct rh_tensor *tensor)
{
	int64_t count = tensor->parts ? tensor->cols : tensor->rows * tensor->cols;
	float *a = malloc((size_t)count * 4), *b = malloc((size_t)count * 4);
	assert_true(a && b);
	check_ok(rh_source_read(was, tensor->name, 0, count, RH_F32, a));
	check_ok(rh_source_read(is, tensor->name, 0, count, RH_F32, b));
	if (memcmp(a, b, (size_t)count * 4))
		fail_msg("%s differs", tensor->name);
	free(a);
	free(b);
}

/* The parts around a text model: every tensor of the one directory is in the other, under its name, in its type, to the bit. */
static void check_others(const struct rh_source *was, const struct rh_source *is, const char *from, const char *to)
{
	char a[256], b[256];
	struct rh_safetensors *x, *y;
	int same = 0;
	assert_int_equal(rh_source_others(was), rh_source_others(is));
	snprintf(a, sizeof a, "%s/model.safetensors", from);
	snprintf(b, sizeof b, "%s/model.safetensors", to);
	if (!rh_source_others(was) || !rh_file_exists(a)) /* or in shards, where the whole file in one shows no less */
		return;
	check_ok(rh_safetensors_open(a, &x));
	check_ok(rh_safetensors_open(b, &y));
	assert_int_equal(rh_safetensors_count(x), rh_safetensors_count(y));
	for (int64_t i = 0; i < rh_safetensors_count(x); i++) {
		const struct rh_safetensor *one = rh_safetensors_at(x, i), *other = rh_safetensors_find(y, one->name);
		if (!other)
			fail_msg("%s is not written", one->name);
		assert_int_equal(one->dtype, other->dtype);
		assert_memory_equal(one->shape, other->shape, sizeof one->shape);
		assert_memory_equal(tensor_bytes(x, one), tensor_bytes(y, other), (size_t)one->bytes);
		same++;
	}
	printf("%s: %d tensors of the file, %d of them not the text model's\n", from, same, (int)rh_source_others(was));
	rh_safetensors_close(x);
	rh_safetensors_close(y);
}

static void test_saved_models_are_what_was_loaded(void **state)
{
	(void)state;
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		struct rig rig;
		char dir[96];
		int tensors = 0;
		struct rh_source *is;
		snprintf(dir, sizeof dir, "%s/rh-written-XXXXXX", check_place("/tmp"));
		assert_non_null(mkdtemp(dir));
		rig_open(&rig, models[m], NULL);
		struct rig_input in = rig_input(&rig, "docs");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = in.micros};
		rig_start(&rig, RH_SESSION_TRAINS, &work);
		const struct rh_model *model = rig.session.model;
		check_ok(rh_weights_save(dir, rig.session.source, model, rig.session.store));
		check_ok(rh_source_open(dir, &is));
		for (int b = 0; b < model->blocks; b++)
			for (int t = 0; t < model->block[b].tensors; t++, tensors++)
				check_tensor(rig.session.source, is, &model->block[b].tensor[t]);
		check_others(rig.session.source, is, rig.model, dir);
		printf("%s: %d tensors equal\n", models[m], tensors);
		rh_source_close(is);
		rig_close(&rig);
		check_ok(rh_dir_remove(dir));
	}
}

/* A copy of a model's directory with one more layer of two tensors, which config.json counts, and one tensor that nothing names. */
static void write_predicted(const char *model, const char *dir, int64_t *tensors)
{
	char path[160];
	struct rh_safetensors *file;
	struct rh_safetensors_out *out;
	json_t *json;
	snprintf(path, sizeof path, "tests/reference/models/%s/model.safetensors", model);
	check_ok(rh_safetensors_open(path, &file));
	int64_t count = rh_safetensors_count(file), n = 0;
	struct rh_safetensors_entry *entry = calloc((size_t)count + 3, sizeof *entry);
	assert_non_null(entry);
	for (; n < count; n++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, n);
		entry[n] = (struct rh_safetensors_entry){.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
		memcpy(entry[n].shape, tensor->shape, sizeof tensor->shape);
	}
	entry[n++] = (struct rh_safetensors_entry){"model.layers.3.eh_proj.weight", RH_F32, 2, {2, 3}};
	entry[n++] = (struct rh_safetensors_entry){"model.layers.3.enorm.weight", RH_BF16, 1, {4}};
	entry[n++] = (struct rh_safetensors_entry){"model.layers.4.enorm.weight", RH_BF16, 1, {4}};
	snprintf(path, sizeof path, "%s/model.safetensors", dir);
	check_ok(rh_safetensors_create(path, entry, n, &out));
	for (int64_t i = 0; i < count; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, i);
		check_ok(rh_safetensors_write(out, tensor_bytes(file, tensor), tensor->bytes));
	}
	static const char more[24 + 8 + 8] = "forty bytes that no layer here reads";
	check_ok(rh_safetensors_write(out, more, sizeof more));
	check_ok(rh_safetensors_commit(out));
	rh_safetensors_close(file);
	free(entry);
	snprintf(path, sizeof path, "tests/reference/models/%s/config.json", model);
	assert_non_null(json = json_load_file(path, 0, NULL));
	assert_int_equal(json_object_set_new(json, "num_nextn_predict_layers", json_integer(1)), 0);
	snprintf(path, sizeof path, "%s/config.json", dir);
	assert_int_equal(json_dump_file(json, path, 0), 0);
	json_decref(json);
	*tensors = count + 2;
}

/* What predicts further tokens is written back as it is; what nothing names is not. */
static void test_layers_that_predict_further_tokens_are_kept(void **state)
{
	(void)state;
	struct rig rig;
	char from[96], to[96], path[128];
	struct rh_safetensors *was, *is;
	int64_t tensors;
	snprintf(from, sizeof from, "%s/rh-written-XXXXXX", check_place("/tmp"));
	snprintf(to, sizeof to, "%s/rh-written-XXXXXX", check_place("/tmp"));
	assert_true(mkdtemp(from) && mkdtemp(to));
	write_predicted("glm4-lite", from, &tensors);
	rig_open(&rig, "glm4-lite", NULL);
	snprintf(rig.model, sizeof rig.model, "%s", from);
	struct rig_input in = rig_input(&rig, "docs");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = in.micros};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	assert_int_equal(rh_source_others(rig.session.source), 2);
	check_ok(rh_weights_save(to, rig.session.source, rig.session.model, rig.session.store));
	snprintf(path, sizeof path, "%s/model.safetensors", from);
	check_ok(rh_safetensors_open(path, &was));
	snprintf(path, sizeof path, "%s/model.safetensors", to);
	check_ok(rh_safetensors_open(path, &is));
	assert_int_equal(rh_safetensors_count(is), tensors);
	for (int64_t i = 0; i < tensors; i++) {
		const struct rh_safetensor *one = rh_safetensors_at(is, i), *other = rh_safetensors_find(was, one->name);
		assert_true(other && one->dtype == other->dtype && one->rank == other->rank);
		assert_memory_equal(tensor_bytes(is, one), tensor_bytes(was, other), (size_t)one->bytes);
	}
	assert_null(rh_safetensors_find(is, "model.layers.4.enorm.weight"));
	rh_safetensors_close(was);
	rh_safetensors_close(is);
	rig_close(&rig);
	check_ok(rh_dir_remove(from));
	check_ok(rh_dir_remove(to));
}

/* So many vectors of a model: a bf16 run writes them in F32, to the bit, and all else in BF16. */
static void check_kept(const char *model, int expected)
{
	struct rig rig;
	char dir[96], path[128], before[128];
	struct rh_safetensors *file, *was;
	int kept = 0;
	snprintf(dir, sizeof dir, "%s/rh-written-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	rig_open(&rig, model, NULL);
	rig.config.dtype = RH_BF16;
	struct rig_input in = rig_input(&rig, "docs");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = in.micros};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	check_ok(rh_weights_save(dir, rig.session.source, rig.session.model, rig.session.store));
	snprintf(path, sizeof path, "%s/model.safetensors", dir);
	check_ok(rh_safetensors_open(path, &file));
	snprintf(before, sizeof before, "tests/reference/models/%s/model.safetensors", model);
	check_ok(rh_safetensors_open(before, &was));
	for (int64_t i = 0; i < rh_safetensors_count(file); i++) {
		const struct rh_safetensor *one = rh_safetensors_at(file, i), *other = rh_safetensors_find(was, one->name);
		int keeps = strstr(one->name, "A_log") || strstr(one->name, "linear_attn.norm") || strstr(one->name, "correction_bias");
		assert_non_null(other);
		assert_int_equal(one->dtype, keeps ? RH_F32 : RH_BF16);
		kept += keeps;
		if (keeps)
			assert_memory_equal(tensor_bytes(file, one), tensor_bytes(was, other), (size_t)one->bytes);
	}
	assert_int_equal(kept, expected);
	rh_safetensors_close(file);
	rh_safetensors_close(was);
	rig_close(&rig);
	check_ok(rh_dir_remove(dir));
}

/* Files of Qwen3.5 have A_log and the rule's norm in F32, those of GLM-4.7-Flash what its routers choose by. */
static void test_fp32_vectors_of_the_files_stay_fp32(void **state)
{
	(void)state;
	check_kept("qwen3.5", 4); /* two in each of two layers */
	check_kept("glm4-lite", 2);
}

/* What a device in bf16 holds of them adds up to them, to the bit. */
static void test_fp32_vectors_are_whole_in_bf16(void **state)
{
	(void)state;
	struct rig rig;
	int vectors = 0;
	rig_open(&rig, "glm4-lite", "adapter");
	rig.config.dtype = RH_BF16;
	struct rig_input in = rig_input(&rig, "docs");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = in.micros};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	const struct rh_model *model = rig.session.model;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &model->block[b].tensor[t];
			float part[RH_BF16_PARTS * 8], file[8];
			if (!tensor->parts)
				continue;
			assert_true(tensor->rows == RH_BF16_PARTS && tensor->cols == 8);
			check_ok(rh_store_get(rig.session.store, b, t, 0, RH_BF16_PARTS * 8, part));
			check_ok(rh_source_read(rig.session.source, tensor->name, 0, 8, RH_F32, file));
			for (int e = 0; e < 8; e++) {
				for (int p = 0; p < RH_BF16_PARTS; p++)
					assert_true(part[8 * p + e] == rh_bf16_to_f32(rh_f32_to_bf16(part[8 * p + e])));
				assert_true(part[e] != file[e] && part[e] + part[8 + e] + part[16 + e] == file[e]);
			}
			vectors++;
		}
	assert_int_equal(vectors, 2);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_saved_models_are_what_was_loaded), cmocka_unit_test(test_layers_that_predict_further_tokens_are_kept),
	        cmocka_unit_test(test_fp32_vectors_of_the_files_stay_fp32), cmocka_unit_test(test_fp32_vectors_are_whole_in_bf16)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
