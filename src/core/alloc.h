/* General allocation: zeroed, and -ENOMEM with a line instead of a silent NULL. Large buffers are not taken here but reserved
 * from the plan (offload/, device/). */
#ifndef RH_CORE_ALLOC_H
#define RH_CORE_ALLOC_H

#include "core/error.h"

#include <stdint.h>

/* Zeroed memory for `count` items of `size` bytes, or NULL with the thread's error line set. Freed with rh_free. */
void *rh_alloc(size_t count, size_t size) RH_MUST;

/* Grows *array (of `size`-byte items, *capacity of them) to hold at least `needed`. 0 or -ENOMEM; on failure nothing changes. */
int rh_grow(void *array, size_t *capacity, size_t needed, size_t size) RH_MUST;

char *rh_strdup(const char *text) RH_MUST;
void rh_free(void *memory);

/* Allocations that end together. All zero at first. */
struct rh_region {
	struct rh_region_part *latest;
	int rc; /* of the first that failed */
};
/* Zeroed; NULL once one has failed. Only rh_region_free frees it. */
void *rh_region_take(struct rh_region *region, int64_t count, size_t size) RH_MUST;
void rh_region_free(struct rh_region *region);

/* Returns freed memory to the system at once: call it after much memory was used for a short time, before large memory is reserved. */
void rh_alloc_return_freed(void);

/* For code that takes memory elsewhere (mappings): counts one allocation; 0: this is the one that a test makes fail. */
int rh_alloc_allowed(void);

/* Tests: makes the n-th allocation from now on fail, once; 0: none. Returns the number of allocations since the last call. */
uint64_t rh_alloc_fail_nth(uint64_t n);

#endif
