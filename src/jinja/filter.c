/* Filters on one value; those on lists are in filter_list.c. */
#include "jinja/jinja_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The value as text, still markup where it is. */
static struct jinja_value soft(struct jinja *j, struct jinja_value value)
{
	if (value.kind == JINJA_STRING)
		return value;
	struct jinja_string string = jinja_str(j, value);
	return jinja_string(j, string.bytes, string.length);
}

static struct jinja_value like(struct jinja_value from, struct jinja_value text)
{
	text.is_markup = from.kind == JINJA_STRING && from.is_markup;
	return text;
}

/* A method of the value's text by its name. */
static struct jinja_value by_method(struct jinja *j, struct jinja_value value, const char *name, const struct jinja_call *call)
{
	return jinja_find_string_method(name)->call(j, soft(j, value), call);
}

static const struct jinja_call nothing;

static struct jinja_value do_trim(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value characters = jinja_argument(call, 0, "chars");
	struct jinja_string kept = jinja_strip(j, *soft(j, value).content.string, characters, 3);
	return like(value, jinja_string(j, kept.bytes, kept.length));
}

static struct jinja_value do_upper(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return by_method(j, value, "upper", call);
}

static struct jinja_value do_lower(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return by_method(j, value, "lower", call);
}

static struct jinja_value do_capitalize(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return by_method(j, value, "capitalize", call);
}

static int starts_word(int32_t code)
{
	return jinja_is_space(code) || (code < 0x80 && code && strchr("-({[<", code));
}

/* Words begin after blanks and opening brackets, unlike str.title()'s. */
static struct jinja_value do_title(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "title", 0, 0);
	struct jinja_buffer out = {0};
	struct jinja_string string = *soft(j, value).content.string;
	for (size_t at = 0; at < string.length;) {
		size_t end = at;
		int between = starts_word(jinja_code_at(string.bytes + at, string.length - at));
		while (end < string.length && starts_word(jinja_code_at(string.bytes + end, string.length - end)) == between)
			end += jinja_code_length(string.bytes + end);
		size_t first = jinja_code_length(string.bytes + at);
		struct jinja_string head = {string.bytes + at, first}, tail = {string.bytes + at + first, end - at - first};
		jinja_put_str(j, &out, jinja_recase(j, head, CASE_UPPER));
		jinja_put_str(j, &out, jinja_recase(j, tail, CASE_LOWER));
		at = end;
	}
	return like(value, jinja_copy(j, &out));
}

static struct jinja_value do_string(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "soft_str", 0, 0);
	return soft(j, value);
}

static struct jinja_value do_replace(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value old = jinja_argument(call, 0, "old"), fresh = jinja_argument(call, 1, "new");
	if (old.kind == JINJA_MISSING || fresh.kind == JINJA_MISSING)
		jinja_raise(&j->arena, "do_replace() missing %s required positional argument%s", old.kind == JINJA_MISSING ? "2" : "1",
		            old.kind == JINJA_MISSING ? "s: 'old' and 'new'" : ": 'new'");
	return jinja_replace(j, jinja_str(j, value), jinja_str(j, old), jinja_str(j, fresh), jinja_argument_int(j, call, 2, "count", -1));
}

static struct jinja_value do_default(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value otherwise = jinja_argument(call, 0, "default_value");
	jinja_need_count(j, call, "do_default", 0, 2);
	if (value.kind != JINJA_UNDEFINED && !(jinja_argument_bool(j, call, 1, "boolean", 0) && !jinja_truth(j, value)))
		return value;
	return otherwise.kind == JINJA_MISSING ? jinja_text(j, "") : otherwise;
}

static struct jinja_value do_length(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "len", 0, 0);
	int64_t length = jinja_length(value);
	if (length < 0)
		jinja_raise(&j->arena, "object of type '%s' has no len()", jinja_type(value));
	return jinja_int(length);
}

static struct jinja_value whole(struct jinja *j, double real, struct jinja_value otherwise)
{
	if (isnan(real) || isinf(real))
		return otherwise;
	if (real > 9.2e18 || real < -9.2e18)
		jinja_raise(&j->arena, "a whole number of more than 64 bits is not supported");
	return jinja_int((int64_t)real);
}

static struct jinja_value do_int(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value otherwise = jinja_argument(call, 0, "default");
	int64_t base = jinja_argument_int(j, call, 1, "base", 10), integer;
	double real;
	if (otherwise.kind == JINJA_MISSING)
		otherwise = jinja_int(0);
	jinja_need_defined(j, value);
	if (value.kind == JINJA_WIDE)
		return value;
	if (value.kind == JINJA_FLOAT)
		return whole(j, value.content.real, otherwise);
	if (jinja_is_number(value))
		return jinja_int(value.content.integer);
	if (value.kind != JINJA_STRING)
		return otherwise;
	if (base != 0 && (base < 2 || base > 36))
		return otherwise;
	if (jinja_parse_int(*value.content.string, (int)base, &integer))
		return jinja_int(integer);
	return jinja_parse_float(*value.content.string, &real) ? whole(j, real, otherwise) : otherwise;
}

static struct jinja_value do_float(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value otherwise = jinja_argument(call, 0, "default");
	double real;
	jinja_need_defined(j, value);
	if (jinja_is_number(value))
		return jinja_float(jinja_real(value));
	if ((value.kind == JINJA_STRING || value.kind == JINJA_WIDE) && jinja_parse_float(*value.content.string, &real))
		return jinja_float(real);
	return otherwise.kind == JINJA_MISSING ? jinja_float(0) : otherwise;
}

static struct jinja_value do_abs(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "abs", 0, 0);
	if (!jinja_is_number(value))
		jinja_raise(&j->arena, "bad operand type for abs(): '%s'", jinja_type(value));
	if (value.kind == JINJA_FLOAT)
		return jinja_float(fabs(value.content.real));
	return value.content.integer < 0 ? jinja_negate(j, value, -1) : jinja_int(value.content.integer);
}

static struct jinja_value do_round(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	char digits[400];
	int64_t places = jinja_argument_int(j, call, 0, "precision", 0);
	struct jinja_string method = jinja_argument_text(j, call, 1, "method", "common");
	int is_common = method.length == 6 && !memcmp(method.bytes, "common", 6),
	    is_ceil = method.length == 4 && !memcmp(method.bytes, "ceil", 4);
	if (!is_common && !is_ceil && !(method.length == 5 && !memcmp(method.bytes, "floor", 5)))
		jinja_raise(&j->arena, "method must be common, ceil or floor");
	jinja_need_defined(j, value);
	if (!jinja_is_number(value))
		jinja_raise(&j->arena, "type %s doesn't define __round__ method", jinja_type(value));
	if (places < 0 || places > 20)
		jinja_raise(&j->arena, "round to %lld places is not supported", (long long)places);
	double power = pow(10, (double)places), real = jinja_real(value);
	if (!is_common)
		return jinja_float((is_ceil ? ceil : floor)(real * power) / power);
	if (value.kind != JINJA_FLOAT)
		return jinja_int(value.content.integer);
	snprintf(digits, sizeof digits, "%.*f", (int)places, real);
	return jinja_float(strtod(digits, NULL));
}

static struct jinja_value do_format(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value arguments = jinja_new_list(j, JINJA_TUPLE);
	if (call->count && call->keywords)
		jinja_raise(&j->arena, "can't handle positional and keyword arguments at the same time");
	if (call->keywords) {
		arguments = jinja_new_dict(j, JINJA_DICT);
		for (size_t i = 0; i < call->keywords; i++)
			jinja_dict_set(j, arguments.content.dict, call->keyword[i].key, call->keyword[i].value);
	}
	for (size_t i = 0; i < call->count; i++)
		jinja_push(j, arguments.content.list, call->argument[i]);
	return jinja_percent(j, jinja_str(j, value), arguments);
}

static struct jinja_value do_safe(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "do_mark_safe", 0, 0);
	struct jinja_value text = soft(j, value);
	text.is_markup = 1;
	return text;
}

static struct jinja_value do_escape(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "escape", 0, 0);
	return jinja_escape(j, value);
}

static struct jinja_value do_forceescape(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "do_forceescape", 0, 0);
	struct jinja_value text = soft(j, value);
	text.is_markup = 0;
	return jinja_escape(j, text);
}

static struct jinja_value do_indent(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value width = jinja_argument(call, 0, "width");
	int first = jinja_argument_bool(j, call, 1, "first", 0), blank = jinja_argument_bool(j, call, 2, "blank", 0);
	struct jinja_buffer indent = {0}, out = {0};
	if (width.kind == JINJA_STRING)
		jinja_put_string(j, &indent, *width.content.string);
	for (int64_t i = width.kind == JINJA_STRING ? 0 : jinja_argument_int(j, call, 0, "width", 4); i > 0; i--)
		jinja_put(j, &indent, " ", 1);
	value = jinja_binary(j, OP_ADD, value, jinja_text(j, "\n")); /* a quirk that splitlines needs */
	const struct jinja_list *lines = jinja_items(j, by_method(j, value, "splitlines", &nothing));
	if (first)
		jinja_put(j, &out, indent.bytes ? indent.bytes : "", indent.length);
	for (size_t i = 0; i < lines->count; i++) {
		struct jinja_string line = *lines->item[i].content.string;
		if (i)
			jinja_put(j, &out, "\n", 1);
		if (i && (blank || line.length))
			jinja_put(j, &out, indent.bytes ? indent.bytes : "", indent.length);
		jinja_put_string(j, &out, line);
	}
	return like(value, jinja_copy(j, &out));
}

static struct jinja_value do_truncate(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	int64_t length = jinja_argument_int(j, call, 0, "length", 255), leeway = jinja_argument_int(j, call, 3, "leeway", 5);
	int kills_words = jinja_argument_bool(j, call, 1, "killwords", 0);
	struct jinja_string end = jinja_argument_text(j, call, 2, "end", "...");
	int64_t end_length = jinja_count_codes(end);
	if (value.kind != JINJA_STRING)
		jinja_raise(&j->arena, "object of type '%s' has no len()", jinja_type(value));
	if (length < end_length)
		jinja_raise(&j->arena, "expected length >= %lld, got %lld", (long long)end_length, (long long)length);
	if (leeway < 0)
		jinja_raise(&j->arena, "expected leeway >= 0, got %lld", (long long)leeway);
	struct jinja_string kept = *value.content.string;
	if (jinja_length(value) <= length + leeway)
		return value;
	kept.length = jinja_code_offset(kept, length - end_length);
	const char *space = kills_words ? NULL : memrchr(kept.bytes, ' ', kept.length);
	if (space)
		kept.length = (size_t)(space - kept.bytes);
	struct jinja_buffer out = {0};
	jinja_put_string(j, &out, kept);
	jinja_put_string(j, &out, end);
	return like(value, jinja_copy(j, &out));
}

static struct jinja_value do_center(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value width = jinja_int(jinja_argument_int(j, call, 0, "width", 80));
	return by_method(j, value, "center", &(struct jinja_call){.argument = &width, .count = 1});
}

static struct jinja_value do_wordcount(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "do_wordcount", 0, 0);
	struct jinja_string string = *soft(j, value).content.string;
	int64_t words = 0;
	int in_word = 0;
	for (size_t at = 0; at < string.length; at += jinja_code_length(string.bytes + at)) {
		struct jinja_string one = {string.bytes + at, jinja_code_length(string.bytes + at)};
		int is_word = *one.bytes == '_' || jinja_is_class(one, "isalnum");
		words += is_word && !in_word;
		in_word = is_word;
	}
	return jinja_int(words);
}

static struct jinja_value do_attr(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value name = jinja_argument(call, 0, "name");
	jinja_need_count(j, call, "do_attr", 1, 1);
	if (name.kind != JINJA_STRING)
		name = soft(j, name);
	if (value.kind == JINJA_DICT) { /* a dict has only methods as attributes, not its keys */
		struct jinja_value empty = jinja_new_dict(j, JINJA_DICT);
		struct jinja_value found = jinja_attribute(j, empty, name);
		if (found.kind == JINJA_METHOD)
			return jinja_attribute(j, value, name);
		return jinja_undefined_of(j, value, name);
	}
	return jinja_attribute(j, value, name);
}

static const struct jinja_filter filters[] = {
        {"trim", do_trim},     {"upper", do_upper},       {"lower", do_lower},     {"capitalize", do_capitalize},
        {"title", do_title},   {"string", do_string},     {"replace", do_replace}, {"default", do_default},
        {"d", do_default},     {"length", do_length},     {"count", do_length},    {"int", do_int},
        {"float", do_float},   {"abs", do_abs},           {"round", do_round},     {"format", do_format},
        {"safe", do_safe},     {"escape", do_escape},     {"e", do_escape},        {"forceescape", do_forceescape},
        {"indent", do_indent}, {"truncate", do_truncate}, {"center", do_center},   {"wordcount", do_wordcount},
        {"attr", do_attr},     {"tojson", jinja_tojson},
};

const struct jinja_filter *jinja_find_filter(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
		if (strlen(filters[i].name) == length && !memcmp(filters[i].name, name, length))
			return &filters[i];
	return jinja_find_list_filter(name, length);
}
