#include "device/op.h"

#include <stddef.h>

/* Flops of an element that are no products: multiplications, additions and comparisons count 1, exponentials and roots 8. */
enum { SPECIAL = 8 };

static double area(struct rh_view view)
{
	return (double)view.rows * (double)view.cols;
}

/* The share of the experts that have rows, where only the number of rows is known: at most one an expert. */
static double experts_touched(const struct rh_op *op, int start, int rows_of)
{
	double experts = (double)op->operand[start].rows - 1, rows = (double)op->operand[rows_of].rows;
	return rows < experts ? rows / experts : 1;
}

/* Each operand once, as far as it is touched: a table of embeddings only in the rows that are named. */
static double bytes_of(const struct rh_op *op)
{
	const struct rh_op_info *info = rh_op_info(op->kind);
	double bytes = 0;
	for (int i = 0; i < info->operands; i++) {
		struct rh_view view = op->operand[i];
		if (!view.data)
			continue;
		if ((op->kind == RH_OP_EMBEDDING && i == RH_EMBEDDING_TABLE) || (op->kind == RH_OP_GATHER_ROWS && i == RH_GATHER_ROWS_X) ||
		    (op->kind == RH_OP_EMBEDDING_BACKWARD && i == RH_EMBEDDING_BACKWARD_DTABLE))
			view.rows = op->operand[op->kind == RH_OP_GATHER_ROWS ? RH_GATHER_ROWS_INDEX : RH_EMBEDDING_IDS].rows;
		if (op->kind == RH_OP_GROUPED_GEMM && i == RH_GROUPED_GEMM_B) /* an expert without rows is not read */
			view.rows = (int64_t)((double)view.rows * experts_touched(op, RH_GROUPED_GEMM_START, RH_GROUPED_GEMM_A));
		if (op->kind == RH_OP_GROUPED_GEMM_GRADIENT && i == RH_GROUPED_GEMM_GRADIENT_D)
			view.rows = (int64_t)((double)view.rows *
			                      experts_touched(op, RH_GROUPED_GEMM_GRADIENT_START, RH_GROUPED_GEMM_GRADIENT_A));
		int both = info->operand[i].access == RH_ACCESS_INOUT;
		if (op->kind == RH_OP_HEAD_LOSS && i == RH_HEAD_LOSS_LOGITS)
			continue; /* workspace: a chunk stays in cache */
		bytes += area(view) / (double)rh_dtype_block(view.dtype) * (double)rh_dtype_block_bytes(view.dtype) * (both ? 2 : 1);
	}
	return bytes;
}

/* Pairs of query and key, of one head: half the square of a document's queries, the keys that were there before them, at most a window. */
static double attention_pairs(const struct rh_op *op)
{
	double queries = (double)op->operand[RH_ATTENTION_Q].rows, keys = (double)op->operand[RH_ATTENTION_K].rows;
	double seen = (double)op->attention.longest / 2;
	if (op->attention.documents > 0 && keys > queries)
		seen += (keys - queries) / (double)op->attention.documents;
	if (op->attention.window > 0 && seen > (double)op->attention.window)
		seen = (double)op->attention.window;
	return queries * seen;
}

static void attention_cost(const struct rh_op *op, double products, struct rh_op_cost *cost)
{
	double pairs = attention_pairs(op);
	cost->product_flops = products * 2 * pairs * (double)op->operand[RH_ATTENTION_Q].cols;
	cost->other_flops = pairs * (double)op->attention.heads * (SPECIAL + 4);
}

static void gemm_cost(const struct rh_op *op, struct rh_op_cost *cost)
{
	struct rh_view a = op->operand[RH_GEMM_A], d = op->operand[RH_GEMM_D];
	cost->product_flops = 2 * area(d) * (double)(op->gemm.trans_a ? a.rows : a.cols);
	cost->other_flops = area(d) * ((op->operand[RH_GEMM_C].data != NULL) + (op->operand[RH_GEMM_BIAS].data != NULL));
}

/* Logits, and one more product each for dh and dw. */
static void head_loss_cost(const struct rh_op *op, struct rh_op_cost *cost)
{
	double logits = (double)op->operand[RH_HEAD_LOSS_H].rows * (double)op->operand[RH_HEAD_LOSS_W].rows;
	int products = 1 + (op->operand[RH_HEAD_LOSS_DH].data != NULL) + (op->operand[RH_HEAD_LOSS_DW].data != NULL);
	cost->product_flops = 2 * logits * (double)op->operand[RH_HEAD_LOSS_H].cols * products;
	cost->other_flops = logits * (SPECIAL + (products > 1 ? 4 : 2));
}

/* All rows are some expert's: what an expert has is known on the device alone. */
static void grouped_gemm_cost(const struct rh_op *op, struct rh_op_cost *cost)
{
	const struct rh_view *view = op->operand;
	if (op->kind == RH_OP_GROUPED_GEMM_GRADIENT) {
		cost->product_flops = 2 * area(view[RH_GROUPED_GEMM_GRADIENT_A]) * (double)view[RH_GROUPED_GEMM_GRADIENT_B].cols;
		cost->other_flops = area(view[RH_GROUPED_GEMM_GRADIENT_D]);
		return;
	}
	struct rh_view d = view[RH_GROUPED_GEMM_D];
	cost->product_flops = 2 * area(d) * (double)view[RH_GROUPED_GEMM_A].cols;
	cost->other_flops = area(d) * ((view[RH_GROUPED_GEMM_C].data != NULL) + (view[RH_GROUPED_GEMM_BIAS].data != NULL));
}

static double other_flops(const struct rh_op *op)
{
	const struct rh_view *view = op->operand;
	switch (op->kind) {
	case RH_OP_COLUMN_SUM:
		return area(view[RH_COLUMN_SUM_X]);
	case RH_OP_RMSNORM:
		return 4 * area(view[RH_RMSNORM_X]) + SPECIAL * area(view[RH_RMSNORM_RSTD]);
	case RH_OP_RMSNORM_BACKWARD:
		return area(view[RH_RMSNORM_BACKWARD_X]) *
		       (8 + (view[RH_RMSNORM_BACKWARD_ADD].data != NULL) + 2 * (view[RH_RMSNORM_BACKWARD_DW].data != NULL));
	case RH_OP_ROPE_TABLE:
		return area(view[RH_ROPE_TABLE_TABLE]) * (SPECIAL + 1);
	case RH_OP_ROPE:
		return 3 * area(view[RH_ROPE_X]);
	case RH_OP_GLU:
		return area(view[RH_GLU_A]) * (SPECIAL + 4);
	case RH_OP_GLU_BACKWARD:
		return area(view[RH_GLU_BACKWARD_DA]) * (SPECIAL + 10);
	case RH_OP_EMBEDDING_BACKWARD:
		return area(view[RH_EMBEDDING_BACKWARD_DY]);
	case RH_OP_DROPOUT:
		return area(view[RH_DROPOUT_X]) * (25 + 3); /* a word of Philox: 100 integer operations for four */
	case RH_OP_ADD:
		return area(view[RH_ADD_Y]);
	case RH_OP_ROUTER: /* k rounds of comparisons, and a softmax */
		return area(view[RH_ROUTER_LOGITS]) * (double)(view[RH_ROUTER_INDEX].cols + SPECIAL + 2);
	case RH_OP_ROUTER_BACKWARD:
		return area(view[RH_ROUTER_BACKWARD_LOGITS]) * (SPECIAL + 4);
	case RH_OP_UNPERMUTE:
		return 2 * area(view[RH_UNPERMUTE_X]);
	case RH_OP_UNPERMUTE_BACKWARD:
		return 3 * area(view[RH_UNPERMUTE_BACKWARD_X]);
	case RH_OP_GROUPED_COLUMN_SUM:
		return area(view[RH_GROUPED_COLUMN_SUM_X]);
	case RH_OP_ACTIVATION:
		return area(view[RH_ACTIVATION_X]) * (SPECIAL + 4);
	case RH_OP_ACTIVATION_BACKWARD:
		return area(view[RH_ACTIVATION_BACKWARD_X]) * (SPECIAL + 8);
	case RH_OP_LAYERNORM:
		return 7 * area(view[RH_LAYERNORM_X]) + SPECIAL * (double)view[RH_LAYERNORM_X].rows;
	case RH_OP_LAYERNORM_BACKWARD:
		return area(view[RH_LAYERNORM_BACKWARD_X]) *
		       (11 + (view[RH_LAYERNORM_BACKWARD_ADD].data != NULL) + 2 * (view[RH_LAYERNORM_BACKWARD_DW].data != NULL) +
		        (view[RH_LAYERNORM_BACKWARD_DB].data != NULL));
	case RH_OP_DEQUANTISE:
		return 4 * area(view[RH_DEQUANTISE_Y]); /* to a number, times a scale, plus a minimum; the nibble's shift */
	default:
		return 0; /* moves only */
	}
}

struct rh_op_cost rh_op_cost(const struct rh_op *op)
{
	struct rh_op_cost cost = {.bytes = bytes_of(op)};
	if (op->kind == RH_OP_GEMM)
		gemm_cost(op, &cost);
	else if (op->kind == RH_OP_ATTENTION)
		attention_cost(op, 2, &cost);
	else if (op->kind == RH_OP_ATTENTION_BACKWARD)
		attention_cost(op, 5, &cost);
	else if (op->kind == RH_OP_HEAD_LOSS)
		head_loss_cost(op, &cost);
	else if (op->kind == RH_OP_GROUPED_GEMM || op->kind == RH_OP_GROUPED_GEMM_GRADIENT)
		grouped_gemm_cost(op, &cost);
	else
		cost.other_flops = other_flops(op);
	return cost;
}
