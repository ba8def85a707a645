/* Fused ops of norms: a residual's sum with the norm behind it, the norms of query and key heads with their rotation. */
#include "device/ops/def.h"

static void check_add_rmsnorm(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view a = view[RH_ADD_RMSNORM_A];
	require(check, is_act(a.dtype), "add_rmsnorm: a is neither F32 nor BF16");
	shape(check, RH_ADD_RMSNORM_B, a.dtype, a.rows, a.cols, "add_rmsnorm: b is not shaped and typed as a");
	shape(check, RH_ADD_RMSNORM_W, a.dtype, 1, a.cols, "add_rmsnorm: w is not (1,n) of a's dtype");
	shape(check, RH_ADD_RMSNORM_SUM, a.dtype, a.rows, a.cols, "add_rmsnorm: sum is not shaped and typed as a");
	shape(check, RH_ADD_RMSNORM_Y, a.dtype, a.rows, a.cols, "add_rmsnorm: y is not shaped and typed as a");
	shape(check, RH_ADD_RMSNORM_RSTD, RH_F32, a.rows, 1, "add_rmsnorm: rstd is not (T,1) F32");
	shape(check, RH_ADD_RMSNORM_AMAX, RH_F32, a.rows, 1, "add_rmsnorm: amax is not (T,1) F32");
}

static int add_rmsnorm_parts(const struct rh_op *op, rh_op_run *run, void *user)
{
	const struct rh_view *view = op->operand;
	struct rh_op add = {.kind = RH_OP_ADD}, norm = {.kind = RH_OP_RMSNORM};
	add.operand[RH_ADD_A] = view[RH_ADD_RMSNORM_A];
	add.operand[RH_ADD_B] = view[RH_ADD_RMSNORM_B];
	add.operand[RH_ADD_Y] = norm.operand[RH_RMSNORM_X] = view[RH_ADD_RMSNORM_SUM];
	norm.operand[RH_RMSNORM_W] = view[RH_ADD_RMSNORM_W];
	norm.operand[RH_RMSNORM_Y] = view[RH_ADD_RMSNORM_Y];
	norm.operand[RH_RMSNORM_RSTD] = view[RH_ADD_RMSNORM_RSTD];
	norm.rmsnorm.groups = 1;
	norm.rmsnorm.epsilon = op->qk_rope.epsilon;
	norm.rmsnorm.offset = op->qk_rope.offset;
	int rc = run(user, &add);
	return rc ? rc : run(user, &norm);
}

static void amax_add_rmsnorm(const struct rh_op *op)
{
	ops_amax(op->operand[RH_ADD_RMSNORM_Y], op->operand[RH_ADD_RMSNORM_Y].cols, op->operand[RH_ADD_RMSNORM_AMAX]);
}

const struct op_def op_add_rmsnorm = {
        .info = {"add_rmsnorm", 7, {IN("a"), IN("b"), IN("w"), OUT("sum"), OUT("y"), OUT("rstd"), AMAX_IF("amax")}},
        .check = check_add_rmsnorm,
        .parts = add_rmsnorm_parts,
        .amax = amax_add_rmsnorm,
};

/* What both ways share: x (T,(heads+kv_heads)*D), the weights, the table, and one more view that is shaped as x. */
static void check_heads(struct check *check, int q_w, int k_w, int table, int rstd, int like_x)
{
	const struct rh_op *op = check->op;
	struct rh_view x = op->operand[RH_QK_ROPE_X];
	int64_t heads = op->qk_rope.heads + op->qk_rope.kv_heads;
	require(check, is_act(x.dtype), "qk_rope: x is neither F32 nor BF16");
	require(check, op->qk_rope.heads >= 1 && op->qk_rope.kv_heads >= 1 && x.cols % heads == 0,
	        "qk_rope: the columns of x are not those of its heads");
	if (check->fault)
		return;
	int64_t dim = x.cols / heads;
	require(check, dim % 2 == 0 && dim / 2 <= RH_ROPE_MAX_HALF, "qk_rope: D is odd, or above 256");
	shape(check, q_w, x.dtype, 1, dim, "qk_rope: q_w is not (1,D) of x's dtype");
	shape(check, k_w, x.dtype, 1, dim, "qk_rope: k_w is not (1,D) of x's dtype");
	shape(check, table, RH_F32, x.rows, dim, "qk_rope: table is not (T,D) F32");
	shape(check, rstd, RH_F32, x.rows, heads, "qk_rope: rstd is not (T,heads+kv_heads) F32");
	shape(check, like_x, x.dtype, x.rows, x.cols, "qk_rope: y or dy is not shaped and typed as x");
}

static void check_qk_rope(struct check *check)
{
	check_heads(check, RH_QK_ROPE_Q_W, RH_QK_ROPE_K_W, RH_QK_ROPE_TABLE, RH_QK_ROPE_RSTD, RH_QK_ROPE_Y);
}

/* Columns of the query heads (key 0) or of the key heads (key 1), of x or of rstd. */
static struct rh_view heads_of(const struct rh_op *op, struct rh_view view, int key)
{
	int64_t each = view.cols / (op->qk_rope.heads + op->qk_rope.kv_heads), first = key ? op->qk_rope.heads : 0;
	return view.data ? rh_view_cols(view, first * each, (key ? op->qk_rope.kv_heads : op->qk_rope.heads) * each) : view;
}

static int turn(const struct rh_op *op, struct rh_view x, struct rh_view table, int inverse, rh_op_run *run, void *user)
{
	struct rh_op rope = {.kind = RH_OP_ROPE};
	rope.operand[RH_ROPE_X] = x;
	rope.operand[RH_ROPE_TABLE_IN] = table;
	rope.rope.heads = op->qk_rope.heads + op->qk_rope.kv_heads;
	rope.rope.inverse = inverse;
	return run(user, &rope);
}

static int qk_rope_parts(const struct rh_op *op, rh_op_run *run, void *user)
{
	const struct rh_view *view = op->operand;
	for (int key = 0; key < 2; key++) {
		struct rh_op norm = {.kind = RH_OP_RMSNORM};
		norm.operand[RH_RMSNORM_X] = heads_of(op, view[RH_QK_ROPE_X], key);
		norm.operand[RH_RMSNORM_W] = view[key ? RH_QK_ROPE_K_W : RH_QK_ROPE_Q_W];
		norm.operand[RH_RMSNORM_Y] = heads_of(op, view[RH_QK_ROPE_Y], key);
		norm.operand[RH_RMSNORM_RSTD] = heads_of(op, view[RH_QK_ROPE_RSTD], key);
		norm.rmsnorm.groups = key ? op->qk_rope.kv_heads : op->qk_rope.heads;
		norm.rmsnorm.epsilon = op->qk_rope.epsilon;
		norm.rmsnorm.offset = op->qk_rope.offset;
		int rc = run(user, &norm);
		if (rc)
			return rc;
	}
	return turn(op, view[RH_QK_ROPE_Y], view[RH_QK_ROPE_TABLE], 0, run, user);
}

const struct op_def op_qk_rope = {
        .info = {"qk_rope", 6, {IN("x"), IN("q_w"), IN("k_w"), IN("table"), OUT("y"), OUT("rstd")}},
        .check = check_qk_rope,
        .parts = qk_rope_parts,
};

static void check_qk_rope_backward(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view x = view[RH_QK_ROPE_BACKWARD_X];
	check_heads(check, RH_QK_ROPE_BACKWARD_Q_W, RH_QK_ROPE_BACKWARD_K_W, RH_QK_ROPE_BACKWARD_TABLE, RH_QK_ROPE_BACKWARD_RSTD,
	            RH_QK_ROPE_BACKWARD_DY);
	shape(check, RH_QK_ROPE_BACKWARD_DX, x.dtype, x.rows, x.cols, "qk_rope_backward: dx is not shaped and typed as x");
	int64_t dim = view[RH_QK_ROPE_BACKWARD_TABLE].cols;
	shape(check, RH_QK_ROPE_BACKWARD_DQ_W, RH_F32, 1, dim, "qk_rope_backward: dq_w is not (1,D) F32");
	shape(check, RH_QK_ROPE_BACKWARD_DK_W, RH_F32, 1, dim, "qk_rope_backward: dk_w is not (1,D) F32");
	shape(check, RH_QK_ROPE_BACKWARD_AMAX, RH_F32, x.rows, check->op->qk_rope.heads + check->op->qk_rope.kv_heads,
	      "qk_rope_backward: amax is not (T,heads+kv_heads) F32");
}

static int qk_rope_backward_parts(const struct rh_op *op, rh_op_run *run, void *user)
{
	const struct rh_view *view = op->operand;
	struct rh_view dx = view[RH_QK_ROPE_BACKWARD_DX];
	struct rh_op copy = {.kind = RH_OP_CAST};
	copy.operand[RH_CAST_X] = view[RH_QK_ROPE_BACKWARD_DY];
	copy.operand[RH_CAST_Y] = dx;
	int rc = dx.data == view[RH_QK_ROPE_BACKWARD_DY].data ? 0 : run(user, &copy);
	if (rc)
		return rc;
	rc = turn(op, dx, view[RH_QK_ROPE_BACKWARD_TABLE], 1, run, user);
	for (int key = 0; !rc && key < 2; key++) {
		struct rh_op norm = {.kind = RH_OP_RMSNORM_BACKWARD};
		norm.operand[RH_RMSNORM_BACKWARD_X] = heads_of(op, view[RH_QK_ROPE_BACKWARD_X], key);
		norm.operand[RH_RMSNORM_BACKWARD_W] = view[key ? RH_QK_ROPE_BACKWARD_K_W : RH_QK_ROPE_BACKWARD_Q_W];
		norm.operand[RH_RMSNORM_BACKWARD_RSTD] = heads_of(op, view[RH_QK_ROPE_BACKWARD_RSTD], key);
		norm.operand[RH_RMSNORM_BACKWARD_DY] = norm.operand[RH_RMSNORM_BACKWARD_DX] = heads_of(op, dx, key);
		norm.operand[RH_RMSNORM_BACKWARD_DW] = view[key ? RH_QK_ROPE_BACKWARD_DK_W : RH_QK_ROPE_BACKWARD_DQ_W];
		norm.rmsnorm.groups = key ? op->qk_rope.kv_heads : op->qk_rope.heads;
		norm.rmsnorm.epsilon = op->qk_rope.epsilon;
		norm.rmsnorm.offset = op->qk_rope.offset;
		rc = run(user, &norm);
	}
	return rc;
}

static void amax_qk_rope_backward(const struct rh_op *op)
{
	ops_amax(op->operand[RH_QK_ROPE_BACKWARD_DX], op->operand[RH_QK_ROPE_BACKWARD_TABLE].cols, op->operand[RH_QK_ROPE_BACKWARD_AMAX]);
}

const struct op_def op_qk_rope_backward = {
        .info = {"qk_rope_backward",
                 10,
                 {IN("x"), IN("q_w"), IN("k_w"), IN("rstd"), IN("table"), IN("dy"), OUT("dx"), ADD_TO_IF("dq_w"), ADD_TO_IF("dk_w"),
                  AMAX_IF("amax")}},
        .in_place = {{RH_QK_ROPE_BACKWARD_DX, RH_QK_ROPE_BACKWARD_DY}},
        .check = check_qk_rope_backward,
        .parts = qk_rope_backward_parts,
        .amax = amax_qk_rope_backward,
};
