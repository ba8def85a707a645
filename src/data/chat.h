/* Chat templates, built in by name. No Jinja is interpreted: a model's own template is recognised by the hash of its text (one newline at
 * its end does not count, as in Jinja). Each is what the family's template renders for roles system, user and assistant without tools.
 * - Llama 3.1 to 3.3 put a date into the system turn. It is always "26 Jul 2024", which the texts of 3.1 and 3.3 say themselves and that of
 *   3.2 falls back to where its caller has no clock: a run must not change overnight. transformers renders 3.2 with the day's date
 *   unless date_string="26 Jul 2024" is passed.
 * - Qwen3: an assistant's reasoning (in `reasoning_content`, or before </think> in `content`) is kept after the last question and
 *   left out before it, and an answer that ends the conversation without any gets an empty <think> block. */
#ifndef RH_DATA_CHAT_H
#define RH_DATA_CHAT_H

#include "core/json.h"
#include "core/text.h"
#include "token/tokenizer.h"

struct rh_chat_template;

/* By name ("smollm2", "qwen3", "llama3.2"...); -EINVAL lists the names. */
int rh_chat_template_by_name(const char *name, const struct rh_chat_template **out) RH_MUST;
/* The built-in whose text, or Jinja, is the model's own template; -EINVAL lists the names if none is. */
int rh_chat_template_by_text(const char *text, const char *where, const struct rh_chat_template **out) RH_MUST;
const char *rh_chat_template_name(const struct rh_chat_template *chat);
/* Jinja that renders the same, ours; rh_chat_template_by_text knows it. Ends with a newline. */
const char *rh_chat_template_jinja(const struct rh_chat_template *chat);
/* `chat_template: none`: a prompt as it stands. No template is named so. */
int rh_chat_template_is_none(const char *name);
/* -EINVAL names a token that the template writes and that the vocabulary lacks: the model would be taught text in its place. */
int rh_chat_template_check(const struct rh_chat_template *chat, const struct rh_tokenizer *tokenizer) RH_MUST;
/* Whether `text` holds one of these tokens: it is in the template's form already. */
int rh_chat_template_is_in(const struct rh_chat_template *chat, const char *text);

/* Byte ranges of the rendered text that an assistant wrote, its end-of-turn token included. */
struct rh_chat_span {
	size_t first, end;
};
struct rh_chat_spans {
	struct rh_chat_span *span;
	size_t count, capacity;
};

/* Renders `messages` (a JSON array of {role, content}) at the end of `out`; spans count from the start of out->bytes. `bos`: the
 * tokenizer's, NULL where it has none; families that begin with another token ignore it. RH_CHAT_PROMPT ends with the opening of an
 * assistant's turn (generation); RH_CHAT_WHOLE does not. `spans` may be NULL; freed with rh_chat_spans_free. -EINVAL on a role or a shape
 * the template refuses; `where` names the source. */
enum rh_chat_end { RH_CHAT_WHOLE, RH_CHAT_PROMPT };
int rh_chat_render(const struct rh_chat_template *chat, const json_t *messages, enum rh_chat_end end, const char *bos, const char *where,
                   struct rh_text *out, struct rh_chat_spans *spans) RH_MUST;
void rh_chat_spans_free(struct rh_chat_spans *spans);

#endif
