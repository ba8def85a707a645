/* Passes over a row are those of simd/shares.c, over the runs between ids, which ascend; what there is of the ids alone is in fp64. */
#include "device/cpu/distil_row.h"
#include "device/cpu/shares.h"

/* As share_of, of which the sum is in fp32; NaN where a logit is not finite. */
static struct share quick_share_of(enum rh_cpu_isa isa, const float *logit, int64_t cols, double temperature)
{
	float largest = RH_CPU_PICK(isa, shares_largest)(logit, cols);
	double sum = isnan(largest) ? NAN : (double)RH_CPU_PICK(isa, shares_sum)(logit, cols, largest, (float)(1 / temperature));
	return (struct share){.logit = logit, .largest = (double)largest, .log_sum = log(sum), .temperature = temperature};
}

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

void top_shares_row(enum rh_cpu_isa isa, const float *logit, int64_t cols, int64_t k, double temperature, float *out)
{
	struct share share = quick_share_of(isa, logit, cols, temperature);
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

/* The i-th id, and behind all of them the row's end. */
static int64_t id_of(const struct buckets *at, int64_t i, int64_t cols)
{
	return i < at->k ? (int64_t)at->id[i] : cols;
}

/* As share_of. */
static struct share rest_of(enum rh_cpu_isa isa, const struct buckets *at, int64_t cols)
{
	struct share rest = {.logit = at->student.logit, .largest = -INFINITY, .temperature = at->student.temperature};
	double sum = 0;
	for (int64_t i = 0, from = 0; i <= at->k; from = id_of(at, i++, cols) + 1)
		rest.largest = fmax(rest.largest, (double)RH_CPU_PICK(isa, shares_largest)(rest.logit + from, id_of(at, i, cols) - from));
	for (int64_t i = 0, from = 0; i <= at->k; from = id_of(at, i++, cols) + 1)
		sum += (double)RH_CPU_PICK(isa, shares_sum)(rest.logit + from, id_of(at, i, cols) - from, (float)rest.largest,
		                                            (float)(1 / rest.temperature));
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

static void diverge(enum rh_cpu_isa isa, struct buckets *at, int64_t cols)
{
	for (int64_t i = 0; i < at->k; i++) {
		at->total += (double)at->told[i];
		at->divergence += term_of(at, (double)at->told[i], log_share(&at->student, (int64_t)at->id[i]));
	}
	if (at->k == cols)
		return;
	at->rest = rest_of(isa, at, cols);
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

/* What the task and the divergence are multiplied with in a gradient, the latter with the temperature that its slope has once. */
struct factors {
	double task, divergence;
};

static double gradient_of(const struct buckets *at, const struct factors *factor, int64_t v, int64_t bucket, int is_target)
{
	return factor->task * (exp(log_share(&at->task, v)) - is_target) + factor->divergence * slope_of(at, v, bucket);
}

static struct share_term term_for(const struct share *share, double factor)
{
	return (struct share_term){(float)(factor * exp(-share->log_sum)), (float)share->largest, (float)(1 / share->temperature)};
}

/* Of the logits without a bucket of their own, but the target: slope_of as a sum of exponentials. Terms of one temperature are one. */
static void find_terms(const struct buckets *at, const struct factors *factor, struct share_term out[SHARE_TERMS])
{
	double student = at->is_forward ? at->total : at->log_rest - log_teacher(at->teacher_rest) - at->divergence;
	double rest = at->is_forward ? -at->teacher_rest : 0;
	int same = at->student.temperature == 1;
	out[0] = term_for(&at->task, factor->task + (same ? factor->divergence * student : 0));
	out[1] = term_for(&at->rest, factor->divergence * rest);
	out[2] = term_for(&at->student, same ? 0 : factor->divergence * student);
	if (out[1].factor == 0) {
		out[1] = out[2];
		out[2].factor = 0;
	}
}

/* Ascending, so that what is written (in bf16 half as long) was read before. */
static void put_gradients(const struct top_row *row, const struct buckets *at, float *logit, int64_t cols)
{
	double scale = (double)row->op->head_loss.scale;
	const struct factors factor = {scale * (double)row->mix[0], scale * (double)row->mix[1] * (double)row->op->head_loss.temperature};
	struct share_term term[SHARE_TERMS] = {{0}};
	if (at->k < cols)
		find_terms(at, &factor, term);
	for (int64_t from = 0, next = 0, stop; from < cols; from = stop + 1) {
		int64_t id = id_of(at, next, cols);
		stop = from <= row->target && row->target < id ? row->target : id;
		RH_CPU_PICK(row->isa, shares_slopes)(logit, from, stop, term, row->gradient);
		if (stop < cols)
			put_gradient(logit, stop, gradient_of(at, &factor, stop, stop == id ? next : -1, stop == row->target),
			             row->gradient);
		next += stop == id;
	}
}

void distil_top_row(const struct top_row *row, float *logit, float *loss, int32_t *hit)
{
	const struct rh_op *op = row->op;
	int64_t cols = op->operand[RH_HEAD_LOSS_W].rows;
	double temperature = (double)op->head_loss.temperature;
	struct buckets at = {.id = row->teacher,
	                     .told = row->teacher + op->head_loss.top,
	                     .k = op->head_loss.top,
	                     .task = quick_share_of(row->isa, logit, cols, 1),
	                     .is_forward = op->head_loss.divergence == RH_DIVERGENCE_FORWARD};
	at.student = temperature == 1 ? at.task : quick_share_of(row->isa, logit, cols, temperature);
	diverge(row->isa, &at, cols);
	*hit = is_first_largest(logit, row->target, at.task.largest);
	*loss = (float)((double)row->mix[0] * -log_share(&at.task, row->target) +
	                (double)row->mix[1] * temperature * temperature * at.divergence);
	if (row->gradient != SOFTMAX_LOSS_ONLY)
		put_gradients(row, &at, logit, cols);
}
