/* Matrix products of the CPU device.
 *
 * Wide products are cut into tiles, one task each. A task walks k in blocks (a function of k alone): it packs the block of its columns of b
 * (it stays in the second-level cache), then packs a panel of a few rows of a at a time (first level) and multiplies it with every panel
 * of b in registers. Narrow ones (LoRA's, generation's), where packing would cost as much as the product, read their wide side in place.
 * In both, each element is summed over ascending k: threads and tiles cannot change a bit, and neither can the number of other rows. */
#include "core/float16.h"
#include "core/minmax.h"
#include "device/cpu/gemm_kernels.h"
#include "device/cpu/kernels.h"

#include <stdatomic.h>
#include <string.h>

enum { NARROW_TASK = 1 << 17 }; /* multiply-adds, about */
/* Numbers of the narrow side that are packed at once: of one as long as a vocabulary, 16 lanes would take 10 MiB of each device. */
enum { PACKED_MOST = 1 << 18 };

struct product {
	const struct gemm_kernels *kernels;
	const struct gemm_tiles *tiles;
	void (*finish)(const float *product, int64_t stride, const struct gemm_target *target);
	int64_t m, n, k;
	struct gemm_side a, b; /* lanes are rows of a, columns of b */
	struct rh_view c, bias, d;
	float alpha;
	int64_t k_block;
	int64_t rows, cols, tiles_across; /* of a tile; tiles in a row of tiles */
	_Atomic int fault;

	struct {
		const struct gemm_side *wide;
		int64_t wide_lanes, lanes, lanes_per_task;
		int is_swapped;      /* the wide side is b */
		const float *packed; /* dot: [lanes][stride]; outer: groups of [kc][<= GEMM_SKINNY_COLS] */
		int64_t stride;
		int64_t begin, kc; /* outer: the part of k that is packed */
		float *sums;       /* outer: of a k in several parts, each patch's sums so far */
	} narrow;                  /* of a product whose one side has few lanes */
};

static void *address(const struct rh_view *view, int64_t row, int64_t col)
{
	return (char *)view->data + rh_dtype_bytes(view->dtype, row * view->stride + col);
}

static float element(const struct rh_view *view, int64_t row, int64_t col)
{
	int64_t at = row * view->stride + col;
	return view->dtype == RH_F32 ? ((const float *)view->data)[at] : rh_bf16_to_f32(((const uint16_t *)view->data)[at]);
}

/* (rows, cols) at (row, col) of d, but for the bias. */
static struct gemm_target target_at(const struct product *p, int64_t row, int64_t col, int64_t rows, int64_t cols)
{
	return (struct gemm_target){
	        .dst = address(&p->d, row, col),
	        .add = p->c.data ? address(&p->c, row, col) : NULL,
	        .dst_dtype = p->d.dtype,
	        .add_dtype = p->d.dtype,
	        .dst_stride = p->d.stride,
	        .add_stride = p->c.stride,
	        .rows = rows,
	        .cols = cols,
	        .alpha = p->alpha,
	};
}

/* The bias of `cols` columns, widened into `out`; NULL without one. */
static const float *bias_at(const struct product *p, int64_t col, int64_t cols, float *out)
{
	if (!p->bias.data)
		return NULL;
	for (int64_t j = 0; j < cols; j++)
		out[j] = element(&p->bias, 0, col + j);
	return out;
}

static struct gemm_side from(struct gemm_side side, int64_t lane, int64_t k)
{
	int64_t at = lane * side.lane_stride + k * side.k_stride;
	side.data = (const char *)side.data + rh_dtype_bytes(side.dtype, at);
	return side;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* Wide products */

struct scratch {
	void *a, *b;
	float *bias;
	float *sums; /* (rows, cols) when d is BF16 and k has more than one block */
};

static int64_t aligned(int64_t bytes)
{
	return ceil_div(bytes, 64) * 64;
}

static int take_scratch(const struct product *p, struct scratch *out)
{
	const struct gemm_tiles *t = p->tiles;
	int64_t depth = gemm_panel_depth(t, p->k_block);
	int64_t a = aligned(depth * t->panel_rows * t->a_panels * t->element_bytes), b = aligned(depth * p->cols * t->element_bytes);
	int64_t bias = aligned(p->cols * 4), sums = p->d.dtype == RH_F32 || p->k <= p->k_block ? 0 : p->rows * p->cols * 4;
	char *memory = cpu_scratch((size_t)(a + b + bias + sums));
	if (!memory)
		return -ENOMEM;
	*out = (struct scratch){memory, memory + a, (void *)(memory + a + b), (void *)(memory + a + b + bias)};
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
static int usable_in_place(const struct gemm_tiles *tiles, const struct gemm_side *b, int64_t cols)
{
	return tiles->k_unit == 1 && b->dtype == RH_F32 && b->lane_stride == 1 && cols % tiles->panel_cols == 0 && b->k_stride % 1024;
}

/* One block of k for one tile at (row, col) of d: base.rows by base.cols. */
static void tile_block(const struct product *p, const struct scratch *scratch, int64_t row, int64_t col, int64_t k, int64_t kc,
                       struct gemm_target base)
{
	const struct gemm_tiles *t = p->tiles;
	const int64_t panel_rows = t->panel_rows, group_rows = t->a_panels * panel_rows, depth = gemm_panel_depth(t, kc);
	const int64_t rows = base.rows, cols = base.cols;
	struct gemm_side side = from(p->b, col, k), next_b = from(p->b, col, k + kc);
	const void *b = side.data; /* [k][b_step], panels b_panel apart */
	int64_t b_step = side.k_stride, b_panel = t->panel_cols;
	if (!usable_in_place(t, &side, cols)) {
		t->pack_b(&side, cols, kc, scratch->b);
		b = scratch->b;
		b_step = t->panel_cols;
		b_panel = depth * t->panel_cols;
	}
	int64_t next_kc = rh_min(p->k_block, p->k - k - kc);
	for (int64_t i = 0; i < rows; i += panel_rows) {
		if (i % group_rows == 0) {
			side = from(p->a, row + i, k);
			t->pack_a(&side, rh_min(group_rows, rows - i), kc, scratch->a);
		}
		if (i + group_rows < rows) {
			side = from(p->a, row + i + group_rows, k);
			prefetch(&side, rh_min(panel_rows, rows - i - group_rows), kc, 0, 1);
		}
		prefetch(&next_b, cols, next_kc, i / panel_rows, ceil_div(rows, panel_rows));
		struct gemm_target target = base;
		target.rows = rh_min(panel_rows, rows - i);
		target.dst = (char *)base.dst + rh_dtype_bytes(base.dst_dtype, i * base.dst_stride);
		target.add = base.add ? (const char *)base.add + rh_dtype_bytes(base.add_dtype, i * base.add_stride) : NULL;
		t->tiles(kc, (const char *)scratch->a + i % group_rows * depth * t->element_bytes, b, b_step, b_panel, &target);
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
	const struct gemm_target whole =
	        target_at(p, row, col, rh_min(p->rows, p->m - row), rh_min(p->cols, p->n - col)); /* without the bias */
	struct gemm_target target = whole;
	target.bias = bias_at(p, col, whole.cols, scratch.bias);
	int64_t k = 0;
	do { /* once even when k is 0 */
		int more = k + p->k_block < p->k && whole.dst_dtype != RH_F32;
		target.dst = more ? scratch.sums : whole.dst;
		target.dst_dtype = more ? RH_F32 : whole.dst_dtype;
		target.dst_stride = more ? p->cols : whole.dst_stride;
		tile_block(p, &scratch, row, col, k, rh_min(p->k_block, p->k - k), target);
		target.add = target.dst;
		target.add_dtype = target.dst_dtype;
		target.add_stride = target.dst_stride;
		target.bias = NULL;
		k += p->k_block;
	} while (k < p->k);
}

/* Tiles of whole panels; enough of them for the threads, no smaller than needed: each repeats the packing of its row and column. */
static void cut(struct product *p, int threads)
{
	const int64_t panel_rows = p->tiles->panel_rows, panel_cols = p->tiles->panel_cols;
	int64_t down = ceil_div(p->m, panel_rows * 64), across = ceil_div(p->n, panel_cols * p->tiles->b_panels);
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
	int64_t blocks = ceil_div(p->k, p->tiles->k_block);
	p->k_block = blocks ? ceil_div(ceil_div(p->k, blocks), 32) * 32 : 0;
	cut(p, rh_pool_threads(context->pool));
	rh_pool_run(context->pool, wide_task, p, p->tiles_across * ceil_div(p->m, p->rows));
	int fault = atomic_load_explicit(&p->fault, memory_order_relaxed);
	return fault ? rh_fail(fault, "no memory for the scratch of a matrix product") : 0;
}

/* Narrow products */

/* product[lanes][cols], the two `lane_step` and `col_step` apart: of wide lanes from `lane` on and narrow ones from `col` on. */
struct patch {
	const float *product;
	int64_t lane, lanes, lane_step, col, cols, col_step;
};

static void put_narrow(const struct product *p, const struct patch *patch)
{
	float turned[GEMM_MAX_LANES * GEMM_SKINNY_COLS], bias[GEMM_MAX_LANES];
	struct gemm_target target = p->narrow.is_swapped ? target_at(p, patch->col, patch->lane, patch->cols, patch->lanes)
	                                                 : target_at(p, patch->lane, patch->col, patch->lanes, patch->cols);
	target.bias = bias_at(p, p->narrow.is_swapped ? patch->lane : patch->col, target.cols, bias);
	int64_t row_step = p->narrow.is_swapped ? patch->col_step : patch->lane_step,
	        step = p->narrow.is_swapped ? patch->lane_step : patch->col_step;
	if (step == 1) {
		p->finish(patch->product, row_step, &target);
		return;
	}
	for (int64_t i = 0; i < target.rows; i++) {
		for (int64_t j = 0; j < target.cols; j++)
			turned[i * target.cols + j] = patch->product[i * row_step + j * step];
	}
	p->finish(turned, target.cols, &target);
}

static void dot_task(void *context, int64_t index)
{
	const struct product *p = context;
	int64_t end = rh_min((index + 1) * p->narrow.lanes_per_task, p->narrow.wide_lanes);
	float out[GEMM_DOT_ROWS * GEMM_SKINNY_COLS];
	struct patch patch = {.product = out, .lane = index * p->narrow.lanes_per_task, .col_step = 1};
	for (; patch.lane < end; patch.lane += GEMM_DOT_ROWS) {
		struct gemm_side side = from(*p->narrow.wide, patch.lane, 0);
		patch.lanes = rh_min(GEMM_DOT_ROWS, end - patch.lane);
		for (patch.col = 0; patch.col < p->narrow.lanes; patch.col += GEMM_SKINNY_COLS) {
			int cols = (int)rh_min(GEMM_SKINNY_COLS, p->narrow.lanes - patch.col);
			patch.cols = patch.lane_step = cols;
			p->kernels->dot(&side, patch.lanes, p->k, p->narrow.packed + patch.col * p->narrow.stride, p->narrow.stride, cols,
			                out);
			put_narrow(p, &patch);
		}
	}
}

enum { PATCH = GEMM_SKINNY_COLS * GEMM_MAX_LANES }; /* numbers */

static int64_t groups_of(const struct product *p)
{
	return ceil_div(p->narrow.lanes, GEMM_SKINNY_COLS);
}

static void outer_task(void *context, int64_t index)
{
	const struct product *p = context;
	int64_t end = rh_min((index + 1) * p->narrow.lanes_per_task, p->narrow.wide_lanes);
	float own[PATCH];
	struct patch patch = {.lane = index * p->narrow.lanes_per_task, .lane_step = 1, .col_step = GEMM_MAX_LANES};
	for (; patch.lane < end; patch.lane += p->kernels->outer_lanes) {
		struct gemm_side side = from(*p->narrow.wide, patch.lane, p->narrow.begin);
		patch.lanes = rh_min(p->kernels->outer_lanes, end - patch.lane);
		for (patch.col = 0; patch.col < p->narrow.lanes; patch.col += GEMM_SKINNY_COLS) {
			int64_t number = patch.lane / p->kernels->outer_lanes * groups_of(p) + patch.col / GEMM_SKINNY_COLS;
			float *out = p->narrow.sums ? p->narrow.sums + number * PATCH : own;
			patch.cols = rh_min(GEMM_SKINNY_COLS, p->narrow.lanes - patch.col);
			patch.product = out;
			if (!p->narrow.begin)
				memset(out, 0, PATCH * sizeof *out);
			p->kernels->outer(&side, patch.lanes, p->narrow.kc, p->narrow.packed + patch.col * p->narrow.kc, (int)patch.cols,
			                  out);
			if (p->narrow.begin + p->narrow.kc == p->k)
				put_narrow(p, &patch);
		}
	}
}

/* In parts of k, in ascending order: the sums are those of one part. */
static int run_outer(struct cpu_context *context, struct product *p, const struct gemm_side *narrow)
{
	int64_t lanes = p->narrow.lanes, most = rh_max(PACKED_MOST / lanes, 1), parts = rh_max(ceil_div(p->k, most), 1),
	        part = ceil_div(p->k, parts), grain = p->kernels->outer_lanes,
	        sums = parts > 1 ? ceil_div(p->narrow.wide_lanes, grain) * groups_of(p) * PATCH : 0;
	float *scratch = cpu_scratch((size_t)(sums + lanes * part + 1) * sizeof *scratch), *packed = scratch + sums;
	if (!scratch)
		return -ENOMEM;
	p->narrow.packed = packed;
	p->narrow.sums = sums ? scratch : NULL;
	p->narrow.lanes_per_task = grain * ceil_div(NARROW_TASK, lanes * (part + 16) * grain);
	for (int64_t begin = 0; begin < p->k || !begin; begin += rh_max(part, 1)) {
		p->narrow.begin = begin;
		p->narrow.kc = rh_min(part, p->k - begin);
		for (int64_t col = 0; col < lanes; col += GEMM_SKINNY_COLS) {
			struct gemm_side group = from(*narrow, col, begin);
			int cols = (int)rh_min(GEMM_SKINNY_COLS, lanes - col);
			p->kernels->pack(&group, cols, cols, p->narrow.kc, packed + col * p->narrow.kc);
		}
		rh_pool_run(context->pool, outer_task, p, ceil_div(p->narrow.wide_lanes, p->narrow.lanes_per_task));
	}
	return 0;
}

static int run_narrow(struct cpu_context *context, struct product *p)
{
	p->narrow.is_swapped = p->m <= p->tiles->narrow && p->m <= p->n;
	const struct gemm_side *narrow = p->narrow.is_swapped ? &p->a : &p->b;
	p->narrow.wide = p->narrow.is_swapped ? &p->b : &p->a;
	p->narrow.wide_lanes = p->narrow.is_swapped ? p->n : p->m;
	p->narrow.lanes = p->narrow.is_swapped ? p->m : p->n;
	if (p->narrow.wide->k_stride != 1)
		return run_outer(context, p, narrow);
	if (narrow->dtype == RH_F32 && narrow->k_stride == 1) {
		p->narrow.packed = narrow->data;
		p->narrow.stride = narrow->lane_stride;
	} else { /* the caller's scratch: tasks of narrow products take none */
		float *packed = cpu_scratch((size_t)(p->narrow.lanes * p->k + 1) * sizeof *packed);
		if (!packed)
			return -ENOMEM;
		p->narrow.packed = packed;
		p->narrow.stride = p->k;
		struct gemm_side turned = {narrow->data, narrow->dtype, narrow->k_stride, narrow->lane_stride};
		if (p->k)
			p->kernels->pack(&turned, p->k, (int)p->k, p->narrow.lanes, packed);
	}
	p->narrow.lanes_per_task = GEMM_DOT_ROWS * ceil_div(NARROW_TASK, p->narrow.lanes * (p->k + 16) * GEMM_DOT_ROWS);
	rh_pool_run(context->pool, dot_task, p, ceil_div(p->narrow.wide_lanes, p->narrow.lanes_per_task));
	return 0;
}

int cpu_gemm(struct cpu_context *context, const struct rh_op *op)
{
	const struct rh_view *a = &op->operand[RH_GEMM_A], *b = &op->operand[RH_GEMM_B];
	struct product p = {
	        .kernels = &RH_CPU_PICK(context->isa, gemm_kernels),
	        .finish = &RH_CPU_PICK(context->isa, gemm_finish),
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
	p.tiles = a->dtype != RH_BF16 || context->isa < RH_CPU_BF16 ? &p.kernels->tiles
	          : context->isa == RH_CPU_BF16                     ? &gemm_tiles_bf16
	                                                            : &gemm_tiles_amx;
	return rh_min(p.m, p.n) <= p.tiles->narrow ? run_narrow(context, &p) : run_wide(context, &p);
}
