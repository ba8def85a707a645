/* The gated delta rule, forward: one task is a value head through one document, chunk after chunk (delta.h). Of 64 tokens, K = V = 128, it
 * makes 4.2 million multiply-additions from 250 KB that stay in cache: products bind. */
#include "device/cpu/simd/delta.h"
#include "device/cpu/simd/simd.h"

struct forward {
	delta_rows q, k, v, d, o;
	delta_columns turned; /* k */
	delta_pairs fade, pair, n;
	delta_state s;
	struct delta_gates gates;
	float rstd[CHUNK];
};

/* n of the chunk's keys. */
static inline void make_system(const struct delta_chunk *chunk, struct forward *s)
{
	delta_transpose(chunk, s->k, chunk->k, s->turned);
	delta_pair(chunk, s->k, s->turned, chunk->k, s->pair);
	delta_fade(chunk, &s->gates, s->fade);
	delta_system(chunk, &s->gates, s->fade, s->pair, s->n);
}

SIMD_INLINE void load(const struct rh_op *op, const struct delta_chunk *chunk, int64_t head, struct forward *s, const int bf16)
{
	int64_t key = head / (op->delta.heads / op->delta.key_heads);
	delta_load(op->operand[RH_DELTA_K], chunk, key * chunk->k, chunk->k, s->k, bf16);
	delta_load(op->operand[RH_DELTA_V], chunk, head * chunk->v, chunk->v, s->v, bf16);
	delta_load_gates(op, chunk, head, &s->gates, bf16);
	delta_unit(chunk, s->k, 1, s->rstd);
}

/* The output, of the state before the chunk and what that takes in. */
SIMD_INLINE void make_output(const struct rh_op *op, const struct delta_chunk *chunk, int64_t head, struct forward *s, const int bf16)
{
	int64_t key = head / (op->delta.heads / op->delta.key_heads);
	delta_load(op->operand[RH_DELTA_Q], chunk, key * chunk->k, chunk->k, s->q, bf16);
	delta_unit(chunk, s->q, 1 / sqrtf((float)chunk->k), s->rstd);
	delta_pair(chunk, s->q, s->turned, chunk->k, s->pair);
	delta_apply(chunk, s->q, chunk->k, s->s, s->o, chunk->v_vectors);
	for (int64_t r = 0; r < chunk->count; r++) {
		delta_scale(s->o[r], s->gates.rise[r], chunk->v_vectors);
		for (int64_t j = 0; j < chunk->vectors * VF; j += VF)
			vf_store(s->pair[r] + j, vf_load(s->pair[r] + j) * vf_load(s->fade[r] + j));
	}
	delta_lower(chunk, s->pair, s->d, s->o, chunk->v_vectors, 1);
	delta_store(op->operand[RH_DELTA_O], chunk, head * chunk->v, chunk->v, s->o, bf16);
}

SIMD_INLINE void forward_chunk(const struct rh_op *op, const struct delta_chunk *chunk, int64_t head, struct forward *s, const int bf16)
{
	load(op, chunk, head, s, bf16);
	make_system(chunk, s);
	delta_take_in(chunk, &s->gates, s->k, s->s, s->n, s->v, s->d);
	if (op->operand[RH_DELTA_O].data)
		make_output(op, chunk, head, s, bf16);
	delta_advance(chunk, &s->gates, s->k, s->d, s->v, s->s);
}

/* A head's state before or behind the documents, or its gradient; absent: zeros. */
static inline void load_end(const struct delta_chunk *chunk, struct rh_view from, int64_t head, delta_state s)
{
	if (from.data)
		delta_load_state(chunk, row_at(from, head * chunk->k), from.stride, s);
	else
		memset(s, 0, sizeof(delta_state));
}

static inline void store_end(const struct delta_chunk *chunk, delta_state s, int64_t head, struct rh_view to)
{
	if (to.data)
		delta_store_state(chunk, s, to.stride, row_at(to, head * chunk->k));
}

/* What is there before a document, or behind it: absent but for the first one, or the last. */
static inline struct rh_view before_document(const struct rh_op *op, int operand, int64_t document)
{
	return document ? (struct rh_view){0} : op->operand[operand];
}

static inline struct rh_view behind_document(const struct rh_op *op, int operand, int64_t document)
{
	return document + 1 < op->delta.documents ? (struct rh_view){0} : op->operand[operand];
}

SIMD_INLINE void forward_head(const struct rh_op *op, int64_t document, int64_t head, const int bf16)
{
	struct rh_view start = op->operand[RH_DELTA_START];
	int64_t rows = op->operand[RH_DELTA_Q].rows, row = index_at(start, document, rows + 1),
	        end = index_at(start, document + 1, rows + 1);
	struct delta_chunk chunk = delta_chunk_at(op, row, end);
	struct forward s;
	load_end(&chunk, before_document(op, RH_DELTA_STATE, document), head, s.s);
	for (; row < end; row += CHUNK) {
		chunk = delta_chunk_at(op, row, end);
		forward_chunk(op, &chunk, head, &s, bf16);
	}
	store_end(&chunk, s.s, head, behind_document(op, RH_DELTA_END, document));
}

/* Units are documents x value heads. */
static void delta(const struct rh_op *op, int64_t first, int64_t end)
{
	for (int64_t unit = first; unit < end; unit++)
		BY_DTYPE(op->operand[RH_DELTA_Q].dtype, forward_head, op, unit / op->delta.heads, unit % op->delta.heads);
}

static struct cpu_span over_heads(const struct rh_op *op)
{
	return (struct cpu_span){op->delta.documents * op->delta.heads, 1};
}

const struct cpu_op SIMD(cpu_delta) = {{{delta, over_heads}}};

/* ---- backward ---- */

/* A chunk's state of a head, which its gradient replaces; and the head's two sums there, da_log's and ddt_bias's. */
static inline float *state_at(const struct rh_op *op, const struct delta_chunk *chunk, int64_t slot, int64_t head)
{
	return (float *)op->operand[RH_DELTA_BACKWARD_SPACE].data + (slot * op->delta.heads + head) * chunk->k * chunk->v;
}

static inline float *sums_at(const struct rh_op *op, int64_t k, int64_t v, int64_t slot, int64_t head)
{
	int64_t slots = rh_delta_slots(op->operand[RH_DELTA_Q].rows, op->delta.documents), heads = op->delta.heads;
	return (float *)op->operand[RH_DELTA_BACKWARD_SPACE].data + slots * heads * 2 * k * v + (slot * heads + head) * 2;
}

struct span_of_document {
	int64_t first, end, slot;
};

static inline struct span_of_document document_at(const struct rh_op *op, int64_t document)
{
	struct rh_view start = op->operand[RH_DELTA_START];
	int64_t rows = op->operand[RH_DELTA_Q].rows;
	struct span_of_document of = {index_at(start, document, rows + 1), index_at(start, document + 1, rows + 1), 0};
	of.slot = of.first / CHUNK + document;
	return of;
}

/* States before each chunk. */
SIMD_INLINE void states_of_head(const struct rh_op *op, int64_t document, int64_t head, const int bf16)
{
	struct span_of_document of = document_at(op, document);
	struct delta_chunk first = delta_chunk_at(op, of.first, of.end);
	struct forward s;
	load_end(&first, before_document(op, RH_DELTA_BACKWARD_STATE, document), head, s.s);
	for (int64_t row = of.first, slot = of.slot; row < of.end; row += CHUNK, slot++) {
		struct delta_chunk chunk = delta_chunk_at(op, row, of.end);
		delta_store_state(&chunk, s.s, chunk.v, state_at(op, &chunk, slot, head));
		if (row + CHUNK >= of.end)
			break;
		load(op, &chunk, head, &s, bf16);
		make_system(&chunk, &s);
		delta_take_in(&chunk, &s.gates, s.k, s.s, s.n, s.v, s.d);
		delta_advance(&chunk, &s.gates, s.k, s.d, s.v, s.s);
	}
}

static void delta_states(const struct rh_op *op, int64_t first, int64_t end)
{
	for (int64_t unit = first; unit < end; unit++)
		BY_DTYPE(op->operand[RH_DELTA_Q].dtype, states_of_head, op, unit / op->delta.heads, unit % op->delta.heads);
}

struct backward {
	delta_rows q, k, dq, dk; /* of the key head */
	delta_pairs qk, kk;
	delta_columns turned;                /* k, then d */
	delta_rows v, d, db, dv, d_o, space; /* v becomes V - e^gamma K S; db: gradient of the system's right sides */
	delta_pairs fade, p, n;
	delta_state s, ds, s_turned, ds_turned;
	struct delta_gates gates;
	float q_rstd[CHUNK], k_rstd[CHUNK], d_gamma[CHUNK], d_beta[CHUNK];
};

static inline void turn_state(const struct delta_chunk *chunk, delta_state from, delta_state to)
{
	for (int64_t j = 0; j < chunk->v; j++) {
		for (int64_t i = 0; i < chunk->k; i++)
			to[j][i] = from[i][j];
		for (int64_t i = chunk->k; i < chunk->k_vectors * VF; i++)
			to[j][i] = 0;
	}
}

/* dv and db: the gradients of D, of the system's right sides, and of V. */
static inline void right_sides(const struct delta_chunk *chunk, struct backward *s)
{
	for (int64_t r = 0; r < chunk->count; r++)
		for (int64_t j = 0; j < chunk->vectors * VF; j += VF)
			vf_store(s->p[r] + j, vf_load(s->qk[r] + j) * vf_load(s->fade[r] + j));
	delta_lower_back(chunk, s->p, s->d_o, s->db, chunk->v_vectors, 0);
	delta_apply(chunk, s->k, chunk->k, s->ds, s->space, chunk->v_vectors);
	for (int64_t r = 0; r < chunk->count; r++)
		delta_add(s->db[r], s->gates.fall[r], s->space[r], chunk->v_vectors);
	delta_solve_back(chunk, s->n, s->db);
	for (int64_t r = 0; r < chunk->count; r++) {
		s->d_beta[r] = delta_dot(s->db[r], s->v[r], chunk->v_vectors);
		for (int64_t i = 0; i < chunk->v_vectors * VF; i += VF)
			vf_store(s->dv[r] + i, vf_load(s->db[r] + i) * s->gates.beta[r]);
	}
}

/* Gradients of <q_i, k_j> and <k_i, k_j>, in the places of p and n; what they tell of gates. */
static inline void pairs_back(const struct delta_chunk *chunk, struct backward *s)
{
	delta_pairs dp, dn;
	float column[CHUNK] = {0};
	delta_transpose(chunk, s->d, chunk->v, s->turned);
	delta_pair(chunk, s->d_o, s->turned, chunk->v, dp);
	delta_pair(chunk, s->db, s->turned, chunk->v, dn);
	for (int64_t i = 0; i < chunk->count; i++) {
		vf row = {0}, of_beta = {0};
		for (int64_t j = 0; j < chunk->vectors * VF; j += VF) {
			vf fade = vf_load(s->fade[i] + j), p = vf_load(s->p[i] + j), n = vf_load(s->n[i] + j);
			vf of_p = vf_load(dp[i] + j), of_n = vf_load(dn[i] + j), moved = of_p * p + of_n * n;
			row += moved;
			vf_store(column + j, vf_load(column + j) + moved);
			vf of_kk = of_n * fade;
			of_beta -= of_kk * vf_load(s->kk[i] + j);
			vf_store(s->p[i] + j, of_p * fade);
			vf_store(s->n[i] + j, of_kk * -s->gates.beta[i]);
		}
		s->n[i][i] = 0;
		s->d_gamma[i] += vf_sum(row);
		s->d_beta[i] += vf_sum(of_beta) + dn[i][i] * s->kk[i][i]; /* the diagonal is no part of n */
	}
	for (int64_t j = 0; j < chunk->count; j++)
		s->d_gamma[j] -= column[j];
}

/* What products with the states tell of q, k and the gates. */
static inline void states_back(const struct delta_chunk *chunk, struct backward *s)
{
	int64_t last = chunk->count - 1, vectors = chunk->k_vectors;
	turn_state(chunk, s->s, s->s_turned);
	turn_state(chunk, s->ds, s->ds_turned);
	delta_apply(chunk, s->d_o, chunk->v, s->s_turned, s->space, vectors);
	for (int64_t r = 0; r <= last; r++) {
		delta_add(s->dq[r], s->gates.rise[r], s->space[r], vectors);
		s->d_gamma[r] += s->gates.rise[r] * delta_dot(s->space[r], s->q[r], vectors);
	}
	delta_apply(chunk, s->dv, chunk->v, s->s_turned, s->space, vectors);
	for (int64_t r = 0; r <= last; r++) {
		delta_add(s->dk[r], -s->gates.rise[r], s->space[r], vectors);
		s->d_gamma[r] -= s->gates.rise[r] * delta_dot(s->space[r], s->k[r], vectors);
	}
	delta_apply(chunk, s->d, chunk->v, s->ds_turned, s->space, vectors);
	for (int64_t r = 0; r <= last; r++) {
		float moved = s->gates.fall[r] * delta_dot(s->space[r], s->k[r], vectors);
		delta_add(s->dk[r], s->gates.fall[r], s->space[r], vectors);
		s->d_gamma[r] -= moved;
		s->d_gamma[last] += moved;
	}
	float kept = 0;
	for (int64_t i = 0; i < chunk->k; i++)
		kept += delta_dot(s->s[i], s->ds[i], chunk->v_vectors);
	s->d_gamma[last] += s->gates.rise[last] * kept;
}

/* ds: from the state behind the chunk to that before it. */
static inline void retreat(const struct delta_chunk *chunk, struct backward *s)
{
	for (int64_t i = 0; i < chunk->k; i++)
		delta_scale(s->ds[i], s->gates.rise[chunk->count - 1], chunk->v_vectors);
	for (int64_t r = 0; r < chunk->count; r++)
		for (int64_t i = 0; i < chunk->v_vectors * VF; i += VF)
			vf_store(s->space[r] + i, vf_load(s->d_o[r] + i) * s->gates.rise[r]);
	delta_collect(chunk, s->q, s->space, s->ds);
	for (int64_t r = 0; r < chunk->count; r++)
		for (int64_t i = 0; i < chunk->v_vectors * VF; i += VF)
			vf_store(s->space[r] + i, vf_load(s->dv[r] + i) * -s->gates.rise[r]);
	delta_collect(chunk, s->k, s->space, s->ds);
}

SIMD_INLINE void put_act(struct rh_view view, int64_t row, int64_t col, float value, const int bf16)
{
	void *at = row_at(view, row);
	if (bf16)
		((uint16_t *)at)[col] = rh_f32_to_bf16(value);
	else
		((float *)at)[col] = value;
}

/* A token's g counts in the gamma of all from it on. */
SIMD_INLINE void gates_back(const struct rh_op *op, const struct delta_chunk *chunk, int64_t head, const struct backward *s, float *sums,
                            const int bf16)
{
	float dg = 0;
	sums[0] = sums[1] = 0;
	for (int64_t i = chunk->count - 1; i >= 0; i--) {
		float beta = s->gates.beta[i], da;
		dg += s->d_gamma[i];
		da = dg * s->gates.rate / (1 + expf(-s->gates.x[i]));
		put_act(op->operand[RH_DELTA_BACKWARD_DA], chunk->row + i, head, da, bf16);
		put_act(op->operand[RH_DELTA_BACKWARD_DB], chunk->row + i, head, s->d_beta[i] * beta * (1 - beta), bf16);
		sums[0] += dg * s->gates.rate * s->gates.soft[i];
		sums[1] += da;
	}
}

/* One value head: its gradients, what it adds to those of its key head, and ds. */
SIMD_INLINE void head_back(const struct rh_op *op, const struct delta_chunk *chunk, int64_t head, struct backward *s, float *sums,
                           const int bf16)
{
	delta_load(op->operand[RH_DELTA_V], chunk, head * chunk->v, chunk->v, s->v, bf16);
	delta_load(op->operand[RH_DELTA_BACKWARD_DO], chunk, head * chunk->v, chunk->v, s->d_o, bf16);
	delta_load_gates(op, chunk, head, &s->gates, bf16);
	memset(s->d_gamma, 0, sizeof s->d_gamma);
	delta_fade(chunk, &s->gates, s->fade);
	delta_system(chunk, &s->gates, s->fade, s->kk, s->n);
	delta_take_in(chunk, &s->gates, s->k, s->s, s->n, s->v, s->d);
	right_sides(chunk, s);
	pairs_back(chunk, s);
	states_back(chunk, s);
	delta_lower(chunk, s->p, s->k, s->dq, chunk->k_vectors, 1);
	delta_lower_back(chunk, s->p, s->q, s->dk, chunk->k_vectors, 1);
	delta_lower(chunk, s->n, s->k, s->dk, chunk->k_vectors, 1);
	delta_lower_back(chunk, s->n, s->k, s->dk, chunk->k_vectors, 1);
	retreat(chunk, s);
	delta_store(op->operand[RH_DELTA_BACKWARD_DV], chunk, head * chunk->v, chunk->v, s->dv, bf16);
	gates_back(op, chunk, head, s, sums, bf16);
}

/* Through the division by the vectors' lengths; d becomes the gradient of what was read. */
static inline void unit_back(const struct delta_chunk *chunk, delta_rows unit, float scale, const float rstd[CHUNK], delta_rows d)
{
	for (int64_t r = 0; r < chunk->count; r++) {
		float along = delta_dot(unit[r], d[r], chunk->k_vectors) / (scale * scale);
		for (int64_t i = 0; i < chunk->k_vectors * VF; i += VF)
			vf_store(d[r] + i, (vf_load(d[r] + i) - vf_load(unit[r] + i) * along) * (rstd[r] * scale));
	}
}

SIMD_INLINE void key_chunk_back(const struct rh_op *op, const struct delta_chunk *chunk, int64_t key, struct backward *s, const int bf16)
{
	float scale = 1 / sqrtf((float)chunk->k);
	delta_load(op->operand[RH_DELTA_Q], chunk, key * chunk->k, chunk->k, s->q, bf16);
	delta_load(op->operand[RH_DELTA_K], chunk, key * chunk->k, chunk->k, s->k, bf16);
	delta_unit(chunk, s->q, scale, s->q_rstd);
	delta_unit(chunk, s->k, 1, s->k_rstd);
	delta_transpose(chunk, s->k, chunk->k, s->turned);
	delta_pair(chunk, s->q, s->turned, chunk->k, s->qk);
	delta_pair(chunk, s->k, s->turned, chunk->k, s->kk);
	memset(s->dq, 0, sizeof s->dq);
	memset(s->dk, 0, sizeof s->dk);
}

/* The gradient of the state behind a document is that before it where the document has no tokens. */
static inline void pass_on(const struct rh_op *op, int64_t document, int64_t key, const struct delta_chunk *none, delta_state ds)
{
	int64_t group = op->delta.heads / op->delta.key_heads;
	for (int64_t head = key * group; head < (key + 1) * group; head++) {
		load_end(none, behind_document(op, RH_DELTA_BACKWARD_D_END, document), head, ds);
		store_end(none, ds, head, before_document(op, RH_DELTA_BACKWARD_D_STATE, document));
	}
}

SIMD_INLINE void backward_key(const struct rh_op *op, int64_t document, int64_t key, const int bf16)
{
	struct span_of_document of = document_at(op, document);
	int64_t chunks = (of.end - of.first + CHUNK - 1) / CHUNK, group = op->delta.heads / op->delta.key_heads;
	struct delta_chunk chunk = delta_chunk_at(op, of.first, of.end);
	struct backward s;
	if (!chunks)
		pass_on(op, document, key, &chunk, s.ds);
	for (int64_t c = chunks - 1; c >= 0; c--) {
		chunk = delta_chunk_at(op, of.first + c * CHUNK, of.end);
		key_chunk_back(op, &chunk, key, &s, bf16);
		for (int64_t head = key * group; head < (key + 1) * group; head++) {
			delta_load_state(&chunk, state_at(op, &chunk, of.slot + c, head), chunk.v, s.s);
			if (c + 1 < chunks)
				delta_load_state(&chunk, state_at(op, &chunk, of.slot + c + 1, head), chunk.v, s.ds);
			else
				load_end(&chunk, behind_document(op, RH_DELTA_BACKWARD_D_END, document), head, s.ds);
			head_back(op, &chunk, head, &s, sums_at(op, chunk.k, chunk.v, of.slot + c, head), bf16);
			delta_store_state(&chunk, s.ds, chunk.v, state_at(op, &chunk, of.slot + c, head));
			if (!c)
				store_end(&chunk, s.ds, head, before_document(op, RH_DELTA_BACKWARD_D_STATE, document));
		}
		unit_back(&chunk, s.q, 1 / sqrtf((float)chunk.k), s.q_rstd, s.dq);
		unit_back(&chunk, s.k, 1, s.k_rstd, s.dk);
		delta_store(op->operand[RH_DELTA_BACKWARD_DQ], &chunk, key * chunk.k, chunk.k, s.dq, bf16);
		delta_store(op->operand[RH_DELTA_BACKWARD_DK], &chunk, key * chunk.k, chunk.k, s.dk, bf16);
	}
}

/* Units are documents x key heads. */
static void delta_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	for (int64_t unit = first; unit < end; unit++)
		BY_DTYPE(op->operand[RH_DELTA_Q].dtype, backward_key, op, unit / op->delta.key_heads, unit % op->delta.key_heads);
}

static struct cpu_span over_key_heads(const struct rh_op *op)
{
	return (struct cpu_span){op->delta.documents * op->delta.key_heads, 1};
}

/* Units are value heads. */
static void delta_sums(const struct rh_op *op, int64_t first, int64_t end)
{
	float *out[2] = {op->operand[RH_DELTA_BACKWARD_DA_LOG].data, op->operand[RH_DELTA_BACKWARD_DDT_BIAS].data};
	int64_t k = op->operand[RH_DELTA_Q].cols / op->delta.key_heads, v = op->operand[RH_DELTA_V].cols / op->delta.heads;
	for (int64_t head = first; head < end; head++)
		for (int which = 0; which < 2; which++) {
			float total = 0;
			for (int64_t d = 0; d < op->delta.documents; d++) {
				struct span_of_document of = document_at(op, d);
				for (int64_t row = of.first, slot = of.slot; row < of.end; row += CHUNK, slot++)
					total += sums_at(op, k, v, slot, head)[which];
			}
			if (out[which])
				out[which][head] += total;
		}
}

static struct cpu_span over_value_heads(const struct rh_op *op)
{
	return (struct cpu_span){op->delta.heads, 1};
}

const struct cpu_op SIMD(cpu_delta_backward) = {
        {{delta_states, over_heads}, {delta_backward, over_key_heads}, {delta_sums, over_value_heads}}};
