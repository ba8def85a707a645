/* Head and cross-entropy, a chunk of rows at a time: logits by one product, softmax, loss and gradient in place, then two products more. */
#include "core/float16.h"
#include "device/cpu/kernels.h"

#include <math.h>

/* A chunk of rows, its logits in place. */
struct chunk {
	const struct rh_op *op;
	int64_t first;
	int gradients;
};

static void one_row(void *context, int64_t i)
{
	const struct chunk *chunk = context;
	const struct rh_op *op = chunk->op;
	const struct rh_view *space = &op->operand[RH_HEAD_LOSS_LOGITS];
	float *logit = (float *)space->data + i * space->stride;
	int64_t vocabulary = space->cols, best = 0, row = chunk->first + i;
	int32_t target = ((const int32_t *)op->operand[RH_HEAD_LOSS_TARGET].data)[row];
	for (int64_t v = 1; v < vocabulary; v++)
		best = logit[v] > logit[best] ? v : best;
	double total = 0;
	float most = logit[best], at_target = logit[target];
	for (int64_t v = 0; v < vocabulary; v++) {
		logit[v] = expf(logit[v] - most);
		total += (double)logit[v];
	}
	((float *)op->operand[RH_HEAD_LOSS_LOSS].data)[row] = (float)(log(total) + (double)most - (double)at_target);
	((int32_t *)op->operand[RH_HEAD_LOSS_HIT].data)[row] = best == target;
	if (!chunk->gradients)
		return;
	float scale = op->head_loss.scale, share = (float)((double)scale / total);
	for (int64_t v = 0; v < vocabulary; v++)
		logit[v] *= share;
	logit[target] -= scale;
	if (op->operand[RH_HEAD_LOSS_H].dtype != RH_F32) /* in place: the front of what was read */
		for (int64_t v = 0; v < vocabulary; v++) {
			uint16_t half = rh_f32_to_bf16(logit[v]);
			__builtin_memcpy((char *)logit + 2 * v, &half, sizeof half);
		}
}

static int product(struct cpu_context *context, struct rh_view a, int trans_a, struct rh_view b, int trans_b, struct rh_view c,
                   struct rh_view d)
{
	struct rh_op op = {.kind = RH_OP_GEMM};
	op.operand[RH_GEMM_A] = a;
	op.operand[RH_GEMM_B] = b;
	op.operand[RH_GEMM_C] = c;
	op.operand[RH_GEMM_D] = d;
	op.gemm.trans_a = trans_a;
	op.gemm.trans_b = trans_b;
	op.gemm.alpha = 1;
	return cpu_gemm(context, &op);
}

int cpu_head_loss(struct cpu_context *context, const struct rh_op *op)
{
	struct rh_view h = op->operand[RH_HEAD_LOSS_H], w = op->operand[RH_HEAD_LOSS_W], space = op->operand[RH_HEAD_LOSS_LOGITS];
	struct rh_view dh = op->operand[RH_HEAD_LOSS_DH], dw = op->operand[RH_HEAD_LOSS_DW], none = {0};
	int rc = 0;
	for (int64_t first = 0; !rc && first < h.rows; first += space.rows) {
		int64_t rows = h.rows - first < space.rows ? h.rows - first : space.rows;
		struct rh_view part = rh_view_rows(h, first, rows), logits = rh_view_rows(space, 0, rows), gradient = logits;
		struct chunk chunk = {op, first, dh.data || dw.data};
		rc = product(context, part, 0, w, 1, none, logits);
		if (rc)
			break;
		rh_pool_run(context->pool, one_row, &chunk, rows);
		if (h.dtype != RH_F32) {
			gradient.dtype = h.dtype;
			gradient.stride = 2 * logits.stride;
		}
		if (dh.data)
			rc = product(context, gradient, 0, w, 0, none, rh_view_rows(dh, first, rows));
		if (!rc && dw.data)
			rc = product(context, gradient, 1, part, 0, dw, dw);
	}
	return rc;
}
