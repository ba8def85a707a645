/* Text to token ids and back. Two sources: a Hugging Face tokenizer.json, and the vocabulary inside a GGUF file.
 * The reference is the `tokenizers` library: the same ids for the same text. A tokenizer is immutable once made and may be used
 * from several threads. */
#ifndef RH_TOKEN_TOKENIZER_H
#define RH_TOKEN_TOKENIZER_H

#include "core/text.h"

#include <stdint.h>

struct rh_tokenizer;

struct rh_ids {
	int32_t *id; /* freed with rh_ids_free */
	size_t count, capacity;
};
void rh_ids_free(struct rh_ids *ids);
/* 1: the text spells the beginning-of-sequence token itself, and the post-processor has put another one before it. */
static inline int rh_ids_have_two_bos(const struct rh_ids *ids, int32_t bos)
{
	return bos >= 0 && ids->count > 1 && ids->id[0] == bos && ids->id[1] == bos;
}
/* The message about that, after "... begin " and before the word for what to take the token out of. */
#define RH_TWO_BOS "with the beginning-of-sequence token, and the tokenizer puts another before it, as in transformers; take it out of the "

/* dir/tokenizer.json, with eos_token, bos_token, pad_token, further added tokens and chat_template taken from dir/tokenizer_config.json
 * (and special_tokens_map.json, and chat_template.jinja) where these exist. What is put before and behind a text is what the file's
 * post-processor says; as in transformers 5, add_bos_token and add_eos_token do not change it. -EINVAL names the part of the file that is
 * not supported. */
int rh_tokenizer_load(const char *dir, struct rh_tokenizer **out) RH_MUST;

/* What a GGUF file says of its vocabulary; all borrowed for the call only. Absent: NULL, -1 or 0. */
struct rh_vocabulary {
	const char *where;       /* the file's name, for messages */
	const char *model, *pre; /* tokenizer.ggml.model and .pre */
	size_t tokens;           /* number of entries of the next three; text is not NUL-terminated */
	const char *const *token;
	const size_t *token_bytes;
	const float *score;        /* may be NULL */
	const int32_t *token_type; /* GGUF's: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be NULL */
	size_t merges;
	const char *const *merge; /* "left right" */
	const size_t *merge_bytes;
	int64_t bos, eos, unknown, pad;         /* ids, -1 absent */
	int add_bos, add_eos, add_space_prefix; /* -1 absent */
	const char *chat_template;
	int64_t longest; /* tokens in a text that the model was made for; 0 absent */
};
/* Control and unknown tokens, BOS and EOS become special tokens; those that the file calls user-defined become plain added ones. Of a model
 * `llama` merges are ranked as in transformers (by score, then the longer left part), and add_space_prefix and add_bos are 1 where absent.
 * `vocabulary` may be freed as soon as this returns. */
int rh_tokenizer_from_vocabulary(const struct rh_vocabulary *vocabulary, struct rh_tokenizer **out) RH_MUST;
/* llama.cpp's name (tokenizer.ggml.pre) for the way in which this tokenizer cuts text into words; NULL: it has none here. */
const char *rh_tokenizer_pre(const struct rh_tokenizer *tokenizer);
/* 1: it works as llama.cpp's tokenizer.ggml.model gemma4: pieces with U+2581 for blanks, merges, and bytes for what no piece has. */
int rh_tokenizer_is_gemma4(const struct rh_tokenizer *tokenizer);
/* Writes dir/tokenizer.json and dir/tokenizer_config.json, from which rh_tokenizer_load and transformers' AutoTokenizer make the same
 * tokenizer. Of tokens with the same text only the last is written: a tokenizer.json cannot hold the others. */
int rh_tokenizer_save_vocabulary(const struct rh_vocabulary *vocabulary, const char *dir) RH_MUST;

void rh_tokenizer_destroy(struct rh_tokenizer *tokenizer);

/* Appends the ids of `text`. RH_TOKENS_WITH_SPECIAL runs the post-processor (BOS and the like where the file says so); text that spells a
 * special token becomes that token either way, as in Hugging Face. Text that is not UTF-8 is -EINVAL. */
enum rh_tokens { RH_TOKENS_PLAIN, RH_TOKENS_WITH_SPECIAL };
int rh_tokenizer_encode(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode,
                        struct rh_ids *out) RH_MUST;

/* The first of these ids: at least `most` of them where the text has so many, perhaps some more; 0: all. *is_cut: the text has
 * further ones. */
int rh_tokenizer_encode_first(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, size_t most,
                              struct rh_ids *out, int *is_cut) RH_MUST;

/* Appends the text of `ids`. Ids that are not in the vocabulary are -EINVAL. */
enum rh_specials { RH_SPECIALS_KEEP, RH_SPECIALS_SKIP };
int rh_tokenizer_decode(const struct rh_tokenizer *tokenizer, const int32_t *ids, size_t count, enum rh_specials specials,
                        struct rh_text *out) RH_MUST;

/* The id of a token spelled exactly so, added tokens included; -1 if there is none. */
int32_t rh_tokenizer_id(const struct rh_tokenizer *tokenizer, const char *token);
/* Makes the tokenizer fit a model with an embedding of `rows`: tokens that only files beside tokenizer.json name and that have no row are
 * looked for in no text, and a warning says so. -EINVAL: tokenizer.json itself has more. */
int rh_tokenizer_fit(struct rh_tokenizer *tokenizer, int64_t rows) RH_MUST;
/* Highest id + 1. */
int32_t rh_tokenizer_size(const struct rh_tokenizer *tokenizer);
/* -1 or NULL where the files name none. Strings live as long as the tokenizer. */
int32_t rh_tokenizer_bos(const struct rh_tokenizer *tokenizer);
int32_t rh_tokenizer_eos(const struct rh_tokenizer *tokenizer);
int32_t rh_tokenizer_pad(const struct rh_tokenizer *tokenizer);
int32_t rh_tokenizer_unknown(const struct rh_tokenizer *tokenizer); /* what stands for text that no token has */
/* Makes another token of the vocabulary the end-of-sequence token, a special one; -EINVAL: there is none of that text. Strings that were
 * given out before are gone. */
int rh_tokenizer_set_eos(struct rh_tokenizer *tokenizer, const char *token) RH_MUST;
const char *rh_tokenizer_text(const struct rh_tokenizer *tokenizer, int32_t id);
/* A token that stands for no text: end of turn, end of sequence and the like. */
int rh_tokenizer_is_special(const struct rh_tokenizer *tokenizer, int32_t id);
/* A token that is looked for in the text before the model cuts the rest: each special one, and others that the files add. */
int rh_tokenizer_is_added(const struct rh_tokenizer *tokenizer, int32_t id);
const char *rh_tokenizer_chat_template(const struct rh_tokenizer *tokenizer);
/* Another one in its place; takes `text` over (rh_free). */
void rh_tokenizer_set_chat_template(struct rh_tokenizer *tokenizer, char *text);
/* 1: its template was set so, and is not of its own files. */
int rh_tokenizer_is_chat_template_set(const struct rh_tokenizer *tokenizer);

#endif
