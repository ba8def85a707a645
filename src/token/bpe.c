#include "token/bpe.h"

#include "core/alloc.h"
#include "token/unicode.h"

#include <stdio.h>
#include <string.h>

#define BPE_NONE UINT32_MAX

void bpe_free(struct bpe *bpe)
{
	vocab_free(&bpe->vocab);
	rh_free(bpe->merge);
	rh_free(bpe->unknown);
	rh_text_free(&bpe->joined);
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
	rh_free(scratch->symbol);
	rh_free(scratch->heap);
	rh_free(scratch->crossed);
	*scratch = (struct bpe_scratch){0};
}

int ids_add(struct rh_ids *ids, int32_t id)
{
	int rc = rh_grow(&ids->id, &ids->capacity, ids->count + 1, sizeof *ids->id);
	if (!rc)
		ids->id[ids->count++] = id;
	return rc;
}

static struct bpe_merge *find_merge(const struct bpe *bpe, uint64_t pair)
{
	uint64_t hash = pair * 0x9E3779B97F4A7C15ull;
	size_t mask = bpe->slots - 1, at = (hash ^ hash >> 32) & mask;
	while (bpe->merge[at].pair != pair && bpe->merge[at].pair != BPE_NO_PAIR)
		at = (at + 1) & mask;
	return &bpe->merge[at];
}

static uint64_t pair_of(int32_t left, int32_t right)
{
	return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static int grow_merges(struct bpe *bpe)
{
	struct bpe old = *bpe;
	size_t slots = old.slots ? old.slots * 2 : 1024;
	struct bpe_merge *fresh = rh_alloc(slots, sizeof *fresh);
	if (!fresh)
		return -ENOMEM;
	for (size_t i = 0; i < slots; i++)
		fresh[i].pair = BPE_NO_PAIR;
	bpe->merge = fresh;
	bpe->slots = slots;
	for (size_t i = 0; i < old.slots; i++)
		if (old.merge[i].pair != BPE_NO_PAIR)
			*find_merge(bpe, old.merge[i].pair) = old.merge[i];
	rh_free(old.merge);
	return 0;
}

int bpe_put_merge(struct bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t merged)
{
	int rc = bpe->merges * 2 >= bpe->slots ? grow_merges(bpe) : 0;
	if (rc)
		return rc;
	struct bpe_merge *merge = find_merge(bpe, pair_of(left, right));
	bpe->merges += merge->pair == BPE_NO_PAIR;
	*merge = (struct bpe_merge){pair_of(left, right), rank, (uint32_t)merged};
	return 0;
}

int bpe_add_merge(struct bpe *bpe, const char *left, size_t left_bytes, const char *right, size_t right_bytes, uint32_t rank,
                  const char *where)
{
	bpe->joined.length = 0;
	int rc = rh_text_append(&bpe->joined, left, left_bytes);
	if (!rc)
		rc = rh_text_append(&bpe->joined, right, right_bytes);
	if (rc)
		return rc;
	int32_t a = vocab_find(&bpe->vocab, left, left_bytes), b = vocab_find(&bpe->vocab, right, right_bytes),
	        both = vocab_find(&bpe->vocab, bpe->joined.bytes, bpe->joined.length);
	if (a < 0 || b < 0 || both < 0)
		return rh_fail(-EINVAL, "%s: merge %u of '%.*s' and '%.*s' needs a token that the vocabulary lacks", where, rank,
		               (int)(left_bytes > 60 ? 60 : left_bytes), left, (int)(right_bytes > 60 ? 60 : right_bytes), right);
	return bpe_put_merge(bpe, a, b, rank, both);
}

void bpe_finish(struct bpe *bpe)
{
	char text[8];
	for (uint32_t c = 0; c < BPE_NEAR; c++)
		bpe->near[c] = vocab_find(&bpe->vocab, text, utf8_put(c, text));
	for (unsigned b = 0; b < 256; b++) {
		snprintf(text, sizeof text, "<0x%02X>", b);
		bpe->byte[b] = bpe->byte_fallback ? vocab_find(&bpe->vocab, text, 6) : -1;
	}
	bpe->unknown_id = bpe->unknown ? vocab_find(&bpe->vocab, bpe->unknown, strlen(bpe->unknown)) : -1;
	rh_text_free(&bpe->joined);
}

/* The bit of two neighbouring characters in scratch->crossed. */
static uint64_t crossing_of(uint32_t left, uint32_t right)
{
	return (((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15ull) >> (64 - BPE_CROSSINGS_LOG2);
}

/* Marks the characters between which some merge joins two tokens: the last one of its left part, the first one of its right part. Two pairs
 * may share a bit; then a border is passed over that could have been taken. */
static int mark_crossings(const struct bpe *bpe, struct bpe_scratch *scratch)
{
	const size_t bytes = (size_t)1 << (BPE_CROSSINGS_LOG2 - 3);
	size_t ids = 0;
	if (scratch->crossed)
		return 0;
	scratch->crossed = rh_alloc(bytes, 1);
	if (!scratch->crossed)
		return -ENOMEM;
	for (size_t i = 0; i < bpe->vocab.ids; i++)
		ids += bpe->vocab.by_id[i] > 0;
	if (ids < bpe->vocab.entries) /* of several texts with one id only one could be looked at below */
		memset(scratch->crossed, 0xff, bytes);
	for (size_t i = 0; i < bpe->slots; i++) {
		uint64_t pair = bpe->merge[i].pair;
		if (pair == BPE_NO_PAIR)
			continue;
		size_t left_bytes, right_bytes;
		const char *left = vocab_text(&bpe->vocab, (int32_t)(pair >> 32), &left_bytes),
		           *right = vocab_text(&bpe->vocab, (int32_t)(uint32_t)pair, &right_bytes);
		uint32_t last, first;
		utf8_before(left, left_bytes, &last);
		utf8_next(right, &first);
		uint64_t bit = crossing_of(last, first);
		scratch->crossed[bit / 8] |= (unsigned char)(1u << bit % 8);
	}
	return 0;
}

static int32_t character_id(const struct bpe *bpe, const char *text, size_t bytes, uint32_t point)
{
	return point < BPE_NEAR ? bpe->near[point] : vocab_find(&bpe->vocab, text, bytes);
}

/* Where to cut a long text without changing a token: BPE_STRETCH bytes on, or farther, between two characters of the vocabulary that no
 * merge joins. Else the text's end. */
static size_t find_border(const struct bpe *bpe, const struct bpe_scratch *scratch, const char *text, size_t bytes)
{
	uint32_t before = 0, point;
	int was_known = 0;
	size_t at = bytes < BPE_STRETCH ? bytes : BPE_STRETCH;
	while (at < bytes && ((unsigned char)text[at] & 0xC0) == 0x80)
		at++;
	for (size_t length; at < bytes; at += length) {
		length = utf8_next(text + at, &point);
		int is_known = character_id(bpe, text + at, length, point) >= 0;
		uint64_t bit = crossing_of(before, point);
		if (was_known && is_known && !(scratch->crossed[bit / 8] >> bit % 8 & 1))
			return at;
		before = point;
		was_known = is_known;
	}
	return bytes;
}

static void add_symbol(struct bpe_scratch *scratch, int32_t id)
{
	uint32_t at = (uint32_t)scratch->symbols++;
	scratch->symbol[at] = (struct bpe_symbol){id, at ? at - 1 : BPE_NONE, at + 1, 0};
}

/* The bytes of a character the vocabulary lacks, if it has every one of them. 1: done. */
static int add_bytes(const struct bpe *bpe, struct bpe_scratch *scratch, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (bpe->byte[(unsigned char)text[i]] < 0)
			return 0;
	for (size_t i = 0; i < bytes; i++)
		add_symbol(scratch, bpe->byte[(unsigned char)text[i]]);
	return 1;
}

/* Characters to symbols. An unknown one waits for its successor, since unknown ones may be fused; bytes do not flush it (nor do they in
 * the library: it then comes after them). */
static int spell(const struct bpe *bpe, struct bpe_scratch *scratch, const char *text, size_t bytes)
{
	/* room for all at once: an array that grows is copied */
	int waiting = 0, rc = rh_grow(&scratch->symbol, &scratch->symbol_capacity, bytes, sizeof *scratch->symbol);
	if (rc)
		return rc;
	scratch->symbols = 0;
	for (size_t i = 0, length; i < bytes; i += length) {
		uint32_t point;
		length = utf8_next(text + i, &point);
		int32_t id = character_id(bpe, text + i, length, point);
		if (id < 0 && bpe->byte_fallback && add_bytes(bpe, scratch, text + i, length))
			continue;
		if (id < 0 && !bpe->unknown)
			continue;
		if (id < 0 && bpe->unknown_id < 0)
			return rh_fail(-EINVAL, "the unknown token '%s' of the tokenizer is not in its vocabulary", bpe->unknown);
		if (waiting && (id >= 0 || !bpe->fuse_unknown))
			add_symbol(scratch, bpe->unknown_id);
		waiting = id < 0;
		if (id >= 0)
			add_symbol(scratch, id);
	}
	if (waiting)
		add_symbol(scratch, bpe->unknown_id);
	if (scratch->symbols)
		scratch->symbol[scratch->symbols - 1].next = BPE_NONE;
	return 0;
}

/* Puts the merge of the symbol at `left` and its successor, if there is one, into the heap. */
static void offer(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t left)
{
	uint32_t right = scratch->symbol[left].next;
	if (right == BPE_NONE)
		return;
	const struct bpe_merge *merge = find_merge(bpe, pair_of(scratch->symbol[left].id, scratch->symbol[right].id));
	if (merge->pair == BPE_NO_PAIR)
		return;
	struct bpe_event event = {(uint64_t)merge->rank << 32 | left, merge->merged}, *heap = scratch->heap;
	size_t at = scratch->events++;
	for (; at && heap[(at - 1) / 2].key > event.key; at = (at - 1) / 2)
		heap[at] = heap[(at - 1) / 2];
	heap[at] = event;
}

static struct bpe_event take(struct bpe_scratch *scratch)
{
	struct bpe_event *heap = scratch->heap, first = heap[0], last = heap[--scratch->events];
	size_t at = 0, count = scratch->events;
	for (size_t child = 1; child < count; child = 2 * at + 1) {
		if (child + 1 < count && heap[child + 1].key < heap[child].key)
			child++;
		if (heap[child].key >= last.key)
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return first;
}

static int merge_all(const struct bpe *bpe, struct bpe_scratch *scratch)
{
	/* Room for all at once, as above: an event for each pair of neighbours, then up to two for the one that each merge takes. */
	int rc = rh_grow(&scratch->heap, &scratch->heap_capacity, 2 * scratch->symbols, sizeof *scratch->heap);
	if (rc)
		return rc;
	scratch->events = 0;
	for (uint32_t i = 0; i + 1 < scratch->symbols; i++)
		offer(bpe, scratch, i);
	while (scratch->events) {
		struct bpe_event event = take(scratch);
		struct bpe_symbol *left = &scratch->symbol[(uint32_t)event.key];
		if (left->is_merged || left->next == BPE_NONE)
			continue;
		struct bpe_symbol *right = &scratch->symbol[left->next];
		const struct bpe_merge *merge = find_merge(bpe, pair_of(left->id, right->id));
		if (merge->pair == BPE_NO_PAIR || merge->merged != event.merged)
			continue; /* one of the two has been merged since */
		left->id = (int32_t)event.merged;
		left->next = right->next;
		right->is_merged = 1;
		if (left->next != BPE_NONE)
			scratch->symbol[left->next].previous = (uint32_t)event.key;
		if (left->previous != BPE_NONE)
			offer(bpe, scratch, left->previous);
		offer(bpe, scratch, (uint32_t)event.key);
	}
	return 0;
}

static int encode_stretch(const struct bpe *bpe, struct bpe_scratch *scratch, const char *text, size_t bytes, struct rh_ids *out)
{
	int rc = spell(bpe, scratch, text, bytes);
	if (!rc && bpe->slots && scratch->symbols > 1)
		rc = merge_all(bpe, scratch);
	for (uint32_t i = scratch->symbols ? 0 : BPE_NONE; i != BPE_NONE && !rc; i = scratch->symbol[i].next)
		rc = ids_add(out, scratch->symbol[i].id);
	return rc;
}

int bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *text, size_t bytes, struct rh_ids *out)
{
	if (bpe->ignore_merges) {
		int32_t whole = vocab_find(&bpe->vocab, text, bytes);
		if (whole >= 0)
			return ids_add(out, whole);
	}
	int is_long = bytes > 2 * BPE_STRETCH, rc = is_long ? mark_crossings(bpe, scratch) : 0;
	for (size_t at = 0, end; !rc && at < bytes; at = end) {
		end = at + (is_long ? find_border(bpe, scratch, text + at, bytes - at) : bytes);
		rc = end - at < BPE_NONE ? encode_stretch(bpe, scratch, text + at, end - at, out)
		                         : rh_fail(-EINVAL, "a text of %zu bytes without a place to split it is too long", bytes);
	}
	return rc;
}
