/* Rotary positions: the table of angles and the rotation of halves. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

#include <math.h>

/* Units are rows. */
static void rope_table(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view position = op->operand[RH_ROPE_TABLE_POSITION], table = op->operand[RH_ROPE_TABLE_TABLE];
	int64_t half = table.cols / 2;
	for (int64_t t = first; t < end; t++) {
		float *row = row_at(table, t), at = (float)((const int32_t *)position.data)[t * position.stride];
		float scale = op->rope_table.scale;
		if (op->rope_table.growth != 0)
			scale *= 1 + op->rope_table.growth * logf(1 + floorf(at / op->rope_table.step));
		for (int64_t i = 0; i < half; i++) {
			float angle = at * op->rope_table.inv_freq[i], sine, cosine;
			sincosf(angle, &sine, &cosine);
			row[i] = cosine * scale;
			row[half + i] = sine * scale;
		}
	}
}

static struct cpu_span rope_table_span(const struct rh_op *op)
{
	return over_rows(op->operand[RH_ROPE_TABLE_TABLE]);
}

const struct cpu_op SIMD(cpu_rope_table) = {{{rope_table, rope_table_span}}};

SIMD_INLINE float one(const void *row, int64_t i, const int bf16)
{
	return bf16 ? rh_bf16_to_f32(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

SIMD_INLINE void set(void *row, int64_t i, float value, const int bf16)
{
	if (bf16)
		((uint16_t *)row)[i] = rh_f32_to_bf16(value);
	else
		((float *)row)[i] = value;
}

/* Pairs that lie side by side, of one head. */
SIMD_INLINE void rotate_adjacent(void *row, int64_t at, int64_t half, const float *cosine, float sign, const int bf16)
{
	const float *sine = cosine + half;
	for (int64_t i = 0; i < half; i++, at += 2) {
		float a = one(row, at, bf16), b = one(row, at + 1, bf16), c = cosine[i], s = sine[i] * sign;
		set(row, at, a * c - b * s, bf16);
		set(row, at + 1, b * c + a * s, bf16);
	}
}

SIMD_INLINE void rotate(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view table = op->operand[RH_ROPE_TABLE_IN];
	int64_t dim = op->operand[RH_ROPE_X].cols / op->rope.heads, half = table.cols / 2;
	int64_t apart = op->rope.apart ? op->rope.apart : half;
	float sign = op->rope.inverse ? -1.0f : 1.0f;
	for (int64_t t = first; t < end; t++) {
		const float *cosine = row_at(table, t), *sine = cosine + half;
		void *row = row_at(op->operand[RH_ROPE_X], t);
		for (int64_t h = 0; h < op->rope.heads; h++) {
			if (op->rope.adjacent) {
				rotate_adjacent(row, h * dim + op->rope.first, half, cosine, sign, bf16);
				continue;
			}
			for (int64_t i = 0; i < half; i += VF) {
				int64_t at = h * dim + op->rope.first + i, left = half - i;
				vf c = act_load(cosine, i, left, 0), s = act_load(sine, i, left, 0) * sign;
				vf a = act_load(row, at, left, bf16), b = act_load(row, at + apart, left, bf16);
				act_store(row, at, a * c - b * s, left, bf16);
				act_store(row, at + apart, b * c + a * s, left, bf16);
			}
		}
	}
}

/* Units are rows. */
static void rope(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_ROPE_X].dtype, rotate, op, first, end);
}

const struct cpu_op SIMD(cpu_rope) = {{{rope, NULL}}};
