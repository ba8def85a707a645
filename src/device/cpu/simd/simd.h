/* The kernels that the files of this folder export, under the name of the instruction set they are compiled for. */
#ifndef RH_DEVICE_CPU_SIMD_SIMD_H
#define RH_DEVICE_CPU_SIMD_SIMD_H

#include "device/cpu/simd/kernels.h"
#include "device/cpu/simd/vector.h"

cpu_kernel SIMD(fill), SIMD(cast), SIMD(column_sum), SIMD(embedding), SIMD(embedding_backward), SIMD(gather_rows), SIMD(scatter_rows);
cpu_kernel SIMD(rmsnorm), SIMD(rmsnorm_backward_dw), SIMD(rmsnorm_backward_dx);
cpu_kernel SIMD(rope_table), SIMD(rope), SIMD(glu), SIMD(glu_backward), SIMD(dropout), SIMD(add);
cpu_kernel SIMD(router), SIMD(router_backward), SIMD(permute_sort), SIMD(permute_rows), SIMD(unpermute), SIMD(unpermute_backward);
cpu_kernel SIMD(grouped_column_sum);
cpu_kernel SIMD(dequantise), SIMD(activation), SIMD(activation_backward);
cpu_kernel SIMD(layernorm), SIMD(layernorm_backward_dw), SIMD(layernorm_backward_dx);
cpu_kernel SIMD(attention), SIMD(attention_backward_dq), SIMD(attention_backward_dk_dv), SIMD(attention_backward_dsink);

#endif
