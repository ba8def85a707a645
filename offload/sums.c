/* Checksums of trainable blocks on NVMe. Each part of a piece has one checksum a span, so that the update checks and makes it while the
 * span is in the processor's cache, without reading memory again.
 *
 * A span's share of a part ends where the next span's begins; the first begins with the part, the last ends with it. Shares are cut
 * where a block of the space ends, so that a mismatch lies in one block, which an error line can name. */
#include "offload/store_internal.h"

#include <limits.h>
#include <stdatomic.h>

static int64_t blocks_of(int64_t bytes)
{
	return (bytes + RH_SPACE_BLOCK - 1) / RH_SPACE_BLOCK;
}

/* Each span's, and one more where a block ends within a share. */
static int64_t sums_of_part(int64_t spans, int64_t bytes)
{
	return bytes ? spans + blocks_of(bytes) - 1 : 0;
}

int64_t sums_count(const struct spill_parts *parts, int64_t spans)
{
	int64_t count = 0;
	for (int p = 0; p < RH_SPACE_PARTS; p++)
		count += sums_of_part(spans, parts->bytes[p]);
	return count;
}

enum what { CHECK, MAKE };

struct share {
	int64_t begin, end; /* bytes of the part */
};

static struct share share_of(const struct rh_store *store, const struct store_piece *piece, int64_t span, int64_t width, int64_t bytes)
{
	const struct store_span *at = &store->span[piece->span + span];
	return (struct share){.begin = span ? (at->first - piece->first) * width : 0,
	                      .end = span + 1 < piece->span_count ? (at[1].first - piece->first) * width : bytes};
}

/* 0, or 1 + the part's block that does not match. sum: the part's; 0: never written, and so zeros that never were anywhere else. */
static int part_of_span(const struct rh_store *store, const char *memory, struct share share, uint64_t *sum, enum what what)
{
	for (int64_t at = share.begin, end; at < share.end; at = end) {
		int64_t block = at / RH_SPACE_BLOCK, border = (block + 1) * RH_SPACE_BLOCK;
		end = border < share.end ? border : share.end;
		if (what == CHECK && !sum[block])
			continue;
		uint64_t found = store->kernels->checksum(memory + at, end - at);
		found += !found;
		if (what == MAKE)
			sum[block] = found;
		else if (found != sum[block])
			return 1 + (int)block;
	}
	return 0;
}

static int each_part(const struct rh_store *store, const struct store_piece *piece, unsigned parts, int64_t span, const char *memory,
                     enum what what)
{
	struct spill_widths widths = spill_widths(&store->options);
	struct spill_parts all = spill_parts(&store->options, piece);
	uint64_t *sum = store->checksum + piece->first_checksum;
	int block = 0;
	for (int p = 0; p < RH_SPACE_PARTS; p++) {
		int64_t width = p ? widths.moment + widths.code : widths.lower + widths.master, bytes = all.bytes[p];
		int bad = 0;
		if (bytes && parts >> p & 1)
			bad = part_of_span(store, memory, share_of(store, piece, span, width, bytes), sum + span, what);
		if (bad)
			return block + bad;
		memory += bytes;
		sum += sums_of_part(piece->span_count, bytes);
		block += (int)blocks_of(bytes);
	}
	return 0;
}

int sums_check_span(const struct rh_store *store, const struct store_piece *piece, unsigned parts, int64_t span, const char *memory)
{
	return each_part(store, piece, parts, span, memory, CHECK);
}

void sums_make_span(const struct rh_store *store, const struct store_piece *piece, unsigned parts, int64_t span, const char *memory)
{
	(void)each_part(store, piece, parts, span, memory, MAKE);
}

void sums_keep_lowest(_Atomic int *lowest, int value)
{
	int before = atomic_load_explicit(lowest, memory_order_relaxed); /* the pool's end of run publishes it */
	while (value < before && !atomic_compare_exchange_weak_explicit(lowest, &before, value, memory_order_relaxed, memory_order_relaxed))
		;
}

struct whole {
	const struct rh_store *store;
	const struct store_piece *piece;
	unsigned parts;
	const char *memory;
	_Atomic int bad; /* lowest, INT_MAX for none */
};

static void check_span(void *context, int64_t i)
{
	struct whole *whole = context;
	int bad = sums_check_span(whole->store, whole->piece, whole->parts, i, whole->memory);
	if (bad)
		sums_keep_lowest(&whole->bad, bad);
}

static void make_span(void *context, int64_t i)
{
	const struct whole *whole = context;
	sums_make_span(whole->store, whole->piece, whole->parts, i, whole->memory);
}

int sums_check(struct rh_store *store, const struct store_piece *piece, unsigned parts, const char *memory)
{
	struct whole whole = {store, piece, parts, memory, INT_MAX};
	store_run_spans(store, piece->span, piece->span_count, check_span, &whole);
	int bad = atomic_load_explicit(&whole.bad, memory_order_relaxed);
	return bad == INT_MAX ? 0 : bad;
}

void sums_make(struct rh_store *store, const struct store_piece *piece, unsigned parts, const char *memory)
{
	struct whole whole = {store, piece, parts, memory, INT_MAX};
	store_run_spans(store, piece->span, piece->span_count, make_span, &whole);
}
