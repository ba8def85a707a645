/* One model out of the parts that several boxes have trained. */
#ifndef RH_CKPT_JOIN_H
#define RH_CKPT_JOIN_H

#include "core/error.h"

#include <stdint.h>

/* Makes `dir` and writes one model to it: the tensors of all directories, with config.json and tokenizer of the first. *tensors: their
 * number. -EINVAL: two hold one tensor, or none holds one that config.json asks for. Nothing is written then. */
int rh_join(const char *const *part, int parts, const char *dir, int64_t *tensors) RH_MUST;

#endif
