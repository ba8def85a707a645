/* Rows of tokens to rows of experts and back. With T tokens, k experts each, n = T k rows of c elements of e bytes:
 *
 * sort      E blocks read the n indices twice, from L2: 8 n E bytes there (n = 32768, E = 128: 34 MB, some 10 us), 4 n from DRAM. Block e
 *           counts what goes to lower experts and to its own, each warp an eighth of the pairs in order; then every pair of its own gets
 *           its place. Only integers are added: no workspace, no atomics, no second launch for the prefix sums.
 * permute   reads T c e, writes n c e bytes: a row is read once and written k times.
 * unpermute reads n c e (T c e of add), writes T c e bytes; 2 n c FLOPs.
 * backward  reads T c e, writes n c e bytes; n c FLOPs: a row is read once and written k times.
 *
 * All are bound by memory: the roofline is bytes / DRAM bandwidth. Tile of the moves: a chunk of 8 elements a thread, 32 such by 8 rows a
 * block. Sums: over k in order. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

enum { THREADS = 256, WARPS = THREADS / RH_WARP, AHEAD = 4 };

struct sort_args {
	const int32_t *index;
	int32_t *start, *place;
	int64_t index_stride, start_stride, place_stride;
	int pairs, top, experts;
};

RH_DEVICE int sum_of_warp(int x)
{
	RH_UNROLL
	for (int mask = RH_WARP / 2; mask; mask /= 2)
		x += rh_shuffle_xor(x, mask);
	return x;
}

/* The expert of a pair, -1 from `end` on. */
RH_DEVICE int expert_of(const struct sort_args &a, int pair, int end)
{
	int token = pair / a.top;
	return pair < end ? a.index[token * a.index_stride + pair - token * a.top] : -1;
}

static RH_KERNEL(THREADS, 4) permute_sort(struct sort_args a)
{
	RH_SHARED(int, lower, WARPS);
	RH_SHARED(int, equal, WARPS);
	int own = (int)blockIdx.x, warp = (int)threadIdx.x / RH_WARP, lane = (int)threadIdx.x % RH_WARP;
	int part = (a.pairs / WARPS / RH_WARP + 1) * RH_WARP; /* of a warp */
	int first = warp * part, end = first + part < a.pairs ? first + part : a.pairs, is_lower = 0, is_equal = 0;
	for (int pair = first + lane; pair < end; pair += RH_WARP) {
		int expert = expert_of(a, pair, end);
		is_lower += expert < own;
		is_equal += expert == own;
	}
	is_lower = sum_of_warp(is_lower);
	is_equal = sum_of_warp(is_equal);
	if (lane == 0) {
		lower[warp] = is_lower;
		equal[warp] = is_equal;
	}
	__syncthreads();
	int start = 0, at = 0;
	for (int w = 0; w < WARPS; w++) {
		start += lower[w];
		at += w < warp ? equal[w] : 0;
	}
	at += start;
	if (threadIdx.x == 0) {
		a.start[own * a.start_stride] = start;
		if (own == a.experts - 1)
			a.start[a.experts * a.start_stride] = a.pairs;
	}
	for (int base = first; base < end; base += AHEAD * RH_WARP) {
		int expert[AHEAD];
		RH_UNROLL
		for (int i = 0; i < AHEAD; i++)
			expert[i] = base + i * RH_WARP < end ? expert_of(a, base + i * RH_WARP + lane, end) : -1;
		RH_UNROLL
		for (int i = 0; i < AHEAD; i++) {
			int pair = base + i * RH_WARP + lane, token = pair / a.top;
			uint32_t found = rh_ballot(expert[i] == own);
			if (expert[i] == own)
				a.place[token * a.place_stride + pair - token * a.top] = at + rh_bit_count(found & ((1u << lane) - 1));
			at += rh_bit_count(found);
		}
	}
}

struct permute_args {
	const void *x, *add;
	void *y;
	const int32_t *place;
	const float *weight;
	int64_t x_stride, add_stride, y_stride, place_stride, weight_stride, rows, cols;
	int top, aligned;
};

template <typename T> CHUNK_KERNEL permute_rows(struct permute_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned);
		for (int j = 0; j < a.top; j++)
			chunk_store((T *)a.y + a.place[row * a.place_stride + j] * a.y_stride + i, c, left, a.aligned);
	}
}

template <typename T> CHUNK_KERNEL permute_combine(struct permute_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		struct chunk sum = {}, add = {};
		if (a.add)
			add = chunk_load((const T *)a.add + row * a.add_stride + i, left, a.aligned);
		for (int j = 0; j < a.top; j++) {
			struct chunk c = chunk_load((const T *)a.x + a.place[row * a.place_stride + j] * a.x_stride + i, left, a.aligned);
			float weight = a.weight ? a.weight[row * a.weight_stride + j] : 1;
			RH_UNROLL
			for (int e = 0; e < CHUNK; e++)
				sum.v[e] += weight * c.v[e];
		}
		RH_UNROLL
		for (int e = 0; e < CHUNK; e++)
			sum.v[e] += add.v[e];
		chunk_store((T *)a.y + row * a.y_stride + i, sum, left, a.aligned);
	}
}

/* x is dy and y is dx here. */
template <typename T> CHUNK_KERNEL permute_spread(struct permute_args a)
{
	int64_t i = chunk_of_row() * CHUNK, left = a.cols - i;
	for (int64_t row = chunk_first_row(); row < a.rows && left > 0; row += chunk_row_step()) {
		struct chunk d = chunk_load((const T *)a.x + row * a.x_stride + i, left, a.aligned);
		for (int j = 0; j < a.top; j++) {
			float weight = a.weight[row * a.weight_stride + j];
			struct chunk c;
			RH_UNROLL
			for (int e = 0; e < CHUNK; e++)
				c.v[e] = weight * d.v[e];
			chunk_store((T *)a.y + a.place[row * a.place_stride + j] * a.y_stride + i, c, left, a.aligned);
		}
	}
}

static int sort(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *index = &op->operand[RH_PERMUTE_INDEX], *start = &op->operand[RH_PERMUTE_START];
	const struct rh_view *place = &op->operand[RH_PERMUTE_PLACE];
	struct sort_args a = {};
	a.index = (const int32_t *)index->data;
	a.start = (int32_t *)start->data;
	a.place = (int32_t *)place->data;
	a.index_stride = index->stride;
	a.start_stride = start->stride;
	a.place_stride = place->stride;
	a.pairs = (int)(index->rows * index->cols);
	a.top = (int)index->cols;
	a.experts = (int)(start->rows - 1);
	return RH_LAUNCH(permute_sort, (unsigned)a.experts, THREADS, 0, stream, a);
}

/* x and y are rows of experts or of tokens, as the op has them; T is the number of rows of place. */
static struct permute_args args_of(const struct rh_view *x, const struct rh_view *place, const struct rh_view *y)
{
	struct permute_args a = {};
	a.x = x->data;
	a.y = y->data;
	a.place = (const int32_t *)place->data;
	a.x_stride = x->stride;
	a.y_stride = y->stride;
	a.place_stride = place->stride;
	a.rows = place->rows;
	a.cols = x->cols;
	a.top = (int)place->cols;
	return a;
}

extern "C" int cuda_permute(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct permute_args a = args_of(&view[RH_PERMUTE_X], &view[RH_PERMUTE_PLACE], &view[RH_PERMUTE_Y]);
	const struct rh_view rows[] = {view[RH_PERMUTE_X], view[RH_PERMUTE_Y]};
	a.aligned = chunk_aligned(rows, 2);
	int rc = sort(op, stream);
	if (rc < 0 || !a.rows || !a.cols)
		return rc;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (view[RH_PERMUTE_X].dtype == RH_BF16)
		return RH_LAUNCH(permute_rows<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(permute_rows<float>, grid, chunk_block(), 0, stream, a);
}

extern "C" int cuda_unpermute(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct permute_args a = args_of(&view[RH_UNPERMUTE_X], &view[RH_UNPERMUTE_PLACE], &view[RH_UNPERMUTE_Y]);
	const struct rh_view rows[] = {view[RH_UNPERMUTE_X], view[RH_UNPERMUTE_ADD], view[RH_UNPERMUTE_Y]};
	a.aligned = chunk_aligned(rows, 3);
	a.add = view[RH_UNPERMUTE_ADD].data;
	a.add_stride = view[RH_UNPERMUTE_ADD].stride;
	a.weight = (const float *)view[RH_UNPERMUTE_WEIGHT].data;
	a.weight_stride = view[RH_UNPERMUTE_WEIGHT].stride;
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (view[RH_UNPERMUTE_X].dtype == RH_BF16)
		return RH_LAUNCH(permute_combine<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(permute_combine<float>, grid, chunk_block(), 0, stream, a);
}

extern "C" int cuda_unpermute_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand, *dy = &view[RH_UNPERMUTE_BACKWARD_DY], *dx = &view[RH_UNPERMUTE_BACKWARD_DX];
	struct permute_args a = args_of(dy, &view[RH_UNPERMUTE_BACKWARD_PLACE], dx);
	const struct rh_view rows[] = {*dy, *dx};
	a.aligned = chunk_aligned(rows, 2);
	a.weight = (const float *)view[RH_UNPERMUTE_BACKWARD_WEIGHT].data;
	a.weight_stride = view[RH_UNPERMUTE_BACKWARD_WEIGHT].stride;
	if (!a.rows || !a.cols)
		return 0;
	dim3 grid = chunk_grid(a.rows, chunks_of(a.cols));
	if (dy->dtype == RH_BF16)
		return RH_LAUNCH(permute_spread<rh_bf16>, grid, chunk_block(), 0, stream, a);
	return RH_LAUNCH(permute_spread<float>, grid, chunk_block(), 0, stream, a);
}
