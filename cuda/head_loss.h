/* The part of HEAD_LOSS (device/op.h) that is no product. */
#ifndef RH_CUDA_HEAD_LOSS_H
#define RH_CUDA_HEAD_LOSS_H

#include "device/op.h"

struct CUstream_st;

enum head_gradient { HEAD_LOSS_ONLY, HEAD_GRADIENT_F32, HEAD_GRADIENT_BF16 };

/* Rows of logits (r,V) F32 and their targets, losses and hits (r,1). The logits become scale * (softmax - one at the target): as F32, or
 * rounded to BF16 in the first half of each row; times the row's weight, where there is mix (r,1). With distillation also the teachers
 * (r,V) and the weights of both losses, mix (r,2), and the gradient is that of their sum. top k > 0: teachers and shares are (r,2k). Where
 * there is a cap, logits count as cap tanh(logit / cap), and the gradient is theirs before that. */
struct head_rows {
	struct rh_view logits, target, loss, hit, teacher, mix, shares;
	int64_t top;
	float scale, temperature, cap; /* cap 0: none; only without a teacher and shares */
	enum rh_divergence divergence;
	enum head_gradient gradient;
};

#ifdef __cplusplus
extern "C" {
#endif

int cuda_head_rows(const struct head_rows *rows, struct CUstream_st *stream);   /* without a teacher */
int cuda_distil_rows(const struct head_rows *rows, struct CUstream_st *stream); /* with one: distil.cu */
/* distil_top.cu: with one of top shares; and writes the shares, of logits that stay. */
int cuda_distil_top_rows(const struct head_rows *rows, struct CUstream_st *stream);
int cuda_top_rows(const struct head_rows *rows, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
