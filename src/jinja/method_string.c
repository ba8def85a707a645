/* Methods of str. */
#include "jinja/jinja_internal.h"

#include <string.h>

typedef struct jinja_value method(struct jinja *j, struct jinja_value self, const struct jinja_call *call);

/* What a method of Markup returns is Markup. */
static struct jinja_value like(struct jinja_value self, struct jinja_value text)
{
	text.is_markup = self.is_markup;
	return text;
}

static struct jinja_value part(struct jinja *j, struct jinja_value self, const char *first, const char *end)
{
	return like(self, jinja_string(j, first, (size_t)(end - first)));
}

static void need_none(struct jinja *j, const struct jinja_call *call, const char *name)
{
	if (call->count + call->keywords)
		jinja_raise(&j->arena, "str.%s() takes no arguments (%zu given)", name, call->count + call->keywords);
}

static struct jinja_string need_string(struct jinja *j, const struct jinja_call *call, size_t index, const char *message)
{
	struct jinja_value value = jinja_argument(call, index, NULL);
	if (value.kind != JINJA_STRING)
		jinja_raise(&j->arena, message, jinja_type(value));
	return *value.content.string;
}

#define RECASE(name, to)                                                                                                                   \
	static struct jinja_value do_##name(struct jinja *j, struct jinja_value self, const struct jinja_call *call)                       \
	{                                                                                                                                  \
		need_none(j, call, #name);                                                                                                 \
		return like(self, jinja_recase(j, *self.content.string, to));                                                              \
	}
RECASE(upper, CASE_UPPER)
RECASE(lower, CASE_LOWER)
RECASE(casefold, CASE_LOWER)
RECASE(title, CASE_TITLE)
RECASE(capitalize, CASE_CAPITALIZE)
RECASE(swapcase, CASE_SWAP)

#define IS_CLASS(name)                                                                                                                     \
	static struct jinja_value do_##name(struct jinja *j, struct jinja_value self, const struct jinja_call *call)                       \
	{                                                                                                                                  \
		need_none(j, call, #name);                                                                                                 \
		return jinja_bool(jinja_is_class(*self.content.string, #name));                                                            \
	}
IS_CLASS(isalpha)
IS_CLASS(isdigit)
IS_CLASS(isdecimal)
IS_CLASS(isnumeric)
IS_CLASS(isalnum)
IS_CLASS(isspace)
IS_CLASS(isupper)
IS_CLASS(islower)
IS_CLASS(istitle)
IS_CLASS(isascii)
IS_CLASS(isidentifier)

static int is_among(struct jinja_value characters, int32_t code)
{
	if (characters.kind == JINJA_MISSING || characters.kind == JINJA_NONE)
		return jinja_is_space(code);
	const struct jinja_string *set = characters.content.string;
	for (size_t at = 0; at < set->length; at += jinja_code_length(set->bytes + at))
		if (jinja_code_at(set->bytes + at, set->length - at) == code)
			return 1;
	return 0;
}

struct jinja_string jinja_strip(struct jinja *j, struct jinja_string string, struct jinja_value characters, int sides)
{
	static const char *const names[] = {"", "lstrip", "rstrip", "strip"};
	if (characters.kind != JINJA_MISSING && characters.kind != JINJA_NONE && characters.kind != JINJA_STRING)
		jinja_raise(&j->arena, "%s arg must be None or str", names[sides]);
	while (sides & 1 && string.length && is_among(characters, jinja_code_at(string.bytes, string.length))) {
		size_t length = jinja_code_length(string.bytes);
		string.bytes += length;
		string.length -= length;
	}
	while (sides & 2 && string.length) {
		size_t start = string.length - 1;
		while (start > 0 && ((unsigned char)string.bytes[start] & 0xC0) == 0x80)
			start--;
		if (!is_among(characters, jinja_code_at(string.bytes + start, string.length - start)))
			break;
		string.length = start;
	}
	return string;
}

static struct jinja_value strip(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int sides)
{
	struct jinja_string kept = jinja_strip(j, *self.content.string, jinja_argument(call, 0, NULL), sides);
	return part(j, self, kept.bytes, kept.bytes + kept.length);
}

static struct jinja_value do_strip(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return strip(j, self, call, 3);
}

static struct jinja_value do_lstrip(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return strip(j, self, call, 1);
}

static struct jinja_value do_rstrip(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return strip(j, self, call, 2);
}

static const char *find_last(struct jinja_string string, struct jinja_string mark)
{
	for (size_t at = string.length >= mark.length ? string.length - mark.length + 1 : 0; at-- > 0;)
		if (!memcmp(string.bytes + at, mark.bytes, mark.length))
			return string.bytes + at;
	return NULL;
}

/* Words between blanks; the last of `most` splits leaves the rest whole. */
static void split_blanks(struct jinja *j, struct jinja_value self, int64_t most, struct jinja_list *out)
{
	const char *at = self.content.string->bytes, *end = at + self.content.string->length;
	for (;;) {
		while (at < end && jinja_is_space(jinja_code_at(at, (size_t)(end - at))))
			at += jinja_code_length(at);
		if (at >= end)
			return;
		const char *first = at;
		if (most-- == 0) {
			jinja_push(j, out, part(j, self, first, end));
			return;
		}
		while (at < end && !jinja_is_space(jinja_code_at(at, (size_t)(end - at))))
			at += jinja_code_length(at);
		jinja_push(j, out, part(j, self, first, at));
	}
}

static void reverse(struct jinja_list *list)
{
	for (size_t i = 0; i < list->count / 2; i++) {
		struct jinja_value other = list->item[i];
		list->item[i] = list->item[list->count - 1 - i];
		list->item[list->count - 1 - i] = other;
	}
}

static void split_blanks_right(struct jinja *j, struct jinja_value self, int64_t most, struct jinja_list *out)
{
	struct jinja_list words = {0};
	split_blanks(j, self, -1, &words);
	if (most < 0 || (size_t)most >= words.count) {
		*out = words;
		return;
	}
	size_t whole = words.count - (size_t)most; /* words that stay together */
	const struct jinja_string *last = words.item[whole - 1].content.string;
	jinja_push(j, out, part(j, self, self.content.string->bytes, last->bytes + last->length));
	for (size_t i = whole; i < words.count; i++)
		jinja_push(j, out, words.item[i]);
}

static void split_marks(struct jinja *j, struct jinja_value self, struct jinja_string mark, int64_t most, struct jinja_list *out)
{
	const char *at = self.content.string->bytes, *end = at + self.content.string->length;
	for (;;) {
		const char *found = most-- ? memmem(at, (size_t)(end - at), mark.bytes, mark.length) : NULL;
		jinja_push(j, out, part(j, self, at, found ? found : end));
		if (!found)
			return;
		at = found + mark.length;
	}
}

static void split_marks_right(struct jinja *j, struct jinja_value self, struct jinja_string mark, int64_t most, struct jinja_list *out)
{
	struct jinja_string rest = *self.content.string;
	for (;;) {
		const char *found = most-- ? find_last(rest, mark) : NULL;
		jinja_push(j, out, part(j, self, found ? found + mark.length : rest.bytes, rest.bytes + rest.length));
		if (!found)
			break;
		rest.length = (size_t)(found - rest.bytes);
	}
	reverse(out);
}

static struct jinja_value split(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int from_right)
{
	struct jinja_value mark = jinja_argument(call, 0, "sep"), list = jinja_new_list(j, JINJA_LIST);
	int64_t most = jinja_argument_int(j, call, 1, "maxsplit", -1);
	most = most < 0 ? -1 : most;
	jinja_step(j, self.content.string->length / 64);
	if (mark.kind == JINJA_MISSING || mark.kind == JINJA_NONE) {
		(from_right ? split_blanks_right : split_blanks)(j, self, most, list.content.list);
		return list;
	}
	if (mark.kind != JINJA_STRING)
		jinja_raise(&j->arena, "must be str or None, not %s", jinja_type(mark));
	if (!mark.content.string->length)
		jinja_raise(&j->arena, "empty separator");
	(from_right ? split_marks_right : split_marks)(j, self, *mark.content.string, most, list.content.list);
	return list;
}

static struct jinja_value do_split(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return split(j, self, call, 0);
}

static struct jinja_value do_rsplit(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return split(j, self, call, 1);
}

static struct jinja_value do_splitlines(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	int keeps = jinja_argument_bool(j, call, 0, "keepends", 0);
	struct jinja_value list = jinja_new_list(j, JINJA_LIST);
	const char *at = self.content.string->bytes, *end = at + self.content.string->length, *first = at;
	while (at < end) {
		int32_t code = jinja_code_at(at, (size_t)(end - at));
		const char *after = at + jinja_code_length(at);
		if ((code >= '\n' && code <= '\r') || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 || code == 0x2029) {
			after += code == '\r' && after < end && *after == '\n';
			jinja_push(j, list.content.list, part(j, self, first, keeps ? after : at));
			first = after;
		}
		at = after;
	}
	if (first < end)
		jinja_push(j, list.content.list, part(j, self, first, end));
	return list;
}

/* string[start:stop] by the arguments after the first. */
static struct jinja_string slice_by_arguments(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int64_t *start)
{
	int64_t length = jinja_count_codes(*self.content.string);
	int64_t from = jinja_argument_int(j, call, 1, NULL, 0), to = jinja_argument_int(j, call, 2, NULL, length);
	from = from < 0 ? (from + length < 0 ? 0 : from + length) : from;
	to = to < 0 ? (to + length < 0 ? 0 : to + length) : to > length ? length : to;
	*start = from;
	if (from > length || to < from)
		return (struct jinja_string){NULL, 0};
	size_t first = jinja_code_offset(*self.content.string, from), end = jinja_code_offset(*self.content.string, to);
	return (struct jinja_string){self.content.string->bytes + first, end - first};
}

static int64_t find(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int from_right)
{
	int64_t start;
	struct jinja_string mark = need_string(j, call, 0, "must be str, not %s"), in = slice_by_arguments(j, self, call, &start);
	jinja_step(j, self.content.string->length / 64);
	if (!in.bytes)
		return -1;
	const char *at = from_right ? find_last(in, mark) : mark.length ? memmem(in.bytes, in.length, mark.bytes, mark.length) : in.bytes;
	return at ? start + jinja_count_codes((struct jinja_string){in.bytes, (size_t)(at - in.bytes)}) : -1;
}

static struct jinja_value do_find(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return jinja_int(find(j, self, call, 0));
}

static struct jinja_value do_rfind(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return jinja_int(find(j, self, call, 1));
}

static struct jinja_value do_index(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	int64_t at = find(j, self, call, 0);
	if (at < 0)
		jinja_raise(&j->arena, "substring not found");
	return jinja_int(at);
}

static struct jinja_value do_rindex(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	int64_t at = find(j, self, call, 1);
	if (at < 0)
		jinja_raise(&j->arena, "substring not found");
	return jinja_int(at);
}

static struct jinja_value do_count(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	int64_t start, count = 0;
	struct jinja_string mark = need_string(j, call, 0, "must be str, not %s"), in = slice_by_arguments(j, self, call, &start);
	jinja_step(j, self.content.string->length / 64);
	if (!in.bytes)
		return jinja_int(0);
	if (!mark.length)
		return jinja_int(jinja_count_codes(in) + 1);
	for (const char *at; (at = memmem(in.bytes, in.length, mark.bytes, mark.length)); count++) {
		in.length -= (size_t)(at - in.bytes) + mark.length;
		in.bytes = at + mark.length;
	}
	return jinja_int(count);
}

static int has_end(struct jinja_string string, struct jinja_string mark, int at_start)
{
	return string.bytes && string.length >= mark.length &&
	       !memcmp(at_start ? string.bytes : string.bytes + string.length - mark.length, mark.bytes, mark.length);
}

static struct jinja_value tests_end(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int at_start)
{
	const char *name = at_start ? "startswith" : "endswith";
	struct jinja_value marks = jinja_argument(call, 0, NULL);
	int64_t start;
	struct jinja_string in = slice_by_arguments(j, self, call, &start);
	if (marks.kind == JINJA_STRING)
		return jinja_bool(has_end(in, *marks.content.string, at_start));
	if (marks.kind != JINJA_TUPLE)
		jinja_raise(&j->arena, "%s first arg must be str or a tuple of str, not %s", name, jinja_type(marks));
	for (size_t i = 0; i < marks.content.list->count; i++) {
		if (marks.content.list->item[i].kind != JINJA_STRING)
			jinja_raise(&j->arena, "tuple for %s must only contain str, not %s", name, jinja_type(marks.content.list->item[i]));
		if (has_end(in, *marks.content.list->item[i].content.string, at_start))
			return jinja_bool(1);
	}
	return jinja_bool(0);
}

static struct jinja_value do_startswith(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return tests_end(j, self, call, 1);
}

static struct jinja_value do_endswith(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return tests_end(j, self, call, 0);
}

static struct jinja_value without_end(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int at_start)
{
	struct jinja_string string = *self.content.string;
	struct jinja_string mark = need_string(
	        j, call, 0, at_start ? "removeprefix() argument must be str, not %s" : "removesuffix() argument must be str, not %s");
	if (has_end(string, mark, at_start)) {
		string.bytes += at_start ? mark.length : 0;
		string.length -= mark.length;
	}
	return part(j, self, string.bytes, string.bytes + string.length);
}

static struct jinja_value do_removeprefix(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return without_end(j, self, call, 1);
}

static struct jinja_value do_removesuffix(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return without_end(j, self, call, 0);
}

struct jinja_value jinja_replace(struct jinja *j, struct jinja_string string, struct jinja_string old, struct jinja_string fresh,
                                 int64_t most)
{
	struct jinja_buffer out = {0};
	const char *at = string.bytes, *end = at + string.length;
	while (most) {
		const char *found = old.length ? memmem(at, (size_t)(end - at), old.bytes, old.length) : at;
		if (!found)
			break;
		jinja_put(j, &out, at, (size_t)(found - at));
		jinja_put_string(j, &out, fresh);
		jinja_step(j, 1);
		most -= most > 0;
		at = found + old.length;
		if (old.length)
			continue;
		if (at >= end) /* between all characters, and at both ends */
			return jinja_copy(j, &out);
		size_t length = jinja_code_length(at);
		jinja_put(j, &out, at, length);
		at += length;
	}
	jinja_put(j, &out, at, (size_t)(end - at));
	return jinja_copy(j, &out);
}

static struct jinja_value do_replace(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	if (call->count < 2)
		jinja_raise(&j->arena, "replace expected at least 2 arguments, got %zu", call->count);
	struct jinja_string old = need_string(j, call, 0, "replace() argument 1 must be str, not %s");
	struct jinja_string fresh = need_string(j, call, 1, "replace() argument 2 must be str, not %s");
	if (self.is_markup)
		fresh = *jinja_escape(j, call->argument[1]).content.string;
	return like(self, jinja_replace(j, *self.content.string, old, fresh, jinja_argument_int(j, call, 2, NULL, -1)));
}

static struct jinja_value do_join(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	struct jinja_buffer out = {0};
	struct jinja_value items = jinja_argument(call, 0, NULL);
	if (call->count != 1)
		jinja_raise(&j->arena, "str.join() takes exactly one argument (%zu given)", call->count);
	if (jinja_length(items) < 0 && items.kind != JINJA_GENERATOR)
		jinja_raise(&j->arena, "can only join an iterable");
	const struct jinja_list *list = jinja_items(j, items);
	for (size_t i = 0; i < list->count; i++) {
		struct jinja_value item = list->item[i];
		if (item.kind != JINJA_STRING)
			jinja_raise(&j->arena, "sequence item %zu: expected str instance, %s found", i, jinja_type(item));
		if (i)
			jinja_put_string(j, &out, *self.content.string);
		jinja_put_string(j, &out, self.is_markup ? *jinja_escape(j, item).content.string : *item.content.string);
	}
	return like(self, jinja_copy(j, &out));
}

static struct jinja_value do_format(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return like(self, jinja_format(j, *self.content.string, call));
}

static struct jinja_value partition(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int from_right)
{
	struct jinja_string string = *self.content.string, mark = need_string(j, call, 0, "must be str, not %s");
	struct jinja_value three = jinja_new_list(j, JINJA_TUPLE);
	if (!mark.length)
		jinja_raise(&j->arena, "empty separator");
	const char *end = string.bytes + string.length;
	const char *at = from_right ? find_last(string, mark) : memmem(string.bytes, string.length, mark.bytes, mark.length);
	const char *borders[4] = {string.bytes,
	                          at           ? at
	                          : from_right ? string.bytes
	                                       : end,
	                          at           ? at + mark.length
	                          : from_right ? string.bytes
	                                       : end,
	                          end};
	for (int i = 0; i < 3; i++)
		jinja_push(j, three.content.list, part(j, self, borders[i], borders[i + 1]));
	return three;
}

static struct jinja_value do_partition(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return partition(j, self, call, 0);
}

static struct jinja_value do_rpartition(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return partition(j, self, call, 1);
}

/* `before` and `after` fills around the string. */
static struct jinja_value padded(struct jinja *j, struct jinja_value self, const struct jinja_call *call, int64_t before, int64_t after)
{
	struct jinja_buffer out = {0};
	struct jinja_string fill = {" ", 1};
	struct jinja_value given = jinja_argument(call, 1, NULL);
	if (given.kind != JINJA_MISSING) {
		if (given.kind != JINJA_STRING || jinja_length(given) != 1)
			jinja_raise(&j->arena, "The fill character must be exactly one character long");
		fill = *given.content.string;
	}
	for (int64_t i = 0; i < before; i++)
		jinja_put_string(j, &out, fill);
	jinja_put_string(j, &out, *self.content.string);
	for (int64_t i = 0; i < after; i++)
		jinja_put_string(j, &out, fill);
	jinja_step(j, (uint64_t)((before > 0 ? before : 0) + (after > 0 ? after : 0)) / 16);
	return like(self, jinja_copy(j, &out));
}

static int64_t missing_width(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	struct jinja_value width = jinja_argument(call, 0, NULL);
	int64_t missing = jinja_index(j, width) - jinja_length(self);
	return missing < 0 ? 0 : missing;
}

static struct jinja_value do_ljust(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return padded(j, self, call, 0, missing_width(j, self, call));
}

static struct jinja_value do_rjust(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	return padded(j, self, call, missing_width(j, self, call), 0);
}

static struct jinja_value do_center(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	int64_t missing = missing_width(j, self, call), width = missing + jinja_length(self);
	int64_t before = missing / 2 + (missing & width & 1);
	return padded(j, self, call, before, missing - before);
}

static struct jinja_value do_zfill(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	struct jinja_buffer out = {0};
	struct jinja_string string = *self.content.string;
	int64_t missing = missing_width(j, self, call);
	size_t sign = string.length && (*string.bytes == '-' || *string.bytes == '+');
	jinja_put(j, &out, string.bytes, sign);
	for (int64_t i = 0; i < missing; i++)
		jinja_put(j, &out, "0", 1);
	jinja_step(j, (uint64_t)missing / 16);
	jinja_put(j, &out, string.bytes + sign, string.length - sign);
	return like(self, jinja_copy(j, &out));
}

static struct jinja_value do_expandtabs(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	struct jinja_buffer out = {0};
	int64_t size = jinja_argument_int(j, call, 0, "tabsize", 8), column = 0;
	const struct jinja_string *string = self.content.string;
	for (size_t at = 0; at < string->length; at += jinja_code_length(string->bytes + at)) {
		char c = string->bytes[at];
		if (c == '\t') {
			for (int64_t i = size > 0 ? size - column % size : 0; i > 0; i--, column++)
				jinja_put(j, &out, " ", 1);
			continue;
		}
		column = c == '\n' || c == '\r' ? 0 : column + 1;
		jinja_put(j, &out, string->bytes + at, jinja_code_length(string->bytes + at));
	}
	return like(self, jinja_copy(j, &out));
}

static const struct jinja_method_form methods[] = {
        {"strip", do_strip},
        {"lstrip", do_lstrip},
        {"rstrip", do_rstrip},
        {"split", do_split},
        {"rsplit", do_rsplit},
        {"splitlines", do_splitlines},
        {"startswith", do_startswith},
        {"endswith", do_endswith},
        {"replace", do_replace},
        {"find", do_find},
        {"rfind", do_rfind},
        {"index", do_index},
        {"rindex", do_rindex},
        {"count", do_count},
        {"join", do_join},
        {"format", do_format},
        {"upper", do_upper},
        {"lower", do_lower},
        {"casefold", do_casefold},
        {"title", do_title},
        {"capitalize", do_capitalize},
        {"swapcase", do_swapcase},
        {"removeprefix", do_removeprefix},
        {"removesuffix", do_removesuffix},
        {"partition", do_partition},
        {"rpartition", do_rpartition},
        {"ljust", do_ljust},
        {"rjust", do_rjust},
        {"center", do_center},
        {"zfill", do_zfill},
        {"expandtabs", do_expandtabs},
        {"isalpha", do_isalpha},
        {"isdigit", do_isdigit},
        {"isdecimal", do_isdecimal},
        {"isnumeric", do_isnumeric},
        {"isalnum", do_isalnum},
        {"isspace", do_isspace},
        {"isupper", do_isupper},
        {"islower", do_islower},
        {"istitle", do_istitle},
        {"isascii", do_isascii},
        {"isidentifier", do_isidentifier},
};

const struct jinja_method_form *jinja_find_string_method(const char *name)
{
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		if (!strcmp(methods[i].name, name))
			return &methods[i];
	return NULL;
}
