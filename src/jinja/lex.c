/* A template's text as tokens, blanks around tags settled: trim_blocks, lstrip_blocks and the signs - and +. */
#include "jinja/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

struct lexer {
	struct jinja_arena *arena;
	const char *text; /* line breaks are \n, the last one is gone */
	size_t length, offset;
	struct jinja_tokens *out;
	int starts_line;  /* what was read last ended with a line break */
	int line, column; /* of counted_to; column: code points before it */
	size_t counted_to;
	char bracket[256]; /* the closing ones that are awaited */
	size_t brackets;
};

static struct jinja_token *push(struct lexer *lexer, enum jinja_token_kind kind, size_t first, size_t end)
{
	struct jinja_tokens *out = lexer->out;
	if (out->count == out->capacity) {
		size_t capacity = out->capacity ? 2 * out->capacity : 256;
		struct jinja_token *wider = jinja_take(lexer->arena, capacity, sizeof *wider);
		if (out->count)
			memcpy(wider, out->token, out->count * sizeof *wider);
		out->token = wider;
		out->capacity = capacity;
	}
	for (; lexer->counted_to < first; lexer->counted_to++) {
		int ends = lexer->text[lexer->counted_to] == '\n';
		lexer->line += ends;
		lexer->column = ends ? 0 : lexer->column + ((lexer->text[lexer->counted_to] & 0xC0) != 0x80);
	}
	struct jinja_token *token = &out->token[out->count++];
	*token = (struct jinja_token){
	        .kind = kind, .line = lexer->line, .column = lexer->column + 1, .text = {lexer->text + first, end - first}};
	return token;
}

static noreturn void raise_here(struct lexer *lexer, size_t at, const char *message)
{
	struct jinja_token *token = push(lexer, TOKEN_END, at, at);
	jinja_raise_at(lexer->arena, token->line, token->column, "%s", message);
}

static size_t skip_spaces(const struct lexer *lexer, size_t at)
{
	while (at < lexer->length && jinja_is_space(jinja_code_at(lexer->text + at, lexer->length - at)))
		at += jinja_code_length(lexer->text + at);
	return at;
}

static size_t trim_right(const struct lexer *lexer, size_t first, size_t end)
{
	while (end > first) {
		size_t start = end - 1;
		while (start > first && ((unsigned char)lexer->text[start] & 0xC0) == 0x80)
			start--;
		if (!jinja_is_space(jinja_code_at(lexer->text + start, end - start)))
			break;
		end = start;
	}
	return end;
}

static int is_at(const struct lexer *lexer, size_t at, const char *mark)
{
	size_t length = strlen(mark);
	return lexer->length - at >= length && !memcmp(lexer->text + at, mark, length);
}

enum tag { TAG_VARIABLE, TAG_BLOCK };

/* The data before a tag at `end`, whose sign is `sign`: trimmed as it says. */
static void push_data(struct lexer *lexer, size_t first, size_t end, char sign, enum tag tag)
{
	if (sign == '-') {
		end = trim_right(lexer, first, end);
	} else if (sign != '+' && tag == TAG_BLOCK) {
		size_t line = end;
		while (line > first && lexer->text[line - 1] != '\n')
			line--;
		if ((line > first || lexer->starts_line) && trim_right(lexer, line, end) == line)
			end = line;
	}
	if (end > first)
		push(lexer, TOKEN_DATA, first, end);
}

/* The end of a block's or comment's closing tag at `at` ("%}"), or 0. Blanks after -%} and one line break after %} belong to it. */
static size_t close_tag(const struct lexer *lexer, size_t at, const char *mark, enum tag tag)
{
	char sign = lexer->text[at];
	size_t after = at + ((sign == '-' || (sign == '+' && tag == TAG_BLOCK)) ? 1 : 0);
	if (!is_at(lexer, after, mark))
		return 0;
	size_t end = after + 2;
	if (after > at)
		return sign == '-' ? skip_spaces(lexer, end) : end;
	return tag == TAG_BLOCK && end < lexer->length && lexer->text[end] == '\n' ? end + 1 : end;
}

static void ended(struct lexer *lexer, size_t at)
{
	lexer->offset = at;
	lexer->starts_line = lexer->text[at - 1] == '\n';
}

/* The end of "{% raw %}" at `at`, or 0. */
static size_t open_raw(const struct lexer *lexer, size_t at)
{
	size_t name = at + 2;
	if (name < lexer->length && (lexer->text[name] == '-' || lexer->text[name] == '+'))
		name++;
	name = skip_spaces(lexer, name);
	if (name >= lexer->length || !is_at(lexer, name, "raw"))
		return 0;
	size_t close = skip_spaces(lexer, name + 3);
	if (close < lexer->length && is_at(lexer, close, "-%}"))
		return skip_spaces(lexer, close + 3);
	return close < lexer->length && is_at(lexer, close, "%}") ? close + 2 : 0;
}

static void read_raw(struct lexer *lexer, size_t first)
{
	for (size_t at = first; at + 2 <= lexer->length; at++) {
		if (!is_at(lexer, at, "{%"))
			continue;
		size_t name = at + 2;
		char sign = name < lexer->length && (lexer->text[name] == '-' || lexer->text[name] == '+') ? lexer->text[name] : 0;
		name = skip_spaces(lexer, name + (sign != 0));
		if (name >= lexer->length || !is_at(lexer, name, "endraw"))
			continue;
		size_t close = skip_spaces(lexer, name + 6);
		size_t end = close < lexer->length ? close_tag(lexer, close, "%}", TAG_BLOCK) : 0;
		if (!end)
			continue;
		push_data(lexer, first, at, sign, TAG_BLOCK);
		ended(lexer, end);
		return;
	}
	raise_here(lexer, first, "Missing end of raw directive");
}

static void read_comment(struct lexer *lexer, size_t first)
{
	for (size_t at = first; at < lexer->length; at++) {
		size_t end = close_tag(lexer, at, "#}", TAG_BLOCK);
		if (end) {
			ended(lexer, end);
			return;
		}
	}
	raise_here(lexer, first, "Missing end of comment tag");
}

static int32_t hex(struct lexer *lexer, const char *at, const char *end, int digits)
{
	int32_t code = 0;
	for (int i = 0; i < digits; i++, at++) {
		const char *digit = at < end ? strchr("0123456789abcdef", *at >= 'A' && *at <= 'F' ? *at + 32 : *at) : NULL;
		if (!digit || !*at || code > 0x10FFFF >> 4)
			raise_here(lexer, lexer->offset, "a string holds a \\x, \\u or \\U that is not whole");
		code = code * 16 + (int32_t)(digit - "0123456789abcdef");
	}
	if (code >= 0xD800 && code < 0xE000)
		raise_here(lexer, lexer->offset, "a string holds half of a surrogate pair");
	return code;
}

static size_t put_utf8(char *out, int32_t code)
{
	size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
	if (length == 1) {
		out[0] = (char)code;
		return 1;
	}
	for (size_t i = length; --i; code >>= 6)
		out[i] = (char)(0x80 | (code & 0x3F));
	out[0] = (char)((0xF0 << (4 - length)) | code);
	return length;
}

static const char escapes[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";

/* What a string literal means: Python's unicode_escape. */
static struct jinja_string unescape(struct lexer *lexer, const char *from, const char *end)
{
	char *bytes = jinja_take(lexer->arena, (size_t)(end - from) + 1, 1);
	size_t used = 0;
	while (from < end) {
		if (*from != '\\') {
			bytes[used++] = *from++;
			continue;
		}
		char c = from[1]; /* a literal never ends with a lone backslash */
		from += 2;
		const char *simple = NULL;
		for (size_t i = 0; escapes[i]; i += 2)
			if (escapes[i] == c)
				simple = &escapes[i + 1];
		if (simple) {
			bytes[used++] = *simple;
		} else if (c >= '0' && c <= '7') {
			int32_t code = c - '0';
			for (int i = 0; i < 2 && from < end && *from >= '0' && *from <= '7'; i++)
				code = code * 8 + (*from++ - '0');
			used += put_utf8(bytes + used, code);
		} else if (c == 'x' || c == 'u' || c == 'U') {
			int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
			used += put_utf8(bytes + used, hex(lexer, from, end, digits));
			from += digits;
		} else if (c == 'N') {
			raise_here(lexer, lexer->offset, "\\N{...} in a string is not supported; write \\u and the code");
		} else if (c != '\n') {
			bytes[used++] = '\\';
			bytes[used++] = c;
		}
	}
	return (struct jinja_string){bytes, used};
}

static int is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int is_word(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

/* Digits with single underscores between them, from `at`: their end. */
static size_t digits_end(const struct lexer *lexer, size_t at)
{
	while (at < lexer->length && (is_digit(lexer->text[at]) || (lexer->text[at] == '_' && at + 1 < lexer->length &&
	                                                            is_digit(lexer->text[at + 1]) && is_digit(lexer->text[at - 1]))))
		at++;
	return at;
}

static void read_number(struct lexer *lexer)
{
	size_t first = lexer->offset, end = digits_end(lexer, first), fraction = end;
	int after_dot = first && lexer->text[first - 1] == '.', is_float = 0;
	if (!after_dot && end + 1 < lexer->length && lexer->text[end] == '.' && is_digit(lexer->text[end + 1])) {
		fraction = digits_end(lexer, end + 1);
		is_float = 1;
	}
	if (!after_dot && fraction < lexer->length && (lexer->text[fraction] | 32) == 'e') {
		size_t power = fraction + 1;
		power += power < lexer->length && (lexer->text[power] == '+' || lexer->text[power] == '-');
		if (power < lexer->length && is_digit(lexer->text[power])) {
			fraction = digits_end(lexer, power);
			is_float = 1;
		}
	}
	char digits[400];
	size_t used = 0;
	end = is_float ? fraction : end;
	for (size_t at = first; at < end; at++)
		if (lexer->text[at] != '_' && used < sizeof digits - 1)
			digits[used++] = lexer->text[at];
	digits[used] = 0;
	if (!is_float && end < lexer->length && end - first == 1 && lexer->text[first] == '0' && strchr("xXoObB", lexer->text[end]))
		raise_here(lexer, first, "hexadecimal, octal and binary numbers are not supported; write it in decimal");
	if (!is_float && digits[0] == '0' && strspn(digits, "0") < used)
		raise_here(lexer, first, "a whole number does not begin with 0");
	if (used > (is_float ? sizeof digits - 2 : 18))
		raise_here(lexer, first, "a number of more than 18 digits is not supported");
	struct jinja_token *token = push(lexer, is_float ? TOKEN_FLOAT : TOKEN_INTEGER, first, end);
	token->integer = is_float ? 0 : strtoll(digits, NULL, 10);
	token->real = is_float ? strtod(digits, NULL) : 0;
	ended(lexer, end);
}

static void read_string(struct lexer *lexer)
{
	size_t first = lexer->offset, end = first + 1;
	while (end < lexer->length && lexer->text[end] != lexer->text[first])
		end += lexer->text[end] == '\\' ? 2 : 1;
	if (end >= lexer->length)
		raise_here(lexer, first, "a string is not closed");
	struct jinja_token *token = push(lexer, TOKEN_STRING, first, end + 1);
	token->text = unescape(lexer, lexer->text + first + 1, lexer->text + end);
	ended(lexer, end + 1);
}

static void balance(struct lexer *lexer, char c)
{
	static const char pairs[] = "()[]{}";
	const char *at = strchr(pairs, c);
	if (!at || !c)
		return;
	if ((at - pairs) % 2 == 0) {
		if (lexer->brackets == sizeof lexer->bracket)
			raise_here(lexer, lexer->offset, "too many brackets inside one another");
		lexer->bracket[lexer->brackets++] = at[1];
		return;
	}
	char message[64];
	if (!lexer->brackets)
		snprintf(message, sizeof message, "unexpected '%c'", c);
	else if (lexer->bracket[lexer->brackets - 1] != c)
		snprintf(message, sizeof message, "unexpected '%c', expected '%c'", c, lexer->bracket[lexer->brackets - 1]);
	else {
		lexer->brackets--;
		return;
	}
	raise_here(lexer, lexer->offset, message);
}

static void read_operator(struct lexer *lexer)
{
	static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
	for (size_t i = 0; i < sizeof two / sizeof *two; i++)
		if (is_at(lexer, lexer->offset, two[i])) {
			push(lexer, TOKEN_OPERATOR, lexer->offset, lexer->offset + 2);
			ended(lexer, lexer->offset + 2);
			return;
		}
	char c = lexer->text[lexer->offset];
	if (!c || !strchr("+-/*%~[](){}><=.:|,;", c)) {
		char message[64];
		snprintf(message, sizeof message, "unexpected char '%c'", c >= ' ' && c < 127 ? c : '?');
		raise_here(lexer, lexer->offset, message);
	}
	balance(lexer, c);
	push(lexer, TOKEN_OPERATOR, lexer->offset, lexer->offset + 1);
	ended(lexer, lexer->offset + 1);
}

/* Inside {{ }} or {% %}, up to its end. */
static void read_tag(struct lexer *lexer, enum tag tag)
{
	const char *mark = tag == TAG_VARIABLE ? "}}" : "%}";
	lexer->brackets = 0;
	while (lexer->offset < lexer->length) {
		size_t end = lexer->brackets ? 0 : close_tag(lexer, lexer->offset, mark, tag);
		if (end) {
			push(lexer, tag == TAG_VARIABLE ? TOKEN_CLOSE_VARIABLE : TOKEN_CLOSE_BLOCK, lexer->offset, end);
			ended(lexer, end);
			return;
		}
		char c = lexer->text[lexer->offset];
		size_t blank = skip_spaces(lexer, lexer->offset);
		if (blank > lexer->offset) {
			ended(lexer, blank);
		} else if (is_digit(c)) {
			read_number(lexer);
		} else if (is_word(c)) {
			end = lexer->offset;
			while (end < lexer->length && is_word(lexer->text[end]))
				end++;
			push(lexer, TOKEN_NAME, lexer->offset, end);
			ended(lexer, end);
		} else if (c == '\'' || c == '"') {
			read_string(lexer);
		} else {
			read_operator(lexer);
		}
	}
}

/* The next {{, {% or {#, or the end. */
static size_t find_tag(const struct lexer *lexer)
{
	for (size_t at = lexer->offset; at + 1 < lexer->length; at++)
		if (lexer->text[at] == '{' && (lexer->text[at + 1] == '{' || lexer->text[at + 1] == '%' || lexer->text[at + 1] == '#'))
			return at;
	return lexer->length;
}

static void read_all(struct lexer *lexer)
{
	while (lexer->offset < lexer->length) {
		size_t first = lexer->offset, tag = find_tag(lexer);
		if (tag == lexer->length) {
			push_data(lexer, first, tag, '+', TAG_VARIABLE);
			break;
		}
		char kind = lexer->text[tag + 1], sign = tag + 2 < lexer->length ? lexer->text[tag + 2] : 0;
		size_t raw = kind == '%' ? open_raw(lexer, tag) : 0, open = tag + 2 + (sign == '-' || sign == '+');
		push_data(lexer, first, tag, sign, kind == '{' ? TAG_VARIABLE : TAG_BLOCK);
		if (raw) {
			ended(lexer, raw);
			read_raw(lexer, raw);
			continue;
		}
		if (kind == '#') {
			read_comment(lexer, open);
			continue;
		}
		push(lexer, kind == '{' ? TOKEN_OPEN_VARIABLE : TOKEN_OPEN_BLOCK, tag, open);
		lexer->offset = open;
		read_tag(lexer, kind == '{' ? TAG_VARIABLE : TAG_BLOCK);
	}
	push(lexer, TOKEN_END, lexer->length, lexer->length);
}

void jinja_lex(struct jinja_arena *arena, const char *text, size_t length, struct jinja_tokens *out)
{
	char *clean = jinja_take(arena, length + 1, 1);
	size_t used = 0;
	for (size_t i = 0; i < length; i++) {
		if (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n')
			continue;
		clean[used++] = text[i] == '\r' ? '\n' : text[i];
	}
	if (used && clean[used - 1] == '\n')
		used--;
	clean[used] = 0; /* what follows looks one byte ahead */
	struct lexer lexer = {.arena = arena, .text = clean, .length = used, .out = out, .starts_line = 1, .line = 1};
	read_all(&lexer);
}
