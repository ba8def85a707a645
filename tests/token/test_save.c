/* A vocabulary saved as tokenizer.json, and loaded again: the same tokenizer. */
#include "reference.h"

#include "ckpt/source.h"
#include "token/tokenizer_internal.h"

enum { EVERY = 4 }; /* of the corpus */

static void encode_both(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, struct rh_ids *ids, struct rh_text *back)
{
	ids->count = back->length = 0;
	check_ok(rh_tokenizer_encode(tokenizer, text, bytes, RH_TOKENS_WITH_SPECIAL, ids));
	check_ok(rh_tokenizer_decode(tokenizer, ids->id, ids->count, RH_SPECIALS_KEEP, back));
	check_ok(rh_text_append(back, "\xff", 1));
	check_ok(rh_tokenizer_decode(tokenizer, ids->id, ids->count, RH_SPECIALS_SKIP, back));
}

static void compare_strings(const struct rh_tokenizer *made, const struct rh_tokenizer *loaded, const char *name)
{
	struct rh_bytes corpus;
	struct rh_ids ids[2] = {0};
	struct rh_text back[2] = {0};
	size_t count = 0, wrong = 0, number = 0;
	check_ok(rh_file_load("tests/corpus/token_strings.bin", &corpus));
	for (size_t at = 0; at < corpus.length; number++) {
		uint32_t bytes;
		memcpy(&bytes, corpus.bytes + at, 4);
		const char *text = corpus.bytes + at + 4;
		at += 4 + bytes;
		if (number % EVERY)
			continue;
		encode_both(made, text, bytes, &ids[0], &back[0]);
		encode_both(loaded, text, bytes, &ids[1], &back[1]);
		int same = ids[0].count == ids[1].count && back[0].length == back[1].length &&
		           (!ids[0].count || !memcmp(ids[0].id, ids[1].id, ids[0].count * sizeof *ids[0].id)) &&
		           !memcmp(back[0].bytes, back[1].bytes, back[0].length);
		if (!same && ++wrong <= 3)
			print_error("%s: string %zu differs: '%.*s'\n", name, number, (int)bytes, text);
		count++;
	}
	printf("%s: %zu of %zu strings equal\n", name, count - wrong, count);
	assert_int_equal(count, 10000 / EVERY);
	assert_int_equal(wrong, 0);
	for (int i = 0; i < 2; i++) {
		rh_ids_free(&ids[i]);
		rh_text_free(&back[i]);
	}
	rh_bytes_free(&corpus);
}

static void same_text(const char *a, const char *b)
{
	assert_int_equal(!a, !b);
	if (a)
		assert_string_equal(a, b);
}

static void compare_tables(const struct rh_tokenizer *made, const struct rh_tokenizer *loaded)
{
	assert_int_equal(rh_tokenizer_size(made), rh_tokenizer_size(loaded));
	assert_int_equal(rh_tokenizer_bos(made), rh_tokenizer_bos(loaded));
	assert_int_equal(rh_tokenizer_eos(made), rh_tokenizer_eos(loaded));
	assert_int_equal(made->pad, loaded->pad);
	same_text(rh_tokenizer_chat_template(made), rh_tokenizer_chat_template(loaded));
	for (int32_t id = 0; id < rh_tokenizer_size(made); id++)
		same_text(rh_tokenizer_text(made, id), rh_tokenizer_text(loaded, id));
}

/* Takes `made`; the files in `folder` are taken away. */
static void compare(struct rh_tokenizer *made, const char *folder, const char *name)
{
	struct rh_tokenizer *loaded;
	check_ok(rh_tokenizer_load(folder, &loaded));
	leave_folder(folder);
	compare_tables(made, loaded);
	compare_strings(made, loaded, name);
	rh_tokenizer_destroy(made);
	rh_tokenizer_destroy(loaded);
}

static void save_and_compare(const struct rh_vocabulary *vocabulary, const char *name)
{
	struct rh_tokenizer *made;
	char folder[32];
	make_folder(folder);
	check_ok(rh_tokenizer_from_vocabulary(vocabulary, &made));
	check_ok(rh_tokenizer_save_vocabulary(vocabulary, folder));
	compare(made, folder, name);
}

static void save_and_compare_gguf(const char *path)
{
	struct rh_source *source;
	struct rh_tokenizer *made;
	char folder[32];
	make_folder(folder);
	check_ok(rh_source_open(path, &source));
	check_ok(rh_source_tokenizer(source, &made));
	rh_source_close(source);
	check_ok(rh_source_copy_tokenizer(path, folder));
	compare(made, folder, path);
}

static void test_saved_gguf_tokenizers_are_the_same(void **state)
{
	(void)state;
	save_and_compare_gguf("tests/reference/models/gguf-llama/model.gguf");
	save_and_compare_gguf("tests/reference/models/gguf-qwen2/model.gguf");
}

static void test_saved_demo_tokenizer_is_the_same(void **state)
{
	(void)state;
	const char *path = getenv("RH_DEMO_MODEL");
	if (!path)
		path = "build/demo/SmolLM2-135M-Instruct.Q4_1.gguf";
	if (!rh_file_exists(path))
		check_skip("%s is absent (make demo fetches it; or set RH_DEMO_MODEL)", path);
	save_and_compare_gguf(path);
}

/* A vocabulary in lists of its own; texts live as long as `file`. */
struct lists {
	json_t *file;
	const char **token, **merge;
	size_t *token_bytes, *merge_bytes;
	float *score;
	int32_t *type;
	struct rh_text *joined;
	struct rh_vocabulary vocabulary;
};

static void make_lists(struct lists *lists, size_t tokens, size_t merges)
{
	lists->token = rh_alloc(tokens, sizeof *lists->token);
	lists->token_bytes = rh_alloc(tokens, sizeof *lists->token_bytes);
	lists->score = rh_alloc(tokens, sizeof *lists->score);
	lists->type = rh_alloc(tokens, sizeof *lists->type);
	lists->merge = rh_alloc(merges + 1, sizeof *lists->merge);
	lists->merge_bytes = rh_alloc(merges + 1, sizeof *lists->merge_bytes);
	lists->joined = rh_alloc(merges + 1, sizeof *lists->joined);
	assert_true(lists->token && lists->token_bytes && lists->score && lists->type);
	assert_true(lists->merge && lists->merge_bytes && lists->joined);
	lists->vocabulary = (struct rh_vocabulary){.where = "test.gguf",
	                                           .tokens = tokens,
	                                           .token = lists->token,
	                                           .token_bytes = lists->token_bytes,
	                                           .token_type = lists->type,
	                                           .merges = merges,
	                                           .merge = lists->merge,
	                                           .merge_bytes = lists->merge_bytes,
	                                           .bos = -1,
	                                           .eos = -1,
	                                           .unknown = -1,
	                                           .pad = -1,
	                                           .add_bos = -1,
	                                           .add_eos = -1,
	                                           .add_space_prefix = -1};
}

static void free_lists(struct lists *lists)
{
	for (size_t i = 0; i < lists->vocabulary.merges; i++)
		rh_text_free(&lists->joined[i]);
	rh_free(lists->token);
	rh_free(lists->token_bytes);
	rh_free(lists->score);
	rh_free(lists->type);
	rh_free(lists->merge);
	rh_free(lists->merge_bytes);
	rh_free(lists->joined);
	json_decref(lists->file);
}

static void sentencepiece_lists(struct lists *lists)
{
	check_ok(rh_json_load("tests/corpus/token_sentencepiece_pieces.json", &lists->file));
	size_t count = json_array_size(lists->file);
	make_lists(lists, count, 0);
	for (size_t i = 0; i < count; i++) {
		const json_t *piece = json_array_get(lists->file, i);
		lists->token[i] = json_string_value(json_array_get(piece, 0));
		lists->token_bytes[i] = json_string_length(json_array_get(piece, 0));
		lists->score[i] = (float)json_number_value(json_array_get(piece, 1));
		lists->type[i] = (int32_t)json_integer_value(json_array_get(piece, 2));
	}
	lists->vocabulary.model = "llama";
	lists->vocabulary.score = lists->score;
	lists->vocabulary.bos = 1;
	lists->vocabulary.eos = 2;
	lists->vocabulary.unknown = 0;
}

/* The vocabulary of a byte-level tokenizer.json, its added tokens as control tokens. */
static void byte_level_lists(struct lists *lists)
{
	check_ok(rh_json_load("tests/corpus/token_llama3.json", &lists->file));
	json_t *model = json_object_get(lists->file, "model"), *vocab = json_object_get(model, "vocab"), *id;
	const json_t *merges = json_object_get(model, "merges"), *added = json_object_get(lists->file, "added_tokens");
	size_t tokens = json_object_size(vocab), count = json_array_size(merges);
	for (size_t i = 0; i < json_array_size(added); i++) {
		const json_t *token = json_array_get(added, i);
		if (!json_object_get(vocab, json_string_value(json_object_get(token, "content"))))
			json_object_set_new(vocab, json_string_value(json_object_get(token, "content")),
			                    json_integer((json_int_t)tokens++));
	}
	make_lists(lists, tokens, count);
	const char *text;
	json_object_foreach(vocab, text, id)
	{
		size_t at = (size_t)json_integer_value(id);
		assert_true(at < tokens);
		lists->token[at] = text;
		lists->token_bytes[at] = strlen(text);
		lists->type[at] = 1;
	}
	for (size_t i = 0; i < json_array_size(added); i++) {
		text = json_string_value(json_object_get(json_array_get(added, i), "content"));
		lists->type[json_integer_value(json_object_get(vocab, text))] = i % 3 == 2 ? 4 : 3;
	}
	for (size_t i = 0; i < count; i++) {
		const json_t *merge = json_array_get(merges, i);
		if (json_is_array(merge))
			check_ok(rh_text_printf(&lists->joined[i], "%s %s", json_string_value(json_array_get(merge, 0)),
			                        json_string_value(json_array_get(merge, 1))));
		else
			check_ok(rh_text_printf(&lists->joined[i], "%s", json_string_value(merge)));
		lists->merge[i] = lists->joined[i].bytes;
		lists->merge_bytes[i] = lists->joined[i].length;
	}
	lists->vocabulary.model = "gpt2";
}

static void test_saved_sentencepiece_is_the_same(void **state)
{
	(void)state;
	struct lists lists = {0};
	sentencepiece_lists(&lists);
	struct rh_vocabulary *v = &lists.vocabulary;
	save_and_compare(v, "as SentencePiece has it");
	v->add_space_prefix = v->add_bos = 0;
	v->chat_template = "{{ \"a\\b\" }}\n\t\x01\xc3\xa9";
	save_and_compare(v, "without a blank in front and BOS");
	v->add_bos = v->add_eos = 1;
	v->unknown = -1;
	v->pad = 2;
	save_and_compare(v, "with BOS and EOS");
	v->bos = v->eos = -1;
	save_and_compare(v, "without names for BOS and EOS");
	free_lists(&lists);
}

static void test_saved_byte_level_is_the_same(void **state)
{
	(void)state;
	static const char *const known[] = {"gpt-2",          "smollm",     "llama-bpe",        "qwen2",     "gpt-4o", "tekken", "dbrx",
	                                    "deepseek-coder", "seed-coder", "deepseek-r1-qwen", "smaug-bpe", "qwen35", "llama4"};
	struct lists lists = {0};
	byte_level_lists(&lists);
	struct rh_vocabulary *v = &lists.vocabulary;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		v->pre = known[i];
		v->bos = i == 1 ? -1 : (int64_t)v->tokens - 1;
		v->eos = i == 2 ? v->bos : (int64_t)v->tokens - 2;
		v->add_bos = i > 1 ? 1 : -1;
		v->add_eos = i == 2;
		save_and_compare(v, known[i]);
	}
	free_lists(&lists);
}

/* The printable text that stands for a byte in a byte-level vocabulary, in UTF-8. */
static void byte_symbol(int byte, char out[3])
{
	int spare = byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7f + 33 : 67;
	int is_shown = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad), code = is_shown ? byte : 0x100 + spare;
	out[0] = (char)(code < 0x80 ? code : 0xc0 | code >> 6);
	out[1] = (char)(code < 0x80 ? 0 : 0x80 | (code & 63));
	out[2] = 0;
}

/* Bytes, and x with the first byte of an accent: one token where the accent goes with its letter. Ids are those of the tokenizers library,
 * with Qwen3.5's and Qwen2's PRETOKENIZE_REGEX of transformers. */
static void test_marks_go_with_letters_in_qwen35(void **state)
{
	(void)state;
	static const struct {
		const char *pre, *text;
		int32_t id[9];
		size_t count;
	} cases[] = {{"qwen35",
	              "x\xcc\x81"
	              "a",
	              {256, 129, 97},
	              3},
	             {"qwen2",
	              "x\xcc\x81"
	              "a",
	              {120, 204, 129, 97},
	              4},
	             {"qwen35", "1x\xcc\x81\xcc\x82 x\xcc\x81", {49, 256, 129, 204, 130, 32, 256, 129}, 8},
	             {"qwen35", "\xcc\x81x\xcc\x81", {204, 129, 256, 129}, 4},
	             {"qwen35", " \xcc\x81x", {32, 204, 129, 120}, 4},
	             {"qwen2", "!\xcc\x81x\xcc\x81", {33, 204, 129, 120, 204, 129}, 6}};
	static char symbol[256][3];
	struct lists lists = {0};
	make_lists(&lists, 257, 1);
	for (int b = 0; b < 256; b++) {
		byte_symbol(b, symbol[b]);
		lists.token[b] = symbol[b];
		lists.token_bytes[b] = strlen(symbol[b]);
		lists.type[b] = 1;
	}
	lists.token[256] = "x\xc3\x8c";
	lists.token_bytes[256] = 3;
	lists.type[256] = 1;
	lists.merge[0] = "x \xc3\x8c";
	lists.merge_bytes[0] = 4;
	lists.vocabulary.model = "gpt2";
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_tokenizer *tokenizer;
		struct rh_ids ids = {0};
		lists.vocabulary.pre = cases[i].pre;
		check_ok(rh_tokenizer_from_vocabulary(&lists.vocabulary, &tokenizer));
		check_ok(rh_tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), RH_TOKENS_PLAIN, &ids));
		assert_int_equal(ids.count, cases[i].count);
		assert_memory_equal(ids.id, cases[i].id, ids.count * sizeof *ids.id);
		rh_ids_free(&ids);
		rh_tokenizer_destroy(tokenizer);
	}
	free_lists(&lists);
}

/* Texts that JSON must escape or cannot hold as they are, and one that two tokens have. */
static const char *const odd_token[] = {"\"", "\\", "\"\\", "\n", "", "a", "b", "ab", "a b", "\x7f", "\0x", "\xe2\x80\xa8", "<s>", "b"};
static const size_t odd_bytes[] = {1, 1, 2, 1, 0, 1, 1, 2, 3, 1, 2, 3, 3, 1};
static const int32_t odd_type[] = {2, 1, 1, 4, 3, 1, 1, 1, 4, 1, 4, 1, 3, 1};
static const char *const odd_merge[] = {"a b", "\" \\", "a b"};
static const size_t odd_merge_bytes[] = {3, 3, 3};

static struct rh_vocabulary odd_vocabulary(void)
{
	return (struct rh_vocabulary){.where = "odd.gguf",
	                              .model = "gpt2",
	                              .pre = "gpt-2",
	                              .tokens = sizeof odd_token / sizeof *odd_token,
	                              .token = odd_token,
	                              .token_bytes = odd_bytes,
	                              .token_type = odd_type,
	                              .merges = 3,
	                              .merge = odd_merge,
	                              .merge_bytes = odd_merge_bytes,
	                              .bos = 12,
	                              .eos = 6,
	                              .unknown = 0,
	                              .pad = 3,
	                              .add_bos = 1,
	                              .add_eos = 1,
	                              .add_space_prefix = -1,
	                              .chat_template = "\xff",
	                              .longest = 77};
}

static void test_odd_texts_are_saved(void **state)
{
	(void)state;
	struct rh_vocabulary v = odd_vocabulary();
	struct rh_tokenizer *made, *loaded;
	json_t *config = NULL;
	char folder[32];
	make_folder(folder);
	check_ok(rh_tokenizer_from_vocabulary(&v, &made));
	check_ok(rh_tokenizer_save_vocabulary(&v, folder));
	check_ok(rh_tokenizer_load(folder, &loaded));
	assert_int_equal(rh_tokenizer_size(loaded), v.tokens);
	assert_int_equal(rh_tokenizer_bos(loaded), 12);
	assert_int_equal(rh_tokenizer_eos(loaded), 13); /* of the two `b`, the one that a tokenizer.json can hold */
	assert_int_equal(loaded->pad, 3);
	assert_null(rh_tokenizer_text(loaded, 6));
	assert_null(rh_tokenizer_chat_template(loaded)); /* it is not UTF-8 */
	static const char text[] = "ab\"\\\na ba bb\x7f\0x\xe2\x80\xa8<s>";
	struct rh_ids ids[2] = {0};
	check_ok(rh_tokenizer_encode(made, text, sizeof text - 1, RH_TOKENS_PLAIN, &ids[0]));
	check_ok(rh_tokenizer_encode(loaded, text, sizeof text - 1, RH_TOKENS_PLAIN, &ids[1]));
	assert_int_equal(ids[0].count, ids[1].count);
	assert_memory_equal(ids[0].id, ids[1].id, ids[0].count * sizeof *ids[0].id);
	for (int i = 0; i < 2; i++)
		rh_ids_free(&ids[i]);
	char *path = rh_path_join(folder, "tokenizer_config.json");
	check_ok(rh_json_load(path, &config));
	assert_int_equal(json_integer_value(json_object_get(config, "model_max_length")), 77);
	assert_string_equal(json_string_value(json_object_get(config, "unk_token")), "\"");
	assert_string_equal(json_string_value(json_object_get(config, "tokenizer_class")), "PreTrainedTokenizerFast");
	rh_free(path);
	json_decref(config);
	rh_tokenizer_destroy(made);
	rh_tokenizer_destroy(loaded);
	leave_folder(folder);
}

/* BOS and EOS are special, whatever type the GGUF gives them. Where the tokens for padding and for the unknown are ordinary ones,
 * tokenizer_config.json does not name them, because readers would make them special. */
static void test_ordinary_tokens_that_a_gguf_names_are_the_same(void **state)
{
	(void)state;
	struct lists lists = {0};
	byte_level_lists(&lists);
	struct rh_vocabulary *v = &lists.vocabulary;
	v->pre = "gpt-2";
	v->bos = 300;
	v->eos = 301;
	v->pad = 302;
	v->unknown = 303;
	for (int i = 300; i < 304; i++)
		assert_int_equal(lists.type[i], 1);
	char folder[32];
	struct rh_tokenizer *made, *loaded;
	make_folder(folder);
	check_ok(rh_tokenizer_from_vocabulary(v, &made));
	check_ok(rh_tokenizer_save_vocabulary(v, folder));
	check_ok(rh_tokenizer_load(folder, &loaded));
	leave_folder(folder);
	for (int32_t id = 300; id < 304; id++) {
		assert_int_equal(added_by_id(&made->added, id) != NULL, id < 302);
		assert_int_equal(added_by_id(&loaded->added, id) != NULL, id < 302);
	}
	assert_int_equal(loaded->bos, 300);
	assert_int_equal(loaded->eos, 301);
	assert_int_equal(loaded->pad, -1);
	compare_strings(made, loaded, "ordinary tokens with names");
	rh_tokenizer_destroy(made);
	rh_tokenizer_destroy(loaded);
	free_lists(&lists);
}

static void test_saving_survives_failed_allocations(void **state)
{
	(void)state;
	struct rh_vocabulary v = odd_vocabulary();
	char folder[32];
	make_folder(folder);
	for (uint64_t n = 1;; n++) {
		rh_alloc_fail_nth(n);
		int rc = rh_tokenizer_save_vocabulary(&v, folder);
		int reached = rh_alloc_fail_nth(0) >= n;
		assert_int_equal(rc, reached ? -ENOMEM : 0);
		if (!reached)
			break;
	}
	leave_folder(folder);
}

static void test_what_cannot_be_saved_is_refused(void **state)
{
	(void)state;
	struct rh_vocabulary v = odd_vocabulary();
	int rc = rh_tokenizer_save_vocabulary(&v, "/tmp/rh-token-absent/folder");
	assert_int_equal(rc, -ENOENT);
	assert_non_null(strstr(rh_error(rc), "/tmp/rh-token-absent/folder/tokenizer.json"));
	v.pre = "falcon";
	rc = rh_tokenizer_save_vocabulary(&v, "/tmp");
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "tokenizer.ggml.pre 'falcon'"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_saved_gguf_tokenizers_are_the_same),
	        cmocka_unit_test(test_saved_demo_tokenizer_is_the_same),
	        cmocka_unit_test(test_saved_sentencepiece_is_the_same),
	        cmocka_unit_test(test_saved_byte_level_is_the_same),
	        cmocka_unit_test(test_marks_go_with_letters_in_qwen35),
	        cmocka_unit_test(test_odd_texts_are_saved),
	        cmocka_unit_test(test_ordinary_tokens_that_a_gguf_names_are_the_same),
	        cmocka_unit_test(test_saving_survives_failed_allocations),
	        cmocka_unit_test(test_what_cannot_be_saved_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
