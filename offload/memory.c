#include "offload/memory.h"

#include "core/pages.h"

#include <string.h>
#include <unistd.h>

int64_t rh_host_round(int64_t bytes)
{
	int64_t page = sysconf(_SC_PAGESIZE);
	return bytes > INT64_MAX - page ? INT64_MAX / page * page : rh_align_up(bytes, page);
}

int rh_host_reserve(int64_t bytes, const char *what, struct rh_arena *out)
{
	RH_ASSERT(bytes >= 0);
	*out = (struct rh_arena){0};
	int64_t mapped = rh_host_round(bytes);
	if (!mapped)
		return 0;
	char *base;
	int rc = rh_pages_map(mapped, &base);
	if (rc)
		return rh_fail(rc, "cannot reserve %lld bytes of host memory for %s: %s; a smaller model or batch needs less",
		               (long long)mapped, what, strerror(-rc));
	*out = (struct rh_arena){base, mapped, 0, 0};
	return 0;
}

void rh_host_release(struct rh_arena *arena)
{
	if (arena->capacity)
		rh_pages_unmap(arena->base, arena->capacity);
	*arena = (struct rh_arena){0};
}
