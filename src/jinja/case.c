/* str.upper(), isalpha() and their kind. */
#include "jinja/jinja_internal.h"

#include <string.h>
#include <utf8proc.h>

/* Characters that become several: Unicode's SpecialCasing.txt without its conditions. Each entry: the character, its upper form, its title
 * form. */
static const struct {
	int32_t code;
	const char *upper, *title;
} special[] = {
#include "jinja/case_special.inc"
};

static const char *special_of(int32_t code, int is_title)
{
	size_t first = 0, end = sizeof special / sizeof *special;
	while (first < end) {
		size_t middle = (first + end) / 2;
		if (special[middle].code == code)
			return is_title ? special[middle].title : special[middle].upper;
		if (special[middle].code < code)
			first = middle + 1;
		else
			end = middle;
	}
	return NULL;
}

static int is_cased(int32_t code)
{
	if (code < 0x80)
		return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
	return utf8proc_category(code) == UTF8PROC_CATEGORY_LT || utf8proc_toupper(code) != code || utf8proc_tolower(code) != code;
}

static int is_case_ignorable(int32_t code)
{
	switch (utf8proc_category(code)) {
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_SK:
		return 1;
	default:
		return code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x2019;
	}
}

/* Whether a capital sigma at `at` ends a word: a letter before it and none after it. */
static int is_final_sigma(struct jinja_string string, size_t at)
{
	int before = 0, after = 0;
	for (size_t i = 0; i < at; i += jinja_code_length(string.bytes + i)) {
		int32_t code = jinja_code_at(string.bytes + i, string.length - i);
		if (!is_case_ignorable(code))
			before = is_cased(code);
	}
	for (size_t i = at + jinja_code_length(string.bytes + at); i < string.length; i += jinja_code_length(string.bytes + i)) {
		int32_t code = jinja_code_at(string.bytes + i, string.length - i);
		if (is_case_ignorable(code))
			continue;
		after = is_cased(code);
		break;
	}
	return before && !after;
}

static void put_lower(struct jinja *j, struct jinja_buffer *out, struct jinja_string string, size_t at, int32_t code)
{
	if (code == 0x3A3)
		jinja_put_code(j, out, is_final_sigma(string, at) ? 0x3C2 : 0x3C3);
	else if (code == 0x130)
		jinja_put_text(j, out, "i\xCC\x87");
	else
		jinja_put_code(j, out, utf8proc_tolower(code));
}

static void put_upper(struct jinja *j, struct jinja_buffer *out, int32_t code, int is_title)
{
	const char *several = code < 0x80 ? NULL : special_of(code, is_title);
	if (several)
		jinja_put_text(j, out, several);
	else
		jinja_put_code(j, out, is_title ? utf8proc_totitle(code) : utf8proc_toupper(code));
}

struct jinja_value jinja_recase(struct jinja *j, struct jinja_string string, enum jinja_case to)
{
	struct jinja_buffer out = {0};
	int in_word = 0;
	for (size_t at = 0; at < string.length; at += jinja_code_length(string.bytes + at)) {
		int32_t code = jinja_code_at(string.bytes + at, string.length - at);
		int is_first = to == CASE_CAPITALIZE ? at == 0 : !in_word;
		if (to == CASE_UPPER)
			put_upper(j, &out, code, 0);
		else if (to == CASE_LOWER)
			put_lower(j, &out, string, at, code);
		else if (to == CASE_SWAP && utf8proc_toupper(code) == code && utf8proc_tolower(code) != code)
			put_lower(j, &out, string, at, code);
		else if (to == CASE_SWAP)
			put_upper(j, &out, code, 0);
		else if (is_first)
			put_upper(j, &out, code, 1);
		else
			put_lower(j, &out, string, at, code);
		in_word = is_cased(code);
	}
	return jinja_copy(j, &out);
}

static int is_letter(int32_t code)
{
	utf8proc_category_t category = utf8proc_category(code);
	return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static int is_decimal(int32_t code)
{
	return code < 0x80 ? code >= '0' && code <= '9' : utf8proc_category(code) == UTF8PROC_CATEGORY_ND;
}

int jinja_is_class(struct jinja_string string, const char *method)
{
	int upper = 0, lower = 0, is_title = 1, in_word = 0;
	const char *class = method + 2;
	if (!strcmp(class, "ascii")) {
		for (size_t i = 0; i < string.length; i++)
			if (string.bytes[i] & 0x80)
				return 0;
		return 1;
	}
	for (size_t at = 0; at < string.length; at += jinja_code_length(string.bytes + at)) {
		int32_t code = jinja_code_at(string.bytes + at, string.length - at);
		int holds = 1, is_upper = utf8proc_category(code) == UTF8PROC_CATEGORY_LU,
		    is_lower = utf8proc_category(code) == UTF8PROC_CATEGORY_LL;
		if (!strcmp(class, "space"))
			holds = jinja_is_space(code);
		else if (!strcmp(class, "alpha"))
			holds = is_letter(code);
		else if (!strcmp(class, "digit") || !strcmp(class, "decimal") || !strcmp(class, "numeric"))
			holds = is_decimal(code) ||
			        (code >= 0x80 && strcmp(class, "decimal") && utf8proc_category(code) == UTF8PROC_CATEGORY_NO);
		else if (!strcmp(class, "alnum"))
			holds = is_letter(code) || is_decimal(code) || utf8proc_category(code) == UTF8PROC_CATEGORY_NO;
		else if (!strcmp(class, "identifier"))
			holds = code == '_' || is_letter(code) || (at && is_decimal(code));
		if (!holds)
			return 0;
		is_title = is_title && (is_upper ? !in_word : is_lower ? in_word : 1);
		in_word = is_upper || is_lower;
		upper += is_upper;
		lower += is_lower;
	}
	if (!strcmp(class, "upper"))
		return upper && !lower;
	if (!strcmp(class, "lower"))
		return lower && !upper;
	if (!strcmp(class, "title"))
		return upper && is_title;
	return string.length > 0;
}
