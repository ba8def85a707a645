#include "offload/memory.h"

#include "core/log.h"
#include "core/pages.h"

#include <hwloc.h>
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

/* Hugepages that were reserved when the machine started or by the administrator, for all whole ones of `bytes`; the rest, less than one,
 * in ordinary pages behind them. -1 where there are too few: nothing is mapped then. */
static int map_reserved(int64_t bytes, char **out)
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

/* While a segment's pages are made: the calling thread's memory comes from all NUMA nodes in turn. Any device may use any block (stages go
 * round), and the optimizer's threads read them all, so no node is nearer than another. NULL: there is one node. */
static hwloc_topology_t spread_begin(void)
{
	char online[16] = "0";
	FILE *file = fopen("/sys/devices/system/node/has_memory", "re");
	if (file && !fgets(online, sizeof online, file))
		snprintf(online, sizeof online, "0");
	if (file)
		fclose(file);
	hwloc_topology_t topology = NULL;
	if (!strpbrk(online, "-,") || hwloc_topology_init(&topology))
		return NULL;
	if (hwloc_topology_load(topology) || hwloc_set_membind(topology, hwloc_topology_get_allowed_nodeset(topology),
	                                                       HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET)) {
		rh_warn_once("host memory is not spread over the NUMA nodes (%s): the optimizer may run at the speed of one; start with "
		             "numactl --interleave=all",
		             strerror(errno));
		hwloc_topology_destroy(topology);
		return NULL;
	}
	return topology;
}

static void spread_end(hwloc_topology_t topology)
{
	if (!topology)
		return;
	(void)hwloc_set_membind(topology, hwloc_topology_get_allowed_nodeset(topology), HWLOC_MEMBIND_DEFAULT,
	                        HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET);
	hwloc_topology_destroy(topology);
}

int rh_host_reserve(int64_t bytes, const char *what, struct rh_arena *out)
{
	RH_ASSERT(bytes >= 0);
	*out = (struct rh_arena){0};
	int64_t mapped = rh_host_round(bytes);
	if (!mapped)
		return 0;
	char *base;
	hwloc_topology_t spread = spread_begin();
	int rc = map_reserved(mapped, &base) ? rh_pages_map(mapped, &base) : 0;
	spread_end(spread);
	if (rc)
		return rh_fail(rc, "cannot reserve %lld bytes of host memory for %s: %s; a smaller model or batch needs less",
		               (long long)mapped, what, strerror(-rc));
	*out = (struct rh_arena){base, mapped, 0, 0};
	return 0;
}

int rh_host_reserve_as(enum rh_host_backing backing, int64_t bytes, const char *what, struct rh_arena *out)
{
	int64_t mapped = rh_host_round(bytes);
	if (backing == RH_HOST_PAGES || !mapped)
		return rh_host_reserve(bytes, what, out);
	*out = (struct rh_arena){0};
	char *base = mmap(NULL, (size_t)mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return rh_fail(-errno, "no addresses for %lld bytes of %s: %s", (long long)mapped, what, strerror(errno));
	*out = (struct rh_arena){base, mapped, 0, 0};
	return 0;
}

void rh_host_release(struct rh_arena *arena)
{
	if (arena->capacity)
		munmap(arena->base, (size_t)arena->capacity);
	*arena = (struct rh_arena){0};
}
