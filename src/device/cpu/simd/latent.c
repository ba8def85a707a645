/* Keys and values of multi-head latent attention: moves, and in the backward sums over heads. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

/* Elements `from` on of a row to elements `to` on. */
static void move(void *row, int64_t to, const void *other, int64_t from, int64_t count, enum rh_dtype dtype)
{
	memcpy((char *)row + rh_dtype_bytes(dtype, to), (const char *)other + rh_dtype_bytes(dtype, from),
	       (size_t)rh_dtype_bytes(dtype, count));
}

/* Units are rows. */
static void latent(const struct rh_op *op, int64_t first, int64_t end)
{
	struct rh_view kv = op->operand[RH_LATENT_KV], shared = op->operand[RH_LATENT_SHARED];
	int64_t heads = op->latent.heads, key = op->operand[RH_LATENT_K].cols / heads, wide = op->operand[RH_LATENT_V].cols / heads;
	int64_t value = op->latent.value, both = kv.cols / heads, own = both - value;
	for (int64_t t = first; t < end; t++) {
		const void *from = row_at(kv, t), *of_all = row_at(shared, t);
		void *k = row_at(op->operand[RH_LATENT_K], t), *v = row_at(op->operand[RH_LATENT_V], t);
		for (int64_t h = 0; h < heads; h++) {
			move(k, h * key, from, h * both, own, kv.dtype);
			move(k, h * key + own, of_all, 0, shared.cols, kv.dtype);
			move(v, h * wide, from, h * both + own, value, kv.dtype);
			memset((char *)v + rh_dtype_bytes(kv.dtype, h * wide + value), 0, (size_t)rh_dtype_bytes(kv.dtype, wide - value));
		}
	}
}

const struct cpu_op SIMD(cpu_latent) = {{{latent, NULL}}};

SIMD_INLINE void backward(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	struct rh_view dkv = op->operand[RH_LATENT_BACKWARD_DKV], dshared = op->operand[RH_LATENT_BACKWARD_DSHARED];
	int64_t heads = op->latent.heads, key = op->operand[RH_LATENT_BACKWARD_DK].cols / heads;
	int64_t wide = op->operand[RH_LATENT_BACKWARD_DV].cols / heads, both = dkv.cols / heads, own = both - op->latent.value;
	for (int64_t t = first; t < end; t++) {
		const void *dk = row_at(op->operand[RH_LATENT_BACKWARD_DK], t), *dv = row_at(op->operand[RH_LATENT_BACKWARD_DV], t);
		for (int64_t h = 0; h < heads; h++) {
			move(row_at(dkv, t), h * both, dk, h * key, own, dkv.dtype);
			move(row_at(dkv, t), h * both + own, dv, h * wide, both - own, dkv.dtype);
		}
		for (int64_t i = 0; i < dshared.cols; i += VF) {
			vf sum = {0};
			for (int64_t h = 0; h < heads; h++)
				sum += act_load(dk, h * key + own + i, dshared.cols - i, bf16);
			act_store(row_at(dshared, t), i, sum, dshared.cols - i, bf16);
		}
	}
}

/* Units are rows. */
static void latent_backward(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_LATENT_BACKWARD_DKV].dtype, backward, op, first, end);
}

const struct cpu_op SIMD(cpu_latent_backward) = {{{latent_backward, NULL}}};
