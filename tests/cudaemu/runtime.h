/* What tests say to the emulated runtime, and the faults they ask it for. */
#ifndef CUDAEMU_RUNTIME_H
#define CUDAEMU_RUNTIME_H

#include "cuda_runtime_api.h"

#include <stdint.h>

struct runtime_machine {
	int gpus, driver, major, minor; /* driver: as cudaDriverGetVersion, 0 for none */
	int64_t free_bytes;             /* on each GPU, before anything is reserved */
	int64_t pinnable_bytes;         /* of host memory, in all; 0: any */
	int larger;                     /* a GPU with one multiprocessor more; 0: all are alike */
};

/* Until the next call; NULL: 64 GPUs of capability 8.9 with 24 GiB. */
void runtime_set_machine(const struct runtime_machine *machine);

/* What takes time there, until the next call; zeroed: nothing. */
struct runtime_pace {
	int64_t load_ns; /* to load a kernel */
	int memory_mb_s; /* what the memory promises, by its clock and width; 0: not known */
	int slow_fills;  /* so many fills take ten times as long as at that rate */
	int drives_display;
};
void runtime_set_pace(struct runtime_pace pace);

/* Calls that begin with `prefix` ("cuda" for all) are counted from now on; the n-th returns `error`, and if that error ruins a GPU's
 * context, so does every later call. 0: none. Returns how many were counted since the last time, and forgets the error. A kernel's
 * launch counts as cudaLaunchKernel and cudaPeekAtLastError, an op's as the latter, with which both end. */
uint64_t runtime_fail_nth(uint64_t n, const char *prefix, cudaError_t error);

/* Streams run their commands in an order that events allow and this seed draws (at first 0; in the program, RH_EMU_SEED). `commands`: what
 * streams created from now on hold; 0: 1024, about as a GPU's. A call that finds no room waits for it. */
void runtime_set_queues(uint64_t seed, int commands);

/* Since it was asked last. */
struct runtime_queues {
	int64_t full;     /* calls that found no room */
	int64_t starved;  /* commands run while such a call waited and a GPU beside had been given nothing */
	int64_t pageable; /* copies to host memory that is not registered: each kept its caller until it was done */
	int deepest;      /* the most commands that a stream held */
	int threads;      /* that enqueued something */
};
struct runtime_queues runtime_queues(void);

/* Bytes of device memory, streams, events and pinned ranges that are still held. */
int64_t runtime_held(void);

#endif
