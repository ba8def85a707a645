/* tojson: json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False), as transformers calls it. */
#include "jinja/jinja_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct writer {
	struct jinja *j;
	struct jinja_buffer out;
	struct jinja_string item_separator, key_separator, indent;
	int has_indent, is_ascii, sorts;
	int depth;
};

static void put_quoted(struct writer *writer, struct jinja_string string)
{
	struct jinja *j = writer->j;
	static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
	jinja_put(j, &writer->out, "\"", 1);
	for (size_t at = 0; at < string.length;) {
		size_t length = jinja_code_length(string.bytes + at);
		int32_t code = jinja_code_at(string.bytes + at, string.length - at);
		const char *special = code > 0 && code < 0x80 ? strchr(from, code) : NULL;
		char escape[16];
		if (special)
			snprintf(escape, sizeof escape, "\\%c", to[special - from]);
		else if (code < 0x20 || (writer->is_ascii && code > 0x7E && code < 0x10000))
			snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code);
		else if (writer->is_ascii && code >= 0x10000)
			snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800u + ((unsigned)(code - 0x10000) >> 10),
			         0xDC00u + ((unsigned)(code - 0x10000) & 0x3FF));
		else
			escape[0] = 0;
		if (*escape)
			jinja_put_text(j, &writer->out, escape);
		else
			jinja_put(j, &writer->out, string.bytes + at, length);
		at += length;
	}
	jinja_put(j, &writer->out, "\"", 1);
}

static void put_line(struct writer *writer)
{
	if (!writer->has_indent)
		return;
	jinja_put(writer->j, &writer->out, "\n", 1);
	for (int i = 0; i < writer->depth; i++)
		jinja_put_string(writer->j, &writer->out, writer->indent);
}

static void put_scalar(struct writer *writer, struct jinja_value value)
{
	struct jinja *j = writer->j;
	switch (value.kind) {
	case JINJA_NONE:
		jinja_put_text(j, &writer->out, "null");
		return;
	case JINJA_BOOL:
		jinja_put_text(j, &writer->out, value.content.integer ? "true" : "false");
		return;
	case JINJA_FLOAT:
		if (isnan(value.content.real) || isinf(value.content.real))
			jinja_put_text(j, &writer->out,
			               isnan(value.content.real) ? "NaN"
			               : value.content.real < 0  ? "-Infinity"
			                                         : "Infinity");
		else
			jinja_put_float(j, &writer->out, value.content.real);
		return;
	default:
		jinja_put_repr(j, &writer->out, value);
	}
}

static void put_value(struct writer *writer, struct jinja_value value);

static void put_key(struct writer *writer, struct jinja_value key)
{
	struct jinja *j = writer->j;
	if (key.kind == JINJA_STRING) {
		put_quoted(writer, *key.content.string);
	} else if (jinja_is_number(key) || key.kind == JINJA_NONE || key.kind == JINJA_WIDE) {
		jinja_put(j, &writer->out, "\"", 1);
		put_scalar(writer, key);
		jinja_put(j, &writer->out, "\"", 1);
	} else {
		jinja_raise(&j->arena, "keys must be str, int, float, bool or None, not %s", jinja_type(key));
	}
	jinja_put_string(j, &writer->out, writer->key_separator);
}

/* The pairs in the order of their keys; a TypeError where these have none. */
static const struct jinja_pair *sorted(struct jinja *j, const struct jinja_dict *dict)
{
	struct jinja_pair *pair = jinja_take(&j->arena, dict->count, sizeof *pair);
	for (size_t i = 0; i < dict->count; i++) {
		size_t at = i;
		for (; at && jinja_ordered(j, OP_LT, dict->pair[i].key, pair[at - 1].key); at--) {
			jinja_step(j, 1);
			pair[at] = pair[at - 1];
		}
		pair[at] = dict->pair[i];
	}
	return pair;
}

static void put_items(struct writer *writer, struct jinja_value value)
{
	struct jinja *j = writer->j;
	int is_dict = value.kind == JINJA_DICT;
	size_t count = is_dict ? value.content.dict->count : value.content.list->count;
	const struct jinja_pair *pair = !is_dict ? NULL : writer->sorts ? sorted(j, value.content.dict) : value.content.dict->pair;
	jinja_put(j, &writer->out, is_dict ? "{" : "[", 1);
	writer->depth++;
	for (size_t i = 0; i < count; i++) {
		if (i)
			jinja_put_string(j, &writer->out, writer->item_separator);
		put_line(writer);
		if (is_dict)
			put_key(writer, pair[i].key);
		put_value(writer, is_dict ? pair[i].value : value.content.list->item[i]);
	}
	writer->depth--;
	if (count)
		put_line(writer);
	jinja_put(j, &writer->out, is_dict ? "}" : "]", 1);
}

static void put_value(struct writer *writer, struct jinja_value value)
{
	struct jinja *j = writer->j;
	jinja_step(j, 1);
	jinja_enter(j);
	if (value.kind == JINJA_STRING)
		put_quoted(writer, *value.content.string);
	else if (jinja_is_number(value) || value.kind == JINJA_NONE || value.kind == JINJA_WIDE)
		put_scalar(writer, value);
	else if (value.kind == JINJA_LIST || value.kind == JINJA_TUPLE || value.kind == JINJA_DICT)
		put_items(writer, value);
	else
		jinja_raise(&j->arena, "Object of type %s is not JSON serializable", jinja_type(value));
	jinja_leave(j);
}

struct jinja_value jinja_tojson(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct writer writer = {.j = j};
	jinja_need_count(j, call, "tojson", 0, 4);
	writer.is_ascii = jinja_argument_bool(j, call, 0, "ensure_ascii", 0);
	struct jinja_value indent = jinja_argument(call, 1, "indent"), separators = jinja_argument(call, 2, "separators");
	writer.sorts = jinja_argument_bool(j, call, 3, "sort_keys", 0);
	if (indent.kind == JINJA_INT || indent.kind == JINJA_BOOL) {
		struct jinja_buffer blanks = {0};
		for (int64_t i = 0; i < indent.content.integer; i++)
			jinja_put(j, &blanks, " ", 1);
		writer.indent = *jinja_copy(j, &blanks).content.string;
		writer.has_indent = 1;
	} else if (indent.kind == JINJA_STRING) {
		writer.indent = *indent.content.string;
		writer.has_indent = 1;
	}
	writer.item_separator = writer.has_indent ? (struct jinja_string){",", 1} : (struct jinja_string){", ", 2};
	writer.key_separator = (struct jinja_string){": ", 2};
	if (separators.kind != JINJA_MISSING && separators.kind != JINJA_NONE) {
		const struct jinja_list *pair = jinja_items(j, separators);
		if (pair->count != 2 || pair->item[0].kind != JINJA_STRING || pair->item[1].kind != JINJA_STRING)
			jinja_raise(&j->arena, "separators must be two strings");
		writer.item_separator = *pair->item[0].content.string;
		writer.key_separator = *pair->item[1].content.string;
	}
	put_value(&writer, value);
	return jinja_copy(j, &writer.out);
}
