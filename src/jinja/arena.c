/* Memory of one compilation or rendering, freed at once, and the way out of a fault. */
#include "core/alloc.h"
#include "jinja/jinja_internal.h"

#include <stdarg.h>
#include <string.h>

enum { CHUNK_BYTES = 64 << 10, ALIGNMENT = 16, FAULT_BYTES = 4096 };

struct jinja_chunk {
	struct jinja_chunk *previous;
	size_t bytes;
};

/* The message of the thread's last fault. */
static _Thread_local char fault[FAULT_BYTES];

const char *rh_jinja_fault(void)
{
	return fault;
}

noreturn void jinja_fail(struct jinja_arena *arena, int rc)
{
	arena->rc = rc;
	longjmp(*arena->entry, 1);
}

noreturn void jinja_raise_bytes(struct jinja_arena *arena, const char *bytes, size_t length)
{
	length = length < FAULT_BYTES - 1 ? length : FAULT_BYTES - 1;
	memcpy(fault, bytes, length);
	fault[length] = 0;
	jinja_fail(arena, -EINVAL);
}

noreturn void jinja_raise(struct jinja_arena *arena, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(fault, sizeof fault, format, args);
	va_end(args);
	jinja_fail(arena, -EINVAL);
}

noreturn void jinja_raise_at(struct jinja_arena *arena, int line, int column, const char *format, ...)
{
	char message[FAULT_BYTES - 64];
	va_list args;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	jinja_raise(arena, "line %d, column %d: %s", line, column, message);
}

void *jinja_take(struct jinja_arena *arena, size_t count, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(count, size, &bytes) || bytes > arena->limit || arena->allocated > arena->limit - bytes)
		jinja_raise(arena, "the template needs more than %zu MiB of memory", arena->limit >> 20);
	bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	if (bytes > arena->free_bytes) {
		size_t fresh = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
		struct jinja_chunk *chunk = rh_alloc(1, fresh + ALIGNMENT);
		if (!chunk) {
			snprintf(fault, sizeof fault, "out of host memory");
			jinja_fail(arena, -ENOMEM);
		}
		chunk->bytes = fresh;
		if (fresh == bytes && arena->chunk) { /* a large one alone: the current chunk stays current */
			chunk->previous = arena->chunk->previous;
			arena->chunk->previous = chunk;
			arena->allocated += bytes;
			return (char *)chunk + ALIGNMENT;
		}
		chunk->previous = arena->chunk;
		arena->chunk = chunk;
		arena->free_bytes = fresh;
	}
	void *at = (char *)arena->chunk + ALIGNMENT + (arena->chunk->bytes - arena->free_bytes);
	arena->free_bytes -= bytes;
	arena->allocated += bytes;
	return at;
}

void jinja_arena_free(struct jinja_arena *arena)
{
	while (arena->chunk) {
		struct jinja_chunk *before = arena->chunk->previous;
		rh_free(arena->chunk);
		arena->chunk = before;
	}
	arena->free_bytes = arena->allocated = 0;
}
