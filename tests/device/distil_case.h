/* What the tests of HEAD_LOSS with a teacher have in common, whether it tells whole logits or the top k shares. */
#ifndef RH_TESTS_DEVICE_DISTIL_CASE_H
#define RH_TESTS_DEVICE_DISTIL_CASE_H

#include "derivative.h"
#include "op_case.h"

enum { ROWS = 6, HIDDEN = 5 };

/* Weights of the task's loss and of the divergence: a mixture, each alone, a sum, scaled ones. */
static const double mixes[ROWS][2] = {{0.5, 0.5}, {1, 0}, {0, 1}, {1, 1}, {0.25, 2}, {0.1, 0.9}};

/* All operands of a forward but the teacher. */
static struct op_case without_teacher(enum rh_dtype act, int64_t outputs, float temperature, enum rh_divergence divergence, uint64_t *seed)
{
	struct op_case c = {.seed = seed, .op.kind = RH_OP_HEAD_LOSS};
	c.op.head_loss.scale = 0.125f;
	c.op.head_loss.temperature = temperature;
	c.op.head_loss.divergence = divergence;
	case_operand(&c, RH_HEAD_LOSS_H, act, ROWS, HIDDEN, 0, FILL_RANDOM);
	case_operand(&c, RH_HEAD_LOSS_W, act, outputs, HIDDEN, 1, FILL_RANDOM);
	struct rh_view target = case_operand(&c, RH_HEAD_LOSS_TARGET, RH_I32, ROWS, 1, 0, FILL_NONE);
	case_operand(&c, RH_HEAD_LOSS_LOGITS, RH_F32, 4, outputs, 0, FILL_POISON);
	case_operand(&c, RH_HEAD_LOSS_LOSS, RH_F32, ROWS, 1, 0, FILL_POISON);
	case_operand(&c, RH_HEAD_LOSS_HIT, RH_I32, ROWS, 1, 0, FILL_NONE);
	case_operand(&c, RH_HEAD_LOSS_BIAS, act, 1, outputs, 0, FILL_RANDOM);
	struct rh_view mix = case_operand(&c, RH_HEAD_LOSS_MIX, RH_F32, ROWS, 2, 0, FILL_NONE);
	for (int64_t i = 0; i < ROWS; i++) {
		case_put(target, i, 0, (double)(check_random(seed) % outputs));
		case_put(mix, i, 0, mixes[i][0]);
		case_put(mix, i, 1, mixes[i][1]);
	}
	return c;
}

/* The row whose divergence weighs 0: a kernel that reads its teacher makes NaNs. */
static void hide_unread_row(struct rh_view teacher)
{
	for (int64_t v = 0; v < teacher.cols; v++)
		case_put(teacher, 1, v, (double)NAN);
}

static void add_gradients(struct op_case *c, int64_t outputs, enum rh_dtype act)
{
	case_operand(c, RH_HEAD_LOSS_DH, act, ROWS, HIDDEN, 0, FILL_POISON);
	struct rh_view dw = case_operand(c, RH_HEAD_LOSS_DW, RH_F32, outputs, HIDDEN, 0, FILL_NONE);
	struct rh_view dbias = case_operand(c, RH_HEAD_LOSS_DBIAS, RH_F32, 1, outputs, 0, FILL_NONE);
	memset(dw.data, 0, (size_t)rh_view_bytes(dw));
	memset(dbias.data, 0, (size_t)rh_view_bytes(dbias));
}

static void check_gradients(struct op_case f, int64_t outputs)
{
	struct op_case b = case_clone(&f);
	double cotangent[ROWS];
	for (int i = 0; i < ROWS; i++)
		cotangent[i] = 0.125;
	add_gradients(&b, outputs, RH_F32);
	rh_op_oracle(&b.op);
	check_derivative(&f, RH_HEAD_LOSS_LOSS, cotangent, RH_HEAD_LOSS_H, b.op.operand[RH_HEAD_LOSS_DH]);
	check_derivative(&f, RH_HEAD_LOSS_LOSS, cotangent, RH_HEAD_LOSS_W, b.op.operand[RH_HEAD_LOSS_DW]);
	check_derivative(&f, RH_HEAD_LOSS_LOSS, cotangent, RH_HEAD_LOSS_BIAS, b.op.operand[RH_HEAD_LOSS_DBIAS]);
	case_free(&f);
	case_free(&b);
}

/* The op equals the oracle, but for the logits, which are scratch; then frees the case. */
static void check_but_logits(struct op_case *c, enum rh_cpu_isa isa)
{
	struct op_case want = case_clone(c), got = case_clone(c);
	rh_op_oracle(&want.op);
	case_run(&got, isa, 2);
	memcpy(got.buffer[RH_HEAD_LOSS_LOGITS].bytes, want.buffer[RH_HEAD_LOSS_LOGITS].bytes, c->buffer[RH_HEAD_LOSS_LOGITS].size);
	case_compare(&got, &want, c, "cpu");
	case_free(&want);
	case_free(&got);
	case_free(c);
}

#endif
