/* Element types. Block types are storage only: they are read, never computed with. */
#ifndef RH_CORE_DTYPE_H
#define RH_CORE_DTYPE_H

#include <stdint.h>

enum rh_dtype {
	RH_F32,
	RH_F16,
	RH_BF16,
	RH_F64,
	RH_I64,
	RH_I32,
	RH_I16,
	RH_I8,
	RH_U8,
	RH_BOOL,
	RH_NF4,     /* two in a byte, the first in its high half; scales apart: core/blocks.h */
	RH_BNB_FP4, /* bitsandbytes' own; as NF4 */
	RH_FP4,     /* E2M1, two in a byte, the first in its low half; scales apart */
	RH_E4M3,    /* 8-bit floating point: core/float8.h */
	RH_E5M2,
	RH_E8M0, /* powers of two, as scales of 8-bit blocks are stored: core/blocks.h */
	RH_Q4_0, /* from here on: GGUF blocks along a row */
	RH_Q4_1,
	RH_Q5_0,
	RH_Q5_1,
	RH_Q8_0,
	RH_Q2_K,
	RH_Q3_K,
	RH_Q4_K,
	RH_Q5_K,
	RH_Q6_K,
	RH_IQ4_NL,
	RH_IQ4_XS,
	RH_MXFP4,
	RH_NVFP4,
	RH_DTYPE_COUNT
};

#ifdef __cplusplus
extern "C" {
#endif

/* "F32", "BF16", "Q4_K"...: the names of safetensors and GGUF. */
const char *rh_dtype_name(enum rh_dtype dtype);

/* Elements that share one block (1 for plain types). */
int64_t rh_dtype_block(enum rh_dtype dtype);

/* Bytes of one block. */
int64_t rh_dtype_block_bytes(enum rh_dtype dtype);

#ifdef __cplusplus
}
#endif

/* Bytes of `elements`, which must be a multiple of the block. Those that kernels compute with come first: they ask for each row. */
static inline int64_t rh_dtype_bytes(enum rh_dtype dtype, int64_t elements)
{
	if (dtype == RH_BF16)
		return elements * 2;
	if (dtype == RH_F32 || dtype == RH_I32)
		return elements * 4;
	return elements / rh_dtype_block(dtype) * rh_dtype_block_bytes(dtype);
}

/* In place: `buffer` holds `count` halves at its front (RH_BF16 or RH_F16), which become fp32; of RH_F32 it stays as it is. */
void rh_widen(enum rh_dtype dtype, int64_t count, float *buffer);

#endif
