/* CUDA's entries in a build without it. It lies in the library, from which the linker takes it only where no object before has them. */
#include "cuda/device.h"
#include "cuda/nccl.h"

const char *rh_cuda_kind(void)
{
	return NULL;
}

int rh_cuda_count(void)
{
	return rh_fail(-ENODEV,
	               "device: this build has no CUDA (nvcc was not found, or CUDA=0 was given, when it was made); use cpu or cpu:N, "
	               "or build again with CUDA=1");
}

int rh_cuda_room(int gpu, int workers, int64_t *bytes)
{
	(void)gpu, (void)workers, (void)bytes;
	return rh_cuda_count();
}

int rh_cuda_check_fp8(int gpu)
{
	(void)gpu;
	return rh_cuda_count();
}

struct rh_device_grain rh_cuda_grain(void)
{
	return rh_device_gpu_grain();
}

int rh_cuda_open(int index, const struct rh_cuda_options *options, struct rh_device **out)
{
	(void)index, (void)options, (void)out;
	return rh_cuda_count();
}

int64_t rh_cuda_choice_misses(const struct rh_device *device)
{
	(void)device;
	return 0;
}

int64_t rh_cuda_evictions(const struct rh_device *device)
{
	(void)device;
	return 0;
}

int64_t rh_cuda_launches(void)
{
	return 0;
}

void *rh_cuda_stream(const struct rh_device *device, enum rh_stream stream)
{
	(void)device, (void)stream;
	return NULL;
}

int rh_cuda_describe(int gpu, struct rh_cuda_gpu *out)
{
	(void)gpu, (void)out;
	return rh_cuda_count();
}

int rh_nccl_make_id(char id[RH_NCCL_ID])
{
	(void)id;
	return rh_cuda_count();
}

int rh_nccl_open(const char id[RH_NCCL_ID], int is_receiver, int gpu, struct rh_nccl_wire **out)
{
	(void)id, (void)is_receiver, (void)gpu, (void)out;
	return rh_cuda_count();
}

int rh_nccl_is_open(struct rh_nccl_wire *wire)
{
	(void)wire;
	return rh_cuda_count();
}

void rh_nccl_close(struct rh_nccl_wire *wire)
{
	(void)wire;
}

int rh_nccl_begin(struct rh_nccl_wire *wire, void *bytes, int64_t size)
{
	(void)wire, (void)bytes, (void)size;
	return rh_cuda_count();
}

int rh_nccl_test(struct rh_nccl_wire *wire)
{
	(void)wire;
	return rh_cuda_count();
}
