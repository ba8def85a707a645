#include "device/oracle_internal.h"

#include <math.h>

void oracle_gemm(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_GEMM_A], b = op->operand[RH_GEMM_B], c = op->operand[RH_GEMM_C];
	struct rh_view bias = op->operand[RH_GEMM_BIAS], d = op->operand[RH_GEMM_D];
	int64_t inner = op->gemm.trans_a ? a.rows : a.cols;
	for (int64_t m = 0; m < d.rows; m++) {
		for (int64_t n = 0; n < d.cols; n++) {
			double sum = 0;
			for (int64_t k = 0; k < inner; k++)
				sum += (op->gemm.trans_a ? get(a, k, m) : get(a, m, k)) * (op->gemm.trans_b ? get(b, n, k) : get(b, k, n));
			sum *= (double)op->gemm.alpha;
			sum += c.data ? get(c, m, n) : 0;
			sum += bias.data ? get(bias, 0, n) : 0;
			put(d, m, n, sum);
		}
	}
}

static double dot(struct rh_view a, int64_t row_a, struct rh_view b, int64_t row_b)
{
	double sum = 0;
	for (int64_t i = 0; i < a.cols; i++)
		sum += get(a, row_a, i) * get(b, row_b, i);
	return sum;
}

/* One row: `logits` row 0 is its workspace, and holds the gradient of the logits at the end. */
static void head_loss_row(const struct rh_op *op, int64_t row)
{
	struct rh_view h = op->operand[RH_HEAD_LOSS_H], w = op->operand[RH_HEAD_LOSS_W], logits = op->operand[RH_HEAD_LOSS_LOGITS];
	int64_t target = get_index(op->operand[RH_HEAD_LOSS_TARGET], row), best = 0;
	for (int64_t v = 0; v < w.rows; v++) {
		put(logits, 0, v, dot(h, row, w, v));
		best = get(logits, 0, v) > get(logits, 0, best) ? v : best;
	}
	double largest = get(logits, 0, best), sum = 0;
	for (int64_t v = 0; v < w.rows; v++)
		sum += exp(get(logits, 0, v) - largest);
	put(op->operand[RH_HEAD_LOSS_LOSS], row, 0, log(sum) + largest - get(logits, 0, target));
	put(op->operand[RH_HEAD_LOSS_HIT], row, 0, best == target);
	for (int64_t v = 0; v < w.rows; v++)
		put(logits, 0, v, (double)op->head_loss.scale * (exp(get(logits, 0, v) - largest) / sum - (v == target)));
}

void oracle_head_loss(const struct rh_op *op)
{
	struct rh_view h = op->operand[RH_HEAD_LOSS_H], w = op->operand[RH_HEAD_LOSS_W], logits = op->operand[RH_HEAD_LOSS_LOGITS];
	struct rh_view dh = op->operand[RH_HEAD_LOSS_DH], dw = op->operand[RH_HEAD_LOSS_DW];
	for (int64_t row = 0; row < h.rows; row++) {
		head_loss_row(op, row);
		for (int64_t i = 0; i < h.cols && dh.data; i++) {
			double sum = 0;
			for (int64_t v = 0; v < w.rows; v++)
				sum += get(logits, 0, v) * get(w, v, i);
			put(dh, row, i, sum);
		}
		for (int64_t v = 0; v < w.rows && dw.data; v++)
			for (int64_t i = 0; i < h.cols; i++)
				put(dw, v, i, get(dw, v, i) + get(logits, 0, v) * get(h, row, i));
	}
}
