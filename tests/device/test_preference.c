/* Losses over answers: values that were worked out by hand, derivatives against differences, the CPU's kernel against the oracle. */
#include "preference_case.h"

static struct rh_answer answer(double logp, double reference, double tokens)
{
	return (struct rh_answer){logp, reference, tokens, tokens};
}

static double value(enum rh_preference_loss type, double u_c, double u_r, double beta, double smoothing)
{
	const struct rh_preference is = {.beta = (float)beta, .label_smoothing = (float)smoothing};
	return rh_preference_pair(type, &is, answer(u_c - 20, -20, 4), answer(u_r - 30, -30, 5)).loss;
}

static void check_value(double found, double wanted)
{
	if (!(fabs(found - wanted) <= 1e-7 * (1 + fabs(wanted))))
		fail_msg("%.12g, not %.12g", found, wanted);
}

/* With x = beta (u_c - u_r) of 0 and of 2: logarithms and squares. */
static void test_values_worked_out_by_hand(void **state)
{
	(void)state;
	check_value(value(RH_PREFERENCE_SIGMOID, 0, 0, 0.5, 0), log(2));
	check_value(value(RH_PREFERENCE_SIGMOID, 3, -1, 0.5, 0), log1p(exp(-2)));
	check_value(value(RH_PREFERENCE_HINGE, 1, 0, 0.5, 0), 0.5);
	check_value(value(RH_PREFERENCE_HINGE, 3, -1, 0.5, 0), 0);
	check_value(value(RH_PREFERENCE_IPO, 8, 5, 0.25, 0), 1); /* (8/4 - 5/5 - 2)^2 */
	check_value(value(RH_PREFERENCE_SIGMOID_NORM, 8, 5, 0.5, 0), log1p(exp(-0.5)));
	check_value(value(RH_PREFERENCE_ROBUST, 0, 0, 0.5, 0.25), log(2));
	check_value(value(RH_PREFERENCE_EXO_PAIR, 0, 0, 0.5, 0.25), 0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25));
	check_value(value(RH_PREFERENCE_APO_ZERO, 0, 0, 0.5, 0), 1);
	check_value(value(RH_PREFERENCE_APO_DOWN, 0, 0, 0.5, 0), 1);
	check_value(value(RH_PREFERENCE_NCA_PAIR, 0, 0, 0.5, 0), 2 * log(2));
	check_value(value(RH_PREFERENCE_BCO_PAIR, 0, 0, 0.5, 0), 2 * log(2));
	check_value(value(RH_PREFERENCE_SPPO_HARD, 2, -3, 0.5, 0), 5); /* (2 - 1)^2 + (-3 + 1)^2 */
	const struct rh_preference simpo = {.beta = 2, .simpo_gamma = 1};
	check_value(rh_preference_pair(RH_PREFERENCE_SIMPO, &simpo, answer(-4, 0, 4), answer(-10, 0, 5)).loss, log1p(exp(-1)));
	const struct rh_preference orpo = {.beta = 0.5F};
	double odds = 1 / (exp(1) - 1) / (1 / (exp(2) - 1)); /* of means of -1 and -2 */
	check_value(rh_preference_pair(RH_PREFERENCE_ORPO, &orpo, answer(-4, 0, 4), answer(-10, 0, 5)).loss, 0.5 * log1p(1 / odds));
	/* an answer that is certain in fp32: its odds are finite, and it has a gradient */
	struct rh_slopes certain = rh_preference_pair(RH_PREFERENCE_ORPO, &orpo, answer(0, 0, 4), answer(-10, 0, 5));
	assert_true(certain.loss >= 0 && certain.loss < 1e-8 && isfinite(certain.chosen) && isfinite(certain.rejected));
	certain = rh_preference_pair(RH_PREFERENCE_ORPO, &orpo, answer(-4, 0, 4), answer(0, 0, 5));
	assert_true(certain.loss > 1 && isfinite(certain.chosen) && isfinite(certain.rejected));
	const struct rh_preference kto = {.beta = 0.5F, .desirable_weight = 3, .undesirable_weight = 5};
	check_value(rh_preference_single(RH_PREFERENCE_KTO, &kto, answer(-20, -22, 4), 1, 2).loss, 1.5);
	check_value(rh_preference_single(RH_PREFERENCE_KTO, &kto, answer(-20, -24, 4), 0, 2).loss, 5 / (1 + exp(-1)));
	check_value(rh_preference_single(RH_PREFERENCE_APO_ZERO_UNPAIRED, &kto, answer(-20, -20, 4), 0, 2).loss, 2.5);
}

static double differ(enum rh_preference_loss type, const struct rh_preference *is, struct rh_answer c, struct rh_answer r, int of_chosen)
{
	double step = 1e-5, side[2];
	for (int i = 0; i < 2; i++) {
		struct rh_answer at[2] = {c, r};
		at[!of_chosen].logp += i ? step : -step;
		side[i] = type >= RH_PREFERENCE_KTO ? rh_preference_single(type, is, at[0], r.tokens > 5, 0.7).loss
		                                    : rh_preference_pair(type, is, at[0], at[1]).loss;
	}
	return (side[1] - side[0]) / (2 * step);
}

static void test_derivatives_equal_differences(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int round = 0; round < 200; round++)
		for (int t = 0; t < RH_PREFERENCE_LOSSES; t++) {
			enum rh_preference_loss type = (enum rh_preference_loss)t;
			const struct rh_preference is = preference_of(type, 0);
			struct rh_answer a[2];
			for (int i = 0; i < 2; i++) {
				double tokens = (double)case_between(&seed, 1, 12);
				a[i] = (struct rh_answer){-tokens * (0.2 + (double)case_between(&seed, 0, 100) / 50), 0, tokens + 1,
				                          tokens};
				a[i].reference = a[i].logp + (double)case_between(&seed, -60, 60) / 13;
			}
			struct rh_slopes own = type >= RH_PREFERENCE_KTO ? rh_preference_single(type, &is, a[0], a[1].tokens > 5, 0.7)
			                                                 : rh_preference_pair(type, &is, a[0], a[1]);
			double apart = fabs(1 - (double)is.beta * (a[0].logp - a[0].reference - a[1].logp + a[1].reference));
			if (type == RH_PREFERENCE_HINGE && apart < 1e-4) /* at its corner */
				continue;
			double chosen = differ(type, &is, a[0], a[1], 1), rejected = differ(type, &is, a[0], a[1], 0);
			if (fabs(own.chosen - chosen) > 1e-6 * (1 + fabs(chosen)) ||
			    fabs(own.rejected - rejected) > 1e-6 * (1 + fabs(rejected)))
				fail_msg("loss %d: slopes %.9g %.9g, differences %.9g %.9g", t, own.chosen, own.rejected, chosen, rejected);
		}
}

static void test_kernel_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const int64_t lengths[] = {1, 7, 33, 130};
	int index = 0;
	for (int t = 0; t < RH_PREFERENCE_LOSSES; t++)
		for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
			for (int pad = 0; pad < 2; pad++, index++) {
				const struct case_shape shape = {pad ? RH_BF16 : RH_F32, lengths[l], lengths[(l + 1) % 4], pad * 3, index};
				struct op_case c = preference_case(&shape, (enum rh_preference_loss)t, &seed);
				case_check(&c);
			}
}

/* A mean over the chosen answers' tokens does not depend on how they are spread over documents. */
static void test_weights_of_cross_entropies_add_up(void **state)
{
	(void)state;
	const struct rh_preference is = {.weight = {[RH_PREFERENCE_SFT] = 0.5F}, .answers = 2};
	const int32_t span[4][RH_SPANS] = {{0, 0, 3, RH_ROLE_CHOSEN}, {3, 3, 2, 0}, {5, 5, 5, RH_ROLE_CHOSEN}, {10, 10, 1, 0}};
	const float reference[4] = {0}, sum[4][2] = {{0}};
	const struct rh_judged batch = {&span[0][0], reference, &sum[0][0], 4, 11};
	double token = rh_judged_nll_slope(&batch, &is), all = 0;
	for (int64_t d = 0; d < 4; d++)
		all += (double)rh_judged_weights(&batch, &is, d, 0, token).answer * (double)(rh_judged_end(&batch, d) - span[d][0]);
	check_value(all, 0.5 * 2); /* the weight, times the rows */
	check_value((double)rh_judged_weights(&batch, &is, 1, 0, token).answer, 0);
}

/* KTO's estimate is of mismatched documents alone, and never below 0. */
static void test_divergence_is_a_mean_over_mismatched_documents(void **state)
{
	(void)state;
	const int32_t span[4][RH_SPANS] = {
	        {0, 0, 2, RH_ROLE_CHOSEN}, {2, 2, 2, RH_ROLE_MISMATCHED}, {4, 4, 2, 0}, {6, 6, 2, RH_ROLE_MISMATCHED}};
	const float reference[4] = {-50, -10, -50, -20}, sum[4][2] = {{1, 1}, {7, 7}, {1, 1}, {19, 19}};
	const struct rh_judged batch = {&span[0][0], reference, &sum[0][0], 4, 8};
	check_value(rh_judged_divergence(&batch), 2); /* (3 + 1) / 2 */
	const float nearer[4] = {0, 0, 0, 0};
	const struct rh_judged below = {&span[0][0], nearer, &sum[0][0], 4, 8};
	check_value(rh_judged_divergence(&below), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_values_worked_out_by_hand),
	        cmocka_unit_test(test_derivatives_equal_differences),
	        cmocka_unit_test(test_kernel_equals_the_oracle),
	        cmocka_unit_test(test_divergence_is_a_mean_over_mismatched_documents),
	        cmocka_unit_test(test_weights_of_cross_entropies_add_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
