#include "check.h"

#include "core/float16.h"
#include "device/cpu/kernels.h"

#include <math.h>
#include <string.h>

static uint64_t seed;

struct matrix {
	struct rh_view view;
	int64_t bytes;
};

/* (rows, cols) of random numbers in [-1, 1), rows `stride` apart; NaN between them, which a wrong read would spread. */
static struct matrix matrix(enum rh_dtype dtype, int64_t rows, int64_t cols, int64_t stride)
{
	struct matrix made = {.view = {NULL, dtype, rows, cols, stride}};
	int64_t elements = stride ? rows * stride + 1 : 0;
	made.bytes = rh_dtype_bytes(dtype, elements);
	made.view.data = malloc((size_t)made.bytes + 1);
	for (int64_t i = 0; i < elements; i++) {
		float value = i / stride < rows && i % stride < cols ? check_uniform(&seed) : NAN;
		if (dtype == RH_F32)
			((float *)made.view.data)[i] = value;
		else
			((uint16_t *)made.view.data)[i] = rh_f32_to_bf16(value);
	}
	return made;
}

static struct matrix copy_of(struct matrix from)
{
	struct matrix made = from;
	made.view.data = malloc((size_t)from.bytes);
	memcpy(made.view.data, from.view.data, (size_t)from.bytes);
	return made;
}

static double at(struct rh_view view, int64_t row, int64_t col)
{
	int64_t i = row * view.stride + col;
	return view.dtype == RH_F32 ? (double)((float *)view.data)[i] : (double)rh_bf16_to_f32(((uint16_t *)view.data)[i]);
}

struct shape {
	int64_t m, n, k;
	int trans_a, trans_b;
};

struct test {
	struct matrix a, b, c, bias, d;
	struct rh_op op;
};

enum { WITH_C = 1, WITH_BIAS = 2, IN_PLACE = 4, D_F32 = 8, STRIDED = 16, SCALED = 32 };

static struct test setup(struct shape s, enum rh_dtype act, int flags)
{
	struct test t = {.op = {.kind = RH_OP_GEMM, .gemm = {s.trans_a, s.trans_b, flags & SCALED ? -0.37f : 1}}};
	int64_t gap = flags & STRIDED ? 5 : 0;
	enum rh_dtype out = flags & D_F32 ? RH_F32 : act;
	int64_t a_cols = s.trans_a ? s.m : s.k, b_cols = s.trans_b ? s.k : s.n;
	t.a = matrix(act, s.trans_a ? s.k : s.m, a_cols, a_cols + gap);
	t.b = matrix(act, s.trans_b ? s.n : s.k, b_cols, b_cols + 2 * gap);
	t.d = matrix(out, s.m, s.n, s.n + 3 * gap);
	if (flags & (WITH_C | IN_PLACE))
		t.c = flags & IN_PLACE ? copy_of(t.d) : matrix(out, s.m, s.n, s.n + gap);
	if (flags & WITH_BIAS)
		t.bias = matrix(act, 1, s.n, s.n);
	t.op.operand[RH_GEMM_A] = t.a.view;
	t.op.operand[RH_GEMM_B] = t.b.view;
	t.op.operand[RH_GEMM_C] = flags & IN_PLACE ? t.d.view : t.c.view;
	t.op.operand[RH_GEMM_BIAS] = t.bias.view;
	t.op.operand[RH_GEMM_D] = t.d.view;
	return t;
}

static void teardown(struct test *t)
{
	free(t->a.view.data);
	free(t->b.view.data);
	free(t->c.view.data);
	free(t->bias.view.data);
	free(t->d.view.data);
}

static void run(const struct rh_op *op, int threads, enum rh_cpu_isa isa)
{
	struct cpu_context context = {.isa = isa};
	check_ok(rh_pool_create(threads, &context.pool));
	check_ok(cpu_gemm(&context, op));
	rh_pool_destroy(context.pool);
}

/* Against fp64. Each of the k additions rounds by at most 2^-24 of the sum so far, which is at most S, the sum of absolute values; such
 * errors add like a random walk: 8 sqrt(k) of them is beyond chance, and far below one product gone wrong. Stored as bf16: 2^-9 more. */
static void compare(const struct test *t, const char *what)
{
	const struct rh_op *op = &t->op;
	struct rh_view a = t->a.view, b = t->b.view, d = t->d.view;
	int64_t k = op->gemm.trans_a ? a.rows : a.cols;
	for (int64_t i = 0; i < d.rows; i++) {
		for (int64_t j = 0; j < d.cols; j++) {
			double sum = 0, size = 0;
			for (int64_t l = 0; l < k; l++) {
				double x = (op->gemm.trans_a ? at(a, l, i) : at(a, i, l)) * (op->gemm.trans_b ? at(b, j, l) : at(b, l, j));
				sum += x;
				size += fabs(x);
			}
			sum *= (double)op->gemm.alpha;
			if (t->c.view.data)
				sum += at(t->c.view, i, j), size += fabs(at(t->c.view, i, j));
			if (t->bias.view.data)
				sum += at(t->bias.view, 0, j), size += fabs(at(t->bias.view, 0, j));
			double bound = 8 * sqrt((double)k + 4) * 0x1p-24 * size + (d.dtype == RH_BF16 ? fabs(sum) * 0x1p-8 : 0);
			double got = at(d, i, j);
			if (!(fabs(got - sum) <= bound)) {
				print_error("%s: m %ld n %ld k %ld trans %d %d, at (%ld,%ld): %.9g, expected %.9g +- %.2g\n", what,
				            (long)d.rows, (long)d.cols, (long)k, op->gemm.trans_a, op->gemm.trans_b, (long)i, (long)j, got,
				            sum, bound);
				fail();
			}
		}
	}
	for (int64_t i = 0; i < d.rows; i++) { /* nothing written between the rows */
		for (int64_t j = d.cols; j < d.stride; j++)
			assert_true(isnan(at(d, i, j)));
	}
}

static void check_shape(struct shape s, enum rh_dtype act, int flags, enum rh_cpu_isa isa)
{
	struct test t = setup(s, act, flags);
	run(&t.op, 2, isa);
	char what[64];
	snprintf(what, sizeof what, "%s %s flags %d", rh_cpu_isa_name(isa), rh_dtype_name(act), flags);
	compare(&t, what);
	teardown(&t);
}

static void test_random_shapes_equal_the_plain_sum(void **state)
{
	(void)state;
	seed = check_seed();
	static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 14, 15, 16, 17, 28, 31, 32, 33, 48, 49, 63, 90, 101, 130};
	static const int64_t depths[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 64, 90, 383, 384, 385, 400, 777};
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
		for (int i = 0; i < (CHECK_THREADS_ONLY ? 50 : 150); i++) {
			struct shape s = {sizes[check_random(&seed) % 20], sizes[check_random(&seed) % 20],
			                  depths[check_random(&seed) % 18], (int)(check_random(&seed) & 1), (int)(check_random(&seed) & 1)};
			check_shape(s, check_random(&seed) & 1 ? RH_F32 : RH_BF16, (int)(check_random(&seed) & 63), isa);
		}
	}
}

static void test_every_flag_in_every_path(void **state)
{
	(void)state;
	seed = check_seed();
	static const int64_t shapes[][3] = {{37, 45, 50}, {1, 70, 40}, {60, 8, 33}, {8, 61, 20}, {75, 16, 390}, {16, 16, 16}, {20, 40, 8}};
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
		for (int i = (int)isa; i < 7 * 64 * 4 * 2; i += CHECK_THREADS_ONLY ? 11 : 3) { /* some of them on each */
			const int64_t *mnk = shapes[i % 7];
			int flags = i / 7 % 64, trans = i / 7 / 64 % 4;
			struct shape s = {mnk[0], mnk[1], mnk[2], trans & 1, trans >> 1};
			check_shape(s, i / 7 / 256 ? RH_BF16 : RH_F32, flags, isa);
		}
	}
}

static void test_no_depth_gives_c_and_bias(void **state)
{
	(void)state;
	seed = check_seed();
	for (int64_t n = 8; n <= 40; n += 32) {
		for (int trans = 0; trans < 4; trans++)
			check_shape((struct shape){33, n, 0, trans & 1, trans >> 1}, RH_F32, WITH_C | WITH_BIAS, rh_cpu_best_isa());
	}
}

static void test_extreme_values_stay_in_their_row_and_column(void **state)
{
	(void)state;
	seed = check_seed();
	struct test t = setup((struct shape){40, 50, 60, 0, 1}, RH_F32, 0);
	((float *)t.a.view.data)[7 * 60 + 3] = INFINITY;
	((float *)t.b.view.data)[9 * 60 + 5] = NAN;
	run(&t.op, 2, rh_cpu_best_isa());
	for (int i = 0; i < 40; i++) {
		for (int j = 0; j < 50; j++)
			assert_int_equal(isfinite(at(t.d.view, i, j)), i != 7 && j != 9);
	}
	teardown(&t);
}

static void check_threads(struct shape s, enum rh_dtype act, int flags, enum rh_cpu_isa isa)
{
	struct test t = setup(s, act, flags);
	struct matrix before = copy_of(t.d), first = {0};
	static const int threads[] = {1, 2, 8, 1, 4};
	for (int i = 0; i < (CHECK_THREADS_ONLY ? 3 : 5); i++) {
		memcpy(t.d.view.data, before.view.data, (size_t)before.bytes);
		run(&t.op, threads[i], isa);
		if (!i)
			first = copy_of(t.d);
		else if (memcmp(first.view.data, t.d.view.data, (size_t)first.bytes) != 0) {
			print_error("%s, %s: m %ld n %ld k %ld trans %d %d differs on %d threads\n", rh_cpu_isa_name(isa),
			            rh_dtype_name(act), (long)s.m, (long)s.n, (long)s.k, s.trans_a, s.trans_b, threads[i]);
			fail();
		}
	}
	free(before.view.data);
	free(first.view.data);
	teardown(&t);
}

/* The products of one linear layer (in -> out) on T rows: forward, gradient of the input, gradient of the weight. */
static void check_linear(int64_t rows, int64_t in, int64_t out, enum rh_dtype act, enum rh_cpu_isa isa)
{
	check_threads((struct shape){rows, out, in, 0, 1}, act, 0, isa);
	check_threads((struct shape){rows, in, out, 0, 0}, act, 0, isa);
	check_threads((struct shape){out, in, rows, 1, 0}, act, IN_PLACE | D_F32, isa);
}

/* SmolLM2-135M's, with LoRA of rank 8 beside each. */
static void test_demo_shapes_are_bit_equal_on_any_threads(void **state)
{
	(void)state;
	seed = check_seed();
	static const int64_t layers[][2] = {{576, 960}, {576, 576}, {576, 3072}, {1536, 576}};
	static const int64_t rows[] = {1, 7, 90, 611, 664, 1033};
	int is_long = getenv("RH_LONG") != NULL, vocabulary = CHECK_THREADS_ONLY ? 49152 / 16 : 49152;
	for (enum rh_cpu_isa isa = RH_CPU_AVX2; isa <= rh_cpu_best_isa(); isa++) {
		for (int i = 0; i < (is_long ? 6 : CHECK_THREADS_ONLY ? 2 : 4); i++) {
			for (int j = 0; j < 4; j++) {
				if (isa == rh_cpu_best_isa() || i < (is_long ? 4 : 3))
					check_linear(rows[i], layers[j][0], layers[j][1], RH_F32, isa);
				check_linear(rows[i], layers[j][0], 8, RH_F32, isa);
				check_linear(rows[i], 8, layers[j][1], RH_F32, isa);
			}
			check_linear(rows[i], 576, 960, RH_BF16, isa);
			check_linear(rows[i], 576, 8, RH_BF16, isa);
			check_linear(rows[i], 8, 576, RH_BF16, isa);
		}
		check_linear(33, 576, vocabulary, RH_F32, isa);
		check_threads((struct shape){1, vocabulary, 576, 0, 1}, RH_F32, 0, isa);
	}
}

/* Where a library that cuts k by its threads was seen to differ. */
static void test_deep_products_are_bit_equal_on_any_threads(void **state)
{
	(void)state;
	seed = check_seed();
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
		for (int trans = 0; trans < 4; trans++) {
			for (int64_t k = 4096; k <= (CHECK_THREADS_ONLY ? 4096 : 8192); k *= 2) {
				check_threads((struct shape){576, 8, k, trans & 1, trans >> 1}, RH_F32, 0, isa);
				check_threads((struct shape){8, 576, k, trans & 1, trans >> 1}, RH_F32, WITH_C, isa);
				check_threads((struct shape){64, 64, k, trans & 1, trans >> 1}, RH_F32, 0, isa);
				check_threads((struct shape){64, 64, k, trans & 1, trans >> 1}, RH_BF16, 0, isa);
			}
		}
		check_shape((struct shape){64, 64, 8192, 0, 1}, RH_F32, 0, isa);
		check_shape((struct shape){64, 64, 8192, 0, 1}, RH_BF16, 0, isa);
	}
}

/* A k as long as a vocabulary, which is packed in parts that depend on the number of rows: each row has the bits that it has alone. */
static void test_products_over_a_vocabulary_are_bit_equal_in_parts(void **state)
{
	(void)state;
	enum { ROWS = 16, COLS = 70, K = 40001 };
	seed = check_seed();
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++)
		for (int act = 0; act < (isa < RH_CPU_BF16 ? 2 : 1); act++) { /* from there on there are tiles for so many rows of BF16 */
			struct test t = setup((struct shape){ROWS, COLS, K, 0, 0}, act ? RH_BF16 : RH_F32, D_F32);
			run(&t.op, 2, isa);
			if (isa == rh_cpu_best_isa())
				compare(&t, "a long k");
			struct matrix whole = copy_of(t.d);
			static const int64_t some[] = {1, 3, 9};
			for (int i = 0; i < 3; i++) {
				struct rh_op op = t.op;
				op.operand[RH_GEMM_A].rows = op.operand[RH_GEMM_D].rows = some[i];
				memset(t.d.view.data, 0xff, (size_t)t.d.bytes);
				run(&op, 1, isa);
				if (memcmp(t.d.view.data, whole.view.data, (size_t)(some[i] * COLS) * sizeof(float)))
					fail_msg("%s %d: %d rows alone differ", rh_cpu_isa_name(isa), act, (int)some[i]);
			}
			free(whole.view.data);
			teardown(&t);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_random_shapes_equal_the_plain_sum),
	        cmocka_unit_test(test_every_flag_in_every_path),
	        cmocka_unit_test(test_no_depth_gives_c_and_bias),
	        cmocka_unit_test(test_extreme_values_stay_in_their_row_and_column),
	        cmocka_unit_test(test_demo_shapes_are_bit_equal_on_any_threads),
	        cmocka_unit_test(test_deep_products_are_bit_equal_on_any_threads),
	        cmocka_unit_test(test_products_over_a_vocabulary_are_bit_equal_in_parts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
