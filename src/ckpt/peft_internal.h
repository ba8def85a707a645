/* PEFT's patterns of module names. */
#ifndef RH_CKPT_PEFT_INTERNAL_H
#define RH_CKPT_PEFT_INTERNAL_H

#include "ckpt/peft.h"

/* How much of the name a pattern of PEFT's has to cover: all of it (re.fullmatch), or all that follows some dot or the start
 * (PEFT's get_pattern_key: "(.*\.)?(pattern)$"). */
enum peft_span { PEFT_WHOLE, PEFT_SUFFIX };

/* 1, 0, or -EINVAL for a pattern that does not compile or gives up on this name. */
int peft_match(const char *pattern, enum peft_span span, const char *name) RH_MUST;

#endif
