/* Eight consecutive elements of a row as fp32: what a thread of the elementwise kernels holds. Whole chunks of rows that begin on 16 bytes
 * go by vector instructions, others element by element. For .cu files only. */
#ifndef RH_CUDA_CHUNK_H
#define RH_CUDA_CHUNK_H

#include "cuda/rh_cuda.h"

enum { CHUNK = 8 };

struct chunk {
	float v[CHUNK];
};

/* Of `left` elements at `at`, the first 8; zeros where there are fewer. */
template <typename T> RH_DEVICE struct chunk chunk_load(const T *at, int64_t left, int aligned)
{
	struct chunk chunk;
	if (aligned && left >= CHUNK) {
		RH_UNROLL
		for (int part = 0; part < CHUNK / rh_vec<T>::N; part++) {
			rh_vec<T> vec = rh_load16(at + part * rh_vec<T>::N);
			RH_UNROLL
			for (int i = 0; i < rh_vec<T>::N; i++)
				chunk.v[part * rh_vec<T>::N + i] = rh_to_float(vec.v[i]);
		}
	} else {
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			chunk.v[i] = i < left ? rh_to_float(at[i]) : 0;
	}
	return chunk;
}

/* The first `left` of 8 elements. */
template <typename T> RH_DEVICE void chunk_store(T *at, const struct chunk &chunk, int64_t left, int aligned)
{
	if (aligned && left >= CHUNK) {
		RH_UNROLL
		for (int part = 0; part < CHUNK / rh_vec<T>::N; part++) {
			rh_vec<T> vec;
			RH_UNROLL
			for (int i = 0; i < rh_vec<T>::N; i++)
				vec.v[i] = rh_from_float<T>(chunk.v[part * rh_vec<T>::N + i]);
			rh_store16(at + part * rh_vec<T>::N, vec);
		}
	} else {
		RH_UNROLL
		for (int i = 0; i < CHUNK; i++)
			if (i < left)
				at[i] = rh_from_float<T>(chunk.v[i]);
	}
}

/* Bits of magnitudes have the order of the numbers, infinity above them and NaN above that. */
RH_DEVICE uint32_t larger_magnitude(uint32_t most, float value)
{
	uint32_t bits = rh_float_bits(value) & 0x7fffffffu;
	return bits > most ? bits : most;
}

RH_DEVICE uint32_t chunk_largest(uint32_t most, const struct chunk &chunk)
{
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		most = larger_magnitude(most, chunk.v[k]);
	return most;
}

/* Over runs of `lanes` lanes, a power of two. All lanes of the warp come here. */
RH_DEVICE uint32_t lanes_largest(uint32_t most, int lanes)
{
	for (int mask = lanes / 2; mask; mask /= 2) {
		uint32_t other = rh_shuffle_xor(most, mask);
		most = other > most ? other : most;
	}
	return most;
}

/* The magnitude as an amax has it, of numbers that are stored as T: rounding keeps their order. */
template <typename T> RH_DEVICE float stored_magnitude(uint32_t most)
{
	return rh_to_float(rh_from_float<T>(rh_bits_float(most)));
}

/* Whether all rows of the views begin on 16 bytes, absent ones aside. */
static inline int chunk_aligned(const struct rh_view *view, int views)
{
	for (int i = 0; i < views; i++)
		if (view[i].data &&
		    !rh_rows_aligned(view[i].data, view[i].rows > 1 ? view[i].stride : 0, (int)rh_dtype_bytes(view[i].dtype, 1)))
			return 0;
	return 1;
}

/* Elementwise kernels: a block of 8 rows by 32 chunks, a chunk a thread. Rows beyond the grid's are reached by steps of its height. */
enum { CHUNK_BLOCK_WIDTH = RH_WARP, CHUNK_BLOCK_ROWS = 8, CHUNK_GRID_ROWS = 65535 };
#define CHUNK_KERNEL RH_KERNEL(CHUNK_BLOCK_WIDTH *CHUNK_BLOCK_ROWS, 4)

static inline dim3 chunk_grid(int64_t rows, int64_t chunks)
{
	int64_t high = rh_ceil_div(rows, CHUNK_BLOCK_ROWS);
	return dim3((unsigned)rh_ceil_div(chunks, CHUNK_BLOCK_WIDTH), (unsigned)(high < CHUNK_GRID_ROWS ? high : (int64_t)CHUNK_GRID_ROWS),
	            1);
}

static inline dim3 chunk_block(void)
{
	return dim3(CHUNK_BLOCK_WIDTH, CHUNK_BLOCK_ROWS, 1);
}

static inline int64_t chunks_of(int64_t cols)
{
	return rh_ceil_div(cols, CHUNK);
}

RH_DEVICE int64_t chunk_first_row(void)
{
	return (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
}

RH_DEVICE int64_t chunk_row_step(void)
{
	return (int64_t)gridDim.y * blockDim.y;
}

RH_DEVICE int64_t chunk_of_row(void)
{
	return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* Sums over rows: a block of COLUMN_THREADS sums 32 columns, 64 threads a chunk of them, each every 64th row; then their sums in order. */
enum { COLUMN_THREADS = 256, COLUMN_WIDTH = 32, COLUMN_LANES = COLUMN_THREADS / (COLUMN_WIDTH / CHUNK) };

/* y[i] += sum over rows of term(row, i, columns left from i on), which gives a chunk. */
template <typename Term> RH_DEVICE void column_add(float *y, int64_t cols, int64_t rows, Term term)
{
	RH_SHARED_2D(float, part, COLUMN_LANES, COLUMN_WIDTH + 1);
	int column = (int)threadIdx.x % (COLUMN_WIDTH / CHUNK) * CHUNK, lane = (int)threadIdx.x / (COLUMN_WIDTH / CHUNK);
	int64_t first = (int64_t)blockIdx.x * COLUMN_WIDTH, i = first + column;
	struct chunk sum = {};
	for (int64_t row = lane; row < rows && i < cols; row += COLUMN_LANES) {
		struct chunk c = term(row, i, cols - i);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			sum.v[k] += c.v[k];
	}
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		part[lane][column + k] = sum.v[k];
	__syncthreads();
	if (threadIdx.x >= COLUMN_WIDTH || first + threadIdx.x >= cols)
		return;
	float total = 0;
	for (int k = 0; k < COLUMN_LANES; k++)
		total += part[k][threadIdx.x];
	y[first + threadIdx.x] += total;
}

static inline unsigned column_blocks(int64_t cols)
{
	return (unsigned)rh_ceil_div(cols, COLUMN_WIDTH);
}

#endif
