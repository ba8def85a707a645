/* A tokenizer whole: added tokens, normalizers, added tokens again, pre-tokenizers, byte-pair encoding, template; and decoders. */
#ifndef RH_TOKEN_TOKENIZER_INTERNAL_H
#define RH_TOKEN_TOKENIZER_INTERNAL_H

#include "token/added.h"
#include "token/bpe.h"
#include "token/decode.h"
#include "token/normalize.h"
#include "token/pretokenize.h"
#include "token/tokenizer.h"
#include "token/word_piece.h"

enum { TEMPLATE_TEXT = -1 }; /* stands for the ids of the text itself */

struct rh_tokenizer {
	struct bpe bpe;
	struct word_piece words;
	struct added added;
	struct normalizers normalizers;
	struct pre_steps pre;
	struct decoders decoders;
	struct rh_ids template; /* what RH_TOKENS_WITH_SPECIAL makes of a text; empty: the text alone */
	int32_t bos, eos, pad;  /* -1: none */
	int32_t own_size;       /* entries without those that files beside tokenizer.json add */
	char *chat_template;
	int is_chat_template_set; /* by rh_tokenizer_set_chat_template */
};

int tokenizer_create(struct rh_tokenizer **out) RH_MUST;

/* Each makes room for a step, zeroed, at the end of its list; *out is valid until the next one. */
int add_normalizer(struct rh_tokenizer *tokenizer, enum normalizer_kind kind, struct normalizer **out) RH_MUST;
int add_pre_step(struct rh_tokenizer *tokenizer, enum pre_kind kind, struct pre_step **out) RH_MUST;
int add_decoder(struct rh_tokenizer *tokenizer, enum decoder_kind kind, struct decoder **out) RH_MUST;

/* BertNormalizer's parts. strips: of accents. */
int add_bert_normalizer(struct rh_tokenizer *tokenizer, int cleans, int parts_chinese, int strips, int lowers) RH_MUST;

/* [bos] text [eos], each if its id is not -1. */
int set_template(struct rh_tokenizer *tokenizer, int32_t bos, int32_t eos) RH_MUST;

#endif
