/* Where rows come from beside text files of rows: Parquet, folders and patterns, documents. */
#include "check.h"

#include "core/file.h"
#include "core/log.h"
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
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	check_ok(rh_dir_remove(folder));
	return failed;
}
