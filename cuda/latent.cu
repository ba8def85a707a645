/* Keys and values of multi-head latent attention. With T rows, H heads, and of a head N elements of its own key, R that all share, V of
 * value, W with zeros, each of e bytes:
 *
 * latent           reads T (H (N + V) + R) e bytes and writes T H (N + R + W) e.
 * latent_backward  the other way round; R H additions a token.
 *
 * Both are bound by memory: the roofline is bytes / DRAM bandwidth.
 *
 * Tile: a chunk of 8 elements a thread, of what one head has, or in the backward of what all share; 32 such by 8 rows a block. */
#include "cuda/chunk.h"
#include "cuda/kernels.h"

struct latent_args {
	void *kv, *shared, *k, *v;
	int64_t kv_stride, shared_stride, k_stride, v_stride, rows;
	int heads, own, common, value, wide; /* common: R */
	int aligned;
};

/* Elements from i on of a part of `count`: where they come from, NULL for zeros, and where they go. */
template <typename T> RH_DEVICE void move(const T *from, T *to, int i, int count, int aligned)
{
	struct chunk c = {};
	if (from)
		c = chunk_load(from + i, count - i, aligned);
	chunk_store(to + i, c, count - i, aligned);
}

RH_DEVICE int chunks_in(int count)
{
	return (count + CHUNK - 1) / CHUNK;
}

/* A head's parts lie one behind the other: its own key, the common one, its value, zeros. */
template <typename T> CHUNK_KERNEL latent_spread(struct latent_args a)
{
	int parts[4] = {chunks_in(a.own), chunks_in(a.common), chunks_in(a.value), chunks_in(a.wide - a.value)};
	int each = parts[0] + parts[1] + parts[2] + parts[3], item = (int)chunk_of_row(), head = item / each, at = item % each, part = 0;
	if (head >= a.heads)
		return;
	while (at >= parts[part])
		at -= parts[part++];
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		const T *kv = (const T *)a.kv + row * a.kv_stride + (int64_t)head * (a.own + a.value);
		const T *shared = (const T *)a.shared + row * a.shared_stride;
		T *k = (T *)a.k + row * a.k_stride + (int64_t)head * (a.own + a.common);
		T *v = (T *)a.v + row * a.v_stride + (int64_t)head * a.wide;
		if (part == 0)
			move(kv, k, at * CHUNK, a.own, a.aligned);
		else if (part == 1)
			move(shared, k + a.own, at * CHUNK, a.common, a.aligned);
		else if (part == 2)
			move(kv + a.own, v, at * CHUNK, a.value, a.aligned);
		else
			move((const T *)NULL, v + a.value, at * CHUNK, a.wide - a.value, a.aligned);
	}
}

/* Of each head its own key and its value; behind all heads what they share. */
template <typename T> CHUNK_KERNEL latent_collect(struct latent_args a)
{
	int own = chunks_in(a.own), each = own + chunks_in(a.value), item = (int)chunk_of_row(), head = each ? item / each : a.heads;
	int common = item - a.heads * each, i = common * CHUNK, left = a.common - i;
	if (head >= a.heads && left <= 0)
		return;
	for (int64_t row = chunk_first_row(); row < a.rows; row += chunk_row_step()) {
		const T *k = (const T *)a.k + row * a.k_stride, *v = (const T *)a.v + row * a.v_stride;
		T *kv = (T *)a.kv + row * a.kv_stride + (int64_t)head * (a.own + a.value);
		if (head < a.heads) {
			int at = item % each;
			if (at < own)
				move(k + (int64_t)head * (a.own + a.common), kv, at * CHUNK, a.own, a.aligned);
			else
				move(v + (int64_t)head * a.wide, kv + a.own, (at - own) * CHUNK, a.value, a.aligned);
			continue;
		}
		struct chunk sum = {};
		for (int h = 0; h < a.heads; h++) {
			struct chunk c = chunk_load(k + (int64_t)h * (a.own + a.common) + a.own + i, left, a.aligned);
			RH_UNROLL
			for (int e = 0; e < CHUNK; e++)
				sum.v[e] += c.v[e];
		}
		chunk_store((T *)a.shared + row * a.shared_stride + i, sum, left, a.aligned);
	}
}

static struct latent_args args_of(const struct rh_op *op, const struct rh_view *kv, const struct rh_view *shared, const struct rh_view *k,
                                  const struct rh_view *v)
{
	struct latent_args a = {};
	int64_t heads = op->latent.heads;
	a.kv = kv->data, a.kv_stride = kv->stride;
	a.shared = shared->data, a.shared_stride = shared->stride;
	a.k = k->data, a.k_stride = k->stride;
	a.v = v->data, a.v_stride = v->stride;
	a.rows = kv->rows;
	a.heads = (int)heads;
	a.common = (int)shared->cols;
	a.value = (int)op->latent.value;
	a.own = (int)(kv->cols / heads) - a.value;
	a.wide = (int)(v->cols / heads);
	const struct rh_view views[] = {*kv, *shared, *k, *v};
	a.aligned = chunk_aligned(views, 4) && a.own % CHUNK == 0 && a.common % CHUNK == 0 && a.value % CHUNK == 0 && a.wide % CHUNK == 0;
	return a;
}

extern "C" int cuda_latent(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct latent_args a = args_of(op, &view[RH_LATENT_KV], &view[RH_LATENT_SHARED], &view[RH_LATENT_K], &view[RH_LATENT_V]);
	int64_t each = chunks_of(a.own) + chunks_of(a.common) + chunks_of(a.value) + chunks_of(a.wide - a.value);
	if (!a.rows || !each)
		return 0;
	if (view[RH_LATENT_KV].dtype == RH_BF16)
		return RH_LAUNCH(latent_spread<rh_bf16>, chunk_grid(a.rows, a.heads * each), chunk_block(), 0, stream, a);
	return RH_LAUNCH(latent_spread<float>, chunk_grid(a.rows, a.heads * each), chunk_block(), 0, stream, a);
}

extern "C" int cuda_latent_backward(const struct rh_op *op, CUstream_st *stream)
{
	const struct rh_view *view = op->operand;
	struct latent_args a = args_of(op, &view[RH_LATENT_BACKWARD_DKV], &view[RH_LATENT_BACKWARD_DSHARED], &view[RH_LATENT_BACKWARD_DK],
	                               &view[RH_LATENT_BACKWARD_DV]);
	int64_t chunks = a.heads * (chunks_of(a.own) + chunks_of(a.value)) + chunks_of(a.common);
	if (!a.rows || !chunks)
		return 0;
	if (view[RH_LATENT_BACKWARD_DKV].dtype == RH_BF16)
		return RH_LAUNCH(latent_collect<rh_bf16>, chunk_grid(a.rows, chunks), chunk_block(), 0, stream, a);
	return RH_LAUNCH(latent_collect<float>, chunk_grid(a.rows, chunks), chunk_block(), 0, stream, a);
}
