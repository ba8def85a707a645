#include "device/cpu/simd/simd.h"

const struct cpu_kernels SIMD(cpu_kernels) = {{
        [RH_OP_FILL] = {SIMD(fill)},
        [RH_OP_CAST] = {SIMD(cast)},
        [RH_OP_COLUMN_SUM] = {SIMD(column_sum)},
        [RH_OP_RMSNORM] = {SIMD(rmsnorm)},
        [RH_OP_RMSNORM_BACKWARD] = {SIMD(rmsnorm_backward_dw), SIMD(rmsnorm_backward_dx)},
        [RH_OP_ROPE_TABLE] = {SIMD(rope_table)},
        [RH_OP_ROPE] = {SIMD(rope)},
        [RH_OP_ATTENTION] = {SIMD(attention)},
        [RH_OP_ATTENTION_BACKWARD] = {SIMD(attention_backward_dq), SIMD(attention_backward_dk_dv)},
        [RH_OP_SWIGLU] = {SIMD(swiglu)},
        [RH_OP_SWIGLU_BACKWARD] = {SIMD(swiglu_backward)},
        [RH_OP_EMBEDDING] = {SIMD(embedding)},
        [RH_OP_EMBEDDING_BACKWARD] = {SIMD(embedding_backward)},
        [RH_OP_GATHER_ROWS] = {SIMD(gather_rows)},
        [RH_OP_SCATTER_ROWS] = {SIMD(scatter_rows)},
        [RH_OP_DROPOUT] = {SIMD(dropout)},
        [RH_OP_ADD] = {SIMD(add)},
}};
