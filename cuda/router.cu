/* The router of a mixture of experts: k best of E logits and their softmax, and the gradient. With T tokens, logits of e bytes:
 *
 * forward   reads T E e, writes 8 T k bytes, and 8 T E of a load; k E comparisons a token, and E exponentials.
 * backward  reads T E e + 16 T k, writes T E e bytes; E exponentials a token.
 *
 * With sigmoids they take the place of exponentials; groups of experts cost two rounds more each.
 *
 * Both are short (4096 tokens, 128 experts: 2 MB) and bound by latency: the k rounds of a best one, five shuffles each. The roofline is
 * bytes / DRAM bandwidth, some 2 us there.
 *
 * Tile: a warp a token, 8 a block; lane l holds experts l, l + 32, ... in registers, at most 4 or 32 of them. Sums: a lane's in ascending
 * order, then over the warp. */
#include "cuda/kernels.h"
#include "cuda/rh_cuda.h"

enum { THREADS = 256, WARPS = THREADS / RH_WARP };

struct router_args {
	const void *logits;
	int32_t *index;
	float *weight;
	const int32_t *place;
	const float *dot, *more, *count;
	void *dlogits;
	float *load;
	const void *scale, *bias;
	float *dscale;
	float balance, factor;
	int64_t logits_stride, index_stride, weight_stride, place_stride, dot_stride, more_stride, dlogits_stride, load_stride;
	int64_t dscale_stride, bias_stride, rows;
	int experts, top, over_all, round, scale_is_bf16; /* round: dlogits are BF16 */
	int sigmoid, bias_rows, bias_is_bf16, groups, best_groups;
};

RH_DEVICE float number_at(const void *at, int64_t i, int is_bf16)
{
	return is_bf16 ? rh_to_float(((const rh_bf16 *)at)[i]) : ((const float *)at)[i];
}

/* Of an expert; 1 where there are none. */
RH_DEVICE float scale_of(const struct router_args &a, int expert)
{
	if (!a.scale)
		return 1;
	return number_at(a.scale, expert, a.scale_is_bf16);
}

/* The experts in descending order of logits, equal ones in ascending order of their numbers. */
struct rank {
	float logit; /* -infinity for NaN */
	int expert;
};

RH_DEVICE int rank_before(const struct rank &a, const struct rank &b)
{
	return a.logit > b.logit || (a.logit == b.logit && a.expert < b.expert);
}

/* The first of those that come after `last`: the same in every lane. */
template <int N> RH_DEVICE struct rank rank_next(const float (&logit)[N], const struct rank &last)
{
	int lane = (int)threadIdx.x % RH_WARP;
	struct rank best = {-INFINITY, INT32_MAX};
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		struct rank own = {logit[i] == logit[i] ? logit[i] : -INFINITY, i * RH_WARP + lane};
		if (rank_before(last, own) && rank_before(own, best))
			best = own;
	}
	RH_UNROLL
	for (int mask = RH_WARP / 2; mask; mask /= 2) {
		struct rank other = {rh_shuffle_xor(best.logit, mask), rh_shuffle_xor(best.expert, mask)};
		if (rank_before(other, best))
			best = other;
	}
	return best;
}

/* Those beyond the last expert are -infinity: of higher number than any other such, they are never chosen, and their power is 0. */
template <typename T, int N> RH_DEVICE void logits_load(float (&logit)[N], const struct router_args &a, int64_t row)
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		int expert = i * RH_WARP + lane;
		logit[i] = expert < a.experts ? rh_to_float(((const T *)a.logits)[row * a.logits_stride + expert]) : -INFINITY;
	}
}

RH_DEVICE float sigmoid_of(float logit)
{
	return 1 / (1 + expf(-logit));
}

/* The sum of a group's two largest ranks: the same in every lane. */
template <int N> RH_DEVICE float group_sum(const float (&rank)[N], int first, int end)
{
	int lane = (int)threadIdx.x % RH_WARP;
	float best = -INFINITY, second = -INFINITY;
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		int expert = i * RH_WARP + lane;
		float own = expert >= first && expert < end && rank[i] == rank[i] ? rank[i] : -INFINITY;
		second = fmaxf(second, fminf(best, own));
		best = fmaxf(best, own);
	}
	RH_UNROLL
	for (int mask = RH_WARP / 2; mask; mask /= 2) {
		float other = rh_shuffle_xor(best, mask), behind = rh_shuffle_xor(second, mask);
		second = fmaxf(fmaxf(second, behind), fminf(best, other));
		best = fmaxf(best, other);
	}
	return best + second;
}

/* Experts of groups that take no part come last. Lane g has group g's sum. */
template <int N> RH_DEVICE void leave_groups(float (&rank)[N], const struct router_args &a)
{
	int lane = (int)threadIdx.x % RH_WARP, size = a.experts / a.groups, before = 0;
	float own = 0;
	for (int g = 0; g < a.groups; g++) {
		float sum = group_sum(rank, g * size, (g + 1) * size);
		own = lane == g ? sum : own;
	}
	for (int g = 0; g < a.groups; g++) {
		float other = rh_shuffle(own, g);
		before += other > own || (other == own && g < lane);
	}
	for (int g = 0; g < a.groups; g++) {
		int is_out = rh_shuffle(before, g) >= a.best_groups;
		RH_UNROLL
		for (int i = 0; i < N; i++) {
			int expert = i * RH_WARP + lane;
			rank[i] = is_out && expert >= g * size && expert < (g + 1) * size ? -INFINITY : rank[i];
		}
	}
}

/* What the choice is by: the logits, or their sigmoids and biases. */
template <int N> RH_DEVICE void ranks_of(float (&rank)[N], const float (&logit)[N], const struct router_args &a)
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		int expert = i * RH_WARP + lane;
		float bias = 0;
		for (int p = 0; p < a.bias_rows && expert < a.experts; p++)
			bias += number_at(a.bias, p * a.bias_stride + expert, a.bias_is_bf16);
		rank[i] = !a.sigmoid || expert >= a.experts ? logit[i] : sigmoid_of(logit[i]) + bias;
	}
	if (a.groups > 1)
		leave_groups(rank, a);
}

/* The sum of the softmax over all experts. */
template <int N> RH_DEVICE float sum_of_all(const float (&logit)[N], float largest)
{
	float sum = 0;
	RH_UNROLL
	for (int i = 0; i < N; i++)
		sum += expf(logit[i] - largest);
	return sum;
}

/* A row's softmax: lane j < k has the power of chosen expert j, or its sigmoid. */
struct softmax {
	float largest, power, sum;
};

/* `expert`: the lane's chosen one, below 0 for lanes beyond k. */
template <typename T, int N>
RH_DEVICE struct softmax softmax_of(const float (&logit)[N], const struct router_args &a, int64_t row, int expert)
{
	float own = expert >= 0 ? rh_to_float(((const T *)a.logits)[row * a.logits_stride + expert]) : 0;
	struct softmax s;
	if (a.sigmoid) {
		s.largest = 0;
		s.power = expert >= 0 ? sigmoid_of(own) : 0;
		s.sum = rh_warp_sum(s.power) + RH_ROUTER_EPSILON;
		s.sum = a.over_all ? 1 : s.sum;
		return s;
	}
	s.largest = rh_shuffle(own, 0);
	s.power = expert >= 0 ? expf(own - s.largest) : 0;
	s.sum = rh_warp_sum(a.over_all ? sum_of_all(logit, s.largest) : s.power);
	return s;
}

/* A bit for each of the lane's experts. `expert`: the lane's chosen one, as above. */
template <int N> RH_DEVICE uint32_t chosen_of(const struct router_args &a, int expert)
{
	int lane = (int)threadIdx.x % RH_WARP;
	uint32_t chosen = 0;
	for (int j = 0; j < a.top; j++) {
		int other = rh_shuffle(expert, j);
		RH_UNROLL
		for (int i = 0; i < N; i++)
			chosen |= (uint32_t)(other == i * RH_WARP + lane) << i;
	}
	return chosen;
}

template <int N> RH_DEVICE void load_write(const float (&logit)[N], const struct router_args &a, int64_t row, int own, float largest)
{
	int lane = (int)threadIdx.x % RH_WARP;
	float sum = rh_warp_sum(sum_of_all(logit, largest)), *load = a.load + row * a.load_stride;
	uint32_t chosen = chosen_of<N>(a, own);
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		int expert = i * RH_WARP + lane;
		if (expert < a.experts) {
			load[expert] = chosen >> i & 1 ? 1.0f : 0.0f;
			load[a.experts + expert] = expf(logit[i] - largest) / sum;
		}
	}
}

template <typename T, int N> RH_KERNEL(THREADS, (N > 4 ? 1 : 2)) router_choose(struct router_args a)
{
	int lane = (int)threadIdx.x % RH_WARP, own = -1;
	int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / RH_WARP;
	if (row >= a.rows)
		return;
	float logit[N], rank[N];
	logits_load<T>(logit, a, row);
	ranks_of(rank, logit, a);
	struct rank last = {INFINITY, -1};
	for (int j = 0; j < a.top; j++) {
		last = rank_next(rank, last);
		own = lane == j ? last.expert : own;
	}
	struct softmax s = softmax_of<T>(logit, a, row, own);
	if (lane < a.top) {
		a.index[row * a.index_stride + lane] = own;
		a.weight[row * a.weight_stride + lane] = s.power / s.sum * a.factor * scale_of(a, own);
	}
	if (a.load)
		load_write(logit, a, row, own, s.largest);
}

/* through += the gradient through the shares of a softmax over all, of which each one's gradient is `balance` times its count. */
template <int N> RH_DEVICE void balance_add(float (&through)[N], const float (&logit)[N], const struct router_args &a, float largest)
{
	int lane = (int)threadIdx.x % RH_WARP;
	float share[N], count[N], sum = rh_warp_sum(sum_of_all(logit, largest)), mean = 0;
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		int expert = i * RH_WARP + lane;
		share[i] = expf(logit[i] - largest) / sum;
		count[i] = expert < a.experts ? a.count[expert] : 0;
		mean += share[i] * count[i];
	}
	mean = rh_warp_sum(mean);
	RH_UNROLL
	for (int i = 0; i < N; i++)
		through[i] += a.balance * share[i] * (count[i] - mean);
}

/* through: of each of the lane's experts its scale's gradient times that scale, 0 where it was not chosen. */
template <int N> RH_DEVICE void scale_gradient_write(const float (&through)[N], const struct router_args &a, int64_t row)
{
	int lane = (int)threadIdx.x % RH_WARP;
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		int expert = i * RH_WARP + lane;
		float scale = expert < a.experts ? scale_of(a, expert) : 0;
		if (expert < a.experts)
			a.dscale[row * a.dscale_stride + expert] = scale == 0 ? 0 : through[i] / scale;
	}
}

/* With p the softmax and g the gradient of its elements (0 but for the chosen): dlogit = p g - p times the sum of p g. With sigmoids as
 * ops/router.c has it. */
template <typename T, int N> RH_KERNEL(THREADS, (N > 4 ? 1 : 2)) router_gradient(struct router_args a)
{
	int lane = (int)threadIdx.x % RH_WARP, own = -1;
	int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / RH_WARP;
	if (row >= a.rows)
		return;
	float logit[N], through[N] = {}, own_through = 0;
	logits_load<T>(logit, a, row);
	if (lane < a.top) {
		own = a.index[row * a.index_stride + lane];
		own_through = a.dot[a.place[row * a.place_stride + lane] * a.dot_stride];
		if (a.more)
			own_through += a.weight[row * a.weight_stride + lane] * a.more[row * a.more_stride + own];
	}
	struct softmax s = softmax_of<T>(logit, a, row, own);
	float sum = rh_warp_sum(own_through);
	uint32_t chosen = chosen_of<N>(a, own);
	for (int j = 0; j < a.top; j++) {
		int expert = rh_shuffle(own, j);
		float g = rh_shuffle(own_through, j);
		RH_UNROLL
		for (int i = 0; i < N; i++)
			through[i] = expert == i * RH_WARP + lane ? g : through[i];
	}
	if (a.dscale)
		scale_gradient_write(through, a, row);
	if (a.count)
		balance_add(through, logit, a, s.largest);
	RH_UNROLL
	for (int i = 0; i < N; i++) {
		int expert = i * RH_WARP + lane;
		int is_chosen = chosen >> i & 1;
		float p = a.sigmoid                 ? (!a.over_all && is_chosen ? sigmoid_of(logit[i]) / s.sum : 0)
		          : a.over_all || is_chosen ? expf(logit[i] - s.largest) / s.sum
		                                    : 0;
		float value = (through[i] - p * sum) * (a.sigmoid ? sigmoid_of(-logit[i]) : 1);
		int64_t at = row * a.dlogits_stride + expert;
		if (expert < a.experts && a.round)
			((rh_bf16 *)a.dlogits)[at] = rh_to_bf16(value);
		else if (expert < a.experts)
			((float *)a.dlogits)[at] = value;
	}
}

template <typename T, int N> static int launch(const struct router_args *a, CUstream_st *stream)
{
	unsigned grid = (unsigned)rh_ceil_div(a->rows, WARPS);
	if (!a->rows)
		return 0;
	if (a->dlogits)
		return RH_LAUNCH((router_gradient<T, N>), grid, THREADS, 0, stream, *a);
	return RH_LAUNCH((router_choose<T, N>), grid, THREADS, 0, stream, *a);
}

static int launch_for(enum rh_dtype logits, const struct router_args *a, CUstream_st *stream)
{
	int few = a->experts <= 4 * RH_WARP;
	if (logits == RH_BF16)
		return few ? launch<rh_bf16, 4>(a, stream) : launch<rh_bf16, 32>(a, stream);
	return few ? launch<float, 4>(a, stream) : launch<float, 32>(a, stream);
}

static struct router_args args_of(const struct rh_op *op, const struct rh_view *logits, const struct rh_view *index,
                                  const struct rh_view *weight)
{
	struct router_args a = {};
	a.logits = logits->data;
	a.index = (int32_t *)index->data;
	a.weight = (float *)weight->data;
	a.logits_stride = logits->stride;
	a.index_stride = index->stride;
	a.weight_stride = weight->stride;
	a.rows = logits->rows;
	a.experts = (int)logits->cols;
	a.top = (int)index->cols;
	a.over_all = op->router.softmax == RH_ROUTER_OVER_ALL;
	a.sigmoid = op->router.sigmoid;
	a.factor = op->router.factor == 0 ? 1 : op->router.factor;
	a.groups = (int)op->router.groups;
	a.best_groups = (int)op->router.best_groups;
	return a;
}

extern "C" int cuda_router(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct router_args a = args_of(op, &view[RH_ROUTER_LOGITS], &view[RH_ROUTER_INDEX], &view[RH_ROUTER_WEIGHT]);
	a.bias = view[RH_ROUTER_BIAS].data;
	a.bias_stride = view[RH_ROUTER_BIAS].stride;
	a.bias_rows = a.bias ? (int)view[RH_ROUTER_BIAS].rows : 0;
	a.bias_is_bf16 = view[RH_ROUTER_BIAS].dtype == RH_BF16;
	a.load = (float *)view[RH_ROUTER_LOAD].data;
	a.load_stride = view[RH_ROUTER_LOAD].stride;
	a.scale = view[RH_ROUTER_SCALE].data;
	a.scale_is_bf16 = view[RH_ROUTER_SCALE].dtype == RH_BF16;
	return launch_for(view[RH_ROUTER_LOGITS].dtype, &a, stream);
}

extern "C" int cuda_router_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand, *logits = &view[RH_ROUTER_BACKWARD_LOGITS], *dlogits = &view[RH_ROUTER_BACKWARD_DLOGITS];
	struct router_args a = args_of(op, logits, &view[RH_ROUTER_BACKWARD_INDEX], &view[RH_ROUTER_BACKWARD_WEIGHT]);
	a.place = (const int32_t *)view[RH_ROUTER_BACKWARD_PLACE].data;
	a.place_stride = view[RH_ROUTER_BACKWARD_PLACE].stride;
	a.dot = (const float *)view[RH_ROUTER_BACKWARD_DOT].data;
	a.dot_stride = view[RH_ROUTER_BACKWARD_DOT].stride;
	a.more = (const float *)view[RH_ROUTER_BACKWARD_MORE].data;
	a.more_stride = view[RH_ROUTER_BACKWARD_MORE].stride;
	a.count = (const float *)view[RH_ROUTER_BACKWARD_COUNT].data;
	a.balance = op->router.balance;
	a.scale = view[RH_ROUTER_BACKWARD_SCALE].data;
	a.scale_is_bf16 = view[RH_ROUTER_BACKWARD_SCALE].dtype == RH_BF16;
	a.dscale = (float *)view[RH_ROUTER_BACKWARD_DSCALE].data;
	a.dscale_stride = view[RH_ROUTER_BACKWARD_DSCALE].stride;
	a.dlogits = dlogits->data;
	a.dlogits_stride = dlogits->stride;
	a.round = dlogits->dtype == RH_BF16;
	return launch_for(logits->dtype, &a, stream);
}
