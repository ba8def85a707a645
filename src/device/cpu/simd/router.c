/* The router of a mixture of experts: the k best of each row and their softmax, or sigmoids, and the gradient of that. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

#include <math.h>
#include <string.h>

enum { PADDED = RH_ROUTER_MAX_EXPERTS + 16 }; /* whole vectors */

static int32_t *index_row(struct rh_view view, int64_t t)
{
	return (int32_t *)view.data + t * view.stride;
}

SIMD_INLINE void load_row(struct rh_view logits, int64_t t, float *row, const int bf16)
{
	for (int64_t e = 0; e < logits.cols; e += VF)
		vf_store(row + e, act_load(row_at(logits, t), e, logits.cols - e, bf16));
}

/* The experts in descending order of their logits, NaN last, equal ones in ascending order. The ones taken so far are those that come
 * before the last one in this order. */
static void choose(const float *row, int64_t experts, int32_t *index, int64_t k)
{
	float last = INFINITY;
	int64_t last_at = -1;
	for (int64_t j = 0; j < k; j++) {
		float best = -INFINITY;
		int64_t at = -1;
		for (int64_t e = 0; e < experts; e++) {
			float logit = row[e] == row[e] ? row[e] : -INFINITY;
			int after = logit < last || (logit == last && e > last_at);
			if (after && (at < 0 || logit > best)) {
				best = logit;
				at = e;
			}
		}
		index[j] = (int32_t)at;
		last = best;
		last_at = at;
	}
}

static float sigmoid(float logit)
{
	return 1 / (1 + expf(-logit));
}

/* Experts of groups that take no part come last: the best_groups with the largest sums of two do. */
static void leave_groups(const struct rh_op *op, int64_t experts, float *rank)
{
	int64_t groups = op->router.groups, size = groups > 1 ? experts / groups : 0;
	float sum[RH_ROUTER_MAX_GROUPS];
	for (int64_t g = 0; size && g < groups; g++) {
		float first = -INFINITY, second = -INFINITY;
		for (int64_t e = g * size; e < (g + 1) * size; e++) {
			float own = rank[e] == rank[e] ? rank[e] : -INFINITY;
			second = fmaxf(second, fminf(first, own));
			first = fmaxf(first, own);
		}
		sum[g] = first + second;
	}
	for (int64_t g = 0; size && g < groups; g++) {
		int64_t before = 0;
		for (int64_t other = 0; other < groups; other++)
			before += sum[other] > sum[g] || (sum[other] == sum[g] && other < g);
		for (int64_t e = g * size; before >= op->router.best_groups && e < (g + 1) * size; e++)
			rank[e] = -INFINITY;
	}
}

/* bias[0, E) = the sums of its rows; zeros where there is none. */
SIMD_INLINE void load_bias(struct rh_view bias, int64_t experts, float *sums)
{
	memset(sums, 0, (size_t)experts * sizeof *sums);
	for (int64_t p = 0; bias.data && p < bias.rows; p++)
		for (int64_t e = 0; e < experts; e++)
			sums[e] += act_load(act_at(row_at(bias, p), e, bias.dtype == RH_BF16), 0, 1, bias.dtype == RH_BF16)[0];
}

/* The choice by sigmoids and their biases. Returns what the chosen sigmoids are divided by. */
static float choose_sigmoids(const struct rh_op *op, const float *row, const float *bias, int32_t *index, float *chosen)
{
	int64_t experts = op->operand[RH_ROUTER_LOGITS].cols, k = op->operand[RH_ROUTER_INDEX].cols;
	float rank[PADDED], sum = 0;
	for (int64_t e = 0; e < experts; e++)
		rank[e] = sigmoid(row[e]) + bias[e];
	leave_groups(op, experts, rank);
	choose(rank, experts, index, k);
	for (int64_t j = 0; j < k; j++)
		sum += chosen[j] = sigmoid(row[index[j]]);
	return op->router.softmax == RH_ROUTER_OVER_ALL ? 1 : sum + RH_ROUTER_EPSILON;
}

/* row becomes e^(logit - largest); returns their sum. */
static float exponentials(float *row, int64_t n, float largest)
{
	vf sum = {0};
	for (int64_t e = 0; e < n; e += VF) {
		float part[VF] = {0}; /* what lies beyond the row adds nothing */
		vf power = vf_exp(vf_load(row + e) - vf_set(largest));
		if (n - e >= VF)
			vf_store(part, power);
		else
			vf_store_part(part, power, n - e);
		vf_store(row + e, power);
		sum += vf_load(part);
	}
	return vf_sum(sum);
}

/* The softmax over all, or over the chosen: powers of the chosen to chosen[k]. */
static float powers_of(enum rh_router_softmax softmax, float *row, int64_t experts, const int32_t *index, int64_t k, float *chosen)
{
	float largest = row[index[0]], sum = 0;
	for (int64_t j = 0; j < k; j++)
		chosen[j] = row[index[j]];
	if (softmax == RH_ROUTER_OVER_CHOSEN)
		return exponentials(chosen, k, largest);
	sum = exponentials(row, experts, largest);
	for (int64_t j = 0; j < k; j++)
		chosen[j] = row[index[j]];
	return sum;
}

/* share[0, E) = the softmax over all experts of row t, of whose experts the one of `index` has the largest logit. */
SIMD_INLINE void shares_of_all(struct rh_view logits, int64_t t, const int32_t *index, float *share, const int bf16)
{
	load_row(logits, t, share, bf16);
	float sum = exponentials(share, logits.cols, share[*index]);
	for (int64_t e = 0; e < logits.cols; e++)
		share[e] /= sum;
}

/* Row t of the load. `share`: room for a row. */
SIMD_INLINE void write_load(const struct rh_op *op, int64_t t, const int32_t *index, float *share, const int bf16)
{
	struct rh_view logits = op->operand[RH_ROUTER_LOGITS];
	float *load = row_at(op->operand[RH_ROUTER_LOAD], t);
	shares_of_all(logits, t, index, share, bf16);
	memset(load, 0, (size_t)logits.cols * sizeof *load);
	memcpy(load + logits.cols, share, (size_t)logits.cols * sizeof *load);
	for (int64_t j = 0; j < op->operand[RH_ROUTER_INDEX].cols; j++)
		load[index[j]] = 1;
}

/* Of an expert; 1 where there are none. */
static float scale_of(struct rh_view scale, int64_t expert)
{
	if (!scale.data)
		return 1;
	return scale.dtype == RH_BF16 ? rh_bf16_to_f32(((const uint16_t *)scale.data)[expert]) : ((const float *)scale.data)[expert];
}

SIMD_INLINE void forward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view logits = op->operand[RH_ROUTER_LOGITS], index = op->operand[RH_ROUTER_INDEX], weight = op->operand[RH_ROUTER_WEIGHT];
	float row[PADDED] = {0}, chosen[RH_ROUTER_MAX_TOP + VF] = {0}, bias[PADDED],
	      factor = op->router.factor == 0 ? 1 : op->router.factor;
	load_bias(op->operand[RH_ROUTER_BIAS], logits.cols, bias);
	for (int64_t t = first; t < end; t++) {
		float sum;
		load_row(logits, t, row, bf16);
		if (op->router.sigmoid)
			sum = choose_sigmoids(op, row, bias, index_row(index, t), chosen);
		else {
			choose(row, logits.cols, index_row(index, t), index.cols);
			sum = powers_of(op->router.softmax, row, logits.cols, index_row(index, t), index.cols, chosen);
		}
		float *out = row_at(weight, t);
		for (int64_t j = 0; j < index.cols; j++)
			out[j] = chosen[j] / sum * factor * scale_of(op->operand[RH_ROUTER_SCALE], index_row(index, t)[j]);
		if (op->operand[RH_ROUTER_LOAD].data)
			write_load(op, t, index_row(index, t), row, bf16);
	}
}

/* Units are rows. */
static void router(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_ROUTER_LOGITS].dtype, forward, op, first, end);
}

const struct cpu_op SIMD(cpu_router) = {{{router, NULL}}};

/* row += the gradient through the shares of a softmax over all, of which each one's gradient is `balance` times its count. */
SIMD_INLINE void add_balance(const struct rh_op *op, int64_t t, const int32_t *index, float *row, const int bf16)
{
	struct rh_view logits = op->operand[RH_ROUTER_BACKWARD_LOGITS];
	const float *count = op->operand[RH_ROUTER_BACKWARD_COUNT].data;
	float share[PADDED] = {0}, mean = 0;
	shares_of_all(logits, t, index, share, bf16);
	for (int64_t e = 0; e < logits.cols; e++)
		mean += share[e] * count[e];
	for (int64_t e = 0; e < logits.cols; e++)
		row[e] += op->router.balance * share[e] * (count[e] - mean);
}

/* Row t of the gradients of the experts' scales: through(j) of the chosen `at` is that gradient times the scale. */
static void write_scale_gradient(const struct rh_op *op, int64_t t, const int32_t *at, const float *through)
{
	struct rh_view to = op->operand[RH_ROUTER_BACKWARD_DSCALE];
	float *row = row_at(to, t);
	memset(row, 0, (size_t)to.cols * sizeof *row);
	for (int64_t j = 0; j < op->operand[RH_ROUTER_BACKWARD_INDEX].cols; j++) {
		float scale = scale_of(op->operand[RH_ROUTER_BACKWARD_SCALE], at[j]);
		row[at[j]] = scale == 0 ? 0 : through[j] / scale;
	}
}

/* row, logits, becomes their gradient, of whose chosen `at` through(j) is the sigmoid's gradient times it: see ops/router.c. */
static void sigmoid_gradients(const struct rh_op *op, float *row, const int32_t *at, const float *through, float all_through)
{
	int64_t experts = op->operand[RH_ROUTER_BACKWARD_LOGITS].cols, k = op->operand[RH_ROUTER_BACKWARD_INDEX].cols;
	float share[RH_ROUTER_MAX_TOP], rest[RH_ROUTER_MAX_TOP], sum = RH_ROUTER_EPSILON;
	for (int64_t j = 0; j < k; j++) {
		sum += share[j] = sigmoid(row[at[j]]);
		rest[j] = sigmoid(-row[at[j]]);
	}
	memset(row, 0, (size_t)experts * sizeof *row);
	for (int64_t j = 0; j < k; j++) {
		float less = op->router.softmax == RH_ROUTER_OVER_ALL ? 0 : share[j] / sum * all_through;
		row[at[j]] = rest[j] * (through[j] - less);
	}
}

/* The same of powers: of those of all experts, or of the chosen alone. */
static void power_gradients(const struct rh_op *op, float *row, const int32_t *at, const float *through, float all_through)
{
	int64_t experts = op->operand[RH_ROUTER_BACKWARD_LOGITS].cols, k = op->operand[RH_ROUTER_BACKWARD_INDEX].cols;
	float chosen[RH_ROUTER_MAX_TOP + VF] = {0};
	float sum = powers_of(op->router.softmax, row, experts, at, k, chosen);
	for (int64_t e = 0; e < experts; e++)
		row[e] = op->router.softmax == RH_ROUTER_OVER_ALL ? row[e] / sum * -all_through : 0;
	for (int64_t j = 0; j < k; j++)
		row[at[j]] = through[j] - chosen[j] / sum * all_through;
}

/* With p the softmax and g the gradient of its elements (0 but for the chosen): dlogit = p g - p times the sum of p g. */
SIMD_INLINE void backward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view logits = op->operand[RH_ROUTER_BACKWARD_LOGITS], index = op->operand[RH_ROUTER_BACKWARD_INDEX];
	struct rh_view place = op->operand[RH_ROUTER_BACKWARD_PLACE], dot = op->operand[RH_ROUTER_BACKWARD_DOT];
	struct rh_view more = op->operand[RH_ROUTER_BACKWARD_MORE], dlogits = op->operand[RH_ROUTER_BACKWARD_DLOGITS];
	int64_t experts = logits.cols, k = index.cols;
	int out_bf16 = dlogits.dtype == RH_BF16;
	float row[PADDED] = {0};
	for (int64_t t = first; t < end; t++) {
		const int32_t *at = index_row(index, t);
		const float *weight = row_at(op->operand[RH_ROUTER_BACKWARD_WEIGHT], t);
		const int32_t *from = index_row(place, t);
		float through[RH_ROUTER_MAX_TOP], all_through = 0;
		for (int64_t j = 0; j < k; j++) {
			RH_ASSERT(at[j] >= 0 && at[j] < experts && from[j] >= 0 && from[j] < dot.rows);
			through[j] = *(const float *)row_at(dot, from[j]);
			through[j] += more.data ? weight[j] * ((const float *)row_at(more, t))[at[j]] : 0;
			all_through += through[j];
		}
		load_row(logits, t, row, bf16);
		if (op->router.sigmoid)
			sigmoid_gradients(op, row, at, through, all_through);
		else
			power_gradients(op, row, at, through, all_through);
		if (op->operand[RH_ROUTER_BACKWARD_COUNT].data)
			add_balance(op, t, at, row, bf16);
		if (op->operand[RH_ROUTER_BACKWARD_DSCALE].data)
			write_scale_gradient(op, t, at, through);
		for (int64_t e = 0; e < experts; e += VF) {
			if (out_bf16)
				act_store(row_at(dlogits, t), e, vf_load(row + e), experts - e, 1);
			else
				act_store(row_at(dlogits, t), e, vf_load(row + e), experts - e, 0);
		}
	}
}

/* Units are rows. */
static void router_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_ROUTER_BACKWARD_LOGITS].dtype, backward, op, first, end);
}

const struct cpu_op SIMD(cpu_router_backward) = {{{router_backward, NULL}}};
