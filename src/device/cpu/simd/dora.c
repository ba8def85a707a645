/* DoRA's ops: norms of rows of w + scale b a, columns scaled, and the magnitudes' gradients. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

#include <math.h>

/* The module of row `row`, and which of its rows it is. */
static int module_of(const struct rh_op *op, int64_t row, int64_t *own)
{
	int m = 0;
	for (; m < RH_LORA_MODULES - 1 && row >= op->lora.out[m]; m++)
		row -= op->lora.out[m];
	*own = row;
	return m;
}

static float one(const void *row, int64_t i, const int bf16)
{
	return act_load(act_at(row, i, bf16), 0, 1, bf16)[0];
}

SIMD_INLINE void norm_rows(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view w = op->operand[RH_DORA_NORM_W];
	for (int64_t o = first; o < end; o++) {
		int64_t own;
		int m = module_of(op, o, &own);
		struct rh_view a = op->operand[RH_DORA_NORM_AS + m], b = op->operand[RH_DORA_NORM_BS + m];
		float *g = row_at(op->operand[RH_DORA_NORM_G], o);
		vf squares = {0};
		g[0] = 1;
		g[1] = 0;
		if (!a.data)
			continue;
		for (int64_t i = 0; i < w.cols; i += VF) {
			vf sum = {0};
			for (int64_t k = 0; k < a.rows; k++)
				sum += one(row_at(b, own), k, bf16) * act_load(row_at(a, k), i, w.cols - i, bf16);
			sum = act_load(row_at(w, o), i, w.cols - i, bf16) + op->lora.scale[m] * sum;
			squares += sum * sum;
		}
		float norm = sqrtf(vf_sum(squares));
		g[0] = one(op->operand[RH_DORA_NORM_MS + m].data, own, bf16) / norm;
		g[1] = 1 / norm;
	}
}

/* Units are rows of w. */
static void dora_norm(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_DORA_NORM_W].dtype, norm_rows, op, first, end);
}

const struct cpu_op SIMD(cpu_dora_norm) = {{{dora_norm, NULL}}};

SIMD_INLINE void scale_rows(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view x = op->operand[RH_DORA_SCALE_X], g = op->operand[RH_DORA_SCALE_G], c = op->operand[RH_DORA_SCALE_C];
	const void *bias = op->operand[RH_DORA_SCALE_BIAS].data;
	for (int64_t i = 0; i < x.cols; i += VF) {
		int64_t left = x.cols - i;
		float each[VF] = {0};
		for (int64_t k = 0; k < VF && k < left; k++)
			each[k] = *(const float *)row_at(g, i + k);
		vf scale = vf_load(each), shift = bias ? act_load(bias, i, left, bf16) : (vf){0};
		for (int64_t t = first; t < end; t++) {
			vf y = act_load(row_at(x, t), i, left, bf16) * scale + shift;
			if (c.data)
				y += act_load(row_at(c, t), i, left, bf16);
			act_store(row_at(op->operand[RH_DORA_SCALE_Y], t), i, y, left, bf16);
		}
	}
}

/* Units are rows. */
static void dora_scale(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_DORA_SCALE_X].dtype, scale_rows, op, first, end);
}

const struct cpu_op SIMD(cpu_dora_scale) = {{{dora_scale, NULL}}};

/* Sums of 64 rows first, as COLUMN_SUM's. */
SIMD_INLINE void gradient_columns(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view dy = op->operand[RH_DORA_GRADIENT_DY], u = op->operand[RH_DORA_GRADIENT_U];
	float total[CPU_COLUMNS] = {0};
	for (int64_t t0 = 0; t0 < dy.rows; t0 += 64) {
		float sum[CPU_COLUMNS] = {0};
		for (int64_t t = t0; t < dy.rows && t < t0 + 64; t++)
			for (int64_t i = first; i < end; i += VF)
				vf_store(sum + i - first, vf_load(sum + i - first) + act_load(row_at(dy, t), i, end - i, bf16) *
				                                                             act_load(row_at(u, t), i, end - i, bf16));
		for (int i = 0; i < CPU_COLUMNS; i++)
			total[i] += sum[i];
	}
	for (int64_t i = first; i < end; i++) {
		int64_t own;
		float *dm = op->operand[RH_DORA_GRADIENT_DMS + module_of(op, i, &own)].data;
		if (dm)
			dm[own] += total[i - first] * ((const float *)row_at(op->operand[RH_DORA_GRADIENT_G], i))[1];
	}
}

/* Units are columns, at most CPU_COLUMNS at once. */
static void dora_gradient(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_DORA_GRADIENT_DY].dtype, gradient_columns, op, first, end);
}

static struct cpu_span gradient_span(const struct rh_op *op)
{
	return over_columns(op->operand[RH_DORA_GRADIENT_DY]);
}

const struct cpu_op SIMD(cpu_dora_gradient) = {{{dora_gradient, gradient_span}}};
