/* Chat templates: Jinja texts, the model's own, a file's, or built in by name, and where in their rendering the assistant's turns are.
 * - What a template sees is what transformers gives it: the row's messages as they are, `tools`, `documents`, `chat_template_kwargs`, the
 *   special tokens, and each message's reasoning under the names that templates read (reasoning_content, thinking).
 * - A template that can only take strings, or only lists of parts, is given text content in the form it takes; one that goes through
 *   the arguments of calls, objects for their JSON text.
 * - strftime_now formats a date that the configuration holds: a run must not change overnight. */
#ifndef RH_DATA_CHAT_H
#define RH_DATA_CHAT_H

#include "core/json.h"
#include "core/text.h"
#include "token/tokenizer.h"

struct rh_chat_template;

/* `named` (chat_template): a built-in's name, or a file (Jinja, or a .json that holds chat_template). NULL: `own`, the model's text, which
 * may be NULL too: then -EINVAL lists the names. `named` is borrowed until the template is closed. */
int rh_chat_template_open(const char *named, const char *own, struct rh_chat_template **out) RH_MUST;
void rh_chat_template_close(struct rh_chat_template *chat);
/* The built-in's name, the file's path, or "of the model": static, or `named`. */
const char *rh_chat_template_name(const struct rh_chat_template *chat);
const char *rh_chat_template_text(const struct rh_chat_template *chat);
/* `chat_template: none`: a prompt as it stands. No template is named so. */
int rh_chat_template_is_none(const char *name);
/* -EINVAL names a token that a built-in writes and that the vocabulary lacks: the model would be taught text in its place. */
int rh_chat_template_check(const struct rh_chat_template *chat, const struct rh_tokenizer *tokenizer) RH_MUST;
/* 1: `text` holds a token that the template writes around turns, so it already has the template's form. */
int rh_chat_template_is_in(const struct rh_chat_template *chat, const char *text, const struct rh_tokenizer *tokenizer);

/* RH_CHAT_PROMPT ends with the opening of an assistant's turn (generation); RH_CHAT_WHOLE does not. */
enum rh_chat_end { RH_CHAT_WHOLE, RH_CHAT_PROMPT };
struct rh_chat {
	const struct rh_chat_template *form;
	const struct rh_tokenizer *tokenizer;
	const char *date;  /* of strftime_now: "2024-07-26" */
	const char *where; /* names the conversation in messages */
	int *writes_none;  /* set to 1 where the template writes "None" for a none; may be NULL */
};
/* Renders a conversation, {"messages": [...], "tools": ..., ...}, at the end of `out`. -EINVAL with the template's own message where it
 * refuses the conversation, and where it would leave out tools. */
int rh_chat_render(const struct rh_chat *chat, const json_t *conversation, enum rh_chat_end end, struct rh_text *out) RH_MUST;

/* Byte ranges of a whole rendering that an assistant wrote: from behind the generation prompt through the token that ends the turn, no line
 * break after it; or what {% generation %} marks. */
struct rh_chat_span {
	size_t first, end;
	size_t message; /* index of its message; SIZE_MAX: unknown, as the range comes from a {% generation %} mark */
};
struct rh_chat_spans {
	struct rh_chat_span *span;
	size_t count, capacity;
};
/* Finds the spans of `rendered`, which rh_chat_render made of `conversation` (RH_CHAT_WHOLE). Replaces *spans. -EINVAL names the turn
 * that cannot be located. */
int rh_chat_locate(const struct rh_chat *chat, const json_t *conversation, const struct rh_text *rendered,
                   struct rh_chat_spans *spans) RH_MUST;
void rh_chat_spans_free(struct rh_chat_spans *spans);

/* A list of tools as templates want them: bare descriptions {"name", "parameters"} become {"type": "function", "function": ...}. *out is
 * the caller's. -EINVAL names what is no description. */
int rh_chat_tools(const json_t *list, const char *where, json_t **out) RH_MUST;

/* What an assistant thought, under whichever of its names; NULL: nothing. Borrowed from the message. */
const json_t *rh_chat_reasoning(const json_t *message);
int rh_chat_reads_reasoning(const struct rh_chat_template *form);
/* -EINVAL: the message is no object, or has no role that templates know. number: of the message in its conversation, from 0. */
int rh_chat_check_message(const json_t *message, size_t number, const char *where) RH_MUST;
/* Is the message of an assistant's role? */
int rh_chat_is_assistant(const json_t *message);
/* Does an assistant say in the message what the template can write: content, tool calls, or reasoning where the template reads it? */
int rh_chat_is_answer(const struct rh_chat_template *form, const json_t *message);

#endif
