/* Rows, and runs of them between a teacher's ids, are some hundreds of logits long or more: one vector in flight, sums in its lanes. */
#include "device/cpu/shares.h"
#include "device/cpu/simd/vector.h"

#include <math.h>

/* The first `here` of a vector's lanes, `beyond` in the others. */
SIMD_INLINE vf load_part(const float *from, int64_t here, float beyond)
{
	float lane[VF];
	vf_store(lane, vf_set(beyond));
	vf_store_part(lane, vf_load_part(from, here), here);
	return vf_load(lane);
}

float SIMD(shares_largest)(const float *logit, int64_t cols)
{
	vf largest = vf_set(-INFINITY), fault = {0};
	int64_t v = 0;
	for (; v + VF <= cols; v += VF) {
		vf x = vf_load(logit + v);
		largest = vf_max(largest, x);
		fault += x - x;
	}
	if (v < cols) {
		largest = vf_max(largest, load_part(logit + v, cols - v, -INFINITY));
		vf x = load_part(logit + v, cols - v, 0);
		fault += x - x;
	}
	return isnan(vf_sum(fault)) ? NAN : vf_largest(largest);
}

float SIMD(shares_sum)(const float *logit, int64_t cols, float center, float per_degree)
{
	vf sum = {0};
	int64_t v = 0;
	for (; v + VF <= cols; v += VF)
		sum += vf_exp((vf_load(logit + v) - center) * per_degree);
	float all = vf_sum(sum);
	if (v < cols) {
		float lane[VF] = {0};
		vf_store_part(lane, vf_exp((load_part(logit + v, cols - v, center) - center) * per_degree), cols - v);
		all += vf_sum(vf_load(lane));
	}
	return all;
}

SIMD_INLINE vf terms_of(vf x, const struct share_term term[SHARE_TERMS])
{
	vf sum = vf_exp((x - term[0].center) * term[0].per_degree) * term[0].factor;
	for (int i = 1; i < SHARE_TERMS && term[i].factor != 0; i++)
		sum += vf_exp((x - term[i].center) * term[i].per_degree) * term[i].factor;
	return sum;
}

void SIMD(shares_slopes)(float *row, int64_t from, int64_t to, const struct share_term term[SHARE_TERMS], enum softmax_gradient gradient)
{
	uint16_t *narrow = (uint16_t *)(void *)row;
	for (int64_t v = from; v < to; v += VF) {
		int64_t here = to - v < VF ? to - v : VF;
		vf value = terms_of(here < VF ? load_part(row + v, here, 0) : vf_load(row + v), term);
		if (gradient == SOFTMAX_F32)
			vf_store_part(row + v, value, here);
		else
			vf_store_bf16_part(narrow + v, value, here);
	}
}
