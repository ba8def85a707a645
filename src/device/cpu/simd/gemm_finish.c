/* The end of a matrix product: what is added to it, rounding, and where it goes. */
#include "device/cpu/gemm_kernels.h"
#include "device/cpu/simd/vector.h"

/* n <= VF elements; whole vectors where that is known. */
SIMD_INLINE vf load(const void *data, enum rh_dtype dtype, int64_t at, int64_t n)
{
	if (dtype == RH_F32)
		return n == VF ? vf_load((const float *)data + at) : vf_load_part((const float *)data + at, n);
	return n == VF ? vf_load_bf16((const uint16_t *)data + at) : vf_load_bf16_part((const uint16_t *)data + at, n);
}

SIMD_INLINE void store(void *data, enum rh_dtype dtype, int64_t at, vf v, int64_t n)
{
	if (dtype == RH_F32 && n == VF)
		vf_store((float *)data + at, v);
	else if (dtype == RH_F32)
		vf_store_part((float *)data + at, v, n);
	else if (n == VF)
		vf_store_bf16((uint16_t *)data + at, v);
	else
		vf_store_bf16_part((uint16_t *)data + at, v, n);
}

SIMD_INLINE void finish_as(const float *product, int64_t stride, const struct gemm_target *target, enum rh_dtype dst_dtype,
                           enum rh_dtype add_dtype)
{
	vf alpha = vf_set(target->alpha);
	for (int64_t j = 0; j < target->cols; j += VF) {
		int64_t n = target->cols - j < VF ? target->cols - j : VF;
		vf bias = target->bias ? vf_load_part(target->bias + j, n) : (vf){0};
		for (int64_t i = 0; i < target->rows; i++) {
			vf base = bias;
			if (target->add)
				base += load(target->add, add_dtype, i * target->add_stride + j, n);
			vf sum = n == VF ? vf_load(product + i * stride + j) : vf_load_part(product + i * stride + j, n);
			store(target->dst, dst_dtype, i * target->dst_stride + j, alpha * sum + base, n);
		}
	}
}

void SIMD(gemm_finish)(const float *product, int64_t stride, const struct gemm_target *target)
{
	if (target->dst_dtype == RH_F32 && target->add_dtype == RH_F32)
		finish_as(product, stride, target, RH_F32, RH_F32);
	else if (target->dst_dtype == RH_F32)
		finish_as(product, stride, target, RH_F32, RH_BF16);
	else if (target->add_dtype == RH_F32)
		finish_as(product, stride, target, RH_BF16, RH_F32);
	else
		finish_as(product, stride, target, RH_BF16, RH_BF16);
}
