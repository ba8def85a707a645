/* Decoders, as a flat list: each turns the texts of the tokens into other texts; in the end they are put together. */
#ifndef RH_TOKEN_DECODE_H
#define RH_TOKEN_DECODE_H

#include "token/pattern.h"
#include "token/pieces.h"

enum decoder_kind {
	DECODER_BYTE_LEVEL,
	DECODER_METASPACE,
	DECODER_BYTE_FALLBACK,
	DECODER_FUSE,
	DECODER_REPLACE,
	DECODER_STRIP,
	DECODER_WORD_PIECE,
};

struct decoder {
	enum decoder_kind kind;
	struct pattern *pattern; /* REPLACE */
	struct rh_text content;  /* REPLACE; WORD_PIECE: the prefix of what goes on a word */
	int cleans;              /* WORD_PIECE: no blanks before punctuation and behind apostrophes */
	uint32_t point;          /* METASPACE: its replacement; STRIP: what to strip */
	int drop_first;          /* METASPACE: the first token's replacements vanish instead of becoming blanks */
	int64_t start, stop;     /* STRIP: at most so many of them */
};

struct decoders {
	struct decoder *step;
	size_t count, capacity;
	int present; /* 0: the file names no decoder, and texts are put together with blanks between them */
};
void decoders_free(struct decoders *decoders);

/* Runs the steps on *texts and appends what comes out; *other is room for every second result. */
int decode_texts(const struct decoders *decoders, struct pieces *texts, struct pieces *other, struct rh_text *out) RH_MUST;

#endif
