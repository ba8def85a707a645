/* A teacher of a row's k largest shares, for vocabularies whose logits are too many to be told: which they are, and the loss and gradient
 * of a row that has such a teacher. A block takes a row of logits (r,V).
 *
 * Memory: finding the k-th largest reads the row 8 times, 4 bits of it each, counting in 15 registers; one reading each for the largest
 * and the sum, and two for the ids. The loss reads it 3 times and writes it once. A row of 128K logits (512 KiB) stays in the
 * second-level cache, whose bandwidth this is judged by. The ids ascend: a thread walks through them once a reading, beside its own
 * columns.
 *
 * A bf16 gradient lies in the first half of its row. Elements [i, i+256) of it take the bytes of logits [i/2, i/2+128): a barrier lies
 * between loading 256 logits and storing their gradient. */
#include "cuda/head_loss.h"

#include "cuda/rh_cuda.h"

enum { THREADS = 256, WARPS = THREADS / RH_WARP };

RH_DEVICE float exp_of(float x)
{
	return rh_exp2(x * 1.442695040888963f);
}

/* Over the block, the same in every thread. */
RH_DEVICE float block_sum(float x)
{
	x = rh_warp_sum(x);
	__syncthreads(); /* nobody reads what an earlier call left */
	return rh_block_join<WARPS>(x, [](float a, float b) { return a + b; });
}

RH_DEVICE float block_max(float x)
{
	x = rh_warp_max(x);
	__syncthreads();
	return rh_block_join<WARPS>(x, [](float a, float b) { return fmaxf(a, b); });
}

/* ---- the largest shares ---- */

enum { BITS = 4, DIGITS = (1 << BITS) - 1 };

/* Ascends with x; of both zeros the same. */
RH_DEVICE uint32_t rank_of(float x)
{
	uint32_t bits = rh_float_bits(x + 0.0f);
	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Of how many digits d, from 1 on, at least k elements rank `known` with that digit or higher: the next digit of the k-th largest. */
RH_DEVICE uint32_t next_digit(const float *logit, int64_t cols, int64_t k, uint32_t known, int shift)
{
	RH_SHARED_2D(int, part, WARPS, DIGITS);
	int count[DIGITS] = {};
	for (int64_t v = threadIdx.x; v < cols; v += THREADS) {
		uint32_t rank = rank_of(logit[v]);
		RH_UNROLL
		for (int d = 0; d < DIGITS; d++)
			count[d] += rank >= (known | (uint32_t)(d + 1) << shift);
	}
	__syncthreads();
	RH_UNROLL
	for (int d = 0; d < DIGITS; d++) {
		RH_UNROLL
		for (int mask = RH_WARP / 2; mask; mask /= 2)
			count[d] += rh_shuffle_xor(count[d], mask);
		if (threadIdx.x % RH_WARP == 0)
			part[threadIdx.x / RH_WARP][d] = count[d];
	}
	__syncthreads();
	uint32_t digit = 0;
	for (int d = 0; d < DIGITS; d++) {
		int64_t total = 0;
		for (int i = 0; i < WARPS; i++)
			total += part[i][d];
		digit += total >= k;
	}
	return digit;
}

/* Elements above the least one that is told, and equal to it. */
struct found {
	int64_t larger, equal;
};

RH_DEVICE void count_found(struct found *found, uint32_t larger, uint32_t equal)
{
	found->larger += rh_bit_count(larger);
	found->equal += rh_bit_count(equal);
}

/* A warp's run of columns. */
struct run {
	int64_t from, to;
};

RH_DEVICE struct run run_of(int64_t cols)
{
	int64_t each = rh_ceil_div(rh_ceil_div(cols, WARPS), RH_WARP) * RH_WARP, from = (int64_t)(threadIdx.x / RH_WARP) * each;
	struct run run = {from, from + each < cols ? from + each : cols};
	return run;
}

/* In *before: what lies in the runs before this warp's. Returns what lies in all. */
RH_DEVICE struct found count_runs(const float *logit, int64_t cols, uint32_t least, struct found *before)
{
	RH_SHARED(struct found, part, WARPS);
	struct run run = run_of(cols);
	struct found own = {}, all = {};
	for (int64_t i = run.from; i < run.to; i += RH_WARP) {
		int64_t v = i + threadIdx.x % RH_WARP;
		uint32_t rank = v < run.to ? rank_of(logit[v]) : 0;
		count_found(&own, rh_ballot(rank > least), rh_ballot(v < run.to && rank == least));
	}
	if (threadIdx.x % RH_WARP == 0)
		part[threadIdx.x / RH_WARP] = own;
	__syncthreads();
	for (int i = 0; i < WARPS; i++) {
		if (i == (int)threadIdx.x / RH_WARP)
			*before = all;
		all.larger += part[i].larger;
		all.equal += part[i].equal;
	}
	return all;
}

RH_KERNEL(THREADS, 2) top_rows_kernel(struct head_rows r)
{
	int64_t row = blockIdx.x, cols = r.logits.cols, k = r.top;
	const float *logit = (const float *)r.logits.data + row * r.logits.stride;
	float *out = (float *)r.shares.data + row * r.shares.stride, largest = -INFINITY, sum = 0, per_degree = 1 / r.temperature;
	for (int64_t v = threadIdx.x; v < cols; v += THREADS)
		largest = fmaxf(largest, logit[v]);
	largest = block_max(largest);
	for (int64_t v = threadIdx.x; v < cols; v += THREADS)
		sum += exp_of((logit[v] - largest) * per_degree);
	sum = block_sum(sum);
	if (isnan(sum)) {
		for (int64_t i = threadIdx.x; i < 2 * k; i += THREADS)
			out[i] = sum;
		return;
	}
	uint32_t least = 0;
	for (int shift = 32 - BITS; shift >= 0; shift -= BITS)
		least |= next_digit(logit, cols, k, least, shift) << shift;
	struct found before = {}, all = count_runs(logit, cols, least, &before);
	struct run run = run_of(cols);
	int64_t room = k - all.larger; /* for equal ones, of which the first are taken */
	uint32_t below = (1u << threadIdx.x % RH_WARP) - 1;
	for (int64_t i = run.from; i < run.to; i += RH_WARP) {
		int64_t v = i + threadIdx.x % RH_WARP;
		uint32_t rank = v < run.to ? rank_of(logit[v]) : 0;
		uint32_t larger = rh_ballot(rank > least), equal = rh_ballot(v < run.to && rank == least);
		int64_t equals = before.equal + rh_bit_count(equal & below);
		if (rank > least || (v < run.to && rank == least && equals < room)) {
			int64_t place = before.larger + rh_bit_count(larger & below) + (equals < room ? equals : room);
			out[place] = (float)v;
			out[k + place] = exp_of((logit[v] - largest) * per_degree) / sum;
		}
		count_found(&before, larger, equal);
	}
}

extern "C" int cuda_top_rows(const struct head_rows *rows, CUstream_st *stream)
{
	return RH_LAUNCH(top_rows_kernel, dim3((unsigned)rows->logits.rows), THREADS, 0, stream, *rows);
}

/* ---- the loss ---- */

/* The teacher's ids and shares, and the next id that a thread's ascending columns may be. */
struct told {
	const float *id, *share;
	int64_t k, next;
};

RH_DEVICE int is_told(struct told *at, int64_t v)
{
	while (at->next < at->k && at->id[at->next] < (float)v)
		at->next++;
	return at->next < at->k && at->id[at->next] == (float)v;
}

/* Of logits at a temperature: the largest, and log of the sum of e^((x - largest) / temperature). */
struct share {
	float largest, log_sum, per_degree;
};

RH_DEVICE float log_share(const struct share &share, float logit)
{
	return (logit - share.largest) * share.per_degree - share.log_sum;
}

/* What the gradient of a row is made of. rest: of all logits but those of the ids. */
struct buckets {
	struct share task, student, rest;
	float log_rest, teacher_rest, total, divergence;
	float weight[2]; /* the second with the temperature, which the slope of the divergence has once */
	int is_forward;
};

RH_DEVICE float log_teacher(float share)
{
	return logf(fmaxf(share, RH_SHARE_FLOOR));
}

RH_DEVICE float term_of(const struct buckets &s, float teacher, float log_student)
{
	float apart = log_teacher(teacher) - log_student;
	return s.is_forward ? teacher * apart : -exp_of(log_student) * apart;
}

/* All that needs the whole row; *first: where the largest is. */
RH_DEVICE void measure(struct buckets *s, const float *logit, int64_t cols, struct told told, float per_degree, int64_t *first)
{
	float largest = -INFINITY, rest = -INFINITY, sum[3] = {};
	int64_t place = cols;
	struct told walk = told;
	for (int64_t v = threadIdx.x; v < cols; v += THREADS) {
		if (logit[v] > largest) {
			largest = logit[v];
			place = v;
		}
		if (!is_told(&walk, v))
			rest = fmaxf(rest, logit[v]);
	}
	s->task.largest = s->student.largest = block_max(largest);
	s->rest.largest = block_max(rest);
	*first = (int64_t)-block_max(largest == s->task.largest ? -(float)place : -(float)cols); /* whole numbers below 2^24 */
	walk = told;
	for (int64_t v = threadIdx.x; v < cols; v += THREADS) {
		sum[0] += exp_of(logit[v] - s->task.largest);
		sum[1] += exp_of((logit[v] - s->task.largest) * per_degree);
		sum[2] += is_told(&walk, v) ? 0.0f : exp_of((logit[v] - s->rest.largest) * per_degree);
	}
	s->task.log_sum = logf(block_sum(sum[0]));
	s->student.log_sum = logf(block_sum(sum[1]));
	s->rest.log_sum = logf(block_sum(sum[2]));
	s->task.per_degree = 1;
	s->student.per_degree = s->rest.per_degree = per_degree;
}

RH_DEVICE void diverge(struct buckets *s, const float *logit, int64_t cols, const struct told &told)
{
	float total = 0, divergence = 0;
	for (int64_t i = threadIdx.x; i < told.k; i += THREADS) {
		total += told.share[i];
		divergence += term_of(*s, told.share[i], log_share(s->student, logit[(int64_t)told.id[i]]));
	}
	s->total = block_sum(total);
	s->divergence = block_sum(divergence);
	if (told.k == cols)
		return;
	s->log_rest = (s->rest.largest - s->student.largest) * s->rest.per_degree + s->rest.log_sum - s->student.log_sum;
	s->teacher_rest = fmaxf(1 - s->total, RH_RESIDUAL_FLOOR);
	s->total += s->teacher_rest;
	s->divergence += term_of(*s, s->teacher_rest, s->log_rest);
}

/* share: the teacher's, of a logit of its ids; below 0: it is one of the others. */
RH_DEVICE float slope_of(const struct buckets &s, float logit, float share, int is_target)
{
	float slope = s.weight[0] * (exp_of(log_share(s.task, logit)) - (is_target ? 1.0f : 0.0f));
	if (s.weight[1] == 0)
		return slope;
	float own = log_share(s.student, logit), teacher = share < 0 ? s.teacher_rest : share;
	if (s.is_forward)
		return slope + s.weight[1] * (s.total * exp_of(own) - teacher * (share < 0 ? exp_of(log_share(s.rest, logit)) : 1.0f));
	return slope + s.weight[1] * (exp_of(own) * ((share < 0 ? s.log_rest : own) - log_teacher(teacher) - s.divergence));
}

template <typename G>
RH_DEVICE void store_gradient(float *logit, const struct buckets &s, struct told told, int64_t cols, int64_t target, float scale)
{
	G *gradient = reinterpret_cast<G *>(logit);
	for (int64_t from = 0; from < cols; from += THREADS) {
		int64_t v = from + threadIdx.x;
		float value = 0;
		if (v < cols)
			value = scale * slope_of(s, logit[v], is_told(&told, v) ? told.share[told.next] : -1.0f, v == target);
		if (sizeof(G) < sizeof(float))
			__syncthreads();
		if (v < cols)
			gradient[v] = rh_from_float<G>(value);
	}
}

template <typename G> RH_KERNEL(THREADS, 2) distil_top_rows_kernel(struct head_rows r)
{
	int64_t row = blockIdx.x, cols = r.logits.cols, target = ((const int32_t *)r.target.data)[row * r.target.stride], first;
	const float *mix = (const float *)r.mix.data + row * r.mix.stride,
	            *teacher = (const float *)r.teacher.data + row * r.teacher.stride;
	float *logit = (float *)r.logits.data + row * r.logits.stride;
	struct told told = {teacher, teacher + r.top, mix[1] != 0 ? r.top : 0, 0};
	struct buckets s = {};
	s.is_forward = r.divergence == RH_DIVERGENCE_FORWARD;
	s.weight[0] = mix[0];
	s.weight[1] = mix[1] * r.temperature;
	measure(&s, logit, cols, told, 1 / r.temperature, &first);
	float loss = mix[0] * -log_share(s.task, logit[target]);
	if (mix[1] != 0) {
		diverge(&s, logit, cols, told);
		loss += mix[1] * r.temperature * r.temperature * s.divergence;
	}
	__syncthreads(); /* every thread has read the logits of the target and of the ids before they are overwritten */
	if (threadIdx.x == 0) {
		((float *)r.loss.data)[row * r.loss.stride] = loss;
		((int32_t *)r.hit.data)[row * r.hit.stride] = first == target;
	}
	if (r.gradient != HEAD_LOSS_ONLY)
		store_gradient<G>(logit, s, told, cols, target, r.scale);
}

template <typename G> static int launch(const struct head_rows *rows, CUstream_st *stream)
{
	return RH_LAUNCH(distil_top_rows_kernel<G>, dim3((unsigned)rows->logits.rows), THREADS, 0, stream, *rows);
}

extern "C" int cuda_distil_top_rows(const struct head_rows *rows, CUstream_st *stream)
{
	return rows->gradient == HEAD_GRADIENT_BF16 ? launch<rh_bf16>(rows, stream) : launch<float>(rows, stream);
}
