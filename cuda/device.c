/* The CUDA device: memory, commands, opening and closing. */
#include "cuda/device.h"

#include "core/alloc.h"
#include "core/arena.h"
#include "cuda/device_internal.h"

static const char kind[] = CUDA_KIND;

static double mib(int64_t bytes)
{
	return (double)bytes / 0x1p20;
}

/* Faults */

int cuda_keep_fault(struct cuda_device *device, int code)
{
	rh_fault_keep(&device->fault, rh_fail_in(code, "device %s:%d", kind, device->gpu));
	return rh_fault_get(&device->fault);
}

static int keep(struct cuda_device *device, cudaError_t error, const char *doing)
{
	(void)cudaGetLastError(); /* else this thread's next launch, on whatever GPU, would find it */
	return cuda_keep_fault(device, rh_fail(-EIO, "%s: %s%s", doing, cudaGetErrorString(error), cuda_advice(error)));
}

int cuda_check(struct cuda_device *device, cudaError_t error, const char *doing)
{
	return error == cudaSuccess ? 0 : keep(device, error, doing);
}

int cuda_enter(struct cuda_device *device)
{
	int rc = rh_fault_get(&device->fault);
	return rc ? rc : cuda_check(device, cudaSetDevice(device->gpu), "selecting the GPU");
}

/* Memory */

static void device_memory(struct rh_device *base, struct rh_device_memory *out)
{
	struct cuda_device *device = cuda_device_of(base);
	*out = (struct rh_device_memory){.cap_bytes = device->cap_bytes,
	                                 .reserved_bytes = device->reserved_bytes,
	                                 .peak_bytes = device->reserved_bytes}; /* reserved once: what is reserved is the peak */
	if (!cuda_enter(device))
		(void)cuda_check(device, cuda_memory_of(device->gpu, &out->free_bytes, &out->total_bytes), "asking for free memory");
}

static int device_reserve(struct rh_device *base, int64_t bytes, void **out)
{
	struct cuda_device *device = cuda_device_of(base);
	RH_ASSERT(bytes >= 0 && !device->memory);
	int64_t free_bytes, total_bytes, rounded = rh_align_up(bytes, RH_ALIGN);
	int rc = cuda_enter(device);
	if (!rc)
		rc = cuda_check(device, cuda_memory_of(device->gpu, &free_bytes, &total_bytes), "asking for free memory");
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
	return cuda_probe_memory(device);
}

/* A range outside what is reserved is our own mistake. */
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

/* -ENOMEM where another library, or another run, holds a page registered. Memory that is not pinned is copied too, more slowly. */
static int device_pin(struct rh_device *base, void *host, int64_t bytes)
{
	struct cuda_device *device = cuda_device_of(base);
	int rc = cuda_enter(device);
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
	(void)cudaSetDevice(cuda_device_of(base)->gpu); /* also after a fault */
	if (cudaHostUnregister(host) != cudaSuccess)
		(void)cudaGetLastError();
}

/* Commands */

static int device_copy_up(struct rh_device *base, enum rh_stream stream, void *device_dst, const void *host_src, int64_t bytes)
{
	struct cuda_device *device = cuda_device_of(base);
	check_range(device, device_dst, bytes);
	int rc = rh_fault_get(&device->fault);
	return rc ? rc : cuda_queue_copy(device, 1, stream, device_dst, host_src, bytes);
}

static int device_copy_down(struct rh_device *base, enum rh_stream stream, void *host_dst, const void *device_src, int64_t bytes)
{
	struct cuda_device *device = cuda_device_of(base);
	check_range(device, device_src, bytes);
	int rc = rh_fault_get(&device->fault);
	return rc ? rc : cuda_queue_copy(device, 0, stream, host_dst, device_src, bytes);
}

static int may_use_workspace(const struct rh_op *op)
{
	int uses_products = op->kind == RH_OP_GEMM || op->kind == RH_OP_SCALED_GEMM || op->kind == RH_OP_HEAD_LOSS ||
	                    (op->kind >= RH_OP_LORA_LOW && op->kind <= RH_OP_LORA_B_GRADIENT); /* whose parts are products */
	return uses_products || op->kind == RH_OP_RMSNORM_BACKWARD || op->kind == RH_OP_QK_ROPE_BACKWARD;
}

static int device_launch(struct rh_device *base, enum rh_stream stream, const struct rh_op *op)
{
	struct cuda_device *device = cuda_device_of(base);
	RH_ASSERT(rh_op_fault(op) == NULL);
	RH_ASSERT(stream == RH_STREAM_COMPUTE || !may_use_workspace(op)); /* there is one */
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (op->operand[i].data)
			check_view(device, &op->operand[i]);
	int rc = rh_fault_get(&device->fault);
	return rc ? rc : cuda_queue_launch(device, stream, op);
}

static int device_synchronize(struct rh_device *base)
{
	struct cuda_device *device = cuda_device_of(base);
	rh_worker_drain(device->worker);
	int rc = cuda_enter(device);
	for (int i = 0; !rc && i < RH_STREAMS; i++)
		rc = cuda_check(device, cudaStreamSynchronize(device->stream[i]), "waiting for the GPU");
	return rc ? rc : cuda_clock_idle(device);
}

/* Opening */

static void device_close(struct rh_device *base)
{
	if (!base)
		return;
	struct cuda_device *device = cuda_device_of(base);
	rh_worker_close(device->worker);
	(void)cudaSetDevice(device->gpu); /* after a fault everything below fails at once: the end of the process frees the rest */
	for (int i = 0; i < RH_STREAMS; i++)
		if (device->stream[i])
			(void)cudaStreamSynchronize(device->stream[i]);
	blas_destroy(device->launch.blas);
	for (int i = 0; i < RH_STREAMS; i++)
		if (device->stream[i])
			(void)cudaStreamDestroy(device->stream[i]);
	cuda_clock_stop(device);
	if (device->memory)
		(void)cudaFree(device->memory);
	(void)cudaGetLastError(); /* else the device that this thread uses next would find it */
	rh_free(device);
}

static const struct rh_device_ops cuda_ops = {
        .kind = kind,
        RH_DEVICE_OPS_REQUIRED,
        .pin = device_pin,
        .unpin = device_unpin,
};

/* Kernels on the critical path run before those of bulk transfers; numerically lower is more urgent. Priorities do not order copies: an
 * activation never waits long behind bulk because bulk is copied in pieces, few at a time. */
static int open_streams(struct cuda_device *device)
{
	int least = 0, greatest = 0;
	int rc = cuda_check(device, cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
	for (int i = 0; !rc && i < RH_STREAMS; i++) {
		int is_bulk = i == RH_STREAM_WEIGHTS || i == RH_STREAM_GRADIENTS;
		rc = cuda_check(device, cudaStreamCreateWithPriority(&device->stream[i], cudaStreamNonBlocking, is_bulk ? least : greatest),
		                "creating a stream");
	}
	return rc;
}

const char *rh_cuda_kind(void)
{
	return kind;
}

struct rh_device_grain rh_cuda_grain(void)
{
	return rh_device_gpu_grain();
}

static int open_device(struct cuda_device *device)
{
	int rc = cuda_check(device, cuda_wake(device->gpu), "waking the GPU");
	if (rc)
		return rc;
	rc = cuda_enter(device);
	if (rc)
		return rc;
	rc = cuda_check(device, cuda_address_of(device->gpu, device->base.address), "asking for its address");
	if (!rc && !device->cap_bytes)
		rc = rh_cuda_room(device->gpu, 1, &device->cap_bytes);
	if (rc)
		return rc;
	rc = open_streams(device);
	if (rc)
		return rc;
	rc = cuda_clock_start(device);
	if (rc)
		return rc;
	rc = cuda_load_kernels(device);
	if (rc)
		return rc;
	rc = blas_create(&device->launch.blas);
	return rc ? rh_fail_in(rc, "device %s:%d", kind, device->gpu) : cuda_queue_open(device);
}

int rh_cuda_open(int index, const struct rh_cuda_options *options, struct rh_device **out)
{
	RH_ASSERT(options->cap_bytes >= 0);
	int rc = cuda_check_gpu(options->gpu);
	if (rc)
		return rc;
	struct cuda_device *device = rh_alloc(1, sizeof *device);
	if (!device)
		return -ENOMEM;
	device->base.ops = &cuda_ops;
	device->base.index = index;
	device->gpu = options->gpu;
	device->cap_bytes = options->cap_bytes;
	rc = open_device(device);
	if (rc)
		device_close(&device->base);
	else
		*out = &device->base;
	return rc;
}

/* For reports */

void *rh_cuda_stream(const struct rh_device *device, enum rh_stream stream)
{
	rh_worker_drain(((const struct cuda_device *)device)->worker); /* what comes next on the stream comes after what was enqueued */
	return ((const struct cuda_device *)device)->stream[stream];
}

int64_t rh_cuda_choice_misses(const struct rh_device *device)
{
	rh_worker_drain(((const struct cuda_device *)device)->worker);
	return blas_misses(((const struct cuda_device *)device)->launch.blas);
}

int64_t rh_cuda_evictions(const struct rh_device *device)
{
	return blas_evictions(((const struct cuda_device *)device)->launch.blas);
}
