/* Experts' products: forward, input gradient and weight gradient of the gate and up matrices of Qwen3-30B's mixture, 128 rows an expert.
 * Judged by `attainable`: the longer of what a dense product of the same FLOPs takes and what the bytes of weights and activations take at
 * the copy's bandwidth. All experts' matrices must come from memory, or go there, where the dense one has a single matrix: at 112 FLOPs a
 * byte (25 to 29 of the weight gradient's fp32 sums) that is by bytes on every GPU here. */
#include "bench/gpu/bench.h"

#include <math.h>
#include <stdlib.h>

enum kind { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, KINDS };

struct shape {
	int64_t experts, each, inner, outer;
};

static int put_starts(struct bench *bench, struct rh_view view, int64_t each)
{
	int32_t *values = calloc((size_t)view.rows, sizeof *values);
	if (!values)
		return rh_fail(-ENOMEM, "no host memory for starts");
	for (int64_t i = 0; i < view.rows; i++)
		values[i] = (int32_t)(i * each);
	int rc = bench->device->ops->copy_up(bench->device, RH_STREAM_COMPUTE, view.data, values, view.rows * 4);
	int late = bench->device->ops->synchronize(bench->device);
	free(values);
	return rc ? rc : late;
}

/* x (R,K), y (R,N) and the experts' matrices (E*N,K), in fp32 where they are gradients. */
static int grouped(struct bench *bench, const struct shape *s, enum kind kind, double *seconds, double *bytes)
{
	struct rh_op op = {.kind = RH_OP_GROUPED_GEMM, .grouped_gemm = {kind == FORWARD, 1}};
	int64_t rows = s->experts * s->each;
	bench->used = 0;
	struct rh_view start = bench_view(bench, RH_I32, s->experts + 1, 1);
	struct rh_view x = bench_view(bench, RH_BF16, rows, s->inner), y = bench_view(bench, RH_BF16, rows, s->outer);
	struct rh_view w = bench_view(bench, kind == WEIGHT_GRADIENT ? RH_F32 : RH_BF16, s->experts * s->outer, s->inner);
	if (kind == WEIGHT_GRADIENT) {
		op.kind = RH_OP_GROUPED_GEMM_GRADIENT;
		op.operand[RH_GROUPED_GEMM_GRADIENT_A] = y;
		op.operand[RH_GROUPED_GEMM_GRADIENT_B] = x;
		op.operand[RH_GROUPED_GEMM_GRADIENT_START] = start;
		op.operand[RH_GROUPED_GEMM_GRADIENT_D] = w;
	} else {
		op.operand[RH_GROUPED_GEMM_A] = kind == FORWARD ? x : y;
		op.operand[RH_GROUPED_GEMM_B] = w;
		op.operand[RH_GROUPED_GEMM_START] = start;
		op.operand[RH_GROUPED_GEMM_D] = kind == FORWARD ? y : x;
	}
	const char *fault = rh_op_fault(&op);
	*bytes = rh_op_cost(&op).bytes;
	int rc = fault ? rh_fail(-EINVAL, "%s", fault) : put_starts(bench, start, s->each);
	return rc ? rc : bench_op(bench, &op, bench->small ? 1 : 3, seconds);
}

static int dense(struct bench *bench, const struct shape *s, enum kind kind, double *seconds)
{
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {kind == WEIGHT_GRADIENT, kind == FORWARD, 1}};
	int64_t rows = s->experts * s->each;
	bench->used = 0;
	struct rh_view x = bench_view(bench, RH_BF16, rows, s->inner), y = bench_view(bench, RH_BF16, rows, s->outer);
	struct rh_view w = bench_view(bench, kind == WEIGHT_GRADIENT ? RH_F32 : RH_BF16, s->outer, s->inner);
	op.operand[RH_GEMM_A] = kind == FORWARD ? x : y;
	op.operand[RH_GEMM_B] = kind == WEIGHT_GRADIENT ? x : w;
	op.operand[RH_GEMM_C] = kind == WEIGHT_GRADIENT ? w : (struct rh_view){0};
	op.operand[RH_GEMM_D] = kind == FORWARD ? y : kind == INPUT_GRADIENT ? x : w;
	return bench_op(bench, &op, bench->small ? 1 : 3, seconds);
}

int bench_grouped(struct bench *bench)
{
	static const char *const kinds[] = {"forward", "input gradient", "weight gradient"};
	const struct shape s = bench->small ? (struct shape){2, 24, 32, 48} : (struct shape){128, 128, 2048, 1536};
	double flops = 2.0 * (double)(s.experts * s.each) * (double)s.inner * (double)s.outer, copy = 0;
	int rc = bench_copy_bandwidth(bench, &copy);
	for (int kind = 0; !rc && kind < KINDS; kind++) {
		double ours = 0, dense_seconds = 0, bytes = 0;
		rc = grouped(bench, &s, (enum kind)kind, &ours, &bytes);
		if (!rc)
			rc = dense(bench, &s, (enum kind)kind, &dense_seconds);
		double attainable = fmax(dense_seconds, copy > 0 ? bytes / copy : 0);
		if (!rc)
			bench_line("products",
			           "\"product\": \"experts' gate and up\", \"kind\": \"%s\", \"experts\": %lld, \"rows_an_expert\": %lld, "
			           "\"inner\": %lld, \"outer\": %lld, \"us\": %.1f, \"value\": %.2f, \"unit\": \"TFLOP/s\", "
			           "\"dense\": %.2f, \"bytes\": %.0f, \"gbs\": %.1f, \"reference\": %.2f, \"ratio\": %.3f, \"bar\": 0.8",
			           kinds[kind], (long long)s.experts, (long long)s.each, (long long)s.inner, (long long)s.outer, ours * 1e6,
			           flops / ours / 1e12, flops / dense_seconds / 1e12, bytes, bytes / ours / 1e9, flops / attainable / 1e12,
			           attainable / ours);
	}
	return rc;
}
