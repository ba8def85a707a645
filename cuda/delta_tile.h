/* What the kernels of the gated delta rule share: a chunk of RH_DELTA_CHUNK tokens of a value head, as src/device/cpu/simd/delta.h has it.
 * A block has 8 warps. Products are fp32: of an output's rows each warp has some, and of its columns each lane those 32 apart; the left
 * operand is the same in all lanes, so it may lie in global memory. For .cu files only. */
#ifndef RH_CUDA_DELTA_TILE_H
#define RH_CUDA_DELTA_TILE_H

#include "cuda/rh_cuda.h"

enum {
	DELTA_THREADS = 256,
	DELTA_WARPS = DELTA_THREADS / RH_WARP,
	DELTA_CHUNK = RH_DELTA_CHUNK,
	DELTA_ROWS = DELTA_CHUNK / DELTA_WARPS,     /* of a chunk, a warp's */
	DELTA_PLACES = RH_DELTA_MOST / DELTA_WARPS, /* of a key vector, a warp's */
	DELTA_SLICE = RH_WARP,                      /* columns of a value vector at once */
	DELTA_KEY = RH_DELTA_MOST + 1, /* floats from one row of keys to the next: lanes that read a column meet no bank twice */
	DELTA_PAIR = DELTA_CHUNK + 1,
	DELTA_VALUE = DELTA_SLICE + 1
};

struct delta_args {
	const void *q, *k, *v, *b, *a, *a_log, *dt_bias, *d_o;
	void *o, *dq, *dk, *dv, *db, *da;
	const float *state, *d_end;                                          /* before the first document; gradient behind the last one */
	float *end, *d_state, *states, *d_states, *sums, *da_log, *ddt_bias; /* end: behind the last one; states: before chunks */
	const int32_t *start;
	int64_t q_stride, k_stride, v_stride, b_stride, a_stride, o_stride, start_stride; /* o_stride: of o or d_o */
	int64_t state_stride, end_stride, d_end_stride, d_state_stride;
	int64_t dq_stride, dk_stride, dv_stride, db_stride, da_stride;
	int heads, key_heads, documents, key, value; /* key, value: lengths of a head's vectors */
};

/* Where a chunk lies. */
struct delta_place {
	int64_t row, slot;
	int count, head, key_head;
};

/* Of its tokens. */
struct delta_gates {
	float x[DELTA_CHUNK], soft[DELTA_CHUNK], g[DELTA_CHUNK], gamma[DELTA_CHUNK], beta[DELTA_CHUNK], rise[DELTA_CHUNK],
	        fall[DELTA_CHUNK];
	float q_rstd[DELTA_CHUNK], k_rstd[DELTA_CHUNK];
};

RH_DEVICE int delta_warp(void)
{
	return (int)threadIdx.x / RH_WARP;
}

RH_DEVICE int delta_lane(void)
{
	return (int)threadIdx.x % RH_WARP;
}

/* sum[r][j] += sum over k of a(first + r, k) b(k, lane + 32 j). */
template <int ROWS, int COLUMNS, typename A, typename B>
RH_DEVICE void delta_multiply(float (&sum)[ROWS][COLUMNS], int first, int depth, const A &a, const B &b)
{
	for (int k = 0; k < depth; k++) {
		float right[COLUMNS];
		RH_UNROLL
		for (int j = 0; j < COLUMNS; j++)
			right[j] = b(k, delta_lane() + RH_WARP * j);
		RH_UNROLL
		for (int r = 0; r < ROWS; r++) {
			float left = a(first + r, k);
			RH_UNROLL
			for (int j = 0; j < COLUMNS; j++)
				sum[r][j] += left * right[j];
		}
	}
}

/* The gates of a head's tokens; beyond them nothing happens: g and beta are 0. All threads, and a barrier behind it. */
template <typename T> RH_DEVICE void delta_load_gates(const struct delta_args &a, const struct delta_place &p, struct delta_gates *out)
{
	int i = (int)threadIdx.x;
	__syncthreads();
	if (i < DELTA_CHUNK) {
		float x = 0, soft = 0, beta = 0;
		if (i < p.count) {
			x = rh_to_float(((const T *)a.a)[(p.row + i) * a.a_stride + p.head]) + rh_to_float(((const T *)a.dt_bias)[p.head]);
			soft = x > 20 ? x : log1pf(expf(x));
			beta = 1 / (1 + expf(-rh_to_float(((const T *)a.b)[(p.row + i) * a.b_stride + p.head])));
		}
		out->x[i] = x;
		out->soft[i] = soft;
		out->beta[i] = beta;
		out->g[i] = -expf(rh_to_float(((const T *)a.a_log)[p.head])) * soft;
	}
	__syncthreads();
	if (i < DELTA_CHUNK) {
		float gamma = 0, rest = 0;
		for (int j = 0; j < DELTA_CHUNK; j++) {
			gamma += j <= i ? out->g[j] : 0;
			rest += j <= i ? 0 : out->g[j];
		}
		out->gamma[i] = gamma;
		out->rise[i] = expf(gamma);
		out->fall[i] = expf(rest);
	}
	__syncthreads();
}

/* Keys of length 1 in shared memory, zeros beyond the chunk; and what queries and keys are multiplied by for that, queries also by
 * key^-1/2. All threads, and a barrier behind it. */
template <typename T>
RH_DEVICE void delta_load_keys(const struct delta_args &a, const struct delta_place &p, float *keys, struct delta_gates *out)
{
	__syncthreads();
	for (int r = 0; r < DELTA_ROWS; r++) {
		int i = delta_warp() * DELTA_ROWS + r, is_there = i < p.count;
		const T *q = (const T *)a.q + (p.row + (is_there ? i : 0)) * a.q_stride + (int64_t)p.key_head * a.key;
		const T *k = (const T *)a.k + (p.row + (is_there ? i : 0)) * a.k_stride + (int64_t)p.key_head * a.key;
		float of_q = 0, of_k = 0;
		for (int m = delta_lane(); m < a.key; m += RH_WARP) {
			float x = rh_to_float(q[m]), y = rh_to_float(k[m]);
			of_q += x * x;
			of_k += y * y;
		}
		of_q = 1 / sqrtf(rh_warp_sum(of_q) + RH_DELTA_EPSILON) / sqrtf((float)a.key);
		of_k = 1 / sqrtf(rh_warp_sum(of_k) + RH_DELTA_EPSILON);
		for (int m = delta_lane(); m < RH_DELTA_MOST; m += RH_WARP)
			keys[i * DELTA_KEY + m] = is_there && m < a.key ? rh_to_float(k[m]) * of_k : 0;
		if (delta_lane() == 0) {
			out->q_rstd[i] = is_there ? of_q : 0;
			out->k_rstd[i] = is_there ? of_k : 0;
		}
	}
	__syncthreads();
}

/* Element m of the query of token i; 0 beyond the chunk. */
template <typename T>
RH_DEVICE float delta_query(const struct delta_args &a, const struct delta_place &p, const struct delta_gates *gates, int i, int m)
{
	if (i >= p.count || m >= a.key)
		return 0;
	return rh_to_float(((const T *)a.q)[(p.row + i) * a.q_stride + (int64_t)p.key_head * a.key + m]) * gates->q_rstd[i];
}

RH_DEVICE float delta_fade(const struct delta_gates *gates, int i, int j)
{
	return expf(gates->gamma[i] - gates->gamma[j]);
}

/* out(i,j) = -beta_i e^(gamma_i - gamma_j) <k_i, k_j> below the diagonal, else 0. A barrier behind it. */
RH_DEVICE void delta_system(const struct delta_args &a, const float *keys, const struct delta_gates *gates, float *out)
{
	float sum[DELTA_ROWS][2] = {};
	int first = delta_warp() * DELTA_ROWS;
	delta_multiply(
	        sum, first, a.key, [&](int i, int m) { return keys[i * DELTA_KEY + m]; },
	        [&](int m, int j) { return keys[j * DELTA_KEY + m]; });
	for (int r = 0; r < DELTA_ROWS; r++)
		for (int c = 0; c < 2; c++) {
			int i = first + r, j = delta_lane() + RH_WARP * c;
			out[i * DELTA_PAIR + j] = j < i ? -gates->beta[i] * delta_fade(gates, i, j) * sum[r][c] : 0;
		}
	__syncthreads();
}

/* out(i,j) = e^(gamma_i - gamma_j) <q_i, k_j> up to the diagonal, else 0. A barrier behind it. */
template <typename T>
RH_DEVICE void delta_scores(const struct delta_args &a, const struct delta_place &p, const float *keys, const struct delta_gates *gates,
                            float *out)
{
	float sum[DELTA_ROWS][2] = {};
	int first = delta_warp() * DELTA_ROWS;
	delta_multiply(
	        sum, first, a.key, [&](int i, int m) { return delta_query<T>(a, p, gates, i, m); },
	        [&](int m, int j) { return keys[j * DELTA_KEY + m]; });
	for (int r = 0; r < DELTA_ROWS; r++)
		for (int c = 0; c < 2; c++) {
			int i = first + r, j = delta_lane() + RH_WARP * c;
			out[i * DELTA_PAIR + j] = j <= i ? delta_fade(gates, i, j) * sum[r][c] : 0;
		}
	__syncthreads();
}

/* Some columns of values, x (64,32), become the solution of (I - n) x = them, or of its transpose. Barriers within, and behind it. */
RH_DEVICE void delta_solve(const float *n, float *x)
{
	for (int i = 0; i + 1 < DELTA_CHUNK; i++) {
		for (int r = i + 1 + delta_warp(); r < DELTA_CHUNK; r += DELTA_WARPS)
			x[r * DELTA_VALUE + delta_lane()] += n[r * DELTA_PAIR + i] * x[i * DELTA_VALUE + delta_lane()];
		__syncthreads();
	}
}

RH_DEVICE void delta_solve_back(const float *n, float *x)
{
	for (int i = DELTA_CHUNK - 1; i > 0; i--) {
		for (int r = delta_warp(); r < i; r += DELTA_WARPS)
			x[r * DELTA_VALUE + delta_lane()] += n[i * DELTA_PAIR + r] * x[i * DELTA_VALUE + delta_lane()];
		__syncthreads();
	}
}

/* Some columns of rows of value vectors, as x; zeros beyond. */
template <typename T>
RH_DEVICE void delta_load_values(const struct delta_args &a, const struct delta_place &p, const void *from, int64_t stride, int first,
                                 float *to)
{
	int c = first + delta_lane();
	for (int r = 0; r < DELTA_ROWS; r++) {
		int i = delta_warp() * DELTA_ROWS + r, is_there = i < p.count && c < a.value;
		to[i * DELTA_VALUE + delta_lane()] =
		        is_there ? rh_to_float(((const T *)from)[(p.row + i) * stride + (int64_t)p.head * a.value + c]) : 0;
	}
}

/* The rows that the state takes in, before the system is solved: x = beta (v - e^gamma K S), of columns `first` on. s(m,c): S. */
template <typename T, typename S>
RH_DEVICE void delta_right_sides(const struct delta_args &a, const struct delta_place &p, const float *keys,
                                 const struct delta_gates *gates, int first, const S &s, float *x)
{
	float sum[DELTA_ROWS][1] = {};
	delta_load_values<T>(a, p, a.v, a.v_stride, first, x);
	delta_multiply(
	        sum, delta_warp() * DELTA_ROWS, a.key, [&](int i, int m) { return keys[i * DELTA_KEY + m]; }, s);
	for (int r = 0; r < DELTA_ROWS; r++) {
		int i = delta_warp() * DELTA_ROWS + r;
		float *at = &x[i * DELTA_VALUE + delta_lane()];
		*at = gates->beta[i] * (*at - gates->rise[i] * sum[r][0]);
	}
	__syncthreads();
}

RH_HOST_DEVICE int64_t delta_state_at(const struct delta_args &a, int64_t slot, int head)
{
	return (slot * a.heads + head) * a.key * a.value;
}

RH_DEVICE int64_t delta_start(const struct delta_args &a, int document)
{
	return a.start[document * a.start_stride];
}

static inline int delta_slices(const struct delta_args *a)
{
	return (int)rh_ceil_div(a->value, DELTA_SLICE);
}

/* Operands that forward and backward share. */
static inline struct delta_args delta_args_of(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct delta_args a = {};
	a.q = view[RH_DELTA_Q].data, a.q_stride = view[RH_DELTA_Q].stride;
	a.k = view[RH_DELTA_K].data, a.k_stride = view[RH_DELTA_K].stride;
	a.v = view[RH_DELTA_V].data, a.v_stride = view[RH_DELTA_V].stride;
	a.b = view[RH_DELTA_B].data, a.b_stride = view[RH_DELTA_B].stride;
	a.a = view[RH_DELTA_A].data, a.a_stride = view[RH_DELTA_A].stride;
	a.a_log = view[RH_DELTA_A_LOG].data;
	a.dt_bias = view[RH_DELTA_DT_BIAS].data;
	a.start = (const int32_t *)view[RH_DELTA_START].data, a.start_stride = view[RH_DELTA_START].stride;
	a.heads = (int)op->delta.heads;
	a.key_heads = (int)op->delta.key_heads;
	a.documents = (int)op->delta.documents;
	a.key = (int)(view[RH_DELTA_Q].cols / op->delta.key_heads);
	a.value = (int)(view[RH_DELTA_V].cols / op->delta.heads);
	return a;
}

/* delta.cu: the forward; without a.o the states alone, those before each chunk (a.states) or that behind all. */
int delta_launch_forward(const struct delta_args *a, enum rh_dtype dtype, struct CUstream_st *stream);

#endif
