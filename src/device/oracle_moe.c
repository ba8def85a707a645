#include "device/oracle_internal.h"

#include <math.h>

/* e^(logit - largest) of the experts that share the softmax, 0 of others. */
struct shares {
	double of[RH_ROUTER_MAX_EXPERTS], sum;
};

static double rank_of(struct rh_view logits, int64_t t, int64_t e)
{
	double logit = get(logits, t, e);
	return isnan(logit) ? -(double)INFINITY : logit;
}

static struct shares shares_of(const struct rh_op *op, struct rh_view logits, struct rh_view index, int64_t t)
{
	struct shares shares = {.sum = 0};
	double largest = get(logits, t, (int64_t)get(index, t, 0));
	for (int64_t e = 0; e < logits.cols; e++) {
		int counts = op->router.softmax == RH_ROUTER_OVER_ALL;
		for (int64_t j = 0; j < index.cols; j++)
			counts |= (int64_t)get(index, t, j) == e;
		shares.of[e] = counts ? exp(get(logits, t, e) - largest) : 0;
		shares.sum += shares.of[e];
	}
	return shares;
}

void oracle_router(const struct rh_op *op)
{
	struct rh_view logits = op->operand[RH_ROUTER_LOGITS], index = op->operand[RH_ROUTER_INDEX], weight = op->operand[RH_ROUTER_WEIGHT];
	for (int64_t t = 0; t < logits.rows; t++) {
		char taken[RH_ROUTER_MAX_EXPERTS] = {0};
		for (int64_t j = 0; j < index.cols; j++) {
			int64_t best = -1;
			for (int64_t e = 0; e < logits.cols; e++)
				if (!taken[e] && (best < 0 || rank_of(logits, t, e) > rank_of(logits, t, best)))
					best = e;
			taken[best] = 1;
			put(index, t, j, (double)best);
		}
		struct shares shares = shares_of(op, logits, index, t);
		for (int64_t j = 0; j < index.cols; j++)
			put(weight, t, j, shares.of[(int64_t)get(index, t, j)] / shares.sum);
	}
}

/* With p the softmax and g the gradient of its elements (0 but for the chosen): dlogit = p (g - sum of p g). */
void oracle_router_backward(const struct rh_op *op)
{
	struct rh_view logits = op->operand[RH_ROUTER_BACKWARD_LOGITS], index = op->operand[RH_ROUTER_BACKWARD_INDEX];
	struct rh_view weight = op->operand[RH_ROUTER_BACKWARD_WEIGHT], dweight = op->operand[RH_ROUTER_BACKWARD_DWEIGHT];
	struct rh_view dlogits = op->operand[RH_ROUTER_BACKWARD_DLOGITS];
	for (int64_t t = 0; t < logits.rows; t++) {
		struct shares shares = shares_of(op, logits, index, t);
		double gradient[RH_ROUTER_MAX_EXPERTS] = {0}, mean = 0;
		for (int64_t j = 0; j < index.cols; j++) {
			gradient[(int64_t)get(index, t, j)] = get(dweight, t, j);
			mean += get(weight, t, j) * get(dweight, t, j);
		}
		for (int64_t e = 0; e < logits.cols; e++)
			put(dlogits, t, e, shares.of[e] / shares.sum * (gradient[e] - mean));
	}
}

void oracle_permute(const struct rh_op *op)
{
	struct rh_view index = op->operand[RH_PERMUTE_INDEX], x = op->operand[RH_PERMUTE_X], start = op->operand[RH_PERMUTE_START];
	struct rh_view place = op->operand[RH_PERMUTE_PLACE], y = op->operand[RH_PERMUTE_Y];
	int64_t next = 0;
	for (int64_t e = 0; e < start.rows - 1; e++) {
		put(start, e, 0, (double)next);
		for (int64_t t = 0; t < index.rows; t++) {
			for (int64_t j = 0; j < index.cols; j++) {
				if ((int64_t)get(index, t, j) != e)
					continue;
				put(place, t, j, (double)next);
				for (int64_t c = 0; c < x.cols; c++)
					put(y, next, c, get(x, t, c));
				next++;
			}
		}
	}
	put(start, start.rows - 1, 0, (double)next);
	RH_ASSERT(next == y.rows);
}

void oracle_unpermute(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_UNPERMUTE_X], place = op->operand[RH_UNPERMUTE_PLACE], weight = op->operand[RH_UNPERMUTE_WEIGHT];
	struct rh_view add = op->operand[RH_UNPERMUTE_ADD], y = op->operand[RH_UNPERMUTE_Y];
	for (int64_t t = 0; t < y.rows; t++) {
		for (int64_t c = 0; c < y.cols; c++) {
			double sum = add.data ? get(add, t, c) : 0;
			for (int64_t j = 0; j < place.cols; j++)
				sum += (weight.data ? get(weight, t, j) : 1) * get(x, (int64_t)get(place, t, j), c);
			put(y, t, c, sum);
		}
	}
}

void oracle_unpermute_backward(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_UNPERMUTE_BACKWARD_X], place = op->operand[RH_UNPERMUTE_BACKWARD_PLACE];
	struct rh_view weight = op->operand[RH_UNPERMUTE_BACKWARD_WEIGHT], dy = op->operand[RH_UNPERMUTE_BACKWARD_DY];
	struct rh_view dx = op->operand[RH_UNPERMUTE_BACKWARD_DX], dweight = op->operand[RH_UNPERMUTE_BACKWARD_DWEIGHT];
	for (int64_t t = 0; t < dy.rows; t++) {
		for (int64_t j = 0; j < place.cols; j++) {
			int64_t row = (int64_t)get(place, t, j);
			double sum = 0;
			for (int64_t c = 0; c < dy.cols; c++) {
				sum += get(dy, t, c) * get(x, row, c);
				put(dx, row, c, get(weight, t, j) * get(dy, t, c));
			}
			put(dweight, t, j, sum);
		}
	}
}

void oracle_grouped_gemm(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_GROUPED_GEMM_A], b = op->operand[RH_GROUPED_GEMM_B], start = op->operand[RH_GROUPED_GEMM_START];
	struct rh_view c = op->operand[RH_GROUPED_GEMM_C], bias = op->operand[RH_GROUPED_GEMM_BIAS], d = op->operand[RH_GROUPED_GEMM_D];
	for (int64_t e = 0; e < start.rows - 1; e++) {
		for (int64_t m = get_index(start, e); m < get_index(start, e + 1); m++) {
			for (int64_t n = 0; n < d.cols; n++) {
				double sum = 0;
				for (int64_t k = 0; k < a.cols; k++)
					sum += get(a, m, k) *
					       (op->grouped_gemm.trans_b ? get(b, e * d.cols + n, k) : get(b, e * a.cols + k, n));
				sum *= (double)op->grouped_gemm.alpha;
				sum += c.data ? get(c, m, n) : 0;
				sum += bias.data ? get(bias, e, n) : 0;
				put(d, m, n, sum);
			}
		}
	}
}

void oracle_grouped_gemm_gradient(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_GROUPED_GEMM_GRADIENT_A], b = op->operand[RH_GROUPED_GEMM_GRADIENT_B];
	struct rh_view start = op->operand[RH_GROUPED_GEMM_GRADIENT_START], d = op->operand[RH_GROUPED_GEMM_GRADIENT_D];
	for (int64_t e = 0; e < start.rows - 1; e++) {
		for (int64_t m = 0; m < a.cols; m++) {
			for (int64_t n = 0; n < b.cols; n++) {
				double sum = 0;
				for (int64_t r = get_index(start, e); r < get_index(start, e + 1); r++)
					sum += get(a, r, m) * get(b, r, n);
				put(d, e * a.cols + m, n, get(d, e * a.cols + m, n) + (double)op->grouped_gemm.alpha * sum);
			}
		}
	}
}

void oracle_grouped_column_sum(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_GROUPED_COLUMN_SUM_X], start = op->operand[RH_GROUPED_COLUMN_SUM_START];
	struct rh_view y = op->operand[RH_GROUPED_COLUMN_SUM_Y];
	for (int64_t e = 0; e < start.rows - 1; e++) {
		for (int64_t c = 0; c < x.cols; c++) {
			double sum = 0;
			for (int64_t r = get_index(start, e); r < get_index(start, e + 1); r++)
				sum += get(x, r, c);
			put(y, e, c, get(y, e, c) + sum);
		}
	}
}
