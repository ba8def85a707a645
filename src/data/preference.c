#include "data/preference.h"

#include <string.h>

static json_t *member(const json_t *row, const char *key)
{
	json_t *value = json_object_get(row, key);
	return json_is_null(value) ? NULL : value;
}

static json_t *either(const json_t *row, const char *key, const char *other)
{
	json_t *value = member(row, key);
	return value ? value : member(row, other);
}

static int no_memory(const char *where)
{
	return rh_fail(-ENOMEM, "%s: out of host memory", where);
}

/* 1 true, 0 false; -1: neither. A table has words. */
static int truth_of(const json_t *value)
{
	static const char *const words[][3] = {{"false", "False", "FALSE"}, {"true", "True", "TRUE"}};
	for (int truth = 0; truth < 2; truth++)
		for (int i = 0; i < 3 && json_is_string(value); i++)
			if (!strcmp(json_string_value(value), words[truth][i]))
				return truth;
	return json_is_boolean(value) ? json_is_true(value) : -1;
}

enum data_preference data_preference_of(const json_t *row)
{
	if (either(row, "chosen", "chosen_response") && either(row, "rejected", "rejected_response"))
		return DATA_IS_PAIR;
	if (member(row, "prompt") && member(row, "completion") && truth_of(member(row, "label")) >= 0)
		return DATA_IS_JUDGED;
	return truth_of(member(row, "kto_tag")) >= 0 ? DATA_IS_JUDGED : DATA_NO_PREFERENCE;
}

int data_preference_list_unread(enum data_preference is, const json_t *row, struct rh_text *out)
{
	static const char *const keys[][24] = {
	        [DATA_IS_PAIR] = {"chosen", "rejected", "chosen_response", "rejected_response", "prompt", "messages", "conversations",
	                          "instruction", "input", "history", "system", "question", "tools", "documents", "chat_template_kwargs"},
	        [DATA_IS_JUDGED] = {"prompt", "completion", "label", "kto_tag", "messages", "conversations", "instruction", "input",
	                            "output", "history", "system", "tools", "documents", "chat_template_kwargs"}};
	const char *key;
	json_t *value;
	int rc = 0;
	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		int is_read = 0;
		for (int i = 0; i < 24 && keys[is][i]; i++)
			is_read |= !strcmp(keys[is][i], key);
		if (!rc && !is_read && data_is_given(row, key))
			rc = rh_text_printf(out, "%s'%.40s'", out->length ? ", " : "", key);
	}
	return rc;
}

/* A new list of items [first, end). */
static json_t *slice(const json_t *list, size_t first, size_t end)
{
	json_t *out = json_array();
	for (size_t i = first; out && i < end; i++)
		if (json_array_append(out, json_array_get(list, i))) {
			json_decref(out);
			return NULL;
		}
	return out;
}

/* A list of one message: the assistant's who says a string, or the message, or the last one of a list. */
static json_t *answer_of(const json_t *value)
{
	if (json_is_array(value))
		value = json_array_get(value, json_array_size(value) - 1);
	return json_is_string(value) ? json_pack("[{s:s, s:O}]", "role", "assistant", "content", value) : json_pack("[O]", value);
}

/* What the row becomes. Owned. */
struct made {
	json_t *prompt, *answer[2];
	json_t *tools; /* as the form's conversion has them; NULL: the row's own */
};

static void made_free(struct made *made)
{
	json_decref(made->prompt);
	json_decref(made->answer[0]);
	json_decref(made->answer[1]);
	json_decref(made->tools);
}

/* A row of another form that holds the answer, as that form has it; taken apart again. `key`: where the form has its answer. */
static int convert_form(enum data_form form, const struct data_tags *tags, int has_template, const char *where, json_t *with,
                        struct made *made, int number)
{
	enum data_kind kind;
	int rc = with ? data_form_convert(form, tags, has_template, where, &with, &kind) : no_memory(where);
	const json_t *messages = rc ? NULL : json_object_get(with, "messages"), *prompt = rc ? NULL : json_object_get(with, "prompt");
	size_t count = json_array_size(messages);
	if (!rc && messages && count < 2)
		rc = rh_fail(-EINVAL, "%s: the conversation must hold a question and an answer", where);
	if (!rc && !made->prompt)
		made->prompt = messages ? slice(messages, 0, count - 1) : json_incref((json_t *)(uintptr_t)prompt);
	if (!rc && messages && !made->tools)
		made->tools = json_incref(json_object_get(with, "tools"));
	if (!rc)
		made->answer[number] = messages ? slice(messages, count - 1, count) : json_incref(json_object_get(with, "completion"));
	json_decref(with);
	return rc || (made->prompt && made->answer[number]) ? rc : no_memory(where);
}

/* The row with one more key. */
static json_t *with_key(const json_t *row, const char *key, const json_t *value)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)row);
	if (copy && json_object_set(copy, key, (json_t *)(uintptr_t)value)) {
		json_decref(copy);
		return NULL;
	}
	return copy;
}

/* LLaMA-Factory's conversations, to which a turn is added. */
static int pair_of_turns(const json_t *row, const struct data_tags *tags, const char *where, json_t *const answer[2], struct made *made)
{
	int rc = 0;
	for (int i = 0; !rc && i < 2; i++) {
		json_t *turns = json_copy(json_object_get(row, "conversations"));
		if (!json_is_object(answer[i]))
			rc = rh_fail(-EINVAL,
			             "%s: beside 'conversations' chosen and rejected must be turns {\"from\": ..., \"value\": ...}", where);
		else if (!turns || json_array_append(turns, answer[i]))
			rc = no_memory(where);
		if (!rc)
			rc = convert_form(FORM_SHAREGPT, tags, 1, where, with_key(row, "conversations", turns), made, i);
		json_decref(turns);
	}
	return rc;
}

static int pair_of_messages(const json_t *prompt, const char *where, json_t *const answer[2], struct made *made)
{
	for (int i = 0; i < 2; i++)
		if (!json_is_string(answer[i]) && !json_is_object(answer[i]) && !json_array_size(answer[i]))
			return rh_fail(-EINVAL, "%s: beside messages chosen and rejected must be a string, a message or a list of messages",
			               where);
	made->prompt = json_incref((json_t *)(uintptr_t)prompt);
	for (int i = 0; i < 2; i++)
		made->answer[i] = answer_of(answer[i]);
	return made->answer[0] && made->answer[1] ? 0 : no_memory(where);
}

/* How many messages, or bytes of whole characters, both begin with; each keeps at least its last. As TRL does, a space before where strings
 * part is the answers'. */
static size_t common_messages(const json_t *a, const json_t *b)
{
	size_t most = json_array_size(a) < json_array_size(b) ? json_array_size(a) : json_array_size(b), same = 0;
	while (same + 1 < most && json_equal(json_array_get(a, same), json_array_get(b, same)))
		same++;
	return same;
}

static size_t common_bytes(const json_t *a, const json_t *b)
{
	const char *x = json_string_value(a), *y = json_string_value(b);
	size_t most = json_string_length(a) < json_string_length(b) ? json_string_length(a) : json_string_length(b), same = 0;
	while (same < most && x[same] == y[same])
		same++;
	if (same == most && same) /* one begins with the other */
		same--;
	while (same && ((unsigned char)x[same] & 0xc0) == 0x80)
		same--;
	return same < most && same && x[same] != y[same] && x[same - 1] == ' ' ? same - 1 : same;
}

static int pair_without_prompt(const char *where, json_t *const answer[2], struct made *made)
{
	if (json_is_array(answer[0])) {
		size_t same = common_messages(answer[0], answer[1]);
		made->prompt = slice(answer[0], 0, same);
		for (int i = 0; i < 2; i++)
			made->answer[i] = slice(answer[i], same, json_array_size(answer[i]));
	} else {
		size_t same = common_bytes(answer[0], answer[1]);
		made->prompt = json_stringn(json_string_value(answer[0]), same);
		for (int i = 0; i < 2; i++)
			made->answer[i] = json_stringn(json_string_value(answer[i]) + same, json_string_length(answer[i]) - same);
	}
	return made->prompt && made->answer[0] && made->answer[1] ? 0 : no_memory(where);
}

/* Both answers are whole conversations, or what is said last in them. */
static int pair_of_lists(const json_t *prompt, const char *where, json_t *const answer[2], struct made *made)
{
	const char *first = json_string_value(json_object_get(json_array_get(answer[0], 0), "role"));
	if (!json_is_array(prompt) && !(json_is_string(prompt) && first && !strcmp(first, "assistant")))
		return pair_without_prompt(where, answer, made);
	made->prompt = json_is_array(prompt) ? json_incref((json_t *)(uintptr_t)prompt)
	                                     : json_pack("[{s:s, s:O}]", "role", "user", "content", prompt);
	for (int i = 0; i < 2; i++)
		made->answer[i] = json_incref(answer[i]);
	return made->prompt ? 0 : no_memory(where);
}

/* Strings, with a question under one of its names. */
static int pair_of_strings(const json_t *row, int has_template, const char *where, json_t *const answer[2], struct made *made)
{
	static const char *const questions[] = {"prompt", "question", "input"};
	const json_t *prompt = member(row, "prompt"), *question = NULL;
	int rc = 0;
	if (!prompt && json_is_string(member(row, "instruction"))) {
		for (int i = 0; !rc && i < 2; i++)
			rc = convert_form(FORM_ALPACA, NULL, has_template, where, with_key(row, "output", answer[i]), made, i);
		return rc;
	}
	for (int i = 0; i < 3 && !question; i++)
		question = member(row, questions[i]);
	if (json_is_array(prompt))
		return pair_of_messages(prompt, where, answer, made);
	if (question && !json_is_string(question))
		return rh_fail(-EINVAL, "%s: where chosen and rejected are strings the prompt must be a string, or a list of messages",
		               where);
	if (!question)
		return pair_without_prompt(where, answer, made);
	if (question == prompt && !data_is_given(row, "system")) { /* TRL: the strings as they stand */
		made->prompt = json_incref((json_t *)(uintptr_t)prompt);
		for (int i = 0; i < 2; i++)
			made->answer[i] = json_incref(answer[i]);
		return 0;
	}
	for (int i = 0; !rc && i < 2; i++) {
		json_t *with = with_key(row, "answer", answer[i]);
		if (with && json_object_set(with, "question", (json_t *)(uintptr_t)question)) {
			json_decref(with);
			with = NULL;
		}
		rc = convert_form(FORM_QUESTION, NULL, has_template, where, with, made, i);
	}
	return rc;
}

static int convert_pair(const struct data_tags *tags, int has_template, const char *where, const json_t *row, struct made *made)
{
	json_t *const answer[2] = {either(row, "chosen", "chosen_response"), either(row, "rejected", "rejected_response")};
	if (!answer[0] || !answer[1])
		return rh_fail(-EINVAL, "%s: '%s' is missing; each row of a pair loss has both", where, answer[0] ? "rejected" : "chosen");
	if (json_typeof(answer[0]) != json_typeof(answer[1]))
		return rh_fail(-EINVAL, "%s: chosen and rejected must be alike: two strings, or two lists of messages", where);
	if (json_is_array(answer[0]) && (!json_array_size(answer[0]) || !json_array_size(answer[1])))
		return rh_fail(-EINVAL, "%s: chosen or rejected is an empty list", where);
	if (json_is_array(member(row, "conversations")))
		return pair_of_turns(row, tags, where, answer, made);
	if (json_is_array(member(row, "messages")))
		return pair_of_messages(member(row, "messages"), where, answer, made);
	if (json_is_array(answer[0]))
		return pair_of_lists(member(row, "prompt"), where, answer, made);
	if (json_is_object(answer[0]) && json_is_array(member(row, "prompt")))
		return pair_of_messages(member(row, "prompt"), where, answer, made);
	if (json_is_string(answer[0]))
		return pair_of_strings(row, has_template, where, answer, made);
	return rh_fail(-EINVAL, "%s: chosen and rejected must be strings, or lists of messages", where);
}

static int convert_judged(const struct data_tags *tags, int has_template, const char *where, const json_t *row, struct made *made)
{
	const json_t *prompt = member(row, "prompt"), *completion = member(row, "completion"), *messages = member(row, "messages");
	size_t count = json_array_size(messages);
	if (truth_of(either(row, "kto_tag", "label")) < 0)
		return rh_fail(-EINVAL, "%s: 'label' (or 'kto_tag') must be true or false: is the answer a good one?", where);
	if (prompt && completion) {
		if (json_typeof(prompt) != json_typeof(completion) || !(json_is_string(prompt) || json_is_array(prompt)))
			return rh_fail(-EINVAL, "%s: prompt and completion must be two strings, or two lists of messages", where);
		made->prompt = json_incref((json_t *)(uintptr_t)prompt);
		made->answer[0] = json_incref((json_t *)(uintptr_t)completion);
		return 0;
	}
	if (json_is_array(member(row, "conversations")))
		return convert_form(FORM_SHAREGPT, tags, 1, where, json_copy((json_t *)(uintptr_t)row), made, 0);
	if (messages && count < 2)
		return rh_fail(-EINVAL, "%s: 'messages' must hold a question and an answer", where);
	if (messages) {
		made->prompt = slice(messages, 0, count - 1);
		made->answer[0] = slice(messages, count - 1, count);
		return made->prompt && made->answer[0] ? 0 : no_memory(where);
	}
	if (member(row, "instruction") && member(row, "output"))
		return convert_form(FORM_ALPACA, NULL, has_template, where, json_copy((json_t *)(uintptr_t)row), made, 0);
	return rh_fail(-EINVAL, "%s: an answer with a label needs 'prompt' and 'completion', 'instruction' and 'output', or a conversation",
	               where);
}

/* Puts in order what the converted row has: our keys, and what templates read beside messages. */
static int put_row(enum data_preference is, const char *where, const struct made *made, json_t **row)
{
	static const char *const beside[] = {"tools", "documents", "chat_template_kwargs"};
	int is_pair = is == DATA_IS_PAIR;
	json_t *out = json_pack("{s:O, s:O}", "prompt", made->prompt, is_pair ? "chosen" : "completion", made->answer[0]);
	int failed = !out;
	if (!failed && is_pair)
		failed = json_object_set(out, "rejected", made->answer[1]);
	else if (!failed)
		failed = json_object_set_new(out, "label", json_boolean(truth_of(either(*row, "kto_tag", "label")) == 1));
	for (size_t i = 0; !failed && i < sizeof beside / sizeof *beside; i++)
		if (member(*row, beside[i]))
			failed = json_object_set(out, beside[i], member(*row, beside[i]));
	if (!failed && made->tools)
		failed = json_object_set(out, "tools", made->tools);
	if (failed) {
		json_decref(out);
		return no_memory(where);
	}
	json_decref(*row);
	*row = out;
	return data_parse_cell(*row, "tools", where);
}

int data_preference_convert(enum data_preference is, const struct data_tags *tags, int has_template, const char *where, json_t **row,
                            enum data_kind *kind)
{
	struct made made = {0};
	int rc = is == DATA_IS_PAIR ? convert_pair(tags, has_template, where, *row, &made)
	                            : convert_judged(tags, has_template, where, *row, &made);
	int is_chat = json_is_array(made.prompt);
	*kind = is == DATA_IS_PAIR ? (is_chat ? DATA_PAIR_CHAT : DATA_PAIR) : is_chat ? DATA_JUDGED_CHAT : DATA_JUDGED;
	if (!rc)
		rc = put_row(is, where, &made, row);
	made_free(&made);
	return rc;
}
