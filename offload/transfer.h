/* How bulk copies (weights up, gradients down) are laid between a slot's activations, which go first. Each micro-batch's activation leaves
 * a window behind it, until the next one's; bulk is cut into pieces, big tensors split, and the pieces are packed into the windows by
 * longest processing time first. An activation then waits for one piece at most, and no window for much more than its share. Pure.
 *
 * Bound (Graham 1969): with w windows no load is above total / w + (1 - 1/w) * largest piece, nor above 4/3 - 1/(3w) of the best packing's.
 */
#ifndef RH_OFFLOAD_TRANSFER_H
#define RH_OFFLOAD_TRANSFER_H

#include "core/error.h"

#include <stdint.h>

/* A piece is a window's share, but not below the least (a copy's fixed cost), nor above the most (an activation waits for it). */
struct rh_transfer_limits {
	int64_t least, most; /* bytes, multiples of RH_ALIGN */
};
enum { RH_TRANSFER_LEAST = 64 << 10, RH_TRANSFER_MOST = 8 << 20 }; /* what runs use: 0.3 ms at 25 GB/s */

struct rh_transfer_piece {
	int item, window;
	int64_t first, bytes; /* of the item */
};

/* The largest piece into which so many bytes are cut for so many windows. */
int64_t rh_transfer_piece_bytes(struct rh_transfer_limits limits, int64_t total_bytes, int windows);
/* No packing of at most so many items, of so many bytes in all, into at most so many windows has more pieces. */
int64_t rh_transfer_pieces_most(struct rh_transfer_limits limits, int64_t total_bytes, int items, int windows);

/* Cuts items of bytes[i] (0: nothing) and packs them into windows [0, windows), one at least. piece[] has room for
 * rh_transfer_pieces_most(), load[] for one number a window and receives their bytes. Returns the number of pieces: in the order in which
 * they are to go, by window, then item, then place. */
int rh_transfer_lay(struct rh_transfer_limits limits, const int64_t *bytes, int items, int windows, struct rh_transfer_piece *piece,
                    int64_t *load);

#endif
