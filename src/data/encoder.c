/* One row becomes token ids and a mask. */
#include "core/alloc.h"
#include "core/log.h"
#include "data/data_internal.h"
#include "data/records.h"

#include <string.h>

int data_encoder_open(const struct rh_config *config, const struct rh_tokenizer *tokenizer, struct data_encoder *out)
{
	*out = (struct data_encoder){.config = config, .tokenizer = tokenizer};
	if (rh_tokenizer_eos(tokenizer) >= 0)
		out->eos = rh_tokenizer_text(tokenizer, rh_tokenizer_eos(tokenizer));
	/* a name is looked up even where no row needs it: one that is mistyped must not pass */
	int named = config->chat_template && !rh_chat_template_is_none(config->chat_template);
	return named ? rh_chat_template_open(config->chat_template, NULL, &out->chat) : 0;
}

void data_encoder_close(struct data_encoder *encoder)
{
	rh_ids_free(&encoder->ids);
	rh_ids_free(&encoder->part);
	rh_ids_free(&encoder->both);
	rh_text_free(&encoder->text);
	rh_chat_spans_free(&encoder->spans);
	rh_chat_template_close(encoder->chat);
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
		rc = rh_chat_template_open(NULL, rh_tokenizer_chat_template(encoder->tokenizer), &encoder->chat);
	if (!rc)
		rc = rh_chat_template_check(encoder->chat, encoder->tokenizer);
	encoder->is_chat_checked = !rc;
	return rc;
}

/* The most bytes that a tokenizer may take for one word: a run of blanks, or of other bytes, with the run behind it. */
static size_t longest_word(const char *text, size_t bytes)
{
	size_t longest = 0, before = 0, run = 0;
	int was_blank = 0;
	for (size_t i = 0; i < bytes; i++) {
		int blank = text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r';
		if (blank != was_blank) {
			before = run;
			run = 0;
		}
		was_blank = blank;
		run++;
		longest = before + run > longest ? before + run : longest;
	}
	return longest;
}

int data_encoder_check_room(struct data_encoder *encoder, const char *text, size_t bytes, const char *where)
{
	enum {
		WHOLE_ROW = 20,  /* a byte, where all ids are wanted: as in DATA_ROW_COST, and up to an id a byte in two arrays that grow */
		WORD = 40,       /* a byte of a word: what merges it (token/bpe.h) */
		SMALL = 16 << 10 /* counted with the program */
	};
	if (bytes <= SMALL)
		return 0;
	size_t word = longest_word(text, bytes);
	int64_t needed = (int64_t)bytes * (encoder->most_ids ? DATA_ROW_COST : WHOLE_ROW) + (word > SMALL ? (int64_t)word * WORD : 0);
	encoder->row_bytes = needed > encoder->row_bytes ? needed : encoder->row_bytes;
	return data_check_room(where, bytes, needed, encoder->row_room);
}

/* Encodes text[first, end) at the end of `ids`. */
static int encode(struct data_encoder *encoder, size_t first, size_t end, enum rh_tokens mode, const char *where, struct rh_ids *ids)
{
	int rc = rh_tokenizer_encode_first(encoder->tokenizer, encoder->text.bytes + first, end - first, mode, encoder->most_ids, ids,
	                                   &encoder->is_cut);
	return rc ? rh_fail_in(rc, "%s", where) : 0;
}

/* Encodes the whole text and sets the mask to all or nothing. */
int data_encode_whole(struct data_encoder *encoder, enum rh_tokens mode, const char *where)
{
	encoder->ids.count = 0;
	int rc = data_encoder_check_room(encoder, encoder->text.bytes, encoder->text.length, where);
	if (!rc)
		rc = encode(encoder, 0, encoder->text.length, mode, where, &encoder->ids);
	if (!rc)
		rc = rh_grow(&encoder->trained, &encoder->trained_capacity, encoder->ids.count, 1);
	if (!rc && encoder->ids.count)
		memset(encoder->trained, 1, encoder->ids.count);
	encoder->has_two_bos =
	        !rc && mode == RH_TOKENS_WITH_SPECIAL && rh_ids_have_two_bos(&encoder->ids, rh_tokenizer_bos(encoder->tokenizer));
	return rc;
}

/* How many tokens the text's first `bytes` make, and how many of these are the first of the whole's; where not all, that is counted. */
static int count_prefix(struct data_encoder *encoder, size_t bytes, enum rh_tokens mode, const char *where, size_t *tokens, size_t *common)
{
	int was_cut = encoder->is_cut;
	encoder->part.count = 0;
	int rc = encode(encoder, 0, bytes, mode, where, &encoder->part);
	if (rc)
		return rc;
	size_t count = encoder->part.count, whole = encoder->ids.count;
	*tokens = count < whole ? count : whole;
	for (*common = 0; *common < *tokens && encoder->part.id[*common] == encoder->ids.id[*common];)
		++*common;
	if (*common < (encoder->is_cut ? *tokens : count))
		encoder->is_prefix_mismatch = 1;
	encoder->is_cut |= was_cut;
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

/* Marks the tokens of [first, end) of `spans` in `kept` (all others 0). Each piece between span borders is encoded by itself; where the
 * pieces do not add up to the whole's ids (a token reaches across a border, or each piece gets a word start of its own), the borders are
 * counted by prefix instead. A token that reaches into a span is marked, as TRL does. */
static int mark_spans(struct data_encoder *encoder, const struct rh_chat_spans *spans, const char *where, uint8_t *kept)
{
	struct rh_ids *part = &encoder->part;
	size_t at = 0, tokens = encoder->ids.count;
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

int data_append(struct data_encoder *encoder, const json_t *string)
{
	return rh_text_append(&encoder->text, json_string_value(string), json_string_length(string));
}

static int ends_with_eos(const struct data_encoder *encoder, const json_t *string)
{
	size_t length = json_string_length(string), eos = strlen(encoder->eos);
	return length >= eos && !memcmp(json_string_value(string) + length - eos, encoder->eos, eos);
}

/* End-of-sequence alone trains nothing. */
static int is_empty(const struct data_encoder *encoder, const json_t *string)
{
	size_t length = json_string_length(string);
	return length == 0 || (encoder->eos && length == strlen(encoder->eos) && ends_with_eos(encoder, string));
}

/* The row holds nothing to train. */
int data_leave_empty(struct data_encoder *encoder)
{
	encoder->is_empty = 1;
	encoder->ids.count = 0;
	return 0;
}

/* The string, then end-of-sequence if it is not there already. */
int data_append_ending(struct data_encoder *encoder, const json_t *string)
{
	int rc = data_append(encoder, string);
	if (!encoder->eos)
		rh_warn_once("the model names no end-of-sequence token, so none is appended; set eos_token");
	else if (!rc && !ends_with_eos(encoder, string))
		rc = rh_text_append(&encoder->text, encoder->eos, strlen(encoder->eos));
	return rc;
}

static int need_conversation(const struct data_encoder *encoder, const char *where)
{
	if (encoder->config->assistant_only_loss == RH_YES)
		return rh_fail(-EINVAL, "%s: assistant_only_loss trains the assistant's turns of conversations, and %s", where,
		               encoder->lacks_template
		                       ? "without a chat template this row is plain strings: remove it; or give a chat_template, such as "
		                         "chatml, which makes conversations of such rows"
		                       : "this row is plain strings, without turns: remove it");
	return 0;
}

static int encode_text(struct data_encoder *encoder, const json_t *row, const char *where)
{
	const json_t *text = json_object_get(row, "text");
	int rc = need_conversation(encoder, where);
	if (encoder->config->completion_only_loss == RH_YES)
		rh_warn_once("completion_only_loss has no effect on plain text: every token is trained");
	if (!rc && is_empty(encoder, text))
		return data_leave_empty(encoder);
	if (!rc)
		rc = data_append_ending(encoder, text);
	return rc ? rc : data_encode_whole(encoder, RH_TOKENS_WITH_SPECIAL, where);
}

static int encode_completion(struct data_encoder *encoder, const json_t *row, const char *where)
{
	const json_t *completion = json_object_get(row, "completion");
	int rc = need_conversation(encoder, where);
	if (!rc && is_empty(encoder, completion))
		return data_leave_empty(encoder);
	if (!rc)
		rc = data_append(encoder, json_object_get(row, "prompt"));
	size_t prompt = encoder->text.length;
	if (!rc)
		rc = data_append_ending(encoder, completion);
	if (!rc)
		rc = data_encode_whole(encoder, RH_TOKENS_WITH_SPECIAL, where);
	if (rc || encoder->config->completion_only_loss == RH_NO)
		return rc;
	encoder->is_masked = 1;
	return mask_prefix(encoder, prompt, RH_TOKENS_WITH_SPECIAL, where);
}

struct rh_chat data_chat_of(const struct data_encoder *encoder, const char *where)
{
	return (struct rh_chat){
	        .form = encoder->chat, .tokenizer = encoder->tokenizer, .date = encoder->config->chat_template_date, .where = where};
}

/* Does an assistant say anything in `messages`? End-of-turn alone does not count as trained. */
static int is_answered(const struct data_encoder *encoder, const json_t *messages)
{
	size_t i;
	const json_t *message;
	json_array_foreach(messages, i, message) if (rh_chat_is_answer(encoder->chat, message)) return 1;
	return 0;
}

/* `weight` 0 and `train` false leave an assistant's message out. */
static int read_weight(const json_t *message, const char *where, size_t number, int *is_out)
{
	const json_t *weight = json_object_get(message, "weight"), *train = json_object_get(message, "train");
	const char *role = json_string_value(json_object_get(message, "role"));
	int is_good =
	        !weight || json_is_null(weight) || json_number_value(weight) == 1 || (json_is_number(weight) && !json_number_value(weight));
	if (!is_good || (train && !json_is_null(train) && !json_is_boolean(train)))
		return rh_fail(-EINVAL, "%s: message %zu: %s", where, number + 1,
		               is_good ? "'train' must be true or false" : "'weight' must be 0 or 1");
	if (json_object_get(message, "train_detail") && !json_is_null(json_object_get(message, "train_detail")))
		return rh_fail(-EINVAL,
		               "%s: message %zu: 'train_detail' is not read, as parts of a message are trained together; take it out, or "
		               "leave the message out with 'train': false",
		               where, number + 1);
	*is_out = (json_is_number(weight) && !json_number_value(weight)) || json_is_false(train);
	if (rh_chat_is_assistant(message))
		return 0;
	if (json_is_true(train))
		return rh_fail(-EINVAL,
		               "%s: message %zu: 'train' is true on a message of role '%.40s'; only the assistant's are trained alone",
		               where, number + 1, role ? role : "");
	*is_out = 0;
	return 0;
}

/* The spans of the messages that are left out, or of all others. */
static int choose_spans(const struct data_encoder *encoder, const json_t *messages, int wanted_out, const char *where,
                        struct rh_chat_spans *chosen)
{
	int any_out = 0, rc = 0;
	size_t count = json_array_size(messages);
	uint8_t *out = rh_alloc(count + 1, 1);
	if (!out)
		return -ENOMEM;
	for (size_t i = 0; !rc && i < count; i++) {
		int is_out = 0;
		rc = read_weight(json_array_get(messages, i), where, i, &is_out);
		out[i] = (uint8_t)is_out;
		any_out |= is_out;
	}
	for (size_t i = 0; !rc && i < encoder->spans.count; i++) {
		struct rh_chat_span span = encoder->spans.span[i];
		if (any_out && span.message >= count)
			rc = rh_fail(-EINVAL,
			             "%s: the template's {%% generation %%} marks do not tell which message is which, so 'weight' and "
			             "'train' cannot be kept",
			             where);
		if (!rc && (any_out && out[span.message]) == wanted_out) {
			rc = rh_grow(&chosen->span, &chosen->capacity, chosen->count + 1, sizeof *chosen->span);
			if (!rc)
				chosen->span[chosen->count++] = span;
		}
	}
	rh_free(out);
	return rc;
}

/* Only what the assistant says is trained, less what its messages leave out. */
static int keep_answers(struct data_encoder *encoder, const json_t *messages, const char *where)
{
	struct rh_chat_spans chosen = {0};
	int rc = choose_spans(encoder, messages, 0, where, &chosen);
	if (!rc)
		rc = mark_spans(encoder, &chosen, where, encoder->trained);
	rh_chat_spans_free(&chosen);
	return rc;
}

/* All is trained but what messages leave out. */
static int drop_left_out(struct data_encoder *encoder, const json_t *messages, const char *where)
{
	struct rh_chat_spans chosen = {0};
	size_t tokens = encoder->ids.count;
	int rc = choose_spans(encoder, messages, 1, where, &chosen);
	uint8_t *left = rc || !chosen.count ? NULL : rh_alloc(tokens + 1, 1);
	if (!rc && chosen.count)
		rc = left ? mark_spans(encoder, &chosen, where, left) : -ENOMEM;
	for (size_t i = 0; !rc && left && i < tokens; i++)
		encoder->trained[i] = encoder->trained[i] && !left[i];
	encoder->is_masked |= chosen.count > 0;
	rh_free(left);
	rh_chat_spans_free(&chosen);
	return rc;
}

static int is_any_left_out(const json_t *messages)
{
	size_t i;
	const json_t *message;
	json_array_foreach(messages, i, message) if (json_object_get(message, "weight") || json_object_get(message, "train")) return 1;
	return 0;
}

int data_check_answer(const json_t *prompt, const json_t *answer, const char *where)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < json_array_size(answer); i++)
		rc = rh_chat_check_message(json_array_get(answer, i), json_array_size(prompt) + i, where);
	return rc;
}

int data_is_nothing(const struct data_encoder *encoder, const json_t *answer)
{
	return json_is_array(answer) ? !is_answered(encoder, answer) : is_empty(encoder, answer);
}

/* Renders and encodes a conversation; its spans are found, which is a fault only where a mask needs them. */
int data_encode_conversation(struct data_encoder *encoder, const json_t *conversation, int needs_spans, const char *where)
{
	struct rh_chat chat = data_chat_of(encoder, where), noting = chat;
	const json_t *messages = json_object_get(conversation, "messages");
	noting.writes_none = &encoder->writes_none;
	encoder->text.length = 0;
	int rc = rh_chat_render(&noting, conversation, RH_CHAT_WHOLE, &encoder->text);
	if (!rc)
		rc = rh_chat_locate(&chat, conversation, &encoder->text, &encoder->spans);
	if (rc == -EINVAL && encoder->text.length && !needs_spans && !is_any_left_out(messages)) {
		encoder->spans.count = 0;
		rh_error_clear();
		rc = 0;
	}
	if (!rc)
		rc = data_check_conversation(encoder, messages);
	return rc ? rc : data_encode_whole(encoder, RH_TOKENS_PLAIN, where);
}

static int encode_messages(struct data_encoder *encoder, const json_t *row, const char *where)
{
	const json_t *messages = json_object_get(row, "messages");
	int only_assistant = encoder->config->assistant_only_loss == RH_YES;
	if (encoder->config->completion_only_loss == RH_YES && !only_assistant) {
		rh_warn_once("completion_only_loss on 'messages' is taken as assistant_only_loss: only the assistant's turns are trained");
		only_assistant = 1;
	}
	int rc = data_encode_conversation(encoder, row, only_assistant, where);
	if (rc)
		return rc;
	if (!only_assistant)
		return drop_left_out(encoder, messages, where);
	if (!is_answered(encoder, messages)) {
		const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
		const char *role = json_string_value(json_object_get(last, "role"));
		if (role && !rh_chat_is_assistant(last))
			snprintf(encoder->last_role, sizeof encoder->last_role, "%s", role);
		return data_leave_empty(encoder);
	}
	encoder->is_masked = 1;
	return keep_answers(encoder, messages, where);
}

json_t *data_with_messages(const json_t *row, const json_t *messages)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)row);
	if (copy && json_object_set(copy, "messages", (json_t *)(uintptr_t)messages)) {
		json_decref(copy);
		return NULL;
	}
	return copy;
}

/* What comes before the answer is not trained: the rendered prompt, or, where the answer changes how that is rendered, all before the first
 * of the completion's turns. */
static int mask_prompt(struct data_encoder *encoder, const json_t *question, size_t asked, const char *where)
{
	struct rh_text whole = encoder->text;
	struct rh_chat chat = data_chat_of(encoder, where);
	encoder->text = (struct rh_text){0};
	int rc = rh_chat_render(&chat, question, RH_CHAT_PROMPT, &encoder->text);
	size_t bytes = encoder->text.length;
	int is_prefix = !rc && bytes <= whole.length && (!bytes || !memcmp(whole.bytes, encoder->text.bytes, bytes));
	rh_text_free(&encoder->text);
	encoder->text = whole;
	for (size_t i = 0; !rc && !is_prefix && i < encoder->spans.count; i++)
		if (encoder->spans.span[i].message >= asked) {
			bytes = encoder->spans.span[i].first;
			is_prefix = 1;
		}
	if (!rc && !is_prefix)
		return rh_fail(-EINVAL,
		               "%s: chat template %s renders the prompt otherwise where an answer follows, so where the answer begins is "
		               "not known",
		               where, rh_chat_template_name(encoder->chat));
	return rc ? rc : mask_prefix(encoder, bytes, RH_TOKENS_PLAIN, where);
}

/* What follows the last answer's end of turn, a line break in most templates, is not the model's to write. */
static int mask_behind_answer(struct data_encoder *encoder, size_t messages, const char *where)
{
	const struct rh_chat_spans *spans = &encoder->spans;
	int was_mismatch = encoder->is_prefix_mismatch;
	size_t tokens, common;
	if (!spans->count || spans->span[spans->count - 1].message + 1 < messages)
		return 0;
	int rc = count_prefix(encoder, spans->span[spans->count - 1].end, RH_TOKENS_PLAIN, where, &tokens, &common);
	if (!rc && common == encoder->part.count)
		memset(encoder->trained + tokens, 0, encoder->ids.count - tokens);
	encoder->is_prefix_mismatch = was_mismatch;
	return rc;
}

static int encode_completion_chat(struct data_encoder *encoder, const json_t *row, const char *where)
{
	const json_t *prompt = json_object_get(row, "prompt"), *completion = json_object_get(row, "completion");
	int rc = data_check_answer(prompt, completion, where);
	if (rc)
		return rc;
	if (!is_answered(encoder, completion))
		return data_leave_empty(encoder);
	const struct rh_config *config = encoder->config;
	int masks_prompt = config->completion_only_loss != RH_NO, only_assistant = config->assistant_only_loss == RH_YES;
	json_t *both = json_copy((json_t *)(uintptr_t)prompt); /* shallow; the messages' counts are the row's alone */
	json_t *question = data_with_messages(row, prompt), *whole = NULL;
	if (both && !json_array_extend(both, (json_t *)(uintptr_t)completion))
		whole = data_with_messages(row, both);
	rc = question && whole ? 0 : rh_fail(-ENOMEM, "%s: out of host memory", where);
	if (!rc)
		rc = data_encode_conversation(encoder, whole, only_assistant, where);
	encoder->is_masked = masks_prompt || only_assistant;
	if (!rc)
		rc = only_assistant ? keep_answers(encoder, both, where) : drop_left_out(encoder, both, where);
	if (!rc && masks_prompt)
		rc = mask_prompt(encoder, question, json_array_size(prompt), where);
	if (!rc && masks_prompt)
		rc = mask_behind_answer(encoder, json_array_size(both), where);
	json_decref(both);
	json_decref(question);
	json_decref(whole);
	return rc;
}

/* Ids of a plain row that anybody looks at: what lies beyond max_length is cut off. */
static size_t wanted_ids(const struct rh_config *config)
{
	return data_rows_go_on(config) ? 0 : (size_t)config->max_length + 1;
}

int data_encode(struct data_encoder *encoder, enum data_kind kind, const json_t *row, const char *where)
{
	encoder->text.length = 0;
	encoder->ids.count = 0;
	encoder->is_empty = encoder->is_masked = encoder->is_prefix_mismatch = encoder->has_two_bos = encoder->lacks_end = 0;
	encoder->turn_end = -1;
	encoder->dropped[0] = 0;
	encoder->writes_none = 0;
	encoder->kind = kind;
	encoder->is_cut = 0;
	encoder->row_bytes = 0;
	encoder->second = encoder->prompt = 0;
	encoder->is_good = encoder->is_equal = encoder->has_no_prompt = 0;
	encoder->most_ids = kind == DATA_TEXT || kind == DATA_COMPLETION || kind == DATA_PAIR ? wanted_ids(encoder->config) : 0;
	if (kind == DATA_LABELLED)
		return data_encode_labelled(encoder, row, where);
	if (kind == DATA_TEXT)
		return encode_text(encoder, row, where);
	if (kind == DATA_COMPLETION)
		return encode_completion(encoder, row, where);
	if (kind == DATA_PAIR || kind == DATA_JUDGED)
		return data_encode_preference(encoder, row, where);
	int rc = find_template(encoder, where);
	if (rc)
		return rc;
	if (kind == DATA_PAIR_CHAT || kind == DATA_JUDGED_CHAT)
		return data_encode_preference(encoder, row, where);
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
