/* Between the files of the emulated runtime. */
#ifndef CUDAEMU_RUNTIME_INTERNAL_H
#define CUDAEMU_RUNTIME_INTERNAL_H

#include "runtime.h"

/* What every call that may fail begins with: the fault that was asked for, or the GPU's ruin. */
cudaError_t runtime_enter(const char *name);

#define ENTER()                                                                                                                            \
	do {                                                                                                                               \
		cudaError_t entered = runtime_enter(__func__);                                                                             \
		if (entered != cudaSuccess)                                                                                                \
			return entered;                                                                                                    \
	} while (0)

int cudaemu_is_refused(void); /* cudaemu.h */

/* The thread's last error, which comes back. */
cudaError_t runtime_refuse(cudaError_t error);
cudaError_t runtime_ruined(void);
int runtime_current_gpu(void);
/* Streams, events: of runtime_held. */
void runtime_count_object(int more);
/* How much of it lies in one registration. */
enum runtime_pinned { RUNTIME_PAGEABLE, RUNTIME_PINNED_IN_PART, RUNTIME_PINNED };
enum runtime_pinned runtime_pinned(const void *memory, size_t bytes);

void runtime_let_pass(int64_t ns);
/* How long the next fill takes at least. The caller holds queue.c's lock. */
int64_t runtime_fill_ns(size_t bytes);

/* queue.c: nothing is under way on the GPU. */
void runtime_drain(int gpu);

#endif
