/* A tokenizer small enough to predict by eye: one id a byte, but two newlines are one token (so a token can reach across a border), and
 * five special tokens. It stands in for src/token/, all of whose functions that src/data/ calls are defined here. */
#ifndef RH_TESTS_DATA_FAKE_TOKENIZER_H
#define RH_TESTS_DATA_FAKE_TOKENIZER_H

#include "core/alloc.h"
#include "token/tokenizer.h"

#include <string.h>

enum { FAKE_TWO_NEWLINES = 256, FAKE_FIRST_SPECIAL, FAKE_IM_START = FAKE_FIRST_SPECIAL, FAKE_IM_END, FAKE_BOS, FAKE_EOS, FAKE_END };
static const char *const fake_special[] = {"<|im_start|>", "<|im_end|>", "<s>", "</s>"};

struct rh_tokenizer {
	int adds_bos, has_eos;
	const char *chat_template;
	const char *const *more; /* further special tokens, NULL-terminated; NULL: none */
	const char *bos, *eos;   /* NULL: <s> and </s> */
};

/* The special token of this id, NULL: none. */
static const char *fake_name(const struct rh_tokenizer *tokenizer, int32_t id)
{
	if (id >= FAKE_FIRST_SPECIAL && id < FAKE_END)
		return fake_special[id - FAKE_FIRST_SPECIAL];
	for (int32_t i = FAKE_END; tokenizer->more && i <= id; i++)
		if (!tokenizer->more[i - FAKE_END] || i == id)
			return tokenizer->more[i - FAKE_END];
	return NULL;
}

void rh_ids_free(struct rh_ids *ids)
{
	rh_free(ids->id);
	*ids = (struct rh_ids){0};
}

static int fake_push(struct rh_ids *ids, int32_t id)
{
	int rc = rh_grow(&ids->id, &ids->capacity, ids->count + 1, sizeof *ids->id);
	if (!rc)
		ids->id[ids->count++] = id;
	return rc;
}

int rh_tokenizer_encode_first(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, size_t most,
                              struct rh_ids *out, int *is_cut)
{
	size_t before = out->count;
	int rc = tokenizer->adds_bos && mode == RH_TOKENS_WITH_SPECIAL ? fake_push(out, FAKE_BOS) : 0;
	*is_cut = 0;
	for (size_t at = 0; !rc && !*is_cut && at < bytes;) {
		size_t taken = 1;
		int32_t id = (unsigned char)text[at];
		if (at + 1 < bytes && !memcmp(text + at, "\n\n", 2)) {
			taken = 2;
			id = FAKE_TWO_NEWLINES;
		}
		const char *name;
		for (int32_t i = FAKE_FIRST_SPECIAL; (name = fake_name(tokenizer, i)); i++)
			if (bytes - at >= strlen(name) && !memcmp(text + at, name, strlen(name))) {
				taken = strlen(name);
				id = i;
			}
		rc = fake_push(out, id);
		at += taken;
		*is_cut = most && out->count - before >= most && at < bytes;
	}
	return rc;
}

int rh_tokenizer_encode(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, struct rh_ids *out)
{
	int is_cut;
	return rh_tokenizer_encode_first(tokenizer, text, bytes, mode, 0, out, &is_cut);
}

int32_t rh_tokenizer_size(const struct rh_tokenizer *tokenizer)
{
	(void)tokenizer;
	return FAKE_END;
}

int32_t rh_tokenizer_id(const struct rh_tokenizer *tokenizer, const char *token)
{
	const char *name;
	for (int32_t i = FAKE_FIRST_SPECIAL; (name = fake_name(tokenizer, i)); i++)
		if (!strcmp(token, name))
			return i;
	return -1;
}

int rh_tokenizer_is_special(const struct rh_tokenizer *tokenizer, int32_t id)
{
	return fake_name(tokenizer, id) != NULL;
}

int32_t rh_tokenizer_bos(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->bos ? rh_tokenizer_id(tokenizer, tokenizer->bos) : tokenizer->adds_bos ? FAKE_BOS : -1;
}

int32_t rh_tokenizer_eos(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->eos ? rh_tokenizer_id(tokenizer, tokenizer->eos) : tokenizer->has_eos ? FAKE_EOS : -1;
}

const char *rh_tokenizer_text(const struct rh_tokenizer *tokenizer, int32_t id)
{
	return fake_name(tokenizer, id);
}

int rh_tokenizer_decode(const struct rh_tokenizer *tokenizer, const int32_t *ids, size_t count, enum rh_specials specials,
                        struct rh_text *out)
{
	int rc = 0;
	(void)specials;
	for (size_t i = 0; !rc && i < count; i++) {
		const char *name = fake_name(tokenizer, ids[i]), byte = (char)ids[i];
		rc = name ? rh_text_printf(out, "%s", name)
		          : rh_text_append(out, ids[i] == FAKE_TWO_NEWLINES ? "\n\n" : &byte, ids[i] == FAKE_TWO_NEWLINES ? 2 : 1);
	}
	return rc;
}

int rh_tokenizer_is_chat_template_set(const struct rh_tokenizer *tokenizer)
{
	(void)tokenizer;
	return 0;
}

const char *rh_tokenizer_chat_template(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->chat_template;
}

#endif
