#include "runtime_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GPUS_MAX = 64, PINNED_MAX = 256 };

struct allocation {
	struct allocation *next;
	int gpu;
	int64_t bytes;
	void *memory;
};

static const struct runtime_machine usual = {GPUS_MAX, 13000, 8, 9, (int64_t)24 << 30, 0, 0};

/* Each GPU's worker enqueues on it; other threads ask and wait for events. */
static pthread_mutex_t entering = PTHREAD_MUTEX_INITIALIZER; /* of calls, fail_at and ruined */
static _Thread_local cudaError_t last;                       /* as CUDA has it */
static _Thread_local int current_gpu;                        /* likewise */
static struct {
	struct runtime_machine machine;
	struct runtime_pace pace;
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

void runtime_set_pace(struct runtime_pace wanted)
{
	now.pace = wanted;
}

void runtime_let_pass(int64_t ns)
{
	if (ns)
		(void)nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

int64_t runtime_fill_ns(size_t bytes)
{
	if (!now.pace.memory_mb_s || now.pace.slow_fills <= 0)
		return 0;
	now.pace.slow_fills--;
	return (int64_t)bytes * 10 * 1000 / now.pace.memory_mb_s;
}

/* The environment tells the program on emulated GPUs (make emu) what they are like. RH_EMU_MACHINE: "gpus driver major minor free-MiB";
 * RH_EMU_FAIL: "n prefix error", the arguments of runtime_fail_nth; RH_EMU_MEMORY: "MB/s slow-fills", members of struct runtime_pace. */
__attribute__((constructor)) static void read_environment(void)
{
	const char *machine_text = getenv("RH_EMU_MACHINE"), *fault_text = getenv("RH_EMU_FAIL"), *memory_text = getenv("RH_EMU_MEMORY");
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
	if (memory_text)
		(void)sscanf(memory_text, "%d %d", &now.pace.memory_mb_s, &now.pace.slow_fills);
	if (fault_text && sscanf(fault_text, "%llu %31s %d", &n, prefix, &error) == 3)
		(void)runtime_fail_nth(n, prefix, (cudaError_t)error);
}

uint64_t runtime_fail_nth(uint64_t n, const char *prefix, cudaError_t error)
{
	pthread_mutex_lock(&entering);
	uint64_t calls = now.calls;
	now.calls = 0;
	now.fail_at = n;
	now.error = error;
	last = now.ruined = cudaSuccess;
	snprintf(now.prefix, sizeof now.prefix, "%s", prefix);
	pthread_mutex_unlock(&entering);
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
	       error == cudaErrorMisalignedAddress || error == cudaErrorLaunchTimeout;
}

cudaError_t runtime_enter(const char *name)
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

int cudaemu_is_refused(void)
{
	return runtime_enter("cudaLaunchKernel") != cudaSuccess;
}

cudaError_t runtime_refuse(cudaError_t error)
{
	return last = error;
}

cudaError_t runtime_ruined(void)
{
	pthread_mutex_lock(&entering);
	cudaError_t error = now.ruined;
	pthread_mutex_unlock(&entering);
	return error;
}

int runtime_current_gpu(void)
{
	return current_gpu;
}

void runtime_count_object(int more)
{
	pthread_mutex_lock(&entering);
	now.objects += more;
	pthread_mutex_unlock(&entering);
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
	case cudaErrorLaunchTimeout:
		return "the launch timed out and was terminated";
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
	return gpu >= 0 && gpu < machine()->gpus && sleeps ? cudaSuccess : runtime_refuse(cudaErrorInvalidValue);
}

cudaError_t cudaSetDevice(int gpu)
{
	ENTER();
	if (gpu < 0 || gpu >= machine()->gpus)
		return runtime_refuse(cudaErrorInvalidDevice);
	current_gpu = gpu;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int gpu)
{
	ENTER();
	*value = attribute == cudaDevAttrComputeCapabilityMajor   ? machine()->major
	         : attribute == cudaDevAttrComputeCapabilityMinor ? machine()->minor
	         : attribute == cudaDevAttrKernelExecTimeout      ? now.pace.drives_display
	         : attribute == cudaDevAttrMemoryClockRate        ? now.pace.memory_mb_s * 500
	         : attribute == cudaDevAttrGlobalMemoryBusWidth   ? 8
	                                                          : 1 + (gpu && gpu == machine()->larger);
	return cudaSuccess;
}

/* A kernel is there once somebody asked for it: here, all are. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
	ENTER();
	if (!kernel)
		return runtime_refuse(cudaErrorInvalidDeviceFunction);
	attributes->binaryVersion = machine()->major * 10 + machine()->minor;
	runtime_let_pass(now.pace.load_ns);
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
		return runtime_refuse(cudaErrorMemoryAllocation);
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
			runtime_drain(gone->gpu);
			*at = gone->next;
			now.used[gone->gpu] -= gone->bytes;
			free(gone->memory);
			free(gone);
			return now.ruined;
		}
	return runtime_refuse(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
	ENTER();
	int slot = -1;
	if (runtime_pinned(memory, bytes) != RUNTIME_PAGEABLE)
		return runtime_refuse(cudaErrorHostMemoryAlreadyRegistered);
	for (int i = 0; i < PINNED_MAX; i++)
		slot = !now.pinned[i] && slot < 0 ? i : slot;
	if (slot < 0 || !bytes || flags != cudaHostRegisterPortable)
		return runtime_refuse(cudaErrorInvalidValue);
	int64_t held = (int64_t)bytes;
	for (int i = 0; i < PINNED_MAX; i++)
		held += now.pinned[i] ? now.pinned_bytes[i] : 0;
	if (machine()->pinnable_bytes && held > machine()->pinnable_bytes)
		return runtime_refuse(cudaErrorMemoryAllocation);
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
	return runtime_refuse(cudaErrorHostMemoryNotRegistered);
}

enum runtime_pinned runtime_pinned(const void *memory, size_t bytes)
{
	const char *at = memory;
	enum runtime_pinned found = RUNTIME_PAGEABLE;
	for (int i = 0; i < PINNED_MAX; i++) {
		const char *from = now.pinned[i];
		if (from && at >= from && at + bytes <= from + now.pinned_bytes[i])
			return RUNTIME_PINNED;
		if (from && at < from + now.pinned_bytes[i] && at + bytes > from)
			found = RUNTIME_PINNED_IN_PART;
	}
	return found;
}
