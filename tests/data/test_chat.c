#include "check.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "data/chat.h"

#include <string.h>

static const char *const names[] = {"chatml", "smollm2", "qwen2", "qwen2.5", "qwen3", "llama2", "llama3", "llama3.1", "llama3.2"};
enum { NAMES = sizeof names / sizeof *names };

static const char *bos_of(const char *name)
{
	return !strcmp(name, "llama2") ? "<s>" : "<|begin_of_text|>";
}

static json_t *reference(const char *name)
{
	char path[128];
	snprintf(path, sizeof path, "tests/reference/data/chat-%s.json", name);
	json_t *value;
	check_ok(rh_json_load(path, &value));
	return value;
}

static void compare(const char *name, size_t index, const json_t *messages, enum rh_chat_end end, const json_t *expected)
{
	const struct rh_chat_template *chat;
	check_ok(rh_chat_template_by_name(name, &chat));
	struct rh_text text = {0};
	int rc = rh_chat_render(chat, messages, end, bos_of(name), "x", &text, NULL);
	if (json_is_null(expected)) {
		assert_int_equal(rc, -EINVAL);
	} else {
		check_ok(rc);
		if (text.length != json_string_length(expected) ||
		    (text.length && memcmp(text.bytes, json_string_value(expected), text.length)))
			fail_msg("%s, conversation %zu:\n[%s]\nis not transformers'\n[%s]", name, index, text.bytes,
			         json_string_value(expected));
	}
	rh_text_free(&text);
}

static void test_render_equals_transformers(void **state)
{
	(void)state;
	json_t *talks = reference("conversations");
	size_t compared = 0;
	for (int n = 0; n < NAMES; n++) {
		json_t *expected = reference(names[n]);
		assert_int_equal(json_array_size(expected), json_array_size(talks));
		for (size_t i = 0; i < json_array_size(talks); i++) {
			const json_t *messages = json_array_get(talks, i), *one = json_array_get(expected, i);
			compare(names[n], i, messages, RH_CHAT_WHOLE, json_object_get(one, "whole"));
			compare(names[n], i, messages, RH_CHAT_PROMPT, json_object_get(one, "prompt"));
			compared += 2;
		}
		json_decref(expected);
	}
	printf("%zu renderings\n", compared);
	json_decref(talks);
}

/* What is written beside a model is the text that tests/reference/data_chat.py has rendered, and is known again. */
static void test_jinja_is_what_transformers_rendered(void **state)
{
	(void)state;
	static const char *const all[] = {"chatml", "smollm2", "qwen2",    "qwen2.5",  "qwen3",
	                                  "llama2", "llama3",  "llama3.1", "llama3.2", "llama3.3"};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		const struct rh_chat_template *chat, *found;
		struct rh_bytes file;
		char path[128];
		snprintf(path, sizeof path, "tests/reference/data/chat-%s.jinja", strncmp(all[i], "llama3.", 7) ? all[i] : "llama3.1");
		check_ok(rh_chat_template_by_name(all[i], &chat));
		check_ok(rh_file_load(path, &file));
		assert_int_equal(file.length, strlen(rh_chat_template_jinja(chat)));
		assert_memory_equal(file.bytes, rh_chat_template_jinja(chat), file.length);
		rh_bytes_free(&file);
		check_ok(rh_chat_template_by_text(rh_chat_template_jinja(chat), "x", &found));
		assert_string_equal(rh_chat_template_jinja(found), rh_chat_template_jinja(chat));
	}
}

/* The spans of a conversation, joined by |. */
static void expect_spans(const char *name, const char *messages, const char *expected)
{
	const struct rh_chat_template *chat;
	json_t *list;
	struct rh_text text = {0}, seen = {0};
	struct rh_chat_spans spans = {0};
	check_ok(rh_chat_template_by_name(name, &chat));
	assert_string_equal(rh_chat_template_name(chat), name);
	check_ok(rh_json_parse(messages, strlen(messages), "x", &list));
	check_ok(rh_chat_render(chat, list, RH_CHAT_WHOLE, bos_of(name), "x", &text, &spans));
	for (size_t i = 0; i < spans.count; i++) {
		assert_true(spans.span[i].first < spans.span[i].end && spans.span[i].end <= text.length);
		check_ok(rh_text_append(&seen, text.bytes + spans.span[i].first, spans.span[i].end - spans.span[i].first));
		check_ok(rh_text_append(&seen, "|", 1));
	}
	assert_string_equal(seen.bytes, expected);
	rh_text_free(&text);
	rh_text_free(&seen);
	rh_chat_spans_free(&spans);
	json_decref(list);
}

static void test_spans_are_what_the_assistant_wrote(void **state)
{
	(void)state;
	static const char talk[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\" a \"},"
	                           "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
	expect_spans("smollm2", talk, " a <|im_end|>|b<|im_end|>|");
	expect_spans("qwen3", talk, " a <|im_end|>|<think>\n\n</think>\n\nb<|im_end|>|");
	expect_spans("llama2", talk, " a </s>| b </s>|");
	expect_spans("llama3.3", talk, "a<|eot_id|>|b<|eot_id|>|");
}

static void test_text_is_recognised_with_or_without_its_last_newline(void **state)
{
	(void)state;
	const struct rh_chat_template *chat;
	static const char chatml[] =
	        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
	        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";
	char text[sizeof chatml];
	memcpy(text, chatml, sizeof chatml);
	check_ok(rh_chat_template_by_text(text, "x", &chat));
	assert_string_equal(rh_chat_template_name(chat), "chatml");
	text[sizeof chatml - 2] = 0;
	check_ok(rh_chat_template_by_text(text, "x", &chat));
	text[0] = ' ';
	assert_int_equal(rh_chat_template_by_text(text, "model/tokenizer_config.json", &chat), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "model/tokenizer_config.json: "));
	assert_non_null(strstr(rh_error(-EINVAL), "chatml, smollm2, qwen2, qwen2.5, qwen3, llama2, llama3, llama3.1, llama3.2, llama3.3"));
	assert_int_equal(rh_chat_template_by_text(NULL, "x", &chat), -EINVAL);
	assert_int_equal(rh_chat_template_by_name("", &chat), -EINVAL);
}

static void test_every_refused_allocation_unwinds(void **state)
{
	(void)state;
	static const char talk[] = "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
	                           "\"content\":\"a\"}]";
	json_t *list;
	check_ok(rh_json_parse(talk, strlen(talk), "x", &list));
	for (int n = 0; n < NAMES; n++)
		for (uint64_t nth = 1;; nth++) {
			const struct rh_chat_template *chat;
			struct rh_text text = {0};
			struct rh_chat_spans spans = {0};
			check_ok(rh_chat_template_by_name(names[n], &chat));
			rh_alloc_fail_nth(nth);
			int rc = rh_chat_render(chat, list, RH_CHAT_WHOLE, NULL, "x", &text, &spans);
			uint64_t asked = rh_alloc_fail_nth(0);
			rh_text_free(&text);
			rh_chat_spans_free(&spans);
			if (asked < nth) {
				check_ok(rc);
				break;
			}
			assert_int_equal(rc, -ENOMEM);
		}
	json_decref(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_render_equals_transformers),
	        cmocka_unit_test(test_jinja_is_what_transformers_rendered),
	        cmocka_unit_test(test_spans_are_what_the_assistant_wrote),
	        cmocka_unit_test(test_text_is_recognised_with_or_without_its_last_newline),
	        cmocka_unit_test(test_every_refused_allocation_unwinds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
