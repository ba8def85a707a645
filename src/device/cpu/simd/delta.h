/* What the passes of the gated delta rule share. A chunk of RH_DELTA_CHUNK tokens goes through a value head as products: gamma_i is the sum
 * of g up to token i, S the state before the chunk, and D the rows that the state takes in,
 *   (I - N) D = beta (V - e^gamma K S),          N_ij = -beta_i e^(gamma_i - gamma_j) <k_i, k_j> for j < i
 *   O = e^gamma Q S + P D,                       P_ij = e^(gamma_i - gamma_j) <q_i, k_j> for j <= i
 *   S' = e^gamma_last S + (e^(gamma_last - gamma) K)^T D.
 * No exponent is above 0. The system is solved by substitution, rows in blocks whose products with what is solved come first. */
#ifndef RH_DEVICE_CPU_SIMD_DELTA_H
#define RH_DEVICE_CPU_SIMD_DELTA_H

#include "device/cpu/simd/act.h"
#include "device/cpu/simd/product.h"

#include <math.h>

enum { CHUNK = RH_DELTA_CHUNK, MOST = RH_DELTA_MOST, ROWS = 8 /* of a block */ };

typedef float delta_rows[CHUNK][MOST] __attribute__((aligned(64)));    /* a row a token */
typedef float delta_columns[MOST][CHUNK] __attribute__((aligned(64))); /* a column a token */
typedef float delta_pairs[CHUNK][CHUNK] __attribute__((aligned(64)));
typedef float delta_state[MOST][MOST] __attribute__((aligned(64)));

/* A chunk of one document; K and V long vectors. */
struct delta_chunk {
	int64_t row, count;                          /* tokens */
	int64_t k, v, k_vectors, v_vectors, vectors; /* vectors: of a row of pairs */
};

/* Gates of a value head's tokens. */
struct delta_gates {
	float x[CHUNK], soft[CHUNK]; /* a + dt_bias, and its softplus */
	float gamma[CHUNK], beta[CHUNK];
	float rise[CHUNK], fall[CHUNK]; /* e^gamma, e^(gamma_last - gamma) */
	float rate;                     /* -exp(a_log) */
};

static inline int64_t vectors_of(int64_t length)
{
	return (length + VF - 1) / VF;
}

static inline struct delta_chunk delta_chunk_at(const struct rh_op *op, int64_t row, int64_t end)
{
	struct delta_chunk chunk = {.row = row, .count = end - row < CHUNK ? end - row : CHUNK};
	chunk.k = op->operand[RH_DELTA_Q].cols / op->delta.key_heads;
	chunk.v = op->operand[RH_DELTA_V].cols / op->delta.heads;
	chunk.k_vectors = vectors_of(chunk.k);
	chunk.v_vectors = vectors_of(chunk.v);
	chunk.vectors = vectors_of(chunk.count);
	return chunk;
}

SIMD_INLINE float delta_value(struct rh_view view, int64_t row, int64_t col, const int bf16)
{
	const void *at = row_at(view, row);
	return bf16 ? rh_bf16_to_f32(((const uint16_t *)at)[col]) : ((const float *)at)[col];
}

/* The columns of one head. */
SIMD_INLINE void delta_load(struct rh_view view, const struct delta_chunk *chunk, int64_t first, int64_t length, delta_rows to,
                            const int bf16)
{
	for (int64_t r = 0; r < chunk->count; r++) {
		const void *from = act_at(row_at(view, chunk->row + r), first, bf16);
		for (int64_t i = 0; i < length; i += VF)
			vf_store(to[r] + i, act_load(from, i, length - i, bf16));
	}
}

SIMD_INLINE void delta_store(struct rh_view view, const struct delta_chunk *chunk, int64_t first, int64_t length, delta_rows from,
                             const int bf16)
{
	for (int64_t r = 0; r < chunk->count; r++) {
		void *to = row_at(view, chunk->row + r);
		for (int64_t i = 0; i < length; i += VF)
			act_store(to, first + i, vf_load(from[r] + i), length - i, bf16);
	}
}

static inline float delta_dot(const float *a, const float *b, int64_t vectors)
{
	vf sum = {0};
	for (int64_t i = 0; i < vectors * VF; i += VF)
		sum += vf_load(a + i) * vf_load(b + i);
	return vf_sum(sum);
}

static inline void delta_scale(float *row, float factor, int64_t vectors)
{
	for (int64_t i = 0; i < vectors * VF; i += VF)
		vf_store(row + i, vf_load(row + i) * factor);
}

/* to += factor * from */
static inline void delta_add(float *to, float factor, const float *from, int64_t vectors)
{
	for (int64_t i = 0; i < vectors * VF; i += VF)
		vf_store(to + i, vf_load(to + i) + vf_load(from + i) * factor);
}

/* Rows become vectors of length `scale`; their factors before that. */
static inline void delta_unit(const struct delta_chunk *chunk, delta_rows rows, float scale, float rstd[CHUNK])
{
	for (int64_t r = 0; r < chunk->count; r++) {
		rstd[r] = 1.0f / sqrtf(delta_dot(rows[r], rows[r], chunk->k_vectors) + RH_DELTA_EPSILON);
		delta_scale(rows[r], rstd[r] * scale, chunk->k_vectors);
	}
}

SIMD_INLINE void delta_load_gates(const struct rh_op *op, const struct delta_chunk *chunk, int64_t head, struct delta_gates *out,
                                  const int bf16)
{
	const struct rh_view *view = op->operand;
	float bias = delta_value(view[RH_DELTA_DT_BIAS], 0, head, bf16), gamma = 0;
	*out = (struct delta_gates){.rate = -expf(delta_value(view[RH_DELTA_A_LOG], 0, head, bf16))};
	for (int64_t i = 0; i < chunk->count; i++) {
		float x = delta_value(view[RH_DELTA_A], chunk->row + i, head, bf16) + bias;
		out->x[i] = x;
		out->soft[i] = x > 20 ? x : log1pf(expf(x));
		out->gamma[i] = gamma += out->rate * out->soft[i];
		out->beta[i] = 1 / (1 + expf(-delta_value(view[RH_DELTA_B], chunk->row + i, head, bf16)));
		out->rise[i] = expf(gamma);
	}
	for (int64_t i = 0; i < chunk->count; i++)
		out->fall[i] = expf(gamma - out->gamma[i]);
}

/* Of tokens that are not there columns are 0. */
static inline void delta_transpose(const struct delta_chunk *chunk, delta_rows from, int64_t length, delta_columns to)
{
	for (int64_t i = 0; i < length; i++) {
		for (int64_t r = 0; r < chunk->count; r++)
			to[i][r] = from[r][i];
		for (int64_t r = chunk->count; r < chunk->vectors * VF; r++)
			to[i][r] = 0;
	}
}

/* out(i,j) = <a_i, b_j>, b by columns. */
static inline void delta_pair(const struct delta_chunk *chunk, delta_rows a, delta_columns b, int64_t length, delta_pairs out)
{
	product_run_of(&(struct product){a[0], MOST, 1, b[0], out[0], chunk->count, length, chunk->vectors, 0}, CHUNK);
}

/* out(i,.) (+)= sum over m of a(i,m) b(m,.), a by rows of tokens. */
static inline void delta_apply(const struct delta_chunk *chunk, delta_rows a, int64_t length, delta_state b, delta_rows out,
                               int64_t vectors)
{
	product_run_of(&(struct product){a[0], MOST, 1, b[0], out[0], chunk->count, length, vectors, 0}, MOST);
}

/* s += a^T b, a and b by rows of tokens. */
static inline void delta_collect(const struct delta_chunk *chunk, delta_rows a, delta_rows b, delta_state s)
{
	product_run_of(&(struct product){a[0], 1, MOST, b[0], s[0], chunk->k, chunk->count, chunk->v_vectors, 1}, MOST);
}

/* out (+)= a b, a(i,j) 0 where j > i. */
static inline void delta_lower(const struct delta_chunk *chunk, delta_pairs a, delta_rows b, delta_rows out, int64_t vectors, int add)
{
	for (int64_t i = 0; i < chunk->count; i += ROWS) {
		int64_t rows = chunk->count - i < ROWS ? chunk->count - i : ROWS;
		product_run_of(&(struct product){a[i], CHUNK, 1, b[0], out[i], rows, i + rows, vectors, add}, MOST);
	}
}

/* out (+)= a^T b, a(i,j) 0 where j > i. */
static inline void delta_lower_back(const struct delta_chunk *chunk, delta_pairs a, delta_rows b, delta_rows out, int64_t vectors, int add)
{
	for (int64_t j = 0; j < chunk->count; j += ROWS) {
		int64_t rows = chunk->count - j < ROWS ? chunk->count - j : ROWS;
		product_run_of(&(struct product){a[j] + j, 1, CHUNK, b[j], out[j], rows, chunk->count - j, vectors, add}, MOST);
	}
}

/* fade(i,j) = e^(gamma_i - gamma_j) for j <= i, else 0. */
static inline void delta_fade(const struct delta_chunk *chunk, const struct delta_gates *gates, delta_pairs fade)
{
	static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
	vi lanes;
	memcpy(&lanes, lane, sizeof lanes);
	for (int64_t i = 0; i < chunk->count; i++)
		for (int64_t j = 0; j < chunk->vectors * VF; j += VF) {
			vi is_seen = lanes + (int32_t)j <= (vi){0} + (int32_t)i;
			vf e = j <= i ? vf_exp(vf_set(gates->gamma[i]) - vf_load(gates->gamma + j)) : (vf){0};
			vf_store(fade[i] + j, vf_select(is_seen, e, (vf){0}));
		}
}

/* n(i,j) = -beta_i fade(i,j) pair(i,j) for j < i, else 0. */
static inline void delta_system(const struct delta_chunk *chunk, const struct delta_gates *gates, delta_pairs fade, delta_pairs pair,
                                delta_pairs n)
{
	for (int64_t i = 0; i < chunk->count; i++) {
		for (int64_t j = 0; j < chunk->vectors * VF; j += VF)
			vf_store(n[i] + j, vf_load(fade[i] + j) * vf_load(pair[i] + j) * -gates->beta[i]);
		n[i][i] = 0;
	}
}

/* x, the right sides, becomes the solution of (I - n) x = them. */
static inline void delta_solve(const struct delta_chunk *chunk, delta_pairs n, delta_rows x)
{
	for (int64_t b = 0; b < chunk->count; b += ROWS) {
		int64_t end = b + ROWS < chunk->count ? b + ROWS : chunk->count;
		if (b)
			product_run_of(&(struct product){n[b], CHUNK, 1, x[0], x[b], end - b, b, chunk->v_vectors, 1}, MOST);
		for (int64_t i = b + 1; i < end; i++)
			for (int64_t j = b; j < i; j++)
				delta_add(x[i], n[i][j], x[j], chunk->v_vectors);
	}
}

/* The same of (I - n)^T. */
static inline void delta_solve_back(const struct delta_chunk *chunk, delta_pairs n, delta_rows x)
{
	for (int64_t b = (chunk->count - 1) / ROWS * ROWS; b >= 0; b -= ROWS) {
		int64_t end = b + ROWS < chunk->count ? b + ROWS : chunk->count;
		if (end < chunk->count)
			product_run_of(
			        &(struct product){n[end] + b, 1, CHUNK, x[end], x[b], end - b, chunk->count - end, chunk->v_vectors, 1},
			        MOST);
		for (int64_t j = end - 2; j >= b; j--)
			for (int64_t i = j + 1; i < end; i++)
				delta_add(x[j], n[i][j], x[i], chunk->v_vectors);
	}
}

/* (k,v) between memory, its rows `stride` apart, and a state. */
static inline void delta_load_state(const struct delta_chunk *chunk, const float *from, int64_t stride, delta_state to)
{
	for (int64_t r = 0; r < chunk->k; r++)
		for (int64_t i = 0; i < chunk->v; i += VF)
			vf_store(to[r] + i, act_load(from + r * stride, i, chunk->v - i, 0));
}

static inline void delta_store_state(const struct delta_chunk *chunk, delta_state from, int64_t stride, float *to)
{
	for (int64_t r = 0; r < chunk->k; r++)
		for (int64_t i = 0; i < chunk->v; i += VF)
			act_store(to + r * stride, i, vf_load(from[r] + i), chunk->v - i, 0);
}

/* What the state takes in: d becomes D; v, the values, becomes V - e^gamma K S. */
static inline void delta_take_in(const struct delta_chunk *chunk, const struct delta_gates *gates, delta_rows k, delta_state s,
                                 delta_pairs n, delta_rows v, delta_rows d)
{
	delta_apply(chunk, k, chunk->k, s, d, chunk->v_vectors);
	for (int64_t r = 0; r < chunk->count; r++)
		for (int64_t i = 0; i < chunk->v_vectors * VF; i += VF) {
			vf left = vf_load(v[r] + i) - vf_load(d[r] + i) * gates->rise[r];
			vf_store(v[r] + i, left);
			vf_store(d[r] + i, left * gates->beta[r]);
		}
	delta_solve(chunk, n, d);
}

/* The state behind the chunk; space is overwritten. */
static inline void delta_advance(const struct delta_chunk *chunk, const struct delta_gates *gates, delta_rows k, delta_rows d,
                                 delta_rows space, delta_state s)
{
	for (int64_t r = 0; r < chunk->k; r++)
		delta_scale(s[r], gates->rise[chunk->count - 1], chunk->v_vectors);
	for (int64_t r = 0; r < chunk->count; r++)
		for (int64_t i = 0; i < chunk->v_vectors * VF; i += VF)
			vf_store(space[r] + i, vf_load(d[r] + i) * gates->fall[r]);
	delta_collect(chunk, k, space, s);
}

#endif
