/* Stacks that one OS thread switches between. A fiber runs fiber_main from its first resume on, which never returns. */
#ifndef CUDAEMU_FIBER_H
#define CUDAEMU_FIBER_H

#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "fibers switch by x86-64 assembly; the CPU device needs that machine too"
#endif

struct fiber {
	void *stack_pointer; /* while suspended */
	char *stack;
	size_t stack_bytes;
	void *fake_stack; /* ASan's */
};

/* The user's. */
[[noreturn]] void fiber_main(void);

struct fiber *fiber_create(void);
void fiber_destroy(struct fiber *fiber);

/* Of the OS thread: where fiber_resume was called, and on which stack. */
struct fiber_caller {
	void *stack_pointer;
	void *fake_stack; /* this and the next two: ASan's */
	const void *stack;
	size_t stack_bytes;
};
extern __thread struct fiber_caller fiber_caller;

/* Leaves where it is and the frame pointer on the stack, the stack pointer in *save, and goes on where `load` was left; all other registers
 * are lost. Inlined, and a jump rather than a return: so calls and returns stay in pairs, which processors predict. */
static inline __attribute__((always_inline)) void fiber_switch(void **save, void *load)
{
	asm volatile("leaq -128(%%rsp), %%rsp\n" /* what leaf functions may use unasked */
	             "pushq %%rbp\n"
	             "leaq 1f(%%rip), %%rax\n"
	             "pushq %%rax\n"
	             "movq %%rsp, (%%rdi)\n"
	             "movq %%rsi, %%rsp\n"
	             "popq %%rax\n"
	             "jmp *%%rax\n"
	             "1:\n"
	             "popq %%rbp\n"
	             "leaq 128(%%rsp), %%rsp\n"
	             : "+D"(save), "+S"(load)
	             :
	             : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
	               "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc",
	               "memory");
}

static inline void fiber_arrived(void *fake_stack)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(fake_stack, &fiber_caller.stack, &fiber_caller.stack_bytes);
#else
	(void)fake_stack;
#endif
}

/* Runs the fiber until it suspends. Called off any fiber. */
static inline __attribute__((always_inline)) void fiber_resume(struct fiber *fiber)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&fiber_caller.fake_stack, fiber->stack, fiber->stack_bytes);
#endif
	fiber_switch(&fiber_caller.stack_pointer, fiber->stack_pointer);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(fiber_caller.fake_stack, NULL, NULL);
#endif
}

/* Back to the caller of fiber_resume. Called on the fiber. */
static inline __attribute__((always_inline)) void fiber_suspend(struct fiber *fiber)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&fiber->fake_stack, fiber_caller.stack, fiber_caller.stack_bytes);
#endif
	fiber_switch(&fiber->stack_pointer, fiber_caller.stack_pointer);
	fiber_arrived(fiber->fake_stack);
}

#endif
