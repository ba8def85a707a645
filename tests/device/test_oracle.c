/* The oracle itself: backward ops against finite differences of the forward ones, and answers known from elsewhere. */
#include "derivative.h"

static void test_rmsnorm_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	struct op_case f = {.seed = &seed, .op.kind = RH_OP_RMSNORM, .op.rmsnorm = {2, 1e-2f, 1}},
	               b = {.seed = &seed, .op.kind = RH_OP_RMSNORM_BACKWARD, .op.rmsnorm = {2, 1e-2f, 1}};
	case_operand(&f, RH_RMSNORM_X, RH_F32, 5, 14, 1, FILL_RANDOM);
	case_operand(&f, RH_RMSNORM_W, RH_F32, 1, 7, 0, FILL_RANDOM);
	case_operand(&f, RH_RMSNORM_Y, RH_F32, 5, 14, 2, FILL_POISON);
	case_operand(&f, RH_RMSNORM_RSTD, RH_F32, 5, 2, 0, FILL_POISON);
	rh_op_oracle(&f.op);
	case_take(&b, RH_RMSNORM_BACKWARD_X, &f, RH_RMSNORM_X);
	case_take(&b, RH_RMSNORM_BACKWARD_W, &f, RH_RMSNORM_W);
	case_take(&b, RH_RMSNORM_BACKWARD_RSTD, &f, RH_RMSNORM_RSTD);
	cotangent_for(case_operand(&b, RH_RMSNORM_BACKWARD_DY, RH_F32, 5, 14, 0, FILL_NONE), cotangent, &seed);
	case_operand(&b, RH_RMSNORM_BACKWARD_DX, RH_F32, 5, 14, 0, FILL_POISON);
	struct rh_view dw = case_operand(&b, RH_RMSNORM_BACKWARD_DW, RH_F32, 1, 7, 0, FILL_NONE);
	memset(dw.data, 0, 7 * 4);
	case_operand(&b, RH_RMSNORM_BACKWARD_Y, RH_F32, 5, 14, 0, FILL_POISON);
	rh_op_oracle(&b.op);
	for (int64_t r = 0; r < 5; r++)
		for (int64_t k = 0; k < 14; k++)
			assert_true(fabs(case_get(b.op.operand[RH_RMSNORM_BACKWARD_Y], r, k) - case_get(f.op.operand[RH_RMSNORM_Y], r, k)) <
			            1e-6);
	check_derivative(&f, RH_RMSNORM_Y, cotangent, RH_RMSNORM_W, dw);
	check_derivative(&f, RH_RMSNORM_Y, cotangent, RH_RMSNORM_X, b.op.operand[RH_RMSNORM_BACKWARD_DX]);
	case_free(&f);
	case_free(&b);
}

static void test_glu_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	for (enum rh_activation act = 0; act < RH_ACT_TANH; act++) {
		struct op_case f = {.seed = &seed, .op = {.kind = RH_OP_GLU, .activation = {act}}},
		               b = {.seed = &seed, .op = {.kind = RH_OP_GLU_BACKWARD, .activation = {act}}};
		struct rh_view gu = case_operand(&f, RH_GLU_GU, RH_F32, 4, 22, 0, FILL_RANDOM);
		case_put(gu, 0, 4, 9), case_put(gu, 1, 5, 9), case_put(gu, 2, 7, -9); /* beyond gpt-oss's limits */
		case_operand(&f, RH_GLU_A, RH_F32, 4, 11, 3, FILL_POISON);
		case_take(&b, RH_GLU_BACKWARD_GU, &f, RH_GLU_GU);
		cotangent_for(case_operand(&b, RH_GLU_BACKWARD_DA, RH_F32, 4, 11, 0, FILL_NONE), cotangent, &seed);
		case_operand(&b, RH_GLU_BACKWARD_DGU, RH_F32, 4, 22, 0, FILL_POISON);
		struct rh_view dot = case_operand(&b, RH_GLU_BACKWARD_DOT, RH_F32, 4, 1, 0, FILL_POISON);
		rh_op_oracle(&b.op);
		rh_op_oracle(&f.op);
		for (int64_t t = 0; t < 4; t++) {
			double sum = 0;
			for (int64_t i = 0; i < 11; i++)
				sum += cotangent[t * 11 + i] * case_get(f.op.operand[RH_GLU_A], t, i);
			assert_true(fabs(case_get(dot, t, 0) - sum) < 1e-5);
		}
		check_derivative(&f, RH_GLU_A, cotangent, RH_GLU_GU, b.op.operand[RH_GLU_BACKWARD_DGU]);
		case_free(&f);
		case_free(&b);
	}
}

static void test_activation_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	for (enum rh_activation act = 0; act < RH_ACTS; act++) {
		if (act == RH_ACT_GPT_OSS)
			continue;
		struct op_case f = {.seed = &seed, .op = {.kind = RH_OP_ACTIVATION, .activation = {act}}},
		               b = {.seed = &seed, .op = {.kind = RH_OP_ACTIVATION_BACKWARD, .activation = {act}}};
		struct rh_view x = case_operand(&f, RH_ACTIVATION_X, RH_F32, 4, 22, 0, FILL_RANDOM);
		case_put(x, 0, 4, 3), case_put(x, 1, 5, -3);
		case_operand(&f, RH_ACTIVATION_Y, RH_F32, 4, 22, 3, FILL_POISON);
		case_take(&b, RH_ACTIVATION_BACKWARD_X, &f, RH_ACTIVATION_X);
		cotangent_for(case_operand(&b, RH_ACTIVATION_BACKWARD_DY, RH_F32, 4, 22, 0, FILL_NONE), cotangent, &seed);
		case_operand(&b, RH_ACTIVATION_BACKWARD_DX, RH_F32, 4, 22, 0, FILL_POISON);
		rh_op_oracle(&b.op);
		check_derivative(&f, RH_ACTIVATION_Y, cotangent, RH_ACTIVATION_X, b.op.operand[RH_ACTIVATION_BACKWARD_DX]);
		case_free(&f);
		case_free(&b);
	}
}

static void test_layernorm_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	struct op_case f = {.seed = &seed, .op = {.kind = RH_OP_LAYERNORM, .layernorm = {1e-2f}}},
	               b = {.seed = &seed, .op = {.kind = RH_OP_LAYERNORM_BACKWARD}};
	case_operand(&f, RH_LAYERNORM_X, RH_F32, 5, 9, 1, FILL_RANDOM);
	case_operand(&f, RH_LAYERNORM_W, RH_F32, 1, 9, 0, FILL_RANDOM);
	case_operand(&f, RH_LAYERNORM_B, RH_F32, 1, 9, 0, FILL_RANDOM);
	case_operand(&f, RH_LAYERNORM_Y, RH_F32, 5, 9, 2, FILL_POISON);
	case_operand(&f, RH_LAYERNORM_STATS, RH_F32, 5, 2, 0, FILL_POISON);
	rh_op_oracle(&f.op);
	case_take(&b, RH_LAYERNORM_BACKWARD_X, &f, RH_LAYERNORM_X);
	case_take(&b, RH_LAYERNORM_BACKWARD_W, &f, RH_LAYERNORM_W);
	case_take(&b, RH_LAYERNORM_BACKWARD_B, &f, RH_LAYERNORM_B);
	case_take(&b, RH_LAYERNORM_BACKWARD_STATS, &f, RH_LAYERNORM_STATS);
	cotangent_for(case_operand(&b, RH_LAYERNORM_BACKWARD_DY, RH_F32, 5, 9, 0, FILL_NONE), cotangent, &seed);
	case_operand(&b, RH_LAYERNORM_BACKWARD_DX, RH_F32, 5, 9, 0, FILL_POISON);
	struct rh_view dw = case_operand(&b, RH_LAYERNORM_BACKWARD_DW, RH_F32, 1, 9, 0, FILL_NONE);
	struct rh_view db = case_operand(&b, RH_LAYERNORM_BACKWARD_DB, RH_F32, 1, 9, 0, FILL_NONE);
	memset(dw.data, 0, 9 * 4);
	memset(db.data, 0, 9 * 4);
	struct rh_view y = case_operand(&b, RH_LAYERNORM_BACKWARD_Y, RH_F32, 5, 9, 0, FILL_POISON);
	rh_op_oracle(&b.op);
	for (int64_t r = 0; r < 5; r++)
		for (int64_t k = 0; k < 9; k++)
			assert_true(fabs(case_get(y, r, k) - case_get(f.op.operand[RH_LAYERNORM_Y], r, k)) < 1e-6);
	check_derivative(&f, RH_LAYERNORM_Y, cotangent, RH_LAYERNORM_W, dw);
	check_derivative(&f, RH_LAYERNORM_Y, cotangent, RH_LAYERNORM_B, db);
	check_derivative(&f, RH_LAYERNORM_Y, cotangent, RH_LAYERNORM_X, b.op.operand[RH_LAYERNORM_BACKWARD_DX]);
	case_free(&f);
	case_free(&b);
}

/* The inverse rotation of the cotangent. */
static void test_rope_inverse_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	for (int adjacent = 0; adjacent < 2; adjacent++) { /* and behind the first element of each head */
		struct op_case f = {.seed = &seed, .op.kind = RH_OP_ROPE, .op.rope = {2, 0, 0, adjacent, adjacent}},
		               b = {.seed = &seed, .op.kind = RH_OP_ROPE, .op.rope = {2, 1, 0, adjacent, adjacent}};
		case_operand(&f, RH_ROPE_X, RH_F32, 3, 14, 0, FILL_RANDOM);
		case_operand(&f, RH_ROPE_TABLE_IN, RH_F32, 3, 6, 0, FILL_RANDOM);
		case_take(&b, RH_ROPE_TABLE_IN, &f, RH_ROPE_TABLE_IN);
		cotangent_for(case_operand(&b, RH_ROPE_X, RH_F32, 3, 14, 0, FILL_NONE), cotangent, &seed);
		rh_op_oracle(&b.op);
		check_derivative(&f, RH_ROPE_X, cotangent, RH_ROPE_X, b.op.operand[RH_ROPE_X]);
		case_free(&f);
		case_free(&b);
	}
}

/* Of any linear function the gradient is its transpose; both outputs at once. */
static void test_latent_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	for (int output = RH_LATENT_K; output <= RH_LATENT_V; output++) {
		struct op_case f = {.seed = &seed, .op.kind = RH_OP_LATENT, .op.latent = {3, 3}};
		struct op_case b = {.seed = &seed, .op.kind = RH_OP_LATENT_BACKWARD, .op.latent = {3, 3}};
		case_operand(&f, RH_LATENT_KV, RH_F32, 4, 3 * (2 + 3), 0, FILL_RANDOM);
		case_operand(&f, RH_LATENT_SHARED, RH_F32, 4, 2, 0, FILL_RANDOM);
		case_operand(&f, RH_LATENT_K, RH_F32, 4, 3 * (2 + 2), 0, FILL_POISON);
		case_operand(&f, RH_LATENT_V, RH_F32, 4, 3 * 4, 0, FILL_POISON);
		struct rh_view dk = case_operand(&b, RH_LATENT_BACKWARD_DK, RH_F32, 4, 3 * 4, 0, FILL_NONE);
		struct rh_view dv = case_operand(&b, RH_LATENT_BACKWARD_DV, RH_F32, 4, 3 * 4, 0, FILL_NONE);
		struct rh_view dkv = case_operand(&b, RH_LATENT_BACKWARD_DKV, RH_F32, 4, 3 * 5, 0, FILL_POISON);
		struct rh_view dshared = case_operand(&b, RH_LATENT_BACKWARD_DSHARED, RH_F32, 4, 2, 0, FILL_POISON);
		memset(dk.data, 0, (size_t)rh_view_bytes(dk));
		memset(dv.data, 0, (size_t)rh_view_bytes(dv));
		cotangent_for(output == RH_LATENT_K ? dk : dv, cotangent, &seed);
		rh_op_oracle(&b.op);
		check_derivative(&f, output, cotangent, RH_LATENT_KV, dkv);
		check_derivative(&f, output, cotangent, RH_LATENT_SHARED, dshared);
		case_free(&f);
		case_free(&b);
	}
}

/* 2 heads of 1 element of key, 1 that they share, and 1 of value beside a zero. */
static void test_latent_known_answer(void **state)
{
	(void)state;
	float kv[4] = {1, 2, 3, 4}, shared[1] = {5}, k[4], v[4];
	struct rh_op op = {.kind = RH_OP_LATENT, .latent = {2, 1}};
	op.operand[RH_LATENT_KV] = rh_view_of(kv, RH_F32, 1, 4);
	op.operand[RH_LATENT_SHARED] = rh_view_of(shared, RH_F32, 1, 1);
	op.operand[RH_LATENT_K] = rh_view_of(k, RH_F32, 1, 4);
	op.operand[RH_LATENT_V] = rh_view_of(v, RH_F32, 1, 4);
	rh_op_oracle(&op);
	const float keys[4] = {1, 5, 3, 5}, values[4] = {2, 0, 4, 0};
	assert_memory_equal(k, keys, sizeof keys);
	assert_memory_equal(v, values, sizeof values);
}

static void attention_case(struct op_case *f, int64_t window, uint64_t *seed)
{
	f->seed = seed;
	f->op.kind = RH_OP_ATTENTION;
	f->op.attention.heads = 4;
	f->op.attention.kv_heads = 2;
	f->op.attention.documents = 3;
	f->op.attention.longest = 6;
	f->op.attention.window = window;
	f->op.attention.scale = 0.7f;
	const int32_t start_q[4] = {0, 6, 6, 8}, start_k[4] = {0, 6, 6, 11}; /* an empty one, and one with three cached keys */
	memcpy(case_operand(f, RH_ATTENTION_START_Q, RH_I32, 4, 1, 0, FILL_NONE).data, start_q, sizeof start_q);
	memcpy(case_operand(f, RH_ATTENTION_START_K, RH_I32, 4, 1, 0, FILL_NONE).data, start_k, sizeof start_k);
	case_operand(f, RH_ATTENTION_Q, RH_F32, 8, 4 * 5, 0, FILL_RANDOM);
	case_operand(f, RH_ATTENTION_K, RH_F32, 11, 2 * 5, 2, FILL_RANDOM);
	case_operand(f, RH_ATTENTION_V, RH_F32, 11, 2 * 5, 0, FILL_RANDOM);
	case_operand(f, RH_ATTENTION_O, RH_F32, 8, 4 * 5, 0, FILL_POISON);
	case_operand(f, RH_ATTENTION_LSE, RH_F32, 8, 4, 0, FILL_POISON);
	if (window)
		case_operand(f, RH_ATTENTION_SINK, RH_F32, 1, 4, 0, FILL_RANDOM);
}

static void test_attention_backward_is_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[MOST];
	for (int round = 0; round < 4; round++) {
		int64_t window = round % 2 * 3;
		struct op_case f = {0}, b = {.seed = &seed, .op.kind = RH_OP_ATTENTION_BACKWARD};
		attention_case(&f, window, &seed);
		f.op.attention.p = round < 2 ? 0 : 0.4f;
		f.op.attention.seed = 9;
		b.op.attention = f.op.attention;
		rh_op_oracle(&f.op);
		for (int i = RH_ATTENTION_Q; i <= RH_ATTENTION_LSE; i++)
			case_take(&b, i, &f, i);
		cotangent_for(case_operand(&b, RH_ATTENTION_BACKWARD_DO, RH_F32, 8, 4 * 5, 0, FILL_NONE), cotangent, &seed);
		case_operand(&b, RH_ATTENTION_BACKWARD_DELTA, RH_F32, 8, 4, 0, FILL_POISON);
		case_operand(&b, RH_ATTENTION_BACKWARD_DQ, RH_F32, 8, 4 * 5, 0, FILL_POISON);
		case_operand(&b, RH_ATTENTION_BACKWARD_DK, RH_F32, 11, 2 * 5, 0, FILL_POISON);
		case_operand(&b, RH_ATTENTION_BACKWARD_DV, RH_F32, 11, 2 * 5, 0, FILL_POISON);
		if (window) {
			case_take(&b, RH_ATTENTION_BACKWARD_SINK, &f, RH_ATTENTION_SINK);
			memset(case_operand(&b, RH_ATTENTION_BACKWARD_DSINK, RH_F32, 1, 4, 0, FILL_NONE).data, 0, 4 * 4);
		}
		rh_op_oracle(&b.op);
		if (window)
			check_derivative(&f, RH_ATTENTION_O, cotangent, RH_ATTENTION_SINK, b.op.operand[RH_ATTENTION_BACKWARD_DSINK]);
		for (int i = 0; i < 3; i++)
			check_derivative(&f, RH_ATTENTION_O, cotangent, RH_ATTENTION_Q + i, b.op.operand[RH_ATTENTION_BACKWARD_DQ + i]);
		case_free(&f);
		case_free(&b);
	}
}

/* Over many seeds what attention drops is made up for: o has the mean that it has without. The deviation of a mean of N is at most
 * |v| sqrt(p / (1 - p) / N), as a row of probabilities sums up to 1: five of them. */
static void test_attention_drops_without_a_bias(void **state)
{
	(void)state;
	enum { SEEDS = 2000, ROWS = 8, COLS = 20 };
	uint64_t seed = check_seed();
	struct op_case f = {0};
	double whole[ROWS][COLS], mean[ROWS][COLS] = {{0}}, dropped = 0;
	attention_case(&f, 0, &seed);
	rh_op_oracle(&f.op);
	struct rh_view o = f.op.operand[RH_ATTENTION_O];
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < COLS; c++)
			whole[r][c] = case_get(o, r, c);
	f.op.attention.p = 0.25f;
	for (int n = 0; n < SEEDS; n++) {
		f.op.attention.seed = (uint64_t)n;
		rh_op_oracle(&f.op);
		for (int r = 0; r < ROWS; r++)
			for (int c = 0; c < COLS; c++)
				mean[r][c] += case_get(o, r, c) / SEEDS;
		dropped += case_get(o, 0, 0) == 0; /* the first query sees one key */
	}
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < COLS; c++)
			assert_true(fabs(mean[r][c] - whole[r][c]) < 5 * sqrt(0.25 / 0.75 / SEEDS));
	assert_true(fabs(dropped / SEEDS - 0.25) < 5 * sqrt(0.25 * 0.75 / SEEDS));
	case_free(&f);
}

/* The second document of attention_case by a plain softmax: two queries, five keys. */
static void test_attention_is_a_softmax(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct op_case f = {0};
	attention_case(&f, 0, &seed);
	rh_op_oracle(&f.op);
	struct rh_view q = f.op.operand[RH_ATTENTION_Q], k = f.op.operand[RH_ATTENTION_K], v = f.op.operand[RH_ATTENTION_V];
	for (int i = 0; i < 2; i++) {
		for (int h = 0; h < 4; h++) {
			double weight[5], sum = 0;
			for (int j = 0; j <= i + 3; j++) {
				double s = 0;
				for (int c = 0; c < 5; c++)
					s += case_get(q, 6 + i, h * 5 + c) * case_get(k, 6 + j, h / 2 * 5 + c);
				sum += weight[j] = exp(s * (double)0.7f);
			}
			assert_true(fabs(case_get(f.op.operand[RH_ATTENTION_LSE], 6 + i, h) - log(sum)) < 1e-6);
			for (int c = 0; c < 5; c++) {
				double o = 0;
				for (int j = 0; j <= i + 3; j++)
					o += weight[j] / sum * case_get(v, 6 + j, h / 2 * 5 + c);
				assert_true(fabs(case_get(f.op.operand[RH_ATTENTION_O], 6 + i, h * 5 + c) - o) < 1e-6);
			}
		}
	}
	case_free(&f);
}

/* The output whose sum is the loss here is the row losses; scale multiplies the gradient. */
static void test_head_loss_gradients_are_the_derivative(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	double cotangent[4] = {0.5, 0.5, 0.5, 0.5};
	struct op_case f = {.seed = &seed, .op.kind = RH_OP_HEAD_LOSS, .op.head_loss.scale = 0.5f};
	case_operand(&f, RH_HEAD_LOSS_H, RH_F32, 4, 6, 0, FILL_RANDOM);
	case_operand(&f, RH_HEAD_LOSS_W, RH_F32, 9, 6, 1, FILL_RANDOM);
	struct rh_view target = case_operand(&f, RH_HEAD_LOSS_TARGET, RH_I32, 4, 1, 0, FILL_NONE);
	for (int i = 0; i < 4; i++)
		case_put(target, i, 0, i * 2);
	case_operand(&f, RH_HEAD_LOSS_LOGITS, RH_F32, 2, 9, 0, FILL_POISON);
	case_operand(&f, RH_HEAD_LOSS_LOSS, RH_F32, 4, 1, 0, FILL_POISON);
	case_operand(&f, RH_HEAD_LOSS_HIT, RH_I32, 4, 1, 0, FILL_NONE);
	case_operand(&f, RH_HEAD_LOSS_LOW, RH_F32, 4, 3, 1, FILL_RANDOM);
	case_operand(&f, RH_HEAD_LOSS_UP, RH_F32, 9, 3, 0, FILL_RANDOM);
	struct op_case b = case_clone(&f);
	case_operand(&b, RH_HEAD_LOSS_DLOW, RH_F32, 4, 3, 0, FILL_POISON);
	struct rh_view dup = case_operand(&b, RH_HEAD_LOSS_DUP, RH_F32, 9, 3, 0, FILL_NONE);
	memset(dup.data, 0, 9 * 3 * 4);
	case_operand(&b, RH_HEAD_LOSS_DH, RH_F32, 4, 6, 0, FILL_POISON);
	struct rh_view dw = case_operand(&b, RH_HEAD_LOSS_DW, RH_F32, 9, 6, 0, FILL_NONE);
	memset(dw.data, 0, 9 * 6 * 4);
	rh_op_oracle(&b.op);
	check_derivative(&f, RH_HEAD_LOSS_LOSS, cotangent, RH_HEAD_LOSS_H, b.op.operand[RH_HEAD_LOSS_DH]);
	check_derivative(&f, RH_HEAD_LOSS_LOSS, cotangent, RH_HEAD_LOSS_W, dw);
	check_derivative(&f, RH_HEAD_LOSS_LOSS, cotangent, RH_HEAD_LOSS_LOW, b.op.operand[RH_HEAD_LOSS_DLOW]);
	check_derivative(&f, RH_HEAD_LOSS_LOSS, cotangent, RH_HEAD_LOSS_UP, dup);
	case_free(&f);
	case_free(&b);
}

/* Equal logits: the loss is log V, and the first of equals is the hit. */
static void test_head_loss_of_equal_logits_is_log_v(void **state)
{
	(void)state;
	float h[2] = {1, 2}, w[3 * 1] = {0, 0, 0}, logits[3], losses[2];
	int32_t target[2] = {0, 2}, hit[2] = {7, 7};
	struct rh_op op = {.kind = RH_OP_HEAD_LOSS, .head_loss.scale = 1};
	op.operand[RH_HEAD_LOSS_H] = rh_view_of(h, RH_F32, 2, 1);
	op.operand[RH_HEAD_LOSS_W] = rh_view_of(w, RH_F32, 3, 1);
	op.operand[RH_HEAD_LOSS_TARGET] = rh_view_of(target, RH_I32, 2, 1);
	op.operand[RH_HEAD_LOSS_LOGITS] = rh_view_of(logits, RH_F32, 1, 3);
	op.operand[RH_HEAD_LOSS_LOSS] = rh_view_of(losses, RH_F32, 2, 1);
	op.operand[RH_HEAD_LOSS_HIT] = rh_view_of(hit, RH_I32, 2, 1);
	rh_op_oracle(&op);
	assert_true(fabsf(losses[0] - logf(3)) < 1e-6f && fabsf(losses[1] - logf(3)) < 1e-6f);
	assert_int_equal(hit[0], 1);
	assert_int_equal(hit[1], 0);
}

/* (1 2; 3 4; 5 6) and (7 8 9; 10 11 12), in all four ways of lying; alpha 2, c of ones, a bias. */
static void test_gemm_known_answer_in_every_layout(void **state)
{
	(void)state;
	float a[6] = {1, 2, 3, 4, 5, 6}, at[6] = {1, 3, 5, 2, 4, 6}, b[6] = {7, 8, 9, 10, 11, 12}, bt[6] = {7, 10, 8, 11, 9, 12};
	const float product[9] = {27, 30, 33, 61, 68, 75, 95, 106, 117};
	float bias[3] = {0.5f, 0, -0.5f}, d[9];
	for (int layout = 0; layout < 8; layout++) {
		struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {layout & 1, layout >> 1 & 1, 2}};
		for (int i = 0; i < 9; i++)
			d[i] = 1;
		op.operand[RH_GEMM_A] = op.gemm.trans_a ? rh_view_of(at, RH_F32, 2, 3) : rh_view_of(a, RH_F32, 3, 2);
		op.operand[RH_GEMM_B] = op.gemm.trans_b ? rh_view_of(bt, RH_F32, 3, 2) : rh_view_of(b, RH_F32, 2, 3);
		op.operand[RH_GEMM_D] = rh_view_of(d, RH_F32, 3, 3);
		if (layout & 4) {
			op.operand[RH_GEMM_C] = op.operand[RH_GEMM_D];
			op.operand[RH_GEMM_BIAS] = rh_view_of(bias, RH_F32, 1, 3);
		}
		rh_op_oracle(&op);
		for (int i = 0; i < 9; i++)
			assert_true(d[i] == 2 * product[i] + (layout & 4 ? 1 + bias[i % 3] : 0));
	}
}

/* Rows named by ascending indices and rows put there are each other's transposes; so are a table and its gradient. */
static void test_row_ops_are_transposes_of_each_other(void **state)
{
	(void)state;
	float x[5] = {1, 2, 3, 4, 5}, y[3], back[5], table[5] = {0, 10, 0, 0, 0};
	int32_t index[3] = {0, 2, 3}, ids[3] = {1, 4, 1};
	struct rh_op op = {.kind = RH_OP_GATHER_ROWS};
	op.operand[RH_GATHER_ROWS_X] = rh_view_of(x, RH_F32, 5, 1);
	op.operand[RH_GATHER_ROWS_INDEX] = rh_view_of(index, RH_I32, 3, 1);
	op.operand[RH_GATHER_ROWS_Y] = rh_view_of(y, RH_F32, 3, 1);
	rh_op_oracle(&op);
	assert_true(y[0] == 1 && y[1] == 3 && y[2] == 4);
	op = (struct rh_op){.kind = RH_OP_SCATTER_ROWS};
	op.operand[RH_SCATTER_ROWS_X] = rh_view_of(y, RH_F32, 3, 1);
	op.operand[RH_SCATTER_ROWS_INDEX] = rh_view_of(index, RH_I32, 3, 1);
	op.operand[RH_SCATTER_ROWS_Y] = rh_view_of(back, RH_F32, 5, 1);
	rh_op_oracle(&op);
	assert_true(back[0] == 1 && back[1] == 0 && back[2] == 3 && back[3] == 4 && back[4] == 0);
	op = (struct rh_op){.kind = RH_OP_EMBEDDING_BACKWARD};
	op.operand[RH_EMBEDDING_BACKWARD_IDS] = rh_view_of(ids, RH_I32, 3, 1);
	op.operand[RH_EMBEDDING_BACKWARD_DY] = rh_view_of(y, RH_F32, 3, 1);
	op.operand[RH_EMBEDDING_BACKWARD_DTABLE] = rh_view_of(table, RH_F32, 5, 1);
	rh_op_oracle(&op);
	assert_true(table[0] == 0 && table[1] == 15 && table[4] == 3);
}

/* Position 0 turns nothing; position 1 with frequency 1 turns (1, 0) to (cos 1, sin 1). */
static void test_rope_known_answer(void **state)
{
	(void)state;
	int32_t position[2] = {0, 1};
	float table[4], x[4] = {3, 4, 1, 0};
	struct rh_op op = {.kind = RH_OP_ROPE_TABLE, .rope_table.scale = 1};
	op.rope_table.inv_freq[0] = 1;
	op.operand[RH_ROPE_TABLE_POSITION] = rh_view_of(position, RH_I32, 2, 1);
	op.operand[RH_ROPE_TABLE_TABLE] = rh_view_of(table, RH_F32, 2, 2);
	rh_op_oracle(&op);
	op = (struct rh_op){.kind = RH_OP_ROPE, .rope = {1, 0}};
	op.operand[RH_ROPE_X] = rh_view_of(x, RH_F32, 2, 2);
	op.operand[RH_ROPE_TABLE_IN] = rh_view_of(table, RH_F32, 2, 2);
	rh_op_oracle(&op);
	assert_true(x[0] == 3 && x[1] == 4 && fabsf(x[2] - 0.54030231f) < 1e-6f && fabsf(x[3] - 0.84147098f) < 1e-6f);
	float quarter[4] = {0, 1, 1, 0}, y[5] = {9, 1, 2, 3, 4}; /* cosines and sines of 90 degrees, and of none */
	op = (struct rh_op){.kind = RH_OP_ROPE, .rope = {.heads = 1, .first = 1, .adjacent = 1}};
	op.operand[RH_ROPE_X] = rh_view_of(y, RH_F32, 1, 5);
	op.operand[RH_ROPE_TABLE_IN] = rh_view_of(quarter, RH_F32, 1, 4);
	rh_op_oracle(&op);
	assert_true(y[0] == 9 && y[1] == -2 && y[2] == 1 && y[3] == 3 && y[4] == 4);
	op = (struct rh_op){.kind = RH_OP_ROPE_TABLE, .rope_table = {.scale = 1, .growth = 0.1f, .step = 8}};
	position[0] = 7, position[1] = 16;
	op.operand[RH_ROPE_TABLE_POSITION] = rh_view_of(position, RH_I32, 2, 1);
	op.operand[RH_ROPE_TABLE_TABLE] = rh_view_of(table, RH_F32, 2, 2);
	rh_op_oracle(&op); /* frequency 0: cosines of 1; 1 + 0.1 log 3 */
	assert_true(table[0] == 1 && fabsf(table[2] - 1.10986123f) < 1e-6f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rmsnorm_backward_is_the_derivative),
	        cmocka_unit_test(test_glu_backward_is_the_derivative),
	        cmocka_unit_test(test_activation_backward_is_the_derivative),
	        cmocka_unit_test(test_layernorm_backward_is_the_derivative),
	        cmocka_unit_test(test_rope_inverse_is_the_derivative),
	        cmocka_unit_test(test_attention_backward_is_the_derivative),
	        cmocka_unit_test(test_attention_is_a_softmax),
	        cmocka_unit_test(test_attention_drops_without_a_bias),
	        cmocka_unit_test(test_head_loss_gradients_are_the_derivative),
	        cmocka_unit_test(test_head_loss_of_equal_logits_is_log_v),
	        cmocka_unit_test(test_gemm_known_answer_in_every_layout),
	        cmocka_unit_test(test_row_ops_are_transposes_of_each_other),
	        cmocka_unit_test(test_rope_known_answer),
	        cmocka_unit_test(test_latent_backward_is_the_derivative),
	        cmocka_unit_test(test_latent_known_answer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
