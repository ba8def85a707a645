/* fp32 into the block types that are written, as gguf.quants does it; of K mixtures: simd/k_quants.c. */
#include "ckpt/gguf_out.h"
#include "ckpt/simd/k_quants.h"
#include "core/float16.h"
#include "core/minmax.h"
#include "core/pool.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 32, PART = 1 << 14 }; /* PART: elements that a thread takes at once */

static void put_half(float value, unsigned char *out)
{
	uint16_t half = rh_f32_to_f16(value);
	out[0] = (unsigned char)half;
	out[1] = (unsigned char)(half >> 8);
}

/* Half away from zero. */
static float rounded(float value)
{
	float size = fabsf(value), floored = floorf(size), up = floorf(2 * (size - floored));
	return copysignf(floored + up, value);
}

/* A scale, then 32 signed bytes. */
static void quantise_q8_0(const float *values, unsigned char *out)
{
	float most = 0;
	for (int i = 0; i < BLOCK; i++)
		most = fmaxf(most, fabsf(values[i]));
	float scale = most / 127, inverse = scale == 0 ? 0 : 1 / scale;
	put_half(scale, out);
	for (int i = 0; i < BLOCK; i++) {
		volatile float scaled = values[i] * inverse; /* rounded here: no product joins the sums behind it */
		out[2 + i] = (unsigned char)(int8_t)rounded(scaled);
	}
}

/* A scale, then 32 numbers of 4 bits: i and i + 16 share a byte. */
static void quantise_q4_0(const float *values, unsigned char *out)
{
	float most = values[0];
	unsigned char code[BLOCK];
	for (int i = 1; i < BLOCK; i++)
		if (fabsf(values[i]) > fabsf(most))
			most = values[i];
	float scale = most / -8, inverse = scale == 0 ? 0 : 1 / scale;
	put_half(scale, out);
	for (int i = 0; i < BLOCK; i++) {
		float shifted = truncf((float)((double)values[i] * (double)inverse + 8.5)); /* rounded before it is cut, as numpy does */
		code[i] = shifted < 0 ? 0 : shifted > 15 ? 15 : (unsigned char)shifted;
	}
	for (int i = 0; i < BLOCK / 2; i++)
		out[2 + i] = (unsigned char)(code[i] | code[i + BLOCK / 2] << 4);
}

static void quantise(enum rh_dtype dtype, const float *values, int64_t elements, unsigned char *at)
{
	if (dtype == RH_F32) {
		memcpy(at, values, (size_t)elements * sizeof *values);
	} else if (dtype == RH_F16 || dtype == RH_BF16) {
		uint16_t *half = (uint16_t *)(void *)at;
		for (int64_t i = 0; i < elements; i++)
			half[i] = dtype == RH_F16 ? rh_f32_to_f16(values[i]) : rh_f32_to_bf16(values[i]);
	} else if (dtype == RH_Q8_0 || dtype == RH_Q4_0) {
		for (int64_t i = 0; i < elements; i += BLOCK, at += rh_dtype_block_bytes(dtype))
			(dtype == RH_Q8_0 ? quantise_q8_0 : quantise_q4_0)(values + i, at);
	} else {
		RH_CPU_PICK(rh_cpu_best_isa(), k_quantise)(dtype, values, elements, at);
	}
}

struct quantising {
	enum rh_dtype dtype;
	const float *values;
	int64_t elements;
	unsigned char *out;
};

static void quantise_part(void *context, int64_t part)
{
	const struct quantising *q = context;
	int64_t first = part * PART, count = rh_min(PART, q->elements - first);
	quantise(q->dtype, q->values + first, count, q->out + rh_dtype_bytes(q->dtype, first));
}

int64_t rh_quantise(struct rh_pool *pool, enum rh_dtype dtype, const float *values, int64_t elements, void *out)
{
	struct quantising q = {dtype, values, elements, out};
	RH_ASSERT(elements % rh_dtype_block(dtype) == 0);
	if (pool)
		rh_pool_run(pool, quantise_part, &q, (elements + PART - 1) / PART);
	else
		quantise(dtype, values, elements, out);
	return rh_dtype_bytes(dtype, elements);
}
