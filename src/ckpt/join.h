/* One model out of the parts that several boxes have trained. */
#ifndef RH_CKPT_JOIN_H
#define RH_CKPT_JOIN_H

#include "core/error.h"

#include <stdint.h>

/* Writes to `dir`, which is made, what the directories hold together: weights, and the first one's config.json and tokenizer. *tensors:
 * how many. -EINVAL: two hold one tensor, or none holds one that config.json asks for. Nothing is written then. */
int rh_join(const char *const *part, int parts, const char *dir, int64_t *tensors) RH_MUST;

#endif
