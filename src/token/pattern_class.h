/* The parts of an expression that denote sets: escapes and bracketed classes. */
#ifndef RH_TOKEN_PATTERN_CLASS_H
#define RH_TOKEN_PATTERN_CLASS_H

#include "token/set.h"

#include <stdio.h>

struct skeleton;

enum read_flags { READ_IGNORE_CASE = 1, READ_DOT_ALL = 2, READ_EXTENDED = 4 };

struct reader {
	const char *cursor, *end;
	const char *source, *where; /* for messages */
	struct skeleton *out;
	unsigned flags;    /* enum read_flags */
	uint32_t previous; /* the literal just before, when case is ignored; else 0 */
	int depth;
};

/* -EINVAL: `what`, near the place reached, is not supported. */
int reader_refuse(const struct reader *r, const char *what) RH_MUST;

/* After a backslash: READ_POINT and *point, or READ_SET and *set (which starts empty), or an error. */
enum { READ_POINT = 1, READ_SET = 2 };
enum read_place { READ_BARE, READ_BRACKETED };
int reader_escape(struct reader *r, enum read_place place, struct set *set, uint32_t *point) RH_MUST;

/* After a '[': the class, closed under case if that is to be ignored, into the empty *set. */
int reader_class(struct reader *r, struct set *set) RH_MUST;

#endif
