/* A text cut into pieces on its way to ids: some are tokens already, the others are text yet to be cut further. Decoding uses the same
 * for the texts of its tokens. */
#ifndef RH_TOKEN_PIECES_H
#define RH_TOKEN_PIECES_H

#include "core/text.h"

#include <stdint.h>

struct piece {
	size_t first, end; /* bytes of pieces.text */
	int32_t id;        /* -1: text */
	/* How many of its leading bytes stem from the very first character of what the user gave. Above 0 only in the piece (or pieces, if
	 * that character became several) at the start, which is what Metaspace's scheme `first` asks for. */
	size_t leading;
};

struct pieces {
	struct rh_text text;
	struct piece *piece;
	size_t count, capacity;
};
void pieces_free(struct pieces *pieces);
void pieces_clear(struct pieces *pieces);

/* Appends a copy of `text`; an empty one is dropped unless it is a token. */
int pieces_add(struct pieces *pieces, const char *text, size_t bytes, int32_t id, size_t leading) RH_MUST;
/* Makes a piece of what was appended to pieces->text since it was `first` bytes long. */
int pieces_close(struct pieces *pieces, size_t first, int32_t id, size_t leading) RH_MUST;

/* `leading` of the part [first, end) of a piece. */
static inline size_t piece_leading(size_t leading, size_t first, size_t end)
{
	return leading <= first ? 0 : leading < end ? leading - first : end - first;
}

#endif
