/* The link between two GPU boxes on a trusted network. Large messages go from GPU to GPU by NCCL, which does not encrypt. Small
 * messages, and the protocol that orders all of them, go over another link (TCP with TLS), which also verifies the peer. Messages lie in
 * host memory; their pieces pass through the GPU. NCCL does not reconnect: where its connection breaks, the run ends, and continues from
 * its checkpoints. */
#ifndef RH_LINK_NCCL_H
#define RH_LINK_NCCL_H

#include "link/link.h"

enum { RH_NCCL_LEAST_BYTES = 16 << 10 }; /* of a message that goes by NCCL: below, another round trip would cost more than it saves */

struct rh_nccl_options {
	struct rh_link
	        *host_link; /* the other link, opened for `messages` + 1 and not used yet; this one's from now on, also after a fault */
	int gpu;
	int is_upper;     /* of the two ends: one is, one is not */
	int64_t messages; /* posted at once, each way */
};

/* Returns at once: the GPUs connect when the peer is there; until then messages may be posted. -ENOENT: NCCL's library is not installed. */
int rh_nccl_link_open(const struct rh_nccl_options *options, struct rh_link **out) RH_MUST;

#endif
