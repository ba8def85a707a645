/* Matrix products of the CPU device.
 *
 * Wide products are cut into tiles, one task each. A task walks k in blocks (a function of k alone): it packs the block of its columns of b
 * (it stays in the second-level cache), then packs a panel of a few rows of a at a time (first level) and multiplies it with every panel
 * of b in registers. Narrow ones (LoRA's, generation's), where packing would cost as much as the product, read their wide side in place.
 * In both, each element is summed over ascending k: threads and tiles cannot change a bit, and neither can the number of other rows. */
#include "core/float16.h"
#include "device/cpu/gemm_kernels.h"
#include "device/cpu/kernels.h"

#include <stdatomic.h>
#include <string.h>

enum {
	SKINNY = 16,     /* rows or columns, at most, of a narrow product */
	K_BLOCK = 384,   /* at most: a panel of a is 21 KiB, one of b 48 KiB */
	A_PANELS = 8,    /* packed at a time */
	COL_PANELS = 20, /* of b, at most, in a tile */
	SKINNY_TASK = 1 << 17
};

struct product {
	const struct gemm_kernels *kernels;
	int64_t m, n, k;
	struct gemm_side a, b; /* lanes are rows of a, columns of b */
	struct rh_view c, bias, d;
	float alpha;
	int64_t k_block;
	int64_t rows, cols, tiles_across; /* of a tile; tiles in a row of tiles */
	_Atomic int fault;

	/* narrow products */
	const struct gemm_side *wide;
	int64_t wide_lanes, narrow_lanes, lanes_per_task;
	int swapped;         /* the wide side is b */
	const float *narrow; /* dot: [narrow_lanes][narrow_stride]; outer: groups of [k][<= GEMM_SKINNY_COLS] */
	int64_t narrow_stride;
};

static float element(const struct rh_view *view, int64_t row, int64_t col)
{
	int64_t at = row * view->stride + col;
	return view->dtype == RH_F32 ? ((const float *)view->data)[at] : rh_bf16_to_f32(((const uint16_t *)view->data)[at]);
}

/* d[i][j] = alpha * product + c + bias. */
static void put(const struct product *p, int64_t i, int64_t j, float product)
{
	float sum = p->c.data ? element(&p->c, i, j) : 0;
	sum += p->bias.data ? element(&p->bias, 0, j) : 0;
	sum = p->alpha * product + sum;
	if (p->d.dtype == RH_F32)
		((float *)p->d.data)[i * p->d.stride + j] = sum;
	else
		((uint16_t *)p->d.data)[i * p->d.stride + j] = rh_f32_to_bf16(sum);
}

static struct gemm_side from(struct gemm_side side, int64_t lane, int64_t k)
{
	int64_t at = lane * side.lane_stride + k * side.k_stride;
	side.data = (const char *)side.data + rh_dtype_bytes(side.dtype, at);
	return side;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* Wide products */

struct scratch {
	float *a, *b, *bias;
	float *sums; /* (rows, padded cols) when d is BF16 */
};

static int take_scratch(const struct product *p, struct scratch *out)
{
	int64_t cols = ceil_div(p->cols, p->kernels->panel_cols) * p->kernels->panel_cols;
	int64_t a = ceil_div(p->k_block * p->kernels->panel_rows * A_PANELS, 16) * 16, b = p->k_block * cols;
	int64_t sums = p->d.dtype == RH_F32 ? 0 : p->rows * cols;
	out->a = cpu_scratch((size_t)(a + b + cols + sums) * sizeof(float));
	if (!out->a)
		return -ENOMEM;
	out->b = out->a + a;
	out->bias = out->b + b;
	out->sums = out->bias + cols;
	return 0;
}

/* Asks for part `part` of `parts` of what a later pack will read: (lanes, kc) of a side. */
static void prefetch(const struct gemm_side *side, int64_t lanes, int64_t kc, int64_t part, int64_t parts)
{
	int64_t rows = side->k_stride == 1 ? lanes : kc, stride = side->k_stride == 1 ? side->lane_stride : side->k_stride;
	int64_t row_bytes = rh_dtype_bytes(side->dtype, side->k_stride == 1 ? kc : lanes),
	        stride_bytes = rh_dtype_bytes(side->dtype, stride);
	for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
		const char *at = (const char *)side->data + row * stride_bytes;
		for (int64_t byte = 0; byte < row_bytes; byte += 64)
			__builtin_prefetch(at + byte, 0, 2);
	}
}

/* Whether tiles can read b where it is: no widening to do, no zeros to add, and rows not so far apart that they fall into the same few
 * sets of a cache. */
static int usable_in_place(const struct gemm_side *b, int64_t cols, int panel_cols)
{
	return b->dtype == RH_F32 && b->lane_stride == 1 && cols % panel_cols == 0 && b->k_stride % 1024;
}

/* One block of k for one tile at (row, col) of (rows, cols): the sums so far are in `base`. */
static void tile_block(const struct product *p, const struct scratch *scratch, int64_t row, int64_t col, int64_t rows, int64_t cols,
                       int64_t k, int64_t kc, struct gemm_target base)
{
	const int panel_rows = p->kernels->panel_rows, panel_cols = p->kernels->panel_cols, group_rows = A_PANELS * panel_rows;
	struct gemm_side side = from(p->b, col, k), next_b = from(p->b, col, k + kc);
	const float *b = side.data; /* [k][b_step], panels b_panel apart */
	int64_t b_step = side.k_stride, b_panel = panel_cols;
	if (!usable_in_place(&side, cols, panel_cols)) {
		p->kernels->pack(&side, cols, panel_cols, kc, scratch->b);
		b = scratch->b;
		b_step = panel_cols;
		b_panel = kc * panel_cols;
	}
	int64_t next_kc = least(p->k_block, p->k - k - kc);
	for (int64_t i = 0; i < rows; i += panel_rows) {
		if (i % group_rows == 0) {
			side = from(p->a, row + i, k);
			p->kernels->pack(&side, least(group_rows, rows - i), panel_rows, kc, scratch->a);
		}
		if (i + group_rows < rows) {
			side = from(p->a, row + i + group_rows, k);
			prefetch(&side, least(panel_rows, rows - i - group_rows), kc, 0, 1);
		}
		prefetch(&next_b, cols, next_kc, i / panel_rows, ceil_div(rows, panel_rows));
		const float *a = scratch->a + i % group_rows * kc;
		struct gemm_target target = base;
		target.rows = least(panel_rows, rows - i);
		for (int64_t j = 0; j < cols; j += panel_cols) {
			target.cols = least(panel_cols, cols - j);
			target.dst = base.dst + i * base.dst_stride + j;
			target.add = base.add ? base.add + i * base.add_stride + j : NULL;
			target.bias = base.bias ? base.bias + j : NULL;
			p->kernels->tile(kc, a, b + j / panel_cols * b_panel, b_step, &target);
		}
	}
}

static void round_tile(const struct product *p, const struct scratch *scratch, int64_t row, int64_t col, int64_t rows, int64_t cols,
                       int64_t stride)
{
	struct product unscaled = *p;
	unscaled.alpha = 1; /* and the bias are in the sums */
	unscaled.bias.data = NULL;
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < cols; j++)
			put(&unscaled, row + i, col + j, scratch->sums[i * stride + j]);
	}
}

static void wide_task(void *context, int64_t index)
{
	struct product *p = context;
	struct scratch scratch;
	int rc = take_scratch(p, &scratch);
	if (rc) {
		atomic_store_explicit(&p->fault, rc, memory_order_relaxed); /* the pool's end orders it before the look */
		return;
	}
	int64_t row = index / p->tiles_across * p->rows, col = index % p->tiles_across * p->cols;
	int64_t rows = least(p->rows, p->m - row), cols = least(p->cols, p->n - col);
	int64_t padded = ceil_div(p->cols, p->kernels->panel_cols) * p->kernels->panel_cols;
	if (p->bias.data) {
		for (int64_t j = 0; j < padded; j++)
			scratch.bias[j] = j < cols ? element(&p->bias, 0, col + j) : 0;
	}
	struct gemm_target target = {.alpha = p->alpha, .bias = p->bias.data ? scratch.bias : NULL};
	if (p->d.dtype == RH_F32) {
		target.dst = (float *)p->d.data + row * p->d.stride + col;
		target.dst_stride = p->d.stride;
		target.add = p->c.data ? (const float *)p->c.data + row * p->c.stride + col : NULL;
		target.add_stride = p->c.stride;
	} else {
		target.dst = scratch.sums;
		target.dst_stride = padded;
	}
	int64_t k = 0;
	do { /* once even when k is 0 */
		tile_block(p, &scratch, row, col, rows, cols, k, least(p->k_block, p->k - k), target);
		target.add = target.dst;
		target.add_stride = target.dst_stride;
		target.bias = NULL;
		k += p->k_block;
	} while (k < p->k);
	if (p->d.dtype != RH_F32)
		round_tile(p, &scratch, row, col, rows, cols, padded);
}

/* Tiles of whole panels; enough of them for the threads, no smaller than needed: each repeats the packing of its row and column. */
static void cut(struct product *p, int threads)
{
	const int64_t panel_rows = p->kernels->panel_rows, panel_cols = p->kernels->panel_cols;
	int64_t down = ceil_div(p->m, panel_rows * 64), across = ceil_div(p->n, panel_cols * COL_PANELS);
	for (;;) {
		p->rows = ceil_div(ceil_div(p->m, down), panel_rows) * panel_rows;
		p->cols = ceil_div(ceil_div(p->n, across), panel_cols) * panel_cols;
		if (threads == 1 || ceil_div(p->m, p->rows) * ceil_div(p->n, p->cols) >= 2 * threads)
			break;
		if (p->cols >= p->rows && p->cols > panel_cols)
			across++;
		else if (p->rows > panel_rows)
			down++;
		else if (p->cols > panel_cols)
			across++;
		else
			break;
	}
	p->tiles_across = ceil_div(p->n, p->cols);
}

static int run_wide(struct cpu_context *context, struct product *p)
{
	int64_t blocks = ceil_div(p->k, K_BLOCK);
	p->k_block = blocks ? ceil_div(ceil_div(p->k, blocks), 16) * 16 : 0;
	cut(p, rh_pool_threads(context->pool));
	rh_pool_run(context->pool, wide_task, p, p->tiles_across * ceil_div(p->m, p->rows));
	int fault = atomic_load_explicit(&p->fault, memory_order_relaxed);
	return fault ? rh_fail(fault, "no memory for the scratch of a matrix product") : 0;
}

/* Narrow products */

static void put_narrow(const struct product *p, int64_t wide, int64_t narrow, float product)
{
	if (p->swapped)
		put(p, narrow, wide, product);
	else
		put(p, wide, narrow, product);
}

static void dot_task(void *context, int64_t index)
{
	const struct product *p = context;
	int64_t end = least((index + 1) * p->lanes_per_task, p->wide_lanes);
	float out[GEMM_DOT_ROWS * GEMM_SKINNY_COLS];
	for (int64_t lane = index * p->lanes_per_task; lane < end; lane += GEMM_DOT_ROWS) {
		int64_t rows = least(GEMM_DOT_ROWS, end - lane);
		struct gemm_side side = from(*p->wide, lane, 0);
		for (int64_t col = 0; col < p->narrow_lanes; col += GEMM_SKINNY_COLS) {
			int cols = (int)least(GEMM_SKINNY_COLS, p->narrow_lanes - col);
			p->kernels->dot(&side, rows, p->k, p->narrow + col * p->narrow_stride, p->narrow_stride, cols, out);
			for (int64_t i = 0; i < rows; i++) {
				for (int j = 0; j < cols; j++)
					put_narrow(p, lane + i, col + j, out[i * cols + j]);
			}
		}
	}
}

static void outer_task(void *context, int64_t index)
{
	const struct product *p = context;
	int64_t end = least((index + 1) * p->lanes_per_task, p->wide_lanes);
	float out[GEMM_SKINNY_COLS * GEMM_MAX_LANES];
	for (int64_t lane = index * p->lanes_per_task; lane < end; lane += p->kernels->outer_lanes) {
		int64_t lanes = least(p->kernels->outer_lanes, end - lane);
		struct gemm_side side = from(*p->wide, lane, 0);
		for (int64_t col = 0; col < p->narrow_lanes; col += GEMM_SKINNY_COLS) {
			int cols = (int)least(GEMM_SKINNY_COLS, p->narrow_lanes - col);
			memset(out, 0, sizeof out);
			p->kernels->outer(&side, lanes, p->k, p->narrow + col * p->k, cols, out);
			for (int j = 0; j < cols; j++) {
				for (int64_t i = 0; i < lanes; i++)
					put_narrow(p, lane + i, col + j, out[j * GEMM_MAX_LANES + i]);
			}
		}
	}
}

static int run_narrow(struct cpu_context *context, struct product *p)
{
	p->swapped = p->m <= SKINNY && p->m <= p->n;
	const struct gemm_side *narrow = p->swapped ? &p->a : &p->b;
	p->wide = p->swapped ? &p->b : &p->a;
	p->wide_lanes = p->swapped ? p->n : p->m;
	p->narrow_lanes = p->swapped ? p->m : p->n;
	int dot = p->wide->k_stride == 1;
	if (dot && narrow->dtype == RH_F32 && narrow->k_stride == 1) {
		p->narrow = narrow->data;
		p->narrow_stride = narrow->lane_stride;
	} else { /* the caller's scratch: tasks of narrow products take none */
		float *packed = cpu_scratch((size_t)(p->narrow_lanes * p->k + 1) * sizeof *packed);
		if (!packed)
			return -ENOMEM;
		p->narrow = packed;
		p->narrow_stride = p->k;
		struct gemm_side turned = {narrow->data, narrow->dtype, narrow->k_stride, narrow->lane_stride};
		if (dot && p->k)
			p->kernels->pack(&turned, p->k, (int)p->k, p->narrow_lanes, packed);
		for (int64_t col = 0; !dot && col < p->narrow_lanes; col += GEMM_SKINNY_COLS) {
			struct gemm_side group = from(*narrow, col, 0);
			int cols = (int)least(GEMM_SKINNY_COLS, p->narrow_lanes - col);
			p->kernels->pack(&group, cols, cols, p->k, packed + col * p->k);
		}
	}
	int64_t grain = dot ? GEMM_DOT_ROWS : p->kernels->outer_lanes, work = p->narrow_lanes * (p->k + 16) * grain;
	p->lanes_per_task = grain * ceil_div(SKINNY_TASK, work);
	rh_pool_run(context->pool, dot ? dot_task : outer_task, p, ceil_div(p->wide_lanes, p->lanes_per_task));
	return 0;
}

int cpu_gemm(struct cpu_context *context, const struct rh_op *op)
{
	const struct rh_view *a = &op->operand[RH_GEMM_A], *b = &op->operand[RH_GEMM_B];
	struct product p = {
	        .kernels = &CPU_ISA_PICK(context->isa, gemm_kernels),
	        .m = op->operand[RH_GEMM_D].rows,
	        .n = op->operand[RH_GEMM_D].cols,
	        .k = op->gemm.trans_a ? a->rows : a->cols,
	        .a = {a->data, a->dtype, op->gemm.trans_a ? 1 : a->stride, op->gemm.trans_a ? a->stride : 1},
	        .b = {b->data, b->dtype, op->gemm.trans_b ? b->stride : 1, op->gemm.trans_b ? 1 : b->stride},
	        .c = op->operand[RH_GEMM_C],
	        .bias = op->operand[RH_GEMM_BIAS],
	        .d = op->operand[RH_GEMM_D],
	        .alpha = op->gemm.alpha,
	};
	if (!p.m || !p.n)
		return 0;
	return least(p.m, p.n) <= SKINNY ? run_narrow(context, &p) : run_wide(context, &p);
}
