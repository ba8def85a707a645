/* Each fault of tests/mutants/list can be made: its file has the line that it changes, once, and the tests that should find it exist. */
#include "house/tree.h"

struct entry {
	char *file, *old, *new, *tests;
};

/* The next line, without its end; NULL: there is none. */
static char *next_line(char **text)
{
	char *line = strsep(text, "\n");
	return line && (*text || *line) ? line : NULL;
}

/* The next fault; 0: there is none. */
static int next_entry(char **text, struct entry *out)
{
	char *line;
	while ((line = next_line(text)) && (!*line || *line == '#'))
		;
	if (!line)
		return 0;
	*out = (struct entry){.file = line, .old = next_line(text), .new = next_line(text), .tests = next_line(text)};
	assert_non_null(out->tests);
	return 1;
}

static int occurrences(const char *path, const char *words)
{
	struct rh_bytes bytes;
	int count = 0;
	check_ok(rh_file_load(path, &bytes));
	size_t length = strlen(words);
	for (size_t at = 0; at + length <= bytes.length; at++)
		count += !memcmp((const char *)bytes.bytes + at, words, length);
	rh_bytes_free(&bytes);
	return count;
}

static void test_each_fault_can_be_made(void **state)
{
	(void)state;
	struct rh_bytes bytes;
	struct entry entry;
	int faults = 0, stale = 0;
	check_ok(rh_file_load("tests/mutants/list", &bytes));
	char *all = strndup((const char *)bytes.bytes, bytes.length), *text = all;
	assert_non_null(all);
	for (; next_entry(&text, &entry); faults++) {
		assert_true(!strncmp(entry.old, "- ", 2) && !strncmp(entry.new, "+ ", 2));
		int found = occurrences(entry.file, entry.old + 2);
		if (found != 1)
			printf("%s: '%s' is there %d times\n", entry.file, entry.old + 2, found);
		stale += found != 1;
		for (char *name; (name = strsep(&entry.tests, " "));) {
			char path[PATH_BYTES];
			snprintf(path, sizeof path, "tests/%s.c", name);
			if (!rh_file_exists(path))
				fail_msg("%s is to find a fault of %s, and is not there", path, entry.file);
		}
	}
	printf("%d faults\n", faults);
	assert_int_equal(stale, 0);
	assert_true(faults >= 80);
	free(all);
	rh_bytes_free(&bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_fault_can_be_made)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
