/* Small kernels that try what cuda/rh_cuda.h offers, right and wrong. Addresses are the device's (the host's in emulation). */
#ifndef CUDAEMU_PROBE_H
#define CUDAEMU_PROBE_H

#include <stdint.h>

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* d (16,8) = a (16,16) b (16,8), bf16 through ldmatrix (b transposed by it). */
int probe_product_bf16(const uint16_t *a, const uint16_t *b, float *d, struct CUstream_st *stream);

/* Per lane of a warp: sum of x, largest x, the left neighbour's x, and the ballot of x > 0. out (4,32). */
int probe_warp(const float *x, float *out, struct CUstream_st *stream);

/* y[i] = x[i] for i below n, zeros up to 4 * 64, by asynchronous copies of 16 bytes, waited for or not. */
int probe_copy(const float *x, float *y, int n, int wait, struct CUstream_st *stream);

/* y[i] = x[64 - 1 - i] through shared memory, static or dynamic, with a barrier or without. */
enum probe_barrier { PROBE_WITH_BARRIER, PROBE_WITHOUT_BARRIER };
int probe_reverse(const float *x, float *y, enum probe_barrier barrier, struct CUstream_st *stream);
int probe_reverse_dynamic(const float *x, float *y, enum probe_barrier barrier, struct CUstream_st *stream);

/* What aborts. */
enum probe_fault {
	PROBE_HALF_AT_BARRIER, /* the other half has ended */
	PROBE_TWO_BARRIERS,
	PROBE_HALF_WARP_SHUFFLES,
	PROBE_TWO_WARP_FUNCTIONS,
	PROBE_MISALIGNED,
	PROBE_DYNAMIC_TOO_LONG,
	PROBE_DYNAMIC_OVERLAP,
	PROBE_SHARED_TOO_LARGE,
	PROBE_EMPTY_GRID,
	PROBE_FAULTS,
	PROBE_SHARED_OVERFLOW = PROBE_FAULTS /* seen by ASan only */
};
int probe_fault(enum probe_fault fault, float *y, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
