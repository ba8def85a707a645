/* The forms of weights: how a matrix lies in the host's memory and on NVMe, on its way to a device, and on the device until a product
 * needs it. A plain matrix has the model's dtype: products read it. A packed one keeps the bytes of its file, or is made while a file is
 * loaded; DEQUANTISE (device/op.h) makes a plain one of it on the device. Its rows of elements lie one after the other. Where scales lie
 * apart they follow, row after row, and then what the scales themselves are made of; each of the three begins on 4 bytes.
 * FP8_JOINT is what 8-bit products read as it is: tensors that one product reads lie back to back, and behind the last is the one scale of
 * all, the power of two that QUANTISE (device/op.h) would make. */
#ifndef RH_CORE_FORM_H
#define RH_CORE_FORM_H

#include "core/dtype.h"

/* What follows the scales.
 * FACTORS: two F32. Each scale is worth (its number * the first) / the second.
 * NESTED: scales are numbers of a map; for each 256 of them an F32 factor, then the map's 256 F32 values, then an F32 sum: scale i is
 * map[i] * factor + that. */
enum rh_form_tail { RH_TAIL_NONE, RH_TAIL_FACTORS, RH_TAIL_NESTED };
enum { RH_FACTORS = 2, RH_NESTED_RUN = 256, RH_NESTED_MAP = 257 };

/* What one of int8's 127 steps is worth, as bitsandbytes has it. */
#define RH_INT8_UNIT 7.874015718698502e-3f

/* A run as long as any row, or a column as tall as any matrix. */
#define RH_FORM_ALL ((int64_t)1 << 40)

/* FORM(name, as it is called, type of elements, elements of a row that share a scale (0: scales lie inside the blocks), rows that share
 * one, type of scales, tail). Those with scales inside come first. */
#define RH_FORM_LIST(FORM)                                                                                                                 \
	FORM(Q4_0, "q4_0", RH_Q4_0, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q4_1, "q4_1", RH_Q4_1, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q5_0, "q5_0", RH_Q5_0, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q5_1, "q5_1", RH_Q5_1, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q8_0, "q8_0", RH_Q8_0, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q2_K, "q2_k", RH_Q2_K, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q3_K, "q3_k", RH_Q3_K, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q4_K, "q4_k", RH_Q4_K, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q5_K, "q5_k", RH_Q5_K, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(Q6_K, "q6_k", RH_Q6_K, 0, 1, RH_F16, RH_TAIL_NONE)                                                                            \
	FORM(IQ4_NL, "iq4_nl", RH_IQ4_NL, 0, 1, RH_F16, RH_TAIL_NONE)                                                                      \
	FORM(IQ4_XS, "iq4_xs", RH_IQ4_XS, 0, 1, RH_F16, RH_TAIL_NONE)                                                                      \
	FORM(MXFP4_BLOCKS, "mxfp4 in blocks", RH_MXFP4, 0, 1, RH_F16, RH_TAIL_NONE)                                                        \
	FORM(NVFP4_BLOCKS, "nvfp4 in blocks", RH_NVFP4, 0, 1, RH_F16, RH_TAIL_NONE)                                                        \
	FORM(MXFP4, "mxfp4", RH_FP4, 32, 1, RH_U8, RH_TAIL_NONE)                                                                           \
	FORM(NVFP4, "nvfp4", RH_FP4, 16, 1, RH_E4M3, RH_TAIL_FACTORS)                                                                      \
	FORM(NF4, "nf4", RH_NF4, 64, 1, RH_F32, RH_TAIL_NONE)                                                                              \
	FORM(NF4_NESTED, "nf4, nested", RH_NF4, 64, 1, RH_U8, RH_TAIL_NESTED)                                                              \
	FORM(BNB_FP4, "fp4", RH_BNB_FP4, 64, 1, RH_F32, RH_TAIL_NONE)                                                                      \
	FORM(BNB_FP4_NESTED, "fp4, nested", RH_BNB_FP4, 64, 1, RH_U8, RH_TAIL_NESTED)                                                      \
	FORM(INT8, "int8", RH_I8, RH_FORM_ALL, 1, RH_F32, RH_TAIL_NONE)                                                                    \
	FORM(FP8_BLOCKS, "fp8 in blocks", RH_E4M3, 128, 128, RH_F32, RH_TAIL_NONE)                                                         \
	FORM(FP8, "fp8", RH_E4M3, RH_FORM_ALL, RH_FORM_ALL, RH_F32, RH_TAIL_NONE)                                                          \
	FORM(FP8_JOINT, "fp8, one scale a product", RH_E4M3, RH_FORM_ALL, RH_FORM_ALL, RH_F32, RH_TAIL_NONE)

#define RH_FORM_NAME(name, ...) RH_FORM_##name,
enum rh_form { RH_FORM_PLAIN, RH_FORM_LIST(RH_FORM_NAME) RH_FORMS };

/* Of a packed form. */
struct rh_form_traits {
	const char *name;
	enum rh_dtype element; /* core/dtype.h has its blocks' elements and bytes */
	int64_t run, tall;     /* the last of a row, or of a column, may be shorter */
	enum rh_dtype scale;
	enum rh_form_tail tail;
};
const struct rh_form_traits *rh_form_traits(enum rh_form form);

/* The form in which a file's matrix of this type, with scales inside, stays packed; RH_FORM_PLAIN: there is none. */
enum rh_form rh_form_of(enum rh_dtype element);
/* May rows of so many elements be in it? */
int rh_form_takes(enum rh_form form, int64_t cols);

/* Of (rows,cols) in a packed form; cols is a multiple of the element's block. Scales are (scale_rows, runs). */
int64_t rh_form_runs(enum rh_form form, int64_t cols);
int64_t rh_form_scale_rows(enum rh_form form, int64_t rows);
int64_t rh_form_element_bytes(enum rh_form form, int64_t rows, int64_t cols);
int64_t rh_form_scale_bytes(enum rh_form form, int64_t rows, int64_t cols);
int64_t rh_form_tail_bytes(enum rh_form form, int64_t rows, int64_t cols);
/* Where scales and tail begin, and all bytes. */
int64_t rh_form_scales_at(enum rh_form form, int64_t rows, int64_t cols);
int64_t rh_form_tail_at(enum rh_form form, int64_t rows, int64_t cols);
int64_t rh_form_bytes(enum rh_form form, int64_t rows, int64_t cols);

#endif
