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

int rh_transfer_lay(struct rh_transfer_limits limits, const int64_t *bytes, int items, int windows, struct rh_transfer_piece *piece,
                    int64_t *load)
{
	RH_ASSERT(items >= 0 && windows >= 1);
	int64_t total = 0;
	int count = 0;
	for (int i = 0; i < items; i++)
		total += bytes[i];
	int64_t most = rh_transfer_piece_bytes(limits, total, windows);
	for (int i = 0; i < items; i++)
		for (int64_t first = 0; first < bytes[i]; first += most) {
			int64_t left = bytes[i] - first;
			piece[count++] = (struct rh_transfer_piece){.item = i, .first = first, .bytes = left < most ? left : most};
		}
	sort(piece, count, by_size);
	int whole = 0, next = 0;
	while (whole < count && piece[whole].bytes == most)
		whole++;
	for (int w = 0; w < windows; w++) { /* LPT deals equal pieces out in turn; which goes where is free, so the first ones go first */
		int share = whole / windows + (w < whole % windows);
		load[w] = share * most;
		for (; share > 0; share--)
			piece[next++].window = w;
	}
	for (; next < count; next++) {
		int least = 0;
		for (int w = 1; w < windows; w++)
			least = load[w] < load[least] ? w : least;
		piece[next].window = least;
		load[least] += piece[next].bytes;
	}
	sort(piece, count, by_window);
	return count;
}
