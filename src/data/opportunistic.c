#include "data/opportunistic.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "core/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The quantiles between the pools. */
static const double easy_quantile = 0.3, hard_quantile = 0.7;

/* The paper's: keeps the slope's denominator above 0. */
static const double epsilon = 1e-8;

enum pool { POOL_DIVERSITY, POOL_EASY, POOL_HARD, POOLS };

/* A sample that may be drawn: a larger priority goes first, then a smaller key. */
struct candidate {
	double priority;
	uint64_t key;
	int64_t sample;
};

struct rh_opportunistic {
	int64_t samples;
	struct rh_opportunistic_options options;
	struct rh_sample_history *history; /* (samples) */
	uint8_t *may_be_drawn;             /* (samples) */
	struct candidate *candidate;       /* (samples) of the present draw */
	float *last;                       /* (samples) scores, to be sorted */
	double threshold[2];               /* of the present draw: easy below the first, hard above the second */
	int has_thresholds;
};

int64_t rh_opportunistic_bytes(int64_t samples)
{
	return samples * (int64_t)(sizeof(struct rh_sample_history) + 1 + sizeof(struct candidate) + sizeof(float));
}

int rh_opportunistic_create(int64_t samples, const struct rh_opportunistic_options *options, struct rh_opportunistic **out)
{
	RH_ASSERT(samples > 0 && options->sampler != RH_OPPORTUNISTIC_NONE);
	struct rh_opportunistic *made = rh_alloc(1, sizeof *made);
	if (!made)
		return -ENOMEM;
	*made = (struct rh_opportunistic){.samples = samples, .options = *options};
	made->history = rh_alloc((size_t)samples, sizeof *made->history);
	made->may_be_drawn = rh_alloc((size_t)samples, 1);
	made->candidate = rh_alloc((size_t)samples, sizeof *made->candidate);
	made->last = rh_alloc((size_t)samples, sizeof *made->last);
	if (!made->history || !made->may_be_drawn || !made->candidate || !made->last) {
		rh_opportunistic_free(made);
		return -ENOMEM;
	}
	memset(made->may_be_drawn, 1, (size_t)samples);
	*out = made;
	return 0;
}

void rh_opportunistic_free(struct rh_opportunistic *all)
{
	if (!all)
		return;
	rh_free(all->history);
	rh_free(all->may_be_drawn);
	rh_free(all->candidate);
	rh_free(all->last);
	rh_free(all);
}

void rh_opportunistic_record(struct rh_opportunistic *all, int64_t sample, float task, float distillation)
{
	RH_ASSERT(sample >= 0 && sample < all->samples);
	struct rh_sample_history *history = &all->history[sample];
	if (history->scores == RH_SCORES)
		memmove(history->score, history->score + 1, (RH_SCORES - 1) * sizeof *history->score);
	history->scores = history->scores < RH_SCORES ? history->scores + 1 : RH_SCORES;
	history->score[history->scores - 1] =
	        (float)(all->options.task_weight * (double)task + all->options.distillation_weight * (double)distillation);
	history->task = task;
	history->distillation = distillation;
}

void rh_opportunistic_allow_none(struct rh_opportunistic *all)
{
	memset(all->may_be_drawn, 0, (size_t)all->samples);
}

void rh_opportunistic_allow(struct rh_opportunistic *all, int64_t sample, int may)
{
	RH_ASSERT(sample >= 0 && sample < all->samples);
	all->may_be_drawn[sample] = may != 0;
}

struct rh_sample_history *rh_opportunistic_history(struct rh_opportunistic *all)
{
	return all->history;
}

/* The scores' mean falls out of the numerator, as the k - middle add up to 0; so equal scores have a slope of exactly 0. */
double rh_score_slope(const float *score, int count)
{
	double middle = (count - 1) / 2.0, above = 0, below = epsilon;
	if (count < 2)
		return 0;
	for (int k = 0; k < count; k++) {
		above += (k - middle) * (double)score[k];
		below += (k - middle) * (k - middle);
	}
	return above / below;
}

static int compare_floats(const void *left, const void *right)
{
	float a = *(const float *)left, b = *(const float *)right;
	return (a > b) - (a < b);
}

double rh_quantile(float *value, int64_t count, double share)
{
	RH_ASSERT(count > 0 && share >= 0 && share <= 1);
	qsort(value, (size_t)count, sizeof *value, compare_floats);
	double place = share * (double)(count - 1);
	int64_t below = (int64_t)place, above = rh_min(below + 1, count - 1);
	return (double)value[below] + (place - (double)below) * ((double)value[above] - (double)value[below]);
}

static double slope_of(const struct rh_sample_history *history)
{
	return rh_score_slope(history->score, history->scores);
}

/* The thresholds over all samples that have a score, whether or not they may be drawn. */
static void find_thresholds(struct rh_opportunistic *all, int64_t count)
{
	int64_t scored = 0;
	for (int64_t i = 0; i < all->samples; i++)
		if (all->history[i].scores)
			all->last[scored++] = all->history[i].score[all->history[i].scores - 1];
	all->has_thresholds = scored >= count;
	if (!all->has_thresholds)
		return;
	all->threshold[0] = rh_quantile(all->last, scored, easy_quantile);
	all->threshold[1] = rh_quantile(all->last, scored, hard_quantile);
}

static enum pool pool_of(const struct rh_opportunistic *all, const struct rh_sample_history *history)
{
	if (!all->has_thresholds || !history->scores)
		return POOL_DIVERSITY;
	double last = (double)history->score[history->scores - 1], slope = slope_of(history);
	if (last < all->threshold[0] && slope <= 0)
		return POOL_EASY;
	return last > all->threshold[1] || slope > 0 ? POOL_HARD : POOL_DIVERSITY;
}

static double priority_of(const struct rh_opportunistic *all, const struct rh_sample_history *history)
{
	switch (all->options.sampler) {
	case RH_OPPORTUNISTIC_DIFFICULTY:
		return slope_of(history);
	case RH_OPPORTUNISTIC_EH_DIFFICULTY:
		return -(double)pool_of(all, history); /* so that the pools follow one another */
	case RH_OPPORTUNISTIC_TASK_LOSS:
		return (double)history->task;
	case RH_OPPORTUNISTIC_DISTILLATION_LOSS:
		return (double)history->distillation;
	case RH_OPPORTUNISTIC_NONE:
	case RH_OPPORTUNISTIC_RANDOM:
		break;
	}
	return 0;
}

static int compare_candidates(const void *left, const void *right)
{
	const struct candidate *a = left, *b = right;
	if (a->priority != b->priority)
		return a->priority > b->priority ? -1 : 1;
	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return (a->sample > b->sample) - (a->sample < b->sample);
}

/* So many of `count`, whole: of ten 0.3 is 3, however 0.3 is rounded. */
static int64_t whole_share(int64_t count, double share)
{
	return (int64_t)(share * (double)count + epsilon);
}

/* How many of each pool, of which so many may be drawn. */
static void share_out(const struct rh_opportunistic_options *options, const int64_t size[POOLS], int64_t count, int64_t take[POOLS])
{
	int64_t missing = count;
	take[POOL_EASY] = rh_min(whole_share(count, options->easy_share), size[POOL_EASY]);
	take[POOL_HARD] = rh_min(whole_share(count, options->hard_share), size[POOL_HARD]);
	take[POOL_DIVERSITY] = 0;
	for (int pool = 0; pool < POOLS; pool++)
		missing -= take[pool];
	for (int pool = 0; pool < POOLS; pool++) { /* the order in which they fill what is missing */
		int64_t more = rh_min(missing, size[pool] - take[pool]);
		take[pool] += more;
		missing -= more;
	}
}

static int64_t draw_from_pools(const struct rh_opportunistic *all, int64_t candidates, int64_t count, int64_t *sample)
{
	int64_t size[POOLS] = {0}, take[POOLS], first = 0, drawn = 0;
	for (int64_t i = 0; i < candidates; i++)
		size[-(int)all->candidate[i].priority]++;
	share_out(&all->options, size, count, take);
	for (int pool = 0; pool < POOLS; first += size[pool++])
		for (int64_t i = 0; i < take[pool]; i++)
			sample[drawn++] = all->candidate[first + i].sample;
	return drawn;
}

int64_t rh_opportunistic_draw(struct rh_opportunistic *all, uint64_t draw, int64_t count, int64_t *sample)
{
	int64_t candidates = 0;
	if (all->options.sampler == RH_OPPORTUNISTIC_EH_DIFFICULTY)
		find_thresholds(all, count);
	for (int64_t i = 0; i < all->samples; i++) {
		if (!all->may_be_drawn[i])
			continue;
		struct rh_philox_block block =
		        rh_philox(all->options.seed, (uint32_t)i, (uint32_t)draw, (uint32_t)(draw >> 32), RH_PHILOX_OPPORTUNISTIC);
		all->candidate[candidates++] = (struct candidate){
		        .priority = priority_of(all, &all->history[i]), .key = (uint64_t)block.word[0] << 32 | block.word[1], .sample = i};
	}
	qsort(all->candidate, (size_t)candidates, sizeof *all->candidate, compare_candidates);
	count = rh_min(count, candidates);
	if (all->options.sampler == RH_OPPORTUNISTIC_EH_DIFFICULTY)
		return draw_from_pools(all, candidates, count, sample);
	for (int64_t i = 0; i < count; i++)
		sample[i] = all->candidate[i].sample;
	return count;
}
