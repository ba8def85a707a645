/* What the emulated kernels of a test program were launched with, for tests/cuda/resources.awk. */
#ifndef RH_TESTS_CUDA_LAUNCHES_H
#define RH_TESTS_CUDA_LAUNCHES_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cudaemu_control.h"

static inline void kernel_write_launch(void *file, const char *name, int threads, int64_t dynamic_bytes)
{
	fprintf((FILE *)file, "%d %lld %s\n", threads, (long long)dynamic_bytes, name);
}

/* The kernels that this program launched, beside its log: tests/cuda/resources.awk reads them. */
static inline void kernel_write_launches(void)
{
#ifdef RH_ON_GPU /* gpu-tools is no test of what the tests launch */
	return;
#endif
	const char *build = getenv("RH_BUILD");
	char path[512];
	snprintf(path, sizeof path, "%s/tests/cuda/%s.launches", build ? build : "build/release", program_invocation_short_name);
	FILE *file = fopen(path, "w");
	if (!file)
		return;
	cudaemu_each_kernel(kernel_write_launch, file);
	fclose(file);
}

#endif
