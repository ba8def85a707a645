#include "token/pieces.h"

#include "core/alloc.h"

void pieces_free(struct pieces *pieces)
{
	rh_text_free(&pieces->text);
	rh_free(pieces->piece);
	*pieces = (struct pieces){0};
}

void pieces_clear(struct pieces *pieces)
{
	pieces->text.length = 0;
	pieces->count = 0;
}

int pieces_close(struct pieces *pieces, size_t first)
{
	int rc = rh_grow(&pieces->piece, &pieces->capacity, pieces->count + 1, sizeof *pieces->piece);
	if (!rc)
		pieces->piece[pieces->count++] = (struct piece){first, pieces->text.length};
	return rc;
}

int pieces_add(struct pieces *pieces, const char *text, size_t bytes)
{
	size_t first = pieces->text.length;
	int rc = rh_text_append(&pieces->text, text, bytes);
	return rc ? rc : pieces_close(pieces, first);
}
