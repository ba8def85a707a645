/* A K block is 256 values in runs (Q4_K, Q5_K: 8 of 32 values, each with scale and minimum; Q6_K: 16 of 16, with a scale). The scale of a
 * run is searched: some twenty spacings of the codes are tried, each gives codes, these give the scale (and minimum) of least weighted
 * squares, and the best is kept. The runs' scales are then rounded to 6 or 8 bits beside one fp16 scale for the block, and the values'
 * codes are taken anew.
 *
 * Each sum is made in the order of the values, without fused multiply-adds, so that its bits are ggml's. So vectors do not hold values of
 * one run: each lane is a run of its own. */
#include "ckpt/simd/k_quants.h"
#include "core/error.h"
#include "device/cpu/simd/vector.h"

#include <math.h>

#pragma GCC optimize("fp-contract=off")

enum { SUPER = 256, RUNS = 16, LONG = 32, SHORT = 16, BLOCK = 32 };

/* What the search found for each run of a stretch: a block of Q6_K, two blocks of the others. */
struct runs {
	float scale[RUNS], minimum[RUNS]; /* minimum: what is taken off, at least 0 */
	float inverse[RUNS], low[RUNS];   /* of the codes that the search kept: inverse * (x - low); inverse 0: all codes are 0 */
};

/* How codes are searched. */
struct search {
	float most;  /* the largest code */
	float first; /* the first spacing tried has so many codes more than `most`; each next one 0.1 more */
	int steps;
};

SIMD_INLINE vf absolute(vf v)
{
	return (vf)((vi)v & 0x7fffffff);
}

/* The nearest whole number, ties to even; of values below 2^22. */
SIMD_INLINE vf nearest(vf v)
{
	const vf shift = vf_set(0x1.8p23f);
	return (v + shift) - shift;
}

SIMD_INLINE float nearest_one(float v)
{
	const float shift = 0x1.8p23f;
	return (v + shift) - shift;
}

SIMD_INLINE float clamped(float v, float least, float most)
{
	return v >= least ? v < most ? v : most : least; /* NaN: least */
}

SIMD_INLINE vf root(vf v)
{
	float lane[VF];
	vf_store(lane, v);
	for (int i = 0; i < VF; i++)
		lane[i] = sqrtf(lane[i]);
	return vf_load(lane);
}

/* Value i of each of VF runs, of which the last stands for those that are not there. */
SIMD_INLINE void turn(const float *values, int first, int runs, const int length, vf *x)
{
	float lane[VF];
	for (int i = 0; i < length; i++) {
		for (int l = 0; l < VF; l++)
			lane[l] = values[(first + l < runs ? first + l : runs - 1) * length + i];
		x[i] = vf_load(lane);
	}
}

/* VF runs of 32 values, x = scale * code - minimum, weighted by root mean square + |x|. */
static void fit_affine(const struct search *search, const vf x[LONG], struct runs *out, int at)
{
	const vf zero = vf_set(0), most = vf_set(search->most);
	vf weight[LONG], code[LONG], squares = zero, sum_w = zero, sum_x = zero, low = x[0], high = x[0], best = zero;
	for (int i = 0; i < LONG; i++)
		squares += x[i] * x[i];
	vf mean = root(squares / vf_set(LONG));
	for (int i = 0; i < LONG; i++) {
		weight[i] = mean + absolute(x[i]);
		sum_w += weight[i];
		sum_x += weight[i] * x[i];
		low = vf_min(x[i], low);
		high = vf_max(x[i], high);
	}
	low = vf_min(low, zero);
	vi flat = high == low;
	vf lowest = low, inverse = most / (high - low), scale = vf_set(1) / inverse, kept_low = low, kept = inverse;
	for (int i = 0; i < LONG; i++) {
		vf miss = (scale * vf_min(vf_max(nearest(inverse * (x[i] - low)), zero), most) + low) - x[i];
		best += weight[i] * (miss * miss);
	}
	for (int step = 0; step <= search->steps; step++) {
		vf sum_l = zero, sum_l2 = zero, sum_xl = zero, error = zero;
		inverse = vf_set((search->first + 0.1f * (float)step) + search->most) / (high - low);
		for (int i = 0; i < LONG; i++) {
			code[i] = vf_min(vf_max(nearest(inverse * (x[i] - low)), zero), most);
			vf weighted = weight[i] * code[i];
			sum_l += weighted;
			sum_l2 += weighted * code[i];
			sum_xl += weighted * x[i];
		}
		vf determinant = sum_w * sum_l2 - sum_l * sum_l;
		vf slope = (sum_w * sum_xl - sum_x * sum_l) / determinant, base = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
		vi above = base > zero;
		slope = vf_select(above, sum_xl / sum_l2, slope);
		base = vf_select(above, zero, base);
		for (int i = 0; i < LONG; i++) {
			vf miss = (slope * code[i] + base) - x[i];
			error += weight[i] * (miss * miss);
		}
		vi better = (determinant > zero) & (error < best);
		best = vf_select(better, error, best);
		scale = vf_select(better, slope, scale);
		kept = vf_select(better, inverse, kept);
		kept_low = vf_select(better, low, kept_low);
		low = vf_select(better, base, low); /* the spacings that follow begin here */
	}
	vf_store(out->scale + at, vf_select(flat, zero, scale));
	vf_store(out->minimum + at, -vf_select(flat, lowest, low));
	vf_store(out->inverse + at, vf_select(flat, zero, kept));
	vf_store(out->low + at, kept_low);
}

/* VF runs of 16 values, x = scale * code for codes from -32 to 31, weighted by x^2. */
static void fit_symmetric(const vf x[SHORT], struct runs *out, int at)
{
	const float reach = 32;
	const vf zero = vf_set(0), least = vf_set(-reach), most = vf_set(reach - 1);
	vf size = zero, largest = zero, scale = zero, best = vf_set(-1), kept = zero;
	for (int i = 0; i < SHORT; i++) {
		vi larger = absolute(x[i]) > size;
		size = vf_select(larger, absolute(x[i]), size);
		largest = vf_select(larger, x[i], largest);
	}
	for (int step = -10; step <= 9; step++) { /* the plain spacing first */
		float tried = step == -10 ? 0 : 0.1f * (float)step;
		vf sum_xl = zero, sum_l2 = zero, inverse = vf_set(-(reach + tried)) / largest;
		if (step == 0)
			continue;
		for (int i = 0; i < SHORT; i++) {
			vf code = vf_min(vf_max(nearest(inverse * x[i]), least), most), weight = x[i] * x[i];
			sum_xl += (weight * x[i]) * code;
			sum_l2 += (weight * code) * code;
		}
		vi better = (sum_l2 > zero) & (sum_xl * sum_xl > best * sum_l2);
		scale = vf_select(better, sum_xl / sum_l2, scale);
		best = vf_select(better, scale * sum_xl, best);
		kept = vf_select(better, inverse, kept);
	}
	vi none = size < 1e-15f;
	vf_store(out->scale + at, vf_select(none, zero, scale));
	vf_store(out->inverse + at, vf_select(none, zero, kept));
}

static void put_half(float value, unsigned char *out)
{
	uint16_t half = rh_f32_to_f16(value);
	out[0] = (unsigned char)half;
	out[1] = (unsigned char)(half >> 8);
}

static float get_half(const unsigned char *from)
{
	return rh_f16_to_f32((uint16_t)(from[0] | from[1] << 8));
}

/* A run's codes: those of the rounded scale and minimum, or, where that scale is 0, those of the search. */
SIMD_INLINE void take_codes(const float *x, float scale, float minimum, float most, const struct runs *runs, int run, unsigned char *code)
{
	for (int i = 0; scale != 0 && i < LONG; i++)
		code[i] = (unsigned char)clamped(nearest_one((x[i] + minimum) / scale), 0, most);
	for (int i = 0; scale == 0 && i < LONG; i++)
		code[i] = (unsigned char)clamped(nearest_one(runs->inverse[run] * (x[i] - runs->low[run])), 0, most);
}

/* Block scales, then 8 scales and 8 minima of 6 bits in 12 bytes. `first`: the block's first run. */
static void put_scales(const struct runs *runs, int first, unsigned char *out)
{
	unsigned char *packed = out + 4;
	float largest = 0, deepest = 0;
	for (int j = first; j < first + 8; j++) {
		largest = runs->scale[j] > largest ? runs->scale[j] : largest;
		deepest = runs->minimum[j] > deepest ? runs->minimum[j] : deepest;
	}
	float by_scale = largest > 0 ? 63.0f / largest : 0, by_minimum = deepest > 0 ? 63.0f / deepest : 0;
	put_half(largest / 63.0f, out);
	put_half(deepest / 63.0f, out + 2);
	memset(packed, 0, 12);
	for (int j = 0; j < 8; j++) { /* a scale below 0 wraps around, as ggml's does */
		int s = (int)clamped(nearest_one(by_scale * runs->scale[first + j]), -1e6f, 1e6f) & 255;
		int m = (int)clamped(nearest_one(by_minimum * runs->minimum[first + j]), -1e6f, 1e6f) & 255;
		s = s < 63 ? s : 63;
		m = m < 63 ? m : 63;
		packed[j] |= (unsigned char)(j < 4 ? s : 0);
		packed[j + 4] |= (unsigned char)(j < 4 ? m : (s & 15) | (m & 15) << 4);
		if (j >= 4) {
			packed[j - 4] |= (unsigned char)(s >> 4 << 6);
			packed[j] |= (unsigned char)(m >> 4 << 6);
		}
	}
}

/* A block of Q4_K or Q5_K from run `first` on. */
static void put_affine(const struct search *search, const float *x, const struct runs *runs, int first, unsigned char *out)
{
	int has_fifths = search->most > 15;
	unsigned char code[SUPER], *packed = out + 4, *fifths = out + 16, *low = out + (has_fifths ? 48 : 16);
	put_scales(runs, first, out);
	float unit = get_half(out), unit_minimum = get_half(out + 2);
	for (int j = 0; j < 8; j++) {
		int s = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
		int m = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
		take_codes(x + j * LONG, unit * (float)s, unit_minimum * (float)m, search->most, runs, first + j, code + j * LONG);
	}
	for (int j = 0; j < 8; j += 2)
		for (int i = 0; i < LONG; i++)
			low[j / 2 * LONG + i] = (unsigned char)((code[j * LONG + i] & 15) | (code[(j + 1) * LONG + i] & 15) << 4);
	if (!has_fifths)
		return;
	memset(fifths, 0, LONG);
	for (int j = 0; j < 8; j++)
		for (int i = 0; i < LONG; i++)
			fifths[i] |= (unsigned char)(code[j * LONG + i] >> 4 << j);
}

/* A block of Q6_K: low half bytes, high pairs of bits, the runs' scales, the block's. */
static void put_symmetric(const float *x, const struct runs *runs, unsigned char *out)
{
	unsigned char code[SUPER], *low = out, *high = out + 128, *scales = out + 192;
	float size = 0, largest = 0;
	for (int j = 0; j < RUNS; j++) {
		int is_larger = fabsf(runs->scale[j]) > size;
		size = is_larger ? fabsf(runs->scale[j]) : size;
		largest = is_larger ? runs->scale[j] : largest;
	}
	memset(out, 0, 210);
	if (size < 1e-15f)
		return;
	float inverse = -128.0f / largest;
	put_half(1 / inverse, out + 208);
	float unit = get_half(out + 208);
	for (int j = 0; j < RUNS; j++) {
		float s = clamped(nearest_one(inverse * runs->scale[j]), -128, 127), scale = unit * s;
		scales[j] = (unsigned char)(signed char)s;
		for (int i = j * SHORT; scale != 0 && i < (j + 1) * SHORT; i++)
			code[i] = (unsigned char)(clamped(nearest_one(x[i] / scale), -32, 31) + 32);
		for (int i = j * SHORT; scale == 0 && i < (j + 1) * SHORT; i++)
			code[i] = (unsigned char)(runs->inverse[j] == 0 ? 0 : clamped(nearest_one(runs->inverse[j] * x[i]), -32, 31) + 32);
	}
	for (int h = 0; h < 2; h++)
		for (int i = 0; i < 32; i++) {
			const unsigned char *c = code + h * 128 + i;
			low[h * 64 + i] = (unsigned char)((c[0] & 15) | (c[64] & 15) << 4);
			low[h * 64 + 32 + i] = (unsigned char)((c[32] & 15) | (c[96] & 15) << 4);
			high[h * 32 + i] = (unsigned char)(c[0] >> 4 | c[32] >> 4 << 2 | c[64] >> 4 << 4 | c[96] >> 4 << 6);
		}
}

/* 32 codes of 5 bits: fifth bits, then half bytes, of which i and i + 16 share one. */
static void put_fives(const unsigned char code[BLOCK], unsigned char *fifths, unsigned char *low)
{
	memset(fifths, 0, BLOCK / 8);
	for (int i = 0; i < BLOCK; i++)
		fifths[i / 8] |= (unsigned char)(code[i] >> 4 << i % 8);
	for (int i = 0; i < BLOCK / 2; i++)
		low[i] = (unsigned char)((code[i] & 15) | (code[i + BLOCK / 2] & 15) << 4);
}

static void quantise_q5_0(const float *x, unsigned char *out)
{
	unsigned char code[BLOCK];
	float largest = 0;
	for (int i = 0; i < BLOCK; i++)
		largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
	float scale = largest / -16, inverse = scale == 0 ? 0 : 1 / scale;
	put_half(scale, out);
	for (int i = 0; i < BLOCK; i++)
		code[i] = (unsigned char)clamped(x[i] * inverse + 16.5f, 0, 31);
	put_fives(code, out + 2, out + 6);
}

static void quantise_q5_1(const float *x, unsigned char *out)
{
	unsigned char code[BLOCK];
	float low = x[0], high = x[0];
	for (int i = 1; i < BLOCK; i++) {
		low = x[i] < low ? x[i] : low;
		high = x[i] > high ? x[i] : high;
	}
	float scale = (high - low) / 31, inverse = scale == 0 ? 0 : 1 / scale;
	put_half(scale, out);
	put_half(low, out + 2);
	for (int i = 0; i < BLOCK; i++)
		code[i] = (unsigned char)clamped((x[i] - low) * inverse + 0.5f, 0, 31);
	put_fives(code, out + 4, out + 8);
}

/* One block of Q6_K, or one or two of the others. */
static void quantise_stretch(enum rh_dtype dtype, const float *x, int blocks, unsigned char *out)
{
	static const struct search four = {15, -1, 20}, five = {31, -0.5f, 15};
	const struct search *search = dtype == RH_Q4_K ? &four : &five;
	struct runs runs = {0};
	vf turned[LONG];
	if (dtype == RH_Q6_K) {
		for (int first = 0; first < RUNS; first += VF) {
			turn(x, first, RUNS, SHORT, turned);
			fit_symmetric(turned, &runs, first);
		}
		put_symmetric(x, &runs, out);
		return;
	}
	for (int first = 0; first < 8 * blocks; first += VF) {
		turn(x, first, 8 * blocks, LONG, turned);
		fit_affine(search, turned, &runs, first);
	}
	for (int b = 0; b < blocks; b++)
		put_affine(search, x + b * SUPER, &runs, 8 * b, out + b * rh_dtype_block_bytes(dtype));
}

void SIMD(k_quantise)(enum rh_dtype dtype, const float *values, int64_t elements, unsigned char *out)
{
	int64_t block = rh_dtype_block(dtype), bytes = rh_dtype_block_bytes(dtype), blocks = elements / block;
	RH_ASSERT(dtype == RH_Q4_K || dtype == RH_Q5_K || dtype == RH_Q6_K || dtype == RH_Q5_0 || dtype == RH_Q5_1);
	if (block == BLOCK) {
		for (int64_t b = 0; b < blocks; b++)
			(dtype == RH_Q5_0 ? quantise_q5_0 : quantise_q5_1)(values + b * block, out + b * bytes);
		return;
	}
	for (int64_t b = 0, count; b < blocks; b += count) {
		count = dtype == RH_Q6_K || b + 1 == blocks ? 1 : 2;
		quantise_stretch(dtype, values + b * block, (int)count, out + b * bytes);
	}
}
