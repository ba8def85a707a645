/* Operators on values, with Python's rules and messages. Whole numbers of more than 64 bits are compared and written, but not computed
 * with: that is a fault. */
#include "jinja/jinja_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static noreturn void raise_overflow(struct jinja *j)
{
	jinja_raise(&j->arena, "a whole number of more than 64 bits is not supported");
}

static noreturn void raise_operands(struct jinja *j, enum jinja_op op, struct jinja_value left, struct jinja_value right)
{
	jinja_raise(&j->arena, "unsupported operand type(s) for %s: '%s' and '%.60s'", signs[op], jinja_type(left), jinja_type(right));
}

static struct jinja_value power(struct jinja *j, int64_t base, int64_t exponent)
{
	int64_t result = 1;
	if (exponent < 0) {
		if (!base)
			jinja_raise(&j->arena, "0.0 cannot be raised to a negative power");
		return jinja_float(pow((double)base, (double)exponent));
	}
	for (; exponent; exponent >>= 1) {
		if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
			raise_overflow(j);
		if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
			raise_overflow(j);
	}
	return jinja_int(result);
}

static struct jinja_value with_integers(struct jinja *j, enum jinja_op op, int64_t left, int64_t right)
{
	int64_t result = 0;
	int overflows = 0;
	switch (op) {
	case OP_ADD:
		overflows = __builtin_add_overflow(left, right, &result);
		break;
	case OP_SUB:
		overflows = __builtin_sub_overflow(left, right, &result);
		break;
	case OP_MUL:
		overflows = __builtin_mul_overflow(left, right, &result);
		break;
	case OP_DIV:
		if (!right)
			jinja_raise(&j->arena, "division by zero");
		return jinja_float((double)left / (double)right);
	case OP_FLOOR:
	case OP_MOD:
		if (!right)
			jinja_raise(&j->arena, op == OP_FLOOR ? "integer division or modulo by zero" : "integer modulo by zero");
		overflows = left == INT64_MIN && right == -1;
		if (overflows)
			break;
		result = op == OP_FLOOR ? left / right : left % right;
		if (left % right && (left < 0) != (right < 0)) /* towards minus infinity */
			result += op == OP_FLOOR ? -1 : right;
		break;
	default:
		return power(j, left, right);
	}
	if (overflows)
		raise_overflow(j);
	return jinja_int(result);
}

static struct jinja_value with_reals(struct jinja *j, enum jinja_op op, double left, double right)
{
	double rest;
	if (!right && (op == OP_DIV || op == OP_FLOOR || op == OP_MOD))
		jinja_raise(&j->arena, op == OP_DIV     ? "float division by zero"
		                       : op == OP_FLOOR ? "float floor division by zero"
		                                        : "float modulo");
	switch (op) {
	case OP_ADD:
		return jinja_float(left + right);
	case OP_SUB:
		return jinja_float(left - right);
	case OP_MUL:
		return jinja_float(left * right);
	case OP_DIV:
		return jinja_float(left / right);
	case OP_FLOOR:
	case OP_MOD:
		rest = fmod(left, right);
		if (rest && (rest < 0) != (right < 0))
			rest += right;
		else if (!rest)
			rest = copysign(0, right);
		return jinja_float(op == OP_MOD ? rest : round((left - rest) / right));
	default:
		if (!left && right < 0)
			jinja_raise(&j->arena, "0.0 cannot be raised to a negative power");
		return jinja_float(pow(left, right));
	}
}

static struct jinja_value add_lists(struct jinja *j, struct jinja_value left, struct jinja_value right)
{
	struct jinja_value sum = jinja_new_list(j, left.kind);
	for (size_t i = 0; i < left.content.list->count; i++)
		jinja_push(j, sum.content.list, left.content.list->item[i]);
	for (size_t i = 0; i < right.content.list->count; i++)
		jinja_push(j, sum.content.list, right.content.list->item[i]);
	jinja_step(j, sum.content.list->count / 16);
	return sum;
}

static void put_escaped(struct jinja *j, struct jinja_buffer *buffer, struct jinja_value value)
{
	static const char from[] = "&<>'\"";
	static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
	struct jinja_string string = jinja_str(j, value);
	if (value.kind == JINJA_STRING && value.is_markup) {
		jinja_put_string(j, buffer, string);
		return;
	}
	for (size_t i = 0; i < string.length; i++) {
		const char *at = string.bytes[i] ? strchr(from, string.bytes[i]) : NULL;
		if (at)
			jinja_put_text(j, buffer, to[at - from]);
		else
			jinja_put(j, buffer, string.bytes + i, 1);
	}
}

struct jinja_value jinja_escape(struct jinja *j, struct jinja_value value)
{
	struct jinja_buffer buffer = {0};
	put_escaped(j, &buffer, value);
	struct jinja_value text = jinja_copy(j, &buffer);
	text.is_markup = 1;
	return text;
}

static struct jinja_value add_strings(struct jinja *j, struct jinja_value left, struct jinja_value right)
{
	struct jinja_buffer buffer = {0};
	if (left.is_markup || right.is_markup) {
		put_escaped(j, &buffer, left);
		put_escaped(j, &buffer, right);
	} else {
		size_t length = left.content.string->length + right.content.string->length;
		buffer.bytes = jinja_take(&j->arena, length + 1, 1);
		buffer.capacity = length + 1;
		jinja_put_string(j, &buffer, *left.content.string);
		jinja_put_string(j, &buffer, *right.content.string);
	}
	struct jinja_value sum = jinja_copy(j, &buffer);
	sum.is_markup = left.is_markup || right.is_markup;
	return sum;
}

static int is_sequence(struct jinja_value value)
{
	return value.kind == JINJA_STRING || value.kind == JINJA_LIST || value.kind == JINJA_TUPLE;
}

static struct jinja_value repeat(struct jinja *j, struct jinja_value value, struct jinja_value times)
{
	if (times.kind != JINJA_INT && times.kind != JINJA_BOOL)
		jinja_raise(&j->arena, "can't multiply sequence by non-int of type '%s'", jinja_type(times));
	int64_t count = times.content.integer < 0 ? 0 : times.content.integer;
	if (value.kind != JINJA_STRING) {
		struct jinja_value list = jinja_new_list(j, value.kind);
		for (int64_t i = 0; i < count && value.content.list->count; i++)
			for (size_t k = 0; k < value.content.list->count; k++) {
				jinja_step(j, 1);
				jinja_push(j, list.content.list, value.content.list->item[k]);
			}
		return list;
	}
	struct jinja_buffer buffer = {0};
	for (int64_t i = 0; i < count && value.content.string->length; i++) {
		jinja_step(j, 1);
		jinja_put_string(j, &buffer, *value.content.string);
	}
	struct jinja_value text = jinja_copy(j, &buffer);
	text.is_markup = value.is_markup;
	return text;
}

struct jinja_value jinja_binary(struct jinja *j, enum jinja_op op, struct jinja_value left, struct jinja_value right)
{
	if (op == OP_MOD && left.kind == JINJA_STRING)
		return jinja_percent(j, *left.content.string, right);
	jinja_need_defined(j, left);
	jinja_need_defined(j, right);
	if (jinja_is_number(left) && jinja_is_number(right)) {
		if (left.kind == JINJA_FLOAT || right.kind == JINJA_FLOAT)
			return with_reals(j, op, jinja_real(left), jinja_real(right));
		return with_integers(j, op, left.content.integer, right.content.integer);
	}
	if ((left.kind == JINJA_WIDE && (jinja_is_number(right) || right.kind == JINJA_WIDE)) ||
	    (right.kind == JINJA_WIDE && jinja_is_number(left)))
		raise_overflow(j);
	if (op == OP_ADD && left.kind == right.kind && left.kind == JINJA_STRING)
		return add_strings(j, left, right);
	if (op == OP_ADD && left.kind == right.kind && is_sequence(left))
		return add_lists(j, left, right);
	if (op == OP_ADD && is_sequence(left))
		jinja_raise(&j->arena, "can only concatenate %s (not \"%.60s\") to %s", jinja_type(left), jinja_type(right),
		            jinja_type(left));
	if (op == OP_MUL && is_sequence(left))
		return repeat(j, left, right);
	if (op == OP_MUL && is_sequence(right))
		return repeat(j, right, left);
	raise_operands(j, op, left, right);
}

struct jinja_value jinja_negate(struct jinja *j, struct jinja_value value, int sign)
{
	jinja_need_defined(j, value);
	if (value.kind == JINJA_WIDE)
		raise_overflow(j);
	if (!jinja_is_number(value))
		jinja_raise(&j->arena, "bad operand type for unary %s: '%s'", sign < 0 ? "-" : "+", jinja_type(value));
	if (value.kind == JINJA_FLOAT)
		return jinja_float(sign < 0 ? -value.content.real : value.content.real);
	if (sign < 0 && value.content.integer == INT64_MIN)
		raise_overflow(j);
	return jinja_int(sign < 0 ? -value.content.integer : value.content.integer);
}

int64_t jinja_index(struct jinja *j, struct jinja_value value)
{
	if (value.kind != JINJA_INT && value.kind != JINJA_BOOL)
		jinja_raise(&j->arena, "'%s' object cannot be interpreted as an integer", jinja_type(value));
	return value.content.integer;
}

static struct jinja_string stripped(struct jinja_string string)
{
	while (string.length && jinja_is_space((unsigned char)string.bytes[0]) && !(string.bytes[0] & 0x80)) {
		string.bytes++;
		string.length--;
	}
	while (string.length && !(string.bytes[string.length - 1] & 0x80) && jinja_is_space(string.bytes[string.length - 1]))
		string.length--;
	return string;
}

/* Digits with Python's underscores taken out; 0 where they stand wrong or there is too much. */
static int clean_digits(struct jinja_string string, char *out, size_t size)
{
	size_t used = 0;
	for (size_t i = 0; i < string.length; i++) {
		char c = string.bytes[i];
		if (c == '_' && i && i + 1 < string.length && string.bytes[i - 1] != '_' && string.bytes[i + 1] != '_')
			continue;
		if (!c || c == '_' || (c & 0x80) || used + 1 >= size)
			return 0;
		out[used++] = c;
	}
	out[used] = 0;
	return used > 0;
}

int jinja_parse_int(struct jinja_string string, int base, int64_t *out)
{
	char digits[80], *end;
	if (!clean_digits(stripped(string), digits, sizeof digits))
		return 0;
	const char *at = digits + (digits[0] == '-' || digits[0] == '+');
	if (base == 10 ? at[strspn(at, "0123456789")] || !*at : !strchr("0123456789abcdefABCDEF", *at) || !*at)
		return 0;
	errno = 0;
	*out = strtoll(digits, &end, base);
	return !errno && !*end;
}

int jinja_parse_float(struct jinja_string string, double *out)
{
	char digits[400], *end;
	if (!clean_digits(stripped(string), digits, sizeof digits))
		return 0;
	const char *at = digits + (digits[0] == '-' || digits[0] == '+');
	if (strspn(at, "0123456789.eE+-") != strlen(at) && strcasecmp(at, "nan") && strcasecmp(at, "inf") && strcasecmp(at, "infinity"))
		return 0;
	*out = strtod(digits, &end);
	return !*end;
}
