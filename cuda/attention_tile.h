/* What the attention kernels share: their arguments, and which rows of which document a block takes. */
#ifndef RH_CUDA_ATTENTION_TILE_H
#define RH_CUDA_ATTENTION_TILE_H

#include "cuda/philox.h"
#include "cuda/rh_cuda.h"

/* What a launch takes: so many heads (of kernels that own keys, key heads) from first_head on, and of each tiles [first, end). */
struct attention_part {
	int first_head, heads, first, end;
	int blocks_before; /* of this kernel, in launches before this one */
};

/* More than 20 members: the operands of forward and backward, as a kernel takes them. */
struct attention_args {
	struct rh_view q, k, v, start_q, start_k, o, lse, amax; /* amax: of the forward, or no data */
	const void *sink;                                       /* (heads) of q's dtype, or NULL */
	struct rh_view d_o, delta, dq, dk, dv;                  /* of the backward alone */
	struct rh_view dk_sum, dv_sum;                          /* no data, or where the gradients of a document's runs are added up */
	struct rh_view space;                                   /* of the pass: RH_ATTENTION_BACKWARD_SPACE, or no data */
	float *dsink;                                           /* (heads), or NULL */
	struct attention_part part;
	int head_parts, row_parts;       /* of struct rh_op */
	int dim, heads, kv_heads, group; /* group: query heads that read one key head */
	int documents;
	int window, ahead; /* window: 0 if all earlier keys are seen; ahead: how many later ones are */
	int drops;         /* of probabilities: the plain kernels alone */
	uint32_t first_q, first_k;
	struct dropout_key dropout;
	float scale, scale_log2; /* scale_log2: scale / ln 2, as exponentials are taken to base 2 */
};

/* A block's rows: `rows` of them, from row `first` of a document of lq queries and lk keys, which begin at rows q0 of q and k0 of k. */
struct attention_tile {
	int first, rows, lq, lk, q0, k0, document;
};

/* Launchers: 0, or a negative errno. The plain ones take any D up to 256, any strides and both dtypes; the others bf16 of D 32, 64, 96,
 * 128, 256 or 512 whose rows begin on 16 bytes. */
int attention_plain_forward(const struct attention_args *a, struct CUstream_st *stream);
int attention_plain_backward(const struct attention_args *a, struct CUstream_st *stream);
int attention_mma_forward(const struct attention_args *a, struct CUstream_st *stream);
int attention_mma_backward(const struct attention_args *a, struct CUstream_st *stream);
int attention_forward_512(const struct attention_args *a, struct CUstream_st *stream); /* attention_512.cu */
int attention_backward_512(const struct attention_args *a, struct CUstream_st *stream);

/* dsink += its gradient, from lse and delta; where there are sinks. (attention_sink.cu) */
int attention_sink_backward(const struct attention_args *a, struct CUstream_st *stream);

/* dk, dv of the keys of the queries' own rows, from dk_sum and dv_sum; where there are such. (attention_sums.cu) */
int attention_finish_sums(const struct attention_args *a, struct CUstream_st *stream);

/* A head's sink, as a score times scale; -infinity where there are none. */
template <typename T> RH_DEVICE float attention_sink(const struct attention_args &a, int head)
{
	return a.sink ? rh_to_float(((const T *)a.sink)[head]) : -INFINITY;
}

template <typename T> RH_DEVICE T *attention_at(const struct rh_view &view, int64_t row, int64_t col)
{
	return (T *)view.data + row * view.stride + col;
}

/* Every document is cut into tiles of SIZE rows, its last one shorter. Document d's tiles are numbered from start[d] / SIZE + d on: at
 * least as many numbers as it has tiles, whatever its length, so that a block finds its document by bisection, and rows / SIZE + documents
 * numbers (attention_tiles) are enough. 0: this number has no rows. */
template <int SIZE>
RH_DEVICE int attention_find(const struct attention_args &a, const struct rh_view &start, int number, struct attention_tile *t)
{
	int low = 0, high = a.documents - 1;
	while (low < high) {
		int middle = (low + high + 1) / 2;
		if (*attention_at<int32_t>(start, middle, 0) / SIZE + middle <= number)
			low = middle;
		else
			high = middle - 1;
	}
	int begin = *attention_at<int32_t>(start, low, 0), end = *attention_at<int32_t>(start, low + 1, 0);
	t->first = (number - begin / SIZE - low) * SIZE;
	t->rows = end - begin - t->first < SIZE ? end - begin - t->first : SIZE;
	t->document = low;
	t->q0 = *attention_at<int32_t>(a.start_q, low, 0);
	t->k0 = *attention_at<int32_t>(a.start_k, low, 0);
	t->lq = *attention_at<int32_t>(a.start_q, low + 1, 0) - t->q0;
	t->lk = *attention_at<int32_t>(a.start_k, low + 1, 0) - t->k0;
	return t->first >= 0 && t->rows > 0;
}

static inline unsigned attention_tiles(int64_t rows, int size, int documents)
{
	return (unsigned)(rows / size + documents);
}

/* The launches of a kernel over `tiles` tiles of each of `heads` heads, in ascending order of heads, then tiles: launch(args, tiles) of
 * each, until one fails. A block does the same in whichever launch it is. */
template <typename LAUNCH> static int attention_launches(const struct attention_args *a, unsigned tiles, int heads, LAUNCH launch)
{
	struct attention_args own = *a;
	int of_heads = a->head_parts > 1 ? a->head_parts : 1, of_rows = a->row_parts > 1 ? a->row_parts : 1;
	int together = (heads + of_heads - 1) / of_heads, rc = 0;
	own.part.blocks_before = 0;
	for (int head = 0; rc >= 0 && head < heads; head += together) {
		own.part.first_head = head;
		own.part.heads = heads - head < together ? heads - head : together;
		for (int r = 0; rc >= 0 && r < of_rows; r++) {
			own.part.first = (int)((int64_t)tiles * r / of_rows);
			own.part.end = (int)((int64_t)tiles * (r + 1) / of_rows);
			if (own.part.first == own.part.end)
				continue;
			rc = launch(&own, (unsigned)(own.part.end - own.part.first));
			own.part.blocks_before += (own.part.end - own.part.first) * own.part.heads;
		}
	}
	return rc;
}

/* Query i sees keys [attention_first_key, attention_end_key), where that is not empty. */
RH_DEVICE int attention_end_key(const struct attention_args &a, const struct attention_tile &t, int i)
{
	int end = i + t.lk - t.lq + 1 + a.ahead;
	return end < t.lk ? end : t.lk;
}

RH_DEVICE int attention_first_key(const struct attention_args &a, const struct attention_tile &t, int i)
{
	int first = a.window ? i + t.lk - t.lq + 1 - a.window : 0;
	return first > 0 ? first : 0;
}

/* What a block of queries computes, and the place of its warp and lane in it. */
struct attention_block {
	struct attention_tile tile;
	int lane, warp_row, head;
	int first_key, end_key; /* that any of its queries sees */
	int col, kv_col;        /* of the head, and of the one whose keys it reads */
};

/* A block of ROWS queries, WARP_ROWS a warp; 0: it has none. The last tiles see the most keys: they go first, so that no long block is left
 * for the end. */
template <int ROWS, int WARP_ROWS> RH_DEVICE int attention_block_find(const struct attention_args &a, int dim, struct attention_block *at)
{
	at->lane = (int)threadIdx.x % RH_WARP;
	at->warp_row = (int)threadIdx.x / RH_WARP * WARP_ROWS;
	at->head = a.part.first_head + (int)blockIdx.y;
	at->col = at->head * dim;
	at->kv_col = at->head / a.group * dim;
	if (!attention_find<ROWS>(a, a.start_q, a.part.end - 1 - (int)blockIdx.x, &at->tile))
		return 0;
	at->first_key = attention_first_key(a, at->tile, at->tile.first);
	at->end_key = attention_end_key(a, at->tile, at->tile.first + at->tile.rows - 1);
	return 1;
}

RH_DEVICE int attention_sees(const struct attention_args &a, const struct attention_tile &t, int i, int j)
{
	return j >= attention_first_key(a, t, i) && j < attention_end_key(a, t, i);
}

/* What the probability of query row `row` and key row `key` is multiplied with. */
RH_DEVICE float attention_kept(const struct attention_args &a, int head, int row, int key)
{
	if (!a.drops)
		return 1;
	struct dropout_key at = a.dropout;
	uint32_t k = a.first_k + (uint32_t)key;
	at.site = a.first_q + (uint32_t)row;
	return kept_bits(at, (uint32_t)head << 22 | k / 4) >> k % 4 & 1 ? at.scale : 0;
}

/* Key j is seen by queries [attention_first_query, attention_end_query), where that is not empty. */
RH_DEVICE int attention_first_query(const struct attention_args &a, const struct attention_tile &t, int j)
{
	int first = j - (t.lk - t.lq) - a.ahead;
	return first > 0 ? first : 0;
}

RH_DEVICE int attention_end_query(const struct attention_args &a, const struct attention_tile &t, int j)
{
	int end = j - (t.lk - t.lq) + a.window;
	return a.window && end < t.lq ? end : t.lq;
}

#endif
