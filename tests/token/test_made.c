/* Tokenizers drawn at random, with side files that name tokens, against transformers' AutoTokenizer: tests/reference/token/made.json, made
 * by tests/reference/token_made.py. RH_TOKEN_MADE names another such file (`make reference` compares 300). */
#include "reference.h"

#include "token/tokenizer_internal.h"

#include <stdlib.h>

static int32_t id_of(const json_t *one, const char *key)
{
	const json_t *id = json_object_get(one, key);
	return json_is_integer(id) ? (int32_t)json_integer_value(id) : -1;
}

static void put_files(const char *folder, const json_t *files)
{
	const char *name;
	json_t *content;
	json_object_foreach((json_t *)(uintptr_t)files, name, content)
	{
		char *text = json_dumps(content, 0);
		put_file(folder, name, text, strlen(text));
		free(text);
	}
}

/* 1: the ids of one text, and what they say without special tokens, are transformers'. */
static int is_same(const struct rh_tokenizer *tokenizer, const json_t *text, const json_t *ids, const json_t *plain)
{
	struct rh_ids found = {0};
	struct rh_text back = {0};
	check_ok(rh_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), RH_TOKENS_WITH_SPECIAL, &found));
	int same = found.count == json_array_size(ids);
	for (size_t i = 0; same && i < found.count; i++)
		same = found.id[i] == json_integer_value(json_array_get(ids, i));
	check_ok(rh_tokenizer_decode(tokenizer, found.id, found.count, RH_SPECIALS_SKIP, &back));
	same = same && back.length == json_string_length(plain) &&
	       (!back.length || !memcmp(back.bytes, json_string_value(plain), back.length));
	if (!same) {
		print_error("'%s':", json_string_value(text));
		for (size_t i = 0; i < found.count; i++)
			print_error(" %d", found.id[i]);
		print_error(" '%.*s', not", (int)back.length, back.length ? back.bytes : "");
		for (size_t i = 0; i < json_array_size(ids); i++)
			print_error(" %d", (int)json_integer_value(json_array_get(ids, i)));
		print_error(" '%s'\n", json_string_value(plain));
	}
	rh_ids_free(&found);
	rh_text_free(&back);
	return same;
}

static void test_made_tokenizers_are_transformers(void **state)
{
	(void)state;
	const char *path = getenv("RH_TOKEN_MADE") ? getenv("RH_TOKEN_MADE") : "tests/reference/token/made.json";
	json_t *cases;
	size_t wrong = 0, texts = 0;
	check_ok(rh_json_load(path, &cases));
	assert_true(json_array_size(cases) >= 20);
	for (size_t i = 0; i < json_array_size(cases); i++) {
		const json_t *one = json_array_get(cases, i), *all = json_object_get(one, "texts");
		char folder[32];
		struct rh_tokenizer *tokenizer;
		make_folder(folder);
		put_files(folder, json_object_get(one, "files"));
		check_ok(rh_tokenizer_load(folder, &tokenizer));
		leave_folder(folder);
		int same =
		        tokenizer->bos == id_of(one, "bos") && tokenizer->eos == id_of(one, "eos") && tokenizer->pad == id_of(one, "pad");
		for (size_t k = 0; k < json_array_size(all); k++, texts++)
			same &= is_same(tokenizer, json_array_get(all, k), json_array_get(json_object_get(one, "ids"), k),
			                json_array_get(json_object_get(one, "plain"), k));
		if (!same && ++wrong <= 5) {
			char *files = json_dumps(json_object_get(one, "files"), 0);
			print_error("case %zu (%d %d %d): %s\n", i, tokenizer->bos, tokenizer->eos, tokenizer->pad, files);
			free(files);
		}
		rh_tokenizer_destroy(tokenizer);
	}
	printf("%zu tokenizers, %zu texts\n", json_array_size(cases), texts);
	json_decref(cases);
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_made_tokenizers_are_transformers)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
