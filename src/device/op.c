#include "device/op_check.h"

#include "core/error.h"

#define IN(label)                                                                                                                          \
	{                                                                                                                                  \
		label, RH_ACCESS_IN, 0                                                                                                     \
	}
#define OUT(label)                                                                                                                         \
	{                                                                                                                                  \
		label, RH_ACCESS_OUT, 0                                                                                                    \
	}
#define INOUT(label)                                                                                                                       \
	{                                                                                                                                  \
		label, RH_ACCESS_INOUT, 0                                                                                                  \
	}
#define MAYBE(label)                                                                                                                       \
	{                                                                                                                                  \
		label, RH_ACCESS_IN, 1                                                                                                     \
	}
#define OUT_IF(label)                                                                                                                      \
	{                                                                                                                                  \
		label, RH_ACCESS_OUT, 1                                                                                                    \
	}
#define ADD_TO_IF(label)                                                                                                                   \
	{                                                                                                                                  \
		label, RH_ACCESS_INOUT, 1                                                                                                  \
	}

static const struct rh_op_info infos[RH_OP_KINDS] = {
        [RH_OP_FILL] = {"fill", 1, {OUT("y")}},
        [RH_OP_CAST] = {"cast", 2, {IN("x"), OUT("y")}},
        [RH_OP_GEMM] = {"gemm", 5, {IN("a"), IN("b"), MAYBE("c"), MAYBE("bias"), OUT("d")}},
        [RH_OP_COLUMN_SUM] = {"column_sum", 2, {IN("x"), INOUT("y")}},
        [RH_OP_RMSNORM] = {"rmsnorm", 4, {IN("x"), IN("w"), OUT("y"), OUT("rstd")}},
        [RH_OP_RMSNORM_BACKWARD] = {"rmsnorm_backward",
                                    8,
                                    {IN("x"), IN("w"), IN("rstd"), IN("dy"), MAYBE("add"), OUT("dx"), ADD_TO_IF("dw"), OUT_IF("y")}},
        [RH_OP_ROPE_TABLE] = {"rope_table", 2, {IN("position"), OUT("table")}},
        [RH_OP_ROPE] = {"rope", 2, {INOUT("x"), IN("table")}},
        [RH_OP_ATTENTION] = {"attention",
                             8,
                             {IN("q"), IN("k"), IN("v"), IN("start_q"), IN("start_k"), OUT("o"), OUT("lse"), MAYBE("sink")}},
        [RH_OP_ATTENTION_BACKWARD] = {"attention_backward",
                                      14,
                                      {IN("q"), IN("k"), IN("v"), IN("start_q"), IN("start_k"), IN("o"), IN("lse"), IN("do"), OUT("delta"),
                                       OUT("dq"), OUT("dk"), OUT("dv"), MAYBE("sink"), ADD_TO_IF("dsink")}},
        [RH_OP_GLU] = {"glu", 2, {IN("gu"), OUT("a")}},
        [RH_OP_GLU_BACKWARD] = {"glu_backward", 4, {IN("gu"), IN("da"), OUT("dgu"), OUT_IF("a")}},
        [RH_OP_EMBEDDING] = {"embedding", 3, {IN("ids"), IN("table"), OUT("y")}},
        [RH_OP_EMBEDDING_BACKWARD] = {"embedding_backward", 3, {IN("ids"), IN("dy"), INOUT("dtable")}},
        [RH_OP_GATHER_ROWS] = {"gather_rows", 3, {IN("x"), IN("index"), OUT("y")}},
        [RH_OP_SCATTER_ROWS] = {"scatter_rows", 3, {IN("x"), IN("index"), OUT("y")}},
        [RH_OP_DROPOUT] = {"dropout", 3, {IN("x"), MAYBE("add"), OUT("y")}},
        [RH_OP_HEAD_LOSS] = {"head_loss",
                             8,
                             {IN("h"), IN("w"), IN("target"), OUT("logits"), OUT("loss"), OUT("hit"), OUT_IF("dh"), ADD_TO_IF("dw")}},
        [RH_OP_ADD] = {"add", 3, {IN("a"), IN("b"), OUT("y")}},
        [RH_OP_ROUTER] = {"router", 3, {IN("logits"), OUT("index"), OUT("weight")}},
        [RH_OP_ROUTER_BACKWARD] = {"router_backward", 5, {IN("logits"), IN("index"), IN("weight"), IN("dweight"), OUT("dlogits")}},
        [RH_OP_PERMUTE] = {"permute", 5, {IN("index"), IN("x"), OUT("start"), OUT("place"), OUT("y")}},
        [RH_OP_UNPERMUTE] = {"unpermute", 5, {IN("x"), IN("place"), MAYBE("weight"), MAYBE("add"), OUT("y")}},
        [RH_OP_UNPERMUTE_BACKWARD] = {"unpermute_backward", 6, {IN("x"), IN("place"), IN("weight"), IN("dy"), OUT("dx"), OUT("dweight")}},
        [RH_OP_GROUPED_GEMM] = {"grouped_gemm", 6, {IN("a"), IN("b"), IN("start"), MAYBE("c"), MAYBE("bias"), OUT("d")}},
        [RH_OP_GROUPED_GEMM_GRADIENT] = {"grouped_gemm_gradient", 4, {IN("a"), IN("b"), IN("start"), INOUT("d")}},
        [RH_OP_GROUPED_COLUMN_SUM] = {"grouped_column_sum", 3, {IN("x"), IN("start"), INOUT("y")}},
        [RH_OP_DEQUANTISE] = {"dequantise", 5, {IN("x"), MAYBE("scale"), MAYBE("nested"), MAYBE("map"), OUT("y")}},
        [RH_OP_ACTIVATION] = {"activation", 2, {IN("x"), OUT("y")}},
        [RH_OP_ACTIVATION_BACKWARD] = {"activation_backward", 4, {IN("x"), IN("dy"), OUT("dx"), OUT_IF("y")}},
        [RH_OP_LAYERNORM] = {"layernorm", 5, {IN("x"), IN("w"), MAYBE("b"), OUT("y"), OUT("stats")}},
        [RH_OP_LAYERNORM_BACKWARD] = {"layernorm_backward",
                                      10,
                                      {IN("x"), IN("w"), MAYBE("b"), IN("stats"), IN("dy"), MAYBE("add"), OUT("dx"), ADD_TO_IF("dw"),
                                       ADD_TO_IF("db"), OUT_IF("y")}},
};

const struct rh_op_info *rh_op_info(enum rh_op_kind kind)
{
	RH_ASSERT(kind >= 0 && kind < RH_OP_KINDS);
	return &infos[kind];
}

static void check_gemm(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view a = view[RH_GEMM_A], b = view[RH_GEMM_B], d = view[RH_GEMM_D];
	int64_t k = check->op->gemm.trans_a ? a.rows : a.cols;
	require(check, is_act(a.dtype), "gemm: a is neither F32 nor BF16");
	require(check, b.dtype == a.dtype, "gemm: b has another dtype than a");
	require(check, d.dtype == a.dtype || d.dtype == RH_F32, "gemm: d is neither F32 nor of a's dtype");
	require(check, d.rows == (check->op->gemm.trans_a ? a.cols : a.rows), "gemm: rows of a and d differ");
	require(check, d.cols == (check->op->gemm.trans_b ? b.rows : b.cols), "gemm: columns of b and d differ");
	require(check, k == (check->op->gemm.trans_b ? b.cols : b.rows), "gemm: inner lengths of a and b differ");
	shape(check, RH_GEMM_C, d.dtype, d.rows, d.cols, "gemm: c is not shaped and typed as d");
	shape(check, RH_GEMM_BIAS, a.dtype, 1, d.cols, "gemm: bias is not (1,n) of a's dtype");
}

static void check_column_sum(struct check *check)
{
	struct rh_view x = check->op->operand[RH_COLUMN_SUM_X];
	require(check, is_act(x.dtype), "column_sum: x is neither F32 nor BF16");
	shape(check, RH_COLUMN_SUM_Y, RH_F32, 1, x.cols, "column_sum: y is not (1,c) F32");
}

static void check_rmsnorm(struct check *check)
{
	struct rh_view x = check->op->operand[RH_RMSNORM_X], w = check->op->operand[RH_RMSNORM_W];
	int64_t groups = check->op->rmsnorm.groups;
	require(check, is_act(x.dtype), "rmsnorm: x is neither F32 nor BF16");
	require(check, w.dtype == x.dtype && w.rows == 1 && w.cols >= 1, "rmsnorm: w is not (1,n) of x's dtype");
	require(check, groups >= 1 && x.cols % groups == 0 && x.cols / groups == w.cols, "rmsnorm: x is not groups*n wide");
	require(check, check->op->rmsnorm.epsilon >= 0, "rmsnorm: epsilon is negative");
	shape(check, RH_RMSNORM_Y, x.dtype, x.rows, x.cols, "rmsnorm: y is not shaped and typed as x");
	shape(check, RH_RMSNORM_RSTD, RH_F32, x.rows, groups, "rmsnorm: rstd is not (T,groups) F32");
}

static void check_rmsnorm_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_RMSNORM_BACKWARD_X], w = check->op->operand[RH_RMSNORM_BACKWARD_W];
	int64_t groups = check->op->rmsnorm.groups;
	require(check, is_act(x.dtype), "rmsnorm_backward: x is neither F32 nor BF16");
	require(check, w.dtype == x.dtype && w.rows == 1 && w.cols >= 1, "rmsnorm_backward: w is not (1,n) of x's dtype");
	require(check, groups >= 1 && x.cols % groups == 0 && x.cols / groups == w.cols, "rmsnorm_backward: x is not groups*n wide");
	shape(check, RH_RMSNORM_BACKWARD_RSTD, RH_F32, x.rows, groups, "rmsnorm_backward: rstd is not (T,groups) F32");
	shape(check, RH_RMSNORM_BACKWARD_DY, x.dtype, x.rows, x.cols, "rmsnorm_backward: dy is not shaped and typed as x");
	shape(check, RH_RMSNORM_BACKWARD_ADD, x.dtype, x.rows, x.cols, "rmsnorm_backward: add is not shaped and typed as x");
	shape(check, RH_RMSNORM_BACKWARD_DX, x.dtype, x.rows, x.cols, "rmsnorm_backward: dx is not shaped and typed as x");
	shape(check, RH_RMSNORM_BACKWARD_DW, RH_F32, 1, w.cols, "rmsnorm_backward: dw is not (1,n) F32");
	shape(check, RH_RMSNORM_BACKWARD_Y, x.dtype, x.rows, x.cols, "rmsnorm_backward: y is not shaped and typed as x");
}

static void check_rope(struct check *check)
{
	struct rh_view x = check->op->operand[RH_ROPE_X], table = check->op->operand[RH_ROPE_TABLE_IN];
	int64_t heads = check->op->rope.heads;
	require(check, is_act(x.dtype), "rope: x is neither F32 nor BF16");
	require(check, heads >= 1 && x.cols % heads == 0 && x.cols / heads == table.cols, "rope: x is not heads*D wide");
	require(check, table.cols % 2 == 0, "rope: D is odd");
	require(check, table.dtype == RH_F32 && table.rows == x.rows, "rope: table is not (T,D) F32");
}

static void check_rope_table(struct check *check)
{
	struct rh_view position = check->op->operand[RH_ROPE_TABLE_POSITION], table = check->op->operand[RH_ROPE_TABLE_TABLE];
	require(check, position.dtype == RH_I32 && position.cols == 1, "rope_table: position is not (T,1) I32");
	require(check, table.dtype == RH_F32 && table.rows == position.rows, "rope_table: table is not (T,D) F32");
	require(check, table.cols >= 2 && table.cols % 2 == 0, "rope_table: D is odd or zero");
	require(check, table.cols <= 2 * RH_ROPE_MAX_HALF, "rope_table: D is above 256");
}

/* The operands that forward and backward share, and their parameters. */
static void check_attention_inputs(struct check *check, const int at[5])
{
	struct rh_view q = check->op->operand[at[0]], k = check->op->operand[at[1]];
	int64_t heads = check->op->attention.heads, kv_heads = check->op->attention.kv_heads, documents = check->op->attention.documents;
	require(check, is_act(q.dtype), "attention: q is neither F32 nor BF16");
	require(check, heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0, "attention: heads are no multiple of kv_heads");
	require(check, !check->fault && q.cols % heads == 0 && q.cols / heads >= 1, "attention: q is not heads*D wide");
	if (check->fault)
		return;
	int64_t dim = q.cols / heads;
	require(check, dim <= RH_OP_MAX_HEAD_DIM, "attention: D is above 256");
	require(check, k.dtype == q.dtype && k.cols == kv_heads * dim, "attention: k is not (Tk,kv_heads*D) of q's dtype");
	shape(check, at[2], q.dtype, k.rows, k.cols, "attention: v is not shaped and typed as k");
	require(check, documents >= 0 && check->op->attention.window >= 0, "attention: documents or window is negative");
	require(check, check->op->attention.longest >= 0 && check->op->attention.longest <= q.rows, "attention: longest is not in [0, Tq]");
	shape(check, at[3], RH_I32, documents + 1, 1, "attention: start_q is not (documents+1,1) I32");
	shape(check, at[4], RH_I32, documents + 1, 1, "attention: start_k is not (documents+1,1) I32");
}

static void check_attention(struct check *check)
{
	struct rh_view q = check->op->operand[RH_ATTENTION_Q];
	check_attention_inputs(check,
	                       (const int[]){RH_ATTENTION_Q, RH_ATTENTION_K, RH_ATTENTION_V, RH_ATTENTION_START_Q, RH_ATTENTION_START_K});
	shape(check, RH_ATTENTION_O, q.dtype, q.rows, q.cols, "attention: o is not shaped and typed as q");
	shape(check, RH_ATTENTION_LSE, RH_F32, q.rows, check->op->attention.heads, "attention: lse is not (Tq,heads) F32");
	shape(check, RH_ATTENTION_SINK, q.dtype, 1, check->op->attention.heads, "attention: sink is not (1,heads) of q's dtype");
}

static void check_attention_backward(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view q = view[RH_ATTENTION_BACKWARD_Q], k = view[RH_ATTENTION_BACKWARD_K];
	int64_t heads = check->op->attention.heads;
	check_attention_inputs(check, (const int[]){RH_ATTENTION_BACKWARD_Q, RH_ATTENTION_BACKWARD_K, RH_ATTENTION_BACKWARD_V,
	                                            RH_ATTENTION_BACKWARD_START_Q, RH_ATTENTION_BACKWARD_START_K});
	shape(check, RH_ATTENTION_BACKWARD_O, q.dtype, q.rows, q.cols, "attention_backward: o is not shaped and typed as q");
	shape(check, RH_ATTENTION_BACKWARD_LSE, RH_F32, q.rows, heads, "attention_backward: lse is not (Tq,heads) F32");
	shape(check, RH_ATTENTION_BACKWARD_DO, q.dtype, q.rows, q.cols, "attention_backward: do is not shaped and typed as q");
	shape(check, RH_ATTENTION_BACKWARD_DELTA, RH_F32, q.rows, heads, "attention_backward: delta is not (Tq,heads) F32");
	shape(check, RH_ATTENTION_BACKWARD_DQ, q.dtype, q.rows, q.cols, "attention_backward: dq is not shaped and typed as q");
	shape(check, RH_ATTENTION_BACKWARD_DK, q.dtype, k.rows, k.cols, "attention_backward: dk is not shaped and typed as k");
	shape(check, RH_ATTENTION_BACKWARD_DV, q.dtype, k.rows, k.cols, "attention_backward: dv is not shaped and typed as v");
	shape(check, RH_ATTENTION_BACKWARD_SINK, q.dtype, 1, heads, "attention_backward: sink is not (1,heads) of q's dtype");
	shape(check, RH_ATTENTION_BACKWARD_DSINK, RH_F32, 1, heads, "attention_backward: dsink is not (1,heads) F32");
}

static void check_act(struct check *check, enum rh_activation end)
{
	require(check, check->op->activation.act >= 0 && check->op->activation.act < end, "glu, activation: no such function");
}

static void check_glu(struct check *check)
{
	check_act(check, RH_ACTS);
	struct rh_view gu = check->op->operand[RH_GLU_GU];
	require(check, is_act(gu.dtype), "glu: gu is neither F32 nor BF16");
	require(check, gu.cols % 2 == 0, "glu: gu is not 2I wide");
	shape(check, RH_GLU_A, gu.dtype, gu.rows, gu.cols / 2, "glu: a is not (T,I) of gu's dtype");
}

static void check_glu_backward(struct check *check)
{
	check_act(check, RH_ACTS);
	struct rh_view gu = check->op->operand[RH_GLU_BACKWARD_GU];
	require(check, is_act(gu.dtype), "glu_backward: gu is neither F32 nor BF16");
	require(check, gu.cols % 2 == 0, "glu_backward: gu is not 2I wide");
	shape(check, RH_GLU_BACKWARD_DA, gu.dtype, gu.rows, gu.cols / 2, "glu_backward: da is not (T,I) of gu's dtype");
	shape(check, RH_GLU_BACKWARD_DGU, gu.dtype, gu.rows, gu.cols, "glu_backward: dgu is not shaped and typed as gu");
	shape(check, RH_GLU_BACKWARD_A, gu.dtype, gu.rows, gu.cols / 2, "glu_backward: a is not (T,I) of gu's dtype");
}

static void check_embedding(struct check *check)
{
	struct rh_view ids = check->op->operand[RH_EMBEDDING_IDS], table = check->op->operand[RH_EMBEDDING_TABLE];
	require(check, ids.dtype == RH_I32 && ids.cols == 1, "embedding: ids are not (T,1) I32");
	require(check, is_act(table.dtype), "embedding: the table is neither F32 nor BF16");
	shape(check, RH_EMBEDDING_Y, table.dtype, ids.rows, table.cols, "embedding: y is not (T,H) of the table's dtype");
}

static void check_embedding_backward(struct check *check)
{
	struct rh_view ids = check->op->operand[RH_EMBEDDING_BACKWARD_IDS], dy = check->op->operand[RH_EMBEDDING_BACKWARD_DY];
	struct rh_view dtable = check->op->operand[RH_EMBEDDING_BACKWARD_DTABLE];
	require(check, ids.dtype == RH_I32 && ids.cols == 1, "embedding_backward: ids are not (T,1) I32");
	require(check, is_act(dy.dtype) && dy.rows == ids.rows, "embedding_backward: dy is not (T,H) F32 or BF16");
	require(check, dtable.dtype == RH_F32 && dtable.cols == dy.cols, "embedding_backward: dtable is not (V,H) F32");
}

static void check_gather(struct check *check)
{
	struct rh_view x = check->op->operand[RH_GATHER_ROWS_X], index = check->op->operand[RH_GATHER_ROWS_INDEX];
	require(check, is_act(x.dtype), "gather_rows: x is neither F32 nor BF16");
	require(check, index.dtype == RH_I32 && index.cols == 1, "gather_rows: index is not (n,1) I32");
	shape(check, RH_GATHER_ROWS_Y, x.dtype, index.rows, x.cols, "gather_rows: y is not (n,c) of x's dtype");
}

static void check_scatter(struct check *check)
{
	struct rh_view x = check->op->operand[RH_SCATTER_ROWS_X], y = check->op->operand[RH_SCATTER_ROWS_Y];
	require(check, is_act(x.dtype), "scatter_rows: x is neither F32 nor BF16");
	shape(check, RH_SCATTER_ROWS_INDEX, RH_I32, x.rows, 1, "scatter_rows: index is not (n,1) I32");
	require(check, y.dtype == x.dtype && y.cols == x.cols && y.rows >= x.rows, "scatter_rows: y is not (T,c) of x's dtype with T >= n");
}

static void check_dropout(struct check *check)
{
	struct rh_view x = check->op->operand[RH_DROPOUT_X];
	require(check, is_act(x.dtype), "dropout: x is neither F32 nor BF16");
	require(check, check->op->dropout.p >= 0 && check->op->dropout.p < 1, "dropout: p is not in [0, 1)");
	shape(check, RH_DROPOUT_ADD, x.dtype, x.rows, x.cols, "dropout: add is not shaped and typed as x");
	shape(check, RH_DROPOUT_Y, x.dtype, x.rows, x.cols, "dropout: y is not shaped and typed as x");
}

static void check_head_loss(struct check *check)
{
	struct rh_view h = check->op->operand[RH_HEAD_LOSS_H], w = check->op->operand[RH_HEAD_LOSS_W];
	struct rh_view logits = check->op->operand[RH_HEAD_LOSS_LOGITS];
	require(check, is_act(h.dtype), "head_loss: h is neither F32 nor BF16");
	require(check, w.dtype == h.dtype && w.cols == h.cols && w.rows >= 1, "head_loss: w is not (V,H) of h's dtype");
	require(check, logits.dtype == RH_F32 && logits.cols == w.rows && logits.rows >= 1, "head_loss: logits are not (chunk,V) F32");
	shape(check, RH_HEAD_LOSS_TARGET, RH_I32, h.rows, 1, "head_loss: target is not (n,1) I32");
	shape(check, RH_HEAD_LOSS_LOSS, RH_F32, h.rows, 1, "head_loss: loss is not (n,1) F32");
	shape(check, RH_HEAD_LOSS_HIT, RH_I32, h.rows, 1, "head_loss: hit is not (n,1) I32");
	shape(check, RH_HEAD_LOSS_DH, h.dtype, h.rows, h.cols, "head_loss: dh is not shaped and typed as h");
	shape(check, RH_HEAD_LOSS_DW, RH_F32, w.rows, w.cols, "head_loss: dw is not (V,H) F32");
}

static void check_cast(struct check *check)
{
	struct rh_view x = check->op->operand[RH_CAST_X], y = check->op->operand[RH_CAST_Y];
	require(check, is_act(x.dtype) && is_act(y.dtype), "cast: x or y is neither F32 nor BF16");
	require(check, x.rows == y.rows && x.cols == y.cols, "cast: x and y are not of one shape");
}

static void check_fill(struct check *check)
{
	require(check, is_act(check->op->operand[RH_FILL_Y].dtype), "fill: y is neither F32 nor BF16");
}

static void check_add(struct check *check)
{
	struct rh_view y = check->op->operand[RH_ADD_Y];
	require(check, is_act(y.dtype), "add: y is neither F32 nor BF16");
	shape(check, RH_ADD_A, y.dtype, y.rows, y.cols, "add: a is not shaped and typed as y");
	shape(check, RH_ADD_B, y.dtype, y.rows, y.cols, "add: b is not shaped and typed as y");
}

static void check_dequantise(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view x = view[RH_DEQUANTISE_X], y = view[RH_DEQUANTISE_Y], scale = view[RH_DEQUANTISE_SCALE];
	int64_t run = check->op->dequantise.run, runs = run > 0 ? (x.cols + run - 1) / run : 0;
	int apart = x.dtype == RH_I8 || x.dtype == RH_NF4 || x.dtype == RH_FP4, nested = x.dtype == RH_NF4 && scale.dtype == RH_U8;
	require(check, apart || (x.dtype >= RH_Q4_0 && x.dtype <= RH_IQ4_NL), "dequantise: x is of no quantised type");
	require(check, x.cols % rh_dtype_block(x.dtype) == 0 && x.stride % rh_dtype_block(x.dtype) == 0,
	        "dequantise: a row of x, or its stride, is not whole blocks");
	require(check, is_act(y.dtype), "dequantise: y is neither F32 nor BF16");
	require(check, y.rows == x.rows && y.cols == x.cols, "dequantise: x and y are not of one shape");
	require(check, apart == (scale.data != NULL), "dequantise: scale is there exactly where the type has none inside");
	require(check, !apart || (run > 0 && run % 8 == 0), "dequantise: run is not a multiple of 8");
	shape(check, RH_DEQUANTISE_SCALE, nested || x.dtype == RH_FP4 ? RH_U8 : RH_F32, x.rows, runs,
	      "dequantise: scale is not one for each run, or not of the type that goes with x");
	require(check, nested == (view[RH_DEQUANTISE_NESTED].data != NULL) && nested == (view[RH_DEQUANTISE_MAP].data != NULL),
	        "dequantise: nested and map are there exactly where the scales are quantised");
	shape(check, RH_DEQUANTISE_NESTED, RH_F32, 1, (x.rows * runs + RH_NESTED_RUN - 1) / RH_NESTED_RUN,
	      "dequantise: nested is not (1, 256ths of the scales) F32");
	shape(check, RH_DEQUANTISE_MAP, RH_F32, 1, RH_NESTED_RUN, "dequantise: map is not (1,256) F32");
}

static void check_activation(struct check *check)
{
	struct rh_view x = check->op->operand[RH_ACTIVATION_X];
	check_act(check, RH_ACT_GPT_OSS);
	require(check, is_act(x.dtype), "activation: x is neither F32 nor BF16");
	shape(check, RH_ACTIVATION_Y, x.dtype, x.rows, x.cols, "activation: y is not shaped and typed as x");
}

static void check_activation_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_ACTIVATION_BACKWARD_X];
	check_act(check, RH_ACT_GPT_OSS);
	require(check, is_act(x.dtype), "activation_backward: x is neither F32 nor BF16");
	shape(check, RH_ACTIVATION_BACKWARD_DY, x.dtype, x.rows, x.cols, "activation_backward: dy is not shaped and typed as x");
	shape(check, RH_ACTIVATION_BACKWARD_DX, x.dtype, x.rows, x.cols, "activation_backward: dx is not shaped and typed as x");
	shape(check, RH_ACTIVATION_BACKWARD_Y, x.dtype, x.rows, x.cols, "activation_backward: y is not shaped and typed as x");
}

static void check_layernorm(struct check *check)
{
	struct rh_view x = check->op->operand[RH_LAYERNORM_X];
	require(check, is_act(x.dtype) && x.cols >= 1, "layernorm: x is neither F32 nor BF16, or empty");
	require(check, check->op->layernorm.epsilon >= 0, "layernorm: epsilon is negative");
	shape(check, RH_LAYERNORM_W, x.dtype, 1, x.cols, "layernorm: w is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_B, x.dtype, 1, x.cols, "layernorm: b is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_Y, x.dtype, x.rows, x.cols, "layernorm: y is not shaped and typed as x");
	shape(check, RH_LAYERNORM_STATS, RH_F32, x.rows, 2, "layernorm: stats are not (T,2) F32");
}

static void check_layernorm_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_LAYERNORM_BACKWARD_X];
	require(check, is_act(x.dtype) && x.cols >= 1, "layernorm_backward: x is neither F32 nor BF16, or empty");
	shape(check, RH_LAYERNORM_BACKWARD_W, x.dtype, 1, x.cols, "layernorm_backward: w is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_BACKWARD_B, x.dtype, 1, x.cols, "layernorm_backward: b is not (1,n) of x's dtype");
	shape(check, RH_LAYERNORM_BACKWARD_STATS, RH_F32, x.rows, 2, "layernorm_backward: stats are not (T,2) F32");
	shape(check, RH_LAYERNORM_BACKWARD_DY, x.dtype, x.rows, x.cols, "layernorm_backward: dy is not shaped and typed as x");
	shape(check, RH_LAYERNORM_BACKWARD_ADD, x.dtype, x.rows, x.cols, "layernorm_backward: add is not shaped and typed as x");
	shape(check, RH_LAYERNORM_BACKWARD_DX, x.dtype, x.rows, x.cols, "layernorm_backward: dx is not shaped and typed as x");
	shape(check, RH_LAYERNORM_BACKWARD_DW, RH_F32, 1, x.cols, "layernorm_backward: dw is not (1,n) F32");
	shape(check, RH_LAYERNORM_BACKWARD_DB, RH_F32, 1, x.cols, "layernorm_backward: db is not (1,n) F32");
	shape(check, RH_LAYERNORM_BACKWARD_Y, x.dtype, x.rows, x.cols, "layernorm_backward: y is not shaped and typed as x");
}

static void (*const checks[RH_OP_KINDS])(struct check *check) = {
        [RH_OP_FILL] = check_fill,
        [RH_OP_CAST] = check_cast,
        [RH_OP_GEMM] = check_gemm,
        [RH_OP_COLUMN_SUM] = check_column_sum,
        [RH_OP_RMSNORM] = check_rmsnorm,
        [RH_OP_RMSNORM_BACKWARD] = check_rmsnorm_backward,
        [RH_OP_ROPE_TABLE] = check_rope_table,
        [RH_OP_ROPE] = check_rope,
        [RH_OP_ATTENTION] = check_attention,
        [RH_OP_ATTENTION_BACKWARD] = check_attention_backward,
        [RH_OP_GLU] = check_glu,
        [RH_OP_GLU_BACKWARD] = check_glu_backward,
        [RH_OP_EMBEDDING] = check_embedding,
        [RH_OP_EMBEDDING_BACKWARD] = check_embedding_backward,
        [RH_OP_GATHER_ROWS] = check_gather,
        [RH_OP_SCATTER_ROWS] = check_scatter,
        [RH_OP_DROPOUT] = check_dropout,
        [RH_OP_HEAD_LOSS] = check_head_loss,
        [RH_OP_ADD] = check_add,
        [RH_OP_ROUTER] = op_check_router,
        [RH_OP_ROUTER_BACKWARD] = op_check_router_backward,
        [RH_OP_PERMUTE] = op_check_permute,
        [RH_OP_UNPERMUTE] = op_check_unpermute,
        [RH_OP_UNPERMUTE_BACKWARD] = op_check_unpermute_backward,
        [RH_OP_GROUPED_GEMM] = op_check_grouped_gemm,
        [RH_OP_GROUPED_GEMM_GRADIENT] = op_check_grouped_gemm_gradient,
        [RH_OP_GROUPED_COLUMN_SUM] = op_check_grouped_column_sum,
        [RH_OP_DEQUANTISE] = check_dequantise,
        [RH_OP_ACTIVATION] = check_activation,
        [RH_OP_ACTIVATION_BACKWARD] = check_activation_backward,
        [RH_OP_LAYERNORM] = check_layernorm,
        [RH_OP_LAYERNORM_BACKWARD] = check_layernorm_backward,
};

/* Whether the output may be the very same view as the input. */
static int may_be(enum rh_op_kind kind, int output, int input)
{
	switch (kind) {
	case RH_OP_CAST:
	case RH_OP_ADD:
		return 1; /* of equal dtypes, as same() sees to */
	case RH_OP_GEMM:
		return input == RH_GEMM_C;
	case RH_OP_RMSNORM:
		return output == RH_RMSNORM_Y && input == RH_RMSNORM_X;
	case RH_OP_RMSNORM_BACKWARD:
		return output == RH_RMSNORM_BACKWARD_DX && (input == RH_RMSNORM_BACKWARD_ADD || input == RH_RMSNORM_BACKWARD_DY);
	case RH_OP_GLU_BACKWARD:
		return (output == RH_GLU_BACKWARD_DGU && input == RH_GLU_BACKWARD_GU) ||
		       (output == RH_GLU_BACKWARD_A && input == RH_GLU_BACKWARD_DA);
	case RH_OP_ACTIVATION:
		return 1;
	case RH_OP_ACTIVATION_BACKWARD:
		return output == RH_ACTIVATION_BACKWARD_DX || input == RH_ACTIVATION_BACKWARD_DY;
	case RH_OP_LAYERNORM:
		return output == RH_LAYERNORM_Y && input == RH_LAYERNORM_X;
	case RH_OP_LAYERNORM_BACKWARD:
		return output == RH_LAYERNORM_BACKWARD_DX && (input == RH_LAYERNORM_BACKWARD_ADD || input == RH_LAYERNORM_BACKWARD_DY);
	case RH_OP_DROPOUT:
		return input == RH_DROPOUT_X || input == RH_DROPOUT_ADD;
	case RH_OP_UNPERMUTE:
		return input == RH_UNPERMUTE_ADD;
	case RH_OP_UNPERMUTE_BACKWARD:
		return output == RH_UNPERMUTE_BACKWARD_DX && input == RH_UNPERMUTE_BACKWARD_X;
	case RH_OP_GROUPED_GEMM:
		return input == RH_GROUPED_GEMM_C;
	default:
		return 0;
	}
}

static int same(struct rh_view a, struct rh_view b)
{
	return a.data == b.data && a.dtype == b.dtype && a.stride == b.stride;
}

/* Column ranges of one wide buffer have one stride and lie side by side within it; anything else overlaps when its bytes do. */
static int overlap(struct rh_view a, struct rh_view b)
{
	if (!a.rows || !b.rows || !a.cols || !b.cols)
		return 0;
	intptr_t first_a = (intptr_t)a.data, end_a = first_a + rh_dtype_bytes(a.dtype, (a.rows - 1) * a.stride + a.cols);
	intptr_t first_b = (intptr_t)b.data, end_b = first_b + rh_dtype_bytes(b.dtype, (b.rows - 1) * b.stride + b.cols);
	if (end_a <= first_b || end_b <= first_a)
		return 0;
	int64_t stride = rh_dtype_bytes(a.dtype, a.stride);
	if (stride != rh_dtype_bytes(b.dtype, b.stride))
		return 1;
	int64_t apart = (first_b - first_a) % stride;
	apart += apart < 0 ? stride : 0;
	return apart < rh_dtype_bytes(a.dtype, a.cols) || apart + rh_dtype_bytes(b.dtype, b.cols) > stride;
}

static const char *overlap_fault(const struct rh_op *op, const struct rh_op_info *info)
{
	for (int y = 0; y < info->operands; y++) {
		for (int x = 0; x < info->operands; x++) {
			int reads = info->operand[x].access == RH_ACCESS_IN;
			if (info->operand[y].access == RH_ACCESS_IN || x == y || !op->operand[y].data || !op->operand[x].data)
				continue;
			if (reads && may_be(op->kind, y, x) && same(op->operand[y], op->operand[x]))
				continue;
			if (overlap(op->operand[y], op->operand[x]))
				return "an output overlaps another operand";
		}
	}
	return NULL;
}

const char *rh_op_fault(const struct rh_op *op)
{
	if (op->kind < 0 || op->kind >= RH_OP_KINDS)
		return "no such op";
	const struct rh_op_info *info = &infos[op->kind];
	for (int i = 0; i < RH_OP_OPERANDS; i++) {
		struct rh_view view = op->operand[i];
		if (i >= info->operands && view.data)
			return "more operands than the op has";
		if (i < info->operands && !view.data && !info->operand[i].optional)
			return "a required operand is absent";
		if (view.data && (view.rows < 0 || view.cols < 0 || view.stride < view.cols))
			return "a view has a negative length or a stride below its columns";
	}
	struct check check = {.op = op};
	checks[op->kind](&check);
	return check.fault ? check.fault : overlap_fault(op, info);
}
