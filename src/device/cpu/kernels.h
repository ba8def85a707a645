/* Inside the CPU device: ops on plain host pointers, spread over a pool by tiles that the shapes alone decide. */
#ifndef RH_DEVICE_CPU_KERNELS_H
#define RH_DEVICE_CPU_KERNELS_H

#include "core/pool.h"
#include "device/cpu/cpu.h"

/* What a kernel runs with. */
struct cpu_context {
	struct rh_pool *pool;
	enum rh_cpu_isa isa;
};

/* One entry per op kind; views hold host addresses. 0 or negative errno (oneDNN refusals, scratch that cannot be had). */
int cpu_run(struct cpu_context *context, const struct rh_op *op);

int cpu_gemm(struct cpu_context *context, const struct rh_op *op);      /* gemm.c */
int cpu_head_loss(struct cpu_context *context, const struct rh_op *op); /* head_loss.c, on cpu_gemm */

#endif
