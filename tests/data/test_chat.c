/* Built-in templates against what transformers renders of the families' own, and where the assistant's turns are. */
#include "check.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "data/chat.h"
#include "fake_tokenizer.h"

#include <string.h>

static const char *const more[] = {"<|begin_of_text|>",
                                   "<|eot_id|>",
                                   "<|start_header_id|>",
                                   "<|end_header_id|>",
                                   "<end_of_turn>",
                                   "<start_of_turn>",
                                   "[INST]",
                                   "[/INST]",
                                   "<|end|>",
                                   "<|user|>",
                                   "<|assistant|>",
                                   "<|system|>",
                                   "<|im_sep|>",
                                   "<|start|>",
                                   "<|message|>",
                                   "<|channel|>",
                                   "<|return|>",
                                   "<bos>",
                                   NULL};
static const char *const names[] = {"chatml",  "smollm2",  "qwen2",      "qwen2.5",    "qwen3",         "llama2",
                                    "llama3",  "llama3.1", "llama3.2",   "gemma",      "gemma3",        "phi3",
                                    "harmony", "phi4",     "mistral-v1", "mistral-v3", "mistral-tekken"};
enum { NAMES = sizeof names / sizeof *names, COMPARED = 13 };

static struct rh_tokenizer tokenizer_of(const char *name)
{
	int is_plain = !strcmp(name, "llama2") || !strncmp(name, "mistral", 7);
	return (struct rh_tokenizer){.more = more, .bos = is_plain ? "<s>" : "<|begin_of_text|>", .eos = is_plain ? "</s>" : "<|eot_id|>"};
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
	struct rh_chat_template *form;
	struct rh_tokenizer tokenizer = tokenizer_of(name);
	struct rh_text text = {0};
	json_t *conversation = json_pack("{s:O}", "messages", messages);
	check_ok(rh_chat_template_open(name, NULL, &form));
	struct rh_chat chat = {.form = form, .tokenizer = &tokenizer, .date = "2024-07-26", .where = "x"};
	int rc = rh_chat_render(&chat, conversation, end, &text);
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
	json_decref(conversation);
	rh_chat_template_close(form);
}

static void test_render_equals_transformers(void **state)
{
	(void)state;
	json_t *talks = reference("conversations");
	size_t compared = 0;
	for (int n = 0; n < COMPARED; n++) {
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

/* A template that has a placeholder for images gets none to write: nothing would be in its place. */
static void test_parts_that_are_no_text_are_refused(void **state)
{
	(void)state;
	static const char text[] =
	        "{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}<|image|>"
	        "{% endif %}{% endfor %}{% endfor %}";
	static const char *const parts[] = {"{\"type\":\"image\"}",  "{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}",
	                                    "{\"image\":\"x.png\"}", "{\"type\":\"input_audio\"}",
	                                    "{\"type\":\"video\"}",  "{\"type\":\"text\",\"text\":\"a\",\"image\":null}"};
	struct rh_tokenizer tokenizer = tokenizer_of("chatml");
	struct rh_chat_template *form;
	check_ok(rh_chat_template_open(NULL, text, &form));
	struct rh_chat chat = {.form = form, .tokenizer = &tokenizer, .date = "2024-07-26", .where = "x"};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		struct rh_text rendered = {0};
		char row[256];
		snprintf(row, sizeof row, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"},%s]}]}",
		         parts[i]);
		json_t *conversation = json_loads(row, 0, NULL);
		int rc = rh_chat_render(&chat, conversation, RH_CHAT_WHOLE, &rendered), is_text = strstr(row, "null") != NULL;
		if (is_text) {
			check_ok(rc);
			assert_string_equal(rendered.bytes, "<|user|>qa");
		} else {
			assert_int_equal(rc, -EINVAL);
			assert_non_null(strstr(rh_error(rc), "x: message 1: a part of 'content' is of type "));
		}
		rh_text_free(&rendered);
		json_decref(conversation);
	}
	rh_chat_template_close(form);
}

/* A conversation with tools: what is written; NULL: it is refused. */
static void expect_rendered(const char *name, const json_t *conversation, enum rh_chat_end end, const char *expected)
{
	struct rh_chat_template *form;
	struct rh_tokenizer tokenizer = tokenizer_of(name);
	struct rh_text text = {0};
	check_ok(rh_chat_template_open(name, NULL, &form));
	struct rh_chat chat = {.form = form, .tokenizer = &tokenizer, .date = "2024-07-26", .where = "x"};
	int rc = rh_chat_render(&chat, conversation, end, &text);
	if (!expected)
		assert_int_equal(rc, -EINVAL);
	else
		check_ok(rc);
	if (expected && strcmp(text.bytes, expected))
		fail_msg("%s:\n[%s]\nis not\n[%s]", name, text.bytes, expected);
	rh_text_free(&text);
	rh_chat_template_close(form);
}

static void test_tools_render_as_the_families_own_do(void **state)
{
	(void)state;
	static const char *const families[] = {"qwen2.5", "qwen3", "llama3.1"};
	json_t *talks = reference("tools-conversations");
	for (int f = 0; f < 3; f++) {
		char file[32];
		snprintf(file, sizeof file, "tools-%s", families[f]);
		json_t *expected = reference(file);
		assert_int_equal(json_array_size(expected), json_array_size(talks));
		for (size_t i = 0; i < json_array_size(talks); i++) {
			const json_t *talk = json_array_get(talks, i), *one = json_array_get(expected, i);
			expect_rendered(families[f], talk, RH_CHAT_WHOLE, json_string_value(json_object_get(one, "whole")));
			expect_rendered(families[f], talk, RH_CHAT_PROMPT, json_string_value(json_object_get(one, "prompt")));
		}
		json_decref(expected);
	}
	json_decref(talks);
}

static void expect_tools(const char *name, const char *conversation, const char *expected)
{
	json_t *talk;
	check_ok(rh_json_parse(conversation, strlen(conversation), "x", &talk));
	expect_rendered(name, talk, RH_CHAT_PROMPT, expected);
	json_decref(talk);
}

#define CALLED(id)                                                                                                                         \
	"{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"hi\"}, "                  \
	"{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", " id                                       \
	"\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 2}}}]}, "                                                                  \
	"{\"role\": \"tool\", \"name\": \"f\", \"tool_call_id\": \"abcdefghi\", \"content\": \"4\"}], \"tools\": [{\"type\": "             \
	"\"function\", "                                                                                                                   \
	"\"function\": {\"name\": \"f\", \"description\": \"Doubles.\", \"parameters\": {\"type\": \"object\", \"properties\": "           \
	"{\"x\": {\"type\": \"integer\", \"description\": \"a number\"}, \"y\": {\"type\": \"array\", \"items\": {\"type\": "              \
	"\"string\"}}}}}}]}"
#define DESCRIBED                                                                                                                          \
	"{\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\", \"description\": \"a number\"}, \"y\": "                   \
	"{\"type\": \"array\", \"items\": {\"type\": \"string\"}}}}"

/* What these families' own texts write of such rows. */
static void test_tools_of_mistral_and_hermes(void **state)
{
	(void)state;
	expect_tools("mistral-tekken", CALLED("\"id\": \"abcdefghi\", "),
	             "<s>[AVAILABLE_TOOLS][{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"Doubles.\", "
	             "\"parameters\": " DESCRIBED "}}][/AVAILABLE_TOOLS][INST]Be brief.\n\nhi[/INST]"
	             "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 2}, \"id\": \"abcdefghi\"}]</s>"
	             "[TOOL_RESULTS]{\"content\": 4, \"call_id\": \"abcdefghi\"}[/TOOL_RESULTS]");
	expect_tools("mistral-v3", CALLED("\"id\": \"abcdefghi\", "),
	             "<s>[AVAILABLE_TOOLS] [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"Doubles.\", "
	             "\"parameters\": " DESCRIBED "}}][/AVAILABLE_TOOLS][INST] Be brief.\n\nhi[/INST]"
	             "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 2}, \"id\": \"abcdefghi\"}]</s>"
	             "[TOOL_RESULTS] {\"content\": 4, \"call_id\": \"abcdefghi\"}[/TOOL_RESULTS]");
	expect_tools("mistral-v3", CALLED(""), NULL); /* these models know calls by ids of nine letters */
	expect_tools("mistral-v3", CALLED("\"id\": \"abc\", "), NULL);
	expect_tools(
	        "hermes", CALLED(""),
	        "<|begin_of_text|><|im_start|>system\nYou are a function calling AI model. You are provided with function signatures "
	        "within "
	        "<tools></tools> XML tags. You may call one or more functions to assist with the user query. Don't make assumptions about "
	        "what values to plug into functions. Here are the available tools: <tools> {\"type\": \"function\", \"function\": "
	        "{\"name\": \"f\", \"description\": \"f(x: int, y: list[str]) - Doubles.\n\n    Args:\n        x(int): a number        "
	        "y(list[str]): \", \"parameters\": " DESCRIBED "} </tools>Use the following pydantic model json schema for each tool "
	        "call you will make: {\"properties\": {\"name\": {\"title\": \"Name\", \"type\": \"string\"}, \"arguments\": {\"title\": "
	        "\"Arguments\", \"type\": \"object\"}}, \"required\": [\"name\", \"arguments\"], \"title\": \"FunctionCall\", \"type\": "
	        "\"object\"}}\nFor each function call return a json object with function name and arguments within "
	        "<tool_call></tool_call> XML tags as follows:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-dict>}\n"
	        "</tool_call><|im_end|>\n<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
	        "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 2}}\n</tool_call><|im_end|>\n"
	        "<|im_start|>tool\n<tool_response>\n4\n</tool_response><|im_end|><|im_start|>assistant\n");
	expect_tools("chatml", CALLED(""), NULL);
}

/* The spans of a conversation, joined by |; NULL: the turn cannot be located. */
static void expect_spans_of(struct rh_chat_template *form, const struct rh_tokenizer *tokenizer, const char *messages, const char *expected)
{
	json_t *list;
	struct rh_text text = {0}, seen = {0};
	struct rh_chat_spans spans = {0};
	struct rh_chat chat = {.form = form, .tokenizer = tokenizer, .date = "2024-07-26", .where = "train.jsonl:3"};
	check_ok(rh_json_parse(messages, strlen(messages), "x", &list));
	json_t *conversation = json_pack("{s:o}", "messages", list);
	check_ok(rh_chat_render(&chat, conversation, RH_CHAT_WHOLE, &text));
	int rc = rh_chat_locate(&chat, conversation, &text, &spans);
	if (!expected) {
		assert_int_equal(rc, -EINVAL);
		assert_non_null(strstr(rh_error(rc), "train.jsonl:3: message "));
		spans.count = 0;
	} else {
		check_ok(rc);
	}
	for (size_t i = 0; i < spans.count; i++) {
		assert_true(spans.span[i].first < spans.span[i].end && spans.span[i].end <= text.length);
		check_ok(rh_text_append(&seen, text.bytes + spans.span[i].first, spans.span[i].end - spans.span[i].first));
		check_ok(rh_text_append(&seen, "|", 1));
	}
	if (expected)
		assert_string_equal(seen.bytes, expected);
	rh_text_free(&text);
	rh_text_free(&seen);
	rh_chat_spans_free(&spans);
	json_decref(conversation);
	rh_chat_template_close(form);
}

static void expect_spans(const char *name, const char *messages, const char *expected)
{
	struct rh_chat_template *form;
	struct rh_tokenizer tokenizer = tokenizer_of(name);
	check_ok(rh_chat_template_open(name, NULL, &form));
	assert_string_equal(rh_chat_template_name(form), name);
	check_ok(rh_chat_template_check(form, &tokenizer));
	expect_spans_of(form, &tokenizer, messages, expected);
}

static void expect_own_spans(const char *text, const char *messages, const char *expected)
{
	struct rh_chat_template *form;
	struct rh_tokenizer tokenizer = tokenizer_of("chatml");
	check_ok(rh_chat_template_open(NULL, text, &form));
	expect_spans_of(form, &tokenizer, messages, expected);
}

static const char talk[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\" a \"},"
                           "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"b\"}]";

static void test_spans_are_what_the_assistant_wrote(void **state)
{
	(void)state;
	expect_spans("smollm2", talk, " a <|im_end|>|b<|im_end|>|");
	expect_spans("qwen3", talk, " a <|im_end|>|<think>\n\n</think>\n\nb<|im_end|>|");
	expect_spans("llama2", talk, " a </s>| b </s>|");
	expect_spans("llama3.3", talk, "a<|eot_id|>|b<|eot_id|>|");
	expect_spans("gemma", talk, "a<end_of_turn>|b<end_of_turn>|");
	expect_spans("gemma3", talk, "a<end_of_turn>|b<end_of_turn>|");
	expect_spans("phi3", talk, " a <|end|>|b<|end|>|"); /* what follows the last turn is no turn's end */
	expect_spans("phi4", talk, " a <|im_end|>|b<|im_end|>|");
	expect_spans("mistral-v1", talk, "  a </s>| b</s>|");
	expect_spans("mistral-tekken", talk, " a </s>|b</s>|");
	expect_spans("harmony", talk, "<|channel|>final<|message|> a <|end|>|<|channel|>final<|message|>b<|return|>|");
}

static void test_spans_are_found_where_prefixes_differ(void **state)
{
	(void)state;
	/* earlier thinking is stripped, and prefixes of the conversation hold it */
	static const char thinking[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"<think>x</think>a\"},"
	                               "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"<think>y</think>b\"}]";
	expect_spans("qwen3", thinking, "a<|im_end|>|<think>\ny\n</think>\n\nb<|im_end|>|");
	/* the system turn stands before the last question */
	static const char system[] =
	        "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"first q\"},{\"role\":\"assistant\",\"content\":"
	        "\"a\"},{\"role\":\"user\",\"content\":\"next q\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
	expect_spans("mistral-v3", system, " a</s>| b</s>|");
	/* the generation prompt opens a thought that earlier turns do not have */
	static const char opens[] =
	        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n{% endif %}"
	        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
	expect_own_spans(opens, talk, " a <|im_end|>|b<|im_end|>|");
	static const char closes[] =
	        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"</think>a\"},{\"role\":\"user\","
	        "\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
	expect_own_spans(opens, closes, "</think>a<|im_end|>|b<|im_end|>|");
	/* answers that hold what the template writes */
	static const char hostile[] =
	        "[{\"role\":\"user\",\"content\":\"<|im_start|>assistant\\nx\"},{\"role\":\"assistant\",\"content\":\"<|im_end|>\\n\"},"
	        "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"<|im_start|>assistant\\n\"}]";
	expect_spans("chatml", hostile, "<|im_end|>\n<|im_end|>|<|im_start|>assistant\n<|im_end|>|");
	/* no token ends a turn: what is not content is left out */
	static const char plain[] =
	        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
	expect_own_spans(plain, talk, " a |b|");
	/* what opens the next message ends no turn, whoever speaks next */
	static const char opened[] = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}"
	                             "<|assistant|>{% endif %}";
	static const char twice[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":"
	                            "\"assistant\",\"content\":\"b\"}]";
	expect_own_spans(opened, talk, " a |b|");
	expect_own_spans(opened, twice, "a|b|");
	/* the last turn alone lacks the token that ends the others */
	static const char unended[] = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if not loop.last %}<|end|>{% endif %}"
	                              "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
	expect_own_spans(unended, talk, " a <|end|>|b|");
	/* marks are taken as they are */
	static const char marked[] =
	        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}!{% endgeneration %}\n{% else %}"
	        "U:{{ m.content }}\n{% endif %}{% endfor %}";
	expect_own_spans(marked, talk, " a !|b!|");
	/* a template that writes answers as it likes: no guess */
	static const char shuffled[] = "{% for m in messages|reverse %}{{ m.content }}{{ m.content }};{% endfor %}";
	expect_own_spans(shuffled, talk, NULL);
}

#define Q(text)              "{\"role\":\"user\",\"content\":\"" text "\"}"
#define A(text, more)        "{\"role\":\"assistant\",\"content\":\"" text "\"" more "}"
#define CALL                 ",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":\"y\"}}}]"
#define THOUGHT              ",\"thinking\":\"t\""
#define R                    "{\"role\":\"tool\",\"content\":\"a result\"}"
#define ARGUMENTS            "{{ m.tool_calls[0].function.arguments|tojson }}"
#define CALLS(content, more) "[" Q("q1") "," A(content, more CALL) "," R "," A("b", more) "," Q("q2") "," A("c", more) "]"

static void test_turns_that_call_tools_are_located_whole_or_not_at_all(void **state)
{
	(void)state;
	/* the last turn's calls are written otherwise: where they end is not known */
	static const char differs[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}CALL" ARGUMENTS
	                              "{% if not loop.last %}, id{% endif %}]{% endif %}{% if not loop.last %}<|im_end|>\n{% endif %}"
	                              "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
	expect_own_spans(differs, CALLS("", ""), NULL);
	/* the tool's answer stands in the turn, before its content */
	static const char answered[] =
	        "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% if m.tool_calls %}CALL" ARGUMENTS
	        "{% if not loop.last and messages[loop.index].role == 'tool' %}({{ messages[loop.index].content }}){% endif %}{% endif %}"
	        "{{ m.content }}<|im_end|>\n{% elif m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
	        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
	expect_own_spans(answered, CALLS("a", ""), NULL);
	/* tools stand before the last question, and a call's content is not written */
	static const char moves[] = "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>"
	                            "{% if m == (messages|selectattr('role', 'equalto', 'user')|list)[-1] %}(tools){% endif %}"
	                            "{{ m.content }}<|im_end|>{% elif m.tool_calls %}CALL" ARGUMENTS "</s>{% else %}"
	                            "{{ m.content }}</s>{% endif %}{% endfor %}";
	expect_own_spans(moves, CALLS("a", ""), "CALL{\"x\": \"y\"}</s>|b</s>|c</s>|");
	/* a call's thought is left out once an answer follows, and refused beside content; the last answer opens with a thought */
	static const char thinks[] =
	        "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
	        "{% if m.thinking and not messages[loop.index:]|selectattr('role', 'equalto', 'assistant')|list %}"
	        "<|start|>assistant<|channel|>{{ m.thinking }}<|end|>{% endif %}<|start|>assistant to f<|message|>" ARGUMENTS "<|im_end|>"
	        "{% elif m.role == 'assistant' %}{% if m.thinking and loop.last %}<|start|>assistant<|channel|>{{ m.thinking }}<|end|>"
	        "{% endif %}<|start|>assistant<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% else %}"
	        "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
	        "{% if add_generation_prompt %}<|start|>assistant{% endif %}";
	expect_own_spans(thinks, "[" Q("q1") "," A("", THOUGHT CALL) "," R "," A("b", THOUGHT) "]",
	                 " to f<|message|>{\"x\": \"y\"}<|im_end|>|<|channel|>t<|end|><|start|>assistant<|message|>b<|return|>|");
}

static void test_templates_open_by_name_text_and_file(void **state)
{
	(void)state;
	struct rh_chat_template *form;
	static const char path[] = "/tmp/rh-test-chat.jinja", json[] = "/tmp/rh-test-chat.json";
	assert_int_equal(rh_chat_template_open(NULL, NULL, &form), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL),
	                       "the model brings no chat template; set chat_template to a .jinja file or one of: chatml, smollm2"));
	assert_non_null(strstr(rh_error(-EINVAL), "mistral-tekken, phi3, phi4, harmony"));
	assert_int_equal(rh_chat_template_open("qwen9", "{{ x }}", &form), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "'qwen9' is neither a built-in template nor a file"));
	assert_int_equal(rh_chat_template_open(NULL, "a\n{% include 'x' %}", &form), -EINVAL);
	assert_string_equal(rh_error(-EINVAL),
	                    "the model's chat template: line 2, column 4: {% include %} is not supported in a chat template");
	check_ok(rh_file_write_whole(path, "{{ 1 }}", 7));
	check_ok(rh_chat_template_open(path, NULL, &form));
	assert_string_equal(rh_chat_template_name(form), path);
	assert_string_equal(rh_chat_template_text(form), "{{ 1 }}");
	rh_chat_template_close(form);
	check_ok(rh_file_write_whole(json, "{\"chat_template\": \"{{ 2 }}\"}", 28));
	check_ok(rh_chat_template_open(json, NULL, &form));
	assert_string_equal(rh_chat_template_text(form), "{{ 2 }}");
	rh_chat_template_close(form);
	remove(path);
	remove(json);
}

static void test_every_refused_allocation_unwinds(void **state)
{
	(void)state;
	json_t *list;
	check_ok(rh_json_parse(talk, strlen(talk), "x", &list));
	json_t *conversation = json_pack("{s:o}", "messages", list);
	for (int n = 0; n < NAMES; n++)
		for (uint64_t nth = 1;; nth++) {
			struct rh_chat_template *form = NULL;
			struct rh_tokenizer tokenizer = tokenizer_of(names[n]);
			struct rh_text text = {0};
			struct rh_chat_spans spans = {0};
			rh_alloc_fail_nth(nth);
			int rc = rh_chat_template_open(names[n], NULL, &form);
			struct rh_chat chat = {.form = form, .tokenizer = &tokenizer, .date = "2024-07-26", .where = "x"};
			if (!rc)
				rc = rh_chat_render(&chat, conversation, RH_CHAT_WHOLE, &text);
			if (!rc)
				rc = rh_chat_locate(&chat, conversation, &text, &spans);
			uint64_t asked = rh_alloc_fail_nth(0);
			rh_text_free(&text);
			rh_chat_spans_free(&spans);
			rh_chat_template_close(form);
			if (asked < nth) {
				check_ok(rc);
				break;
			}
			assert_int_equal(rc, -ENOMEM);
		}
	json_decref(conversation);
}

/* One conversation's spans against marks; 1: as they are, 0: located otherwise, -1: not located. */
static int is_as_marked(const char *name, struct rh_chat_template *form, const struct rh_tokenizer *tokenizer, const json_t *one)
{
	struct rh_chat chat = {.form = form, .tokenizer = tokenizer, .date = "2024-07-26", .where = name};
	struct rh_text text = {0};
	struct rh_chat_spans spans = {0};
	const json_t *conversation = json_object_get(one, "conversation"), *marks = json_object_get(one, "spans");
	int rc = rh_chat_render(&chat, conversation, RH_CHAT_WHOLE, &text);
	if (!rc)
		rc = rh_chat_locate(&chat, conversation, &text, &spans);
	int same = json_array_size(marks) == 2 * spans.count;
	for (size_t i = 0; same && i < spans.count; i++)
		same = spans.span[i].first == (size_t)json_integer_value(json_array_get(marks, 2 * i)) &&
		       spans.span[i].end == (size_t)json_integer_value(json_array_get(marks, 2 * i + 1));
	if (!rc && !same) {
		print_error("%s: located", name);
		for (size_t i = 0; i < spans.count; i++)
			print_error(" [%.*s]", (int)(spans.span[i].end - spans.span[i].first), text.bytes + spans.span[i].first);
		print_error(", marked");
		for (size_t i = 0; i + 1 < json_array_size(marks); i += 2) {
			size_t first = (size_t)json_integer_value(json_array_get(marks, i)),
			       end = (size_t)json_integer_value(json_array_get(marks, i + 1));
			print_error(" [%.*s]", (int)(end - first), text.bytes + first);
		}
		print_error("\n");
	} else if (rc) {
		print_error("%s: %s\n", name, rh_error(rc));
	}
	rh_text_free(&text);
	rh_chat_spans_free(&spans);
	return rc ? -1 : same;
}

/* RH_CHAT_CASES: published templates, and where our marked copies of them say that the assistant's turns are (`make reference`). */
static void test_published_turns_are_where_marks_say(void **state)
{
	(void)state;
	json_t *file;
	size_t same = 0, other = 0, lost = 0;
	if (!getenv("RH_CHAT_CASES")) {
		printf("RH_CHAT_CASES is not set: make reference compares the published templates\n");
		skip();
	}
	check_ok(rh_json_load(getenv("RH_CHAT_CASES"), &file));
	for (size_t i = 0; i < json_array_size(file); i++) {
		const json_t *one = json_array_get(file, i), *tokens = json_object_get(one, "tokens"),
		             *cases = json_object_get(one, "cases");
		const char *name = json_string_value(json_object_get(one, "name"));
		const char **list = calloc(json_array_size(tokens) + 1, sizeof *list);
		for (size_t k = 0; k < json_array_size(tokens); k++)
			list[k] = json_string_value(json_array_get(tokens, k));
		struct rh_tokenizer tokenizer = {.more = list, .bos = "<s>", .eos = "</s>"};
		struct rh_chat_template *form;
		check_ok(rh_chat_template_open(NULL, json_string_value(json_object_get(one, "text")), &form));
		for (size_t k = 0; k < json_array_size(cases); k++) {
			int found = is_as_marked(name, form, &tokenizer, json_array_get(cases, k));
			same += found > 0;
			other += !found;
			lost += found < 0;
		}
		rh_chat_template_close(form);
		free(list);
	}
	printf("%zu conversations located as marked, %zu otherwise, %zu not located\n", same, other, lost);
	json_decref(file);
	assert_int_equal(other, 0);
	assert_true(same > 200);
}

/* Calls are the assistant's to write; tools and results are not. */
static void test_spans_hold_calls(void **state)
{
	(void)state;
	static const char calls[] =
	        "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": "
	        "\"function\", \"id\": \"abcdefghi\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 2}}}]}, {\"role\": \"tool\", "
	        "\"name\": \"f\", \"tool_call_id\": \"abcdefghi\", \"content\": \"4\"}, {\"role\": \"assistant\", \"content\": \"four\"}]";
	static const char chatml[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 2}}\n</tool_call><|im_end|>|four<|im_end|>|";
	expect_spans("qwen2.5", calls, chatml);
	expect_spans("hermes", calls, chatml);
	expect_spans("llama3.1", calls, "{\"name\": \"f\", \"parameters\": {\"x\": 2}}<|eot_id|>|four<|eot_id|>|");
	expect_spans("mistral-tekken", calls,
	             "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 2}, \"id\": \"abcdefghi\"}]</s>|four</s>|");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_render_equals_transformers),
	        cmocka_unit_test(test_tools_render_as_the_families_own_do),
	        cmocka_unit_test(test_tools_of_mistral_and_hermes),
	        cmocka_unit_test(test_spans_hold_calls),
	        cmocka_unit_test(test_spans_are_what_the_assistant_wrote),
	        cmocka_unit_test(test_spans_are_found_where_prefixes_differ),
	        cmocka_unit_test(test_published_turns_are_where_marks_say),
	        cmocka_unit_test(test_turns_that_call_tools_are_located_whole_or_not_at_all),
	        cmocka_unit_test(test_templates_open_by_name_text_and_file),
	        cmocka_unit_test(test_parts_that_are_no_text_are_refused),
	        cmocka_unit_test(test_every_refused_allocation_unwinds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
