/* Matrices made packed while they are read: fp32 rows into the forms of core/form.h. */
#ifndef RH_CKPT_QUANTISE_FORM_H
#define RH_CKPT_QUANTISE_FORM_H

#include "core/form.h"

/* Can matrices be made of this form? */
int rh_may_quantise_form(enum rh_form form);

/* Rows (rows,cols), a multiple of the form's `tall` but at a matrix's end, become elements, and where scales lie apart one number for each:
 * scale (scale_rows, runs) F32. Each element is the nearest that its scale allows; the largest of a run is met but for MXFP4's. */
void rh_form_quantise(enum rh_form form, const float *values, int64_t rows, int64_t cols, void *elements, float *scale);

/* Elements of FP8_JOINT: what QUANTISE (device/op.h) makes of values in bf16 with this scale. */
void rh_form_quantise_joint(const float *values, int64_t count, float scale, uint8_t *out);

/* The numbers of all scales of a matrix as the form stores them: scales and tail. Nested ones become the nearest of bitsandbytes' dynamic
 * map, after their mean was taken off. */
void rh_form_store_scales(enum rh_form form, int64_t rows, int64_t cols, const float *scale, void *scales, void *tail);

#endif
