/* The CPU device: threads for streams, a pool of compute threads, memory behind a cap that host code cannot touch. */
#ifndef RH_DEVICE_CPU_CPU_H
#define RH_DEVICE_CPU_CPU_H

#include "device/device.h"

/* Instruction sets, each of which has all that those before it have. RH_CPU_BF16: AVX-512, and its products
 * of bf16 pairs. RH_CPU_AMX: bf16 products on AMX's tiles. */
enum rh_cpu_isa { RH_CPU_BASE, RH_CPU_AVX2, RH_CPU_AVX512, RH_CPU_BF16, RH_CPU_AMX, RH_CPU_ISAS };

/* For benches: commands last as long as another device's. They are carried out, then their stream sleeps until they would be over there. */
struct rh_cpu_pace {
	double (*op_seconds)(const void *context, const struct rh_op *op);
	const void *context;
	double up_bytes_per_s, down_bytes_per_s; /* copies */
};

struct rh_cpu_options {
	int threads;                    /* compute threads of this device, >= 1 */
	int64_t cap_bytes;              /* 0: all free memory */
	enum rh_cpu_isa isa;            /* at most this; see rh_cpu_best_isa */
	const struct rh_cpu_pace *pace; /* borrowed; NULL: as fast as they are */
};

/* The best instruction set of this machine; tests lower it: see RH_HOOK_CPU_ISA. */
enum rh_cpu_isa rh_cpu_best_isa(void);
/* As RH_HOOK_CPU_ISA and doctor have it; of every instruction set below RH_CPU_ISAS. */
const char *rh_cpu_isa_name(enum rh_cpu_isa isa);

/* What a file of a folder simd/ exports as SIMD(f) is f_avx512, f_avx2 and f_base: RH_CPU_DECLARE(int, f, (int a)); declares all three, and
 * RH_CPU_PICK(isa, f) is the one to call. */
#define RH_CPU_DECLARE(type, name, formals) type name##_avx512 formals, name##_avx2 formals, name##_base formals

#define RH_CPU_PICK(isa, name) (*((isa) >= RH_CPU_AVX512 ? &name##_avx512 : (isa) == RH_CPU_AVX2 ? &name##_avx2 : &name##_base))

/* Few rows of logits, so that they stay in cache. */
struct rh_device_grain rh_cpu_grain(void);

int rh_cpu_open(int index, const struct rh_cpu_options *options, struct rh_device **out) RH_MUST;

#endif
