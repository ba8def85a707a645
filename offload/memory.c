#include "offload/memory.h"

#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGEPAGE = 2 << 20 };

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
	/* Hugepages need their own alignment, which older kernels do not give: map more, cut both ends off. */
	int64_t slack = mapped >= HUGEPAGE && mapped < INT64_MAX - HUGEPAGE ? HUGEPAGE : 0;
	char *base = mmap(NULL, (size_t)(mapped + slack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED) {
		int fault = errno;
		return rh_fail(-fault, "cannot reserve %lld bytes of host memory for %s: %s; a smaller model or batch needs less",
		               (long long)mapped, what, strerror(fault));
	}
	if (slack) {
		int64_t before = rh_align_up((int64_t)(uintptr_t)base, HUGEPAGE) - (int64_t)(uintptr_t)base;
		if (before)
			munmap(base, (size_t)before);
		if (before < slack)
			munmap(base + before + mapped, (size_t)(slack - before));
		base += before;
		(void)madvise(base, (size_t)mapped, MADV_HUGEPAGE); /* a wish: kernels without it only run slower */
	}
	*out = (struct rh_arena){base, mapped, 0, 0};
	return 0;
}

void rh_host_release(struct rh_arena *arena)
{
	if (arena->capacity)
		munmap(arena->base, (size_t)arena->capacity);
	*arena = (struct rh_arena){0};
}
