/* WordPiece: a word is cut from its front into the longest entries of the vocabulary; entries inside a word begin with a prefix. */
#ifndef RH_TOKEN_WORD_PIECE_H
#define RH_TOKEN_WORD_PIECE_H

#include "token/bpe.h"

enum { WORD_PIECE_PREFIX_MOST = 15 };

struct word_piece {
	int is_used; /* 0: the tokenizer is byte-pair encoding */
	char prefix[WORD_PIECE_PREFIX_MOST + 1];
	int64_t most; /* most code points of a word; a longer word becomes the unknown token */
};

/* The vocabulary and the unknown token are those of `bpe`, which has no merges. */
int word_piece_encode(const struct word_piece *words, const struct bpe *bpe, const char *text, size_t bytes, struct rh_ids *out) RH_MUST;

#endif
