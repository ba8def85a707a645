/* Opens the link that the key link_transport names, to the box below or above. */
#ifndef RH_LINK_TRANSPORT_H
#define RH_LINK_TRANSPORT_H

#include "link/link.h"

struct rh_transport_options {
	int box, neighbour;   /* numbers of the two boxes, from 0 */
	const char *address;  /* HOST:PORT to connect to, or listen:[HOST:]PORT; NULL: the transport takes none */
	const char *identity; /* this box's key file */
	const char *peer;     /* the hash of the neighbour's certificate; NULL: plain */
	const char *device;   /* the key device */
	const char *greeting; /* as rh_tcp_options has it */
	int64_t messages;     /* posted at once, each way */
	double bytes_per_s;   /* of the line to the neighbour, 0: unknown; only TCP uses it (tcp.h) */
	struct rh_link_timing timing;
};

/* link_transport: a row's number (config/transport.h). Strings are borrowed for the call. */
int rh_transport_open(int link_transport, const struct rh_transport_options *options, struct rh_link **out) RH_MUST;

#endif
