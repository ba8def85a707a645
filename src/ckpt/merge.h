/* An adapter merged into its base, in fp32 arithmetic; or a model as it stands, in another form. */
#ifndef RH_CKPT_MERGE_H
#define RH_CKPT_MERGE_H

#include "config/task.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/json.h"

#include <stdint.h>

struct rh_merge {
	const char *model;      /* a Hugging Face directory or a .gguf file */
	const char *adapter;    /* a PEFT directory; NULL: none */
	const char *dir;        /* a Hugging Face model directory to write, or */
	const char *gguf;       /* a GGUF file to write */
	enum rh_task_kind task; /* of the merged model; RH_TASK_UNSET, or 0 labels: as the files have it */
	int64_t num_labels;
	const json_t *rope_scaling; /* in place of config.json's; NULL: config.json's */
	enum rh_dtype dtype;        /* of matrices: F32, F16 or BF16; of a GGUF also Q8_0, Q4_0, and the mixtures of ckpt/mixture.h */
	int threads;                /* that round; 0: one. The bits are the same */
	int as_model;               /* in place of dtype: F32 or F16 where most of the model's own matrices are that, else BF16 */
};
struct rh_merged {
	int64_t tensors;
	enum rh_dtype dtype;
	int64_t matrices, as_f16, as_mxfp4; /* of these: how many are F16 in place of dtype, or MXFP4 as the model has them */
};
/* Each matrix is W + scale * B A, summed in fp32, then rounded once to the type. Vectors of a GGUF are F32, and a row that a block
 * type cannot hold is of another one. -EINVAL: adapter tensors that fit no module, a head that neither the model nor the adapter has, a
 * vocabulary that no GGUF of ours can hold. */
int rh_merge(const struct rh_merge *merge, struct rh_merged *out) RH_MUST;

#endif
