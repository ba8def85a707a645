/* The reader for vocabularies and merges: what is no JSON is refused with its line. */
#include "check.h"

#include "token/scan.h"

#include <string.h>

static int read_string(const char *json, const char **text, size_t *bytes, struct scan *scan)
{
	*scan = (struct scan){.start = json, .cursor = json, .end = json + strlen(json), .where = "test"};
	return scan_string(scan, 0, text, bytes);
}

static void test_strings_are_unescaped(void **state)
{
	(void)state;
	static const struct {
		const char *json, *text;
	} cases[] = {{"\"\"", ""},
	             {"\"plain\"", "plain"},
	             {"  \"a b\"", "a b"},
	             {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
	             {"\"x\\u0041y\"", "xAy"},
	             {"\"\\u00e9\\ud83d\\ude00\"", "\xc3\xa9\xf0\x9f\x98\x80"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct scan scan;
		const char *text;
		size_t bytes;
		check_ok(read_string(cases[i].json, &text, &bytes, &scan));
		assert_int_equal(bytes, strlen(cases[i].text));
		assert_memory_equal(text, cases[i].text, bytes);
		assert_ptr_equal(scan.cursor, scan.end);
		scan_free(&scan);
	}
}

static void test_what_is_no_string_is_refused_with_its_line(void **state)
{
	(void)state;
	static const struct {
		const char *json, *part;
	} cases[] = {{"x", "line 1: expected a string"},
	             {"\n\n7", "line 3: expected a string"},
	             {"\"open", "a string that is not closed"},
	             {"\"open\\", "a string that is not closed"},
	             {"\"two\nlines\"", "a control character in it"},
	             {"\"a\ttab\"", "a control character in it"},
	             {"\"a\\n\ttab\"", "a control character in it"},
	             {"\"\\q\"", "an unknown escape"},
	             {"\"ab\\x41\"", "an unknown escape"},
	             {"\"\\u12\"", "\\u without four hexadecimal digits"},
	             {"\"\\u12g4\"", "\\u without four hexadecimal digits"},
	             {"\"\\ud83d\"", "a lone surrogate"},
	             {"\"\\ude00\"", "a lone surrogate"},
	             {"\"\\ud83d\\u0041\"", "a lone surrogate"},
	             {"\"\xc3\"", "a string that is not UTF-8"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct scan scan;
		const char *text;
		size_t bytes;
		int rc = read_string(cases[i].json, &text, &bytes, &scan);
		if (rc != -EINVAL || !strstr(rh_error(rc), cases[i].part))
			fail_msg("%s: %d, %s", cases[i].json, rc, rc < 0 ? rh_error(rc) : "accepted");
		scan_free(&scan);
	}
}

static void test_whole_numbers(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "-", "x", "1.5", "1e3", "1E3", "9999999999999999999"};
	struct scan scan = {.start = " -120,", .cursor = " -120,", .where = "test"};
	int64_t value;
	scan.start = scan.cursor;
	scan.end = scan.cursor + 6;
	check_ok(scan_integer(&scan, &value));
	assert_int_equal(value, -120);
	assert_int_equal(scan_take(&scan, ','), 1);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		scan = (struct scan){.start = bad[i], .cursor = bad[i], .end = bad[i] + strlen(bad[i]), .where = "test"};
		if (scan_integer(&scan, &value) != -EINVAL)
			fail_msg("'%s' was accepted", bad[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_strings_are_unescaped),
	        cmocka_unit_test(test_what_is_no_string_is_refused_with_its_line),
	        cmocka_unit_test(test_whole_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
