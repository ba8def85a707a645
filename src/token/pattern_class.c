#include "token/pattern_class.h"

#include <string.h>

int reader_refuse(const struct reader *r, const char *what)
{
	size_t bytes = (size_t)(r->end - r->source);
	int shown = (int)(bytes > 200 ? 200 : bytes);
	return rh_fail(-EINVAL, "%s: regular expression '%.*s'%s, byte %zu: %s is not supported", r->where, shown, r->source,
	               bytes > 200 ? "..." : "", (size_t)(r->cursor - r->source), what);
}

static int hex_value(int c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Up to `most` hexadecimal digits, at least `least`. */
static int hex_digits(struct reader *r, int least, int most, uint32_t *out)
{
	int digits = 0;
	*out = 0;
	for (; digits < most && r->cursor < r->end && hex_value((unsigned char)*r->cursor) >= 0; digits++)
		*out = *out * 16 + (uint32_t)hex_value((unsigned char)*r->cursor++);
	if (digits < least || *out >= UNICODE_END || (*out >= 0xD800 && *out < 0xE000))
		return reader_refuse(r, "this code point");
	return READ_POINT;
}

static int hex_escape(struct reader *r, uint32_t *point)
{
	if (r->cursor < r->end && *r->cursor == '{') {
		r->cursor++;
		int rc = hex_digits(r, 1, 8, point);
		if (rc < 0)
			return rc;
		if (r->cursor == r->end || *r->cursor != '}')
			return reader_refuse(r, "\\x{ without its '}'");
		r->cursor++;
		return rc;
	}
	int rc = hex_digits(r, 1, 2, point);
	if (rc >= 0 && *point >= 0x80)
		return reader_refuse(r, "a raw byte (write \\x{..} for a code point)");
	return rc;
}

/* \p{name}, \p{^name}, \P{name}. */
static int property(struct reader *r, int negated, struct set *set)
{
	if (r->cursor == r->end || *r->cursor != '{')
		return reader_refuse(r, "\\p without braces");
	const char *name = r->cursor + 1, *close = memchr(name, '}', (size_t)(r->end - name));
	if (!close)
		return reader_refuse(r, "\\p{ without its '}'");
	if (*name == '^') {
		negated = !negated;
		name++;
	}
	char copy[80];
	size_t length = (size_t)(close - name);
	if (length >= sizeof copy)
		return reader_refuse(r, "this property");
	memcpy(copy, name, length);
	copy[length] = 0;
	int rc = set_add_named(set, copy, SET_PROPERTY);
	if (!rc)
		return reader_refuse(r, "this property");
	r->cursor = close + 1;
	if (rc > 0 && negated)
		rc = set_negate(set);
	return rc < 0 ? rc : READ_SET;
}

static int class_letter(int c, enum read_place place, struct set *set)
{
	int lower = c | 32;
	int rc;
	if (lower == 'w' && place == READ_BARE)
		rc = set_add_bare_word(set);
	else
		rc = set_add_named(set, lower == 'w' ? "word" : lower == 'd' ? "nd" : lower == 's' ? "space" : "xdigit", SET_PROPERTY);
	if (rc >= 0 && c != lower)
		rc = set_negate(set);
	return rc < 0 ? rc : READ_SET;
}

int reader_escape(struct reader *r, enum read_place place, struct set *set, uint32_t *point)
{
	if (r->cursor == r->end)
		return reader_refuse(r, "a backslash at the end");
	const char *start = r->cursor;
	r->cursor += utf8_next(r->cursor, point);
	static const char controls[] = "t\tn\nr\rf\fv\va\ae\033";
	for (size_t i = 0; i < sizeof controls - 1; i += 2)
		if (*point == (unsigned char)controls[i]) {
			*point = (unsigned char)controls[i + 1];
			return READ_POINT;
		}
	int rc;
	switch (*point) {
	case 'd':
	case 'D':
	case 's':
	case 'S':
	case 'w':
	case 'W':
	case 'h':
	case 'H':
		return class_letter((int)*point, place, set);
	case 'p':
	case 'P':
		return property(r, *point == 'P', set);
	case 'x':
		return hex_escape(r, point);
	case 'u':
		return hex_digits(r, 4, 4, point);
	case '0':
		for (*point = 0; r->cursor < r->end && r->cursor < start + 3 && *r->cursor >= '0' && *r->cursor <= '7'; r->cursor++)
			*point = *point * 8 + (uint32_t)(*r->cursor - '0');
		return READ_POINT;
	case 'b':
		if (place == READ_BRACKETED) {
			*point = '\b';
			return READ_POINT;
		}
		break;
	case 'N':
	case 'O':
		if (place == READ_BARE) {
			rc = *point == 'N' ? set_add(set, '\n', '\n') : 0;
			if (!rc)
				rc = set_negate(set);
			return rc ? rc : READ_SET;
		}
		break;
	}
	if ((*point >= '0' && *point <= '9') || (*point >= 'A' && *point <= 'Z') || (*point >= 'a' && *point <= 'z')) {
		r->cursor = start;
		return reader_refuse(r, "this escape");
	}
	return READ_POINT;
}

/* [:name:] and [:^name:]; 1 if that is what stands here, after the '['. */
static int posix(struct reader *r, struct set *set)
{
	const char *name = r->cursor + 1;
	if (r->cursor == r->end || *r->cursor != ':')
		return 0;
	int negated = name < r->end && *name == '^';
	name += negated;
	const char *close = name;
	while (close < r->end && *close >= 'a' && *close <= 'z')
		close++;
	if (r->end - close < 2 || close[0] != ':' || close[1] != ']')
		return 0;
	char copy[16] = {0};
	if ((size_t)(close - name) < sizeof copy)
		memcpy(copy, name, (size_t)(close - name));
	struct set one = {0};
	int rc = set_add_named(&one, copy, SET_BRACKET);
	if (!rc)
		rc = reader_refuse(r, "this bracket expression");
	if (rc > 0 && negated)
		rc = set_negate(&one);
	if (rc >= 0)
		rc = set_unite(set, &one);
	set_free(&one);
	r->cursor = close + 2;
	return rc < 0 ? rc : 1;
}

static int class_body(struct reader *r, int depth, struct set *out);

/* One code point, range, escape or nested class of a bracketed class. */
static int class_item(struct reader *r, int depth, struct set *set)
{
	struct set one = {0};
	uint32_t first, last;
	int kind = READ_SET, rc = 0;
	if (*r->cursor == '[') {
		r->cursor++;
		rc = posix(r, set);
		if (!rc && (rc = class_body(r, depth + 1, &one)) == 0)
			rc = set_unite(set, &one);
	} else if (*r->cursor == '\\') {
		r->cursor++;
		kind = rc = reader_escape(r, READ_BRACKETED, &one, &first);
		if (rc == READ_SET)
			rc = set_unite(set, &one);
	} else {
		r->cursor += utf8_next(r->cursor, &first);
		kind = READ_POINT;
	}
	int range = rc >= 0 && r->end - r->cursor >= 2 && *r->cursor == '-' && r->cursor[1] != ']';
	if (range && kind == READ_SET)
		rc = reader_refuse(r, "a range that starts with a class");
	if (rc >= 0 && kind == READ_POINT) {
		last = first;
		if (range) {
			r->cursor++;
			kind = READ_POINT;
			if (*r->cursor == '\\') {
				r->cursor++;
				kind = reader_escape(r, READ_BRACKETED, &one, &last);
			} else if (*r->cursor == '[') {
				kind = READ_SET;
			} else {
				r->cursor += utf8_next(r->cursor, &last);
			}
			if (kind < 0)
				rc = kind;
			else if (kind == READ_SET || last < first)
				rc = reader_refuse(r, "a range that ends so");
		}
		if (rc >= 0)
			rc = set_add(set, first, last);
	}
	set_free(&one);
	return rc < 0 ? rc : 0;
}

/* After the '[': unions, joined by && (which binds loosest), the whole negated by a leading ^. */
static int class_body(struct reader *r, int depth, struct set *out)
{
	struct set all = {0}, part = {0};
	int negated = r->cursor < r->end && *r->cursor == '^', parts = 0, rc = 0;
	r->cursor += negated;
	if (depth > 20)
		return reader_refuse(r, "classes nested so deep");
	for (int first = 1;; first = 0) {
		int joined = r->end - r->cursor >= 2 && r->cursor[0] == '&' && r->cursor[1] == '&';
		int closed = r->cursor < r->end && *r->cursor == ']' && !first;
		if (r->cursor == r->end) {
			rc = reader_refuse(r, "a class without its ']'");
		} else if (joined || closed) {
			if (parts++)
				rc = set_intersect(&all, &part);
			else
				rc = set_unite(&all, &part);
			set_free(&part);
			r->cursor += joined ? 2 : 1;
		} else {
			rc = class_item(r, depth, &part);
		}
		if (rc || closed)
			break;
	}
	if (!rc && depth == 0 && r->flags & READ_IGNORE_CASE)
		rc = set_ignore_case(&all);
	if (!rc && negated)
		rc = set_negate(&all);
	if (!rc)
		rc = set_unite(out, &all);
	set_free(&all);
	set_free(&part);
	return rc;
}

int reader_class(struct reader *r, struct set *set)
{
	return class_body(r, 0, set);
}
