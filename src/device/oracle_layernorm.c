#include "device/oracle_internal.h"

#include <math.h>

void oracle_layernorm(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_LAYERNORM_X], w = op->operand[RH_LAYERNORM_W], b = op->operand[RH_LAYERNORM_B];
	struct rh_view y = op->operand[RH_LAYERNORM_Y], stats = op->operand[RH_LAYERNORM_STATS];
	for (int64_t t = 0; t < x.rows; t++) {
		double mean = 0, variance = 0;
		for (int64_t i = 0; i < x.cols; i++)
			mean += get(x, t, i) / (double)x.cols;
		for (int64_t i = 0; i < x.cols; i++)
			variance += (get(x, t, i) - mean) * (get(x, t, i) - mean) / (double)x.cols;
		double rstd = 1 / sqrt(variance + (double)op->layernorm.epsilon);
		put(stats, t, 0, mean);
		put(stats, t, 1, rstd);
		for (int64_t i = 0; i < x.cols; i++)
			put(y, t, i, (get(x, t, i) - mean) * rstd * get(w, 0, i) + (b.data ? get(b, 0, i) : 0));
	}
}

/* With xhat = (x - mean) rstd and s = dy w: dx = rstd (s - mean(s) - xhat mean(s xhat)), dw = sum of dy xhat, db = sum of dy. */
void oracle_layernorm_backward(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_LAYERNORM_BACKWARD_X], w = view[RH_LAYERNORM_BACKWARD_W], b = view[RH_LAYERNORM_BACKWARD_B];
	struct rh_view stats = view[RH_LAYERNORM_BACKWARD_STATS], dy = view[RH_LAYERNORM_BACKWARD_DY];
	struct rh_view add = view[RH_LAYERNORM_BACKWARD_ADD], dx = view[RH_LAYERNORM_BACKWARD_DX], y = view[RH_LAYERNORM_BACKWARD_Y];
	struct rh_view dw = view[RH_LAYERNORM_BACKWARD_DW], db = view[RH_LAYERNORM_BACKWARD_DB];
	double n = (double)x.cols;
	for (int64_t i = 0; i < x.cols; i++) {
		double of_w = 0, of_b = 0;
		for (int64_t t = 0; t < x.rows; t++) {
			of_w += get(dy, t, i) * (get(x, t, i) - get(stats, t, 0)) * get(stats, t, 1);
			of_b += get(dy, t, i);
		}
		if (dw.data)
			put(dw, 0, i, get(dw, 0, i) + of_w);
		if (db.data)
			put(db, 0, i, get(db, 0, i) + of_b);
	}
	for (int64_t t = 0; t < x.rows; t++) {
		double mean = get(stats, t, 0), rstd = get(stats, t, 1), s = 0, s_xhat = 0;
		for (int64_t i = 0; i < x.cols; i++) {
			s += get(dy, t, i) * get(w, 0, i) / n;
			s_xhat += get(dy, t, i) * get(w, 0, i) * (get(x, t, i) - mean) * rstd / n;
		}
		for (int64_t i = 0; i < x.cols; i++) {
			double xhat = (get(x, t, i) - mean) * rstd, base = add.data ? get(add, t, i) : 0;
			put(dx, t, i, base + rstd * (get(dy, t, i) * get(w, 0, i) - s - xhat * s_xhat));
			if (y.data)
				put(y, t, i, xhat * get(w, 0, i) + (b.data ? get(b, 0, i) : 0));
		}
	}
}
