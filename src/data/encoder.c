/* One row becomes token ids and a mask. */
#include "core/alloc.h"
#include "core/log.h"
#include "data/data_internal.h"

#include <string.h>

int data_encoder_open(const struct rh_config *config, const struct rh_tokenizer *tokenizer, struct data_encoder *out)
{
	*out = (struct data_encoder){.config = config, .tokenizer = tokenizer};
	if (config->eos_token) {
		if (rh_tokenizer_id(tokenizer, config->eos_token) < 0)
			return rh_fail(-EINVAL, "eos_token: '%s' is no token of this model's vocabulary", config->eos_token);
		out->eos = config->eos_token;
	} else if (rh_tokenizer_eos(tokenizer) >= 0) {
		out->eos = rh_tokenizer_text(tokenizer, rh_tokenizer_eos(tokenizer));
	}
	/* a name is looked up even where no row needs it: one that is mistyped must not pass */
	int named = config->chat_template && !rh_chat_template_is_none(config->chat_template);
	return named ? rh_chat_template_by_name(config->chat_template, &out->chat) : 0;
}

void data_encoder_close(struct data_encoder *encoder)
{
	rh_ids_free(&encoder->ids);
	rh_ids_free(&encoder->part);
	rh_text_free(&encoder->text);
	rh_chat_spans_free(&encoder->spans);
	rh_free(encoder->trained);
}

int data_encoder_has_template(const struct data_encoder *encoder)
{
	const char *named = encoder->config->chat_template;
	return named ? !rh_chat_template_is_none(named) : rh_tokenizer_chat_template(encoder->tokenizer) != NULL;
}

/* At the first conversation. */
static int find_template(struct data_encoder *encoder, const char *where)
{
	if (encoder->is_chat_checked)
		return 0;
	if (!encoder->chat && encoder->config->chat_template)
		return rh_fail(-EINVAL,
		               "chat_template: none leaves the conversation at %s without a form; leave the key out or name a template",
		               where);
	int rc = 0;
	if (!encoder->chat)
		rc = rh_chat_template_by_text(rh_tokenizer_chat_template(encoder->tokenizer), "the tokenizer's chat_template",
		                              &encoder->chat);
	if (!rc)
		rc = rh_chat_template_check(encoder->chat, encoder->tokenizer);
	encoder->is_chat_checked = !rc;
	return rc;
}

/* Encodes text[first, end) at the end of `ids`. */
static int encode(const struct data_encoder *encoder, size_t first, size_t end, enum rh_tokens mode, const char *where, struct rh_ids *ids)
{
	int rc = rh_tokenizer_encode(encoder->tokenizer, encoder->text.bytes + first, end - first, mode, ids);
	return rc ? rh_fail_in(rc, "%s", where) : 0;
}

/* Encodes the whole text and sets the mask to all or nothing. */
static int encode_whole(struct data_encoder *encoder, enum rh_tokens mode, const char *where)
{
	encoder->ids.count = 0;
	int rc = encode(encoder, 0, encoder->text.length, mode, where, &encoder->ids);
	if (!rc)
		rc = rh_grow(&encoder->trained, &encoder->trained_capacity, encoder->ids.count, 1);
	if (!rc && encoder->ids.count)
		memset(encoder->trained, 1, encoder->ids.count);
	return rc;
}

/* How many tokens the text's first `bytes` make, and how many of these are the first of the whole's; where not all, that is counted. */
static int count_prefix(struct data_encoder *encoder, size_t bytes, enum rh_tokens mode, const char *where, size_t *tokens, size_t *common)
{
	encoder->part.count = 0;
	int rc = encode(encoder, 0, bytes, mode, where, &encoder->part);
	if (rc)
		return rc;
	size_t count = encoder->part.count, whole = encoder->ids.count;
	*tokens = count < whole ? count : whole;
	for (*common = 0; *common < *tokens && encoder->part.id[*common] == encoder->ids.id[*common];)
		++*common;
	if (*common < count)
		encoder->is_prefix_mismatch = 1;
	return 0;
}

static int mask_prefix(struct data_encoder *encoder, size_t bytes, enum rh_tokens mode, const char *where)
{
	size_t tokens, common;
	int rc = count_prefix(encoder, bytes, mode, where, &tokens, &common);
	if (!rc && tokens)
		memset(encoder->trained, 0, tokens);
	return rc;
}

/* Unmasked tokens become those of [first, end) of the encoder's spans. Each piece between span borders is encoded by itself; where the
 * pieces do not add up to the whole's ids (a token reaches across a border, or each piece gets a word start of its own), the borders are
 * counted by prefix instead. A token that reaches into a span is kept, as TRL does. */
static int keep_spans(struct data_encoder *encoder, const char *where)
{
	const struct rh_chat_spans *spans = &encoder->spans;
	struct rh_ids *part = &encoder->part;
	size_t at = 0, tokens = encoder->ids.count;
	uint8_t *kept = encoder->trained;
	int rc = 0;
	part->count = 0;
	for (size_t i = 0; !rc && i <= 2 * spans->count; i++) {
		size_t to = i == 2 * spans->count ? encoder->text.length : i % 2 ? spans->span[i / 2].end : spans->span[i / 2].first;
		size_t from = part->count;
		rc = encode(encoder, at, to, RH_TOKENS_PLAIN, where, part);
		at = to;
		if (from < tokens)
			memset(kept + from, i % 2, (part->count < tokens ? part->count : tokens) - from);
	}
	if (rc || (part->count == tokens && (!tokens || !memcmp(part->id, encoder->ids.id, tokens * sizeof *part->id))))
		return rc;
	memset(kept, 0, tokens);
	for (size_t i = 0; !rc && i < spans->count; i++) {
		size_t first = 0, end = 0, other;
		rc = count_prefix(encoder, spans->span[i].first, RH_TOKENS_PLAIN, where, &other, &first);
		if (!rc)
			rc = count_prefix(encoder, spans->span[i].end, RH_TOKENS_PLAIN, where, &end, &other);
		if (!rc && first < end)
			memset(kept + first, 1, end - first);
	}
	return rc;
}

static int append(struct data_encoder *encoder, const json_t *string)
{
	return rh_text_append(&encoder->text, json_string_value(string), json_string_length(string));
}

static int ends_with_eos(const struct data_encoder *encoder, const json_t *string)
{
	size_t length = json_string_length(string), eos = strlen(encoder->eos);
	return length >= eos && !memcmp(json_string_value(string) + length - eos, encoder->eos, eos);
}

/* The string, then end-of-sequence if it is not there already. A string of nothing else trains nothing. */
static int append_ending(struct data_encoder *encoder, const json_t *string, const char *key, const char *where)
{
	size_t length = json_string_length(string);
	int ended = encoder->eos && ends_with_eos(encoder, string);
	if (length == 0 || (ended && length == strlen(encoder->eos)))
		return rh_fail(-EINVAL, "%s: '%s' is empty; remove the line or give it content", where, key);
	int rc = append(encoder, string);
	if (!encoder->eos)
		rh_warn_once("the model names no end-of-sequence token, so none is appended; set eos_token");
	else if (!rc && !ended)
		rc = rh_text_append(&encoder->text, encoder->eos, strlen(encoder->eos));
	return rc;
}

static int need_conversation(const struct data_encoder *encoder, const char *where)
{
	if (encoder->config->assistant_only_loss == RH_YES)
		return rh_fail(-EINVAL, "%s: assistant_only_loss needs conversations; this file holds plain strings", where);
	return 0;
}

static int encode_text(struct data_encoder *encoder, const json_t *row, const char *where)
{
	static const char key[] = "text";
	int rc = need_conversation(encoder, where);
	if (encoder->config->completion_only_loss == RH_YES)
		rh_warn_once("completion_only_loss has no effect on plain text: every token is trained");
	if (!rc)
		rc = append_ending(encoder, json_object_get(row, key), key, where);
	return rc ? rc : encode_whole(encoder, RH_TOKENS_WITH_SPECIAL, where);
}

static int encode_completion(struct data_encoder *encoder, const json_t *row, const char *where)
{
	int rc = need_conversation(encoder, where);
	if (!rc)
		rc = append(encoder, json_object_get(row, "prompt"));
	size_t prompt = encoder->text.length;
	if (!rc)
		rc = append_ending(encoder, json_object_get(row, "completion"), "completion", where);
	if (!rc)
		rc = encode_whole(encoder, RH_TOKENS_WITH_SPECIAL, where);
	if (rc || encoder->config->completion_only_loss == RH_NO)
		return rc;
	encoder->is_masked = 1;
	return mask_prefix(encoder, prompt, RH_TOKENS_WITH_SPECIAL, where);
}

static int render(struct data_encoder *encoder, const json_t *messages, enum rh_chat_end end, const char *where)
{
	int32_t bos = rh_tokenizer_bos(encoder->tokenizer);
	encoder->text.length = 0;
	encoder->spans.count = 0;
	return rh_chat_render(encoder->chat, messages, end, bos < 0 ? NULL : rh_tokenizer_text(encoder->tokenizer, bos), where,
	                      &encoder->text, &encoder->spans);
}

/* Does an assistant say anything in `messages`? End-of-turn alone does not count as trained. */
static int is_answered(const json_t *messages)
{
	size_t i;
	const json_t *message;
	json_array_foreach(messages, i, message)
	{
		const char *role = json_string_value(json_object_get(message, "role"));
		if (role && !strcmp(role, "assistant") && json_string_length(json_object_get(message, "content")) > 0)
			return 1;
	}
	return 0;
}

static int encode_messages(struct data_encoder *encoder, const json_t *row, const char *where)
{
	const json_t *messages = json_object_get(row, "messages");
	int only_assistant = encoder->config->assistant_only_loss == RH_YES;
	if (encoder->config->completion_only_loss == RH_YES && !only_assistant) {
		rh_warn_once("completion_only_loss on 'messages' is taken as assistant_only_loss: only the assistant's turns are trained");
		only_assistant = 1;
	}
	int rc = render(encoder, messages, RH_CHAT_WHOLE, where);
	if (!rc)
		rc = data_check_conversation(encoder, messages);
	if (!rc)
		rc = encode_whole(encoder, RH_TOKENS_PLAIN, where);
	if (rc || !only_assistant)
		return rc;
	if (!is_answered(messages))
		return rh_fail(-EINVAL, "%s: no assistant's turn has content, so nothing is trained; remove the line", where);
	encoder->is_masked = 1;
	return keep_spans(encoder, where);
}

static int encode_completion_chat(struct data_encoder *encoder, const json_t *row, const char *where)
{
	const json_t *prompt = json_object_get(row, "prompt"), *completion = json_object_get(row, "completion");
	if (!is_answered(completion))
		return rh_fail(-EINVAL, "%s: 'completion' is empty: no assistant's turn has content; remove the line or give it one",
		               where);
	json_t *both = json_copy((json_t *)(uintptr_t)prompt); /* shallow; the messages' counts are the row's alone */
	if (!both || json_array_extend(both, (json_t *)(uintptr_t)completion)) {
		json_decref(both);
		return rh_fail(-ENOMEM, "%s: out of host memory", where);
	}
	const struct rh_config *config = encoder->config;
	int masks_prompt = config->completion_only_loss != RH_NO, only_assistant = config->assistant_only_loss == RH_YES;
	int rc = render(encoder, both, RH_CHAT_WHOLE, where);
	if (!rc)
		rc = data_check_conversation(encoder, both);
	if (!rc)
		rc = encode_whole(encoder, RH_TOKENS_PLAIN, where);
	encoder->is_masked = masks_prompt || only_assistant;
	if (!rc && only_assistant)
		rc = keep_spans(encoder, where);
	if (!rc && masks_prompt)
		rc = render(encoder, prompt, RH_CHAT_PROMPT, where);
	if (!rc && masks_prompt)
		rc = mask_prefix(encoder, encoder->text.length, RH_TOKENS_PLAIN, where);
	json_decref(both);
	return rc;
}

int data_encode(struct data_encoder *encoder, enum data_kind kind, const json_t *row, const char *where)
{
	encoder->text.length = 0;
	encoder->ids.count = 0;
	encoder->is_masked = encoder->is_prefix_mismatch = encoder->lacks_end = 0;
	encoder->dropped_role[0] = 0;
	encoder->kind = kind;
	if (kind == DATA_TEXT)
		return encode_text(encoder, row, where);
	if (kind == DATA_COMPLETION)
		return encode_completion(encoder, row, where);
	const json_t *tools = json_object_get(row, "tools");
	if (tools && !json_is_null(tools) && !(json_is_array(tools) && !json_array_size(tools)))
		return rh_fail(-EINVAL, "%s: 'tools' are not supported by the built-in templates", where);
	int rc = find_template(encoder, where);
	if (rc)
		return rc;
	return kind == DATA_MESSAGES ? encode_messages(encoder, row, where) : encode_completion_chat(encoder, row, where);
}

int data_answer_is_cut(struct data_encoder *encoder, size_t kept, const char *where)
{
	size_t count = encoder->ids.count;
	if (kept >= count || encoder->kind == DATA_TEXT)
		return 0;
	if (encoder->kind == DATA_COMPLETION)
		return 1;
	if (encoder->is_masked) /* what is trained is answers, the last of them to its end */
		return memchr(encoder->trained + kept, 1, count - kept) != NULL;
	const struct rh_chat_spans *spans = &encoder->spans;
	if (!spans->count)
		return 0;
	encoder->part.count = 0;
	int rc = encode(encoder, 0, spans->span[spans->count - 1].end, RH_TOKENS_PLAIN, where, &encoder->part);
	return rc ? rc : encoder->part.count > kept;
}
