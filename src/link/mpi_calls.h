/* What a link asks of MPI: the table that src/link/mpi/calls.c fills in a shared object of its own, loaded when a run asks for it, so
 * that the program itself needs no MPI. A caller calls from one thread at a time. All slots are required; they return 0, or negative
 * with a line in `error`. */
#ifndef RH_LINK_MPI_CALLS_H
#define RH_LINK_MPI_CALLS_H

#include <stdint.h>

enum { RH_MPI_CALLS_VERSION = 1, RH_MPI_LINE = 512 };

/* MPI's own handle, whatever its type. */
struct rh_mpi_request {
	_Alignas(8) unsigned char handle[8];
};

struct rh_mpi_calls {
	int version;
	/* Once a process. MPI ends with the process. */
	int (*start)(int *rank, int *ranks, char error[RH_MPI_LINE]);
	/* `bytes` stay where they are until test says that it is over, or cancel returns. */
	int (*send)(const void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out, char error[RH_MPI_LINE]);
	int (*receive)(void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out, char error[RH_MPI_LINE]);
	/* 1: over; 0: not yet. */
	int (*test)(struct rh_mpi_request *request, char error[RH_MPI_LINE]);
	void (*cancel)(struct rh_mpi_request *request);
};

/* The one name that the shared object exports. */
#define RH_MPI_CALLS_NAME "rh_mpi_calls"

#endif
