/* DoRA's ops on CPUs; and that its whole is the derivative where norms are constants. */
#include "dora_case.h"

static void run_check(struct op_case *c, uint64_t *seed)
{
	(void)seed;
	case_check(c);
}

static void test_dora_ops_equal_the_oracle(void **state)
{
	(void)state;
	dora_each(run_check);
}

/* Rows of w + scale b a times g have the magnitudes as norms. */
static void test_scaled_rows_have_the_magnitudes_as_norms(void **state)
{
	(void)state;
	enum { OUT = 12, IN = 40, R = 3 };
	uint64_t seed = check_seed();
	struct op_case c = {.seed = &seed, .op = {.kind = RH_OP_DORA_NORM, .lora = {.out = {OUT}, .scale = {0.7f}}}};
	struct rh_view w = case_operand(&c, RH_DORA_NORM_W, RH_F32, OUT, IN, 0, FILL_RANDOM);
	struct rh_view a = case_operand(&c, RH_DORA_NORM_AS, RH_F32, R, IN, 0, FILL_RANDOM);
	struct rh_view b = case_operand(&c, RH_DORA_NORM_BS, RH_F32, OUT, R, 0, FILL_RANDOM);
	struct rh_view m = case_operand(&c, RH_DORA_NORM_MS, RH_F32, 1, OUT, 0, FILL_RANDOM);
	struct rh_view g = case_operand(&c, RH_DORA_NORM_G, RH_F32, OUT, 2, 0, FILL_POISON);
	case_run(&c, rh_cpu_best_isa(), 1);
	for (int o = 0; o < OUT; o++) {
		double squares = 0;
		for (int i = 0; i < IN; i++) {
			double value = case_get(w, o, i);
			for (int k = 0; k < R; k++)
				value += (double)0.7f * case_get(b, o, k) * case_get(a, k, i);
			squares += value * value * case_get(g, o, 0) * case_get(g, o, 0);
		}
		check_near(sqrt(squares), fabs(case_get(m, 0, o)), 1e-5);
		check_near(case_get(g, o, 1) * case_get(m, 0, o), case_get(g, o, 0), 1e-6);
	}
	case_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_dora_ops_equal_the_oracle),
	        cmocka_unit_test(test_scaled_rows_have_the_magnitudes_as_norms),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
