#include "token/unicode.h"

#include "token/unicode_table.inc"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

struct unicode_ranges unicode_set(enum unicode_set set)
{
	switch (set) {
	case UNICODE_WHITE_SPACE:
		return (struct unicode_ranges){white_space, COUNT(white_space)};
	case UNICODE_OTHER_ALPHABETIC:
		return (struct unicode_ranges){other_alphabetic, COUNT(other_alphabetic)};
	case UNICODE_OTHER_UPPERCASE:
		return (struct unicode_ranges){other_uppercase, COUNT(other_uppercase)};
	case UNICODE_OTHER_LOWERCASE:
		return (struct unicode_ranges){other_lowercase, COUNT(other_lowercase)};
	case UNICODE_OTHER_WORD:
		return (struct unicode_ranges){other_word, COUNT(other_word)};
	case UNICODE_OTHER_NUMERIC:
		return (struct unicode_ranges){other_numeric, COUNT(other_numeric)};
	case UNICODE_EMOJI:
		return (struct unicode_ranges){emoji, COUNT(emoji)};
	case UNICODE_PICTOGRAPHIC:
		return (struct unicode_ranges){pictographic, COUNT(pictographic)};
	case UNICODE_NORMAL_INERT:
		break;
	}
	return (struct unicode_ranges){normal_inert, COUNT(normal_inert)};
}

struct unicode_steps unicode_categories(void)
{
	return (struct unicode_steps){category_steps, COUNT(category_steps)};
}

struct unicode_steps unicode_scripts(void)
{
	return (struct unicode_steps){script_steps, COUNT(script_steps)};
}

struct unicode_runs unicode_case_runs(void)
{
	return (struct unicode_runs){case_runs, COUNT(case_runs)};
}

static int letter(const char **at)
{
	while (**at == ' ' || **at == '_' || **at == '-')
		(*at)++;
	int c = (unsigned char)**at;
	if (c)
		(*at)++;
	return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

static int same_name(const char *a, const char *b)
{
	int x, y;
	do {
		x = letter(&a);
		y = letter(&b);
	} while (x && x == y);
	return x == y;
}

uint32_t unicode_script_by_name(const char *name)
{
	static const char *const short_names[][2] = {
	        {"arab", "Arabic"},   {"cyrl", "Cyrillic"}, {"deva", "Devanagari"}, {"grek", "Greek"},
	        {"hang", "Hangul"},   {"hani", "Han"},      {"hebr", "Hebrew"},     {"hira", "Hiragana"},
	        {"kana", "Katakana"}, {"latn", "Latin"},    {"zyyy", "Common"},     {"zinh", "Inherited"},
	};
	for (size_t i = 0; i < COUNT(short_names); i++)
		if (same_name(name, short_names[i][0]))
			name = short_names[i][1];
	for (size_t i = 1; i < COUNT(script_names); i++)
		if (same_name(name, script_names[i]))
			return (uint32_t)i;
	return 0;
}

int unicode_in(enum unicode_set set, uint32_t point)
{
	struct unicode_ranges ranges = unicode_set(set);
	size_t low = 0, high = ranges.count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (ranges.range[middle].last < point)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ranges.count && ranges.range[low].first <= point;
}

static enum unicode_category category_of(uint32_t point)
{
	size_t low = 0, high = COUNT(category_steps);
	while (high - low > 1) {
		size_t middle = (low + high) / 2;
		if (category_steps[middle] >> 8 <= point)
			low = middle;
		else
			high = middle;
	}
	return (enum unicode_category)(category_steps[low] & 255);
}

int unicode_is_space(uint32_t point)
{
	if (point < 0x80)
		return point == ' ' || (point >= '\t' && point <= '\r');
	return unicode_in(UNICODE_WHITE_SPACE, point);
}

int unicode_is_word(uint32_t point)
{
	enum unicode_category category = category_of(point);
	return category <= UNICODE_NL || category == UNICODE_PC || point == 0x200C || point == 0x200D ||
	       unicode_in(UNICODE_OTHER_ALPHABETIC, point);
}

int unicode_is_numeric(uint32_t point)
{
	if (point < 0x80)
		return point >= '0' && point <= '9';
	enum unicode_category category = category_of(point);
	return (category >= UNICODE_ND && category <= UNICODE_NO) || unicode_in(UNICODE_OTHER_NUMERIC, point);
}

int unicode_lower(uint32_t point, uint32_t out[2])
{
	out[0] = point;
	if (point < 0x80) {
		out[0] += point >= 'A' && point <= 'Z' ? 32 : 0;
		return 1;
	}
	if (point == 0x130) { /* the only one that becomes two */
		out[0] = 'i';
		out[1] = 0x307;
		return 2;
	}
	/* Runs of the same stretch may interleave (stride 2), so the last that starts at or before `point` need not be the one. */
	for (size_t i = 0; i < COUNT(lower_runs) && lower_runs[i].first <= point; i++) {
		const struct unicode_run *run = &lower_runs[i];
		if (point <= run->last && (point - run->first) % (uint32_t)run->stride == 0) {
			out[0] = (uint32_t)((int32_t)point + run->delta);
			break;
		}
	}
	return 1;
}

size_t utf8_lossy(const char *text, size_t bytes, int *whole)
{
	const unsigned char *s = (const unsigned char *)text;
	*whole = 0;
	if (s[0] < 0x80) {
		*whole = 1;
		return 1;
	}
	unsigned length = s[0] >= 0xC2 && s[0] <= 0xDF ? 2 : s[0] >= 0xE0 && s[0] <= 0xEF ? 3 : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4 : 0;
	if (!length)
		return 1;
	/* The second byte's range shuts out overlong forms, surrogates and what is above U+10FFFF. */
	unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80, high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
	size_t i = 1;
	for (; i < length && i < bytes; i++) {
		if (s[i] < low || s[i] > high)
			break;
		low = 0x80;
		high = 0xBF;
	}
	*whole = i == length;
	return i;
}

int utf8_valid(const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes;) {
		uint64_t eight;
		if (bytes - i >= 8 && (memcpy(&eight, text + i, 8), !(eight & 0x8080808080808080u))) {
			i += 8;
			continue;
		}
		int whole;
		i += utf8_lossy(text + i, bytes - i, &whole);
		if (!whole)
			return 0;
	}
	return 1;
}

size_t utf8_next(const char *text, uint32_t *point)
{
	const unsigned char *s = (const unsigned char *)text;
	if (s[0] < 0x80) {
		*point = s[0];
		return 1;
	}
	if (s[0] < 0xE0) {
		*point = (s[0] & 31u) << 6 | (s[1] & 63u);
		return 2;
	}
	if (s[0] < 0xF0) {
		*point = (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
		return 3;
	}
	*point = (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
	return 4;
}

size_t utf8_before(const char *text, size_t end, uint32_t *point)
{
	size_t start = end - 1;
	while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80)
		start--;
	return utf8_next(text + start, point);
}

size_t utf8_put(uint32_t point, char out[4])
{
	if (point < 0x80) {
		out[0] = (char)point;
		return 1;
	}
	if (point < 0x800) {
		out[0] = (char)(0xC0 | point >> 6);
		out[1] = (char)(0x80 | (point & 63));
		return 2;
	}
	if (point < 0x10000) {
		out[0] = (char)(0xE0 | point >> 12);
		out[1] = (char)(0x80 | (point >> 6 & 63));
		out[2] = (char)(0x80 | (point & 63));
		return 3;
	}
	out[0] = (char)(0xF0 | point >> 18);
	out[1] = (char)(0x80 | (point >> 12 & 63));
	out[2] = (char)(0x80 | (point >> 6 & 63));
	out[3] = (char)(0x80 | (point & 63));
	return 4;
}
