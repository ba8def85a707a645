/* Stacks that one OS thread switches between. A fiber runs fiber_main from its first resume on, which never returns. */
#ifndef CUDAEMU_FIBER_H
#define CUDAEMU_FIBER_H

#include <stddef.h>

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

/* Runs the fiber until it suspends. Called off any fiber. */
void fiber_resume(struct fiber *fiber);

/* Back to the caller of fiber_resume. Called on the fiber. */
void fiber_suspend(struct fiber *fiber);

#endif
