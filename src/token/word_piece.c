#include "token/word_piece.h"

#include "token/unicode.h"

#include <string.h>

static int64_t count_points(const char *text, size_t bytes)
{
	int64_t points = 0;
	for (size_t i = 0; i < bytes; i++)
		points += ((unsigned char)text[i] & 0xC0) != 0x80;
	return points;
}

/* The longest entry at the front of `text`; *length of its bytes there, or -1. */
static int32_t longest_entry(const struct word_piece *words, const struct vocab *vocab, const char *text, size_t bytes, int is_first,
                             struct rh_text *key, size_t *length)
{
	size_t prefix = is_first ? 0 : strlen(words->prefix);
	key->length = 0;
	*length = 0;
	int rc = rh_text_append(key, words->prefix, prefix);
	if (!rc)
		rc = rh_text_append(key, text, bytes);
	if (rc)
		return rc;
	uint32_t point;
	for (size_t end = bytes; end > 0; end -= utf8_before(text, end, &point)) {
		int32_t id = vocab_find(vocab, key->bytes, prefix + end);
		if (id < 0)
			continue;
		*length = end;
		return id;
	}
	return 0;
}

static int add_unknown(const struct bpe *bpe, struct rh_ids *out)
{
	if (bpe->unknown_id < 0)
		return rh_fail(-EINVAL, "the unknown token '%s' of the tokenizer is not in its vocabulary",
		               bpe->unknown ? bpe->unknown : "");
	return ids_add(out, bpe->unknown_id);
}

int word_piece_encode(const struct word_piece *words, const struct bpe *bpe, const char *text, size_t bytes, struct rh_ids *out)
{
	size_t before = out->count, length = 0;
	struct rh_text key = {0};
	int rc = 0;
	if (count_points(text, bytes) > words->most)
		return add_unknown(bpe, out);
	for (size_t at = 0; at < bytes && !rc; at += length) {
		int32_t id = longest_entry(words, &bpe->vocab, text + at, bytes - at, at == 0, &key, &length);
		if (id < 0) {
			rc = id;
		} else if (length == 0) { /* no entry goes on: the word is unknown whole */
			out->count = before;
			rc = add_unknown(bpe, out);
			break;
		} else {
			rc = ids_add(out, id);
		}
	}
	rh_text_free(&key);
	return rc;
}
