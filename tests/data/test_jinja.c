/* The interpreter against Python's jinja2 under transformers' settings: tests/reference/data/jinja.json, made by
 * tests/reference/data_jinja.py of templates of our own for the whole syntax. RH_JINJA_CASES names another such file (published templates:
 * `make reference`). */
#include "check.h"

#include "core/alloc.h"
#include "core/file.h"
#include "jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

static const char date[] = "2024-07-26";

static void show(const char *what, const char *bytes, size_t length)
{
	print_error("%s (%zu bytes): ", what, length);
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)bytes[i] >= ' ')
			print_error("%c", bytes[i]);
		else
			print_error("\\x%02x", (unsigned char)bytes[i]);
	print_error("\n");
}

/* 1 if one rendering is as jinja2's: its text and the spans of {% generation %}, or its refusal's message. */
static int is_same(const char *name, size_t index, const struct rh_jinja *jinja, const json_t *variables, const json_t *expected)
{
	struct rh_text text = {0};
	struct rh_jinja_spans spans = {0};
	struct rh_jinja_input input = {.variables = variables, .date = date};
	int rc = rh_jinja_render(jinja, &input, "x", &text, &spans);
	const json_t *wanted = json_object_get(expected, rc ? "error" : "text"), *marks = json_object_get(expected, "spans");
	const char *seen = rc ? rh_jinja_fault() : text.bytes ? text.bytes : "";
	size_t length = rc ? strlen(seen) : text.length;
	int same = wanted && json_string_length(wanted) == length && !memcmp(json_string_value(wanted), seen, length);
	if (marks && !rc && !spans.is_hidden) {
		same = same && json_array_size(marks) == 2 * spans.count;
		for (size_t i = 0; same && i < spans.count; i++)
			same = (size_t)json_integer_value(json_array_get(marks, 2 * i)) == spans.span[i].first &&
			       (size_t)json_integer_value(json_array_get(marks, 2 * i + 1)) == spans.span[i].end;
	}
	if (!same) {
		const json_t *either =
		        json_object_get(expected, "text") ? json_object_get(expected, "text") : json_object_get(expected, "error");
		print_error("%s, case %zu: not as jinja2 has it%s\n", name, index, rc && !wanted ? " (refused here)" : "");
		show("jinja2", json_string_value(either), json_string_length(either));
		show("here", seen, length);
	}
	rh_text_free(&text);
	rh_jinja_spans_free(&spans);
	return same;
}

static void compare_file(const char *path, size_t least)
{
	json_t *file;
	size_t compared = 0, templates = 0, refused = 0, faults = 0;
	struct rh_bytes bytes;
	check_ok(rh_file_load(path, &bytes));
	check_ok(rh_json_parse_data(bytes.bytes, bytes.length, path, &file));
	rh_bytes_free(&bytes);
	const json_t *variables = json_object_get(file, "variables"), *list = json_object_get(file, "templates");
	for (size_t i = 0; i < json_array_size(list); i++, templates++) {
		const json_t *one = json_array_get(list, i), *text = json_object_get(one, "text"), *cases = json_object_get(one, "cases");
		const char *name = json_string_value(json_object_get(one, "name"));
		struct rh_jinja *jinja = NULL;
		if (rh_jinja_open(json_string_value(text), json_string_length(text), name, &jinja)) {
			const char *error = json_string_value(json_object_get(json_array_get(cases, 0), "error"));
			const char *fault = strstr(rh_jinja_fault(), ": "); /* after line and column */
			if (!error || !fault || strncmp(error, fault + 2, strlen(fault + 2))) {
				print_error("%s\n", rh_error(-EINVAL));
				faults++;
			}
			continue;
		}
		for (size_t k = 0; k < json_array_size(cases); k++, compared++) {
			const json_t *expected = json_array_get(cases, k);
			size_t which = (size_t)json_integer_value(json_object_get(expected, "variables"));
			refused += json_object_get(expected, "error") != NULL;
			faults += !is_same(name, k, jinja, json_array_get(variables, which), expected);
		}
		rh_jinja_close(jinja);
	}
	printf("%s: %zu templates, %zu renderings, %zu of them refused by jinja2 too\n", path, templates, compared, refused);
	json_decref(file);
	assert_int_equal(faults, 0);
	assert_true(compared >= least);
}

static void test_render_equals_jinja2(void **state)
{
	(void)state;
	compare_file("tests/reference/data/jinja.json", 340);
}

static void test_published_templates_equal_jinja2(void **state)
{
	(void)state;
	if (!getenv("RH_JINJA_CASES")) {
		printf("RH_JINJA_CASES is not set: make reference compares the published templates\n");
		skip();
	}
	compare_file(getenv("RH_JINJA_CASES"), 1000);
}

static const struct {
	const char *text, *fault;
} bad[] = {
        {"{% include 'x' %}", "line 1, column 4: {% include %} is not supported in a chat template"},
        {"a\nb {% extends 'x' %}", "line 2, column 6: {% extends %} is not supported in a chat template"},
        {"{% block x %}{% endblock %}", "line 1, column 4: {% block %} is not supported in a chat template"},
        {"{% frob %}", "line 1, column 4: Encountered unknown tag 'frob'."},
        {"{{ 1 +\n  }}", "line 2, column 3: expected an expression, got end of print statement"},
        {"{{ a | nope }}", "line 1, column 8: No filter named 'nope'."},
        {"{{ a is nope }}", "line 1, column 9: No test named 'nope'."},
        {"x{% if a %}\ny{% for b in c %}{% endfor %}{% else %}", "line 1, column 5: {% if %} is not closed"},
        {"{% for x in y %}{% endif %}", "line 1, column 20: Encountered unknown tag 'endif'."},
        {"{{ 'abc }}", "line 1, column 4: a string is not closed"},
        {"{# never closed", "line 1, column 3: Missing end of comment tag"},
        {"{% raw %}x", "line 1, column 10: Missing end of raw directive"},
        {"{{ ) }}", "line 1, column 4: unexpected ')'"},
        {"{{ (1] }}", "line 1, column 6: unexpected ']', expected ')'"},
        {"{{ a b }}", "line 1, column 6: expected end of print statement, got 'b'"},
        {"{{ 1 ? 2 }}", "line 1, column 6: unexpected char '?'"},
        {"\u00e9\u00e9{{ $ }}", "line 1, column 6: unexpected char '$'"},
        {"{% break %}", "line 1, column 4: 'break' outside loop"},
        {"{% set 1 = 2 %}", "line 1, column 8: can't assign to this expression"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "line 1, column 17: non-default argument follows default argument"},
        {"{{ f(**a, b) }}", "line 1, column 5: invalid syntax for function call expression"},
        {"{% call 5 %}{% endcall %}", "line 1, column 9: expected call"},
        {"{{ 99999999999999999999 }}", "line 1, column 4: a number of more than 18 digits is not supported"},
        {"{{ '\\ud800' }}", "line 1, column 4: a string holds half of a surrogate pair"},
        {"\xff", "the template is not valid UTF-8"},
};

static void test_open_bad_template_names_line_and_column(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct rh_jinja *jinja;
		char expected[256];
		snprintf(expected, sizeof expected, "model/chat_template.jinja: %s", bad[i].fault);
		assert_int_equal(rh_jinja_open(bad[i].text, strlen(bad[i].text), "model/chat_template.jinja", &jinja), -EINVAL);
		assert_string_equal(rh_error(-EINVAL), expected);
	}
}

/* Renders with few of everything allowed; the fault's message. */
static const char *bounded(const char *text)
{
	static const struct rh_jinja_bounds bounds = {.steps = 100000, .memory = 32 << 20, .output = 1 << 20, .depth = 300};
	struct rh_jinja *jinja;
	struct rh_text out = {0};
	json_t *variables = json_object();
	struct rh_jinja_input input = {.variables = variables, .date = date, .bounds = &bounds};
	int rc = rh_jinja_open(text, strlen(text), "x", &jinja);
	if (!rc) {
		rc = rh_jinja_render(jinja, &input, "train.jsonl:7", &out, NULL);
		rh_jinja_close(jinja);
	}
	rh_text_free(&out);
	json_decref(variables);
	return rc ? rh_error(rc) : "rendered";
}

static void test_render_keeps_its_bounds(void **state)
{
	(void)state;
	static const char steps[] = "train.jsonl:7: chat template, line 1: the template takes more than 100000 steps";
	static const char depth[] = "train.jsonl:7: chat template, line 1: more than 300 calls, expressions or values inside one another";
	assert_string_equal(bounded("{% for i in range(900) %}{% for k in range(900) %}{% endfor %}{% endfor %}"), steps);
	assert_string_equal(bounded("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), depth);
	assert_string_equal(
	        bounded("{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"), depth);
	assert_string_equal(bounded("{{ 'x' * 100000000 }}"), steps);
	assert_non_null(strstr(bounded("{{ 'xxxxxxxxxxxxxxxx' * 90000 }}"), "the template writes a text of more than 1 MiB"));
	assert_non_null(strstr(bounded("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
	                       "the template needs more than 32 MiB of memory"));
	assert_non_null(strstr(bounded("{{ 'a'.center(99999999999) }}"), "the template writes a text"));
	assert_non_null(strstr(bounded("{{ '%99999999999d' % 1 }}"), "a format of more than"));
	assert_string_equal(bounded("{% for i in range(5000) %}x{% endfor %}"), "rendered");
}

/* One character, `count` times, between two texts. */
static const char *nested(const char *before, const char *open, const char *middle, const char *close, int count)
{
	struct rh_text text = {0};
	check_ok(rh_text_printf(&text, "%s", before));
	for (int i = 0; i < count; i++)
		check_ok(rh_text_printf(&text, "%s", open));
	check_ok(rh_text_printf(&text, "%s", middle));
	for (int i = 0; i < count; i++)
		check_ok(rh_text_printf(&text, "%s", close));
	const char *said = bounded(text.bytes);
	rh_text_free(&text);
	return said;
}

static void test_nested_syntax_is_bounded(void **state)
{
	(void)state;
	assert_non_null(strstr(nested("{{ ", "(", "1", ")", 100), "expected end of"));
	assert_non_null(strstr(nested("{{ ", "(", "1", ")", 100000), "inside one another"));
	assert_non_null(strstr(nested("{{ ", "[", "1", "]", 200), "expressions inside one another"));
	assert_non_null(strstr(nested("{{ ", "-", "1 }}", "", 100000), "expressions inside one another"));
	assert_non_null(strstr(nested("{{ ", "not ", "1 }}", "", 100000), "parts in a row"));
	assert_non_null(strstr(nested("{{ 1", " + 1", " }}", "", 100000), "parts in a row"));
	assert_non_null(strstr(nested("{{ x", "|trim", " }}", "", 100000), "parts in a row"));
	assert_non_null(strstr(nested("", "{% if 1 %}", "x", "{% endif %}", 10000), "inside one another"));
	assert_string_equal(nested("{{ 1", " + 1", " }}", "", 200), "rendered");
}

static void test_every_refused_allocation_unwinds(void **state)
{
	(void)state;
	static const char text[] =
	        "{% macro m(a) %}{{ a|tojson(indent=2) }}{% endmacro %}{% for i in range(3) %}{{ m({'a': [i, 1.5]}) }}{% endfor %}";
	json_t *variables = json_object();
	struct rh_jinja_input input = {.variables = variables, .date = date};
	for (uint64_t nth = 1;; nth++) {
		struct rh_jinja *jinja = NULL;
		struct rh_text out = {0};
		rh_alloc_fail_nth(nth);
		int rc = rh_jinja_open(text, strlen(text), "x", &jinja);
		if (!rc)
			rc = rh_jinja_render(jinja, &input, "x", &out, NULL);
		uint64_t asked = rh_alloc_fail_nth(0);
		rh_jinja_close(jinja);
		rh_text_free(&out);
		if (asked < nth) {
			check_ok(rc);
			break;
		}
		assert_int_equal(rc, -ENOMEM);
	}
	json_decref(variables);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_render_equals_jinja2),
	        cmocka_unit_test(test_published_templates_equal_jinja2),
	        cmocka_unit_test(test_open_bad_template_names_line_and_column),
	        cmocka_unit_test(test_render_keeps_its_bounds),
	        cmocka_unit_test(test_nested_syntax_is_bounded),
	        cmocka_unit_test(test_every_refused_allocation_unwinds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
