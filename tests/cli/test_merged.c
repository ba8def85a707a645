/* What `merge` and `export` keep of the model where nothing asks for another: its type, and how it was trained to be asked. */
#include "cli/good.h"

#include "ckpt/gguf.h"
#include "core/json.h"

#define LLAMA "tests/reference/models/llama2"
#define QWEN  "tests/reference/models/gguf-qwen2"
#define LORA  "--lora_r 4 --lora_target_modules all-linear"
#define TALK(user, assistant)                                                                                                              \
	"{\"messages\": [{\"role\": \"user\", \"content\": \"" user "\"}, {\"role\": \"assistant\", \"content\": \"" assistant "\"}]}\n"

static const char turns[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
                            "{% if add_generation_prompt %}assistant: {% endif %}";

/* What it says that it wrote, by the line and by --json; @ stands for the scratch directory. */
static void check_type(const struct scratch *scratch, const char *line, const char *type)
{
	char full[1024];
	json_t *said;
	fill_in(scratch, line, full, sizeof full);
	struct ran ran = run_line(scratch, "%s --json", full);
	if (ran.status)
		fail_msg("%s: %s", line, ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &said));
	if (strcmp(json_string_value(json_object_get(said, "type")), type) || !strstr(ran.err, path_of("matrices in %s", type)) ||
	    !strstr(ran.err, "outtype says otherwise"))
		fail_msg("%s: not %s: %s%s", line, type, ran.out, ran.err);
	json_decref(said);
	run_free(&ran);
}

static void test_unset_the_type_is_the_models_own(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	const char *dir = scratch.dir;
	check_type(&scratch, "merge --model_name_or_path " LLAMA " --adapter_name_or_path " LLAMA "/adapter --output_dir @/32", "F32");
	run_ok(&scratch, "export --model_name_or_path " QWEN "/model.gguf --outfile %s/32.gguf --outtype f32", dir);
	check_type(&scratch, "export --model_name_or_path @/32.gguf --outfile @/32a.gguf", "F32");
	run_ok(&scratch, "export --model_name_or_path " LLAMA " --output_dir %s/16 --outtype f16", dir);
	check_type(&scratch, "merge --model_name_or_path @/16 --adapter_name_or_path " LLAMA "/adapter --output_dir @/16a", "F16");
	run_ok(&scratch, "export --model_name_or_path " LLAMA " --output_dir %s/b16 --outtype bf16", dir);
	check_type(&scratch, "merge --model_name_or_path @/b16 --adapter_name_or_path " LLAMA "/adapter --output_dir @/b16a", "BF16");
	run_ok(&scratch, "export --model_name_or_path " QWEN "/model.gguf --outfile %s/16.gguf --outtype f16", dir);
	check_type(&scratch, "merge --model_name_or_path @/16.gguf --adapter_name_or_path " QWEN "/adapter --outfile @/16a.gguf", "F16");
	run_ok(&scratch, "export --model_name_or_path " QWEN "/model.gguf --outfile %s/8.gguf --outtype q8_0", dir);
	check_type(&scratch, "merge --model_name_or_path @/8.gguf --adapter_name_or_path " QWEN "/adapter --outfile @/8a.gguf", "BF16");
	scratch_close(&scratch);
}

/* What `generate` says to "hi"; *asked: through the training's template. */
static char *say(const struct scratch *scratch, const char *words, int *asked)
{
	char full[1024];
	fill_in(scratch, words, full, sizeof full);
	struct ran ran = run_line(scratch, "generate --max_new_tokens 6 --prompt hi --model_name_or_path %s", full);
	if (ran.status)
		fail_msg("%s: %s", full, ran.err);
	*asked = strstr(ran.err, "as in training") != NULL;
	char *said = strdup(ran.out);
	run_free(&ran);
	return said;
}

static void check_said(const struct scratch *scratch, const char *words, const char *expected)
{
	int asked;
	char *said = say(scratch, words, &asked);
	if (strcmp(said, expected) || !asked)
		fail_msg("%s: %s, %s", words, asked ? "asked as in training" : "asked as it stands", said);
	free(said);
}

static void test_a_merged_gguf_is_asked_as_it_was_trained(void **state)
{
	(void)state;
	struct scratch scratch;
	int asked;
	make_good(&scratch);
	const char *dir = scratch.dir;
	write_text(path_of("%s/talk.jsonl", dir), TALK("hi", "good day") TALK("who", "a cat") TALK("one", "two") TALK("red", "blue"));
	write_text(path_of("%s/turns.jinja", dir), turns);
	run_ok(&scratch, "train %s/run.yaml --train_file %s/talk.jsonl --chat_template %s/turns.jinja " LORA, dir, dir, dir);
	char *said = say(&scratch, "@/hf --adapter_name_or_path @/out", &asked);
	assert_true(asked);
	run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --outfile %s/merged.gguf --outtype f32", dir, dir,
	       dir);
	check_said(&scratch, "@/merged.gguf", said);
	/* in another file of it too, and a directory */
	run_ok(&scratch, "export --model_name_or_path %s/merged.gguf --outfile %s/again.gguf --outtype f32", dir, dir);
	check_said(&scratch, "@/again.gguf", said);
	run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --output_dir %s/merged --outtype f32", dir, dir,
	       dir);
	run_ok(&scratch, "export --model_name_or_path %s/merged --outfile %s/third.gguf --outtype f32", dir, dir);
	check_said(&scratch, "@/third.gguf", said);
	free(said);
	/* the last training counts */
	run_ok(&scratch,
	       "train --model_name_or_path %s/merged.gguf --train_file %s/rows.jsonl --output_dir %s/plain --max_length 64 --max_steps 1 "
	       "--allow duplicates,overlap " LORA,
	       dir, dir, dir);
	run_ok(&scratch, "merge --model_name_or_path %s/merged.gguf --adapter_name_or_path %s/plain --outfile %s/plain.gguf", dir, dir,
	       dir);
	free(say(&scratch, "@/plain.gguf", &asked));
	assert_false(asked);
	scratch_close(&scratch);
}

/* Rows of 32 values are too short for K blocks: llama.cpp takes Q5_0, Q5_1 and Q8_0 for them. Types of many models, and blocks:
 * ckpt/test_k_quants. */
static void test_a_mixture_gives_each_tensor_its_type(void **state)
{
	(void)state;
	static const struct {
		const char *word, *told, *type[5];
		int64_t number;
	} files[] = {{"q4_k_m", "Q4_K_M", {"Q8_0", "Q5_0", "Q5_0", "Q8_0", "F32"}, 15},
	             {"q5_k_m", "Q5_K_M", {"Q8_0", "Q5_1", "Q5_1", "Q8_0", "F32"}, 17},
	             {"q6_k", "Q6_K", {"Q8_0", "Q8_0", "Q8_0", "Q8_0", "F32"}, 18}};
	static const char *const names[] = {"token_embd.weight", "blk.0.attn_v.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down.weight",
	                                    "blk.0.attn_norm.weight"};
	static const char model[] = "--model_name_or_path " QWEN "/model.gguf --adapter_name_or_path " QWEN "/adapter";
	struct scratch scratch;
	scratch_open(&scratch);
	for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
		struct ran ran = run_line(&scratch, "merge %s --outfile %s/k.gguf --outtype %s", model, scratch.dir, files[f].word);
		struct rh_gguf *gguf;
		int64_t number;
		if (ran.status || !strstr(ran.err, files[f].told))
			fail_msg("%s: %s", files[f].word, ran.err);
		run_free(&ran);
		check_ok(rh_gguf_open(path_of("%s/k.gguf", scratch.dir), &gguf));
		assert_int_equal(rh_gguf_int(gguf, "general.file_type", &number), 1);
		assert_int_equal(number, files[f].number);
		for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
			const struct rh_gguf_tensor *tensor = rh_gguf_find(gguf, names[n]);
			assert_non_null(tensor);
			assert_string_equal(rh_dtype_name(tensor->dtype), files[f].type[n]);
		}
		rh_gguf_close(gguf);
		run_ok(&scratch, "generate --model_name_or_path %s/k.gguf --prompt hi --max_new_tokens 2", scratch.dir);
	}
	struct ran ran = run_line(&scratch, "export %s --outfile %s/a.gguf --outtype q4_k_m", model, scratch.dir);
	check_failed(&ran, "outtype: Q4_K_M is a mixture of types for a whole model");
	run_free(&ran);
	ran = run_line(&scratch, "merge %s --output_dir %s/dir --outtype q5_k_m", model, scratch.dir);
	check_failed(&ran, "outtype: Q5_K_M is for GGUF files");
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_unset_the_type_is_the_models_own),
	        cmocka_unit_test(test_a_mixture_gives_each_tensor_its_type),
	        cmocka_unit_test(test_a_merged_gguf_is_asked_as_it_was_trained),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
