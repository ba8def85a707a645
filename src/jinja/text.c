/* Text: a growing run of bytes in the arena, UTF-8, and Python's str() and repr(). */
#include "jinja/jinja_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void jinja_put(struct jinja *j, struct jinja_buffer *buffer, const char *bytes, size_t length)
{
	if (length > buffer->capacity - buffer->length) {
		if (buffer->length + length > j->bounds.output)
			jinja_raise(&j->arena, "the template writes a text of more than %zu MiB", j->bounds.output >> 20);
		size_t capacity = 2 * (buffer->length + length) + 64;
		char *wider = jinja_take(&j->arena, capacity, 1);
		if (buffer->length)
			memcpy(wider, buffer->bytes, buffer->length);
		buffer->bytes = wider;
		buffer->capacity = capacity;
	}
	if (length)
		memcpy(buffer->bytes + buffer->length, bytes, length);
	buffer->length += length;
	jinja_step(j, length / 256);
}

void jinja_put_text(struct jinja *j, struct jinja_buffer *buffer, const char *text)
{
	jinja_put(j, buffer, text, strlen(text));
}

void jinja_put_string(struct jinja *j, struct jinja_buffer *buffer, struct jinja_string string)
{
	jinja_put(j, buffer, string.bytes, string.length);
}

void jinja_put_code(struct jinja *j, struct jinja_buffer *buffer, int32_t code)
{
	utf8proc_uint8_t bytes[4];
	jinja_put(j, buffer, (const char *)bytes, (size_t)utf8proc_encode_char(code, bytes));
}

size_t jinja_code_length(const char *at)
{
	unsigned char first = (unsigned char)*at;
	return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

int32_t jinja_code_at(const char *at, size_t left)
{
	utf8proc_int32_t code;
	if (left && !(*at & 0x80))
		return *at;
	return utf8proc_iterate((const utf8proc_uint8_t *)at, (utf8proc_ssize_t)left, &code) > 0 ? code : 0xFFFD;
}

int64_t jinja_count_codes(struct jinja_string string)
{
	int64_t count = 0;
	for (size_t i = 0; i < string.length; i++)
		count += (string.bytes[i] & 0xC0) != 0x80;
	return count;
}

size_t jinja_code_offset(struct jinja_string string, int64_t index)
{
	size_t at = 0;
	for (; index > 0 && at < string.length; index--)
		at += jinja_code_length(string.bytes + at);
	return at;
}

int jinja_is_space(int32_t code)
{
	if (code < 0x80)
		return code == ' ' || (code >= '\t' && code <= '\r') || (code >= 0x1C && code <= 0x1F);
	return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
	       code == 0x202F || code == 0x205F || code == 0x3000;
}

/* The shortest digits that read back as `real`, laid out as Python's repr() does. */
void jinja_put_float(struct jinja *j, struct jinja_buffer *buffer, double real)
{
	char digits[40], text[64];
	if (isnan(real) || isinf(real)) {
		jinja_put_text(j, buffer, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
		return;
	}
	for (int precision = 0; precision < 17; precision++) {
		snprintf(digits, sizeof digits, "%.*e", precision, real);
		if (strtod(digits, NULL) == real)
			break;
	}
	int power = atoi(strchr(digits, 'e') + 1), places = (int)(strchr(digits, 'e') - digits) - (digits[0] == '-') - 1;
	places = places > 0 ? places - 1 : 0; /* digits after the point, in d.ddde+x */
	if (power < -4 || power >= 16)
		snprintf(text, sizeof text, "%.*e", places, real);
	else
		snprintf(text, sizeof text, "%.*f", places - power > 1 ? places - power : 1, real);
	jinja_put_text(j, buffer, text);
}

static int is_printable(int32_t code)
{
	if (code < 0x80)
		return code >= ' ' && code < 0x7F;
	switch (utf8proc_category(code)) {
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
	case UTF8PROC_CATEGORY_ZS:
		return 0;
	default:
		return 1;
	}
}

static void put_string_repr(struct jinja *j, struct jinja_buffer *buffer, struct jinja_string string)
{
	char quote = memchr(string.bytes, '\'', string.length) && !memchr(string.bytes, '"', string.length) ? '"' : '\'';
	jinja_put(j, buffer, &quote, 1);
	for (size_t at = 0; at < string.length;) {
		size_t length = jinja_code_length(string.bytes + at);
		int32_t code = jinja_code_at(string.bytes + at, string.length - at);
		char escape[16];
		if (code == quote || code == '\\')
			snprintf(escape, sizeof escape, "\\%c", (char)code);
		else if (code == '\n' || code == '\r' || code == '\t')
			snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
		else if (!is_printable(code))
			snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)code);
		else
			escape[0] = 0;
		if (*escape)
			jinja_put_text(j, buffer, escape);
		else
			jinja_put(j, buffer, string.bytes + at, length);
		at += length;
	}
	jinja_put(j, buffer, &quote, 1);
}

static void put_items(struct jinja *j, struct jinja_buffer *buffer, const struct jinja_list *list, const char *open, const char *close)
{
	jinja_put_text(j, buffer, open);
	for (size_t i = 0; i < list->count; i++) {
		if (i)
			jinja_put(j, buffer, ", ", 2);
		jinja_put_repr(j, buffer, list->item[i]);
	}
	jinja_put_text(j, buffer, close);
}

static void put_pairs(struct jinja *j, struct jinja_buffer *buffer, const struct jinja_dict *dict)
{
	jinja_put(j, buffer, "{", 1);
	for (size_t i = 0; i < dict->count; i++) {
		if (i)
			jinja_put(j, buffer, ", ", 2);
		jinja_put_repr(j, buffer, dict->pair[i].key);
		jinja_put(j, buffer, ": ", 2);
		jinja_put_repr(j, buffer, dict->pair[i].value);
	}
	jinja_put(j, buffer, "}", 1);
}

static void put_range(struct jinja *j, struct jinja_buffer *buffer, const struct jinja_list *range)
{
	char text[96];
	if (range->step == 1)
		snprintf(text, sizeof text, "range(%lld, %lld)", (long long)range->start, (long long)range->stop);
	else
		snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)range->start, (long long)range->stop,
		         (long long)range->step);
	jinja_put_text(j, buffer, text);
}

/* Objects that Python shows by name or address. */
static void put_object(struct jinja *j, struct jinja_buffer *buffer, struct jinja_value value)
{
	char text[128];
	switch (value.kind) {
	case JINJA_NAMESPACE:
		jinja_put_text(j, buffer, "<Namespace ");
		put_pairs(j, buffer, value.content.dict);
		jinja_put_text(j, buffer, ">");
		return;
	case JINJA_MACRO:
		if (!value.content.macro->form->name)
			snprintf(text, sizeof text, "<Macro anonymous>");
		else
			snprintf(text, sizeof text, "<Macro '%.80s'>", value.content.macro->form->name->name);
		break;
	case JINJA_LOOP:
		snprintf(text, sizeof text, "<LoopContext %zu/%zu>", value.content.loop->index0 + 1, value.content.loop->list->count);
		break;
	default:
		snprintf(text, sizeof text, "<%s object>", jinja_type(value));
	}
	jinja_put_text(j, buffer, text);
}

void jinja_put_repr(struct jinja *j, struct jinja_buffer *buffer, struct jinja_value value)
{
	char text[32];
	jinja_step(j, 1);
	jinja_enter(j);
	switch (value.kind) {
	case JINJA_UNDEFINED:
	case JINJA_MISSING:
		jinja_put_text(j, buffer, "Undefined");
		break;
	case JINJA_NONE:
		jinja_put_text(j, buffer, "None");
		break;
	case JINJA_BOOL:
		jinja_put_text(j, buffer, value.content.integer ? "True" : "False");
		break;
	case JINJA_INT:
		snprintf(text, sizeof text, "%lld", (long long)value.content.integer);
		jinja_put_text(j, buffer, text);
		break;
	case JINJA_FLOAT:
		jinja_put_float(j, buffer, value.content.real);
		break;
	case JINJA_WIDE:
		jinja_put_string(j, buffer, *value.content.string);
		break;
	case JINJA_STRING:
		if (value.is_markup)
			jinja_put_text(j, buffer, "Markup(");
		put_string_repr(j, buffer, *value.content.string);
		if (value.is_markup)
			jinja_put_text(j, buffer, ")");
		break;
	case JINJA_LIST:
		put_items(j, buffer, value.content.list, "[", "]");
		break;
	case JINJA_TUPLE:
		put_items(j, buffer, value.content.list, "(", value.content.list->count == 1 ? ",)" : ")");
		break;
	case JINJA_VIEW:
		jinja_put_text(j, buffer, value.content.list->type);
		put_items(j, buffer, value.content.list, "([", "])");
		break;
	case JINJA_RANGE:
		put_range(j, buffer, value.content.list);
		break;
	case JINJA_DICT:
		put_pairs(j, buffer, value.content.dict);
		break;
	default:
		put_object(j, buffer, value);
	}
	jinja_leave(j);
}

void jinja_put_str(struct jinja *j, struct jinja_buffer *buffer, struct jinja_value value)
{
	if (value.kind == JINJA_STRING)
		jinja_put_string(j, buffer, *value.content.string);
	else if (value.kind != JINJA_UNDEFINED)
		jinja_put_repr(j, buffer, value);
	j->writes_none |= value.kind == JINJA_NONE;
}

struct jinja_string jinja_str(struct jinja *j, struct jinja_value value)
{
	if (value.kind == JINJA_STRING)
		return *value.content.string;
	struct jinja_buffer buffer = {0};
	jinja_put_str(j, &buffer, value);
	return (struct jinja_string){buffer.bytes ? buffer.bytes : "", buffer.length};
}

const char *jinja_repr(struct jinja *j, struct jinja_value value)
{
	struct jinja_buffer buffer = {0};
	jinja_put_repr(j, &buffer, value);
	jinja_put(j, &buffer, "", 1);
	return buffer.bytes;
}
