#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GPUS_MAX = 64, PINNED_MAX = 256 };

struct CUstream_st {
	int gpu;
};

struct CUevent_st {
	int gpu, recorded;
	unsigned flags;
	int64_t time_ns;
};

struct allocation {
	struct allocation *next;
	int gpu;
	int64_t bytes;
	void *memory;
};

static const struct runtime_machine usual = {GPUS_MAX, 13000, 8, 9, (int64_t)24 << 30, 0};

/* One thread drives the emulated GPUs at a time; others ask for events, which are reached as soon as they are recorded. */
static pthread_mutex_t entering = PTHREAD_MUTEX_INITIALIZER; /* of calls, fail_at and ruined */
static _Thread_local cudaError_t last;                       /* as CUDA has it */
static _Thread_local int current_gpu;                        /* likewise */
static struct {
	struct runtime_machine machine;
	int set;
	int64_t used[GPUS_MAX], objects;
	struct allocation *allocations;
	const void *pinned[PINNED_MAX];
	int64_t pinned_bytes[PINNED_MAX];
	cudaError_t ruined;
	uint64_t fail_at, calls;
	char prefix[32];
	cudaError_t error;
} now;

static const struct runtime_machine *machine(void)
{
	return now.set ? &now.machine : &usual;
}

void runtime_set_machine(const struct runtime_machine *wanted)
{
	now.set = wanted != NULL;
	if (wanted)
		now.machine = *wanted;
}

/* The program on emulated GPUs (make emu) is told by its environment: RH_EMU_MACHINE "gpus driver major minor free-MiB", and RH_EMU_FAIL
 * "n prefix error" as runtime_fail_nth takes them. */
__attribute__((constructor)) static void read_environment(void)
{
	const char *machine_text = getenv("RH_EMU_MACHINE"), *fault_text = getenv("RH_EMU_FAIL");
	struct runtime_machine wanted = {0};
	long long free_mib;
	unsigned long long n;
	char prefix[32];
	int error;
	if (machine_text &&
	    sscanf(machine_text, "%d %d %d %d %lld", &wanted.gpus, &wanted.driver, &wanted.major, &wanted.minor, &free_mib) == 5) {
		wanted.free_bytes = free_mib << 20;
		runtime_set_machine(&wanted);
	}
	if (fault_text && sscanf(fault_text, "%llu %31s %d", &n, prefix, &error) == 3)
		(void)runtime_fail_nth(n, prefix, (cudaError_t)error);
}

uint64_t runtime_fail_nth(uint64_t n, const char *prefix, cudaError_t error)
{
	uint64_t calls = now.calls;
	now.calls = 0;
	now.fail_at = n;
	now.error = error;
	last = now.ruined = cudaSuccess;
	snprintf(now.prefix, sizeof now.prefix, "%s", prefix);
	return calls;
}

int64_t runtime_held(void)
{
	int64_t held = now.objects;
	for (int i = 0; i < GPUS_MAX; i++)
		held += now.used[i];
	return held;
}

static int ruins(cudaError_t error)
{
	return error == cudaErrorECCUncorrectable || error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
	       error == cudaErrorMisalignedAddress;
}

/* What every call that may fail begins with. */
static cudaError_t enter(const char *name)
{
	pthread_mutex_lock(&entering);
	cudaError_t error = now.ruined;
	if (!error && !strncmp(name, now.prefix, strlen(now.prefix)) && ++now.calls == now.fail_at)
		error = now.error;
	if (ruins(error))
		now.ruined = error;
	pthread_mutex_unlock(&entering);
	last = error ? error : last;
	return error;
}

#define ENTER()                                                                                                                            \
	do {                                                                                                                               \
		cudaError_t entered = enter(__func__);                                                                                     \
		if (entered != cudaSuccess)                                                                                                \
			return entered;                                                                                                    \
	} while (0)

static cudaError_t refuse(cudaError_t error)
{
	return last = error;
}

const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
	case cudaErrorMemoryAllocation:
		return "out of memory";
	case cudaErrorECCUncorrectable:
		return "uncorrectable ECC error encountered";
	case cudaErrorLaunchFailure:
		return "unspecified launch failure";
	case cudaErrorIllegalAddress:
		return "an illegal memory access was encountered";
	case cudaErrorDevicesUnavailable:
		return "CUDA-capable device(s) is/are busy or unavailable";
	default:
		return "an emulated error";
	}
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last;
	last = now.ruined;
	return error;
}

cudaError_t cudaPeekAtLastError(void)
{
	ENTER();
	return last;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = machine()->driver;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	ENTER();
	*count = machine()->gpus;
	if (machine()->driver < CUDART_VERSION / 1000 * 1000)
		return cudaErrorInsufficientDriver;
	return *count ? cudaSuccess : cudaErrorNoDevice;
}

/* A wait that would spin is refused: here, and of events. */
cudaError_t cudaInitDevice(int gpu, unsigned device_flags, unsigned flags)
{
	ENTER();
	int sleeps = device_flags == cudaDeviceScheduleBlockingSync && flags == cudaInitDeviceFlagsAreValid;
	return gpu >= 0 && gpu < machine()->gpus && sleeps ? cudaSuccess : refuse(cudaErrorInvalidValue);
}

cudaError_t cudaSetDevice(int gpu)
{
	ENTER();
	if (gpu < 0 || gpu >= machine()->gpus)
		return refuse(cudaErrorInvalidDevice);
	current_gpu = gpu;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int gpu)
{
	ENTER();
	(void)gpu;
	*value = attribute == cudaDevAttrComputeCapabilityMajor   ? machine()->major
	         : attribute == cudaDevAttrComputeCapabilityMinor ? machine()->minor
	                                                          : 1;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *address, int length, int gpu)
{
	ENTER();
	snprintf(address, (size_t)length, "0000:E%d:00.0", gpu);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER();
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

/* Memory */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
	ENTER();
	*free_bytes = (size_t)(machine()->free_bytes - now.used[current_gpu]);
	*total_bytes = (size_t)24 << 30;
	return cudaSuccess;
}

/* Its own heap block, poisoned: AddressSanitizer sees what lies beyond it, and NaNs show what was never written. */
cudaError_t cudaMalloc(void **memory, size_t bytes)
{
	ENTER();
	struct allocation *allocation = malloc(sizeof *allocation);
	if (!allocation || (int64_t)bytes > machine()->free_bytes - now.used[current_gpu] ||
	    posix_memalign(&allocation->memory, 256, bytes)) {
		free(allocation);
		return refuse(cudaErrorMemoryAllocation);
	}
	memset(allocation->memory, 0xff, bytes);
	allocation->gpu = current_gpu;
	allocation->bytes = (int64_t)bytes;
	allocation->next = now.allocations;
	now.allocations = allocation;
	now.used[current_gpu] += (int64_t)bytes;
	*memory = allocation->memory;
	return cudaSuccess;
}

/* Frees after a fault too, unlike CUDA, so that leaks are ours. */
cudaError_t cudaFree(void *memory)
{
	for (struct allocation **at = &now.allocations; *at; at = &(*at)->next)
		if ((*at)->memory == memory) {
			struct allocation *gone = *at;
			*at = gone->next;
			now.used[gone->gpu] -= gone->bytes;
			free(gone->memory);
			free(gone);
			return now.ruined;
		}
	return refuse(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
	ENTER();
	int slot = -1;
	for (int i = 0; i < PINNED_MAX; i++) {
		if (now.pinned[i] == memory)
			return refuse(cudaErrorHostMemoryAlreadyRegistered);
		slot = !now.pinned[i] && slot < 0 ? i : slot;
	}
	if (slot < 0 || !bytes || flags != cudaHostRegisterPortable)
		return refuse(cudaErrorInvalidValue);
	int64_t held = (int64_t)bytes;
	for (int i = 0; i < PINNED_MAX; i++)
		held += now.pinned[i] ? now.pinned_bytes[i] : 0;
	if (machine()->pinnable_bytes && held > machine()->pinnable_bytes)
		return refuse(cudaErrorMemoryAllocation);
	now.pinned[slot] = memory;
	now.pinned_bytes[slot] = (int64_t)bytes;
	now.objects++;
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
	for (int i = 0; i < PINNED_MAX; i++)
		if (now.pinned[i] == memory) {
			now.pinned[i] = NULL;
			now.objects--;
			return now.ruined;
		}
	return refuse(cudaErrorHostMemoryNotRegistered);
}

/* Streams and events */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	ENTER();
	(void)priority;
	if (flags != cudaStreamNonBlocking || !(*stream = malloc(sizeof **stream)))
		return refuse(cudaErrorInvalidValue);
	(*stream)->gpu = current_gpu;
	now.objects++;
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	free(stream);
	now.objects--;
	return now.ruined;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	ENTER();
	(void)stream;
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	ENTER();
	(void)event, (void)flags;
	return stream->gpu == current_gpu ? cudaSuccess : refuse(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	ENTER();
	if (flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming) || !(*event = calloc(1, sizeof **event)))
		return refuse(cudaErrorInvalidValue);
	(*event)->gpu = current_gpu;
	(*event)->flags = flags;
	now.objects++;
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	free(event);
	now.objects--;
	return now.ruined;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	ENTER();
	struct timespec time;
	if (event->gpu != stream->gpu)
		return refuse(cudaErrorInvalidResourceHandle);
	clock_gettime(CLOCK_MONOTONIC, &time);
	event->time_ns = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
	event->recorded = 1;
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	ENTER();
	return event->flags & cudaEventBlockingSync ? cudaSuccess : refuse(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	ENTER();
	(void)event;
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
	ENTER();
	if (!from->recorded || !to->recorded || (from->flags | to->flags) & cudaEventDisableTiming)
		return refuse(cudaErrorInvalidResourceHandle);
	*milliseconds = (float)((double)(to->time_ns - from->time_ns) / 1e6);
	return cudaSuccess;
}

/* Copies */

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	ENTER();
	(void)kind;
	if (stream->gpu != current_gpu)
		return refuse(cudaErrorInvalidResourceHandle);
	memcpy(dst, src, bytes);
	return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
	ENTER();
	(void)kind, (void)stream;
	for (size_t i = 0; i < rows; i++)
		memcpy((char *)dst + i * dst_pitch, (const char *)src + i * src_pitch, width);
	return cudaSuccess;
}

cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t rows, cudaStream_t stream)
{
	ENTER();
	(void)stream;
	for (size_t i = 0; i < rows; i++)
		memset((char *)dst + i * pitch, value, width);
	return cudaSuccess;
}
