/* One row: a pass for the largest, one for the exponentials (which stay in its place) and their sum, one to scale them. A row of a large
 * vocabulary (49,152: 192 KiB) stays in the second-level cache. */
#include "device/cpu/softmax.h"
#include "device/cpu/simd/vector.h"

#include <math.h>

enum { LANES = 4 }; /* vectors in flight */

static float largest_of(const float *logit, int64_t cols)
{
	vf largest[LANES];
	for (int v = 0; v < LANES; v++)
		largest[v] = vf_set(-INFINITY);
	int64_t j = 0;
	for (; j + LANES * VF <= cols; j += LANES * VF) {
#pragma GCC unroll 4
		for (int v = 0; v < LANES; v++)
			largest[v] = vf_max(largest[v], vf_load(logit + j + v * VF));
	}
	float found = vf_largest(vf_max(vf_max(largest[0], largest[1]), vf_max(largest[2], largest[3])));
	for (; j < cols; j++)
		found = logit[j] > found ? logit[j] : found;
	return found;
}

/* The sum of e^(logit - largest); they replace the logits when `keep`. */
SIMD_INLINE float exponentials(float *logit, int64_t cols, float largest, int keep)
{
	vf sum[LANES] = {{0}};
	int64_t j = 0;
	for (; j + LANES * VF <= cols; j += LANES * VF) {
#pragma GCC unroll 4
		for (int v = 0; v < LANES; v++) {
			vf e = vf_exp(vf_load(logit + j + v * VF) - vf_set(largest));
			sum[v] += e;
			if (keep)
				vf_store(logit + j + v * VF, e);
		}
	}
	for (int64_t here; (here = cols - j < VF ? cols - j : VF) > 0; j += here) {
		vf e = vf_exp(vf_load_part(logit + j, here) - vf_set(largest));
		float part[VF] = {0}; /* lanes beyond the row add nothing */
		vf_store_part(part, e, here);
		sum[0] += vf_load(part);
		if (keep)
			vf_store_part(logit + j, e, here);
	}
	return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* -log of the target's share. */
static float loss_of(float sum, float largest, float wanted)
{
	return (float)(log((double)sum) + (double)largest - (double)wanted);
}

static void scale_f32(float *row, int64_t cols, float factor)
{
	int64_t j = 0;
	for (; j + VF <= cols; j += VF)
		vf_store(row + j, vf_load(row + j) * factor);
	for (; j < cols; j++)
		row[j] *= factor;
}

/* Ascending, so that what is written (half as long) was read before. */
static void scale_bf16(float *row, int64_t cols, float factor)
{
	uint16_t *out = (uint16_t *)(void *)row;
	int64_t j = 0;
	for (; j + VF <= cols; j += VF)
		vf_store_bf16(out + j, vf_load(row + j) * factor);
	if (j < cols)
		vf_store_bf16_part(out + j, vf_load_part(row + j, cols - j) * factor, cols - j);
}

void SIMD(softmax_row)(float *logit, int64_t cols, int64_t target, float scale, enum softmax_gradient gradient, float *loss, int32_t *hit)
{
	float largest = largest_of(logit, cols), wanted = logit[target];
	int first = wanted == largest;
	for (int64_t j = 0; first && j < target; j++)
		first = logit[j] != largest;
	float sum = gradient == SOFTMAX_LOSS_ONLY ? exponentials(logit, cols, largest, 0) : exponentials(logit, cols, largest, 1);
	*hit = first;
	*loss = loss_of(sum, largest, wanted);
	if (gradient == SOFTMAX_LOSS_ONLY)
		return;
	logit[target] -= sum; /* e/sum - 1 = (e - sum)/sum */
	if (gradient == SOFTMAX_F32)
		scale_f32(logit, cols, scale / sum);
	else
		scale_bf16(logit, cols, scale / sum);
}

static void cap_row(float *row, int64_t cols, float cap)
{
	float by = 1 / cap;
	for (int64_t j = 0, here; (here = cols - j < VF ? cols - j : VF) > 0; j += here)
		vf_store_part(row + j, cap * vf_tanh(vf_load_part(row + j, here) * by), here);
}

/* What of a row's capped logits makes their gradient: (e^(logit - largest) - sum, at the target) (1 - (logit / cap)^2) factor. */
struct capped {
	int64_t target;
	float largest, sum, factor, cap;
};

/* Ascending, as scale_bf16. */
static void capped_gradient(float *row, int64_t cols, struct capped of, const int bf16)
{
	float by = 1 / of.cap;
	uint16_t *out = (uint16_t *)(void *)row;
	for (int64_t j = 0, here; (here = cols - j < VF ? cols - j : VF) > 0; j += here) {
		vf logit = vf_load_part(row + j, here), share = logit * by;
		vf e = vf_exp(logit - vf_set(of.largest));
		if (of.target >= j && of.target < j + here)
			e[of.target - j] -= of.sum;
		vf gradient = e * (1.0f - share * share) * of.factor;
		if (bf16)
			vf_store_bf16_part(out + j, gradient, here);
		else
			vf_store_part(row + j, gradient, here);
	}
}

void SIMD(softmax_capped_row)(float *logit, int64_t cols, int64_t target, float scale, float cap, enum softmax_gradient gradient,
                              float *loss, int32_t *hit)
{
	cap_row(logit, cols, cap);
	float largest = largest_of(logit, cols), wanted = logit[target], sum = exponentials(logit, cols, largest, 0);
	int first = wanted == largest;
	for (int64_t j = 0; first && j < target; j++)
		first = logit[j] != largest;
	*hit = first;
	*loss = loss_of(sum, largest, wanted);
	if (gradient != SOFTMAX_LOSS_ONLY)
		capped_gradient(logit, cols, (struct capped){target, largest, sum, scale / sum, cap}, gradient == SOFTMAX_BF16);
}
