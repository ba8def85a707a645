/* Inside tests/cudaemu. */
#ifndef CUDAEMU_BLOCK_H
#define CUDAEMU_BLOCK_H

#include "cudaemu.h"

struct copy {
	char *to;
	const char *from;
	int bytes, group;
};

/* A thread's asynchronous copies: not waited for so far, and how many groups it has closed. */
struct copies {
	struct copy *pending;
	int count, room, groups;
};

struct copies *cudaemu_copies(void);
int cudaemu_blocks_may_run_at_once(void);
void cudaemu_note_kernel(const char *signature, int threads, int64_t dynamic_bytes);
[[noreturn]] void cudaemu_abort(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
