/* Rows of conversations through chat templates, as `inspect --json` shows them: the values that Python's None, long whole numbers and a
 * NUL become, and what a template leaves out. The texts are what transformers 5.23 renders. */
#include "cli/good.h"

#include "core/json.h"

#define CHATML_HEAD   "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
#define CHATML_TAIL   "<|im_end|>\n{% endfor %}"
#define USER          "{\"role\": \"user\", \"content\": \"q\"}"
#define CALLS         "\"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
#define ASKED         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
#define TEXT(literal) literal, sizeof(literal) - 1
#define OF_NONE                                                                                                                            \
	CHATML_HEAD "{% if m['role'] == 'assistant' and m['content'] is none %}{% for c in m['tool_calls'] %}CALL {{ "                     \
	            "c['function']['name'] }} {{ c['function']['arguments'] }}{% endfor %}{% else %}{{ m['content'] + '' }}{% endif "      \
	            "%}" CHATML_TAIL
#define TO_JSON CHATML_HEAD "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}" CHATML_TAIL
#define ITEMS                                                                                                                              \
	CHATML_HEAD "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}({% for k, v in c.function.arguments|items "     \
	            "%}{{ k }}={{ v }};{% endfor %}){% endfor %}" CHATML_TAIL
#define BY_KEY                                                                                                                             \
	CHATML_HEAD "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}({% for k in c.function.arguments "              \
	            "%}{{ k }}={{ c.function.arguments[k] }};{% endfor %}){% endfor %}" CHATML_TAIL
#define THINKS                                                                                                                             \
	CHATML_HEAD "{% if m.reasoning_content and m.role == 'tool' %}{{ m.reasoning_content }}{% endif %}{{ m.content }}" CHATML_TAIL

static const struct {
	const char *what, *template, *messages;
	const char *text;
	size_t bytes;
	const char *finding; /* a fault of the data, and what names it in the notes; NULL: none */
	const char *note;
} cases[] = {
        {"null content beside a call reaches the template as none", OF_NONE,
         USER ", {\"role\": \"assistant\", \"content\": null, " CALLS "\"{\\\"a\\\": 1}\"}}]}", TEXT(ASKED "CALL f {\"a\": 1}<|im_end|>\n"),
         NULL, NULL},
        {"empty content makes this template leave the call out", OF_NONE,
         USER ", {\"role\": \"assistant\", \"content\": \"\", " CALLS "{\"abc\": 1}}}]}", TEXT(ASKED "<|im_end|>\n"), "dropped-role",
         "assistant's tool_calls"},
        {"a call without its arguments",
         CHATML_HEAD "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}" CHATML_TAIL,
         USER ", {\"role\": \"assistant\", \"content\": \"\", " CALLS "{\"abc\": [1, {\"of\": \"town\"}]}}}]}", TEXT(ASKED "f<|im_end|>\n"),
         "dropped-role", "assistant's tool_calls"},
        {"None in place of null is reported", CHATML_HEAD "{{ m.content }}" CHATML_TAIL,
         USER ", {\"role\": \"assistant\", \"content\": null}", TEXT(ASKED "None<|im_end|>\n"), "none-for-null", "writes None (line 1)"},
        {"a null that is not written is not", CHATML_HEAD "{{ m.content }}{{ m.name or '' }}" CHATML_TAIL,
         USER ", {\"role\": \"assistant\", \"content\": \"a\", \"name\": null}", TEXT(ASKED "a<|im_end|>\n"), NULL, NULL},
        {"whole numbers of any length keep their digits", TO_JSON,
         USER
         ", {\"role\": \"assistant\", \"content\": \"\", " CALLS
         "{\"wei\": 12345678901234567890, \"most\": 9223372036854775807, \"more\": -123456789012345678901234567890, \"real\": 1e22}}}]}",
         TEXT(ASKED "{\"name\": \"f\", \"arguments\": {\"wei\": 12345678901234567890, \"most\": 9223372036854775807, \"more\": "
                    "-123456789012345678901234567890, \"real\": 1e+22}}<|im_end|>\n"),
         NULL, NULL},
        {"arguments' text is parsed for a template that goes through them", ITEMS,
         USER ", {\"role\": \"assistant\", \"content\": \"\", " CALLS "\"{\\\"a\\\": 1, \\\"b\\\": 12345678901234567890}\"}}]}",
         TEXT(ASKED "f(a=1;b=12345678901234567890;)<|im_end|>\n"), NULL, "their JSON text is parsed, here and elsewhere"},
        {"also where it would go through the characters", BY_KEY,
         USER ", {\"role\": \"assistant\", \"content\": \"\", " CALLS "\"{\\\"a\\\": 1}\"}}]}", TEXT(ASKED "f(a=1;)<|im_end|>\n"), NULL,
         "their JSON text is parsed, here and elsewhere"},
        {"arguments' text stays for one that writes it", TO_JSON,
         USER ", {\"role\": \"assistant\", \"content\": \"\", " CALLS "\"{\\\"a\\\": 1}\"}}]}",
         TEXT(ASKED "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}<|im_end|>\n"), NULL, NULL},
        {"reasoning that a template reads and leaves out", THINKS,
         USER ", {\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"deep\"}", TEXT(ASKED "a<|im_end|>\n"),
         "dropped-role", "assistant's reasoning"},
        {"a NUL in each text", CHATML_HEAD "{{ m.content }}" CHATML_TAIL,
         "{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\\u0000b\"}",
         TEXT(ASKED "a\000b<|im_end|>\n"), NULL, NULL},
};

static const char inspect[] = "inspect --model_name_or_path %s/hf --train_file %s/row.jsonl --chat_template %s/form.jinja";

static void test_rows_become_what_transformers_renders(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *result;
		char line[512];
		write_text(path_of("%s/form.jinja", dir), cases[i].template);
		write_text(path_of("%s/row.jsonl", dir), path_of("{\"messages\": [%s]}\n", cases[i].messages));
		snprintf(line, sizeof line, inspect, dir, dir, dir);
		struct ran ran = run_line(&scratch, "%s --json", line);
		if (ran.status != (cases[i].finding != NULL))
			fail_msg("%s: exit %d: %s", cases[i].what, ran.status, ran.err);
		check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &result));
		const json_t *text = json_object_get(json_array_get(json_object_get(result, "rows"), 0), "text");
		if (json_string_length(text) != cases[i].bytes || memcmp(json_string_value(text), cases[i].text, cases[i].bytes))
			fail_msg("%s:\n[%s]\nis not transformers'\n[%s]", cases[i].what, json_string_value(text), cases[i].text);
		const char *name;
		json_t *finding;
		json_object_foreach(json_object_get(result, "findings"), name, finding)
		{
			int expected = cases[i].finding && !strcmp(cases[i].finding, name);
			if (json_integer_value(json_object_get(finding, "rows")) != expected)
				fail_msg("%s: %s: %s", cases[i].what, name, ran.err);
		}
		if (cases[i].note && !strstr(ran.err, cases[i].note))
			fail_msg("%s: no '%s' in: %s", cases[i].what, cases[i].note, ran.err);
		json_decref(result);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* A NUL in a prompt file, in raw form and through a template, and in what is typed. */
static void test_a_nul_goes_through_prompts(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	char *text[2][2];
	write_text(path_of("%s/form.jinja", dir), CHATML_HEAD "{{ m.content }}" CHATML_TAIL);
	for (int cut = 0; cut < 2; cut++) {
		write_bytes(path_of("%s/prompt", dir), "the\0cat", cut ? 3 : 7);
		for (int chat = 0; chat < 2; chat++) {
			struct ran ran = run_line(&scratch,
			                          "generate --model_name_or_path %s/hf --prompt_file %s/prompt --max_new_tokens 12 --json "
			                          "--chat_template %s",
			                          dir, dir, chat ? path_of("%s/form.jinja", dir) : "none");
			if (ran.status)
				fail_msg("%s", ran.err);
			text[cut][chat] = strdup(ran.out);
			run_free(&ran);
		}
	}
	for (int chat = 0; chat < 2; chat++) {
		if (!strcmp(text[0][chat], text[1][chat])) /* what follows the NUL was read */
			fail_msg("the prompt ends at its NUL: %s", text[0][chat]);
		free(text[0][chat]);
		free(text[1][chat]);
	}
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rows_become_what_transformers_renders),
	        cmocka_unit_test(test_a_nul_goes_through_prompts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
