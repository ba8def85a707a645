/* Blocks of the K mixtures of llama.cpp: Q4_K, Q5_K and Q6_K, and Q5_0 and Q5_1 for rows that these do not take. */
#ifndef RH_CKPT_SIMD_K_QUANTS_H
#define RH_CKPT_SIMD_K_QUANTS_H

#include "core/dtype.h"
#include "device/cpu/cpu.h"

/* `elements` (a multiple of the type's block) of fp32 as ggml's quantiser rounds them without an importance matrix: bit-equal to its
 * quantize_row_*_ref, whatever the instruction set. */
RH_CPU_DECLARE(void, k_quantise, (enum rh_dtype dtype, const float *values, int64_t elements, unsigned char *out));

#endif
