/* HEAD_LOSS with a teacher's top k shares: the oracle against closed forms, finite differences and whole logits, the CPU's kernel against
 * the oracle. */
#include "distil_case.h"
#include "top_case.h"

struct shape {
	enum rh_dtype act;
	int64_t outputs, top;
	float temperature;
	enum rh_divergence divergence;
};

static struct op_case make(const struct shape *shape, uint64_t *seed)
{
	struct op_case c = without_teacher(shape->act, shape->outputs, shape->temperature, shape->divergence, seed);
	c.op.head_loss.top = shape->top;
	hide_unread_row(case_top_teacher(&c, ROWS, shape->outputs, 2));
	return c;
}

static void test_gradients_are_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const float temperatures[] = {0.5f, 1, 3};
	static const int64_t tops[] = {1, 4, 8, 9};
	for (int i = 0; i < 24; i++) {
		const struct shape shape = {RH_F32, 9, tops[i / 6], temperatures[i / 2 % 3], (enum rh_divergence)(i % 2)};
		check_gradients(make(&shape, &seed), 9);
	}
}

/* One row whose logits are `logit`, taught alone; out: its loss, gradient by logit and shares. */
static void run_row(int is_oracle, const struct shape *shape, const float *logit, float *teacher, float *loss, float *slope, float *shares)
{
	float h = 1, *w = malloc((size_t)shape->outputs * sizeof *w), *space = malloc((size_t)shape->outputs * sizeof *w), mix[2] = {0, 1};
	int32_t target = 0, hit;
	struct op_case c = {.op = {.kind = RH_OP_HEAD_LOSS}};
	struct rh_op *op = &c.op;
	assert_true(w && space);
	memcpy(w, logit, (size_t)shape->outputs * sizeof *w);
	memset(slope, 0, (size_t)shape->outputs * sizeof *slope);
	op->head_loss.scale = 1;
	op->head_loss.temperature = shape->temperature;
	op->head_loss.divergence = shape->divergence;
	op->head_loss.top = shape->top;
	op->operand[RH_HEAD_LOSS_H] = rh_view_of(&h, RH_F32, 1, 1);
	op->operand[RH_HEAD_LOSS_W] = rh_view_of(w, RH_F32, shape->outputs, 1);
	op->operand[RH_HEAD_LOSS_TARGET] = rh_view_of(&target, RH_I32, 1, 1);
	op->operand[RH_HEAD_LOSS_LOGITS] = rh_view_of(space, RH_F32, 1, shape->outputs);
	op->operand[RH_HEAD_LOSS_LOSS] = rh_view_of(loss, RH_F32, 1, 1);
	op->operand[RH_HEAD_LOSS_HIT] = rh_view_of(&hit, RH_I32, 1, 1);
	op->operand[RH_HEAD_LOSS_DBIAS] = rh_view_of(slope, RH_F32, 1, shape->outputs);
	if (teacher) {
		op->operand[RH_HEAD_LOSS_TEACHER] = rh_view_of(teacher, RH_F32, 1, 2 * shape->top);
		op->operand[RH_HEAD_LOSS_MIX] = rh_view_of(mix, RH_F32, 1, 2);
	}
	if (shares)
		op->operand[RH_HEAD_LOSS_SHARES] = rh_view_of(shares, RH_F32, 1, 2 * shape->top);
	if (is_oracle)
		rh_op_oracle(op);
	else
		case_run(&c, RH_CPU_BASE, 1);
	free(w);
	free(space);
}

/* Shares of 1/2, 1/4, 1/8, 1/8, of which the teacher tells that of the second, 1/2: two buckets, of 1/4 and 3/4 taught by 1/2 and 1/2. By
 * hand: KL as of two outputs; the slope of an output of the residual is its part of the residual's. A temperature of T on T times the
 * logits has T^2 times the loss and T times the gradient. */
static void test_two_buckets_have_their_closed_form(void **state)
{
	(void)state;
	const double forward = 0.5 * log(2) + 0.5 * log(2.0 / 3), reverse = 0.25 * log(0.5) + 0.75 * log(1.5);
	const double slopes[2] = {0.25 - 0.5, 0.25 * (log(0.5) - reverse)}, part[4] = {-2.0 / 3, 1, -1.0 / 6, -1.0 / 6};
	for (int i = 0; i < 8; i++) {
		const struct shape shape = {RH_F32, 4, 1, (float)(1 + i / 4), (enum rh_divergence)(i / 2 % 2)};
		double degrees = (double)shape.temperature;
		float logit[4] = {(float)(degrees * log(4)), (float)(degrees * log(2)), 0, 0}, teacher[2] = {1, 0.5f}, loss, slope[4];
		run_row(i % 2, &shape, logit, teacher, &loss, slope, NULL);
		check_near((double)loss, (i / 2 % 2 ? reverse : forward) * degrees * degrees, 1e-6);
		for (int v = 0; v < 4; v++)
			check_near((double)slope[v], slopes[i / 2 % 2] * part[v] * degrees, 1e-6);
	}
}

/* All shares say what all logits say: losses and gradients differ by the rounding of the shares, 2^-24 of each, which the weights of this
 * test multiply by 2 and the temperature's square by 9. */
static void test_all_shares_teach_what_logits_do(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 8; i++) {
		enum { OUTPUTS = 33 };
		const struct shape shape = {RH_F32, OUTPUTS, OUTPUTS, i / 2 % 2 ? 3 : 1, (enum rh_divergence)(i % 2)};
		struct op_case top = make(&shape, &seed);
		add_gradients(&top, OUTPUTS, RH_F32);
		struct op_case whole = case_clone(&top);
		whole.op.head_loss.top = 0;
		float logits[ROWS * OUTPUTS];
		for (int r = 0; r < ROWS * OUTPUTS; r++)
			logits[r] = 6 * check_uniform(&seed);
		whole.op.operand[RH_HEAD_LOSS_TEACHER] = rh_view_of(logits, RH_F32, ROWS, OUTPUTS);
		struct rh_view shares = top.op.operand[RH_HEAD_LOSS_TEACHER];
		for (int r = 0; r < ROWS; r++) {
			double sum = 0;
			for (int v = 0; v < OUTPUTS; v++)
				sum += exp((double)logits[r * OUTPUTS + v] / (double)shape.temperature);
			for (int v = 0; v < OUTPUTS; v++) {
				case_put(shares, r, v, v);
				case_put(shares, r, OUTPUTS + v, exp((double)logits[r * OUTPUTS + v] / (double)shape.temperature) / sum);
			}
		}
		case_run(&top, RH_CPU_BASE, 2);
		case_run(&whole, RH_CPU_BASE, 2);
		static const int outs[] = {RH_HEAD_LOSS_LOSS, RH_HEAD_LOSS_DH, RH_HEAD_LOSS_DW, RH_HEAD_LOSS_DBIAS};
		for (int o = 0; o < 4; o++) {
			struct rh_view a = top.op.operand[outs[o]], b = whole.op.operand[outs[o]];
			for (int64_t r = 0; r < a.rows; r++)
				for (int64_t v = 0; v < a.cols; v++)
					check_near(case_get(a, r, v), case_get(b, r, v), 1e-5);
		}
		case_free(&top);
		case_free(&whole);
	}
}

static void test_the_cpu_equals_the_oracle(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static const int64_t outputs[] = {1, 2, 10, 33, 700};
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++)
		for (int i = 0; i < 60; i++) {
			enum rh_dtype act = i & 1 ? RH_BF16 : RH_F32;
			int64_t cols = outputs[i % 5], top = i / 5 % 3 == 0 ? 1 : i / 5 % 3 == 1 ? cols : case_between(&seed, 1, cols);
			const struct shape shape = {act, cols, top, i % 3 ? 2.5f : 1, (enum rh_divergence)(i / 2 % 2)};
			struct op_case c = make(&shape, &seed);
			if (i / 4 % 2)
				add_gradients(&c, cols, act);
			if (i % 4)
				case_operand(&c, RH_HEAD_LOSS_SHARES, RH_F32, ROWS, 2 * top, 1, FILL_POISON);
			double rounding = act == RH_BF16 ? 0x1p-7 : 0x1p-20;
			c.tolerance[RH_HEAD_LOSS_LOSS] = 2e-5;
			c.tolerance[RH_HEAD_LOSS_SHARES] = 1e-6; /* ids are whole numbers: any other is off by 1 */
			c.tolerance[RH_HEAD_LOSS_DH] = c.tolerance[RH_HEAD_LOSS_DBIAS] = c.tolerance[RH_HEAD_LOSS_DW] = rounding;
			check_but_logits(&c, isa);
		}
}

/* Of equal logits the lower ids; by hand, of shares of 4, 2, 2, 2, 1 and 1 twelfths. */
static void test_shares_are_those_of_the_largest_logits(void **state)
{
	(void)state;
	static const float logit[6] = {0, 0.6931472f, 1.3862944f, 0.6931472f, 0, 0.6931472f};
	static const struct {
		int64_t top;
		float want[12];
	} cases[] = {{1, {2, 4}}, {3, {1, 2, 3, 2, 4, 2}}, {5, {0, 1, 2, 3, 5, 1, 2, 4, 2, 2}}, {6, {0, 1, 2, 3, 4, 5, 1, 2, 4, 2, 1, 2}}};
	for (int i = 0; i < 8; i++) {
		int64_t top = cases[i / 2].top;
		const struct shape shape = {RH_F32, 6, top, 1, RH_DIVERGENCE_FORWARD};
		float loss, slope[6], shares[12];
		run_row(i % 2, &shape, logit, NULL, &loss, slope, shares);
		for (int64_t j = 0; j < top; j++) {
			check_near((double)shares[j], (double)cases[i / 2].want[j], 0);
			check_near((double)shares[top + j], (double)cases[i / 2].want[top + j] / 12, 1e-7);
		}
	}
	static const float bad[6] = {0, NAN, 1, 2, 3, 4};
	const struct shape shape = {RH_F32, 6, 3, 1, RH_DIVERGENCE_FORWARD};
	float loss, slope[6], shares[6];
	run_row(0, &shape, bad, NULL, &loss, slope, shares);
	for (int j = 0; j < 6; j++)
		assert_true(isnan(shares[j]));
}

/* A teacher whose told shares sum to 1 or more, and a student that gives all others e^-60: the residual is the floor, its logarithm is
 * exact, and nothing overflows. The gradient by the told ids and by the others still sums to 0. */
static void test_a_residual_of_nothing_counts_its_floor(void **state)
{
	(void)state;
	for (int i = 0; i < 8; i++) {
		const struct shape shape = {RH_F32, 4, 2, 1, (enum rh_divergence)(i / 2 % 2)};
		const float logit[4] = {0, 0, -60 - 0.6931472f, -60 - 0.6931472f};
		float teacher[4] = {0, 1, 0.5f, i / 4 ? 0.5f : 0x1.000002p-1f}, loss, slope[4];
		const double floor = 0x1p-20, reverse = -exp(-60) / 2 * log(floor / (exp(-60) / 2)),
		             forward = floor * log(floor / (exp(-60) / 2));
		run_row(i % 2, &shape, logit, teacher, &loss, slope, NULL);
		/* the student's told shares are 1/2 each: against the teacher's own rounding, 1e-7 */
		check_near((double)loss, i / 2 % 2 ? reverse : forward, 2e-7);
		check_near((double)(slope[0] + slope[1] + slope[2] + slope[3]), 0, 1e-9);
		check_near((double)slope[2], i / 2 % 2 ? 0 : -floor / 2, 1e-12);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gradients_are_the_derivative),
	        cmocka_unit_test(test_two_buckets_have_their_closed_form),
	        cmocka_unit_test(test_all_shares_teach_what_logits_do),
	        cmocka_unit_test(test_the_cpu_equals_the_oracle),
	        cmocka_unit_test(test_shares_are_those_of_the_largest_logits),
	        cmocka_unit_test(test_a_residual_of_nothing_counts_its_floor),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
