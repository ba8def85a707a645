#include "device/ops/top.h"

#include <math.h>

static double largest_of(struct rh_view logits)
{
	double largest = get(logits, 0, 0);
	for (int64_t v = 1; v < logits.cols; v++)
		largest = fmax(largest, get(logits, 0, v));
	return largest;
}

static double log_sum_of(struct rh_view logits, double temperature)
{
	double largest = largest_of(logits), sum = 0;
	for (int64_t v = 0; v < logits.cols; v++)
		sum += exp((get(logits, 0, v) - largest) / temperature);
	return log(sum) + largest / temperature;
}

/* How many logits come before v: larger ones, and equal ones of lower ids. */
static int64_t place_of(struct rh_view logits, int64_t v)
{
	int64_t place = 0;
	for (int64_t u = 0; u < logits.cols; u++)
		place += get(logits, 0, u) > get(logits, 0, v) || (get(logits, 0, u) == get(logits, 0, v) && u < v);
	return place;
}

void top_put_shares(const struct rh_op *op, int64_t row)
{
	struct rh_view logits = op->operand[RH_HEAD_LOSS_LOGITS], out = op->operand[RH_HEAD_LOSS_SHARES];
	double temperature = (double)op->head_loss.temperature, sum = log_sum_of(logits, temperature);
	int64_t k = op->head_loss.top, found = 0;
	for (int64_t v = 0; v < logits.cols && found < k; v++) {
		if (place_of(logits, v) >= k)
			continue;
		put(out, row, found, (double)v);
		put(out, row, k + found++, exp(get(logits, 0, v) / temperature - sum));
	}
	RH_ASSERT(found == k);
}

static struct rh_view teacher_of(const struct buckets *at)
{
	return at->op->operand[RH_HEAD_LOSS_TEACHER];
}

/* The place of output v among the teacher's ids; -1: it is one of the others. */
static int64_t bucket_of(const struct buckets *at, int64_t v)
{
	for (int64_t i = 0; i < at->op->head_loss.top; i++)
		if (get(teacher_of(at), at->row, i) == (double)v)
			return i;
	return -1;
}

static double teacher_share(const struct buckets *at, int64_t bucket)
{
	return get(teacher_of(at), at->row, at->op->head_loss.top + bucket);
}

static double student_share(const struct buckets *at, int64_t v)
{
	return exp(get(at->op->operand[RH_HEAD_LOSS_LOGITS], 0, v) / (double)at->op->head_loss.temperature - at->student_sum);
}

/* A bucket's term of KL. */
static double apart(const struct buckets *at, double teacher, double student)
{
	double logs = log(fmax(teacher, (double)RH_SHARE_FLOOR)) - log(student);
	return at->op->head_loss.divergence == RH_DIVERGENCE_FORWARD ? teacher * logs : -student * logs;
}

double top_divergence(const struct rh_op *op, int64_t row, struct buckets *out)
{
	double temperature = (double)op->head_loss.temperature, told = 0;
	struct rh_view logits = op->operand[RH_HEAD_LOSS_LOGITS];
	*out = (struct buckets){.op = op, .row = row, .student_sum = log_sum_of(logits, temperature)};
	for (int64_t v = 0; v < logits.cols; v++) {
		int64_t bucket = bucket_of(out, v);
		if (bucket < 0) {
			out->rest += student_share(out, v);
			continue;
		}
		told += teacher_share(out, bucket);
		out->divergence += apart(out, teacher_share(out, bucket), student_share(out, v));
	}
	out->teacher_rest = op->head_loss.top < logits.cols ? fmax(1 - told, (double)RH_RESIDUAL_FLOOR) : 0;
	out->teacher_total = told + out->teacher_rest;
	out->divergence += out->teacher_rest > 0 ? apart(out, out->teacher_rest, out->rest) : 0;
	return temperature * temperature * out->divergence;
}

/* With p the student's share of v, and P and Q both boxes' shares of its bucket: forward, the derivative of -Q log P is -Q p / P in that
 * bucket, and each bucket has p of all buckets' Q besides. Reverse, that of P log(P / Q) is p log(P / Q), less p of the whole. */
double top_slope(const struct buckets *at, int64_t v)
{
	int64_t bucket = bucket_of(at, v);
	double p = student_share(at, v), student = bucket < 0 ? at->rest : p,
	       teacher = bucket < 0 ? at->teacher_rest : teacher_share(at, bucket), temperature = (double)at->op->head_loss.temperature;
	if (at->op->head_loss.divergence == RH_DIVERGENCE_FORWARD)
		return temperature * (at->teacher_total * p - teacher * p / student);
	return temperature * p * (log(student / fmax(teacher, (double)RH_SHARE_FLOOR)) - at->divergence);
}
