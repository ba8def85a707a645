/* Rows for a person to look at: what the model will see, token by token. */
#ifndef RH_DATA_PREVIEW_H
#define RH_DATA_PREVIEW_H

#include "data/dataset.h"

/* A run of tokens whose text can be shown: one token, or those that share a character. */
struct rh_preview_piece {
	size_t text, bytes;  /* in rh_preview.text */
	size_t first, count; /* tokens */
	int trained;         /* counts in the loss */
	int special;
	int cut; /* lies beyond max_length */
};
struct rh_preview {
	const char *where;  /* "file:line" */
	const int32_t *ids; /* (tokens) */
	const char *answer; /* which it is of a row's two: "chosen", "rejected"; or "good", "bad". NULL: the row is no preference */
	int64_t tokens, trained;
	int64_t label;                        /* of a row that a label is learned of; -1: none */
	int64_t kept;                         /* tokens within max_length */
	int64_t shown;                        /* tokens that the pieces show */
	const char *text;                     /* UTF-8, may hold NUL */
	size_t text_bytes;
	const struct rh_preview_piece *piece; /* (pieces) */
	size_t pieces;
};

/* Which rows: the first `rows` of each file of `part`, as they are made for `objective`; at most `most` tokens of each in pieces. */
struct rh_preview_wish {
	enum rh_dataset_part part;
	const struct rh_config *config;
	const struct rh_objective *objective;
	const struct rh_tokenizer *tokenizer;
	int64_t rows, most;
};
/* Calls `show` with each row, which it borrows. A negative errno from `show` ends the walk. */
int rh_dataset_preview(const struct rh_preview_wish *wish, int (*show)(void *context, const struct rh_preview *row), void *context) RH_MUST;

#endif
