/* Rows with labels and rows with hidden tokens, through a tokenizer of vocab.txt: ids, types and targets of a batch. Ids by hand; those of
 * pairs and their truncation as transformers' BertTokenizerFast gives them on this vocabulary. */
#include "check.h"

#include "core/file.h"
#include "core/log.h"
#include "data/dataset.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { PAD, UNK, CLS, SEP, MASK, A, B, C, D, ING, BANG, CAFE };
static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n##ing\n!\ncafe\n";
static char dir[64], path[96];
static struct rh_tokenizer *tokenizer;

static struct rh_config config_of(int64_t max_length)
{
	static char *files[] = {path};
	return (struct rh_config){.train_file = {files, 1, 1},
	                          .max_length = max_length,
	                          .dataset_text_field = (char *)(uintptr_t) "text",
	                          .completion_only_loss = RH_UNSET,
	                          .assistant_only_loss = RH_UNSET};
}

static int load(const char *lines, const struct rh_objective *objective, int64_t max_length, struct rh_dataset *out)
{
	struct rh_config config = config_of(max_length);
	check_ok(rh_file_write_whole(path, lines, strlen(lines)));
	return rh_dataset_load_for(RH_DATASET_TRAIN, &config, objective, tokenizer, out);
}

static int setup(void **state)
{
	(void)state;
	rh_log_quiet(1);
	snprintf(dir, sizeof dir, "/tmp/rh-labelled-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/vocab.txt", dir);
	check_ok(rh_file_write_whole(path, vocabulary, sizeof vocabulary - 1));
	check_ok(rh_tokenizer_load(dir, &tokenizer));
	snprintf(path, sizeof path, "%s/rows.jsonl", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	rh_tokenizer_destroy(tokenizer);
	check_ok(rh_dir_remove(dir));
	return 0;
}

static void ids_are(const char *text, const int32_t *id, size_t count)
{
	struct rh_ids ids = {0};
	check_ok(rh_tokenizer_encode(tokenizer, text, strlen(text), RH_TOKENS_WITH_SPECIAL, &ids));
	assert_int_equal(ids.count, count);
	assert_memory_equal(ids.id, id, count * sizeof *id);
	rh_ids_free(&ids);
}

static void test_vocab_txt_is_a_tokenizer(void **state)
{
	(void)state;
	ids_are("A b! Bing Caf\xC3\xA9 bingx [MASK]", (const int32_t[]){CLS, A, B, BANG, B, ING, CAFE, UNK, MASK, SEP}, 10);
	struct rh_text text = {0};
	check_ok(rh_tokenizer_decode(tokenizer, (const int32_t[]){CLS, B, ING, BANG, SEP}, 5, RH_SPECIALS_SKIP, &text));
	assert_string_equal(text.bytes, "bing!");
	rh_text_free(&text);
}

static void test_labels_stand_at_the_first_token(void **state)
{
	(void)state;
	json_t *names = json_pack("{s:i, s:i}", "no", 0, "yes", 1);
	struct rh_objective objective = {.task = RH_TASK_SEQUENCE_CLASSIFICATION, .labels = 3, .label_ids = names, .is_typed = 1};
	struct rh_dataset set;
	struct rh_batch batch = {0};
	check_ok(load("{\"text\":\"a b\",\"label\":2}\n{\"sentence1\":\"a b c d a\",\"sentence2\":\"c\",\"label\":\"yes\"}\n"
	              "{\"text_a\":\"a a a a\",\"text_b\":\"b b b b b\",\"label\":0}\n",
	              &objective, 8, &set));
	assert_int_equal(set.rows, 3);
	assert_int_equal(set.trained_tokens, 3);
	assert_int_equal(set.cut_rows, 2);
	check_ok(rh_batch_make(&set, (const int64_t[]){0, 1, 2}, 3, &batch));
	assert_int_equal(batch.tokens, 20);
	assert_memory_equal(batch.start, ((int32_t[]){0, 4, 12, 20}), 16);
	assert_memory_equal(batch.ids, ((int32_t[]){CLS, A, B, SEP, CLS, A, B, C, D, SEP, C, SEP, CLS, A, A, SEP, B, B, B, SEP}), 80);
	assert_memory_equal(batch.type, ((int32_t[]){0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}), 80);
	assert_memory_equal(batch.head_row, ((int32_t[]){0, 4, 12}), 12);
	assert_memory_equal(batch.target, ((int32_t[]){2, 1, 0}), 12);
	assert_true(batch.is_typed);
	rh_batch_free(&batch);
	rh_dataset_free(&set);
	static const char *const wrong[][2] = {{"{\"text\":\"a\",\"label\":3}\n", "label 3 is not within 0 to 2"},
	                                       {"{\"text\":\"a\",\"label\":\"maybe\"}\n", "label 'maybe' is none of label2id"},
	                                       {"{\"text\":\"a\"}\n", "'label' must be a whole number or a name"},
	                                       {"{\"body\":\"a\",\"label\":1}\n", "the row has no text"},
	                                       {"{\"text\":7,\"label\":1}\n", "'text' must be a string"}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		assert_int_equal(load(wrong[i][0], &objective, 8, &set), -EINVAL);
		if (!strstr(rh_error(-EINVAL), wrong[i][1]) || !strstr(rh_error(-EINVAL), "rows.jsonl:1"))
			fail_msg("%s", rh_error(-EINVAL));
	}
	json_decref(names);
}

/* 40,000 tokens: shares within 5 standard deviations; the same draw twice, another in another epoch; the evaluation's own. */
static void test_hidden_tokens_follow_their_shares(void **state)
{
	(void)state;
	enum { ROWS = 400, LONG = 100 };
	static char lines[ROWS * (2 * LONG + 32)];
	struct rh_objective objective = {.task = RH_TASK_MASKED_LM, .hidden_share = 0.15, .seed = 42, .is_typed = 1};
	struct rh_dataset set;
	struct rh_batch batch = {.draw = 1}, again = {.draw = 1}, other = {.draw = 2};
	char *at = lines;
	int64_t rows[ROWS];
	for (int r = 0; r < ROWS; r++) {
		at += sprintf(at, "{\"text\":\"");
		for (int i = 0; i < LONG; i++)
			at += sprintf(at, "%c ", "abcd"[(r + i * i) % 4]);
		at += sprintf(at, "%d\"}\n", r);
		rows[r] = r;
	}
	check_ok(load(lines, &objective, LONG + 2, &set));
	check_ok(rh_batch_make(&set, rows, ROWS, &batch));
	check_ok(rh_batch_make(&set, rows, ROWS, &again));
	check_ok(rh_batch_make(&set, rows, ROWS, &other));
	double all = ROWS * LONG, hidden = (double)batch.trained, masks = 0, kept = 0;
	for (int64_t i = 0; i < batch.trained; i++) {
		int32_t now = batch.ids[batch.head_row[i]];
		assert_true(batch.target[i] >= A && batch.target[i] <= D);
		masks += now == MASK;
		kept += now == batch.target[i];
	}
	check_near(hidden / all, 0.15, 5 * sqrt(0.15 * 0.85 / all));
	check_near(masks / hidden, 0.8 + 0.1 / 12, 5 * sqrt(0.8 * 0.2 / hidden)); /* other tokens are [MASK] too, one in 12 */
	check_near(kept / hidden, 0.1 + 0.1 / 12, 5 * sqrt(0.1 * 0.9 / hidden));
	assert_int_equal(again.trained, batch.trained);
	assert_memory_equal(again.ids, batch.ids, (size_t)batch.tokens * 4);
	assert_true(memcmp(other.ids, batch.ids, (size_t)batch.tokens * 4) != 0);
	rh_batch_free(&batch);
	rh_batch_free(&again);
	rh_batch_free(&other);
	rh_dataset_free(&set);
	check_ok(load("{\"text\":\"a\"}\n{\"text\":\"b\"}\n", &objective, 8, &set)); /* each row has one to find */
	check_ok(rh_batch_make(&set, rows, 2, &batch));
	assert_int_equal(batch.trained, 2);
	rh_batch_free(&batch);
	rh_dataset_free(&set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_vocab_txt_is_a_tokenizer),
	        cmocka_unit_test(test_labels_stand_at_the_first_token),
	        cmocka_unit_test(test_hidden_tokens_follow_their_shares),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
