/* The parts of tokenizer.json but its model, from their JSON, and the files beside it. `where` names the file; -EINVAL names the part that
 * is not supported. */
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

/* The flags (enum added_flags) of an added token. Of those that are absent, which `need` allows, all are off, but `normalized` is on for a
 * token that is not special, as in the tokenizers library. */
int load_added_flags(const json_t *token, const char *where, enum rh_json_need need, unsigned *flags) RH_MUST;
/* Adds a token with the id that it has, or else the next free one; the user is told where `id` is another. */
int load_added_token(struct rh_tokenizer *tokenizer, const json_t *token, int64_t id, unsigned flags, const char *where) RH_MUST;

/* Tells the user where an added token did not get the id that its file gives it. */
void warn_of_other_id(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, int64_t id, const char *where);

/* What tokenizer_config.json, special_tokens_map.json, added_tokens.json and chat_template.jinja say, where they are there. After the added
 * tokens. */
int load_config(struct rh_tokenizer *tokenizer, const char *dir) RH_MUST;

/* The tokenizer of dir/vocab.txt, BERT's; *found 0: there is no such file. */
int load_vocabulary_list(struct rh_tokenizer *tokenizer, const char *dir, int *found) RH_MUST;

#endif
