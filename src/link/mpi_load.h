/* MPI, loaded and started: the calls of the table, one thread at a time, with their lines kept (-EIO). */
#ifndef RH_LINK_MPI_LOAD_H
#define RH_LINK_MPI_LOAD_H

#include "core/error.h"
#include "link/mpi_calls.h"

struct mpi {
	const struct rh_mpi_calls *calls;
	int rank, ranks;
};

/* given: a table to use in place of the shared object's. A second call gives the same result. */
int mpi_start(const struct rh_mpi_calls *given, struct mpi *out) RH_MUST;
int mpi_send(const struct mpi *mpi, const void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out) RH_MUST;
int mpi_receive(const struct mpi *mpi, void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out) RH_MUST;
/* 1: over; 0: not yet. */
int mpi_test(const struct mpi *mpi, struct rh_mpi_request *request) RH_MUST;
void mpi_cancel(const struct mpi *mpi, struct rh_mpi_request *request);

#endif
