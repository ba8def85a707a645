/* Kernels whose results are known, or whose faults are: what the emulation is tested with. */
#include "probe.h"

#include "cuda/rh_cuda.h"

enum { THREADS = 64 };

RH_KERNEL(RH_WARP, 1) probe_product(const rh_bf16 *a, const rh_bf16 *b, float *d)
{
	RH_SHARED_2D(rh_bf16, tile_a, 16, 16);
	RH_SHARED_2D(rh_bf16, tile_b, 16, 8);
	int lane = (int)threadIdx.x;
	for (int i = lane; i < 16 * 16; i += RH_WARP)
		tile_a[i / 16][i % 16] = a[i];
	for (int i = lane; i < 16 * 8; i += RH_WARP)
		tile_b[i / 8][i % 8] = b[i];
	rh_warp_sync();
	uint32_t fragment_a[4], fragment_b[4], first_b[2];
	rh_ldmatrix_x4(fragment_a, &tile_a[lane % 16][lane / 16 * 8]);
	rh_ldmatrix_x4_trans(fragment_b, &tile_b[lane % 16][0]);
	first_b[0] = fragment_b[0], first_b[1] = fragment_b[1];
	float sum[4] = {};
	rh_mma_bf16(sum, fragment_a, first_b);
	for (int i = 0; i < 4; i++)
		d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}

extern "C" int probe_product_bf16(const uint16_t *a, const uint16_t *b, float *d, CUstream_st *stream)
{
	return RH_LAUNCH(probe_product, 1, RH_WARP, 0, stream, (const rh_bf16 *)a, (const rh_bf16 *)b, d);
}

RH_KERNEL(RH_WARP, 1) probe_warp_functions(const float *x, float *out)
{
	int lane = (int)threadIdx.x;
	out[lane] = rh_warp_sum(x[lane]);
	out[32 + lane] = rh_warp_max(x[lane]);
	out[64 + lane] = rh_shuffle(x[lane], (lane + 31) % 32);
	out[96 + lane] = rh_bits_float(rh_ballot(x[lane] > 0));
}

extern "C" int probe_warp(const float *x, float *out, CUstream_st *stream)
{
	return RH_LAUNCH(probe_warp_functions, 1, RH_WARP, 0, stream, x, out);
}

RH_KERNEL(THREADS, 1) probe_copy_async(const float *x, float *y, int n, int wait)
{
	RH_SHARED(float, tile, 4 * THREADS);
	int i = 4 * (int)threadIdx.x, left = n - i;
	left = left < 0 ? 0 : left > 4 ? 4 : left;
	rh_copy_async(tile + i, left ? x + i : x, 4 * left);
	rh_copy_async_commit();
	if (wait)
		rh_copy_async_wait<0>();
	else
		rh_copy_async_wait<1>();
	for (int k = 0; k < 4; k++)
		y[i + k] = tile[i + k];
}

extern "C" int probe_copy(const float *x, float *y, int n, int wait, CUstream_st *stream)
{
	return RH_LAUNCH(probe_copy_async, 1, THREADS, 0, stream, x, y, n, wait);
}

RH_KERNEL(THREADS, 1) probe_reverse_static(const float *x, float *y, int barrier)
{
	RH_SHARED(float, tile, THREADS);
	tile[threadIdx.x] = x[threadIdx.x];
	if (barrier == PROBE_WITH_BARRIER)
		__syncthreads();
	y[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}

extern "C" int probe_reverse(const float *x, float *y, enum probe_barrier barrier, CUstream_st *stream)
{
	return RH_LAUNCH(probe_reverse_static, 1, THREADS, 0, stream, x, y, (int)barrier);
}

/* Through two arrays, one behind the other. */
RH_KERNEL(THREADS, 1) probe_reverse_twice(const float *x, float *y, int barrier)
{
	RH_DYNAMIC_SHARED(float, low, 0, THREADS / 2);
	RH_DYNAMIC_SHARED(float, high, THREADS / 2 * sizeof(float), THREADS / 2);
	int i = (int)threadIdx.x, half = THREADS / 2, at = i % half; /* apart: g++ 12's check of a remainder in such an index is wrong */
	(i < half ? low : high)[at] = x[i];
	if (barrier == PROBE_WITH_BARRIER)
		__syncthreads();
	y[i] = (i < half ? high : low)[half - 1 - at];
}

extern "C" int probe_reverse_dynamic(const float *x, float *y, enum probe_barrier barrier, CUstream_st *stream)
{
	return RH_LAUNCH(probe_reverse_twice, 1, THREADS, THREADS * sizeof(float), stream, x, y, (int)barrier);
}

RH_KERNEL(THREADS, 1) probe_wrong(int fault, float *y)
{
	RH_SHARED(float, tile, THREADS);
	int i = (int)threadIdx.x, half = THREADS / 2;
	tile[i] = 0;
	if (fault == PROBE_HALF_AT_BARRIER) {
		if (i >= half)
			return;
		__syncthreads();
	} else if (fault == PROBE_TWO_BARRIERS) {
		if (i >= half)
			__syncthreads();
		else
			__syncthreads();
	} else if (fault == PROBE_HALF_WARP_SHUFFLES) {
		if (i % 32 < 16)
			tile[i] = rh_warp_sum(1);
	} else if (fault == PROBE_TWO_WARP_FUNCTIONS) {
		if (i % 32 < 16)
			tile[i] = rh_shuffle(1.0f, 0);
		else
			rh_warp_sync();
	} else if (fault == PROBE_MISALIGNED) {
		rh_store16(y + 1, rh_vec<float>{});
	} else if (fault == PROBE_SHARED_OVERFLOW) {
		tile[i + 1] = 1;
	}
	y[i] = tile[i];
}

RH_KERNEL(THREADS, 1) probe_wrong_dynamic(int fault, float *y)
{
	RH_DYNAMIC_SHARED(float, first, 0, THREADS);
	RH_DYNAMIC_SHARED(float, second, fault == PROBE_DYNAMIC_OVERLAP ? 128 : 256, THREADS);
	y[threadIdx.x] = first[0] + second[0];
}

extern "C" int probe_fault(enum probe_fault fault, float *y, CUstream_st *stream)
{
	if (fault == PROBE_DYNAMIC_TOO_LONG || fault == PROBE_DYNAMIC_OVERLAP)
		return RH_LAUNCH(probe_wrong_dynamic, 1, THREADS, 256, stream, (int)fault, y);
	return RH_LAUNCH(probe_wrong, fault == PROBE_EMPTY_GRID ? 0 : 1, THREADS, fault == PROBE_SHARED_TOO_LARGE ? 99 << 10 : 0, stream,
	                 (int)fault, y);
}
