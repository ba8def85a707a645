/* What the kernels of grouped products share: arguments, the walk over tiles, and where a sum goes. For .cu files only.
 *
 * Experts' products are numbered tile by tile, expert by expert; block b of a grid of g takes tiles b, b + g, ... An expert's count of
 * tiles comes from the starts, on the device: each block adds them up on its way, one expert after another, so neither the host nor a
 * kernel before has to. A tile's place in a sum and the order of its parts are a function of shapes and starts, not of g. */
#ifndef RH_CUDA_GROUPED_TILE_H
#define RH_CUDA_GROUPED_TILE_H

#include "cuda/rh_cuda.h"

enum { GROUPED_BLOCKS = 2, HALF_BLOCKS = 1 }; /* of an SM */

struct grouped_args {
	struct rh_view a, b, add, bias, d; /* add: c, or d itself for a gradient; absent: none */
	const int32_t *start;
	int64_t start_stride;
	int experts, gradient, trans_b;
	float alpha;

	/* one product with fp16 sums */
	const float *scale_a, *scale_b;
	int chunk;
};

/* Rows [first, first + rows) are the expert's; the tile begins at (row, col) of the expert's product. */
struct grouped_tile {
	int expert, first, rows, row, col;
};

struct grouped_walk {
	int number, expert, tiles_before; /* the next tile; the current expert, and the tiles of the experts before it */
};

/* Rows of an expert's product. */
RH_DEVICE int grouped_rows(const struct grouped_args &a, int rows)
{
	return !a.gradient ? rows : rows ? (int)a.a.cols : 0;
}

enum { PRODUCT_BAND = 8 };

/* The next tile of a single product: in bands of some rows of tiles, down first, so that the tiles that run at once share both sides. */
template <int ROWS, int COLS> RH_DEVICE int product_next(const struct grouped_args &a, struct grouped_walk *walk, struct grouped_tile *t)
{
	int across = ((int)a.d.cols + COLS - 1) / COLS, down = ((int)a.d.rows + ROWS - 1) / ROWS;
	int first = walk->number / (PRODUCT_BAND * across) * PRODUCT_BAND, here = walk->number - first * across;
	int high = down - first < PRODUCT_BAND ? down - first : PRODUCT_BAND;
	if (walk->number >= down * across)
		return 0;
	*t = {0, 0, (int)a.a.rows, (first + here % high) * ROWS, here / high * COLS};
	walk->number += (int)gridDim.x;
	return 1;
}

/* Down a column of tiles first: they share b, the larger operand. 0: no tile is left. */
template <int ROWS, int COLS, bool ONE>
RH_DEVICE int grouped_next(const struct grouped_args &a, struct grouped_walk *walk, struct grouped_tile *t)
{
	if constexpr (ONE)
		return product_next<ROWS, COLS>(a, walk, t);
	int across = ((int)a.d.cols + COLS - 1) / COLS;
	for (; walk->expert < a.experts; walk->expert++) {
		const int32_t *start = a.start + walk->expert * a.start_stride;
		int first = start[0], rows = start[a.start_stride] - first, down = (grouped_rows(a, rows) + ROWS - 1) / ROWS;
		int here = walk->number - walk->tiles_before;
		if (here < down * across) {
			*t = {walk->expert, first, rows, here % down * ROWS, here / down * COLS};
			walk->number += (int)gridDim.x;
			return 1;
		}
		walk->tiles_before += down * across;
	}
	return 0;
}

/* Enough blocks for the SMs, or for the tiles where those are fewer: at most one tile an expert is not full. */
static inline unsigned grouped_grid(const struct grouped_args *a, int rows, int cols)
{
	int64_t down = a->gradient ? a->experts * rh_ceil_div(a->a.cols, rows) : a->a.rows / rows + a->experts;
	int64_t tiles = down * rh_ceil_div(a->d.cols, cols), blocks = (int64_t)GROUPED_BLOCKS * rh_processors();
	return (unsigned)(tiles < blocks ? tiles : blocks);
}

/* Row of d, and of add, where row `row` of the expert's product lies. */
RH_DEVICE int64_t grouped_row_of(const struct grouped_args &a, const struct grouped_tile &t, int row)
{
	return a.gradient ? t.expert * a.a.cols + row : t.first + row;
}

RH_DEVICE float grouped_get(const struct rh_view &view, int64_t row, int64_t col)
{
	int64_t at = row * view.stride + col;
	return view.dtype == RH_BF16 ? rh_to_float(((const rh_bf16 *)view.data)[at]) : ((const float *)view.data)[at];
}

/* d at (row, col) = alpha * sum + add + bias; both lie within the expert's product. */
RH_DEVICE void grouped_put(const struct grouped_args &a, const struct grouped_tile &t, int row, int col, float sum)
{
	int64_t to = grouped_row_of(a, t, row);
	float value = a.alpha * sum;
	if (a.add.data)
		value += grouped_get(a.add, to, col);
	if (a.bias.data)
		value += grouped_get(a.bias, t.expert, col);
	if (a.d.dtype == RH_BF16)
		((rh_bf16 *)a.d.data)[to * a.d.stride + col] = rh_to_bf16(value);
	else
		((float *)a.d.data)[to * a.d.stride + col] = value;
}

/* Launchers: 0, or a negative errno; d is not empty. The plain ones take both dtypes and any strides. */
int grouped_plain(const struct grouped_args *a, struct CUstream_st *stream);

#endif
