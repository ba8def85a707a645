/* Attention, backward, in two passes that both recompute the probabilities: dq with queries in the lanes, then dk and dv with keys in the
 * lanes. 14 D flops a visible pair where one pass would do with 10, but no sum crosses tasks, so that none depends on their order. The
 * second pass walks the rows of queries last to first, in tiles counted from the document's start, as sums of later queries come first. */
#include "device/cpu/simd/attention.h"
#include "device/cpu/simd/simd.h"

struct by_query {
	panel q, d_o, dq;
	float k[BLOCK * DEPTH], v[BLOCK * DEPTH];
	float score[BLOCK][LANES], dp[BLOCK][LANES], drop[BLOCK][LANES];
	float lse[LANES], delta[LANES], scale[LANES];
	const void *q_row[LANES], *do_row[LANES];
	void *dq_row[LANES];
	struct attention_sight sight;
} __attribute__((aligned(64)));

/* dp becomes the gradient of the scaled scores: p (dp - delta). */
SIMD_INLINE void query_gradient(struct by_query *s, int64_t key, int64_t count, int64_t vector)
{
	int64_t lane = vector * VF;
	vf lse = vf_load(s->lse + lane), delta = vf_load(s->delta + lane);
	vi above, upto;
	memcpy(&above, s->sight.low + lane, sizeof above);
	memcpy(&upto, s->sight.high + lane, sizeof upto);
	for (int64_t r = 0; r < count; r++) {
		vi at = (vi){0} + (int32_t)(key + r);
		vf p = vf_exp(vf_load(&s->score[r][lane]) - lse);
		vf ds = p * (vf_load(&s->dp[r][lane]) - delta);
		vf_store(&s->dp[r][lane], vf_select((at > above) & (at <= upto), ds, (vf){0}));
	}
}

SIMD_INLINE float dot_rows(const void *a, const void *b, int64_t n, const int bf16)
{
	vf sum = {0};
	for (int64_t i = 0; i < n; i += VF)
		sum += act_load(a, i, n - i, bf16) * act_load(b, i, n - i, bf16);
	return vf_sum(sum);
}

SIMD_INLINE void query_lanes(const struct rh_op *op, const struct attention_task *task, struct by_query *s, const int bf16)
{
	int64_t lanes = task->count * task->heads, dim = task->dim;
	memset(s->lse, 0, sizeof s->lse);
	memset(s->delta, 0, sizeof s->delta);
	for (int64_t lane = 0; lane < lanes; lane++) {
		int64_t row = task->q0 + task->first + lane / task->heads, head = task->head + lane % task->heads;
		s->q_row[lane] = head_at(op->operand[RH_ATTENTION_BACKWARD_Q], row, head, dim);
		s->do_row[lane] = head_at(op->operand[RH_ATTENTION_BACKWARD_DO], row, head, dim);
		s->dq_row[lane] = head_at(op->operand[RH_ATTENTION_BACKWARD_DQ], row, head, dim);
		s->lse[lane] = ((const float *)row_at(op->operand[RH_ATTENTION_BACKWARD_LSE], row))[head];
		s->delta[lane] = dot_rows(head_at(op->operand[RH_ATTENTION_BACKWARD_O], row, head, dim), s->do_row[lane], dim, bf16);
		((float *)row_at(op->operand[RH_ATTENTION_BACKWARD_DELTA], row))[head] = s->delta[lane];
	}
	panel_load(s->q, s->q_row, lanes, dim, op->attention.scale, bf16);
	panel_load(s->d_o, s->do_row, lanes, dim, 1, bf16);
	panel_clear(s->dq, dim);
}

/* dp of what was kept. */
SIMD_INLINE void drop_query_gradient(const struct rh_op *op, const struct attention_task *task, struct by_query *s, int64_t key,
                                     int64_t count)
{
	int64_t lanes = task->count * task->heads;
	for (int64_t lane = 0; lane < lanes; lane++)
		attention_drop(op, task->q0 + task->first + lane / task->heads, task->head + lane % task->heads, task->k0 + key, count,
		               &s->drop[0][lane], LANES);
	for (int64_t r = 0; r < count; r++)
		for (int64_t lane = 0; lane < lanes; lane++)
			s->dp[r][lane] *= s->drop[r][lane];
}

SIMD_INLINE void dq_task(const struct rh_op *op, const struct attention_task *task, const int bf16)
{
	struct by_query s;
	int64_t lanes = task->count * task->heads, dim = task->dim, vectors = (lanes + VF - 1) / VF;
	struct rh_view k = op->operand[RH_ATTENTION_BACKWARD_K], v = op->operand[RH_ATTENTION_BACKWARD_V];
	attention_look(task, &s.sight);
	query_lanes(op, task, &s, bf16);
	for (int64_t key = s.sight.first; key < s.sight.end; key += BLOCK) {
		int64_t count = s.sight.end - key < BLOCK ? s.sight.end - key : BLOCK;
		for (int64_t r = 0; r < count; r++) {
			row_load(s.k + r * dim, head_at(k, task->k0 + key + r, task->kv_head, dim), dim, 1, bf16);
			row_load(s.v + r * dim, head_at(v, task->k0 + key + r, task->kv_head, dim), dim, 1, bf16);
		}
		product_run(&(struct product){s.k, dim, 1, s.q[0], s.score[0], count, dim, vectors, 0});
		product_run(&(struct product){s.v, dim, 1, s.d_o[0], s.dp[0], count, dim, vectors, 0});
		if (op->attention.p > 0)
			drop_query_gradient(op, task, &s, key, count);
		for (int64_t vector = 0; vector < vectors; vector++)
			query_gradient(&s, key, count, vector);
		product_run(&(struct product){s.k, 1, dim, s.dp[0], s.dq[0], dim, count, vectors, 1});
	}
	for (int lane = 0; lane < LANES; lane++)
		s.scale[lane] = op->attention.scale;
	panel_store(s.dq_row, s.dq, s.scale, lanes, dim, bf16);
}

/* Units are attention_query_slots x key heads x head blocks. Also makes delta, which the second pass reads. */
static void attention_backward_dq(const struct rh_op *op, int64_t first, int64_t end)
{
	struct attention_task task;
	for (int64_t unit = first; unit < end; unit++)
		if (attention_query_task(op, unit, &task))
			BY_DTYPE(op->operand[RH_ATTENTION_BACKWARD_Q].dtype, dq_task, op, &task);
}

struct by_key {
	panel k, v, dk, dv;
	float q[BLOCK * DEPTH], d_o[BLOCK * DEPTH];
	float score[BLOCK][LANES], dp[BLOCK][LANES], drop[BLOCK][LANES];
	float lse[BLOCK], delta[BLOCK], one[LANES];
	int32_t low[BLOCK], high[BLOCK]; /* the keys that a query sees, as in attention_sight */
	const void *k_row[LANES], *v_row[LANES];
	void *dk_row[LANES], *dv_row[LANES];
	void *dk_sum[LANES], *dv_sum[LANES];
} __attribute__((aligned(64)));

/* Scores become p, and dp the gradient of the scaled scores. */
SIMD_INLINE void key_gradient(struct by_key *s, int64_t key, int64_t count, int64_t vector)
{
	int64_t lane = vector * VF;
	vi at;
	for (int i = 0; i < VF; i++)
		at[i] = (int32_t)(key + lane) + i;
	for (int64_t r = 0; r < count; r++) {
		vi seen = (at > s->low[r]) & (at <= s->high[r]);
		vf p = vf_select(seen, vf_exp(vf_load(&s->score[r][lane]) - s->lse[r]), (vf){0});
		vf ds = vf_select(seen, p * (vf_load(&s->dp[r][lane]) - s->delta[r]), (vf){0});
		vf_store(&s->score[r][lane], p);
		vf_store(&s->dp[r][lane], ds);
	}
}

/* Query rows [begin, begin + count): row r is position r / heads - ahead of the task's queries, head r % heads. */
SIMD_INLINE void query_rows(const struct rh_op *op, const struct attention_task *task, struct by_key *s, int64_t ahead, int64_t begin,
                            int64_t count, const int bf16)
{
	int64_t dim = task->dim;
	for (int64_t r = 0; r < count; r++) {
		int64_t i = (begin + r) / task->heads - ahead, row = task->q0 + i, head = task->head + (begin + r) % task->heads;
		row_load(s->q + r * dim, head_at(op->operand[RH_ATTENTION_BACKWARD_Q], row, head, dim), dim, op->attention.scale, bf16);
		row_load(s->d_o + r * dim, head_at(op->operand[RH_ATTENTION_BACKWARD_DO], row, head, dim), dim, 1, bf16);
		s->lse[r] = ((const float *)row_at(op->operand[RH_ATTENTION_BACKWARD_LSE], row))[head];
		s->delta[r] = ((const float *)row_at(op->operand[RH_ATTENTION_BACKWARD_DELTA], row))[head];
		s->high[r] = (int32_t)attention_upto(task, i);
		s->low[r] = (int32_t)attention_above(task, i);
	}
}

SIMD_INLINE void find_dropped(const struct rh_op *op, const struct attention_task *task, struct by_key *s, int64_t ahead, int64_t begin,
                              int64_t count)
{
	for (int64_t r = 0; r < count; r++)
		attention_drop(op, task->q0 + (begin + r) / task->heads - ahead, task->head + (begin + r) % task->heads,
		               task->k0 + task->first, task->count, s->drop[r], 1);
}

SIMD_INLINE void drop_from(float (*of)[LANES], const struct by_key *s, int64_t count, int64_t lanes)
{
	for (int64_t r = 0; r < count; r++)
		for (int64_t lane = 0; lane < lanes; lane++)
			of[r][lane] *= s->drop[r][lane];
}

SIMD_INLINE void key_lanes(const struct rh_op *op, const struct attention_task *task, struct by_key *s, const int bf16)
{
	struct rh_view dk_sum = op->operand[RH_ATTENTION_BACKWARD_DK_SUM], dv_sum = op->operand[RH_ATTENTION_BACKWARD_DV_SUM];
	int64_t dim = task->dim, ahead = task->lk - task->lq;
	RH_ASSERT(!dk_sum.data || ahead >= 0);
	for (int64_t lane = 0; lane < task->count; lane++) {
		int64_t key = task->first + lane, row = task->k0 + key, to = dk_sum.data ? task->q0 + key - ahead : row;
		int is_given = !dk_sum.data || key >= ahead;
		s->k_row[lane] = head_at(op->operand[RH_ATTENTION_BACKWARD_K], row, task->kv_head, dim);
		s->v_row[lane] = head_at(op->operand[RH_ATTENTION_BACKWARD_V], row, task->kv_head, dim);
		s->dk_row[lane] = is_given ? head_at(op->operand[RH_ATTENTION_BACKWARD_DK], to, task->kv_head, dim) : NULL;
		s->dv_row[lane] = is_given ? head_at(op->operand[RH_ATTENTION_BACKWARD_DV], to, task->kv_head, dim) : NULL;
		s->dk_sum[lane] = dk_sum.data ? head_at(dk_sum, row, task->kv_head, dim) : NULL;
		s->dv_sum[lane] = dk_sum.data ? head_at(dv_sum, row, task->kv_head, dim) : NULL;
	}
	for (int lane = 0; lane < LANES; lane++)
		s->one[lane] = 1;
	panel_load(s->k, s->k_row, task->count, dim, 1, bf16);
	panel_load(s->v, s->v_row, task->count, dim, 1, bf16);
	if (dk_sum.data) {
		panel_load(s->dk, (const void *const *)s->dk_sum, task->count, dim, 1, 0);
		panel_load(s->dv, (const void *const *)s->dv_sum, task->count, dim, 1, 0);
	} else {
		panel_clear(s->dk, dim);
		panel_clear(s->dv, dim);
	}
}

SIMD_INLINE void dk_dv_task(const struct rh_op *op, const struct attention_task *task, const int bf16)
{
	struct by_key s;
	int64_t dim = task->dim, shift = task->lk - task->lq, vectors = (task->count + VF - 1) / VF;
	int64_t first = task->first - shift, end = task->lq; /* positions that see a key of the block */
	if (task->is_bidirectional)
		first = task->window > 0 ? first - task->window + 1 : 0;
	first = first > 0 ? first : 0;
	if (task->window > 0 && task->first + task->count - 1 - shift + task->window < end)
		end = task->first + task->count - 1 - shift + task->window;
	int64_t ahead = shift > 0 ? shift : 0, low = (first + ahead) * task->heads, high = end > first ? (end + ahead) * task->heads : low;
	key_lanes(op, task, &s, bf16);
	for (int64_t tile = high > low ? (high - 1) / BLOCK * BLOCK : -BLOCK; tile + BLOCK > low; tile -= BLOCK) {
		int64_t begin = tile > low ? tile : low, count = (tile + BLOCK < high ? tile + BLOCK : high) - begin;
		query_rows(op, task, &s, ahead, begin, count, bf16);
		product_run(&(struct product){s.q, dim, 1, s.k[0], s.score[0], count, dim, vectors, 0});
		product_run(&(struct product){s.d_o, dim, 1, s.v[0], s.dp[0], count, dim, vectors, 0});
		if (op->attention.p > 0) {
			find_dropped(op, task, &s, ahead, begin, count);
			drop_from(s.dp, &s, count, task->count);
		}
		for (int64_t vector = 0; vector < vectors; vector++)
			key_gradient(&s, task->first, count, vector);
		if (op->attention.p > 0)
			drop_from(s.score, &s, count, task->count);
		product_run(&(struct product){s.d_o, 1, dim, s.score[0], s.dv[0], dim, count, vectors, 1});
		product_run(&(struct product){s.q, 1, dim, s.dp[0], s.dk[0], dim, count, vectors, 1});
	}
	if (s.dk_sum[0]) {
		panel_store(s.dk_sum, s.dk, s.one, task->count, dim, 0);
		panel_store(s.dv_sum, s.dv, s.one, task->count, dim, 0);
	}
	panel_store(s.dk_row, s.dk, s.one, task->count, dim, bf16);
	panel_store(s.dv_row, s.dv, s.one, task->count, dim, bf16);
}

/* Units are heads. */
static void attention_backward_dsink(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view sink = op->operand[RH_ATTENTION_BACKWARD_SINK], dsink = op->operand[RH_ATTENTION_BACKWARD_DSINK];
	struct rh_view start = op->operand[RH_ATTENTION_BACKWARD_START_Q];
	int64_t limit = op->operand[RH_ATTENTION_BACKWARD_Q].rows + 1;
	int64_t begin = index_at(start, 0, limit), stop = index_at(start, op->attention.documents, limit);
	for (int64_t head = first; sink.data && dsink.data && head < end; head++) {
		int bf16 = sink.dtype == RH_BF16;
		float logit = bf16 ? rh_bf16_to_f32(((const uint16_t *)sink.data)[head]) : ((const float *)sink.data)[head];
		double sum = 0;
		for (int64_t row = begin; row < stop; row++) {
			const float *lse = row_at(op->operand[RH_ATTENTION_BACKWARD_LSE], row);
			const float *delta = row_at(op->operand[RH_ATTENTION_BACKWARD_DELTA], row);
			sum -= (double)(expf(logit - lse[head]) * delta[head]);
		}
		((float *)dsink.data)[head] += (float)sum;
	}
}

/* Units are attention_key_slots x key heads. */
static void attention_backward_dk_dv(const struct rh_op *op, int64_t first, int64_t end)
{
	struct attention_task task;
	for (int64_t unit = first; unit < end; unit++)
		if (attention_key_task(op, unit, &task))
			BY_DTYPE(op->operand[RH_ATTENTION_BACKWARD_Q].dtype, dk_dv_task, op, &task);
}

static struct cpu_span key_blocks(const struct rh_op *op)
{
	return (struct cpu_span){attention_key_slots(op) * op->attention.kv_heads, 1};
}

static struct cpu_span heads_span(const struct rh_op *op)
{
	return (struct cpu_span){op->attention.heads, 1};
}

const struct cpu_op SIMD(cpu_attention_backward) = {
        {{attention_backward_dq, cpu_query_blocks}, {attention_backward_dk_dv, key_blocks}, {attention_backward_dsink, heads_span}}};
