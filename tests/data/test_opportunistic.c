/* Which samples opportunistic steps train on, against least squares and quantiles that are computed here by other formulas from all losses
 * ever recorded, and against numpy's polyfit and quantile. */
#include "check.h"

#include "core/philox.h"
#include "data/opportunistic.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 97, RECORDS_MOST = 12, BATCH_MOST = 40 };

/* All that was recorded of a sample, in eighths, so that sums are exact. */
struct past {
	double task[RECORDS_MOST], distillation[RECORDS_MOST];
	int records, may_be_drawn;
};

static uint32_t drawn_word(uint64_t seed, uint32_t a, uint32_t b)
{
	return rh_philox(seed, a, b, 0, 1000).word[0];
}

static void test_slope_equals_numpy(void **state)
{
	(void)state;
	static const struct {
		int count;
		float score[RH_SCORES];
		double slope; /* numpy.polyfit(range(count), score, 1)[0] */
	} cases[] = {{1, {3}, 0},
	             {2, {0.001f, 0.299f}, 0.297999995},
	             {3, {-0.274f, -0.891f, -0.455f}, -0.090500012},
	             {4, {-0.992f, 0.06f, 1.34f, -0.492f}, 0.277999995},
	             {5, {-0.62f, 0.49f, 0.357f, 0.105f, -0.93f}, -0.100500002},
	             {5, {0.1f, 0.1f, 0.1f, 0.1f, 0.1f}, 0}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_near(rh_score_slope(cases[i].score, cases[i].count), cases[i].slope, 1e-8);
	assert_true(rh_score_slope(cases[5].score, 5) == 0);
}

static void test_quantile_equals_numpy(void **state)
{
	(void)state;
	static const struct {
		int count;
		float value[11];
		double low, high; /* numpy.quantile(value, 0.3), and 0.7 */
	} cases[] = {{1, {-0.03f}, -0.029999999, -0.029999999},
	             {2, {0.7f, -1.34f}, -0.728000027, 0.087999982},
	             {3, {-0.46f, -1.9f, -1.29f}, -1.533999968, -0.957999980},
	             {7, {-1.84f, -0.24f, -1.27f, 0.27f, 0.16f, -0.19f, -2.52f}, -1.383999991, -0.119999999},
	             {10, {-0.54f, -0.05f, 0.11f, -1.53f, -0.48f, -0.98f, -0.81f, 1.06f, -0.81f, -0.03f}, -0.810000002, -0.044},
	             {11, {0.88f, -0.58f, -0.11f, 0.11f, 0.06f, -1.23f, 0.08f, 1.36f, -1.55f, 0.86f, 0.12f}, -0.109999999, 0.119999997}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		float value[11];
		memcpy(value, cases[i].value, sizeof value);
		check_near(rh_quantile(value, cases[i].count, 0.3), cases[i].low, 1e-8);
		check_near(rh_quantile(value, cases[i].count, 0.7), cases[i].high, 1e-8);
	}
}

/* ---- the samplers against all that was recorded ---- */

/* Weights and shares as by default, and others, whose products are exact. */
static const struct rh_opportunistic_options defaults = {.task_weight = 1, .distillation_weight = 1, .easy_share = 0.3, .hard_share = 0.3},
                                             others = {.task_weight = -0.5, .distillation_weight = 2, .easy_share = 0.2, .hard_share = 0.5};
static const struct rh_opportunistic_options *now = &defaults;

static int create(int64_t samples, enum rh_opportunistic_sampler sampler, uint64_t seed, struct rh_opportunistic **out)
{
	struct rh_opportunistic_options options = *now;
	options.sampler = sampler;
	options.seed = seed;
	return rh_opportunistic_create(samples, &options, out);
}

static double score_of(const struct past *past, int record)
{
	return now->task_weight * past->task[record] + now->distillation_weight * past->distillation[record];
}

/* By the normal equations, over the last five records. */
static double slope_of(const struct past *past)
{
	int first = past->records > 5 ? past->records - 5 : 0, n = past->records - first;
	double x = 0, y = 0, xx = 0, xy = 0;
	if (n < 2)
		return 0;
	for (int r = first; r < past->records; r++) {
		x += r;
		y += score_of(past, r);
		xx += r * r;
		xy += r * score_of(past, r);
	}
	return (n * xy - x * y) / (n * xx - x * x);
}

/* The value at place `share` * (n - 1) of all samples' last scores, found by counting; between two places by their distances. */
static double quantile_of(const struct past *past, double share)
{
	double last[SAMPLES], out = 0;
	int n = 0;
	for (int i = 0; i < SAMPLES; i++)
		if (past[i].records)
			last[n++] = score_of(&past[i], past[i].records - 1);
	for (int i = 0; i < n; i++) {
		int place = 0;
		for (int j = 0; j < n; j++)
			place += last[j] < last[i] || (last[j] == last[i] && j < i);
		double apart = fabs(share * (n - 1) - place);
		out += apart < 1 ? (1 - apart) * last[i] : 0;
	}
	return out;
}

enum { EASY, HARD, DIVERSITY };

static int pool_of(const struct past *past, const double threshold[2])
{
	double last = past->records ? score_of(past, past->records - 1) : 0, slope = slope_of(past);
	if (!past->records || isnan(threshold[0]))
		return DIVERSITY;
	if (last < threshold[0] && slope <= 0)
		return EASY;
	return last > threshold[1] || slope > 0 ? HARD : DIVERSITY;
}

static double value_of(const struct past *past, enum rh_opportunistic_sampler sampler)
{
	if (sampler == RH_OPPORTUNISTIC_DIFFICULTY)
		return slope_of(past);
	if (!past->records)
		return 0;
	return sampler == RH_OPPORTUNISTIC_TASK_LOSS           ? past->task[past->records - 1]
	       : sampler == RH_OPPORTUNISTIC_DISTILLATION_LOSS ? past->distillation[past->records - 1]
	                                                       : 0;
}

/* Nothing that was left has a larger value than what was drawn. */
static void check_order(const struct past *past, enum rh_opportunistic_sampler sampler, const int *is_drawn)
{
	double least = INFINITY, most_left = -INFINITY;
	for (int i = 0; i < SAMPLES; i++) {
		double value = value_of(&past[i], sampler);
		if (is_drawn[i])
			least = fmin(least, value);
		else if (past[i].may_be_drawn)
			most_left = fmax(most_left, value);
	}
	assert_true(least >= most_left - 1e-6);
}

/* Of ten three are easy, three hard, or two and five; the rest from diversity; what a pool lacks from diversity, easy, hard. */
static void check_pools(const struct past *past, const int *is_drawn, int count)
{
	const double threshold[2] = {quantile_of(past, 0.3), quantile_of(past, 0.7)}, none[2] = {NAN, NAN};
	int scored = 0, size[3] = {0}, drawn[3] = {0},
	    want[3] = {count * (now == &others ? 2 : 3) / 10, count * (now == &others ? 5 : 3) / 10, 0};
	for (int i = 0; i < SAMPLES; i++)
		scored += past[i].records > 0;
	for (int i = 0; i < SAMPLES; i++) {
		int pool = pool_of(&past[i], scored >= count ? threshold : none);
		size[pool] += past[i].may_be_drawn;
		drawn[pool] += is_drawn[i];
	}
	for (int pool = 0; pool < 2; pool++)
		want[pool] = want[pool] < size[pool] ? want[pool] : size[pool];
	while (want[EASY] + want[HARD] + want[DIVERSITY] < count)
		want[want[DIVERSITY] < size[DIVERSITY] ? DIVERSITY : want[EASY] < size[EASY] ? EASY : HARD]++;
	for (int pool = 0; pool < 3; pool++)
		assert_int_equal(drawn[pool], want[pool]);
}

static void check_draw(struct rh_opportunistic *all, const struct past *past, enum rh_opportunistic_sampler sampler, uint64_t draw,
                       int count)
{
	int64_t sample[BATCH_MOST], again[BATCH_MOST];
	int is_drawn[SAMPLES] = {0}, allowed = 0;
	for (int i = 0; i < SAMPLES; i++)
		allowed += past[i].may_be_drawn;
	int64_t drawn = rh_opportunistic_draw(all, draw, count, sample);
	assert_int_equal(drawn, count < allowed ? count : allowed);
	for (int64_t i = 0; i < drawn; i++) {
		assert_true(past[sample[i]].may_be_drawn && !is_drawn[sample[i]]);
		is_drawn[sample[i]] = 1;
	}
	assert_int_equal(rh_opportunistic_draw(all, draw, count, again), drawn);
	assert_memory_equal(sample, again, (size_t)drawn * sizeof *sample);
	if (sampler == RH_OPPORTUNISTIC_EH_DIFFICULTY)
		check_pools(past, is_drawn, (int)drawn);
	else
		check_order(past, sampler, is_drawn);
}

static void record_some(struct rh_opportunistic *all, struct past *past, uint64_t seed, uint32_t round)
{
	for (uint32_t i = 0; i < SAMPLES; i++) {
		uint32_t word = drawn_word(seed, i, round);
		struct past *one = &past[i];
		if (word % 3 && one->records < RECORDS_MOST) {
			one->task[one->records] = (word >> 8 & 31) / 8.0;
			one->distillation[one->records] = (word >> 16 & 15) / 8.0;
			rh_opportunistic_record(all, i, (float)one->task[one->records], (float)one->distillation[one->records]);
			one->records++;
		}
		one->may_be_drawn = round % 4 ? (word >> 24) % 4 != 0 : (word >> 24) % 8 == 0; /* now and then few are left */
	}
	rh_opportunistic_allow_none(all);
	for (int i = 0; i < SAMPLES; i++)
		if (past[i].may_be_drawn)
			rh_opportunistic_allow(all, i, 1);
}

static void test_draws_equal_brute_force(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 2 * RH_OPPORTUNISTIC_DISTILLATION_LOSS; i++) {
		int sampler = RH_OPPORTUNISTIC_RANDOM + i / 2;
		now = i % 2 ? &others : &defaults;
		static struct past past[SAMPLES];
		struct rh_opportunistic *all;
		memset(past, 0, sizeof past);
		check_ok(create(SAMPLES, (enum rh_opportunistic_sampler)sampler, seed, &all));
		for (uint32_t round = 0; round < 16; round++) {
			record_some(all, past, seed + (uint64_t)sampler, round);
			for (int count = 1; count <= BATCH_MOST; count += 3)
				check_draw(all, past, (enum rh_opportunistic_sampler)sampler, round * 100 + (uint64_t)count, count);
		}
		rh_opportunistic_free(all);
	}
	now = &defaults;
}

static void test_random_draws_are_uniform(void **state)
{
	(void)state;
	enum { FEW = 11, COUNT = 4, DRAWS = 6000 };
	struct rh_opportunistic *all;
	int64_t sample[COUNT];
	double times[FEW] = {0}, chi = 0, expected = (double)DRAWS * COUNT / FEW;
	check_ok(create(FEW, RH_OPPORTUNISTIC_RANDOM, check_seed(), &all));
	for (uint64_t draw = 0; draw < DRAWS; draw++)
		for (int64_t i = rh_opportunistic_draw(all, draw << 32 | 7, COUNT, sample); i--;)
			times[sample[i]]++;
	for (int i = 0; i < FEW; i++)
		chi += (times[i] - expected) * (times[i] - expected) / expected;
	assert_true(chi < 40); /* 10 degrees of freedom, fewer for draws without repetition */
	rh_opportunistic_free(all);
}

/* A checkpoint's history in another run makes the same draws; where none may be drawn, none is. */
static void test_history_makes_the_draw(void **state)
{
	(void)state;
	static struct past past[SAMPLES];
	uint64_t seed = check_seed();
	struct rh_opportunistic *one, *other;
	int64_t sample[BATCH_MOST], again[BATCH_MOST];
	memset(past, 0, sizeof past);
	check_ok(create(SAMPLES, RH_OPPORTUNISTIC_EH_DIFFICULTY, seed, &one));
	check_ok(create(SAMPLES, RH_OPPORTUNISTIC_EH_DIFFICULTY, seed, &other));
	for (uint32_t round = 0; round < 8; round++)
		record_some(one, past, seed, round);
	for (int i = 0; i < SAMPLES; i++) {
		rh_opportunistic_allow(one, i, 1);
		rh_opportunistic_history(other)[i] = rh_opportunistic_history(one)[i];
	}
	assert_int_equal(rh_opportunistic_draw(one, 5, BATCH_MOST, sample), BATCH_MOST);
	assert_int_equal(rh_opportunistic_draw(other, 5, BATCH_MOST, again), BATCH_MOST);
	assert_memory_equal(sample, again, sizeof sample);
	assert_int_equal(rh_opportunistic_draw(other, 6, BATCH_MOST, again), BATCH_MOST);
	assert_memory_not_equal(sample, again, sizeof sample);
	rh_opportunistic_allow_none(one);
	assert_int_equal(rh_opportunistic_draw(one, 5, BATCH_MOST, sample), 0);
	rh_opportunistic_free(one);
	rh_opportunistic_free(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_slope_equals_numpy),      cmocka_unit_test(test_quantile_equals_numpy),
	        cmocka_unit_test(test_draws_equal_brute_force), cmocka_unit_test(test_random_draws_are_uniform),
	        cmocka_unit_test(test_history_makes_the_draw),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
