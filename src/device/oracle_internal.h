/* Elements of host views as doubles, and the families of ops that the oracle is split into. */
#ifndef RH_DEVICE_ORACLE_INTERNAL_H
#define RH_DEVICE_ORACLE_INTERNAL_H

#include "core/error.h"
#include "core/float16.h"
#include "device/op.h"

static inline double get(struct rh_view view, int64_t row, int64_t col)
{
	int64_t at = row * view.stride + col;
	RH_ASSERT(row >= 0 && row < view.rows && col >= 0 && col < view.cols);
	if (view.dtype == RH_I32)
		return ((const int32_t *)view.data)[at];
	return (double)(view.dtype == RH_F32 ? ((const float *)view.data)[at] : rh_bf16_to_f32(((const uint16_t *)view.data)[at]));
}

static inline int64_t get_index(struct rh_view view, int64_t row)
{
	return (int64_t)get(view, row, 0);
}

/* Rounded to fp32, then to the view's dtype. */
static inline void put(struct rh_view view, int64_t row, int64_t col, double value)
{
	int64_t at = row * view.stride + col;
	RH_ASSERT(row >= 0 && row < view.rows && col >= 0 && col < view.cols);
	if (view.dtype == RH_I32)
		((int32_t *)view.data)[at] = (int32_t)value;
	else if (view.dtype == RH_F32)
		((float *)view.data)[at] = (float)value;
	else
		((uint16_t *)view.data)[at] = rh_f32_to_bf16((float)value);
}

void oracle_gemm(const struct rh_op *op);
void oracle_head_loss(const struct rh_op *op);
void oracle_attention(const struct rh_op *op);
void oracle_attention_backward(const struct rh_op *op);
void oracle_dequantise(const struct rh_op *op);
void oracle_glu(const struct rh_op *op);
void oracle_glu_backward(const struct rh_op *op);
void oracle_activation(const struct rh_op *op);
void oracle_activation_backward(const struct rh_op *op);
void oracle_layernorm(const struct rh_op *op);
void oracle_layernorm_backward(const struct rh_op *op);

/* oracle_moe.c */
void oracle_router(const struct rh_op *op);
void oracle_router_backward(const struct rh_op *op);
void oracle_permute(const struct rh_op *op);
void oracle_unpermute(const struct rh_op *op);
void oracle_unpermute_backward(const struct rh_op *op);
void oracle_grouped_gemm(const struct rh_op *op);
void oracle_grouped_gemm_gradient(const struct rh_op *op);
void oracle_grouped_column_sum(const struct rh_op *op);

#endif
