/* The gated delta rule, backward (RH_OP_DELTA_BACKWARD), in four kernels:
 *
 * delta_forward   (delta.cu) leaves the state before each chunk in the workspace.
 * delta_reverse   as the forward's tile, a value head of one document and 32 value columns, from the last chunk to the first: leaves the
 *                 gradient at the state behind each chunk. Keys, the system's or the scores' matrix, the gradient of the state, and two
 *                 (64,32) matrices: 83 KB of shared memory. Sequential like the forward, 1.9 million multiply-additions a block and chunk.
 * delta_gradients a block has a chunk and a key head, and goes through its value heads: what the two states tell of q, k, v and the gates.
 *                 All chunks at once, so thousands of blocks. Value columns come 32 at a time; gradients of q and k stay in registers, a
 *                 column a token, over all of them. 94 KB of shared memory, one block an SM.
 * delta_sums      adds up what chunks left of da_log and ddt_bias, in their order.
 *
 * Work a chunk and value head, K = V = 128: 11 million multiply-additions, 2.6 times the forward's; traffic: the states, their gradients
 * (64 KB each, from L2 several times) and q, k, v, do, dq, dk, dv. Fp32 arithmetic binds: of an H100's 67 TFLOP/s 8,192 tokens of 32 heads
 * take 2.7 ms. Not measured on a GPU. */
#include "cuda/delta_tile.h"
#include "cuda/kernels.h"

enum {
	AT_KEYS = 0,
	AT_PAIRS = AT_KEYS + DELTA_CHUNK * DELTA_KEY,
	AT_OUT = AT_PAIRS + DELTA_CHUNK * DELTA_PAIR,  /* gradient of the output */
	AT_SIDES = AT_OUT + DELTA_CHUNK * DELTA_VALUE, /* of the rows that the state takes in, then of the system's right sides */
	AT_STATE = AT_SIDES + DELTA_CHUNK * DELTA_VALUE,
	AT_GATES = AT_STATE + RH_DELTA_MOST * DELTA_SLICE,
	REVERSE_FLOATS = AT_GATES + (int)(sizeof(struct delta_gates) / 4)
};

/* Of a block, in shared memory; what a kernel does not have is absent. */
struct both {
	float *keys, *scores, *system, *out, *sides, *taken, *parts, *d_gamma;
	struct delta_gates *gates;
};

/* sides = the gradient of the rows that the state takes in, and from there of the system's right sides. Scores and system may be one
 * matrix, which then has the scores first: `turn` makes it the system. ds(m,c): the gradient of the state behind the chunk. */
template <typename DS, typename Turn>
RH_DEVICE void right_sides_back(const struct delta_args &a, const struct both &s, const DS &ds, const Turn &turn)
{
	float sum[DELTA_ROWS][1] = {};
	int first = delta_warp() * DELTA_ROWS;
	delta_multiply(
	        sum, first, a.key, [&](int j, int m) { return s.keys[j * DELTA_KEY + m]; }, ds);
	for (int r = 0; r < DELTA_ROWS; r++)
		sum[r][0] *= s.gates->fall[first + r];
	delta_multiply(
	        sum, first, DELTA_CHUNK, [&](int j, int i) { return s.scores[i * DELTA_PAIR + j]; },
	        [&](int i, int c) { return s.out[i * DELTA_VALUE + c]; });
	for (int r = 0; r < DELTA_ROWS; r++)
		s.sides[(first + r) * DELTA_VALUE + delta_lane()] = sum[r][0];
	__syncthreads();
	turn();
	delta_solve_back(s.system, s.sides);
}

template <typename T> RH_KERNEL(DELTA_THREADS, 1) delta_reverse(struct delta_args a, int slices)
{
	RH_DYNAMIC_SHARED(float, memory, 0, REVERSE_FLOATS);
	float *keys = memory + AT_KEYS, *pairs = memory + AT_PAIRS, *out = memory + AT_OUT, *sides = memory + AT_SIDES;
	float *state = memory + AT_STATE;
	struct delta_gates *gates = (struct delta_gates *)(memory + AT_GATES);
	const struct both s = {keys, pairs, pairs, out, sides, NULL, NULL, NULL, gates};
	int document = (int)blockIdx.y, first = (int)blockIdx.x % slices * DELTA_SLICE, c = first + delta_lane();
	struct delta_place p = {};
	p.head = (int)blockIdx.x / slices;
	p.key_head = p.head / (a.heads / a.key_heads);
	int64_t begin = delta_start(a, document), end = delta_start(a, document + 1);
	int places = delta_warp() * DELTA_PLACES;
	for (int r = 0; r < DELTA_PLACES; r++) {
		int is_read = a.d_end && document + 1 == a.documents && places + r < a.key && c < a.value;
		state[(places + r) * DELTA_SLICE + delta_lane()] =
		        is_read ? a.d_end[((int64_t)p.head * a.key + places + r) * a.d_end_stride + c] : 0;
	}
	for (int64_t chunk = rh_ceil_div(end - begin, DELTA_CHUNK) - 1; chunk >= 0; chunk--) {
		p.row = begin + chunk * DELTA_CHUNK;
		p.slot = begin / DELTA_CHUNK + document + chunk;
		p.count = end - p.row < DELTA_CHUNK ? (int)(end - p.row) : (int)DELTA_CHUNK;
		for (int r = 0; r < DELTA_PLACES; r++)
			if (places + r < a.key && c < a.value)
				a.d_states[delta_state_at(a, p.slot, p.head) + (int64_t)(places + r) * a.value + c] =
				        state[(places + r) * DELTA_SLICE + delta_lane()];
		delta_load_gates<T>(a, p, gates);
		delta_load_keys<T>(a, p, keys, gates);
		delta_load_values<T>(a, p, a.d_o, a.o_stride, first, out);
		delta_scores<T>(a, p, keys, gates, pairs);
		right_sides_back(
		        a, s, [&](int m, int col) { return state[m * DELTA_SLICE + col]; }, [&] { delta_system(a, keys, gates, pairs); });
		float sum[DELTA_PLACES][1] = {};
		for (int r = 0; r < DELTA_PLACES; r++)
			sum[r][0] = state[(places + r) * DELTA_SLICE + delta_lane()] * gates->rise[DELTA_CHUNK - 1];
		delta_multiply(
		        sum, places, p.count, [&](int m, int i) { return delta_query<T>(a, p, gates, i, m) * gates->rise[i]; },
		        [&](int i, int col) { return out[i * DELTA_VALUE + col]; });
		delta_multiply(
		        sum, places, p.count, [&](int m, int i) { return -keys[i * DELTA_KEY + m] * gates->rise[i] * gates->beta[i]; },
		        [&](int i, int col) { return sides[i * DELTA_VALUE + col]; });
		__syncthreads();
		for (int r = 0; r < DELTA_PLACES; r++)
			state[(places + r) * DELTA_SLICE + delta_lane()] = sum[r][0];
	}
	for (int r = 0; r < DELTA_PLACES; r++) /* each thread has written these itself */
		if (a.d_state && document == 0 && places + r < a.key && c < a.value)
			a.d_state[((int64_t)p.head * a.key + places + r) * a.d_state_stride + c] =
			        state[(places + r) * DELTA_SLICE + delta_lane()];
}

enum {
	BOTH_SCORES = AT_PAIRS,                               /* then gradients of <q_i, k_j> */
	BOTH_SYSTEM = BOTH_SCORES + DELTA_CHUNK * DELTA_PAIR, /* then of <k_i, k_j> */
	BOTH_OUT = BOTH_SYSTEM + DELTA_CHUNK * DELTA_PAIR,
	BOTH_SIDES = BOTH_OUT + DELTA_CHUNK * DELTA_VALUE,
	BOTH_TAKEN = BOTH_SIDES + DELTA_CHUNK * DELTA_VALUE,
	BOTH_GATES = BOTH_TAKEN + DELTA_CHUNK * DELTA_VALUE,
	BOTH_PARTS = BOTH_GATES + (int)(sizeof(struct delta_gates) / 4), /* (8,64): sums of warps, a column a token */
	BOTH_GAMMA = BOTH_PARTS + DELTA_WARPS * DELTA_CHUNK,
	BOTH_FLOATS = BOTH_GAMMA + DELTA_CHUNK
};
static_assert(BOTH_FLOATS * 4 <= 99 << 10, "a block fits an SM of 100 KB");

/* A thread's part of (K,64): elements warp * 16 + r, tokens lane + 32 j. */
typedef float by_token[DELTA_PLACES][2];

/* The left operand of a product with a state: rows of some value columns, each times its factor and the sign. */
struct factored {
	const float *x, *factor;
	float sign;
	int columns;
};

/* What such a product tells: d += sign factor_i (x S^T)_i, and told += the sum over the thread's elements of that times `unit`, by token.
 * x: (64,32) in shared memory; s(m,c): a state's columns. */
template <typename S, typename Unit>
RH_DEVICE void state_back(const struct delta_args &a, const struct factored &of, const S &s, const Unit &unit, by_token &d,
                          float (&told)[2])
{
	RH_UNROLL
	for (int half = 0; half < 2; half++) { /* fewer sums at once: registers */
		constexpr int rows = DELTA_PLACES / 2;
		float sum[rows][2] = {};
		int places = delta_warp() * DELTA_PLACES + half * rows;
		delta_multiply(sum, places, of.columns, s, [&](int c, int i) { return of.x[i * DELTA_VALUE + c]; });
		RH_UNROLL
		for (int r = 0; r < rows; r++) {
			RH_UNROLL
			for (int j = 0; j < 2; j++) {
				int i = delta_lane() + RH_WARP * j, m = places + r;
				float moved = m < a.key ? of.sign * of.factor[i] * sum[r][j] : 0;
				d[half * rows + r][j] += moved;
				told[j] += moved * unit(i, m);
			}
		}
	}
}

/* to[i] += the sum over warps of `own`, by token. Barriers before and behind. */
RH_DEVICE void add_by_token(const float (&own)[2], float *parts, float *to)
{
	__syncthreads();
	for (int j = 0; j < 2; j++)
		parts[delta_warp() * DELTA_CHUNK + delta_lane() + RH_WARP * j] = own[j];
	__syncthreads();
	if (threadIdx.x < DELTA_CHUNK)
		for (int w = 0; w < DELTA_WARPS; w++)
			to[threadIdx.x] += parts[w * DELTA_CHUNK + threadIdx.x];
	__syncthreads();
}

/* Over the slices of a head's value columns: d of pairs, by row and lane, and what states tell of q, k and gamma. */
template <typename T>
RH_DEVICE void slices_back(const struct delta_args &a, const struct delta_place &p, const struct both &s, float (&d_scores)[DELTA_ROWS][2],
                           float (&d_system)[DELTA_ROWS][2], by_token &dq, by_token &dk)
{
	const float *state = a.states + delta_state_at(a, p.slot, p.head), *d_state = a.d_states + delta_state_at(a, p.slot, p.head);
	float told[2] = {}, fell[2] = {}, kept[2] = {};
	int rows = delta_warp() * DELTA_ROWS;
	for (int first = 0; first < a.value; first += DELTA_SLICE) {
		int columns = a.value - first < DELTA_SLICE ? a.value - first : (int)DELTA_SLICE;
		auto of = [&](const float *from, int m, int c) {
			return m < a.key && c < columns ? from[(int64_t)m * a.value + first + c] : 0.0f;
		};
		auto at_state = [&](int m, int c) { return of(state, m, c); };
		auto at_d_state = [&](int m, int c) { return of(d_state, m, c); };
		__syncthreads();
		delta_load_values<T>(a, p, a.d_o, a.o_stride, first, s.out);
		delta_right_sides<T>(a, p, s.keys, s.gates, first, at_state, s.taken);
		delta_solve(s.system, s.taken);
		right_sides_back(a, s, at_d_state, [] {});
		delta_multiply(
		        d_scores, rows, columns, [&](int i, int c) { return s.out[i * DELTA_VALUE + c]; },
		        [&](int c, int j) { return s.taken[j * DELTA_VALUE + c]; });
		delta_multiply(
		        d_system, rows, columns, [&](int i, int c) { return s.sides[i * DELTA_VALUE + c]; },
		        [&](int c, int j) { return s.taken[j * DELTA_VALUE + c]; });
		auto query = [&](int i, int m) { return delta_query<T>(a, p, s.gates, i, m); };
		auto key = [&](int i, int m) { return s.keys[i * DELTA_KEY + m]; };
		state_back(a, {s.out, s.gates->rise, 1, columns}, at_state, query, dq, told);
		state_back(a, {s.taken, s.gates->fall, 1, columns}, at_d_state, key, dk, fell);
		__syncthreads();
		for (int r = 0; r < DELTA_ROWS; r++) { /* from right sides to values */
			int i = rows + r, c = delta_lane();
			float d = s.sides[i * DELTA_VALUE + c] *= s.gates->beta[i];
			if (i < p.count && c < columns)
				((T *)a.dv)[(p.row + i) * a.dv_stride + (int64_t)p.head * a.value + first + c] = rh_from_float<T>(d);
		}
		__syncthreads();
		state_back(a, {s.sides, s.gates->rise, -1, columns}, at_state, key, dk, told);
		for (int m = delta_warp(); m < a.key; m += DELTA_WARPS)
			kept[0] += at_state(m, delta_lane()) * at_d_state(m, delta_lane());
	}
	for (int j = 0; j < 2; j++) {
		told[j] -= fell[j];
		fell[j] += j ? 0 : kept[0] * s.gates->rise[DELTA_CHUNK - 1];
	}
	add_by_token(told, s.parts, s.d_gamma);
	__syncthreads();
	for (int j = 0; j < 2; j++) /* all of `fell` counts at the last gamma, which is that of the chunk's end */
		s.parts[delta_warp() * DELTA_CHUNK + delta_lane() + RH_WARP * j] = fell[j];
	__syncthreads();
	if (threadIdx.x == 0)
		for (int i = 0; i < DELTA_WARPS * DELTA_CHUNK; i++)
			s.d_gamma[DELTA_CHUNK - 1] += s.parts[i];
	__syncthreads();
}

/* Scores and system become the gradients of the products of q and k; what they tell of gamma and b. */
template <typename T>
RH_DEVICE void pairs_back(const struct delta_args &a, const struct delta_place &p, const struct both &s,
                          const float (&d_scores)[DELTA_ROWS][2], const float (&d_system)[DELTA_ROWS][2])
{
	float column[2] = {};
	for (int r = 0; r < DELTA_ROWS; r++) {
		int i = delta_warp() * DELTA_ROWS + r;
		float row = 0;
		for (int c = 0; c < 2; c++) {
			int j = delta_lane() + RH_WARP * c, at = i * DELTA_PAIR + j;
			float moved = d_scores[r][c] * s.scores[at] + d_system[r][c] * s.system[at];
			float fade = j <= i ? delta_fade(s.gates, i, j) : 0;
			row += moved;
			column[c] -= moved;
			s.scores[at] = d_scores[r][c] * fade;
			s.system[at] = j < i ? -s.gates->beta[i] * d_system[r][c] * fade : 0;
			if (i == j && i < p.count) /* sigmoid's slope is beta (1 - beta), and the rows taken in are beta times others */
				((T *)a.db)[(p.row + i) * a.db_stride + p.head] = rh_from_float<T>(d_system[r][c] * (1 - s.gates->beta[i]));
		}
		row = rh_warp_sum(row);
		if (delta_lane() == 0)
			s.d_gamma[i] += row;
	}
	add_by_token(column, s.parts, s.d_gamma);
}

/* A token's g counts in the gamma of all from it on. */
template <typename T> RH_DEVICE void gates_back(const struct delta_args &a, const struct delta_place &p, const struct both &s)
{
	int i = (int)threadIdx.x;
	float rate = -expf(rh_to_float(((const T *)a.a_log)[p.head])), dg = 0;
	if (i < DELTA_CHUNK) {
		for (int j = i; j < DELTA_CHUNK; j++)
			dg += s.d_gamma[j];
		float da = i < p.count ? dg * rate / (1 + expf(-s.gates->x[i])) : 0;
		if (i < p.count)
			((T *)a.da)[(p.row + i) * a.da_stride + p.head] = rh_from_float<T>(da);
		s.parts[i] = dg * s.gates->g[i];
		s.parts[DELTA_CHUNK + i] = da;
	}
	__syncthreads();
	if (i < 2) {
		float sum = 0;
		for (int j = 0; j < DELTA_CHUNK; j++)
			sum += s.parts[i * DELTA_CHUNK + j];
		a.sums[(p.slot * a.heads + p.head) * 2 + i] = sum;
	}
	__syncthreads();
}

/* What the pairs' gradients tell of q and k. */
template <typename T>
RH_DEVICE void pairs_to_keys(const struct delta_args &a, const struct delta_place &p, const struct both &s, by_token &dq, by_token &dk)
{
	int places = delta_warp() * DELTA_PLACES;
	auto key = [&](int m, int j) { return s.keys[j * DELTA_KEY + m]; };
	auto query = [&](int m, int i) { return delta_query<T>(a, p, s.gates, i, m); };
	delta_multiply(dq, places, DELTA_CHUNK, key, [&](int j, int i) { return s.scores[i * DELTA_PAIR + j]; });
	delta_multiply(dk, places, DELTA_CHUNK, query, [&](int i, int j) { return s.scores[i * DELTA_PAIR + j]; });
	delta_multiply(dk, places, DELTA_CHUNK, key, [&](int j, int i) { return s.system[i * DELTA_PAIR + j]; });
	delta_multiply(dk, places, DELTA_CHUNK, key, [&](int i, int j) { return s.system[i * DELTA_PAIR + j]; });
}

/* Where gradients of q or k go: the unit vectors are of length `scale`, rstd what made them so. */
struct unit_out {
	const float *rstd;
	float scale;
	void *to;
	int64_t stride;
};

/* Through the division by the vectors' lengths, into rows of memory. The matrices of
 * pairs are where rows are collected. */
template <typename T, typename Unit>
RH_DEVICE void store_unit(const struct delta_args &a, const struct delta_place &p, const struct both &s, const by_token &d,
                          const Unit &unit, const struct unit_out &out)
{
	float *rows = s.scores, own[2] = {}, *along = s.d_gamma;
	int places = delta_warp() * DELTA_PLACES;
	static_assert(DELTA_CHUNK * DELTA_KEY <= 2 * DELTA_CHUNK * DELTA_PAIR, "rows fit the two matrices");
	__syncthreads();
	if (threadIdx.x < DELTA_CHUNK)
		along[threadIdx.x] = 0;
	for (int r = 0; r < DELTA_PLACES; r++)
		for (int j = 0; j < 2; j++) {
			int i = delta_lane() + RH_WARP * j, m = places + r;
			own[j] += m < a.key ? d[r][j] * unit(i, m) : 0;
			rows[i * DELTA_KEY + m] = d[r][j];
		}
	add_by_token(own, s.parts, along);
	for (int r = 0; r < DELTA_ROWS; r++) {
		int i = delta_warp() * DELTA_ROWS + r;
		for (int m = delta_lane(); m < a.key && i < p.count; m += RH_WARP)
			((T *)out.to)[(p.row + i) * out.stride + (int64_t)p.key_head * a.key + m] =
			        rh_from_float<T>((rows[i * DELTA_KEY + m] - unit(i, m) * along[i] / (out.scale * out.scale)) * out.rstd[i]);
	}
	__syncthreads();
}

/* Whether there is a chunk at the slot. */
RH_DEVICE int find_chunk(const struct delta_args &a, struct delta_place *p)
{
	int low = 0, high = a.documents; /* the last document whose first slot is not beyond */
	while (high - low > 1) {
		int middle = low + (high - low) / 2;
		if (delta_start(a, middle) / DELTA_CHUNK + middle <= p->slot)
			low = middle;
		else
			high = middle;
	}
	int64_t begin = delta_start(a, low), end = delta_start(a, low + 1);
	p->row = begin + (p->slot - begin / DELTA_CHUNK - low) * DELTA_CHUNK;
	p->count = end - p->row < DELTA_CHUNK ? (int)(end - p->row) : (int)DELTA_CHUNK;
	return p->row >= begin && p->row < end;
}

template <typename T> RH_KERNEL(DELTA_THREADS, 1) delta_gradients(struct delta_args a)
{
	RH_DYNAMIC_SHARED(float, memory, 0, BOTH_FLOATS);
	struct both s = {memory + AT_KEYS,    memory + BOTH_SCORES, memory + BOTH_SYSTEM,
	                 memory + BOTH_OUT,   memory + BOTH_SIDES,  memory + BOTH_TAKEN,
	                 memory + BOTH_PARTS, memory + BOTH_GAMMA,  (struct delta_gates *)(memory + BOTH_GATES)};
	struct delta_place p = {};
	int group = a.heads / a.key_heads;
	by_token dq = {}, dk = {};
	p.slot = blockIdx.y;
	p.key_head = (int)blockIdx.x;
	if (!find_chunk(a, &p))
		return;
	delta_load_keys<T>(a, p, s.keys, s.gates);
	for (p.head = p.key_head * group; p.head < (p.key_head + 1) * group; p.head++) {
		float d_scores[DELTA_ROWS][2] = {}, d_system[DELTA_ROWS][2] = {};
		delta_load_gates<T>(a, p, s.gates);
		if (threadIdx.x < DELTA_CHUNK)
			s.d_gamma[threadIdx.x] = 0;
		delta_scores<T>(a, p, s.keys, s.gates, s.scores);
		delta_system(a, s.keys, s.gates, s.system);
		slices_back<T>(a, p, s, d_scores, d_system, dq, dk);
		pairs_back<T>(a, p, s, d_scores, d_system);
		gates_back<T>(a, p, s);
		pairs_to_keys<T>(a, p, s, dq, dk);
	}
	store_unit<T>(a, p, s, dq, [&](int i, int m) { return delta_query<T>(a, p, s.gates, i, m); },
	              {s.gates->q_rstd, 1 / sqrtf((float)a.key), a.dq, a.dq_stride});
	store_unit<T>(a, p, s, dk, [&](int i, int m) { return s.keys[i * DELTA_KEY + m]; }, {s.gates->k_rstd, 1, a.dk, a.dk_stride});
}

RH_KERNEL(DELTA_THREADS, 1) delta_sums(struct delta_args a)
{
	int head = (int)(blockIdx.x * DELTA_THREADS + threadIdx.x);
	float total[2] = {};
	if (head >= a.heads)
		return;
	for (int document = 0; document < a.documents; document++) {
		int64_t begin = delta_start(a, document), end = delta_start(a, document + 1), slot = begin / DELTA_CHUNK + document;
		for (int64_t row = begin; row < end; row += DELTA_CHUNK, slot++)
			for (int which = 0; which < 2; which++)
				total[which] += a.sums[(slot * a.heads + head) * 2 + which];
	}
	if (a.da_log)
		a.da_log[head] += total[0];
	if (a.ddt_bias)
		a.ddt_bias[head] += total[1];
}

template <typename T> static int launch(const struct delta_args *a, int64_t slots, CUstream_st *stream)
{
	int slices = delta_slices(a), group = DELTA_THREADS;
	dim3 documents((unsigned)(a->heads * slices), (unsigned)a->documents, 1), chunks((unsigned)a->key_heads, (unsigned)slots, 1);
	int rc = RH_LAUNCH(delta_reverse<T>, documents, DELTA_THREADS, REVERSE_FLOATS * 4, stream, *a, slices);
	if (rc == 0)
		rc = RH_LAUNCH(delta_gradients<T>, chunks, DELTA_THREADS, BOTH_FLOATS * 4, stream, *a);
	if (rc < 0 || (!a->da_log && !a->ddt_bias))
		return rc;
	return RH_LAUNCH(delta_sums, (unsigned)rh_ceil_div(a->heads, group), DELTA_THREADS, 0, stream, *a);
}

extern "C" int cuda_delta_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct delta_args a = delta_args_of(op), states;
	int64_t slots = rh_delta_slots(view[RH_DELTA_BACKWARD_Q].rows, op->delta.documents), size = slots * a.heads * a.key * a.value;
	a.states = (float *)view[RH_DELTA_BACKWARD_SPACE].data;
	a.d_states = a.states + size;
	a.sums = a.d_states + size;
	states = a;
	states.state = (const float *)view[RH_DELTA_BACKWARD_STATE].data;
	states.state_stride = view[RH_DELTA_BACKWARD_STATE].stride;
	a.d_end = (const float *)view[RH_DELTA_BACKWARD_D_END].data, a.d_end_stride = view[RH_DELTA_BACKWARD_D_END].stride;
	a.d_state = (float *)view[RH_DELTA_BACKWARD_D_STATE].data, a.d_state_stride = view[RH_DELTA_BACKWARD_D_STATE].stride;
	a.d_o = view[RH_DELTA_BACKWARD_DO].data, a.o_stride = view[RH_DELTA_BACKWARD_DO].stride;
	a.dq = view[RH_DELTA_BACKWARD_DQ].data, a.dq_stride = view[RH_DELTA_BACKWARD_DQ].stride;
	a.dk = view[RH_DELTA_BACKWARD_DK].data, a.dk_stride = view[RH_DELTA_BACKWARD_DK].stride;
	a.dv = view[RH_DELTA_BACKWARD_DV].data, a.dv_stride = view[RH_DELTA_BACKWARD_DV].stride;
	a.db = view[RH_DELTA_BACKWARD_DB].data, a.db_stride = view[RH_DELTA_BACKWARD_DB].stride;
	a.da = view[RH_DELTA_BACKWARD_DA].data, a.da_stride = view[RH_DELTA_BACKWARD_DA].stride;
	a.da_log = (float *)view[RH_DELTA_BACKWARD_DA_LOG].data;
	a.ddt_bias = (float *)view[RH_DELTA_BACKWARD_DDT_BIAS].data;
	int rc = delta_launch_forward(&states, view[RH_DELTA_BACKWARD_Q].dtype, stream);
	if (rc < 0)
		return rc;
	return view[RH_DELTA_BACKWARD_Q].dtype == RH_BF16 ? launch<rh_bf16>(&a, slots, stream) : launch<float>(&a, slots, stream);
}
