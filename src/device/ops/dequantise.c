/* DEQUANTISE, value by value. The formats themselves are core/blocks.h's: what they are worth is tested against gguf, and worked out by
 * hand. */
#include "device/ops/def.h"

#pragma GCC optimize("fp-contract=off")
#include "core/blocks.h"
#include "core/float8.h"

/* The scale of column c's run. */
static float scale_of(const struct rh_op *op, int64_t row, int64_t c)
{
	struct rh_view x = op->operand[RH_DEQUANTISE_X], scale = op->operand[RH_DEQUANTISE_SCALE];
	int64_t run = c / op->dequantise.run, of = row / op->dequantise.tall, at = of * scale.stride + run;
	if (scale.dtype == RH_F32)
		return ((const float *)scale.data)[at];
	uint8_t q = ((const uint8_t *)scale.data)[at];
	struct rh_view map = op->operand[RH_DEQUANTISE_MAP], nested = op->operand[RH_DEQUANTISE_NESTED];
	if (scale.dtype == RH_E4M3)
		return rh_e4m3_to_f32(q) * (float)get(nested, 0, 0) / (float)get(nested, 0, 1);
	if (x.dtype == RH_FP4)
		return rh_e8m0_value(q);
	int64_t number = of * scale.cols + run;
	return (float)get(map, 0, q) * (float)get(nested, 0, number / RH_NESTED_RUN) + (float)get(map, 0, RH_NESTED_MAP - 1);
}

static float value_of(const struct rh_op *op, int64_t row, int64_t c)
{
	struct rh_view x = op->operand[RH_DEQUANTISE_X];
	const uint8_t *bytes = (const uint8_t *)x.data + rh_dtype_bytes(x.dtype, row * x.stride);
	float values[RH_BLOCK_RUN];
	switch (x.dtype) {
	case RH_I8:
		return (float)(int8_t)bytes[c] * scale_of(op, row, c) * op->dequantise.unit;
	case RH_NF4:
		return rh_nf4_value(bytes[c / 2] >> (c % 2 ? 0 : 4) & 15) * scale_of(op, row, c);
	case RH_BNB_FP4:
		return rh_bnb_fp4_value(bytes[c / 2] >> (c % 2 ? 0 : 4) & 15) * scale_of(op, row, c);
	case RH_E4M3:
		return rh_e4m3_to_f32(bytes[c]) * scale_of(op, row, c);
	case RH_FP4:
		return rh_fp4_value(bytes[c / 2] >> (c % 2 ? 4 : 0) & 15) * scale_of(op, row, c);
	default:
		bytes += rh_dtype_bytes(x.dtype, c / rh_dtype_block(x.dtype) * rh_dtype_block(x.dtype));
		c %= rh_dtype_block(x.dtype);
		rh_block_values(x.dtype, bytes, (int)(c / RH_BLOCK_RUN * RH_BLOCK_RUN), RH_BLOCK_RUN, values);
		return values[c % RH_BLOCK_RUN];
	}
}

static void check_dequantise(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view x = view[RH_DEQUANTISE_X], y = view[RH_DEQUANTISE_Y], scale = view[RH_DEQUANTISE_SCALE];
	int64_t run = check->op->dequantise.run, tall = check->op->dequantise.tall, runs = 0, scale_rows = 0;
	int is_bnb = x.dtype == RH_NF4 || x.dtype == RH_BNB_FP4, nested = is_bnb && scale.dtype == RH_U8;
	int factors = x.dtype == RH_FP4 && scale.dtype == RH_E4M3;
	int apart = is_bnb || x.dtype == RH_I8 || x.dtype == RH_FP4 || x.dtype == RH_E4M3;
	if (run > 0 && tall > 0) {
		runs = (x.cols + run - 1) / run;
		scale_rows = (x.rows + tall - 1) / tall;
	}
	require(check, apart || (x.dtype >= RH_Q4_0 && x.dtype <= RH_NVFP4), "dequantise: x is of no quantised type");
	require(check, x.cols % rh_dtype_block(x.dtype) == 0 && x.stride % rh_dtype_block(x.dtype) == 0,
	        "dequantise: a row of x, or its stride, is not whole blocks");
	require(check, is_act(y.dtype), "dequantise: y is neither F32 nor BF16");
	int is_some = view[RH_DEQUANTISE_INDEX].data != NULL;
	require(check, (is_some || y.rows == x.rows) && y.cols == x.cols, "dequantise: x and y are not of one shape");
	shape(check, RH_DEQUANTISE_INDEX, RH_I32, y.rows, 1, "dequantise: index is not (n,1) I32");
	require(check, apart == (scale.data != NULL), "dequantise: scale is there exactly where the type has none inside");
	require(check, !apart || (run > 0 && run % 8 == 0 && tall > 0), "dequantise: run is not a multiple of 8, or tall not positive");
	shape(check, RH_DEQUANTISE_SCALE,
	      factors                       ? RH_E4M3
	      : nested || x.dtype == RH_FP4 ? RH_U8
	                                    : RH_F32,
	      scale_rows, runs, "dequantise: scale is not one for each run, or not of the type that goes with x");
	require(check, (nested || factors) == (view[RH_DEQUANTISE_NESTED].data != NULL) && nested == (view[RH_DEQUANTISE_MAP].data != NULL),
	        "dequantise: nested and map are there exactly where the scales are quantised");
	shape(check, RH_DEQUANTISE_NESTED, RH_F32, 1, factors ? RH_FACTORS : (scale_rows * runs + RH_NESTED_RUN - 1) / RH_NESTED_RUN,
	      "dequantise: nested is not (1, 256ths of the scales) F32, nor the two factors of E4M3 scales");
	shape(check, RH_DEQUANTISE_MAP, RH_F32, 1, RH_NESTED_MAP, "dequantise: map is not (1,257) F32");
}

static void oracle_dequantise(const struct rh_op *op)
{
	struct rh_view y = op->operand[RH_DEQUANTISE_Y], index = op->operand[RH_DEQUANTISE_INDEX];
	for (int64_t r = 0; r < y.rows; r++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, r, c, (double)value_of(op, index.data ? get_index(index, r) : r, c));
}

/* Of x and its scales the rows that are named alone. */
static int64_t dequantise_touched(const struct rh_op *op, int operand)
{
	int is_by_row = operand == RH_DEQUANTISE_X || (operand == RH_DEQUANTISE_SCALE && op->dequantise.tall == 1);
	return op->operand[is_by_row && op->operand[RH_DEQUANTISE_INDEX].data ? RH_DEQUANTISE_INDEX : operand].rows;
}

/* To a number, times a scale, plus a minimum; the shift of a nibble. */
const struct op_def op_dequantise = {
        .info = {"dequantise", 6, {IN("x"), MAYBE("scale"), MAYBE("nested"), MAYBE("map"), MAYBE("index"), OUT("y")}},
        .check = check_dequantise,
        .oracle = oracle_dequantise,
        .flops = {RH_DEQUANTISE_Y, 4},
        .touched = dequantise_touched,
};
