/* The link between two GPU boxes on a trusted network: large messages go from GPU to GPU by NCCL, which does not encrypt. What is small,
 * and all that orders messages, goes over another link (TCP with TLS), which also says who the peer is. Messages lie in host memory: pieces
 * pass through the GPU. NCCL does not reconnect: where its connection breaks, the run ends on its checkpoints. */
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

/* The GPUs meet when the peer is there; until then messages may be posted. -ENOENT: there is no library of NCCL. */
int rh_nccl_link_open(const struct rh_nccl_options *options, struct rh_link **out) RH_MUST;

#endif
