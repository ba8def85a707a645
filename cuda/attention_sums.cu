/* Attention's backward of a run of queries of longer documents: dk and dv of the run's own keys, each document's last ones, from the sums
 * that hold what these and all later queries added (attention_walk.h).
 *
 * Reads 8 and writes 2 e bytes an element of Tq rows: bound by memory, a few thousandths of the backward before it. Tile: 16 rows of one
 * key head a block of 4 warps. */
#include "cuda/attention_tile.h"

enum { THREADS = 128, OWN = 16 };

template <typename T> RH_KERNEL(THREADS, 8) attention_finish(struct attention_args a)
{
	struct attention_tile t;
	if (!attention_find<OWN>(a, a.start_q, (int)blockIdx.x, &t))
		return;
	int64_t col = (int64_t)blockIdx.y * a.dim, to = t.q0 + t.first, from = t.k0 + t.lk - t.lq + t.first;
	for (int at = (int)threadIdx.x; at < t.rows * a.dim; at += THREADS) {
		int64_t r = at / a.dim, c = col + at % a.dim;
		*attention_at<T>(a.dk, to + r, c) = rh_from_float<T>(*attention_at<float>(a.dk_sum, from + r, c) * a.scale);
		*attention_at<T>(a.dv, to + r, c) = rh_from_float<T>(*attention_at<float>(a.dv_sum, from + r, c));
	}
}

int attention_finish_sums(const struct attention_args *a, CUstream_st *stream)
{
	dim3 grid(attention_tiles(a->q.rows, OWN, a->documents), (unsigned)a->kv_heads);
	if (a->q.dtype == RH_BF16)
		return RH_LAUNCH((attention_finish<rh_bf16>), grid, THREADS, 0, stream, *a);
	return RH_LAUNCH((attention_finish<float>), grid, THREADS, 0, stream, *a);
}
