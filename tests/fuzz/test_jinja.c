/* A chat template, compiled and rendered: up to a NUL the template, after it the variables as JSON (without: a conversation of ours). */
#include "fuzz/fuzz.h"
#include "jinja/jinja.h"

#include <string.h>

static const char talk[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
        "\"text\": \"na\\u00efve\"}]}, {\"role\": \"assistant\", \"content\": \"<think>t</think>a\", \"tool_calls\": [{\"name\": "
        "\"f\", \"arguments\": {\"x\": [1, 2.5, null, true]}}]}], \"tools\": [{\"name\": \"f\"}], \"bos_token\": \"<s>\", "
        "\"eos_token\": \"</s>\", \"add_generation_prompt\": true}";

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	static const struct rh_jinja_bounds bounds = {.steps = 200000, .memory = 32 << 20, .output = 4 << 20, .depth = 500};
	const char *text = (const char *)bytes, *nul = length ? memchr(text, 0, length) : NULL;
	size_t template_length = nul ? (size_t)(nul - text) : length;
	json_t *variables = NULL;
	struct rh_jinja *jinja;
	int rc = nul ? rh_json_parse(nul + 1, length - template_length - 1, "variables", &variables)
	             : rh_json_parse(talk, strlen(talk), "variables", &variables);
	if (rc) {
		fuzz_refused(rc);
		return 0;
	}
	rc = rh_jinja_open(text, template_length, "template", &jinja);
	if (!rc) {
		struct rh_text out = {0};
		struct rh_jinja_spans spans = {0};
		struct rh_jinja_input input = {.variables = variables, .date = "2024-07-26", .bounds = &bounds};
		rc = rh_jinja_render(jinja, &input, "row", &out, &spans);
		for (size_t i = 0; i < spans.count; i++)
			if (spans.span[i].first > spans.span[i].end || spans.span[i].end > out.length)
				abort();
		rh_text_free(&out);
		rh_jinja_spans_free(&spans);
		rh_jinja_close(jinja);
	}
	fuzz_refused(rc);
	json_decref(variables);
	return 0;
}

FUZZ_MAIN("jinja")
