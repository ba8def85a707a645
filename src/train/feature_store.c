#include "train/feature_store.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>

/* An entry in the ring: this head, then tokens' positions, head rows (from the document's first token), targets, features, teacher's
 * logits. */
struct entry {
	int64_t sample, bytes, tokens, trained; /* bytes: with the head; sample -1: fills the ring's end */
};

enum { ALIGNMENT = sizeof(struct entry) }; /* so that a filler's head has room, too */

struct rh_feature_store {
	struct rh_feature_store_options is;
	int64_t room;
	char *ring;            /* (room) */
	int64_t *place;        /* (samples) of the entry; -1: there is none */
	int64_t first, behind; /* bytes that were ever evicted, and ever put: entries lie between them, modulo room */
};

static int64_t aligned(int64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int64_t rh_feature_store_bytes(int64_t samples, int64_t budget_bytes)
{
	return samples * (int64_t)sizeof(int64_t) + budget_bytes / ALIGNMENT * ALIGNMENT;
}

int rh_feature_store_create(const struct rh_feature_store_options *options, struct rh_feature_store **out)
{
	RH_ASSERT(options->samples > 0 && options->token_bytes > 0 && options->budget_bytes >= ALIGNMENT);
	struct rh_feature_store *made = rh_alloc(1, sizeof *made);
	if (!made)
		return -ENOMEM;
	*made = (struct rh_feature_store){.is = *options, .room = options->budget_bytes / ALIGNMENT * ALIGNMENT};
	made->ring = rh_alloc((size_t)made->room, 1);
	made->place = rh_alloc((size_t)options->samples, sizeof *made->place);
	if (!made->ring || !made->place) {
		rh_feature_store_free(made);
		return -ENOMEM;
	}
	rh_feature_store_clear(made);
	*out = made;
	return 0;
}

void rh_feature_store_free(struct rh_feature_store *store)
{
	if (!store)
		return;
	rh_free(store->ring);
	rh_free(store->place);
	rh_free(store);
}

void rh_feature_store_clear(struct rh_feature_store *store)
{
	store->first = store->behind = 0;
	for (int64_t i = 0; i < store->is.samples; i++)
		store->place[i] = -1;
}

static struct entry *entry_at(const struct rh_feature_store *store, int64_t place)
{
	return (struct entry *)(void *)(store->ring + place % store->room);
}

/* Until `bytes` more have room. */
static void evict(struct rh_feature_store *store, int64_t bytes)
{
	while (store->behind + bytes - store->first > store->room) {
		const struct entry *entry = entry_at(store, store->first);
		store->first += entry->bytes;
		if (entry->sample < 0)
			continue;
		store->place[entry->sample] = -1;
		store->is.evicted(store->is.context, entry->sample);
	}
}

static int32_t *positions_of(const struct entry *entry)
{
	return (int32_t *)(uintptr_t)(entry + 1);
}

static int32_t *head_rows_of(const struct entry *entry)
{
	return positions_of(entry) + entry->tokens;
}

static int32_t *targets_of(const struct entry *entry)
{
	return head_rows_of(entry) + entry->trained;
}

static int64_t features_place(int64_t tokens, int64_t trained)
{
	return aligned((int64_t)sizeof(struct entry) + (tokens + 2 * trained) * (int64_t)sizeof(int32_t));
}

/* The targets of a document: head rows are in ascending order. */
static int64_t find_targets(const struct rh_batch *batch, int64_t document, int64_t *first)
{
	int64_t behind;
	for (*first = 0; *first < batch->trained && batch->head_row[*first] < batch->start[document];)
		++*first;
	for (behind = *first; behind < batch->trained && batch->head_row[behind] < batch->start[document + 1];)
		behind++;
	return behind - *first;
}

int rh_feature_store_put(struct rh_feature_store *store, int64_t sample, const struct rh_batch *batch, int64_t document,
                         const void *features, const void *teacher)
{
	RH_ASSERT(sample >= 0 && sample < store->is.samples && store->place[sample] < 0);
	int64_t start = batch->start[document], tokens = batch->start[document + 1] - start, first,
	        trained = find_targets(batch, document, &first);
	int64_t at = features_place(tokens, trained), behind = at + tokens * store->is.token_bytes,
	        bytes = aligned(behind + trained * store->is.teacher_bytes);
	if (bytes > store->room)
		return 0;
	int64_t left = store->room - store->behind % store->room;
	if (left < bytes) { /* an entry is in one piece */
		evict(store, left);
		struct entry *filler = entry_at(store, store->behind);
		filler->sample = -1;
		filler->bytes = left;
		store->behind += left;
	}
	evict(store, bytes);
	struct entry *entry = entry_at(store, store->behind);
	*entry = (struct entry){.sample = sample, .bytes = bytes, .tokens = tokens, .trained = trained};
	memcpy(positions_of(entry), batch->position + start, (size_t)tokens * sizeof(int32_t));
	for (int64_t i = 0; i < trained; i++) {
		head_rows_of(entry)[i] = batch->head_row[first + i] - (int32_t)start;
		targets_of(entry)[i] = batch->target[first + i];
	}
	memcpy((char *)entry + at, (const char *)features + start * store->is.token_bytes, (size_t)(tokens * store->is.token_bytes));
	if (store->is.teacher_bytes)
		memcpy((char *)entry + behind, (const char *)teacher + first * store->is.teacher_bytes,
		       (size_t)(trained * store->is.teacher_bytes));
	store->place[sample] = store->behind;
	store->behind += bytes;
	return 1;
}

int rh_feature_store_has(const struct rh_feature_store *store, int64_t sample)
{
	return sample >= 0 && sample < store->is.samples && store->place[sample] >= 0;
}

void rh_feature_store_make(const struct rh_feature_store *store, const int64_t *sample, int64_t count, struct rh_batch *batch,
                           void *features, void *teacher)
{
	batch->tokens = batch->documents = batch->trained = batch->longest = 0;
	batch->start[0] = 0;
	for (int64_t i = 0; i < count; i++) {
		RH_ASSERT(rh_feature_store_has(store, sample[i]));
		const struct entry *entry = entry_at(store, store->place[sample[i]]);
		size_t tokens = (size_t)entry->tokens;
		int64_t at = features_place(entry->tokens, entry->trained);
		if (teacher)
			memcpy((char *)teacher + batch->trained * store->is.teacher_bytes,
			       (const char *)entry + at + entry->tokens * store->is.token_bytes,
			       (size_t)(entry->trained * store->is.teacher_bytes));
		memset(batch->ids + batch->tokens, 0, tokens * sizeof *batch->ids);
		memcpy(batch->position + batch->tokens, positions_of(entry), tokens * sizeof *batch->position);
		for (int64_t t = 0; t < entry->trained; t++) {
			batch->head_row[batch->trained] = (int32_t)batch->tokens + head_rows_of(entry)[t];
			batch->target[batch->trained++] = targets_of(entry)[t];
		}
		memcpy((char *)features + batch->tokens * store->is.token_bytes, (const char *)entry + at,
		       tokens * (size_t)store->is.token_bytes);
		batch->tokens += entry->tokens;
		batch->start[++batch->documents] = (int32_t)batch->tokens;
		batch->longest = rh_max(batch->longest, entry->tokens);
	}
}
