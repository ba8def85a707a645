/* Normalizers, as a flat list applied in order. */
#ifndef RH_TOKEN_NORMALIZE_H
#define RH_TOKEN_NORMALIZE_H

#include "core/text.h"
#include "token/bert.h"
#include "token/pattern.h"

enum normalizer_kind {
	NORMALIZER_NFC,
	NORMALIZER_NFD,
	NORMALIZER_NFKC,
	NORMALIZER_NFKD,
	NORMALIZER_REPLACE,
	NORMALIZER_PREPEND,
	NORMALIZER_STRIP,
	NORMALIZER_LOWERCASE,
	NORMALIZER_BERT, /* one of enum bert_step */
};

struct normalizer {
	enum normalizer_kind kind;
	struct pattern *pattern; /* REPLACE */
	struct rh_text content;  /* REPLACE, PREPEND */
	int left, right;         /* STRIP */
	enum bert_step bert;     /* BERT */
};

struct normalizers {
	struct normalizer *step;
	size_t count, capacity;
};
void normalizers_free(struct normalizers *normalizers);

struct normalize_scratch {
	struct rh_text text[2];
	struct pattern_scratch pattern;
	int32_t *point; /* of a normal form */
	size_t points;
};
void normalize_scratch_free(struct normalize_scratch *scratch);

/* *out is valid until the next call with this scratch (or is `text` itself when nothing changed). *leading, of struct fragment, is kept
 * up. */
int normalize(const struct normalizers *normalizers, struct normalize_scratch *scratch, const char *text, size_t bytes, const char **out,
              size_t *out_bytes, size_t *leading) RH_MUST;

#endif
