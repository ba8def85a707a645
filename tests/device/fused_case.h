/* Fused ops, in cases that the oracle, the CPU device and the kernels share. */
#ifndef RH_TESTS_DEVICE_FUSED_CASE_H
#define RH_TESTS_DEVICE_FUSED_CASE_H

#include "op_case.h"

typedef void fused_check(struct op_case *c, uint64_t *seed);

/* n products of values below 1, summed in fp32; and what was rounded to the dtype on the way. */
static inline double fused_error(int64_t n, enum rh_dtype dtype, double rounded)
{
	return (double)(n + 4) * 0x1p-22 + (dtype == RH_BF16 ? rounded * 0x1p-8 : 0);
}

static inline void fused_add_rmsnorm(enum rh_dtype dtype, int64_t rows, int64_t cols, int64_t pad, fused_check *check, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_ADD_RMSNORM, .qk_rope = {.epsilon = 1e-5f, .offset = (float)(cols % 2)}}};
	case_operand(&c, RH_ADD_RMSNORM_A, dtype, rows, cols, pad, FILL_RANDOM);
	case_operand(&c, RH_ADD_RMSNORM_B, dtype, rows, cols, pad, FILL_RANDOM);
	case_operand(&c, RH_ADD_RMSNORM_W, dtype, 1, cols, 0, FILL_RANDOM);
	case_operand(&c, RH_ADD_RMSNORM_SUM, dtype, rows, cols, pad, FILL_POISON);
	case_operand(&c, RH_ADD_RMSNORM_Y, dtype, rows, cols, pad, FILL_POISON);
	case_operand(&c, RH_ADD_RMSNORM_RSTD, RH_F32, rows, 1, 0, FILL_POISON);
	if (rows % 2)
		case_operand(&c, RH_ADD_RMSNORM_AMAX, RH_F32, rows, 1, pad, FILL_POISON);
	c.tolerance[RH_ADD_RMSNORM_RSTD] = c.tolerance[RH_ADD_RMSNORM_Y] = 1e-4;
	check(&c, seed);
}

static inline void fused_add_rmsnorm_each(fused_check *check)
{
	static const int64_t lengths[] = {1, 7, 8, 64, 130, 1024, 1032, 2048, 2056, 4104};
	uint64_t seed = check_seed();
	for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++)
		for (int k = 0; k < 4; k++)
			fused_add_rmsnorm(k & 1 ? RH_BF16 : RH_F32, case_between(&seed, 0, 9), lengths[i], k & 2 ? 8 : k, check, &seed);
}

struct heads_shape {
	int64_t rows, heads, kv_heads, dim, pad;
	int gradients; /* bit 0: q's, bit 1: k's, bit 2: dx is not dy */
};

static inline void fused_heads(const struct heads_shape *s, enum rh_dtype dtype, int backward, fused_check *check, uint64_t *seed)
{
	int64_t all = s->heads + s->kv_heads, cols = all * s->dim;
	struct op_case c = {.seed = seed,
	                    .op = {.kind = backward ? RH_OP_QK_ROPE_BACKWARD : RH_OP_QK_ROPE,
	                           .qk_rope = {s->heads, s->kv_heads, 1e-5f, s->rows % 2 ? 1.0f : 0.0f}}};
	int rstd = backward ? RH_QK_ROPE_BACKWARD_RSTD : RH_QK_ROPE_RSTD, table = backward ? RH_QK_ROPE_BACKWARD_TABLE : RH_QK_ROPE_TABLE;
	case_operand(&c, RH_QK_ROPE_X, dtype, s->rows, cols, s->pad, FILL_RANDOM);
	case_operand(&c, RH_QK_ROPE_Q_W, dtype, 1, s->dim, 0, FILL_RANDOM);
	case_operand(&c, RH_QK_ROPE_K_W, dtype, 1, s->dim, 0, FILL_RANDOM);
	struct rh_view sums = case_operand(&c, rstd, RH_F32, s->rows, all, 0, backward ? FILL_RANDOM : FILL_POISON);
	struct rh_view angles = case_operand(&c, table, RH_F32, s->rows, s->dim, 0, FILL_NONE);
	for (int64_t t = 0; t < s->rows; t++) {
		for (int64_t i = 0; i < s->dim / 2; i++) {
			double angle = (double)check_uniform(seed) * 10;
			case_put(angles, t, i, cos(angle));
			case_put(angles, t, s->dim / 2 + i, sin(angle));
		}
		for (int64_t h = 0; backward && h < all; h++)
			case_put(sums, t, h, 1.5 + (double)check_uniform(seed) * 0.25);
	}
	if (!backward) {
		case_operand(&c, RH_QK_ROPE_Y, dtype, s->rows, cols, s->pad, FILL_POISON);
		c.tolerance[RH_QK_ROPE_RSTD] = 1e-3; /* of a head of two elements that are nearly 0 */
		c.tolerance[RH_QK_ROPE_Y] = dtype == RH_BF16 ? 0x1p-6 : 1e-4;
		check(&c, seed);
		return;
	}
	case_operand(&c, RH_QK_ROPE_BACKWARD_DY, dtype, s->rows, cols, s->pad, FILL_RANDOM);
	if (s->gradients & 4)
		case_operand(&c, RH_QK_ROPE_BACKWARD_DX, dtype, s->rows, cols, s->pad, FILL_POISON);
	else
		case_alias(&c, RH_QK_ROPE_BACKWARD_DX, RH_QK_ROPE_BACKWARD_DY);
	if (s->gradients & 1)
		case_operand(&c, RH_QK_ROPE_BACKWARD_DQ_W, RH_F32, 1, s->dim, 0, FILL_RANDOM);
	if (s->gradients & 2)
		case_operand(&c, RH_QK_ROPE_BACKWARD_DK_W, RH_F32, 1, s->dim, 0, FILL_RANDOM);
	if (s->rows % 3)
		case_operand(&c, RH_QK_ROPE_BACKWARD_AMAX, RH_F32, s->rows, all, s->pad, FILL_POISON);
	c.tolerance[RH_QK_ROPE_BACKWARD_DX] = fused_error(s->dim, dtype, 4);
	c.tolerance[RH_QK_ROPE_BACKWARD_DQ_W] = fused_error(s->rows * s->heads, dtype, 2 * sqrt((double)(s->rows * s->heads)));
	c.tolerance[RH_QK_ROPE_BACKWARD_DK_W] = fused_error(s->rows * s->kv_heads, dtype, 2 * sqrt((double)(s->rows * s->kv_heads)));
	check(&c, seed);
}

static inline void fused_heads_each(fused_check *check)
{
	static const struct heads_shape shapes[] = {{0, 2, 1, 8, 0, 3},   {1, 1, 1, 2, 0, 7},   {5, 4, 2, 16, 0, 3},
	                                            {9, 3, 1, 24, 8, 1},  {3, 2, 2, 14, 1, 2},  {40, 4, 1, 64, 0, 3},
	                                            {7, 2, 1, 96, 0, 7},  {6, 5, 3, 128, 8, 3}, {300, 4, 2, 16, 16, 3},
	                                            {4, 2, 1, 256, 0, 4}, {5, 3, 2, 20, 4, 0},  {600, 2, 1, 128, 0, 3}};
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int k = 0; k < 4; k++)
			fused_heads(&shapes[i], k & 1 ? RH_BF16 : RH_F32, k >> 1, check, &seed);
}

struct lora_shape {
	int64_t rows, in, out[RH_LORA_MODULES], r[RH_LORA_MODULES]; /* r 0: no adapter */
	int64_t pad;
	float p;
	int adds; /* PART has c */
};

static inline int lora_is_of_x(enum rh_op_kind kind)
{
	return kind == RH_OP_LORA_LOW || kind == RH_OP_LORA_INPUT_GRADIENT || kind == RH_OP_LORA_A_GRADIENT;
}

static inline void fused_lora(const struct lora_shape *s, enum rh_op_kind kind, enum rh_dtype dtype, fused_check *check, uint64_t *seed)
{
	struct op_case c = {.seed = seed,
	                    .op = {.kind = kind, .lora = {.p = s->p, .step = 3, .micro_batch = 2, .first_row = 37, .seed = 77}}};
	const struct rh_op_info *info = rh_op_info(kind);
	int of_x = lora_is_of_x(kind), sums = kind == RH_OP_LORA_A_GRADIENT || kind == RH_OP_LORA_B_GRADIENT;
	int64_t outs = s->out[0] + s->out[1] + s->out[2], most = 0;
	enum op_fill wide = info->operand[RH_LORA_WIDE].access == RH_ACCESS_OUT ? FILL_POISON : FILL_RANDOM;
	enum op_fill low = info->operand[RH_LORA_LOWS].access == RH_ACCESS_OUT ? FILL_POISON : FILL_RANDOM;
	case_operand(&c, RH_LORA_WIDE, dtype, s->rows, of_x ? s->in : outs, s->pad, wide);
	for (int m = 0; m < RH_LORA_MODULES; m++) {
		c.op.lora.out[m] = s->out[m];
		c.op.lora.scale[m] = 0.5f + (float)m;
		c.op.lora.site[m] = 11u + (uint32_t)m;
		if (!s->r[m])
			continue;
		most = s->r[m] > most ? s->r[m] : most;
		case_operand(&c, RH_LORA_LOWS + m, dtype, s->rows, s->r[m], s->pad, low);
		case_operand(&c, RH_LORA_MATRICES + m, sums ? RH_F32 : dtype, of_x ? s->r[m] : s->out[m], of_x ? s->in : s->r[m], 0,
		             FILL_RANDOM);
	}
	if (kind == RH_OP_LORA_PART && s->adds)
		case_operand(&c, RH_LORA_C, dtype, s->rows, outs, s->pad, FILL_RANDOM);
	if (kind != RH_OP_LORA_PART && s->p > 0)
		case_operand(&c, RH_LORA_SPACE, dtype, s->rows, of_x ? s->in : outs, 0, FILL_POISON);
	int64_t deep = sums ? s->rows : kind == RH_OP_LORA_PART || kind == RH_OP_LORA_INPUT_GRADIENT ? most : of_x ? s->in : outs;
	double kept = 1 / (1 - (double)s->p);
	for (int i = 0; i < RH_LORA_SPACE; i++) /* scales of at most 2.5 */
		c.tolerance[i] = 2.5 * kept * (double)(deep + 4) * 0x1p-22;
	if (kind == RH_OP_LORA_INPUT_GRADIENT && dtype == RH_BF16) /* the oracle rounds after each module */
		c.tolerance[RH_LORA_WIDE] += kept * 0x1p-8 * 6 * sqrt((double)most);
	check(&c, seed);
}

/* Around tiles of 64 rows and columns, ranks of several tiles, modules without adapters, lengths off every border. */
static inline void fused_lora_each(fused_check *check)
{
	static const struct lora_shape shapes[] = {
	        {9, 24, {16, 8, 8}, {8, 8, 8}, 0, 0, 0},          {33, 72, {40, 24, 8}, {16, 8, 24}, 8, 0.25f, 0},
	        {70, 136, {64, 0, 0}, {16, 0, 0}, 0, 0.1f, 1},    {130, 64, {72, 64, 0}, {0, 16, 0}, 0, 0.5f, 1},
	        {17, 200, {8, 136, 16}, {72, 0, 8}, 0, 0.05f, 0}, {65, 30, {14, 3, 5}, {3, 0, 2}, 1, 0.3f, 0},
	        {0, 16, {16, 0, 0}, {8, 0, 0}, 0, 0.5f, 0},       {200, 16, {16, 16, 0}, {8, 136, 0}, 0, 0.9f, 0},
	};
	static const enum rh_op_kind kinds[] = {RH_OP_LORA_LOW,          RH_OP_LORA_PART,
	                                        RH_OP_LORA_LOW_GRADIENT, RH_OP_LORA_INPUT_GRADIENT,
	                                        RH_OP_LORA_A_GRADIENT,   RH_OP_LORA_B_GRADIENT};
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
			for (int k = 0; k < 2; k++)
				fused_lora(&shapes[i], kinds[kind], k ? RH_BF16 : RH_F32, check, &seed);
}

#endif
