/* Packs documents into rows of a length, best fit decreasing: the same lengths give the same rows in the same order. */
#include "core/alloc.h"
#include "data/data_internal.h"

#include <string.h>

/* Bins wait in a first-in first-out queue for each size of space left; a heap-shaped tree counts the bins below each node, so that the
 * smallest space that is large enough is found in log2(capacity) steps. */
struct packer {
	int64_t leaves;           /* a power of two above capacity; leaf s counts the bins with space s */
	int64_t *open;            /* (2 * leaves) bins below each node */
	int64_t *head, *tail;     /* (capacity + 1) the queues, -1 empty */
	int64_t *next;            /* (bins) in its queue */
	int64_t *bin_of, *sorted; /* (documents) */
	int64_t *filled;          /* (bins) documents put so far, when they are laid out */
};

static void count_space(struct packer *packer, int64_t space, int64_t change)
{
	for (int64_t node = packer->leaves + space; node > 0; node /= 2)
		packer->open[node] += change;
}

static void push_bin(struct packer *packer, int64_t space, int64_t bin)
{
	packer->next[bin] = -1;
	if (packer->head[space] < 0)
		packer->head[space] = bin;
	else
		packer->next[packer->tail[space]] = bin;
	packer->tail[space] = bin;
	count_space(packer, space, 1);
}

static int64_t pop_bin(struct packer *packer, int64_t space)
{
	int64_t bin = packer->head[space];
	packer->head[space] = packer->next[bin];
	count_space(packer, space, -1);
	return bin;
}

/* The smallest space of at least `length` that some bin has, or -1. */
static int64_t best_space(const struct packer *packer, int64_t length)
{
	int64_t node = packer->leaves + length;
	if (packer->open[node])
		return length;
	while (node > 1 && (node & 1 || !packer->open[node + 1]))
		node /= 2;
	if (node <= 1)
		return -1;
	for (node++; node < packer->leaves;)
		node = packer->open[2 * node] ? 2 * node : 2 * node + 1;
	return node - packer->leaves;
}

/* Longest first, equal lengths in their order: a counting sort, with head as its counters. */
static void sort_by_length(struct packer *packer, const int64_t *length, int64_t documents, int64_t capacity)
{
	memset(packer->head, 0, (size_t)(capacity + 1) * sizeof *packer->head);
	for (int64_t i = 0; i < documents; i++)
		packer->head[length[i]]++;
	int64_t at = 0;
	for (int64_t l = capacity; l >= 0; l--) {
		int64_t count = packer->head[l];
		packer->head[l] = at;
		at += count;
	}
	for (int64_t i = 0; i < documents; i++)
		packer->sorted[packer->head[length[i]]++] = i;
}

static int64_t fill_bins(struct packer *packer, const int64_t *length, int64_t documents, int64_t capacity)
{
	int64_t bins = 0;
	for (int64_t s = 0; s <= capacity; s++)
		packer->head[s] = -1;
	for (int64_t i = 0; i < documents; i++) {
		int64_t document = packer->sorted[i], space = best_space(packer, length[document]);
		int64_t bin = space < 0 ? bins++ : pop_bin(packer, space);
		packer->bin_of[document] = bin;
		push_bin(packer, (space < 0 ? capacity : space) - length[document], bin);
	}
	return bins;
}

int data_pack(const int64_t *length, int64_t documents, int64_t capacity, int64_t *order, int64_t *first, int64_t *bins)
{
	struct packer packer = {.leaves = 1};
	while (packer.leaves <= capacity)
		packer.leaves *= 2;
	size_t count = (size_t)documents, spaces = (size_t)capacity + 1;
	int rc = -ENOMEM;
	if (!(packer.open = rh_alloc(2 * (size_t)packer.leaves, sizeof *packer.open)) ||
	    !(packer.head = rh_alloc(spaces, sizeof *packer.head)) || !(packer.tail = rh_alloc(spaces, sizeof *packer.tail)) ||
	    !(packer.next = rh_alloc(count, sizeof *packer.next)) || !(packer.bin_of = rh_alloc(count, sizeof *packer.bin_of)) ||
	    !(packer.sorted = rh_alloc(count, sizeof *packer.sorted)) || !(packer.filled = rh_alloc(count, sizeof *packer.filled)))
		goto out;
	for (int64_t i = 0; i < documents; i++)
		RH_ASSERT(length[i] > 0 && length[i] <= capacity);
	sort_by_length(&packer, length, documents, capacity);
	*bins = fill_bins(&packer, length, documents, capacity);
	memset(first, 0, (count + 1) * sizeof *first);
	for (int64_t i = 0; i < documents; i++)
		first[packer.bin_of[i] + 1]++;
	for (int64_t bin = 0; bin < *bins; bin++)
		first[bin + 1] += first[bin];
	for (int64_t i = 0; i < documents; i++) {
		int64_t bin = packer.bin_of[packer.sorted[i]];
		order[first[bin] + packer.filled[bin]++] = packer.sorted[i];
	}
	rc = 0;
out:
	rh_free(packer.open);
	rh_free(packer.head);
	rh_free(packer.tail);
	rh_free(packer.next);
	rh_free(packer.bin_of);
	rh_free(packer.sorted);
	rh_free(packer.filled);
	return rc;
}
