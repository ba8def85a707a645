/* HEAD_LOSS with a teacher: the oracle against closed forms and finite differences, the CPU's kernel against the oracle. */
#include "distil_case.h"

static struct op_case make(enum rh_dtype act, int64_t outputs, float temperature, enum rh_divergence divergence, uint64_t *seed)
{
	struct op_case c = without_teacher(act, outputs, temperature, divergence, seed);
	hide_unread_row(case_operand(&c, RH_HEAD_LOSS_TEACHER, RH_F32, ROWS, outputs, 2, FILL_RANDOM));
	return c;
}

static void test_gradients_are_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const float temperatures[] = {0.5f, 1, 3};
	for (int i = 0; i < 6; i++)
		check_gradients(make(RH_F32, 9, temperatures[i / 2], (enum rh_divergence)(i % 2), &seed), 9);
}

/* Shares of 1/4 and 3/4 taught by 1/2 and 1/2: the divergences are sums of logarithms, and a temperature of T on T times the logits has
 * T^2 times the loss and T times the gradient. */
static void test_two_outputs_have_their_closed_form(void **state)
{
	(void)state;
	const double forward = 0.5 * log(2) + 0.5 * log(2.0 / 3), reverse = 0.25 * log(0.5) + 0.75 * log(1.5);
	const double slopes[2] = {0.25 - 0.5, 0.25 * (log(0.5) - reverse)}; /* by the first logit */
	for (int which = 0; which < 2; which++)
		for (int degrees = 1; degrees <= 2; degrees++) {
			float h = 1, w[2] = {0, (float)(degrees * log(3))}, logits[2], teacher[2] = {7, 7}, mix[2] = {0, 1}, loss,
			      bias[2] = {0};
			int32_t target = 0, hit;
			struct rh_op op = {.kind = RH_OP_HEAD_LOSS, .head_loss.scale = 1};
			op.head_loss.temperature = (float)degrees;
			op.head_loss.divergence = (enum rh_divergence)which;
			op.operand[RH_HEAD_LOSS_H] = rh_view_of(&h, RH_F32, 1, 1);
			op.operand[RH_HEAD_LOSS_W] = rh_view_of(w, RH_F32, 2, 1);
			op.operand[RH_HEAD_LOSS_TARGET] = rh_view_of(&target, RH_I32, 1, 1);
			op.operand[RH_HEAD_LOSS_LOGITS] = rh_view_of(logits, RH_F32, 1, 2);
			op.operand[RH_HEAD_LOSS_LOSS] = rh_view_of(&loss, RH_F32, 1, 1);
			op.operand[RH_HEAD_LOSS_HIT] = rh_view_of(&hit, RH_I32, 1, 1);
			op.operand[RH_HEAD_LOSS_DBIAS] = rh_view_of(bias, RH_F32, 1, 2);
			op.operand[RH_HEAD_LOSS_TEACHER] = rh_view_of(teacher, RH_F32, 1, 2);
			op.operand[RH_HEAD_LOSS_MIX] = rh_view_of(mix, RH_F32, 1, 2);
			rh_op_oracle(&op);
			check_near((double)loss, (which ? reverse : forward) * degrees * degrees, 1e-6);
			check_near((double)bias[0], slopes[which] * degrees, 1e-6);
			check_near((double)(bias[0] + bias[1]), 0.0, 1e-6);
		}
}

static void test_the_cpu_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const int64_t outputs[] = {1, 2, 10, 33, 130};
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++)
		for (int i = 0; i < 20; i++) {
			enum rh_dtype act = i & 1 ? RH_BF16 : RH_F32;
			int64_t cols = outputs[i % 5];
			struct op_case c = make(act, cols, i % 3 ? 2.5f : 1, (enum rh_divergence)(i / 2 % 2), &seed);
			if (i / 4 % 2)
				add_gradients(&c, cols, act);
			double rounding = act == RH_BF16 ? 0x1p-7 : 0x1p-20;
			c.tolerance[RH_HEAD_LOSS_LOSS] = 1e-5;
			c.tolerance[RH_HEAD_LOSS_DH] = c.tolerance[RH_HEAD_LOSS_DBIAS] = c.tolerance[RH_HEAD_LOSS_DW] = rounding;
			check_but_logits(&c, isa);
		}
}

/* Where no divergence counts, a teacher changes no bit. */
static void test_a_weight_of_0_changes_no_bit(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct op_case with = make(bf16 ? RH_BF16 : RH_F32, 37, 2, RH_DIVERGENCE_FORWARD, &seed);
		add_gradients(&with, 37, bf16 ? RH_BF16 : RH_F32);
		for (int64_t i = 0; i < ROWS; i++) {
			case_put(with.op.operand[RH_HEAD_LOSS_MIX], i, 0, 1);
			case_put(with.op.operand[RH_HEAD_LOSS_MIX], i, 1, 0);
		}
		struct op_case without = case_clone(&with);
		without.op.operand[RH_HEAD_LOSS_TEACHER] = without.op.operand[RH_HEAD_LOSS_MIX] = (struct rh_view){0};
		case_run(&with, rh_cpu_best_isa(), 2);
		case_run(&without, rh_cpu_best_isa(), 2);
		for (int i = 0; i < RH_HEAD_LOSS_TEACHER; i++)
			assert_memory_equal(with.buffer[i].bytes, without.buffer[i].bytes, with.buffer[i].size);
		case_free(&with);
		case_free(&without);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gradients_are_the_derivative),
	        cmocka_unit_test(test_two_outputs_have_their_closed_form),
	        cmocka_unit_test(test_the_cpu_equals_the_oracle),
	        cmocka_unit_test(test_a_weight_of_0_changes_no_bit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
