/* In fp64 without vectors: a row of V logits takes 2 to 5 V exponentials. Ids ascend, so a pass over a row walks through them once. */
#include "device/cpu/distil_row.h"

/* ---- the largest shares ---- */

/* A heap of the k largest logits so far, the least of them first: the value at `at` sinks to its place. */
static void sink(float *heap, int64_t k, int64_t at, float value)
{
	for (int64_t child; (child = 2 * at + 1) < k; at = child) {
		child += child + 1 < k && heap[child + 1] < heap[child];
		if (value <= heap[child])
			break;
		heap[at] = heap[child];
	}
	heap[at] = value;
}

/* The k-th largest of a row without NaNs; *larger: how many lie above it. heap: (k) workspace. */
static float find_least(const float *logit, int64_t cols, int64_t k, float *heap, int64_t *larger)
{
	for (int64_t i = k - 1; i >= 0; i--)
		sink(heap, k, i, logit[i]);
	for (int64_t v = k; v < cols; v++)
		if (logit[v] > heap[0])
			sink(heap, k, 0, logit[v]);
	*larger = 0;
	for (int64_t i = 0; i < k; i++)
		*larger += heap[i] > heap[0];
	return heap[0];
}

void top_shares_row(const float *logit, int64_t cols, int64_t k, double temperature, float *out)
{
	struct share share = share_of(logit, cols, temperature);
	if (isnan(share.log_sum)) {
		for (int64_t i = 0; i < 2 * k; i++)
			out[i] = NAN;
		return;
	}
	int64_t larger, found = 0;
	float least = find_least(logit, cols, k, out, &larger);
	int64_t equal = k - larger; /* as many equal ones belong to them */
	for (int64_t v = 0; found < k; v++) {
		if (logit[v] < least || (logit[v] == least && equal-- <= 0))
			continue;
		out[found] = (float)v;
		out[k + found++] = (float)exp(log_share(&share, v));
	}
}

/* ---- the loss ---- */

/* Of a row: the teacher's ids and shares, and all that its slopes need. */
struct buckets {
	const float *id, *told;
	int64_t k;
	struct share task, student, rest; /* rest: of all logits but those of the ids */
	double log_rest, teacher_rest, total, divergence;
	int is_forward;
};

/* Is v the next of the ids? Asked of ascending v. */
static int is_told(const struct buckets *at, int64_t v, int64_t *next)
{
	int is = *next < at->k && (double)at->id[*next] == (double)v;
	*next += is;
	return is;
}

/* As share_of; log_sum is -infinity where there are no others. */
static struct share rest_of(const struct buckets *at, int64_t cols)
{
	struct share rest = {.logit = at->student.logit, .largest = -INFINITY, .temperature = at->student.temperature};
	double sum = 0;
	for (int64_t v = 0, next = 0; v < cols; v++)
		if (!is_told(at, v, &next))
			rest.largest = fmax(rest.largest, (double)rest.logit[v]);
	for (int64_t v = 0, next = 0; v < cols; v++)
		if (!is_told(at, v, &next))
			sum += exp(((double)rest.logit[v] - rest.largest) / rest.temperature);
	rest.log_sum = log(sum);
	return rest;
}

static double log_teacher(double share)
{
	return log(fmax(share, (double)RH_SHARE_FLOOR));
}

static double term_of(const struct buckets *at, double teacher, double log_student)
{
	double apart = log_teacher(teacher) - log_student;
	return at->is_forward ? teacher * apart : -exp(log_student) * apart;
}

static void diverge(struct buckets *at, int64_t cols)
{
	for (int64_t i = 0; i < at->k; i++) {
		at->total += (double)at->told[i];
		at->divergence += term_of(at, (double)at->told[i], log_share(&at->student, (int64_t)at->id[i]));
	}
	if (at->k == cols)
		return;
	at->rest = rest_of(at, cols);
	at->log_rest = (at->rest.largest - at->student.largest) / at->rest.temperature + at->rest.log_sum - at->student.log_sum;
	at->teacher_rest = fmax(1 - at->total, (double)RH_RESIDUAL_FLOOR);
	at->total += at->teacher_rest;
	at->divergence += term_of(at, at->teacher_rest, at->log_rest);
}

/* The derivative of KL by logit v times the temperature. bucket: the place of v among the ids, or -1. */
static double slope_of(const struct buckets *at, int64_t v, int64_t bucket)
{
	double own = log_share(&at->student, v), told = bucket < 0 ? at->teacher_rest : (double)at->told[bucket];
	if (at->is_forward)
		return at->total * exp(own) - told * (bucket < 0 ? exp(log_share(&at->rest, v)) : 1);
	return exp(own) * ((bucket < 0 ? at->log_rest : own) - log_teacher(told) - at->divergence);
}

void distil_top_row(const struct rh_op *op, int64_t row, float *logit, int64_t target, enum softmax_gradient gradient, float *loss,
                    int32_t *hit)
{
	const struct rh_view *mix = &op->operand[RH_HEAD_LOSS_MIX], *teachers = &op->operand[RH_HEAD_LOSS_TEACHER];
	const float *weight = (const float *)mix->data + row * mix->stride,
	            *teacher = (const float *)teachers->data + row * teachers->stride;
	int64_t cols = op->operand[RH_HEAD_LOSS_W].rows, k = op->head_loss.top, next = 0;
	double temperature = (double)op->head_loss.temperature;
	struct buckets at = {.id = teacher,
	                     .told = teacher + k,
	                     .k = k,
	                     .task = share_of(logit, cols, 1),
	                     .is_forward = op->head_loss.divergence == RH_DIVERGENCE_FORWARD};
	at.student = temperature == 1 ? at.task : share_of(logit, cols, temperature);
	diverge(&at, cols);
	*hit = is_first_largest(logit, target, at.task.largest);
	*loss = (float)((double)weight[0] * -log_share(&at.task, target) + (double)weight[1] * temperature * temperature * at.divergence);
	for (int64_t v = 0; gradient != SOFTMAX_LOSS_ONLY && v < cols; v++) {
		int64_t bucket = is_told(&at, v, &next) ? next - 1 : -1;
		double task = exp(log_share(&at.task, v)) - (v == target),
		       sum = (double)weight[0] * task + (double)weight[1] * temperature * slope_of(&at, v, bucket);
		put_gradient(logit, v, (double)op->head_loss.scale * sum, gradient);
	}
}
