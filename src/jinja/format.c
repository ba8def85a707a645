/* Formatting: '%s' % x and '{}'.format(x). */
#include "jinja/jinja_internal.h"

#include <string.h>

/* How one value is laid out. */
struct layout {
	char align; /* < > ^ = or 0 */
	int32_t fill;
	int is_signed, is_spaced, is_alternate, has_comma;
	int64_t width, precision; /* -1: not given */
	char type;
};

enum { WIDTH_MOST = 1 << 20 };

static void pad(struct jinja *j, struct jinja_buffer *out, const struct layout *layout, struct jinja_string text, char align)
{
	int64_t missing = layout->width - jinja_count_codes(text), before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
	for (int64_t i = 0; i < before; i++)
		jinja_put_code(j, out, layout->fill);
	jinja_put_string(j, out, text);
	for (int64_t i = before > 0 ? before : 0; i < missing; i++)
		jinja_put_code(j, out, layout->fill);
}

/* Digits, grouped by threes from the right. */
static void put_grouped(struct jinja *j, struct jinja_buffer *out, const char *digits)
{
	size_t whole = strspn(digits, "0123456789");
	for (size_t i = 0; digits[i]; i++) {
		if (i && i < whole && (whole - i) % 3 == 0)
			jinja_put(j, out, ",", 1);
		jinja_put(j, out, &digits[i], 1);
	}
}

static void put_number(struct jinja *j, struct jinja_buffer *out, const struct layout *layout, struct jinja_value value)
{
	char digits[512], form[16];
	int precision = layout->precision < 0 ? 6 : (int)(layout->precision < 100 ? layout->precision : 100), is_negative;
	if (strchr("eEfFgG%", layout->type) && layout->type) {
		double real = jinja_real(value) * (layout->type == '%' ? 100 : 1);
		is_negative = real < 0;
		snprintf(form, sizeof form, "%%.*%c", layout->type == '%' ? 'f' : layout->type);
		snprintf(digits, sizeof digits, form, precision, is_negative ? -real : real);
	} else {
		if (value.kind == JINJA_FLOAT && !(jinja_real(value) > -9e18 && jinja_real(value) < 9e18))
			jinja_raise(&j->arena, "a whole number of more than 64 bits is not supported");
		int64_t integer = value.kind == JINJA_FLOAT ? (int64_t)value.content.real : value.content.integer;
		uint64_t size = integer < 0 ? 0 - (uint64_t)integer : (uint64_t)integer;
		is_negative = integer < 0;
		const char *prefix = !layout->is_alternate ? ""
		                     : layout->type == 'x' ? "0x"
		                     : layout->type == 'X' ? "0X"
		                     : layout->type == 'o' ? "0o"
		                                           : "";
		snprintf(form, sizeof form, "%%s%%ll%c",
		         layout->type == 'x' || layout->type == 'X' || layout->type == 'o' ? layout->type : 'u');
		snprintf(digits, sizeof digits, form, prefix, (unsigned long long)size);
	}
	struct jinja_buffer body = {0}, sign = {0};
	if (is_negative || layout->is_signed || layout->is_spaced)
		jinja_put_text(j, &sign, is_negative ? "-" : layout->is_signed ? "+" : " ");
	if (layout->align == '=') { /* zeros between sign and digits */
		for (int64_t i = (int64_t)(sign.length + strlen(digits)); i < layout->width; i++)
			jinja_put_code(j, &sign, layout->fill);
	}
	jinja_put(j, &body, sign.bytes ? sign.bytes : "", sign.length);
	if (layout->has_comma)
		put_grouped(j, &body, digits);
	else
		jinja_put_text(j, &body, digits);
	if (layout->type == '%')
		jinja_put(j, &body, "%", 1);
	pad(j, out, layout, (struct jinja_string){body.bytes, body.length}, layout->align && layout->align != '=' ? layout->align : '>');
}

static void put_text(struct jinja *j, struct jinja_buffer *out, const struct layout *layout, struct jinja_string text, char align)
{
	if (layout->precision >= 0)
		text.length = jinja_code_offset(text, layout->precision);
	pad(j, out, layout, text, layout->align && layout->align != '=' ? layout->align : align);
}

static size_t read_count(struct jinja *j, struct jinja_string form, size_t at, int64_t *out)
{
	int64_t count = -1;
	for (; at < form.length && form.bytes[at] >= '0' && form.bytes[at] <= '9'; at++) {
		count = (count < 0 ? 0 : count) * 10 + (form.bytes[at] - '0');
		if (count > WIDTH_MOST)
			jinja_raise(&j->arena, "a format of more than %d characters is not supported", WIDTH_MOST);
	}
	*out = count;
	return at;
}

static struct jinja_value next_argument(struct jinja *j, struct jinja_value arguments, size_t *used)
{
	if (arguments.kind != JINJA_TUPLE ? *used > 0 : *used >= arguments.content.list->count)
		jinja_raise(&j->arena, "not enough arguments for format string");
	size_t index = (*used)++;
	return arguments.kind == JINJA_TUPLE ? arguments.content.list->item[index] : arguments;
}

static void put_percent(struct jinja *j, struct jinja_buffer *out, const struct layout *layout, struct jinja_value value, size_t at)
{
	struct jinja_buffer text = {0};
	switch (layout->type) {
	case 's':
		put_text(j, out, layout, jinja_str(j, value), layout->align == '<' ? '<' : '>');
		return;
	case 'r':
	case 'a':
		jinja_put_repr(j, &text, value);
		put_text(j, out, layout, (struct jinja_string){text.bytes, text.length}, layout->align == '<' ? '<' : '>');
		return;
	case 'd':
	case 'i':
	case 'u':
	case 'x':
	case 'X':
	case 'o':
	case 'e':
	case 'E':
	case 'f':
	case 'F':
	case 'g':
	case 'G':
		if (!jinja_is_number(value) && strchr("eEfFgG", layout->type))
			jinja_raise(&j->arena, "must be real number, not %s", jinja_type(value));
		if (!jinja_is_number(value))
			jinja_raise(&j->arena, "%%%c format: %s is required, not %s", layout->type,
			            strchr("xXo", layout->type) ? "an integer" : "a real number", jinja_type(value));
		put_number(j, out, layout, value);
		return;
	default:
		jinja_raise(&j->arena, "unsupported format character '%c' (0x%x) at index %zu", layout->type, (unsigned)layout->type, at);
	}
}

struct jinja_value jinja_percent(struct jinja *j, struct jinja_string form, struct jinja_value arguments)
{
	struct jinja_buffer out = {0};
	size_t used = 0;
	int is_mapped = 0;
	for (size_t at = 0; at < form.length; at++) {
		if (form.bytes[at] != '%') {
			jinja_put(j, &out, form.bytes + at, 1);
			continue;
		}
		struct layout layout = {.fill = ' ', .precision = -1};
		struct jinja_value named = {.kind = JINJA_MISSING};
		at++;
		if (at < form.length && form.bytes[at] == '(') {
			const char *close = memchr(form.bytes + at, ')', form.length - at);
			if (!close)
				jinja_raise(&j->arena, "incomplete format key");
			if (arguments.kind != JINJA_DICT)
				jinja_raise(&j->arena, "format requires a mapping");
			struct jinja_value key = jinja_string(j, form.bytes + at + 1, (size_t)(close - form.bytes) - at - 1);
			const struct jinja_value *found = jinja_dict_find(j, arguments.content.dict, key);
			if (!found)
				jinja_raise(&j->arena, "%s", jinja_repr(j, key));
			named = *found;
			is_mapped = 1;
			at = (size_t)(close - form.bytes) + 1;
		}
		for (; at < form.length && form.bytes[at] && strchr("-+ #0", form.bytes[at]); at++) {
			layout.align = form.bytes[at] == '-' ? '<' : form.bytes[at] == '0' && layout.align != '<' ? '=' : layout.align;
			layout.is_signed |= form.bytes[at] == '+';
			layout.is_spaced |= form.bytes[at] == ' ';
			layout.is_alternate |= form.bytes[at] == '#';
		}
		at = read_count(j, form, at, &layout.width);
		if (at < form.length && form.bytes[at] == '.') {
			at = read_count(j, form, at + 1, &layout.precision);
			layout.precision = layout.precision < 0 ? 0 : layout.precision;
		}
		if (at >= form.length)
			jinja_raise(&j->arena, "incomplete format");
		layout.type = form.bytes[at];
		layout.fill = layout.align == '=' && !strchr("sra", layout.type) ? '0' : ' ';
		if (layout.type == '%')
			jinja_put(j, &out, "%", 1);
		else
			put_percent(j, &out, &layout, named.kind != JINJA_MISSING ? named : next_argument(j, arguments, &used), at);
	}
	if (!is_mapped && (arguments.kind == JINJA_TUPLE ? used < arguments.content.list->count : !used && arguments.kind != JINJA_DICT))
		jinja_raise(&j->arena, "not all arguments converted during string formatting");
	return jinja_copy(j, &out);
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static struct layout read_layout(struct jinja *j, struct jinja_string form)
{
	struct layout layout = {.fill = ' ', .precision = -1};
	size_t at = 0, first = form.length ? jinja_code_length(form.bytes) : 0;
	if (first && first < form.length && strchr("<>^=", form.bytes[first]) && form.bytes[first]) {
		layout.fill = jinja_code_at(form.bytes, form.length);
		layout.align = form.bytes[first];
		at = first + 1;
	} else if (form.length && form.bytes[0] && strchr("<>^=", form.bytes[0])) {
		layout.align = form.bytes[at++];
	}
	if (at < form.length && form.bytes[at] && strchr("+- ", form.bytes[at])) {
		layout.is_signed = form.bytes[at] == '+';
		layout.is_spaced = form.bytes[at++] == ' ';
	}
	if (at < form.length && form.bytes[at] == '#') {
		layout.is_alternate = 1;
		at++;
	}
	if (at < form.length && form.bytes[at] == '0' && !layout.align) {
		layout.align = '=';
		layout.fill = '0';
		at++;
	}
	at = read_count(j, form, at, &layout.width);
	if (at < form.length && form.bytes[at] == ',') {
		layout.has_comma = 1;
		at++;
	}
	if (at < form.length && form.bytes[at] == '.')
		at = read_count(j, form, at + 1, &layout.precision);
	if (at < form.length)
		layout.type = form.bytes[at++];
	if (at < form.length)
		jinja_raise(&j->arena, "Invalid format specifier");
	return layout;
}

static void put_formatted(struct jinja *j, struct jinja_buffer *out, struct jinja_value value, struct jinja_string form)
{
	if (!form.length) {
		jinja_put_str(j, out, value);
		return;
	}
	if (value.kind != JINJA_STRING && (!jinja_is_number(value) || value.kind == JINJA_BOOL))
		jinja_raise(&j->arena, "unsupported format string passed to %s.__format__", jinja_type(value));
	struct layout layout = read_layout(j, form);
	int is_text = value.kind == JINJA_STRING;
	if (layout.type && !strchr(is_text ? "s" : value.kind == JINJA_FLOAT ? "eEfFgG%" : "dxXoeEfFgG%", layout.type))
		jinja_raise(&j->arena, "Unknown format code '%c' for object of type '%s'", layout.type, jinja_type(value));
	if (is_text) {
		put_text(j, out, &layout, *value.content.string, '<');
	} else if (!layout.type && value.kind == JINJA_FLOAT && layout.precision < 0) {
		struct jinja_buffer text = {0};
		jinja_put_float(j, &text, value.content.real);
		put_text(j, out, &layout, (struct jinja_string){text.bytes, text.length}, '>');
	} else {
		layout.type = layout.type ? layout.type : value.kind == JINJA_FLOAT ? 'g' : 'd';
		put_number(j, out, &layout, value);
	}
}

/* The argument that a field's name says: a number, a name, then .attributes and [items]. */
static struct jinja_value find_field(struct jinja *j, struct jinja_string name, const struct jinja_call *call, size_t *automatic)
{
	size_t end = 0;
	while (end < name.length && name.bytes[end] != '.' && name.bytes[end] != '[')
		end++;
	struct jinja_value value = {.kind = JINJA_MISSING};
	struct jinja_string first = {name.bytes, end};
	int64_t index = -1;
	if (!end)
		index = (int64_t)(*automatic)++;
	if (index >= 0 || jinja_parse_int(first, 10, &index)) {
		if (index < 0 || (size_t)index >= call->count)
			jinja_raise(&j->arena, "tuple index out of range");
		value = call->argument[index];
	}
	for (size_t i = 0; value.kind == JINJA_MISSING && i < call->keywords; i++)
		if (call->keyword[i].key.content.string->length == end &&
		    !memcmp(call->keyword[i].key.content.string->bytes, name.bytes, end))
			value = call->keyword[i].value;
	if (value.kind == JINJA_MISSING)
		jinja_raise(&j->arena, "%s", jinja_repr(j, jinja_string(j, name.bytes, end)));
	while (end < name.length) {
		size_t from = end + 1;
		int is_item = name.bytes[end] == '[';
		for (end = from;
		     end < name.length && (is_item ? name.bytes[end] != ']' : name.bytes[end] != '.' && name.bytes[end] != '[');)
			end++;
		struct jinja_value key = jinja_string(j, name.bytes + from, end - from);
		int64_t number;
		if (is_item && jinja_parse_int(*key.content.string, 10, &number))
			key = jinja_int(number);
		value = is_item ? jinja_item(j, value, key) : jinja_attribute(j, value, key);
		end += is_item && end < name.length;
	}
	return value;
}

struct jinja_value jinja_format(struct jinja *j, struct jinja_string form, const struct jinja_call *call)
{
	struct jinja_buffer out = {0};
	size_t automatic = 0;
	for (size_t at = 0; at < form.length; at++) {
		char c = form.bytes[at];
		if (c != '{' && c != '}') {
			jinja_put(j, &out, &form.bytes[at], 1);
			continue;
		}
		if (at + 1 < form.length && form.bytes[at + 1] == c) {
			jinja_put(j, &out, &c, 1);
			at++;
			continue;
		}
		const char *close = c == '{' ? memchr(form.bytes + at, '}', form.length - at) : NULL;
		if (!close)
			jinja_raise(&j->arena, c == '{' ? "expected '}' before end of string" : "Single '}' encountered in format string");
		struct jinja_string field = {form.bytes + at + 1, (size_t)(close - form.bytes) - at - 1}, spec = {"", 0};
		if (memchr(field.bytes, '{', field.length))
			jinja_raise(&j->arena, "a field inside a field of a format is not supported");
		const char *colon = memchr(field.bytes, ':', field.length);
		at = (size_t)(close - form.bytes);
		if (colon) {
			spec = (struct jinja_string){colon + 1, (size_t)(close - colon) - 1};
			field.length = (size_t)(colon - field.bytes);
		}
		char conversion = 0;
		if (field.length >= 2 && field.bytes[field.length - 2] == '!') {
			conversion = field.bytes[field.length - 1];
			field.length -= 2;
		}
		struct jinja_value value = find_field(j, field, call, &automatic);
		if (conversion) {
			struct jinja_buffer text = {0};
			if (conversion == 's')
				jinja_put_str(j, &text, value);
			else
				jinja_put_repr(j, &text, value);
			value = jinja_copy(j, &text);
		}
		put_formatted(j, &out, value, spec);
	}
	return jinja_copy(j, &out);
}
