/* Messages from a GPU to one of another process, by NCCL: its library is loaded when a run asks for it. A wire carries them one way, one
 * after the other. Memory is the host's: pieces of a message pass through a buffer on the GPU. A build without CUDA has these entries too
 * (absent.c): they say so. */
#ifndef RH_CUDA_NCCL_H
#define RH_CUDA_NCCL_H

#include "core/error.h"

#include <stdint.h>

enum { RH_NCCL_ID = 128 };

struct rh_nccl_wire;

/* What both ends open a wire with; one makes it, and tells the other. -ENOENT: there is no library of NCCL. */
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
