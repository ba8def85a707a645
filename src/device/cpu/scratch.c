/* Scratch memory of a thread. */
#include "core/alloc.h"
#include "device/cpu/kernels.h"

#include <pthread.h>

enum { ALIGN = 64, UNIT = 64 << 10 };

struct scratch {
	void *memory, *aligned;
	size_t bytes; /* at `aligned` */
};

static _Thread_local struct scratch scratch;
static pthread_key_t key; /* its value is the thread's memory, so that it is freed with the thread */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
	int code = pthread_key_create(&key, rh_free);
	RH_ASSERT(code == 0);
}

void *cpu_scratch(size_t bytes)
{
	if (bytes <= scratch.bytes && scratch.memory)
		return scratch.aligned;
	pthread_once(&once, make_key);
	pthread_setspecific(key, NULL);
	rh_free(scratch.memory);
	scratch = (struct scratch){0};
	size_t rounded = (bytes / UNIT + 1) * UNIT;
	void *memory = rh_alloc(rounded, 1);
	if (!memory || pthread_setspecific(key, memory)) {
		rh_free(memory);
		rh_fail(-ENOMEM, "no memory for %zu bytes of scratch of a compute thread", rounded);
		return NULL;
	}
	void *aligned = (void *)(((uintptr_t)memory + ALIGN - 1) / ALIGN * ALIGN);
	scratch = (struct scratch){memory, aligned, rounded - ALIGN};
	return aligned;
}
