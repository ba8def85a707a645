/* The CPU device: threads for streams, a pool of compute threads, memory behind a cap that host code cannot touch. */
#ifndef RH_DEVICE_CPU_CPU_H
#define RH_DEVICE_CPU_CPU_H

#include "device/device.h"

/* RH_CPU_AMX: AVX-512, and bf16 products on AMX's tiles. */
enum rh_cpu_isa { RH_CPU_BASE, RH_CPU_AVX2, RH_CPU_AVX512, RH_CPU_AMX };

struct rh_cpu_options {
	int threads;         /* compute threads of this device, >= 1 */
	int64_t cap_bytes;   /* 0: all free memory */
	enum rh_cpu_isa isa; /* at most this; see rh_cpu_best_isa */
};

/* The best instruction set of this machine; tests lower it: see RH_HOOK_CPU_ISA. */
enum rh_cpu_isa rh_cpu_best_isa(void);
const char *rh_cpu_isa_name(enum rh_cpu_isa isa);

/* Few rows of logits, so that they stay in cache. */
struct rh_device_grain rh_cpu_grain(void);

int rh_cpu_open(int index, const struct rh_cpu_options *options, struct rh_device **out) RH_MUST;

#endif
