/* Grouped products of any layout: F32, and bf16 whose rows do not begin on 16 bytes (grouped_gemm.cu has the others). For parity, not for
 * speed: fp32 multiply-adds on the CUDA cores.
 *
 * Tile: 64 x 64 a block of 256 threads, 4 x 4 a thread, 16 deep, fp32 in shared memory (8.5 KB). An expert of r rows, d (r,n), k deep:
 * FLOPs 2 r n k; bytes e (r k n/64 + k n r/64 + r n), mostly from L2; the roofline is that of FMA (82 TFLOP/s on an RTX 4090), of which the
 * four loads from shared memory for 16 of them and one buffer leave perhaps half. Sums: in ascending order of k. */
#include "cuda/grouped_tile.h"

enum { THREADS = 256, SIZE = 64, DEPTH = 16, PART = 4, PAD = 4 };

/* Element (lane, k) is at data + lane * lane_stride + k * k_stride. */
template <typename T> struct plain_side {
	const T *data;
	int64_t lane_stride, k_stride;
	int lanes, depth; /* that exist */
};

template <typename T> RH_DEVICE struct plain_side<T> left_of(const struct grouped_args &a, const struct grouped_tile &t) {
	if (a.gradient)
		return {(const T *)a.a.data + t.first * a.a.stride + t.row, 1, a.a.stride, (int)a.a.cols - t.row, t.rows};
	return {(const T *)a.a.data + (t.first + t.row) * a.a.stride, a.a.stride, 1, t.rows - t.row, (int)a.a.cols};
}

template <typename T>
RH_DEVICE struct plain_side<T> right_of(const struct grouped_args &a, const struct grouped_tile &t) {
	int lanes = (int)a.d.cols - t.col;
	if (a.gradient)
		return {(const T *)a.b.data + t.first * a.b.stride + t.col, 1, a.b.stride, lanes, t.rows};
	if (a.trans_b)
		return {(const T *)a.b.data + (t.expert * a.d.cols + t.col) * a.b.stride, a.b.stride, 1, lanes, (int)a.a.cols};
	return {(const T *)a.b.data + t.expert * a.a.cols * a.b.stride + t.col, 1, a.b.stride, lanes, (int)a.a.cols};
}

/* (SIZE, DEPTH) from k on, zeros where there is nothing. Neighbours in memory go to neighbouring threads. */
template <typename T>
RH_DEVICE void load(float (*tile)[SIZE + PAD], const struct plain_side<T> &side, int k)
{
	RH_UNROLL
	for (int i = 0; i < SIZE * DEPTH / THREADS; i++) {
		int at = i * THREADS + (int)threadIdx.x, deep = side.k_stride == 1;
		int lane = deep ? at / DEPTH : at % SIZE, here = deep ? at % DEPTH : at / SIZE;
		int there = lane < side.lanes && k + here < side.depth;
		tile[here][lane] = there ? rh_to_float(side.data[lane * side.lane_stride + (k + here) * side.k_stride]) : 0;
	}
}

template <typename T> RH_KERNEL(THREADS, GROUPED_BLOCKS) grouped_plain_products(struct grouped_args a)
{
	RH_SHARED_2D(float, left, DEPTH, SIZE + PAD);
	RH_SHARED_2D(float, right, DEPTH, SIZE + PAD);
	int own_row = (int)threadIdx.x / (SIZE / PART) * PART, own_col = (int)threadIdx.x % (SIZE / PART) * PART;
	struct grouped_walk walk = {(int)blockIdx.x, 0, 0};
	struct grouped_tile t;
	while (grouped_next<SIZE, SIZE, false>(a, &walk, &t)) {
		struct plain_side<T> from_a = left_of<T>(a, t), from_b = right_of<T>(a, t);
		float sum[PART][PART] = {};
		for (int k = 0; k < from_a.depth; k += DEPTH) {
			load(left, from_a, k);
			load(right, from_b, k);
			__syncthreads();
			RH_UNROLL
			for (int here = 0; here < DEPTH; here++) {
				RH_UNROLL
				for (int i = 0; i < PART; i++) {
					RH_UNROLL
					for (int j = 0; j < PART; j++)
						sum[i][j] += left[here][own_row + i] * right[here][own_col + j];
				}
			}
			__syncthreads();
		}
		int rows = grouped_rows(a, t.rows);
		RH_UNROLL
		for (int i = 0; i < PART; i++) {
			RH_UNROLL
			for (int j = 0; j < PART; j++)
				if (t.row + own_row + i < rows && t.col + own_col + j < a.d.cols)
					grouped_put(a, t, t.row + own_row + i, t.col + own_col + j, sum[i][j]);
		}
	}
}

int grouped_plain(const struct grouped_args *a, CUstream_st *stream)
{
	unsigned grid = grouped_grid(a, SIZE, SIZE);
	if (a->a.dtype == RH_BF16)
		return RH_LAUNCH(grouped_plain_products<rh_bf16>, grid, THREADS, 0, stream, *a);
	return RH_LAUNCH(grouped_plain_products<float>, grid, THREADS, 0, stream, *a);
}
