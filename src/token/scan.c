#include "token/scan.h"

#include "token/unicode.h"

#include <string.h>

void scan_free(struct scan *scan)
{
	rh_text_free(&scan->unescaped[0]);
	rh_text_free(&scan->unescaped[1]);
}

int scan_fail(const struct scan *scan, const char *what)
{
	size_t line = 1;
	for (const char *at = scan->start; at < scan->cursor; at++)
		line += *at == '\n';
	return rh_fail(-EINVAL, "%s: not valid at line %zu: %s", scan->where, line, what);
}

static const char *skip_blank(const char *at, const char *end)
{
	while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
		at++;
	return at;
}

int scan_take(struct scan *scan, char c)
{
	scan->cursor = skip_blank(scan->cursor, scan->end);
	if (scan->cursor == scan->end || *scan->cursor != c)
		return 0;
	scan->cursor++;
	return 1;
}

static int hex4(const char *at, const char *end, uint32_t *out)
{
	*out = 0;
	if (end - at < 4)
		return 0;
	for (int i = 0; i < 4; i++) {
		char c = at[i];
		int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
		if (value < 0)
			return 0;
		*out = *out << 4 | (uint32_t)value;
	}
	return 1;
}

/* \uXXXX, or two of them that are a surrogate pair; scan->cursor is after the 'u'. */
static int unicode_escape(struct scan *scan, uint32_t *point)
{
	uint32_t low;
	if (!hex4(scan->cursor, scan->end, point))
		return scan_fail(scan, "\\u without four hexadecimal digits");
	scan->cursor += 4;
	if (*point < 0xD800 || *point >= 0xE000)
		return 0;
	if (*point >= 0xDC00 || scan->end - scan->cursor < 6 || scan->cursor[0] != '\\' || scan->cursor[1] != 'u' ||
	    !hex4(scan->cursor + 2, scan->end, &low) || low < 0xDC00 || low >= 0xE000)
		return scan_fail(scan, "a lone surrogate");
	*point = 0x10000 + ((*point - 0xD800) << 10) + (low - 0xDC00);
	scan->cursor += 6;
	return 0;
}

/* From the first backslash on. */
static int unescape(struct scan *scan, const char *first, struct rh_text *out)
{
	static const char plain[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
	out->length = 0;
	int rc = rh_text_append(out, first, (size_t)(scan->cursor - first));
	while (!rc && scan->cursor < scan->end && *scan->cursor != '"') {
		const char *run = scan->cursor;
		while (scan->cursor < scan->end && *scan->cursor != '"' && *scan->cursor != '\\' && (unsigned char)*scan->cursor >= 0x20)
			scan->cursor++;
		rc = rh_text_append(out, run, (size_t)(scan->cursor - run));
		if (rc || scan->cursor == scan->end || *scan->cursor != '\\')
			break;
		if (++scan->cursor == scan->end)
			break;
		char put[4];
		size_t length = 0;
		char kind = *scan->cursor++;
		for (size_t i = 0; i + 1 < sizeof plain && !length; i += 2)
			if (kind == plain[i])
				put[length++] = plain[i + 1];
		if (kind == 'u') {
			uint32_t point;
			rc = unicode_escape(scan, &point);
			length = rc ? 0 : utf8_put(point, put);
		}
		if (!rc && !length)
			rc = scan_fail(scan, "an unknown escape in a string");
		if (!rc)
			rc = rh_text_append(out, put, length);
	}
	return rc;
}

int scan_string(struct scan *scan, int slot, const char **text, size_t *bytes)
{
	if (!scan_take(scan, '"'))
		return scan_fail(scan, "expected a string");
	const char *first = scan->cursor;
	while (scan->cursor < scan->end && *scan->cursor != '"' && *scan->cursor != '\\' && (unsigned char)*scan->cursor >= 0x20)
		scan->cursor++;
	*text = first;
	*bytes = (size_t)(scan->cursor - first);
	if (scan->cursor < scan->end && *scan->cursor == '\\') {
		struct rh_text *out = &scan->unescaped[slot];
		int rc = unescape(scan, first, out);
		if (rc)
			return rc;
		*text = out->bytes;
		*bytes = out->length;
	}
	if (scan->cursor == scan->end || *scan->cursor != '"')
		return scan_fail(scan, "a string that is not closed, or a control character in it");
	scan->cursor++;
	return utf8_valid(*text, *bytes) ? 0 : scan_fail(scan, "a string that is not UTF-8");
}

int scan_integer(struct scan *scan, int64_t *out)
{
	int negative = scan_take(scan, '-'), digits = 0;
	int64_t value = 0;
	for (; scan->cursor < scan->end && *scan->cursor >= '0' && *scan->cursor <= '9' && digits < 18; scan->cursor++, digits++)
		value = value * 10 + (*scan->cursor - '0');
	char next = scan->cursor < scan->end ? *scan->cursor : 0;
	if (!digits || (next >= '0' && next <= '9') || next == '.' || next == 'e' || next == 'E')
		return scan_fail(scan, "expected a whole number");
	*out = negative ? -value : value;
	return 0;
}

/* After a string that starts at `at`; NULL if it does not end. */
static const char *skip_string(const char *at, const char *end)
{
	for (at++; at < end && *at != '"'; at++)
		at += *at == '\\';
	return at < end ? at + 1 : NULL;
}

/* After the value that starts at `at`; NULL if it does not end. Brackets are only counted: what is between them is another's to check. */
static const char *skip_value(const char *at, const char *end)
{
	size_t depth = 0;
	while (at < end) {
		if (*at == '"') {
			at = skip_string(at, end);
			if (!at)
				return NULL;
		} else {
			depth += *at == '{' || *at == '[';
			if (*at == '}' || *at == ']') {
				if (!depth)
					return at;
				depth--;
			} else if (!depth && *at == ',') {
				return at;
			}
			at++;
		}
		if (!depth) {
			const char *next = skip_blank(at, end);
			if (next == end || *next == ',' || *next == '}' || *next == ']')
				return at;
		}
	}
	return NULL;
}

/* Where the value of `key` begins in the object that starts at `at`, or NULL. */
static const char *find_member(const char *at, const char *end, const char *key)
{
	size_t bytes = strlen(key);
	if (at == end || *at != '{')
		return NULL;
	for (at = skip_blank(at + 1, end); at < end && *at == '"'; at = skip_blank(at + 1, end)) {
		const char *name = at + 1, *after = skip_string(at, end);
		if (!after)
			return NULL;
		at = skip_blank(after, end);
		if (at == end || *at != ':')
			return NULL;
		at = skip_blank(at + 1, end);
		if ((size_t)(after - 1 - name) == bytes && !memcmp(name, key, bytes))
			return at;
		at = skip_value(at, end);
		if (!at)
			return NULL;
		at = skip_blank(at, end);
		if (at == end || *at != ',')
			return NULL;
	}
	return NULL;
}

static struct scan_part find_part(const char *model, const char *end, const char *key, char opening)
{
	const char *first = model ? find_member(model, end, key) : NULL;
	const char *after = first && first < end && *first == opening ? skip_value(first, end) : NULL;
	return after ? (struct scan_part){first, after} : (struct scan_part){NULL, NULL};
}

static int append_emptied(struct rh_text *rest, struct scan_part part, const char *brackets)
{
	int rc = rh_text_append(rest, brackets, 1);
	for (const char *at = part.first; at < part.end && !rc; at++) {
		at = memchr(at, '\n', (size_t)(part.end - at));
		if (!at)
			break;
		rc = rh_text_append(rest, "\n", 1);
	}
	return rc ? rc : rh_text_append(rest, brackets + 1, 1);
}

int scan_model(const char *bytes, size_t length, struct scan_part *vocab, struct scan_part *merges, struct rh_text *rest)
{
	const char *end = bytes + length, *done = bytes;
	const char *model = find_member(skip_blank(bytes, end), end, "model");
	*vocab = find_part(model, end, "vocab", '{');
	*merges = find_part(model, end, "merges", '[');
	int rc = 0, swapped = vocab->first && merges->first && merges->first < vocab->first;
	for (int i = 0; i < 2 && !rc; i++) {
		int object = i == swapped;
		struct scan_part part = object ? *vocab : *merges;
		if (!part.first)
			continue;
		rc = rh_text_append(rest, done, (size_t)(part.first - done));
		if (!rc)
			rc = append_emptied(rest, part, object ? "{}" : "[]");
		done = part.end;
	}
	return rc ? rc : rh_text_append(rest, done, (size_t)(end - done));
}
