/* Turns an expression into sets and a skeleton: the same expression with each character, class and property replaced by PATTERN_SET and
 * the set's number (uint32_t, as in memory). Everything else in the skeleton is PCRE2 syntax. */
#ifndef RH_TOKEN_PATTERN_PARSE_H
#define RH_TOKEN_PATTERN_PARSE_H

#include "core/text.h"
#include "token/set.h"

enum { PATTERN_SET = 1 };

struct skeleton {
	struct rh_text text;
	struct set *set;
	size_t sets, capacity;
};
void skeleton_free(struct skeleton *skeleton);

int pattern_parse(const char *source, size_t bytes, const char *where, struct skeleton *out) RH_MUST;
/* Appends one character that matches `set`, which is emptied. */
int skeleton_add(struct skeleton *skeleton, struct set *set) RH_MUST;

#endif
