/* The op between the head's two walks: losses over whole answers. */
#include "device/ops/def.h"

static void check_preference(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view loss = view[RH_PREFERENCE_OP_LOSS], span = view[RH_PREFERENCE_OP_SPAN], dh = view[RH_PREFERENCE_OP_DH];
	require(check, loss.dtype == RH_F32 && loss.cols == 1, "preference: loss is not (n,1) F32");
	require(check, span.dtype == RH_I32 && span.cols == RH_SPANS, "preference: span is not (documents,4) I32");
	shape(check, RH_PREFERENCE_OP_REFERENCE, RH_F32, span.rows, 1, "preference: reference is not (documents,1) F32");
	shape(check, RH_PREFERENCE_OP_SUM, RH_F32, span.rows, 2, "preference: sum is not (documents,2) F32");
	shape(check, RH_PREFERENCE_OP_MIX, RH_F32, loss.rows, 1, "preference: mix is not (n,1) F32");
	require(check, !dh.data || (is_act(dh.dtype) && dh.rows == loss.rows), "preference: dh is not (n,H), F32 or BF16");
	for (int i = 0; i < RH_PREFERENCE_OP_DH; i++)
		require(check, view[i].stride == view[i].cols, "preference: rows are not back to back");
	int answers = check->op->preference.answers;
	require(check, (answers == 1 || answers == 2) && span.rows % (answers ? answers : 1) == 0,
	        "preference: documents are not whole rows of 1 or 2");
}

static double sum_of(struct rh_view loss, int64_t first, int64_t end)
{
	double sum = 0;
	for (int64_t i = first; i < end; i++)
		sum += get(loss, i, 0);
	return sum;
}

static void oracle_preference(const struct rh_op *op)
{
	struct rh_view loss = op->operand[RH_PREFERENCE_OP_LOSS], span = op->operand[RH_PREFERENCE_OP_SPAN],
	               sum = op->operand[RH_PREFERENCE_OP_SUM], mix = op->operand[RH_PREFERENCE_OP_MIX],
	               dh = op->operand[RH_PREFERENCE_OP_DH];
	const struct rh_preference *is = &op->preference;
	const struct rh_judged batch = {span.data, op->operand[RH_PREFERENCE_OP_REFERENCE].data, sum.data, span.rows, loss.rows};
	for (int64_t d = 0; d < span.rows; d++)
		for (int all = 0; all < 2; all++)
			put(sum, d, all, sum_of(loss, rh_judged_first(&batch, d, all), rh_judged_end(&batch, d)));
	double k = rh_judged_divergence(&batch), token = rh_judged_nll_slope(&batch, is);
	for (int64_t d = 0; d < span.rows; d++) {
		struct rh_weights weights = rh_judged_weights(&batch, is, d, k, token);
		for (int64_t i = rh_judged_first(&batch, d, 1); i < rh_judged_end(&batch, d); i++)
			put(mix, i, 0, (double)(i < rh_judged_first(&batch, d, 0) ? weights.prompt : weights.answer));
	}
	for (int64_t i = 0; dh.data && i < dh.rows; i++)
		for (int64_t c = 0; c < dh.cols; c++)
			put(dh, i, c, get(dh, i, c) * get(mix, i, 0));
}

static void cost_preference(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->other_flops = 3 * area(op->operand[RH_PREFERENCE_OP_LOSS]) + 64 * SPECIAL * (double)op->operand[RH_PREFERENCE_OP_SPAN].rows;
	cost->other_flops += op->operand[RH_PREFERENCE_OP_DH].data ? area(op->operand[RH_PREFERENCE_OP_DH]) : 0;
}

const struct op_def op_preference = {
        .info = {"preference", 6, {IN("loss"), IN("span"), IN("reference"), OUT("sum"), OUT("mix"), ADD_TO_IF("dh")}},
        .check = check_preference,
        .oracle = oracle_preference,
        .cost = cost_preference,
};
