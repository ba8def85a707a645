/* What blocks of quantised numbers stand for: one definition for the readers of files, the oracle, the CPU's and the GPU's kernels.
 *
 * GGML's types (GGUF files) are bit-equal to gguf.quants.dequantize: each product and each sum is rounded by itself. So that no
 * fused multiply-add changes a bit, a C file that includes this header turns contraction off for itself first (rh_block_* are inlined):
 *	#pragma GCC optimize("fp-contract=off")
 * NF4 is bitsandbytes' (Dettmers et al. 2023, "QLoRA", appendix E), FP4 is MXFP4's and NVFP4's, E8M0 its scales (OCP Microscaling Formats
 * 1.0). */
#ifndef RH_CORE_BLOCKS_H
#define RH_CORE_BLOCKS_H

#include "core/dtype.h"
#include "core/float16.h"

enum {
	RH_BLOCK_RUN = 16,     /* most values that rh_block_values gives at once: all of one scale */
	RH_BLOCK_LONGEST = 256 /* values of the longest block */
};

RH_PORTABLE float rh_block_product(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fmul_rn(a, b);
#else
	return a * b;
#endif
}

RH_PORTABLE float rh_block_sum(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fadd_rn(a, b);
#else
	return a + b;
#endif
}

RH_PORTABLE float rh_block_quotient(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fdiv_rn(a, b);
#else
	return a / b;
#endif
}

RH_PORTABLE float rh_block_half(const uint8_t *bytes)
{
	return rh_f16_to_f32((uint16_t)(bytes[0] | bytes[1] << 8));
}

RH_PORTABLE void rh_block_q8_0(const uint8_t *block, int first, int count, float *out)
{
	float d = rh_block_half(block);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_product((float)(int8_t)block[2 + first + i], d);
}

/* Of 32 values in 16 bytes the first half are low nibbles, the second high ones: so with all that follow but for Q4_K and Q5_K. */
RH_PORTABLE void rh_block_q4_0(const uint8_t *block, int first, int count, float *out)
{
	const uint8_t *from = block + 2 + first % 16;
	int shift = first / 16 * 4;
	float d = rh_block_half(block);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_product(d, (float)((from[i] >> shift & 15) - 8));
}

RH_PORTABLE void rh_block_q4_1(const uint8_t *block, int first, int count, float *out)
{
	const uint8_t *from = block + 4 + first % 16;
	int shift = first / 16 * 4;
	float d = rh_block_half(block), m = rh_block_half(block + 2);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_sum(rh_block_product(d, (float)(from[i] >> shift & 15)), m);
}

/* Bit i of four bytes is the fifth of value i. */
RH_PORTABLE uint32_t rh_block_fifths(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

RH_PORTABLE void rh_block_q5_0(const uint8_t *block, int first, int count, float *out)
{
	const uint8_t *from = block + 6 + first % 16;
	int shift = first / 16 * 4;
	uint32_t fifths = rh_block_fifths(block + 2) >> first;
	float d = rh_block_half(block);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_product(d, (float)((int)((uint32_t)(from[i] >> shift & 15) | (fifths >> i & 1) << 4) - 16));
}

RH_PORTABLE void rh_block_q5_1(const uint8_t *block, int first, int count, float *out)
{
	const uint8_t *from = block + 8 + first % 16;
	int shift = first / 16 * 4;
	uint32_t fifths = rh_block_fifths(block + 4) >> first;
	float d = rh_block_half(block), m = rh_block_half(block + 2);
	for (int i = 0; i < count; i++) {
		int q = (int)((uint32_t)(from[i] >> shift & 15) | (fifths >> i & 1) << 4);
		out[i] = rh_block_sum(rh_block_product(d, (float)q), m);
	}
}

RH_PORTABLE float rh_iq4_value(int q)
{
	static const float level[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	return level[q];
}

RH_PORTABLE void rh_block_iq4_nl(const uint8_t *block, int first, int count, float *out)
{
	const uint8_t *from = block + 2 + first % 16;
	int shift = first / 16 * 4;
	float d = rh_block_half(block);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_product(d, rh_iq4_value(from[i] >> shift & 15));
}

/* Of 8 runs of 32: 6 bits, biased by 32: high pairs in 2 bytes, low nibbles in 4. */
RH_PORTABLE float rh_block_iq4_xs_scale(const uint8_t *block, int run)
{
	int low = block[4 + run / 2] >> run % 2 * 4 & 15, high = block[2 + run / 4] >> run % 4 * 2 & 3;
	return rh_block_product(rh_block_half(block), (float)((low | high << 4) - 32));
}

RH_PORTABLE void rh_block_iq4_xs(const uint8_t *block, int first, int count, float *out)
{
	int run = first / 32, shift = first / 16 % 2 * 4;
	const uint8_t *from = block + 8 + run * 16 + first % 16;
	float scale = rh_block_iq4_xs_scale(block, run);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_product(scale, rh_iq4_value(from[i] >> shift & 15));
}

/* 16 scales and minima of 4 bits, then 2-bit values: 32 bytes hold four runs of 32. */
RH_PORTABLE void rh_block_q2_k(const uint8_t *block, int first, int count, float *out)
{
	int run = first / 16, shift = run / 2 % 4 * 2;
	const uint8_t *from = block + 16 + run / 8 * 32 + run % 2 * 16 + first % 16;
	float scale = rh_block_product(rh_block_half(block + 80), (float)(block[run] & 15));
	float minimum = rh_block_product(rh_block_half(block + 82), (float)(block[run] >> 4));
	for (int i = 0; i < count; i++)
		out[i] = rh_block_sum(rh_block_product(scale, (float)(from[i] >> shift & 3)), -minimum);
}

/* 16 scales of 6 bits, biased by 32: low nibbles in 8 bytes, high pairs in 4. */
RH_PORTABLE float rh_block_q3_k_scale(const uint8_t *block, int run)
{
	const uint8_t *scales = block + 96;
	int low = run < 8 ? scales[run] & 15 : scales[run - 8] >> 4, high = scales[8 + run % 4] >> run / 4 * 2 & 3;
	return rh_block_product(rh_block_half(block + 108), (float)((low | high << 4) - 32));
}

/* A clear mask bit takes 4 off. */
RH_PORTABLE void rh_block_q3_k(const uint8_t *block, int first, int count, float *out)
{
	int run = first / 16, shift = run / 2 % 4 * 2, bit = run / 2;
	const uint8_t *from = block + 32 + run / 8 * 32 + run % 2 * 16 + first % 16;
	const uint8_t *mask = block + run % 2 * 16 + first % 16;
	float scale = rh_block_q3_k_scale(block, run);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_product(scale, (float)((from[i] >> shift & 3) - (~mask[i] >> bit & 1) * 4));
}

/* Run `run` of 32 values has scale and minimum of 6 bits each, 16 of which share 12 bytes. */
RH_PORTABLE void rh_block_scale_and_minimum(const uint8_t *block, int run, float *scale, float *minimum)
{
	const uint8_t *packed = block + 4;
	int s = run < 4 ? packed[run] & 63 : (packed[4 + run] & 15) | (packed[run - 4] >> 2 & 0x30);
	int m = run < 4 ? packed[4 + run] & 63 : packed[4 + run] >> 4 | (packed[run] >> 2 & 0x30);
	*scale = rh_block_product(rh_block_half(block), (float)s);
	*minimum = rh_block_product(rh_block_half(block + 2), (float)m);
}

/* Two runs share 32 bytes of nibbles, the first in the low ones. */
RH_PORTABLE void rh_block_q4_k(const uint8_t *block, int first, int count, float *out)
{
	int run = first / 32, shift = run % 2 * 4;
	const uint8_t *from = block + 16 + run / 2 * 32 + first % 32;
	float scale, minimum;
	rh_block_scale_and_minimum(block, run, &scale, &minimum);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_sum(rh_block_product(scale, (float)(from[i] >> shift & 15)), -minimum);
}

RH_PORTABLE void rh_block_q5_k(const uint8_t *block, int first, int count, float *out)
{
	int run = first / 32, shift = run % 2 * 4;
	const uint8_t *from = block + 48 + run / 2 * 32 + first % 32, *fifths = block + 16 + first % 32;
	float scale, minimum;
	rh_block_scale_and_minimum(block, run, &scale, &minimum);
	for (int i = 0; i < count; i++) {
		int q = (from[i] >> shift & 15) | (fifths[i] >> run & 1) << 4;
		out[i] = rh_block_sum(rh_block_product(scale, (float)q), -minimum);
	}
}

/* 64 bytes of low nibbles give four runs of 32: the first half's low, the second's low, then both high. 32 bytes hold their high pairs. */
RH_PORTABLE void rh_block_q6_k(const uint8_t *block, int first, int count, float *out)
{
	int run = first / 16, wide = run / 2, shift = wide / 2 % 2 * 4, pair = wide % 4 * 2;
	const uint8_t *from = block + wide / 4 * 64 + wide % 2 * 32 + run % 2 * 16 + first % 16;
	const uint8_t *pairs = block + 128 + wide / 4 * 32 + run % 2 * 16 + first % 16;
	float scale = rh_block_product(rh_block_half(block + 208), (float)(int8_t)block[192 + run]);
	for (int i = 0; i < count; i++) {
		int q = (from[i] >> shift & 15) | (pairs[i] >> pair & 3) << 4;
		out[i] = rh_block_product(scale, (float)(q - 32));
	}
}

/* Quantiles of a normal distribution. */
RH_PORTABLE float rh_nf4_value(int q)
{
	static const float level[16] = {-1.0f,
	                                -0.6961928009986877f,
	                                -0.5250730514526367f,
	                                -0.39491748809814453f,
	                                -0.28444138169288635f,
	                                -0.18477343022823334f,
	                                -0.09105003625154495f,
	                                0.0f,
	                                0.07958029955625534f,
	                                0.16093020141124725f,
	                                0.24611230194568634f,
	                                0.33791524171829224f,
	                                0.44070982933044434f,
	                                0.5626170039176941f,
	                                0.7229568362236023f,
	                                1.0f};
	return level[q];
}

/* Sign, two bits of exponent, one of mantissa, of bitsandbytes: not MXFP4's. Neither of its zeros has a sign. */
RH_PORTABLE float rh_bnb_fp4_value(int q)
{
	static const float level[8] = {0, 0.0625f / 12, 8.0f / 12, 1, 4.0f / 12, 6.0f / 12, 2.0f / 12, 3.0f / 12};
	return q > 8 ? -level[q & 7] : level[q & 7];
}

/* E2M1: sign, two bits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6. */
RH_PORTABLE float rh_fp4_value(int q)
{
	static const float level[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
	return level[q];
}

/* E8M0: 2^(q - 127), NaN for 255. */
RH_PORTABLE float rh_e8m0_value(uint8_t q)
{
	uint32_t bits = q == 255 ? 0x7fc00000u : q ? (uint32_t)q << 23 : 0x00400000u;
	return rh_bits_f32(bits);
}

/* GGML's zeros have no sign. */
RH_PORTABLE float rh_block_fp4(int q, float scale)
{
	return q == 8 ? 0 : rh_block_product(rh_fp4_value(q), scale);
}

RH_PORTABLE void rh_block_mxfp4(const uint8_t *block, int first, int count, float *out)
{
	const uint8_t *from = block + 1 + first % 16;
	int shift = first / 16 * 4;
	float scale = rh_e8m0_value(block[0]);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_fp4(from[i] >> shift & 15, scale);
}

/* Of four runs of 16: E4M3, whose sign counts for nothing and whose NaN is 0. */
RH_PORTABLE float rh_block_nvfp4_scale(const uint8_t *block, int run)
{
	int exponent = block[run] >> 3 & 15, mantissa = block[run] & 7;
	uint32_t bits = (uint32_t)(exponent + 120) << 23 | (uint32_t)mantissa << 20;
	return block[run] == 0x7f ? 0 : exponent ? rh_bits_f32(bits) : (float)mantissa * 0x1p-9f;
}

RH_PORTABLE void rh_block_nvfp4(const uint8_t *block, int first, int count, float *out)
{
	int run = first / 16;
	const uint8_t *from = block + 4 + run * 8;
	float scale = rh_block_nvfp4_scale(block, run);
	for (int i = 0; i < count; i++)
		out[i] = rh_block_fp4(from[i % 8] >> (first + i) / 8 % 2 * 4 & 15, scale);
}

/* Values [first, first + count) of a block of one of GGML's types; count is 8 or RH_BLOCK_RUN, first a multiple of it. Made for constant
 * dtype and count. */
RH_PORTABLE void rh_block_values(enum rh_dtype dtype, const uint8_t *block, int first, int count, float *out)
{
	switch (dtype) {
	case RH_Q4_0:
		rh_block_q4_0(block, first, count, out);
		break;
	case RH_Q4_1:
		rh_block_q4_1(block, first, count, out);
		break;
	case RH_Q5_0:
		rh_block_q5_0(block, first, count, out);
		break;
	case RH_Q5_1:
		rh_block_q5_1(block, first, count, out);
		break;
	case RH_Q8_0:
		rh_block_q8_0(block, first, count, out);
		break;
	case RH_Q2_K:
		rh_block_q2_k(block, first, count, out);
		break;
	case RH_Q3_K:
		rh_block_q3_k(block, first, count, out);
		break;
	case RH_Q4_K:
		rh_block_q4_k(block, first, count, out);
		break;
	case RH_Q5_K:
		rh_block_q5_k(block, first, count, out);
		break;
	case RH_Q6_K:
		rh_block_q6_k(block, first, count, out);
		break;
	case RH_IQ4_XS:
		rh_block_iq4_xs(block, first, count, out);
		break;
	case RH_MXFP4:
		rh_block_mxfp4(block, first, count, out);
		break;
	case RH_NVFP4:
		rh_block_nvfp4(block, first, count, out);
		break;
	default: /* RH_IQ4_NL */
		rh_block_iq4_nl(block, first, count, out);
	}
}

#endif
