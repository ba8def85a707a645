/* QUANTISE, TRANSPOSE and SCALED_GEMM, in cases that the oracle, the CPU device and the kernels share. */
#ifndef RH_TESTS_DEVICE_SCALED_CASE_H
#define RH_TESTS_DEVICE_SCALED_CASE_H

#include "op_case.h"

#include "core/float8.h"

enum { SCALED_Y = 1, SCALED_T = 2, SCALED_WIDE = 4, SCALED_ZERO = 8, SCALED_NAN = 16, SCALED_LARGE = 32, SCALED_AMAX = 64 };

/* Numbers of both signs over some thirty powers of two, from nothing to 2^top. */
static inline void scaled_fill(struct rh_view x, int top, uint64_t *seed)
{
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; c < x.cols; c++)
			case_put(x, r, c, ldexp((double)check_uniform(seed), top - (int)(check_random(seed) % 32)));
}

/* What an op that left maxima of the first `known` columns of x would have left: two numbers a row, one of them of nothing. */
static inline void scaled_put_amax(struct op_case *c, struct rh_view x, int64_t known, int64_t pad)
{
	struct rh_view amax = case_operand(c, RH_QUANTISE_AMAX, RH_F32, x.rows, 2, pad, FILL_NONE);
	c->op.quantise.known = known;
	for (int64_t r = 0; r < x.rows; r++) {
		float most = 0;
		for (int64_t i = 0; i < known; i++)
			most = isnan(most) || fabs(case_get(x, r, i)) <= (double)most ? most : fabsf((float)case_get(x, r, i));
		case_put(amax, r, 0, r % 2 ? 0 : (double)most);
		case_put(amax, r, 1, r % 2 ? (double)most : 0);
	}
}

/* flags: the outputs there are, E5M2 in place of E4M3, what x is full of. To the last bit. */
static inline struct op_case scaled_quantise_case(enum rh_dtype act, int64_t rows, int64_t cols, int64_t pad, int flags, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_QUANTISE}, .exact = 1};
	enum rh_dtype eight = flags & SCALED_WIDE ? RH_E5M2 : RH_E4M3;
	int64_t whole = (rows + 15) / 16 * 16;
	c.op.quantise.limit = flags & SCALED_WIDE ? RH_E5M2_LARGEST : RH_E4M3_LARGEST;
	struct rh_view x = case_operand(&c, RH_QUANTISE_X, act, rows, cols, pad, FILL_RANDOM);
	if (!(flags & SCALED_ZERO))
		scaled_fill(x, flags & SCALED_LARGE ? 40 : -10, seed);
	else
		for (int64_t r = 0; r < rows; r++)
			for (int64_t i = 0; i < cols; i++)
				case_put(x, r, i, 0);
	if (flags & SCALED_NAN && rows && cols)
		case_put(x, check_random(seed) % rows, check_random(seed) % cols, flags & SCALED_ZERO ? (double)NAN : (double)INFINITY);
	case_operand(&c, RH_QUANTISE_PART, RH_F32, 1, RH_QUANTISE_PARTS, 0, FILL_POISON);
	if (flags & SCALED_AMAX)
		scaled_put_amax(&c, x, 1 + check_random(seed) % cols, pad);
	case_operand(&c, RH_QUANTISE_SCALE, RH_F32, 1, 1, 0, FILL_POISON);
	if (flags & SCALED_Y)
		case_operand(&c, RH_QUANTISE_Y, eight, rows, cols, pad, FILL_RANDOM);
	if (flags & SCALED_T)
		case_operand(&c, RH_QUANTISE_T, eight, cols, whole, pad / 8 * 16, FILL_RANDOM);
	return c;
}

/* Rows of their own sizes: of all zeros, of thirty powers of two, huge ones, one with an infinity. To the last bit. */
static inline struct op_case scaled_rows_case(enum rh_dtype act, int64_t rows, int64_t cols, int64_t pad, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_QUANTISE_ROWS}, .exact = 1};
	struct rh_view x = case_operand(&c, RH_QUANTISE_ROWS_X, act, rows, cols, pad, FILL_RANDOM);
	for (int64_t r = 0; r < rows; r++) {
		for (int64_t i = 0; r % 5 == 1 && i < cols; i++)
			case_put(x, r, i, 0);
		if (r % 5 > 1)
			scaled_fill(rh_view_rows(x, r, 1), r % 5 == 2 ? 40 : -10, seed);
		if (r % 5 == 4 && cols)
			case_put(x, r, check_random(seed) % cols, (double)INFINITY);
	}
	case_operand(&c, RH_QUANTISE_ROWS_SCALE, RH_F32, rows, 1, pad, FILL_POISON);
	case_operand(&c, RH_QUANTISE_ROWS_Y, RH_E4M3, rows, cols, pad, FILL_RANDOM);
	return c;
}

static inline void scaled_rows_each(void (*check)(struct op_case *c, uint64_t *seed))
{
	static const int64_t shapes[][3] = {{0, 8, 0}, {1, 1, 0}, {7, 8, 8}, {11, 65, 0}, {6, 130, 6}, {5, 2056, 8}, {3, 2500, 1}};
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * (int)(sizeof shapes / sizeof *shapes); i++) {
		struct op_case c = scaled_rows_case(i % 2 ? RH_BF16 : RH_F32, shapes[i / 2][0], shapes[i / 2][1], shapes[i / 2][2], &seed);
		check(&c, &seed);
	}
}

/* Every shape that differs: less than a chunk, a tile, all parts; rows that begin anywhere. */
static inline void scaled_quantise_each(void (*check)(struct op_case *c, uint64_t *seed))
{
	static const int64_t shapes[][3] = {{0, 8, 0},   {1, 1, 0},    {3, 8, 8},    {16, 64, 0},  {17, 65, 0},
	                                    {64, 16, 8}, {65, 130, 6}, {130, 40, 0}, {515, 24, 8}, {1030, 3, 1}};
	uint64_t seed = check_seed();
	for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
		for (int k = 0; k < 4; k++) {
			int flags = k | (i / 2 + k) % 2 * SCALED_WIDE | (i % 3 == 1) * SCALED_LARGE | (i + k) / 2 % 2 * SCALED_AMAX;
			enum rh_dtype act = (i + k) % 2 ? RH_BF16 : RH_F32;
			struct op_case c = scaled_quantise_case(act, shapes[i][0], shapes[i][1], shapes[i][2], flags, &seed);
			check(&c, &seed);
		}
	for (int k = 0; k < 3; k++) { /* zeros; one infinity; a NaN among zeros */
		static const int full[] = {SCALED_ZERO, SCALED_NAN, SCALED_ZERO | SCALED_NAN};
		for (int with = 0; with <= SCALED_AMAX; with += SCALED_AMAX) {
			struct op_case c = scaled_quantise_case(RH_BF16, 33, 24, 0, SCALED_Y | SCALED_T | full[k] | with, &seed);
			check(&c, &seed);
		}
	}
}

static inline void scaled_transpose_each(void (*check)(struct op_case *c, uint64_t *seed))
{
	static const int64_t shapes[][3] = {{16, 16, 0}, {16, 80, 16}, {64, 64, 0}, {80, 48, 32}, {144, 208, 0}, {272, 16, 16}};
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		struct op_case c = {.seed = &seed, .op = {.kind = RH_OP_TRANSPOSE}, .exact = 1};
		enum rh_dtype eight = i % 2 ? RH_E5M2 : RH_E4M3;
		struct rh_view x = case_operand(&c, RH_TRANSPOSE_X, eight, shapes[i][0], shapes[i][1], shapes[i][2], FILL_RANDOM);
		for (int64_t r = 0; r < x.rows; r++)
			for (int64_t k = 0; k < x.cols; k++)
				((uint8_t *)x.data)[r * x.stride + k] = (uint8_t)(check_random(&seed) >> 16);
		case_operand(&c, RH_TRANSPOSE_Y, eight, shapes[i][1], shapes[i][0], shapes[i][2], FILL_RANDOM);
		check(&c, &seed);
	}
}

struct scaled_shape {
	int64_t m, n, k, chunk; /* chunk 0: 8-bit operands */
	int trans_a, trans_b, extras;
};
enum { SCALED_ADDS = 1, SCALED_IN_PLACE = 2, SCALED_BIAS = 4, SCALED_F32 = 8, SCALED_GRADIENT = 16, SCALED_POSITIVE = 32 };

static inline void scaled_matrix(struct op_case *c, int operand, const struct scaled_shape *s, int64_t rows, int64_t cols, uint64_t *seed)
{
	enum rh_dtype eight = operand == RH_SCALED_GEMM_A && s->extras & SCALED_GRADIENT ? RH_E5M2 : RH_E4M3;
	int64_t step = s->chunk ? 8 : 16, pad = (step - cols % step) % step + check_random(seed) % 2 * step;
	struct rh_view view = case_operand(c, operand, s->chunk ? RH_BF16 : eight, rows, cols, pad, FILL_RANDOM);
	float limit = s->chunk ? rh_half_limit(s->chunk) : 1, most = 0;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < cols && !s->chunk; i++) {
			float value = check_uniform(seed);
			value = s->extras & SCALED_POSITIVE ? fabsf(value) : value;
			((uint8_t *)view.data)[r * view.stride + i] = eight == RH_E4M3 ? rh_f32_to_e4m3(value) : rh_f32_to_e5m2(value);
		}
	for (int64_t r = 0; r < rows && s->chunk; r++)
		for (int64_t i = 0; i < cols; i++)
			most = fmaxf(most, fabsf((float)case_get(view, r, i)));
	struct rh_view scale = case_operand(c, operand + 2, RH_F32, 1, 1, 0, FILL_RANDOM);
	case_put(scale, 0, 0, s->chunk ? (double)rh_power_scale(most, limit) : ldexp(1, (int)(check_random(seed) % 5) - 2));
}

static inline double scaled_eight_value(struct rh_view view, int64_t row, int64_t col)
{
	uint8_t code = ((const uint8_t *)view.data)[row * view.stride + col];
	return (double)(view.dtype == RH_E4M3 ? rh_e4m3_to_f32(code) : rh_e5m2_to_f32(code));
}

/* Of 8-bit operands: the largest sum of products' magnitudes that an element of d is made of. */
static inline double scaled_magnitude(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_SCALED_GEMM_A], b = op->operand[RH_SCALED_GEMM_B];
	double most = 0;
	for (int64_t m = 0; m < a.rows; m++)
		for (int64_t n = 0; n < b.rows; n++) {
			double sum = 0;
			for (int64_t k = 0; k < a.cols; k++)
				sum += fabs(scaled_eight_value(a, m, k) * scaled_eight_value(b, n, k));
			most = fmax(most, sum);
		}
	return most * (double)op->scaled_gemm.alpha * case_get(op->operand[RH_SCALED_GEMM_SCALE_A], 0, 0) *
	       case_get(op->operand[RH_SCALED_GEMM_SCALE_B], 0, 0);
}

/* Elements within 1 of 0. Sums of 8-bit products are judged by the accumulator that sm_89 and sm_90 have, of 13 to 14 bits: 2^-11 of the
 * magnitudes' sum where signs are mixed; of one sign truncation adds up, which no bar could tell from a fault. What is summed in fp16 is
 * off by a unit of the largest that a chunk's sum can be, each time that it is rounded: the oracle's sum within an instruction is exact,
 * tensor cores' is not. */
static inline struct op_case scaled_gemm_case(const struct scaled_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op = {.kind = RH_OP_SCALED_GEMM, .scaled_gemm = {s->trans_a, s->trans_b, 0.75f, s->chunk}}};
	enum rh_dtype out = s->extras & SCALED_F32 ? RH_F32 : RH_BF16;
	int64_t step = out == RH_F32 ? 4 : 8, pad = (step - s->n % step) % step;
	scaled_matrix(&c, RH_SCALED_GEMM_A, s, s->trans_a ? s->k : s->m, s->trans_a ? s->m : s->k, seed);
	scaled_matrix(&c, RH_SCALED_GEMM_B, s, s->trans_b ? s->n : s->k, s->trans_b ? s->k : s->n, seed);
	case_operand(&c, RH_SCALED_GEMM_D, out, s->m, s->n, pad, s->extras & SCALED_IN_PLACE ? FILL_RANDOM : FILL_POISON);
	if (s->extras & SCALED_IN_PLACE)
		case_alias(&c, RH_SCALED_GEMM_C, RH_SCALED_GEMM_D);
	else if (s->extras & SCALED_ADDS)
		case_operand(&c, RH_SCALED_GEMM_C, out, s->m, s->n, pad + step, FILL_RANDOM);
	if (s->extras & SCALED_BIAS)
		case_operand(&c, RH_SCALED_GEMM_BIAS, RH_BF16, 1, s->n, 0, FILL_RANDOM);
	double steps = (double)(s->k + 15) / 16, chunk = (double)(s->k < s->chunk ? s->k : s->chunk);
	c.tolerance[RH_SCALED_GEMM_D] = s->chunk ? steps * chunk * 0x1p-11 * 0.25 : scaled_magnitude(&c.op) * 0x1p-11;
	return c;
}

/* Around tiles of 128 rows and columns and stages of 32; all ways of lying; chunks that k is no multiple of. */
static const struct scaled_shape scaled_half[] = {
        {1, 8, 8, 32, 0, 1, 0},
        {40, 33, 17, 64, 0, 1, SCALED_BIAS},
        {7, 72, 130, 32, 0, 1, SCALED_ADDS | SCALED_BIAS},
        {130, 136, 200, 64, 0, 1, SCALED_IN_PLACE},
        {129, 8, 72, 96, 0, 0, SCALED_F32},
        {65, 200, 33, 32, 0, 0, SCALED_ADDS},
        {8, 130, 300, 256, 0, 0, SCALED_IN_PLACE},
        {136, 40, 65, 32, 1, 0, SCALED_F32 | SCALED_IN_PLACE},
        {24, 264, 1, 64, 1, 0, SCALED_F32 | SCALED_IN_PLACE},
        {136, 129, 100, 2048, 1, 0, SCALED_F32},
        {1100, 8, 8, 32, 0, 1, 0}, /* more than a band of tiles */
        {130, 530, 70, 64, 0, 1, SCALED_ADDS},
        {130, 300, 40, 32, 0, 0, 0},
};

static const struct scaled_shape scaled_eight[] = {
        {1, 16, 16, 0, 0, 1, 0},
        {7, 48, 32, 0, 0, 1, SCALED_BIAS},
        {33, 16, 80, 0, 0, 1, SCALED_ADDS | SCALED_BIAS},
        {16, 64, 48, 0, 0, 1, SCALED_IN_PLACE | SCALED_GRADIENT},
        {48, 32, 112, 0, 0, 1, SCALED_F32 | SCALED_IN_PLACE | SCALED_GRADIENT},
};

static inline void scaled_gemm_each(const struct scaled_shape *shapes, size_t count, void (*check)(struct op_case *c, uint64_t *seed))
{
	uint64_t seed = check_seed();
	for (size_t i = 0; i < count; i++) {
		struct op_case c = scaled_gemm_case(&shapes[i], &seed);
		check(&c, &seed);
	}
}

#endif
