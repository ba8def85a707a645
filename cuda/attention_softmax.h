/* The softmax of a warp's 16 rows of scores, as keys come. For .cu files only. */
#ifndef RH_CUDA_ATTENTION_SOFTMAX_H
#define RH_CUDA_ATTENTION_SOFTMAX_H

#include "cuda/attention_mma.h"

/* A lane's two rows: the largest score so far, times scale / ln 2, and its own columns' share of the denominator. */
struct softmax {
	float largest[2], sum[2];
};

/* Of two rows that have seen no key. */
RH_DEVICE struct softmax softmax_begin(const struct attention_args &a, int head)
{
	float largest = attention_sink<rh_bf16>(a, head) * 1.442695040888963f;
	float sum = a.sink && (int)threadIdx.x % 4 == 0 ? 1 : 0; /* a sink is one of the four lanes' */
	return {{largest, largest}, {sum, sum}};
}

/* Scores become probabilities, relative to the largest score so far. Sums of earlier keys, relative to the largest score then, are to be
 * multiplied by `shrink`. */
template <int N> RH_DEVICE void softmax_step(struct softmax *row, float (&s)[N / 8][4], float scale_log2, float (&shrink)[2])
{
	RH_UNROLL
	for (int half = 0; half < 2; half++) {
		float largest = -INFINITY;
		RH_UNROLL
		for (int n = 0; n < N / 8; n++)
			largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
		largest = fmaxf(largest, rh_shuffle_xor(largest, 1)); /* the four lanes that share a row */
		largest = fmaxf(largest, rh_shuffle_xor(largest, 2));
		largest = fmaxf(row->largest[half], largest * scale_log2);
		float base = largest == -INFINITY ? 0 : largest; /* no key seen so far: probabilities 0, not NaN */
		shrink[half] = rh_exp2(row->largest[half] - base);
		float sum = row->sum[half] * shrink[half];
		RH_UNROLL
		for (int n = 0; n < N / 8; n++) {
			s[n][2 * half] = rh_exp2(s[n][2 * half] * scale_log2 - base);
			s[n][2 * half + 1] = rh_exp2(s[n][2 * half + 1] * scale_log2 - base);
			sum += s[n][2 * half] + s[n][2 * half + 1];
		}
		row->largest[half] = largest;
		row->sum[half] = sum;
	}
}

/* 1 / denominator, and lse. */
RH_DEVICE void softmax_finish(const struct softmax *row, float (&factor)[2], float (&lse)[2])
{
	RH_UNROLL
	for (int half = 0; half < 2; half++) {
		float sum = row->sum[half];
		sum += rh_shuffle_xor(sum, 1);
		sum += rh_shuffle_xor(sum, 2);
		factor[half] = sum > 0 ? 1 / sum : 0;
		lse[half] = sum > 0 ? row->largest[half] * 0.693147180559945f + logf(sum) : -INFINITY;
	}
}

#endif
