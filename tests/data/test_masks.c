/* Ids and masks of conversations against apply_chat_template on marked copies of published templates (tests/reference/data_masks.py). */
#include "check.h"

#include "core/json.h"
#include "data/data_internal.h"

#include <string.h>

struct tally {
	size_t same, left_out, unlocated, other_refusal, wrong;
};

static void show(const char *what, const struct rh_tokenizer *tokenizer, const int32_t *ids, size_t count,
                 int (*is_in)(const void *, size_t), const void *mask)
{
	print_error("  %s:", what);
	for (size_t i = 0, first = 0; i <= count; i++) {
		if (i < count && is_in(mask, i))
			continue;
		if (first < i) {
			struct rh_text text = {0};
			check_ok(rh_tokenizer_decode(tokenizer, ids + first, i - first, RH_SPECIALS_KEEP, &text));
			print_error(" [%s]", text.bytes ? text.bytes : "");
			rh_text_free(&text);
		}
		first = i + 1;
	}
	print_error("\n");
}

static int is_trained(const void *mask, size_t i)
{
	return ((const uint8_t *)mask)[i];
}

static int is_marked(const void *mask, size_t i)
{
	return json_integer_value(json_array_get(mask, i)) == 1;
}

static void compare(const char *where, struct data_encoder *encoder, const json_t *one, struct tally *tally)
{
	const json_t *ids = json_object_get(one, "ids"), *mask = json_object_get(one, "mask");
	int any = 0, same = 1;
	for (size_t i = 0; i < json_array_size(mask); i++)
		any |= is_marked(mask, i);
	int rc = data_encode(encoder, DATA_MESSAGES, json_object_get(one, "row"), where);
	if (rc) {
		assert_int_equal(rc, -EINVAL);
		assert_non_null(strstr(rh_error(rc), where)); /* names row and turn */
		int is_unlocated = strstr(rh_error(rc), "be located") != NULL;
		tally->unlocated += (size_t)is_unlocated;
		tally->other_refusal += (size_t)!is_unlocated;
		if (is_unlocated || (any && getenv("RH_MASK_SHOW")))
			print_error("%s\n", rh_error(rc));
		return;
	}
	if (encoder->is_empty) { /* its answers are empty: the end of turn alone is not trained */
		tally->left_out++;
		return;
	}
	same = encoder->ids.count == json_array_size(ids);
	for (size_t i = 0; same && i < encoder->ids.count; i++)
		same = encoder->ids.id[i] == json_integer_value(json_array_get(ids, i)) && encoder->trained[i] == is_marked(mask, i);
	tally->same += (size_t)same;
	tally->wrong += (size_t)!same;
	if (same)
		return;
	print_error("%s: %zu ids, transformers has %zu\n", where, encoder->ids.count, json_array_size(ids));
	show("trained", encoder->tokenizer, encoder->ids.id, encoder->ids.count, is_trained, encoder->trained);
	if (encoder->ids.count == json_array_size(ids))
		show("marked ", encoder->tokenizer, encoder->ids.id, encoder->ids.count, is_marked, mask);
}

/* RH_MASK_CASES: published templates, conversations, and what transformers makes of them (`make reference`). */
static void test_ids_and_masks_are_those_of_marked_copies(void **state)
{
	(void)state;
	json_t *file;
	struct tally tally = {0};
	if (!getenv("RH_MASK_CASES")) {
		printf("RH_MASK_CASES is not set: make reference compares the published templates\n");
		skip();
	}
	check_ok(rh_json_load(getenv("RH_MASK_CASES"), &file));
	for (size_t i = 0; i < json_array_size(file); i++) {
		const json_t *one = json_array_get(file, i), *cases = json_object_get(one, "cases");
		struct rh_config config = {.max_length = 1 << 20, .assistant_only_loss = RH_YES, .completion_only_loss = RH_UNSET};
		config.chat_template_date = (char *)(uintptr_t) "2024-07-26";
		struct rh_tokenizer *tokenizer;
		struct data_encoder encoder;
		check_ok(rh_tokenizer_load(json_string_value(json_object_get(one, "tokenizer")), &tokenizer));
		check_ok(data_encoder_open(&config, tokenizer, &encoder));
		check_ok(rh_chat_template_open(NULL, json_string_value(json_object_get(one, "text")), &encoder.chat));
		for (size_t k = 0; k < json_array_size(cases); k++) {
			const json_t *talk = json_array_get(cases, k);
			char where[128];
			snprintf(where, sizeof where, "%s:%lld", json_string_value(json_object_get(one, "name")),
			         (long long)json_integer_value(json_object_get(talk, "number")));
			compare(where, &encoder, talk, &tally);
		}
		data_encoder_close(&encoder);
		rh_tokenizer_destroy(tokenizer);
	}
	printf("%zu templates: %zu conversations with the same ids and masks, %zu with others, %zu without an answer, %zu turns not "
	       "located, %zu refused otherwise\n",
	       json_array_size(file), tally.same, tally.wrong, tally.left_out, tally.unlocated, tally.other_refusal);
	json_decref(file);
	assert_int_equal(tally.wrong, 0);
	assert_true(tally.same > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_ids_and_masks_are_those_of_marked_copies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
