/* Ops that go over rows: fill, cast, add, sums of columns, rows taken and put by index, dropout. */
#include "device/ops/def.h"

#include "core/philox.h"

static void check_fill(struct check *check)
{
	require(check, is_act(check->op->operand[RH_FILL_Y].dtype), "fill: y is neither F32 nor BF16");
}

static void oracle_fill(const struct rh_op *op)
{
	struct rh_view y = op->operand[RH_FILL_Y];
	for (int64_t r = 0; r < y.rows; r++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, r, c, 0);
}

const struct op_def op_fill = {
        .info = {"fill", 1, {OUT("y")}},
        .check = check_fill,
        .oracle = oracle_fill,
};

static void check_cast(struct check *check)
{
	struct rh_view x = check->op->operand[RH_CAST_X], y = check->op->operand[RH_CAST_Y];
	require(check, is_act(x.dtype) && is_act(y.dtype), "cast: x or y is neither F32 nor BF16");
	require(check, x.rows == y.rows && x.cols == y.cols, "cast: x and y are not of one shape");
}

static void oracle_cast(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_CAST_X], y = op->operand[RH_CAST_Y];
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; c < x.cols; c++)
			put(y, r, c, get(x, r, c));
}

const struct op_def op_cast = {
        .info = {"cast", 2, {IN("x"), OUT("y")}},
        .in_place = {{RH_CAST_Y, RH_CAST_X}},
        .check = check_cast,
        .oracle = oracle_cast,
};

static void check_add(struct check *check)
{
	struct rh_view y = check->op->operand[RH_ADD_Y];
	require(check, is_act(y.dtype), "add: y is neither F32 nor BF16");
	shape(check, RH_ADD_A, y.dtype, y.rows, y.cols, "add: a is not shaped and typed as y");
	shape(check, RH_ADD_B, y.dtype, y.rows, y.cols, "add: b is not shaped and typed as y");
	shape(check, RH_ADD_SCALE, y.dtype, 1, 1, "add: scale is not (1,1) of y's dtype");
}

static void oracle_add(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_ADD_A], b = op->operand[RH_ADD_B], y = op->operand[RH_ADD_Y];
	struct rh_view scale = op->operand[RH_ADD_SCALE];
	double times = scale.data ? get(scale, 0, 0) : 1;
	for (int64_t r = 0; r < y.rows; r++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, r, c, times * (get(a, r, c) + (b.data ? get(b, r, c) : 0)));
}

const struct op_def op_add = {
        .info = {"add", 4, {IN("a"), MAYBE("b"), OUT("y"), MAYBE("scale")}},
        .in_place = {{RH_ADD_Y, RH_ADD_A}, {RH_ADD_Y, RH_ADD_B}},
        .check = check_add,
        .oracle = oracle_add,
        .flops = {RH_ADD_Y, 1},
};

static void check_column_sum(struct check *check)
{
	struct rh_view x = check->op->operand[RH_COLUMN_SUM_X];
	require(check, is_act(x.dtype), "column_sum: x is neither F32 nor BF16");
	shape(check, RH_COLUMN_SUM_Y, RH_F32, 1, x.cols, "column_sum: y is not (1,c) F32");
}

static void oracle_column_sum(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_COLUMN_SUM_X], y = op->operand[RH_COLUMN_SUM_Y];
	for (int64_t c = 0; c < x.cols; c++) {
		double sum = 0;
		for (int64_t r = 0; r < x.rows; r++)
			sum += get(x, r, c);
		put(y, 0, c, get(y, 0, c) + sum);
	}
}

const struct op_def op_column_sum = {
        .info = {"column_sum", 2, {IN("x"), INOUT("y")}},
        .check = check_column_sum,
        .oracle = oracle_column_sum,
        .flops = {RH_COLUMN_SUM_X, 1},
};

/* y = rows of x named by index: EMBEDDING and GATHER_ROWS. */
static void take_rows(struct rh_view x, struct rh_view index, struct rh_view y)
{
	for (int64_t t = 0; t < y.rows; t++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, t, c, get(x, get_index(index, t), c));
}

/* A table in the rows that are named alone. */
static int64_t embedding_touched(const struct rh_op *op, int operand)
{
	return op->operand[operand == RH_EMBEDDING_TABLE ? RH_EMBEDDING_IDS : operand].rows;
}

static void check_embedding(struct check *check)
{
	struct rh_view ids = check->op->operand[RH_EMBEDDING_IDS], table = check->op->operand[RH_EMBEDDING_TABLE];
	require(check, ids.dtype == RH_I32 && ids.cols == 1, "embedding: ids are not (T,1) I32");
	require(check, is_act(table.dtype), "embedding: the table is neither F32 nor BF16");
	shape(check, RH_EMBEDDING_Y, table.dtype, ids.rows, table.cols, "embedding: y is not (T,H) of the table's dtype");
}

static void oracle_embedding(const struct rh_op *op)
{
	struct rh_view table = op->operand[RH_EMBEDDING_TABLE], ids = op->operand[RH_EMBEDDING_IDS], y = op->operand[RH_EMBEDDING_Y];
	double scale = op->embedding.scale == 0 ? 1 : (double)op->embedding.scale;
	for (int64_t t = 0; t < y.rows; t++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, t, c, scale * get(table, get_index(ids, t), c));
}

const struct op_def op_embedding = {
        .info = {"embedding", 3, {IN("ids"), IN("table"), OUT("y")}},
        .check = check_embedding,
        .oracle = oracle_embedding,
        .touched = embedding_touched,
};

static int64_t embedding_backward_touched(const struct rh_op *op, int operand)
{
	return op->operand[operand == RH_EMBEDDING_BACKWARD_DTABLE ? RH_EMBEDDING_BACKWARD_IDS : operand].rows;
}

static void check_embedding_backward(struct check *check)
{
	struct rh_view ids = check->op->operand[RH_EMBEDDING_BACKWARD_IDS], dy = check->op->operand[RH_EMBEDDING_BACKWARD_DY];
	struct rh_view dtable = check->op->operand[RH_EMBEDDING_BACKWARD_DTABLE];
	require(check, ids.dtype == RH_I32 && ids.cols == 1, "embedding_backward: ids are not (T,1) I32");
	require(check, is_act(dy.dtype) && dy.rows == ids.rows, "embedding_backward: dy is not (T,H) F32 or BF16");
	require(check, dtable.dtype == RH_F32 && dtable.cols == dy.cols, "embedding_backward: dtable is not (V,H) F32");
}

static void oracle_embedding_backward(const struct rh_op *op)
{
	struct rh_view ids = op->operand[RH_EMBEDDING_BACKWARD_IDS], dy = op->operand[RH_EMBEDDING_BACKWARD_DY];
	struct rh_view dtable = op->operand[RH_EMBEDDING_BACKWARD_DTABLE];
	double scale = op->embedding.scale == 0 ? 1 : (double)op->embedding.scale;
	for (int64_t t = 0; t < dy.rows; t++) {
		int64_t id = get_index(ids, t);
		for (int64_t c = 0; c < dy.cols; c++)
			put(dtable, id, c, get(dtable, id, c) + scale * get(dy, t, c));
	}
}

const struct op_def op_embedding_backward = {
        .info = {"embedding_backward", 3, {IN("ids"), IN("dy"), INOUT("dtable")}},
        .check = check_embedding_backward,
        .oracle = oracle_embedding_backward,
        .flops = {RH_EMBEDDING_BACKWARD_DY, 1},
        .touched = embedding_backward_touched,
};

static int64_t gather_touched(const struct rh_op *op, int operand)
{
	return op->operand[operand == RH_GATHER_ROWS_X ? RH_GATHER_ROWS_INDEX : operand].rows;
}

static void check_gather(struct check *check)
{
	struct rh_view x = check->op->operand[RH_GATHER_ROWS_X], index = check->op->operand[RH_GATHER_ROWS_INDEX];
	require(check, is_act(x.dtype), "gather_rows: x is neither F32 nor BF16");
	require(check, index.dtype == RH_I32 && index.cols == 1, "gather_rows: index is not (n,1) I32");
	shape(check, RH_GATHER_ROWS_Y, x.dtype, index.rows, x.cols, "gather_rows: y is not (n,c) of x's dtype");
}

static void oracle_gather(const struct rh_op *op)
{
	take_rows(op->operand[RH_GATHER_ROWS_X], op->operand[RH_GATHER_ROWS_INDEX], op->operand[RH_GATHER_ROWS_Y]);
}

const struct op_def op_gather_rows = {
        .info = {"gather_rows", 3, {IN("x"), IN("index"), OUT("y")}},
        .check = check_gather,
        .oracle = oracle_gather,
        .touched = gather_touched,
};

static void check_scatter(struct check *check)
{
	struct rh_view x = check->op->operand[RH_SCATTER_ROWS_X], y = check->op->operand[RH_SCATTER_ROWS_Y];
	require(check, is_act(x.dtype), "scatter_rows: x is neither F32 nor BF16");
	shape(check, RH_SCATTER_ROWS_INDEX, RH_I32, x.rows, 1, "scatter_rows: index is not (n,1) I32");
	require(check, y.dtype == x.dtype && y.cols == x.cols && y.rows >= x.rows, "scatter_rows: y is not (T,c) of x's dtype with T >= n");
}

static void oracle_scatter(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_SCATTER_ROWS_X], index = op->operand[RH_SCATTER_ROWS_INDEX], y = op->operand[RH_SCATTER_ROWS_Y];
	for (int64_t t = 0; t < y.rows; t++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, t, c, 0);
	for (int64_t i = 0; i < x.rows; i++)
		for (int64_t c = 0; c < x.cols; c++)
			put(y, get_index(index, i), c, get(x, i, c));
}

const struct op_def op_scatter_rows = {
        .info = {"scatter_rows", 3, {IN("x"), IN("index"), OUT("y")}},
        .check = check_scatter,
        .oracle = oracle_scatter,
};

static void check_dropout(struct check *check)
{
	struct rh_view x = check->op->operand[RH_DROPOUT_X];
	require(check, is_act(x.dtype), "dropout: x is neither F32 nor BF16");
	require(check, check->op->dropout.p >= 0 && check->op->dropout.p < 1, "dropout: p is not in [0, 1)");
	require(check, check->op->dropout.noise == 0 || (check->op->dropout.noise > 0 && check->op->dropout.p == 0),
	        "dropout: noise is below 0, or beside p");
	shape(check, RH_DROPOUT_ADD, x.dtype, x.rows, x.cols, "dropout: add is not shaped and typed as x");
	shape(check, RH_DROPOUT_Y, x.dtype, x.rows, x.cols, "dropout: y is not shaped and typed as x");
}

static void oracle_dropout(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_DROPOUT_X], add = op->operand[RH_DROPOUT_ADD], y = op->operand[RH_DROPOUT_Y];
	for (int64_t r = 0; r < x.rows; r++) {
		for (int64_t c = 0; c < x.cols; c++) {
			int64_t e = (op->dropout.first_row + r) * x.cols + c;
			struct rh_philox_block block =
			        rh_philox(op->dropout.seed, (uint32_t)(e / 4), op->dropout.site, op->dropout.micro_batch, op->dropout.step);
			float unit = rh_philox_unit(block.word[e % 4]);
			double value = unit >= op->dropout.p ? get(x, r, c) / (1 - (double)op->dropout.p) : 0;
			value += (double)op->dropout.noise * (2 * (double)unit - 1);
			put(y, r, c, value + (add.data ? get(add, r, c) : 0));
		}
	}
}

/* A word of Philox is a hundred integer operations for four elements. */
const struct op_def op_dropout = {
        .info = {"dropout", 3, {IN("x"), MAYBE("add"), OUT("y")}},
        .in_place = {{RH_DROPOUT_Y, RH_DROPOUT_X}, {RH_DROPOUT_Y, RH_DROPOUT_ADD}},
        .check = check_dropout,
        .oracle = oracle_dropout,
        .flops = {RH_DROPOUT_X, 25 + 3},
};
