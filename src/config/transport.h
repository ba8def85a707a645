/* The transports of links between boxes: the words of the key link_transport. src/link/transport.c opens them. */
#ifndef RH_CONFIG_TRANSPORT_H
#define RH_CONFIG_TRANSPORT_H

/* A row: name; the members of struct rh_transport_traits; what --help says. Another transport is a row here, and a function in
 * src/link/transport.c beside the file of its link. */
/* clang-format off */
#define RH_TRANSPORTS(ROW) \
	ROW(tcp, 1, 1, 1, 1, 0, "by link_below and link_above, encrypted where hashes are given") \
	ROW(mpi, 0, 0, 1, 0, 12, "between the processes of one mpirun or srun, without addresses and keys, on a network that is trusted") \
	ROW(nccl, 1, 1, 0, 0, 0, "as tcp, but what is large goes from GPU to GPU by NCCL, unencrypted")
/* clang-format on */

struct rh_transport_traits {
	const char *name;
	int takes_addresses; /* link_below and link_above */
	int takes_hashes;    /* link_peer_below and link_peer_above */
	int measures_line;   /* boxes probe the line before they train (link/probe.h) */
	int may_reopen;      /* a process that has closed a link can open it again, so its run can return to a checkpoint */
	int library_mib;     /* host memory of a library of its own. Open MPI: 8 were seen under mpirun, 11 under srun */
};

/* link_transport: the row's number. */
static inline struct rh_transport_traits rh_transport_traits(int link_transport)
{
#define TRAITS(name, addresses, hashes, measures, reopens, library, help) {#name, addresses, hashes, measures, reopens, library},
	static const struct rh_transport_traits all[] = {RH_TRANSPORTS(TRAITS)};
#undef TRAITS
	return all[link_transport];
}

#endif
