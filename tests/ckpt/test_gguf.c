#include "gguf_case.h"
#include "scratch.h"
#include "tensor_bytes.h"

#include "ckpt/gguf_out.h"
#include "ckpt/safetensors.h"

#include <math.h>

static void test_dequantise_is_bit_equal_to_the_gguf_package(void **state)
{
	(void)state;
	static const enum rh_dtype types[] = {RH_F16,  RH_BF16, RH_Q8_0, RH_Q4_0, RH_Q4_1,   RH_Q5_0,   RH_Q5_1,  RH_Q2_K,
	                                      RH_Q3_K, RH_Q4_K, RH_Q5_K, RH_Q6_K, RH_IQ4_NL, RH_IQ4_XS, RH_MXFP4, RH_NVFP4};
	struct rh_safetensors *reference;
	check_ok(rh_safetensors_open(REFERENCE "quants.safetensors", &reference));
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		char name[32];
		snprintf(name, sizeof name, "%s.blocks", rh_dtype_name(types[t]));
		const struct rh_safetensor *blocks = rh_safetensors_find(reference, name);
		snprintf(name, sizeof name, "%s.values", rh_dtype_name(types[t]));
		const struct rh_safetensor *values = rh_safetensors_find(reference, name);
		assert_non_null(blocks);
		assert_non_null(values);
		int64_t count = values->bytes / 4;
		assert_int_equal(rh_dtype_bytes(types[t], count), blocks->bytes);
		float *out = malloc((size_t)count * sizeof *out);
		const char *expected = tensor_bytes(reference, values);
		check_ok(rh_dequantise(types[t], tensor_bytes(reference, blocks), count, out));
		for (int64_t i = 0; i < count; i++)
			if (memcmp(out + i, expected + 4 * i, 4)) {
				float wanted;
				memcpy(&wanted, expected + 4 * i, 4);
				fail_msg("%s, element %lld: %a, expected %a", rh_dtype_name(types[t]), (long long)i, (double)out[i],
				         (double)wanted);
			}
		free(out);
	}
	float one;
	assert_int_equal(rh_dequantise(RH_I64, "12345678", 1, &one), -EINVAL);
	rh_safetensors_close(reference);
}

static void test_dequantise_half_keeps_infinity_and_nan(void **state)
{
	(void)state;
	const uint16_t halves[4] = {0x7c00, 0xfc00, 0x7e00, 0x8000};
	float out[4];
	check_ok(rh_dequantise(RH_F16, halves, 4, out));
	assert_true(isinf(out[0]) && out[0] > 0);
	assert_true(isinf(out[1]) && out[1] < 0);
	assert_true(isnan(out[2]));
	assert_true(out[3] == 0 && signbit(out[3]));
}

/* Each value becomes the nearest of those that its block's scale allows: half a step from it, and what fp16 takes from the scale. The one
 * step more at Q4_0's upper end, which has no code for the largest value's opposite, is no rounding. */
static void test_quantise_rounds_to_the_nearest(void **state)
{
	(void)state;
	enum { BLOCK = 32, ELEMENTS = 64 * BLOCK };
	static const struct {
		enum rh_dtype dtype;
		float steps; /* between 0 and the largest value */
	} types[] = {{RH_Q8_0, 127}, {RH_Q4_0, 8}};
	static float values[ELEMENTS], out[ELEMENTS];
	static char blocks[ELEMENTS * 2];
	uint64_t seed = check_seed();
	for (int i = 0; i < ELEMENTS; i++)
		values[i] = check_uniform(&seed);
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		float steps = types[t].steps;
		assert_int_equal(rh_quantise(NULL, types[t].dtype, values, ELEMENTS, blocks), rh_dtype_bytes(types[t].dtype, ELEMENTS));
		check_ok(rh_dequantise(types[t].dtype, blocks, ELEMENTS, out));
		for (int i = 0; i < ELEMENTS; i++) {
			float largest = 0;
			for (int j = i / BLOCK * BLOCK; j < (i / BLOCK + 1) * BLOCK; j++)
				largest = fabsf(values[j]) > fabsf(largest) ? values[j] : largest;
			float step = fabsf(largest) / steps, of_scale = fabsf(values[i]) * 0x1p-11f;
			int is_at_end = steps < 127 && -values[i] / largest > (steps - 1.5f) / steps;
			check_near((double)out[i], (double)values[i], (double)((is_at_end ? 1 : 0.5f) * step * 1.001f + of_scale));
		}
	}
}

static void test_gguf_reads_metadata_and_tensors(void **state)
{
	(void)state;
	struct rh_gguf *gguf;
	check_ok(rh_gguf_open(REFERENCE "qwen3.gguf", &gguf));
	const char *text;
	int64_t whole;
	double real;
	int flag;
	assert_int_equal(rh_gguf_string(gguf, "general.architecture", &text), 1);
	assert_string_equal(text, "qwen3");
	assert_int_equal(rh_gguf_int(gguf, "qwen3.block_count", &whole), 1);
	assert_int_equal(whole, 2);
	assert_int_equal(rh_gguf_real(gguf, "qwen3.rope.scaling.factor", &real), 1);
	assert_true(real == 2);
	assert_int_equal(rh_gguf_int(gguf, "nothing", &whole), 0);
	check_refused(rh_gguf_bool(gguf, "qwen3.block_count", &flag), "metadata 'qwen3.block_count' must be true or false");
	check_refused(rh_gguf_string(gguf, "qwen3.block_count", &text), "must be a string");
	check_refused(rh_gguf_int(gguf, "general.architecture", &whole), "must be a whole number");
	const char **tokens;
	size_t *bytes, count;
	assert_int_equal(rh_gguf_strings(gguf, "tokenizer.ggml.tokens", &count, &tokens, &bytes), 1);
	assert_int_equal(count, 40);
	assert_int_equal(bytes[27], 1);
	assert_int_equal(*tokens[27], 'b');
	rh_free(tokens);
	rh_free(bytes);
	int32_t *types;
	assert_int_equal(rh_gguf_ints(gguf, "tokenizer.ggml.token_type", &count, &types), 1);
	assert_int_equal(types[39], 1);
	rh_free(types);
	const struct rh_gguf_tensor *tensor = rh_gguf_find(gguf, "blk.1.ffn_down.weight");
	assert_non_null(tensor);
	assert_int_equal(tensor->rank, 2);
	assert_int_equal(tensor->shape[0], 32);
	assert_int_equal(tensor->shape[1], 64);
	assert_null(rh_gguf_find(gguf, "blk.2.ffn_down.weight"));
	rh_gguf_close(gguf);
}

/* A GGUF file made by hand. */
struct maker {
	char bytes[4096];
	size_t length;
};

static void put(struct maker *m, uint64_t value, size_t width)
{
	memcpy(m->bytes + m->length, &value, width);
	m->length += width;
}

static void put_string(struct maker *m, const char *text)
{
	put(m, strlen(text), 8);
	memcpy(m->bytes + m->length, text, strlen(text));
	m->length += strlen(text);
}

static void put_header(struct maker *m, uint64_t version, uint64_t tensors, uint64_t pairs)
{
	memcpy(m->bytes, "GGUF", 4);
	m->length = 4;
	put(m, version, 4);
	put(m, tensors, 8);
	put(m, pairs, 8);
}

static void put_tensor(struct maker *m, const char *name, uint64_t cols, uint64_t rows, uint64_t type, uint64_t offset)
{
	put_string(m, name);
	put(m, 2, 4);
	put(m, cols, 8);
	put(m, rows, 8);
	put(m, type, 4);
	put(m, offset, 8);
}

/* Opens the bytes made so far, with `data` bytes of data after them. */
static int open_made(struct maker *m, size_t data)
{
	char dir[64];
	scratch_make(dir);
	size_t padded = (m->length + 31) / 32 * 32;
	memset(m->bytes + m->length, 0, padded + data - m->length);
	scratch_write(dir, "made.gguf", m->bytes, data ? padded + data : m->length);
	char *path = rh_path_join(dir, "made.gguf");
	int rc = gguf_try(path);
	rh_free(path);
	int removed = rh_dir_remove(dir);
	assert_true(removed == 0 || rc < 0);
	return rc;
}

static void test_gguf_refuses_lying_headers(void **state)
{
	(void)state;
	struct maker m = {.length = 0};
	memcpy(m.bytes, "GGML....", 8);
	m.length = 8;
	check_refused(open_made(&m, 0), "not a GGUF file");
	memcpy(m.bytes, "GGUF", 4);
	m.length = 4;
	check_refused(open_made(&m, 0), "the file ends inside its header");
	put_header(&m, 1, 0, 0);
	check_refused(open_made(&m, 0), "GGUF version 1 is not supported");
	put_header(&m, 3 << 24, 0, 0);
	check_refused(open_made(&m, 0), "big-endian");
	put_header(&m, 3, 0, UINT64_MAX);
	check_refused(open_made(&m, 0), "metadata entries, more than the file can hold");
	put_header(&m, 3, UINT64_MAX / 2, 0);
	check_refused(open_made(&m, 0), "tensors, more than the file can hold");
	put_header(&m, 3, 0, 0);
	check_ok(open_made(&m, 0));
	put_header(&m, 2, 0, 2);
	put_string(&m, "a"), put(&m, 4, 4), put(&m, 7, 4);
	put_string(&m, "a"), put(&m, 4, 4), put(&m, 7, 4);
	check_refused(open_made(&m, 0), "metadata 'a' is given twice");
	put_header(&m, 2, 0, 1);
	put_string(&m, "key"), put(&m, 13, 4), put(&m, 7, 8);
	check_refused(open_made(&m, 0), "metadata 'key' has the unknown type 13");
	put_header(&m, 2, 0, 1);
	put_string(&m, "key"), put(&m, 9, 4), put(&m, 4, 4), put(&m, 1ull << 62, 8), put(&m, 0, 8);
	check_refused(open_made(&m, 0), "the file ends inside its header");
	put_header(&m, 2, 0, 1);
	put_string(&m, "key"), put(&m, 9, 4), put(&m, 8, 4), put(&m, 1ull << 62, 8), put(&m, 0, 8);
	check_refused(open_made(&m, 0), "the file ends inside its header");
	put_header(&m, 2, 0, 1);
	put_string(&m, "k\ny"), put(&m, 4, 4), put(&m, 7, 8);
	check_refused(open_made(&m, 0), "a metadata key is not 1 to 1024 bytes of printable UTF-8");
	put_header(&m, 2, 0, 1);
	put_string(&m, "general.alignment"), put(&m, 4, 4), put(&m, 48, 4);
	check_refused(open_made(&m, 0), "general.alignment is 48; it must be a power of two");
	put_header(&m, 2, 0, 1);
	put_string(&m, "split.count"), put(&m, 2, 4), put(&m, 3, 2);
	check_refused(open_made(&m, 0), "this is the first of 3 parts of a split model, whose name must end in -00001-of-00003.gguf");
}

static void test_gguf_nested_arrays_are_bounded(void **state)
{
	(void)state;
	struct maker m;
	put_header(&m, 3, 0, 1);
	put_string(&m, "deep"), put(&m, 9, 4);
	for (int i = 0; i < 50; i++)
		put(&m, 9, 4), put(&m, 1, 8);
	put(&m, 0, 4), put(&m, 1, 8), put(&m, 0, 8);
	check_refused(open_made(&m, 0), "metadata 'deep' nests arrays too deep");
	put_header(&m, 3, 0, 1);
	put_string(&m, "flat"), put(&m, 9, 4), put(&m, 9, 4), put(&m, 2, 8);
	put(&m, 0, 4), put(&m, 3, 8), put(&m, 0, 3);
	put(&m, 8, 4), put(&m, 1, 8), put_string(&m, "x");
	check_ok(open_made(&m, 0));
}

static void test_gguf_refuses_lying_tensors(void **state)
{
	(void)state;
	struct maker m;
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 32, 2, 0, 0);
	check_ok(open_made(&m, 256));
	check_refused(open_made(&m, 255), "tensor 'w' needs 256 bytes from offset 0, but the file has 255 bytes of data (truncated");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 32, 2, 16, 0);
	check_refused(open_made(&m, 256), "tensor 'w' has type IQ2_XXS, which is not supported (F32, F16,");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 32, 2, 4, 0);
	check_refused(open_made(&m, 256), "tensor 'w' has the unknown type 4");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 33, 2, 8, 0);
	check_refused(open_made(&m, 256), "rows of 33 elements, no multiple of Q8_0's block of 32");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 1ull << 40, 1ull << 40, 0, 0);
	check_refused(open_made(&m, 256), "a shape whose size overflows");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 0, 2, 0, 0);
	check_refused(open_made(&m, 256), "a dimension of 0");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", UINT64_MAX, 2, 0, 0);
	check_refused(open_made(&m, 256), "a dimension of 18446744073709551615");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 32, 2, 0, 4);
	check_refused(open_made(&m, 512), "offset 4, no multiple of the alignment 32");
	put_header(&m, 3, 1, 0);
	put_tensor(&m, "w", 32, 2, 0, UINT64_MAX - 31);
	check_refused(open_made(&m, 512), "tensor 'w' needs 256 bytes from offset 18446744073709551584");
	put_header(&m, 3, 2, 0);
	put_tensor(&m, "w", 32, 2, 0, 0);
	put_tensor(&m, "v", 32, 2, 0, 224);
	check_refused(open_made(&m, 512), "tensor 'v' overlaps 'w'");
	put_header(&m, 3, 2, 0);
	put_tensor(&m, "w", 32, 2, 0, 0);
	put_tensor(&m, "w", 32, 2, 0, 256);
	check_refused(open_made(&m, 512), "tensor 'w' is listed twice");
}

static int attempt(const char *path)
{
	struct rh_gguf *gguf;
	int rc = rh_gguf_open(path, &gguf);
	if (rc)
		return rc;
	const char **tokens;
	size_t *bytes, count, sum = 0;
	if (rh_gguf_strings(gguf, "tokenizer.ggml.tokens", &count, &tokens, &bytes) > 0) {
		for (size_t i = 0; i < count; i++)
			for (size_t k = 0; k < bytes[i]; k++)
				sum += (unsigned char)tokens[i][k];
		rh_free(tokens);
		rh_free(bytes);
	}
	for (int64_t i = 0; i < rh_gguf_count(gguf); i++) { /* every byte that a tensor claims is there */
		const struct rh_gguf_tensor *tensor = rh_gguf_at(gguf, i);
		unsigned char first, last;
		check_ok(rh_file_read(tensor->file, tensor->offset, &first, 1));
		check_ok(rh_file_read(tensor->file, tensor->offset + tensor->bytes - 1, &last, 1));
		sum += first + last;
	}
	rh_gguf_close(gguf);
	return (int)(sum >> 63);
}

static void test_gguf_survives_mutation(void **state)
{
	(void)state;
	scratch_fuzz(REFERENCE "llama.gguf", "a.gguf", 4096, 6000, attempt);
}

static void test_gguf_survives_failed_allocations(void **state)
{
	(void)state;
	scratch_starve(REFERENCE "llama.gguf", gguf_try);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_dequantise_is_bit_equal_to_the_gguf_package),
	        cmocka_unit_test(test_dequantise_half_keeps_infinity_and_nan),
	        cmocka_unit_test(test_quantise_rounds_to_the_nearest),
	        cmocka_unit_test(test_gguf_reads_metadata_and_tensors),
	        cmocka_unit_test(test_gguf_refuses_lying_headers),
	        cmocka_unit_test(test_gguf_nested_arrays_are_bounded),
	        cmocka_unit_test(test_gguf_refuses_lying_tensors),
	        cmocka_unit_test(test_gguf_survives_mutation),
	        cmocka_unit_test(test_gguf_survives_failed_allocations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
