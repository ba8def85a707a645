/* Code points: UTF-8, and what `tokenizers` takes each one for (unicode_table.inc, made from that library's behaviour). */
#ifndef RH_TOKEN_UNICODE_H
#define RH_TOKEN_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum { UNICODE_END = 0x110000 };

struct unicode_range {
	uint32_t first, last;
};

/* Every stride-th code point of [first, last] maps to itself + delta. */
struct unicode_run {
	uint32_t first, last;
	int32_t stride, delta;
};

/* In the order that unicode_table.inc counts them. */
enum unicode_category {
	UNICODE_LU,
	UNICODE_LL,
	UNICODE_LT,
	UNICODE_LM,
	UNICODE_LO,
	UNICODE_MN,
	UNICODE_MC,
	UNICODE_ME,
	UNICODE_ND,
	UNICODE_NL,
	UNICODE_NO,
	UNICODE_PC,
	UNICODE_PD,
	UNICODE_PS,
	UNICODE_PE,
	UNICODE_PI,
	UNICODE_PF,
	UNICODE_PO,
	UNICODE_SM,
	UNICODE_SC,
	UNICODE_SK,
	UNICODE_SO,
	UNICODE_ZS,
	UNICODE_ZL,
	UNICODE_ZP,
	UNICODE_CC,
	UNICODE_CF,
	UNICODE_CS,
	UNICODE_CO,
	UNICODE_CN,
};

/* A table by index, for those who build sets of it. `steps` are first << 8 | value. */
struct unicode_steps {
	const uint32_t *step;
	size_t count;
};
struct unicode_ranges {
	const struct unicode_range *range;
	size_t count;
};
struct unicode_runs {
	const struct unicode_run *run;
	size_t count;
};
enum unicode_set {
	UNICODE_WHITE_SPACE,
	UNICODE_OTHER_ALPHABETIC, /* beyond L and Nl */
	UNICODE_OTHER_UPPERCASE,  /* beyond Lu */
	UNICODE_OTHER_LOWERCASE,  /* beyond Ll */
	UNICODE_OTHER_WORD,       /* \w outside brackets, beyond Alphabetic, M, Nd and Pc */
	UNICODE_OTHER_NUMERIC,    /* what Digits takes, beyond N */
	UNICODE_EMOJI,
	UNICODE_PICTOGRAPHIC,
	UNICODE_NORMAL_INERT, /* starters that normal forms leave alone, whatever another Unicode version says */
};
struct unicode_ranges unicode_set(enum unicode_set set);
struct unicode_steps unicode_categories(void);
struct unicode_steps unicode_scripts(void);
/* c, and each other code point that matches it when case is ignored. */
struct unicode_runs unicode_case_runs(void);
/* The value that scripts have for this name (compared without case, spaces, '-' and '_'), 0 if there is none. */
uint32_t unicode_script_by_name(const char *name);

int unicode_in(enum unicode_set set, uint32_t point);
int unicode_is_space(uint32_t point);
/* A character of a word, as added tokens with single_word see it. */
int unicode_is_word(uint32_t point);
int unicode_is_numeric(uint32_t point);
/* The lower case of one code point: 1 or 2 of them. */
int unicode_lower(uint32_t point, uint32_t out[2]);

int utf8_valid(const char *text, size_t bytes);
/* One code point of valid text; returns its bytes. */
size_t utf8_next(const char *text, uint32_t *point);
/* The code point that ends just before `end` bytes (which must be above 0); returns its bytes. */
size_t utf8_before(const char *text, size_t end, uint32_t *point);
size_t utf8_put(uint32_t point, char out[4]);
/* Bytes of the longest start of `text` that is either one well-formed code point (*whole 1) or the start of one that breaks off (0). */
size_t utf8_lossy(const char *text, size_t bytes, int *whole);

#endif
