/* The task's loss, a divergence from a teacher, and the gradient of their sum: a warp takes a row of logits (r,V) of a classification, in
 * five passes over it and over its teacher.
 *
 * Memory: V * (4 + 4) bytes a row, and V * 4 (or 2, in bf16) of gradient; later passes find the row in the first-level cache up to some
 * thousand outputs. A classification has one row a sample, so launches bound it, not bytes.
 *
 * A bf16 gradient lies in the first half of its row. Elements [i, i+32) of it take the bytes of logits [i/2, i/2+16): a barrier of the warp
 * lies between loading 32 logits and storing their gradient. */
#include "cuda/head_loss.h"

#include "cuda/rh_cuda.h"

enum { ROWS = 8, THREADS = ROWS * RH_WARP };

RH_DEVICE float exp_of(float x)
{
	return rh_exp2(x * 1.442695040888963f);
}

/* A row of logits at a temperature: the largest, where it first is, and log of the sum of e^((x - largest) / temperature). */
struct share {
	const float *logit;
	float largest, log_sum, per_degree; /* 1 / temperature */
	int64_t first;
};

RH_DEVICE float log_share(const struct share &share, float logit)
{
	return (logit - share.largest) * share.per_degree - share.log_sum;
}

RH_DEVICE void find_largest(struct share *share, int64_t cols)
{
	float largest = -INFINITY;
	int64_t first = cols;
	for (int64_t v = threadIdx.x % RH_WARP; v < cols; v += RH_WARP)
		if (share->logit[v] > largest) {
			largest = share->logit[v];
			first = v;
		}
	RH_UNROLL
	for (int mask = 1; mask < RH_WARP; mask *= 2) {
		float other = rh_shuffle_xor(largest, mask);
		int64_t place = rh_shuffle_xor(first, mask);
		int leads = other > largest || (other == largest && place < first);
		largest = leads ? other : largest;
		first = leads ? place : first;
	}
	share->largest = largest;
	share->first = first;
}

RH_DEVICE void add_up(struct share *share, int64_t cols)
{
	float sum = 0;
	for (int64_t v = threadIdx.x % RH_WARP; v < cols; v += RH_WARP)
		sum += exp_of((share->logit[v] - share->largest) * share->per_degree);
	share->log_sum = logf(rh_warp_sum(sum));
}

/* Without the temperature's square. */
RH_DEVICE float divergence_of(const struct share &student, const struct share &teacher, int64_t cols, int is_forward)
{
	float sum = 0;
	for (int64_t v = threadIdx.x % RH_WARP; v < cols; v += RH_WARP) {
		float own = log_share(student, student.logit[v]), other = log_share(teacher, teacher.logit[v]);
		sum += is_forward ? exp_of(other) * (other - own) : exp_of(own) * (own - other);
	}
	return rh_warp_sum(sum);
}

/* The terms of a row's gradient. */
struct slopes {
	struct share task, student, teacher;
	float divergence, weight[2]; /* the second with the temperature, which the slope of the divergence has once */
	int is_forward;
};

RH_DEVICE float slope_of(const struct slopes &s, float logit, float teacher_logit, int is_target)
{
	float own = log_share(s.student, logit), slope = s.weight[0] * (exp_of(log_share(s.task, logit)) - (is_target ? 1.0f : 0.0f));
	if (s.weight[1] == 0)
		return slope;
	float other = log_share(s.teacher, teacher_logit);
	return slope + s.weight[1] * (s.is_forward ? exp_of(own) - exp_of(other) : exp_of(own) * (own - other - s.divergence));
}

template <typename G> RH_DEVICE void store_gradient(float *logit, const struct slopes &s, int64_t cols, int64_t target, float scale)
{
	G *gradient = reinterpret_cast<G *>(logit);
	for (int64_t from = 0; from < cols; from += RH_WARP) {
		int64_t v = from + threadIdx.x % RH_WARP;
		int is_inside = v < cols, reads = is_inside && s.weight[1] != 0;
		float value = slope_of(s, is_inside ? logit[v] : 0, reads ? s.teacher.logit[v] : 0, v == target);
		if (sizeof(G) < sizeof(float))
			rh_warp_sync();
		if (is_inside)
			gradient[v] = rh_from_float<G>(scale * value);
	}
}

template <typename G> RH_KERNEL(THREADS, 2) distil_rows_kernel(struct head_rows r)
{
	int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / RH_WARP, cols = r.logits.cols;
	if (row >= r.logits.rows)
		return;
	const float *mix = (const float *)r.mix.data + row * r.mix.stride;
	float *logit = (float *)r.logits.data + row * r.logits.stride;
	int64_t target = ((const int32_t *)r.target.data)[row * r.target.stride];
	struct slopes s = {};
	s.is_forward = r.divergence == RH_DIVERGENCE_FORWARD;
	s.weight[0] = mix[0];
	s.weight[1] = mix[1] * r.temperature;
	s.task.logit = logit;
	s.task.per_degree = 1;
	find_largest(&s.task, cols);
	add_up(&s.task, cols);
	float loss = mix[0] * -log_share(s.task, logit[target]);
	if (mix[1] != 0) {
		s.student = s.task;
		s.student.per_degree = 1 / r.temperature;
		add_up(&s.student, cols);
		s.teacher.logit = (const float *)r.teacher.data + row * r.teacher.stride;
		s.teacher.per_degree = 1 / r.temperature;
		find_largest(&s.teacher, cols);
		add_up(&s.teacher, cols);
		s.divergence = divergence_of(s.student, s.teacher, cols, s.is_forward);
		loss += mix[1] * r.temperature * r.temperature * s.divergence;
	}
	rh_warp_sync(); /* every lane has read the target's logit before it is overwritten */
	if (threadIdx.x % RH_WARP == 0) {
		((float *)r.loss.data)[row * r.loss.stride] = loss;
		((int32_t *)r.hit.data)[row * r.hit.stride] = s.task.first == target;
	}
	if (r.gradient != HEAD_LOSS_ONLY)
		store_gradient<G>(logit, s, cols, target, r.scale);
}

template <typename G> static int launch(const struct head_rows *rows, CUstream_st *stream)
{
	return RH_LAUNCH(distil_rows_kernel<G>, dim3((unsigned)rh_ceil_div(rows->logits.rows, ROWS)), THREADS, 0, stream, *rows);
}

extern "C" int cuda_distil_rows(const struct head_rows *rows, CUstream_st *stream)
{
	return rows->gradient == HEAD_GRADIENT_BF16 ? launch<rh_bf16>(rows, stream) : launch<float>(rows, stream);
}
