/* The two losses of distillation, each by itself, are what HEAD_LOSS adds up: against its oracle, whose head is the identity. */
#include "check.h"

#include "core/philox.h"
#include "device/op.h"
#include "modes/fluidpipe/distillation.h"

#include <string.h>

enum { OUTPUTS = 7, ROWS = 12 };

/* Of rows whose logits are `student`. */
static void oracle(const struct rh_distillation *how, float *student, float *teacher, int32_t *target, float *mix, float *loss)
{
	static float identity[OUTPUTS * OUTPUTS], logits[ROWS * OUTPUTS];
	static int32_t hit[ROWS];
	struct rh_op op = {.kind = RH_OP_HEAD_LOSS};
	for (int i = 0; i < OUTPUTS; i++)
		identity[i * OUTPUTS + i] = 1;
	op.head_loss.scale = 1;
	op.head_loss.temperature = how->temperature;
	op.head_loss.divergence = how->divergence;
	op.operand[RH_HEAD_LOSS_H] = rh_view_of(student, RH_F32, ROWS, OUTPUTS);
	op.operand[RH_HEAD_LOSS_W] = rh_view_of(identity, RH_F32, OUTPUTS, OUTPUTS);
	op.operand[RH_HEAD_LOSS_TARGET] = rh_view_of(target, RH_I32, ROWS, 1);
	op.operand[RH_HEAD_LOSS_LOGITS] = rh_view_of(logits, RH_F32, ROWS, OUTPUTS);
	op.operand[RH_HEAD_LOSS_LOSS] = rh_view_of(loss, RH_F32, ROWS, 1);
	op.operand[RH_HEAD_LOSS_HIT] = rh_view_of(hit, RH_I32, ROWS, 1);
	op.operand[RH_HEAD_LOSS_TEACHER] = rh_view_of(teacher, RH_F32, ROWS, OUTPUTS);
	op.operand[RH_HEAD_LOSS_MIX] = rh_view_of(mix, RH_F32, ROWS, 2);
	rh_op_oracle(&op);
}

static void test_losses_are_those_that_head_loss_adds_up(void **state)
{
	(void)state;
	static const float temperatures[] = {0.5f, 1, 4};
	float student[ROWS * OUTPUTS], teacher[ROWS * OUTPUTS], mix[2][ROWS * 2], loss[2][ROWS];
	int32_t target[ROWS];
	uint64_t seed = check_seed();
	for (uint32_t i = 0; i < ROWS * OUTPUTS; i++) {
		struct rh_philox_block block = rh_philox(seed, i, 0, 0, 1003);
		student[i] = 6 * rh_philox_unit(block.word[0]) - 3;
		teacher[i] = 6 * rh_philox_unit(block.word[1]) - 3;
	}
	for (int r = 0; r < ROWS; r++) {
		target[r] = r % OUTPUTS;
		for (int part = 0; part < 2; part++) {
			mix[part][2 * r] = !part;
			mix[part][2 * r + 1] = (float)part;
		}
	}
	for (int i = 0; i < 6; i++) {
		const struct rh_distillation how = {temperatures[i / 2], (enum rh_divergence)(i % 2), 0};
		for (int part = 0; part < 2; part++)
			oracle(&how, student, teacher, target, mix[part], loss[part]);
		for (int r = 0; r < ROWS; r++) {
			double own[2];
			rh_distillation_losses(&how, OUTPUTS, student + r * OUTPUTS, teacher + r * OUTPUTS, target[r], own);
			for (int part = 0; part < 2; part++)
				check_near(own[part], (double)loss[part][r], 2e-5 * (1 + own[part]));
			assert_true(own[1] > 0);
			rh_distillation_losses(&how, OUTPUTS, student + r * OUTPUTS, NULL, target[r], own);
			assert_true(own[1] == 0);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses_are_those_that_head_loss_adds_up)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
