/* Lion, SGD, Adafactor and 8-bit AdamW; every kernel of every step and form on every instruction set. */
#include "check.h"
#include "isa.h"
#include "tensor.h"

#include "core/float16.h"
#include "offload/optimizer.h"
#include "offload/simd/kernels.h"

#include <math.h>
#include <string.h>

static struct rh_pool *pool_of(int threads)
{
	struct rh_pool *pool = NULL;
	check_ok(rh_pool_create(threads, &pool));
	return pool;
}

/* tests/reference/offload/optimizers.txt, written by tests/reference/optimizers.py. */
enum { TENSORS = 3 };
static struct rh_tensor tensors[TENSORS] = {TENSOR("w0", 5, 7, 0, 1, 2), TENSOR("w1", 1, 33, 64, 0, 1), TENSOR("w2", 3, 16, 128, 1, 2)};
static struct rh_block reference_spec = {
        .name = "layer", .elements = 192, .trainable = 1, .uses = 1, .tensor = tensors, .tensors = TENSORS};

static FILE *reference(void)
{
	FILE *file = fopen("tests/reference/offload/optimizers.txt", "r");
	if (!file)
		fail_msg("run from the repository's root");
	return file;
}

static double number(FILE *file)
{
	double value;
	assert_int_equal(fscanf(file, "%la", &value), 1);
	return value;
}

static void read_floats(FILE *file, float *to, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		to[i] = (float)number(file);
}

/* Within `bar` of the value or of the largest in the tensor. */
static void near(FILE *file, const float *ours, int64_t count, double bar)
{
	double theirs[64], peak = 0;
	assert_true(count <= 64);
	for (int64_t i = 0; i < count; i++) {
		theirs[i] = number(file);
		peak = fmax(peak, fabs(theirs[i]));
	}
	for (int64_t i = 0; i < count; i++)
		if (!(fabs((double)ours[i] - theirs[i]) <= bar * (fabs(theirs[i]) + 0.1 * peak)))
			fail_msg("element %lld: %.9g, the reference has %.9g", (long long)i, (double)ours[i], theirs[i]);
}

static int64_t size_of(int t)
{
	return tensors[t].rows * tensors[t].cols;
}

static void run_case(FILE *file, struct rh_pool *pool)
{
	int kind = (int)number(file);
	int64_t steps = (int64_t)number(file);
	struct rh_optimizer_settings settings = {.epsilon = 1e-8};
	settings.beta1 = number(file);
	settings.beta2 = number(file);
	settings.momentum = number(file);
	settings.weight_decay = number(file);
	struct rh_store_options options = {.dtype = RH_F32, .optim = (enum rh_optim)kind, .momentum = settings.momentum != 0};
	struct rh_store *store = NULL;
	float values[64];
	check_ok(rh_store_create(&reference_spec, 1, &options, pool, &store));
	for (int t = 0; t < TENSORS; t++) {
		read_floats(file, values, size_of(t));
		check_ok(rh_store_set(store, 0, t, 0, size_of(t), values));
	}
	for (int64_t step = 1; step <= steps; step++) {
		double rate = number(file);
		for (int t = 0; t < TENSORS; t++)
			read_floats(file, (float *)rh_store_gradient(store, 0) + tensors[t].offset, size_of(t));
		check_ok(rh_optimizer_update(store, 0, &(struct rh_update){settings, rate, 1, step, 1}));
		for (int t = 0; t < TENSORS; t++)
			near(file, (const float *)rh_store_weights(store, 0) + tensors[t].offset, size_of(t), 2e-6);
	}
	for (int t = 0; t < TENSORS; t++) {
		struct rh_state state;
		for (int n = 0; rh_store_state(store, 0, t, n, &state); n++)
			near(file, state.data, state.rows * state.cols, 2e-6);
	}
	rh_store_destroy(store);
}

static void test_updates_equal_the_references(void **state)
{
	(void)state;
	FILE *file = reference();
	struct rh_pool *pool = pool_of(2);
	for (int cases = (int)number(file); cases > 0; cases--)
		run_case(file, pool);
	fclose(file);
	rh_pool_destroy(pool);
}

/* The last two lines of the reference. */
static void read_code_values(float values[2][256])
{
	FILE *file = reference();
	fseek(file, 0, SEEK_END);
	long at = ftell(file) - 1;
	for (int lines = 0; lines < 2; at--) {
		fseek(file, at - 1, SEEK_SET);
		lines += fgetc(file) == '\n';
	}
	fseek(file, at + 1, SEEK_SET);
	for (int k = 0; k < 2; k++)
		read_floats(file, values[k], 256);
	fclose(file);
}

static void test_codes_have_the_values_of_bitsandbytes(void **state)
{
	(void)state;
	float values[2][256], ours[256];
	uint8_t codes[256];
	read_code_values(values);
	for (int i = 0; i < 256; i++)
		codes[i] = (uint8_t)i;
	for (int k = 0; k < 2; k++)
		for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
			RH_CPU_PICK(isa, optimizer_kernels).decode(k == 0, codes, 1, ours, 256);
			for (int i = 0; i < 256; i++)
				if (!(fabsf(ours[i] - values[k][i]) <= 2e-6f * fabsf(values[k][i])))
					fail_msg("code %d: %.9g, not %.9g", i, (double)ours[i], (double)values[k][i]);
		}
}

/* No other code's value is nearer, up to rounding where two are equally near; the same code on every instruction set; and a value that
 * codes stand for comes back to its own code. */
static void test_codes_are_the_nearest(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	float values[256];
	uint8_t codes[256], back[RH_CPU_ISAS][256];
	for (int i = 0; i < 256; i++)
		codes[i] = (uint8_t)i;
	for (int k = 0; k < 2; k++) {
		optimizer_kernels_base.decode(k == 0, codes, 1, values, 256);
		optimizer_kernels_base.encode(k == 0, values, 1, back[0], 256);
		assert_memory_equal(back[0], codes, 256);
		for (int round = 0; round < 400; round++) {
			float x[256], largest = round & 1 ? 1 : 3.7e-9f, shown[256];
			int count = round < 200 ? 256 : 1 + round % 255;
			for (int i = 0; i < count; i++) {
				int near_border = round % 3 == 0;
				float between = i < 255 ? (values[i] + values[i + 1]) / 2 : 1;
				float size = powf(10, -8 * fabsf(check_uniform(&seed)));
				x[i] = near_border ? between * (1 + 1e-5f * check_uniform(&seed))
				                   : size * (k                          ? 1
				                             : check_uniform(&seed) < 0 ? -1
				                                                        : 1);
				x[i] = fminf(1, x[i]) * largest;
			}
			for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
				RH_CPU_PICK(isa, optimizer_kernels).encode(k == 0, x, largest, back[isa], count);
				assert_memory_equal(back[isa], back[0], (size_t)count);
			}
			optimizer_kernels_base.decode(k == 0, back[0], largest, shown, count);
			for (int i = 0; i < count; i++) {
				float error = fabsf(shown[i] - x[i]), best = HUGE_VALF;
				for (int c = 0; c < 256; c++)
					best = fminf(best, fabsf(values[c] * largest - x[i]));
				if (!(error <= best + 1e-5f * fabsf(x[i])))
					fail_msg("%.9g of %.9g: error %.3g, %.3g was possible", (double)x[i], (double)largest,
					         (double)error, (double)best);
			}
		}
	}
}

struct arrays {
	uint16_t upper[1000], lower[1000], half[1000];
	float weight[1000], gradient[1000], moment[2][1000], largest[2][4];
	uint8_t code[2][1000];
};

static struct optimizer_span span_of(struct arrays *a, enum optimizer_form form)
{
	struct optimizer_span span = {.weights = a->upper, .gradient = a->half, .moment = {a->moment[0], a->moment[1]}};
	span.code[0] = a->code[0];
	span.code[1] = a->code[1];
	span.largest[0] = a->largest[0];
	span.largest[1] = a->largest[1];
	if (form == FORM_WIDE) {
		span.weights = a->weight;
		span.gradient = a->gradient;
	}
	span.lower = form == FORM_SPLIT ? a->lower : NULL;
	span.master = form == FORM_PLAIN ? a->weight : NULL;
	return span;
}

static void fill_arrays(struct arrays *a, uint64_t *seed)
{
	memset(a, 0, sizeof *a);
	for (int i = 0; i < 1000; i++) {
		int extreme = (int)(check_random(seed) % 8);
		float size = extreme == 0 ? 1e-38f : extreme == 1 ? 1e15f : extreme == 2 ? 0 : 1;
		a->weight[i] = check_uniform(seed);
		a->gradient[i] = check_uniform(seed) * size;
		a->half[i] = rh_f32_to_bf16(a->gradient[i]);
		a->gradient[i] = rh_bf16_to_f32(a->half[i]);
		a->moment[0][i] = check_uniform(seed);
		a->moment[1][i] = fabsf(check_uniform(seed)) * (extreme == 3 ? 1e-40f : 1);
		a->code[0][i] = (uint8_t)check_random(seed);
		a->code[1][i] = (uint8_t)check_random(seed);
		a->upper[i] = rh_f32_to_bf16_away(a->weight[i]);
		a->lower[i] = (uint16_t)rh_f32_bits(a->weight[i]);
	}
	for (int i = 0; i < 4; i++) {
		a->largest[0][i] = i == 3 ? 0 : fabsf(check_uniform(seed));
		a->largest[1][i] = i == 2 ? 1e-38f : fabsf(check_uniform(seed));
	}
}

static const struct optimizer_terms terms[2] = {{.adamw = {.scale = 0.7f,
                                                           .keep = 0.99f,
                                                           .minus_step = -1e-3f,
                                                           .lerp = 0.1f,
                                                           .beta2 = 0.999f,
                                                           .one_minus_beta2 = 0.001f,
                                                           .inverse_root = 0.03f,
                                                           .epsilon = 1e-8f},
                                                 .beta1 = 0.9f,
                                                 .one_minus_beta1 = 0.1f,
                                                 .decay = 0.1f,
                                                 .momentum = 0.9f},
                                                {.adamw = {.scale = 1,
                                                           .keep = 1,
                                                           .minus_step = -0.1f,
                                                           .lerp = -0.4f,
                                                           .lerp_from_end = 1,
                                                           .beta2 = 0.9f,
                                                           .one_minus_beta2 = 0.1f,
                                                           .inverse_root = 0.5f,
                                                           .epsilon = 1e-6f},
                                                 .beta1 = 0.4f,
                                                 .one_minus_beta1 = 0.6f,
                                                 .momentum = 0.5f}};

/* Every step in every form: the same bits on every instruction set, and nothing touched behind the count. */
static void test_kernels_agree_on_tails_and_extremes(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static struct arrays from, out[RH_CPU_ISAS];
	for (int round = 0; round < 130; round++) {
		int count = round < 100 ? round + 1 : 100 + 30 * (round - 100);
		fill_arrays(&from, &seed);
		for (int step = 0; step < OPTIMIZER_STEPS; step++)
			for (int form = 0; form < OPTIMIZER_FORMS; form++) {
				for (enum rh_cpu_isa isa = RH_CPU_BASE;
				     isa <= rh_cpu_best_isa() && optimizer_kernels_base.update[step][form]; isa++) {
					out[isa] = from;
					struct optimizer_span span = span_of(&out[isa], (enum optimizer_form)form);
					int bad = RH_CPU_PICK(isa, optimizer_kernels).update[step][form](&terms[round & 1], &span, count);
					assert_int_equal(bad, 0);
					assert_memory_equal(&out[isa], &out[0], sizeof out[0]);
					assert_memory_equal(out[isa].upper + count, from.upper + count,
					                    sizeof(uint16_t) * (size_t)(1000 - count));
					assert_memory_equal(out[isa].code[1] + count, from.code[1] + count, (size_t)(1000 - count));
				}
				float factor[1000];
				for (int i = 0; i < 1000; i++)
					factor[i] = from.moment[1][i];
				for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
					static double weighted[RH_CPU_ISAS];
					const struct optimizer_kernels *kernels = &RH_CPU_PICK(isa, optimizer_kernels);
					out[isa] = from;
					struct optimizer_span span = span_of(&out[isa], (enum optimizer_form)form);
					assert_int_equal(kernels->apply[form](&span, factor, 0.1f, 0.99f, count), 0);
					kernels->columns(span.gradient, form == FORM_WIDE, 0.3f, out[isa].moment[0], count);
					weighted[isa] = kernels->weighted(span.gradient, form == FORM_WIDE, factor, count);
					assert_memory_equal(&out[isa], &out[0], sizeof out[0]);
					assert_memory_equal(&weighted[isa], &weighted[0], sizeof weighted[0]);
				}
			}
	}
}

/* Eight bits change the moments' storage and nothing else: decoded, updated by the fp32 kernel, encoded. */
static void test_8_bit_update_is_decode_update_encode(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static struct arrays a, b;
	const struct optimizer_kernels *kernels = &optimizer_kernels_base;
	for (int round = 0; round < 20; round++) {
		int count = 1000 - 37 * round;
		fill_arrays(&a, &seed);
		b = a;
		struct optimizer_span eight = span_of(&a, FORM_SPLIT), full = span_of(&b, FORM_SPLIT);
		kernels->update[STEP_ADAMW8][FORM_SPLIT](&terms[round & 1], &eight, count);
		for (int at = 0, block = 0; at < count; at += 256, block++) {
			int n = count - at < 256 ? count - at : 256;
			for (int k = 0; k < 2; k++)
				kernels->decode(k == 0, b.code[k] + at, b.largest[k][block], b.moment[k] + at, n);
		}
		kernels->update[STEP_ADAMW][FORM_SPLIT](&terms[round & 1], &full, count);
		for (int at = 0, block = 0; at < count; at += 256, block++) {
			int n = count - at < 256 ? count - at : 256;
			for (int k = 0; k < 2; k++) {
				float most = 0;
				for (int i = 0; i < n; i++)
					most = fmaxf(most, fabsf(b.moment[k][at + i]));
				b.largest[k][block] = most;
				kernels->encode(k == 0, b.moment[k] + at, most, b.code[k] + at, n);
			}
		}
		assert_memory_equal(a.upper, b.upper, sizeof a.upper);
		assert_memory_equal(a.lower, b.lower, sizeof a.lower);
		assert_memory_equal(a.code, b.code, sizeof a.code);
		assert_memory_equal(a.largest, b.largest, sizeof a.largest);
	}
}

/* Odd sizes, several spans and several groups of rows. */
static struct rh_tensor odd[] = {TENSOR("o.a", 331, 311, 3, 1, 2), TENSOR("o.b", 1, 1, 103000, 0, 1),
                                 TENSOR("o.c", 1, 47611, 103009, 0, 1)};
enum { ODD_ELEMENTS = 151000, ODD_STEPS = 4 };
static float trained[ODD_ELEMENTS];

static void train(const struct rh_store_options *options, int threads, enum rh_cpu_isa isa)
{
	struct rh_block spec = {.name = "odd", .elements = ODD_ELEMENTS, .trainable = 1, .uses = 1, .tensor = odd, .tensors = 3};
	struct rh_optimizer_settings settings = {0.9, 0.95, 1e-8, 0.1, options->momentum ? 0.9 : 0};
	struct rh_pool *pool = pool_of(threads);
	struct rh_store *store = NULL;
	uint64_t seed = 5;
	char *kept = isa_lower(isa);
	check_ok(rh_store_create(&spec, 1, options, pool, &store));
	isa_restore(kept);
	for (int step = 0; step < ODD_STEPS; step++) {
		for (int t = 0; t < 3; t++)
			for (int64_t i = odd[t].offset; i < odd[t].offset + odd[t].rows * odd[t].cols; i++) {
				float value = check_uniform(&seed);
				uint16_t half = rh_f32_to_bf16(check_uniform(&seed));
				if (!step)
					check_ok(rh_store_set(store, 0, t, i - odd[t].offset, 1, &value));
				if (options->dtype == RH_F32)
					((float *)rh_store_gradient(store, 0))[i] = rh_bf16_to_f32(half);
				else
					((uint16_t *)rh_store_gradient(store, 0))[i] = half;
			}
		check_ok(rh_optimizer_update(store, 0, &(struct rh_update){settings, 1e-3, 0.5, step + 1, 1}));
	}
	for (int t = 0; t < 3; t++)
		check_ok(rh_store_get(store, 0, t, 0, odd[t].rows * odd[t].cols, trained + odd[t].offset));
	rh_store_destroy(store);
	rh_pool_destroy(pool);
}

static void test_updates_are_the_same_on_any_threads_layout_and_instruction_set(void **state)
{
	(void)state;
	static float first[ODD_ELEMENTS];
	const struct rh_store_options kinds[] = {{.optim = RH_OPTIM_LION},
	                                         {.optim = RH_OPTIM_SGD},
	                                         {.optim = RH_OPTIM_SGD, .momentum = 1},
	                                         {.optim = RH_OPTIM_ADAFACTOR},
	                                         {.layout = RH_LAYOUT_SPLIT8}};
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		struct rh_store_options options = kinds[k];
		options.dtype = RH_BF16;
		train(&options, 1, RH_CPU_BASE);
		memcpy(first, trained, sizeof first);
		for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
			train(&options, 2 + (int)isa % 2, isa);
			assert_memory_equal(first, trained, sizeof first);
		}
		if (options.layout == RH_LAYOUT_SPLIT8)
			continue;
		options.layout = RH_LAYOUT_PLAIN;
		train(&options, 2, rh_cpu_best_isa());
		assert_memory_equal(first, trained, sizeof first);
		options.dtype = RH_F32;
		train(&options, 2, rh_cpu_best_isa());
		assert_memory_equal(first, trained, sizeof first);
	}
}

static void test_updates_name_the_weight_that_left_the_numbers(void **state)
{
	(void)state;
	struct rh_pool *pool = pool_of(2);
	struct rh_block spec = {.name = "odd", .elements = ODD_ELEMENTS, .trainable = 1, .uses = 1, .tensor = odd, .tensors = 3};
	for (int optim = 0; optim < RH_OPTIMS; optim++) {
		struct rh_store_options options = {.dtype = RH_BF16, .optim = (enum rh_optim)optim};
		struct rh_optimizer_settings settings = {0.9, 0.95, 1e-8, 0.1, 0};
		struct rh_store *store = NULL;
		options.layout = optim == RH_OPTIM_ADAMW ? RH_LAYOUT_SPLIT8 : RH_LAYOUT_SPLIT;
		check_ok(rh_store_create(&spec, 1, &options, pool, &store));
		((uint16_t *)rh_store_gradient(store, 0))[odd[2].offset + 47610] = 0x7fc0;
		int rc = rh_optimizer_update(store, 0, &(struct rh_update){settings, 1e-3, 1, 7, 1});
		if (optim == RH_OPTIM_LION) { /* a sign is always finite: NaN has none */
			check_ok(rc);
		} else {
			assert_int_equal(rc, -EINVAL);
			assert_non_null(strstr(rh_error(rc), "o.c"));
		}
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_updates_equal_the_references),
	        cmocka_unit_test(test_codes_have_the_values_of_bitsandbytes),
	        cmocka_unit_test(test_codes_are_the_nearest),
	        cmocka_unit_test(test_kernels_agree_on_tails_and_extremes),
	        cmocka_unit_test(test_8_bit_update_is_decode_update_encode),
	        cmocka_unit_test(test_updates_are_the_same_on_any_threads_layout_and_instruction_set),
	        cmocka_unit_test(test_updates_name_the_weight_that_left_the_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
