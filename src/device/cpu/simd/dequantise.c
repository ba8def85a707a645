/* DEQUANTISE: a stretch of a row to fp32 in cache, then to act. No fused multiply-add may change what core/blocks.h says. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

#pragma GCC optimize("fp-contract=off")
#include "core/blocks.h"
#include "core/float8.h"

enum { STRETCH = RH_BLOCK_LONGEST };

/* `count` values of whole blocks. */
SIMD_INLINE void decode(enum rh_dtype dtype, const uint8_t *block, int64_t count, float *out)
{
	const int64_t values = rh_dtype_block(dtype), bytes = rh_dtype_block_bytes(dtype);
	for (int64_t i = 0; i < count; i += values, block += bytes)
		for (int first = 0; first < values; first += RH_BLOCK_RUN)
			rh_block_values(dtype, block, first, RH_BLOCK_RUN, out + i + first);
}

static void decode_blocks(enum rh_dtype dtype, const uint8_t *block, int64_t count, float *out)
{
	switch (dtype) {
#define CASE(name)                                                                                                                         \
	case name:                                                                                                                         \
		decode(name, block, count, out);                                                                                           \
		break
		CASE(RH_Q4_0);
		CASE(RH_Q4_1);
		CASE(RH_Q5_0);
		CASE(RH_Q5_1);
		CASE(RH_Q8_0);
		CASE(RH_Q2_K);
		CASE(RH_Q3_K);
		CASE(RH_Q4_K);
		CASE(RH_Q5_K);
		CASE(RH_Q6_K);
		CASE(RH_IQ4_XS);
		CASE(RH_MXFP4);
		CASE(RH_NVFP4);
	default:
		decode(RH_IQ4_NL, block, count, out);
	}
}

/* The scale of the row's run `run`. */
static float scale_of(const struct rh_op *op, int64_t row, int64_t run)
{
	struct rh_view scale = op->operand[RH_DEQUANTISE_SCALE];
	int64_t of = op->dequantise.tall == 1 ? row : row / op->dequantise.tall, at = of * scale.stride + run;
	if (scale.dtype == RH_F32)
		return ((const float *)scale.data)[at];
	uint8_t q = ((const uint8_t *)scale.data)[at];
	if (op->operand[RH_DEQUANTISE_X].dtype == RH_FP4)
		return rh_e8m0_value(q);
	const float *nested = op->operand[RH_DEQUANTISE_NESTED].data, *map = op->operand[RH_DEQUANTISE_MAP].data;
	return map[q] * nested[(of * scale.cols + run) / RH_NESTED_RUN] + map[RH_NESTED_MAP - 1];
}

static float four_bit_value(enum rh_dtype dtype, int q)
{
	return dtype == RH_NF4 ? rh_nf4_value(q) : dtype == RH_FP4 ? rh_fp4_value(q) : rh_bnb_fp4_value(q);
}

/* `count` values of one run from column c on, an even one. */
static void decode_scaled(const struct rh_op *op, const uint8_t *row, int64_t c, int64_t count, float scale, float *out)
{
	enum rh_dtype dtype = op->operand[RH_DEQUANTISE_X].dtype;
	float unit = op->dequantise.unit, value[16];
	if (dtype == RH_I8) {
		for (int64_t i = 0; i < count; i++)
			out[i] = (float)(int8_t)row[c + i] * scale * unit;
		return;
	}
	if (dtype == RH_E4M3) {
		for (int64_t i = 0; i < count; i++)
			out[i] = rh_e4m3_to_f32(row[c + i]) * scale;
		return;
	}
	for (int q = 0; q < 16; q++)
		value[q] = four_bit_value(dtype, q) * scale;
	int low = dtype != RH_FP4; /* which of two values is in the low half */
	for (int64_t i = 0; i < count; i += 2) {
		out[i + low] = value[row[(c + i) / 2] & 15];
		out[i + !low] = value[row[(c + i) / 2] >> 4];
	}
}

SIMD_INLINE void tiles(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_DEQUANTISE_X], y = op->operand[RH_DEQUANTISE_Y], index = op->operand[RH_DEQUANTISE_INDEX];
	float values[STRETCH] = {0};
	int64_t run = op->dequantise.run, of_row = (x.cols + CPU_TILE - 1) / CPU_TILE;
	for (int64_t unit = first; unit < end; unit++) {
		int64_t t = unit / of_row, c = unit % of_row * CPU_TILE, border = c + CPU_TILE < x.cols ? c + CPU_TILE : x.cols;
		int64_t row = index.data ? index_at(index, t, x.rows) : t;
		const uint8_t *from = (const uint8_t *)x.data + rh_dtype_bytes(x.dtype, row * x.stride);
		void *to = row_at(y, t);
		for (int64_t count; c < border; c += count) {
			count = border - c < STRETCH ? border - c : STRETCH;
			if (op->operand[RH_DEQUANTISE_SCALE].data) {
				int64_t left = run - c % run;
				count = count < left ? count : left;
				decode_scaled(op, from, c, count, scale_of(op, row, c / run), values);
			} else {
				decode_blocks(x.dtype, from + rh_dtype_bytes(x.dtype, c), count, values);
			}
			for (int64_t i = 0; i < count; i += VF)
				act_store(to, c + i, vf_load(values + i), count - i, bf16);
		}
	}
}

/* Units are tiles of CPU_TILE values of a row, the last one shorter. */
static void dequantise(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_DEQUANTISE_Y].dtype, tiles, op, first, end);
}

static struct cpu_span dequantise_span(const struct rh_op *op)
{
	struct rh_view y = op->operand[RH_DEQUANTISE_Y];
	return (struct cpu_span){y.rows * ((y.cols + CPU_TILE - 1) / CPU_TILE), CPU_TASK_ELEMENTS / CPU_TILE};
}

const struct cpu_op SIMD(cpu_dequantise) = {{{dequantise, dequantise_span}}};
