/* Ops that make 8-bit or packed matrices, and plain ones of them: memory binds all. */
#include "bench/gpu/bench.h"

#include "core/form.h"

#include <stdio.h>

int bench_quantise(struct bench *bench, const struct bench_shape *s, double copy)
{
	bench->used = 0;
	struct rh_op rows = {.kind = RH_OP_QUANTISE_ROWS}, transpose = {.kind = RH_OP_TRANSPOSE};
	rows.operand[RH_QUANTISE_ROWS_X] = bench_view(bench, RH_BF16, s->tokens, s->hidden);
	rows.operand[RH_QUANTISE_ROWS_SCALE] = bench_view(bench, RH_F32, s->tokens, 1);
	rows.operand[RH_QUANTISE_ROWS_Y] = bench_view(bench, RH_E4M3, s->tokens, s->hidden);
	transpose.operand[RH_TRANSPOSE_X] = bench_view(bench, RH_E4M3, s->inner, s->hidden);
	transpose.operand[RH_TRANSPOSE_Y] = bench_view(bench, RH_E4M3, s->hidden, s->inner);
	int rc = bench_by_memory(bench, "quantise rows", &rows, copy, 0.85);
	return rc ? rc : bench_by_memory(bench, "transpose, 8 bits", &transpose, copy, 0.85);
}

/* A matrix of a layer in each of these forms, made plain: elements, scales and tail lie one after the other, as in a base. */
int bench_dequantise(struct bench *bench, const struct bench_shape *s, double copy)
{
	static const enum rh_form forms[] = {RH_FORM_Q4_K,       RH_FORM_Q8_0, RH_FORM_MXFP4,
	                                     RH_FORM_NF4_NESTED, RH_FORM_INT8, RH_FORM_FP8_BLOCKS};
	int64_t rows = s->inner, cols = (s->hidden + 255) / 256 * 256;
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof forms / sizeof *forms; i++) {
		const struct rh_form_traits *form = rh_form_traits(forms[i]);
		struct rh_op op = {.kind = RH_OP_DEQUANTISE};
		bench->used = 0;
		op.operand[RH_DEQUANTISE_X] = bench_view(bench, form->element, rows, cols);
		if (form->run) {
			op.dequantise.run = form->run < cols ? form->run : cols;
			op.dequantise.tall = form->tall < rows ? form->tall : rows;
			op.dequantise.unit = forms[i] == RH_FORM_INT8 ? RH_INT8_UNIT : 1;
			op.operand[RH_DEQUANTISE_SCALE] =
			        bench_view(bench, form->scale, rh_form_scale_rows(forms[i], rows), rh_form_runs(forms[i], cols));
		}
		if (form->tail == RH_TAIL_NESTED) {
			int64_t scales = rh_form_scale_rows(forms[i], rows) * rh_form_runs(forms[i], cols);
			op.operand[RH_DEQUANTISE_NESTED] = bench_view(bench, RH_F32, 1, (scales + RH_NESTED_RUN - 1) / RH_NESTED_RUN);
			op.operand[RH_DEQUANTISE_MAP] = bench_view(bench, RH_F32, 1, RH_NESTED_MAP);
		}
		op.operand[RH_DEQUANTISE_Y] = bench_view(bench, RH_BF16, rows, cols);
		char name[64];
		(void)snprintf(name, sizeof name, "dequantise %s", form->name);
		rc = bench_by_memory(bench, name, &op, copy, 0.90);
	}
	return rc;
}
