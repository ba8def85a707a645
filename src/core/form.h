/* The forms of weights: how a matrix lies in the host's memory and on NVMe, on its way to a device, and on the device until a product
 * needs it. A plain matrix has the model's dtype: products read it. A packed one keeps the bytes of its file; DEQUANTISE (device/op.h)
 * makes a plain one of it on the device. Its rows of elements lie one after the other, and so do its rows of scales right behind them,
 * where they lie apart. */
#ifndef RH_CORE_FORM_H
#define RH_CORE_FORM_H

#include "core/dtype.h"

/* FORM(name, type of elements, elements of a row that share a scale (0: scales lie inside the blocks), type of scales) */
#define RH_FORM_LIST(FORM)                                                                                                                 \
	FORM(Q4_0, RH_Q4_0, 0, RH_F16)                                                                                                     \
	FORM(Q4_1, RH_Q4_1, 0, RH_F16)                                                                                                     \
	FORM(Q5_0, RH_Q5_0, 0, RH_F16)                                                                                                     \
	FORM(Q5_1, RH_Q5_1, 0, RH_F16)                                                                                                     \
	FORM(Q8_0, RH_Q8_0, 0, RH_F16)                                                                                                     \
	FORM(Q2_K, RH_Q2_K, 0, RH_F16)                                                                                                     \
	FORM(Q3_K, RH_Q3_K, 0, RH_F16)                                                                                                     \
	FORM(Q4_K, RH_Q4_K, 0, RH_F16)                                                                                                     \
	FORM(Q5_K, RH_Q5_K, 0, RH_F16)                                                                                                     \
	FORM(Q6_K, RH_Q6_K, 0, RH_F16)                                                                                                     \
	FORM(IQ4_NL, RH_IQ4_NL, 0, RH_F16)                                                                                                 \
	FORM(IQ4_XS, RH_IQ4_XS, 0, RH_F16)                                                                                                 \
	FORM(MXFP4_BLOCKS, RH_MXFP4, 0, RH_F16)                                                                                            \
	FORM(NVFP4_BLOCKS, RH_NVFP4, 0, RH_F16)                                                                                            \
	FORM(MXFP4, RH_FP4, 32, RH_U8)

#define RH_FORM_NAME(name, element, run, scale) RH_FORM_##name,
enum rh_form { RH_FORM_PLAIN, RH_FORM_LIST(RH_FORM_NAME) RH_FORMS };

/* Of a packed form. */
struct rh_form_traits {
	enum rh_dtype element; /* core/dtype.h has its blocks' elements and bytes */
	int64_t run;           /* the last of a row may be shorter */
	enum rh_dtype scale;
};
const struct rh_form_traits *rh_form_traits(enum rh_form form);

/* The form in which a file's matrix of this type stays packed; RH_FORM_PLAIN: there is none. */
enum rh_form rh_form_of(enum rh_dtype element, int has_scales);

/* Bytes of (rows,cols) in a packed form; cols is a multiple of the element's block. */
int64_t rh_form_element_bytes(enum rh_form form, int64_t rows, int64_t cols);
int64_t rh_form_scale_bytes(enum rh_form form, int64_t rows, int64_t cols);
static inline int64_t rh_form_bytes(enum rh_form form, int64_t rows, int64_t cols)
{
	return rh_form_element_bytes(form, rows, cols) + rh_form_scale_bytes(form, rows, cols);
}

#endif
