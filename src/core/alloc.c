#include "core/alloc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t asked, fail_at; /* protected by lock */

int rh_alloc_allowed(void)
{
	pthread_mutex_lock(&lock);
	int refused = ++asked == fail_at;
	pthread_mutex_unlock(&lock);
	return !refused;
}

uint64_t rh_alloc_fail_nth(uint64_t n)
{
	pthread_mutex_lock(&lock);
	uint64_t before = asked;
	asked = 0;
	fail_at = n;
	pthread_mutex_unlock(&lock);
	return before;
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

/* jemalloc's, where the program is linked with it. */
int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes) __attribute__((weak));

void rh_alloc_return_freed(void)
{
	if (!mallctl)
		return;
	(void)mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
	(void)mallctl("arena.4096.purge", NULL, NULL, NULL, 0); /* 4096: all arenas */
}
