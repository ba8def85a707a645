/* Attention, forward: softmax(scale q k^T) v, in one pass over the keys (FlashAttention-2: Dao 2023, algorithm 1).
 *
 * Tile: a block takes 64 queries of one head, 16 a warp, and walks the keys that they see, 64 at a time. Scores and probabilities stay in
 * registers; queries too (D/4 registers a lane), once read through shared memory, which holds one tile of keys and one of values:
 * 256 D bytes (32 KB for D 128). Values are on their way while scores are computed, the next keys during softmax and the second product.
 * Memory: reads q, writes o once: 4 Tq heads D bytes. Keys and values are read once for each tile of queries, heads of a group one after
 * another, mostly from L2: 4 D bytes a key for 64 queries.
 * FLOPs: 4 D a pair of query and key (that is 2 T^2 D heads where a document of T is causal), and an exponential. That is 64 FLOPs a byte
 * from L2, T/2 and more a byte from DRAM: bound by mma from some 200 tokens a document on (165 TFLOP/s on an RTX 4090, 990 on an H100 by
 * wgmma, of which mma.sync reaches some 60%).
 *
 * Sums: mma's within 16 keys, then in ascending order of tiles: a function of the shapes. Probabilities are rounded to bf16 for the second
 * product; the denominator is the sum of the unrounded ones. */
#include "cuda/attention_mma.h"
#include "cuda/kernels.h"

enum { KEYS = 64 }; /* a tile */

/* A lane's two rows: the largest score so far, times scale / ln 2, and its own columns' share of the denominator. */
struct softmax {
	float largest[2], sum[2];
};

template <int N> RH_DEVICE void hide(float (&s)[N / 8][4], const struct attention_args &a, const struct attention_tile &t, int i, int j)
{
	RH_UNROLL
	for (int n = 0; n < N / 8; n++) {
		RH_UNROLL
		for (int e = 0; e < 4; e++)
			if (!attention_sees(a, t, i + e / 2 * 8, j + n * 8 + e % 2))
				s[n][e] = -INFINITY;
	}
}

/* Scores become probabilities, relative to the largest score so far; `shrink` is what all before is to be multiplied with. */
template <int N> RH_DEVICE void step(struct softmax *row, float (&s)[N / 8][4], float (&shrink)[2])
{
	RH_UNROLL
	for (int half = 0; half < 2; half++) {
		float largest = row->largest[half];
		RH_UNROLL
		for (int n = 0; n < N / 8; n++)
			largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
		largest = fmaxf(largest, rh_shuffle_xor(largest, 1)); /* the four lanes that share a row */
		largest = fmaxf(largest, rh_shuffle_xor(largest, 2));
		float base = largest == -INFINITY ? 0 : largest; /* no key seen so far: probabilities 0, not NaN */
		shrink[half] = exp2f(row->largest[half] - base);
		float sum = row->sum[half] * shrink[half];
		RH_UNROLL
		for (int n = 0; n < N / 8; n++) {
			s[n][2 * half] = exp2f(s[n][2 * half] - base);
			s[n][2 * half + 1] = exp2f(s[n][2 * half + 1] - base);
			sum += s[n][2 * half] + s[n][2 * half + 1];
		}
		row->largest[half] = largest;
		row->sum[half] = sum;
	}
}

/* 1 / denominator, and lse. */
RH_DEVICE void finish(const struct softmax *row, float (&factor)[2], float (&lse)[2])
{
	RH_UNROLL
	for (int half = 0; half < 2; half++) {
		float sum = row->sum[half];
		sum += rh_shuffle_xor(sum, 1);
		sum += rh_shuffle_xor(sum, 2);
		factor[half] = sum > 0 ? 1 / sum : 0;
		lse[half] = sum > 0 ? row->largest[half] * 0.693147180559945f + logf(sum) : -INFINITY;
	}
}

template <int D> RH_KERNEL(ATTENTION_THREADS, 2) attention_forward(struct attention_args a)
{
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, KEYS * D);
	RH_DYNAMIC_SHARED(rh_bf16, values, KEYS * D * sizeof(rh_bf16), KEYS * D); /* queries first */
	struct attention_block at;
	if (!attention_block_find<ATTENTION_ROWS, 16>(a, D, &at))
		return;
	const struct attention_tile &t = at.tile;
	int own = t.first + at.warp_row + at.lane / 4, last = t.first + t.rows - 1;
	tile_copy<ATTENTION_ROWS, D>(values, a.q, t.q0 + t.first, at.col, t.rows);
	rh_copy_async_commit();
	if (at.first_key < at.end_key)
		tile_copy<KEYS, D>(keys, a.k, t.k0 + at.first_key, at.kv_col, t.lk - at.first_key);
	rh_copy_async_commit();
	rh_copy_async_wait<1>();
	__syncthreads();
	uint32_t q[D / 16][4];
	RH_UNROLL
	for (int k = 0; k < D / 16; k++)
		tile_left<D>(q[k], values, at.warp_row, k);
	float o[D / 8][4] = {};
	float sink = attention_sink<rh_bf16>(a, at.head) * 1.442695040888963f, share = a.sink && at.lane % 4 == 0 ? 1 : 0;
	struct softmax row = {{sink, sink}, {share, share}}; /* a sink is one of the four lanes' */
	for (int j = at.first_key; j < at.end_key; j += KEYS) {
		rh_copy_async_wait<0>();
		__syncthreads(); /* keys are there, and nobody reads the values before these */
		tile_copy<KEYS, D>(values, a.v, t.k0 + j, at.kv_col, t.lk - j);
		rh_copy_async_commit();
		float s[KEYS / 8][4] = {}, shrink[2];
		RH_UNROLL
		for (int k = 0; k < D / 16; k++)
			tile_scores<D, KEYS>(s, q[k], keys, k);
		rh_copy_async_wait<0>();
		__syncthreads(); /* values are there, and nobody reads these keys any more */
		if (j + KEYS < at.end_key)
			tile_copy<KEYS, D>(keys, a.k, t.k0 + j + KEYS, at.kv_col, t.lk - j - KEYS);
		rh_copy_async_commit();
		RH_UNROLL
		for (int n = 0; n < KEYS / 8; n++) {
			RH_UNROLL
			for (int e = 0; e < 4; e++)
				s[n][e] *= a.scale_log2;
		}
		if (j + KEYS > attention_end_key(t, t.first) || j < attention_first_key(a, t, last))
			hide<KEYS>(s, a, t, own, j + at.lane % 4 * 2);
		step<KEYS>(&row, s, shrink);
		RH_UNROLL
		for (int n = 0; n < D / 8; n++) {
			RH_UNROLL
			for (int e = 0; e < 4; e++)
				o[n][e] *= shrink[e / 2];
		}
		tile_weighted_sum<D, KEYS>(o, s, values);
	}
	float factor[2], lse[2];
	finish(&row, factor, lse);
	RH_UNROLL
	for (int half = 0; half < 2; half++)
		if (at.lane % 4 == 0 && own + half * 8 <= last)
			*attention_at<float>(a.lse, t.q0 + own + half * 8, at.head) = lse[half];
	/* no copy to `keys` is under way, and the last barrier came after its last use */
	tile_store<D>(a.o, t.q0 + t.first + at.warp_row, at.col, t.rows - at.warp_row, keys + at.warp_row * D, o, factor);
}

template <int D> static int forward(const struct attention_args *a, CUstream_st *stream)
{
	dim3 grid(attention_tiles(a->q.rows, ATTENTION_ROWS, a->documents), (unsigned)a->heads);
	return RH_LAUNCH((attention_forward<D>), grid, ATTENTION_THREADS, 2 * KEYS * D * sizeof(rh_bf16), stream, *a);
}

int attention_mma_forward(const struct attention_args *a, CUstream_st *stream)
{
	return a->dim == 64 ? forward<64>(a, stream) : a->dim == 96 ? forward<96>(a, stream) : forward<128>(a, stream);
}

static struct attention_args args_of(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct attention_args a = {};
	a.q = view[RH_ATTENTION_Q];
	a.k = view[RH_ATTENTION_K];
	a.v = view[RH_ATTENTION_V];
	a.start_q = view[RH_ATTENTION_START_Q];
	a.start_k = view[RH_ATTENTION_START_K];
	a.o = view[RH_ATTENTION_O];
	a.lse = view[RH_ATTENTION_LSE];
	a.sink = op->kind == RH_OP_ATTENTION ? view[RH_ATTENTION_SINK].data : view[RH_ATTENTION_BACKWARD_SINK].data;
	a.heads = (int)op->attention.heads;
	a.kv_heads = (int)op->attention.kv_heads;
	a.group = a.heads / a.kv_heads;
	a.dim = (int)(a.q.cols / a.heads);
	a.documents = (int)op->attention.documents;
	a.window = op->attention.window < a.k.rows ? (int)op->attention.window : 0; /* one as wide as the keys hides none */
	a.scale = op->attention.scale;
	a.scale_log2 = op->attention.scale * 1.442695040888963f;
	return a;
}

static int can_mma(const struct attention_args *a)
{
	const struct rh_view views[] = {a->q, a->k, a->v, a->o, a->d_o, a->dq, a->dk, a->dv};
	int can = a->q.dtype == RH_BF16 && (a->dim == 64 || a->dim == 96 || a->dim == 128);
	for (const struct rh_view &view : views)
		can = can && (!view.data || rh_rows_aligned(view.data, view.stride, sizeof(rh_bf16)));
	return can;
}

extern "C" int cuda_attention(const struct rh_op *op, CUstream_st *stream)
{
	struct attention_args a = args_of(op);
	if (!a.documents)
		return 0;
	return can_mma(&a) ? attention_mma_forward(&a, stream) : attention_plain_forward(&a, stream);
}

extern "C" int cuda_attention_backward(const struct rh_op *op, CUstream_st *stream)
{
	struct attention_args a = args_of(op);
	a.d_o = op->operand[RH_ATTENTION_BACKWARD_DO];
	a.delta = op->operand[RH_ATTENTION_BACKWARD_DELTA];
	a.dq = op->operand[RH_ATTENTION_BACKWARD_DQ];
	a.dk = op->operand[RH_ATTENTION_BACKWARD_DK];
	a.dv = op->operand[RH_ATTENTION_BACKWARD_DV];
	a.dsink = (float *)op->operand[RH_ATTENTION_BACKWARD_DSINK].data;
	if (!a.documents)
		return 0;
	int rc = can_mma(&a) ? attention_mma_backward(&a, stream) : attention_plain_backward(&a, stream);
	return rc < 0 || !a.sink || !a.dsink ? rc : attention_sink_backward(&a, stream);
}
