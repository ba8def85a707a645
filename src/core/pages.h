/* Whole pages of memory for what is reserved once and used to the end. */
#ifndef RH_CORE_PAGES_H
#define RH_CORE_PAGES_H

#include "core/error.h"

#include <stdint.h>

/* Maps `bytes` (above 0), zeroed, from a hugepage's border where they are as long as one. Transparent hugepages are asked for, and the
 * pages made now, so that a step waits for none of them (by Linux 5.14 and later: before, when first written). 0, or the negative errno of
 * mmap, without a line. */
int rh_pages_map(int64_t bytes, char **out) RH_MUST;
/* The same in two halves: mapped without pages; the pages made. */
int rh_pages_map_empty(int64_t bytes, char **out) RH_MUST;
void rh_pages_make(char *base, int64_t bytes);
/* All `bytes` of an earlier rh_pages_map. */
void rh_pages_unmap(char *base, int64_t bytes);

#endif
