/* Ops spread over the pool, in tasks that the shapes alone decide. */
#include "core/error.h"
#include "device/cpu/kernels.h"
#include "device/cpu/simd/kernels.h"

struct pass {
	const struct rh_op *op;
	cpu_kernel *kernel;
	struct cpu_span span;
};

static void run_task(void *context, int64_t i)
{
	const struct pass *pass = context;
	int64_t first = i * pass->span.grain, end = first + pass->span.grain;
	pass->kernel(pass->op, first, end < pass->span.units ? end : pass->span.units);
}

static int run_part(void *context, const struct rh_op *part)
{
	return cpu_run(context, part);
}

int cpu_run(struct cpu_context *context, const struct rh_op *op)
{
	RH_ASSERT(!rh_op_fault(op));
	if (rh_op_is_fused(op->kind)) {
		int rc = rh_op_parts(op, run_part, context);
		rh_op_amax(op);
		return rc;
	}
	if (op->kind == RH_OP_GEMM)
		return cpu_gemm(context, op);
	if (op->kind == RH_OP_HEAD_LOSS)
		return cpu_head_loss(context, op);
	if (op->kind == RH_OP_GROUPED_GEMM || op->kind == RH_OP_GROUPED_GEMM_GRADIENT)
		return cpu_grouped_gemm(context, op);
	if (op->kind == RH_OP_QUANTISE || op->kind == RH_OP_TRANSPOSE || op->kind == RH_OP_SCALED_GEMM) {
		/* tensor cores' ways: on a CPU for comparison alone */
		rh_op_oracle(op);
		return 0;
	}
	const struct cpu_op *kernels = RH_CPU_PICK(context->isa, cpu_kernels).op[op->kind];
	RH_ASSERT(kernels); /* an op of each device's own has its line above */
	for (int i = 0; i < CPU_PASSES && kernels->pass[i].kernel; i++) {
		struct cpu_span span = kernels->pass[i].span ? kernels->pass[i].span(op) : over_rows(op->operand[0]);
		struct pass pass = {op, kernels->pass[i].kernel, span};
		rh_pool_run(context->pool, run_task, &pass, (pass.span.units + pass.span.grain - 1) / pass.span.grain);
	}
	rh_op_amax(op); /* like what reads it, for comparison alone */
	return 0;
}
