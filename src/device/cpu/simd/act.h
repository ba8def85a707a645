/* Rows of F32 or BF16 as vectors. `bf16` is a constant where these are used: each kernel is a template over it. */
#ifndef RH_DEVICE_CPU_SIMD_ACT_H
#define RH_DEVICE_CPU_SIMD_ACT_H

#include "core/error.h"
#include "core/view.h"
#include "device/cpu/simd/vector.h"

/* Calls the template for the dtype. */
#define BY_DTYPE(dtype, template, ...) ((dtype) == RH_BF16 ? template(__VA_ARGS__, 1) : template(__VA_ARGS__, 0))

SIMD_INLINE void *row_at(struct rh_view view, int64_t row)
{
	return (char *)view.data + rh_dtype_bytes(view.dtype, row * view.stride);
}

SIMD_INLINE int64_t index_at(struct rh_view view, int64_t row, int64_t below)
{
	int64_t index = ((const int32_t *)view.data)[row * view.stride];
	RH_ASSERT(index >= 0 && index < below);
	return index;
}

/* The vector at element i of a row; of `left` elements from there those beyond are zero. */
SIMD_INLINE vf act_load(const void *row, int64_t i, int64_t left, const int bf16)
{
	if (bf16)
		return left >= VF ? vf_load_bf16((const uint16_t *)row + i) : vf_load_bf16_part((const uint16_t *)row + i, left);
	return left >= VF ? vf_load((const float *)row + i) : vf_load_part((const float *)row + i, left);
}

SIMD_INLINE void act_store(void *row, int64_t i, vf v, int64_t left, const int bf16)
{
	if (bf16 && left >= VF)
		vf_store_bf16((uint16_t *)row + i, v);
	else if (bf16)
		vf_store_bf16_part((uint16_t *)row + i, v, left);
	else if (left >= VF)
		vf_store((float *)row + i, v);
	else
		vf_store_part((float *)row + i, v, left);
}

/* Element i of a row, in whole. */
SIMD_INLINE const void *act_at(const void *row, int64_t i, const int bf16)
{
	return (const char *)row + i * (bf16 ? 2 : 4);
}

#endif
