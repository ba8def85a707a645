/* GGML's block formats to fp32. The products and sums are those of gguf.quants.dequantize, one rounding each: a fused multiply-add would
 * change the last bit, so contraction is off in this file. Loops run over whole runs of equal scale, so that the compiler vectorises them.
 */
#include "ckpt/gguf.h"

#include "core/float16.h"

#include <string.h>

#ifdef __clang__
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { QK = 32, QK_K = 256 };

static float half_at(const uint8_t *bytes)
{
	return rh_f16_to_f32((uint16_t)(bytes[0] | bytes[1] << 8));
}

static void f32_values(const uint8_t *block, int64_t count, float *out)
{
	memcpy(out, block, (size_t)count * sizeof *out);
}

/* As rh_f16_to_f32, with selects in place of branches. */
static void f16_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (int64_t i = 0; i < count; i++) {
		uint16_t half;
		memcpy(&half, block + 2 * i, 2);
		uint32_t size = half & 0x7fffu, sign = (uint32_t)(half & 0x8000u) << 16;
		uint32_t tiny = rh_f32_bits((float)(int32_t)size * 0x1p-24f);
		uint32_t normal = (size << 13) + (size >= 0x7c00u ? 0x70000000u : 0x38000000u);
		out[i] = rh_bits_f32((size < 0x400u ? tiny : normal) | sign);
	}
}

static void bf16_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (int64_t i = 0; i < count; i++) {
		uint16_t half;
		memcpy(&half, block + 2 * i, 2);
		out[i] = rh_bf16_to_f32(half);
	}
}

static void q8_0_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK, block += 34, out += QK) {
		float d = half_at(block);
		for (int i = 0; i < QK; i++)
			out[i] = (float)(int8_t)block[2 + i] * d;
	}
}

static void q4_0_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK, block += 18, out += QK) {
		float d = half_at(block);
		for (int i = 0; i < 16; i++) {
			out[i] = d * (float)((block[2 + i] & 15) - 8);
			out[16 + i] = d * (float)((block[2 + i] >> 4) - 8);
		}
	}
}

static void q4_1_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK, block += 20, out += QK) {
		float d = half_at(block), m = half_at(block + 2);
		for (int i = 0; i < 16; i++) {
			out[i] = d * (float)(block[4 + i] & 15) + m;
			out[16 + i] = d * (float)(block[4 + i] >> 4) + m;
		}
	}
}

/* The fifth bits of 32 values, as 0 or 16. */
static void fifth_bits(const uint8_t *bytes, uint8_t *restrict out)
{
	uint32_t bits;
	memcpy(&bits, bytes, 4);
	for (int i = 0; i < QK; i++)
		out[i] = (uint8_t)((bits >> i & 1) << 4);
}

static void q5_0_values(const uint8_t *block, int64_t count, float *restrict out)
{
	uint8_t high[QK];
	for (; count > 0; count -= QK, block += 22, out += QK) {
		float d = half_at(block);
		fifth_bits(block + 2, high);
		for (int i = 0; i < 16; i++) {
			out[i] = d * (float)(((block[6 + i] & 15) | high[i]) - 16);
			out[16 + i] = d * (float)((block[6 + i] >> 4 | high[16 + i]) - 16);
		}
	}
}

static void q5_1_values(const uint8_t *block, int64_t count, float *restrict out)
{
	uint8_t high[QK];
	for (; count > 0; count -= QK, block += 24, out += QK) {
		float d = half_at(block), m = half_at(block + 2);
		fifth_bits(block + 4, high);
		for (int i = 0; i < 16; i++) {
			out[i] = d * (float)((block[8 + i] & 15) | high[i]) + m;
			out[16 + i] = d * (float)(block[8 + i] >> 4 | high[16 + i]) + m;
		}
	}
}

static void iq4_nl_values(const uint8_t *block, int64_t count, float *restrict out)
{
	static const float level[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	for (; count > 0; count -= QK, block += 18, out += QK) {
		float d = half_at(block);
		for (int i = 0; i < 16; i++) {
			out[i] = d * level[block[2 + i] & 15];
			out[16 + i] = d * level[block[2 + i] >> 4];
		}
	}
}

/* 16 scales and minima of 4 bits, then 2-bit values: 32 bytes hold four runs of 32. */
static void q2_k_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK_K, block += 84, out += QK_K) {
		const uint8_t *scales = block, *values = block + 16;
		float d = half_at(block + 80), dmin = half_at(block + 82);
		for (int run = 0; run < 16; run++) {
			float scale = d * (float)(scales[run] & 15), minimum = dmin * (float)(scales[run] >> 4);
			const uint8_t *from = values + run / 8 * 32 + run % 2 * 16;
			int shift = run / 2 % 4 * 2;
			for (int i = 0; i < 16; i++)
				out[16 * run + i] = scale * (float)(from[i] >> shift & 3) - minimum;
		}
	}
}

/* 16 scales of 6 bits, biased by 32: low nibbles in 8 bytes, high pairs in 4. A clear mask bit takes 4 off. */
static void q3_k_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK_K, block += 110, out += QK_K) {
		const uint8_t *mask = block, *values = block + 32, *scales = block + 96;
		float d = half_at(block + 108);
		for (int run = 0; run < 16; run++) {
			int low = run < 8 ? scales[run] & 15 : scales[run - 8] >> 4;
			int high = scales[8 + run % 4] >> run / 4 * 2 & 3;
			float scale = d * (float)((low | high << 4) - 32);
			const uint8_t *from = values + run / 8 * 32 + run % 2 * 16, *bits = mask + run % 2 * 16;
			int shift = run / 2 % 4 * 2, bit = run / 2;
			for (int i = 0; i < 16; i++)
				out[16 * run + i] = scale * (float)((from[i] >> shift & 3) - (~bits[i] >> bit & 1) * 4);
		}
	}
}

/* 8 scales and 8 minima of 6 bits in 12 bytes, shared by Q4_K and Q5_K. */
static void scale_and_minimum(const uint8_t *packed, int run, int *scale, int *minimum)
{
	if (run < 4) {
		*scale = packed[run] & 63;
		*minimum = packed[4 + run] & 63;
	} else {
		*scale = (packed[4 + run] & 15) | (packed[run - 4] >> 2 & 0x30);
		*minimum = packed[4 + run] >> 4 | (packed[run] >> 2 & 0x30);
	}
}

static void q4_k_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK_K, block += 144, out += QK_K) {
		float d = half_at(block), dmin = half_at(block + 2);
		for (int run = 0; run < 8; run++) {
			int sc, m;
			scale_and_minimum(block + 4, run, &sc, &m);
			float scale = d * (float)sc, minimum = dmin * (float)m;
			const uint8_t *from = block + 16 + run / 2 * 32;
			int shift = run % 2 * 4;
			for (int i = 0; i < 32; i++)
				out[32 * run + i] = scale * (float)(from[i] >> shift & 15) - minimum;
		}
	}
}

static void q5_k_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK_K, block += 176, out += QK_K) {
		float d = half_at(block), dmin = half_at(block + 2);
		const uint8_t *high = block + 16;
		for (int run = 0; run < 8; run++) {
			int sc, m;
			scale_and_minimum(block + 4, run, &sc, &m);
			float scale = d * (float)sc, minimum = dmin * (float)m;
			const uint8_t *from = block + 48 + run / 2 * 32;
			int shift = run % 2 * 4;
			for (int i = 0; i < 32; i++)
				out[32 * run + i] = scale * (float)((from[i] >> shift & 15) | (high[i] >> run & 1) << 4) - minimum;
		}
	}
}

/* 64 bytes of low nibbles give four runs of 32: the first half's low, the second's low, then both high. 32 bytes hold their high pairs. */
static void q6_k_values(const uint8_t *block, int64_t count, float *restrict out)
{
	for (; count > 0; count -= QK_K, block += 210, out += QK_K) {
		const uint8_t *high = block + 128, *scales = block + 192;
		float d = half_at(block + 208);
		for (int run = 0; run < 16; run++) {
			float scale = d * (float)(int8_t)scales[run];
			int wide = run / 2; /* of 32 values */
			const uint8_t *from = block + wide / 4 * 64 + wide % 2 * 32 + run % 2 * 16;
			const uint8_t *pairs = high + wide / 4 * 32 + run % 2 * 16;
			int shift = wide / 2 % 2 * 4, pair = wide % 4 * 2;
			for (int i = 0; i < 16; i++)
				out[16 * run + i] = scale * (float)(((from[i] >> shift & 15) | (pairs[i] >> pair & 3) << 4) - 32);
		}
	}
}

int rh_dequantise(enum rh_dtype dtype, const void *blocks, int64_t elements, float *out)
{
	static void (*const values[RH_DTYPE_COUNT])(const uint8_t *, int64_t, float *) = {
	        [RH_F32] = f32_values,   [RH_F16] = f16_values,       [RH_BF16] = bf16_values, [RH_Q8_0] = q8_0_values,
	        [RH_Q4_0] = q4_0_values, [RH_Q4_1] = q4_1_values,     [RH_Q5_0] = q5_0_values, [RH_Q5_1] = q5_1_values,
	        [RH_Q2_K] = q2_k_values, [RH_Q3_K] = q3_k_values,     [RH_Q4_K] = q4_k_values, [RH_Q5_K] = q5_k_values,
	        [RH_Q6_K] = q6_k_values, [RH_IQ4_NL] = iq4_nl_values,
	};
	if (!values[dtype])
		return rh_fail(-EINVAL, "elements of type %s cannot be turned into numbers for training", rh_dtype_name(dtype));
	RH_ASSERT(elements >= 0 && elements % rh_dtype_block(dtype) == 0);
	values[dtype](blocks, elements, out);
	return 0;
}
