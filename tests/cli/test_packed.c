/* Packed bases at the command line: an adapter trained on one evaluates there as it does merged into plain weights; `generate`, `chat` and
 * `export` take the base; what is spoilt is refused and nothing written. The models are tests/reference/packed's, with a tokenizer of their
 * forty tokens. */
#include "cli/good.h"

#include "ckpt/safetensors.h"
#include "core/json.h"

#include <math.h>

#define PACKED "tests/reference/packed/"
#define LORA   "--lora_r 4 --lora_target_modules all-linear"

/* Bytes as GPT-2 shows them: a space, a line break, letters and others; three special tokens first. */
static void write_tokenizer(const char *dir)
{
	static const char symbols[] = "abcdefghijklmnopqrstuvwxyz:<>-01234";
	char text[4096];
	int used =
	        snprintf(text, sizeof text,
	                 "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 0, \"content\": \"<pad>\", \"single_word\": false, "
	                 "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true},"
	                 " {\"id\": 1, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": "
	                 "false, \"special\": true}, {\"id\": 2, \"content\": \"</s>\", \"single_word\": false, \"lstrip\": false, "
	                 "\"rstrip\": false, \"normalized\": false, \"special\": true}],"
	                 " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true,"
	                 " \"use_regex\": true}, \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\":"
	                 " true, \"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"<pad>\": 0, \"<s>\": 1,"
	                 " \"</s>\": 2, \"\\u0120\": 3, \"\\u010a\": 4");
	for (int i = 0; symbols[i]; i++)
		used += snprintf(text + used, sizeof text - (size_t)used, ", \"%c\": %d", symbols[i], 5 + i);
	snprintf(text + used, sizeof text - (size_t)used, "}}}");
	write_text(path_of("%s/tokenizer.json", dir), text);
	write_text(path_of("%s/tokenizer_config.json", dir),
	           "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
}

/* A packed model as dir/base, and rows. */
static void make_packed(struct scratch *scratch, const char *model)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_dir(path_of(PACKED "%s", model), path_of("%s/base", dir));
	write_tokenizer(path_of("%s/base", dir));
	write_text(path_of("%s/rows.jsonl", dir), ROWS);
}

static double eval_loss(const struct scratch *scratch, const char *words)
{
	char full[1024];
	json_t *json;
	fill_in(scratch, words, full, sizeof full);
	struct ran ran =
	        run_line(scratch, "eval --validation_file %s/rows.jsonl --max_length 64 --dtype float32 --json %s", scratch->dir, full);
	if (ran.status)
		fail_msg("%s: %s", full, ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &json));
	double loss = json_number_value(json_object_get(json, "eval_loss"));
	json_decref(json);
	run_free(&ran);
	assert_true(loss > 0);
	return loss;
}

static char *said(const struct scratch *scratch, const char *words)
{
	char full[1024];
	fill_in(scratch, words, full, sizeof full);
	struct ran ran = run_line(scratch, "%s", full);
	if (ran.status)
		fail_msg("%s: %s", full, ran.err);
	free(ran.err);
	return ran.out;
}

static void check_loss(const char *model, const char *what, double loss, double right, double tolerance)
{
	printf("%s, %s: %.8f beside %.8f\n", model, what, loss, right);
	assert_true(fabs(loss / right - 1) <= tolerance);
}

/* Merged and exported in F32 the losses are the base's; in Q8_0 near them. */
static void check_verbs(const char *model)
{
	struct scratch scratch;
	make_packed(&scratch, model);
	const char *dir = scratch.dir;
	run_ok(&scratch,
	       "train --model_name_or_path %s/base --train_file %s/rows.jsonl --output_dir %s/out --max_length 64 --max_steps 3 "
	       "--learning_rate 0.05 --dtype float32 --allow duplicates,overlap " LORA,
	       dir, dir, dir);
	double plain = eval_loss(&scratch, "--model_name_or_path @/base");
	double adapted = eval_loss(&scratch, "--model_name_or_path @/base --adapter_name_or_path @/out");
	assert_true(adapted < plain);
	run_ok(&scratch, "export --model_name_or_path %s/base --output_dir %s/plain --outtype f32", dir, dir);
	check_loss(model, "exported", eval_loss(&scratch, "--model_name_or_path @/plain"), plain, 1e-6);
	assert_false(find_or_not(path_of("%s/plain/config.json", dir), "quantization_config"));
	run_ok(&scratch, "merge --model_name_or_path %s/base --adapter_name_or_path %s/out --output_dir %s/merged --outtype f32", dir, dir,
	       dir);
	check_loss(model, "merged", eval_loss(&scratch, "--model_name_or_path @/merged"), adapted, 1e-5);
	run_ok(&scratch, "merge --model_name_or_path %s/base --adapter_name_or_path %s/out --outfile %s/merged.gguf --outtype q8_0", dir,
	       dir, dir);
	check_loss(model, "merged, q8_0", eval_loss(&scratch, "--model_name_or_path @/merged.gguf"), adapted, 2e-2);
	char *one = said(
	             &scratch,
	             "generate --prompt the --max_new_tokens 6 --dtype float32 --model_name_or_path @/base --adapter_name_or_path @/out"),
	     *two = said(&scratch, "generate --prompt the --max_new_tokens 6 --dtype float32 --model_name_or_path @/merged");
	assert_string_equal(one, two);
	free(one);
	free(two);
	scratch_close(&scratch);
}

static void test_verbs_take_packed_bases(void **state)
{
	(void)state;
	static const char *const models[] = {"bnb-nf4-nested",   "bnb-fp4",       "bnb-int8", "fp8-blocks", "fp8",
	                                     "nvfp4-compressed", "nvfp4-modelopt"};
	for (size_t i = 0; i < sizeof models / sizeof *models; i++)
		check_verbs(models[i]);
}

/* ---- made packed here ---- */

/* On a base that is made packed, an adapter says so: beside the plain one a line warns. Merged it is added to the files' own weights. */
static void test_an_adapter_tells_a_base_made_packed_from_a_plain_one(void **state)
{
	(void)state;
	struct scratch scratch;
	const char *other = "was trained on other weights";
	make_packed(&scratch, "fp8");
	const char *dir = scratch.dir;
	run_ok(&scratch, "export --model_name_or_path %s/base --output_dir %s/plain --outtype f32", dir, dir);
	run_ok(&scratch,
	       "train --model_name_or_path %s/plain --train_file %s/rows.jsonl --output_dir %s/out --max_length 64 --max_steps 3 "
	       "--learning_rate 0.05 --dtype float32 --load_in_4bit true --allow duplicates,overlap " LORA,
	       dir, dir, dir);
	static const char *const keys[] = {"--load_in_4bit true", "", "--load_in_8bit true"};
	for (int i = 0; i < 3; i++) {
		struct ran ran = run_line(&scratch,
		                          "eval --model_name_or_path %s/plain --adapter_name_or_path %s/out --validation_file "
		                          "%s/rows.jsonl --max_length 64 --dtype float32 %s",
		                          dir, dir, dir, keys[i]);
		assert_int_equal(ran.status, 0);
		if ((strstr(ran.err, other) != NULL) != (i > 0))
			fail_msg("%s: %s", keys[i], ran.err);
		run_free(&ran);
	}
	run_ok(&scratch, "merge --model_name_or_path %s/plain --adapter_name_or_path %s/out --output_dir %s/merged", dir, dir, dir);
	refused(&scratch, "merge --model_name_or_path @/plain --adapter_name_or_path @/out --output_dir @/again --load_in_4bit true",
	        "load_in_4bit");
	scratch_close(&scratch);
}

/* ---- chat ---- */

static const char *typed;

static void give_input(void)
{
	int input = open(typed, O_RDONLY);
	if (input < 0 || dup2(input, 0) < 0)
		_exit(126);
}

static void test_chat_answers_on_a_packed_base(void **state)
{
	(void)state;
	struct scratch scratch;
	make_packed(&scratch, "nvfp4-compressed");
	const char *dir = scratch.dir;
	write_text(
	        path_of("%s/turns.jinja", dir),
	        "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
	write_text(path_of("%s/typed", dir), "the cat\n");
	typed = path_of("%s/typed", dir);
	run_prepare = give_input;
	struct ran ran = run_line(
	        &scratch, "chat --model_name_or_path %s/base --chat_template %s/turns.jinja --max_new_tokens 4 --dtype float32", dir, dir);
	run_prepare = NULL;
	if (ran.status)
		fail_msg("%s", ran.err);
	assert_true(strlen(ran.out) > 0);
	run_free(&ran);
	scratch_close(&scratch);
}

/* ---- spoilt ---- */

#define TRAIN "train --model_name_or_path @/base --train_file @/rows.jsonl --output_dir @/out --max_length 64 " LORA

/* The place of a tensor's bytes in a file. */
static long place_of(const char *path, const char *name)
{
	struct rh_safetensors *file;
	check_ok(rh_safetensors_open(path, &file));
	const struct rh_safetensor *tensor = rh_safetensors_find(file, name);
	assert_non_null(tensor);
	long place = (long)tensor->offset;
	rh_safetensors_close(file);
	return place;
}

static void put_bytes(const char *path, long at, const void *bytes, size_t count)
{
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	assert_int_equal(fseek(file, at, SEEK_SET), 0);
	assert_int_equal(fwrite(bytes, 1, count, file), count);
	assert_int_equal(fclose(file), 0);
}

static void test_a_scale_that_is_no_number_is_refused(void **state)
{
	(void)state;
	static const uint8_t nan[4] = {0, 0, 0xc0, 0x7f}, byte[2] = {0xff, 0x7f};
	static const struct {
		const char *model, *beside;
		const void *bytes;
		size_t count;
	} cases[] = {{"bnb-nf4", "weight.absmax", nan, 4},
	             {"bnb-nf4-nested", "weight.nested_absmax", nan, 4},
	             {"bnb-fp4", "weight.absmax", nan, 4},
	             {"bnb-int8", "SCB", nan, 4},
	             {"fp8-blocks", "weight_scale_inv", nan, 4},
	             {"fp8", "weight_scale_inv", nan, 4},
	             {"fp8-blocks-e8m0", "weight_scale_inv", byte, 1},
	             {"nvfp4-compressed", "weight_scale", byte + 1, 1},
	             {"nvfp4-modelopt", "weight_scale", byte + 1, 1}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct scratch scratch;
		make_packed(&scratch, cases[i].model);
		const char *path = path_of("%s/base/model.safetensors", scratch.dir);
		put_bytes(path, place_of(path, path_of("model.layers.0.mlp.up_proj.%s", cases[i].beside)), cases[i].bytes, cases[i].count);
		refused(&scratch, TRAIN, "model.layers.0.mlp.up_proj.weight holds nan at row 0, column 0");
		scratch_close(&scratch);
	}
}

/* Without its code book, its scales or what a scale is made of. */
static void test_a_matrix_without_what_it_needs_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *model, *name;
	} cases[] = {{"bnb-nf4", "weight.quant_map"},
	             {"bnb-nf4", "weight.absmax"},
	             {"bnb-nf4-nested", "weight.nested_quant_map"},
	             {"fp8-blocks", "weight_scale_inv"},
	             {"nvfp4-compressed", "weight_scale"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct scratch scratch;
		char name[128], other[128];
		make_packed(&scratch, cases[i].model);
		snprintf(name, sizeof name, "\"model.layers.0.mlp.up_proj.%s\"", cases[i].name);
		snprintf(other, sizeof other, "%s", name);
		other[strlen(other) - 2] = 'X';
		edit_file(path_of("%s/base/model.safetensors", scratch.dir), name, other);
		refused(&scratch, TRAIN, "up_proj.weight' is |, without which its numbers mean nothing, is missing");
		scratch_close(&scratch);
	}
}

/* A GGUF file whose last block is cut off, and a type that there is none of. */
static void test_a_spoilt_gguf_is_refused(void **state)
{
	(void)state;
	static const char line[] = "train --model_name_or_path @/model.gguf --train_file @/rows.jsonl --output_dir @/out " LORA;
	static const uint8_t type[4] = {99, 0, 0, 0};
	struct scratch scratch;
	for (int i = 0; i < 2; i++) {
		make_good(&scratch);
		const char *path = path_of("%s/model.gguf", scratch.dir), name[] = "blk.1.attn_v.weight";
		size_t length;
		char *bytes = read_bytes(path, &length);
		if (i)
			put_bytes(path, (long)(find_in(path, name) + sizeof name - 1 + 4 + 16), type, sizeof type);
		else
			write_bytes(path, bytes, length - 20);
		free(bytes);
		refused(&scratch, line, i ? "tensor 'blk.1.attn_v.weight' has the unknown type 99" : "truncated");
		scratch_close(&scratch);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_verbs_take_packed_bases),
	                                   cmocka_unit_test(test_an_adapter_tells_a_base_made_packed_from_a_plain_one),
	                                   cmocka_unit_test(test_chat_answers_on_a_packed_base),
	                                   cmocka_unit_test(test_a_scale_that_is_no_number_is_refused),
	                                   cmocka_unit_test(test_a_matrix_without_what_it_needs_is_refused),
	                                   cmocka_unit_test(test_a_spoilt_gguf_is_refused)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
