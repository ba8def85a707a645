#include "offload/optimizer.h"

#include "offload/store_internal.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>

/* Task of rh_optimizer_norm: one span's gradient made final, and its squares summed. */
static void norm_span(void *context, int64_t i)
{
	struct rh_store *store = context;
	struct store_span *span = &store->span[i];
	const struct store_block *block = &store->block[span->block];
	const struct optimizer_kernels *kernels = store->kernels;
	int two = store->spec[span->block].uses == 2;
	if (store->dtype == RH_F32) {
		float *gradient = (float *)block->gradient + span->first;
		if (two)
			kernels->add_f32(gradient, block->sum[1] + span->first, block->sum[0] + span->first, span->count);
		span->sum = kernels->squares_f32(gradient, span->count);
	} else {
		uint16_t *gradient = (uint16_t *)block->gradient + span->first;
		if (two)
			kernels->add_bf16(gradient, block->sum[1] + span->first, block->sum[0] + span->first, span->count);
		span->sum = kernels->squares_bf16(gradient, span->count);
	}
}

double rh_optimizer_norm(struct rh_store *store)
{
	rh_pool_run(store->pool, norm_span, store, store->spans);
	double total = 0;
	for (int64_t i = 0; i < store->spans;) {
		const struct store_span *tensor = &store->span[i];
		double sum = 0;
		for (; i < store->spans && store->span[i].block == tensor->block && store->span[i].tensor == tensor->tensor; i++)
			sum += store->span[i].sum;
		total += sum;
	}
	return sqrt(total);
}

double rh_optimizer_clip(double norm, double max_norm)
{
	double factor = max_norm / (norm + 1e-6);
	return max_norm == 0 || factor >= 1 ? 1 : factor; /* NaN stays NaN */
}

struct update {
	struct rh_store *store;
	struct store_block *block;
	struct adamw_terms decaying, plain;
	_Atomic int bad; /* lowest tensor with a non-finite weight, INT_MAX for none */
};

/* Task of rh_optimizer_update. */
static void update_span(void *context, int64_t i)
{
	struct update *update = context;
	const struct store_span *span = &update->store->span[update->block->span + i];
	const struct optimizer_kernels *kernels = update->store->kernels;
	const struct store_block *block = update->block;
	const struct rh_tensor *tensor = &update->store->spec[span->block].tensor[span->tensor];
	const struct adamw_terms *terms = tensor->decays ? &update->decaying : &update->plain;
	int64_t at = span->first;
	float *first = block->moment[0] + at, *second = block->moment[1] + at;
	int bad;
	if (update->store->dtype == RH_F32)
		bad = kernels->update_f32(terms, (float *)block->weights + at, (const float *)block->gradient + at, first, second,
		                          span->count);
	else
		bad = kernels->update_split(terms, (uint16_t *)block->weights + at, block->lower + at,
		                            (const uint16_t *)block->gradient + at, first, second, span->count);
	if (!bad)
		return;
	int lowest = atomic_load_explicit(&update->bad, memory_order_relaxed); /* the pool's end of run publishes it */
	while (span->tensor < lowest &&
	       !atomic_compare_exchange_weak_explicit(&update->bad, &lowest, span->tensor, memory_order_relaxed, memory_order_relaxed))
		;
}

/* The constants in double on the host, each rounded once, as torch does. */
static struct adamw_terms make_terms(const struct rh_adamw *adamw, double learning_rate, double scale, int64_t step)
{
	double weight = 1 - adamw->beta1;
	int from_end = weight >= 0.5; /* torch.lerp switches there: the end it is nearer to is kept exact */
	return (struct adamw_terms){
	        .scale = (float)scale,
	        .keep = 1,
	        .lerp = from_end ? -(1.0f - (float)weight) : (float)weight,
	        .lerp_from_end = from_end,
	        .beta2 = (float)adamw->beta2,
	        .one_minus_beta2 = (float)(1 - adamw->beta2),
	        .inverse_root = (float)(1 / sqrt(1 - pow(adamw->beta2, (double)step))),
	        .epsilon = (float)adamw->epsilon,
	        .minus_step = (float)(-learning_rate / (1 - pow(adamw->beta1, (double)step))),
	};
}

int rh_optimizer_update(struct rh_store *store, int block, const struct rh_adamw *adamw, double learning_rate, double scale, int64_t step)
{
	const struct rh_block *spec = rh_store_block(store, block);
	RH_ASSERT(spec->trainable && step >= 1);
	struct update update = {.store = store, .block = &store->block[block], .bad = INT_MAX};
	update.plain = make_terms(adamw, learning_rate, scale, step);
	update.decaying = update.plain;
	update.decaying.keep = (float)(1 - learning_rate * adamw->weight_decay);
	update.block->version++;
	rh_pool_run(store->pool, update_span, &update, update.block->span_count);
	int bad = atomic_load_explicit(&update.bad, memory_order_relaxed);
	if (bad == INT_MAX)
		return 0;
	return rh_fail(-EINVAL,
	               "weight %s of %s is no longer finite after step %lld (learning rate %g): lower learning_rate or max_grad_norm",
	               spec->tensor[bad].name, spec->name, (long long)step, learning_rate);
}
