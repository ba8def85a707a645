/* Parquet files against the rows that pyarrow reads from them (tests/reference/parquet.py): each NAME.parquet of the folder beside its
 * NAME.jsonl. RH_PARQUET_FOLDER names another folder. Damaged files are refused in one line. */
#include "check.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "parquet/parquet.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char committed[] = "tests/reference/parquet";
static char copy[64]; /* the path of */
static int memory;

static const char *in_folder(const char *folder, const char *name, const char *ending)
{
	static char paths[4][512];
	static int turn;
	char *path = paths[turn++ % 4];
	snprintf(path, sizeof paths[0], "%s/%s%s", folder, name, ending);
	return path;
}

static size_t json_bytes, json_peak;

static void *take_counted(size_t size)
{
	void *taken = malloc(size);
	json_bytes += malloc_usable_size(taken);
	json_peak = json_bytes > json_peak ? json_bytes : json_peak;
	return taken;
}

static void free_counted(void *taken)
{
	json_bytes -= malloc_usable_size(taken);
	free(taken);
}

/* All rows of the file against the lines of `expected`, also what each takes against what is counted. Returns how many there were. */
static int compare(const char *path, const char *expected)
{
	struct rh_parquet *file;
	struct rh_bytes lines;
	int rows = 0, rc;
	json_t *row, *line;
	check_ok(rh_file_load(expected, &lines));
	check_ok(rh_parquet_open(path, &file));
	const char *at = lines.bytes;
	for (;; rows++) {
		json_bytes = json_peak = 0;
		rc = rh_parquet_next(file, 0, &row);
		if (rc <= 0)
			break;
		if ((int64_t)json_peak > rh_parquet_row_bytes(file))
			fail_msg("%s (row %d): %zu bytes of %lld", path, rows + 1, json_peak, (long long)rh_parquet_row_bytes(file));
		const char *end = strchr(at, '\n');
		if (!end)
			fail_msg("%s: more than the %d rows of %s", path, rows, expected);
		check_ok(rh_json_parse(at, (size_t)(end - at), expected, &line));
		if (!json_equal(row, line)) {
			char *text = json_dumps(row, JSON_COMPACT);
			fail_msg("%s (row %d): %.2000s\nis not %.*s", path, rows + 1, text, (int)(end - at < 2000 ? end - at : 2000), at);
		}
		assert_int_equal(rh_parquet_row(file), rows + 1);
		at = end + 1;
		json_decref(row);
		json_decref(line);
	}
	if (rc)
		fail_msg("%s (row %d): %s", path, rows + 1, rh_error(rc));
	if (*at)
		fail_msg("%s: %d rows, fewer than %s", path, rows, expected);
	rh_parquet_close(file);
	rh_bytes_free(&lines);
	return rows;
}

static void test_rows_equal_those_that_pyarrow_reads(void **state)
{
	(void)state;
	const char *named = getenv("RH_PARQUET_FOLDER"), *folder = named ? named : committed;
	struct rh_names names;
	int files = 0, rows = 0;
	check_ok(rh_dir_list(folder, &names));
	json_set_alloc_funcs(take_counted, free_counted);
	for (size_t i = 0; i < names.count; i++) {
		size_t length = strlen(names.name[i]), ending = strlen(".jsonl");
		if (length < ending || strcmp(names.name[i] + length - ending, ".jsonl") != 0)
			continue;
		names.name[i][length - ending] = 0;
		rows += compare(in_folder(folder, names.name[i], ".parquet"), in_folder(folder, names.name[i], ".jsonl"));
		files++;
	}
	json_set_alloc_funcs(malloc, free);
	rh_names_free(&names);
	printf("%d files, %d rows\n", files, rows);
	assert_true(files > 10);
}

/* Reads all rows: their number, or negative errno. */
static int64_t read_all(const char *path, int64_t room)
{
	struct rh_parquet *file;
	json_t *row;
	int64_t rows = 0;
	int rc = rh_parquet_open(path, &file);
	if (rc)
		return rc;
	while ((rc = rh_parquet_next(file, room, &row)) > 0) {
		rows++;
		json_decref(row);
	}
	rh_parquet_close(file);
	return rc ? rc : rows;
}

/* The line that refuses the file: one line, which begins with its path. */
static const char *refusal(const char *path, int64_t room)
{
	rh_error_clear();
	int64_t rows = read_all(path, room);
	const char *line = rh_error((int)rows);
	if (rows != -EINVAL)
		fail_msg("%s: %lld: %s", path, (long long)rows, rows < 0 ? line : "read");
	assert_null(strchr(line, '\n'));
	assert_memory_equal(line, path, strlen(path));
	return line;
}

static void expect_refusal(const char *name, int64_t room, const char *part)
{
	const char *line = refusal(in_folder(committed, name, ".parquet"), room);
	if (!strstr(line, part))
		fail_msg("'%s' is not in the line: %s", part, line);
}

static void test_compressions_that_are_not_read_are_named(void **state)
{
	(void)state;
	expect_refusal("lz4", 0, "compressed with lz4, which is not read; write it with zstd");
	expect_refusal("brotli", 0, "compressed with brotli, which is not read; write it with zstd");
}

static void test_rows_that_do_not_begin_or_end_with_their_lists_are_refused(void **state)
{
	(void)state;
	expect_refusal("no-start", 0, "(row 1): column 'l' is damaged: a row begins within a list");
	expect_refusal("no-end", 0, "(row 3): column 'l' is damaged: it has more values than there are rows");
}

/* Of 20 row groups of 25 kB one page of 2 kB is in memory, and what its head was read into. */
static void test_memory_is_that_of_a_page(void **state)
{
	(void)state;
	const char *path = in_folder(committed, "groups", ".parquet");
	struct rh_parquet *file;
	json_t *row;
	int64_t most = 0;
	int rc;
	check_ok(rh_parquet_open(path, &file));
	while ((rc = rh_parquet_next(file, 0, &row)) > 0) {
		int64_t bytes = rh_parquet_row_bytes(file);
		most = bytes > most ? bytes : most;
		json_decref(row);
	}
	assert_int_equal(rc, 0);
	rh_parquet_close(file);
	assert_true(most > 2500 && most < 15000);
	assert_int_equal(read_all(path, most), 1000);
	expect_refusal("groups", 2000, "(row 1): reading it takes more than the 0.0 MiB of memory that are left for a row");
}

/* The path of a file in memory. */
static const char *write_copy(const char *bytes, size_t length)
{
	if (ftruncate(memory, 0) || pwrite(memory, bytes, length, 0) != (ssize_t)length)
		fail_msg("no file in memory");
	return copy;
}

static void test_a_file_cut_anywhere_is_refused(void **state)
{
	(void)state;
	struct rh_bytes whole;
	check_ok(rh_file_load(in_folder(committed, "list-bare-struct", ".parquet"), &whole));
	for (size_t length = 4; length < whole.length; length++)
		refusal(write_copy(whole.bytes, length), 0);
	rh_bytes_free(&whole);
}

/* Any byte changed: other rows, or a line; never a crash (make asan and ubsan run this too). */
static void test_a_changed_byte_is_read_or_refused(void **state)
{
	(void)state;
	static const char *const names[] = {"list-tuple", "delta", "delta-lengths", "gzip-checksum", "pages-2", "nested-item"};
	for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
		struct rh_bytes whole;
		int refused = 0;
		check_ok(rh_file_load(in_folder(committed, names[n], ".parquet"), &whole));
		for (size_t at = 4; at < whole.length; at++) {
			char byte = whole.bytes[at];
			whole.bytes[at] = (char)(byte ^ (at % 3 ? 1 << at % 8 : 0xff));
			rh_error_clear();
			int64_t rows = read_all(write_copy(whole.bytes, whole.length), 1 << 20);
			const char *line = rh_error((int)rows);
			if (rows < 0 && (rows != -EINVAL || strncmp(line, copy, strlen(copy)) != 0 || strchr(line, '\n')))
				fail_msg("%s: byte %zu: %lld: %s", names[n], at, (long long)rows, line);
			refused += rows < 0;
			whole.bytes[at] = byte;
		}
		printf("%s: %d of %zu refused\n", names[n], refused, whole.length - 4);
		assert_true(refused > 0);
		rh_bytes_free(&whole);
	}
}

static void test_a_wrong_checksum_is_found(void **state)
{
	(void)state;
	struct rh_bytes whole;
	check_ok(rh_file_load(in_folder(committed, "gzip-checksum", ".parquet"), &whole));
	char *page = memmem(whole.bytes, whole.length, "\x1f\x8b", 2);
	assert_non_null(page);
	page[6] ^= 1; /* of gzip's head, which inflate ignores */
	assert_non_null(strstr(refusal(write_copy(whole.bytes, whole.length), 0), "a page's checksum is wrong"));
	rh_bytes_free(&whole);
}

static void test_memory_that_fails_is_told(void **state)
{
	(void)state;
	const char *path = in_folder(committed, "pages-2", ".parquet");
	for (uint64_t n = 1;; n++) {
		rh_alloc_fail_nth(n);
		int64_t rows = read_all(path, 0);
		int failed = rh_alloc_fail_nth(0) >= n;
		rh_error_clear();
		if (!failed) {
			assert_int_equal(rows, 60);
			break;
		}
		assert_int_equal(rows, -ENOMEM);
	}
}

static void test_what_is_no_parquet_is_not_taken_for_it(void **state)
{
	(void)state;
	assert_true(rh_parquet_is_one(in_folder(committed, "delta", ".parquet")));
	assert_false(rh_parquet_is_one(in_folder(committed, "delta", ".jsonl")));
	assert_false(rh_parquet_is_one(committed));
	assert_false(rh_parquet_is_one("missing.parquet"));
}

int main(void)
{
	memory = memfd_create("copy", MFD_CLOEXEC);
	snprintf(copy, sizeof copy, "/proc/self/fd/%d", memory);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rows_equal_those_that_pyarrow_reads),
	        cmocka_unit_test(test_compressions_that_are_not_read_are_named),
	        cmocka_unit_test(test_rows_that_do_not_begin_or_end_with_their_lists_are_refused),
	        cmocka_unit_test(test_memory_is_that_of_a_page),
	        cmocka_unit_test(test_a_file_cut_anywhere_is_refused),
	        cmocka_unit_test(test_a_changed_byte_is_read_or_refused),
	        cmocka_unit_test(test_a_wrong_checksum_is_found),
	        cmocka_unit_test(test_memory_that_fails_is_told),
	        cmocka_unit_test(test_what_is_no_parquet_is_not_taken_for_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
