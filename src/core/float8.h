/* 8-bit floating point as tensor cores take it: E4M3 (largest 448, no infinity) for weights and activations, E5M2 (largest 57344) for
 * gradients; and the scale that brings a tensor within reach of a narrow type. (Micikevicius et al. 2022, "FP8 Formats for Deep Learning".)
 */
#ifndef RH_CORE_FLOAT8_H
#define RH_CORE_FLOAT8_H

#include "core/float16.h"

#define RH_E4M3_LARGEST 448.0f
#define RH_E5M2_LARGEST 57344.0f

/* Nearest, ties to even, of `fraction` bits behind the point and the given bias; beyond `largest`, a code, that one. NaN is 0x7f. */
RH_PORTABLE uint8_t rh_f32_to_f8(float value, int fraction, int bias, uint32_t largest)
{
	uint32_t bits = rh_f32_bits(value), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
	int shift = 23 - fraction;
	if (size > 0x7f800000u)
		return (uint8_t)(sign | 0x7fu);
	if (size < (uint32_t)(128 - bias) << 23) { /* subnormal: let the adder round, in units of the smallest */
		uint32_t magic = (uint32_t)(128 - bias + shift) << 23;
		return (uint8_t)(sign | (rh_f32_bits(rh_bits_f32(size) + rh_bits_f32(magic)) - magic));
	}
	size = ((size + (1u << (shift - 1)) - 1 + (size >> shift & 1u)) >> shift) - ((uint32_t)(127 - bias) << fraction);
	return (uint8_t)(sign | (size < largest ? size : largest));
}

RH_PORTABLE uint8_t rh_f32_to_e4m3(float value)
{
	return rh_f32_to_f8(value, 3, 7, 0x7eu);
}

RH_PORTABLE uint8_t rh_f32_to_e5m2(float value)
{
	return rh_f32_to_f8(value, 2, 15, 0x7bu);
}

RH_PORTABLE float rh_f8_to_f32(uint8_t code, int fraction, int bias)
{
	uint32_t sign = (uint32_t)(code & 0x80u) << 24, size = code & 0x7fu;
	float value = size >> fraction ? rh_bits_f32((size << (23 - fraction)) + ((uint32_t)(127 - bias) << 23))
	                               : (float)size * rh_bits_f32((uint32_t)(128 - bias - fraction) << 23);
	return rh_bits_f32(sign | rh_f32_bits(value));
}

RH_PORTABLE float rh_e4m3_to_f32(uint8_t code)
{
	return (code & 0x7fu) == 0x7fu ? rh_bits_f32(0x7fc00000u) : rh_f8_to_f32(code, 3, 7);
}

RH_PORTABLE float rh_e5m2_to_f32(uint8_t code)
{
	if ((code & 0x7cu) != 0x7cu)
		return rh_f8_to_f32(code, 2, 15);
	return rh_bits_f32((uint32_t)(code & 0x80u) << 24 | (code & 3u ? 0x7fc00000u : 0x7f800000u));
}

/* The least power of two, 2^-60 or more, that brings `largest` >= 0 within `limit` when divided by it; 1 of 0. NaN where `largest` is no
 * number or the power would be above 2^60: what is divided by it then shows it. Products of two scales are exact in fp32. */
RH_PORTABLE float rh_power_scale(float largest, float limit)
{
	uint32_t most = rh_f32_bits(largest), bound = rh_f32_bits(limit);
	int power = (int)(most >> 23) - (int)(bound >> 23) + ((most & 0x7fffffu) > (bound & 0x7fffffu));
	if (!most)
		return 1;
	if (most >= 0x7f800000u || power > 60)
		return rh_bits_f32(0x7fc00000u);
	return rh_bits_f32((uint32_t)(127 + (power < -60 ? -60 : power)) << 23);
}

#endif
