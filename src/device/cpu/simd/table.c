/* All kernels of one instruction set. */
#include "device/cpu/simd/simd.h"

#define ROW(kind, name) [RH_OP_##kind] = &SIMD(cpu_##name),
#define NONE(kind, name)
const struct cpu_kernels SIMD(cpu_kernels) = {{RH_OPS(ROW, NONE)}};
