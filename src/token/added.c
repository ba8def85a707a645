#include "token/added.h"

#include "core/alloc.h"
#include "token/pieces.h"

#include <string.h>

static void trie_free(struct added_trie *trie)
{
	rh_free(trie->edge);
	rh_free(trie->child);
	rh_free(trie->token);
	*trie = (struct added_trie){0};
}

void added_free(struct added *added)
{
	trie_free(&added->plain);
	trie_free(&added->normalized);
	vocab_free(&added->contents);
	rh_text_free(&added->text);
	rh_free(added->token);
	rh_free(added->by_id);
	*added = (struct added){0};
}

static size_t find_edge(const struct added_trie *trie, uint64_t edge)
{
	uint64_t hash = edge * 0x9E3779B97F4A7C15ull;
	size_t mask = trie->slots - 1, at = (hash ^ hash >> 32) & mask;
	while (trie->edge[at] != edge && trie->edge[at])
		at = (at + 1) & mask;
	return at;
}

static int trie_reserve(struct added_trie *trie, size_t bytes)
{
	size_t slots = 64;
	while (slots < bytes * 2 + 2)
		slots *= 2;
	trie->edge = rh_alloc(slots, sizeof *trie->edge);
	trie->child = rh_alloc(slots, sizeof *trie->child);
	trie->slots = slots;
	trie->token = rh_alloc(bytes + 1, sizeof *trie->token);
	trie->nodes = 1;
	if (!trie->edge || !trie->child || !trie->token)
		return -ENOMEM;
	trie->token[0] = -1;
	return 0;
}

/* Of two tokens with the same text the first counts. */
static void trie_add(struct added_trie *trie, const char *text, size_t bytes, int32_t token)
{
	uint32_t node = 0;
	trie->starts[(unsigned char)text[0]] = 1;
	for (size_t i = 0; i < bytes; i++) {
		uint64_t edge = ((uint64_t)node << 8 | (unsigned char)text[i]) + 1;
		size_t at = find_edge(trie, edge);
		if (!trie->edge[at]) {
			trie->edge[at] = edge;
			trie->child[at] = (uint32_t)trie->nodes;
			trie->token[trie->nodes++] = -1;
		}
		node = trie->child[at];
	}
	if (trie->token[node] < 0)
		trie->token[node] = token;
}

/* The longest token that starts here: its index and bytes, or -1. */
static int32_t trie_longest(const struct added_trie *trie, const char *text, size_t bytes, size_t *length)
{
	int32_t found = -1;
	uint32_t node = 0;
	for (size_t i = 0; i < bytes; i++) {
		size_t at = find_edge(trie, ((uint64_t)node << 8 | (unsigned char)text[i]) + 1);
		if (!trie->edge[at])
			break;
		node = trie->child[at];
		if (trie->token[node] >= 0) {
			found = trie->token[node];
			*length = i + 1;
		}
	}
	return found;
}

static int64_t next_id(const struct added *added, const struct vocab *vocab, const char *text, size_t bytes)
{
	int32_t id = vocab_find(&added->contents, text, bytes);
	if (id < 0)
		id = vocab_find(vocab, text, bytes);
	if (id >= 0)
		return id;
	int64_t size = (int64_t)vocab->distinct;
	return added->highest >= size || (size == 0 && added->highest >= 0) ? added->highest + 1 : size;
}

int added_add(struct added *added, const struct vocab *vocab, const char *text, size_t bytes, unsigned flags, const char *where)
{
	if (!bytes)
		return 0;
	int64_t id = next_id(added, vocab, text, bytes);
	int rc = vocab_add(&added->contents, text, bytes, id, where);
	if (!rc)
		rc = rh_grow(&added->token, &added->capacity, added->count + 1, sizeof *added->token);
	if (!rc)
		rc = by_id_reserve(&added->by_id, &added->ids_capacity, id);
	size_t at;
	if (!rc)
		rc = text_keep(&added->text, text, bytes, &at);
	if (rc)
		return rc;
	if (added->ids < (size_t)id + 1)
		added->ids = (size_t)id + 1;
	/* A text that was special once stays so, even if it is added again without the flag. */
	const struct added_token *before = added_by_id(added, (int32_t)id);
	flags |= before ? before->flags & ADDED_SPECIAL : 0;
	int shows_normalized = (before && before->shows_normalized) || flags & ADDED_NORMALIZED;
	added->token[added->count++] =
	        (struct added_token){.offset = at, .bytes = bytes, .flags = flags, .id = (int32_t)id, .shows_normalized = shows_normalized};
	added->by_id[id] = (uint32_t)added->count;
	if (id > added->highest || added->count == 1)
		added->highest = id;
	return 0;
}

static int set_shown(struct added *added, size_t index, const char *text, size_t bytes)
{
	added->token[index].shown_at = added->text.length;
	added->token[index].shown_bytes = bytes;
	return rh_text_append(&added->text, text, bytes);
}

int added_finish(struct added *added, const struct normalizers *normalizers, const char *where)
{
	struct normalize_scratch scratch = {0};
	struct pieces texts = {0};
	size_t bytes[2] = {0, 0}, leading = 0;
	int rc = 0;
	trie_free(&added->plain);
	trie_free(&added->normalized);
	for (size_t i = 0; i < added->count && !rc; i++) {
		const struct added_token *token = &added->token[i];
		const char *text = added->text.bytes + token->offset;
		size_t length = token->bytes;
		if (token->shows_normalized)
			rc = normalize(normalizers, &scratch, text, length, &text, &length, &leading);
		if (!rc && !length)
			rc = rh_fail(-EINVAL, "%s: nothing is left of added token '%s' after normalizing; unset its 'normalized'", where,
			             added->text.bytes + token->offset);
		if (!rc)
			rc = pieces_add(&texts, text, length);
		if (!rc)
			rc = set_shown(added, i, texts.text.bytes + texts.piece[i].first,
			               length); /* not `text`, which may lie in what grows */
		bytes[!!(token->flags & ADDED_NORMALIZED)] += token->flags & ADDED_NORMALIZED ? length : token->bytes;
	}
	if (!rc)
		rc = trie_reserve(&added->plain, bytes[0]);
	if (!rc)
		rc = trie_reserve(&added->normalized, bytes[1]);
	/* Special tokens go first, then the others, each in the file's order; of those with one text the last one counts. */
	for (int special = 1; special >= 0 && !rc; special--)
		for (size_t i = 0; i < added->count; i++) {
			const struct added_token *token = &added->token[i];
			int is_out = added->by_id[token->id] != i + 1 || (added->limit && token->id >= added->limit);
			if (!(token->flags & ADDED_SPECIAL) != !special || is_out)
				continue;
			if (token->flags & ADDED_NORMALIZED)
				trie_add(&added->normalized, added->text.bytes + token->shown_at, token->shown_bytes, (int32_t)i);
			else
				trie_add(&added->plain, added->text.bytes + token->offset, token->bytes, (int32_t)i);
		}
	pieces_free(&texts);
	normalize_scratch_free(&scratch);
	return rc;
}

const struct added_token *added_by_id(const struct added *added, int32_t id)
{
	if (id < 0 || (size_t)id >= added->ids || !added->by_id[id])
		return NULL;
	return &added->token[added->by_id[id] - 1];
}

int added_is_special(const struct added *added, const struct added_token *token)
{
	int32_t id = vocab_find(&added->contents, added->text.bytes + token->shown_at, token->shown_bytes);
	const struct added_token *same = added_by_id(added, id);
	return same && same->flags & ADDED_SPECIAL;
}

static int is_single_word(const char *text, size_t bytes, size_t first, size_t end)
{
	uint32_t point;
	if (first && (utf8_before(text, first, &point), unicode_is_word(point)))
		return 0;
	if (end < bytes && (utf8_next(text + end, &point), unicode_is_word(point)))
		return 0;
	return 1;
}

/* Takes blanks into the token, on the left not beyond the token before. */
static void widen(unsigned flags, const char *text, size_t bytes, size_t done, size_t *first, size_t *end)
{
	uint32_t point;
	if (flags & ADDED_LSTRIP) {
		size_t at = *first;
		while (at) {
			size_t length = utf8_before(text, at, &point);
			if (!unicode_is_space(point))
				break;
			at -= length;
		}
		*first = at > done ? at : done;
	}
	while (flags & ADDED_RSTRIP && *end < bytes) {
		size_t length = utf8_next(text + *end, &point);
		if (!unicode_is_space(point))
			break;
		*end += length;
	}
}

int added_split(const struct added *added, enum added_pass pass, const char *text, size_t bytes, size_t leading,
                const struct fragment_sink *out)
{
	const struct added_trie *trie = pass == ADDED_PLAIN ? &added->plain : &added->normalized;
	size_t done = 0;
	int rc = 0;
	for (size_t i = 0; i < bytes && trie->nodes > 1 && !rc;) {
		size_t length;
		int32_t index = trie->starts[(unsigned char)text[i]] ? trie_longest(trie, text + i, bytes - i, &length) : -1;
		if (index < 0) {
			i++;
			continue;
		}
		int32_t id = added->token[index].id;
		unsigned flags = added_by_id(added, id)->flags;
		size_t first = i, end = i + length;
		i = end; /* blanks taken on the right may still begin another token, as in the library */
		if (flags & ADDED_SINGLE_WORD && !is_single_word(text, bytes, first, end))
			continue;
		widen(flags, text, bytes, done, &first, &end);
		rc = fragment_give(out, text, done, first, leading);
		if (!rc)
			rc = out->take(out->context, &(struct fragment){.text = text + first, .bytes = end - first, .id = id});
		done = end;
	}
	return rc ? rc : fragment_give(out, text, done, bytes, leading);
}
