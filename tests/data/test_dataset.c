#include "dataset_case.h"

#include "core/log.h"

#include <unistd.h>

static void test_completion_masks_the_prompt_and_ends_with_eos(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	load_ok("{\"prompt\":\"abc\",\"completion\":\"de\"}\n{\"prompt\":\"\",\"completion\":\"f</s>\"}", &config, &plain_tokenizer, &set);
	assert_int_equal(set.rows, 2);
	assert_int_equal(set.tokens, 8);
	assert_int_equal(set.ids[5], FAKE_EOS);
	expect_mask(&set, 0, "___###");
	expect_mask(&set, 1, "_#"); /* f is the first token; </s> was there already */
	assert_int_equal(set.trained_tokens, 4);
	rh_dataset_free(&set);

	struct rh_tokenizer with_bos = {.adds_bos = 1, .has_eos = 1};
	load_ok("{\"prompt\":\"abc\",\"completion\":\"de\"}\n{\"prompt\":\"\",\"completion\":\"f\"}", &config, &with_bos, &set);
	expect_mask(&set, 0, "____###");
	expect_mask(&set, 1, "_##");
	assert_int_equal(set.prefix_mismatches, 0);
	rh_dataset_free(&set);

	config.completion_only_loss = RH_NO;
	load_ok("{\"prompt\":\"abc\",\"completion\":\"de\"}", &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "_#####");
	rh_dataset_free(&set);
}

static void test_completion_counts_prompts_that_are_no_prefix(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	load_ok("{\"prompt\":\"a\\n\",\"completion\":\"\\nb\"}\n{\"prompt\":\"a\\n\",\"completion\":\"b\"}", &config, &plain_tokenizer,
	        &set);
	assert_int_equal(set.prefix_mismatches, 1);
	expect_mask(&set, 0, "__##"); /* a, \n\n, b, </s>: the first two are masked, as the prompt alone has two */
	rh_dataset_free(&set);
}

static void test_text_trains_all_and_ends_with_eos(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	load_ok("{\"text\":\"ab\"}\n{\"text\":\"c</s>\"}\n", &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "_##");
	expect_mask(&set, 1, "_#");
	rh_dataset_free(&set);
	config.dataset_text_field = (char *)(uintptr_t) "body";
	struct rh_tokenizer other = plain_tokenizer;
	other.eos = "<|im_end|>";
	load_ok("{\"body\":\"a\\u0000b\"}\n", &config, &other, &set);
	assert_int_equal(set.tokens, 4);
	assert_int_equal(set.ids[1], 0);
	assert_int_equal(set.ids[3], FAKE_IM_END);
	rh_dataset_free(&set);
}

static void test_rows_that_begin_with_bos_are_counted_where_another_comes_before_it(void **state)
{
	(void)state;
	static const char rows[] = "{\"text\":\"<s>ab\"}\n{\"text\":\"a<s>b\"}\n{\"text\":\"<s>\"}\n";
	struct rh_config config = plain_config();
	struct rh_tokenizer with_bos = {.adds_bos = 1, .has_eos = 1};
	struct rh_dataset set;
	load_ok(rows, &config, &with_bos, &set);
	assert_int_equal(set.two_bos_rows, 2);
	expect_mask(&set, 0, "_####"); /* both are there, as in transformers */
	rh_dataset_report(&set);
	rh_dataset_free(&set);
	load_ok("{\"prompt\":\"<s>ab\",\"completion\":\"c\"}\n", &config, &with_bos, &set);
	assert_int_equal(set.two_bos_rows, 1);
	rh_dataset_free(&set);
	load_ok(rows, &config, &plain_tokenizer, &set);
	assert_int_equal(set.two_bos_rows, 0);
	rh_dataset_free(&set);
}

static const char chat_line[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"rs\"}]}\n";
/* <|im_start|>user\nq<|im_end|>\n is 9 tokens, <|im_start|>assistant\n 11, rs<|im_end|> 3, \n 1 */

static void test_messages_mask_what_no_assistant_wrote(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	config.chat_template = (char *)(uintptr_t) "chatml";
	load_ok(chat_line, &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "_#######################");
	rh_dataset_free(&set);
	config.assistant_only_loss = RH_YES;
	load_ok(chat_line, &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "____________________###_");
	assert_int_equal(set.prefix_mismatches, 0);
	rh_dataset_free(&set);
	config.assistant_only_loss = RH_UNSET;
	config.completion_only_loss = RH_YES;
	load_ok(chat_line, &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "____________________###_");
	rh_dataset_free(&set);
	/* "assistant\n" and "\nx" share a token: it reaches into the answer, so it is trained, and the row is counted */
	load_ok("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\\nx\"}]}", &config,
	        &plain_tokenizer, &set);
	expect_mask(&set, 0, "___________________###_");
	assert_int_equal(set.prefix_mismatches, 1);
	rh_dataset_free(&set);
}

static void test_messages_left_out_are_not_trained(void **state)
{
	(void)state;
	static const char turns[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"rs\",%s},"
	                            "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"t\"}]}\n";
	static const char *const flags[] = {"\"weight\":0", "\"train\":false"};
	struct rh_config config = plain_config();
	config.chat_template = (char *)(uintptr_t) "chatml";
	for (int i = 0; i < 2; i++) {
		struct rh_dataset set;
		char line[512];
		snprintf(line, sizeof line, turns, flags[i]);
		config.assistant_only_loss = RH_UNSET;
		load_ok(line, &config, &plain_tokenizer, &set);
		expect_mask(&set, 0, "_###################___########################");
		rh_dataset_free(&set);
		config.assistant_only_loss = RH_YES;
		load_ok(line, &config, &plain_tokenizer, &set);
		expect_mask(&set, 0, "____________________________________________##_");
		rh_dataset_free(&set);
	}
}

static void test_content_takes_the_form_that_the_template_reads(void **state)
{
	(void)state;
	static const char parts[] =
	        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},{\"role\":\"assistant\","
	        "\"content\":[{\"type\":\"text\",\"text\":\"r\"},{\"type\":\"text\",\"text\":\"s\"}]}]}\n";
	struct rh_config config = plain_config();
	struct rh_dataset strings, lists;
	config.chat_template = (char *)(uintptr_t) "chatml";
	config.assistant_only_loss = RH_YES;
	load_ok(parts, &config, &plain_tokenizer, &strings);
	expect_mask(&strings, 0, "____________________###_");
	/* one that reads parts alone, and that would write nothing of a string */
	struct rh_tokenizer tokenizer = plain_tokenizer;
	tokenizer.chat_template =
	        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{{ p.text }}{% endfor %}<|im_end|>\n"
	        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
	config.chat_template = NULL;
	load_ok(chat_line, &config, &tokenizer, &lists);
	assert_int_equal(lists.tokens, strings.tokens);
	assert_memory_equal(lists.ids, strings.ids, (size_t)lists.tokens * sizeof *lists.ids);
	assert_memory_equal(lists.trained, strings.trained, (size_t)lists.tokens);
	assert_string_equal(lists.chat_template, "of the model");
	rh_dataset_free(&strings);
	rh_dataset_free(&lists);
}

static void test_conversational_completion_masks_the_prompt_turns(void **state)
{
	(void)state;
	static const char line[] = "{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"z\"},"
	                           "{\"role\":\"user\",\"content\":\"q\"}],\"completion\":[{\"role\":\"assistant\",\"content\":\"rs\"}]}\n";
	struct rh_config config = plain_config();
	struct rh_dataset set;
	config.chat_template = (char *)(uintptr_t) "chatml";
	load_ok(line, &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "___________________________________________###_"); /* no line break behind the turn */
	rh_dataset_free(&set);
	config.assistant_only_loss = RH_YES;
	load_ok(line, &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "___________________________________________###_");
	rh_dataset_free(&set);
	config.completion_only_loss = RH_NO;
	load_ok(line, &config, &plain_tokenizer, &set);
	expect_mask(&set, 0, "____________________##_____________________###_");
	rh_dataset_free(&set);
}

static void test_lines_as_people_write_them(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	load_ok("\xEF\xBB\xBF{\"text\":\"a\"}\r\n\r\n   \t\n{\"text\":\"b\",\"id\":7}\r\n{\"text\":\"c\"}", &config, &plain_tokenizer,
	        &set);
	assert_int_equal(set.rows, 3);
	assert_int_equal(set.tokens, 6);
	rh_dataset_free(&set);
}

static void test_bad_lines_are_named(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	expect_error("", &config, ":1: the file holds no rows", NULL);
	expect_error("\n \r\n", &config, "the file holds no rows", NULL);
	expect_error("{\"text\":\"a\"}\n{\"text\":\n", &config, ":2: not valid JSON at column ", NULL);
	expect_error("{\"text\":\"a\",\"text\":\"b\"}", &config, ":1: not valid JSON", "duplicate", NULL);
	expect_error("{\"text\":\"\\ud800\"}", &config, ":1: not valid JSON", NULL);
	expect_error("{\"text\":\"\xff\"}", &config, ":1: not valid JSON", NULL);
	expect_error("\xFF\xFE{", &config, ":1: the file is UTF-16; iconv ", NULL);
	expect_error("{\"text\": \"caf\xE9\"}\n", &config, "the text must be UTF-8: iconv -f LATIN1", NULL);
	expect_error("{'text': 'a'}\n", &config, ":1: not valid JSON at column 2", "Python's json.dumps writes JSON", NULL);
	expect_error("{\"text\": \"a\", \"id\": None}\n", &config, ":1: not valid JSON", "Python's None is null", NULL);
	expect_error("{\"text\": \"a\", \"score\": NaN}\n", &config, ":1: not valid JSON", "JSON has no NaN; write null", NULL);
	expect_error("{\"text\": \"a\",}\n", &config, ":1: not valid JSON", "behind an object's last member; take it out", NULL);
	expect_error("{\"text\": [\"a\",]}\n", &config, ":1: not valid JSON", "behind an array's last item; take it out", NULL);
	expect_error("{\"text\": \"a\"},\n{\"text\": \"b\"}\n", &config, ":1: not valid JSON", "no comma stands between lines", NULL);
	expect_error("{\"text\":\"a\"}\n[1]\n", &config, ":2: expected one JSON object", NULL);
	expect_error("{\"text\":null}", &config, ":1: no form of rows has the keys 'text'", NULL);
	expect_error("{\"text\":5}", &config, ":1: 'text' must be a string", NULL);
	expect_error("{\"prompt\":\"a\"}", &config, ":1: 'completion' is missing", NULL);
	expect_error("{\"prompt\":\"a\",\"response\":\"b\"}", &config,
	             "here are 'prompt', 'response': data_columns: {completion: response}", NULL);
	expect_error("{\"completion\":\"a\"}", &config, ":1: 'prompt' is missing", NULL);
	expect_error("{\"prompt\":\"a\",\"completion\":5}", &config, ":1: 'completion' must be a string", NULL);
	expect_error("{\"prompt\":\"a\",\"completion\":[]}", &config, ":1: 'prompt' must be a list of messages", "both alike", NULL);
	expect_error("{\"prompt\":\"a\",\"completion\":\"b\"}\n\n{\"text\":\"a\"}\n", &config, ":3: 'prompt' is missing",
	             "first one's form", NULL);
	config.chat_template = (char *)(uintptr_t) "chatml";
	expect_error("{\"messages\":\"a\"}", &config, ":1: 'messages' must be a list", NULL);
	expect_error("{\"messages\":[]}", &config, ":1: the list of messages is empty", NULL);
	expect_error("{\"messages\":[5]}", &config, ":1: message 1 must be an object", NULL);
	expect_error("{\"messages\":[{\"role\":\"user\"}]}", &config, ":1: chat template, line 2: 'dict object' has no attribute 'content'",
	             NULL);
	expect_error("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}", &config,
	             ":1: message 1: a part of 'content' is of type image; only text parts are read", NULL);
	expect_error("{\"messages\":[{\"role\":\"user\",\"content\":null}]}", &config, "can only concatenate str (not \"NoneType\") to str",
	             NULL);
	expect_error("{\"messages\":[{\"role\":\"human\",\"content\":\"a\"}]}", &config, ":1: message 1: role 'human'",
	             "user and assistant", NULL);
	expect_error("{\"messages\":[{\"content\":\"a\"}]}", &config, ":1: message 1 must be an object with a string 'role'", NULL);
	expect_error("{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[1]}]}", &config,
	             ":1: message 1: chat template chatml has no place for 'tool_calls'", NULL);
	expect_error("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}", &config,
	             ":1: chat template chatml has no place for 'tools'", NULL);
	expect_error("{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"weight\":2}]}", &config, "'weight' must be 0 or 1", NULL);
	expect_error("{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"train\":1}]}", &config, "'train' must be true or false",
	             NULL);
	expect_error("{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"train\":true}]}", &config, "only the assistant's are trained",
	             NULL);
	expect_error("{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"train_detail\":[{}]}]}", &config,
	             ":1: message 1: 'train_detail' is not read", NULL);
	config.assistant_only_loss = RH_YES;
	expect_error("{\"text\":\"a\"}", &config, ":1: assistant_only_loss", "plain strings, without turns: remove it", NULL);
	expect_error("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"robot\",\"content\":\"b\"}]}", &config,
	             "none of its 1 rows has a trained token: no turn is the assistant's", "one ends with role 'robot'", NULL);
	config.chat_template = NULL;
	expect_error("{\"question\":\"a\",\"answer\":\"b\"}", &config, ":1: assistant_only_loss", "give a chat_template", NULL);
}

static void test_templates_missing_or_unknown_list_the_names(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	struct rh_tokenizer tokenizer = plain_tokenizer;
	assert_int_equal(load(chat_line, sizeof chat_line - 1, &config, &tokenizer, &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "smollm2, qwen2"));
	tokenizer.chat_template = "{{ hello ";
	assert_int_equal(load(chat_line, sizeof chat_line - 1, &config, &tokenizer, &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "the model's chat template: line 1, column 10: expected end of print statement"));
	config.chat_template = (char *)(uintptr_t) "qwen9";
	assert_int_equal(load(chat_line, sizeof chat_line - 1, &config, &tokenizer, &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "'qwen9'"));
	config.chat_template = (char *)(uintptr_t) "llama3";
	assert_int_equal(load(chat_line, sizeof chat_line - 1, &config, &tokenizer, &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "chat_template: llama3 writes <|eot_id|>, which is no token of this model"));
	config.chat_template = (char *)(uintptr_t) "none";
	assert_int_equal(load(chat_line, sizeof chat_line - 1, &config, &tokenizer, &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "chat_template: none leaves the conversation at "));
	config.chat_template = (char *)(uintptr_t) "chatml";
	check_ok(load(chat_line, sizeof chat_line - 1, &config, &tokenizer, &set));
	assert_string_equal(set.chat_template, "chatml");
	assert_true(set.whole_conversations);
	rh_dataset_free(&set);
	config.assistant_only_loss = RH_YES;
	check_ok(load(chat_line, sizeof chat_line - 1, &config, &tokenizer, &set));
	assert_false(set.whole_conversations);
	rh_dataset_free(&set);
}

static void test_truncation_keeps_the_start_and_counts(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	config.max_length = 6;
	load_ok("{\"prompt\":\"abc\",\"completion\":\"de\"}\n"     /* fits */
	        "{\"prompt\":\"abcd\",\"completion\":\"efgh\"}\n"  /* its answer loses its end */
	        "{\"prompt\":\"abcdefgh\",\"completion\":\"i\"}\n" /* nothing trained is left */
	        "{\"prompt\":\"abcde\",\"completion\":\"f\"}\n",   /* loses end-of-sequence only */
	        &config, &plain_tokenizer, &set);
	assert_int_equal(set.read_rows, 4);
	assert_int_equal(set.rows, 3);
	assert_int_equal(set.dropped_rows, 1);
	assert_int_equal(set.cut_rows, 2);
	assert_int_equal(set.cut_answers, 2);
	expect_mask(&set, 1, "____##");
	expect_mask(&set, 2, "_____#");
	rh_dataset_report(&set);
	rh_dataset_free(&set);
	config.max_length = 1;
	expect_error("{\"text\":\"ab\"}\n", &config, "none of its 1 rows has a trained token within max_length 1", NULL);
}

/* Rows without text or answer are left out and told; among themselves they are no duplicates. */
static void test_empty_rows_are_left_out(void **state)
{
	(void)state;
	static const struct {
		const char *empty, *full;
		enum rh_choice only_assistant;
	} forms[] = {
	        {"{\"text\":\"\"}\n", "{\"text\":\"a\"}\n", RH_NO},
	        {"{\"text\":\"</s>\"}\n", "{\"text\":\"a\"}\n", RH_NO},
	        {"{\"prompt\":\"q\",\"completion\":\"\"}\n", "{\"prompt\":\"q\",\"completion\":\"a\"}\n", RH_NO},
	        {"{\"prompt\":\"q\",\"completion\":\"</s>\"}\n", "{\"prompt\":\"q\",\"completion\":\"a\"}\n", RH_NO},
	        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":[]}\n",
	         "{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":[{\"role\":\"assistant\",\"content\":\"a\"}]}\n",
	         RH_NO},
	        {"{\"instruction\":\"q\",\"output\":\"\"}\n", "{\"instruction\":\"q\",\"output\":\"a\"}\n", RH_NO},
	        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n",
	         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}]}\n", RH_YES},
	        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"chatml leaves it out\"}]}\n",
	         "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}\n", RH_YES},
	};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		struct rh_config config = plain_config();
		struct rh_dataset set;
		char content[512];
		config.chat_template = (char *)(uintptr_t) "chatml";
		config.assistant_only_loss = forms[i].only_assistant;
		snprintf(content, sizeof content, "%s%s%s", forms[i].full, forms[i].empty, forms[i].empty);
		load_ok(content, &config, &plain_tokenizer, &set);
		assert_int_equal(set.read_rows, 3);
		assert_int_equal(set.rows, 1);
		assert_int_equal(set.finding[RH_LINT_UNTRAINED].rows, 2);
		assert_int_equal(set.finding[RH_LINT_DUPLICATE].rows, 0);
		rh_dataset_free(&set);
		expect_error(forms[i].empty, &config, "none of its 1 rows has a trained token", NULL);
	}
}

static void test_nulls_after_the_first_row_are_empty_texts(void **state)
{
	(void)state;
	static const char *const rows[] = {
	        "{\"text\":\"a\"}\n{\"text\":null}\n",
	        "{\"prompt\":\"q\",\"completion\":\"a\"}\n{\"prompt\":\"q\",\"completion\":null}\n",
	        "{\"prompt\":\"q\",\"completion\":\"a\"}\n{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":null}\n",
	        "{\"instruction\":\"q\",\"output\":\"a\"}\n{\"instruction\":\"q\",\"output\":null}\n",
	        "{\"question\":\"q\",\"answer\":\"a\"}\n{\"question\":\"q\",\"answer\":null}\n",
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct rh_config config = plain_config();
		struct rh_dataset set;
		config.chat_template = (char *)(uintptr_t) "chatml";
		load_ok(rows[i], &config, &plain_tokenizer, &set);
		assert_int_equal(set.read_rows, 2);
		assert_int_equal(set.rows, 1);
		assert_int_equal(set.finding[RH_LINT_UNTRAINED].rows, 1);
		rh_dataset_free(&set);
	}
}

/* Templates may call the assistant model, and write reasoning without content. */
static void test_every_kind_of_answer_is_trained(void **state)
{
	(void)state;
	static const struct {
		const char *row, *mask;
	} answers[] = {
	        {"{\"messages\":[{\"role\":\"model\",\"content\":\"ab\"}]}", "__###"},
	        {"{\"messages\":[{\"role\":\"model\",\"content\":\"ab\",\"train\":false},{\"role\":\"model\",\"content\":\"c\"}]}",
	         "_______##"},
	        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"ab\"}]}", "__###"},
	};
	struct rh_tokenizer tokenizer = plain_tokenizer;
	tokenizer.chat_template = "{% for m in messages %}A:{{ m.reasoning_content }}{{ m.content }}</s>{% endfor %}"
	                          "{% if add_generation_prompt %}A:{% endif %}";
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
		struct rh_config config = plain_config();
		struct rh_dataset set;
		config.assistant_only_loss = RH_YES;
		load_ok(answers[i].row, &config, &tokenizer, &set);
		expect_mask(&set, 0, answers[i].mask);
		rh_dataset_free(&set);
	}
}

/* An answer's end is where its text ends, whatever is trained. */
static void test_answers_that_lose_their_end_are_counted_unmasked_too(void **state)
{
	(void)state;
	static const char turns[] = "{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],"
	                            "\"completion\":[{\"role\":\"assistant\",\"content\":\"rs\"}]}\n";
	static const struct {
		const char *row;
		int64_t max_length, cut, lost;
	} cases[] = {{chat_line, 24, 0, 0}, {chat_line, 23, 1, 0},
	             {chat_line, 22, 1, 1}, {chat_line, 5, 1, 1},
	             {turns, 23, 1, 0},     {turns, 22, 1, 1},
	             {turns, 5, 1, 1},      {"{\"prompt\":\"abc\",\"completion\":\"de\"}\n", 5, 1, 1}};
	struct rh_config config = plain_config();
	config.chat_template = (char *)(uintptr_t) "chatml";
	config.completion_only_loss = RH_NO;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_dataset set;
		config.max_length = cases[i].max_length;
		load_ok(cases[i].row, &config, &plain_tokenizer, &set);
		assert_int_equal(set.cut_rows, cases[i].cut);
		assert_int_equal(set.cut_answers, cases[i].lost);
		assert_true(set.has_answers);
		rh_dataset_free(&set);
	}
	config.max_length = 2;
	struct rh_dataset set;
	load_ok("{\"text\":\"abc\"}\n", &config, &plain_tokenizer, &set);
	assert_int_equal(set.cut_rows, 1);
	assert_false(set.has_answers);
	rh_dataset_free(&set);
}

static void test_every_refused_allocation_unwinds(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	config.packing = 1;
	config.max_length = 40;
	config.assistant_only_loss = RH_YES;
	config.chat_template = (char *)(uintptr_t) "qwen3";
	char *files[] = {path};
	config.train_file = (struct rh_list){files, 1, 1};
	check_ok(rh_file_write_whole(path, chat_line, sizeof chat_line - 1));
	int refused = 0;
	for (uint64_t n = 1; n < 500; n++) {
		struct rh_dataset set;
		rh_alloc_fail_nth(n);
		int rc = rh_dataset_load(RH_DATASET_TRAIN, &config, &plain_tokenizer, &set);
		uint64_t asked = rh_alloc_fail_nth(0);
		if (asked < n) {
			check_ok(rc);
			rh_dataset_free(&set);
			break;
		}
		assert_int_equal(rc, -ENOMEM);
		refused++;
	}
	assert_true(refused > 10 && refused < 499);
}

/* Lines of every kind with bytes changed, cut, doubled: an error line or a dataset that keeps its invariants. */
static void test_mutated_lines_never_crash(void **state)
{
	(void)state;
	static const char *const seeds[] = {
	        "{\"prompt\":\"ab\\u00e9 c\",\"completion\":\"d\\ud83d\\ude00e\"}\n{\"prompt\":\"\",\"completion\":\"x\"}\n",
	        "{\"text\":\"one\"}\r\n\r\n{\"text\":\"two</s>\",\"n\":[1,2.5e3,null,true]}",
	        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"q\\n\"},{\"role\":\"assistant\","
	        "\"content\":"
	        "\"<think>\\nw\\n</think>\\n\\n\\nrs\"}]}\n",
	        "{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":[{\"role\":\"assistant\",\"content\":\"r\"}]}\n",
	};
	static const char *const names[] = {"chatml", "qwen3", "llama2", "llama3.1", "smollm2"};
	uint64_t random = check_seed();
	char bytes[1024];
	int read = 0;
	for (int trial = 0; trial < 4000; trial++) {
		const char *seed = seeds[check_random(&random) % 4];
		size_t length = strlen(seed);
		memcpy(bytes, seed, length);
		for (uint32_t edits = check_random(&random) % 4; edits > 0 && length > 1; edits--) {
			size_t at = check_random(&random) % length;
			uint32_t what = check_random(&random) % 4;
			if (what == 0)
				bytes[at] = (char)check_random(&random);
			else if (what == 1)
				bytes[at] = "{}[]\":,\\\n\r u"[check_random(&random) % 12];
			else if (what == 2)
				memmove(bytes + at, bytes + at + 1, --length - at);
			else if (length * 2 < sizeof bytes) {
				memmove(bytes + at + 1, bytes + at, length - at);
				length++;
			}
		}
		struct rh_config config = plain_config();
		config.chat_template = (char *)(uintptr_t)names[check_random(&random) % 5];
		config.packing = check_random(&random) % 2;
		config.packing_strategy = (enum rh_packing)(check_random(&random) % 3);
		config.max_length = 1 + check_random(&random) % 60;
		config.assistant_only_loss = check_random(&random) % 3 ? RH_UNSET : RH_YES;
		config.completion_only_loss = (enum rh_choice)(check_random(&random) % 3) - 1;
		struct rh_dataset set;
		rh_error_clear();
		int rc = load(bytes, length, &config, &plain_tokenizer, &set);
		if (rc) {
			assert_true(strlen(rh_error(rc)) > 0);
			continue;
		}
		read++;
		int64_t trained = 0;
		for (int64_t i = 0; i < set.documents; i++) {
			assert_true(set.document_start[i + 1] - set.document_start[i] <= config.max_length);
			assert_int_equal(set.trained[set.document_start[i]], 0);
		}
		for (int64_t i = 0; i < set.tokens; i++)
			trained += set.trained[i];
		assert_int_equal(trained, set.trained_tokens);
		assert_int_equal(set.row_document[set.rows], set.documents);
		rh_dataset_free(&set);
	}
	assert_true(read > 200);
}

int main(void)
{
	snprintf(path, sizeof path, "/tmp/rh-dataset-%ld.jsonl", (long)getpid());
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_completion_masks_the_prompt_and_ends_with_eos),
	        cmocka_unit_test(test_completion_counts_prompts_that_are_no_prefix),
	        cmocka_unit_test(test_text_trains_all_and_ends_with_eos),
	        cmocka_unit_test(test_rows_that_begin_with_bos_are_counted_where_another_comes_before_it),
	        cmocka_unit_test(test_messages_mask_what_no_assistant_wrote),
	        cmocka_unit_test(test_messages_left_out_are_not_trained),
	        cmocka_unit_test(test_content_takes_the_form_that_the_template_reads),
	        cmocka_unit_test(test_conversational_completion_masks_the_prompt_turns),
	        cmocka_unit_test(test_lines_as_people_write_them),
	        cmocka_unit_test(test_bad_lines_are_named),
	        cmocka_unit_test(test_templates_missing_or_unknown_list_the_names),
	        cmocka_unit_test(test_truncation_keeps_the_start_and_counts),
	        cmocka_unit_test(test_empty_rows_are_left_out),
	        cmocka_unit_test(test_nulls_after_the_first_row_are_empty_texts),
	        cmocka_unit_test(test_every_kind_of_answer_is_trained),
	        cmocka_unit_test(test_answers_that_lose_their_end_are_counted_unmasked_too),
	        cmocka_unit_test(test_every_refused_allocation_unwinds),
	        cmocka_unit_test(test_mutated_lines_never_crash),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return failed;
}
