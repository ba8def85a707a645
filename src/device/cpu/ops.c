/* Ops spread over the pool, in tasks that the shapes alone decide. */
#include "core/error.h"
#include "device/cpu/kernels.h"
#include "device/cpu/simd/kernels.h"

enum { TASK_ELEMENTS = 16384 }; /* of an op over rows: some microseconds */

static int64_t row_grain(struct rh_view view)
{
	int64_t rows = TASK_ELEMENTS / (view.cols > 0 ? view.cols : 1);
	return rows > 0 ? rows : 1;
}

/* Units of a pass, and how many make a task. */
struct span {
	int64_t units, grain;
};

static struct span over_rows(struct rh_view view)
{
	return (struct span){view.rows, row_grain(view)};
}

static struct span over_columns(struct rh_view view)
{
	return (struct span){view.cols, CPU_COLUMNS};
}

static struct span span_of(const struct rh_op *op, int pass)
{
	const struct rh_view *view = op->operand;
	switch (op->kind) {
	case RH_OP_COLUMN_SUM:
		return over_columns(view[RH_COLUMN_SUM_X]);
	case RH_OP_RMSNORM_BACKWARD:
		return pass ? over_rows(view[RH_RMSNORM_BACKWARD_X]) : over_columns(view[RH_RMSNORM_BACKWARD_W]);
	case RH_OP_LAYERNORM_BACKWARD:
		return pass ? over_rows(view[RH_LAYERNORM_BACKWARD_X]) : over_columns(view[RH_LAYERNORM_BACKWARD_W]);
	case RH_OP_ROPE_TABLE:
		return over_rows(view[RH_ROPE_TABLE_TABLE]);
	case RH_OP_ATTENTION:
	case RH_OP_ATTENTION_BACKWARD:
		if (pass == 2)
			return (struct span){op->attention.heads, 1};
		if (pass)
			return (struct span){attention_key_slots(op) * op->attention.kv_heads, 1};
		return (struct span){attention_query_slots(op) * op->attention.kv_heads * attention_head_blocks(op), 1};
	case RH_OP_EMBEDDING:
		return over_rows(view[RH_EMBEDDING_Y]);
	case RH_OP_EMBEDDING_BACKWARD:
		return over_columns(view[RH_EMBEDDING_BACKWARD_DY]);
	case RH_OP_GATHER_ROWS:
		return over_rows(view[RH_GATHER_ROWS_Y]);
	case RH_OP_SCATTER_ROWS:
		return over_rows(view[RH_SCATTER_ROWS_Y]);
	case RH_OP_PERMUTE:
		return pass ? over_rows(view[RH_PERMUTE_X]) : (struct span){1, 1};
	case RH_OP_UNPERMUTE:
		return over_rows(view[RH_UNPERMUTE_Y]);
	case RH_OP_UNPERMUTE_BACKWARD:
		return over_rows(view[RH_UNPERMUTE_BACKWARD_DY]);
	case RH_OP_GROUPED_COLUMN_SUM:
		return over_columns(view[RH_GROUPED_COLUMN_SUM_X]);
	case RH_OP_DEQUANTISE:
		return (struct span){view[0].rows * ((view[0].cols + CPU_TILE - 1) / CPU_TILE), TASK_ELEMENTS / CPU_TILE};
	default:
		return over_rows(view[0]);
	}
}

struct pass {
	const struct rh_op *op;
	cpu_kernel *kernel;
	struct span span;
};

static void run_task(void *context, int64_t i)
{
	const struct pass *pass = context;
	int64_t first = i * pass->span.grain, end = first + pass->span.grain;
	pass->kernel(pass->op, first, end < pass->span.units ? end : pass->span.units);
}

static const struct cpu_kernels *kernels_of(enum rh_cpu_isa isa)
{
	switch (isa) {
	case RH_CPU_AVX512:
	case RH_CPU_AMX:
		return &cpu_kernels_avx512;
	case RH_CPU_AVX2:
		return &cpu_kernels_avx2;
	case RH_CPU_BASE:
		break;
	}
	return &cpu_kernels_base;
}

int cpu_run(struct cpu_context *context, const struct rh_op *op)
{
	RH_ASSERT(!rh_op_fault(op));
	if (op->kind == RH_OP_GEMM)
		return cpu_gemm(context, op);
	if (op->kind == RH_OP_HEAD_LOSS)
		return cpu_head_loss(context, op);
	if (op->kind == RH_OP_GROUPED_GEMM || op->kind == RH_OP_GROUPED_GEMM_GRADIENT)
		return cpu_grouped_gemm(context, op);
	const struct cpu_kernels *kernels = kernels_of(context->isa);
	for (int i = 0; i < CPU_PASSES && kernels->pass[op->kind][i]; i++) {
		struct pass pass = {op, kernels->pass[op->kind][i], span_of(op, i)};
		rh_pool_run(context->pool, run_task, &pass, (pass.span.units + pass.span.grain - 1) / pass.span.grain);
	}
	return 0;
}
