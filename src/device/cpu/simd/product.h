/* The products inside attention and the delta rule: out[k][lane] (+)= sum over m of a(k, m) * panel[m][lane], where a panel is rows of as
 * many floats as there are lanes, ATTENTION_LANES or `lanes` of product_run_of, and a(k, m) lies at a[k * step_k + m * step_m]: one of the
 * steps is 1, so that both a matrix and its transpose serve as it lies.
 *
 * Vectors run along the lanes and a is broadcast, so that neither operand is packed, and a softmax over m is free of horizontal sums. A
 * tile of TILE_ROWS x TILE_VECTORS vectors stays in registers over all m: 24 of 32 registers (avx512), 12 of 16 (avx2). */
#ifndef RH_DEVICE_CPU_SIMD_PRODUCT_H
#define RH_DEVICE_CPU_SIMD_PRODUCT_H

#include "device/cpu/simd/kernels.h"
#include "device/cpu/simd/vector.h"

#if defined __AVX512F__
enum { TILE_ROWS = 8, TILE_VECTORS = 3 };
#elif defined __AVX2__
enum { TILE_ROWS = 4, TILE_VECTORS = 3 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif

struct product {
	const float *a;
	int64_t step_k, step_m;
	const float *panel;
	float *out;
	int64_t rows, length; /* k below rows, m below length */
	int64_t vectors;      /* of lanes in use */
	int add;              /* out += */
};

SIMD_INLINE void product_tile(const struct product *p, int64_t k, int64_t vector, const int rows, const int vectors, const int lanes)
{
	const float *a = p->a + k * p->step_k, *panel = p->panel + vector * VF;
	float *out = p->out + k * lanes + vector * VF;
	vf sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			sum[r][v] = p->add ? vf_load(out + r * lanes + v * VF) : (vf){0};
	int64_t step_k = p->step_k, step_m = p->step_m, length = p->length;
	for (int64_t m = 0; m < length; m++, panel += lanes, a += step_m) {
		vf b[TILE_VECTORS];
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			b[v] = vf_load(panel + v * VF);
#pragma GCC unroll 8
		for (int r = 0; r < rows; r++) {
			vf broadcast = vf_set(a[r * step_k]);
#pragma GCC unroll 8
			for (int v = 0; v < vectors; v++)
				sum[r][v] += broadcast * b[v];
		}
	}
#pragma GCC unroll 8
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
		for (int v = 0; v < vectors; v++)
			vf_store(out + r * lanes + v * VF, sum[r][v]);
}

SIMD_INLINE void product_vectors(const struct product *p, int64_t vector, const int vectors, const int lanes)
{
	int64_t k = 0;
	if (p->step_k == 1)
		for (; k + TILE_ROWS <= p->rows; k += TILE_ROWS)
			product_tile(&(struct product){p->a, 1, p->step_m, p->panel, p->out, p->rows, p->length, p->vectors, p->add}, k,
			             vector, TILE_ROWS, vectors, lanes);
	for (; k + TILE_ROWS <= p->rows; k += TILE_ROWS)
		product_tile(p, k, vector, TILE_ROWS, vectors, lanes);
	for (; k < p->rows; k++)
		product_tile(p, k, vector, 1, vectors, lanes);
}

SIMD_INLINE void product_run_of(const struct product *p, const int lanes)
{
	int64_t vector = 0;
	for (; vector + TILE_VECTORS <= p->vectors; vector += TILE_VECTORS)
		product_vectors(p, vector, TILE_VECTORS, lanes);
	if (TILE_VECTORS == 3 && p->vectors - vector == 2)
		product_vectors(p, vector, 2, lanes);
	else if (p->vectors > vector)
		product_vectors(p, vector, 1, lanes);
}

static inline void product_run(const struct product *p)
{
	product_run_of(p, ATTENTION_LANES);
}

#endif
