/* Loads the program's kernels onto a GPU when a device is opened. CUDA would load each when it is first used: a failure would then end a
 * run in its middle, perhaps for want of memory that the run has taken, and streams would wait while it loads. The library of products
 * loads its own when they are first used. */
#include "core/clock.h"
#include "core/log.h"
#include "cuda/device_internal.h"
#include "cuda/kernel_list.h"

#include <stdio.h>

#define LONG_S 1.0 /* after which a person is told what takes so long */

static struct cuda_listed_kernel *kernels; /* written before main begins */

void cuda_list_kernel(struct cuda_listed_kernel *kernel)
{
	kernel->next = kernels;
	kernels = kernel;
}

/* "... Kernel = NAME]", where clang begins the name with an ampersand. */
static int fail(struct cuda_device *device, cudaError_t error, const char *signature, const struct rh_cuda_gpu *gpu)
{
	char doing[256];
	const char *name = strstr(signature, "Kernel = ");
	name = name ? name + strlen("Kernel = ") : signature;
	name += strspn(name, "(&");
	(void)snprintf(doing, sizeof doing, "loading kernel %.*s onto a GPU of compute capability %d.%d", (int)strcspn(name, ";]"), name,
	               gpu->major, gpu->minor);
	return cuda_check(device, error, doing);
}

int cuda_load_kernels(struct cuda_device *device)
{
	struct rh_cuda_gpu gpu;
	int rc = rh_cuda_describe(device->gpu, &gpu), is_told = 0;
	double begun = rh_clock_seconds();
	for (const struct cuda_listed_kernel *kernel = kernels; !rc && kernel; kernel = kernel->next) {
		struct cudaFuncAttributes unused;
		cudaError_t error = cudaFuncGetAttributes(&unused, kernel->entry); /* it has to be there to be asked */
		rc = error == cudaSuccess ? 0 : fail(device, error, kernel->signature, &gpu);
		if (is_told || rh_clock_seconds() - begun < LONG_S)
			continue;
		rh_note("device " CUDA_KIND ":%d: loading kernels: the driver may have to compile them for this GPU (compute capability "
		        "%d.%d), which takes minutes; it keeps them for the next run",
		        device->gpu, gpu.major, gpu.minor);
		is_told = 1;
	}
	return rc;
}
