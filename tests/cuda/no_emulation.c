/* What tests say to the emulation, where the device is a real one. */
#include "cudaemu_control.h"

#include "core/hooks.h"

#include <stdio.h>
#include <stdlib.h>

void cudaemu_set_order(enum cudaemu_order order, uint64_t seed)
{
	(void)order, (void)seed;
}

void cudaemu_set_blocks_at_once(int blocks)
{
	(void)blocks;
}

void cudaemu_release(void)
{
}

/* A large GPU has the kernels of a small one, too. */
void cudaemu_set_shared_bytes(int bytes)
{
	char text[16];
	snprintf(text, sizeof text, "%d", bytes);
	(void)setenv(RH_HOOK_SHARED_BYTES, text, 1);
}

void cudaemu_each_kernel(void (*visit)(void *user, const char *name, int threads, int64_t dynamic_bytes), void *user)
{
	(void)visit, (void)user;
}
