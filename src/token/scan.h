/* A reader for the two big members of tokenizer.json, model.vocab and model.merges. A JSON library makes a million small objects of
 * them (most of a second for 200,000 tokens) and cannot hold a NUL in a key, which vocabularies do have. */
#ifndef RH_TOKEN_SCAN_H
#define RH_TOKEN_SCAN_H

#include "core/text.h"

#include <stdint.h>

struct scan_part {
	const char *first, *end; /* of the value's text; NULL if the file has no such member */
};

/* Finds model.vocab (if it is an object) and model.merges (if it is a list) in `bytes`, and writes to *rest the same document with both
 * emptied but for their line breaks, so that line numbers hold. What is not JSON is left for the parser of *rest to refuse. */
int scan_model(const char *bytes, size_t length, struct scan_part *vocab, struct scan_part *merges, struct rh_text *rest) RH_MUST;

struct scan {
	const char *start, *cursor, *end; /* the document (for line numbers), where we are, and the end of the part */
	const char *where;
	struct rh_text unescaped[2];
};
void scan_free(struct scan *scan);

/* -EINVAL with the line reached. */
int scan_fail(const struct scan *scan, const char *what) RH_MUST;
/* Skips white space, then takes `c` if it stands there: 1, else 0. */
int scan_take(struct scan *scan, char c);
/* A string, checked and unescaped; *text is valid until the next string with the same slot (0 or 1). */
int scan_string(struct scan *scan, int slot, const char **text, size_t *bytes) RH_MUST;
int scan_integer(struct scan *scan, int64_t *out) RH_MUST;

#endif
