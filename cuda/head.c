/* HEAD_LOSS: chunks of rows, so that the logits never exist whole. A chunk's logits become its gradient in place, and dh and dw follow by
 * products. Chunks go in order, so dw's sums have one order. */
#include "cuda/head_loss.h"
#include "cuda/launch.h"

/* d = alpha op(a) b + c + bias; trans: of a, of b. */
struct product {
	struct rh_view a, b, c, bias, d;
	int trans_a, trans_b;
	float alpha;
};

static int multiply(const struct launch_context *launch, const struct product *product)
{
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {product->trans_a, product->trans_b, product->alpha}};
	op.operand[RH_GEMM_A] = product->a;
	op.operand[RH_GEMM_B] = product->b;
	op.operand[RH_GEMM_C] = product->c;
	op.operand[RH_GEMM_BIAS] = product->bias;
	op.operand[RH_GEMM_D] = product->d;
	return launch_gemm(launch, &op);
}

/* An adapter's part of the logits of rows `first` on, which are there already; and then, from the logits' gradient, its own. */
static int add_adapter(const struct launch_context *launch, const struct rh_view *operand, int64_t first, struct rh_view logits)
{
	if (!operand[RH_HEAD_LOSS_LOW].data)
		return 0;
	return multiply(launch, &(struct product){.a = rh_view_rows(operand[RH_HEAD_LOSS_LOW], first, logits.rows),
	                                          .b = operand[RH_HEAD_LOSS_UP],
	                                          .c = logits,
	                                          .d = logits,
	                                          .trans_b = 1,
	                                          .alpha = 1});
}

static int adapter_gradients(const struct launch_context *launch, const struct rh_view *operand, int64_t first, struct rh_view logits)
{
	struct rh_view dlow = operand[RH_HEAD_LOSS_DLOW], dup = operand[RH_HEAD_LOSS_DUP];
	int rc = 0;
	if (dlow.data)
		rc = multiply(launch,
		              &(struct product){
		                      .a = logits, .b = operand[RH_HEAD_LOSS_UP], .d = rh_view_rows(dlow, first, logits.rows), .alpha = 1});
	if (rc || !dup.data)
		return rc;
	return multiply(launch, &(struct product){.a = logits,
	                                          .trans_a = 1,
	                                          .b = rh_view_rows(operand[RH_HEAD_LOSS_LOW], first, logits.rows),
	                                          .c = dup,
	                                          .d = dup,
	                                          .alpha = 1});
}

/* dbias += sums over the chunk's rows. */
static int bias_gradient(const struct launch_context *launch, struct rh_view logits, struct rh_view dbias)
{
	struct rh_op op = {.kind = RH_OP_COLUMN_SUM};
	op.operand[RH_COLUMN_SUM_X] = logits;
	op.operand[RH_COLUMN_SUM_Y] = dbias;
	return launch_op(launch, &op);
}

/* The loss, and what of its gradient is no product. */
static int launch_rows(const struct head_rows *head, struct CUstream_st *stream)
{
	int rc = head->shares.data ? cuda_top_rows(head, stream) : 0;
	if (rc)
		return rc;
	if (!head->teacher.data)
		return cuda_head_rows(head, stream);
	return head->top ? cuda_distil_top_rows(head, stream) : cuda_distil_rows(head, stream);
}

int launch_head(const struct launch_context *launch, const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	struct rh_view h = view[RH_HEAD_LOSS_H], w = view[RH_HEAD_LOSS_W], space = view[RH_HEAD_LOSS_LOGITS];
	struct rh_view dh = view[RH_HEAD_LOSS_DH], dw = view[RH_HEAD_LOSS_DW];
	struct rh_view bias = view[RH_HEAD_LOSS_BIAS], dbias = view[RH_HEAD_LOSS_DBIAS];
	int learns = dh.data || dw.data || dbias.data || view[RH_HEAD_LOSS_DLOW].data || view[RH_HEAD_LOSS_DUP].data;
	enum head_gradient gradient = !learns ? HEAD_LOSS_ONLY : h.dtype == RH_F32 ? HEAD_GRADIENT_F32 : HEAD_GRADIENT_BF16;
	float alpha = op->head_loss.alpha == 0 ? 1 : op->head_loss.alpha;
	int rc = 0;
	for (int64_t first = 0, rows; !rc && first < h.rows; first += rows) {
		rows = h.rows - first < space.rows ? h.rows - first : space.rows;
		struct rh_view part = rh_view_rows(h, first, rows), logits = rh_view_rows(space, 0, rows);
		struct head_rows head = {.logits = logits,
		                         .target = rh_view_rows(view[RH_HEAD_LOSS_TARGET], first, rows),
		                         .loss = rh_view_rows(view[RH_HEAD_LOSS_LOSS], first, rows),
		                         .hit = rh_view_rows(view[RH_HEAD_LOSS_HIT], first, rows),
		                         .scale = op->head_loss.scale,
		                         .temperature = op->head_loss.temperature,
		                         .cap = op->head_loss.cap,
		                         .top = op->head_loss.top,
		                         .divergence = op->head_loss.divergence,
		                         .gradient = gradient};
		if (view[RH_HEAD_LOSS_SHARES].data)
			head.shares = rh_view_rows(view[RH_HEAD_LOSS_SHARES], first, rows);
		if (view[RH_HEAD_LOSS_TEACHER].data)
			head.teacher = rh_view_rows(view[RH_HEAD_LOSS_TEACHER], first, rows);
		if (view[RH_HEAD_LOSS_MIX].data)
			head.mix = rh_view_rows(view[RH_HEAD_LOSS_MIX], first, rows);
		rc = multiply(launch, &(struct product){.a = part, .b = w, .bias = bias, .d = logits, .trans_b = 1, .alpha = alpha});
		if (!rc)
			rc = add_adapter(launch, view, first, logits);
		if (!rc)
			rc = launch_rows(&head, launch->stream);
		if (gradient == HEAD_GRADIENT_BF16) {
			logits.dtype = RH_BF16;
			logits.stride *= 2;
		}
		if (!rc && dh.data)
			rc = multiply(launch, &(struct product){.a = logits, .b = w, .d = rh_view_rows(dh, first, rows), .alpha = alpha});
		if (!rc && dw.data)
			rc = multiply(launch, &(struct product){.a = logits, .trans_a = 1, .b = part, .c = dw, .d = dw, .alpha = alpha});
		if (!rc && dbias.data)
			rc = bias_gradient(launch, logits, dbias);
		if (!rc)
			rc = adapter_gradients(launch, view, first, logits);
	}
	return rc;
}
