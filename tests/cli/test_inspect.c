/* `inspect` as a person meets it: rows with marks, a page for a browser, JSON; and a status that says whether train would stop. */
#include "cli/good.h"

#include "core/file.h"
#include "core/json.h"

#include <unistd.h>

#define TWICE "{\"prompt\": \"f g\", \"completion\": \"h\"}"
static const char rows[] = "[{\"prompt\": \"a <b> & c\", \"completion\": \" d\\r\\ne\"},\n" TWICE ",\n" TWICE "]\n";

static void make(struct scratch *scratch)
{
	make_good(scratch);
	write_text(path_of("%s/rows.json", scratch->dir), rows);
}

#define INSPECT "inspect --model_name_or_path %s/hf --train_file %s/rows.json "

static void test_rows_are_shown_and_faults_make_the_status(void **state)
{
	(void)state;
	struct scratch scratch;
	make(&scratch);
	struct ran ran = run_line(&scratch, INSPECT "--rows 1", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 1); /* train would stop */
	assert_non_null(strstr(ran.out, "/rows.json:1: "));
	assert_non_null(strstr(ran.out, "a <b> & c"));
	assert_non_null(strstr(ran.out, "« d␍↵\ne"));
	assert_null(strstr(ran.out, "/rows.json:2: "));
	assert_null(strchr(ran.out, '\x1b')); /* no terminal, no colours */
	assert_non_null(strstr(ran.err, "duplicates: 1 of 3 rows that were there before (line 3)"));
	assert_non_null(strstr(ran.err, "train would stop: "));
	run_free(&ran);
	ran = run_line(&scratch, INSPECT "--allow duplicates", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_null(strstr(ran.err, "train would stop"));
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_train_stops_where_inspect_says_so(void **state)
{
	(void)state;
	struct scratch scratch;
	make(&scratch);
	struct ran ran = run_line(&scratch, "train %s/run.yaml --train_file %s/rows.json --allow none", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 1);
	assert_non_null(strstr(ran.err, "more than 1 row in 100: duplicates: remove them"));
	assert_false(rh_dir_exists(path_of("%s/out", scratch.dir)));
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_json_and_html_hold_the_same_rows(void **state)
{
	(void)state;
	struct scratch scratch;
	make(&scratch);
	struct ran ran = run_line(&scratch, INSPECT "--allow duplicates --json", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	json_t *result = NULL;
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &result));
	json_t *shown = json_object_get(result, "rows"), *first = json_array_get(shown, 0);
	assert_int_equal(json_array_size(shown), 3);
	assert_int_equal(json_integer_value(json_object_get(result, "rows_read")), 3);
	assert_int_equal(json_array_size(json_object_get(first, "ids")), json_integer_value(json_object_get(first, "tokens")));
	assert_true(json_array_size(json_object_get(first, "trained")) > 0);
	json_t *length = json_object_get(result, "length"); /* of three rows, 95 in 100 are all three */
	assert_int_equal(json_integer_value(json_object_get(length, "p95")), json_integer_value(json_object_get(length, "longest")));
	json_t *duplicates = json_object_get(json_object_get(result, "findings"), "duplicates");
	assert_int_equal(json_integer_value(json_object_get(duplicates, "rows")), 1);
	json_decref(result);
	run_free(&ran);
	run_ok(&scratch, INSPECT "--allow duplicates --html %s/rows.html", scratch.dir, scratch.dir, scratch.dir);
	struct rh_bytes page;
	check_ok(rh_file_load(path_of("%s/rows.html", scratch.dir), &page));
	assert_non_null(strstr(page.bytes, "<!doctype html>"));
	assert_null(strstr(page.bytes, "a <b>")); /* a row's text is never markup */
	assert_non_null(strstr(page.bytes, "&lt;"));
	assert_non_null(strstr(page.bytes, "<b title="));
	assert_null(strstr(page.bytes, "<script"));
	assert_null(strstr(page.bytes, "http"));
	rh_bytes_free(&page);
	scratch_close(&scratch);
}

/* One row, whose answer has so many words. */
static void write_long_row(const struct scratch *scratch, int words)
{
	char row[2048];
	size_t length = (size_t)snprintf(row, sizeof row, "[{\"prompt\":\"a\",\"completion\":\"");
	for (int i = 0; i < words; i++)
		length += (size_t)snprintf(row + length, sizeof row - length, "b ");
	snprintf(row + length, sizeof row - length, "\"}]");
	write_text(path_of("%s/rows.json", scratch->dir), row);
}

/* Packing decides whether a row is cut, for inspect as for train. */
static void test_rows_that_go_on_are_not_cut(void **state)
{
	(void)state;
	static const char *const strategies[] = {"bfd", "bfd_split", "wrapped"};
	struct scratch scratch;
	make(&scratch);
	write_long_row(&scratch, 500);
	for (int i = 0; i < 3; i++) {
		struct ran ran = run_line(&scratch, INSPECT "--max_length 64 --packing true --packing_strategy %s", scratch.dir,
		                          scratch.dir, strategies[i]);
		assert_int_equal(ran.status, i == 0);
		assert_int_equal(strstr(ran.err, "1 answers lost their end") != NULL, i == 0);
		assert_int_equal(strstr(ran.err, "go on in further pieces") != NULL, i > 0);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* A terminal shows the first 600 tokens of a row; JSON holds all. */
static void test_json_holds_long_rows_whole(void **state)
{
	(void)state;
	enum { WORDS = 900 };
	struct scratch scratch;
	make(&scratch);
	write_long_row(&scratch, WORDS);
	struct ran ran = run_line(&scratch, INSPECT "--json --max_length 4096", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	json_t *result = NULL;
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &result));
	json_t *one = json_array_get(json_object_get(result, "rows"), 0), *trained = json_object_get(one, "trained");
	json_int_t tokens = json_integer_value(json_object_get(one, "tokens"));
	assert_true(tokens > WORDS);
	assert_int_equal(json_integer_value(json_array_get(json_array_get(trained, json_array_size(trained) - 1), 1)), tokens);
	assert_true(json_string_length(json_object_get(one, "text")) > 2 * WORDS);
	json_decref(result);
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_columns_that_are_not_there_are_told(void **state)
{
	(void)state;
	struct scratch scratch;
	make(&scratch);
	struct ran ran = run_line(&scratch, INSPECT "--allow duplicates --dataset_text_field body", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.err, "/rows.json:1: there is no 'body', which data_columns (or dataset_text_field) names as text"));
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_rows_of_one_line_are_told_apart(void **state)
{
	(void)state;
	struct scratch scratch;
	make(&scratch);
	write_text(path_of("%s/rows.json", scratch.dir), "[" TWICE ", {\"prompt\": \"a\", \"completion\": \"b\"}, " TWICE "]\n");
	struct ran ran = run_line(&scratch, INSPECT "--validation_file %s/rows.json", scratch.dir, scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 1);
	assert_non_null(strstr(ran.out, "/rows.json:1 (row 2): "));
	assert_non_null(strstr(ran.err, "(line 1 (row 3))"));                /* duplicates */
	assert_non_null(strstr(ran.err, "(lines 1, 1 (row 2), 1 (row 3))")); /* overlap */
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_no_weights_are_needed(void **state)
{
	(void)state;
	struct scratch scratch;
	make(&scratch);
	assert_int_equal(unlink(path_of("%s/hf/model.safetensors", scratch.dir)), 0);
	struct ran ran = run_line(&scratch, INSPECT "--allow duplicates", scratch.dir, scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.out, "a <b> & c"));
	run_free(&ran);
	scratch_close(&scratch);
}

/* As train reads them: labels beside tokens, two texts in a row, hidden tokens; no end of a turn or of a sequence is missed. */
static void test_rows_of_other_tasks_are_shown_as_they_are_trained(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	const char *dir = scratch.dir;
	check_ok(rh_dir_make(path_of("%s/bert", dir)));
	copy_file("tests/reference/models/bert-cls/config.json", path_of("%s/bert/config.json", dir));
	write_text(path_of("%s/bert/vocab.txt", dir), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nday\n");
	write_text(path_of("%s/rows.jsonl", dir), "{\"sentence1\": \"good day\", \"sentence2\": \"day\", \"label\": 1}\n"
	                                          "{\"text\": \"bad day\", \"label\": 0}\n");
#define OF_TASK "inspect --model_name_or_path %s/bert --train_file %s/rows.jsonl --max_length 16 --task "
	struct ran ran = run_line(&scratch, OF_TASK "sequence_classification --num_labels 2", dir, dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.out, "/rows.jsonl:1: 6 tokens, label 1\n"));
	assert_non_null(strstr(ran.out, "ids: 2 5 7 3 7 3\n"));
	assert_non_null(strstr(ran.out, "/rows.jsonl:2: 4 tokens, label 0\n"));
	assert_non_null(strstr(ran.err, "the longest 6\n"));
	assert_null(strstr(ran.err, "end-of-sequence"));
	assert_null(strstr(ran.err, "no-end-of-turn"));
	run_free(&ran);
	ran = run_line(&scratch, OF_TASK "sequence_classification --num_labels 2 --json", dir, dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.out, "\"ids\":[2,5,7,3,7,3],\"trained\":[],\"tokens\":6,\"label\":1}"));
	run_free(&ran);
	ran = run_line(&scratch, OF_TASK "sequence_classification --num_labels 2 --html %s/rows.html", dir, dir, dir);
	assert_int_equal(ran.status, 0);
	assert_true(find_in(path_of("%s/rows.html", dir), "6 tokens, label 1<") > 0);
	run_free(&ran);
	ran = run_line(&scratch, OF_TASK "masked_lm", dir, dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.out, "ids: 2 «5» «7» 3 7 3\n"));
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rows_are_shown_and_faults_make_the_status),
	        cmocka_unit_test(test_train_stops_where_inspect_says_so),
	        cmocka_unit_test(test_json_and_html_hold_the_same_rows),
	        cmocka_unit_test(test_rows_that_go_on_are_not_cut),
	        cmocka_unit_test(test_json_holds_long_rows_whole),
	        cmocka_unit_test(test_columns_that_are_not_there_are_told),
	        cmocka_unit_test(test_rows_of_one_line_are_told_apart),
	        cmocka_unit_test(test_no_weights_are_needed),
	        cmocka_unit_test(test_rows_of_other_tasks_are_shown_as_they_are_trained),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
