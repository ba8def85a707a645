/* The part of NCCL that cuda/nccl.c calls, between two ranks of this machine, whatever their processes: each communicator has a socket.
 * As with real communicators that do not block, calls return at once, and ncclCommGetAsyncError says when the stream has their work. Device
 * memory of the emulation is memory. */
#include "cuda/nccl_library.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct ncclComm {
	_Atomic int descriptor; /* while it meets the other: that listens, or connects */
	char name[sizeof(ncclUniqueId)];
	pthread_t thread;
	char *bytes;
	size_t count;
	int is_send, is_busy;
	_Atomic int is_over, failed, ends;
};

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	unsigned long drawn[2];
	if (getrandom(drawn, sizeof drawn, 0) != sizeof drawn)
		return (ncclResult_t)2;
	memset(id, 0, sizeof *id);
	snprintf(id->internal, 64, "rh-nccl-stand-in-%lx%lx", drawn[0], drawn[1]);
	return ncclSuccess;
}

/* The first of the two listens, the other connects. */
static void *meet(void *context)
{
	struct ncclComm *comm = context;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t length = (socklen_t)(sizeof address.sun_family + 1 + strlen(comm->name));
	memcpy(address.sun_path + 1, comm->name, strlen(comm->name));
	int peer = -1, descriptor = comm->descriptor;
	if (!bind(descriptor, (struct sockaddr *)&address, length)) {
		peer = listen(descriptor, 1) ? -1 : accept(descriptor, NULL, NULL);
		comm->descriptor = peer;
		close(descriptor);
	} else {
		for (int i = 0; peer < 0 && i < 5000 && !comm->ends; i++, usleep(1000))
			peer = connect(descriptor, (struct sockaddr *)&address, length);
	}
	comm->failed = peer < 0;
	comm->is_over = 1;
	return NULL;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	if (ranks != 2 || rank < 0 || rank > 1 || config->blocking || !(*comm = calloc(1, sizeof **comm)))
		return (ncclResult_t)4;
	snprintf((*comm)->name, sizeof(*comm)->name, "%s", id.internal);
	(*comm)->descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
	(*comm)->is_busy = 1;
	return pthread_create(&(*comm)->thread, NULL, meet, *comm) ? (ncclResult_t)2 : ncclInProgress;
}

static void *work(void *context)
{
	struct ncclComm *comm = context;
	for (size_t at = 0; at < comm->count;) {
		ssize_t moved = comm->is_send ? send(comm->descriptor, comm->bytes + at, comm->count - at, MSG_NOSIGNAL)
		                              : recv(comm->descriptor, comm->bytes + at, comm->count - at, 0);
		if (moved <= 0) {
			comm->failed = 1;
			break;
		}
		at += (size_t)moved;
	}
	comm->is_over = 1;
	return NULL;
}

static ncclResult_t begin(struct ncclComm *comm, void *bytes, size_t count, int is_send)
{
	if (comm->is_busy)
		return (ncclResult_t)5;
	comm->bytes = bytes;
	comm->count = count;
	comm->is_send = is_send;
	comm->is_busy = 1;
	comm->is_over = 0;
	return pthread_create(&comm->thread, NULL, work, comm) ? (ncclResult_t)2 : ncclInProgress;
}

/* For a test that wants to know whether anything was sent: a byte for each. */
static void count_send(void)
{
	const char *path = getenv("NCCL_STAND_IN_SENDS");
	FILE *file = path ? fopen(path, "a") : NULL;
	if (file) {
		fputc('.', file);
		fclose(file);
	}
}

ncclResult_t ncclSend(const void *bytes, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
	(void)stream;
	count_send();
	return type != ncclInt8 || peer != 1 ? (ncclResult_t)4 : begin(comm, (void *)(size_t)bytes, count, 1);
}

ncclResult_t ncclRecv(void *bytes, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
	(void)stream;
	return type != ncclInt8 || peer != 0 ? (ncclResult_t)4 : begin(comm, bytes, count, 0);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	*error = ncclSuccess;
	if (comm->is_busy && comm->is_over) {
		pthread_join(comm->thread, NULL);
		comm->is_busy = 0;
	}
	if (comm->is_busy)
		*error = ncclInProgress;
	else if (comm->failed)
		*error = (ncclResult_t)6;
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	comm->ends = 1;
	shutdown(comm->descriptor, SHUT_RDWR);
	if (comm->is_busy)
		pthread_join(comm->thread, NULL);
	close(comm->descriptor);
	free(comm);
	return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	return ncclCommAbort(comm);
}

const char *ncclGetErrorString(ncclResult_t result)
{
	return (int)result == 6 ? "remote process exited or there was a network error" : "a fault of the stand-in";
}
