/* Ops that move, round or add up rows. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

static int64_t row_bytes(struct rh_view view)
{
	return rh_dtype_bytes(view.dtype, view.cols);
}

static void copy_row(struct rh_view to, int64_t to_row, struct rh_view from, int64_t from_row)
{
	memcpy(row_at(to, to_row), row_at(from, from_row), (size_t)row_bytes(to));
}

/* Units are rows. */
static void fill(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view y = op->operand[RH_FILL_Y];
	for (int64_t t = first; t < end; t++)
		memset(row_at(y, t), 0, (size_t)row_bytes(y));
}

const struct cpu_op SIMD(cpu_fill) = {{{fill, NULL}}};

/* Units are rows. */
static void cast(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view x = op->operand[RH_CAST_X], y = op->operand[RH_CAST_Y];
	for (int64_t t = first; t < end; t++) {
		const void *from = row_at(x, t);
		void *to = row_at(y, t);
		if (x.dtype == y.dtype) {
			memmove(to, from, (size_t)row_bytes(y));
			continue;
		}
		for (int64_t i = 0; i < x.cols; i += VF) {
			if (y.dtype == RH_BF16)
				act_store(to, i, act_load(from, i, x.cols - i, 0), x.cols - i, 1);
			else
				act_store(to, i, act_load(from, i, x.cols - i, 1), x.cols - i, 0);
		}
	}
}

const struct cpu_op SIMD(cpu_cast) = {{{cast, NULL}}};

SIMD_INLINE void add_views(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view y = op->operand[RH_ADD_Y];
	const void *scale = op->operand[RH_ADD_SCALE].data;
	float times = scale ? act_load(scale, 0, 1, bf16)[0] : 1;
	for (int64_t t = first; t < end; t++) {
		const void *a = row_at(op->operand[RH_ADD_A], t), *b = op->operand[RH_ADD_B].data ? row_at(op->operand[RH_ADD_B], t) : NULL;
		for (int64_t i = 0; i < y.cols; i += VF) {
			vf sum = act_load(a, i, y.cols - i, bf16);
			if (b)
				sum += act_load(b, i, y.cols - i, bf16);
			act_store(row_at(y, t), i, scale ? sum * times : sum, y.cols - i, bf16);
		}
	}
}

/* Units are rows. */
static void add(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_ADD_Y].dtype, add_views, op, first, end);
}

const struct cpu_op SIMD(cpu_add) = {{{add, NULL}}};

/* y[first..end) += sums over rows [row, end_row) of x. */
SIMD_INLINE void sum_rows(struct rh_view x, int64_t row, int64_t end_row, float *y, int64_t first, int64_t end, const int bf16)
{
	float total[CPU_COLUMNS] = {0};
	for (int64_t t0 = row; t0 < end_row; t0 += 64) { /* sums of 64 rows first: the rounding of long sums stays small */
		float sum[CPU_COLUMNS] = {0};
		for (int64_t t = t0; t < end_row && t < t0 + 64; t++)
			for (int64_t i = first; i < end; i += VF)
				vf_store(sum + i - first, vf_load(sum + i - first) + act_load(row_at(x, t), i, end - i, bf16));
		for (int i = 0; i < CPU_COLUMNS; i++)
			total[i] += sum[i];
	}
	for (int64_t i = first; i < end; i++)
		y[i] += total[i - first];
}

SIMD_INLINE void sum_columns(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_COLUMN_SUM_X];
	sum_rows(x, 0, x.rows, op->operand[RH_COLUMN_SUM_Y].data, first, end, bf16);
}

/* Units are columns, at most CPU_COLUMNS at once. */
static void column_sum(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_COLUMN_SUM_X].dtype, sum_columns, op, first, end);
}

static struct cpu_span column_sum_span(const struct rh_op *op)
{
	return over_columns(op->operand[RH_COLUMN_SUM_X]);
}

const struct cpu_op SIMD(cpu_column_sum) = {{{column_sum, column_sum_span}}};

SIMD_INLINE void sum_groups(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_GROUPED_COLUMN_SUM_X], start = op->operand[RH_GROUPED_COLUMN_SUM_START];
	for (int64_t e = 0; e < start.rows - 1; e++)
		sum_rows(x, index_at(start, e, x.rows + 1), index_at(start, e + 1, x.rows + 1),
		         row_at(op->operand[RH_GROUPED_COLUMN_SUM_Y], e), first, end, bf16);
}

/* Units are columns, at most CPU_COLUMNS at once. */
static void grouped_column_sum(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_GROUPED_COLUMN_SUM_X].dtype, sum_groups, op, first, end);
}

static struct cpu_span grouped_column_sum_span(const struct rh_op *op)
{
	return over_columns(op->operand[RH_GROUPED_COLUMN_SUM_X]);
}

const struct cpu_op SIMD(cpu_grouped_column_sum) = {{{grouped_column_sum, grouped_column_sum_span}}};

SIMD_INLINE void scaled_rows(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view table = op->operand[RH_EMBEDDING_TABLE], y = op->operand[RH_EMBEDDING_Y];
	for (int64_t t = first; t < end; t++) {
		const void *from = row_at(table, index_at(op->operand[RH_EMBEDDING_IDS], t, table.rows));
		for (int64_t i = 0; i < y.cols; i += VF)
			act_store(row_at(y, t), i, act_load(from, i, y.cols - i, bf16) * op->embedding.scale, y.cols - i, bf16);
	}
}

/* Units are rows. */
static void embedding(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view table = op->operand[RH_EMBEDDING_TABLE];
	if (op->embedding.scale != 0) {
		BY_DTYPE(table.dtype, scaled_rows, op, first, end);
		return;
	}
	for (int64_t t = first; t < end; t++)
		copy_row(op->operand[RH_EMBEDDING_Y], t, table, index_at(op->operand[RH_EMBEDDING_IDS], t, table.rows));
}

static struct cpu_span embedding_span(const struct rh_op *op)
{
	return over_rows(op->operand[RH_EMBEDDING_Y]);
}

const struct cpu_op SIMD(cpu_embedding) = {{{embedding, embedding_span}}};

SIMD_INLINE void add_rows(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view dy = op->operand[RH_EMBEDDING_BACKWARD_DY], dtable = op->operand[RH_EMBEDDING_BACKWARD_DTABLE];
	float scale = op->embedding.scale == 0 ? 1 : op->embedding.scale;
	for (int64_t t = 0; t < dy.rows; t++) {
		float *to = row_at(dtable, index_at(op->operand[RH_EMBEDDING_BACKWARD_IDS], t, dtable.rows));
		const void *from = row_at(dy, t);
		for (int64_t i = first; i < end; i += VF)
			act_store(to, i, act_load(to, i, end - i, 0) + act_load(from, i, end - i, bf16) * scale, end - i, 0);
	}
}

/* Units are columns: each sum over rows stays in row order. */
static void embedding_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_EMBEDDING_BACKWARD_DY].dtype, add_rows, op, first, end);
}

static struct cpu_span embedding_backward_span(const struct rh_op *op)
{
	return over_columns(op->operand[RH_EMBEDDING_BACKWARD_DY]);
}

const struct cpu_op SIMD(cpu_embedding_backward) = {{{embedding_backward, embedding_backward_span}}};

/* Units are rows of y. */
static void gather_rows(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view x = op->operand[RH_GATHER_ROWS_X];
	for (int64_t t = first; t < end; t++)
		copy_row(op->operand[RH_GATHER_ROWS_Y], t, x, index_at(op->operand[RH_GATHER_ROWS_INDEX], t, x.rows));
}

static struct cpu_span gather_rows_span(const struct rh_op *op)
{
	return over_rows(op->operand[RH_GATHER_ROWS_Y]);
}

const struct cpu_op SIMD(cpu_gather_rows) = {{{gather_rows, gather_rows_span}}};

/* Units are rows of y. */
static void scatter_rows(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view x = op->operand[RH_SCATTER_ROWS_X], index = op->operand[RH_SCATTER_ROWS_INDEX], y = op->operand[RH_SCATTER_ROWS_Y];
	int64_t next = 0; /* the first index that is not below the row, of those left */
	for (int64_t above = x.rows; next < above;) {
		int64_t middle = next + (above - next) / 2;
		if (index_at(index, middle, y.rows) < first)
			next = middle + 1;
		else
			above = middle;
	}
	for (int64_t t = first; t < end; t++) {
		if (next < x.rows && index_at(index, next, y.rows) == t)
			copy_row(y, t, x, next++);
		else
			memset(row_at(y, t), 0, (size_t)row_bytes(y));
	}
}

static struct cpu_span scatter_rows_span(const struct rh_op *op)
{
	return over_rows(op->operand[RH_SCATTER_ROWS_Y]);
}

const struct cpu_op SIMD(cpu_scatter_rows) = {{{scatter_rows, scatter_rows_span}}};
