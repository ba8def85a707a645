/* Scratch memory of a thread. */
#include "device/cpu/kernels.h"

#include <pthread.h>
#include <stdlib.h>

enum { ALIGN = 64, UNIT = 64 << 10 };

struct scratch {
	void *memory;
	size_t bytes;
};

static _Thread_local struct scratch scratch;
static pthread_key_t key; /* its value is the thread's memory, so that it is freed with the thread */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
	RH_ASSERT(pthread_key_create(&key, free) == 0);
}

void *cpu_scratch(size_t bytes)
{
	if (bytes <= scratch.bytes)
		return scratch.memory;
	pthread_once(&once, make_key);
	pthread_setspecific(key, NULL);
	free(scratch.memory);
	scratch = (struct scratch){0};
	size_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
	void *memory = aligned_alloc(ALIGN, rounded);
	if (!memory || pthread_setspecific(key, memory)) {
		free(memory);
		rh_fail(-ENOMEM, "no memory for %zu bytes of scratch of a compute thread", rounded);
		return NULL;
	}
	scratch = (struct scratch){memory, rounded};
	return memory;
}
