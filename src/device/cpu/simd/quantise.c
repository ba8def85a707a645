/* QUANTISE_ROWS: a row's largest magnitude, its scale, and the row in 8 bits. A row is read twice, once from cache. */
#include "core/float8.h"
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

enum { STRETCH = 256 };

/* Bits are compared: of what is not negative they order as the numbers do, infinity above them and NaN above that. */
SIMD_INLINE float largest(const float *value, int64_t count, float most)
{
	uint32_t bits = rh_f32_bits(most);
	for (int64_t i = 0; i < count; i++) {
		uint32_t of = rh_f32_bits(value[i]) & 0x7fffffffu;
		bits = of > bits ? of : bits;
	}
	return rh_bits_f32(bits);
}

/* Columns [c, c + STRETCH) of a row, fewer at its end, widened. Returns how many. */
SIMD_INLINE int64_t widen(const void *row, int64_t c, int64_t cols, float *value, const int bf16)
{
	int64_t count = cols - c < STRETCH ? cols - c : STRETCH;
	for (int64_t i = 0; i < count; i += VF)
		vf_store(value + i, act_load(row, c + i, count - i, bf16));
	return count;
}

SIMD_INLINE void rows(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_QUANTISE_ROWS_X];
	float value[STRETCH + VF];
	for (int64_t r = first; r < end; r++) {
		const void *from = row_at(x, r);
		uint8_t *to = row_at(op->operand[RH_QUANTISE_ROWS_Y], r);
		float most = 0;
		for (int64_t c = 0; c < x.cols; c += STRETCH)
			most = largest(value, widen(from, c, x.cols, value, bf16), most);
		float scale = rh_power_scale(most, RH_E4M3_LARGEST), inverse = 1 / scale; /* powers of two: exact */
		*(float *)row_at(op->operand[RH_QUANTISE_ROWS_SCALE], r) = scale;
		for (int64_t c = 0; c < x.cols; c += STRETCH) {
			int64_t count = widen(from, c, x.cols, value, bf16);
			for (int64_t i = 0; i < count; i++)
				to[c + i] = rh_f32_to_e4m3(value[i] * inverse);
		}
	}
}

/* Units are rows. */
static void quantise_rows(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_QUANTISE_ROWS_X].dtype, rows, op, first, end);
}

const struct cpu_op SIMD(cpu_quantise_rows) = {{{quantise_rows, NULL}}};
