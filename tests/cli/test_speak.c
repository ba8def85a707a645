/* Prompts and conversations as a person gives them: from the command line, a file, a pipe; with a model, an adapter, or what was merged of
 * them. And rows that would teach a conversation wrongly, which stop a run. */
#include "ckpt/gguf.h"
#include "cli/good.h"
#include "core/alloc.h"
#include "model/config.h"
#include "token/tokenizer.h"

#define TALK(user, assistant)                                                                                                              \
	"{\"messages\": [{\"role\": \"user\", \"content\": \"" user "\"}, {\"role\": \"assistant\", \"content\": \"" assistant "\"}]}\n"
#define LORA "--lora_r 4 --lora_target_modules all-linear"
static const char turns[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
                            "{% if add_generation_prompt %}assistant: {% endif %}";
static const char *typed; /* what a started program finds at its standard input */

static void give_input(void)
{
	int input = open(typed, O_RDONLY);
	if (input < 0 || dup2(input, 0) < 0)
		_exit(126);
}

static struct ran run_typed(const struct scratch *scratch, const char *input, const char *line)
{
	char full[2048], path[256];
	struct ran ran;
	snprintf(path, sizeof path, "%s/typed", scratch->dir);
	write_text(path, input);
	fill_in(scratch, line, full, sizeof full);
	typed = path;
	run_prepare = give_input;
	run_start(scratch, full, 0, &ran);
	run_wait(&ran);
	run_prepare = NULL;
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	return ran;
}

static void make_talk(struct scratch *scratch)
{
	make_good(scratch);
	write_text(path_of("%s/talk.jsonl", scratch->dir),
	           TALK("hi", "good day") TALK("who", "a cat") TALK("one", "two") TALK("red", "blue"));
	write_text(path_of("%s/turns.jinja", scratch->dir), turns);
}

static void expect_same(const struct scratch *scratch, const char *input, const char *line, const char *expected)
{
	struct ran ran = run_typed(scratch, input, line);
	assert_non_null(strstr(ran.err, "as in training"));
	assert_string_equal(ran.out, expected);
	run_free(&ran);
}

static void test_prompts_from_line_file_and_pipe_are_one(void **state)
{
	(void)state;
	struct scratch scratch;
	make_talk(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, "train %s/run.yaml --train_file %s/talk.jsonl --chat_template %s/turns.jinja " LORA, dir, dir, dir);
	struct ran ran =
	        run_typed(&scratch, "", "generate --model_name_or_path @/hf --adapter_name_or_path @/out --max_new_tokens 6 --prompt hi");
	assert_true(strlen(ran.out) > 1);
	write_text(path_of("%s/prompt.txt", dir), "hi\n");
	expect_same(&scratch, "hi\n", "generate --model_name_or_path @/hf --adapter_name_or_path @/out --max_new_tokens 6 --prompt_file -",
	            ran.out);
	expect_same(&scratch, "",
	            "generate --model_name_or_path @/hf --adapter_name_or_path @/out --max_new_tokens 6 --prompt_file @/prompt.txt",
	            ran.out);
	assert_int_equal(symlink("/dev/stdin", path_of("%s/pipe", dir)), 0); /* as the shell's <(...) */
	expect_same(&scratch, "hi\n",
	            "generate --model_name_or_path @/hf --adapter_name_or_path @/out --max_new_tokens 6 --prompt_file @/pipe", ran.out);
	check_ok(rh_file_remove(path_of("%s/pipe", dir)));
	/* no mistyped name costs a file */
	refused(&scratch, "merge --model_name_or_path @/hf --adapter_name_or_path @/out --outfile @/talk.jsonl",
	        "talk.jsonl is there and is no GGUF file that Roundhouse wrote; name another file");
	refused(&scratch, "export --model_name_or_path @/hf --adapter_name_or_path @/out --outfile @/talk.jsonl", "is no GGUF file");
	refused(&scratch, "inspect --model_name_or_path @/hf --train_file @/talk.jsonl --chat_template @/turns.jinja --html @/talk.jsonl",
	        "html: ");
	/* merged, the training's template goes along */
	run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --output_dir %s/merged --outtype f32", dir, dir,
	       dir);
	json_t *told[2];
	for (int i = 0; i < 2; i++)
		check_ok(rh_json_load(path_of("%s/%s/roundhouse.json", dir, i ? "merged" : "out"), &told[i]));
	check_ok(json_object_del(told[0], "base_weights")); /* of an adapter alone */
	assert_true(json_equal(told[0], told[1]));
	json_decref(told[0]);
	json_decref(told[1]);
	expect_same(&scratch, "hi\n", "generate --model_name_or_path @/merged --max_new_tokens 6 --prompt_file -", ran.out);
	/* so does the scaling that it was trained with */
	write_text(path_of("%s/far.yaml", dir), "rope_scaling: {rope_type: yarn, factor: 4}\n");
	run_ok(&scratch, "merge %s/far.yaml --model_name_or_path %s/hf --adapter_name_or_path %s/out --output_dir %s/far", dir, dir, dir,
	       dir);
	struct rh_model_config far;
	check_ok(rh_model_config_load(path_of("%s/far", dir), &far));
	assert_int_equal(far.rope[0].type, RH_ROPE_YARN);
	rh_model_config_free(&far);
	/* and with it, longer texts */
	refused(&scratch, "generate --model_name_or_path @/hf --prompt hi --max_new_tokens 140",
	        "128 positions that the model knows; lower it");
	char *lengthy = calloc(1, 1025);
	memset(lengthy, 'z', 1024);
	write_text(path_of("%s/lengthy.txt", dir), lengthy);
	free(lengthy);
	refused(&scratch, "generate --model_name_or_path @/hf --prompt_file @/lengthy.txt --max_new_tokens 1",
	        "128 positions that the model knows; shorten it");
	refused(&scratch, "chat --model_name_or_path @/hf --chat_template none", "leave the key out, or use generate");
	run_ok(&scratch, "generate %s/far.yaml --model_name_or_path %s/hf --prompt hi --max_new_tokens 140", dir, dir);
	run_ok(&scratch, "generate --model_name_or_path %s/far --prompt hi --max_new_tokens 140", dir);
	write_text(
	        path_of("%s/far.yaml", dir),
	        path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\noutput_dir: %s/trained_far\nmax_length: 200\nmax_steps: 1\n"
	                "allow: [duplicates, overlap]\nrope_scaling: {rope_type: yarn, factor: 4}\n",
	                dir, dir, dir));
	run_ok(&scratch, "train %s/far.yaml " LORA, dir);
	/* a conversation: its first answer is the same, line breaks and empty lines are no turns */
	char *text = strdup(ran.out);
	run_free(&ran);
	ran = run_typed(&scratch, "\nhi\r\n\nwho", "chat --model_name_or_path @/hf --adapter_name_or_path @/out --max_new_tokens 6");
	assert_non_null(strstr(ran.err, "as in training"));
	assert_int_equal(strncmp(ran.out, text, strlen(text)), 0);
	assert_true(strlen(ran.out) > strlen(text) + 1);
	assert_null(strstr(ran.out, "> ")); /* no terminal, no prompt of its own */
	run_free(&ran);
	free(text);
	refused(&scratch, "generate --model_name_or_path @/hf --prompt hi --prompt_file -", "contradicts prompt");
	refused(&scratch, "generate --model_name_or_path @/hf --prompt_file @/no.txt", "no.txt");
	refused(&scratch, "generate --model_name_or_path @/hf", "needs prompt or prompt_file");
	refused(&scratch, "chat", "needs model_name_or_path");
	refused(&scratch, "merge --model_name_or_path @/hf --output_dir @/new", "needs adapter_name_or_path");
	/* neither into the run's own directory, where an adapter or trained weights lie */
	run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --output_dir %s/merged", dir, dir, dir);
	refused(&scratch, "merge --model_name_or_path @/hf --adapter_name_or_path @/out --output_dir @/trained_far",
	        "trained_far holds what a run wrote");
	refused(&scratch, "export --model_name_or_path @/hf --output_dir @/out", "out holds what a run wrote (adapter_config.json)");
	refused(&scratch, "export --model_name_or_path @/hf --adapter_name_or_path @/out --output_dir @/new", "outfile: an adapter");
	run_ok(&scratch, "export --model_name_or_path %s/hf --adapter_name_or_path %s/out --outfile %s/lora.gguf", dir, dir, dir);
	scratch_close(&scratch);
}

/* The ids of what the model says to "hi". */
static json_t *say(const struct scratch *scratch, const char *more)
{
	char line[512];
	snprintf(line, sizeof line, "generate --model_name_or_path @/hf --prompt hi --max_new_tokens 8 --json %s", more);
	struct ran ran = run_typed(scratch, "", line);
	json_t *said = json_loads(ran.out, 0, NULL), *ids = json_incref(json_object_get(said, "ids"));
	assert_true(json_is_array(ids));
	json_decref(said);
	run_free(&ran);
	return ids;
}

/* The text ends with the first token that is `end`. */
static void expect_end(const struct scratch *scratch, const json_t *whole, int64_t end, const char *more)
{
	size_t count = 0;
	while (json_integer_value(json_array_get(whole, count++)) != end)
		assert_true(count < json_array_size(whole));
	json_t *ids = say(scratch, more);
	if (json_array_size(ids) != count)
		fail_msg("%zu tokens, expected %zu: %s", json_array_size(ids), count, more);
	json_decref(ids);
}

static void test_generation_ends_at_each_token_that_is_named_an_end(void **state)
{
	(void)state;
	struct scratch scratch;
	make_talk(&scratch);
	json_t *whole = say(&scratch, "");
	assert_int_equal(json_array_size(whole), 8);
	int64_t end = json_integer_value(json_array_get(whole, 3));
	struct rh_tokenizer *tokenizer;
	char key[128], config[128];
	check_ok(rh_tokenizer_load(path_of("%s/hf", scratch.dir), &tokenizer));
	snprintf(key, sizeof key, "--eos_token %s", rh_tokenizer_text(tokenizer, (int32_t)end));
	rh_tokenizer_destroy(tokenizer);
	expect_end(&scratch, whole, end, key);
	refused(&scratch, "generate --model_name_or_path @/hf --prompt hi --max_new_tokens 8 --eos_token <|none|>",
	        "eos_token: '<|none|>' is no token");
	static const char *const forms[] = {"{\"eos_token_id\": %lld}", "{\"eos_token_id\": [96, %lld]}"};
	for (int i = 0; i < 2; i++) {
		snprintf(config, sizeof config, forms[i], (long long)end);
		write_text(path_of("%s/hf/generation_config.json", scratch.dir), config);
		expect_end(&scratch, whole, end, "");
	}
	json_decref(whole);
	scratch_close(&scratch);
}

/* A directory whose tokenizer ends texts with <|endoftext|>, at which generation stops, and at the base's <|im_end|>. */
static void expect_own_eos(const char *dir)
{
	enum { ENDOFTEXT = 286, IM_END };
	json_t *tokenizer, *generation;
	char path[512];
	snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
	check_ok(rh_json_load(path, &tokenizer));
	assert_string_equal(json_string_value(json_object_get(tokenizer, "eos_token")), "<|endoftext|>");
	snprintf(path, sizeof path, "%s/generation_config.json", dir);
	check_ok(rh_json_load(path, &generation));
	json_t *ends = json_object_get(generation, "eos_token_id");
	assert_int_equal(json_array_size(ends), 2);
	assert_int_equal(json_integer_value(json_array_get(ends, 0)), ENDOFTEXT);
	assert_int_equal(json_integer_value(json_array_get(ends, 1)), IM_END);
	json_decref(tokenizer);
	json_decref(generation);
}

static void expect_own_eos_in_gguf(const char *path)
{
	struct rh_gguf *file;
	int64_t eos;
	check_ok(rh_gguf_open(path, &file));
	assert_int_equal(rh_gguf_int(file, "tokenizer.ggml.eos_token_id", &eos), 1);
	assert_int_equal(eos, 286);
	rh_gguf_close(file);
}

static void test_a_runs_own_end_of_sequence_goes_along(void **state)
{
	(void)state;
	struct scratch scratch;
	make_talk(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, "train %s/run.yaml " LORA, dir);
	assert_false(rh_file_exists(path_of("%s/out/generation_config.json", dir))); /* nothing new to say */
	check_ok(rh_dir_remove(path_of("%s/out", dir)));
	write_text(path_of("%s/hf/generation_config.json", dir), "{\"eos_token_id\": 287, \"top_k\": 3}");
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/full --eos_token <|endoftext|>", dir, dir);
	expect_own_eos(path_of("%s/full", dir));
	assert_true(find_or_not(path_of("%s/full/generation_config.json", dir), "\"top_k\": 3"));
	check_ok(rh_file_remove(path_of("%s/hf/generation_config.json", dir)));
	run_ok(&scratch, "train %s/run.yaml --eos_token <|endoftext|> " LORA, dir);
	expect_own_eos(path_of("%s/out", dir));
	run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --output_dir %s/merged", dir, dir, dir);
	expect_own_eos(path_of("%s/merged", dir));
	run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --outfile %s/merged.gguf", dir, dir, dir);
	expect_own_eos_in_gguf(path_of("%s/merged.gguf", dir));
	run_ok(&scratch, "export --model_name_or_path %s/hf --outfile %s/base.gguf", dir, dir);
	run_ok(&scratch, "merge --model_name_or_path %s/base.gguf --adapter_name_or_path %s/out --outfile %s/again.gguf", dir, dir, dir);
	expect_own_eos_in_gguf(path_of("%s/again.gguf", dir));
	/* rows of a run that goes on from the adapter end as its own did */
	struct ran ran = run_line(&scratch, "inspect --model_name_or_path %s/hf --adapter_name_or_path %s/out --train_file %s/rows.jsonl",
	                          dir, dir, dir);
	assert_int_equal(ran.status, 0);
	assert_true(strstr(ran.out, "<|endoftext|>") && !strstr(ran.out, "<|im_end|>"));
	run_free(&ran);
	/* conversations that end with another token than the model's: said, unless it is the run's own */
	write_text(path_of("%s/turns.jinja", dir), "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>\n{% endfor %}");
	for (int is_own = 0; is_own < 2; is_own++) {
		ran = run_line(&scratch,
		               "train %s/run.yaml --train_file %s/talk.jsonl --chat_template %s/turns.jinja --output_dir %s/said%d%s", dir,
		               dir, dir, dir, is_own, is_own ? " --eos_token <|endoftext|>" : "");
		assert_int_equal(ran.status, 0);
		assert_int_equal(strstr(ran.err, "answers end with <|endoftext|>, which is none") != NULL, !is_own);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* Rows with a template that `name` is a fault of: inspect tells it, train stops, --allow goes on. */
static void expect_lint(struct scratch *scratch, const char *template, const char *rows, const char *name)
{
	const char *dir = scratch->dir;
	write_text(path_of("%s/faulty.jinja", dir), template);
	write_text(path_of("%s/faulty.jsonl", dir), rows);
	struct ran ran = run_line(
	        scratch, "inspect --model_name_or_path %s/hf --train_file %s/faulty.jsonl --chat_template %s/faulty.jinja", dir, dir, dir);
	assert_int_equal(ran.status, 1);
	if (!strstr(ran.err, path_of("%s: 2 of 2 ", name)) || !strstr(ran.err, "(lines 1, 2)"))
		fail_msg("%s", ran.err);
	run_free(&ran);
	ran = run_line(scratch, "train %s/run.yaml --train_file %s/faulty.jsonl --chat_template %s/faulty.jinja --allow none", dir, dir,
	               dir);
	assert_int_equal(ran.status, 1);
	if (!strstr(ran.err, path_of("more than 1 row in 100: %s: ", name)))
		fail_msg("%s", ran.err);
	assert_false(rh_dir_exists(path_of("%s/out", dir)));
	run_free(&ran);
	run_ok(scratch, "train %s/run.yaml --train_file %s/faulty.jsonl --chat_template %s/faulty.jinja --allow %s", dir, dir, dir, name);
	check_ok(rh_dir_remove(path_of("%s/out", dir)));
}

static void test_answers_without_an_end_and_dropped_messages_stop(void **state)
{
	(void)state;
	struct scratch scratch;
	make_talk(&scratch);
	expect_lint(&scratch, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
	            TALK("hi", "good day") TALK("who", "a cat"), "no-end-of-turn");
	expect_lint(&scratch, "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}",
	            "{\"messages\": [{\"role\": \"system\", \"content\": \"be kind\"}, {\"role\": \"user\", \"content\": \"hi\"}, "
	            "{\"role\": \"assistant\", \"content\": \"good day\"}]}\n"
	            "{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"}, {\"role\": \"user\", \"content\": \"who\"}, "
	            "{\"role\": \"assistant\", \"content\": \"a cat\"}]}\n",
	            "dropped-role");
	write_text(path_of("%s/faulty.jsonl", scratch.dir), "{\"messages\": [{\"role\": \"User\", \"content\": \"hi\"}, "
	                                                    "{\"role\": \"Assistant\", \"content\": \"good day\"}]}\n");
	write_text(path_of("%s/faulty.jinja", scratch.dir),
	           "{% for m in messages if m.role in ['user', 'assistant'] %}{{ m.content }}<|im_end|>{% endfor %}");
	refused(&scratch, "inspect --model_name_or_path @/hf --train_file @/faulty.jsonl --chat_template @/faulty.jinja",
	        "the chat template leaves each User's content out; write a role that it knows");
	scratch_close(&scratch);
}

/* What the post-processor puts around a text: pieces of a template. */
#define TEXT_PIECE "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define END_PIECE  ",{\"SpecialToken\":{\"id\":\"<|im_end|>\",\"type_id\":0}}"
static void put_around(const struct scratch *scratch, const char *pieces)
{
	char post[1024];
	snprintf(post, sizeof post,
	         "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[%s],\"pair\":[],\"special_tokens\":{"
	         "\"<|endoftext|>\":{\"id\":\"<|endoftext|>\",\"ids\":[286],\"tokens\":[\"<|endoftext|>\"]},"
	         "\"<|im_end|>\":{\"id\":\"<|im_end|>\",\"ids\":[287],\"tokens\":[\"<|im_end|>\"]}}}",
	         pieces);
	edit_file(path_of("%s/hf/tokenizer.json", scratch->dir),
	          "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":true}", post);
}

/* llama.cpp cuts text by these. */
static void expect_in_gguf(const struct scratch *scratch, int adds_bos, int adds_eos, int32_t kind_of_al)
{
	const char *path = path_of("%s/exported.gguf", scratch->dir);
	struct rh_gguf *gguf;
	size_t count;
	int32_t *kinds;
	int bos = -1, eos = -1;
	run_ok(scratch, "export --model_name_or_path %s/hf --outfile %s", scratch->dir, path);
	check_ok(rh_gguf_open(path, &gguf));
	assert_int_equal(rh_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &bos), 1);
	assert_int_equal(rh_gguf_bool(gguf, "tokenizer.ggml.add_eos_token", &eos), 1);
	assert_int_equal(rh_gguf_ints(gguf, "tokenizer.ggml.token_type", &count, &kinds), 1);
	assert_true(bos == adds_bos && eos == adds_eos && count == 288);
	assert_true(kinds[0] == 1 && kinds[286] == 3 && kinds[287] == 3);
	assert_int_equal(kinds[278], kind_of_al);
	rh_free(kinds);
	rh_gguf_close(gguf);
	check_ok(rh_file_remove(path));
}

static void test_a_gguf_says_what_is_put_around_a_text_and_which_tokens_are_special(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	expect_in_gguf(&scratch, 0, 0, 1);
	put_around(&scratch, TEXT_PIECE END_PIECE);
	expect_in_gguf(&scratch, 0, 1, 1);
	/* only tokenizer_config.json says so */
	edit_file(path_of("%s/hf/tokenizer_config.json", scratch.dir), "{", "{\"additional_special_tokens\": [\"al\"],");
	expect_in_gguf(&scratch, 0, 1, 3);
	edit_file(path_of("%s/hf/tokenizer_config.json", scratch.dir), "\"additional_special_tokens\": [\"al\"]",
	          "\"added_tokens_decoder\": {\"278\": {\"content\": \"al\"}}");
	expect_in_gguf(&scratch, 0, 1, 4);
	scratch_close(&scratch);
}

static void test_tokens_that_the_tokenizer_puts_around_a_prompt_are_told_of_where_they_are_too_many(void **state)
{
	(void)state;
	static const char told[] = "prompt: it begins with the beginning-of-sequence token, and the tokenizer puts another before it";
	static const char line[] = "generate --model_name_or_path @/hf --max_new_tokens 1 --prompt <|endoftext|>hi";
	struct scratch scratch;
	make_talk(&scratch);
	struct ran ran = run_typed(&scratch, "", line);
	assert_null(strstr(ran.err, "another before it"));
	run_free(&ran);
	put_around(&scratch, "{\"SpecialToken\":{\"id\":\"<|endoftext|>\",\"type_id\":0}}," TEXT_PIECE END_PIECE);
	ran = run_typed(&scratch, "", line);
	assert_non_null(strstr(ran.err, told));
	run_free(&ran);
	ran = run_typed(&scratch, "", "generate --model_name_or_path @/hf --max_new_tokens 1 --prompt hi");
	assert_null(strstr(ran.err, "another before it"));
	assert_non_null(strstr(ran.err, "prompt: the tokenizer puts <|im_end|> behind it"));
	run_free(&ran);
	ran = run_typed(&scratch, "", "generate --model_name_or_path @/hf --max_new_tokens 1 --prompt hi<|im_end|>");
	assert_null(strstr(ran.err, "behind it"));
	run_free(&ran);
	ran = run_typed(&scratch, "", "generate --model_name_or_path @/hf --max_new_tokens 1 --prompt hi --chat_template @/turns.jinja");
	assert_null(strstr(ran.err, "behind it"));
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_prompts_from_line_file_and_pipe_are_one),
	        cmocka_unit_test(test_generation_ends_at_each_token_that_is_named_an_end),
	        cmocka_unit_test(test_a_runs_own_end_of_sequence_goes_along),
	        cmocka_unit_test(test_answers_without_an_end_and_dropped_messages_stop),
	        cmocka_unit_test(test_tokens_that_the_tokenizer_puts_around_a_prompt_are_told_of_where_they_are_too_many),
	        cmocka_unit_test(test_a_gguf_says_what_is_put_around_a_text_and_which_tokens_are_special),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
