/* DEQUANTISE of every type: random bytes, scales that are infinite, not a number or subnormal among them. */
#ifndef RH_TESTS_DEVICE_DEQUANTISE_CASE_H
#define RH_TESTS_DEVICE_DEQUANTISE_CASE_H

#include "op_case.h"

static const enum rh_dtype dequantise_types[] = {RH_Q4_0, RH_Q4_1, RH_Q5_0,    RH_Q5_1,   RH_Q8_0,   RH_Q2_K,  RH_Q3_K,
                                                 RH_Q4_K, RH_Q5_K, RH_Q6_K,    RH_IQ4_NL, RH_IQ4_XS, RH_MXFP4, RH_NVFP4,
                                                 RH_I8,   RH_E4M3, RH_BNB_FP4, RH_NF4,    RH_FP4};
enum { DEQUANTISE_TYPES = sizeof dequantise_types / sizeof *dequantise_types };

struct dequantise_shape {
	enum rh_dtype type, act;
	int64_t rows, cols, pad; /* cols: rounded up to whole blocks */
	int64_t run;             /* of types whose scales lie apart */
	int nested;              /* those of NF4 are quantised themselves; those of FP4 have factors */
	int64_t tall;            /* rows that share a scale; 0: 1 */
	int64_t named;           /* rows that an index names; 0: there is no index */
};

static inline struct op_case dequantise_case(const struct dequantise_shape *s, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_DEQUANTISE, .exact = 1};
	const enum rh_dtype type = s->type;
	int64_t block = rh_dtype_block(type), rows = s->rows, cols = (s->cols + block - 1) / block * block, pad = s->pad;
	case_operand(&c, RH_DEQUANTISE_X, type, rows, cols, pad * block, FILL_RANDOM);
	case_operand(&c, RH_DEQUANTISE_Y, s->act, s->named ? s->named : rows, cols, pad, FILL_POISON);
	if (s->named) {
		struct rh_view index = case_operand(&c, RH_DEQUANTISE_INDEX, RH_I32, s->named, 1, 0, FILL_NONE);
		for (int64_t r = 0; r < s->named; r++)
			case_put(index, r, 0, (double)case_between(seed, 0, rows - 1));
	}
	if (type < RH_Q4_0) {
		int64_t runs = (cols + s->run - 1) / s->run, tall = s->tall ? s->tall : 1, scale_rows = (rows + tall - 1) / tall;
		c.op.dequantise.run = s->run;
		c.op.dequantise.tall = tall;
		c.op.dequantise.unit = type == RH_I8 ? 1 / 127.0f : 0;
		int factors = type == RH_FP4 && s->nested;
		case_operand(&c, RH_DEQUANTISE_SCALE,
		             factors                       ? RH_E4M3
		             : type == RH_FP4 || s->nested ? RH_U8
		                                           : RH_F32,
		             scale_rows, runs, pad, FILL_RANDOM);
		if (factors) {
			case_operand(&c, RH_DEQUANTISE_NESTED, RH_F32, 1, 2, 0, FILL_RANDOM);
		} else if (s->nested) {
			case_operand(&c, RH_DEQUANTISE_NESTED, RH_F32, 1, (scale_rows * runs + 255) / 256, 0, FILL_RANDOM);
			case_operand(&c, RH_DEQUANTISE_MAP, RH_F32, 1, RH_NESTED_MAP, 0, FILL_RANDOM);
		}
	}
	return c;
}

/* Lengths around 8 values a thread, a tile of 2048 and one of 4096; runs that divide a row and that do not; rows apart and as one. */
static inline void dequantise_each(void (*check)(struct op_case *c, uint64_t *seed))
{
	static const int64_t lengths[] = {1, 9, 64, 250, 512, 2040, 2049, 4100};
	static const int64_t runs[] = {8, 32, 64, 128, 4104};
	uint64_t seed = check_seed();
	for (int t = 0; t < DEQUANTISE_TYPES; t++) {
		for (int i = 0; i < 8; i++) {
			struct dequantise_shape s = {
			        .type = dequantise_types[t], .act = (t + i / 4) % 2 ? RH_BF16 : RH_F32, .cols = lengths[i]};
			s.rows = i == 5 ? 0 : case_between(&seed, 1, 5);
			s.pad = i % 3 == 1 ? case_between(&seed, 1, 9) : 0;
			s.nested = (s.type == RH_NF4 || s.type == RH_BNB_FP4 || s.type == RH_FP4) && i % 2;
			s.run = s.type == RH_FP4 ? s.nested ? 16 : 32 : runs[check_random(&seed) % 5];
			s.tall = s.type == RH_E4M3 ? case_between(&seed, 1, 4) : 0;
			s.named = s.rows && i % 3 == 0 ? case_between(&seed, 1, 9) : 0;
			struct op_case c = dequantise_case(&s, &seed);
			check(&c, &seed);
		}
	}
}

#endif
