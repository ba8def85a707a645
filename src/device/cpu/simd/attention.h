/* What the passes of attention share: which rows a task works on, and rows of q, k, v as panels.
 *
 * A panel is (depth, ATTENTION_LANES) floats: lanes are queries (pairs of position and head) or keys, as the pass has it. */
#ifndef RH_DEVICE_CPU_SIMD_ATTENTION_H
#define RH_DEVICE_CPU_SIMD_ATTENTION_H

#include "core/philox.h"
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/product.h"

#include <math.h>

enum {
	LANES = ATTENTION_LANES,
	VECTORS = LANES / VF,
	DEPTH = RH_OP_MAX_HEAD_DIM,
	BLOCK = 64, /* rows that are not lanes, at once */
};

typedef float panel[DEPTH][LANES] __attribute__((aligned(64)));

/* A document's rows and the key head that a task is about. Operands 0 to 4 are the same in forward and backward. */
struct attention_task {
	int64_t q0, lq, k0, lk;
	int64_t kv_head, dim, group, window;
	int is_bidirectional; /* directions */
	int64_t first, count; /* the lanes' positions (or keys) within the document */
	int64_t head, heads;  /* query heads in the lanes */
};

/* Slot's document and the place of its block in units of `positions`; 0 if the slot is empty. */
static inline int attention_find(const struct rh_op *op, int64_t slot, int64_t positions, int keys, struct attention_task *task)
{
	struct rh_view start_q = op->operand[RH_ATTENTION_START_Q], start_k = op->operand[RH_ATTENTION_START_K];
	struct rh_view start = keys ? start_k : start_q;
	int64_t limit_q = op->operand[RH_ATTENTION_Q].rows + 1, limit_k = op->operand[RH_ATTENTION_K].rows + 1;
	int64_t low = 0, high = op->attention.documents; /* the last document whose first slot is not beyond */
	while (high - low > 1) {
		int64_t middle = low + (high - low) / 2;
		if (index_at(start, middle, keys ? limit_k : limit_q) / positions + middle <= slot)
			low = middle;
		else
			high = middle;
	}
	task->q0 = index_at(start_q, low, limit_q);
	task->k0 = index_at(start_k, low, limit_k);
	task->lq = index_at(start_q, low + 1, limit_q) - task->q0;
	task->lk = index_at(start_k, low + 1, limit_k) - task->k0;
	RH_ASSERT(task->lq >= 0 && task->lk >= 0);
	task->group = op->attention.heads / op->attention.kv_heads;
	task->dim = op->operand[RH_ATTENTION_Q].cols / op->attention.heads;
	task->window = op->attention.window;
	task->is_bidirectional = op->attention.direction == RH_ATTENTION_BOTH;
	int64_t rows = keys ? task->lk : task->lq, begin = keys ? task->k0 : task->q0;
	task->first = (slot - begin / positions - low) * positions;
	task->count = rows - task->first < positions ? rows - task->first : positions;
	return task->first >= 0 && task->count > 0;
}

/* Task `unit` of a pass whose lanes are queries. Late positions, which see most keys, come first: they would be waited for. */
static inline int attention_query_task(const struct rh_op *op, int64_t unit, struct attention_task *task)
{
	int64_t blocks = attention_head_blocks(op), kv_heads = op->attention.kv_heads;
	int64_t slot = attention_query_slots(op) - 1 - unit / (blocks * kv_heads);
	if (!attention_find(op, slot, attention_block_positions(op), 0, task))
		return 0;
	int64_t block = unit % blocks;
	task->kv_head = unit / blocks % kv_heads;
	task->head = task->kv_head * task->group + block * attention_block_heads(op);
	task->heads = attention_block_heads(op);
	if (task->heads > (task->kv_head + 1) * task->group - task->head)
		task->heads = (task->kv_head + 1) * task->group - task->head;
	return 1;
}

/* Task `unit` of a pass whose lanes are keys. Early keys are seen by most queries. */
static inline int attention_key_task(const struct rh_op *op, int64_t unit, struct attention_task *task)
{
	if (!attention_find(op, unit / op->attention.kv_heads, ATTENTION_LANES, 1, task))
		return 0;
	task->kv_head = unit % op->attention.kv_heads;
	task->head = task->kv_head * task->group;
	task->heads = task->group;
	return 1;
}

/* Rows x, y become columns: after log2(VF) rounds of interleaving first and second half, v is its own transpose. */
SIMD_INLINE void transpose(vf v[VF])
{
#if defined __AVX512F__
	const vi low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, high = low + 8;
#elif defined __AVX2__
	const vi low = {0, 8, 1, 9, 2, 10, 3, 11}, high = low + 4;
#else
	const vi low = {0, 4, 1, 5}, high = low + 2;
#endif
#pragma GCC unroll 4
	for (int round = 1; round < VF; round *= 2) {
		vf next[VF];
#pragma GCC unroll 16
		for (int i = 0; i < VF / 2; i++) {
			next[2 * i] = __builtin_shuffle(v[i], v[i + VF / 2], low);
			next[2 * i + 1] = __builtin_shuffle(v[i], v[i + VF / 2], high);
		}
#pragma GCC unroll 16
		for (int i = 0; i < VF; i++)
			v[i] = next[i];
	}
}

/* Lanes from rows: to[i][lane] = row[lane][i] * scale for i < dim; lanes from `count` on are zero. */
SIMD_INLINE void panel_load(panel to, const void *const row[LANES], int64_t count, int64_t dim, float scale, const int bf16)
{
	for (int64_t lane = 0; lane < count; lane += VF) {
		for (int64_t i = 0; i < dim; i += VF) {
			vf v[VF];
			for (int j = 0; j < VF; j++)
				v[j] = lane + j < count ? act_load(row[lane + j], i, dim - i, bf16) * scale : (vf){0};
			transpose(v);
			for (int j = 0; j < VF; j++)
				vf_store(&to[i + j][lane], v[j]);
		}
	}
}

/* Rows from lanes: row[lane][i] = from[i][lane] * factor[lane], but for lanes whose row is NULL. */
SIMD_INLINE void panel_store(void *const row[LANES], panel from, const float factor[LANES], int64_t count, int64_t dim, const int bf16)
{
	for (int64_t lane = 0; lane < count; lane += VF) {
		vf scale = vf_load(factor + lane);
		for (int64_t i = 0; i < dim; i += VF) {
			vf v[VF];
			for (int j = 0; j < VF; j++)
				v[j] = vf_load(&from[i + j][lane]) * scale;
			transpose(v);
			for (int j = 0; j < VF && lane + j < count; j++)
				if (row[lane + j])
					act_store(row[lane + j], i, v[j], dim - i, bf16);
		}
	}
}

static inline void panel_clear(panel of, int64_t dim)
{
	memset(of, 0, (size_t)((dim + VF - 1) / VF * VF) * sizeof of[0]);
}

/* Head `head` of row `row`. */
SIMD_INLINE void *head_at(struct rh_view view, int64_t row, int64_t head, int64_t dim)
{
	return (char *)row_at(view, row) + rh_dtype_bytes(view.dtype, head * dim);
}

/* One head's row in fp32, times scale. Writes up to VF - 1 floats beyond it: rows are loaded in ascending order. */
SIMD_INLINE void row_load(float *to, const void *row, int64_t dim, float scale, const int bf16)
{
	for (int64_t i = 0; i < dim; i += VF)
		vf_store(to + i, act_load(row, i, dim - i, bf16) * scale);
}

/* What probabilities are multiplied with: 0, or 1 / (1 - p). Of query row `row` and a head, keys from row `key` on; `step` floats apart. */
static inline void attention_drop(const struct rh_op *op, int64_t row, int64_t head, int64_t key, int64_t count, float *to, int64_t step)
{
	uint64_t seed = rh_attention_drop_key(op->attention.seed, op->attention.site);
	uint32_t first = op->attention.first_k + (uint32_t)key, query = op->attention.first_q + (uint32_t)row;
	float p = op->attention.p, scale = 1.0f / (1.0f - p);
	struct rh_philox_block block = {{0}};
	for (uint32_t i = 0; i < (uint32_t)count; i++) {
		uint32_t at = first + i;
		if (!i || at % 4 == 0)
			block = rh_philox(seed, (uint32_t)head << 22 | at / 4, query, op->attention.micro_batch, op->attention.step);
		to[i * step] = rh_philox_unit(block.word[at % 4]) >= p ? scale : 0;
	}
}

/* Keys that the lanes see: lane sees keys in (above, upto]. All lanes see [all_first, all_end), none sees outside [first, end). `first` is
 * a multiple of BLOCK, so that a query's sums over blocks of keys do not depend on which queries are in the lanes beside it. */
struct attention_sight {
	int32_t low[LANES], high[LANES];
	int64_t first, end, all_first, all_end;
};

/* Position i sees keys in (above, upto] of its document. */
static inline int64_t attention_upto(const struct attention_task *task, int64_t i)
{
	int64_t own = i + task->lk - task->lq, last = task->lk - 1;
	if (!task->is_bidirectional)
		return own;
	return task->window > 0 && own + task->window - 1 < last ? own + task->window - 1 : last;
}

static inline int64_t attention_above(const struct attention_task *task, int64_t i)
{
	return task->window > 0 ? i + task->lk - task->lq - task->window : -1;
}

static inline void attention_look(const struct attention_task *task, struct attention_sight *sight)
{
	int64_t last = task->first + task->count - 1, first_above = attention_above(task, task->first),
	        last_above = attention_above(task, last);
	for (int64_t lane = 0; lane < LANES; lane++) {
		int64_t i = task->first + lane / task->heads;
		i = i < last ? i : last; /* lanes beyond the block: like the last */
		sight->high[lane] = (int32_t)attention_upto(task, i);
		sight->low[lane] = (int32_t)attention_above(task, i);
	}
	sight->end = attention_upto(task, last) + 1;
	sight->all_end = attention_upto(task, task->first) + 1;
	sight->first = first_above + 1 > 0 ? (first_above + 1) / BLOCK * BLOCK : 0;
	sight->all_first = last_above + 1 > 0 ? last_above + 1 : 0;
}

#endif
