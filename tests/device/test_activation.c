/* Activations and LayerNorm on the CPU: kernels against the oracle, and known values. */
#include "activation_case.h"

/* Around the vectors' and the tasks' sizes, in both dtypes, packed and with padded rows. */
static void each_shape(void (*check)(const struct case_shape *shape, uint64_t *seed))
{
	static const int64_t lengths[] = {1, 3, 4, 15, 16, 17, 67, 130, 576};
	uint64_t seed = check_seed();
	int index = 0;
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		for (int k = 0; k < 8; k++) {
			int64_t rows = k % 4 == 3 ? case_between(&seed, 100, 140) : case_between(&seed, 0, 9);
			struct case_shape shape = {k & 1 ? RH_BF16 : RH_F32, rows, lengths[i], k & 2 ? case_between(&seed, 1, 9) : 0,
			                           index++ / 2};
			check(&shape, &seed);
		}
	}
}

static void check_curves(const struct case_shape *s, uint64_t *seed)
{
	for (enum rh_activation act = 0; act < RH_ACTS; act++) {
		if (act != RH_ACT_TANH) {
			struct op_case glu = glu_case(act, s, seed), glu_backward = glu_backward_case(act, s, seed);
			case_check(&glu);
			case_check(&glu_backward);
		}
		if (act == RH_ACT_GPT_OSS)
			continue;
		struct op_case plain = activation_case(act, s, seed), backward = activation_backward_case(act, s, seed);
		case_check(&plain);
		case_check(&backward);
	}
}

static void test_activations_equal_the_oracle(void **state)
{
	(void)state;
	each_shape(check_curves);
}

static void check_layernorm(const struct case_shape *s, uint64_t *seed)
{
	struct op_case forward = layernorm_case(s, seed), backward = layernorm_backward_case(s, seed);
	case_check(&forward);
	case_check(&backward);
}

static void test_layernorm_equals_the_oracle(void **state)
{
	(void)state;
	each_shape(check_layernorm);
}

/* torch.nn.functional.gelu(x) and gelu(x, approximate="tanh") in float64, and gpt-oss's on gate 8 (7) and up -9 (-7). */
static void test_curves_at_known_points(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const double x[4] = {-2, -0.5, 0.5, 3}, gelu[4] = {-0.045500264, -0.154268769, 0.345731231, 2.995950306},
	                    tanh_gelu[4] = {-0.045402306, -0.154285990, 0.345714010, 2.996362608};
	struct case_shape s = {RH_F32, 1, 4, 0, 0};
	for (int i = 0; i < 2; i++) {
		struct op_case c = activation_case(i ? RH_ACT_GELU_TANH : RH_ACT_GELU, &s, &seed);
		for (int k = 0; k < 4; k++)
			case_put(c.op.operand[RH_ACTIVATION_X], 0, k, x[k]);
		rh_op_oracle(&c.op);
		for (int k = 0; k < 4; k++)
			assert_true(fabs(case_get(c.op.operand[RH_ACTIVATION_Y], 0, k) - (i ? tanh_gelu : gelu)[k]) < 1e-6);
		case_free(&c);
	}
	s.cols = 2;
	struct op_case c = glu_case(RH_ACT_GPT_OSS, &s, &seed);
	static const double gu[4] = {8, -9, 0.5, 2};
	for (int k = 0; k < 4; k++)
		case_put(c.op.operand[RH_GLU_GU], 0, k, gu[k]);
	rh_op_oracle(&c.op);
	assert_true(fabs(case_get(c.op.operand[RH_GLU_A], 0, 0) - (-41.999719)) < 1e-4);
	assert_true(fabs(case_get(c.op.operand[RH_GLU_A], 0, 1) - (1.05116531)) < 1e-6);
	case_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_activations_equal_the_oracle),
	        cmocka_unit_test(test_layernorm_equals_the_oracle),
	        cmocka_unit_test(test_curves_at_known_points),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
