#include "token/vocab.h"

#include "core/alloc.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

void vocab_free(struct vocab *vocab)
{
	rh_text_free(&vocab->text);
	rh_free(vocab->entry);
	rh_free(vocab->slot);
	rh_free(vocab->by_id);
	*vocab = (struct vocab){0};
}

/* The slot that holds the text, or the empty one where it would be. */
static size_t find_slot(const struct vocab *vocab, const char *text, size_t bytes)
{
	size_t mask = vocab->slots - 1, at = XXH3_64bits(text, bytes) & mask;
	for (; vocab->slot[at]; at = (at + 1) & mask) {
		const struct vocab_entry *entry = &vocab->entry[vocab->slot[at] - 1];
		if (entry->bytes == bytes && !memcmp(vocab->text.bytes + entry->offset, text, bytes))
			break;
	}
	return at;
}

static int grow_slots(struct vocab *vocab)
{
	size_t slots = vocab->slots ? vocab->slots * 2 : 1024;
	uint32_t *old = vocab->slot, *fresh = rh_alloc(slots, sizeof *fresh);
	if (!fresh)
		return -ENOMEM;
	vocab->slot = fresh;
	vocab->slots = slots;
	for (size_t i = 0; i < vocab->entries; i++) /* in order, so that of two equal texts the later one stays */
		fresh[find_slot(vocab, vocab->text.bytes + vocab->entry[i].offset, vocab->entry[i].bytes)] = (uint32_t)i + 1;
	rh_free(old);
	return 0;
}

int by_id_reserve(uint32_t **by_id, size_t *capacity, int64_t id)
{
	size_t old = *capacity;
	if ((size_t)id < old)
		return 0;
	int rc = rh_grow(by_id, capacity, (size_t)id + 1, sizeof **by_id);
	if (!rc)
		memset(*by_id + old, 0, (*capacity - old) * sizeof **by_id);
	return rc;
}

int text_keep(struct rh_text *texts, const char *text, size_t bytes, size_t *at)
{
	*at = texts->length;
	int rc = rh_text_append(texts, text, bytes);
	return rc ? rc : rh_text_append(texts, "", 1);
}

int vocab_add(struct vocab *vocab, const char *text, size_t bytes, int64_t id, const char *where)
{
	if (id < 0 || id >= VOCAB_IDS)
		return rh_fail(-EINVAL, "%s: the id %lld of token '%.*s' is not between 0 and %d", where, (long long)id,
		               (int)(bytes > 60 ? 60 : bytes), text, VOCAB_IDS - 1);
	if (bytes > UINT32_MAX || vocab->entries >= 2 * (size_t)VOCAB_IDS)
		return rh_fail(-EINVAL, "%s: the vocabulary is too large", where);
	int rc = 0;
	if (vocab->entries * 2 >= vocab->slots)
		rc = grow_slots(vocab);
	if (!rc)
		rc = rh_grow(&vocab->entry, &vocab->capacity, vocab->entries + 1, sizeof *vocab->entry);
	if (!rc)
		rc = by_id_reserve(&vocab->by_id, &vocab->ids_capacity, id);
	size_t at;
	if (!rc)
		rc = text_keep(&vocab->text, text, bytes, &at);
	if (rc)
		return rc;
	vocab->entry[vocab->entries++] = (struct vocab_entry){at, (uint32_t)bytes, (int32_t)id};
	if ((size_t)id >= vocab->ids)
		vocab->ids = (size_t)id + 1;
	vocab->by_id[id] = (uint32_t)vocab->entries;
	size_t slot = find_slot(vocab, text, bytes);
	vocab->distinct += !vocab->slot[slot];
	vocab->slot[slot] = (uint32_t)vocab->entries;
	return 0;
}

int32_t vocab_find(const struct vocab *vocab, const char *text, size_t bytes)
{
	if (!vocab->slots)
		return -1;
	uint32_t entry = vocab->slot[find_slot(vocab, text, bytes)];
	return entry ? vocab->entry[entry - 1].id : -1;
}

const char *vocab_text(const struct vocab *vocab, int32_t id, size_t *bytes)
{
	if (id < 0 || (size_t)id >= vocab->ids || !vocab->by_id[id])
		return NULL;
	const struct vocab_entry *entry = &vocab->entry[vocab->by_id[id] - 1];
	if (bytes)
		*bytes = entry->bytes;
	return vocab->text.bytes + entry->offset;
}
