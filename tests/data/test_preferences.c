/* Rows that say which answer is better: each form gives the documents of its reference form; where answers begin, how they are cut, which
 * rows are left out, and with whom KTO pairs them. */
#include "check.h"

#include "core/file.h"
#include "data/dataset.h"
#include "fake_tokenizer.h"

#include <unistd.h>

static char folder[64];
static const struct rh_tokenizer tokenizer = {.has_eos = 1};

static char *in_folder(const char *name)
{
	static char paths[4][128];
	static int turn;
	char *path = paths[turn++ % 4];
	snprintf(path, sizeof paths[0], "%s/%s", folder, name);
	return path;
}

/* template: conversations go through chatml. */
static struct rh_config config_of(enum rh_preference_loss type, int template)
{
	struct rh_config config = {.dataset_text_field = (char *)(uintptr_t) "text", .max_length = 4096};
	config.completion_only_loss = config.assistant_only_loss = RH_UNSET;
	config.chat_template = template ? (char *)(uintptr_t) "chatml" : NULL;
	config.preference.answers = type == RH_PREFERENCE_APO_ZERO_UNPAIRED ? 1 : 2;
	config.preference.weight[type] = 1;
	return config;
}

static int load(const char *content, struct rh_config config, struct rh_dataset *out)
{
	char *path = in_folder("rows");
	check_ok(rh_file_write_whole(path, content, strlen(content)));
	config.train_file = (struct rh_list){&path, 1, 1};
	return rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, out);
}

static void assert_same(const struct rh_dataset *a, const struct rh_dataset *b)
{
	assert_int_equal(a->rows, b->rows);
	assert_int_equal(a->documents, b->documents);
	assert_int_equal(a->tokens, b->tokens);
	assert_memory_equal(a->ids, b->ids, (size_t)a->tokens * sizeof *a->ids);
	assert_memory_equal(a->trained, b->trained, (size_t)a->tokens);
	for (int64_t d = 0; d < a->documents; d++) {
		assert_int_equal(a->document_start[d], b->document_start[d]);
		assert_int_equal(a->judged[d].prompt, b->judged[d].prompt);
		assert_int_equal(a->judged[d].role, b->judged[d].role);
	}
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define SYSTEM(text)    "{\"role\":\"system\",\"content\":\"" text "\"}"
#define HUMAN(text)     "{\"from\":\"human\",\"value\":\"" text "\"}"
#define GPT(text)       "{\"from\":\"gpt\",\"value\":\"" text "\"}"
#define CHAT            "{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("good") "],\"rejected\":[" ASSISTANT("bad") "]}"
#define STRINGS         "{\"prompt\":\"q \",\"chosen\":\"good\",\"rejected\":\"bad\"}"
#define JUDGED          "{\"prompt\":[" USER("q") "],\"completion\":[" ASSISTANT("a") "],\"label\":false}"

static const struct {
	const char *what, *content, *reference;
	int is_judged;
} forms[] = {
        {"TRL, an implicit prompt of strings", "{\"chosen\":\"q good\",\"rejected\":\"q bad\"}",
         "{\"prompt\":\"q\",\"chosen\":\" good\",\"rejected\":\" bad\"}", 0},
        {"TRL, an implicit prompt that ends within a character", "{\"chosen\":\"q\u00e9x\",\"rejected\":\"q\u00e8x\"}",
         "{\"prompt\":\"q\",\"chosen\":\"\u00e9x\",\"rejected\":\"\u00e8x\"}", 0},
        {"TRL, whole conversations",
         "{\"chosen\":[" USER("q") "," ASSISTANT("good") "],\"rejected\":[" USER("q") "," ASSISTANT("bad") "],\"score\":3}", CHAT, 0},
        {"TRL, whole conversations beside their prompt as a string",
         "{\"prompt\":\"q\",\"chosen\":[" USER("q") "," ASSISTANT("good") "],\"rejected\":[" USER("q") "," ASSISTANT("bad") "]}", CHAT, 0},
        {"LLaMA-Factory, Alpaca", "{\"instruction\":\"q\",\"input\":\"\",\"chosen\":\"good\",\"rejected\":\"bad\"}", CHAT, 0},
        {"LLaMA-Factory, Alpaca with all it may have",
         "{\"instruction\":\"q\",\"input\":\"in\",\"system\":\"s\",\"history\":[[\"a\",\"b\"]],\"chosen\":\"good\",\"rejected\":\"bad\"}",
         "{\"prompt\":[" SYSTEM("s") "," USER("a") "," ASSISTANT("b") "," USER("q\\nin") "],\"chosen\":[" ASSISTANT(
                 "good") "],\"rejected\":[" ASSISTANT("bad") "]}",
         0},
        {"LLaMA-Factory, conversations", "{\"conversations\":[" HUMAN("q") "],\"chosen\":" GPT("good") ",\"rejected\":" GPT("bad") "}",
         CHAT, 0},
        {"axolotl, messages and strings", "{\"messages\":[" USER("q") "],\"chosen\":\"good\",\"rejected\":\"bad\"}", CHAT, 0},
        {"axolotl, messages and messages",
         "{\"messages\":[" USER("q") "],\"chosen\":" ASSISTANT("good") ",\"rejected\":" ASSISTANT("bad") "}", CHAT, 0},
        {"axolotl, messages and lists of which the last counts",
         "{\"messages\":[" USER("q") "],\"chosen\":[" USER("q") "," ASSISTANT("good") "],\"rejected\":[" USER("q") "," ASSISTANT(
                 "bad") "]}",
         CHAT, 0},
        {"axolotl, system and question", "{\"system\":\"s\",\"question\":\"q\",\"chosen\":\"good\",\"rejected\":\"bad\"}",
         "{\"prompt\":[" SYSTEM("s") "," USER("q") "],\"chosen\":[" ASSISTANT("good") "],\"rejected\":[" ASSISTANT("bad") "]}", 0},
        {"axolotl, responses", "{\"input\":\"q\",\"chosen_response\":\"good\",\"rejected_response\":\"bad\"}", CHAT, 0},
        {"LLaMA-Factory's tag beside Alpaca", "{\"instruction\":\"q\",\"output\":\"a\",\"kto_tag\":false}", JUDGED, 1},
        {"LLaMA-Factory's tag beside conversations", "{\"conversations\":[" HUMAN("q") "," GPT("a") "],\"kto_tag\":false}", JUDGED, 1},
        {"LLaMA-Factory's tag beside messages", "{\"messages\":[" USER("q") "," ASSISTANT("a") "],\"kto_tag\":false}", JUDGED, 1},
        {"a table", "prompt,completion,label\nq ,a,False\n", "{\"prompt\":\"q \",\"completion\":\"a\",\"label\":false}", 1},
};

static void test_each_form_gives_its_reference_form(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		struct rh_dataset set, reference;
		struct rh_config config = config_of(forms[i].is_judged ? RH_PREFERENCE_APO_ZERO_UNPAIRED : RH_PREFERENCE_SIGMOID, 1);
		print_message("%s\n", forms[i].what);
		check_ok(load(forms[i].content, config, &set));
		check_ok(load(forms[i].reference, config, &reference));
		assert_same(&set, &reference);
		rh_dataset_free(&set);
		rh_dataset_free(&reference);
	}
}

/* The fake tokenizer makes a token of each byte, and one of the end of sequence. */
static void test_answers_begin_behind_the_prompt_and_are_cut_one_by_one(void **state)
{
	(void)state;
	struct rh_dataset set;
	struct rh_config config = config_of(RH_PREFERENCE_SIGMOID, 0);
	config.max_length = 5;
	check_ok(load(STRINGS
	              "\n{\"prompt\":\"12345\",\"chosen\":\"a\",\"rejected\":\"b\"}\n{\"prompt\":\"q\",\"chosen\":\"\",\"rejected\":\"b\"}",
	              config, &set));
	assert_int_equal(set.rows, 1); /* the second one's prompt fills max_length, the third has an empty answer */
	assert_int_equal(set.dropped_rows, 2);
	assert_int_equal(set.documents, 2);
	assert_int_equal(set.document_start[1], 5);
	assert_int_equal(set.document_start[2] - set.document_start[1], 5);
	assert_int_equal(set.cut_answers, 1);
	for (int d = 0; d < 2; d++) {
		assert_int_equal(set.judged[d].prompt, 2);
		assert_int_equal(set.judged[d].role, d ? RH_ROLE_REJECTED : RH_ROLE_CHOSEN);
		for (int64_t i = 0; i < 5; i++)
			assert_int_equal(set.trained[set.document_start[d] + i], i >= 2 ? RH_MARK_TRAINED : RH_MARK_NONE);
	}
	rh_dataset_free(&set);
}

static void test_orpo_trains_the_chosen_prompt_too(void **state)
{
	(void)state;
	struct rh_dataset set;
	struct rh_batch batch = {0};
	const int64_t row = 0;
	check_ok(load(STRINGS, config_of(RH_PREFERENCE_ORPO, 0), &set));
	check_ok(rh_batch_make(&set, &row, 1, &batch));
	/* "q " then 4 letters and an end: one target of the prompt; 3 letters and an end behind the other prompt */
	assert_int_equal(batch.trained, 1 + 5 + 4);
	const int32_t span[2][RH_SPANS] = {{0, 1, 5, RH_ROLE_CHOSEN}, {6, 6, 4, RH_ROLE_REJECTED}};
	assert_memory_equal(batch.span, span, sizeof span);
	rh_batch_free(&batch);
	rh_dataset_free(&set);
}

static void test_faults_of_pairs_are_found(void **state)
{
	(void)state;
	struct rh_dataset set, none = {0};
	struct rh_config config = config_of(RH_PREFERENCE_SIGMOID, 0);
	check_ok(load("{\"prompt\":\"q\",\"chosen\":\"a\",\"rejected\":\"a\"}\n{\"chosen\":\"x\",\"rejected\":\"yz\"}", config, &set));
	assert_int_equal(set.finding[RH_LINT_EQUAL].rows, 1);
	assert_int_equal(set.finding[RH_LINT_NO_PROMPT].rows, 1);
	assert_int_equal(rh_dataset_check(&set, &none, &config), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "equal-answers"));
	rh_dataset_free(&set);
}

/* Of three rows a micro-batch the first has the answer of the last, each other one that of the row before it. */
static void test_kto_pairs_rows_within_micro_batches(void **state)
{
	(void)state;
	static const char rows[] =
	        "{\"prompt\":\"1\",\"completion\":\"a\",\"label\":true}\n{\"prompt\":\"2\",\"completion\":\"b\",\"label\":false}\n"
	        "{\"prompt\":\"3\",\"completion\":\"c\",\"label\":true}\n{\"prompt\":\"4\",\"completion\":\"d\",\"label\":true}";
	static const char texts[] = "1a1c2b2a3c3b4d4d";
	struct rh_dataset set;
	struct rh_config config = config_of(RH_PREFERENCE_KTO, 0);
	check_ok(load(rows, config, &set));
	check_ok(rh_dataset_pair(&set, 3, config.max_length));
	assert_int_equal(set.rows, 4);
	assert_int_equal(set.documents, 8);
	for (int64_t d = 0; d < 8; d++) {
		const int32_t *id = set.ids + set.document_start[d];
		int is_good = d / 2 != 1;
		assert_int_equal(set.document_start[d + 1] - set.document_start[d], 3);
		assert_int_equal(id[0], set.ids[set.document_start[d - d % 2]]); /* the row's prompt */
		int64_t from = strchr("abcd", texts[2 * d + 1]) - "abcd";
		assert_int_equal(id[1], set.ids[set.document_start[2 * from] + 1]);
		assert_int_equal(set.judged[d].role, d % 2 ? RH_ROLE_MISMATCHED : is_good ? RH_ROLE_CHOSEN : RH_ROLE_REJECTED);
	}
	rh_dataset_free(&set);
}

static void test_rows_of_another_kind_are_refused(void **state)
{
	(void)state;
	struct rh_dataset set;
	assert_int_equal(load(JUDGED, config_of(RH_PREFERENCE_SIGMOID, 1), &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "chosen and rejected"));
	assert_int_equal(load(CHAT, config_of(RH_PREFERENCE_KTO, 1), &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "prompt, completion and label"));
	assert_int_equal(load(STRINGS "\n{\"prompt\":\"q\",\"chosen\":\"a\"}", config_of(RH_PREFERENCE_SIGMOID, 0), &set), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), ":2: 'rejected' is missing"));
	/* turns in a list of messages: an answer that cannot be read is not taken for none */
	assert_int_equal(load("{\"chosen\":[" HUMAN("q") "," GPT("good") "],\"rejected\":[" HUMAN("q") "," GPT("bad") "]}",
	                      config_of(RH_PREFERENCE_SIGMOID, 1), &set),
	                 -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), ":1: message 2 must be an object with a string 'role'"));
	/* tools of a conversation reach the template */
	assert_int_equal(
	        load("{\"conversations\":[" HUMAN("q") "],\"tools\":\"[{\\\"name\\\":\\\"f\\\",\\\"parameters\\\":{}}]\",\"chosen\":" GPT(
	                     "good") ",\"rejected\":" GPT("bad") "}",
	             config_of(RH_PREFERENCE_SIGMOID, 1), &set),
	        -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "has no place for 'tools'"));
}

static int make_folder(void **state)
{
	(void)state;
	snprintf(folder, sizeof folder, "/tmp/roundhouse-preferences-%d", (int)getpid());
	return rh_dir_make(folder);
}

static int remove_folder(void **state)
{
	(void)state;
	return rh_dir_remove(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_form_gives_its_reference_form),
	        cmocka_unit_test(test_answers_begin_behind_the_prompt_and_are_cut_one_by_one),
	        cmocka_unit_test(test_orpo_trains_the_chosen_prompt_too),
	        cmocka_unit_test(test_faults_of_pairs_are_found),
	        cmocka_unit_test(test_kto_pairs_rows_within_micro_batches),
	        cmocka_unit_test(test_rows_of_another_kind_are_refused),
	};
	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
