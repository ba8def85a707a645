/* Adapters of a joint: which of the six ops goes to which kernel, and what the kernels do not take. */
#include "cuda/kernels.h"
#include "cuda/lora_tile.h"

static int is_of_x(enum rh_op_kind kind)
{
	return kind == RH_OP_LORA_LOW || kind == RH_OP_LORA_INPUT_GRADIENT || kind == RH_OP_LORA_A_GRADIENT;
}

/* bf16 of which every chunk of 8 begins on 16 bytes; fp32 gradients lie anywhere. */
static int fits(const struct rh_view &view)
{
	if (!view.data || view.dtype == RH_F32)
		return 1;
	return view.cols % 8 == 0 && rh_rows_aligned(view.data, view.rows > 1 ? view.stride : 0, sizeof(rh_bf16));
}

/* 0: not for these kernels. */
static int args_of(const struct rh_op *op, struct lora_args *a)
{
	const struct rh_view *view = op->operand;
	int column = 0, fit = view[RH_LORA_WIDE].dtype == RH_BF16 && fits(view[RH_LORA_WIDE]), of_x = is_of_x(op->kind);
	*a = {};
	a->wide = view[RH_LORA_WIDE];
	a->drops = of_x && op->lora.p > 0;
	a->first_row = op->lora.first_row;
	for (int m = 0; m < RH_LORA_MODULES; m++) {
		const struct rh_view &low = view[RH_LORA_LOWS + m], &matrix = view[RH_LORA_MATRICES + m];
		int first = column, out = (int)op->lora.out[m], at = a->modules;
		column += out;
		fit = fit && fits(low) && fits(matrix) && out % 8 == 0;
		if (!low.data && (op->kind != RH_OP_LORA_PART || !out))
			continue;
		a->low[at] = low, a->matrix[at] = matrix;
		a->first[at] = of_x ? 0 : first;
		a->width[at] = of_x ? (int)a->wide.cols : out;
		a->scale[at] = of_x ? 1 : op->lora.scale[m];
		a->key[at] = dropout_key_of(op->lora.seed, op->lora.site[m], op->lora.micro_batch, op->lora.step, op->lora.p);
		a->modules++;
	}
	return fit && !(op->kind == RH_OP_LORA_PART && view[RH_LORA_C].data);
}

static int launch(const struct rh_op *op, const struct lora_args *a, CUstream_st *stream)
{
	switch (op->kind) {
	case RH_OP_LORA_LOW:
		return lora_low(a, false, stream);
	case RH_OP_LORA_LOW_GRADIENT:
		return lora_low(a, true, stream);
	case RH_OP_LORA_PART:
		return lora_part(a, stream);
	case RH_OP_LORA_INPUT_GRADIENT:
		return lora_input_gradient(a, stream);
	default:
		return lora_gradient(a, op->kind == RH_OP_LORA_B_GRADIENT, stream);
	}
}

extern "C" int cuda_lora(const struct rh_op *op, CUstream_st *stream)
{
	struct lora_args a;
	if (!op->operand[RH_LORA_WIDE].rows || !op->operand[RH_LORA_WIDE].cols)
		return 1;
	if (!args_of(op, &a))
		return 0;
	int rc = launch(op, &a, stream);
	return rc < 0 ? rc : 1;
}
