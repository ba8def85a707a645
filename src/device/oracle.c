/* What each op computes, said as plainly as C can: the reference of every device. Sums are fp64, elements are rounded once on store. */
#include "device/oracle_internal.h"

#include "core/philox.h"

#include <math.h>

static void fill(const struct rh_op *op)
{
	struct rh_view y = op->operand[RH_FILL_Y];
	for (int64_t r = 0; r < y.rows; r++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, r, c, 0);
}

static void cast(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_CAST_X], y = op->operand[RH_CAST_Y];
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; c < x.cols; c++)
			put(y, r, c, get(x, r, c));
}

static void add(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_ADD_A], b = op->operand[RH_ADD_B], y = op->operand[RH_ADD_Y];
	for (int64_t r = 0; r < y.rows; r++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, r, c, get(a, r, c) + get(b, r, c));
}

static void column_sum(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_COLUMN_SUM_X], y = op->operand[RH_COLUMN_SUM_Y];
	for (int64_t c = 0; c < x.cols; c++) {
		double sum = 0;
		for (int64_t r = 0; r < x.rows; r++)
			sum += get(x, r, c);
		put(y, 0, c, get(y, 0, c) + sum);
	}
}

static void rmsnorm(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_RMSNORM_X], w = op->operand[RH_RMSNORM_W];
	struct rh_view y = op->operand[RH_RMSNORM_Y], rstd = op->operand[RH_RMSNORM_RSTD];
	int64_t n = w.cols;
	for (int64_t t = 0; t < x.rows; t++) {
		for (int64_t g = 0; g < op->rmsnorm.groups; g++) {
			double squares = 0;
			for (int64_t i = 0; i < n; i++)
				squares += get(x, t, g * n + i) * get(x, t, g * n + i);
			double r = 1 / sqrt(squares / (double)n + (double)op->rmsnorm.epsilon);
			put(rstd, t, g, r);
			for (int64_t i = 0; i < n; i++)
				put(y, t, g * n + i, get(x, t, g * n + i) * r * get(w, 0, i));
		}
	}
}

/* With xhat = x rstd and s = dy w: dx = rstd (s - xhat mean(s xhat)), dw = sum of dy xhat. */
static void rmsnorm_backward(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_RMSNORM_BACKWARD_X], w = op->operand[RH_RMSNORM_BACKWARD_W];
	struct rh_view rstd = op->operand[RH_RMSNORM_BACKWARD_RSTD], dy = op->operand[RH_RMSNORM_BACKWARD_DY];
	struct rh_view add = op->operand[RH_RMSNORM_BACKWARD_ADD], dx = op->operand[RH_RMSNORM_BACKWARD_DX];
	struct rh_view dw = op->operand[RH_RMSNORM_BACKWARD_DW], y = op->operand[RH_RMSNORM_BACKWARD_Y];
	int64_t n = w.cols, groups = op->rmsnorm.groups;
	for (int64_t i = 0; i < n && dw.data; i++) {
		double sum = 0;
		for (int64_t t = 0; t < x.rows; t++)
			for (int64_t g = 0; g < groups; g++)
				sum += get(dy, t, g * n + i) * get(x, t, g * n + i) * get(rstd, t, g);
		put(dw, 0, i, get(dw, 0, i) + sum);
	}
	for (int64_t t = 0; t < x.rows; t++) {
		for (int64_t g = 0; g < groups; g++) {
			double r = get(rstd, t, g), mean = 0;
			for (int64_t i = 0; i < n; i++)
				mean += get(dy, t, g * n + i) * get(w, 0, i) * get(x, t, g * n + i) * r / (double)n;
			for (int64_t i = 0; i < n; i++) {
				double xhat = get(x, t, g * n + i) * r;
				double gradient = r * (get(dy, t, g * n + i) * get(w, 0, i) - xhat * mean);
				put(dx, t, g * n + i, gradient + (add.data ? get(add, t, g * n + i) : 0));
				if (y.data)
					put(y, t, g * n + i, xhat * get(w, 0, i));
			}
		}
	}
}

/* The angle is an fp32 product, as in every implementation that a checkpoint was trained with: at position 1e5 its rounding matters. */
static void rope_table(const struct rh_op *op)
{
	struct rh_view position = op->operand[RH_ROPE_TABLE_POSITION], table = op->operand[RH_ROPE_TABLE_TABLE];
	int64_t half = table.cols / 2;
	for (int64_t t = 0; t < table.rows; t++) {
		for (int64_t i = 0; i < half; i++) {
			float angle = (float)get(position, t, 0) * op->rope_table.inv_freq[i];
			put(table, t, i, cos((double)angle) * (double)op->rope_table.scale);
			put(table, t, half + i, sin((double)angle) * (double)op->rope_table.scale);
		}
	}
}

static void rope(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_ROPE_X], table = op->operand[RH_ROPE_TABLE_IN];
	int64_t dim = table.cols, half = dim / 2;
	for (int64_t t = 0; t < x.rows; t++) {
		for (int64_t h = 0; h < op->rope.heads; h++) {
			for (int64_t i = 0; i < half; i++) {
				double a = get(x, t, h * dim + i), b = get(x, t, h * dim + half + i);
				double c = get(table, t, i), s = op->rope.inverse ? -get(table, t, half + i) : get(table, t, half + i);
				put(x, t, h * dim + i, a * c - b * s);
				put(x, t, h * dim + half + i, b * c + a * s);
			}
		}
	}
}

/* y = rows of x named by index: EMBEDDING and GATHER_ROWS. */
static void take_rows(struct rh_view x, struct rh_view index, struct rh_view y)
{
	for (int64_t t = 0; t < y.rows; t++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, t, c, get(x, get_index(index, t), c));
}

static void embedding_backward(const struct rh_op *op)
{
	struct rh_view ids = op->operand[RH_EMBEDDING_BACKWARD_IDS], dy = op->operand[RH_EMBEDDING_BACKWARD_DY];
	struct rh_view dtable = op->operand[RH_EMBEDDING_BACKWARD_DTABLE];
	for (int64_t t = 0; t < dy.rows; t++) {
		int64_t id = get_index(ids, t);
		for (int64_t c = 0; c < dy.cols; c++)
			put(dtable, id, c, get(dtable, id, c) + get(dy, t, c));
	}
}

static void scatter_rows(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_SCATTER_ROWS_X], index = op->operand[RH_SCATTER_ROWS_INDEX], y = op->operand[RH_SCATTER_ROWS_Y];
	for (int64_t t = 0; t < y.rows; t++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, t, c, 0);
	for (int64_t i = 0; i < x.rows; i++)
		for (int64_t c = 0; c < x.cols; c++)
			put(y, get_index(index, i), c, get(x, i, c));
}

static void dropout(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_DROPOUT_X], add = op->operand[RH_DROPOUT_ADD], y = op->operand[RH_DROPOUT_Y];
	for (int64_t r = 0; r < x.rows; r++) {
		for (int64_t c = 0; c < x.cols; c++) {
			int64_t e = r * x.cols + c;
			struct rh_philox_block block =
			        rh_philox(op->dropout.seed, (uint32_t)(e / 4), op->dropout.site, op->dropout.micro_batch, op->dropout.step);
			int kept = rh_philox_unit(block.word[e % 4]) >= op->dropout.p;
			double value = kept ? get(x, r, c) / (1 - (double)op->dropout.p) : 0;
			put(y, r, c, value + (add.data ? get(add, r, c) : 0));
		}
	}
}

void rh_op_oracle(const struct rh_op *op)
{
	RH_ASSERT(!rh_op_fault(op));
	const struct rh_view *view = op->operand;
	switch (op->kind) {
	case RH_OP_FILL:
		return fill(op);
	case RH_OP_CAST:
		return cast(op);
	case RH_OP_GEMM:
		return oracle_gemm(op);
	case RH_OP_COLUMN_SUM:
		return column_sum(op);
	case RH_OP_RMSNORM:
		return rmsnorm(op);
	case RH_OP_RMSNORM_BACKWARD:
		return rmsnorm_backward(op);
	case RH_OP_ROPE_TABLE:
		return rope_table(op);
	case RH_OP_ROPE:
		return rope(op);
	case RH_OP_ATTENTION:
		return oracle_attention(op);
	case RH_OP_ATTENTION_BACKWARD:
		return oracle_attention_backward(op);
	case RH_OP_GLU:
		return oracle_glu(op);
	case RH_OP_GLU_BACKWARD:
		return oracle_glu_backward(op);
	case RH_OP_EMBEDDING:
		return take_rows(view[RH_EMBEDDING_TABLE], view[RH_EMBEDDING_IDS], view[RH_EMBEDDING_Y]);
	case RH_OP_EMBEDDING_BACKWARD:
		return embedding_backward(op);
	case RH_OP_GATHER_ROWS:
		return take_rows(view[RH_GATHER_ROWS_X], view[RH_GATHER_ROWS_INDEX], view[RH_GATHER_ROWS_Y]);
	case RH_OP_SCATTER_ROWS:
		return scatter_rows(op);
	case RH_OP_DROPOUT:
		return dropout(op);
	case RH_OP_ADD:
		return add(op);
	case RH_OP_HEAD_LOSS:
		return oracle_head_loss(op);
	case RH_OP_ROUTER:
		return oracle_router(op);
	case RH_OP_ROUTER_BACKWARD:
		return oracle_router_backward(op);
	case RH_OP_PERMUTE:
		return oracle_permute(op);
	case RH_OP_UNPERMUTE:
		return oracle_unpermute(op);
	case RH_OP_UNPERMUTE_BACKWARD:
		return oracle_unpermute_backward(op);
	case RH_OP_GROUPED_GEMM:
		return oracle_grouped_gemm(op);
	case RH_OP_GROUPED_GEMM_GRADIENT:
		return oracle_grouped_gemm_gradient(op);
	case RH_OP_GROUPED_COLUMN_SUM:
		return oracle_grouped_column_sum(op);
	case RH_OP_DEQUANTISE:
		return oracle_dequantise(op);
	case RH_OP_ACTIVATION:
		return oracle_activation(op);
	case RH_OP_ACTIVATION_BACKWARD:
		return oracle_activation_backward(op);
	case RH_OP_LAYERNORM:
		return oracle_layernorm(op);
	case RH_OP_LAYERNORM_BACKWARD:
		return oracle_layernorm_backward(op);
	case RH_OP_KINDS:
		break;
	}
}
