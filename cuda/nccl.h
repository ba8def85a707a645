/* Sends messages from a GPU to a GPU of another process, by NCCL, whose library is loaded when a run asks for it. A wire carries
 * messages one way, one after the other. Messages lie in host memory; their pieces pass through a buffer on the GPU. A build without
 * CUDA has these functions too (absent.c), which say so. */
#ifndef RH_CUDA_NCCL_H
#define RH_CUDA_NCCL_H

#include "core/error.h"

#include <stdint.h>

enum { RH_NCCL_ID = 128 };

struct rh_nccl_wire;

/* Makes the id with which both ends open a wire; one end makes it and sends it to the other. -ENOENT: NCCL's library is not installed. */
int rh_nccl_make_id(char id[RH_NCCL_ID]) RH_MUST;

/* Begins to open: messages may begin once rh_nccl_is_open says 1, not 0 (the other end has not opened it yet). One end is the receiver.
 * -EIO: NCCL's or CUDA's line. rh_nccl_close(NULL) is legal. */
int rh_nccl_open(const char id[RH_NCCL_ID], int is_receiver, int gpu, struct rh_nccl_wire **out) RH_MUST;
int rh_nccl_is_open(struct rh_nccl_wire *wire) RH_MUST;
void rh_nccl_close(struct rh_nccl_wire *wire);

/* Begins to send `bytes`, or to fill them; they stay where they are until rh_nccl_test says 1 (over), not 0 (not yet). The other end begins
 * the same message, of the same size, soon: the GPU waits for it. size > 0. */
int rh_nccl_begin(struct rh_nccl_wire *wire, void *bytes, int64_t size) RH_MUST;
int rh_nccl_test(struct rh_nccl_wire *wire) RH_MUST;

#endif
