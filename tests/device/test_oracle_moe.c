/* The oracle's mixtures of experts: known answers, and backward ops against finite differences. */
#include "derivative.h"
#include "moe_case.h"

/* As many logits as said, apart by more than a derivative's steps: no choice changes. */
static void part_logits(struct rh_view logits, uint64_t *seed)
{
	for (int64_t r = 0; r < logits.rows; r++) {
		int64_t shift = case_between(seed, 0, logits.cols - 1);
		for (int64_t e = 0; e < logits.cols; e++)
			case_put(logits, r, e, 0.3 * (double)((e * 3 + shift) % logits.cols) + 0.05 * (double)check_uniform(seed));
	}
}

/* Random gradients of the weights, as dot and more say them. */
static void weigh(struct op_case *b, double *cotangent, int with_more)
{
	struct rh_view index = b->op.operand[RH_ROUTER_BACKWARD_INDEX], weight = b->op.operand[RH_ROUTER_BACKWARD_WEIGHT];
	fill_place(case_operand(b, RH_ROUTER_BACKWARD_PLACE, RH_I32, index.rows, index.cols, 0, FILL_NONE), b->seed);
	struct rh_view place = b->op.operand[RH_ROUTER_BACKWARD_PLACE], more = {0};
	struct rh_view dot = case_operand(b, RH_ROUTER_BACKWARD_DOT, RH_F32, index.rows * index.cols, 1, 0, FILL_NONE);
	if (with_more)
		more = case_operand(b, RH_ROUTER_BACKWARD_MORE, RH_F32, index.rows, b->op.operand[RH_ROUTER_BACKWARD_LOGITS].cols, 0,
		                    FILL_RANDOM);
	for (int64_t t = 0; t < index.rows; t++)
		for (int64_t j = 0; j < index.cols; j++) {
			double gradient = (double)check_uniform(b->seed), w = case_get(weight, t, j);
			case_put(dot, (int64_t)case_get(place, t, j), 0, w * gradient);
			cotangent[t * index.cols + j] = gradient + (with_more ? case_get(more, t, (int64_t)case_get(index, t, j)) : 0);
		}
}

static void test_router_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	for (int variant = 0; variant < 4; variant++) { /* softmax or sigmoids, over all or over the chosen */
		int softmax = variant % 2 ? RH_ROUTER_OVER_CHOSEN : RH_ROUTER_OVER_ALL;
		struct router_shape s = {4, 7, 3, 1, RH_F32, (enum rh_router_softmax)softmax, 1};
		struct op_case f = router_case(&s, &seed), b = {.seed = &seed, .op.kind = RH_OP_ROUTER_BACKWARD};
		part_logits(f.op.operand[RH_ROUTER_LOGITS], &seed);
		if (variant / 2) {
			f.op.router.sigmoid = 1;
			f.op.router.factor = 1.8f;
			f.op.operand[RH_ROUTER_LOAD] = (struct rh_view){0};
		}
		for (int64_t e = 0; e < 7; e++)
			case_put(f.op.operand[RH_ROUTER_SCALE], 0, e, e % 2 ? -0.75 : 0.5 + 0.25 * (double)e);
		rh_op_oracle(&f.op);
		b.op.router = f.op.router;
		case_take(&b, RH_ROUTER_BACKWARD_LOGITS, &f, RH_ROUTER_LOGITS);
		case_take(&b, RH_ROUTER_BACKWARD_INDEX, &f, RH_ROUTER_INDEX);
		case_take(&b, RH_ROUTER_BACKWARD_WEIGHT, &f, RH_ROUTER_WEIGHT);
		case_take(&b, RH_ROUTER_BACKWARD_SCALE, &f, RH_ROUTER_SCALE);
		struct rh_view dscale = case_operand(&b, RH_ROUTER_BACKWARD_DSCALE, RH_F32, 4, 7, 0, FILL_POISON);
		weigh(&b, cotangent, softmax == RH_ROUTER_OVER_ALL);
		struct rh_view dlogits = case_operand(&b, RH_ROUTER_BACKWARD_DLOGITS, RH_F32, 4, 7, 0, FILL_POISON);
		rh_op_oracle(&b.op);
		check_derivative(&f, RH_ROUTER_WEIGHT, cotangent, RH_ROUTER_LOGITS, dlogits);
		for (int64_t e = 0; e < 7; e++) /* its first row becomes the sum of all */
			for (int64_t t = 1; t < 4; t++)
				case_put(dscale, 0, e, case_get(dscale, 0, e) + case_get(dscale, t, e));
		check_derivative(&f, RH_ROUTER_WEIGHT, cotangent, RH_ROUTER_SCALE, rh_view_rows(dscale, 0, 1));
		case_free(&f);
		case_free(&b);
	}
}

/* The gradient of a load balancing loss alone: that of each share is balance times count, and the choice has none. */
static void test_router_backward_of_counts_is_the_derivative(void **state)
{
	(void)state;
	enum { ROWS = 4, EXPERTS = 7, TOP = 3 };
	uint64_t seed = check_seed();
	for (int softmax = RH_ROUTER_OVER_ALL; softmax <= RH_ROUTER_OVER_CHOSEN; softmax++) {
		struct router_shape s = {ROWS, EXPERTS, TOP, 1, RH_F32, (enum rh_router_softmax)softmax, 1};
		struct op_case f = router_case(&s, &seed), b = {.seed = &seed, .op.kind = RH_OP_ROUTER_BACKWARD};
		double cotangent[ROWS * 2 * EXPERTS] = {0};
		part_logits(f.op.operand[RH_ROUTER_LOGITS], &seed);
		rh_op_oracle(&f.op);
		b.op.router = f.op.router;
		b.op.router.balance = 0.25f;
		case_take(&b, RH_ROUTER_BACKWARD_LOGITS, &f, RH_ROUTER_LOGITS);
		case_take(&b, RH_ROUTER_BACKWARD_INDEX, &f, RH_ROUTER_INDEX);
		case_take(&b, RH_ROUTER_BACKWARD_WEIGHT, &f, RH_ROUTER_WEIGHT);
		fill_place(case_operand(&b, RH_ROUTER_BACKWARD_PLACE, RH_I32, ROWS, TOP, 0, FILL_NONE), &seed);
		struct rh_view dot = case_operand(&b, RH_ROUTER_BACKWARD_DOT, RH_F32, ROWS * TOP, 1, 0, FILL_NONE);
		memset(dot.data, 0, (size_t)rh_view_bytes(dot));
		struct rh_view count = case_operand(&b, RH_ROUTER_BACKWARD_COUNT, RH_F32, 1, EXPERTS, 0, FILL_NONE);
		for (int64_t e = 0; e < EXPERTS; e++) {
			case_put(count, 0, e, (double)case_between(&seed, 0, 12));
			for (int64_t t = 0; t < ROWS; t++)
				cotangent[t * 2 * EXPERTS + EXPERTS + e] = 0.25 * case_get(count, 0, e);
		}
		struct rh_view dlogits = case_operand(&b, RH_ROUTER_BACKWARD_DLOGITS, RH_F32, ROWS, EXPERTS, 0, FILL_POISON);
		rh_op_oracle(&b.op);
		check_derivative(&f, RH_ROUTER_LOAD, cotangent, RH_ROUTER_LOGITS, dlogits);
		case_free(&f);
		case_free(&b);
	}
}

/* Qwen3-MoE and Mixtral: softmax over all, top k, divided by their sum; gpt-oss: top k, softmax over these. One and the same. */
static void test_router_known_answer(void **state)
{
	(void)state;
	float logits[2 * 5] = {1, 3, 2, 3, -1, 0, (float)NAN, -INFINITY, 0, 0}, weight[2 * 3];
	float load[2 * 5];
	int32_t index[2 * 3];
	struct rh_op op = {.kind = RH_OP_ROUTER, .router.softmax = RH_ROUTER_OVER_ALL};
	op.operand[RH_ROUTER_LOAD] = rh_view_of(load, RH_F32, 1, 2 * 5);
	op.operand[RH_ROUTER_LOGITS] = rh_view_of(logits, RH_F32, 1, 5);
	op.operand[RH_ROUTER_INDEX] = rh_view_of(index, RH_I32, 1, 3);
	op.operand[RH_ROUTER_WEIGHT] = rh_view_of(weight, RH_F32, 1, 3);
	rh_op_oracle(&op);
	double power[5], all = 0, chosen;
	for (int e = 0; e < 5; e++)
		all += power[e] = exp((double)logits[e]);
	chosen = power[1] + power[2] + power[3];
	assert_true(index[0] == 1 && index[1] == 3 && index[2] == 2); /* the lower of two equals first */
	for (int j = 0; j < 3; j++)
		assert_true(fabs((double)weight[j] - power[index[j]] / all) < 1e-7);
	for (int e = 0; e < 5; e++)
		assert_true(load[e] == (float)(e >= 1 && e <= 3) && fabs((double)load[5 + e] - power[e] / all) < 1e-7);
	op.operand[RH_ROUTER_LOAD] = (struct rh_view){0};
	op.router.softmax = RH_ROUTER_OVER_CHOSEN;
	op.operand[RH_ROUTER_LOGITS].rows = op.operand[RH_ROUTER_INDEX].rows = op.operand[RH_ROUTER_WEIGHT].rows = 2;
	rh_op_oracle(&op);
	for (int j = 0; j < 3; j++)
		assert_true(fabs((double)weight[j] - power[index[j]] / all / (chosen / all)) < 1e-7);
	assert_true(index[3] == 0 && index[4] == 3 && index[5] == 4); /* neither NaN nor -infinity */
}

/* GLM-4.7: sigmoids of the chosen over their sum, times a factor; biases, here in two parts, choose and do not weigh. Then in groups of
 * two, of which the first, with the largest sigmoid of all, is left out. */
static void test_router_of_sigmoids_known_answer(void **state)
{
	(void)state;
	float logits[6] = {3, -4, 1, 0.5f, 0.25f, 1}, bias[2 * 6] = {0, 0, 0.25f, 0, 1, 0, 0, 0, -0.5f, 0, 0.5f, 0}, weight[2];
	int32_t index[2];
	struct rh_op op = {.kind = RH_OP_ROUTER,
	                   .router = {.softmax = RH_ROUTER_OVER_CHOSEN, .sigmoid = 1, .factor = 1.75f, .groups = 3, .best_groups = 3}};
	op.operand[RH_ROUTER_LOGITS] = rh_view_of(logits, RH_F32, 1, 6);
	op.operand[RH_ROUTER_INDEX] = rh_view_of(index, RH_I32, 1, 2);
	op.operand[RH_ROUTER_WEIGHT] = rh_view_of(weight, RH_F32, 1, 2);
	op.operand[RH_ROUTER_BIAS] = rh_view_of(bias, RH_F32, 2, 6);
	rh_op_oracle(&op);
	double s[6];
	for (int e = 0; e < 6; e++)
		s[e] = 1 / (1 + exp(-(double)logits[e]));
	assert_true(index[0] == 4 && index[1] == 0); /* 0.56 + 1.5, and 0.95 */
	for (int j = 0; j < 2; j++)
		assert_true(fabs((double)weight[j] - 1.75 * s[index[j]] / (s[4] + s[0])) < 1e-7);
	op.router.best_groups = 1; /* sums of two: 0.97, 1.10, 2.79 */
	op.router.softmax = RH_ROUTER_OVER_ALL;
	rh_op_oracle(&op);
	assert_true(index[0] == 4 && index[1] == 5 && fabs((double)weight[1] - 1.75 * s[5]) < 1e-7);
	op.router.best_groups = 2;
	rh_op_oracle(&op);
	assert_true(index[0] == 4 && index[1] == 5); /* 0.73 before 0.62 of the second group; the first's 0.95 takes no part */
}

static void test_permute_known_answer(void **state)
{
	(void)state;
	int32_t index[3 * 2] = {2, 0, 0, 3, 2, 0}, start[5], place[3 * 2];
	float x[3] = {10, 20, 30}, y[6];
	struct rh_op op = {.kind = RH_OP_PERMUTE};
	op.operand[RH_PERMUTE_INDEX] = rh_view_of(index, RH_I32, 3, 2);
	op.operand[RH_PERMUTE_X] = rh_view_of(x, RH_F32, 3, 1);
	op.operand[RH_PERMUTE_START] = rh_view_of(start, RH_I32, 5, 1);
	op.operand[RH_PERMUTE_PLACE] = rh_view_of(place, RH_I32, 3, 2);
	op.operand[RH_PERMUTE_Y] = rh_view_of(y, RH_F32, 6, 1);
	rh_op_oracle(&op);
	const int32_t starts[5] = {0, 3, 3, 5, 6}, places[6] = {3, 0, 1, 5, 4, 2};
	const float rows[6] = {10, 20, 30, 10, 30, 20};
	assert_memory_equal(start, starts, sizeof starts);
	assert_memory_equal(place, places, sizeof places);
	assert_memory_equal(y, rows, sizeof rows);
}

/* UNPERMUTE without weights is PERMUTE's gradient; with them, UNPERMUTE_BACKWARD is its own. */
static void test_unpermute_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	struct permute_shape s = {5, 4, 3, 6, 1, RH_F32, SPREAD_RANDOM};
	struct op_case f = unpermute_case(&s, 1, &seed), b = {.seed = &seed, .op.kind = RH_OP_UNPERMUTE_BACKWARD};
	case_take(&b, RH_UNPERMUTE_BACKWARD_PLACE, &f, RH_UNPERMUTE_PLACE);
	case_take(&b, RH_UNPERMUTE_BACKWARD_WEIGHT, &f, RH_UNPERMUTE_WEIGHT);
	cotangent_for(case_operand(&b, RH_UNPERMUTE_BACKWARD_DY, RH_F32, 5, 6, 0, FILL_NONE), cotangent, &seed);
	struct rh_view dx = case_operand(&b, RH_UNPERMUTE_BACKWARD_DX, RH_F32, 15, 6, 0, FILL_POISON);
	rh_op_oracle(&b.op);
	check_derivative(&f, RH_UNPERMUTE_Y, cotangent, RH_UNPERMUTE_X, dx);
	case_free(&f);
	case_free(&b);
}

static void test_unpermute_without_weights_is_the_derivative_of_permute(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	struct permute_shape s = {5, 4, 3, 6, 1, RH_F32, SPREAD_RANDOM};
	struct op_case f = permute_case(&s, &seed), b = {.seed = &seed, .op.kind = RH_OP_UNPERMUTE};
	rh_op_oracle(&f.op);
	cotangent_for(case_operand(&b, RH_UNPERMUTE_X, RH_F32, 15, 6, 0, FILL_NONE), cotangent, &seed);
	case_take(&b, RH_UNPERMUTE_PLACE, &f, RH_PERMUTE_PLACE);
	struct rh_view dx = case_operand(&b, RH_UNPERMUTE_Y, RH_F32, 5, 6, 0, FILL_POISON);
	rh_op_oracle(&b.op);
	check_derivative(&f, RH_PERMUTE_Y, cotangent, RH_PERMUTE_X, dx);
	case_free(&f);
	case_free(&b);
}

/* The derivatives of a grouped product by a and by b are the same op with b turned over, and its gradient op; by the bias column sums. */
static void test_grouped_gemm_gradients_are_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	const struct grouped_shape s = {3, 11, 5, 4, 1, RH_F32, SPREAD_RANDOM, 0};
	for (int trans_b = 0; trans_b < 2; trans_b++) {
		struct op_case f = grouped_gemm_case(&s, GROUPED_BIAS | GROUPED_C | GROUPED_SCALED | trans_b, &seed);
		struct op_case back = {.seed = &seed, .op.kind = RH_OP_GROUPED_GEMM},
		               weights = {.seed = &seed, .op.kind = RH_OP_GROUPED_GEMM_GRADIENT};
		struct op_case bias = {.seed = &seed, .op.kind = RH_OP_GROUPED_COLUMN_SUM};
		back.op.grouped_gemm = weights.op.grouped_gemm = f.op.grouped_gemm;
		back.op.grouped_gemm.trans_b = !trans_b;
		cotangent_for(case_operand(&back, RH_GROUPED_GEMM_A, RH_F32, 11, 4, 0, FILL_NONE), cotangent, &seed);
		case_take(&back, RH_GROUPED_GEMM_B, &f, RH_GROUPED_GEMM_B);
		case_take(&back, RH_GROUPED_GEMM_START, &f, RH_GROUPED_GEMM_START);
		struct rh_view da = case_operand(&back, RH_GROUPED_GEMM_D, RH_F32, 11, 5, 0, FILL_POISON);
		int by_a = trans_b ? RH_GROUPED_GEMM_GRADIENT_B : RH_GROUPED_GEMM_GRADIENT_A; /* db is (n,k) then, not (k,n) */
		case_take(&weights, by_a, &f, RH_GROUPED_GEMM_A);
		case_take(&weights, !by_a, &back, RH_GROUPED_GEMM_A);
		case_take(&weights, RH_GROUPED_GEMM_GRADIENT_START, &f, RH_GROUPED_GEMM_START);
		struct rh_view db =
		        case_operand(&weights, RH_GROUPED_GEMM_GRADIENT_D, RH_F32, 3 * (trans_b ? 4 : 5), trans_b ? 5 : 4, 0, FILL_NONE);
		memset(db.data, 0, (size_t)rh_view_bytes(db));
		case_take(&bias, RH_GROUPED_COLUMN_SUM_X, &back, RH_GROUPED_GEMM_A);
		case_take(&bias, RH_GROUPED_COLUMN_SUM_START, &f, RH_GROUPED_GEMM_START);
		struct rh_view dbias = case_operand(&bias, RH_GROUPED_COLUMN_SUM_Y, RH_F32, 3, 4, 0, FILL_NONE);
		memset(dbias.data, 0, (size_t)rh_view_bytes(dbias));
		rh_op_oracle(&back.op);
		rh_op_oracle(&weights.op);
		rh_op_oracle(&bias.op);
		check_derivative(&f, RH_GROUPED_GEMM_D, cotangent, RH_GROUPED_GEMM_A, da);
		check_derivative(&f, RH_GROUPED_GEMM_D, cotangent, RH_GROUPED_GEMM_B, db);
		check_derivative(&f, RH_GROUPED_GEMM_D, cotangent, RH_GROUPED_GEMM_BIAS, dbias);
		case_free(&f);
		case_free(&back);
		case_free(&weights);
		case_free(&bias);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_router_backward_is_the_derivative),
	        cmocka_unit_test(test_router_backward_of_counts_is_the_derivative),
	        cmocka_unit_test(test_router_known_answer),
	        cmocka_unit_test(test_router_of_sigmoids_known_answer),
	        cmocka_unit_test(test_permute_known_answer),
	        cmocka_unit_test(test_unpermute_backward_is_the_derivative),
	        cmocka_unit_test(test_unpermute_without_weights_is_the_derivative_of_permute),
	        cmocka_unit_test(test_grouped_gemm_gradients_are_the_derivative),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
