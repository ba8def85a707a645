/* Host memory that the plan reserves: one mapping, exact, never grown. */
#ifndef RH_OFFLOAD_MEMORY_H
#define RH_OFFLOAD_MEMORY_H

#include "core/arena.h"

/* Maps `bytes` (rounded up to a page), zeroed, touched page by page only when first written; asks for transparent hugepages.
 * `what` names the user for the error line. */
int rh_host_reserve(int64_t bytes, const char *what, struct rh_arena *out) RH_MUST;
void rh_host_release(struct rh_arena *arena);

#endif
