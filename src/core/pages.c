#include "core/pages.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "core/pool.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older C libraries lack the name */
#endif

enum { HUGEPAGE = 2 << 20, MOST_THREADS = 16 };
static const int64_t SHARE = (int64_t)256 << 20; /* bytes that one thread makes at a time */

int rh_pages_map_empty(int64_t bytes, char **out)
{
	int64_t page = sysconf(_SC_PAGESIZE);
	RH_ASSERT(bytes > 0);
	if (bytes > INT64_MAX - 2 * page || !rh_alloc_allowed())
		return -ENOMEM;
	bytes = (bytes + page - 1) / page * page;
	/* Older kernels do not align to hugepages: map more, cut both ends off. */
	int64_t slack = bytes >= HUGEPAGE && bytes < INT64_MAX - HUGEPAGE ? HUGEPAGE : 0;
	char *base = mmap(NULL, (size_t)(bytes + slack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	if (slack) {
		int64_t before = (HUGEPAGE - (int64_t)((uintptr_t)base % HUGEPAGE)) % HUGEPAGE;
		if (before)
			munmap(base, (size_t)before);
		if (before < slack)
			munmap(base + before + bytes, (size_t)(slack - before));
		base += before;
		(void)madvise(base, (size_t)bytes, MADV_HUGEPAGE); /* a wish: kernels without it only run slower */
	}
	*out = base;
	return 0;
}

struct making {
	char *base;
	int64_t bytes;
};

static void make_share(void *context, int64_t i)
{
	const struct making *making = context;
	(void)madvise(making->base + i * SHARE, (size_t)rh_min(SHARE, making->bytes - i * SHARE), MADV_POPULATE_WRITE);
}

/* The threads are of this one alone, as they are to place memory where it would: they start with its policy. */
void rh_pages_make(char *base, int64_t bytes)
{
	int64_t page = sysconf(_SC_PAGESIZE), shares = (bytes + SHARE - 1) / SHARE;
	struct making making = {base, (bytes + page - 1) / page * page};
	struct rh_pool *pool = NULL;
	cpu_set_t set;
	int cores = sched_getaffinity(0, sizeof set, &set) < 0 ? 1 : CPU_COUNT(&set);
	int threads = (int)rh_min(rh_min(shares, cores), MOST_THREADS);
	if (threads > 1 && !rh_pool_create(threads, &pool))
		rh_pool_run(pool, make_share, &making, shares);
	else
		for (int64_t i = 0; i < shares; i++)
			make_share(&making, i);
	rh_pool_destroy(pool);
}

int rh_pages_map(int64_t bytes, char **out)
{
	int rc = rh_pages_map_empty(bytes, out);
	if (!rc)
		rh_pages_make(*out, bytes);
	return rc;
}

void rh_pages_unmap(char *base, int64_t bytes)
{
	munmap(base, (size_t)bytes);
}
