#include "offload/transfer.h"

#include "core/arena.h"

int64_t rh_transfer_piece_bytes(struct rh_transfer_limits limits, int64_t total_bytes, int gaps)
{
	int64_t share = rh_align_up((total_bytes + gaps - 1) / gaps, RH_ALIGN);
	return share < limits.least_bytes ? limits.least_bytes : share > limits.most_bytes ? limits.most_bytes : share;
}

int64_t rh_transfer_pieces_most(struct rh_transfer_limits limits, int64_t total_bytes, int items, int gaps)
{
	/* cutting leaves less than a whole piece of each item; whole ones are a gap's share, or the most */
	int64_t largest = total_bytes / limits.most_bytes;
	return items + (largest > gaps ? largest : gaps);
}

static int by_size(const struct rh_transfer_piece *a, const struct rh_transfer_piece *b)
{
	if (a->bytes != b->bytes)
		return a->bytes > b->bytes ? -1 : 1;
	if (a->item != b->item)
		return a->item < b->item ? -1 : 1;
	return a->first < b->first ? -1 : 1;
}

static int by_gap(const struct rh_transfer_piece *a, const struct rh_transfer_piece *b)
{
	if (a->gap != b->gap)
		return a->gap < b->gap ? -1 : 1;
	if (a->item != b->item)
		return a->item < b->item ? -1 : 1;
	return a->first < b->first ? -1 : 1;
}

/* Shell's sort: in place, as qsort need not be, since nothing may be allocated in a step. */
static void sort(struct rh_transfer_piece *piece, int count,
                 int (*compare)(const struct rh_transfer_piece *, const struct rh_transfer_piece *))
{
	int stride = 1;
	while (stride < count / 3)
		stride = 3 * stride + 1;
	for (; stride > 0; stride /= 3)
		for (int i = stride; i < count; i++) {
			struct rh_transfer_piece moved = piece[i];
			int at = i;
			for (; at >= stride && compare(&moved, &piece[at - stride]) < 0; at -= stride)
				piece[at] = piece[at - stride];
			piece[at] = moved;
		}
}

/* Pieces of the largest size, one after the other. */
struct whole {
	const int64_t *bytes;
	int64_t most_bytes, first;
	int item;
};

/* The next of them; its gap is the caller's. */
static struct rh_transfer_piece next_whole(struct whole *at)
{
	while (at->bytes[at->item] - at->first < at->most_bytes) {
		at->item++;
		at->first = 0;
	}
	struct rh_transfer_piece piece = {.item = at->item, .first = at->first, .bytes = at->most_bytes};
	at->first += at->most_bytes;
	return piece;
}

/* LPT deals equal pieces out in turn; which goes where is free, so the first ones go first. */
static int share_of(int whole, int gap, int gaps)
{
	return whole / gaps + (gap < whole % gaps);
}

/* Smaller ones, the largest first, each to the gap with the least. */
static void pack(struct rh_transfer_piece *piece, int count, int gaps, int64_t *load)
{
	sort(piece, count, by_size);
	for (int i = 0; i < count; i++) {
		int least = 0;
		for (int w = 1; w < gaps; w++)
			least = load[w] < load[least] ? w : least;
		piece[i].gap = least;
		load[least] += piece[i].bytes;
	}
	sort(piece, count, by_gap);
}

int rh_transfer_lay(struct rh_transfer_limits limits, const int64_t *bytes, int items, int gaps, struct rh_transfer_piece *piece,
                    int64_t *load)
{
	RH_ASSERT(items >= 0 && gaps >= 1);
	int64_t total = 0;
	int whole = 0, count = 0;
	for (int i = 0; i < items; i++)
		total += bytes[i];
	int64_t most = rh_transfer_piece_bytes(limits, total, gaps);
	for (int i = 0; i < items; i++)
		whole += (int)(bytes[i] / most);
	struct rh_transfer_piece *rest = piece + whole; /* at the end, while whole ones come between them */
	for (int i = 0; i < items; i++)
		if (bytes[i] % most)
			rest[count++] =
			        (struct rh_transfer_piece){.item = i, .first = bytes[i] - bytes[i] % most, .bytes = bytes[i] % most};
	for (int w = 0; w < gaps; w++)
		load[w] = share_of(whole, w, gaps) * most;
	pack(rest, count, gaps, load);
	struct whole wholes = {.bytes = bytes, .most_bytes = most};
	int placed = 0, used = 0;
	for (int w = 0; w < gaps; w++)
		for (int share = share_of(whole, w, gaps); share > 0; share--) {
			struct rh_transfer_piece next = next_whole(&wholes);
			next.gap = w;
			for (; used < count && by_gap(&rest[used], &next) < 0; used++)
				piece[placed++] = rest[used];
			piece[placed++] = next;
		}
	for (; used < count; used++)
		piece[placed++] = rest[used];
	return placed;
}

int rh_transfer_joined(const struct rh_transfer_piece *piece, int pieces, int64_t *bytes)
{
	int joined = 1;
	for (*bytes = piece->bytes; joined < pieces; *bytes += piece[joined++].bytes)
		if (piece[joined].gap != piece->gap || piece[joined].item != piece->item || piece[joined].first != piece->first + *bytes)
			break;
	return joined;
}
