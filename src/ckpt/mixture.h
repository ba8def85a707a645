/* Which type each tensor of a written GGUF file has. */
#ifndef RH_CKPT_MIXTURE_H
#define RH_CKPT_MIXTURE_H

#include "core/dtype.h"
#include "model/config.h"

/* llama.cpp's number of a file whose matrices are of this type (general.file_type), and its name: Q4_K and Q5_K stand for the mixtures
 * Q4_K_M and Q5_K_M, MXFP4 for files whose experts are in it. */
int64_t rh_gguf_file_type(enum rh_dtype dtype);
const char *rh_gguf_file_type_name(enum rh_dtype dtype);

/* Whether a file of this type is such a mixture, or Q6_K's. */
int rh_is_k_mixture(enum rh_dtype dtype);

/* The type of a matrix with rows of `cols` elements, by its name in the file, of a file of type `dtype`. F16 where a row is no multiple of
 * the blocks, as llama.cpp's converter has it. Of Q4_K, Q5_K and Q6_K what llama.cpp's llama-quantize takes without an importance matrix:
 * more bits for the head and for some layers' values and down projections, F32 for positions and some small matrices, and other types for
 * rows that are no multiple of 256. F32 for routers, convolutions, biases and factors. */
enum rh_dtype rh_gguf_type_of(enum rh_dtype dtype, const struct rh_model_config *config, const char *stored, int64_t cols);

#endif
