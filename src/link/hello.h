/* The greeting: what two boxes must have in common, as name=value lines in one order. */
#ifndef RH_LINK_HELLO_H
#define RH_LINK_HELLO_H

#include "core/error.h"

#include <stddef.h>

/* 0: equal. -EINVAL with a line that names the first difference. `theirs` comes from the peer: any bytes, not NUL-terminated. */
int hello_compare(const char *mine, const char *theirs, size_t length) RH_MUST;

#endif
