/* The regular expressions of tokenizer.json (Oniguruma's Ruby syntax), matched by PCRE2.
 *
 * Neither PCRE2's Unicode tables nor its UTF mode are used. Every class, property and literal of the expression is turned into a set of
 * code points from our own table; code points that no set tells apart become one letter of an alphabet of at most 256; the expression
 * is rewritten over that alphabet and compiled for bytes. A text is matched by its letters. So a class of 700 ranges costs a table
 * look-up, and which Unicode version PCRE2 knows does not matter. */
#ifndef RH_TOKEN_PATTERN_H
#define RH_TOKEN_PATTERN_H

#include "token/set.h"

struct pattern;

/* `where` names the file in messages. -EINVAL names what in the expression is not supported. */
int pattern_compile(const char *source, size_t bytes, const char *where, struct pattern **out) RH_MUST;
/* Matches `text` itself. */
int pattern_compile_literal(const char *text, size_t bytes, const char *where, struct pattern **out) RH_MUST;
void pattern_free(struct pattern *pattern);
/* What it was compiled from, NUL-terminated; *literal: a text that is to match itself. */
const char *pattern_source(const struct pattern *pattern, size_t *bytes, int *literal);

/* A stretch of a text, in bytes: a match, or what lies between two of them. */
struct span {
	size_t first, end;
	int match;
};

/* What one thread needs to match; zero to begin with. */
struct pattern_scratch {
	unsigned char *letter;
	size_t letters; /* capacity */
	void *data;     /* pcre2_match_data */
	void *context;  /* pcre2_match_context */
};
void pattern_scratch_free(struct pattern_scratch *scratch);

/* Goes through a text span by span; together they cover it. */
struct pattern_search {
	const struct pattern *pattern;
	struct pattern_scratch *scratch;
	const char *text;
	size_t bytes, letters;
	size_t first, match_end;       /* letters: where to look on, and where the last match ended */
	size_t covered, covered_bytes; /* by the spans so far, `match` included */
	struct span match;             /* found behind the span returned last */
	int has_match, is_over;
};
/* `text` (valid UTF-8) and the scratch, which serves one search at a time, are borrowed until its end. */
int pattern_begin(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text, size_t bytes,
                  struct pattern_search *out) RH_MUST;
/* 1 with the next span, 0 after the last, or negative errno. An empty text is one span without a match. */
int pattern_next(struct pattern_search *search, struct span *out) RH_MUST;

#endif
