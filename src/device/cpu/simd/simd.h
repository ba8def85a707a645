/* What the files of this folder export: each op that is no product, under the name of the instruction set it is compiled for. */
#ifndef RH_DEVICE_CPU_SIMD_SIMD_H
#define RH_DEVICE_CPU_SIMD_SIMD_H

#include "device/cpu/simd/kernels.h"
#include "device/cpu/simd/vector.h"

#define CPU_OP(kind, name) extern const struct cpu_op SIMD(cpu_##name);
#define CPU_NO_OP(kind, name)
RH_OPS(CPU_OP, CPU_NO_OP)
#undef CPU_OP
#undef CPU_NO_OP

#endif
