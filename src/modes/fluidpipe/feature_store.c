#include "modes/fluidpipe/feature_store.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "offload/memory.h"
#include "offload/space.h"

#include <string.h>

/* An entry in the ring: this head, then tokens' positions, head rows (from the document's first token), targets, features, teacher's
 * logits. */
struct entry {
	int64_t sample, bytes, tokens, trained; /* bytes: with the head; sample -1: fills the ring's end */
};

enum { ALIGNMENT = sizeof(struct entry) }; /* so that a filler's head has room, too */

/* Page p of all that were ever begun is record first_record + p % records; the newest lies in memory until it is full. */
struct spill {
	struct rh_space_io *io; /* NULL: there is no spill */
	struct rh_arena memory;
	char *newest, *loaded; /* (room) each */
	int first_record;
	int64_t records, room; /* room: bytes of a page */
	int64_t pages, used;   /* pages ever begun; bytes in the newest */
	int64_t loaded_page;   /* -1: none */
};

struct rh_feature_store {
	struct rh_feature_store_options options;
	int64_t room;
	char *ring;         /* (room) */
	int64_t *place;     /* (samples) of the entry; NOWHERE: there is none; below that: spilled_place */
	int64_t first, end; /* bytes that ever left, and were ever put: entries lie between them, modulo room */
	struct spill spill;
};

enum { NOWHERE = -1 };

/* Its own inverse: a byte of all pages as a place, and back. */
static int64_t spilled_place(int64_t byte)
{
	return NOWHERE - 1 - byte;
}

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
	*made = (struct rh_feature_store){.options = *options, .room = options->budget_bytes / ALIGNMENT * ALIGNMENT};
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
	rh_space_io_destroy(store->spill.io);
	rh_host_release(&store->spill.memory);
	rh_free(store->ring);
	rh_free(store->place);
	rh_free(store);
}

void rh_feature_store_clear(struct rh_feature_store *store)
{
	store->first = store->end = store->spill.pages = store->spill.used = 0;
	store->spill.loaded_page = -1;
	for (int64_t i = 0; i < store->options.samples; i++)
		store->place[i] = NOWHERE;
}

static struct entry *entry_at(const struct rh_feature_store *store, int64_t place)
{
	return (struct entry *)(void *)(store->ring + place % store->room);
}

static void forget(struct rh_feature_store *store, int64_t sample)
{
	store->place[sample] = NOWHERE;
	store->options.evicted(store->options.context, sample);
}

/* The record that the next page takes held an earlier page, which goes. */
static int begin_page(struct rh_feature_store *store)
{
	struct spill *spill = &store->spill;
	int64_t goes = spill->pages - spill->records;
	int rc = 0;
	if (spill->pages) {
		int64_t newest = spill->pages - 1;
		memset(spill->newest + spill->used, 0, (size_t)(spill->room - spill->used));
		rh_space_write(spill->io, spill->first_record + (int)(newest % spill->records), spill->newest);
		rc = rh_space_io_wait(spill->io);
	}
	for (int64_t i = 0; goes >= 0 && i < store->options.samples; i++)
		if (store->place[i] < NOWHERE && spilled_place(store->place[i]) / spill->room == goes)
			forget(store, i);
	if (spill->loaded_page == goes)
		spill->loaded_page = -1;
	spill->pages++;
	spill->used = 0;
	return rc;
}

static int spill_entry(struct rh_feature_store *store, const struct entry *entry)
{
	struct spill *spill = &store->spill;
	int rc = 0;
	if (!spill->io || entry->bytes > spill->room) {
		forget(store, entry->sample);
		return 0;
	}
	if (!spill->pages || spill->used + entry->bytes > spill->room)
		rc = begin_page(store);
	if (rc)
		return rc;
	memcpy(spill->newest + spill->used, entry, (size_t)entry->bytes);
	store->place[entry->sample] = spilled_place((spill->pages - 1) * spill->room + spill->used);
	spill->used += entry->bytes;
	return 0;
}

/* The entry, until another one is found. */
static int find_entry(struct rh_feature_store *store, int64_t sample, const struct entry **out)
{
	struct spill *spill = &store->spill;
	int64_t place = store->place[sample], byte = spilled_place(place), page;
	if (place >= 0) {
		*out = entry_at(store, place);
		return 0;
	}
	page = byte / spill->room;
	const char *from = page == spill->pages - 1 ? spill->newest : spill->loaded;
	*out = (const struct entry *)(const void *)(from + byte % spill->room);
	if (from == spill->newest || page == spill->loaded_page)
		return 0;
	rh_space_read(spill->io, spill->first_record + (int)(page % spill->records), spill->loaded);
	int rc = rh_space_io_wait(spill->io);
	spill->loaded_page = rc ? -1 : page;
	return rc;
}

int64_t rh_feature_store_spill_bytes(const struct rh_space *space, int64_t record_bytes)
{
	return record_bytes ? rh_host_round(2 * rh_space_round(space, record_bytes) + rh_space_round(space, 1)) : 0;
}

int rh_feature_store_spill(struct rh_feature_store *store, struct rh_space *space, int first_record, int64_t records)
{
	struct spill *spill = &store->spill;
	int64_t unit = rh_space_round(space, 1), each = rh_space_round(space, store->options.record_bytes);
	RH_ASSERT(store->options.record_bytes && records > 1 && !spill->io);
	int rc = rh_host_reserve(rh_feature_store_spill_bytes(space, store->options.record_bytes), "samples on their way to NVMe",
	                         &spill->memory);
	if (rc)
		return rc;
	rc = rh_space_io_create(space, store->options.record_bytes, &spill->io);
	if (rc)
		return rc;
	uintptr_t base = (uintptr_t)spill->memory.base;
	spill->newest = spill->memory.base + ((base + (uintptr_t)unit - 1) / (uintptr_t)unit * (uintptr_t)unit - base);
	spill->loaded = spill->newest + each;
	spill->room = store->options.record_bytes / ALIGNMENT * ALIGNMENT;
	spill->first_record = first_record;
	spill->records = records;
	return 0;
}

int rh_feature_store_fault(const struct rh_feature_store *store)
{
	return store->spill.io ? rh_space_io_wait(store->spill.io) : 0;
}

/* Until `bytes` more have room. */
static int evict(struct rh_feature_store *store, int64_t bytes)
{
	while (store->end + bytes - store->first > store->room) {
		const struct entry *entry = entry_at(store, store->first);
		int rc = entry->sample < 0 ? 0 : spill_entry(store, entry);
		if (rc)
			return rc;
		store->first += entry->bytes;
	}
	return 0;
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

int64_t rh_feature_store_entry_bytes(const struct rh_feature_store_options *options, int64_t documents, int64_t tokens, int64_t targets)
{
	int64_t parts = 3 * ALIGNMENT; /* the head, and two ends that are aligned */
	return aligned(documents * parts + (tokens + 2 * targets) * (int64_t)sizeof(int32_t) + tokens * options->token_bytes +
	               targets * options->teacher_bytes);
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
	RH_ASSERT(sample >= 0 && sample < store->options.samples && store->place[sample] == NOWHERE);
	int64_t start = batch->start[document], tokens = batch->start[document + 1] - start, first,
	        trained = find_targets(batch, document, &first);
	int64_t at = features_place(tokens, trained), behind = at + tokens * store->options.token_bytes,
	        bytes = aligned(behind + trained * store->options.teacher_bytes);
	if (bytes > store->room)
		return 0;
	int64_t left = store->room - store->end % store->room;
	if (left < bytes) { /* an entry is in one piece */
		int rc = evict(store, left);
		if (rc)
			return rc;
		struct entry *filler = entry_at(store, store->end);
		filler->sample = -1;
		filler->bytes = left;
		store->end += left;
	}
	int rc = evict(store, bytes);
	if (rc)
		return rc;
	struct entry *entry = entry_at(store, store->end);
	*entry = (struct entry){.sample = sample, .bytes = bytes, .tokens = tokens, .trained = trained};
	memcpy(positions_of(entry), batch->position + start, (size_t)tokens * sizeof(int32_t));
	for (int64_t i = 0; i < trained; i++) {
		head_rows_of(entry)[i] = batch->head_row[first + i] - (int32_t)start;
		targets_of(entry)[i] = batch->target[first + i];
	}
	memcpy((char *)entry + at, (const char *)features + start * store->options.token_bytes,
	       (size_t)(tokens * store->options.token_bytes));
	if (store->options.teacher_bytes)
		memcpy((char *)entry + behind, (const char *)teacher + first * store->options.teacher_bytes,
		       (size_t)(trained * store->options.teacher_bytes));
	store->place[sample] = store->end;
	store->end += bytes;
	return 1;
}

int rh_feature_store_has(const struct rh_feature_store *store, int64_t sample)
{
	return sample >= 0 && sample < store->options.samples && store->place[sample] != NOWHERE;
}

int rh_feature_store_make(struct rh_feature_store *store, const int64_t *sample, int64_t count, struct rh_batch *batch, void *features,
                          void *teacher)
{
	batch->tokens = batch->documents = batch->trained = batch->longest = 0;
	batch->start[0] = 0;
	for (int64_t i = 0; i < count; i++) {
		RH_ASSERT(rh_feature_store_has(store, sample[i]));
		const struct entry *entry;
		int rc = find_entry(store, sample[i], &entry);
		if (rc)
			return rc;
		size_t tokens = (size_t)entry->tokens;
		int64_t at = features_place(entry->tokens, entry->trained);
		if (teacher)
			memcpy((char *)teacher + batch->trained * store->options.teacher_bytes,
			       (const char *)entry + at + entry->tokens * store->options.token_bytes,
			       (size_t)(entry->trained * store->options.teacher_bytes));
		memset(batch->ids + batch->tokens, 0, tokens * sizeof *batch->ids);
		memcpy(batch->position + batch->tokens, positions_of(entry), tokens * sizeof *batch->position);
		for (int64_t t = 0; t < entry->trained; t++) {
			batch->head_row[batch->trained] = (int32_t)batch->tokens + head_rows_of(entry)[t];
			batch->target[batch->trained++] = targets_of(entry)[t];
		}
		memcpy((char *)features + batch->tokens * store->options.token_bytes, (const char *)entry + at,
		       tokens * (size_t)store->options.token_bytes);
		batch->tokens += entry->tokens;
		batch->start[++batch->documents] = (int32_t)batch->tokens;
		batch->longest = rh_max(batch->longest, entry->tokens);
	}
	return 0;
}
