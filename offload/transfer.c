#include "offload/transfer.h"

#include "core/arena.h"

int64_t rh_transfer_piece_bytes(struct rh_transfer_limits limits, int64_t total_bytes, int windows)
{
	int64_t share = rh_align_up((total_bytes + windows - 1) / windows, RH_ALIGN);
	return share < limits.least ? limits.least : share > limits.most ? limits.most : share;
}

int64_t rh_transfer_pieces_most(struct rh_transfer_limits limits, int64_t total_bytes, int items, int windows)
{
	/* cutting leaves less than a whole piece of each item; whole ones are a window's share, or the most */
	int64_t largest = total_bytes / limits.most;
	return items + (largest > windows ? largest : windows);
}

static int by_size(const struct rh_transfer_piece *a, const struct rh_transfer_piece *b)
{
	if (a->bytes != b->bytes)
		return a->bytes > b->bytes ? -1 : 1;
	if (a->item != b->item)
		return a->item < b->item ? -1 : 1;
	return a->first < b->first ? -1 : 1;
}

static int by_window(const struct rh_transfer_piece *a, const struct rh_transfer_piece *b)
{
	if (a->window != b->window)
		return a->window < b->window ? -1 : 1;
	if (a->item != b->item)
		return a->item < b->item ? -1 : 1;
	return a->first < b->first ? -1 : 1;
}

/* Shell's sort: in place, as qsort need not be, since nothing may be allocated in a step. */
static void sort(struct rh_transfer_piece *piece, int count,
                 int (*compare)(const struct rh_transfer_piece *, const struct rh_transfer_piece *))
{
	int gap = 1;
	while (gap < count / 3)
		gap = 3 * gap + 1;
	for (; gap > 0; gap /= 3)
		for (int i = gap; i < count; i++) {
			struct rh_transfer_piece moved = piece[i];
			int at = i;
			for (; at >= gap && compare(&moved, &piece[at - gap]) < 0; at -= gap)
				piece[at] = piece[at - gap];
			piece[at] = moved;
		}
}

/* Pieces of the largest size, one after the other. */
struct whole {
	const int64_t *bytes;
	int64_t most, first;
	int item;
};

/* The next of them; its window is the caller's. */
static struct rh_transfer_piece next_whole(struct whole *at)
{
	while (at->bytes[at->item] - at->first < at->most) {
		at->item++;
		at->first = 0;
	}
	struct rh_transfer_piece piece = {.item = at->item, .first = at->first, .bytes = at->most};
	at->first += at->most;
	return piece;
}

/* LPT deals equal pieces out in turn; which goes where is free, so the first ones go first. */
static int share_of(int whole, int window, int windows)
{
	return whole / windows + (window < whole % windows);
}

/* Smaller ones, the largest first, each to the window with the least. */
static void pack(struct rh_transfer_piece *piece, int count, int windows, int64_t *load)
{
	sort(piece, count, by_size);
	for (int i = 0; i < count; i++) {
		int least = 0;
		for (int w = 1; w < windows; w++)
			least = load[w] < load[least] ? w : least;
		piece[i].window = least;
		load[least] += piece[i].bytes;
	}
	sort(piece, count, by_window);
}

int rh_transfer_lay(struct rh_transfer_limits limits, const int64_t *bytes, int items, int windows, struct rh_transfer_piece *piece,
                    int64_t *load)
{
	RH_ASSERT(items >= 0 && windows >= 1);
	int64_t total = 0;
	int whole = 0, count = 0;
	for (int i = 0; i < items; i++)
		total += bytes[i];
	int64_t most = rh_transfer_piece_bytes(limits, total, windows);
	for (int i = 0; i < items; i++)
		whole += (int)(bytes[i] / most);
	struct rh_transfer_piece *rest = piece + whole; /* at the end, while whole ones come between them */
	for (int i = 0; i < items; i++)
		if (bytes[i] % most)
			rest[count++] =
			        (struct rh_transfer_piece){.item = i, .first = bytes[i] - bytes[i] % most, .bytes = bytes[i] % most};
	for (int w = 0; w < windows; w++)
		load[w] = share_of(whole, w, windows) * most;
	pack(rest, count, windows, load);
	struct whole wholes = {.bytes = bytes, .most = most};
	int placed = 0, used = 0;
	for (int w = 0; w < windows; w++)
		for (int share = share_of(whole, w, windows); share > 0; share--) {
			struct rh_transfer_piece next = next_whole(&wholes);
			next.window = w;
			for (; used < count && by_window(&rest[used], &next) < 0; used++)
				piece[placed++] = rest[used];
			piece[placed++] = next;
		}
	for (; used < count; used++)
		piece[placed++] = rest[used];
	return placed;
}
