/* Which GPUs this machine has, what they are, and what of their memory is free. No device needs to be open. */
#include "core/arena.h"
#include "cuda/device_internal.h"

#include <ctype.h>
#include <stdlib.h>

enum {
	OLDEST = 80, /* sm_80: bf16 products, asynchronous copies to shared memory */
	OLDEST_OF_FP8 = 89,
	LOADED_LATER_BYTES = 256 << 20 /* kernels go to the GPU when a device is opened, libraries' when first used */
};

const char *cuda_advice(cudaError_t error)
{
	switch (error) {
	case cudaErrorECCUncorrectable:
		return "; the GPU's memory gave a wrong bit: reset the GPU and resume from the last checkpoint";
	case cudaErrorLaunchFailure:
	case cudaErrorIllegalAddress:
	case cudaErrorMisalignedAddress:
		return "; resume from the last checkpoint, and report it if it comes again, with CUDA_LAUNCH_BLOCKING=1, as an earlier op may "
		       "be at fault";
	case cudaErrorMemoryAllocation:
		return "; lower max_vram, which leaves room for the GPU's own libraries, or end what else uses the GPU";
	case cudaErrorDevicesUnavailable:
		return "; another process may have the GPU to itself";
	case cudaErrorLaunchTimeout:
		return "; the GPU drives a display too, whose driver ends long kernels: lower max_length or per_device_train_batch_size, "
		       "or train on a GPU without a display";
	case cudaErrorNoKernelImageForDevice:
	case cudaErrorInvalidDeviceFunction:
		return "; this program has no code for this GPU: build it with a CUDA toolkit that knows it (make clean && make)";
	case cudaErrorUnsupportedPtxVersion:
		return "; this program is newer than the NVIDIA driver: install a newer driver";
	case cudaErrorJitCompilerNotFound:
		return "; this program has no code for this GPU, and the driver's compiler (libnvidia-ptxjitcompiler.so) is not there: install "
		       "all of the NVIDIA driver, or build with a CUDA toolkit that knows this GPU (make clean && make)";
	case cudaErrorSystemDriverMismatch:
		return "; the NVIDIA driver was updated: restart the machine";
	case cudaErrorUnknown:
		return "; the GPU may be lost, or not awake after a suspend (sudo dmesg | grep -e NVRM -e Xid): restart the machine";
	default:
		return "";
	}
}

/* The error of a GPU that cannot be asked or used. */
static int refused(int gpu, cudaError_t error)
{
	(void)cudaGetLastError();
	return rh_fail(-ENODEV, "device " CUDA_KIND ":%d: %s%s", gpu, cudaGetErrorString(error), cuda_advice(error));
}

/* The first call of CUDA's in a process. Streams share queues to the GPU, 8 unless the environment says otherwise. A worker has five
 * streams, and a copy that shares a queue with another stream would wait for that one. A library's kernels go to the GPU when first
 * used, as CUDA has it by itself from 12.2 on: before, all of cuBLASLt's would go there after its free memory was asked for. */
int rh_cuda_count(void)
{
	int count = 0, driver = 0;
	(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	(void)setenv("CUDA_MODULE_LOADING", "LAZY", 0);
	cudaError_t error = cudaGetDeviceCount(&count);
	if (error == cudaSuccess && count > 0)
		return count;
	(void)cudaGetLastError();
	if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
		return rh_fail(-ENODEV, "device " CUDA_KIND ": this machine has no NVIDIA driver; install it, or use device cpu");
	if (error == cudaErrorInsufficientDriver)
		return rh_fail(-EIO,
		               "device " CUDA_KIND
		               ": the NVIDIA driver knows CUDA %d.%d, this program needs %d.%d; install a newer driver%s",
		               driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
		               driver < 12000 ? "" : ", or build with CUDA toolkit 12 (make clean && make NVCC=/usr/local/cuda-12/bin/nvcc)");
	if (error == cudaSuccess || error == cudaErrorNoDevice)
		return rh_fail(-ENODEV, "device " CUDA_KIND ": no GPU is visible (CUDA_VISIBLE_DEVICES?); use device cpu");
	return rh_fail(-EIO, "device " CUDA_KIND ": %s%s", cudaGetErrorString(error), cuda_advice(error));
}

/* 0 if the GPU is there and is of compute capability oldest / 10 or later; `need` ends the error line. */
static int check_capability(int gpu, int oldest, const char *need)
{
	int major = 0, minor = 0, count = rh_cuda_count();
	if (count < 0)
		return count;
	if (gpu < 0 || gpu >= count)
		return rh_fail(-EINVAL, "device " CUDA_KIND ":%d: this machine has %d GPU%s, counted from 0", gpu, count,
		               count == 1 ? "" : "s");
	cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu);
	if (error != cudaSuccess)
		return refused(gpu, error);
	if (major * 10 + minor < oldest)
		return rh_fail(-ENODEV, "device " CUDA_KIND ":%d: its compute capability is %d.%d, %s", gpu, major, minor, need);
	return 0;
}

int cuda_check_gpu(int gpu)
{
	return check_capability(gpu, OLDEST,
	                        "at least 8.0 is needed (Ampere, 2020, or later); name other GPUs, as device cuda:1 or cuda:0,2, or use "
	                        "device cpu");
}

int rh_cuda_check_fp8(int gpu)
{
	return check_capability(gpu, OLDEST_OF_FP8, "fp8 needs at least 8.9 (RTX 40, H100, or later); remove fp8");
}

/* A thread that waits for the GPU without an event (cudaStreamSynchronize) then sleeps, as one that waits for an event does: spinning would
 * take a core from the optimizer. It wakes some 50 us late, once or twice a step. */
cudaError_t cuda_wake(int gpu)
{
	cudaError_t error = cudaInitDevice(gpu, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid);
	if (error != cudaErrorSetOnActiveProcess) /* another worker or another library woke it already */
		return error;
	(void)cudaGetLastError();
	return cudaSuccess;
}

cudaError_t cuda_memory_of(int gpu, int64_t *free_bytes, int64_t *total_bytes)
{
	size_t unused = 0, all = 0;
	cudaError_t error = cudaSetDevice(gpu);
	if (error == cudaSuccess)
		error = cudaMemGetInfo(&unused, &all);
	*free_bytes = (int64_t)unused;
	*total_bytes = (int64_t)all;
	return error;
}

cudaError_t cuda_address_of(int gpu, char address[16])
{
	cudaError_t error = cudaDeviceGetPCIBusId(address, 16, gpu);
	for (char *at = address; error == cudaSuccess && *at; at++)
		*at = (char)tolower((unsigned char)*at);
	return error;
}

int rh_cuda_room(int gpu, int workers, int64_t *bytes)
{
	RH_ASSERT(workers >= 1);
	int64_t free_bytes, total_bytes;
	int rc = cuda_check_gpu(gpu);
	if (rc)
		return rc;
	cudaError_t error = cuda_wake(gpu);
	if (error == cudaSuccess)
		error = cuda_memory_of(gpu, &free_bytes, &total_bytes);
	if (error != cudaSuccess)
		return refused(gpu, error);
	*bytes = (free_bytes - LOADED_LATER_BYTES) / workers - BLAS_WORKSPACE_BYTES;
	*bytes = *bytes > 0 ? *bytes / RH_ALIGN * RH_ALIGN : 0;
	if (!*bytes)
		return rh_fail(-ENOMEM,
		               "device " CUDA_KIND ":%d: %.0f of %.0f MiB are free, too little for %d worker%s; end what else uses the GPU",
		               gpu, (double)free_bytes / 0x1p20, (double)total_bytes / 0x1p20, workers, workers == 1 ? "" : "s");
	return 0;
}

int rh_cuda_describe(int gpu, struct rh_cuda_gpu *out)
{
	*out = (struct rh_cuda_gpu){0};
	int count = rh_cuda_count();
	if (count < 0)
		return count;
	cudaError_t error = gpu < 0 || gpu >= count ? cudaErrorInvalidDevice : cudaSuccess;
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&out->major, cudaDevAttrComputeCapabilityMajor, gpu);
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&out->minor, cudaDevAttrComputeCapabilityMinor, gpu);
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&out->multiprocessors, cudaDevAttrMultiProcessorCount, gpu);
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&out->has_time_limit, cudaDevAttrKernelExecTimeout, gpu);
	if (error == cudaSuccess)
		error = cuda_address_of(gpu, out->address);
	return error == cudaSuccess ? 0 : refused(gpu, error);
}
