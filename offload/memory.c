#include "offload/memory.h"

#include "core/log.h"
#include "core/pages.h"
#include "core/size.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older C libraries lack the name */
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

enum { HUGEPAGE = 2 << 20 };

int64_t rh_host_round(int64_t bytes)
{
	int64_t page = sysconf(_SC_PAGESIZE);
	return bytes > INT64_MAX - page ? INT64_MAX / page * page : rh_align_up(bytes, page);
}

/* The number that a file of the kernel's holds; -1: none. */
static int64_t number_in(const char *path)
{
	FILE *file = fopen(path, "re");
	long long value = -1;
	if (file && fscanf(file, "%lld", &value) != 1)
		value = -1;
	if (file)
		fclose(file);
	return value;
}

static void place_in(const struct rh_host_placing *placing, char *base, int64_t bytes)
{
	if (placing->numa && placing->place)
		placing->place(placing->context, placing->numa, (struct rh_arena){.base = base, .capacity = bytes});
}

/* Hugepages that were reserved when the machine started or by the administrator, for all whole ones of `bytes`; the rest, less than one,
 * in ordinary pages behind them. -1 where there are too few: nothing is mapped then. */
static int map_reserved(int64_t bytes, const struct rh_host_placing *placing, char **out)
{
	int64_t whole = bytes / HUGEPAGE * HUGEPAGE, rest = bytes - whole;
	int64_t unused = number_in("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
	int64_t promised = number_in("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages");
	if (!whole || unused - (promised > 0 ? promised : 0) < whole / HUGEPAGE || bytes > INT64_MAX - HUGEPAGE)
		return -1;
	/* the place first, from a hugepage's border, then both kinds of pages into it */
	char *place = mmap(NULL, (size_t)(bytes + HUGEPAGE), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (place == MAP_FAILED)
		return -1;
	int64_t before = (HUGEPAGE - (int64_t)((uintptr_t)place % HUGEPAGE)) % HUGEPAGE;
	if (before)
		munmap(place, (size_t)before);
	if (before < HUGEPAGE)
		munmap(place + before + bytes, (size_t)(HUGEPAGE - before));
	place += before;
	int access = PROT_READ | PROT_WRITE, fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	int fits = mmap(place, (size_t)whole, access, fixed | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0) != MAP_FAILED;
	if (fits && rest)
		fits = mmap(place + whole, (size_t)rest, access, fixed, -1, 0) != MAP_FAILED;
	if (fits)
		place_in(placing, place, bytes);
	/* a control group may forbid what the pool has: found now, not by a SIGBUS in the first step */
	if (fits && madvise(place, (size_t)bytes, MADV_POPULATE_WRITE) < 0 && errno != EINVAL)
		fits = 0;
	if (!fits) {
		munmap(place, (size_t)bytes);
		return -1;
	}
	*out = place;
	return 0;
}

int rh_host_reserve_placed(const struct rh_host_placing *placing, int64_t bytes, const char *what, struct rh_arena *out)
{
	RH_ASSERT(bytes >= 0);
	*out = (struct rh_arena){0};
	int64_t mapped = rh_host_round(bytes);
	if (!mapped)
		return 0;
	char *base;
	int rc = 0;
	rh_numa_spread_begin(placing->numa);
	if (map_reserved(mapped, placing, &base)) {
		rc = rh_pages_map_empty(mapped, &base);
		if (!rc) {
			place_in(placing, base, mapped);
			rh_pages_make(base, mapped);
		}
	}
	rh_numa_spread_end(placing->numa);
	if (rc)
		return rh_fail(rc, "cannot reserve %s of host memory for %s: %s; a smaller model or batch needs less", rh_size(mapped).text,
		               what, strerror(-rc));
	*out = (struct rh_arena){base, mapped, 0, 0};
	return 0;
}

int rh_host_reserve_near(struct rh_device *const *device, int devices, int64_t bytes, const char *what, struct rh_arena *out)
{
	struct rh_host_placing placing = {.numa = rh_numa_open()};
	if (devices)
		(void)rh_numa_near(placing.numa, device, devices);
	int rc = rh_host_reserve_placed(&placing, bytes, what, out);
	rh_numa_close(placing.numa);
	return rc;
}

int rh_host_reserve(int64_t bytes, const char *what, struct rh_arena *out)
{
	return rh_host_reserve_near(NULL, 0, bytes, what, out);
}

int rh_host_reserve_addresses(int64_t bytes, const char *what, struct rh_arena *out)
{
	int64_t mapped = rh_host_round(bytes);
	*out = (struct rh_arena){0};
	if (!mapped)
		return 0;
	char *base = mmap(NULL, (size_t)mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return rh_fail(-errno, "no addresses for %s of %s: %s", rh_size(mapped).text, what, strerror(errno));
	*out = (struct rh_arena){base, mapped, 0, 0};
	return 0;
}

void rh_host_release(struct rh_arena *arena)
{
	if (arena->capacity)
		munmap(arena->base, (size_t)arena->capacity);
	*arena = (struct rh_arena){0};
}
