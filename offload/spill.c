/* What of trainable blocks lies on NVMe, and the cache of host memory through which it is read and written.
 *
 * A piece's record holds its spilled arrays one after the other, each from a border of the space's unit on: lower halves or masters, then
 * moments or codes. The cache has a few frames, each as large as the largest record.
 *
 *   EMPTY --begin_read--> READING --hold--> HELD --release--> KEPT (what has changed is written when the frame is needed)
 *                                            |  --release, done--> WRITING
 *   KEPT --hold--> HELD;  WRITING --hold, once written--> HELD;  all but HELD --empty--> EMPTY
 *
 * No lock: whoever has the store's pool has its pieces. A piece is nowhere twice, and its record is read only while no write of it is under
 * way, since until then it is in its frame. */
#include "core/alloc.h"
#include "core/hooks.h"
#include "offload/frame_choice.h"
#include "offload/memory.h"
#include "offload/optimizer.h"
#include "offload/store_internal.h"

#include <stdlib.h>

/* Frames: so many that the drive is busy while nothing is updated, between two steps (bench/spill). */
enum { FRAMES = 10, FRAMES_OF_TENSORS = 3, FRAMES_OF_TESTS = 6, PIECE_ELEMENTS = 1 << 20 };

enum frame_state { FRAME_EMPTY, FRAME_READING, FRAME_HELD, FRAME_KEPT, FRAME_WRITING };

struct frame {
	char *memory;
	struct rh_space_io *io;
	enum frame_state state;
	int piece;
	/* parts of the piece: here or on their way; changed since they were last read or written; of a trainable block's: here and known to
	 * be what was written; changed since their checksums were made */
	unsigned present, changed, checked, unsummed;
	uint64_t used; /* when it was last let go of, in turns of the cache */
};

struct store_cache {
	struct rh_arena memory;
	struct frame frame[FRAMES];
	int frames;
	uint64_t turns;
	int *line; /* blocks whose update comes, a ring of as many as there are */
	int *in_line;
	int head, count;
	int next; /* piece of the first block in line that is to be read next */
};

struct spill_widths spill_widths(const struct rh_store_options *options)
{
	int half = options->dtype == RH_BF16, narrow = options->layout == RH_LAYOUT_SPLIT8;
	struct spill_widths widths = {0};
	if (options->spill & RH_SPILL_MASTERS && half)
		*(options->layout == RH_LAYOUT_PLAIN ? &widths.master : &widths.lower) = options->layout == RH_LAYOUT_PLAIN ? 4 : 2;
	if (options->spill & RH_SPILL_OPTIMIZER && (widths.moments = state_moments(options)))
		*(narrow ? &widths.code : &widths.moment) = narrow ? 1 : 4;
	return widths;
}

/* Where nothing will be written, a drive's usual unit will do. */
static int64_t round_up(const struct rh_store_options *options, int64_t bytes)
{
	return options->space || options->addresses_only ? rh_space_round(options->space, bytes) : 0;
}

static struct spill_parts record_parts(const struct rh_store_options *options, int64_t elements)
{
	struct spill_widths widths = spill_widths(options);
	struct spill_parts parts = {{round_up(options, elements * (widths.lower + widths.master))}};
	for (int k = 0; k < widths.moments; k++)
		parts.bytes[1 + k] = round_up(options, elements * (widths.moment + widths.code));
	return parts;
}

static int64_t sum_of(struct spill_parts parts)
{
	return parts.bytes[0] + parts.bytes[1] + parts.bytes[2];
}

static int64_t piece_elements(void)
{
	const char *text = getenv(RH_HOOK_SPILL_ELEMENTS);
	int64_t elements = text ? strtol(text, NULL, 10) : 0;
	return elements > 0 ? elements : PIECE_ELEMENTS;
}

/* One piece more, from element `first` on. Spans are as fill_spans cuts them: each within one tensor. */
static int64_t span_end(const struct rh_tensor *tensor, int64_t at)
{
	int64_t end = at + STORE_SPAN, last = tensor->offset + tensor_elements(tensor);
	return end < last ? end : last;
}

int64_t rh_store_page_bytes(const struct rh_block *specs, int count, const struct rh_store_options *options)
{
	int64_t most = 4 * piece_elements(), largest = 0;
	for (int b = 0; b < count && options->spill & RH_SPILL_WEIGHTS; b++)
		if (!specs[b].trainable && specs[b].elements > largest)
			largest = specs[b].elements;
	int64_t bytes = rh_dtype_bytes(options->dtype, largest);
	return round_up(options, bytes < most ? bytes : most);
}

/* A frozen block's pages. */
static void cut_pages(const struct rh_block *spec, int block, int64_t page_elements, void (*add)(void *context, struct store_piece piece),
                      void *context)
{
	for (int64_t at = 0; at < spec->elements; at += page_elements) {
		int64_t end = spec->elements - at < page_elements ? spec->elements : at + page_elements;
		add(context, (struct store_piece){.block = block, .first = at, .end = end, .record = -1, .frame = -1});
	}
}

/* Calls `add` for each piece of a trainable block, in order. */
static void cut_spans(const struct rh_block *spec, int block, const struct rh_store_options *options,
                      void (*add)(void *context, struct store_piece piece), void *context)
{
	int spilled = sum_of(record_parts(options, 1)) > 0, by_tensor = options->optim == RH_OPTIM_ADAFACTOR;
	int64_t span = 0;
	struct store_piece piece = {.block = block, .record = -1, .frame = -1};
	for (int t = 0; spec->trainable && t < spec->tensors; t++) {
		const struct rh_tensor *tensor = &spec->tensor[t];
		int64_t last = tensor->offset + tensor_elements(tensor);
		if (!spilled) { /* one piece: its spans need not be gone through, which of a large model are many */
			piece.first = t ? piece.first : tensor->offset;
			piece.end = last;
			piece.span_count += (tensor_elements(tensor) + STORE_SPAN - 1) / STORE_SPAN;
			continue;
		}
		for (int64_t at = tensor->offset, end; at < last; at = end, span++) {
			end = span_end(tensor, at);
			int64_t whole = by_tensor ? last : end; /* what must come along */
			int may_end = !by_tensor || at == tensor->offset;
			if (spilled && piece.span_count && may_end && whole - piece.first > piece_elements()) {
				add(context, piece);
				piece.span_count = 0;
			}
			if (!piece.span_count) {
				piece.span = span;
				piece.first = at;
			}
			piece.span_count++;
			piece.end = end;
		}
	}
	if (piece.span_count)
		add(context, piece);
}

static void cut(const struct rh_block *specs, int count, const struct rh_store_options *options,
                void (*add)(void *context, struct store_piece piece), void *context)
{
	int64_t page = rh_store_page_bytes(specs, count, options) / rh_dtype_bytes(options->dtype, 1);
	for (int b = 0; b < count; b++)
		if (specs[b].trainable)
			cut_spans(&specs[b], b, options, add, context);
		else if (page)
			cut_pages(&specs[b], b, page, add, context);
}

struct spill_parts spill_parts(const struct rh_store_options *options, const struct store_piece *piece)
{
	int64_t elements = piece->end - piece->first;
	return piece->span_count ? record_parts(options, elements)
	                         : (struct spill_parts){{round_up(options, rh_dtype_bytes(options->dtype, elements))}};
}

struct measuring {
	const struct rh_store_options *options;
	struct rh_store_nvme nvme;
	int64_t largest, sums;
	int pieces, records;
};

static void measure(void *context, struct store_piece piece)
{
	struct measuring *measuring = context;
	struct spill_parts parts = spill_parts(measuring->options, &piece);
	int64_t bytes = sum_of(parts);
	*(piece.span_count ? &measuring->nvme.masters : &measuring->nvme.frozen) += parts.bytes[0];
	measuring->nvme.state += parts.bytes[1] + parts.bytes[2];
	measuring->largest = bytes > measuring->largest ? bytes : measuring->largest;
	measuring->sums += piece.span_count ? sums_count(&parts, piece.span_count) : 0;
	measuring->pieces++;
	measuring->records += bytes > 0;
}

static int frames_of(const struct rh_store_options *options, int records)
{
	int most = options->optim == RH_OPTIM_ADAFACTOR ? FRAMES_OF_TENSORS : piece_elements() == PIECE_ELEMENTS ? FRAMES : FRAMES_OF_TESTS;
	return records < most ? records : most;
}

struct spill_sizes spill_measure(const struct rh_block *specs, int count, const struct rh_store_options *options)
{
	struct measuring measuring = {.options = options};
	cut(specs, count, options, measure, &measuring);
	int frames = frames_of(options, measuring.records);
	return (struct spill_sizes){.pieces = measuring.pieces,
	                            .frames = frames,
	                            .frame_bytes = measuring.largest,
	                            .sums = measuring.sums,
	                            .cache_bytes = frames * measuring.largest + measuring.sums * (int64_t)sizeof(uint64_t),
	                            .nvme = measuring.nvme};
}

static void add_piece(void *context, struct store_piece piece)
{
	struct rh_store *store = context;
	struct store_block *block = &store->block[piece.block];
	piece.span += block->span;
	if (!block->piece_count++)
		block->piece = store->pieces;
	store->piece[store->pieces++] = piece;
}

static int cache_create(struct rh_store *store, const struct spill_sizes *sizes)
{
	struct store_cache *cache = rh_alloc(1, sizeof *cache);
	if (!cache)
		return -ENOMEM;
	store->cache = cache;
	cache->line = rh_alloc((size_t)store->count, sizeof *cache->line);
	cache->in_line = rh_alloc((size_t)store->count, sizeof *cache->in_line);
	int rc = cache->line && cache->in_line ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_host_reserve(sizes->cache_bytes, "the cache of optimizer state on NVMe", &cache->memory);
	int64_t each = sizes->frame_bytes, frames = sizes->frames * each, sums = 0;
	for (; !rc && cache->frames < sizes->frames; cache->frames += !rc) {
		struct frame *frame = &cache->frame[cache->frames];
		*frame = (struct frame){.memory = cache->memory.base + cache->frames * each, .piece = -1};
		rc = rh_space_io_create(store->options.space, each, &frame->io);
	}
	for (int p = 0; !rc && p < store->pieces; p++) {
		struct store_piece *piece = &store->piece[p];
		struct spill_parts parts = spill_parts(&store->options, piece);
		const char *owner = store->spec[piece->block].name;
		if (sum_of(parts) && !piece->span_count)
			rc = rh_space_take(store->options.space, parts.bytes[0], "weights", owner, &piece->record);
		else if (sum_of(parts))
			rc = rh_space_take_parts(store->options.space, parts.bytes, "optimizer state", owner, &piece->record);
		piece->sum = sums;
		sums += piece->span_count ? sums_count(&parts, piece->span_count) : 0;
	}
	if (rc)
		return rc;
	store->sum = (uint64_t *)(void *)(cache->memory.base + frames);
	rh_space_attach(store->options.space, cache->memory.base, frames);
	return 0;
}

int spill_create(struct rh_store *store)
{
	struct spill_sizes sizes = spill_measure(store->spec, store->count, &store->options);
	store->piece = rh_alloc((size_t)sizes.pieces, sizeof *store->piece);
	if (!store->piece)
		return -ENOMEM;
	cut(store->spec, store->count, &store->options, add_piece, store);
	return sizes.cache_bytes ? cache_create(store, &sizes) : 0;
}

void spill_destroy(struct rh_store *store)
{
	struct store_cache *cache = store->cache;
	if (cache) {
		for (int i = 0; i < FRAMES; i++)
			rh_space_io_destroy(cache->frame[i].io);
		rh_host_release(&cache->memory);
		rh_free(cache->line);
		rh_free(cache->in_line);
		rh_free(cache);
	}
	rh_free(store->piece);
}

/* ---- the cache ---- */

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
	struct rh_frame_choice best = {.frame = -1};
	for (int i = 0; i < cache->frames; i++) {
		int cost = cost_of(store, &cache->frame[i]);
		if (cost >= 0 && cost <= most)
			rh_frame_offer(&best, i, cost, cache->frame[i].used);
	}
	return best.frame < 0 ? NULL : &cache->frame[best.frame];
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

/* Reads ahead, in line, into what is free at once. A fault stays in the space, and is met by the next hold. */
static void pump(struct rh_store *store)
{
	struct store_cache *cache = store->cache;
	while (cache->count) {
		const struct store_block *block = &store->block[cache->line[cache->head]];
		int piece = block->piece + cache->next;
		if (cache->next == block->piece_count) { /* all of it is here or on its way */
			cache->in_line[cache->line[cache->head]] = 0;
			cache->head = (cache->head + 1) % store->count;
			cache->count--;
			cache->next = 0;
			continue;
		}
		struct frame *frame = store->piece[piece].frame < 0 ? choose(store, 0) : NULL;
		if (store->piece[piece].frame < 0 && !frame)
			return;
		store->piece[piece].ahead = 1;
		if (frame && begin_read(store, frame, piece, STORE_ALL))
			return;
		cache->next++;
	}
}

void rh_store_ahead(struct rh_store *store, int block)
{
	struct store_cache *cache = store->cache;
	RH_ASSERT(block >= 0 && block < store->count);
	int known =
	        !cache || !store->block[block].piece_count || store->piece[store->block[block].piece].record < 0 || cache->in_line[block];
	for (int p = 0; !known && p < store->block[block].piece_count; p++)
		known |= store->piece[store->block[block].piece + p].ahead;
	if (known)
		return;
	cache->line[(cache->head + cache->count++) % store->count] = block;
	cache->in_line[block] = 1;
	pump(store);
}

void spill_turn(struct rh_store *store, int block)
{
	struct store_cache *cache = store->cache;
	rh_store_ahead(store, block);
	if (!cache || !cache->in_line[block] || cache->line[cache->head] == block)
		return;
	int at = 1;
	while (cache->line[(cache->head + at) % store->count] != block)
		at++;
	for (; at > 0; at--)
		cache->line[(cache->head + at) % store->count] = cache->line[(cache->head + at - 1) % store->count];
	cache->line[cache->head] = block;
	cache->next = 0; /* of the block that was first, what is here already is passed over when its turn comes */
	pump(store);
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

/* Those of the parts that the piece has on NVMe. */
static unsigned spilled_of(const struct rh_store *store, const struct store_piece *piece, unsigned parts)
{
	struct spill_parts all = spill_parts(&store->options, piece);
	for (int p = 0; p < RH_SPACE_PARTS; p++)
		if (!all.bytes[p])
			parts &= ~(1u << p);
	return parts;
}

int store_hold_unknown(struct rh_store *store, int piece, unsigned parts, struct store_view *view)
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
	RH_ASSERT(frame->state != FRAME_HELD);
	of->ahead = 0;
	frame->state = FRAME_HELD;
	pump(store);
	view_of(store, of, parts, frame->memory, view);
	view->frame = frame->memory;
	view->parts = of->span_count ? parts : 0;
	view->unknown = view->parts & ~frame->checked;
	return 0;
}

int store_hold(struct rh_store *store, int piece, unsigned parts, struct store_view *view)
{
	struct store_piece *of = &store->piece[piece];
	int rc = store_hold_unknown(store, piece, parts, view);
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

void store_release(struct rh_store *store, int piece, unsigned parts, enum store_after after)
{
	struct store_piece *of = &store->piece[piece];
	parts = of->record < 0 ? 0 : spilled_of(store, of, parts);
	if (!parts)
		return;
	struct frame *frame = &store->cache->frame[of->frame];
	RH_ASSERT(frame->state == FRAME_HELD && frame->piece == piece);
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
	of->ahead = 0; /* set while it was held, by a read-ahead that found it there */
	if (after == STORE_DONE || after == STORE_SUMMED)
		begin_write(store, frame);
	pump(store);
}

int rh_store_pages(const struct rh_store *store, int block)
{
	RH_ASSERT(block >= 0 && block < store->count);
	if (store->block[block].weights)
		return -1;
	return store->options.addresses_only ? 0 : store->piece[store->block[block].piece].record;
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
