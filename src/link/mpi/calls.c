/* MPI's calls as the table of link/mpi_calls.h, compiled with mpicc into roundhouse-mpi.so. */
#include "link/mpi_calls.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(struct rh_mpi_request), "MPI's handles have room");

extern const struct rh_mpi_calls rh_mpi_calls;

static int fail(int code, char error[RH_MPI_LINE])
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int length;
	if (code == MPI_SUCCESS)
		return 0;
	MPI_Error_string(code, text, &length);
	snprintf(error, RH_MPI_LINE, "MPI: %.400s", text);
	return -1;
}

static void finalize(void)
{
	int is_over = 0;
	MPI_Finalized(&is_over);
	if (!is_over)
		MPI_Finalize();
}

static int start(int *rank, int *ranks, char error[RH_MPI_LINE])
{
	int has = 0, rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &has);
	if (rc == MPI_SUCCESS && has < MPI_THREAD_SERIALIZED) {
		snprintf(error, RH_MPI_LINE, "this MPI cannot be called from a thread: it needs MPI_THREAD_SERIALIZED");
		return -1;
	}
	if (rc == MPI_SUCCESS && atexit(finalize)) {
		snprintf(error, RH_MPI_LINE, "no room to end MPI with the process");
		return -1;
	}
	if (!rc)
		rc = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (!rc)
		rc = MPI_Comm_rank(MPI_COMM_WORLD, rank);
	return fail(rc ? rc : MPI_Comm_size(MPI_COMM_WORLD, ranks), error);
}

/* After the call: what it made of the handle. */
static int keep(int code, const MPI_Request *request, struct rh_mpi_request *out, char error[RH_MPI_LINE])
{
	memcpy(out->handle, request, sizeof *request);
	return fail(code, error);
}

static int send_bytes(const void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out, char error[RH_MPI_LINE])
{
	MPI_Request request = MPI_REQUEST_NULL;
	int code = MPI_Isend(bytes, (int)size, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &request);
	return keep(code, &request, out, error);
}

static int receive_bytes(void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out, char error[RH_MPI_LINE])
{
	MPI_Request request = MPI_REQUEST_NULL;
	int code = MPI_Irecv(bytes, (int)size, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &request);
	return keep(code, &request, out, error);
}

static int test(struct rh_mpi_request *at, char error[RH_MPI_LINE])
{
	MPI_Request request;
	int is_over = 0;
	memcpy(&request, at->handle, sizeof request);
	int code = MPI_Test(&request, &is_over, MPI_STATUS_IGNORE), rc = keep(code, &request, at, error);
	return rc ? rc : is_over;
}

static void cancel(struct rh_mpi_request *at)
{
	MPI_Request request;
	memcpy(&request, at->handle, sizeof request);
	if (request != MPI_REQUEST_NULL && MPI_Cancel(&request) == MPI_SUCCESS)
		MPI_Wait(&request, MPI_STATUS_IGNORE);
}

const struct rh_mpi_calls rh_mpi_calls = {
        .version = RH_MPI_CALLS_VERSION, .start = start, .send = send_bytes, .receive = receive_bytes, .test = test, .cancel = cancel};
