#include "check.h"

#include "core/float16.h"
#include "device/cpu/kernels.h"

#include <math.h>
#include <string.h>

static uint64_t seed;
enum { RANK = 5 };

struct problem {
	int64_t rows, hidden, vocabulary, chunk;
	enum rh_dtype act;
	int gradient; /* dh and dw wanted */
	struct rh_op op;
	char *memory;
};

static struct rh_view fill(char **at, enum rh_dtype dtype, int64_t rows, int64_t cols, float scale)
{
	struct rh_view view = rh_view_of(*at, dtype, rows, cols);
	for (int64_t i = 0; i < rows * cols; i++) {
		float value = scale * check_uniform(&seed);
		if (dtype == RH_BF16)
			((uint16_t *)view.data)[i] = rh_f32_to_bf16(value);
		else
			((float *)view.data)[i] = value;
	}
	*at += (rh_view_bytes(view) + 63) / 64 * 64;
	return view;
}

/* dw starts as random numbers: the op adds to it. */
static void setup(struct problem *p, float spread)
{
	int64_t n = p->rows, width = p->hidden, v = p->vocabulary;
	p->memory = aligned_alloc(
	        64,
	        (size_t)(4 * (2 * n * width + 2 * v * width + p->chunk * v + 4 * n + 2 * v + 2 * RANK * (n + v)) + 64 * 15) / 64 * 64 + 64);
	char *at = p->memory;
	p->op = (struct rh_op){.kind = RH_OP_HEAD_LOSS, .head_loss = {.scale = 0.125f}};
	struct rh_view *operand = p->op.operand;
	operand[RH_HEAD_LOSS_H] = fill(&at, p->act, n, width, spread);
	operand[RH_HEAD_LOSS_W] = fill(&at, p->act, v, width, 1);
	operand[RH_HEAD_LOSS_TARGET] = fill(&at, RH_I32, n, 1, 0);
	for (int64_t i = 0; i < n; i++)
		((int32_t *)operand[RH_HEAD_LOSS_TARGET].data)[i] = (int32_t)(check_random(&seed) % (uint32_t)v);
	if (p->rows % 2)
		p->op.head_loss.alpha = 0.6f;
	if (p->vocabulary % 3 == 1)
		p->op.head_loss.cap = 1.5f;
	operand[RH_HEAD_LOSS_LOGITS] = fill(&at, RH_F32, p->chunk, v, NAN);
	operand[RH_HEAD_LOSS_LOSS] = fill(&at, RH_F32, n, 1, NAN);
	operand[RH_HEAD_LOSS_HIT] = fill(&at, RH_I32, n, 1, NAN);
	if (p->rows != 40) /* one shape goes without */
		operand[RH_HEAD_LOSS_BIAS] = fill(&at, p->act, 1, v, spread);
	if (p->rows % 2) /* a weight for each row */
		operand[RH_HEAD_LOSS_MIX] = fill(&at, RH_F32, n, 1, 2);
	if (p->gradient) {
		operand[RH_HEAD_LOSS_DH] = fill(&at, p->act, n, width, 1);
		operand[RH_HEAD_LOSS_DW] = fill(&at, RH_F32, v, width, 0.01f);
		operand[RH_HEAD_LOSS_DBIAS] = fill(&at, RH_F32, 1, v, 0);
	}
	if (p->rows % 4 == 3 || p->rows == 40) { /* an adapter */
		operand[RH_HEAD_LOSS_LOW] = fill(&at, p->act, n, RANK, spread);
		operand[RH_HEAD_LOSS_UP] = fill(&at, p->act, v, RANK, 1);
	}
	if (operand[RH_HEAD_LOSS_LOW].data && p->gradient) {
		operand[RH_HEAD_LOSS_DLOW] = fill(&at, p->act, n, RANK, 1);
		operand[RH_HEAD_LOSS_DUP] = fill(&at, RH_F32, v, RANK, 0);
	}
}

static void run(const struct rh_op *op, int threads, enum rh_cpu_isa isa)
{
	struct cpu_context context = {.isa = isa};
	check_ok(rh_pool_create(threads, &context.pool));
	check_ok(cpu_head_loss(&context, op));
	rh_pool_destroy(context.pool);
}

static double at(struct rh_view view, int64_t row, int64_t col)
{
	int64_t i = row * view.stride + col;
	return view.dtype == RH_F32 ? (double)((float *)view.data)[i] : (double)rh_bf16_to_f32(((uint16_t *)view.data)[i]);
}

/* |got - want|_2 <= tolerance |want|_2 over what was collected. */
struct distance {
	double off, size;
};

static void collect(struct distance *d, double got, double want)
{
	d->off += (got - want) * (got - want);
	d->size += want * want;
}

/* Plain fp64 from the same inputs. fp32 keeps about 1e-6 of a gradient; bf16 rounds each stored number by up to 2^-9 of it, twice. */
static void compare(const struct problem *p, const float *dw_before)
{
	const struct rh_view *operand = p->op.operand;
	double tolerance = p->act == RH_F32 ? 3e-6 : 4e-3, alpha = p->op.head_loss.alpha == 0 ? 1 : (double)p->op.head_loss.alpha;
	double cap = (double)p->op.head_loss.cap, *logit = malloc((size_t)p->vocabulary * 8),
	       *dw = calloc((size_t)(p->vocabulary * p->hidden), 8);
	double *dbias = calloc((size_t)p->vocabulary, 8), *dup = calloc((size_t)p->vocabulary * RANK, 8);
	struct distance dh_off = {0}, dw_off = {0};
	for (int64_t i = 0; i < p->rows; i++) {
		int32_t target = ((int32_t *)operand[RH_HEAD_LOSS_TARGET].data)[i], best = 0;
		double sum = 0;
		for (int64_t v = 0; v < p->vocabulary; v++) {
			logit[v] = operand[RH_HEAD_LOSS_BIAS].data ? at(operand[RH_HEAD_LOSS_BIAS], 0, v) : 0;
			for (int64_t j = 0; j < p->hidden; j++)
				logit[v] += alpha * at(operand[RH_HEAD_LOSS_H], i, j) * at(operand[RH_HEAD_LOSS_W], v, j);
			for (int64_t j = 0; j < operand[RH_HEAD_LOSS_LOW].cols; j++)
				logit[v] += at(operand[RH_HEAD_LOSS_LOW], i, j) * at(operand[RH_HEAD_LOSS_UP], v, j);
			logit[v] = cap > 0 ? cap * tanh(logit[v] / cap) : logit[v];
			best = logit[v] > logit[best] ? (int32_t)v : best;
		}
		double largest = logit[best];
		for (int64_t v = 0; v < p->vocabulary; v++)
			sum += exp(logit[v] - largest);
		double weight = operand[RH_HEAD_LOSS_MIX].data ? at(operand[RH_HEAD_LOSS_MIX], i, 0) : 1;
		double loss = weight * (log(sum) + logit[best] - logit[target]), got = at(operand[RH_HEAD_LOSS_LOSS], i, 0);
		if (!(fabs(got - loss) <= 1e-5 * (1 + fabs(logit[best]) + fabs(logit[target])))) {
			print_error("row %ld: loss %.9g, expected %.9g\n", (long)i, got, loss);
			fail();
		}
		assert_int_equal(((int32_t *)operand[RH_HEAD_LOSS_HIT].data)[i], best == target);
		if (!p->gradient)
			continue;
		for (int64_t v = 0; v < p->vocabulary; v++) {
			double slope = cap > 0 ? 1 - logit[v] * logit[v] / (cap * cap) : 1;
			logit[v] = (exp(logit[v] - largest) / sum - (v == target)) * (double)p->op.head_loss.scale * weight * slope;
			dbias[v] += logit[v];
		}
		for (int64_t j = 0; j < p->hidden; j++) {
			double dh = 0;
			for (int64_t v = 0; v < p->vocabulary; v++) {
				dh += alpha * logit[v] * at(operand[RH_HEAD_LOSS_W], v, j);
				dw[v * p->hidden + j] += alpha * logit[v] * at(operand[RH_HEAD_LOSS_H], i, j);
			}
			collect(&dh_off, at(operand[RH_HEAD_LOSS_DH], i, j), dh);
		}
		for (int64_t j = 0; j < operand[RH_HEAD_LOSS_LOW].cols; j++) {
			double dlow = 0;
			for (int64_t v = 0; v < p->vocabulary; v++) {
				dlow += logit[v] * at(operand[RH_HEAD_LOSS_UP], v, j);
				dup[v * RANK + j] += logit[v] * at(operand[RH_HEAD_LOSS_LOW], i, j);
			}
			collect(&dh_off, at(operand[RH_HEAD_LOSS_DLOW], i, j), dlow);
		}
	}
	for (int64_t i = 0; p->gradient && i < p->vocabulary * p->hidden; i++)
		collect(&dw_off, at(operand[RH_HEAD_LOSS_DW], 0, i) - (double)dw_before[i], dw[i]);
	for (int64_t v = 0; p->gradient && v < p->vocabulary; v++)
		collect(&dw_off, at(operand[RH_HEAD_LOSS_DBIAS], 0, v), dbias[v]);
	for (int64_t i = 0; operand[RH_HEAD_LOSS_DUP].data && i < p->vocabulary * RANK; i++)
		collect(&dw_off, at(operand[RH_HEAD_LOSS_DUP], 0, i), dup[i]);
	if (!(sqrt(dh_off.off) <= tolerance * sqrt(dh_off.size)) || !(sqrt(dw_off.off) <= tolerance * sqrt(dw_off.size) + 1e-7)) {
		print_error("%s, %ld rows, vocabulary %ld: dh off by %g of %g, dw by %g of %g\n", rh_dtype_name(p->act), (long)p->rows,
		            (long)p->vocabulary, sqrt(dh_off.off), sqrt(dh_off.size), sqrt(dw_off.off), sqrt(dw_off.size));
		fail();
	}
	free(logit);
	free(dw);
	free(dbias);
	free(dup);
}

static void check_problem(struct problem p, float spread, enum rh_cpu_isa isa)
{
	setup(&p, spread);
	size_t bytes = (size_t)rh_view_bytes(p.op.operand[RH_HEAD_LOSS_DW]);
	float *before = p.gradient ? memcpy(malloc(bytes), p.op.operand[RH_HEAD_LOSS_DW].data, bytes) : NULL;
	run(&p.op, 2, isa);
	compare(&p, before);
	free(before);
	free(p.memory);
}

static void test_losses_and_gradients_equal_plain_ones(void **state)
{
	(void)state;
	seed = check_seed();
	static const int64_t shapes[][4] = {{1, 8, 5, 1}, {7, 24, 130, 3}, {40, 33, 517, 16}, {20, 64, 1000, 20}, {5, 16, 64, 9}};
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
		for (int i = 0; i < 5 * 4; i++) {
			const int64_t *s = shapes[i % 5];
			struct problem p = {s[0], s[1], s[2], s[3], i / 5 & 1 ? RH_BF16 : RH_F32, i / 10, {0}, NULL};
			check_problem(p, 1, isa);
		}
	}
}

/* Logits in the thousands: e^x alone would overflow. */
static void test_large_logits_stay_finite(void **state)
{
	(void)state;
	seed = check_seed();
	struct problem p = {9, 32, 300, 4, RH_F32, 0, {0}, NULL};
	check_problem(p, 500, rh_cpu_best_isa());
}

static void test_a_tie_is_hit_by_its_first_only(void **state)
{
	(void)state;
	float h[2] = {1, 1}, w[5] = {0, 3, 1, 3, 2}, logits[5], loss[2];
	int32_t target[2] = {3, 1}, hit[2];
	struct rh_op op = {.kind = RH_OP_HEAD_LOSS, .head_loss = {.scale = 1}};
	op.operand[RH_HEAD_LOSS_H] = rh_view_of(h, RH_F32, 2, 1);
	op.operand[RH_HEAD_LOSS_W] = rh_view_of(w, RH_F32, 5, 1);
	op.operand[RH_HEAD_LOSS_TARGET] = rh_view_of(target, RH_I32, 2, 1);
	op.operand[RH_HEAD_LOSS_LOGITS] = rh_view_of(logits, RH_F32, 1, 5);
	op.operand[RH_HEAD_LOSS_LOSS] = rh_view_of(loss, RH_F32, 2, 1);
	op.operand[RH_HEAD_LOSS_HIT] = rh_view_of(hit, RH_I32, 2, 1);
	run(&op, 1, rh_cpu_best_isa());
	assert_int_equal(hit[0], 0);
	assert_int_equal(hit[1], 1);
	assert_true(loss[0] == loss[1]);
}

static void test_any_threads_give_the_same_bits(void **state)
{
	(void)state;
	seed = check_seed();
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
		for (int bf16 = 0; bf16 < 2; bf16++) {
			struct problem p = {37, 64, 3001, 16, bf16 ? RH_BF16 : RH_F32, 1, {0}, NULL};
			setup(&p, 1);
			const struct rh_view *operand = p.op.operand;
			size_t dw_bytes = (size_t)rh_view_bytes(operand[RH_HEAD_LOSS_DW]),
			       dh_bytes = (size_t)rh_view_bytes(operand[RH_HEAD_LOSS_DH]);
			void *before = memcpy(malloc(dw_bytes), operand[RH_HEAD_LOSS_DW].data, dw_bytes), *dw = NULL, *dh = NULL,
			     *loss = NULL;
			for (int threads = 1; threads <= 8; threads *= 2) {
				memcpy(operand[RH_HEAD_LOSS_DW].data, before, dw_bytes);
				run(&p.op, threads, isa);
				if (threads == 1) {
					dw = memcpy(malloc(dw_bytes), operand[RH_HEAD_LOSS_DW].data, dw_bytes);
					dh = memcpy(malloc(dh_bytes), operand[RH_HEAD_LOSS_DH].data, dh_bytes);
					loss = memcpy(malloc(37 * 4), operand[RH_HEAD_LOSS_LOSS].data, 37 * 4);
				}
				assert_memory_equal(dw, operand[RH_HEAD_LOSS_DW].data, dw_bytes);
				assert_memory_equal(dh, operand[RH_HEAD_LOSS_DH].data, dh_bytes);
				assert_memory_equal(loss, operand[RH_HEAD_LOSS_LOSS].data, 37 * 4);
			}
			free(before);
			free(dw);
			free(dh);
			free(loss);
			free(p.memory);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_losses_and_gradients_equal_plain_ones),
	        cmocka_unit_test(test_large_logits_stay_finite),
	        cmocka_unit_test(test_a_tie_is_hit_by_its_first_only),
	        cmocka_unit_test(test_any_threads_give_the_same_bits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
