/* What a tokenizer refuses, and in which words; files cut short or altered; memory that runs out; long texts. */
#include "reference.h"

#include "token/tokenizer_internal.h"

#include <time.h>

/* A tokenizer.json around the given parts (JSON texts). */
static int load_parts(const char *normalizer, const char *pre, const char *post, const char *decoder, const char *added,
                      struct rh_tokenizer **out)
{
	char text[4096], folder[32];
	int length = snprintf(
	        text, sizeof text,
	        "{\"added_tokens\": [%s],\n \"normalizer\": %s,\n \"pre_tokenizer\": %s,\n \"post_processor\": %s,\n"
	        " \"decoder\": %s,\n \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \" \": 3, \"<s>\": 4},"
	        " \"merges\": [[\"a\", \"b\"]]}}",
	        added, normalizer, pre, post, decoder);
	make_folder(folder);
	put_file(folder, "tokenizer.json", text, (size_t)length);
	int rc = rh_tokenizer_load(folder, out);
	leave_folder(folder);
	return rc;
}

static int load_text(const char *text, size_t length, struct rh_tokenizer **out)
{
	char folder[32];
	make_folder(folder);
	put_file(folder, "tokenizer.json", text, length);
	int rc = rh_tokenizer_load(folder, out);
	leave_folder(folder);
	return rc;
}

static void refuses(int rc, const char *word)
{
	if (rc != -EINVAL || !strstr(rh_error(rc), word)) {
		print_error("expected a line with '%s', got %d: %s\n", word, rc, rc < 0 ? rh_error(rc) : "no error");
		fail();
	}
	assert_null(strchr(rh_error(rc), '\n'));
}

static void test_load_unsupported_part_is_named(void **state)
{
	(void)state;
	struct rh_tokenizer *t;
	refuses(load_parts("{\"type\":\"Precompiled\"}", "null", "null", "null", "", &t), "a normalizer of type 'Precompiled'");
	refuses(load_parts("null", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}]}", "null", "null", "", &t),
	        "a pre_tokenizer of type 'Whitespace'");
	refuses(load_parts("null", "null", "{\"type\":\"RobertaProcessing\"}", "null", "", &t),
	        "a post_processor of type 'RobertaProcessing'");
	refuses(load_parts("null", "null", "null", "{\"type\":\"CTC\"}", "", &t), "a decoder of type 'CTC'");
	refuses(load_parts("null", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}", "null", "null", "", &t),
	        "'Odd'");
	refuses(load_parts("null", "{\"type\":\"Metaspace\",\"replacement\":\"__\"}", "null", "null", "", &t), "'replacement'");
	refuses(load_parts("null", "null", "null", "null", "{\"id\": 9, \"content\": \"x\"}", &t), "'single_word' is missing");
	static const char unigram[] = "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}";
	refuses(load_text(unigram, sizeof unigram - 1, &t), "'Unigram'");
}

static void test_load_odd_expression_is_refused_by_what_is_odd(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"\\\\X", "this escape"},
	        {"(a", "without its ')'"},
	        {"a)", "opens nowhere"},
	        {"[a", "without its ']'"},
	        {"\\\\p{Nonsense}", "property"},
	        {"*a", "nothing before it"},
	        {"a{2}?", "after {n}"},
	        {"(?i)ss", "two letters"},
	        {"\\\\1", "this escape"},
	        {"(?<=a+)b", "refused"},
	        {"[b-a]", "ends so"},
	        {"\\\\xff", "raw byte"},
	        {"(?s:.)", "kind of group"},
	        {"[\\\\d-z]", "starts with"},
	        {"\\\\u12", "code point"},
	        {"a**", "quantifier of a quantifier"},
	        {"\\\\p{L", "its '}'"},
	        {"(?<n", "its '>'"},
	        {"[[:odd:]]", "bracket"},
	        {"\\\\x{110000}", "code point"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_tokenizer *t;
		char pre[256];
		snprintf(pre, sizeof pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\",\"invert\":false}",
		         cases[i][0]);
		refuses(load_parts("null", pre, "null", "null", "", &t), cases[i][1]);
	}
	char deep[2200] = {0};
	memset(deep, '(', 1000);
	memset(deep + 1000, ')', 1000);
	char pre[2400];
	struct rh_tokenizer *t;
	snprintf(pre, sizeof pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}", deep);
	refuses(load_parts("null", pre, "null", "null", "", &t), "nested so deep");
}

static void test_load_bad_model_is_refused(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]", "twice"},
	        {"\"vocab\":{\"a\":-1},\"merges\":[]", "id -1"},
	        {"\"vocab\":{\"a\":4000000000},\"merges\":[]", "id 4000000000"},
	        {"\"vocab\":{\"a\":1.5},\"merges\":[]", "whole number"},
	        {"\"vocab\":{\"\\ud800\":1},\"merges\":[]", "lone surrogate"},
	        {"\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"b\"]]", "merge 0 of 'a' and 'b'"},
	        {"\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]", "neither"},
	        {"\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]", "neither"},
	        {"\"vocab\":{\"a\":0}", "lacks"},
	        {"\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1", "dropout"},
	        {"\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix"},
	        {"\"vocab\":{\"a\":0 \"b\":1},\"merges\":[]", "expected ','"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_tokenizer *t;
		char text[512];
		int length = snprintf(text, sizeof text, "{\"model\":{\"type\":\"BPE\",%s}}", cases[i][0]);
		refuses(load_text(text, (size_t)length, &t), cases[i][1]);
	}
}

static void test_load_nul_in_a_token_is_kept(void **state)
{
	(void)state;
	static const char text[] = "{\"model\":{\"vocab\":{\"\\u0000\":7,\"a\":0,\"a\\u0000\":3},\"merges\":[[\"a\",\"\\u0000\"]]}}";
	struct rh_tokenizer *t;
	struct rh_ids ids = {0};
	struct rh_text back = {0};
	check_ok(load_text(text, sizeof text - 1, &t));
	check_ok(rh_tokenizer_encode(t, "\0a\0", 3, RH_TOKENS_PLAIN, &ids));
	assert_int_equal(ids.count, 2);
	assert_int_equal(ids.id[0], 7);
	assert_int_equal(ids.id[1], 3);
	check_ok(rh_tokenizer_decode(t, ids.id, 2, RH_SPECIALS_KEEP, &back));
	assert_int_equal(back.length, 4); /* no decoder: a blank between tokens */
	assert_memory_equal(back.bytes, "\0 a\0", 4);
	rh_ids_free(&ids);
	rh_text_free(&back);
	rh_tokenizer_destroy(t);
}

static void test_load_config_names_tokens_and_template(void **state)
{
	(void)state;
	static const char tokenizer[] = "{\"model\":{\"vocab\":{\"a\":0,\"<s>\":1,\"</s>\":2},\"merges\":[]}}";
	static const char config[] =
	        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"pad_token\":null,"
	        "\"chat_template\":[{\"name\":\"tool\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}";
	char folder[32];
	struct rh_tokenizer *t;
	make_folder(folder);
	put_file(folder, "tokenizer.json", tokenizer, sizeof tokenizer - 1);
	put_file(folder, "tokenizer_config.json", config, sizeof config - 1);
	check_ok(rh_tokenizer_load(folder, &t));
	assert_int_equal(rh_tokenizer_bos(t), 1);
	assert_int_equal(rh_tokenizer_eos(t), 2);
	assert_int_equal(t->pad, -1);
	check_ok(rh_tokenizer_set_eos(t, "a"));
	assert_true(rh_tokenizer_eos(t) == 0 && rh_tokenizer_is_special(t, 0));
	assert_int_equal(rh_tokenizer_set_eos(t, "<none>"), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "eos_token: '<none>' is no token"));
	assert_int_equal(rh_tokenizer_eos(t), 0);
	assert_string_equal(rh_tokenizer_chat_template(t), "d");
	rh_tokenizer_destroy(t);
	put_file(folder, "chat_template.jinja", "{{ j }}", 7);
	check_ok(rh_tokenizer_load(folder, &t));
	assert_string_equal(rh_tokenizer_chat_template(t), "{{ j }}");
	rh_tokenizer_destroy(t);
	leave_folder(folder);
}

/* As the tokenizer_config.json that then is written has transformers take it: text that spells it is that token, whatever stands around. */
static void test_another_end_of_sequence_is_special(void **state)
{
	(void)state;
	struct rh_tokenizer *t;
	struct rh_ids ids = {0};
	check_ok(load_parts("null", "null", "null", "null", "", &t));
	check_ok(rh_tokenizer_encode(t, "ab", 2, RH_TOKENS_PLAIN, &ids));
	assert_true(ids.count == 1 && ids.id[0] == 2);
	for (int twice = 0; twice < 2; twice++) {
		check_ok(rh_tokenizer_set_eos(t, "b"));
		ids.count = 0;
		check_ok(rh_tokenizer_encode(t, "ab", 2, RH_TOKENS_PLAIN, &ids));
		assert_true(ids.count == 2 && ids.id[0] == 0 && ids.id[1] == 1);
		assert_true(rh_tokenizer_is_special(t, 1));
		assert_string_equal(rh_tokenizer_text(t, 1), "b");
	}
	rh_ids_free(&ids);
	rh_tokenizer_destroy(t);
}

/* The id that a case gives, -1 for null. */
static int32_t id_of(const json_t *one, const char *key)
{
	const json_t *id = json_object_get(one, key);
	return json_is_integer(id) ? (int32_t)json_integer_value(id) : -1;
}

/* The ids are those of transformers' AutoTokenizer: add_bos_token and add_eos_token change nothing beside a tokenizer.json, and a token
 * that the configuration names is special; so is one that special_tokens_map.json names, where the configuration lists no added tokens. */
static void test_a_config_leaves_the_ids_to_the_post_processor(void **state)
{
	(void)state;
	json_t *cases;
	check_ok(rh_json_load("tests/reference/token/config.json", &cases));
	assert_true(json_array_size(cases) > 30);
	for (size_t i = 0; i < json_array_size(cases); i++) {
		const json_t *one = json_array_get(cases, i), *wanted = json_object_get(one, "ids");
		const char *text = json_string_value(json_object_get(one, "text"));
		char folder[32];
		struct rh_tokenizer *t;
		struct rh_ids ids = {0};
		make_folder(folder);
		put_json(folder, "tokenizer.json", json_object_get(one, "tokenizer"));
		put_json(folder, "tokenizer_config.json", json_object_get(one, "config"));
		if (json_object_get(one, "map"))
			put_json(folder, "special_tokens_map.json", json_object_get(one, "map"));
		check_ok(rh_tokenizer_load(folder, &t));
		leave_folder(folder);
		if (json_object_get(one, "map") && (t->bos != id_of(one, "bos") || t->eos != id_of(one, "eos")))
			fail_msg("%s: other ends than transformers names", json_string_value(json_object_get(one, "name")));
		check_ok(rh_tokenizer_encode(t, text, strlen(text), RH_TOKENS_WITH_SPECIAL, &ids));
		int same = ids.count == json_array_size(wanted);
		for (size_t k = 0; same && k < ids.count; k++)
			same = ids.id[k] == json_integer_value(json_array_get(wanted, k));
		if (!same)
			fail_msg("%s: other ids than transformers gives", json_string_value(json_object_get(one, "name")));
		rh_ids_free(&ids);
		rh_tokenizer_destroy(t);
	}
	json_decref(cases);
}

/* An added token that is named once more, without being special, stays special. */
static void test_a_special_token_stays_special(void **state)
{
	(void)state;
#define ADDED_TOKEN(is_special)                                                                                                            \
	"{\"id\": 4, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "          \
	"\"special\": " is_special "}"
	static const char *const added[] = {ADDED_TOKEN("false"), ADDED_TOKEN("true") ", " ADDED_TOKEN("false")};
	for (int is_special = 0; is_special < 2; is_special++) {
		struct rh_tokenizer *t;
		check_ok(load_parts("null", "null", "null", "null", added[is_special], &t));
		assert_int_equal(rh_tokenizer_is_special(t, 4), is_special);
		rh_tokenizer_destroy(t);
	}
}

/* A token that only the configuration names, and for which the model has no row, is no token: its text is ordinary, and a role that it had
 * is nobody's. What tokenizer.json itself has must fit. */
static void test_tokens_without_a_row_are_ordinary_text(void **state)
{
	(void)state;
	static const char tokenizer[] = "{\"model\":{\"vocab\":{\"a\":0,\"<\":1,\">\":2},\"merges\":[]},\"added_tokens\":[]}";
	static const char config[] = "{\"pad_token\":\"<a>\",\"eos_token\":\"<\",\"extra_special_tokens\":[\"<<\"]}";
	char folder[32];
	struct rh_tokenizer *t;
	struct rh_ids ids = {0};
	make_folder(folder);
	put_file(folder, "tokenizer.json", tokenizer, sizeof tokenizer - 1);
	put_file(folder, "tokenizer_config.json", config, sizeof config - 1);
	check_ok(rh_tokenizer_load(folder, &t));
	leave_folder(folder);
	assert_int_equal(rh_tokenizer_size(t), 5);
	assert_int_equal(t->pad, 3);
	check_ok(rh_tokenizer_fit(t, 5));
	check_ok(rh_tokenizer_encode(t, "a<a>", 4, RH_TOKENS_PLAIN, &ids));
	assert_true(ids.count == 2 && ids.id[1] == 3);
	refuses(rh_tokenizer_fit(t, 2), "the tokenizer has 3 entries, the model's embedding only 2");
	check_ok(rh_tokenizer_fit(t, 3));
	ids.count = 0;
	check_ok(rh_tokenizer_encode(t, "a<a>", 4, RH_TOKENS_PLAIN, &ids));
	assert_true(ids.count == 4 && ids.id[1] == 1 && ids.id[2] == 0 && ids.id[3] == 2);
	assert_true(t->pad == -1 && rh_tokenizer_eos(t) == 1 && rh_tokenizer_id(t, "<a>") == -1 && rh_tokenizer_size(t) == 3);
	rh_ids_free(&ids);
	rh_tokenizer_destroy(t);
}

/* The name by which a GGUF file says how text is cut: of the steps, in whichever way they are written, and of ignore_merges. */
static void test_the_way_of_cutting_has_llama_cpps_name(void **state)
{
	(void)state;
#define LLAMA3                                                                                                                             \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "                                             \
	"?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define BYTES(expression) "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":" expression "}"
#define SPLIT(how)        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" LLAMA3 "\"},\"behavior\":" how "}"
#define BOTH(first)       "{\"type\":\"Sequence\",\"pretokenizers\":[" first "," BYTES("false") "]}"
	static const struct {
		const char *pre, *name;
	} cases[] = {
	        {BYTES("true"), "gpt-2"},
	        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", NULL},
	        {BOTH(SPLIT("\"Isolated\"")), "dbrx"},
	        {BOTH(SPLIT("\"Removed\",\"invert\":true")), "dbrx"}, /* as Phi-4 writes it */
	        {BOTH(SPLIT("\"Removed\"")), NULL},
	        {SPLIT("\"Isolated\""), NULL},
	        {"null", NULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_tokenizer *t;
		check_ok(load_parts("null", cases[i].pre, "null", "null", "", &t));
		const char *name = rh_tokenizer_pre(t);
		if (!name != !cases[i].name || (name && strcmp(name, cases[i].name)))
			fail_msg("case %zu: %s", i, name ? name : "none");
		t->bpe.ignore_merges = 1;
		name = rh_tokenizer_pre(t);
		assert_true(i == 2 || i == 3 ? name && !strcmp(name, "llama-bpe") : !name);
		rh_tokenizer_destroy(t);
	}
}

static void test_encode_refuses_what_is_not_utf8(void **state)
{
	(void)state;
	struct rh_tokenizer *t;
	struct rh_ids ids = {0};
	struct rh_text back = {0};
	static const char *const cases[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"};
	check_ok(load_parts("null", "null", "null", "null", "", &t));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		refuses(rh_tokenizer_encode(t, cases[i], strlen(cases[i]), RH_TOKENS_PLAIN, &ids), "not UTF-8");
	assert_int_equal(ids.count, 0);
	int32_t odd[] = {0, 99}, negative = -1;
	refuses(rh_tokenizer_decode(t, odd, 2, RH_SPECIALS_KEEP, &back), "token id 99");
	refuses(rh_tokenizer_decode(t, &negative, 1, RH_SPECIALS_KEEP, &back), "token id -1");
	assert_int_equal(back.length, 0);
	rh_ids_free(&ids);
	rh_text_free(&back);
	rh_tokenizer_destroy(t);
	rh_tokenizer_destroy(NULL);
}

static void test_vocabulary_bad_is_refused(void **state)
{
	(void)state;
	const char *token[] = {"a", "b", "ab", "\xff"};
	const size_t bytes[] = {1, 1, 2, 1};
	const float score[] = {0, 0, 0.0f / 0.0f, 0};
	const char *merge[] = {"a b", "ab"};
	const size_t merge_bytes[] = {3, 2};
	struct rh_tokenizer *t;
	struct rh_vocabulary good = {.where = "x.gguf",
	                             .model = "gpt2",
	                             .pre = "gpt-2",
	                             .tokens = 3,
	                             .token = token,
	                             .token_bytes = bytes,
	                             .merges = 1,
	                             .merge = merge,
	                             .merge_bytes = merge_bytes,
	                             .bos = -1,
	                             .eos = 2,
	                             .unknown = -1,
	                             .pad = -1,
	                             .add_bos = -1,
	                             .add_eos = -1,
	                             .add_space_prefix = -1};
	struct rh_vocabulary v = good;
	check_ok(rh_tokenizer_from_vocabulary(&v, &t));
	assert_int_equal(rh_tokenizer_id(t, "ab"), 2);
	assert_int_equal(rh_tokenizer_size(t), 3);
	rh_tokenizer_destroy(t);
	v.pre = "falcon";
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "tokenizer.ggml.pre 'falcon'");
	v.pre = NULL;
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "(absent)");
	v = good;
	v.model = "bert";
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "tokenizer.ggml.model 'bert'");
	v = good;
	v.tokens = 4;
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "token 3 is not UTF-8");
	v = good;
	v.eos = 3;
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "eos_token_id is 3");
	v = good;
	v.merges = 2;
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "merge 1");
	v = good;
	v.model = "llama";
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "scores");
	v.score = score;
	refuses(rh_tokenizer_from_vocabulary(&v, &t), "score of token 2");
}

/* Encodes and decodes something, for the sanitizers to watch. */
static void exercise(struct rh_tokenizer *tokenizer)
{
	static const char text[] = " <s>Hello  World\xc3\xa9\xe2\x96\x81\xcc\x81 123 <x>\n\xf0\x9f\x98\x80";
	struct rh_ids ids = {0};
	struct rh_text back = {0};
	int rc = rh_tokenizer_encode(tokenizer, text, sizeof text - 1, RH_TOKENS_WITH_SPECIAL, &ids);
	if (!rc)
		rc = rh_tokenizer_decode(tokenizer, ids.id, ids.count, RH_SPECIALS_SKIP, &back);
	assert_true(rc <= 0);
	rh_ids_free(&ids);
	rh_text_free(&back);
}

static void check_damaged(const char *folder, const char *bytes, size_t length)
{
	struct rh_tokenizer *t;
	put_file(folder, "tokenizer.json", bytes, length);
	int rc = rh_tokenizer_load(folder, &t);
	if (rc) {
		assert_true(rc < 0 && strlen(rh_error(rc)) > 0);
	} else {
		exercise(t);
		rh_tokenizer_destroy(t);
	}
}

/* Every variant's parts over a model of a few tokens, so that damage mostly hits the parts. */
static char *small_variant(json_t *file, size_t index)
{
	const char *name;
	json_error_t fault;
	json_t *whole = variant_at(file, index, &name);
	if (!whole)
		return NULL;
	json_object_set_new(
	        whole, "model",
	        json_loads("{\"type\":\"BPE\",\"unk_token\":\"u\",\"fuse_unk\":true,\"byte_fallback\":true,\"ignore_merges\":false,"
	                   "\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3,\"<0x41>\":4,\"\\u0120\":5,\"x\":6,\"y\":7,\"z\":8},"
	                   "\"merges\":[[\"a\",\"b\"],\"a b\"]}",
	                   0, &fault));
	char *text = json_dumps(whole, JSON_COMPACT);
	json_decref(whole);
	return text;
}

static void test_load_damaged_files_never_crash(void **state)
{
	(void)state;
	static const char *const pieces[] = {"null", "-1", "1e9", "\"\"", "[]", "{}", "\\u0000", "\\ud800",
	                                     "\xff", "\"", "}",   "]",    "[",  "(",  "{2,",     "99999999999"};
	uint64_t seed = check_seed();
	json_t *file = NULL;
	char folder[32], *text;
	check_ok(rh_json_load("tests/corpus/token_variants.json", &file));
	make_folder(folder);
	for (size_t v = 0; (text = small_variant(file, v)); v++) {
		size_t length = strlen(text);
		char *copy = malloc(length + 64);
		for (int i = 0; i < 24; i++) {
			memcpy(copy, text, length + 1);
			size_t at = check_random(&seed) % length, size = length;
			const char *piece = pieces[check_random(&seed) % (sizeof pieces / sizeof *pieces)];
			switch (check_random(&seed) % 4) {
			case 0:
				size = at;
				break;
			case 1:
				copy[at] = (char)check_random(&seed);
				break;
			case 2: /* a stretch taken out */
				size = at + (length - at) / 2;
				memmove(copy + at, copy + at + (length - size), size - at);
				break;
			default: /* something put in */
				memmove(copy + at + strlen(piece), copy + at, length - at);
				memcpy(copy + at, piece, strlen(piece));
				size += strlen(piece);
			}
			check_damaged(folder, copy, size);
		}
		free(copy);
		free(text);
	}
	leave_folder(folder);
	json_decref(file);
}

static void test_memory_that_runs_out_is_an_error_each_time(void **state)
{
	(void)state;
	json_t *file = NULL;
	char folder[32], *text;
	check_ok(rh_json_load("tests/corpus/token_variants.json", &file));
	make_folder(folder);
	for (size_t v = 0; (text = small_variant(file, v)); v += 9) {
		put_file(folder, "tokenizer.json", text, strlen(text));
		int rc = -ENOMEM;
		for (uint64_t n = 1; rc; n++) {
			struct rh_tokenizer *t = NULL;
			struct rh_ids ids = {0};
			struct rh_text back = {0};
			rh_alloc_fail_nth(n);
			rc = rh_tokenizer_load(folder, &t);
			if (!rc)
				rc = rh_tokenizer_encode(t, "<x> Hello ab 12\xc3\xa9", 17, RH_TOKENS_WITH_SPECIAL, &ids);
			if (!rc)
				rc = rh_tokenizer_decode(t, ids.id, ids.count, RH_SPECIALS_KEEP, &back);
			rh_alloc_fail_nth(0);
			assert_true(rc == 0 || rc == -ENOMEM);
			rh_tokenizer_destroy(t);
			rh_ids_free(&ids);
			rh_text_free(&back);
			assert_true(n < 2000);
		}
		free(text);
	}
	leave_folder(folder);
	json_decref(file);
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One piece of 4 MB, which nothing splits: ten times the time would still pass, the square of it would take hours. */
static void test_encode_long_piece_takes_no_quadratic_time(void **state)
{
	(void)state;
	enum { LENGTH = 4000000 };
	struct rh_tokenizer *t;
	struct rh_ids ids = {0};
	char *text = malloc(LENGTH);
	for (size_t i = 0; i < LENGTH; i++)
		text[i] = i % 3 ? 'b' : 'a';
	check_ok(load_parts(
	        "null", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+(?!\\\\S)|\\\\p{L}+|(?:ab|b)+\"},\"behavior\":\"Isolated\"}",
	        "null", "null", "", &t));
	double start = seconds();
	check_ok(rh_tokenizer_encode(t, text, LENGTH, RH_TOKENS_PLAIN, &ids));
	double took = seconds() - start;
	printf("4 MB in one piece: %.2f s\n", took);
	assert_int_equal(ids.count, LENGTH / 3 * 2 + 1);
	assert_true(took < 60);
	rh_ids_free(&ids);
	rh_tokenizer_destroy(t);
	free(text);
}

/* An expression that goes back over a run of blanks takes as many steps as there are blanks, however many; one that tries all ways to
 * share out 40 letters is ended. */
static void test_steps_of_an_expression_are_limited_by_the_texts_length(void **state)
{
	(void)state;
	enum { BLANKS = 11000000, LETTERS = 40 };
	struct rh_tokenizer *t;
	struct rh_ids ids = {0};
	char *text = malloc(BLANKS);
	memset(text, ' ', BLANKS);
	check_ok(load_parts(
	        "null", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)\"},\"behavior\":\"Isolated\"}",
	        "null", "null", "", &t));
	check_ok(rh_tokenizer_encode(t, text, BLANKS, RH_TOKENS_PLAIN, &ids));
	assert_int_equal(ids.count, BLANKS);
	rh_ids_free(&ids);
	rh_tokenizer_destroy(t);
	memset(text, 'a', LETTERS);
	check_ok(load_parts("null", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a|aa)+(?:\\\\s|b)\"},\"behavior\":\"Isolated\"}",
	                    "null", "null", "", &t));
	refuses(rh_tokenizer_encode(t, text, LETTERS, RH_TOKENS_PLAIN, &ids), "gave up on a text of 40 characters");
	rh_ids_free(&ids);
	rh_tokenizer_destroy(t);
	free(text);
}

/* Byte-pair encoding in the order of ranks: each merge in turn over the whole text, from the left. */
static size_t merge_by_rank(int32_t *ids, size_t count, const int32_t (*merge)[3], size_t merges)
{
	for (size_t m = 0; m < merges; m++) {
		size_t kept = 0;
		for (size_t i = 0; i < count; kept++) {
			int joins = i + 1 < count && ids[i] == merge[m][0] && ids[i + 1] == merge[m][1];
			ids[kept] = joins ? merge[m][2] : ids[i];
			i += joins ? 2 : 1;
		}
		count = kept;
	}
	return count;
}

#define VOCABULARY_OF(last)                                                                                                                \
	"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"e\": 3, \"f\": 4, \" \": 5, "                         \
	"\"ab\": 6, \"abc\": 7, \"bc\": 8, \"  \": 9, \" a\": 10, \"ef\": 11, \"fa\": 12, \"?\": 13" last "}, "                            \
	"\"unk_token\": \"?\", \"fuse_unk\": true, \"merges\": [[\"a\", \"b\"], [\"ab\", \"c\"], "                                         \
	"[\"b\", \"c\"], [\" \", \" \"], [\" \", \"a\"], [\"e\", \"f\"], [\"f\", \"a\"]]}}"

/* Long texts that no pre-tokenizer cuts are encoded in stretches: the ids are those of the whole. `d` is not in the vocabulary. Where it
 * has the id of `c`, that id alone does not say which characters a merge joins. */
static void test_encode_long_piece_in_stretches_is_exact(void **state)
{
	(void)state;
	enum { LENGTH = 300000, MERGES = 7, C = 2, UNKNOWN = 13 };
	static const char *const models[] = {VOCABULARY_OF(""), VOCABULARY_OF(", \"d\": 2")};
	static const int32_t merge[MERGES][3] = {{0, 1, 6}, {6, C, 7}, {1, C, 8}, {5, 5, 9}, {5, 0, 10}, {3, 4, 11}, {4, 0, 12}};
	static const char letters[] = "abc ef d";
	static const int32_t id[] = {0, 1, C, 5, 3, 4, 5, UNKNOWN};
	uint64_t seed = check_seed();
	char *text = malloc(LENGTH);
	int32_t *expected = malloc(LENGTH * sizeof *expected);
	for (int m = 0; m < 2; m++) {
		struct rh_tokenizer *t;
		size_t count = 0;
		struct rh_ids ids = {0};
		check_ok(load_text(models[m], strlen(models[m]), &t));
		for (size_t i = 0; i < LENGTH; i++) {
			uint32_t drawn = m ? 1 + i % 2 : check_random(&seed) % 8;
			text[i] = letters[drawn];
			if (id[drawn] != UNKNOWN || !i || text[i - 1] != 'd') /* unknown ones are fused */
				expected[count++] = id[drawn];
		}
		count = merge_by_rank(expected, count, merge, MERGES);
		check_ok(rh_tokenizer_encode(t, text, LENGTH, RH_TOKENS_PLAIN, &ids));
		assert_int_equal(ids.count, count);
		assert_memory_equal(ids.id, expected, count * sizeof *expected);
		rh_ids_free(&ids);
		rh_tokenizer_destroy(t);
	}
	free(expected);
	free(text);
}

/* A word of as many characters as are allowed is split; a longer one is unknown. */
static void test_a_words_length_is_limited(void **state)
{
	(void)state;
	static const char model[] = "{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"model\": {\"type\": \"WordPiece\", "
	                            "\"unk_token\": \"?\", \"continuing_subword_prefix\": \"#\", \"max_input_chars_per_word\": 4, "
	                            "\"vocab\": {\"?\": 0, \"a\": 1, \"#a\": 2, \"#\u00e9\": 3}}}",
	                  text[] = "aaa\xC3\xA9 aaaaa";
	static const int32_t expected[] = {1, 2, 2, 3, 0};
	struct rh_tokenizer *t;
	struct rh_ids ids = {0};
	check_ok(load_text(model, sizeof model - 1, &t));
	check_ok(rh_tokenizer_encode(t, text, sizeof text - 1, RH_TOKENS_PLAIN, &ids));
	assert_int_equal(ids.count, sizeof expected / sizeof *expected);
	assert_memory_equal(ids.id, expected, sizeof expected);
	rh_ids_free(&ids);
	rh_tokenizer_destroy(t);
}

/* A byte's token may have a plus sign for its first digit, as the library reads it; none may have a minus sign. */
static void test_bytes_are_decoded_with_a_sign(void **state)
{
	(void)state;
	static const char model[] = "{\"decoder\": {\"type\": \"ByteFallback\"}, \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, "
	                            "\"vocab\": {\"a\": 0, \"<0x41>\": 1, \"<0x+A>\": 2, \"<0x-A>\": 3}, \"merges\": []}}";
	struct rh_tokenizer *t;
	struct rh_text text = {0};
	check_ok(load_text(model, sizeof model - 1, &t));
	check_ok(rh_tokenizer_decode(t, (const int32_t[]){0, 1, 2, 3}, 4, RH_SPECIALS_SKIP, &text));
	assert_string_equal(text.bytes, "aA\n<0x-A>");
	rh_text_free(&text);
	rh_tokenizer_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_load_unsupported_part_is_named),
	        cmocka_unit_test(test_load_odd_expression_is_refused_by_what_is_odd),
	        cmocka_unit_test(test_load_bad_model_is_refused),
	        cmocka_unit_test(test_load_nul_in_a_token_is_kept),
	        cmocka_unit_test(test_load_config_names_tokens_and_template),
	        cmocka_unit_test(test_another_end_of_sequence_is_special),
	        cmocka_unit_test(test_a_config_leaves_the_ids_to_the_post_processor),
	        cmocka_unit_test(test_a_special_token_stays_special),
	        cmocka_unit_test(test_tokens_without_a_row_are_ordinary_text),
	        cmocka_unit_test(test_the_way_of_cutting_has_llama_cpps_name),
	        cmocka_unit_test(test_encode_refuses_what_is_not_utf8),
	        cmocka_unit_test(test_vocabulary_bad_is_refused),
	        cmocka_unit_test(test_load_damaged_files_never_crash),
	        cmocka_unit_test(test_memory_that_runs_out_is_an_error_each_time),
	        cmocka_unit_test(test_encode_long_piece_takes_no_quadratic_time),
	        cmocka_unit_test(test_steps_of_an_expression_are_limited_by_the_texts_length),
	        cmocka_unit_test(test_encode_long_piece_in_stretches_is_exact),
	        cmocka_unit_test(test_a_words_length_is_limited),
	        cmocka_unit_test(test_bytes_are_decoded_with_a_sign),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
