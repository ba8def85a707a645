/* The families' templates, each a small renderer. What the jinja texts do with tools is not here: such rows are refused. */
#include "data/chat.h"

#include "core/alloc.h"
#include "data/chat_internal.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

struct rh_chat_template {
	const char *name;
	int (*render)(struct chat_writer *writer);
	const char *default_system; /* ChatML: the system turn of a conversation that has none */
	const char *const *marker;  /* tokens that it writes around turns, NULL-terminated */
	const char *jinja;
};

static int render_chatml(struct chat_writer *writer);
static int render_qwen3(struct chat_writer *writer);
static int render_llama2(struct chat_writer *writer);
static int render_llama3(struct chat_writer *writer);
static int render_llama31(struct chat_writer *writer);

static const char *const chatml_markers[] = {"<|im_end|>", "<|im_start|>", NULL};
static const char *const llama2_markers[] = {"</s>", NULL}; /* [INST] is plain text */
static const char *const llama3_markers[] = {"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", NULL};

static const struct rh_chat_template templates[] = {
        {"chatml", render_chatml, NULL, chatml_markers, chat_jinja_chatml},
        {"smollm2", render_chatml, "You are a helpful AI assistant named SmolLM, trained by Hugging Face", chatml_markers,
         chat_jinja_smollm2},
        {"qwen2", render_chatml, "You are a helpful assistant.", chatml_markers, chat_jinja_qwen2},
        {"qwen2.5", render_chatml, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", chatml_markers,
         chat_jinja_qwen25},
        {"qwen3", render_qwen3, NULL, chatml_markers, chat_jinja_qwen3},
        {"llama2", render_llama2, NULL, llama2_markers, chat_jinja_llama2},
        {"llama3", render_llama3, NULL, llama3_markers, chat_jinja_llama3},
        {"llama3.1", render_llama31, NULL, llama3_markers, chat_jinja_llama31},
        {"llama3.2", render_llama31, NULL, llama3_markers, chat_jinja_llama31},
        {"llama3.3", render_llama31, NULL, llama3_markers, chat_jinja_llama31},
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

static int fail_with_names(const char *where, const char *fault)
{
	char names[256];
	size_t used = 0;
	for (int i = 0; i < TEMPLATES; i++)
		used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", templates[i].name);
	return rh_fail(-EINVAL, "%s%s; set chat_template to one of: %s", where, fault, names);
}

int rh_chat_template_by_name(const char *name, const struct rh_chat_template **out)
{
	for (int i = 0; i < TEMPLATES; i++)
		if (!strcmp(templates[i].name, name)) {
			*out = &templates[i];
			return 0;
		}
	char fault[128];
	snprintf(fault, sizeof fault, "no built-in template is named '%.80s'", name);
	return fail_with_names("chat_template: ", fault);
}

int rh_chat_template_by_text(const char *text, const char *where, const struct rh_chat_template **out)
{
	if (!text)
		return fail_with_names("", "the model brings no chat template");
	size_t length = strlen(text);
	if (length && text[length - 1] == '\n')
		length--;
	for (int i = 0; i < TEMPLATES; i++) /* what a run wrote beside its model */
		if (length + 1 == strlen(templates[i].jinja) && !memcmp(text, templates[i].jinja, length)) {
			*out = &templates[i];
			return 0;
		}
	XXH128_hash_t hash = XXH3_128bits(text, length);
	for (size_t i = 0; i < chat_known_texts; i++)
		if (chat_known_text[i].high == hash.high64 && chat_known_text[i].low == hash.low64)
			return rh_chat_template_by_name(chat_known_text[i].name, out);
	return fail_with_names(where, ": this text is none of the built-in templates'");
}

const char *rh_chat_template_name(const struct rh_chat_template *chat)
{
	return chat->name;
}

const char *rh_chat_template_jinja(const struct rh_chat_template *chat)
{
	return chat->jinja;
}

int rh_chat_template_is_none(const char *name)
{
	return !strcmp(name, "none");
}

int rh_chat_template_check(const struct rh_chat_template *chat, const struct rh_tokenizer *tokenizer)
{
	for (const char *const *marker = chat->marker; *marker; marker++)
		if (rh_tokenizer_id(tokenizer, *marker) < 0)
			return rh_fail(-EINVAL,
			               "chat_template: %s writes %s, which is no token of this model; name the template it was made for",
			               chat->name, *marker);
	return 0;
}

int rh_chat_template_is_in(const struct rh_chat_template *chat, const char *text)
{
	for (const char *const *marker = chat->marker; *marker; marker++)
		if (strstr(text, *marker))
			return 1;
	return 0;
}

void rh_chat_spans_free(struct rh_chat_spans *spans)
{
	rh_free(spans->span);
	*spans = (struct rh_chat_spans){0};
}

/* Writing: the first fault stays, and what follows it does nothing. */

static void put_bytes(struct chat_writer *writer, struct chat_string string)
{
	if (!writer->rc)
		writer->rc = rh_text_append(writer->out, string.bytes, string.length);
}

static void put(struct chat_writer *writer, const char *text)
{
	put_bytes(writer, (struct chat_string){text, strlen(text)});
}

/* What follows is the assistant's, up to span_end. */
static size_t span_begin(const struct chat_writer *writer)
{
	return writer->out->length;
}

static void span_end(struct chat_writer *writer, size_t first)
{
	struct rh_chat_spans *spans = writer->spans;
	if (writer->rc || !spans)
		return;
	writer->rc = rh_grow(&spans->span, &spans->capacity, spans->count + 1, sizeof *spans->span);
	if (!writer->rc)
		spans->span[spans->count++] = (struct rh_chat_span){first, writer->out->length};
}

/* <|im_start|>role\ncontent<|im_end|>\n, the content in two halves. */
static void put_chatml_turn(struct chat_writer *writer, const struct chat_message *message, struct chat_string head,
                            struct chat_string content)
{
	put(writer, "<|im_start|>");
	put(writer, chat_role_name(message->role));
	put(writer, "\n");
	size_t first = span_begin(writer);
	put_bytes(writer, head);
	put_bytes(writer, content);
	put(writer, "<|im_end|>");
	if (message->role == CHAT_ASSISTANT)
		span_end(writer, first);
	put(writer, "\n");
}

static int render_chatml(struct chat_writer *writer)
{
	const char *system = writer->chat->default_system;
	if (system && writer->message[0].role != CHAT_SYSTEM) {
		put(writer, "<|im_start|>system\n");
		put(writer, system);
		put(writer, "<|im_end|>\n");
	}
	for (size_t i = 0; i < writer->count; i++)
		put_chatml_turn(writer, &writer->message[i], (struct chat_string){"", 0}, writer->message[i].content);
	if (writer->end == RH_CHAT_PROMPT)
		put(writer, "<|im_start|>assistant\n");
	return writer->rc;
}

/* The last turn in which the user asks, rather than hands back a tool's result; the last turn if there is none. */
static size_t last_question(const struct chat_writer *writer)
{
	for (size_t i = writer->count; i-- > 0;) {
		struct chat_string content = writer->message[i].content;
		if (writer->message[i].role == CHAT_USER &&
		    !(chat_starts_with(content, "<tool_response>") && chat_ends_with(content, "</tool_response>")))
			return i;
	}
	return writer->count - 1;
}

static int render_qwen3(struct chat_writer *writer)
{
	size_t question = last_question(writer);
	for (size_t i = 0; !writer->rc && i < writer->count; i++) {
		const struct chat_message *message = &writer->message[i];
		struct chat_string content = message->content, reasoning = message->reasoning;
		const struct chat_string none = {"", 0};
		if (message->role != CHAT_ASSISTANT) {
			put_chatml_turn(writer, message, none, content);
			continue;
		}
		if (!reasoning.bytes) {
			reasoning = none;
			if (chat_find_last(content, "</think>").bytes) {
				struct chat_string before = chat_before_first(content, "</think>");
				reasoning = chat_strip(chat_after_last(chat_strip(before, CHAT_RIGHT, CHAT_NEWLINES), "<think>"), CHAT_LEFT,
				                       CHAT_NEWLINES);
				content = chat_strip(chat_after_last(content, "</think>"), CHAT_LEFT, CHAT_NEWLINES);
			}
		}
		if (i <= question || (i + 1 < writer->count && !reasoning.length)) {
			put_chatml_turn(writer, message, none, content);
			continue;
		}
		struct rh_text head = {0};
		reasoning = chat_strip(reasoning, CHAT_BOTH, CHAT_NEWLINES);
		writer->rc = rh_text_append(&head, "<think>\n", 8);
		if (!writer->rc)
			writer->rc = rh_text_append(&head, reasoning.bytes, reasoning.length);
		if (!writer->rc)
			writer->rc = rh_text_append(&head, "\n</think>\n\n", 11);
		put_chatml_turn(writer, message, (struct chat_string){head.bytes, head.length},
		                chat_strip(content, CHAT_LEFT, CHAT_NEWLINES));
		rh_text_free(&head);
	}
	if (writer->end == RH_CHAT_PROMPT)
		put(writer, "<|im_start|>assistant\n");
	return writer->rc;
}

/* Each question opens with BOS, each answer ends with EOS; the system turn goes into the first question. */
static int render_llama2(struct chat_writer *writer)
{
	const struct chat_message *message = writer->message;
	int has_system = message[0].role == CHAT_SYSTEM;
	struct rh_text question = {0};
	for (size_t i = (size_t)has_system, turn = 0; !writer->rc && i < writer->count; i++, turn++) {
		if (message[i].role != (turn % 2 ? CHAT_ASSISTANT : CHAT_USER))
			writer->rc =
			        rh_fail(-EINVAL,
			                "%s: message %zu is of role '%s'; llama2 wants user and assistant in turn after an optional system",
			                writer->where, i + 1, chat_role_name(message[i].role));
		else if (turn % 2) {
			size_t first = span_begin(writer);
			put(writer, " ");
			put_bytes(writer, chat_strip(message[i].content, CHAT_BOTH, CHAT_WHITESPACE));
			put(writer, " </s>");
			span_end(writer, first);
		} else {
			question.length = 0;
			if (turn == 0 && has_system)
				writer->rc = chat_concat(
				        &question, (struct chat_string[]){{"<<SYS>>\n", 8}, message[0].content, {"\n<</SYS>>\n\n", 11}}, 3);
			if (!writer->rc)
				writer->rc = rh_text_append(&question, message[i].content.bytes, message[i].content.length);
			put(writer, writer->bos);
			put(writer, "[INST] ");
			put_bytes(writer, chat_strip((struct chat_string){question.bytes, question.length}, CHAT_BOTH, CHAT_WHITESPACE));
			put(writer, " [/INST]");
		}
	}
	rh_text_free(&question);
	return writer->rc;
}

static void put_llama3_turn(struct chat_writer *writer, const struct chat_message *message)
{
	put(writer, "<|start_header_id|>");
	put(writer, chat_role_name(message->role));
	put(writer, "<|end_header_id|>\n\n");
	size_t first = span_begin(writer);
	put_bytes(writer, chat_strip(message->content, CHAT_BOTH, CHAT_WHITESPACE));
	put(writer, "<|eot_id|>");
	if (message->role == CHAT_ASSISTANT)
		span_end(writer, first);
}

static int render_llama3(struct chat_writer *writer)
{
	put(writer, writer->bos);
	for (size_t i = 0; i < writer->count; i++)
		put_llama3_turn(writer, &writer->message[i]);
	if (writer->end == RH_CHAT_PROMPT)
		put(writer, "<|start_header_id|>assistant<|end_header_id|>\n\n");
	return writer->rc;
}

static int render_llama31(struct chat_writer *writer)
{
	size_t at = writer->message[0].role == CHAT_SYSTEM;
	put(writer, writer->bos);
	put(writer, "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
	if (at)
		put_bytes(writer, chat_strip(writer->message[0].content, CHAT_BOTH, CHAT_WHITESPACE));
	put(writer, "<|eot_id|>");
	for (; at < writer->count; at++)
		put_llama3_turn(writer, &writer->message[at]);
	if (writer->end == RH_CHAT_PROMPT)
		put(writer, "<|start_header_id|>assistant<|end_header_id|>\n\n");
	return writer->rc;
}

int rh_chat_render(const struct rh_chat_template *chat, const json_t *messages, enum rh_chat_end end, const char *bos, const char *where,
                   struct rh_text *out, struct rh_chat_spans *spans)
{
	struct chat_writer writer = {.chat = chat, .end = end, .bos = bos ? bos : "", .where = where, .out = out, .spans = spans};
	int rc = chat_messages_read(messages, where, &writer.message, &writer.count);
	if (!rc)
		rc = chat->render(&writer);
	rh_free(writer.message);
	return rc;
}
