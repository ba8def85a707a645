#include "core/dtype.h"

#include "core/error.h"
#include "core/float16.h"

#include <string.h>

static const struct {
	const char *name;
	int16_t block, bytes;
} types[RH_DTYPE_COUNT] = {
        [RH_F32] = {"F32", 1, 4},           [RH_F16] = {"F16", 1, 2},       [RH_BF16] = {"BF16", 1, 2},
        [RH_F64] = {"F64", 1, 8},           [RH_I64] = {"I64", 1, 8},       [RH_I32] = {"I32", 1, 4},
        [RH_I16] = {"I16", 1, 2},           [RH_I8] = {"I8", 1, 1},         [RH_U8] = {"U8", 1, 1},
        [RH_BOOL] = {"BOOL", 1, 1},         [RH_NF4] = {"NF4", 2, 1},       [RH_BNB_FP4] = {"bitsandbytes' FP4", 2, 1},
        [RH_FP4] = {"FP4", 2, 1},           [RH_E4M3] = {"F8_E4M3", 1, 1},  [RH_E5M2] = {"F8_E5M2", 1, 1},
        [RH_E8M0] = {"F8_E8M0", 1, 1},      [RH_Q4_0] = {"Q4_0", 32, 18},   [RH_Q4_1] = {"Q4_1", 32, 20},
        [RH_Q5_0] = {"Q5_0", 32, 22},       [RH_Q5_1] = {"Q5_1", 32, 24},   [RH_Q8_0] = {"Q8_0", 32, 34},
        [RH_Q2_K] = {"Q2_K", 256, 84},      [RH_Q3_K] = {"Q3_K", 256, 110}, [RH_Q4_K] = {"Q4_K", 256, 144},
        [RH_Q5_K] = {"Q5_K", 256, 176},     [RH_Q6_K] = {"Q6_K", 256, 210}, [RH_IQ4_NL] = {"IQ4_NL", 32, 18},
        [RH_IQ4_XS] = {"IQ4_XS", 256, 136}, [RH_MXFP4] = {"MXFP4", 32, 17}, [RH_NVFP4] = {"NVFP4", 64, 36},
};

const char *rh_dtype_name(enum rh_dtype dtype)
{
	RH_ASSERT(dtype < RH_DTYPE_COUNT);
	return types[dtype].name;
}

int64_t rh_dtype_block(enum rh_dtype dtype)
{
	RH_ASSERT(dtype < RH_DTYPE_COUNT);
	return types[dtype].block;
}

int64_t rh_dtype_block_bytes(enum rh_dtype dtype)
{
	RH_ASSERT(dtype < RH_DTYPE_COUNT);
	return types[dtype].bytes;
}

/* From the last: the halves lie where the floats go. */
void rh_widen(enum rh_dtype dtype, int64_t count, float *buffer)
{
	for (int64_t i = count; dtype != RH_F32 && i-- > 0;) {
		uint16_t half;
		memcpy(&half, (const char *)buffer + 2 * i, sizeof half);
		buffer[i] = dtype == RH_BF16 ? rh_bf16_to_f32(half) : rh_f16_to_f32(half);
	}
}
