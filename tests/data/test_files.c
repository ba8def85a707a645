/* Where rows come from beside text files of rows: Parquet, folders and patterns, documents. */
#include "check.h"

#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "data/dataset.h"
#include "fake_tokenizer.h"

#include <stdarg.h>
#include <unistd.h>

static char folder[64];
static const struct rh_tokenizer tokenizer = {.has_eos = 1};

static char *in_folder(const char *name)
{
	static char paths[8][128];
	static int turn;
	char *path = paths[turn++ % 8];
	snprintf(path, sizeof paths[0], "%s/%s", folder, name);
	return path;
}

static void write_file(const char *path, const char *content)
{
	check_ok(rh_file_write_whole(path, content, strlen(content)));
}

static struct rh_config config_of(const char *template)
{
	struct rh_config config = {.dataset_text_field = (char *)(uintptr_t) "text", .max_length = 4096};
	config.completion_only_loss = config.assistant_only_loss = RH_UNSET;
	config.chat_template = (char *)(uintptr_t) template;
	return config;
}

static int load(const char *path, struct rh_config config, struct rh_dataset *out)
{
	char *paths[] = {(char *)(uintptr_t)path};
	config.train_file = (struct rh_list){paths, 1, 1};
	return rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, out);
}

static void assert_same(const struct rh_dataset *a, const struct rh_dataset *b)
{
	assert_int_equal(a->read_rows, b->read_rows);
	assert_int_equal(a->tokens, b->tokens);
	assert_int_equal(a->documents, b->documents);
	assert_memory_equal(a->ids, b->ids, (size_t)a->tokens * sizeof *a->ids);
	assert_memory_equal(a->trained, b->trained, (size_t)a->tokens);
	assert_memory_equal(a->document_start, b->document_start, (size_t)(a->documents + 1) * sizeof *a->document_start);
}

/* The line of an error must begin with `path` and hold `part`. */
static void expect_error(const char *path, struct rh_config config, const char *part)
{
	struct rh_dataset set;
	rh_error_clear();
	int rc = load(path, config, &set);
	const char *line = rh_error(rc);
	if (rc != -EINVAL || strncmp(line, path, strlen(path)) != 0 || !strstr(line, part) || strchr(line, '\n'))
		fail_msg("%d: %s\nlacks '%s'", rc, line, part);
}

/* A null in place of a member would be rendered: columns of structs have each member that any of the rows has. */
static const char tools_template[] =
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<{{ m.role }}>"
        "{% if m.content is defined %}{{ m.content }}{% endif %}{% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}"
        "{% endfor %}";

static void test_parquet_gives_the_rows_of_json_lines(void **state)
{
	(void)state;
	static const struct {
		const char *name, *template;
	} files[] = {{"chat-json", "tools.jinja"},
	             {"chat-structs", "tools.jinja"},
	             {"alpaca", NULL},
	             {"alpaca", "chatml"},
	             {"pages-2", NULL},
	             {"delta", NULL}};
	write_file(in_folder("tools.jinja"), tools_template);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		const char *template = files[i].template;
		struct rh_config config = config_of(template && strchr(template, '.') ? in_folder(template) : template);
		struct rh_dataset parquet, lines;
		char path[128];
		snprintf(path, sizeof path, "tests/reference/parquet/%s.parquet", files[i].name);
		check_ok(load(path, config, &parquet));
		snprintf(path, sizeof path, "tests/reference/parquet/%s.jsonl", files[i].name);
		check_ok(load(path, config, &lines));
		assert_same(&parquet, &lines);
		assert_int_equal(parquet.dropped_rows, lines.dropped_rows);
		rh_dataset_free(&parquet);
		rh_dataset_free(&lines);
	}
}

static void test_rows_of_parquet_are_named_by_number(void **state)
{
	(void)state;
	static const char path[] = "tests/reference/parquet/kinds.parquet";
	expect_error(path, config_of(NULL),
	             " (row 1): no form of rows has the keys '0', '1', '2', '3', '4', '5', '6' (null), '7' and 22 more");
	struct rh_dataset set, held_out = {0};
	struct rh_config config = config_of(NULL);
	check_ok(load("tests/reference/parquet/pages-2.parquet", config, &set)); /* 60 rows of 13 texts */
	const struct rh_finding *duplicate = &set.finding[RH_LINT_DUPLICATE];
	assert_true(duplicate->rows > 20);
	assert_memory_equal(duplicate->example[0], "tests/reference/parquet/pages-2.parquet (row ", 45);
	check_ok(rh_dataset_split(&set, 0.5, 1, &held_out));
	config.allow = ~0;
	check_ok(rh_dataset_check(&set, &held_out, &config));
	assert_memory_equal(set.finding[RH_LINT_OVERLAP].example[0], "tests/reference/parquet/pages-2.parquet (row ", 45);
	rh_dataset_free(&set);
	rh_dataset_free(&held_out);
}

static void test_the_memory_of_a_parquet_row_is_counted(void **state)
{
	(void)state;
	struct rh_config config = config_of(NULL);
	struct rh_dataset set;
	check_ok(load("tests/reference/parquet/pages-2.parquet", config, &set));
	assert_true(set.reading_bytes > 100 && set.reading_bytes < 100000);
	rh_dataset_free(&set);
}

static void test_compressed_parquet_is_to_be_unpacked(void **state)
{
	(void)state;
	struct rh_bytes whole;
	char command[256];
	snprintf(command, sizeof command, "gzip -c tests/reference/parquet/delta.parquet >%s", in_folder("p.gz"));
	assert_int_equal(system(command), 0);
	expect_error(in_folder("p.gz"), config_of(NULL), ": Parquet inside a compressed file; unpack it");
	check_ok(rh_file_load("tests/reference/parquet/delta.parquet", &whole));
	check_ok(rh_file_write_whole(in_folder("cut.parquet"), whole.bytes, whole.length / 2));
	expect_error(in_folder("cut.parquet"), config_of(NULL), ": the Parquet file is cut off");
	rh_bytes_free(&whole);
}

/* Makes files under a folder of the test's: "a/x.jsonl=CONTENT", up to NULL. Returns the folder's path. */
static const char *make_tree(const char *name, ...)
{
	va_list files;
	char *tree = in_folder(name);
	check_ok(rh_dir_remove(tree));
	va_start(files, name);
	for (const char *file; (file = va_arg(files, const char *));) {
		char path[256];
		const char *equals = strchr(file, '=');
		snprintf(path, sizeof path, "%s/%.*s", tree, (int)(equals - file), file);
		char *slash = strrchr(path, '/');
		*slash = 0;
		check_ok(rh_dir_make(path));
		*slash = '/';
		write_file(path, equals + 1);
	}
	va_end(files);
	return tree;
}

static const char *below(const char *tree, const char *name)
{
	static char paths[4][256];
	static int turn;
	char *path = paths[turn++ % 4];
	snprintf(path, sizeof paths[0], "%s/%s", tree, name);
	return path;
}

/* The text of the tokens, of which each is a byte. */
static void expect_texts(const char *path, const char *texts)
{
	struct rh_dataset set;
	struct rh_text seen = {0};
	check_ok(load(path, config_of(NULL), &set));
	for (int64_t d = 0; d < set.documents; d++) {
		for (int64_t at = set.document_start[d]; at < set.document_start[d + 1]; at++)
			if (set.ids[at] < 128)
				check_ok(rh_text_printf(&seen, "%c", set.ids[at]));
		check_ok(rh_text_printf(&seen, "|"));
	}
	assert_string_equal(seen.bytes, texts);
	rh_text_free(&seen);
	rh_dataset_free(&set);
}

static void test_a_folder_is_its_files_of_rows(void **state)
{
	(void)state;
	const char *tree = make_tree("tree", "b.jsonl={\"text\":\"bb\"}", "a/z.csv=text\nzz\nyy\n", "a/deep/c.json=[{\"text\":\"cc\"}]",
	                             ".cache/x.jsonl={\"text\":\"hidden\"}", "README.md=about", "dataset_infos.json={}", "run.sh=ls", NULL);
	expect_texts(tree, "cc|zz|yy|bb|");
	expect_texts(below(tree, ""), "cc|zz|yy|bb|");
}

static void test_a_pattern_is_the_files_that_match(void **state)
{
	(void)state;
	const char *tree = make_tree("tree", "b.jsonl={\"text\":\"bb\"}", "a.jsonl={\"text\":\"aa\"}", "c.csv=text\ncc\n",
	                             "d/e.jsonl={\"text\":\"ee\"}", "d/f/g.jsonl={\"text\":\"gg\"}", "[x].jsonl={\"text\":\"brackets\"}",
	                             ".h.jsonl={\"text\":\"hidden\"}", NULL);
	expect_texts(below(tree, "?.jsonl"), "aa|bb|");
	expect_texts(below(tree, "[a-c].*"), "aa|bb|cc|");
	expect_texts(below(tree, "*/*.jsonl"), "ee|");
	expect_texts(below(tree, "d*/f/../e.jsonl"), "ee|");
	expect_texts(below(tree, "**/[!x]*.jsonl"), "brackets|aa|bb|ee|gg|");
	expect_texts(below(tree, "d/**/*.jsonl"), "ee|gg|");
	expect_texts(below(tree, "**/f/*"), "gg|");
	expect_texts(below(tree, "[x].jsonl"), "brackets|"); /* a file's own name */
	expect_error(below(tree, "*.tsv"), config_of(NULL), ": no file matches the pattern");
	assert_int_equal(symlink(tree, below(tree, "d/loop")), 0); /* is not entered */
	expect_texts(below(tree, "d/**/*.jsonl"), "ee|gg|");
}

static void test_a_folder_of_several_kinds_asks_which(void **state)
{
	(void)state;
	const char *tree = make_tree("tree", "data/train-0.jsonl={\"text\":\"tt\"}", "data/test-0.jsonl={\"text\":\"ee\"}", NULL);
	expect_error(tree, config_of(NULL),
	             "rows to train on and others (train-0.jsonl, test-0.jsonl); name those that you mean by a pattern");
	expect_texts(below(tree, "**/train*"), "tt|");
	tree = make_tree("tree", "training.jsonl={\"text\":\"tt\"}", "testing.jsonl={\"text\":\"ee\"}", NULL);
	expect_texts(tree, "ee|tt|");
	tree = make_tree("tree", "a.jsonl={\"text\":\"aa\"}", "notes/b.txt=bb", NULL);
	expect_error(tree, config_of(NULL), "holds rows (a.jsonl) and documents (b.txt); name those that you mean by a pattern");
	tree = make_tree("tree", "README.md=about", "x.py=print()", NULL);
	expect_error(tree, config_of(NULL), "holds no rows (.jsonl, .json, .csv, .tsv, .parquet) and no documents");
	tree = make_tree("tree", "m/config.json={}", "m/model.safetensors=", "a.jsonl={\"text\":\"aa\"}", NULL);
	expect_error(tree, config_of(NULL), ": a model lies there (model.safetensors)");
	tree = make_tree("tree", "data-00000.arrow=ARROW1", "state.json={}", NULL);
	expect_error(tree, config_of(NULL), "to_parquet('rows.parquet')");
}

/* A weight is that of a folder's every file, and max_samples is each file's. */
static void test_a_folders_files_share_what_is_said_of_it(void **state)
{
	(void)state;
	const char *tree = make_tree("tree", "a/1.jsonl={\"text\":\"a\"}\n{\"text\":\"b\"}", "a/2.jsonl={\"text\":\"c\"}\n{\"text\":\"d\"}",
	                             "e.jsonl={\"text\":\"e\"}", NULL);
	char first[128], second[128], *paths[] = {first, second}, *weights[] = {(char *)(uintptr_t) "2", (char *)(uintptr_t) "1"};
	struct rh_config config = config_of(NULL);
	struct rh_dataset set;
	snprintf(first, sizeof first, "%s/a", tree);
	snprintf(second, sizeof second, "%s/e.jsonl", tree);
	config.train_file = (struct rh_list){paths, 2, 2};
	config.data_weights = (struct rh_list){weights, 2, 2};
	config.max_samples = 1;
	check_ok(rh_dataset_load(RH_DATASET_TRAIN, &config, &tokenizer, &set));
	assert_int_equal(set.read_rows, 3);
	assert_int_equal(set.documents, 5);
	assert_int_equal(set.files, 3);
	rh_dataset_free(&set);
}

/* What rh_dataset_report says. */
static void expect_report(const struct rh_dataset *set, const char *part)
{
	char said[4096] = "";
	FILE *file = tmpfile();
	int kept = dup(STDERR_FILENO);
	fflush(stderr);
	dup2(fileno(file), STDERR_FILENO);
	rh_log_quiet(0);
	rh_dataset_report(set);
	rh_log_quiet(1);
	fflush(stderr);
	dup2(kept, STDERR_FILENO);
	close(kept);
	rewind(file);
	said[fread(said, 1, sizeof said - 1, file)] = 0;
	fclose(file);
	if (!check_has(said, part))
		fail_msg("'%s' is not in: %s", part, said);
}

static void test_memory_that_fails_in_a_folder_is_told(void **state)
{
	(void)state;
	const char *tree = make_tree("tree", "a/b.jsonl={\"text\":\"bb\"}", "c.jsonl={\"text\":\"cc\"}", NULL);
	int refused = 0;
	for (uint64_t n = 1;; n++) {
		struct rh_dataset set;
		rh_alloc_fail_nth(n);
		int rc = load(tree, config_of(NULL), &set);
		if (rh_alloc_fail_nth(0) < n) {
			check_ok(rc);
			rh_dataset_free(&set);
			break;
		}
		assert_int_equal(rc, -ENOMEM);
		refused++;
	}
	assert_true(refused > 20);
}

static void test_txt_and_md_are_documents(void **state)
{
	(void)state;
	const char *tree = make_tree("tree", "a.txt=\n  one,two\nthree\n", "b/c.md=[a](b) {\"x\": 1}\n", "d.TXT={not json}", NULL);
	expect_texts(tree, "\n  one,two\nthree\n|[a](b) {\"x\": 1}\n|{not json}|");
	struct rh_dataset set;
	struct rh_config config = config_of(NULL);
	config.dataset_text_field = (char *)(uintptr_t) "content"; /* no document has columns */
	check_ok(load(below(tree, "a.txt"), config, &set));
	assert_int_equal(set.documents, 1);
	rh_dataset_free(&set);
	tree = make_tree("tree", "bom.txt=\xEF\xBB\xBFtext", "empty.txt=", "latin.txt=\xE9",
	                 "rows.txt= {\"text\": \"r\"}\n{\"text\": \"s\"}\n", "array.md=[\n{\"text\": \"t\"}]", NULL);
	expect_texts(below(tree, "[abr]*"), "t|text|r|s|"); /* those two are rows, whatever their names */
	expect_error(below(tree, "latin.txt"), config_of(NULL), ": the document is not UTF-8; iconv");
	check_ok(load(below(tree, "[be]*.txt"), config_of(NULL), &set)); /* an empty one among others is left out */
	assert_int_equal(set.read_rows, 2);
	assert_int_equal(set.dropped_rows, 1);
	rh_dataset_free(&set);
	expect_error(below(tree, "empty.txt"), config_of(NULL), ": none of its 1 rows has a trained token");
}

/* Documents laid end to end, in blocks of max_length. */
static void test_long_documents_are_wrapped(void **state)
{
	(void)state;
	enum { BYTES = 600000, BLOCK = 1000 };
	struct rh_text text = {0};
	struct rh_dataset set;
	struct rh_config config = config_of(NULL);
	while (text.length < BYTES)
		check_ok(rh_text_printf(&text, "line %zu\n", text.length));
	const char *tree = make_tree("tree", "b.md=end", NULL);
	check_ok(rh_file_write_whole(below(tree, "a.txt"), text.bytes, text.length));
	config.max_length = BLOCK;
	check_ok(load(tree, config, &set));
	assert_int_equal(set.cut_rows, 1);
	expect_report(&set, "1 texts cut to max_length (the longest row has about |; packing: true with packing_strategy: wrapped trains "
	                    "on all of a long text");
	rh_dataset_free(&set);
	config.packing = 1; /* whose first strategy cuts, too */
	check_ok(load(tree, config, &set));
	expect_report(&set, "1 texts cut to max_length (the longest row has about |; packing: true with packing_strategy: wrapped trains "
	                    "on all of a long text");
	rh_dataset_free(&set);
	config.packing_strategy = RH_PACKING_WRAPPED;
	check_ok(load(tree, config, &set));
	size_t all = text.length + 2 + 3; /* bytes, and an end-of-sequence token a document */
	assert_int_equal(set.tokens, all);
	assert_int_equal(set.rows, (all + BLOCK - 1) / BLOCK);
	assert_int_equal(set.cut_rows, 0);
	rh_dataset_free(&set);
	rh_text_free(&text);
}

static void test_how_full_packed_rows_are_is_told(void **state)
{
	(void)state;
	struct rh_config config = config_of(NULL);
	struct rh_dataset set;
	const char *tree = make_tree("tree", "a.txt=1234", "b.txt=12345678", "c.txt=12", NULL); /* of 5, 9 and 3 tokens */
	config.packing = 1;
	config.max_length = 10;
	check_ok(load(tree, config, &set));
	assert_int_equal(set.rows, 2);
	expect_report(&set, "; in 2 packed rows of up to 10 tokens, 85.0 % full");
	rh_dataset_free(&set);
	config.packing_strategy = RH_PACKING_WRAPPED;
	config.max_length = 6;
	check_ok(load(tree, config, &set));
	expect_report(&set, "; in 3 packed rows of up to 6 tokens, 94.4 % full"); /* 17 of 18 */
	rh_dataset_free(&set);
}

int main(void)
{
	snprintf(folder, sizeof folder, "/tmp/rh-test-files-%d", (int)getpid());
	check_ok(rh_dir_make(folder));
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_parquet_gives_the_rows_of_json_lines),
	        cmocka_unit_test(test_rows_of_parquet_are_named_by_number),
	        cmocka_unit_test(test_the_memory_of_a_parquet_row_is_counted),
	        cmocka_unit_test(test_compressed_parquet_is_to_be_unpacked),
	        cmocka_unit_test(test_a_folder_is_its_files_of_rows),
	        cmocka_unit_test(test_a_pattern_is_the_files_that_match),
	        cmocka_unit_test(test_a_folder_of_several_kinds_asks_which),
	        cmocka_unit_test(test_a_folders_files_share_what_is_said_of_it),
	        cmocka_unit_test(test_memory_that_fails_in_a_folder_is_told),
	        cmocka_unit_test(test_txt_and_md_are_documents),
	        cmocka_unit_test(test_long_documents_are_wrapped),
	        cmocka_unit_test(test_how_full_packed_rows_are_is_told),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	check_ok(rh_dir_remove(folder));
	return failed;
}
