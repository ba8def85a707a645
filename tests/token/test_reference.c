/* Thousands of strings, equal to Hugging Face tokenizers: ids, and decoding with and without special tokens. */
#include "reference.h"

#include "ckpt/source.h"

struct corpus {
	struct rh_bytes strings, crc;
};

static void open_corpus(const char *reference, struct corpus *corpus)
{
	char path[128];
	snprintf(path, sizeof path, "tests/reference/token/%s.crc", reference);
	check_ok(rh_file_load("tests/corpus/token_strings.bin", &corpus->strings));
	check_ok(rh_file_load(path, &corpus->crc));
}

static void close_corpus(struct corpus *corpus)
{
	rh_bytes_free(&corpus->strings);
	rh_bytes_free(&corpus->crc);
}

static int next_string(const struct corpus *corpus, size_t *at, const char **text, uint32_t *bytes)
{
	if (*at >= corpus->strings.length)
		return 0;
	memcpy(bytes, corpus->strings.bytes + *at, 4);
	*text = corpus->strings.bytes + *at + 4;
	*at += 4 + *bytes;
	return 1;
}

/* The first ids alone, as many as a number drawn from the ids says, are the first of all. */
static void check_first(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, const struct rh_ids *all, uint32_t drawn)
{
	struct rh_ids ids = {0};
	size_t most = 1 + drawn % (all->count + 2);
	int is_cut;
	check_ok(rh_tokenizer_encode_first(tokenizer, text, bytes, RH_TOKENS_WITH_SPECIAL, most, &ids, &is_cut));
	if (ids.count > all->count || ids.count < (most < all->count ? most : all->count) || (ids.count < all->count && !is_cut) ||
	    (ids.count && memcmp(ids.id, all->id, ids.count * sizeof *ids.id)))
		fail_msg("the first %zu of %zu ids differ, or are %zu: '%.*s'", most, all->count, ids.count, (int)bytes, text);
	rh_ids_free(&ids);
}

/* The two figures of token_reference.py. */
static void figures(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t out[2])
{
	struct rh_ids ids = {0};
	struct rh_text decoded = {0};
	check_ok(rh_tokenizer_encode(tokenizer, text, bytes, RH_TOKENS_WITH_SPECIAL, &ids));
	out[0] = crc32_of(0, ids.id, ids.count * sizeof *ids.id);
	check_first(tokenizer, text, bytes, &ids, out[0]);
	check_ok(rh_tokenizer_decode(tokenizer, ids.id, ids.count, RH_SPECIALS_KEEP, &decoded));
	check_ok(rh_text_append(&decoded, "\xff", 1));
	check_ok(rh_tokenizer_decode(tokenizer, ids.id, ids.count, RH_SPECIALS_SKIP, &decoded));
	out[1] = crc32_of(0, decoded.bytes, decoded.length);
	rh_ids_free(&ids);
	rh_text_free(&decoded);
}

static void show(const struct rh_tokenizer *tokenizer, const char *name, size_t number, const char *text, size_t bytes)
{
	struct rh_ids ids = {0};
	print_error("%s: string %zu differs: '%.*s'\n ids", name, number, (int)bytes, text);
	check_ok(rh_tokenizer_encode(tokenizer, text, bytes, RH_TOKENS_WITH_SPECIAL, &ids));
	for (size_t i = 0; i < ids.count && i < 100; i++)
		print_error(" %d", ids.id[i]);
	print_error("\n");
	rh_ids_free(&ids);
}

static void compare_all(const struct rh_tokenizer *tokenizer, const char *name)
{
	struct corpus corpus;
	open_corpus(name, &corpus);
	const char *text;
	uint32_t bytes, found[2];
	size_t count = 0, wrong = 0;
	for (size_t at = 0; next_string(&corpus, &at, &text, &bytes); count++) {
		assert_true((count + 1) * 8 <= corpus.crc.length);
		figures(tokenizer, text, bytes, found);
		if (memcmp(found, corpus.crc.bytes + count * 8, 8) && ++wrong <= 5)
			show(tokenizer, name, count, text, bytes);
	}
	printf("%s: %zu of %zu strings equal\n", name, count - wrong, count);
	assert_int_equal(count * 8, corpus.crc.length);
	assert_int_equal(count, 10000);
	assert_int_equal(wrong, 0);
	close_corpus(&corpus);
}

/* The full ids of the first strings: says what went wrong where a figure only says that something did. */
static void compare_samples(const struct rh_tokenizer *tokenizer, const char *name)
{
	json_t *file = NULL;
	struct corpus corpus;
	open_corpus(name, &corpus);
	check_ok(rh_json_load("tests/reference/token/samples.json", &file));
	const json_t *samples = json_object_get(file, name);
	assert_true(json_array_size(samples) > 0);
	const char *text;
	uint32_t bytes;
	size_t at = 0;
	for (size_t i = 0; i < json_array_size(samples) && next_string(&corpus, &at, &text, &bytes); i++) {
		struct rh_ids ids = {0};
		const json_t *expected = json_array_get(samples, i);
		check_ok(rh_tokenizer_encode(tokenizer, text, bytes, RH_TOKENS_WITH_SPECIAL, &ids));
		assert_int_equal(ids.count, json_array_size(expected));
		for (size_t k = 0; k < ids.count; k++)
			assert_int_equal(ids.id[k], json_integer_value(json_array_get(expected, k)));
		rh_ids_free(&ids);
	}
	json_decref(file);
	close_corpus(&corpus);
}

static void compare(struct rh_tokenizer *tokenizer, const char *name)
{
	compare_samples(tokenizer, name);
	compare_all(tokenizer, name);
	rh_tokenizer_destroy(tokenizer);
}

/* tokenizer.json of a published model, kept compressed outside of the repository. */
static void compare_published(const char *name)
{
	char source[128], command[512], folder[32];
	snprintf(source, sizeof source, "../shared/tokenizers/%s/tokenizer.json.xz", name);
	if (!rh_file_exists(source))
		check_skip("%s is absent", source);
	if (system("xz --version >/dev/null 2>&1"))
		check_skip("there is no xz to read %s", source);
	make_folder(folder);
	snprintf(command, sizeof command, "xz -dc '%s' >'%s/tokenizer.json'", source, folder);
	assert_int_equal(system(command), 0);
	struct rh_tokenizer *tokenizer;
	check_ok(rh_tokenizer_load(folder, &tokenizer));
	leave_folder(folder);
	compare(tokenizer, name);
}

static void test_gpt2_equals_the_library(void **state)
{
	(void)state;
	compare_published("gpt2");
}

static void test_qwen3_equals_the_library(void **state)
{
	(void)state;
	compare_published("qwen3");
}

static void test_gptoss_equals_the_library(void **state)
{
	(void)state;
	compare_published("gptoss");
}

static void test_smollm2_in_gguf_equals_the_library(void **state)
{
	(void)state;
	const char *path = getenv("RH_DEMO_MODEL");
	if (!path)
		path = "build/demo/SmolLM2-135M-Instruct.Q4_1.gguf";
	if (!rh_file_exists(path))
		check_skip("%s is absent (make demo fetches it; or set RH_DEMO_MODEL)", path);
	struct rh_source *source;
	struct rh_tokenizer *tokenizer;
	check_ok(rh_source_open(path, &source));
	check_ok(rh_source_tokenizer(source, &tokenizer));
	rh_source_close(source);
	assert_int_equal(rh_tokenizer_eos(tokenizer), 2);
	compare(tokenizer, "smollm2");
}

static void load_committed(const char *name, struct rh_tokenizer **tokenizer)
{
	char path[128], folder[32];
	struct rh_bytes file;
	snprintf(path, sizeof path, "tests/corpus/token_%s.json", name);
	check_ok(rh_file_load(path, &file));
	make_folder(folder);
	put_file(folder, "tokenizer.json", file.bytes, file.length);
	rh_bytes_free(&file);
	check_ok(rh_tokenizer_load(folder, tokenizer));
	leave_folder(folder);
}

static void test_llama3_rules_equal_the_library(void **state)
{
	(void)state;
	struct rh_tokenizer *tokenizer;
	load_committed("llama3", &tokenizer);
	compare(tokenizer, "llama3");
}

static void test_sentencepiece_equals_the_library(void **state)
{
	(void)state;
	struct rh_tokenizer *tokenizer;
	load_committed("sentencepiece", &tokenizer);
	compare(tokenizer, "sentencepiece");
}

/* model: of tokenizer.ggml.model; merges: a list of pairs, or NULL. */
static void sentencepiece_as(const char *model, const json_t *merges)
{
	json_t *pieces = NULL;
	size_t merge_count = json_array_size(merges);
	const char **merge = rh_alloc(merge_count + 1, sizeof *merge);
	size_t *merge_bytes = rh_alloc(merge_count + 1, sizeof *merge_bytes);
	struct rh_text *joined = rh_alloc(merge_count + 1, sizeof *joined);
	for (size_t i = 0; i < merge_count; i++) { /* as a GGUF has them */
		const json_t *pair = json_array_get(merges, i);
		for (size_t side = 0; side < 2; side++) {
			const json_t *text = json_array_get(pair, side);
			check_ok(rh_text_append(&joined[i], " ", side));
			check_ok(rh_text_append(&joined[i], json_string_value(text), json_string_length(text)));
		}
		merge[i] = joined[i].bytes;
		merge_bytes[i] = joined[i].length;
	}
	check_ok(rh_json_load("tests/corpus/token_sentencepiece_pieces.json", &pieces));
	size_t count = json_array_size(pieces);
	const char **text = rh_alloc(count, sizeof *text);
	size_t *bytes = rh_alloc(count, sizeof *bytes);
	float *score = rh_alloc(count, sizeof *score);
	int32_t *type = rh_alloc(count, sizeof *type);
	for (size_t i = 0; i < count; i++) {
		const json_t *piece = json_array_get(pieces, i);
		text[i] = json_string_value(json_array_get(piece, 0));
		bytes[i] = json_string_length(json_array_get(piece, 0));
		score[i] = (float)json_number_value(json_array_get(piece, 1));
		type[i] = (int32_t)json_integer_value(json_array_get(piece, 2));
	}
	struct rh_vocabulary vocabulary = {.where = "test.gguf",
	                                   .model = model,
	                                   .tokens = count,
	                                   .token = text,
	                                   .token_bytes = bytes,
	                                   .score = score,
	                                   .token_type = type,
	                                   .merges = merge_count,
	                                   .merge = merge,
	                                   .merge_bytes = merge_bytes,
	                                   .bos = 1,
	                                   .eos = 2,
	                                   .unknown = 0,
	                                   .pad = -1,
	                                   .add_bos = -1,
	                                   .add_eos = -1,
	                                   .add_space_prefix = -1};
	struct rh_tokenizer *tokenizer;
	check_ok(rh_tokenizer_from_vocabulary(&vocabulary, &tokenizer));
	rh_free(text);
	rh_free(bytes);
	rh_free(score);
	rh_free(type);
	for (size_t i = 0; i < merge_count; i++)
		rh_text_free(&joined[i]);
	rh_free(joined);
	rh_free(merge);
	rh_free(merge_bytes);
	json_decref(pieces);
	assert_int_equal(rh_tokenizer_size(tokenizer), count);
	compare(tokenizer, "sentencepiece");
}

static void test_sentencepiece_by_scores_equals_the_library(void **state)
{
	(void)state;
	sentencepiece_as("llama", NULL);
}

/* Gemma 4's vocabularies have scores, but merges in a list, which count. */
static void test_sentencepiece_by_merges_equals_the_library(void **state)
{
	(void)state;
	static const char path[] = "tests/corpus/token_sentencepiece.json";
	struct rh_bytes file;
	json_t *merges = NULL;
	check_ok(rh_file_load(path, &file)); /* its vocabulary has keys with NUL, which the merges behind it do not need */
	const char *first = memmem(file.bytes, file.length, "\"merges\"", 8), *last = file.bytes + file.length;
	assert_non_null(first);
	first = memchr(first, '[', (size_t)(last - first));
	while (*--last != ']')
		;
	check_ok(rh_json_parse(first, (size_t)(last + 1 - first), path, &merges));
	assert_true(json_array_size(merges) > 100);
	sentencepiece_as("gemma4", merges);
	json_decref(merges);
	rh_bytes_free(&file);
}

static size_t compare_variant(const struct rh_tokenizer *tokenizer, const char *name, const struct corpus *corpus, size_t *done)
{
	const char *text;
	uint32_t bytes, found[2], expected;
	size_t wrong = 0, number = 0;
	for (size_t at = 0; next_string(corpus, &at, &text, &bytes); number++) {
		if (number % 8)
			continue;
		assert_true((*done + 1) * 4 <= corpus->crc.length);
		memcpy(&expected, corpus->crc.bytes + (*done)++ * 4, 4);
		figures(tokenizer, text, bytes, found);
		if ((found[0] ^ found[1]) != expected && ++wrong <= 3)
			show(tokenizer, name, number, text, bytes);
	}
	return wrong;
}

static void test_variants_equal_the_library(void **state)
{
	(void)state;
	json_t *file = NULL, *whole;
	struct corpus corpus;
	const char *name;
	char folder[32];
	size_t done = 0, wrong = 0, count = 0;
	open_corpus("variants", &corpus);
	check_ok(rh_json_load("tests/corpus/token_variants.json", &file));
	make_folder(folder);
	for (; (whole = variant_at(file, count, &name)); count++) {
		struct rh_tokenizer *tokenizer;
		put_json(folder, "tokenizer.json", whole);
		check_ok(rh_tokenizer_load(folder, &tokenizer));
		wrong += compare_variant(tokenizer, name, &corpus, &done);
		rh_tokenizer_destroy(tokenizer);
		json_decref(whole);
	}
	printf("variants: %zu tokenizers, %zu of %zu strings equal\n", count, done - wrong, done);
	assert_int_equal(done * 4, corpus.crc.length);
	assert_int_equal(wrong, 0);
	leave_folder(folder);
	json_decref(file);
	close_corpus(&corpus);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gpt2_equals_the_library),
	        cmocka_unit_test(test_qwen3_equals_the_library),
	        cmocka_unit_test(test_gptoss_equals_the_library),
	        cmocka_unit_test(test_smollm2_in_gguf_equals_the_library),
	        cmocka_unit_test(test_llama3_rules_equal_the_library),
	        cmocka_unit_test(test_sentencepiece_equals_the_library),
	        cmocka_unit_test(test_sentencepiece_by_scores_equals_the_library),
	        cmocka_unit_test(test_sentencepiece_by_merges_equals_the_library),
	        cmocka_unit_test(test_variants_equal_the_library),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
