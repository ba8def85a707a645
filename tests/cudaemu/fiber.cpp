#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 512 << 10 };
#else
enum { STACK_BYTES = 128 << 10 };
#endif

enum { GUARD_BYTES = 4096 };

#ifndef __x86_64__
#error "fibers switch by x86-64 assembly; the CPU device needs that machine too"
#endif

/* Saves what a call preserves (System V ABI) on the stack, leaves the stack pointer in *save, goes on where `load` was left. */
extern "C" void cudaemu_switch(void **save, void *load);
asm(".text\n"
    ".type cudaemu_switch, @function\n"
    "cudaemu_switch:\n"
    "	pushq %rbp\n"
    "	pushq %rbx\n"
    "	pushq %r12\n"
    "	pushq %r13\n"
    "	pushq %r14\n"
    "	pushq %r15\n"
    "	movq %rsp, (%rdi)\n"
    "	movq %rsi, %rsp\n"
    "	popq %r15\n"
    "	popq %r14\n"
    "	popq %r13\n"
    "	popq %r12\n"
    "	popq %rbx\n"
    "	popq %rbp\n"
    "	ret\n"
    ".size cudaemu_switch, .-cudaemu_switch\n");

/* Of the OS thread: where fiber_resume was called, and on which stack. */
static __thread void *caller_stack_pointer;
#ifdef __SANITIZE_ADDRESS__
static __thread void *caller_fake_stack;
static __thread const void *caller_stack;
static __thread size_t caller_stack_bytes;
#endif

static void arrived_on_fiber(void *fake_stack)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(fake_stack, &caller_stack, &caller_stack_bytes);
#else
	(void)fake_stack;
#endif
}

static void begin(void)
{
	arrived_on_fiber(NULL);
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
	/* As cudaemu_switch leaves a stack: six registers, then where to go; there the stack is as after a call, 8 beyond a multiple of 16.
	 */
	void **top = (void **)(fiber->stack + STACK_BYTES) - 1;
	*--top = (void *)begin;
	for (int i = 0; i < 6; i++)
		*--top = NULL;
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

void fiber_resume(struct fiber *fiber)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&caller_fake_stack, fiber->stack, fiber->stack_bytes);
#endif
	cudaemu_switch(&caller_stack_pointer, fiber->stack_pointer);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(caller_fake_stack, NULL, NULL);
#endif
}

void fiber_suspend(struct fiber *fiber)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&fiber->fake_stack, caller_stack, caller_stack_bytes);
#endif
	cudaemu_switch(&fiber->stack_pointer, caller_stack_pointer);
	arrived_on_fiber(fiber->fake_stack);
}
