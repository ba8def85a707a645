/* DEQUANTISE, value by value. The formats themselves are core/blocks.h's: what they are worth is tested against gguf, and worked out by
 * hand. */
#include "device/oracle_internal.h"

#pragma GCC optimize("fp-contract=off")
#include "core/blocks.h"

/* The scale of column c's run. */
static float scale_of(const struct rh_op *op, int64_t row, int64_t c)
{
	struct rh_view x = op->operand[RH_DEQUANTISE_X], scale = op->operand[RH_DEQUANTISE_SCALE];
	int64_t run = c / op->dequantise.run, at = row * scale.stride + run;
	if (scale.dtype == RH_F32)
		return ((const float *)scale.data)[at];
	uint8_t q = ((const uint8_t *)scale.data)[at];
	if (x.dtype == RH_FP4)
		return rh_e8m0_value(q);
	int64_t number = row * scale.cols + run;
	return (float)get(op->operand[RH_DEQUANTISE_MAP], 0, q) * (float)get(op->operand[RH_DEQUANTISE_NESTED], 0, number / RH_NESTED_RUN) +
	       op->dequantise.offset;
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
	case RH_FP4:
		return rh_fp4_value(bytes[c / 2] >> (c % 2 ? 4 : 0) & 15) * scale_of(op, row, c);
	default:
		bytes += rh_dtype_bytes(x.dtype, c / rh_dtype_block(x.dtype) * rh_dtype_block(x.dtype));
		c %= rh_dtype_block(x.dtype);
		rh_block_values(x.dtype, bytes, (int)(c / RH_BLOCK_RUN * RH_BLOCK_RUN), RH_BLOCK_RUN, values);
		return values[c % RH_BLOCK_RUN];
	}
}

void oracle_dequantise(const struct rh_op *op)
{
	struct rh_view y = op->operand[RH_DEQUANTISE_Y];
	for (int64_t r = 0; r < y.rows; r++)
		for (int64_t c = 0; c < y.cols; c++)
			put(y, r, c, (double)value_of(op, r, c));
}
