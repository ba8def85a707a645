/* HEAD_LOSS: chunks of rows, so that the logits never exist whole. A chunk's logits become its gradient in place, and dh and dw follow by
 * products. Chunks go in order, so dw's sums have one order. */
#include "cuda/head_loss.h"
#include "cuda/launch.h"

static int product(const struct launch *launch, struct rh_view a, int trans_a, struct rh_view b, int trans_b, struct rh_view c,
                   struct rh_view d)
{
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {trans_a, trans_b, 1}};
	op.operand[RH_GEMM_A] = a;
	op.operand[RH_GEMM_B] = b;
	op.operand[RH_GEMM_C] = c;
	op.operand[RH_GEMM_D] = d;
	return launch_gemm(launch, &op);
}

int launch_head(const struct launch *launch, const struct rh_op *op)
{
	const struct rh_view *view = op->operand, none = {0};
	struct rh_view h = view[RH_HEAD_LOSS_H], w = view[RH_HEAD_LOSS_W], space = view[RH_HEAD_LOSS_LOGITS];
	struct rh_view dh = view[RH_HEAD_LOSS_DH], dw = view[RH_HEAD_LOSS_DW];
	enum head_gradient gradient = !dh.data && !dw.data ? HEAD_LOSS_ONLY : h.dtype == RH_F32 ? HEAD_GRADIENT_F32 : HEAD_GRADIENT_BF16;
	int rc = 0;
	for (int64_t first = 0, rows; !rc && first < h.rows; first += rows) {
		rows = h.rows - first < space.rows ? h.rows - first : space.rows;
		struct rh_view part = rh_view_rows(h, first, rows), logits = rh_view_rows(space, 0, rows);
		struct head_rows head = {.logits = logits,
		                         .target = rh_view_rows(view[RH_HEAD_LOSS_TARGET], first, rows),
		                         .loss = rh_view_rows(view[RH_HEAD_LOSS_LOSS], first, rows),
		                         .hit = rh_view_rows(view[RH_HEAD_LOSS_HIT], first, rows),
		                         .scale = op->head_loss.scale,
		                         .gradient = gradient};
		rc = product(launch, part, 0, w, 1, none, logits);
		if (!rc)
			rc = cuda_head_rows(&head, launch->stream);
		if (gradient == HEAD_GRADIENT_BF16) {
			logits.dtype = RH_BF16;
			logits.stride *= 2;
		}
		if (!rc && dh.data)
			rc = product(launch, logits, 0, w, 0, none, rh_view_rows(dh, first, rows));
		if (!rc && dw.data)
			rc = product(launch, logits, 1, part, 0, dw, dw);
	}
	return rc;
}
