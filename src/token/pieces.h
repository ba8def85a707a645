/* Texts one after another, such as those of the tokens that are decoded. */
#ifndef RH_TOKEN_PIECES_H
#define RH_TOKEN_PIECES_H

#include "core/text.h"

struct piece {
	size_t first, end; /* bytes of pieces.text */
};

struct pieces {
	struct rh_text text;
	struct piece *piece;
	size_t count, capacity;
};
void pieces_free(struct pieces *pieces);
void pieces_clear(struct pieces *pieces);

/* Appends a copy of `text`, which may be empty. */
int pieces_add(struct pieces *pieces, const char *text, size_t bytes) RH_MUST;
/* Makes a piece of what was appended to pieces->text since it was `first` bytes long. */
int pieces_close(struct pieces *pieces, size_t first) RH_MUST;

#endif
