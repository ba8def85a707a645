#include "ckpt/quantise_form.h"

#include "ckpt/gguf_out.h"
#include "core/blocks.h"
#include "core/error.h"
#include "core/float8.h"
#include "core/minmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int rh_may_quantise_form(enum rh_form form)
{
	return form == RH_FORM_Q8_0 || form == RH_FORM_Q4_0 ||
	       (form >= RH_FORM_MXFP4 && form <= RH_FORM_FP8_BLOCKS && form != RH_FORM_NVFP4);
}

static float largest_of(const float *values, int64_t count)
{
	float most = 0;
	for (int64_t i = 0; i < count; i++)
		most = fmaxf(most, fabsf(values[i]));
	return most;
}

/* A type's values in ascending order, with the code of each, and the bounds between neighbours. */
struct codes {
	int count;
	float bound[255];
	uint8_t code[256];
};

static void make_codes(const float *ascending, const uint8_t *code, int count, struct codes *out)
{
	out->count = count;
	for (int i = 0; i < count; i++) {
		out->code[i] = code ? code[i] : (uint8_t)i;
		if (i)
			out->bound[i - 1] = (ascending[i - 1] + ascending[i]) / 2;
	}
}

static uint8_t nearest(const struct codes *codes, float value)
{
	int low = 0, high = codes->count - 1;
	while (low < high) {
		int middle = (low + high) / 2;
		if (value > codes->bound[middle])
			low = middle + 1;
		else
			high = middle;
	}
	return codes->code[low];
}

static float value_of(enum rh_dtype dtype, int q)
{
	return dtype == RH_NF4 ? rh_nf4_value(q) : dtype == RH_BNB_FP4 ? rh_bnb_fp4_value(q) : rh_fp4_value(q);
}

/* Of 16 codes; of the two zeros the one without a sign. */
static void codes_of(enum rh_dtype dtype, struct codes *out)
{
	float value[16];
	uint8_t code[16];
	int count = 0;
	for (int q = 0; q < 16; q++) {
		int at = count;
		if (q && value_of(dtype, q) == 0 && signbit(value_of(dtype, q)))
			continue;
		for (; at > 0 && value[at - 1] > value_of(dtype, q); at--) {
			value[at] = value[at - 1];
			code[at] = code[at - 1];
		}
		value[at] = value_of(dtype, q);
		code[at] = (uint8_t)q;
		count++;
	}
	make_codes(value, code, count, out);
}

/* The power of two by which MXFP4 divides: its largest value, 6, has the exponent of the run's largest. */
static float mx_scale(float largest)
{
	int exponent;
	if (largest == 0 || !isfinite(largest))
		return rh_e8m0_value(largest == 0 ? 0 : 255);
	(void)frexpf(largest, &exponent);
	return rh_e8m0_value((uint8_t)rh_max(exponent - 1 - 2 + 127, 0));
}

static void quantise_half_bytes(enum rh_dtype dtype, int64_t run, const float *values, int64_t cols, uint8_t *out, float *scale)
{
	struct codes codes;
	int first_is_high = dtype != RH_FP4;
	codes_of(dtype, &codes);
	for (int64_t c = 0; c < cols; c += run) {
		int64_t count = rh_min(run, cols - c);
		float most = largest_of(values + c, count);
		scale[c / run] = dtype == RH_FP4 ? mx_scale(most) : most;
		float by = most > 0 ? 1 / scale[c / run] : 0;
		for (int64_t i = c; i < c + count; i += 2) {
			uint8_t first = nearest(&codes, values[i] * by), second = nearest(&codes, values[i + 1] * by);
			out[i / 2] = (uint8_t)(first_is_high ? first << 4 | second : second << 4 | first);
		}
	}
}

static void quantise_int8(const float *values, int64_t cols, int8_t *out, float *scale)
{
	*scale = largest_of(values, cols);
	float by = *scale > 0 ? 127 / *scale : 0;
	for (int64_t c = 0; c < cols; c++)
		out[c] = (int8_t)rintf(values[c] * by);
}

/* Rows that share scales. */
static void quantise_fp8(int64_t run, const float *values, int64_t rows, int64_t cols, uint8_t *out, float *scale)
{
	for (int64_t c = 0; c < cols; c += run) {
		int64_t count = rh_min(run, cols - c);
		float most = 0;
		for (int64_t r = 0; r < rows; r++)
			most = fmaxf(most, largest_of(values + r * cols + c, count));
		scale[c / run] = most / RH_E4M3_LARGEST;
		float by = most > 0 ? RH_E4M3_LARGEST / most : 0;
		for (int64_t r = 0; r < rows; r++)
			for (int64_t i = r * cols + c; i < r * cols + c + count; i++)
				out[i] = rh_f32_to_e4m3(values[i] * by);
	}
}

void rh_form_quantise(enum rh_form form, const float *values, int64_t rows, int64_t cols, void *elements, float *scale)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	RH_ASSERT(rh_may_quantise_form(form) && rh_form_takes(form, cols));
	if (!of->run) {
		(void)rh_quantise(NULL, of->element, values, rows * cols, elements);
		return;
	}
	int64_t runs = rh_form_runs(form, cols);
	for (int64_t r = 0, now; r < rows; r += now, scale += runs) {
		now = rh_min(of->tall, rows - r);
		const float *from = values + r * cols;
		char *to = (char *)elements + rh_form_element_bytes(form, r, cols);
		if (of->element == RH_I8)
			quantise_int8(from, cols, (int8_t *)to, scale);
		else if (of->element == RH_E4M3)
			quantise_fp8(of->run, from, now, cols, (uint8_t *)to, scale);
		else
			quantise_half_bytes(of->element, of->run, from, cols, (uint8_t *)to, scale);
	}
}

void rh_form_quantise_joint(const float *values, int64_t count, float scale, uint8_t *out)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = rh_f32_to_e4m3(rh_bf16_to_f32(rh_f32_to_bf16(values[i])) / scale);
}

static int compare(const void *a, const void *b)
{
	const float *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* bitsandbytes' dynamic map (Dettmers 2015, "8-Bit Approximations for Parallelism in Deep Learning"): seven decades of both signs, the
 * upper ones cut into more steps, 0 and 1; ascending. */
static void dynamic_map(float map[256])
{
	int count = 0;
	for (int i = 0; i < 7; i++) {
		int steps = 1 << i;
		double decade = pow(10, i - 6);
		for (int s = 0; s < steps; s++) {
			double middle = 0.1 + 0.9 * (s + 0.5) / steps;
			map[count++] = (float)(decade * middle);
			map[count++] = (float)(-decade * middle);
		}
	}
	map[count++] = 0;
	map[count++] = 1;
	RH_ASSERT(count == 256);
	qsort(map, 256, sizeof *map, compare);
}

static void store_nested(const float *scale, int64_t count, uint8_t *scales, float *tail)
{
	struct codes codes;
	int64_t factors = (count + RH_NESTED_RUN - 1) / RH_NESTED_RUN;
	float *map = tail + factors;
	double sum = 0;
	dynamic_map(map);
	make_codes(map, NULL, 256, &codes);
	for (int64_t i = 0; i < count; i++)
		sum += (double)scale[i];
	float mean = count ? (float)(sum / (double)count) : 0;
	map[RH_NESTED_MAP - 1] = mean;
	for (int64_t f = 0; f < factors; f++) {
		int64_t first = f * RH_NESTED_RUN, end = rh_min(first + RH_NESTED_RUN, count);
		tail[f] = 0;
		for (int64_t i = first; i < end; i++)
			tail[f] = fmaxf(tail[f], fabsf(scale[i] - mean));
		for (int64_t i = first; i < end; i++)
			scales[i] = nearest(&codes, tail[f] > 0 ? (scale[i] - mean) / tail[f] : 0);
	}
}

void rh_form_store_scales(enum rh_form form, int64_t rows, int64_t cols, const float *scale, void *scales, void *tail)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	int64_t count = rh_form_scale_rows(form, rows) * rh_form_runs(form, cols);
	if (of->tail == RH_TAIL_NESTED)
		store_nested(scale, count, scales, tail);
	else if (of->scale == RH_F32)
		memcpy(scales, scale, (size_t)count * sizeof *scale);
	else
		for (int64_t i = 0; i < count; i++) { /* a power of two's exponent; 2^-127 is subnormal */
			uint32_t bits = rh_f32_bits(scale[i]);
			((uint8_t *)scales)[i] = (uint8_t)(bits > 0x7f800000u ? 255 : bits >> 23);
		}
}
