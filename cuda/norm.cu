/* RMSNorm, forward and backward. With T rows of G vectors of n elements, e bytes each:
 *
 * forward   reads x, writes y: 2 T G n e bytes, 4 FLOPs an element. A vector is read twice, the second time from L1 (at most 32 KB).
 * dx        reads x, dy (add), writes dx (y): 3 to 5 T G n e bytes, 10 FLOPs an element.
 * dw        reads x, dy: 2 T G n e bytes, 3 FLOPs an element.
 *
 * kept      the same, and dx with dw, of bf16 that lies on 16 bytes, up to 8192 elements a vector: each array is read once; a vector stays
 *           in registers between the sum over it and what is made of it. dw adds 8 n bytes a block for its part.
 *
 * Below 3 FLOPs a byte all are bound by memory: the roofline is bytes / DRAM bandwidth (1008 GB/s on an RTX 4090, 3350 on an H100).
 * Tile: forward and dx give a vector of up to 1024 elements to a warp (8 vectors a block), a longer one to a block of 8 warps. Kept dx with
 * dw has at most 256 blocks (512 where a warp takes a vector), two an SM (four where a thread has one chunk of a vector). They stride over
 * the vectors together, and each reads its next ones while it is at these, where registers allow. What a block sums of dw goes to memory,
 * and a second kernel adds the blocks' parts in order. dw alone gives 32 columns to a block, which sums all rows in a fixed order: 64
 * threads a column group, each every 64th vector, then their sums in order. With n = 4096 that is 128 blocks, one an SM. With a QK-norm's n
 * = 128 it would be 4. So where columns are few a block of 1024 threads takes 8 of them, a thread every 1024th vector, and adds the
 * threads' sums 32 by 32: 16 blocks for 128 columns, each with as many loads in flight as an SM has threads. Sums are fp32, their order a
 * function of the shapes alone.
 *
 * Measured on an H200, 16384 x 4096, of the 4.27 TB/s that a copy has there: kept forward 0.92, dx 0.85, dx with dw 0.64. Blocks of 16
 * warps with half as many registers took 1.05 to 1.5 times as long. */
#include "cuda/kernels.h"
#include "cuda/norm_vector.h"

/* More than 20 members: the operands of all kernels here, each with its stride. */
struct norm_args {
	const void *x, *w, *dy, *add;
	void *y, *dx, *sum;      /* sum: of x and add, which the forward leaves and takes the norm of */
	float *rstd, *dw, *part; /* part: (blocks,n) of rmsnorm_backward_kept */
	float *amax, *y_amax;    /* of y, or of dx and y; or NULL */
	int64_t amax_stride, y_amax_stride;
	int64_t x_stride, y_stride, sum_stride, dy_stride, add_stride, dx_stride, rstd_stride;
	int64_t vectors, groups, n;
	float epsilon, offset;
	int aligned; /* every vector begins on 16 bytes */
};

/* A vector's, where there is an amax. All its threads come here. */
template <typename T, int PER_VECTOR, int TURN> RH_DEVICE void leave_amax(float *amax, int64_t at, int64_t first, uint32_t most)
{
	if (!amax)
		return;
	most = vector_largest<PER_VECTOR, TURN>(most);
	if (first == 0)
		amax[at] = stored_magnitude<T>(most);
}

/* ADDS: of x + add, rounded. Each thread reads again only what it has itself stored. */
template <typename T, int PER_VECTOR, bool ADDS> RH_KERNEL(NORM_THREADS, 4) rmsnorm_forward(struct norm_args a)
{
	constexpr int64_t step = PER_VECTOR * RH_WARP * CHUNK;
	struct place<PER_VECTOR> p = find_place<PER_VECTOR>(a.vectors, a.groups);
	const T *x = (const T *)a.x + p.row * a.x_stride + p.group * a.n;
	const T *w = (const T *)a.w;
	T *y = (T *)a.y + p.row * a.y_stride + p.group * a.n, *total = ADDS ? (T *)a.sum + p.row * a.sum_stride : NULL;
	float squares = 0;
	/* absent vectors read nothing: y may be x, whose last one another warp may be overwriting */
	for (int64_t i = p.first; i < a.n && !p.absent; i += step) {
		struct chunk c = chunk_load(x + i, a.n - i, a.aligned);
		if constexpr (ADDS) {
			struct chunk more = chunk_load((const T *)a.add + p.row * a.add_stride + i, a.n - i, a.aligned);
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++)
				c.v[k] = rh_to_float(rh_from_float<T>(c.v[k] + more.v[k]));
			chunk_store(total + i, c, a.n - i, a.aligned);
		}
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			squares += c.v[k] * c.v[k];
	}
	float rstd = 1 / sqrtf(vector_sum<PER_VECTOR>(squares) / (float)a.n + a.epsilon);
	if (p.absent)
		return;
	if (p.first == 0)
		a.rstd[p.row * a.rstd_stride + p.group] = rstd;
	uint32_t most = 0;
	for (int64_t i = p.first; i < a.n; i += step) {
		struct chunk c = chunk_load(ADDS ? total + i : x + i, a.n - i, a.aligned), scale = chunk_load(w + i, a.n - i, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			c.v[k] = c.v[k] * rstd * (a.offset + scale.v[k]);
		chunk_store(y + i, c, a.n - i, a.aligned);
		if (a.amax)
			most = chunk_largest(most, c);
	}
	leave_amax<T, PER_VECTOR, 0>(a.amax, p.row * a.amax_stride + p.group, p.first, most);
}

/* With xhat = x rstd and s = dy w: dx = add + rstd (s - xhat mean(s xhat)). dx may be dy or add: a chunk is written by the thread that
 * reads it, and after every read of the sum. */
template <typename T, int PER_VECTOR> RH_KERNEL(NORM_THREADS, 4) rmsnorm_backward_dx(struct norm_args a)
{
	constexpr int64_t step = PER_VECTOR * RH_WARP * CHUNK;
	struct place<PER_VECTOR> p = find_place<PER_VECTOR>(a.vectors, a.groups);
	const T *x = (const T *)a.x + p.row * a.x_stride + p.group * a.n;
	const T *dy = (const T *)a.dy + p.row * a.dy_stride + p.group * a.n;
	const T *w = (const T *)a.w;
	float rstd = a.rstd[p.row * a.rstd_stride + p.group], sum = 0;
	/* absent vectors read the last one, which another warp may be overwriting: what they sum is not used */
	for (int64_t i = p.first; i < a.n && !p.absent; i += step) {
		struct chunk c = chunk_load(x + i, a.n - i, a.aligned), s = chunk_load(dy + i, a.n - i, a.aligned);
		struct chunk scale = chunk_load(w + i, a.n - i, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			sum += s.v[k] * (a.offset + scale.v[k]) * c.v[k];
	}
	float mean = vector_sum<PER_VECTOR>(sum) * rstd / (float)a.n;
	if (p.absent)
		return;
	T *dx = (T *)a.dx + p.row * a.dx_stride + p.group * a.n;
	T *y = a.y ? (T *)a.y + p.row * a.y_stride + p.group * a.n : NULL;
	const T *add = a.add ? (const T *)a.add + p.row * a.add_stride + p.group * a.n : NULL;
	uint32_t most = 0, most_y = 0;
	for (int64_t i = p.first; i < a.n; i += step) {
		int64_t left = a.n - i;
		struct chunk c = chunk_load(x + i, left, a.aligned), s = chunk_load(dy + i, left, a.aligned);
		struct chunk scale = chunk_load(w + i, left, a.aligned), base = {};
		if (add)
			base = chunk_load(add + i, left, a.aligned);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			float xhat = c.v[k] * rstd, weight = a.offset + scale.v[k];
			s.v[k] = base.v[k] + rstd * (s.v[k] * weight - xhat * mean);
			c.v[k] = xhat * weight;
		}
		chunk_store(dx + i, s, left, a.aligned);
		if (y)
			chunk_store(y + i, c, left, a.aligned);
		if (a.amax)
			most = chunk_largest(most, s);
		if (a.y_amax)
			most_y = chunk_largest(most_y, c);
	}
	leave_amax<T, PER_VECTOR, 0>(a.amax, p.row * a.amax_stride + p.group, p.first, most);
	leave_amax<T, PER_VECTOR, 1>(a.y_amax, p.row * a.y_amax_stride + p.group, p.first, most_y);
}

/* dy x rstd of elements [i, i+8) of a vector. */
template <typename T> RH_DEVICE struct chunk dw_term(const struct norm_args &a, int64_t vector, int64_t i, int64_t left)
{
	int64_t row = vector / a.groups, group = vector % a.groups, at = group * a.n + i;
	struct chunk c = chunk_load((const T *)a.x + row * a.x_stride + at, left, a.aligned);
	struct chunk d = chunk_load((const T *)a.dy + row * a.dy_stride + at, left, a.aligned);
	float rstd = a.rstd[row * a.rstd_stride + group];
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		c.v[k] *= d.v[k] * rstd;
	return c;
}

/* dw += sum over vectors of dy x rstd. */
template <typename T> RH_KERNEL(COLUMN_THREADS, 2) rmsnorm_backward_dw(struct norm_args a)
{
	column_add(a.dw, a.n, a.vectors, [&](int64_t vector, int64_t i, int64_t left) { return dw_term<T>(a, vector, i, left); });
}

enum { NARROW = 128, NARROW_THREADS = 1024 };

/* The same of 8 columns a block; a thread a vector, or NARROW_THREADS. */
template <typename T> RH_KERNEL(NARROW_THREADS, 1) rmsnorm_backward_dw_narrow(struct norm_args a)
{
	RH_SHARED_2D(float, part, NARROW_THREADS, CHUNK + 1);
	int own = (int)threadIdx.x, parts = (int)blockDim.x / RH_WARP;
	int64_t first = (int64_t)blockIdx.x * CHUNK;
	struct chunk sum = {};
	for (int64_t vector = own; vector < a.vectors; vector += blockDim.x) {
		struct chunk c = dw_term<T>(a, vector, first, a.n - first);
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++)
			sum.v[k] += c.v[k];
	}
	RH_UNROLL
	for (int k = 0; k < CHUNK; k++)
		part[own][k] = sum.v[k];
	__syncthreads();
	float total = 0;
	int column = own % CHUNK, begin = own / CHUNK * RH_WARP; /* of the first 8 * parts threads */
	for (int i = 0; own < CHUNK * parts && i < RH_WARP; i++)
		total += part[begin + i][column];
	__syncthreads();
	if (own < CHUNK * parts)
		part[own / CHUNK][column] = total;
	__syncthreads();
	if (own >= CHUNK || first + own >= a.n)
		return;
	total = 0;
	for (int i = 0; i < parts; i++)
		total += part[i][own];
	a.dw[first + own] += total;
}

/* Rows of bf16 that lie on 16 bytes, of at most CHUNKS chunks a lane: read once, and kept in registers between the sum over a vector and
 * what is made of it. All loads of a vector are asked for before the first is used. */
enum { WARP_CHUNKS = NORM_WARP_LENGTH / RH_WARP / CHUNK, KEPT_LENGTH = 8192 };
template <int CHUNKS> struct kept {
	rh_vec<rh_bf16> v[CHUNKS];
};

template <int PER_VECTOR, int CHUNKS> RH_DEVICE struct kept<CHUNKS> keep(const rh_bf16 *own, int left) {
	constexpr int step = PER_VECTOR * RH_WARP * CHUNK;
	struct kept<CHUNKS> k;
	RH_UNROLL
	for (int c = 0; c < CHUNKS; c++)
		k.v[c] = c * step < left ? rh_load16(own + c * step) : rh_vec<rh_bf16>{};
	return k;
}

/* This thread's first element of a vector, and the number of that vector among the block's. */
struct lane {
	int first, vector;
};

template <int PER_VECTOR> RH_DEVICE struct lane find_lane(void)
{
	return {(int)threadIdx.x % (PER_VECTOR * RH_WARP) * CHUNK, (int)threadIdx.x / (PER_VECTOR * RH_WARP)};
}

RH_DEVICE int64_t row_of(const struct norm_args &a, int64_t vector)
{
	return a.groups == 1 ? vector : vector / a.groups;
}

template <int PER_VECTOR, int CHUNKS, bool ADDS>
RH_KERNEL(NORM_THREADS, CHUNKS < WARP_CHUNKS ? 5 : 3)
rmsnorm_forward_kept(struct norm_args a)
{
	constexpr int step = PER_VECTOR * RH_WARP * CHUNK, at_once = NORM_WARPS / PER_VECTOR;
	struct lane lane = find_lane<PER_VECTOR>();
	int64_t vector = (int64_t)blockIdx.x * at_once + lane.vector;
	if (vector >= a.vectors) /* of a warp's vectors, which wait for no other warp */
		return;
	int64_t row = row_of(a, vector), at = (vector - row * a.groups) * a.n + lane.first;
	int left = (int)a.n - lane.first;
	struct kept<CHUNKS> x = keep<PER_VECTOR, CHUNKS>((const rh_bf16 *)a.x + row * a.x_stride + at, left), more;
	if constexpr (ADDS)
		more = keep<PER_VECTOR, CHUNKS>((const rh_bf16 *)a.add + row * a.add_stride + at, left);
	struct kept<CHUNKS> w = keep<PER_VECTOR, CHUNKS>((const rh_bf16 *)a.w + lane.first, left);
	float squares = 0;
	RH_UNROLL
	for (int c = 0; c < CHUNKS; c++) {
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			if constexpr (ADDS)
				x.v[c].v[k] = rh_from_float<rh_bf16>(rh_to_float(x.v[c].v[k]) + rh_to_float(more.v[c].v[k]));
			float value = rh_to_float(x.v[c].v[k]);
			squares += value * value;
		}
		if constexpr (ADDS)
			if (c * step < left)
				rh_store16((rh_bf16 *)a.sum + row * a.sum_stride + at + c * step, x.v[c]);
	}
	float rstd = 1 / sqrtf(vector_sum<PER_VECTOR>(squares) / (float)a.n + a.epsilon);
	if (lane.first == 0)
		a.rstd[row * a.rstd_stride + (vector - row * a.groups)] = rstd;
	uint32_t most = 0;
	RH_UNROLL
	for (int c = 0; c < CHUNKS; c++) {
		rh_vec<rh_bf16> y;
		RH_UNROLL
		for (int k = 0; k < CHUNK; k++) {
			y.v[k] = rh_from_float<rh_bf16>(rh_to_float(x.v[c].v[k]) * rstd * (a.offset + rh_to_float(w.v[c].v[k])));
			most = larger_magnitude(most, rh_to_float(y.v[k]));
		}
		if (c * step < left)
			rh_store16((rh_bf16 *)a.y + row * a.y_stride + at + c * step, y);
	}
	leave_amax<rh_bf16, PER_VECTOR, 0>(a.amax, row * a.amax_stride + (vector - row * a.groups), lane.first, most);
}

/* The terms of a vector's dx. */
template <int PER_VECTOR, int CHUNKS> struct gradient_of {
	struct kept<CHUNKS> x, dy;
	float rstd;
};

template <int PER_VECTOR, int CHUNKS>
RH_DEVICE struct gradient_of<PER_VECTOR, CHUNKS> read_gradient(const struct norm_args &a, int64_t vector, int own) {
	int64_t row = row_of(a, vector), group = vector - row * a.groups, at = group * a.n + own;
	struct gradient_of<PER_VECTOR, CHUNKS> g;
	g.x = keep<PER_VECTOR, CHUNKS>((const rh_bf16 *)a.x + row * a.x_stride + at, (int)a.n - own);
	g.dy = keep<PER_VECTOR, CHUNKS>((const rh_bf16 *)a.dy + row * a.dy_stride + at, (int)a.n - own);
	g.rstd = a.rstd[row * a.rstd_stride + group];
	return g;
}

/* dx (y), and, with DW, a block's part of dw: blocks then stride over the vectors, at_once each at a time, and read the next ones ahead
 * where registers allow. dx may be dy or add, as above. */
template <int PER_VECTOR, int CHUNKS, bool DW>
RH_KERNEL(NORM_THREADS, CHUNKS == 1                   ? 4
                        : DW || CHUNKS == WARP_CHUNKS ? 2
                                                      : 3)
rmsnorm_backward_kept(struct norm_args a)
{
	constexpr int step = PER_VECTOR * RH_WARP * CHUNK, at_once = NORM_WARPS / PER_VECTOR;
	constexpr bool ahead = DW && CHUNKS < WARP_CHUNKS;
	struct lane lane = find_lane<PER_VECTOR>();
	int own = lane.first, n = (int)a.n;
	float dw[DW ? CHUNKS : 1][CHUNK] = {};
	constexpr bool keeps_w = !DW || CHUNKS < WARP_CHUNKS; /* else registers are short */
	struct kept<CHUNKS> w = {
	};
	if constexpr (keeps_w)
		w = keep<PER_VECTOR, CHUNKS>((const rh_bf16 *)a.w + own, n - own);
	struct gradient_of<PER_VECTOR, CHUNKS> now, next;
	int64_t stride = (int64_t)gridDim.x * at_once;
	int64_t vector = (int64_t)blockIdx.x * at_once + lane.vector;
	if (ahead && vector < a.vectors)
		next = read_gradient<PER_VECTOR, CHUNKS>(a, vector, own);
	for (; vector < a.vectors; vector += stride) {
		int64_t row = row_of(a, vector), at = (vector - row * a.groups) * n + own;
		if constexpr (ahead) {
			now = next;
			if (vector + stride < a.vectors)
				next = read_gradient<PER_VECTOR, CHUNKS>(a, vector + stride, own);
		} else {
			now = read_gradient<PER_VECTOR, CHUNKS>(a, vector, own);
		}
		struct kept<CHUNKS> add = {
		};
		if (!DW && a.add) /* with DW registers are short: later */
			add = keep<PER_VECTOR, CHUNKS>((const rh_bf16 *)a.add + row * a.add_stride + at, n - own);
		float rstd = now.rstd, sum = 0;
		RH_UNROLL
		for (int c = 0; c < CHUNKS; c++) {
			rh_vec<rh_bf16> scale = w.v[c];
			if (!keeps_w && c * step < n - own)
				scale = rh_load16((const rh_bf16 *)a.w + own + c * step);
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++)
				sum += rh_to_float(now.dy.v[c].v[k]) * (a.offset + rh_to_float(scale.v[k])) * rh_to_float(now.x.v[c].v[k]);
		}
		float mean = vector_sum<PER_VECTOR>(sum) * rstd / (float)n;
		uint32_t most = 0, most_y = 0;
		RH_UNROLL
		for (int c = 0; c < CHUNKS; c++) {
			struct chunk out, y;
			rh_vec<rh_bf16> scale = w.v[c], base = add.v[c];
			if (!keeps_w && c * step < n - own)
				scale = rh_load16((const rh_bf16 *)a.w + own + c * step);
			if (DW && a.add && c * step < n - own)
				base = rh_load16((const rh_bf16 *)a.add + row * a.add_stride + at + c * step);
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++) {
				float xhat = rh_to_float(now.x.v[c].v[k]) * rstd, d = rh_to_float(now.dy.v[c].v[k]);
				float weight = a.offset + rh_to_float(scale.v[k]);
				out.v[k] = rh_to_float(base.v[k]) + rstd * (d * weight - xhat * mean);
				y.v[k] = xhat * weight;
				if (DW)
					dw[DW ? c : 0][k] += d * xhat;
			}
			chunk_store((rh_bf16 *)a.dx + row * a.dx_stride + at + c * step, out, n - own - c * step, 1);
			if (a.y)
				chunk_store((rh_bf16 *)a.y + row * a.y_stride + at + c * step, y, n - own - c * step, 1);
			if (a.amax)
				most = chunk_largest(most, out);
			if (a.y_amax)
				most_y = chunk_largest(most_y, y);
		}
		int64_t group = vector - row * a.groups;
		leave_amax<rh_bf16, PER_VECTOR, 0>(a.amax, row * a.amax_stride + group, own, most);
		leave_amax<rh_bf16, PER_VECTOR, 1>(a.y_amax, row * a.y_amax_stride + group, own, most_y);
		if (PER_VECTOR > 1)
			__syncthreads(); /* the next sum takes the place of this one's parts */
	}
	if constexpr (DW) {
		RH_SHARED_2D(float, sums, at_once, step);
		RH_UNROLL
		for (int c = 0; c < CHUNKS; c++) {
			RH_UNROLL
			for (int k = 0; k < CHUNK; k++)
				sums[lane.vector][own + k] = dw[c][k];
			__syncthreads();
			for (int i = (int)threadIdx.x; i < step && c * step + i < n; i += NORM_THREADS) {
				float total = 0;
				for (int v = 0; v < at_once; v++)
					total += sums[v][i];
				a.part[(int64_t)blockIdx.x * n + c * step + i] = total;
			}
			__syncthreads();
		}
	}
}

/* dw += the parts of `vectors` blocks. */
static RH_KERNEL(COLUMN_THREADS, 2) rmsnorm_add_parts(struct norm_args a)
{
	column_add(a.dw, a.n, a.vectors,
	           [&](int64_t part, int64_t i, int64_t left) { return chunk_load(a.part + part * a.n + i, left, 1); });
}

enum { DW_BLOCKS = 256, DW_BLOCKS_SHORT = 512 };

/* launch<PER_VECTOR, CHUNKS>() of the shape that vectors of n elements are kept in. */
template <template <int, int> class Launch> static int launch_kept(const struct norm_args *a, CUstream_st *stream)
{
	if (a->n <= NORM_WARP_LENGTH / WARP_CHUNKS)
		return Launch<1, 1>::launch(a, stream);
	if (a->n <= NORM_WARP_LENGTH)
		return Launch<1, WARP_CHUNKS>::launch(a, stream);
	if (a->n <= KEPT_LENGTH / 4)
		return Launch<NORM_WARPS, 1>::launch(a, stream);
	return a->n <= KEPT_LENGTH / 2 ? Launch<NORM_WARPS, 2>::launch(a, stream) : Launch<NORM_WARPS, 4>::launch(a, stream);
}

template <int PER_VECTOR, int CHUNKS> struct kept_forward {
	static int launch(const struct norm_args *a, CUstream_st *stream)
	{
		unsigned blocks = norm_blocks(a->vectors, PER_VECTOR);
		if (a->add)
			return RH_LAUNCH((rmsnorm_forward_kept<PER_VECTOR, CHUNKS, true>), blocks, NORM_THREADS, 0, stream, *a);
		return RH_LAUNCH((rmsnorm_forward_kept<PER_VECTOR, CHUNKS, false>), blocks, NORM_THREADS, 0, stream, *a);
	}
};

template <int PER_VECTOR, int CHUNKS> struct kept_backward {
	static int launch(const struct norm_args *a, CUstream_st *stream)
	{
		unsigned most = PER_VECTOR == 1 ? DW_BLOCKS_SHORT : DW_BLOCKS;
		unsigned blocks = norm_blocks(a->vectors, PER_VECTOR);
		if (!a->dw)
			return RH_LAUNCH((rmsnorm_backward_kept<PER_VECTOR, CHUNKS, false>), blocks, NORM_THREADS, 0, stream, *a);
		blocks = blocks < most ? blocks : most;
		int rc = RH_LAUNCH((rmsnorm_backward_kept<PER_VECTOR, CHUNKS, true>), blocks, NORM_THREADS, 0, stream, *a);
		struct norm_args parts = *a;
		parts.vectors = blocks;
		return rc < 0 ? rc : RH_LAUNCH(rmsnorm_add_parts, column_blocks(a->n), COLUMN_THREADS, 0, stream, parts);
	}
};

static int can_keep(const struct norm_args *a, enum rh_dtype dtype)
{
	return a->aligned && dtype == RH_BF16 && a->n % CHUNK == 0 && a->n <= KEPT_LENGTH;
}

template <typename T, bool ADDS> static int forward(const struct norm_args *a, CUstream_st *stream)
{
	if (a->n <= NORM_WARP_LENGTH)
		return RH_LAUNCH((rmsnorm_forward<T, 1, ADDS>), norm_blocks(a->vectors, 1), NORM_THREADS, 0, stream, *a);
	return RH_LAUNCH((rmsnorm_forward<T, NORM_WARPS, ADDS>), norm_blocks(a->vectors, NORM_WARPS), NORM_THREADS, 0, stream, *a);
}

static unsigned narrow_threads(int64_t vectors)
{
	return vectors < NARROW_THREADS ? (unsigned)((vectors + RH_WARP - 1) / RH_WARP * RH_WARP) : (unsigned)NARROW_THREADS;
}

/* dw first: dx may overwrite dy. */
template <typename T> static int backward(const struct norm_args *a, CUstream_st *stream)
{
	int rc = 0;
	if (a->dw && a->n <= NARROW)
		rc = RH_LAUNCH((rmsnorm_backward_dw_narrow<T>), (unsigned)chunks_of(a->n), narrow_threads(a->vectors), 0, stream, *a);
	else if (a->dw)
		rc = RH_LAUNCH((rmsnorm_backward_dw<T>), column_blocks(a->n), COLUMN_THREADS, 0, stream, *a);
	if (rc < 0)
		return rc;
	if (a->n <= NORM_WARP_LENGTH)
		return RH_LAUNCH((rmsnorm_backward_dx<T, 1>), norm_blocks(a->vectors, 1), NORM_THREADS, 0, stream, *a);
	return RH_LAUNCH((rmsnorm_backward_dx<T, NORM_WARPS>), norm_blocks(a->vectors, NORM_WARPS), NORM_THREADS, 0, stream, *a);
}

extern "C" int cuda_rmsnorm(const struct rh_op *op, CUstream_st *stream)
{
	struct rh_view x = op->operand[RH_RMSNORM_X], w = op->operand[RH_RMSNORM_W];
	struct rh_view y = op->operand[RH_RMSNORM_Y], rstd = op->operand[RH_RMSNORM_RSTD];
	struct norm_args a = {};
	a.x = x.data, a.x_stride = x.stride;
	a.w = w.data;
	a.y = y.data, a.y_stride = y.stride;
	a.rstd = (float *)rstd.data, a.rstd_stride = rstd.stride;
	a.amax = (float *)op->operand[RH_RMSNORM_AMAX].data, a.amax_stride = op->operand[RH_RMSNORM_AMAX].stride;
	a.groups = op->rmsnorm.groups;
	a.vectors = x.rows * a.groups;
	a.n = w.cols;
	a.epsilon = op->rmsnorm.epsilon;
	a.offset = op->rmsnorm.offset;
	const struct rh_view views[] = {x, w, y};
	a.aligned = chunk_aligned(views, 3) && (a.groups == 1 || a.n * rh_dtype_bytes(x.dtype, 1) % 16 == 0);
	if (!a.vectors)
		return 0;
	if (can_keep(&a, x.dtype))
		return launch_kept<kept_forward>(&a, stream);
	return x.dtype == RH_BF16 ? forward<rh_bf16, false>(&a, stream) : forward<float, false>(&a, stream);
}

extern "C" int cuda_add_rmsnorm(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct norm_args a = {};
	a.x = view[RH_ADD_RMSNORM_A].data, a.x_stride = view[RH_ADD_RMSNORM_A].stride;
	a.add = view[RH_ADD_RMSNORM_B].data, a.add_stride = view[RH_ADD_RMSNORM_B].stride;
	a.sum = view[RH_ADD_RMSNORM_SUM].data, a.sum_stride = view[RH_ADD_RMSNORM_SUM].stride;
	a.y = view[RH_ADD_RMSNORM_Y].data, a.y_stride = view[RH_ADD_RMSNORM_Y].stride;
	a.w = view[RH_ADD_RMSNORM_W].data;
	a.rstd = (float *)view[RH_ADD_RMSNORM_RSTD].data, a.rstd_stride = view[RH_ADD_RMSNORM_RSTD].stride;
	a.amax = (float *)view[RH_ADD_RMSNORM_AMAX].data, a.amax_stride = view[RH_ADD_RMSNORM_AMAX].stride;
	a.groups = 1;
	a.vectors = view[RH_ADD_RMSNORM_A].rows;
	a.n = view[RH_ADD_RMSNORM_A].cols;
	a.epsilon = op->qk_rope.epsilon;
	a.offset = op->qk_rope.offset;
	a.aligned = chunk_aligned(view, RH_ADD_RMSNORM_RSTD);
	if (!a.vectors)
		return 0;
	if (can_keep(&a, view->dtype))
		return launch_kept<kept_forward>(&a, stream);
	return view->dtype == RH_BF16 ? forward<rh_bf16, true>(&a, stream) : forward<float, true>(&a, stream);
}

extern "C" int cuda_rmsnorm_backward(const struct rh_op *op, CUstream_st *stream)
{
	return cuda_rmsnorm_backward_within(op, NULL, stream);
}

extern "C" int cuda_rmsnorm_backward_within(const struct rh_op *op, void *workspace, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct rh_view x = view[RH_RMSNORM_BACKWARD_X], w = view[RH_RMSNORM_BACKWARD_W], dy = view[RH_RMSNORM_BACKWARD_DY];
	struct rh_view add = view[RH_RMSNORM_BACKWARD_ADD], dx = view[RH_RMSNORM_BACKWARD_DX], y = view[RH_RMSNORM_BACKWARD_Y];
	struct norm_args a = {};
	a.x = x.data, a.x_stride = x.stride;
	a.w = w.data;
	a.dy = dy.data, a.dy_stride = dy.stride;
	a.add = add.data, a.add_stride = add.stride;
	a.dx = dx.data, a.dx_stride = dx.stride;
	a.y = y.data, a.y_stride = y.stride;
	a.rstd = (float *)view[RH_RMSNORM_BACKWARD_RSTD].data, a.rstd_stride = view[RH_RMSNORM_BACKWARD_RSTD].stride;
	a.dw = (float *)view[RH_RMSNORM_BACKWARD_DW].data;
	a.amax = (float *)view[RH_RMSNORM_BACKWARD_DX_AMAX].data, a.amax_stride = view[RH_RMSNORM_BACKWARD_DX_AMAX].stride;
	a.y_amax = (float *)view[RH_RMSNORM_BACKWARD_Y_AMAX].data, a.y_amax_stride = view[RH_RMSNORM_BACKWARD_Y_AMAX].stride;
	a.groups = op->rmsnorm.groups;
	a.vectors = x.rows * a.groups;
	a.n = w.cols;
	a.offset = op->rmsnorm.offset;
	const struct rh_view views[] = {x, w, dy, add, dx, y};
	a.aligned = chunk_aligned(views, 6) && (a.groups == 1 || a.n * rh_dtype_bytes(x.dtype, 1) % 16 == 0);
	a.part = (float *)workspace;
	if (!a.vectors)
		return 0;
	if ((!a.dw || a.part) && can_keep(&a, x.dtype))
		return launch_kept<kept_backward>(&a, stream);
	return x.dtype == RH_BF16 ? backward<rh_bf16>(&a, stream) : backward<float>(&a, stream);
}
