/* Inside the CPU device: ops on plain host pointers, spread over a pool by tiles that the shapes alone decide.
 *
 * ops.c has cpu_run, one entry per op kind; kernels that gain by it are in simd/, compiled once for each instruction set. */
#ifndef RH_DEVICE_CPU_KERNELS_H
#define RH_DEVICE_CPU_KERNELS_H

#include "core/pool.h"
#include "device/cpu/cpu.h"

/* What a kernel runs with. */
struct cpu_context {
	struct rh_pool *pool;
	enum rh_cpu_isa isa;
};

/* Views hold host addresses. 0 or negative errno (scratch that cannot be had). */
int cpu_run(struct cpu_context *context, const struct rh_op *op) RH_MUST;

int cpu_gemm(struct cpu_context *context, const struct rh_op *op) RH_MUST;         /* gemm.c */
int cpu_head_loss(struct cpu_context *context, const struct rh_op *op) RH_MUST;    /* head_loss.c, on cpu_gemm */
int cpu_grouped_gemm(struct cpu_context *context, const struct rh_op *op) RH_MUST; /* grouped_gemm.c, on cpu_gemm; and its gradient */

/* Scratch of the calling thread: at least `bytes`, 64-byte aligned, contents undefined. Grown on demand, freed when the thread ends. Valid
 * until the thread's next call of cpu_scratch; cpu_gemm calls it on all threads of its pool. NULL with the error line when there is no
 * memory. */
void *cpu_scratch(size_t bytes) RH_MUST;

#endif
