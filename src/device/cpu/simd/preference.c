/* PREFERENCE: sums of documents; then what each of their rows weighs; then, where there is dh, its rows times that. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

static struct rh_judged judged(const struct rh_op *op)
{
	struct rh_view span = op->operand[RH_PREFERENCE_OP_SPAN];
	return (struct rh_judged){span.data, op->operand[RH_PREFERENCE_OP_REFERENCE].data, op->operand[RH_PREFERENCE_OP_SUM].data, span.rows,
	                          op->operand[RH_PREFERENCE_OP_LOSS].rows};
}

/* Units are documents. */
static void sum_losses(const struct rh_op *op, int64_t first, int64_t end)
{
	const struct rh_judged batch = judged(op);
	const float *loss = op->operand[RH_PREFERENCE_OP_LOSS].data;
	float *out = op->operand[RH_PREFERENCE_OP_SUM].data;
	for (int64_t d = first; d < end; d++)
		for (int all = 0; all < 2; all++) {
			double sum = 0;
			for (int64_t i = rh_judged_first(&batch, d, all); i < rh_judged_end(&batch, d); i++)
				sum += (double)loss[i];
			out[2 * d + all] = (float)sum;
		}
}

/* Units are documents. */
static void weigh_rows(const struct rh_op *op, int64_t first, int64_t end)
{
	const struct rh_judged batch = judged(op);
	const struct rh_preference *is = &op->preference;
	float *mix = op->operand[RH_PREFERENCE_OP_MIX].data;
	double k = rh_judged_divergence(&batch), token = rh_judged_nll_slope(&batch, is);
	for (int64_t d = first; d < end; d++) {
		struct rh_weights weights = rh_judged_weights(&batch, is, d, k, token);
		int64_t answer = rh_judged_first(&batch, d, 0);
		for (int64_t i = rh_judged_first(&batch, d, 1); i < rh_judged_end(&batch, d); i++)
			mix[i] = i < answer ? weights.prompt : weights.answer;
	}
}

static struct cpu_span each_document(const struct rh_op *op)
{
	return (struct cpu_span){op->operand[RH_PREFERENCE_OP_SPAN].rows, 1};
}

SIMD_INLINE void scale_views(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view dh = op->operand[RH_PREFERENCE_OP_DH];
	const float *mix = op->operand[RH_PREFERENCE_OP_MIX].data;
	for (int64_t t = first; t < end; t++) {
		void *row = row_at(dh, t);
		for (int64_t i = 0; i < dh.cols; i += VF)
			act_store(row, i, act_load(row, i, dh.cols - i, bf16) * mix[t], dh.cols - i, bf16);
	}
}

/* Units are rows. */
static void scale_rows(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_PREFERENCE_OP_DH].dtype, scale_views, op, first, end);
}

static struct cpu_span each_row(const struct rh_op *op)
{
	return op->operand[RH_PREFERENCE_OP_DH].data ? over_rows(op->operand[RH_PREFERENCE_OP_DH]) : (struct cpu_span){0, 1};
}

const struct cpu_op SIMD(cpu_preference) = {{{sum_losses, each_document}, {weigh_rows, each_document}, {scale_rows, each_row}}};
