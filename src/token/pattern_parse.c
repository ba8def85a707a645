#include "token/pattern_parse.h"

#include "core/alloc.h"
#include "token/pattern_class.h"

#include <string.h>

enum { DEEPEST = 100 }; /* nested groups; PCRE2 itself takes 250, some of which the rewriting adds */

void skeleton_free(struct skeleton *skeleton)
{
	for (size_t i = 0; i < skeleton->sets; i++)
		set_free(&skeleton->set[i]);
	rh_free(skeleton->set);
	rh_text_free(&skeleton->text);
	*skeleton = (struct skeleton){0};
}

int skeleton_add(struct skeleton *skeleton, struct set *set)
{
	uint32_t index = 0;
	while (index < skeleton->sets && (skeleton->set[index].count != set->count ||
	                                  (set->count && memcmp(skeleton->set[index].range, set->range, set->count * sizeof(*set->range)))))
		index++;
	if (index == skeleton->sets) {
		int rc = rh_grow(&skeleton->set, &skeleton->capacity, skeleton->sets + 1, sizeof(*skeleton->set));
		if (rc)
			return rc;
		skeleton->set[skeleton->sets++] = *set;
		*set = (struct set){0};
	} else {
		set_free(set);
	}
	char mark[1 + sizeof index] = {PATTERN_SET};
	memcpy(mark + 1, &index, sizeof index);
	return rh_text_append(&skeleton->text, mark, sizeof mark);
}

static int emit(struct reader *r, const char *text)
{
	return rh_text_append(&r->out->text, text, strlen(text));
}

static int emit_range(struct reader *r, uint32_t first, uint32_t last)
{
	struct set set = {0};
	int rc = set_add(&set, first, last);
	if (!rc)
		rc = skeleton_add(r->out, &set);
	set_free(&set);
	return rc;
}

/* PCRE2 syntax in which '@' stands for one character of `set`. */
static int emit_around(struct reader *r, const char *text, const struct set *set)
{
	int rc = 0;
	for (; *text && !rc; text++) {
		struct set copy = {0};
		if (*text != '@') {
			rc = rh_text_append(&r->out->text, text, 1);
			continue;
		}
		rc = set_unite(&copy, set);
		if (!rc)
			rc = skeleton_add(r->out, &copy);
		set_free(&copy);
	}
	return rc;
}

/* Anchors, in the words of PCRE2 without its multi-line mode: '\n' alone ends a line, and after the last one no line starts or ends.
 * A boundary's \w is the one outside brackets. */
static int anchor(struct reader *r, int c)
{
	struct set set = {0};
	int word = c == 'b' || c == 'B';
	const char *text = c == '^'   ? "(?:\\A|(?<=@)(?!\\z))"
	                   : c == '$' ? "(?:(?=@)|(?<!@)\\z)"
	                   : c == 'Z' ? "(?=@?\\z)"
	                   : c == 'b' ? "(?:(?<=@)(?!@)|(?<!@)(?=@))"
	                   : c == 'B' ? "(?:(?<=@)(?=@)|(?<!@)(?!@))"
	                   : c == 'A' ? "\\A"
	                              : "\\z";
	int rc = word ? set_add_bare_word(&set) : set_add(&set, '\n', '\n');
	if (!rc)
		rc = emit_around(r, text, &set);
	set_free(&set);
	return rc;
}

static int any_newline(struct reader *r)
{
	struct set other = {0};
	int rc = emit(r, "(?>");
	if (!rc)
		rc = emit_range(r, '\r', '\r');
	if (!rc)
		rc = emit_range(r, '\n', '\n');
	if (!rc)
		rc = set_add(&other, '\n', '\r');
	if (!rc)
		rc = set_add(&other, 0x85, 0x85);
	if (!rc)
		rc = set_add(&other, 0x2028, 0x2029);
	if (!rc)
		rc = emit_around(r, "|@)", &other);
	set_free(&other);
	return rc;
}

static int literal(struct reader *r, uint32_t point)
{
	struct set set = {0};
	int rc = set_add(&set, point, point);
	if (!rc && r->flags & READ_IGNORE_CASE) {
		/* Ignoring case, the library lets these pairs match one character (U+00DF and the ligatures U+FB00 on). */
		uint32_t a = r->previous | 32, b = point | 32;
		if ((a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l')))
			rc = reader_refuse(r, "two letters that match one when case is ignored");
		r->previous = point;
		if (!rc)
			rc = set_ignore_case(&set);
	}
	if (!rc)
		rc = skeleton_add(r->out, &set);
	set_free(&set);
	return rc;
}

static int set_atom(struct reader *r, struct set *set)
{
	r->previous = 0;
	int rc = skeleton_add(r->out, set);
	set_free(set);
	return rc;
}

static int escape_atom(struct reader *r)
{
	int c = r->cursor < r->end ? (unsigned char)*r->cursor : 0;
	if (c == 'A' || c == 'z' || c == 'Z' || c == 'b' || c == 'B') {
		r->cursor++;
		r->previous = 0;
		return anchor(r, c);
	}
	if (c == 'R') {
		r->cursor++;
		r->previous = 0;
		return any_newline(r);
	}
	struct set set = {0};
	uint32_t point;
	int rc = reader_escape(r, READ_BARE, &set, &point);
	if (rc == READ_POINT)
		rc = literal(r, point);
	else if (rc == READ_SET)
		rc = set_atom(r, &set);
	set_free(&set);
	return rc;
}

/* {n}, {n,}, {,m}, {n,m} as PCRE2 has them; 0 when the brace is a plain character. */
static int interval(struct reader *r, char out[32])
{
	const char *at = r->cursor + 1;
	unsigned low = 0, high = 0;
	int lows = 0, highs = 0, comma = 0;
	for (; at < r->end && *at >= '0' && *at <= '9' && lows < 5; at++, lows++)
		low = low * 10 + (unsigned)(*at - '0');
	if (at < r->end && *at == ',') {
		comma = 1;
		for (at++; at < r->end && *at >= '0' && *at <= '9' && highs < 5; at++, highs++)
			high = high * 10 + (unsigned)(*at - '0');
	}
	if (at == r->end || *at != '}' || (!lows && !highs))
		return 0;
	r->cursor = at + 1;
	if (!comma)
		snprintf(out, 32, "{%u}", low);
	else if (!highs)
		snprintf(out, 32, "{%u,}", low);
	else
		snprintf(out, 32, "{%u,%u}", low, high);
	return comma ? 2 : 1;
}

static int quantifier(struct reader *r)
{
	if (r->cursor == r->end)
		return 0;
	char text[32] = {*r->cursor};
	int braces = 0;
	if (*r->cursor == '{') {
		braces = interval(r, text);
		if (!braces)
			return 0;
	} else if (*r->cursor == '*' || *r->cursor == '+' || *r->cursor == '?') {
		r->cursor++;
	} else {
		return 0;
	}
	r->previous = 0;
	int rc = emit(r, text);
	if (!rc && r->cursor < r->end && (*r->cursor == '?' || *r->cursor == '+')) {
		if (braces == 1 || (braces && *r->cursor == '+'))
			return reader_refuse(r, "'?' or '+' after {n}");
		char suffix[2] = {*r->cursor++};
		rc = emit(r, suffix);
	}
	if (!rc && r->cursor < r->end && (*r->cursor == '*' || *r->cursor == '+' || *r->cursor == '?'))
		return reader_refuse(r, "a quantifier of a quantifier");
	return rc;
}

static int alternatives(struct reader *r);

/* What stands between the brackets of a group, up to and with the closing one. */
static int group_body(struct reader *r, const char *opening)
{
	unsigned flags = r->flags;
	int rc = emit(r, opening);
	r->previous = 0;
	if (!rc)
		rc = alternatives(r);
	r->flags = flags;
	r->previous = 0;
	if (!rc && r->cursor == r->end)
		return reader_refuse(r, "a group without its ')'");
	r->cursor += !rc;
	return rc ? rc : emit(r, ")");
}

/* (?imx-imx) and (?imx-imx:...). Bare flags hold to the end of the group around them, alternatives included, as in Ruby. */
static int flag_group(struct reader *r)
{
	unsigned before = r->flags, flags = r->flags;
	for (int on = 1; r->cursor < r->end && *r->cursor != ':' && *r->cursor != ')'; r->cursor++) {
		unsigned flag = *r->cursor == 'i'   ? READ_IGNORE_CASE
		                : *r->cursor == 'm' ? READ_DOT_ALL
		                : *r->cursor == 'x' ? READ_EXTENDED
		                                    : 0;
		if (*r->cursor == '-' && on)
			on = 0;
		else if (flag)
			flags = on ? flags | flag : flags & ~flag;
		else
			return reader_refuse(r, "this kind of group");
	}
	if (r->cursor == r->end)
		return reader_refuse(r, "a group without its ')'");
	r->flags = flags;
	int rc;
	if (*r->cursor++ == ':') {
		rc = group_body(r, "(?:");
	} else {
		rc = emit(r, "(?:");
		if (!rc)
			rc = alternatives(r);
		if (!rc)
			rc = emit(r, ")");
	}
	r->flags = before;
	return rc;
}

static int group(struct reader *r)
{
	static const struct {
		const char *source, *opening;
	} kinds[] = {{"?:", "(?:"}, {"?=", "(?="}, {"?!", "(?!"}, {"?>", "(?>"}, {"?<=", "(?<="}, {"?<!", "(?<!"}};
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		size_t length = strlen(kinds[i].source);
		if ((size_t)(r->end - r->cursor) >= length && !memcmp(r->cursor, kinds[i].source, length)) {
			r->cursor += length;
			return group_body(r, kinds[i].opening);
		}
	}
	if (r->cursor == r->end || *r->cursor != '?')
		return group_body(r, "(?:"); /* captures are never read */
	if (r->end - r->cursor >= 2 && r->cursor[1] == '#') {
		while (r->cursor < r->end && *r->cursor != ')')
			r->cursor++;
		if (r->cursor == r->end)
			return reader_refuse(r, "a group without its ')'");
		r->cursor++;
		return 0;
	}
	if (r->end - r->cursor >= 3 && r->cursor[1] == '<') {
		while (r->cursor < r->end && *r->cursor != '>')
			r->cursor++;
		if (r->cursor == r->end)
			return reader_refuse(r, "a group's name without its '>'");
		r->cursor++;
		return group_body(r, "(?:");
	}
	r->cursor++;
	return flag_group(r);
}

static int atom(struct reader *r)
{
	struct set set = {0};
	uint32_t point;
	int rc;
	switch (*r->cursor) {
	case '(':
		r->cursor++;
		if (++r->depth > DEEPEST)
			return reader_refuse(r, "groups nested so deep");
		rc = group(r);
		r->depth--;
		return rc;
	case '[':
		r->cursor++;
		rc = reader_class(r, &set);
		if (!rc)
			rc = set_atom(r, &set);
		set_free(&set);
		return rc;
	case '\\':
		r->cursor++;
		return escape_atom(r);
	case '.':
		r->cursor++;
		if (!(r->flags & READ_DOT_ALL))
			rc = set_add(&set, '\n', '\n');
		else
			rc = 0;
		if (!rc)
			rc = set_negate(&set);
		if (!rc)
			rc = set_atom(r, &set);
		set_free(&set);
		return rc;
	case '^':
	case '$':
		r->previous = 0;
		return anchor(r, *r->cursor++);
	case '*':
	case '+':
	case '?':
		return reader_refuse(r, "a quantifier with nothing before it");
	}
	r->cursor += utf8_next(r->cursor, &point);
	return literal(r, point);
}

/* In extended mode, blanks and comments between the parts. */
static void skip_blank(struct reader *r)
{
	while (r->flags & READ_EXTENDED && r->cursor < r->end) {
		if (*r->cursor == '#')
			while (r->cursor < r->end && *r->cursor != '\n')
				r->cursor++;
		else if (*r->cursor == ' ' || (*r->cursor >= '\t' && *r->cursor <= '\r'))
			r->cursor++;
		else
			break;
	}
}

/* Up to the ')' that ends the group, or to the end. */
static int alternatives(struct reader *r)
{
	int rc = 0;
	for (skip_blank(r); r->cursor < r->end && *r->cursor != ')' && !rc; skip_blank(r)) {
		if (*r->cursor == '|') {
			r->cursor++;
			r->previous = 0;
			rc = emit(r, "|");
			continue;
		}
		rc = atom(r);
		if (!rc) {
			skip_blank(r);
			rc = quantifier(r);
		}
	}
	return rc;
}

int pattern_parse(const char *source, size_t bytes, const char *where, struct skeleton *out)
{
	struct reader r = {.cursor = source, .end = source + bytes, .source = source, .where = where, .out = out};
	int rc = alternatives(&r);
	if (!rc && r.cursor < r.end)
		rc = reader_refuse(&r, "a ')' that opens nowhere");
	return rc;
}
