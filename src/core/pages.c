#include "core/pages.h"

#include "core/alloc.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older C libraries lack the name */
#endif

enum { HUGEPAGE = 2 << 20 };

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

void rh_pages_make(char *base, int64_t bytes)
{
	int64_t page = sysconf(_SC_PAGESIZE);
	(void)madvise(base, (size_t)((bytes + page - 1) / page * page), MADV_POPULATE_WRITE);
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
