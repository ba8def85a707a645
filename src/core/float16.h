/* Conversions between fp32 and the 16-bit types, one value at a time; vector forms live with their users. */
#ifndef RH_CORE_FLOAT16_H
#define RH_CORE_FLOAT16_H

#include "core/portable.h"

#include <stdint.h>
#include <string.h>

RH_PORTABLE uint32_t rh_f32_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

RH_PORTABLE float rh_bits_f32(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

RH_PORTABLE float rh_bf16_to_f32(uint16_t half)
{
	return rh_bits_f32((uint32_t)half << 16);
}

/* Nearest, ties to even: what PyTorch does to activations and gradients. NaN stays NaN. */
RH_PORTABLE uint16_t rh_f32_to_bf16(float value)
{
	uint32_t bits = rh_f32_bits(value);
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40u);
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Nearest, ties away from zero: the upload form of a master weight, which the split layout can undo exactly. Finite values only. */
RH_PORTABLE uint16_t rh_f32_to_bf16_away(float value)
{
	return (uint16_t)((rh_f32_bits(value) + 0x8000u) >> 16);
}

RH_PORTABLE float rh_f16_to_f32(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
	if (exponent == 31)
		return rh_bits_f32(sign | 0x7f800000u | fraction << 13);
	if (exponent)
		return rh_bits_f32(sign | (exponent + 112) << 23 | fraction << 13);
	float tiny = (float)fraction * 0x1p-24f; /* subnormal or zero: exact */
	return sign ? -tiny : tiny;
}

/* Nearest, ties to even; overflow gives infinity. */
RH_PORTABLE uint16_t rh_f32_to_f16(float value)
{
	uint32_t bits = rh_f32_bits(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
	if (size > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00u);
	if (size >= 0x477ff000u)
		return (uint16_t)(sign | 0x7c00u);
	if (size < 0x38800000u) { /* subnormal half: let the adder round, in units of 2^-24 */
		float sum = rh_bits_f32(size) + 0.5f;
		return (uint16_t)(sign | (rh_f32_bits(sum) - 0x3f000000u));
	}
	return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13);
}

#endif
