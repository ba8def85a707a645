/* A bump allocator over one reserved range, on any tier. rh_arena_measuring() has no range behind it: its addresses must not be
 * touched, and `peak` says what a real one would need. */
#ifndef RH_CORE_ARENA_H
#define RH_CORE_ARENA_H

#include "core/error.h"
#include "core/minmax.h"

#include <stdint.h>

enum { RH_ALIGN = 256 }; /* of every allocation, in bytes: as CUDA's own; products ask for 16, cache lines for 64 */

static inline int64_t rh_align_up(int64_t bytes, int64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

struct rh_arena {
	char *base;
	int64_t capacity, used, peak; /* bytes */
};

/* Never fails: overflow is a wrong plan, which is our own mistake. One that measures stops at RH_BYTES_MOST. */
static inline void *rh_arena_take(struct rh_arena *arena, int64_t bytes)
{
	void *at = arena->base + arena->used;
	arena->used = rh_min(arena->used + rh_align_up(bytes, RH_ALIGN), RH_BYTES_MOST);
	RH_ASSERT(bytes >= 0 && arena->used <= arena->capacity);
	if (arena->used > arena->peak)
		arena->peak = arena->used;
	return at;
}

/* mark = arena->used; ...; rh_arena_reset(arena, mark) gives back all that was taken since. */
static inline void rh_arena_reset(struct rh_arena *arena, int64_t mark)
{
	RH_ASSERT(mark >= 0 && mark <= arena->used);
	arena->used = mark;
}

/* An arena that measures. */
static inline struct rh_arena rh_arena_measuring(void)
{
	struct rh_arena arena = {(char *)(uintptr_t)RH_ALIGN, RH_BYTES_MOST, 0, 0};
	return arena;
}

#endif
