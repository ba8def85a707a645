/* Which rows a micro-batch of a step holds. A pure function of seed and counts: a run gone on with, or on more devices, sees the same. */
#include "core/alloc.h"
#include "data/data_internal.h"

struct rh_sampler {
	int64_t rows, batch, accumulation;
	enum rh_sampling sampling;
	uint64_t seed;
	int64_t epoch;  /* whose order is held, -1 none */
	int64_t *order; /* (rows) */
};

int rh_sampler_create(int64_t rows, int64_t batch, int64_t accumulation, enum rh_sampling sampling, uint64_t seed, struct rh_sampler **out)
{
	RH_ASSERT(rows > 0 && batch > 0 && accumulation > 0);
	struct rh_sampler *sampler = rh_alloc(1, sizeof *sampler);
	if (!sampler)
		return -ENOMEM;
	/* more than one epoch's rows in a step is one epoch's rows in a step: keeps the products below small */
	int64_t rows_up = batch > rows ? rows : batch;
	int64_t micro_batches = (rows + rows_up - 1) / rows_up;
	*sampler = (struct rh_sampler){.rows = rows,
	                               .batch = rows_up,
	                               .accumulation = accumulation > micro_batches ? micro_batches : accumulation,
	                               .sampling = sampling,
	                               .seed = seed,
	                               .epoch = -1};
	sampler->order = rh_alloc((size_t)rows, sizeof *sampler->order);
	if (!sampler->order) {
		rh_free(sampler);
		return -ENOMEM;
	}
	*out = sampler;
	return 0;
}

void rh_sampler_destroy(struct rh_sampler *sampler)
{
	if (!sampler)
		return;
	rh_free(sampler->order);
	rh_free(sampler);
}

static int64_t micro_batches_per_epoch(const struct rh_sampler *sampler)
{
	return (sampler->rows + sampler->batch - 1) / sampler->batch;
}

int64_t rh_sampler_steps_per_epoch(const struct rh_sampler *sampler)
{
	return (micro_batches_per_epoch(sampler) + sampler->accumulation - 1) / sampler->accumulation;
}

int64_t rh_sampler_micro_batches(const struct rh_sampler *sampler, int64_t step)
{
	RH_ASSERT(step >= 0 && step < rh_sampler_steps_per_epoch(sampler));
	int64_t left = micro_batches_per_epoch(sampler) - step * sampler->accumulation;
	return left < sampler->accumulation ? left : sampler->accumulation;
}

int64_t rh_sampler_rows(struct rh_sampler *sampler, int64_t epoch, int64_t step, int64_t micro_batch, const int64_t **rows)
{
	RH_ASSERT(epoch >= 0 && epoch <= UINT32_MAX && micro_batch >= 0 && micro_batch < rh_sampler_micro_batches(sampler, step));
	if (sampler->epoch != epoch) {
		if (sampler->sampling == RH_SAMPLING_RANDOM)
			data_shuffle(sampler->seed, RH_PHILOX_SHUFFLE, (uint32_t)epoch, sampler->order, sampler->rows);
		else
			for (int64_t i = 0; i < sampler->rows; i++)
				sampler->order[i] = i;
		sampler->epoch = epoch;
	}
	int64_t first = (step * sampler->accumulation + micro_batch) * sampler->batch;
	int64_t left = sampler->rows - first;
	*rows = sampler->order + first;
	return left < sampler->batch ? left : sampler->batch;
}
