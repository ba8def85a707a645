/* A piece of a message that is sent is copied up, then sent; of one that is received it is received, then copied down:
 *
 *   OPENS --is_open: the other end has opened, too--> IDLE
 *   IDLE --begin, a sender--> COPIES_UP --test--> ENTERS --test: NCCL has it on the stream--> ON_STREAM --test--> the next piece, or IDLE
 *   IDLE --begin, a receiver--> ENTERS, and on as above, with the copy down behind it on the stream */
#include "cuda/nccl.h"

#include "core/alloc.h"
#include "core/hooks.h"
#include "core/minmax.h"
#include "cuda/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 4 << 20 };

static struct library {
	pthread_mutex_t lock;
	void *handle; /* protected by lock; for as long as the process runs */
#define FIELD(name) __typeof__(&name) name;
	NCCL_ENTRIES(FIELD)
#undef FIELD
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct rh_nccl_wire {
	int gpu, is_receiver;
	ncclComm_t comm;
	cudaStream_t stream;
	cudaEvent_t event;
	char *piece; /* PIECE_BYTES on the GPU */
	/* the message that is on its way */
	char *bytes;
	int64_t size, transferred;
	enum { OPENS, IDLE, COPIES_UP, ENTERS, ON_STREAM } state;
};

/* The lock is held. */
static int load(void)
{
	const char *named = getenv(RH_HOOK_NCCL), *missing = NULL;
	void *handle = dlopen(named ? named : NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL), *entry;
	if (!handle)
		return rh_fail(-ENOENT, "link_transport: nccl: %s; install libnccl2, or write tcp", dlerror());
#define LOAD(name)                                                                                                                         \
	entry = dlsym(handle, #name);                                                                                                      \
	memcpy(&library.name, &entry, sizeof entry);                                                                                       \
	if (!entry)                                                                                                                        \
		missing = #name;
	NCCL_ENTRIES(LOAD)
#undef LOAD
	if (missing)
		return rh_fail(-ENOENT, "link_transport: nccl: " NCCL_LIBRARY " has no %s; install a newer libnccl2", missing);
	library.handle = handle;
	return 0;
}

static int load_once(void)
{
	pthread_mutex_lock(&library.lock);
	int rc = library.handle ? 0 : load();
	pthread_mutex_unlock(&library.lock);
	return rc;
}

static int nccl_rc(ncclResult_t result, const char *what)
{
	if (result == ncclSuccess || result == ncclInProgress)
		return 0;
	return rh_fail(-EIO, "NCCL: %s: %s", what, library.ncclGetErrorString(result));
}

static int cuda_rc(cudaError_t error, const char *what)
{
	return error == cudaSuccess ? 0 : rh_fail(-EIO, "NCCL: %s: %s", what, cudaGetErrorString(error));
}

int rh_nccl_make_id(char id[RH_NCCL_ID])
{
	ncclUniqueId made;
	_Static_assert(sizeof made == RH_NCCL_ID, "an id has its room");
	int rc = load_once();
	if (rc)
		return rc;
	rc = nccl_rc(library.ncclGetUniqueId(&made), "a new id");
	if (!rc)
		memcpy(id, &made, sizeof made);
	return rc;
}

static int open_wire(struct rh_nccl_wire *wire, const char id[RH_NCCL_ID])
{
	ncclUniqueId same;
	int least, greatest;
	memcpy(&same, id, sizeof same);
	int rc = load_once();
	if (rc)
		return rc;
	cudaError_t error = cudaSetDevice(wire->gpu);
	if (error == cudaSuccess)
		error = cudaMalloc((void **)&wire->piece, PIECE_BYTES);
	if (error == cudaSuccess)
		error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
	if (error == cudaSuccess)
		error = cudaStreamCreateWithPriority(&wire->stream, cudaStreamNonBlocking, greatest);
	if (error == cudaSuccess)
		error = cudaEventCreateWithFlags(&wire->event, cudaEventDisableTiming);
	if (error != cudaSuccess)
		return cuda_rc(error, "the GPU's part of a link");
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	config.blocking = 0; /* a peer that ends meanwhile is no reason to wait for ever */
	return nccl_rc(library.ncclCommInitRankConfig(&wire->comm, 2, same, wire->is_receiver, &config), "the other box's GPU");
}

int rh_nccl_open(const char id[RH_NCCL_ID], int is_receiver, int gpu, struct rh_nccl_wire **out)
{
	struct rh_nccl_wire *wire = rh_alloc(1, sizeof *wire);
	*out = NULL;
	if (!wire)
		return -ENOMEM;
	*wire = (struct rh_nccl_wire){.gpu = gpu, .is_receiver = is_receiver};
	int rc = open_wire(wire, id);
	if (rc)
		rh_nccl_close(wire);
	else
		*out = wire;
	return rc;
}

/* Ends NCCL's part of a message in flight by force. */
void rh_nccl_close(struct rh_nccl_wire *wire)
{
	if (!wire)
		return;
	(void)cudaSetDevice(wire->gpu);
	if (wire->comm)
		(void)(wire->state == IDLE ? library.ncclCommDestroy(wire->comm) : library.ncclCommAbort(wire->comm));
	if (wire->stream)
		(void)cudaStreamSynchronize(wire->stream);
	if (wire->event)
		(void)cudaEventDestroy(wire->event);
	if (wire->stream)
		(void)cudaStreamDestroy(wire->stream);
	if (wire->piece)
		(void)cudaFree(wire->piece);
	rh_free(wire);
}

/* *result: the operation that NCCL has begun is finished (ncclSuccess) or not (ncclInProgress). Returns a fault. */
static int ask_nccl(struct rh_nccl_wire *wire, ncclResult_t *result)
{
	int rc = cuda_rc(cudaSetDevice(wire->gpu), "the GPU");
	if (!rc)
		rc = nccl_rc(library.ncclCommGetAsyncError(wire->comm, result), "the connection");
	return rc ? rc : nccl_rc(*result, "the connection");
}

int rh_nccl_is_open(struct rh_nccl_wire *wire)
{
	ncclResult_t result;
	if (wire->state != OPENS)
		return 1;
	int rc = ask_nccl(wire, &result);
	if (rc || result == ncclInProgress)
		return rc;
	wire->state = IDLE;
	return 1;
}

static size_t piece_of(const struct rh_nccl_wire *wire)
{
	return (size_t)rh_min(wire->size - wire->transferred, PIECE_BYTES);
}

static int call_nccl(struct rh_nccl_wire *wire)
{
	size_t bytes = piece_of(wire);
	wire->state = ENTERS;
	return nccl_rc(wire->is_receiver ? library.ncclRecv(wire->piece, bytes, ncclInt8, 0, wire->comm, wire->stream)
	                                 : library.ncclSend(wire->piece, bytes, ncclInt8, 1, wire->comm, wire->stream),
	               "a message");
}

/* A message may lie across registrations of host memory (offload/pin.h), and CUDA refuses a copy that leaves one: what it refuses is
 * halved. */
static cudaError_t copy(const struct rh_nccl_wire *wire, char *to, const char *from, size_t bytes, enum cudaMemcpyKind kind)
{
	size_t half = bytes / 2;
	cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, wire->stream);
	if (error != cudaErrorInvalidValue || !half)
		return error;
	(void)cudaGetLastError();
	error = copy(wire, to, from, half, kind);
	return error == cudaSuccess ? copy(wire, to + half, from + half, bytes - half, kind) : error;
}

static int begin_piece(struct rh_nccl_wire *wire)
{
	if (wire->is_receiver)
		return call_nccl(wire);
	wire->state = COPIES_UP;
	cudaError_t error = copy(wire, wire->piece, wire->bytes + wire->transferred, piece_of(wire), cudaMemcpyHostToDevice);
	if (error == cudaSuccess)
		error = cudaEventRecord(wire->event, wire->stream);
	return cuda_rc(error, "a copy");
}

int rh_nccl_begin(struct rh_nccl_wire *wire, void *bytes, int64_t size)
{
	RH_ASSERT(wire->state == IDLE && size > 0);
	wire->bytes = bytes;
	wire->size = size;
	wire->transferred = 0;
	int rc = cuda_rc(cudaSetDevice(wire->gpu), "the GPU");
	return rc ? rc : begin_piece(wire);
}

/* NCCL has the piece on the stream: what follows it is enqueued. */
static int end_piece(struct rh_nccl_wire *wire)
{
	cudaError_t error = cudaSuccess;
	wire->state = ON_STREAM;
	if (wire->is_receiver)
		error = copy(wire, wire->bytes + wire->transferred, wire->piece, piece_of(wire), cudaMemcpyDeviceToHost);
	if (error == cudaSuccess)
		error = cudaEventRecord(wire->event, wire->stream);
	return cuda_rc(error, "a copy");
}

int rh_nccl_test(struct rh_nccl_wire *wire)
{
	RH_ASSERT(wire->state != IDLE && wire->state != OPENS);
	ncclResult_t result;
	int rc = ask_nccl(wire, &result);
	if (rc)
		return rc;
	if (wire->state == ENTERS)
		return result == ncclInProgress ? 0 : end_piece(wire);
	cudaError_t error = cudaEventQuery(wire->event);
	if (error != cudaSuccess)
		return error == cudaErrorNotReady ? 0 : cuda_rc(error, "a message");
	if (wire->state == COPIES_UP)
		return call_nccl(wire);
	wire->transferred += (int64_t)piece_of(wire);
	if (wire->transferred < wire->size)
		return begin_piece(wire);
	wire->state = IDLE;
	return 1;
}
