/* Attention in fp32 arithmetic: F32 (parity with the CPU device), and bf16 of head sizes or addresses that attention.cu does not take. The
 * same passes as there, in fused multiply-adds on values widened to fp32 in shared memory.
 *
 * Tile: a block of 4 warps owns 16 rows (4 a warp) of one head and walks 32 rows at a time of the other side, one a lane while scores are
 * computed; then a lane owns every 32nd column of the sums. Shared memory: 4 (32 D + 64 (D + 1) + 512) bytes: 26 KB for D 64, 50 KB for D
 * 128, 98.3 KB for D 256. Rows of more than 256 elements lie there as they come: of D 512 bf16 takes 98.1 KB, F32 194 KB, which SMs of
 * RTX cards do not have.
 * FLOPs: 4 D a pair forward, 14 D backward. Each multiply-add takes an operand from shared memory and shares the
 * other with 3 more: bound by shared memory at about a quarter of the fp32 roofline (83 TFLOP/s on an RTX 4090). DRAM traffic as in
 * attention.cu; a tile of 32 rows is read for 16 own ones, 8 FLOPs a byte from L2 in F32.
 *
 * Sums ascend over the other side's rows; those of dk and dv go over tiles of STREAMED queries, counted from the document's first, the last
 * tile first. */
#include "cuda/attention_tile.h"
#include "cuda/chunk.h"

enum {
	THREADS = 128,
	WARPS = THREADS / RH_WARP,
	ROWS = 4, /* of a warp */
	OWN = WARPS * ROWS,
	STREAMED = RH_WARP,
	WIDE = 256, /* heads of more have more columns of a lane, and rows in shared memory as they come */
};

/* Own rows of two operands (OWN, D), streamed ones (STREAMED, D+1: the lanes of a column lie in different banks), and a weight for each
 * pair. */
template <typename S> struct plain_tiles {
	S *own, *own2, *streamed, *streamed2;
	float *weight;
};

template <typename S> RH_HOST_DEVICE int plain_bytes(int dim)
{
	return (2 * OWN * dim + 2 * STREAMED * (dim + 1)) * (int)sizeof(S) + OWN * STREAMED * (int)sizeof(float);
}

template <typename S> RH_DEVICE struct plain_tiles<S> plain_tiles_of(int dim) {
	int own = OWN * dim * (int)sizeof(S), streamed = STREAMED * (dim + 1) * (int)sizeof(S);
	RH_DYNAMIC_SHARED(S, own_rows, 0, OWN *dim);
	RH_DYNAMIC_SHARED(S, own_rows2, own, OWN *dim);
	RH_DYNAMIC_SHARED(S, streamed_rows, 2 * own, STREAMED *(dim + 1));
	RH_DYNAMIC_SHARED(S, streamed_rows2, 2 * own + streamed, STREAMED *(dim + 1));
	RH_DYNAMIC_SHARED(float, weights, 2 * own + 2 * streamed, OWN *STREAMED);
	return {own_rows, own_rows2, streamed_rows, streamed_rows2, weights};
}

/* SIZE rows of a head, zeros beyond `rows`, a warp a row; `pitch` elements apart in shared memory. */
template <typename T, int SIZE, typename S>
RH_DEVICE void load(S *to, int pitch, const struct rh_view &from, int64_t row, int64_t col, int rows, int dim)
{
	for (int r = (int)threadIdx.x / RH_WARP; r < SIZE; r += WARPS)
		for (int c = (int)threadIdx.x % RH_WARP; c < dim; c += RH_WARP)
			to[r * pitch + c] = rh_from_float<S>(r < rows ? rh_to_float(*attention_at<T>(from, row + r, col + c)) : 0);
}

/* s[r] = own row r of this warp times the lane's streamed row. */
template <typename S> RH_DEVICE void dot(float (&s)[ROWS], const S *own, const S *streamed, int dim)
{
	const S *mine = own + (int)threadIdx.x / RH_WARP * ROWS * dim, *other = streamed + (int)threadIdx.x % RH_WARP * (dim + 1);
	RH_UNROLL
	for (int r = 0; r < ROWS; r++)
		s[r] = 0;
	for (int c = 0; c < dim; c++) {
		float x = rh_to_float(other[c]);
		RH_UNROLL
		for (int r = 0; r < ROWS; r++)
			s[r] += rh_to_float(mine[r * dim + c]) * x;
	}
}

/* acc[r] += sum over streamed rows of this warp's weight[r] times the row; the lane's columns. */
template <typename S, int COLUMNS>
RH_DEVICE void add_weighted(float (&acc)[ROWS][COLUMNS], const float (&w)[ROWS], const struct plain_tiles<S> &tiles, const S *streamed,
                            int dim)
{
	int lane = (int)threadIdx.x % RH_WARP;
	float *weight = tiles.weight + (int)threadIdx.x / RH_WARP * ROWS * STREAMED;
	rh_warp_sync(); /* nobody reads the weights before these */
	RH_UNROLL
	for (int r = 0; r < ROWS; r++)
		weight[r * STREAMED + lane] = w[r];
	rh_warp_sync();
	for (int j = 0; j < STREAMED; j++) {
		RH_UNROLL
		for (int n = 0; n < COLUMNS; n++) {
			int c = n * RH_WARP + lane;
			if (c >= dim)
				continue;
			float x = rh_to_float(streamed[j * (dim + 1) + c]);
			RH_UNROLL
			for (int r = 0; r < ROWS; r++)
				acc[r][n] += weight[r * STREAMED + j] * x;
		}
	}
}

/* The warp's rows of acc, each times its factor, to rows from `row` on; `rows` of the warp's are there. */
template <typename T, int COLUMNS>
RH_DEVICE void store(const struct rh_view &to, int64_t row, int64_t col, int rows, const float (&acc)[ROWS][COLUMNS],
                     const float (&factor)[ROWS], int dim)
{
	RH_UNROLL
	for (int r = 0; r < ROWS; r++) {
		RH_UNROLL
		for (int n = 0; n < COLUMNS; n++) {
			int c = n * RH_WARP + (int)threadIdx.x % RH_WARP;
			if (r < rows && c < dim)
				*attention_at<T>(to, row + r, col + c) = rh_from_float<T>(acc[r][n] * factor[r]);
		}
	}
}

/* acc = such rows of a gradient's sums, zeros where there are none. */
template <int COLUMNS>
RH_DEVICE void load_sums(float (&acc)[ROWS][COLUMNS], const struct rh_view &sum, int64_t row, int64_t col, int rows, int dim)
{
	RH_UNROLL
	for (int r = 0; r < ROWS; r++) {
		RH_UNROLL
		for (int n = 0; n < COLUMNS; n++) {
			int c = n * RH_WARP + (int)threadIdx.x % RH_WARP;
			acc[r][n] = sum.data && r < rows && c < dim ? *attention_at<float>(sum, row + r, col + c) : 0;
		}
	}
}

/* Where the block lies, with its queries in tiles.own; 0: it has none. */
template <typename T, typename S>
RH_DEVICE int begin(const struct attention_args &a, const struct plain_tiles<S> &tiles, struct attention_block *at)
{
	if (!attention_block_find<OWN, ROWS>(a, a.dim, at))
		return 0;
	load<T, OWN>(tiles.own, a.dim, a.q, at->tile.q0 + at->tile.first, at->col, at->tile.rows, a.dim);
	return 1;
}

template <typename T, typename S, int COLUMNS> RH_KERNEL(THREADS, 2) attention_plain_forward_rows(struct attention_args a)
{
	struct plain_tiles<S> tiles = plain_tiles_of<S>(a.dim);
	struct attention_block at;
	if (!begin<T>(a, tiles, &at))
		return;
	const struct attention_tile &t = at.tile;
	float o[ROWS][COLUMNS] = {}, largest[ROWS], sum[ROWS], s[ROWS];
	RH_UNROLL
	for (int r = 0; r < ROWS; r++) {
		largest[r] = attention_sink<T>(a, at.head);
		sum[r] = a.sink && at.lane == 0 ? 1 : 0; /* a sink is one of the lanes' */
	}
	for (int j = at.first_key; j < at.end_key; j += STREAMED) {
		__syncthreads();
		load<T, STREAMED>(tiles.streamed, a.dim + 1, a.k, t.k0 + j, at.kv_col, t.lk - j, a.dim);
		load<T, STREAMED>(tiles.streamed2, a.dim + 1, a.v, t.k0 + j, at.kv_col, t.lk - j, a.dim);
		__syncthreads();
		dot(s, tiles.own, tiles.streamed, a.dim);
		RH_UNROLL
		for (int r = 0; r < ROWS; r++) {
			s[r] = attention_sees(a, t, t.first + at.warp_row + r, j + at.lane) ? s[r] * a.scale : -INFINITY;
			float top = fmaxf(largest[r], rh_warp_max(s[r])), base = top == -INFINITY ? 0 : top,
			      shrink = expf(largest[r] - base);
			s[r] = expf(s[r] - base);
			sum[r] = sum[r] * shrink + s[r];
			s[r] *= attention_kept(a, at.head, t.q0 + t.first + at.warp_row + r, t.k0 + j + at.lane);
			largest[r] = top;
			RH_UNROLL
			for (int n = 0; n < COLUMNS; n++)
				o[r][n] *= shrink;
		}
		add_weighted(o, s, tiles, tiles.streamed2, a.dim);
	}
	float factor[ROWS];
	RH_UNROLL
	for (int r = 0; r < ROWS; r++) {
		float total = rh_warp_sum(sum[r]);
		factor[r] = total > 0 ? 1 / total : 0;
		if (at.lane == 0 && at.warp_row + r < t.rows)
			*attention_at<float>(a.lse, t.q0 + t.first + at.warp_row + r, at.head) =
			        total > 0 ? largest[r] + logf(total) : -INFINITY;
	}
	store<T>(a.o, t.q0 + t.first + at.warp_row, at.col, t.rows - at.warp_row, o, factor, a.dim);
	RH_UNROLL
	for (int r = 0; r < ROWS && a.amax.data; r++) {
		uint32_t most = 0;
		RH_UNROLL
		for (int n = 0; n < COLUMNS; n++)
			if (n * RH_WARP + at.lane < a.dim)
				most = larger_magnitude(most, o[r][n] * factor[r]);
		most = lanes_largest(most, RH_WARP);
		if (at.lane == 0 && at.warp_row + r < t.rows)
			*attention_at<float>(a.amax, t.q0 + t.first + at.warp_row + r, at.head) = stored_magnitude<T>(most);
	}
}

/* Writes delta too, which attention_plain_dk_dv reads: a warp a row. */
template <typename T, typename S, int COLUMNS> RH_KERNEL(THREADS, 2) attention_plain_dq(struct attention_args a)
{
	struct plain_tiles<S> tiles = plain_tiles_of<S>(a.dim);
	struct attention_block at;
	if (!begin<T>(a, tiles, &at))
		return;
	const struct attention_tile &t = at.tile;
	load<T, OWN>(tiles.own2, a.dim, a.d_o, t.q0 + t.first, at.col, t.rows, a.dim);
	__syncthreads();
	float dq[ROWS][COLUMNS] = {}, lse[ROWS], delta[ROWS], factor[ROWS], s[ROWS], dp[ROWS];
	RH_UNROLL
	for (int r = 0; r < ROWS; r++) {
		int there = at.warp_row + r < t.rows;
		int64_t row = t.q0 + t.first + at.warp_row + r;
		float sum = 0;
		for (int c = at.lane; c < a.dim; c += RH_WARP)
			sum += there ? rh_to_float(tiles.own2[(at.warp_row + r) * a.dim + c]) *
			                       rh_to_float(*attention_at<T>(a.o, row, at.col + c))
			             : 0;
		delta[r] = rh_warp_sum(sum);
		lse[r] = there ? *attention_at<float>(a.lse, row, at.head) : 0;
		factor[r] = a.scale;
		if (there && at.lane == 0)
			*attention_at<float>(a.delta, row, at.head) = delta[r];
	}
	for (int j = at.first_key; j < at.end_key; j += STREAMED) {
		__syncthreads();
		load<T, STREAMED>(tiles.streamed, a.dim + 1, a.k, t.k0 + j, at.kv_col, t.lk - j, a.dim);
		load<T, STREAMED>(tiles.streamed2, a.dim + 1, a.v, t.k0 + j, at.kv_col, t.lk - j, a.dim);
		__syncthreads();
		dot(s, tiles.own, tiles.streamed, a.dim);
		dot(dp, tiles.own2, tiles.streamed2, a.dim);
		RH_UNROLL
		for (int r = 0; r < ROWS; r++)
			s[r] = attention_sees(a, t, t.first + at.warp_row + r, j + at.lane)
			               ? expf(s[r] * a.scale - lse[r]) *
			                         (dp[r] * attention_kept(a, at.head, t.q0 + t.first + at.warp_row + r, t.k0 + j + at.lane) -
			                          delta[r])
			               : 0;
		add_weighted(dq, s, tiles, tiles.streamed, a.dim);
	}
	store<T>(a.dq, t.q0 + t.first + at.warp_row, at.col, t.rows - at.warp_row, dq, factor, a.dim);
}

template <typename T, typename S, int COLUMNS> RH_KERNEL(THREADS, 2) attention_plain_dk_dv(struct attention_args a)
{
	struct plain_tiles<S> tiles = plain_tiles_of<S>(a.dim);
	int lane = (int)threadIdx.x % RH_WARP, warp_row = (int)threadIdx.x / RH_WARP * ROWS;
	int kv_head = a.part.first_head + (int)blockIdx.y;
	int64_t kv_col = (int64_t)kv_head * a.dim;
	struct attention_tile t;
	if (!attention_find<OWN>(a, a.start_k, a.part.first + (int)blockIdx.x, &t))
		return;
	int first = attention_first_query(a, t, t.first), end = attention_end_query(a, t, t.first + t.rows - 1);
	load<T, OWN>(tiles.own, a.dim, a.k, t.k0 + t.first, kv_col, t.rows, a.dim);
	load<T, OWN>(tiles.own2, a.dim, a.v, t.k0 + t.first, kv_col, t.rows, a.dim);
	float dk[ROWS][COLUMNS], dv[ROWS][COLUMNS], s[ROWS], dp[ROWS];
	load_sums(dk, a.dk_sum, t.k0 + t.first + warp_row, kv_col, t.rows - warp_row, a.dim);
	load_sums(dv, a.dv_sum, t.k0 + t.first + warp_row, kv_col, t.rows - warp_row, a.dim);
	for (int i = (end - 1) / STREAMED * STREAMED; first < end && i + STREAMED > first; i -= STREAMED) {
		for (int head = kv_head * a.group; head < (kv_head + 1) * a.group; head++) {
			int64_t col = (int64_t)head * a.dim;
			__syncthreads();
			load<T, STREAMED>(tiles.streamed, a.dim + 1, a.q, t.q0 + i, col, t.lq - i, a.dim);
			load<T, STREAMED>(tiles.streamed2, a.dim + 1, a.d_o, t.q0 + i, col, t.lq - i, a.dim);
			__syncthreads();
			dot(s, tiles.own, tiles.streamed, a.dim);
			dot(dp, tiles.own2, tiles.streamed2, a.dim);
			int there = i + lane < t.lq;
			float lse = there ? *attention_at<float>(a.lse, t.q0 + i + lane, head) : 0;
			float delta = there ? *attention_at<float>(a.delta, t.q0 + i + lane, head) : 0;
			RH_UNROLL
			for (int r = 0; r < ROWS; r++) {
				int seen = there && attention_sees(a, t, i + lane, t.first + warp_row + r);
				float kept = seen ? attention_kept(a, head, t.q0 + i + lane, t.k0 + t.first + warp_row + r) : 0;
				s[r] = seen ? expf(s[r] * a.scale - lse) : 0;
				dp[r] = s[r] * (dp[r] * kept - delta);
				s[r] *= kept;
			}
			add_weighted(dv, s, tiles, tiles.streamed2, a.dim);
			add_weighted(dk, dp, tiles, tiles.streamed, a.dim);
		}
	}
	if (a.dk_sum.data) {
		const float none[ROWS] = {1, 1, 1, 1};
		store<float>(a.dk_sum, t.k0 + t.first + warp_row, kv_col, t.rows - warp_row, dk, none, a.dim);
		store<float>(a.dv_sum, t.k0 + t.first + warp_row, kv_col, t.rows - warp_row, dv, none, a.dim);
		return;
	}
	const float one[ROWS] = {1, 1, 1, 1}, factor[ROWS] = {a.scale, a.scale, a.scale, a.scale};
	store<T>(a.dk, t.k0 + t.first + warp_row, kv_col, t.rows - warp_row, dk, factor, a.dim);
	store<T>(a.dv, t.k0 + t.first + warp_row, kv_col, t.rows - warp_row, dv, one, a.dim);
}

enum side { QUERIES, KEYS };
template <void (*KERNEL)(struct attention_args)>
static int launch(enum side side, const struct attention_args *a, int bytes, CUstream_st *stream)
{
	unsigned tiles = attention_tiles(side == KEYS ? a->k.rows : a->q.rows, OWN, a->documents);
	int most = rh_shared_bytes() - 1024; /* which the system takes of each block's */
	if (bytes > most)
		return rh_fail(
		        -ENOTSUP,
		        "attention of heads of %d elements in %s takes %d KB of an SM's shared memory, of which this GPU has %d: use "
		        "dtype bfloat16, or another GPU",
		        a->dim, rh_dtype_name(a->q.dtype), bytes >> 10, most >> 10);
	return attention_launches(a, tiles, side == KEYS ? a->kv_heads : a->heads, [&](const struct attention_args *part, unsigned across) {
		dim3 grid(across, (unsigned)part->part.heads);
		return RH_LAUNCH(KERNEL, grid, THREADS, bytes, stream, *part);
	});
}

template <typename T, typename S, int COLUMNS> static int backward(const struct attention_args *a, CUstream_st *stream)
{
	int bytes = plain_bytes<S>(a->dim), rc = launch<attention_plain_dq<T, S, COLUMNS>>(QUERIES, a, bytes, stream);
	return rc < 0 ? rc : launch<attention_plain_dk_dv<T, S, COLUMNS>>(KEYS, a, bytes, stream);
}

template <typename T, typename S, int COLUMNS> static int forward(const struct attention_args *a, CUstream_st *stream)
{
	return launch<attention_plain_forward_rows<T, S, COLUMNS>>(QUERIES, a, plain_bytes<S>(a->dim), stream);
}

enum { NARROW_COLUMNS = WIDE / RH_WARP, WIDE_COLUMNS = RH_OP_MAX_HEAD_DIM / RH_WARP };

int attention_plain_forward(const struct attention_args *a, CUstream_st *stream)
{
	if (a->dim > WIDE)
		return a->q.dtype == RH_BF16 ? forward<rh_bf16, rh_bf16, WIDE_COLUMNS>(a, stream)
		                             : forward<float, float, WIDE_COLUMNS>(a, stream);
	return a->q.dtype == RH_BF16 ? forward<rh_bf16, float, NARROW_COLUMNS>(a, stream)
	                             : forward<float, float, NARROW_COLUMNS>(a, stream);
}

int attention_plain_backward(const struct attention_args *a, CUstream_st *stream)
{
	if (a->dim > WIDE)
		return a->q.dtype == RH_BF16 ? backward<rh_bf16, rh_bf16, WIDE_COLUMNS>(a, stream)
		                             : backward<float, float, WIDE_COLUMNS>(a, stream);
	return a->q.dtype == RH_BF16 ? backward<rh_bf16, float, NARROW_COLUMNS>(a, stream)
	                             : backward<float, float, NARROW_COLUMNS>(a, stream);
}
