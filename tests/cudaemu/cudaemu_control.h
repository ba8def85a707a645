/* What tests say to the emulation. Plain C. */
#ifndef CUDAEMU_CONTROL_H
#define CUDAEMU_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cudaemu_order { CUDAEMU_ASCENDING, CUDAEMU_DESCENDING, CUDAEMU_RANDOM, CUDAEMU_ORDERS };

/* The order of threads and blocks in the calling thread's launches from now on; ascending at first. */
void cudaemu_set_order(enum cudaemu_order order, uint64_t seed);

/* Shared memory of an SM, for kernels that are chosen by it in the calling thread; 100 KB at first, as of an sm_89. */
void cudaemu_set_shared_bytes(int bytes);
int cudaemu_shared_bytes(void);

/* How many blocks of the calling thread's launches run at once, on OS threads of their own; 1 at first. For kernels whose blocks hand over
 * to one another. */
void cudaemu_set_blocks_at_once(int blocks);

/* Frees what the calling thread holds, before it ends. */
void cudaemu_release(void);

struct CUstream_st;

/* What a stream of the emulated runtime does when it has come to it; the argument is freed then. For kernels and products. */
void cudaemu_enqueue(struct CUstream_st *stream, void (*run)(void *argument), void *argument);

/* Calls `visit` for each kernel launched by any thread so far: its name with template arguments, the most threads a block and the most
 * dynamic shared bytes it was launched with. */
void cudaemu_each_kernel(void (*visit)(void *user, const char *name, int threads, int64_t dynamic_bytes), void *user);

#ifdef __cplusplus
}
#endif

#endif
