/* Attention, forward: softmax(scale q k^T) v, in one pass over the keys (FlashAttention-2: Dao 2023, algorithm 1); scale is above 0.
 *
 * Tile: a block of 4 warps takes 64 M queries of one head, 16 M a warp, and walks the keys that they see, 64 at a time. Scores and
 * probabilities stay in registers. Shared memory holds one tile of keys and one of values: values are on their way while scores are
 * computed, the next keys during softmax and the second product.
 * M is 1 where an SM has 100 KB of shared memory (sm_89: 256 D bytes a block, 32 KB for D 128), with queries in registers (D/4 a lane).
 * There an mma takes 32 cycles, and nothing else counts. It is 2 on larger SMs (sm_80, sm_90), whose mma takes 8 and less: a fragment of
 * keys or values, 4 cycles of the SM's shared memory, would serve two mma, which is all of its bandwidth; so it serves four. Queries are
 * then read from shared memory too: 512 D bytes a block (64 KB for D 128), and for D 128 80 fragments for 256 mma, where M 1 wants 128.
 * D 256 (Gemma 3) has M 1 and its queries in shared memory, as 128 registers hold o, and walks 16 keys at a time: 48 KB, so that two blocks
 * find room on an SM of 100 KB. Where 128 KB are (sm_80, sm_90) 8 warps take 128 queries and walk 64 keys at a time: on an H200 1.07 ms
 * for eight documents of 2048 tokens and 7.05 for one of 16384 (with the blocks of smaller SMs 1.39 and 9.59).
 * Memory: reads q, writes o once: 4 Tq heads D bytes. Keys and values are read once for each tile of queries, heads of a group one after
 * another, mostly from L2: 4 D bytes a key for 64 M queries.
 * FLOPs: 4 D a pair of query and key (that is 2 T^2 D heads where a document of T is causal), and an exponential. That is 64 M FLOPs a byte
 * from L2, T/2 and more a byte from DRAM: bound by mma from some 200 tokens a document on (165 TFLOP/s on an RTX 4090, 990 on an H100 by
 * wgmma, of which mma.sync reaches some 60%).
 *
 * Sums: mma's within 16 keys, then in ascending order of tiles: a function of the shapes and, where there is a window, of M. Probabilities
 * are rounded to bf16 for the second product; the denominator is the sum of the unrounded ones. */
#include "cuda/attention_softmax.h"
#include "cuda/chunk.h"
#include "cuda/kernels.h"

/* The largest magnitude of a row of o, as it is stored. */
template <int D> RH_DEVICE float row_magnitude(const float (&o)[D / 8][4], int half, float factor)
{
	uint32_t most = 0;
	RH_UNROLL
	for (int n = 0; n < D / 8; n++) {
		RH_UNROLL
		for (int e = 0; e < 2; e++)
			most = larger_magnitude(most, o[n][2 * half + e] * factor);
	}
	return stored_magnitude<rh_bf16>(lanes_largest(most, 4)); /* the four lanes that share a row */
}

/* In elements: a tile of keys, one of values, and queries, which pass through the values' place where registers then hold them. */
template <int D, int M, int THREADS> struct forward_layout {
	static constexpr bool in_registers = M == 1 && D <= 128;
	static constexpr int rows = THREADS / 2 * M, keys = D > 128 && THREADS == ATTENTION_THREADS ? 16 : 64,
	                     queries = in_registers ? 0 : rows * D;
	static constexpr int bytes = (2 * keys * D + queries) * 2;
};

template <int D, int M, int THREADS> RH_KERNEL(THREADS, 2 * ATTENTION_THREADS / THREADS) attention_forward(struct attention_args a)
{
	typedef struct forward_layout<D, M, THREADS> layout;
	constexpr int KEYS = layout::keys;
	RH_DYNAMIC_SHARED(rh_bf16, keys, 0, KEYS * D);
	RH_DYNAMIC_SHARED(rh_bf16, values, KEYS * D * sizeof(rh_bf16), KEYS * D + layout::queries);
	struct attention_block at;
	if (!attention_block_find<layout::rows, 16 * M>(a, D, &at))
		return;
	const struct attention_tile &t = at.tile;
	constexpr bool in_registers = layout::in_registers;
	rh_bf16 *queries = in_registers ? values : values + KEYS * D;
	int own = t.first + at.warp_row + at.lane / 4, last = t.first + t.rows - 1, left = tile_left_place<D>(),
	    right = tile_right_place<D>();
	tile_copy<layout::rows, D, THREADS>(queries, a.q, t.q0 + t.first, at.col, t.rows);
	rh_copy_async_commit();
	if (at.first_key < at.end_key)
		tile_copy<KEYS, D, THREADS>(keys, a.k, t.k0 + at.first_key, at.kv_col, t.lk - at.first_key);
	rh_copy_async_commit();
	uint32_t q[D / 16][M][4]; /* where they are in registers */
	if constexpr (in_registers) {
		rh_copy_async_wait<1>();
		__syncthreads();
		RH_UNROLL
		for (int k = 0; k < D / 16; k++)
			tile_left<D>(q[k][0], queries, left, at.warp_row, k);
	}
	float o[M][D / 8][4] = {};
	struct softmax row[M];
	RH_UNROLL
	for (int m = 0; m < M; m++)
		row[m] = softmax_begin(a, at.head);
	for (int j = at.first_key; j < at.end_key; j += KEYS) {
		left = rh_opaque(left), right = rh_opaque(right);
		rh_copy_async_wait<0>();
		__syncthreads(); /* keys are there, and nobody reads the values before these */
		tile_copy<KEYS, D, THREADS>(values, a.v, t.k0 + j, at.kv_col, t.lk - j);
		rh_copy_async_commit();
		float s[M][KEYS / 8][4] = {};
		RH_UNROLL
		for (int k = 0; k < D / 16; k++) {
			if constexpr (!in_registers) {
				RH_UNROLL
				for (int m = 0; m < M; m++)
					tile_left<D>(q[0][m], queries, left, at.warp_row + m * 16, k);
			}
			tile_scores<D, KEYS, M>(s, q[in_registers ? k : 0], keys, right, k);
		}
		rh_copy_async_wait<0>();
		__syncthreads(); /* values are there, and nobody reads these keys any more */
		if (j + KEYS < at.end_key)
			tile_copy<KEYS, D, THREADS>(keys, a.k, t.k0 + j + KEYS, at.kv_col, t.lk - j - KEYS);
		rh_copy_async_commit();
		int edge = j + KEYS > attention_end_key(a, t, t.first) || j < attention_first_key(a, t, last);
		RH_UNROLL
		for (int m = 0; m < M; m++) {
			float shrink[2];
			if (edge)
				tile_hide_keys<KEYS>(s[m], a, t, own + m * 16, j + at.lane % 4 * 2, -INFINITY);
			softmax_step<KEYS>(&row[m], s[m], a.scale_log2, shrink);
			if (!rh_ballot(shrink[0] != 1 || shrink[1] != 1))
				continue; /* mostly, once some keys are seen */
			RH_UNROLL
			for (int n = 0; n < D / 8; n++) {
				RH_UNROLL
				for (int e = 0; e < 4; e++)
					o[m][n][e] *= shrink[e / 2];
			}
		}
		tile_weighted_sum<D, KEYS, M>(o, s, values, left);
	}
	/* no copy to `keys` is under way, and the last barrier came after its last use; of queries a warp reads its own alone */
	rh_bf16 *store = (in_registers ? keys : queries) + at.warp_row * D;
	if (!in_registers) { /* for queries that no key came for */
		rh_copy_async_wait<0>();
		__syncthreads();
	}
	RH_UNROLL
	for (int m = 0; m < M; m++) {
		float factor[2], lse[2];
		softmax_finish(&row[m], factor, lse);
		RH_UNROLL
		for (int half = 0; half < 2; half++) {
			int i = own + m * 16 + half * 8;
			if (at.lane % 4 == 0 && i <= last)
				*attention_at<float>(a.lse, t.q0 + i, at.head) = lse[half];
			if (!a.amax.data)
				continue;
			float most = row_magnitude<D>(o[m], half, factor[half]);
			if (at.lane % 4 == 0 && i <= last)
				*attention_at<float>(a.amax, t.q0 + i, at.head) = most;
		}
		tile_store<D>(a.o, t.q0 + t.first + at.warp_row + m * 16, at.col, t.rows - at.warp_row - m * 16, store + m * 16 * D, o[m],
		              factor);
	}
}

template <int D, int M, int THREADS = ATTENTION_THREADS> static int forward(const struct attention_args *a, CUstream_st *stream)
{
	typedef struct forward_layout<D, M, THREADS> layout;
	unsigned tiles = attention_tiles(a->q.rows, layout::rows, a->documents);
	return attention_launches(a, tiles, a->heads, [&](const struct attention_args *part, unsigned across) {
		dim3 grid(across, (unsigned)part->part.heads);
		return RH_LAUNCH((attention_forward<D, M, THREADS>), grid, THREADS, layout::bytes, stream, *part);
	});
}

template <int D> static int forward_of(const struct attention_args *a, CUstream_st *stream)
{
	return attention_takes_two_tiles(forward_layout<D, 2, ATTENTION_THREADS>::bytes) ? forward<D, 2>(a, stream)
	                                                                                 : forward<D, 1>(a, stream);
}

int attention_mma_forward(const struct attention_args *a, CUstream_st *stream)
{
	switch (a->dim) {
	case 32:
		return forward_of<32>(a, stream);
	case 64:
		return forward_of<64>(a, stream);
	case 96:
		return forward_of<96>(a, stream);
	case 128:
		return forward_of<128>(a, stream);
	case 256:
		return attention_fits(forward_layout<256, 1, 256>::bytes, 1) ? forward<256, 1, 256>(a, stream) : forward<256, 1>(a, stream);
	default:
		return attention_forward_512(a, stream);
	}
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
	if (op->kind == RH_OP_ATTENTION)
		a.amax = view[RH_ATTENTION_AMAX];
	a.sink = op->kind == RH_OP_ATTENTION ? view[RH_ATTENTION_SINK].data : view[RH_ATTENTION_BACKWARD_SINK].data;
	a.heads = (int)op->attention.heads;
	a.kv_heads = (int)op->attention.kv_heads;
	a.group = a.heads / a.kv_heads;
	a.dim = (int)(a.q.cols / a.heads);
	a.documents = (int)op->attention.documents;
	a.head_parts = (int)op->attention.head_parts;
	a.row_parts = (int)op->attention.row_parts;
	int64_t all = a.q.rows > a.k.rows ? a.q.rows : a.k.rows; /* no key is farther from a query of its document */
	a.window = op->attention.window < all ? (int)op->attention.window : 0;
	if (op->attention.direction == RH_ATTENTION_BOTH)
		a.ahead = (int)(a.window ? a.window - 1 : all);
	a.scale = op->attention.scale;
	a.scale_log2 = op->attention.scale * 1.442695040888963f;
	a.drops = op->attention.p > 0;
	a.first_q = op->attention.first_q;
	a.first_k = op->attention.first_k;
	if (a.drops)
		a.dropout = dropout_key_of(rh_attention_drop_key(op->attention.seed, op->attention.site), 0, op->attention.micro_batch,
		                           op->attention.step, op->attention.p);
	return a;
}

static int can_mma(const struct attention_args *a)
{
	const struct rh_view views[] = {a->q, a->k, a->v, a->o, a->d_o, a->dq, a->dk, a->dv};
	int can = !a->drops && rh_attention_uses_tensor_cores(a->q.dtype, a->dim);
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
	a.space = op->operand[RH_ATTENTION_BACKWARD_SPACE];
	a.dk_sum = op->operand[RH_ATTENTION_BACKWARD_DK_SUM];
	a.dv_sum = op->operand[RH_ATTENTION_BACKWARD_DV_SUM];
	if (!a.documents)
		return 0;
	int rc = can_mma(&a) ? attention_mma_backward(&a, stream) : attention_plain_backward(&a, stream);
	if (rc >= 0 && a.dk_sum.data)
		rc = attention_finish_sums(&a, stream);
	return rc < 0 || !a.sink || !a.dsink ? rc : attention_sink_backward(&a, stream);
}
