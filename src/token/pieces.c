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

int pieces_close(struct pieces *pieces, size_t first, int32_t id, size_t leading)
{
	size_t end = pieces->text.length;
	if (first == end && id < 0)
		return 0;
	int rc = rh_grow(&pieces->piece, &pieces->capacity, pieces->count + 1, sizeof *pieces->piece);
	if (!rc)
		pieces->piece[pieces->count++] = (struct piece){first, end, id, leading};
	return rc;
}

int pieces_add(struct pieces *pieces, const char *text, size_t bytes, int32_t id, size_t leading)
{
	size_t first = pieces->text.length;
	int rc = rh_text_append(&pieces->text, text, bytes);
	return rc ? rc : pieces_close(pieces, first, id, leading);
}
