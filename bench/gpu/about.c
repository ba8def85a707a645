/* What a GPU's machine is, found by using it: the device is opened, cuBLASLt loaded, one product run and looked at. */
#include "bench/gpu/bench.h"

#include "core/float16.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef RH_CUDA_EMULATED

static void versions(int *driver, int *runtime, size_t *library)
{
	*driver = *runtime = 0;
	*library = 0;
}

#else

#include "cuda/blas_library.h"

#include <cuda_runtime_api.h>

static void versions(int *driver, int *runtime, size_t *library)
{
	void *handle = dlopen(BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	size_t (*version)(void) = NULL;
	void *entry = handle ? dlsym(handle, "cublasLtGetVersion") : NULL;
	memcpy(&version, &entry, sizeof entry);
	*library = version ? version() : 0;
	if (cudaDriverGetVersion(driver) != cudaSuccess)
		*driver = 0;
	if (cudaRuntimeGetVersion(runtime) != cudaSuccess)
		*runtime = 0;
}

#endif

enum { SIDE = 64 };

/* Ones times ones: every element is SIDE, which bf16 holds. */
static int try_product(struct bench *bench)
{
	static uint16_t one[SIDE * SIDE], result[SIDE * SIDE];
	const struct rh_device_ops *ops = bench->device->ops;
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {0, 1, 1}};
	for (int i = 0; i < SIDE * SIDE; i++)
		one[i] = rh_f32_to_bf16(1);
	for (int i = RH_GEMM_A; i <= RH_GEMM_B; i++) {
		op.operand[i] = bench_view(bench, RH_BF16, SIDE, SIDE);
		int rc = ops->copy_up(bench->device, RH_STREAM_COMPUTE, op.operand[i].data, one, sizeof one);
		if (rc)
			return rc;
	}
	op.operand[RH_GEMM_D] = bench_view(bench, RH_BF16, SIDE, SIDE);
	int rc = ops->launch(bench->device, RH_STREAM_COMPUTE, &op);
	if (!rc)
		rc = ops->copy_down(bench->device, RH_STREAM_COMPUTE, result, op.operand[RH_GEMM_D].data, sizeof result);
	if (!rc)
		rc = ops->synchronize(bench->device);
	for (int i = 0; !rc && i < SIDE * SIDE; i++)
		if (result[i] != rh_f32_to_bf16(SIDE))
			rc = rh_fail(-EIO, "a product of ones is wrong: element %d is %g, not %d", i, (double)rh_bf16_to_f32(result[i]),
			             SIDE);
	return rc;
}

/* KiB of MemAvailable; 0: unknown. */
static long long available_kib(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	char line[128];
	long long kib = 0;
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
			break;
	if (file)
		(void)fclose(file);
	return kib;
}

/* One line of JSON, or the reason why the machine cannot be used. */
int bench_about(int argc, char **argv)
{
	struct bench bench;
	int64_t room;
	int count = argc < 1 ? -EINVAL : rh_devices_count(argv[0]), driver, runtime;
	size_t library;
	int rc = count < 0 ? count : rh_devices_room(argv[0], &room);
	if (rc)
		return rc;
	rc = bench_open(argv[0], 4 << 20, &bench);
	if (rc)
		return rc;
	rc = try_product(&bench);
	bench_close(&bench);
	versions(&driver, &runtime, &library);
	if (!rc)
		printf("{\"name\": \"%s\", \"workers\": %d, \"free_bytes\": %lld, \"driver_cuda\": %d, \"runtime_cuda\": %d, \"cublaslt\": "
		       "%zu, \"available_kib\": %lld}\n",
		       argv[0], count, (long long)room, driver, runtime, library, available_kib());
	return rc;
}
