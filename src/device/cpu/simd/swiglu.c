/* SwiGLU: gate * sigmoid(gate) * up. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

SIMD_INLINE void forward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view gu = op->operand[RH_SWIGLU_GU], a = op->operand[RH_SWIGLU_A];
	int64_t n = a.cols;
	for (int64_t t = first; t < end; t++) {
		const void *in = row_at(gu, t);
		void *out = row_at(a, t);
		for (int64_t i = 0; i < n; i += VF) {
			vf gate = act_load(in, i, n - i, bf16), up = act_load(in, n + i, n - i, bf16);
			act_store(out, i, gate * up / (1.0f + vf_exp(-gate)), n - i, bf16);
		}
	}
}

/* Units are rows. */
void SIMD(swiglu)(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_SWIGLU_GU].dtype, forward, op, first, end);
}

SIMD_INLINE void backward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view a = op->operand[RH_SWIGLU_BACKWARD_A];
	int64_t n = op->operand[RH_SWIGLU_BACKWARD_DA].cols;
	for (int64_t t = first; t < end; t++) {
		const void *in = row_at(op->operand[RH_SWIGLU_BACKWARD_GU], t), *da = row_at(op->operand[RH_SWIGLU_BACKWARD_DA], t);
		void *dgu = row_at(op->operand[RH_SWIGLU_BACKWARD_DGU], t), *out = a.data ? row_at(a, t) : NULL;
		for (int64_t i = 0; i < n; i += VF) {
			vf gate = act_load(in, i, n - i, bf16), up = act_load(in, n + i, n - i, bf16);
			vf d = act_load(da, i, n - i, bf16);
			vf sigmoid = 1.0f / (1.0f + vf_exp(-gate)), silu = gate * sigmoid;
			act_store(dgu, i, d * up * (sigmoid * (1.0f + gate * (1.0f - sigmoid))), n - i, bf16);
			act_store(dgu, n + i, d * silu, n - i, bf16);
			if (out)
				act_store(out, i, silu * up, n - i, bf16);
		}
	}
}

/* Units are rows. */
void SIMD(swiglu_backward)(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_SWIGLU_BACKWARD_GU].dtype, backward, op, first, end);
}
