/* Dense products as BLAS has them: matrices by columns. blas.c is cuBLASLt; in emulation tests/cudaemu/blas.c takes its place. */
#ifndef RH_CUDA_BLAS_H
#define RH_CUDA_BLAS_H

#include "core/dtype.h"
#include "core/error.h"

struct CUstream_st;
struct blas;

enum { BLAS_WORKSPACE_BYTES = 32 << 20 };

struct blas_matrix {
	const void *data;
	int64_t ld; /* elements from one column to the next */
};

/* d (m,n) = alpha op(a) op(b) + c + bias. op(a) is a (m,k), or a (k,m) transposed; op(b) is b (k,n), or b (n,k) transposed. c (m,n) may be
 * d, and may be absent; bias (m), one of d's dtype for each row, or NULL. m, n, k >= 1. Sums in fp32.
 * Of 8-bit types: a is transposed and b is not, m and k are multiples of 16, matrices and leading dimensions of 16 bytes; the product is
 * multiplied by both scales, one fp32 on the GPU each. */
struct blas_product {
	int64_t m, n, k;
	int trans_a, trans_b;
	float alpha;
	enum rh_dtype type_a, type_b; /* both F32 or both BF16; or E4M3 and E5M2, not both the latter */
	enum rh_dtype output;         /* of c, d and bias: F32, BF16 */
	struct blas_matrix a, b, c;
	const float *scale_a, *scale_b; /* of 8-bit types, else NULL */
	void *d;
	int64_t ldd;
	const void *bias;
};

/* On the calling thread's GPU. -ENOENT when the library is not there. */
int blas_create(struct blas **out) RH_MUST;
void blas_destroy(struct blas *blas);

/* Enqueued on the stream; the workspace, BLAS_WORKSPACE_BYTES on a border of 256, is that stream's alone. A product's way of summing
 * depends on its shape, strides, dtypes and alignment, and on nothing else. */
int blas_multiply(struct blas *blas, const struct blas_product *product, void *workspace, struct CUstream_st *stream) RH_MUST;

/* As choices_misses and choices_evicted. */
int64_t blas_misses(const struct blas *blas);
int64_t blas_evictions(const struct blas *blas);

#endif
