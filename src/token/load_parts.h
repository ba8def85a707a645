/* The parts of tokenizer.json but its model, from their JSON. `where` names the file; -EINVAL names the part that is not supported. */
#ifndef RH_TOKEN_LOAD_PARTS_H
#define RH_TOKEN_LOAD_PARTS_H

#include "core/json.h"
#include "token/tokenizer_internal.h"

/* A part that is NULL or null is absent. */
int load_normalizer(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth) RH_MUST;
int load_pre_tokenizer(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth) RH_MUST;
int load_decoder(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth) RH_MUST;
/* After the vocabulary and the added tokens. */
int load_post_processor(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth) RH_MUST;

/* The tokenizer of dir/vocab.txt, BERT's; *found 0: there is no such file. */
int load_vocabulary_list(struct rh_tokenizer *tokenizer, const char *dir, int *found) RH_MUST;

#endif
