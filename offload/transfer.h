/* Bulk copies (weights up, gradients down) between a slot's activations. Activations go first; after each micro-batch's activation there
 * is a gap until the next one's. Bulk is cut into pieces, and the pieces are packed into the gaps by longest processing time first. So an
 * activation waits for one piece at most, and no gap gets much more than its share. Pure.
 *
 * Bound (Graham 1969): with g gaps no load is above total / g + (1 - 1/g) * largest piece, nor above 4/3 - 1/(3g) of the best packing's. */
#ifndef RH_OFFLOAD_TRANSFER_H
#define RH_OFFLOAD_TRANSFER_H

#include "core/error.h"

#include <stdint.h>

/* A piece is a gap's share, but at least `least_bytes` (a copy has a fixed cost) and at most `most_bytes` (an activation waits for it). */
struct rh_transfer_limits {
	int64_t least_bytes, most_bytes; /* bytes, multiples of RH_ALIGN */
};
enum { RH_TRANSFER_LEAST = 64 << 10, RH_TRANSFER_MOST = 8 << 20 }; /* what runs use: 0.3 ms at 25 GB/s */

struct rh_transfer_piece {
	int item, gap;
	int64_t first, bytes; /* of the item */
};

/* The largest piece into which so many bytes are cut for so many gaps. */
int64_t rh_transfer_piece_bytes(struct rh_transfer_limits limits, int64_t total_bytes, int gaps);
/* Upper bound on the pieces of any packing with at most so many items, bytes in all, and gaps. */
int64_t rh_transfer_pieces_most(struct rh_transfer_limits limits, int64_t total_bytes, int items, int gaps);

/* Cuts items of bytes[i] (0: nothing) and packs them into gaps [0, gaps), one at least. piece[] has room for
 * rh_transfer_pieces_most(), load[] for one number a gap and receives their bytes. Returns the number of pieces: in the order in which
 * they are to go, by gap, then item, then place. */
int rh_transfer_lay(struct rh_transfer_limits limits, const int64_t *bytes, int items, int gaps, struct rh_transfer_piece *piece,
                    int64_t *load);

/* How many pieces, from this one on, can go as one copy, because they adjoin in memory and are in the same gap. *bytes: their bytes. */
int rh_transfer_joined(const struct rh_transfer_piece *piece, int pieces, int64_t *bytes);

#endif
