/* Tests: value is NAME. */
#include "jinja/jinja_internal.h"

#include <string.h>

#define KIND_TEST(name, condition)                                                                                                         \
	static int is_##name(struct jinja *j, struct jinja_value value, const struct jinja_call *call)                                     \
	{                                                                                                                                  \
		jinja_need_count(j, call, "test_" #name, 0, 0);                                                                            \
		return condition;                                                                                                          \
	}
KIND_TEST(defined, value.kind != JINJA_UNDEFINED)
KIND_TEST(undefined, value.kind == JINJA_UNDEFINED)
KIND_TEST(none, value.kind == JINJA_NONE)
KIND_TEST(boolean, value.kind == JINJA_BOOL)
KIND_TEST(true, value.kind == JINJA_BOOL && value.content.integer)
KIND_TEST(false, value.kind == JINJA_BOOL && !value.content.integer)
KIND_TEST(integer, value.kind == JINJA_INT || value.kind == JINJA_WIDE)
KIND_TEST(float, value.kind == JINJA_FLOAT)
KIND_TEST(number, jinja_is_number(value) || value.kind == JINJA_WIDE)
KIND_TEST(string, value.kind == JINJA_STRING)
KIND_TEST(mapping, value.kind == JINJA_DICT)
KIND_TEST(sequence, (jinja_length(value) >= 0 && value.kind != JINJA_VIEW && value.kind != JINJA_LOOP))
KIND_TEST(iterable, jinja_length(value) >= 0 || value.kind == JINJA_GENERATOR)
/* Undefined has a __call__, which raises. */
KIND_TEST(callable, value.kind == JINJA_UNDEFINED || value.kind == JINJA_MACRO || value.kind == JINJA_FUNCTION ||
                            value.kind == JINJA_METHOD || value.kind == JINJA_LOOP || value.kind == JINJA_JOINER)
KIND_TEST(escaped, value.kind == JINJA_STRING && value.is_markup)
KIND_TEST(lower, jinja_is_class(jinja_str(j, value), "islower"))
KIND_TEST(upper, jinja_is_class(jinja_str(j, value), "isupper"))

static struct jinja_value other(struct jinja *j, const struct jinja_call *call)
{
	jinja_need_count(j, call, "test", 1, 1);
	return call->count ? call->argument[0] : call->keyword[0].value;
}

static int remainder_is(struct jinja *j, struct jinja_value value, struct jinja_value by, int64_t wanted)
{
	return jinja_equal(j, jinja_binary(j, OP_MOD, value, by), jinja_int(wanted));
}

static int is_odd(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "test_odd", 0, 0);
	return remainder_is(j, value, jinja_int(2), 1);
}

static int is_even(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "test_even", 0, 0);
	return remainder_is(j, value, jinja_int(2), 0);
}

static int is_divisibleby(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return remainder_is(j, value, other(j, call), 0);
}

static int is_in(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return jinja_contains(j, other(j, call), value);
}

static int is_eq(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return jinja_equal(j, value, other(j, call));
}

static int is_ne(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return !jinja_equal(j, value, other(j, call));
}

static int is_lt(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return jinja_ordered(j, OP_LT, value, other(j, call));
}

static int is_le(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return jinja_ordered(j, OP_LE, value, other(j, call));
}

static int is_gt(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return jinja_ordered(j, OP_GT, value, other(j, call));
}

static int is_ge(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return jinja_ordered(j, OP_GE, value, other(j, call));
}

/* One object: None, True, False, small numbers and what is shared. */
static int is_sameas(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value to = other(j, call);
	if (value.kind != to.kind)
		return 0;
	if (value.kind == JINJA_NONE)
		return 1;
	if (value.kind == JINJA_STRING)
		return value.content.string->bytes == to.content.string->bytes && value.content.string->length == to.content.string->length;
	return value.content.integer == to.content.integer;
}

static int is_filter(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "test_filter", 0, 0);
	return value.kind == JINJA_STRING && jinja_find_filter(value.content.string->bytes, value.content.string->length);
}

static int is_test(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "test_test", 0, 0);
	return value.kind == JINJA_STRING && jinja_find_test(value.content.string->bytes, value.content.string->length);
}

static const struct jinja_test tests[] = {
        {"defined", is_defined},
        {"undefined", is_undefined},
        {"none", is_none},
        {"boolean", is_boolean},
        {"true", is_true},
        {"false", is_false},
        {"integer", is_integer},
        {"float", is_float},
        {"number", is_number},
        {"string", is_string},
        {"mapping", is_mapping},
        {"sequence", is_sequence},
        {"iterable", is_iterable},
        {"callable", is_callable},
        {"escaped", is_escaped},
        {"lower", is_lower},
        {"upper", is_upper},
        {"odd", is_odd},
        {"even", is_even},
        {"divisibleby", is_divisibleby},
        {"in", is_in},
        {"sameas", is_sameas},
        {"filter", is_filter},
        {"test", is_test},
        {"eq", is_eq},
        {"equalto", is_eq},
        {"==", is_eq},
        {"ne", is_ne},
        {"!=", is_ne},
        {"lt", is_lt},
        {"lessthan", is_lt},
        {"<", is_lt},
        {"le", is_le},
        {"<=", is_le},
        {"gt", is_gt},
        {"greaterthan", is_gt},
        {">", is_gt},
        {"ge", is_ge},
        {">=", is_ge},
};

const struct jinja_test *jinja_find_test(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (strlen(tests[i].name) == length && !memcmp(tests[i].name, name, length))
			return &tests[i];
	return NULL;
}
