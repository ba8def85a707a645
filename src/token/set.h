/* Sets of code points, as the classes of a pattern denote them: sorted, disjoint, non-adjacent ranges. */
#ifndef RH_TOKEN_SET_H
#define RH_TOKEN_SET_H

#include "core/error.h"
#include "token/unicode.h"

struct set {
	struct unicode_range *range;
	size_t count, capacity;
};
void set_free(struct set *set);

/* The operations keep `set` in order; 0 or -ENOMEM. */
int set_add(struct set *set, uint32_t first, uint32_t last) RH_MUST;
int set_unite(struct set *set, const struct set *other) RH_MUST;
int set_intersect(struct set *set, const struct set *other) RH_MUST;
int set_negate(struct set *set) RH_MUST;
/* Adds what matches a member when case is ignored (one code point for one). */
int set_ignore_case(struct set *set) RH_MUST;

/* Adds the named property of \p{name}, or with `bracket` of [[:name:]] (they differ for punct). 1 done, 0 no such name, or -ENOMEM. */
enum set_syntax { SET_PROPERTY, SET_BRACKET };
int set_add_named(struct set *set, const char *name, enum set_syntax syntax) RH_MUST;
/* Adds \w as it is outside brackets, where the library has it a little wider than inside. */
int set_add_bare_word(struct set *set) RH_MUST;

#endif
