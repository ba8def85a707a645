#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { STACK_BYTES = 512 << 10 };
#else
enum { STACK_BYTES = 128 << 10 };
#endif

enum { GUARD_BYTES = 4096 };

__thread struct fiber_caller fiber_caller;

static void begin(void)
{
	fiber_arrived(NULL);
	fiber_main();
}

struct fiber *fiber_create(void)
{
	struct fiber *fiber = (struct fiber *)calloc(1, sizeof *fiber);
	void *memory = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!fiber || memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE)) {
		fprintf(stderr, "cudaemu: no memory for another fiber\n");
		abort();
	}
	fiber->stack = (char *)memory + GUARD_BYTES;
	fiber->stack_bytes = STACK_BYTES;
	/* As fiber_switch leaves a stack: where to go; there it is as after a call, 8 beyond a multiple of 16. */
	void **top = (void **)(fiber->stack + STACK_BYTES) - 1;
	*--top = (void *)begin;
	fiber->stack_pointer = top;
	return fiber;
}

void fiber_destroy(struct fiber *fiber)
{
	if (!fiber)
		return;
#ifdef __SANITIZE_ADDRESS__
	__asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
#endif
	munmap(fiber->stack - GUARD_BYTES, STACK_BYTES + GUARD_BYTES);
	free(fiber);
}
