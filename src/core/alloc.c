#include "core/alloc.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* jemalloc reads it: one arena. All that is large is reserved at a run's start and not by malloc, so that threads hardly meet there; and a
 * thread whose own arena finds no address space crashes in jemalloc. */
extern const char *malloc_conf;
const char *malloc_conf = "narenas:1";

/* Each is counted once, whoever asks; nothing else is ordered by them. */
static _Atomic uint64_t asked, fail_at;

int rh_alloc_allowed(void)
{
	return atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed) + 1 != atomic_load_explicit(&fail_at, memory_order_relaxed);
}

uint64_t rh_alloc_fail_nth(uint64_t n)
{
	atomic_store_explicit(&fail_at, n, memory_order_relaxed);
	return atomic_exchange_explicit(&asked, 0, memory_order_relaxed);
}

void *rh_alloc(size_t count, size_t size)
{
	void *memory = rh_alloc_allowed() ? calloc(count ? count : 1, size ? size : 1) : NULL;
	if (!memory)
		(void)rh_fail(-ENOMEM, "out of host memory: %zu items of %zu bytes refused; close other programs or lower max_ram", count,
		              size);
	return memory;
}

int rh_grow(void *array, size_t *capacity, size_t needed, size_t size)
{
	if (needed <= *capacity)
		return 0;
	size_t grown = *capacity ? *capacity : 16;
	while (grown < needed)
		grown = grown > SIZE_MAX / 2 ? needed : grown * 2;
	void *old, *fresh = NULL;
	memcpy(&old, array, sizeof old); /* `array` is the address of a pointer of any object type */
	if (grown <= SIZE_MAX / size && rh_alloc_allowed())
		fresh = realloc(old, grown * size);
	if (!fresh)
		return rh_fail(-ENOMEM, "out of host memory: %zu items of %zu bytes refused; close other programs or lower max_ram", grown,
		               size);
	memcpy(array, &fresh, sizeof fresh);
	*capacity = grown;
	return 0;
}

char *rh_strdup(const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *copy = rh_alloc(bytes, 1);
	return copy ? memcpy(copy, text, bytes) : NULL;
}

void rh_free(void *memory)
{
	free(memory);
}

struct rh_region_part {
	struct rh_region_part *previous;
	_Alignas(max_align_t) char memory[];
};

void *rh_region_take(struct rh_region *region, int64_t count, size_t size)
{
	RH_ASSERT(count >= 0);
	struct rh_region_part *part = region->rc ? NULL : rh_alloc(1, sizeof *part + (size_t)count * size);
	if (!part) {
		region->rc = -ENOMEM;
		return NULL;
	}
	part->previous = region->latest;
	region->latest = part;
	return part->memory;
}

void rh_region_free(struct rh_region *region)
{
	for (struct rh_region_part *part = region->latest, *before; part; part = before) {
		before = part->previous;
		rh_free(part);
	}
	*region = (struct rh_region){0};
}

/* jemalloc's, where the program is linked with it. */
int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes) __attribute__((weak));

void rh_alloc_return_freed(void)
{
	if (!mallctl)
		return;
	(void)mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
	(void)mallctl("arena.4096.purge", NULL, NULL, NULL, 0); /* 4096: all arenas */
}
