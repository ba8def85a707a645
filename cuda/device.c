#include "cuda/device.h"

#include "core/alloc.h"
#include "core/arena.h"
#include "core/fault.h"
#include "core/minmax.h"
#include "cuda/launch.h"

#include <ctype.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef RH_CUDA_EMULATED
static const char kind[] = "emu";
#else
static const char kind[] = "cuda";
#endif

enum {
	OLDEST = 80, /* sm_80: bf16 products, asynchronous copies to shared memory */
	OLDEST_OF_FP8 = 89,
	ANCHORS = 3,
	LOADED_LATER_BYTES = 256 << 20, /* kernels and libraries come to the GPU when first used */
	ANCHOR_AGE_NS = 1000 * 1000 * 1000
};

/* CUDA says at some later call that an earlier one failed, and from then on at every call. The first fault is kept with its line, which all
 * later calls return without asking CUDA again: nobody hangs, and nobody reports an after-effect. */
struct cuda_device {
	struct rh_device base;
	int gpu;
	int64_t cap_bytes, reserved_bytes;
	char *memory; /* reserved_bytes, then the workspace of products */
	cudaStream_t stream[RH_STREAMS];
	struct launch launch;
	/* The latest two of `anchors` dropped so far, number i at i % ANCHORS; reached at anchor_ns of CLOCK_MONOTONIC. The next may be on its
	 * way. */
	cudaEvent_t anchor[ANCHORS];
	int64_t anchor_ns[ANCHORS], anchors;
	int anchor_coming;
	struct rh_fault fault; /* events are asked for by other threads too */
};

struct cuda_event {
	struct rh_event base;
	struct cuda_device *device;
	cudaEvent_t event;
	enum rh_event_use use;
	int recorded;
	int64_t anchor; /* number of the latest when it was recorded */
};

static struct cuda_device *own(struct rh_device *device)
{
	return (struct cuda_device *)device;
}

static struct cuda_event *own_event(struct rh_event *event)
{
	return (struct cuda_event *)event;
}

static double mib(int64_t bytes)
{
	return (double)bytes / 0x1p20;
}

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Faults */

static const char *advice(cudaError_t error)
{
	switch (error) {
	case cudaErrorECCUncorrectable:
		return "; the GPU's memory gave a wrong bit: reset the GPU and resume from the last checkpoint";
	case cudaErrorLaunchFailure:
	case cudaErrorIllegalAddress:
	case cudaErrorMisalignedAddress:
		return "; resume from the last checkpoint, and report it if it comes again";
	case cudaErrorMemoryAllocation:
		return "; lower max_vram, which leaves room for the GPU's own libraries, or end what else uses the GPU";
	case cudaErrorDevicesUnavailable:
		return "; another process may have the GPU to itself";
	default:
		return "";
	}
}

/* A fault of this device, with this thread's line; the first is kept. */
static int keep_fault(struct cuda_device *device, int code)
{
	rh_fault_keep(&device->fault, rh_fail_in(code, "device %s:%d", kind, device->gpu));
	return rh_fault_get(&device->fault);
}

static int keep(struct cuda_device *device, cudaError_t error, const char *what)
{
	(void)cudaGetLastError(); /* else this thread's next launch, on whatever GPU, would find it */
	return keep_fault(device, rh_fail(-EIO, "%s: %s%s", what, cudaGetErrorString(error), advice(error)));
}

/* 0, or the fault that `error` is. */
static int done(struct cuda_device *device, cudaError_t error, const char *what)
{
	return error == cudaSuccess ? 0 : keep(device, error, what);
}

/* What every call begins with: the fault kept, or the GPU made the thread's. */
static int begin(struct cuda_device *device)
{
	int rc = rh_fault_get(&device->fault);
	return rc ? rc : done(device, cudaSetDevice(device->gpu), "selecting the GPU");
}

/* Which GPUs there are */

/* A GPU cannot be asked or used. */
static int refused(int gpu, cudaError_t error)
{
	(void)cudaGetLastError();
	return rh_fail(-ENODEV, "device %s:%d: %s%s", kind, gpu, cudaGetErrorString(error), advice(error));
}

const char *rh_cuda_kind(void)
{
	return kind;
}

/* The first call of CUDA's. Streams share queues to the GPU, 8 unless the environment says otherwise: a worker has five, and a copy behind
 * another stream's in one queue would wait for it. */
int rh_cuda_count(void)
{
	int count = 0, driver = 0;
	(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	cudaError_t error = cudaGetDeviceCount(&count);
	if (error == cudaSuccess && count > 0)
		return count;
	(void)cudaGetLastError();
	if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
		return rh_fail(-ENODEV, "device %s: this machine has no NVIDIA driver; install it, or use device cpu", kind);
	if (error == cudaErrorInsufficientDriver)
		return rh_fail(-ENODEV,
		               "device %s: the NVIDIA driver knows CUDA %d.%d, this program needs %d.%d; install a newer driver, or take "
		               "the program made for CUDA 12 (make gpu-bundle)",
		               kind, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
	if (error == cudaSuccess || error == cudaErrorNoDevice)
		return rh_fail(-ENODEV, "device %s: no GPU is visible (CUDA_VISIBLE_DEVICES?); use device cpu", kind);
	return rh_fail(-ENODEV, "device %s: %s%s", kind, cudaGetErrorString(error), advice(error));
}

/* The GPU is there and is of compute capability oldest / 10 or later; `what` asks for it. */
static int check_capability(int gpu, int oldest, const char *what)
{
	int major = 0, minor = 0, count = rh_cuda_count();
	if (count < 0)
		return count;
	if (gpu < 0 || gpu >= count)
		return rh_fail(-EINVAL, "device %s:%d: this machine has %d GPU%s, counted from 0", kind, gpu, count, count == 1 ? "" : "s");
	cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu);
	if (error != cudaSuccess)
		return refused(gpu, error);
	if (major * 10 + minor < oldest)
		return rh_fail(-ENODEV, "device %s:%d: its compute capability is %d.%d, %s", kind, gpu, major, minor, what);
	return 0;
}

static int check_gpu(int gpu)
{
	return check_capability(gpu, OLDEST, "at least 8.0 is needed (Ampere, 2020, or later)");
}

int rh_cuda_check_fp8(int gpu)
{
	return check_capability(gpu, OLDEST_OF_FP8, "fp8 needs at least 8.9 (RTX 40, H100, or later); remove fp8");
}

/* Before anything makes the GPU's context. Whatever waits for the GPU without an event, cudaStreamSynchronize, then sleeps as those that
 * wait for events do, and not at the cost of a core that the optimizer needs; it wakes some 50 us late, once or twice a step. */
static cudaError_t wake(int gpu)
{
	cudaError_t error = cudaInitDevice(gpu, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid);
	if (error != cudaErrorSetOnActiveProcess) /* another worker's, or another library's: awake already */
		return error;
	(void)cudaGetLastError();
	return cudaSuccess;
}

static cudaError_t memory_of(int gpu, int64_t *free_bytes, int64_t *total_bytes)
{
	size_t unused = 0, all = 0;
	cudaError_t error = cudaSetDevice(gpu);
	if (error == cudaSuccess)
		error = cudaMemGetInfo(&unused, &all);
	*free_bytes = (int64_t)unused;
	*total_bytes = (int64_t)all;
	return error;
}

int rh_cuda_room(int gpu, int workers, int64_t *bytes)
{
	RH_ASSERT(workers >= 1);
	int64_t free_bytes, total_bytes;
	int rc = check_gpu(gpu);
	if (rc)
		return rc;
	cudaError_t error = wake(gpu);
	if (error == cudaSuccess)
		error = memory_of(gpu, &free_bytes, &total_bytes);
	if (error != cudaSuccess)
		return refused(gpu, error);
	*bytes = (free_bytes - LOADED_LATER_BYTES) / workers - BLAS_WORKSPACE_BYTES;
	*bytes = *bytes > 0 ? *bytes / RH_ALIGN * RH_ALIGN : 0;
	if (!*bytes)
		return rh_fail(-ENOMEM, "device %s:%d: %.0f of %.0f MiB are free, too little for %d worker%s; end what else uses the GPU",
		               kind, gpu, mib(free_bytes), mib(total_bytes), workers, workers == 1 ? "" : "s");
	return 0;
}

/* Memory */

static void device_memory(struct rh_device *base, struct rh_device_memory *out)
{
	struct cuda_device *device = own(base);
	*out = (struct rh_device_memory){.cap_bytes = device->cap_bytes,
	                                 .reserved_bytes = device->reserved_bytes,
	                                 .peak_bytes = device->reserved_bytes}; /* reserved once: what is reserved is the peak */
	if (!begin(device))
		(void)done(device, memory_of(device->gpu, &out->free_bytes, &out->total_bytes), "asking for free memory");
}

static int device_reserve(struct rh_device *base, int64_t bytes, void **out)
{
	struct cuda_device *device = own(base);
	RH_ASSERT(bytes >= 0 && !device->memory);
	int64_t free_bytes, total_bytes, rounded = rh_align_up(bytes, RH_ALIGN);
	int rc = begin(device);
	if (!rc)
		rc = done(device, memory_of(device->gpu, &free_bytes, &total_bytes), "asking for free memory");
	if (rc)
		return rc;
	if (bytes > device->cap_bytes)
		return rh_fail(-ENOMEM, "device %s:%d: the run needs %.1f MiB, its cap is %.1f MiB: raise max_vram", kind, device->gpu,
		               mib(bytes), mib(device->cap_bytes));
	void *memory = NULL;
	cudaError_t error = cudaErrorMemoryAllocation;
	if (rounded + BLAS_WORKSPACE_BYTES <= free_bytes)
		error = cudaMalloc(&memory, (size_t)(rounded + BLAS_WORKSPACE_BYTES));
	if (error == cudaErrorMemoryAllocation) {
		(void)cudaGetLastError(); /* a refusal is no fault of the device */
		return rh_fail(
		        -ENOMEM,
		        "device %s:%d: the run needs %.1f MiB and %d MiB for products, of %.1f MiB %.1f are free: end what else uses the "
		        "GPU, or lower max_vram",
		        kind, device->gpu, mib(bytes), BLAS_WORKSPACE_BYTES >> 20, mib(total_bytes), mib(free_bytes));
	}
	if (error != cudaSuccess)
		return keep(device, error, "reserving memory");
	device->memory = memory;
	device->reserved_bytes = bytes;
	device->launch.workspace = device->memory + rounded;
	*out = memory;
	return 0;
}

/* A range beyond what is reserved is our own mistake. */
static void check_range(const struct cuda_device *device, const void *address, int64_t bytes)
{
	uintptr_t first = (uintptr_t)device->memory, at = (uintptr_t)address;
	RH_ASSERT(bytes >= 0 && bytes <= device->reserved_bytes && at >= first &&
	          at - first <= (uintptr_t)(device->reserved_bytes - bytes));
}

static void check_view(const struct cuda_device *device, const struct rh_view *view)
{
	RH_ASSERT(view->rows >= 0 && view->cols >= 0 && (view->stride >= view->cols || view->rows <= 1));
	int64_t elements = 0;
	if (view->rows && view->cols)
		RH_ASSERT(!__builtin_mul_overflow(view->rows - 1, view->stride, &elements) &&
		          !__builtin_add_overflow(elements, view->cols, &elements) &&
		          elements < INT64_MAX / rh_dtype_block_bytes(view->dtype));
	check_range(device, view->data, rh_dtype_bytes(view->dtype, elements));
}

/* Another library, or a run beside this one, may hold a page registered: what cannot be pinned is copied all the same, more slowly. */
static int device_pin(struct rh_device *base, void *host, int64_t bytes)
{
	struct cuda_device *device = own(base);
	int rc = begin(device);
	if (rc || !bytes)
		return rc;
	cudaError_t error = cudaHostRegister(host, (size_t)bytes, cudaHostRegisterPortable);
	if (error == cudaSuccess)
		return 0;
	(void)cudaGetLastError();
	return rh_fail(-ENOMEM, "device %s:%d: cannot pin %.1f MiB of host memory: %s", kind, device->gpu, mib(bytes),
	               cudaGetErrorString(error));
}

static void device_unpin(struct rh_device *base, void *host, int64_t bytes)
{
	if (!bytes)
		return;
	(void)cudaSetDevice(own(base)->gpu); /* also after a fault */
	if (cudaHostUnregister(host) != cudaSuccess)
		(void)cudaGetLastError();
}

/* Events */

static int device_event_create(struct rh_device *base, enum rh_event_use use, struct rh_event **out)
{
	/* A host that waits sleeps: the CPU has an optimizer to run. */
	static const unsigned flags[] = {[RH_EVENT_ORDER] = cudaEventDisableTiming,
	                                 [RH_EVENT_HOST] = cudaEventDisableTiming | cudaEventBlockingSync,
	                                 [RH_EVENT_TIMED] = cudaEventBlockingSync};
	struct cuda_device *device = own(base);
	int rc = begin(device);
	if (rc)
		return rc;
	struct cuda_event *event = rh_alloc(1, sizeof *event);
	if (!event)
		return -ENOMEM;
	event->base.ops = base->ops;
	event->device = device;
	event->use = use;
	rc = done(device, cudaEventCreateWithFlags(&event->event, flags[use]), "creating an event");
	if (rc)
		rh_free(event);
	else
		*out = &event->base;
	return rc;
}

static void device_event_destroy(struct rh_event *base)
{
	if (!base)
		return;
	(void)cudaEventDestroy(own_event(base)->event); /* its only error would be the device's, which is known or will be */
	rh_free(base);
}

/* CUDA's times are fp32 milliseconds between two events: exact enough only while the earlier one is young. All streams are idle. */
static int drop_anchor(struct cuda_device *device)
{
	int to = (int)(device->anchors % ANCHORS);
	cudaError_t error = cudaEventRecord(device->anchor[to], device->stream[RH_STREAM_COMPUTE]);
	if (error == cudaSuccess)
		error = cudaEventSynchronize(device->anchor[to]);
	device->anchor_ns[to] = now_ns();
	device->anchors++;
	device->anchor_coming = 0;
	return done(device, error, "reading the GPU's clock");
}

static int anchor_is_old(const struct cuda_device *device)
{
	return now_ns() - device->anchor_ns[(device->anchors - 1) % ANCHORS] > ANCHOR_AGE_NS;
}

/* Where streams are never idle (steps are joined): an anchor among the work, whose time is told by the one before when it is reached. */
static int keep_anchor_young(struct cuda_device *device)
{
	int to = (int)(device->anchors % ANCHORS), from = (int)((device->anchors - 1) % ANCHORS);
	float milliseconds = 0;
	if (!device->anchor_coming) {
		if (!anchor_is_old(device))
			return 0;
		device->anchor_coming = 1;
		return done(device, cudaEventRecord(device->anchor[to], device->stream[RH_STREAM_COMPUTE]), "recording an event");
	}
	cudaError_t error = cudaEventQuery(device->anchor[to]);
	if (error == cudaErrorNotReady) {
		(void)cudaGetLastError();
		return 0;
	}
	if (error == cudaSuccess)
		error = cudaEventElapsedTime(&milliseconds, device->anchor[from], device->anchor[to]);
	device->anchor_ns[to] = device->anchor_ns[from] + (int64_t)((double)milliseconds * 1e6);
	device->anchors++;
	device->anchor_coming = 0;
	return done(device, error, "reading the GPU's clock");
}

static int device_record(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	struct cuda_device *device = own(base);
	RH_ASSERT(own_event(event)->device == device);
	int rc = begin(device);
	if (!rc)
		rc = done(device, cudaEventRecord(own_event(event)->event, device->stream[stream]), "recording an event");
	if (!rc && own_event(event)->use == RH_EVENT_TIMED)
		rc = keep_anchor_young(device);
	own_event(event)->recorded |= !rc;
	own_event(event)->anchor = device->anchors - 1;
	return rc;
}

static int device_wait(struct rh_device *base, enum rh_stream stream, struct rh_event *event)
{
	struct cuda_device *device = own(base), *other = own_event(event)->device;
	RH_ASSERT(event->ops == base->ops);
	int rc = rh_fault_get(&other->fault);
	rc = rc ? rc : begin(device);
	return rc ? rc : done(device, cudaStreamWaitEvent(device->stream[stream], own_event(event)->event, 0), "waiting for an event");
}

static int device_event_sync(struct rh_event *event)
{
	struct cuda_device *device = own_event(event)->device;
	RH_ASSERT(own_event(event)->use != RH_EVENT_ORDER);
	int rc = begin(device);
	return rc ? rc : done(device, cudaEventSynchronize(own_event(event)->event), "waiting for the GPU");
}

static int device_event_query(struct rh_event *event)
{
	struct cuda_device *device = own_event(event)->device;
	RH_ASSERT(own_event(event)->use != RH_EVENT_ORDER);
	int rc = begin(device);
	if (rc)
		return rc;
	cudaError_t error = cudaEventQuery(own_event(event)->event);
	if (error == cudaErrorNotReady) {
		(void)cudaGetLastError(); /* else the next launch would find it */
		return 0;
	}
	rc = done(device, error, "asking for an event");
	return rc ? rc : 1;
}

static int64_t device_event_time_ns(struct rh_event *base)
{
	struct cuda_event *event = own_event(base);
	struct cuda_device *device = event->device;
	float milliseconds = 0;
	RH_ASSERT(event->use == RH_EVENT_TIMED);
	/* by the anchor that it was recorded after, as long as that is kept: its time is then the same whenever it is read */
	int from = (int)(rh_max(event->anchor, device->anchors - 2) % ANCHORS);
	if (!event->recorded || begin(device))
		return 0;
	if (cudaEventElapsedTime(&milliseconds, device->anchor[from], event->event) != cudaSuccess) {
		(void)cudaGetLastError(); /* a number for reports: what is wrong with the GPU, the next command says */
		return 0;
	}
	return device->anchor_ns[from] + (int64_t)((double)milliseconds * 1e6);
}

/* Commands */

static int device_copy_up(struct rh_device *base, enum rh_stream stream, void *device_dst, const void *host_src, int64_t bytes)
{
	struct cuda_device *device = own(base);
	check_range(device, device_dst, bytes);
	int rc = begin(device);
	return rc ? rc
	          : done(device, cudaMemcpyAsync(device_dst, host_src, (size_t)bytes, cudaMemcpyHostToDevice, device->stream[stream]),
	                 "copying to the GPU");
}

static int device_copy_down(struct rh_device *base, enum rh_stream stream, void *host_dst, const void *device_src, int64_t bytes)
{
	struct cuda_device *device = own(base);
	check_range(device, device_src, bytes);
	int rc = begin(device);
	return rc ? rc
	          : done(device, cudaMemcpyAsync(host_dst, device_src, (size_t)bytes, cudaMemcpyDeviceToHost, device->stream[stream]),
	                 "copying from the GPU");
}

static int device_launch(struct rh_device *base, enum rh_stream stream, const struct rh_op *op)
{
	struct cuda_device *device = own(base);
	RH_ASSERT(rh_op_fault(op) == NULL);
	int wants_room = op->kind == RH_OP_GEMM || op->kind == RH_OP_SCALED_GEMM || op->kind == RH_OP_HEAD_LOSS ||
	                 op->kind == RH_OP_RMSNORM_BACKWARD;
	RH_ASSERT(stream == RH_STREAM_COMPUTE || !wants_room); /* one workspace */
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (op->operand[i].data)
			check_view(device, &op->operand[i]);
	int rc = begin(device);
	if (rc)
		return rc;
	struct launch launch = device->launch;
	launch.stream = device->stream[stream];
	const char *name = rh_op_info(op->kind)->name;
	rc = launch_op(&launch, op);
	cudaError_t error = cudaPeekAtLastError(); /* an earlier launch's, perhaps: it says more than what failed because of it */
	if (error != cudaSuccess)
		return keep(device, error, name);
	if (!rc)
		return 0;
	return keep_fault(device, rh_fail_in(rc, "%s", name));
}

static int device_synchronize(struct rh_device *base)
{
	struct cuda_device *device = own(base);
	int rc = begin(device);
	for (int i = 0; !rc && i < RH_STREAMS; i++)
		rc = done(device, cudaStreamSynchronize(device->stream[i]), "waiting for the GPU");
	if (!rc && anchor_is_old(device))
		rc = drop_anchor(device);
	return rc;
}

/* Opening */

static void device_close(struct rh_device *base)
{
	if (!base)
		return;
	struct cuda_device *device = own(base);
	(void)cudaSetDevice(device->gpu); /* after a fault everything below fails at once: the process's end frees what is left */
	for (int i = 0; i < RH_STREAMS; i++)
		if (device->stream[i])
			(void)cudaStreamSynchronize(device->stream[i]);
	blas_destroy(device->launch.blas);
	for (int i = 0; i < RH_STREAMS; i++)
		if (device->stream[i])
			(void)cudaStreamDestroy(device->stream[i]);
	for (int i = 0; i < ANCHORS; i++)
		if (device->anchor[i])
			(void)cudaEventDestroy(device->anchor[i]);
	if (device->memory)
		(void)cudaFree(device->memory);
	(void)cudaGetLastError(); /* no business of the device that this thread uses next */
	rh_free(device);
}

static const struct rh_device_ops cuda_ops = {
        .kind = kind,
        RH_DEVICE_OPS_REQUIRED,
        .pin = device_pin,
        .unpin = device_unpin,
};

/* Kernels of what others wait for come before bulk's; numerically lower is more urgent. Copies are not ordered by it: what keeps an
 * activation from waiting behind bulk is that bulk goes in pieces, few at a time (run/bulk.c). */
static int open_streams(struct cuda_device *device)
{
	int least = 0, greatest = 0;
	int rc = done(device, cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
	for (int i = 0; !rc && i < RH_STREAMS; i++) {
		int bulk = i == RH_STREAM_WEIGHTS || i == RH_STREAM_GRADIENTS;
		rc = done(device, cudaStreamCreateWithPriority(&device->stream[i], cudaStreamNonBlocking, bulk ? least : greatest),
		          "creating a stream");
	}
	return rc;
}

/* As /sys writes it. */
static cudaError_t address_of(int gpu, char address[16])
{
	cudaError_t error = cudaDeviceGetPCIBusId(address, 16, gpu);
	for (char *at = address; error == cudaSuccess && *at; at++)
		*at = (char)tolower((unsigned char)*at);
	return error;
}

struct rh_device_grain rh_cuda_grain(void)
{
	return rh_device_gpu_grain();
}

int rh_cuda_open(int index, const struct rh_cuda_options *options, struct rh_device **out)
{
	RH_ASSERT(options->cap_bytes >= 0);
	int rc = check_gpu(options->gpu);
	if (rc)
		return rc;
	struct cuda_device *device = rh_alloc(1, sizeof *device);
	if (!device)
		return -ENOMEM;
	device->base.ops = &cuda_ops;
	device->base.index = index;
	device->gpu = options->gpu;
	device->cap_bytes = options->cap_bytes;
	rc = done(device, wake(device->gpu), "waking the GPU");
	if (!rc)
		rc = begin(device);
	if (!rc)
		rc = done(device, address_of(device->gpu, device->base.address), "asking for its address");
	if (!rc && !device->cap_bytes)
		rc = rh_cuda_room(device->gpu, 1, &device->cap_bytes);
	if (!rc)
		rc = open_streams(device);
	for (int i = 0; !rc && i < ANCHORS; i++)
		rc = done(device, cudaEventCreateWithFlags(&device->anchor[i], cudaEventBlockingSync), "creating an event");
	if (!rc)
		rc = drop_anchor(device);
	if (!rc) {
		rc = blas_create(&device->launch.blas);
		if (rc)
			rc = rh_fail_in(rc, "device %s:%d", kind, device->gpu);
	}
	if (rc)
		device_close(&device->base);
	else
		*out = &device->base;
	return rc;
}

/* For reports */

void *rh_cuda_stream(const struct rh_device *device, enum rh_stream stream)
{
	return ((const struct cuda_device *)device)->stream[stream];
}

int64_t rh_cuda_searches(const struct rh_device *device)
{
	return blas_searches(((const struct cuda_device *)device)->launch.blas);
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
		error = address_of(gpu, out->address);
	return error == cudaSuccess ? 0 : refused(gpu, error);
}
