/* Cuts blocks into pieces, the units that are read, kept in memory and updated at once. A piece on NVMe has a record of the space and a
 * place for its checksums. The record holds the piece's spilled arrays one after the other, each beginning at a multiple of the space's
 * unit: lower halves or masters, then moments or codes. cache.c brings them into memory. Trainable blocks in memory are cut too, into
 * larger pieces without record and checksums: between two of them the updater may turn to something more urgent. */
#include "core/alloc.h"
#include "core/hooks.h"
#include "core/minmax.h"
#include "offload/memory.h"
#include "offload/optimizer.h"
#include "offload/store_internal.h"

#include <stdlib.h>

/* Frames: so many that the drive is busy while nothing is updated, between two steps (bench/spill). */
enum { FRAMES = 10, FRAMES_OF_TENSORS = 3, FRAMES_OF_TESTS = 6, PIECE_ELEMENTS = 1 << 20, PIECE_IN_MEMORY = 1 << 25 };

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

int64_t spill_piece_elements(int is_spilled)
{
	const char *text = getenv(RH_HOOK_SPILL_ELEMENTS);
	int64_t elements = text ? strtol(text, NULL, 10) : 0;
	return elements > 0 ? elements : is_spilled ? PIECE_ELEMENTS : PIECE_IN_MEMORY;
}

/* One piece more, from element `first` on. Spans are as fill_spans cuts them: each within one tensor. */
static int64_t span_end(const struct rh_tensor *tensor, int64_t at)
{
	int64_t end = at + STORE_SPAN, last = tensor->offset + tensor_elements(tensor);
	return end < last ? end : last;
}

int64_t rh_store_page_bytes(const struct rh_block *specs, int count, const struct rh_store_options *options)
{
	int64_t most = 4 * spill_piece_elements(1), largest = 0;
	for (int b = 0; b < count && options->spill & RH_SPILL_WEIGHTS; b++)
		if (!specs[b].trainable)
			largest = rh_max(largest, rh_block_bytes(&specs[b], options->dtype));
	return round_up(options, largest < most ? largest : most);
}

/* A frozen block's pages, by bytes. */
static void cut_pages(int64_t bytes, int block, int64_t page_bytes, void (*add)(void *context, struct store_piece piece), void *context)
{
	for (int64_t at = 0; at < bytes; at += page_bytes) {
		int64_t end = bytes - at < page_bytes ? bytes : at + page_bytes;
		add(context, (struct store_piece){.block = block, .first = at, .end = end, .record = -1, .frame = -1});
	}
}

/* Calls `add` for each piece of a trainable block, in order. A large model has millions of spans, and is measured often: they are not gone
 * through one by one. */
static void cut_spans(const struct rh_block *spec, int block, const struct rh_store_options *options,
                      void (*add)(void *context, struct store_piece piece), void *context)
{
	int spilled = sum_of(record_parts(options, 1)) > 0, by_tensor = options->optim == RH_OPTIM_ADAFACTOR;
	int64_t most = spill_piece_elements(spilled), span = 0;
	struct store_piece piece = {.block = block, .record = -1, .frame = -1};
	for (int t = 0; spec->trainable && t < spec->tensors; t++) {
		const struct rh_tensor *tensor = &spec->tensor[t];
		int64_t at = tensor->offset, last = at + tensor_elements(tensor);
		while (at < last) {
			int64_t whole = by_tensor ? last : span_end(tensor, at), end = last; /* what must come along; what does */
			int may_end = !by_tensor || at == tensor->offset;
			if (piece.span_count && may_end && whole - piece.first > most) {
				add(context, piece);
				piece.span_count = 0;
			}
			if (!piece.span_count) {
				piece.span = span;
				piece.first = at;
			}
			if (!by_tensor && last - piece.first > most) {
				int64_t fit = (most - (at - piece.first)) / STORE_SPAN;
				end = fit < 1 ? whole : at + fit * STORE_SPAN;
			}
			int64_t count = (end - at + STORE_SPAN - 1) / STORE_SPAN;
			piece.span_count += count;
			span += count;
			piece.end = at = end;
		}
	}
	if (piece.span_count)
		add(context, piece);
}

int spill_takes_weights(const struct rh_block *spec, const struct rh_store_options *options, int *turn)
{
	if (spec->trainable || rh_block_stays(spec) || !(options->spill & RH_SPILL_WEIGHTS))
		return 0;
	*turn += options->frozen_share ? options->frozen_share : RH_STORE_FROZEN_PARTS;
	if (*turn < RH_STORE_FROZEN_PARTS)
		return 0;
	*turn -= RH_STORE_FROZEN_PARTS;
	return 1;
}

/* page_bytes: 0 for a frozen block in memory. */
static void cut_block(const struct rh_block *spec, int block, int64_t page_bytes, const struct rh_store_options *options,
                      void (*add)(void *context, struct store_piece piece), void *context)
{
	if (spec->trainable)
		cut_spans(spec, block, options, add, context);
	else if (page_bytes)
		cut_pages(rh_block_bytes(spec, options->dtype), block, page_bytes, add, context);
}

struct spill_parts spill_parts(const struct rh_store_options *options, const struct store_piece *piece)
{
	int64_t length = piece->end - piece->first;
	return piece->span_count ? record_parts(options, length) : (struct spill_parts){{round_up(options, length)}};
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
	int most = options->optim == RH_OPTIM_ADAFACTOR        ? FRAMES_OF_TENSORS
	           : spill_piece_elements(1) == PIECE_ELEMENTS ? FRAMES
	                                                       : FRAMES_OF_TESTS;
	return records < most ? records : most;
}

static void measure_also(struct measuring *all, const struct measuring *more)
{
	all->nvme.frozen += more->nvme.frozen;
	all->nvme.masters += more->nvme.masters;
	all->nvme.state += more->nvme.state;
	all->largest = more->largest > all->largest ? more->largest : all->largest;
	all->sums += more->sums;
	all->pieces += more->pieces;
	all->records += more->records;
}

/* Are two blocks cut alike? */
static int are_alike(const struct rh_block *one, const struct rh_block *other)
{
	if (one->trainable != other->trainable || one->elements != other->elements || one->tensors != other->tensors ||
	    one->packed_bytes != other->packed_bytes)
		return 0;
	for (int t = 0; one->trainable && t < one->tensors; t++) {
		const struct rh_tensor *a = &one->tensor[t], *b = &other->tensor[t];
		if (a->offset != b->offset || tensor_elements(a) != tensor_elements(b))
			return 0;
	}
	return 1;
}

/* A large model has tens of thousands of pieces, a plan measures it hundreds of times, and its layers are alike: of those that follow each
 * other, by themselves or in pairs of a layer's base and adapter, one is gone through. */
struct spill_sizes spill_measure(const struct rh_block *specs, int count, const struct rh_store_options *options)
{
	enum { KEPT = 2 };
	int64_t page = rh_store_page_bytes(specs, count, options);
	struct measuring all = {.options = options}, kept[KEPT];
	int turn = 0, was_cut[KEPT] = {0};
	for (int b = 0; b < count; b++) {
		struct measuring *measuring = &kept[b % KEPT];
		int is_cut = specs[b].trainable || spill_takes_weights(&specs[b], options, &turn);
		if (b < KEPT || is_cut != was_cut[b % KEPT] || !are_alike(&specs[b - KEPT], &specs[b])) {
			*measuring = (struct measuring){.options = options};
			cut_block(&specs[b], b, is_cut ? page : 0, options, measure, measuring);
		}
		was_cut[b % KEPT] = is_cut;
		measure_also(&all, measuring);
	}
	int frames = frames_of(options, all.records);
	return (struct spill_sizes){.pieces = all.pieces,
	                            .frames = frames,
	                            .frame_bytes = all.largest,
	                            .sums = all.sums,
	                            .cache_bytes = frames * all.largest + all.sums * (int64_t)sizeof(uint64_t),
	                            .nvme = all.nvme};
}

void spill_weigh(struct rh_store *store)
{
	for (int b = 0; b < store->count && store->options.spill; b++) {
		const struct rh_block *spec = &store->spec[b];
		struct store_block *block = &store->block[b];
		if (!spec->trainable)
			continue;
		if (b && are_alike(&spec[-1], spec)) {
			block->spilled = block[-1].spilled;
			continue;
		}
		struct rh_store_nvme nvme = spill_measure(spec, 1, &store->options).nvme;
		block->spilled = nvme.masters + nvme.state;
	}
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

static int take_records(struct rh_store *store)
{
	int64_t sums = 0;
	int rc = 0;
	for (int p = 0; !rc && p < store->pieces; p++) {
		struct store_piece *piece = &store->piece[p];
		struct spill_parts parts = spill_parts(&store->options, piece);
		const char *owner = store->spec[piece->block].name;
		if (sum_of(parts) && !piece->span_count)
			rc = rh_space_take(store->options.space, parts.bytes[0], "weights", owner, &piece->record);
		else if (sum_of(parts))
			rc = rh_space_take_parts(store->options.space, parts.bytes, "optimizer state", owner, &piece->record);
		piece->first_checksum = sums;
		sums += piece->span_count ? sums_count(&parts, piece->span_count) : 0;
	}
	return rc;
}

int spill_create(struct rh_store *store)
{
	struct spill_sizes sizes = spill_measure(store->spec, store->count, &store->options);
	store->piece = rh_alloc((size_t)sizes.pieces, sizeof *store->piece);
	if (!store->piece)
		return -ENOMEM;
	int64_t page = rh_store_page_bytes(store->spec, store->count, &store->options);
	for (int b = 0, turn = 0; b < store->count; b++) {
		int has_pages = spill_takes_weights(&store->spec[b], &store->options, &turn);
		cut_block(&store->spec[b], b, has_pages ? page : 0, &store->options, add_piece, store);
	}
	int rc = sizes.cache_bytes ? cache_create(store, &sizes) : 0;
	return rc || !sizes.cache_bytes ? rc : take_records(store);
}

void spill_destroy(struct rh_store *store)
{
	cache_destroy(store);
	rh_free(store->piece);
}

int rh_store_pages(const struct rh_store *store, int block)
{
	RH_ASSERT(block >= 0 && block < store->count);
	if (store->block[block].weights)
		return -1;
	return store->options.addresses_only ? 0 : store->piece[store->block[block].piece].record;
}
