/* The CUDA device: device.h on streams, events and pinned memory. A build without CUDA has these entries too (absent.c): they say so. A
 * build for tests has the same device on tests/cudaemu, where it is called emu. */
#ifndef RH_CUDA_DEVICE_H
#define RH_CUDA_DEVICE_H

#include "device/device.h"

struct rh_cuda_options {
	int gpu;           /* which of those that the process sees */
	int64_t cap_bytes; /* most that may be reserved, >= 0; 0: all that is free */
};

/* What this build has: "cuda", "emu", or NULL for none. */
const char *rh_cuda_kind(void);

/* GPUs that the process sees, at least one. With the reason, -ENODEV: no CUDA in this build, no driver, none that is visible; -EIO: there
 * is a driver, but it does not serve this program. */
int rh_cuda_count(void) RH_MUST;

/* Bytes of a GPU that runs may plan with: the free memory, less what the device itself takes for `workers` workers. -EINVAL: no such
 * GPU; -ENODEV: its architecture is older than sm_80. */
int rh_cuda_room(int gpu, int workers, int64_t *bytes) RH_MUST;

/* -ENODEV for a GPU whose tensor cores do not take 8-bit floating point. */
int rh_cuda_check_fp8(int gpu) RH_MUST;

/* The same for all GPUs. */
struct rh_device_grain rh_cuda_grain(void);

/* Workers on one GPU are devices of their own, each opened with its share as cap. */
int rh_cuda_open(int index, const struct rh_cuda_options *options, struct rh_device **out) RH_MUST;

/* Of a device of rh_cuda_kind(): look-ups that found no algorithm for a product (cuBLASLt was then asked), and entries that were evicted.
 * Only the compute stream's owner may ask. */
int64_t rh_cuda_choice_misses(const struct rh_device *device);
int64_t rh_cuda_evictions(const struct rh_device *device);

/* Kernels and products that this process has launched on all of its devices. */
int64_t rh_cuda_launches(void);

/* The driver's stream, a struct CUstream_st, for what a benchmark times beside a device's own work. */
void *rh_cuda_stream(const struct rh_device *device, enum rh_stream stream);

/* What a GPU is; its PCI address as /sys/bus/pci/devices has it. -ENODEV. */
struct rh_cuda_gpu {
	int major, minor, multiprocessors; /* compute capability */
	int has_time_limit;                /* it drives a display, so the driver ends kernels that take seconds */
	char address[16];
};
int rh_cuda_describe(int gpu, struct rh_cuda_gpu *out) RH_MUST;

#endif
