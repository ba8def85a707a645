/* HEAD_LOSS: chunks of rows, so that the logits never exist whole. A chunk's logits become its gradient in place, and dh and dw follow by
 * matrix products. Chunks and rows are taken in order: no thread count can change a sum. */
#include "device/cpu/distil.h"

struct chunk {
	const struct rh_op *op;
	enum rh_cpu_isa isa;
	enum softmax_gradient gradient;
	int64_t first; /* row of h */
};

static void row_task(void *context, int64_t i)
{
	const struct chunk *chunk = context;
	const struct rh_view *operand = chunk->op->operand, *logits = &operand[RH_HEAD_LOSS_LOGITS],
	                     *target = &operand[RH_HEAD_LOSS_TARGET];
	const struct rh_view *loss = &operand[RH_HEAD_LOSS_LOSS], *hit = &operand[RH_HEAD_LOSS_HIT];
	int64_t row = chunk->first + i, wanted = ((const int32_t *)target->data)[row * target->stride];
	float *logit = (float *)logits->data + i * logits->stride, *task = (float *)loss->data + row * loss->stride;
	int32_t *is_hit = (int32_t *)hit->data + row * hit->stride;
	const struct rh_view *shares = &operand[RH_HEAD_LOSS_SHARES];
	RH_ASSERT(wanted >= 0 && wanted < logits->cols);
	if (shares->data)
		top_shares_row(chunk->isa, logit, logits->cols, chunk->op->head_loss.top, (double)chunk->op->head_loss.temperature,
		               (float *)shares->data + row * shares->stride);
	if (chunk->op->head_loss.cap > 0) {
		const struct rh_view *mix = &operand[RH_HEAD_LOSS_MIX];
		float weight = mix->data ? *((const float *)mix->data + row * mix->stride) : 1;
		RH_CPU_PICK(chunk->isa, softmax_capped_row)
		(logit, logits->cols, wanted, chunk->op->head_loss.scale * weight, chunk->op->head_loss.cap, chunk->gradient, task, is_hit);
		*task *= weight;
		return;
	}
	if (!operand[RH_HEAD_LOSS_MIX].data) {
		RH_CPU_PICK(chunk->isa, softmax_row)
		(logit, logits->cols, wanted, chunk->op->head_loss.scale, chunk->gradient, task, is_hit);
		return;
	}
	const float *mix = (const float *)operand[RH_HEAD_LOSS_MIX].data + row * operand[RH_HEAD_LOSS_MIX].stride;
	const struct rh_view *teacher = &operand[RH_HEAD_LOSS_TEACHER];
	int distils = teacher->data && mix[1] != 0;
	if (distils && chunk->op->head_loss.top) {
		distil_top_row(&(struct top_row){.op = chunk->op,
		                                 .isa = chunk->isa,
		                                 .gradient = chunk->gradient,
		                                 .teacher = (const float *)teacher->data + row * teacher->stride,
		                                 .mix = mix,
		                                 .target = wanted},
		               logit, task, is_hit);
		return;
	}
	if (distils) {
		distil_row(chunk->op, row, logit, wanted, chunk->gradient, task, is_hit);
		return;
	}
	RH_CPU_PICK(chunk->isa, softmax_row)
	(logit, logits->cols, wanted, chunk->op->head_loss.scale * mix[0], chunk->gradient, task, is_hit);
	*task *= mix[0];
}

/* d = alpha op(a) b + c + bias; trans: of a, of b. */
struct product {
	struct rh_view a, b, c, bias, d;
	int trans_a, trans_b;
	float alpha;
};

static int multiply(struct cpu_context *context, const struct product *product)
{
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {product->trans_a, product->trans_b, product->alpha}};
	op.operand[RH_GEMM_A] = product->a;
	op.operand[RH_GEMM_B] = product->b;
	op.operand[RH_GEMM_C] = product->c;
	op.operand[RH_GEMM_BIAS] = product->bias;
	op.operand[RH_GEMM_D] = product->d;
	return cpu_gemm(context, &op);
}

/* An adapter's part of the logits of rows `first` on, which are there already; and then, from the logits' gradient, its own. */
static int add_adapter(struct cpu_context *context, const struct rh_view *operand, int64_t first, struct rh_view logits)
{
	if (!operand[RH_HEAD_LOSS_LOW].data)
		return 0;
	return multiply(context, &(struct product){.a = rh_view_rows(operand[RH_HEAD_LOSS_LOW], first, logits.rows),
	                                           .b = operand[RH_HEAD_LOSS_UP],
	                                           .c = logits,
	                                           .d = logits,
	                                           .trans_b = 1,
	                                           .alpha = 1});
}

static int adapter_gradients(struct cpu_context *context, const struct rh_view *operand, int64_t first, struct rh_view logits)
{
	struct rh_view dlow = operand[RH_HEAD_LOSS_DLOW], dup = operand[RH_HEAD_LOSS_DUP];
	int rc = 0;
	if (dlow.data)
		rc = multiply(context,
		              &(struct product){
		                      .a = logits, .b = operand[RH_HEAD_LOSS_UP], .d = rh_view_rows(dlow, first, logits.rows), .alpha = 1});
	if (rc || !dup.data)
		return rc;
	return multiply(context, &(struct product){.a = logits,
	                                           .trans_a = 1,
	                                           .b = rh_view_rows(operand[RH_HEAD_LOSS_LOW], first, logits.rows),
	                                           .c = dup,
	                                           .d = dup,
	                                           .alpha = 1});
}

/* dbias += sums over the chunk's rows. */
static int bias_gradient(struct cpu_context *context, struct rh_view logits, struct rh_view dbias)
{
	struct rh_op op = {.kind = RH_OP_COLUMN_SUM};
	op.operand[RH_COLUMN_SUM_X] = logits;
	op.operand[RH_COLUMN_SUM_Y] = dbias;
	return cpu_run(context, &op);
}

int cpu_head_loss(struct cpu_context *context, const struct rh_op *op)
{
	const struct rh_view *operand = op->operand;
	struct rh_view h = operand[RH_HEAD_LOSS_H], w = operand[RH_HEAD_LOSS_W], space = operand[RH_HEAD_LOSS_LOGITS];
	struct rh_view dh = operand[RH_HEAD_LOSS_DH], dw = operand[RH_HEAD_LOSS_DW];
	struct rh_view bias = operand[RH_HEAD_LOSS_BIAS], dbias = operand[RH_HEAD_LOSS_DBIAS];
	struct chunk chunk = {.op = op, .isa = context->isa};
	float alpha = op->head_loss.alpha == 0 ? 1 : op->head_loss.alpha;
	if (dh.data || dw.data || dbias.data || operand[RH_HEAD_LOSS_DLOW].data || operand[RH_HEAD_LOSS_DUP].data)
		chunk.gradient = h.dtype == RH_F32 ? SOFTMAX_F32 : SOFTMAX_BF16;
	int rc = 0;
	for (int64_t rows; !rc && chunk.first < h.rows; chunk.first += rows) {
		rows = h.rows - chunk.first < space.rows ? h.rows - chunk.first : space.rows;
		struct rh_view part = rh_view_rows(h, chunk.first, rows), logits = rh_view_rows(space, 0, rows);
		rc = multiply(context, &(struct product){.a = part, .b = w, .bias = bias, .d = logits, .trans_b = 1, .alpha = alpha});
		if (!rc)
			rc = add_adapter(context, operand, chunk.first, logits);
		if (rc)
			break;
		rh_pool_run(context->pool, row_task, &chunk, rows);
		if (chunk.gradient == SOFTMAX_BF16) {
			logits.dtype = RH_BF16;
			logits.stride *= 2;
		}
		if (dh.data)
			rc = multiply(context,
			              &(struct product){.a = logits, .b = w, .d = rh_view_rows(dh, chunk.first, rows), .alpha = alpha});
		if (!rc && dw.data)
			rc = multiply(context, &(struct product){.a = logits, .trans_a = 1, .b = part, .c = dw, .d = dw, .alpha = alpha});
		if (!rc && dbias.data)
			rc = bias_gradient(context, logits, dbias);
		if (!rc)
			rc = adapter_gradients(context, operand, chunk.first, logits);
	}
	return rc;
}
