/* Cases of DoRA's ops, for the CPU's kernels and CUDA's. */
#ifndef RH_TESTS_DEVICE_DORA_CASE_H
#define RH_TESTS_DEVICE_DORA_CASE_H

#include "op_case.h"

typedef void dora_check(struct op_case *c, uint64_t *seed);

/* Modules of a joint: outputs, and ranks, of which 0 is no adapter. */
struct dora_shape {
	int64_t rows, in, out[RH_LORA_MODULES], r[RH_LORA_MODULES], pad;
};

static inline void dora_modules(struct op_case *c, const struct dora_shape *s)
{
	for (int m = 0; m < RH_LORA_MODULES; m++) {
		c->op.lora.out[m] = s->out[m];
		c->op.lora.scale[m] = 0.5f + (float)m;
	}
}

static inline void dora_norm_case(const struct dora_shape *s, enum rh_dtype dtype, dora_check *check, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DORA_NORM};
	int64_t outs = s->out[0] + s->out[1] + s->out[2];
	dora_modules(&c, s);
	case_operand(&c, RH_DORA_NORM_W, dtype, outs, s->in, s->pad, FILL_RANDOM);
	for (int m = 0; m < RH_LORA_MODULES; m++) {
		if (!s->r[m])
			continue;
		case_operand(&c, RH_DORA_NORM_AS + m, dtype, s->r[m], s->in, s->pad, FILL_RANDOM);
		case_operand(&c, RH_DORA_NORM_BS + m, dtype, s->out[m], s->r[m], 0, FILL_RANDOM);
		case_operand(&c, RH_DORA_NORM_MS + m, dtype, 1, s->out[m], 0, FILL_RANDOM);
	}
	case_operand(&c, RH_DORA_NORM_G, RH_F32, outs, 2, 0, FILL_POISON);
	c.tolerance[RH_DORA_NORM_G] = 1e-4; /* of norms that are small: sums of r products below 1, in fp32 */
	check(&c, seed);
}

static inline void dora_scale_case(const struct dora_shape *s, enum rh_dtype dtype, int way, dora_check *check, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DORA_SCALE};
	int64_t outs = s->out[0] + s->out[1] + s->out[2];
	case_operand(&c, RH_DORA_SCALE_X, dtype, s->rows, outs, s->pad, FILL_RANDOM);
	case_operand(&c, RH_DORA_SCALE_G, RH_F32, outs, 2, 0, FILL_RANDOM);
	if (way & 1)
		case_operand(&c, RH_DORA_SCALE_BIAS, dtype, 1, outs, 0, FILL_RANDOM);
	if (way & 2)
		case_operand(&c, RH_DORA_SCALE_C, dtype, s->rows, outs, s->pad, FILL_RANDOM);
	if (way == 1 || way == 2)
		case_alias(&c, RH_DORA_SCALE_Y, way == 1 ? RH_DORA_SCALE_X : RH_DORA_SCALE_C);
	else
		case_operand(&c, RH_DORA_SCALE_Y, dtype, s->rows, outs, s->pad, FILL_POISON);
	c.tolerance[RH_DORA_SCALE_Y] = 0x1p-22; /* three terms within 1, which may cancel */
	check(&c, seed);
}

static inline void dora_gradient_case(const struct dora_shape *s, enum rh_dtype dtype, dora_check *check, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DORA_GRADIENT};
	int64_t outs = s->out[0] + s->out[1] + s->out[2];
	dora_modules(&c, s);
	case_operand(&c, RH_DORA_GRADIENT_DY, dtype, s->rows, outs, s->pad, FILL_RANDOM);
	case_operand(&c, RH_DORA_GRADIENT_U, dtype, s->rows, outs, s->pad, FILL_RANDOM);
	case_operand(&c, RH_DORA_GRADIENT_G, RH_F32, outs, 2, 0, FILL_RANDOM);
	for (int m = 0; m < RH_LORA_MODULES; m++) {
		if (s->r[m])
			case_operand(&c, RH_DORA_GRADIENT_DMS + m, RH_F32, 1, s->out[m], 0, FILL_RANDOM);
		c.tolerance[RH_DORA_GRADIENT_DMS + m] = (double)(s->rows + 4) * 0x1p-22;
	}
	check(&c, seed);
}

/* Around a chunk, a warp and a block's columns; ranks off every border; modules without adapters. */
static inline void dora_each(dora_check *check)
{
	static const struct dora_shape shapes[] = {{9, 24, {16, 8, 8}, {8, 8, 8}, 0},       {33, 70, {40, 23, 9}, {3, 0, 17}, 8},
	                                           {70, 256, {64, 0, 0}, {16, 0, 0}, 0},    {1, 5, {1, 1, 1}, {1, 1, 1}, 1},
	                                           {130, 300, {7, 65, 0}, {0, 5, 0}, 3},    {0, 8, {8, 8, 8}, {4, 4, 4}, 0},
	                                           {64, 1030, {130, 64, 64}, {64, 8, 0}, 8}};
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int bf16 = 0; bf16 < 2; bf16++) {
			enum rh_dtype dtype = bf16 ? RH_BF16 : RH_F32;
			dora_norm_case(&shapes[i], dtype, check, &seed);
			dora_gradient_case(&shapes[i], dtype, check, &seed);
			for (int way = 0; way < 4; way++)
				dora_scale_case(&shapes[i], dtype, way, check, &seed);
		}
}

#endif
