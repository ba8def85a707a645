/* Lines as a terminal of so many columns shows them. */
#include "check.h"

#include "core/wrap.h"

#include <string.h>

static void expect(const char *text, int columns, const char *expected)
{
	char seen[512] = {0};
	FILE *file = tmpfile();
	assert_non_null(file);
	rh_put_line_in(file, text, columns);
	rewind(file);
	assert_true(fread(seen, 1, sizeof seen - 1, file) > 0);
	fclose(file);
	assert_string_equal(seen, expected);
}

static void test_lines_break_between_words(void **state)
{
	(void)state;
	static const char text[] = "rows.json: 60 rows read, 60 documents in 60 rows, 7056 tokens";
	expect(text, 0, "rows.json: 60 rows read, 60 documents in 60 rows, 7056 tokens\n"); /* no terminal */
	expect(text, 61, "rows.json: 60 rows read, 60 documents in 60 rows, 7056 tokens\n");
	expect(text, 60, "rows.json: 60 rows read, 60 documents in 60 rows, 7056\n  tokens\n");
	expect(text, 40, "rows.json: 60 rows read, 60 documents in\n  60 rows, 7056 tokens\n");
	expect(text, 12, "rows.json: 60 rows read, 60 documents in 60 rows, 7056 tokens\n"); /* left to the terminal */
	expect("", 80, "\n");
	expect("a\nb\n", 80, "a\nb\n");
	/* characters count, not bytes */
	expect("\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4 123456789 123456789 123456789", 40,
	       "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4 123456789 123456789 123456789\n");
	/* a word that fits no line stands alone; blanks inside a line stay */
	expect("see  https://example.org/a/very/long/address/that/no/line/holds now", 40,
	       "see\n     https://example.org/a/very/long/address/that/no/line/holds\n     now\n");
	expect("speed   b 123456789 123456789 123456789 123456789", 40, "speed   b 123456789 123456789 123456789\n        123456789\n");
	expect("  do    b 123456789 123456789 123456789 123456789", 40, "  do    b 123456789 123456789 123456789\n        123456789\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_lines_break_between_words),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
