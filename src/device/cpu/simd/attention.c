/* Attention, forward: one task is a block of queries of one key head, which goes through its keys BLOCK at a time with a running maximum
 * and sum. Keys and values are read once a task, from cache; products are 4 D flops a visible pair and bind. */
#include "device/cpu/simd/attention.h"
#include "device/cpu/simd/simd.h"

struct forward {
	panel q, o;
	float k[BLOCK * DEPTH], v[BLOCK * DEPTH];
	float score[BLOCK][LANES], drop[BLOCK][LANES];
	float largest[LANES], sum[LANES];
	const void *q_row[LANES];
	void *o_row[LANES];
	struct attention_sight sight;
} __attribute__((aligned(64)));

/* Scores of `count` keys from `key` on become probabilities relative to the new maximum; what was summed so far is scaled to it. */
SIMD_INLINE void online_softmax(struct forward *s, int64_t key, int64_t count, int64_t vector, int64_t dim, const int masked)
{
	const vf none = vf_set(-INFINITY);
	int64_t lane = vector * VF;
	vf before = vf_load(s->largest + lane), largest = before;
	vi above, upto;
	memcpy(&above, s->sight.low + lane, sizeof above);
	memcpy(&upto, s->sight.high + lane, sizeof upto);
	for (int64_t r = 0; r < count; r++) {
		vf score = vf_load(&s->score[r][lane]);
		if (masked) {
			vi at = (vi){0} + (int32_t)(key + r);
			score = vf_select((at > above) & (at <= upto), score, none);
			vf_store(&s->score[r][lane], score);
		}
		largest = vf_max(largest, score);
	}
	vf from = vf_select(largest == none, (vf){0}, largest); /* no key seen yet: all stays zero */
	vf fade = vf_exp(before - from), sum = vf_load(s->sum + lane) * fade;
	for (int64_t r = 0; r < count; r++) {
		vf p = vf_exp(vf_load(&s->score[r][lane]) - from);
		sum += p;
		vf_store(&s->score[r][lane], p);
	}
	vf_store(s->sum + lane, sum);
	vf_store(s->largest + lane, largest);
	for (int64_t i = 0; i < dim; i++)
		vf_store(&s->o[i][lane], vf_load(&s->o[i][lane]) * fade);
}

/* Probabilities that are summed up already lose what is dropped. */
SIMD_INLINE void drop_some(const struct rh_op *op, const struct attention_task *task, struct forward *s, int64_t key, int64_t count)
{
	int64_t lanes = task->count * task->heads;
	for (int64_t lane = 0; lane < lanes; lane++)
		attention_drop(op, task->q0 + task->first + lane / task->heads, task->head + lane % task->heads, task->k0 + key, count,
		               &s->drop[0][lane], LANES);
	for (int64_t r = 0; r < count; r++)
		for (int64_t lane = 0; lane < lanes; lane++)
			s->score[r][lane] *= s->drop[r][lane];
}

SIMD_INLINE void visit_keys(const struct rh_op *op, const struct attention_task *task, struct forward *s, const int bf16)
{
	int64_t dim = task->dim, lanes = task->count * task->heads, vectors = (lanes + VF - 1) / VF;
	for (int64_t key = s->sight.first; key < s->sight.end; key += BLOCK) {
		int64_t count = s->sight.end - key < BLOCK ? s->sight.end - key : BLOCK;
		for (int64_t r = 0; r < count; r++) {
			row_load(s->k + r * dim, head_at(op->operand[RH_ATTENTION_K], task->k0 + key + r, task->kv_head, dim), dim, 1,
			         bf16);
			row_load(s->v + r * dim, head_at(op->operand[RH_ATTENTION_V], task->k0 + key + r, task->kv_head, dim), dim, 1,
			         bf16);
		}
		product_run(&(struct product){s->k, dim, 1, s->q[0], s->score[0], count, dim, vectors, 0});
		int masked = key < s->sight.all_first || key + count > s->sight.all_end;
		for (int64_t vector = 0; vector < vectors; vector++) {
			if (masked)
				online_softmax(s, key, count, vector, dim, 1);
			else
				online_softmax(s, key, count, vector, dim, 0);
		}
		if (op->attention.p > 0)
			drop_some(op, task, s, key, count);
		product_run(&(struct product){s->v, 1, dim, s->score[0], s->o[0], dim, count, vectors, 1});
	}
}

SIMD_INLINE void forward_task(const struct rh_op *op, const struct attention_task *task, const int bf16)
{
	struct forward s;
	int64_t lanes = task->count * task->heads;
	attention_look(task, &s.sight);
	for (int64_t lane = 0; lane < LANES; lane++) {
		const void *sink = op->operand[RH_ATTENTION_SINK].data;
		int64_t head = task->head + lane % task->heads;
		s.largest[lane] = !sink ? -INFINITY : bf16 ? rh_bf16_to_f32(((const uint16_t *)sink)[head]) : ((const float *)sink)[head];
		s.sum[lane] = sink ? 1 : 0;
	}
	for (int64_t lane = 0; lane < lanes; lane++) {
		int64_t row = task->q0 + task->first + lane / task->heads, head = task->head + lane % task->heads;
		s.q_row[lane] = head_at(op->operand[RH_ATTENTION_Q], row, head, task->dim);
		s.o_row[lane] = head_at(op->operand[RH_ATTENTION_O], row, head, task->dim);
	}
	panel_load(s.q, s.q_row, lanes, task->dim, op->attention.scale, bf16);
	panel_clear(s.o, task->dim);
	visit_keys(op, task, &s, bf16);
	for (int64_t lane = 0; lane < lanes; lane++) {
		int64_t row = task->q0 + task->first + lane / task->heads, head = task->head + lane % task->heads;
		((float *)row_at(op->operand[RH_ATTENTION_LSE], row))[head] =
		        s.sum[lane] > 0 ? s.largest[lane] + logf(s.sum[lane]) : -INFINITY;
	}
	for (int64_t lane = 0; lane < LANES; lane++)
		s.sum[lane] = s.sum[lane] > 0 ? 1 / s.sum[lane] : 0;
	panel_store(s.o_row, s.o, s.sum, lanes, task->dim, bf16);
}

/* Units are attention_query_slots x key heads x head blocks. */
static void attention(const struct rh_op *op, int64_t first, int64_t end)
{
	struct attention_task task;
	for (int64_t unit = first; unit < end; unit++)
		if (attention_query_task(op, unit, &task))
			BY_DTYPE(op->operand[RH_ATTENTION_Q].dtype, forward_task, op, &task);
}

const struct cpu_op SIMD(cpu_attention) = {{{attention, cpu_query_blocks}}};
