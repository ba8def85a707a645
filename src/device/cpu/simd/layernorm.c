/* LayerNorm. Each row is read three times, twice from cache: sums of squares about the mean, not of squares less the mean's. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

#include <math.h>

/* Sum over a row of (x - mean)^2, or of x - mean. Lanes beyond the row do not count. */
SIMD_INLINE float sum_about(const void *x, int64_t n, float mean, const int squares, const int bf16)
{
	vf sum[2] = {{0}};
	int64_t i = 0;
	for (; i + VF <= n; i += VF) {
		vf v = act_load(x, i, VF, bf16) - mean;
		sum[i / VF % 2] += squares ? v * v : v;
	}
	float total = vf_sum(sum[0] + sum[1]), rest[VF];
	vf_store(rest, i < n ? act_load(x, i, n - i, bf16) - mean : (vf){0});
	for (int64_t k = 0; k < n - i; k++)
		total += squares ? rest[k] * rest[k] : rest[k];
	return total;
}

SIMD_INLINE vf scaled(vf xhat, const void *w, const void *b, int64_t i, int64_t left, const int bf16)
{
	vf y = xhat * act_load(w, i, left, bf16);
	return b ? y + act_load(b, i, left, bf16) : y;
}

SIMD_INLINE void forward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view w = op->operand[RH_LAYERNORM_W], b = op->operand[RH_LAYERNORM_B];
	int64_t n = w.cols;
	for (int64_t t = first; t < end; t++) {
		const void *x = row_at(op->operand[RH_LAYERNORM_X], t);
		void *y = row_at(op->operand[RH_LAYERNORM_Y], t);
		float *stats = row_at(op->operand[RH_LAYERNORM_STATS], t), mean = sum_about(x, n, 0, 0, bf16) / (float)n;
		float rstd = 1.0f / sqrtf(sum_about(x, n, mean, 1, bf16) / (float)n + op->layernorm.epsilon);
		stats[0] = mean;
		stats[1] = rstd;
		for (int64_t i = 0; i < n; i += VF)
			act_store(y, i, scaled((act_load(x, i, n - i, bf16) - mean) * rstd, w.data, b.data, i, n - i, bf16), n - i, bf16);
	}
}

/* Units are rows. */
static void layernorm(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_LAYERNORM_X].dtype, forward, op, first, end);
}

const struct cpu_op SIMD(cpu_layernorm) = {{{layernorm, NULL}}};

SIMD_INLINE void backward_dw(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_LAYERNORM_BACKWARD_X], dy = op->operand[RH_LAYERNORM_BACKWARD_DY];
	float total_w[CPU_COLUMNS] = {0}, total_b[CPU_COLUMNS] = {0};
	for (int64_t t0 = 0; t0 < x.rows; t0 += 64) { /* sums of 64 rows first: the rounding of long sums stays small */
		float sum_w[CPU_COLUMNS] = {0}, sum_b[CPU_COLUMNS] = {0};
		for (int64_t t = t0; t < x.rows && t < t0 + 64; t++) {
			const float *stats = row_at(op->operand[RH_LAYERNORM_BACKWARD_STATS], t);
			for (int64_t i = first; i < end; i += VF) {
				vf d = act_load(row_at(dy, t), i, end - i, bf16);
				vf xhat = (act_load(row_at(x, t), i, end - i, bf16) - stats[0]) * stats[1];
				vf_store(sum_w + i - first, vf_load(sum_w + i - first) + d * xhat);
				vf_store(sum_b + i - first, vf_load(sum_b + i - first) + d);
			}
		}
		for (int i = 0; i < CPU_COLUMNS; i++) {
			total_w[i] += sum_w[i];
			total_b[i] += sum_b[i];
		}
	}
	float *dw = op->operand[RH_LAYERNORM_BACKWARD_DW].data, *db = op->operand[RH_LAYERNORM_BACKWARD_DB].data;
	for (int64_t i = first; i < end; i++) {
		if (dw)
			dw[i] += total_w[i - first];
		if (db)
			db[i] += total_b[i - first];
	}
}

/* Units are columns, at most CPU_COLUMNS at once. Before dx, which may overwrite dy. */
static void layernorm_backward_dw(const struct rh_op *op, int64_t first, int64_t end)
{
	if (op->operand[RH_LAYERNORM_BACKWARD_DW].data || op->operand[RH_LAYERNORM_BACKWARD_DB].data)
		BY_DTYPE(op->operand[RH_LAYERNORM_BACKWARD_X].dtype, backward_dw, op, first, end);
}

SIMD_INLINE void backward_dx(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	const struct rh_view *view = op->operand;
	struct rh_view add_view = view[RH_LAYERNORM_BACKWARD_ADD], y_view = view[RH_LAYERNORM_BACKWARD_Y];
	const void *w = view[RH_LAYERNORM_BACKWARD_W].data, *b = view[RH_LAYERNORM_BACKWARD_B].data;
	int64_t n = view[RH_LAYERNORM_BACKWARD_W].cols;
	for (int64_t t = first; t < end; t++) {
		const void *x = row_at(view[RH_LAYERNORM_BACKWARD_X], t), *dy = row_at(view[RH_LAYERNORM_BACKWARD_DY], t);
		const void *add = add_view.data ? row_at(add_view, t) : NULL;
		void *dx = row_at(view[RH_LAYERNORM_BACKWARD_DX], t), *y = y_view.data ? row_at(y_view, t) : NULL;
		const float *stats = row_at(view[RH_LAYERNORM_BACKWARD_STATS], t);
		vf sum = {0}, sum_xhat = {0}; /* lanes beyond the row have dy 0 */
		for (int64_t i = 0; i < n; i += VF) {
			vf s = act_load(dy, i, n - i, bf16) * act_load(w, i, n - i, bf16);
			sum += s;
			sum_xhat += s * ((act_load(x, i, n - i, bf16) - stats[0]) * stats[1]);
		}
		float mean = vf_sum(sum) / (float)n, mean_xhat = vf_sum(sum_xhat) / (float)n;
		for (int64_t i = 0; i < n; i += VF) {
			vf xhat = (act_load(x, i, n - i, bf16) - stats[0]) * stats[1];
			vf s = act_load(dy, i, n - i, bf16) * act_load(w, i, n - i, bf16);
			vf gradient = (s - mean - xhat * mean_xhat) * stats[1];
			act_store(dx, i, add ? gradient + act_load(add, i, n - i, bf16) : gradient, n - i, bf16);
			if (y)
				act_store(y, i, scaled(xhat, w, b, i, n - i, bf16), n - i, bf16);
		}
	}
}

/* Units are rows. */
static void layernorm_backward_dx(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_LAYERNORM_BACKWARD_X].dtype, backward_dx, op, first, end);
}

static struct cpu_span layernorm_backward_dw_span(const struct rh_op *op)
{
	return over_columns(op->operand[RH_LAYERNORM_BACKWARD_W]);
}

const struct cpu_op SIMD(cpu_layernorm_backward) = {{{layernorm_backward_dw, layernorm_backward_dw_span}, {layernorm_backward_dx, NULL}}};
