/* Numbers of files to fp32. Of GGML's blocks core/blocks.h says what they are; no fused multiply-add may change their last bit, so
 * contraction is off in this file. Loops run over whole runs of equal scale, so that the compiler vectorises them. */
#include "ckpt/gguf.h"

#include <string.h>

#ifdef __clang__
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include "core/blocks.h"

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

/* Blocks of one type, run by run. */
#define BLOCKS(name, dtype, values, bytes)                                                                                                 \
	static void name(const uint8_t *block, int64_t count, float *restrict out)                                                         \
	{                                                                                                                                  \
		for (; count > 0; count -= values, block += bytes, out += values)                                                          \
			for (int first = 0; first < values; first += RH_BLOCK_RUN)                                                         \
				rh_block_values(dtype, block, first, RH_BLOCK_RUN, out + first);                                           \
	}
BLOCKS(q4_0_values, RH_Q4_0, 32, 18)
BLOCKS(q4_1_values, RH_Q4_1, 32, 20)
BLOCKS(q5_0_values, RH_Q5_0, 32, 22)
BLOCKS(q5_1_values, RH_Q5_1, 32, 24)
BLOCKS(q8_0_values, RH_Q8_0, 32, 34)
BLOCKS(q2_k_values, RH_Q2_K, 256, 84)
BLOCKS(q3_k_values, RH_Q3_K, 256, 110)
BLOCKS(q4_k_values, RH_Q4_K, 256, 144)
BLOCKS(q5_k_values, RH_Q5_K, 256, 176)
BLOCKS(q6_k_values, RH_Q6_K, 256, 210)
BLOCKS(iq4_nl_values, RH_IQ4_NL, 32, 18)
BLOCKS(iq4_xs_values, RH_IQ4_XS, 256, 136)
BLOCKS(mxfp4_values, RH_MXFP4, 32, 17)
BLOCKS(nvfp4_values, RH_NVFP4, 64, 36)

int rh_dequantise(enum rh_dtype dtype, const void *blocks, int64_t elements, float *out)
{
	static void (*const values[RH_DTYPE_COUNT])(const uint8_t *, int64_t, float *) = {
	        [RH_F32] = f32_values,     [RH_F16] = f16_values,       [RH_BF16] = bf16_values,   [RH_Q8_0] = q8_0_values,
	        [RH_Q4_0] = q4_0_values,   [RH_Q4_1] = q4_1_values,     [RH_Q5_0] = q5_0_values,   [RH_Q5_1] = q5_1_values,
	        [RH_Q2_K] = q2_k_values,   [RH_Q3_K] = q3_k_values,     [RH_Q4_K] = q4_k_values,   [RH_Q5_K] = q5_k_values,
	        [RH_Q6_K] = q6_k_values,   [RH_IQ4_NL] = iq4_nl_values, [RH_MXFP4] = mxfp4_values, [RH_IQ4_XS] = iq4_xs_values,
	        [RH_NVFP4] = nvfp4_values,
	};
	if (!values[dtype])
		return rh_fail(-EINVAL, "elements of type %s cannot be turned into numbers for training", rh_dtype_name(dtype));
	RH_ASSERT(elements >= 0 && elements % rh_dtype_block(dtype) == 0);
	values[dtype](blocks, elements, out);
	return 0;
}
