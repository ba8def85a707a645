/* Files of Q4_K_M, Q5_K_M and Q6_K: each block and each tensor's type as llama.cpp's own quantiser has them. Whole files against it:
 * tests/reference/k_quants.py. */
#include "scratch.h"
#include "tensor_bytes.h"

#include "ckpt/gguf_out.h"
#include "ckpt/mixture.h"
#include "ckpt/safetensors.h"
#include "ckpt/simd/k_quants.h"
#include "core/pool.h"
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum rh_dtype types[] = {RH_Q4_K, RH_Q5_K, RH_Q6_K, RH_Q5_0, RH_Q5_1};

static void check_blocks(enum rh_dtype dtype, enum rh_cpu_isa isa, const void *expected, const void *found, int64_t blocks)
{
	size_t bytes = (size_t)rh_dtype_block_bytes(dtype);
	for (size_t b = 0; b < (size_t)blocks; b++)
		if (memcmp((const char *)expected + b * bytes, (const char *)found + b * bytes, bytes))
			fail_msg("%s, %s: block %zu differs", rh_dtype_name(dtype), rh_cpu_isa_name(isa), b);
}

/* Odd and even numbers of blocks: some take two at once. */
static void test_blocks_are_those_of_ggml(void **state)
{
	(void)state;
	struct rh_safetensors *reference;
	check_ok(rh_safetensors_open(REFERENCE "k_quants.safetensors", &reference));
	const struct rh_safetensor *all = rh_safetensors_find(reference, "values");
	assert_non_null(all);
	float *values = malloc((size_t)all->bytes);
	check_ok(rh_safetensors_read(reference, all, 0, values, all->bytes));
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		int64_t elements = all->bytes / 4, blocks = elements / rh_dtype_block(types[t]);
		const struct rh_safetensor *expected = rh_safetensors_find(reference, rh_dtype_name(types[t]));
		assert_non_null(expected);
		assert_int_equal(expected->bytes, rh_dtype_bytes(types[t], elements));
		const void *bytes = tensor_bytes(reference, expected);
		unsigned char *found = malloc((size_t)expected->bytes);
		for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa() && isa <= RH_CPU_AVX512; isa++)
			for (int64_t count = blocks - 1; count <= blocks; count++) {
				memset(found, 0xa5, (size_t)expected->bytes);
				RH_CPU_PICK(isa, k_quantise)(types[t], values, count * rh_dtype_block(types[t]), found);
				check_blocks(types[t], isa, bytes, found, count);
			}
		free(found);
	}
	free(values);
	rh_safetensors_close(reference);
}

/* What no quantiser can hold ends in some block, not in a fault. */
static void test_values_that_are_not_finite_do_no_harm(void **state)
{
	(void)state;
	enum { ELEMENTS = 3 * 256 };
	static float values[ELEMENTS];
	static unsigned char out[ELEMENTS * 2];
	static const float odd[] = {(float)INFINITY, -(float)INFINITY, (float)NAN, 3e38f, -3e38f, 1e-45f};
	for (size_t o = 0; o < sizeof odd / sizeof *odd; o++) {
		for (int i = 0; i < ELEMENTS; i++)
			values[i] = i % 37 == 5 || i / 256 == 1 ? odd[o] : (float)(i % 19) - 9;
		for (size_t t = 0; t < sizeof types / sizeof *types; t++)
			assert_int_equal(rh_quantise(NULL, types[t], values, ELEMENTS, out), rh_dtype_bytes(types[t], ELEMENTS));
	}
}

static void test_threads_change_no_bit(void **state)
{
	(void)state;
	enum { ELEMENTS = (1 << 16) + 256 };
	float *values = malloc(ELEMENTS * sizeof *values);
	unsigned char *alone = malloc(ELEMENTS * 2), *shared = malloc(ELEMENTS * 2);
	uint64_t seed = check_seed();
	struct rh_pool *pool;
	check_ok(rh_pool_create(3, &pool));
	for (int i = 0; i < ELEMENTS; i++)
		values[i] = check_uniform(&seed);
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		int64_t bytes = rh_quantise(NULL, types[t], values, ELEMENTS, alone);
		assert_int_equal(rh_quantise(pool, types[t], values, ELEMENTS, shared), bytes);
		assert_memory_equal(alone, shared, (size_t)bytes);
	}
	rh_pool_destroy(pool);
	free(values);
	free(alone);
	free(shared);
}

static void test_each_tensor_has_the_type_that_llama_cpp_gives_it(void **state)
{
	(void)state;
	static const enum rh_dtype asked[] = {RH_Q4_K, RH_Q5_K, RH_Q6_K};
	FILE *file = fopen(REFERENCE "k_types.txt", "r");
	struct rh_model_config config = {0};
	char line[256], name[64], expected[3][16];
	int64_t layers, heads, kv, cols, tensors = 0;
	int is_tied, experts, without_values;
	assert_non_null(file);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%63s %ld %ld %ld %d %d %d", name, &layers, &heads, &kv, &is_tied, &experts, &without_values) == 7) {
			config.family = rh_family_of_gguf(name);
			assert_non_null(config.family);
			config.num_hidden_layers = layers;
			config.num_attention_heads = heads;
			config.num_key_value_heads = kv;
			config.tie_word_embeddings = is_tied;
			config.experts = experts;
			config.values_are_keys = without_values > 0;
			for (int i = 0; i < layers; i++)
				config.layer[i].windowed = without_values && i % without_values != without_values - 1;
			continue;
		}
		assert_int_equal(sscanf(line, "%63s %ld %15s %15s %15s", name, &cols, expected[0], expected[1], expected[2]), 5);
		for (int i = 0; i < 3; i++) {
			const char *found = rh_dtype_name(rh_gguf_type_of(asked[i], &config, name, cols));
			if (strcmp(found, expected[i]))
				fail_msg("%s of %ld layers, %s: %s as %s, expected %s", config.family->gguf.architecture, layers,
				         rh_gguf_file_type_name(asked[i]), name, found, expected[i]);
		}
		tensors++;
	}
	fclose(file);
	assert_true(tensors > 4000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_blocks_are_those_of_ggml),
	        cmocka_unit_test(test_values_that_are_not_finite_do_no_harm),
	        cmocka_unit_test(test_threads_change_no_bit),
	        cmocka_unit_test(test_each_tensor_has_the_type_that_llama_cpp_gives_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
