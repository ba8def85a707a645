/* How long lines, functions and files may be, and how many parameters a function may have. */
#include "tree.h"

enum { WIDTH = 140, FUNCTION_LINES = 100, PARAMETERS = 7, FILE_LINES = 800 };

static const char *const roots[] = {"src", "offload", "partition", "cuda", "tests", "bench"};

static int faults, functions;
static int silent; /* while the checker itself is checked */

static void complain(const char *path, int line, const char *what, int64_t found, int64_t most)
{
	if (!silent)
		print_error("%s:%d: %s: %lld, at most %lld\n", path, line, what, (long long)found, (long long)most);
	faults++;
}

/* In characters, a tab being one. */
static int64_t width_of(const char *line)
{
	int64_t width = 0;
	for (; *line; line++)
		width += (*line & 0xc0) != 0x80;
	return width;
}

/* Of the outermost parentheses that come first in a function's head. */
static int parameters_of(const char *head)
{
	int depth = 0, count = 0;
	for (; *head; head++) {
		depth += *head == '(';
		count += (*head == '(' && depth == 1) || (*head == ',' && depth == 1);
		if (*head == ')' && !--depth)
			break;
	}
	return count;
}

/* A function's head begins on a line that is not indented, and its body between two braces that stand alone in the first column. */
static void check_text(const char *path, char *text)
{
	char head[4096] = "";
	int number = 0, opened = 0;
	for (char *line; (line = tree_line(&text));) {
		number++;
		if (width_of(line) > WIDTH)
			complain(path, number, "characters in a line", width_of(line), WIDTH);
		if (!strcmp(line, "{")) {
			opened = number;
			functions++;
			if (parameters_of(head) > PARAMETERS && !strstr(head, "cudaMemcpy2DAsync(")) /* CUDA's */
				complain(path, number, "parameters", parameters_of(head), PARAMETERS);
		} else if (line[0] == '}' && opened) {
			if (number - opened + 1 > FUNCTION_LINES)
				complain(path, opened, "lines of a function", number - opened + 1, FUNCTION_LINES);
			opened = 0;
		}
		if (line[0] != ' ' && line[0] != '\t')
			head[0] = 0;
		if (strlen(head) + strlen(line) < sizeof head)
			strcat(head, line);
	}
	if (number > FILE_LINES)
		complain(path, number, "lines of a file", number, FILE_LINES);
}

static void test_lines_functions_and_files_are_short(void **state)
{
	(void)state;
	faults = functions = 0;
	int files = tree_walk_all(roots, sizeof roots / sizeof roots[0], check_text);
	printf("%d files, %d functions\n", files, functions);
	assert_true(files > 100 && functions > 1000); /* run from the root of the tree */
	assert_int_equal(faults, 0);
}

static int faults_of(const char *text)
{
	static char copy[32768];
	snprintf(copy, sizeof copy, "%s", text);
	faults = 0;
	silent = 1;
	check_text("a.c", copy);
	silent = 0;
	return faults;
}

static void test_checker_finds_what_it_should(void **state)
{
	(void)state;
	static char text[32768];
	memset(text, 'x', WIDTH);
	assert_int_equal(faults_of(text), 0);
	memcpy(text + WIDTH - 2, "\u00e9", 3); /* two bytes, one character */
	assert_int_equal(faults_of(text), 0);
	memset(text, 'x', WIDTH + 1);
	assert_int_equal(faults_of(text), 1);
	assert_int_equal(faults_of("int f(int a, int (*b)(int, int), int c, int d,\n      int e, int f, int g)\n{\n}\n"), 0);
	assert_int_equal(faults_of("int f(int a, int (*b)(int, int), int c, int d,\n      int e, int f, int g, int h)\n{\n}\n"), 1);
	for (int lines = FUNCTION_LINES; lines <= FUNCTION_LINES + 1; lines++) {
		strcpy(text, "void f(void)\n{\n");
		for (int i = 2; i < lines; i++)
			strcat(text, "\t;\n");
		assert_int_equal(faults_of(strcat(text, "}\n")), lines > FUNCTION_LINES);
	}
	memset(text, '\n', FILE_LINES + 1);
	text[FILE_LINES - 1] = 0;
	assert_int_equal(faults_of(text), 0);
	text[FILE_LINES - 1] = '\n';
	text[FILE_LINES] = 0;
	assert_int_equal(faults_of(text), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_lines_functions_and_files_are_short),
	        cmocka_unit_test(test_checker_finds_what_it_should),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
