/* DEQUANTISE: a stretch of a row to fp32 in cache, sixteen values at a time, then to act. No fused multiply-add may change what
 * core/blocks.h says. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"
#include "device/cpu/simd/sixteen.h"

#pragma GCC optimize("fp-contract=off")
#include "core/blocks.h"
#include "core/float8.h"

enum { STRETCH = RH_BLOCK_LONGEST };

/* What the 16 codes of a type are worth, times a scale. GGML's zeros have no sign, nor are they NaN. */
SIMD_INLINE struct sixteen codes_of(enum rh_dtype dtype, float scale)
{
	static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
	float value[16];
	for (int q = 0; q < 16; q++)
		value[q] = dtype == RH_NF4       ? rh_nf4_value(q)
		           : dtype == RH_BNB_FP4 ? rh_bnb_fp4_value(q)
		           : dtype == RH_IQ4_NL  ? rh_iq4_value(q)
		                                 : e2m1[q];
	sixteen_store(value, sixteen_scaled(sixteen_load(value), scale));
	if (dtype == RH_MXFP4)
		value[8] = 0;
	return sixteen_load(value);
}

/* Values [first, first + 16) of a block of one of GGML's types: as rh_block_values. */
SIMD_INLINE struct sixteen of_block(enum rh_dtype dtype, const uint8_t *block, const int first)
{
	const int half = first / 16 * 4, run = first / 32, sub = first / 16,
	          twin = sub % 2 * 16; /* half: a shift, where low nibbles come first */
	float d, m;
	vb q;
	switch (dtype) {
	case RH_Q4_0:
		return sixteen_scaled(sixteen_less(vb_bits(vb_load(block + 2), half, 15), 8), rh_block_half(block));
	case RH_Q4_1:
		q = vb_bits(vb_load(block + 4), half, 15);
		return sixteen_plus(sixteen_scaled(sixteen_less(q, 0), rh_block_half(block)), rh_block_half(block + 2));
	case RH_Q5_0:
		q = vb_bits(vb_load(block + 6), half, 15) | vb_spread(rh_block_fifths(block + 2) >> first, 16);
		return sixteen_scaled(sixteen_less(q, 16), rh_block_half(block));
	case RH_Q5_1:
		q = vb_bits(vb_load(block + 8), half, 15) | vb_spread(rh_block_fifths(block + 4) >> first, 16);
		return sixteen_plus(sixteen_scaled(sixteen_less(q, 0), rh_block_half(block)), rh_block_half(block + 2));
	case RH_Q8_0:
		return sixteen_scaled(sixteen_signed(vb_load(block + 2 + first)), rh_block_half(block));
	case RH_Q2_K:
		q = vb_bits(vb_load(block + 16 + sub / 8 * 32 + twin), run % 4 * 2, 3);
		d = rh_block_product(rh_block_half(block + 80), (float)(block[sub] & 15));
		m = rh_block_product(rh_block_half(block + 82), (float)(block[sub] >> 4));
		return sixteen_plus(sixteen_scaled(sixteen_less(q, 0), d), -m);
	case RH_Q3_K:
		q = vb_bits(vb_load(block + 32 + sub / 8 * 32 + twin), run % 4 * 2, 3) | vb_bits(vb_load(block + twin), run, 1) << 2;
		return sixteen_scaled(sixteen_less(q, 4), rh_block_q3_k_scale(block, sub));
	case RH_Q4_K:
		q = vb_bits(vb_load(block + 16 + run / 2 * 32 + twin), run % 2 * 4, 15);
		rh_block_scale_and_minimum(block, run, &d, &m);
		return sixteen_plus(sixteen_scaled(sixteen_less(q, 0), d), -m);
	case RH_Q5_K:
		q = vb_bits(vb_load(block + 48 + run / 2 * 32 + twin), run % 2 * 4, 15) | vb_bits(vb_load(block + 16 + twin), run, 1) << 4;
		rh_block_scale_and_minimum(block, run, &d, &m);
		return sixteen_plus(sixteen_scaled(sixteen_less(q, 0), d), -m);
	case RH_Q6_K:
		q = vb_bits(vb_load(block + run / 4 * 64 + run % 2 * 32 + twin), run / 2 % 2 * 4, 15) |
		    vb_bits(vb_load(block + 128 + run / 4 * 32 + twin), run % 4 * 2, 3) << 4;
		return sixteen_scaled(sixteen_less(q, 32), rh_block_product(rh_block_half(block + 208), (float)(int8_t)block[192 + sub]));
	case RH_IQ4_XS:
		return sixteen_look_up(codes_of(RH_IQ4_NL, rh_block_iq4_xs_scale(block, run)),
		                       vb_bits(vb_load(block + 8 + run * 16), sub % 2 * 4, 15));
	case RH_MXFP4:
		return sixteen_look_up(codes_of(RH_MXFP4, rh_e8m0_value(block[0])), vb_bits(vb_load(block + 1), half, 15));
	case RH_NVFP4:
		return sixteen_look_up(codes_of(RH_MXFP4, rh_block_nvfp4_scale(block, sub)), vb_halves_apart(block + 4 + sub * 8));
	default: /* RH_IQ4_NL */
		return sixteen_look_up(codes_of(RH_IQ4_NL, rh_block_half(block)), vb_bits(vb_load(block + 2), half, 15));
	}
}

/* `count` values of whole blocks. */
SIMD_INLINE void decode(enum rh_dtype dtype, const uint8_t *block, int64_t count, float *out)
{
	const int64_t values = rh_dtype_block(dtype), bytes = rh_dtype_block_bytes(dtype);
	for (int64_t i = 0; i < count; i += values, block += bytes)
		for (int first = 0; first < values; first += SIXTEEN)
			sixteen_store(out + i + first, of_block(dtype, block, first));
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
	if (scale.dtype == RH_E4M3) {
		const float *factor = op->operand[RH_DEQUANTISE_NESTED].data;
		return rh_e4m3_to_f32(q) * factor[0] / factor[1];
	}
	if (op->operand[RH_DEQUANTISE_X].dtype == RH_FP4)
		return rh_e8m0_value(q);
	const float *nested = op->operand[RH_DEQUANTISE_NESTED].data, *map = op->operand[RH_DEQUANTISE_MAP].data;
	return map[q] * nested[(of * scale.cols + run) / RH_NESTED_RUN] + map[RH_NESTED_MAP - 1];
}

/* What `count` of a byte's or a half byte's values, from column c on, an even one, are worth: those that are no whole sixteen. */
static void decode_few(enum rh_dtype dtype, const uint8_t *row, int64_t c, int64_t count, struct sixteen codes, float *out)
{
	float value[16];
	sixteen_store(value, codes);
	for (int64_t i = 0; i < count; i++) {
		int low = (i % 2 == 0) == (dtype == RH_FP4);
		out[i] = dtype == RH_I8     ? (float)(int8_t)row[c + i]
		         : dtype == RH_E4M3 ? rh_e4m3_to_f32(row[c + i])
		                            : value[row[(c + i) / 2] >> (low ? 0 : 4) & 15];
	}
}

/* `count` values of one run from column c on, an even one. */
SIMD_INLINE void decode_run(const struct rh_op *op, enum rh_dtype dtype, const uint8_t *row, int64_t c, int64_t count, float scale,
                            float *out)
{
	const int is_byte = dtype == RH_I8 || dtype == RH_E4M3;
	struct sixteen codes = codes_of(dtype, scale);
	int64_t i = 0, whole = count / SIXTEEN * SIXTEEN;
	for (; i < whole; i += SIXTEEN)
		sixteen_store(out + i, dtype == RH_I8     ? sixteen_signed(vb_load(row + c + i))
		                       : dtype == RH_E4M3 ? sixteen_e4m3(vb_load(row + c + i))
		                                          : sixteen_look_up(codes, vb_halves(row + (c + i) / 2, dtype == RH_FP4)));
	decode_few(dtype, row, c + i, count - i, codes, out + i);
	for (i = 0; is_byte && i < count; i++)
		out[i] = dtype == RH_I8 ? out[i] * scale * op->dequantise.unit : out[i] * scale;
}

static void decode_scaled(const struct rh_op *op, const uint8_t *row, int64_t c, int64_t count, float scale, float *out)
{
	switch (op->operand[RH_DEQUANTISE_X].dtype) {
	case RH_I8:
		decode_run(op, RH_I8, row, c, count, scale, out);
		break;
	case RH_E4M3:
		decode_run(op, RH_E4M3, row, c, count, scale, out);
		break;
	case RH_NF4:
		decode_run(op, RH_NF4, row, c, count, scale, out);
		break;
	case RH_BNB_FP4:
		decode_run(op, RH_BNB_FP4, row, c, count, scale, out);
		break;
	default:
		decode_run(op, RH_FP4, row, c, count, scale, out);
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
