/* The cache of host memory through which blocks on NVMe are read and written: a few frames, each as large as the largest record.
 *
 *   EMPTY --begin_read--> READING --acquire--> IN_USE --release--> KEPT (what has changed is written when the frame is needed)
 *                                                |  --release, done--> WRITING
 *   KEPT --acquire--> IN_USE;  WRITING --acquire, once written--> IN_USE;  all but IN_USE --empty--> EMPTY
 *
 * The blocks that will be updated next wait in line, and are read ahead, block after block and piece after piece, whenever a frame is
 * free. The line may change in the middle of a block, which continues later where it stopped.
 *
 * There is no lock: the holder of the store's pool may use all pieces. A piece is in one frame at most. Its record is not read while a
 * write of it is in progress, because until then the piece is still in its frame. */
#include "core/alloc.h"
#include "offload/memory.h"
#include "offload/optimizer.h"
#include "offload/store_internal.h"
#include <stdio.h>
#include <stdlib.h>

enum frame_state { FRAME_EMPTY, FRAME_READING, FRAME_IN_USE, FRAME_KEPT, FRAME_WRITING };

struct frame {
	char *memory;
	struct rh_space_io *io;
	enum frame_state state;
	int piece;
	/* parts of the piece: here or on their way; changed since they were last read or written; of a trainable block's: here and known to
	 * be what was written; changed since their checksums were made */
	unsigned present, changed, checked, unsummed;
	uint64_t used; /* when it was last released, in turns of the cache */
};

struct store_cache {
	struct rh_arena memory;
	struct frame *frame;
	int frames;
	uint64_t turns;
	int *line, count, requested; /* blocks whose update comes; of the first `requested` all has been asked for */
	int *next;                   /* by block: piece of its next update, or of the one in progress, that is to be asked for next */
};

int cache_create(struct rh_store *store, const struct spill_sizes *sizes)
{
	struct store_cache *cache = rh_alloc(1, sizeof *cache);
	if (!cache)
		return -ENOMEM;
	store->cache = cache;
	cache->line = rh_alloc((size_t)store->count, sizeof *cache->line);
	cache->next = rh_alloc((size_t)store->count, sizeof *cache->next);
	cache->frame = rh_alloc((size_t)sizes->frames, sizeof *cache->frame);
	int rc = cache->line && cache->next && cache->frame ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_host_reserve(sizes->cache_bytes, "the cache of optimizer state on NVMe", &cache->memory);
	int64_t each = sizes->frame_bytes;
	for (; !rc && cache->frames < sizes->frames; cache->frames += !rc) {
		struct frame *frame = &cache->frame[cache->frames];
		*frame = (struct frame){.memory = cache->memory.base + cache->frames * each, .piece = -1};
		rc = rh_space_io_create(store->options.space, each, &frame->io);
	}
	if (rc)
		return rc;
	store->checksum = (uint64_t *)(void *)(cache->memory.base + sizes->frames * each);
	rh_space_attach(store->options.space, cache->memory.base, sizes->frames * each);
	return 0;
}

void cache_destroy(struct rh_store *store)
{
	struct store_cache *cache = store->cache;
	if (!cache)
		return;
	for (int i = 0; i < cache->frames; i++)
		rh_space_io_destroy(cache->frame[i].io);
	rh_host_release(&cache->memory);
	rh_free(cache->frame);
	rh_free(cache->line);
	rh_free(cache->next);
	rh_free(cache);
}

/* Takes what is in a frame out of it. */
static void evict(struct rh_store *store, struct frame *frame)
{
	if (frame->piece >= 0)
		store->piece[frame->piece].frame = -1;
	frame->piece = -1;
	frame->state = FRAME_EMPTY;
	frame->present = frame->changed = frame->checked = frame->unsummed = 0;
}

/* How soon a frame may be given to another piece: 0 now, higher later, -1 not at all. */
static int cost_of(const struct rh_store *store, const struct frame *frame)
{
	switch (frame->state) {
	case FRAME_EMPTY:
		return 0;
	case FRAME_KEPT:
		return store->piece[frame->piece].ahead ? 3 : frame->changed ? 2 : 0;
	case FRAME_WRITING:
		return rh_space_io_done(frame->io) ? 0 : 1;
	case FRAME_READING:
		return 4;
	default:
		return -1;
	}
}

/* The frame that is given away most easily, of equals the one longest unused; NULL if that costs more than `most`. */
static struct frame *choose(const struct rh_store *store, int most)
{
	struct store_cache *cache = store->cache;
	struct frame *best = NULL;
	int least = 0;
	for (int i = 0; i < cache->frames; i++) {
		struct frame *frame = &cache->frame[i];
		int cost = cost_of(store, frame);
		if (cost < 0 || cost > most || (best && (cost > least || (cost == least && frame->used >= best->used))))
			continue;
		best = frame;
		least = cost;
	}
	return best;
}

static void begin_write(struct rh_store *store, struct frame *frame)
{
	const struct store_piece *piece = &store->piece[frame->piece];
	if (piece->span_count && frame->unsummed)
		sums_make(store, piece, frame->unsummed, frame->memory);
	frame->unsummed = 0;
	rh_space_write_parts(frame->io, store->piece[frame->piece].record, frame->changed, frame->memory);
	frame->changed = 0;
	frame->state = FRAME_WRITING;
}

static int empty(struct rh_store *store, struct frame *frame)
{
	int rc = 0;
	if (frame->state == FRAME_KEPT && frame->changed)
		begin_write(store, frame);
	if (frame->state == FRAME_WRITING || frame->state == FRAME_READING)
		rc = rh_space_io_wait(frame->io);
	evict(store, frame);
	return rc;
}

/* Into a frame that has none of these parts, and of no other piece any; nothing of it is under way. */
static void read_parts(struct rh_store *store, struct frame *frame, int piece, unsigned parts)
{
	frame->piece = piece;
	frame->state = FRAME_READING;
	frame->present |= parts;
	frame->checked &= ~parts;
	store->piece[piece].frame = (int)(frame - store->cache->frame);
	rh_space_read_parts(frame->io, store->piece[piece].record, parts, frame->memory);
}

static int begin_read(struct rh_store *store, struct frame *frame, int piece, unsigned parts)
{
	int rc = empty(store, frame);
	if (!rc)
		read_parts(store, frame, piece, parts);
	return rc;
}

/* Reads ahead, in line, into what is free at once. A fault stays in the space, and is met by the next acquire. */
static void pump(struct rh_store *store)
{
	struct store_cache *cache = store->cache;
	for (; cache->requested < cache->count; cache->requested++) {
		int block = cache->line[cache->requested], *next = &cache->next[block];
		for (; *next < store->block[block].piece_count; ++*next) {
			struct store_piece *piece = &store->piece[store->block[block].piece + *next];
			struct frame *frame = piece->frame < 0 ? choose(store, 0) : NULL;
			if (piece->frame < 0 && !frame)
				return;
			piece->ahead = 1;
			if (frame && begin_read(store, frame, (int)(piece - store->piece), STORE_ALL))
				return;
		}
	}
}

static int is_spilled(const struct rh_store *store, int block)
{
	const struct store_block *of = &store->block[block];
	return store->cache && of->piece_count && store->piece[of->piece].record >= 0;
}

void rh_store_expect(struct rh_store *store, const int *block, int count)
{
	struct store_cache *cache = store->cache;
	if (!cache)
		return;
	cache->count = cache->requested = 0;
	for (int i = 0; i < count && cache->count < store->count; i++) {
		RH_ASSERT(block[i] >= 0 && block[i] < store->count);
		if (is_spilled(store, block[i]))
			cache->line[cache->count++] = block[i];
	}
	pump(store);
}

void store_first(struct rh_store *store, int block)
{
	struct store_cache *cache = store->cache;
	int at = 0;
	if (!is_spilled(store, block))
		return;
	while (at < cache->count && cache->line[at] != block)
		at++;
	if (at == cache->count && at < store->count)
		cache->count++;
	memmove(cache->line + 1, cache->line, (size_t)(at < cache->count ? at : at - 1) * sizeof *cache->line);
	cache->line[0] = block;
	cache->requested = 0;
	pump(store);
}

int rh_store_advance(struct rh_store *store)
{
	struct store_cache *cache = store->cache;
	if (!cache)
		return 0;
	pump(store);
	struct frame *frame = cache->requested < cache->count ? choose(store, 1) : NULL;
	if (!frame) /* there is no more room */
		return 0;
	int rc = rh_space_io_wait_idle(frame->io);
	if (rc)
		return rc;
	frame->state = FRAME_KEPT;
	pump(store);
	return cache->requested < cache->count;
}

int store_distance(const struct rh_store *store, int piece)
{
	const struct store_piece *of = &store->piece[piece];
	if (of->record >= 0 && of->frame < 0)
		return 2;
	const struct frame *frame = of->record < 0 ? NULL : &store->cache->frame[of->frame];
	return frame && (frame->state == FRAME_READING || frame->state == FRAME_WRITING) && !rh_space_io_done(frame->io);
}

/* memory: of the piece's frame; NULL: nothing of these parts is spilled. */
static void view_of(const struct rh_store *store, const struct store_piece *piece, unsigned parts, char *memory, struct store_view *view)
{
	const struct store_block *block = &store->block[piece->block];
	struct spill_widths widths = spill_widths(&store->options);
	int64_t count = piece->end - piece->first, at = piece->first;
	*view = (struct store_view){
	        .first = at, .lower = block->lower ? block->lower + at : NULL, .master = block->master ? block->master + at : NULL};
	for (int k = 0; k < 2; k++) {
		view->moment[k] = block->moment[k] ? block->moment[k] + at : NULL;
		view->code[k] = block->code[k] ? block->code[k] + at : NULL;
	}
	if (!memory)
		return;
	if (!piece->span_count) {
		view->weights = memory;
		return;
	}
	const struct rh_space *space = store->options.space;
	if (widths.lower && parts & STORE_WEIGHTS)
		view->lower = (uint16_t *)(void *)memory;
	if (widths.master && parts & STORE_WEIGHTS)
		view->master = (float *)(void *)memory;
	memory += rh_space_round(space, count * (widths.lower + widths.master));
	for (int k = 0; k < widths.moments; k++) {
		int asked = (parts & (k ? STORE_SECOND : STORE_MOMENT)) != 0;
		if (widths.moment && asked)
			view->moment[k] = (float *)(void *)memory;
		else if (asked)
			view->code[k] = (uint8_t *)memory;
		memory += rh_space_round(space, count * (widths.moment + widths.code));
	}
}

/* The parts, among these, that the piece has on NVMe. */
static unsigned spilled_of(const struct rh_store *store, const struct store_piece *piece, unsigned parts)
{
	struct spill_parts all = spill_parts(&store->options, piece);
	for (int p = 0; p < RH_SPACE_PARTS; p++)
		if (!all.bytes[p])
			parts &= ~(1u << p);
	return parts;
}

int store_acquire_unknown(struct rh_store *store, int piece, unsigned parts, struct store_view *view)
{
	struct store_piece *of = &store->piece[piece];
	parts = of->record < 0 ? 0 : spilled_of(store, of, parts);
	if (!parts) {
		view_of(store, of, 0, NULL, view);
		return 0;
	}
	struct store_cache *cache = store->cache;
	int rc = 0;
	if (of->frame < 0)
		rc = begin_read(store, choose(store, 4), piece, parts);
	struct frame *frame = rc ? NULL : &cache->frame[of->frame];
	if (frame && (frame->state == FRAME_READING || frame->state == FRAME_WRITING))
		rc = rh_space_io_wait(frame->io);
	if (!rc && parts & ~frame->present) {
		read_parts(store, frame, piece, parts & ~frame->present);
		rc = rh_space_io_wait(frame->io);
	}
	if (rc)
		return rc;
	RH_ASSERT(frame->state != FRAME_IN_USE);
	of->ahead = 0;
	frame->state = FRAME_IN_USE;
	pump(store);
	view_of(store, of, parts, frame->memory, view);
	view->frame = frame->memory;
	view->parts = of->span_count ? parts : 0;
	view->unknown = view->parts & ~frame->checked;
	return 0;
}

int store_acquire(struct rh_store *store, int piece, unsigned parts, struct store_view *view)
{
	struct store_piece *of = &store->piece[piece];
	int rc = store_acquire_unknown(store, piece, parts, view);
	if (rc || !view->unknown)
		return rc;
	int bad = sums_check(store, of, view->unknown, view->frame);
	if (!bad) {
		store->cache->frame[of->frame].checked |= view->unknown;
		return 0;
	}
	store_release(store, piece, parts, STORE_UNCHANGED);
	return rh_space_mismatch(store->options.space, of->record, bad - 1);
}

void store_requested(struct rh_store *store, int block, int piece)
{
	if (store->cache && store->cache->next[block] <= piece)
		store->cache->next[block] = piece + 1;
}

void store_done(struct rh_store *store, int block)
{
	struct store_cache *cache = store->cache;
	int kept = 0;
	if (!cache)
		return;
	for (int i = 0; i < cache->count; i++)
		if (cache->line[i] != block)
			cache->line[kept++] = cache->line[i];
	cache->count = kept;
	cache->requested = cache->next[block] = 0;
}

void store_release(struct rh_store *store, int piece, unsigned parts, enum store_after after)
{
	struct store_piece *of = &store->piece[piece];
	parts = of->record < 0 ? 0 : spilled_of(store, of, parts);
	if (!parts)
		return;
	struct frame *frame = &store->cache->frame[of->frame];
	RH_ASSERT(frame->state == FRAME_IN_USE && frame->piece == piece);
	frame->used = ++store->cache->turns;
	if (after != STORE_UNCHANGED)
		frame->changed |= parts;
	if (after == STORE_CHANGED || after == STORE_DONE)
		frame->unsummed |= parts;
	if (after == STORE_SUMMED) {
		frame->checked |= parts;
		frame->unsummed &= ~parts;
	}
	frame->state = FRAME_KEPT;
	of->ahead = 0; /* set while it was in use, by a read-ahead that found it there */
	if (after == STORE_DONE || after == STORE_SUMMED)
		begin_write(store, frame);
	pump(store);
}

int rh_store_settle(struct rh_store *store)
{
	struct store_cache *cache = store->cache;
	int rc = 0;
	for (int i = 0; cache && !rc && i < cache->frames; i++) {
		struct frame *frame = &cache->frame[i];
		if (frame->state == FRAME_KEPT && frame->changed)
			begin_write(store, frame);
		if (frame->state != FRAME_WRITING)
			continue;
		rc = rh_space_io_wait(frame->io);
		frame->state = FRAME_KEPT;
	}
	return rc;
}
