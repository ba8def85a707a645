/* The gated delta rule, forward (RH_OP_DELTA), and the states before each chunk, which the backward reads.
 *
 * Tile: a block has one value head of one document and 32 of its value columns, whose part of the state (16 KB) stays in shared memory; it
 * goes through the chunks of 64 tokens one after the other. Keys lie in shared memory (33 KB), with a (64,64) matrix, first that of the
 * system, then the scores (17 KB), and the rows that the state takes in (8 KB): 74 KB, so that an SM of 100 KB has a block, one of 228 KB
 * three. Queries are read from L1.
 *
 * Work of a block and chunk, K = V = 128: of keys and scores 1.0, with the state 0.8, lower triangles 0.3 million multiply-additions,
 * fp32. Traffic: q, k, v, o once for each of the 4 slices from L2, 0.1 MB a head and chunk. With heads x slices x documents blocks (128 and
 * more for 32 heads) the roofline is fp32's: of an H100's 67 TFLOP/s 8,192 tokens of 32 heads take 0.8 ms. Chunks are a sequential chain:
 * one document of 8,192 tokens has 128 links, each with 63 barriers of the substitution. Not measured on a GPU. */
#include "cuda/delta_tile.h"
#include "cuda/kernels.h"

enum {
	AT_KEYS = 0,
	AT_PAIRS = AT_KEYS + DELTA_CHUNK * DELTA_KEY,
	AT_TAKEN = AT_PAIRS + DELTA_CHUNK * DELTA_PAIR,
	AT_STATE = AT_TAKEN + DELTA_CHUNK * DELTA_VALUE,
	AT_GATES = AT_STATE + RH_DELTA_MOST * DELTA_SLICE,
	FORWARD_FLOATS = AT_GATES + (int)(sizeof(struct delta_gates) / 4)
};

/* The block's columns of the state, (key, 32) in shared memory, to or from memory whose rows are `stride` apart. */
template <typename Move> RH_DEVICE void each_of_state(const struct delta_args &a, int first, const Move &move)
{
	int c = first + delta_lane();
	for (int m = delta_warp(); m < a.key; m += DELTA_WARPS)
		move(m * DELTA_SLICE + delta_lane(), m, c, c < a.value);
}

template <typename T> RH_KERNEL(DELTA_THREADS, 1) delta_forward(struct delta_args a, int slices)
{
	RH_DYNAMIC_SHARED(float, memory, 0, FORWARD_FLOATS);
	float *keys = memory + AT_KEYS, *pairs = memory + AT_PAIRS, *taken = memory + AT_TAKEN, *state = memory + AT_STATE;
	struct delta_gates *gates = (struct delta_gates *)(memory + AT_GATES);
	int document = (int)blockIdx.y, first = (int)blockIdx.x % slices * DELTA_SLICE, rows = delta_warp() * DELTA_ROWS;
	struct delta_place p = {};
	p.head = (int)blockIdx.x / slices;
	p.key_head = p.head / (a.heads / a.key_heads);
	int64_t end = delta_start(a, document + 1), begin = delta_start(a, document);
	each_of_state(a, first, [&](int at, int m, int c, int is_there) {
		int is_read = a.state && document == 0 && is_there;
		state[at] = is_read ? a.state[((int64_t)p.head * a.key + m) * a.state_stride + c] : 0;
	});
	p.slot = begin / DELTA_CHUNK + document;
	for (p.row = begin; p.row < end; p.row += DELTA_CHUNK, p.slot++) {
		p.count = end - p.row < DELTA_CHUNK ? (int)(end - p.row) : (int)DELTA_CHUNK;
		__syncthreads();
		if (a.states)
			each_of_state(a, first, [&](int at, int m, int c, int is_there) {
				if (is_there)
					a.states[delta_state_at(a, p.slot, p.head) + (int64_t)m * a.value + c] = state[at];
			});
		delta_load_gates<T>(a, p, gates);
		delta_load_keys<T>(a, p, keys, gates);
		delta_system(a, keys, gates, pairs);
		delta_right_sides<T>(
		        a, p, keys, gates, first, [&](int m, int c) { return state[m * DELTA_SLICE + c]; }, taken);
		delta_solve(pairs, taken);
		if (a.o) {
			float sum[DELTA_ROWS][1] = {};
			delta_scores<T>(a, p, keys, gates, pairs);
			delta_multiply(
			        sum, rows, a.key, [&](int i, int m) { return delta_query<T>(a, p, gates, i, m); },
			        [&](int m, int c) { return state[m * DELTA_SLICE + c]; });
			for (int r = 0; r < DELTA_ROWS; r++)
				sum[r][0] *= gates->rise[rows + r];
			delta_multiply(
			        sum, rows, rows + DELTA_ROWS, [&](int i, int j) { return pairs[i * DELTA_PAIR + j]; },
			        [&](int j, int c) { return taken[j * DELTA_VALUE + c]; });
			int c = first + delta_lane();
			for (int r = 0; r < DELTA_ROWS; r++)
				if (rows + r < p.count && c < a.value)
					((T *)a.o)[(p.row + rows + r) * a.o_stride + (int64_t)p.head * a.value + c] =
					        rh_from_float<T>(sum[r][0]);
		}
		__syncthreads();
		float more[DELTA_PLACES][1] = {};
		delta_multiply(
		        more, delta_warp() * DELTA_PLACES, p.count, [&](int m, int j) { return keys[j * DELTA_KEY + m] * gates->fall[j]; },
		        [&](int j, int c) { return taken[j * DELTA_VALUE + c]; });
		for (int r = 0; r < DELTA_PLACES; r++) {
			int m = delta_warp() * DELTA_PLACES + r;
			float *at = &state[m * DELTA_SLICE + delta_lane()];
			if (m < a.key)
				*at = *at * gates->rise[DELTA_CHUNK - 1] + more[r][0]; /* gamma stays behind the last token */
		}
	}
	__syncthreads();
	each_of_state(a, first, [&](int at, int m, int c, int is_there) {
		if (a.end && document + 1 == a.documents && is_there)
			a.end[((int64_t)p.head * a.key + m) * a.end_stride + c] = state[at];
	});
}

int delta_launch_forward(const struct delta_args *a, enum rh_dtype dtype, CUstream_st *stream)
{
	dim3 grid((unsigned)(a->heads * delta_slices(a)), (unsigned)a->documents, 1);
	if (dtype == RH_BF16)
		return RH_LAUNCH(delta_forward<rh_bf16>, grid, DELTA_THREADS, FORWARD_FLOATS * 4, stream, *a, delta_slices(a));
	return RH_LAUNCH(delta_forward<float>, grid, DELTA_THREADS, FORWARD_FLOATS * 4, stream, *a, delta_slices(a));
}

extern "C" int cuda_delta(const struct rh_op *op, CUstream_st *stream)
{
	struct delta_args a = delta_args_of(op);
	struct rh_view o = op->operand[RH_DELTA_O], state = op->operand[RH_DELTA_STATE], end = op->operand[RH_DELTA_END];
	a.o = o.data, a.o_stride = o.stride;
	a.state = (const float *)state.data, a.state_stride = state.stride;
	a.end = (float *)end.data, a.end_stride = end.stride;
	return delta_launch_forward(&a, op->operand[RH_DELTA_Q].dtype, stream);
}
