/* BERT's normalizer and pre-tokenizer, equal to those of `tokenizers` for every code point (bert_table.inc). */
#ifndef RH_TOKEN_BERT_H
#define RH_TOKEN_BERT_H

#include "core/text.h"
#include "token/fragment.h"

/* Each appends to `out`; *leading, of struct fragment, is kept up. */
enum bert_step {
	BERT_CLEAN,   /* control characters vanish, white space becomes blanks */
	BERT_CHINESE, /* ideographs stand between blanks */
	BERT_MARKS    /* combining marks vanish; after NFD */
};
int bert_normalize(enum bert_step step, const char *text, size_t bytes, struct rh_text *out, size_t *leading) RH_MUST;

/* Cuts at white space, which vanishes, and around punctuation. */
int bert_cut(const char *text, size_t bytes, size_t leading, const struct fragment_sink *out) RH_MUST;

/* Punctuation as the library has it: of ASCII or by its category. */
int bert_is_punctuation(uint32_t point);

#endif
