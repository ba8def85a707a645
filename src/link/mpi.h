/* The link over MPI, between two of the processes that mpirun or srun started: MPI finds the wire (InfiniBand, shared memory) and needs no
 * addresses or keys. It does not reconnect: where a process is gone, MPI ends all. */
#ifndef RH_LINK_MPI_H
#define RH_LINK_MPI_H

#include "link/link.h"
#include "link/mpi_calls.h"

struct rh_mpi_options {
	const struct rh_mpi_calls *calls; /* NULL: those of roundhouse-mpi.so, beside the program or in ../lib/roundhouse */
	int rank, peer;                   /* of this process, as the caller knows it, and of the other */
	int is_upper;                     /* of the two ends: one is, one is not */
	const char *greeting;             /* as rh_tcp_options has it */
	int64_t messages;                 /* posted at once, each way */
	struct rh_link_timing timing;     /* silence for give_up_ns is a fault; timeout_ns is not used */
};

/* -ENOENT: there is no roundhouse-mpi.so; -EINVAL: MPI gives this process another rank; -EIO: MPI's own faults. */
int rh_mpi_open(const struct rh_mpi_options *options, struct rh_link **out) RH_MUST;

#endif
