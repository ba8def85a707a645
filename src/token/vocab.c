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
		if (entry->bytes == bytes && !memcmp(vocab->text.bytes + entry->at, text, bytes))
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
		fresh[find_slot(vocab, vocab->text.bytes + vocab->entry[i].at, vocab->entry[i].bytes)] = (uint32_t)i + 1;
	rh_free(old);
	return 0;
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
	if (!rc && (size_t)id >= vocab->ids_capacity) {
		size_t old = vocab->ids_capacity;
		rc = rh_grow(&vocab->by_id, &vocab->ids_capacity, (size_t)id + 1, sizeof *vocab->by_id);
		if (!rc)
			memset(vocab->by_id + old, 0, (vocab->ids_capacity - old) * sizeof *vocab->by_id);
	}
	size_t at = vocab->text.length;
	if (!rc)
		rc = rh_text_append(&vocab->text, text, bytes);
	if (!rc)
		rc = rh_text_append(&vocab->text, "", 1);
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
	return vocab->text.bytes + entry->at;
}
