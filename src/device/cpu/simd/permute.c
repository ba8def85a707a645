/* Rows of tokens to rows of experts and back. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

/* One unit: a counting sort. */
static void permute_sort(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view index = op->operand[RH_PERMUTE_INDEX], start = op->operand[RH_PERMUTE_START], place = op->operand[RH_PERMUTE_PLACE];
	int32_t *at = start.data;
	int64_t experts = start.rows - 1, step = start.stride;
	RH_ASSERT(first == 0 && end == 1);
	for (int64_t e = 0; e <= experts; e++)
		at[e * step] = 0;
	for (int64_t t = 0; t < index.rows; t++) {
		const int32_t *expert = row_at(index, t);
		for (int64_t j = 0; j < index.cols; j++) {
			RH_ASSERT(expert[j] >= 0 && expert[j] < experts);
			at[(expert[j] + 1) * step]++;
		}
	}
	for (int64_t e = 1; e <= experts; e++)
		at[e * step] += at[(e - 1) * step];
	for (int64_t t = 0; t < index.rows; t++) {
		const int32_t *expert = row_at(index, t);
		int32_t *to = row_at(place, t);
		for (int64_t j = 0; j < index.cols; j++)
			to[j] = at[expert[j] * step]++; /* each start becomes the next one */
	}
	for (int64_t e = experts; e > 0; e--)
		at[e * step] = at[(e - 1) * step];
	at[0] = 0;
}

/* Units are rows of x. */
static void permute_rows(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view x = op->operand[RH_PERMUTE_X], place = op->operand[RH_PERMUTE_PLACE], y = op->operand[RH_PERMUTE_Y];
	size_t bytes = (size_t)rh_dtype_bytes(x.dtype, x.cols);
	for (int64_t t = first; t < end; t++) {
		const int32_t *to = row_at(place, t);
		for (int64_t j = 0; j < place.cols; j++)
			memcpy(row_at(y, to[j]), row_at(x, t), bytes);
	}
}

static struct cpu_span permute_sort_span(const struct rh_op *op)
{
	(void)op;
	return (struct cpu_span){1, 1};
}

static struct cpu_span permute_rows_span(const struct rh_op *op)
{
	return over_rows(op->operand[RH_PERMUTE_X]);
}

const struct cpu_op SIMD(cpu_permute) = {{{permute_sort, permute_sort_span}, {permute_rows, permute_rows_span}}};

SIMD_INLINE int64_t place_at(const int32_t *place, int64_t j, int64_t rows)
{
	RH_ASSERT(place[j] >= 0 && place[j] < rows);
	return place[j];
}

SIMD_INLINE void combine(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_UNPERMUTE_X], place = op->operand[RH_UNPERMUTE_PLACE], weight = op->operand[RH_UNPERMUTE_WEIGHT];
	struct rh_view add = op->operand[RH_UNPERMUTE_ADD], y = op->operand[RH_UNPERMUTE_Y];
	for (int64_t t = first; t < end; t++) {
		const int32_t *from = row_at(place, t);
		const float *by = weight.data ? row_at(weight, t) : NULL;
		for (int64_t i = 0; i < x.cols; i += VF) {
			vf sum = {0};
			for (int64_t j = 0; j < place.cols; j++) {
				vf term = act_load(row_at(x, place_at(from, j, x.rows)), i, x.cols - i, bf16);
				sum += by ? term * by[j] : term;
			}
			if (add.data)
				sum += act_load(row_at(add, t), i, x.cols - i, bf16);
			act_store(row_at(y, t), i, sum, x.cols - i, bf16);
		}
	}
}

/* Units are rows of y. */
static void unpermute(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_UNPERMUTE_X].dtype, combine, op, first, end);
}

static struct cpu_span unpermute_span(const struct rh_op *op)
{
	return over_rows(op->operand[RH_UNPERMUTE_Y]);
}

const struct cpu_op SIMD(cpu_unpermute) = {{{unpermute, unpermute_span}}};

SIMD_INLINE void spread(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view dy = op->operand[RH_UNPERMUTE_BACKWARD_DY], place = op->operand[RH_UNPERMUTE_BACKWARD_PLACE];
	struct rh_view dx = op->operand[RH_UNPERMUTE_BACKWARD_DX];
	for (int64_t t = first; t < end; t++) {
		const int32_t *to = row_at(place, t);
		const float *by = row_at(op->operand[RH_UNPERMUTE_BACKWARD_WEIGHT], t);
		for (int64_t j = 0; j < place.cols; j++) {
			void *out = row_at(dx, place_at(to, j, dx.rows));
			for (int64_t i = 0; i < dy.cols; i += VF)
				act_store(out, i, act_load(row_at(dy, t), i, dy.cols - i, bf16) * by[j], dy.cols - i, bf16);
		}
	}
}

/* Units are rows of dy. */
static void unpermute_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_UNPERMUTE_BACKWARD_DX].dtype, spread, op, first, end);
}

static struct cpu_span unpermute_backward_span(const struct rh_op *op)
{
	return over_rows(op->operand[RH_UNPERMUTE_BACKWARD_DY]);
}

const struct cpu_op SIMD(cpu_unpermute_backward) = {{{unpermute_backward, unpermute_backward_span}}};
