#include "data/form.h"

#include "core/log.h"
#include "core/text.h"

#include <string.h>
#include <strings.h>

/* In the order in which they are looked for. A form has all of its keys. */
static const struct {
	enum data_form form;
	const char *key[2];
	const char *other[4]; /* keys that it reads too */
} forms[] = {
        {FORM_COMPLETION, {"prompt", "completion"}, {"tools", "documents", "chat_template_kwargs"}},
        {FORM_MESSAGES, {"messages"}, {"tools", "documents", "chat_template_kwargs"}},
        {FORM_SHAREGPT, {"conversations"}, {"system", "tools", "documents", "chat_template_kwargs"}},
        {FORM_ALPACA, {"instruction", "output"}, {"input", "history", "system"}},
        {FORM_QUESTION, {"question", "answer"}, {"system"}},
        {FORM_INPUT, {"input", "output"}, {"system"}},
        {FORM_TEXT, {"text"}, {NULL}},
};
enum { FORMS = sizeof forms / sizeof *forms, NAMED_MOST = 8 };

static json_t *member(const json_t *row, const char *key)
{
	json_t *value = json_object_get(row, key);
	return json_is_null(value) ? NULL : value;
}

int data_is_given(const json_t *row, const char *key)
{
	const json_t *value = member(row, key);
	return value && !(json_is_string(value) && !json_string_length(value));
}

int data_add_message(json_t *messages, const char *role, const json_t *content)
{
	json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
	return message && !json_array_append_new(messages, message) ? 0 : rh_fail(-ENOMEM, "out of host memory in a conversation");
}

int data_columns_rename(const json_t *columns, const char *where, json_t **row)
{
	const char *key;
	json_t *column;
	if (!columns || !json_object_size(columns))
		return 0;
	json_t *renamed = json_copy(*row); /* shallow */
	if (!renamed)
		return rh_fail(-ENOMEM, "%s: out of host memory", where);
	json_object_foreach((json_t *)(uintptr_t)columns, key, column)
	{
		json_t *value = json_object_get(*row, json_string_value(column));
		if (value && json_object_set(renamed, key, value)) {
			json_decref(renamed);
			return rh_fail(-ENOMEM, "%s: out of host memory", where);
		}
	}
	json_decref(*row);
	*row = renamed;
	return 0;
}

/* "'a', 'b'" of the row's keys. */
static int list_keys(const json_t *row, struct rh_text *out)
{
	const char *key;
	json_t *value;
	int named = 0, rc = rh_text_append(out, "", 0);
	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		if (!rc && named < NAMED_MOST)
			rc = rh_text_printf(out, "%s'%.40s'%s", named ? ", " : "", key, json_is_null(value) ? " (null)" : "");
		named++;
	}
	if (!rc && named > NAMED_MOST)
		rc = rh_text_printf(out, " and %d more", named - NAMED_MOST);
	return rc;
}

/* The row's key of that name, in capitals or not; NULL: none. */
static const char *find_column(const json_t *row, const char *name)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		if (!strcasecmp(key, name) && !json_is_null(value))
			return key;
	}
	return NULL;
}

/* The column that most often holds what `wanted` names; NULL: none of them is here. */
static const char *usual_column(const json_t *row, const char *wanted)
{
	static const char *const names[][12] = {
	        {"prompt", "title", "source", NULL},
	        {"question", "query", "input", "inputs", "user", "human", NULL},
	        {"completion", "response", "answer", "output", "assistant", "gpt", "bot", "chosen", "body", "target", "targets", NULL},
	        {"text", "content", "body", "document", "passage", NULL},
	        {"messages", "conversation", "dialog", "dialogue", "chat", "turns", NULL},
	};
	const char *column = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		for (size_t n = 0; !column && !strcmp(names[i][0], wanted) && names[i][n]; n++)
			column = find_column(row, names[i][n]);
	return column;
}

/* A column for which `wanted` may go by another name here: a usual one, or the first text that is nothing else. NULL: none. */
static const char *guess_column(const json_t *row, const char *wanted)
{
	const char *column = usual_column(row, wanted), *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		if (!column && json_is_string(value) && strcmp(key, "prompt") && strcmp(key, "completion"))
			column = key;
	}
	return column;
}

/* The column of a whole conversation under another name, and in *as our key for it; NULL: none. */
static const char *find_talk(const json_t *row, const char **as)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		const json_t *first = json_array_get(value, 0);
		const char *role = json_string_value(json_object_get(first, "role"));
		*as = json_object_get(first, "from") ? "conversations" : "messages";
		if (!strcmp(key, "prompt") || !strcmp(key, "rejected")) /* half of one, and one that is not to be learnt */
			continue;
		if (json_object_get(first, "from") || (role && strcmp(role, "assistant")))
			return key;
	}
	*as = "messages";
	return usual_column(row, "messages");
}

/* The column that holds a list of objects; NULL: none. */
static const char *find_list(const json_t *row)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)row, key, value) if (json_is_object(json_array_get(value, 0))) return key;
	return NULL;
}

/* No form has all of its keys here: what would mend it, by what is there. */
static int fail_unknown(const json_t *row, const char *text_key, const char *where)
{
	struct rh_text keys = {0};
	int rc = list_keys(row, &keys);
	if (rc)
		return rc;
	int prompt = member(row, "prompt") != NULL, completion = member(row, "completion") != NULL;
	const char *instruction = find_column(row, "instruction"), *context = find_column(row, "context"),
	           *question = usual_column(row, "question"), *reply = usual_column(row, "completion");
	const char *asked = guess_column(row, "prompt"), *answer = guess_column(row, "completion"), *as, *talk = find_talk(row, &as),
	           *first = guess_column(row, "text"), *list = find_list(row);
	if (member(row, "role") && member(row, "content"))
		rc = rh_fail(-EINVAL, "%s: a message where a row is due; write each conversation as {\"messages\": [...]}", where);
	else if (talk)
		rc = rh_fail(-EINVAL, "%s: no form of rows has the keys %s; data_columns: {%s: %s} if that column is the conversation",
		             where, keys.bytes, as, talk);
	else if (json_is_array(member(row, "input_ids")))
		rc = rh_fail(-EINVAL, "%s: no form of rows has the keys %s; token ids are not read: give the text of which they were made",
		             where, keys.bytes);
	else if (prompt != completion && (prompt ? answer : asked))
		rc = rh_fail(
		        -EINVAL,
		        "%s: '%s' is missing: 'prompt' and 'completion' go together; here are %s: data_columns: {%s: %s} if that is it",
		        where, prompt ? "completion" : "prompt", keys.bytes, prompt ? "completion" : "prompt", prompt ? answer : asked);
	else if (prompt != completion)
		rc = rh_fail(-EINVAL, "%s: '%s' is missing: 'prompt' and 'completion' go together", where,
		             prompt ? "completion" : "prompt");
	else if (instruction && reply)
		rc = rh_fail(-EINVAL,
		             "%s: no form of rows has the keys %s; data_columns: {instruction: %s, %s%s%soutput: %s} if these are it",
		             where, keys.bytes, instruction, context ? "input: " : "", context ? context : "", context ? ", " : "", reply);
	else if (question && reply) /* a question goes through the chat template, a prompt that is a plain string does not */
		rc = rh_fail(-EINVAL, "%s: no form of rows has the keys %s; data_columns: {question: %s, answer: %s} if these are it",
		             where, keys.bytes, question, reply);
	else if (asked && answer && strcmp(asked, answer))
		rc = rh_fail(-EINVAL, "%s: no form of rows has the keys %s; data_columns: {prompt: %s, completion: %s} if these are it",
		             where, keys.bytes, asked, answer);
	else if (list)
		rc = rh_fail(-EINVAL, "%s: no form of rows has the keys %s; if '%s' is the list of rows, write it alone, as jq .%s does",
		             where, keys.bytes, list, list);
	else if (first)
		rc = rh_fail(-EINVAL, "%s: no form of rows has the keys %s; data_columns: {%s: %s} if that is the text", where, keys.bytes,
		             text_key, first);
	else
		rc = rh_fail(
		        -EINVAL,
		        "%s: no form of rows has the keys %s; a row has messages, prompt and completion, instruction and output (Alpaca), "
		        "conversations (ShareGPT), question and answer, or %s",
		        where, *keys.bytes ? keys.bytes : "(none)", text_key);
	rh_text_free(&keys);
	return rc;
}

/* The row has a form, but not the one that the columns were named for: they are mistyped, or another file's. */
static void warn_of_missing(const json_t *row, const json_t *columns, const char *where)
{
	for (int i = 0; i < 2 * FORMS; i++) {
		const char *key = forms[i / 2].key[i % 2], *column = key ? json_string_value(json_object_get(columns, key)) : NULL;
		if (column && !json_object_get(row, column))
			rh_warn_once(
			        "%s: there is no '%s', which data_columns (or dataset_text_field) names as %s; the row is read without it",
			        where, column, key);
	}
}

int data_form_find(const json_t *row, const json_t *columns, const char *text_key, const char *where, enum data_form *out)
{
	for (int mapped = 1; mapped >= 0; mapped--)
		for (int i = 0; i < FORMS; i++) {
			const char *first = forms[i].key[0], *second = forms[i].key[1];
			int named = json_object_get(columns, first) || (second && json_object_get(columns, second));
			if ((mapped && !named) || !member(row, first) || (second && !member(row, second)))
				continue;
			*out = forms[i].form;
			if (!mapped)
				warn_of_missing(row, columns, where);
			return 0;
		}
	return fail_unknown(row, text_key, where);
}

static int is_read(enum data_form form, const char *key)
{
	int found = 0;
	for (int i = 0; i < FORMS; i++) {
		if (forms[i].form != form)
			continue;
		for (int k = 0; k < 2; k++)
			found |= forms[i].key[k] && !strcmp(forms[i].key[k], key);
		for (int k = 0; k < 4; k++)
			found |= forms[i].other[k] && !strcmp(forms[i].other[k], key);
	}
	return found;
}

int data_form_has_key(const char *key)
{
	int found = !strcmp(key, "chosen") || !strcmp(key, "rejected") || !strcmp(key, "label");
	for (int i = 0; i < FORMS; i++)
		found |= is_read(forms[i].form, key);
	return found;
}

int data_form_list_unread(enum data_form form, const json_t *row, const json_t *columns, struct rh_text *out)
{
	const char *key, *name;
	json_t *value, *column, *unread = json_object();
	int bad = !unread;
	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		int read = is_read(form, key);
		json_object_foreach((json_t *)(uintptr_t)columns, name, column) read |=
		        !strcmp(json_string_value(column), key) && is_read(form, name);
		if (!read && data_is_given(row, key))
			bad |= json_object_set(unread, key, value);
	}
	int rc = bad ? rh_fail(-ENOMEM, "out of host memory while columns are looked up") : 0;
	if (!rc && json_object_size(unread))
		rc = list_keys(unread, out);
	json_decref(unread);
	return rc;
}

static int need(const json_t *row, const char *key, json_type type, const char *where)
{
	const json_t *value = member(row, key);
	if (!value)
		return rh_fail(-EINVAL, "%s: '%s' is missing; all rows of a file are of the first one's form", where, key);
	if (json_typeof(value) == type)
		return 0;
	return rh_fail(-EINVAL, "%s: '%s' must be %s", where, key, type == JSON_STRING ? "a string" : "a list of messages");
}

/* A null in place of a text or an answer is an empty one: such a row is left out and counted. */
static int empty_null(json_t *row, const char *key, const char *where)
{
	if (!json_is_null(json_object_get(row, key)))
		return 0;
	json_t *empty = json_is_array(json_object_get(row, "prompt")) ? json_array() : json_string("");
	return json_object_set_new(row, key, empty) ? rh_fail(-ENOMEM, "%s: out of host memory", where) : 0;
}

/* Where prompt and completion are of different types, the first row's decide nothing: each row is either. */
static int convert_completion(const json_t *row, const char *where, enum data_kind *kind)
{
	const json_t *prompt = member(row, "prompt"), *completion = member(row, "completion");
	int rc = prompt ? 0 : need(row, "prompt", JSON_STRING, where);
	if (!rc && !completion)
		rc = need(row, "completion", JSON_STRING, where);
	if (rc)
		return rc;
	json_type type = json_is_array(completion) ? JSON_ARRAY : JSON_STRING;
	*kind = type == JSON_ARRAY ? DATA_COMPLETION_CHAT : DATA_COMPLETION;
	const char *wrong = json_typeof(completion) != type ? "completion" : json_typeof(prompt) != type ? "prompt" : NULL;
	return wrong ? rh_fail(-EINVAL, "%s: '%s' must be %s; prompts and completions are strings or lists of messages, both alike", where,
	                       wrong, type == JSON_STRING ? "a string" : "a list of messages")
	             : 0;
}

int data_parse_cell(json_t *row, const char *key, const char *where)
{
	const json_t *cell = json_object_get(row, key);
	json_t *value = NULL;
	if (!json_is_string(cell))
		return 0;
	int rc = 0;
	const char *text = json_string_value(cell);
	char first = text[strspn(text, " \t\r\n")];
	if (first && first != '[' && first != '{')
		return 0;
	if (first) {
		rc = rh_json_parse_data(json_string_value(cell), json_string_length(cell), key, &value);
		if (rc)
			return rh_fail_in(rc, "%s: a text where JSON is due (Python's repr is none: write it with json.dumps)", where);
	} else {
		value = json_null();
	}
	return value && !json_object_set_new(row, key, value) ? 0 : rh_fail(-ENOMEM, "%s: out of host memory", where);
}

/* Alpaca's parts under the names that this form has for them. */
struct parts {
	const json_t *instruction, *input, *output, *system, *history;
	const char *instruction_key, *output_key; /* the names of instruction and output */
};

static int read_parts(enum data_form form, json_t *row, const char *where, struct parts *out)
{
	*out = (struct parts){.instruction_key = form == FORM_QUESTION ? "question"
	                                         : form == FORM_INPUT  ? "input"
	                                                               : "instruction",
	                      .output_key = form == FORM_QUESTION ? "answer" : "output"};
	int rc = need(row, out->instruction_key, JSON_STRING, where);
	if (rc)
		return rc;
	rc = empty_null(row, out->output_key, where);
	if (!rc)
		rc = need(row, out->output_key, JSON_STRING, where);
	if (!rc && data_is_given(row, "system"))
		rc = need(row, "system", JSON_STRING, where);
	if (!rc && form == FORM_ALPACA && data_is_given(row, "input"))
		rc = need(row, "input", JSON_STRING, where);
	if (!rc && form == FORM_ALPACA)
		rc = data_parse_cell(row, "history", where);
	if (rc)
		return rc;
	out->instruction = member(row, out->instruction_key);
	out->output = member(row, out->output_key);
	out->system = data_is_given(row, "system") ? member(row, "system") : NULL;
	out->input = form == FORM_ALPACA && data_is_given(row, "input") ? member(row, "input") : NULL;
	out->history = form == FORM_ALPACA && data_is_given(row, "history") ? member(row, "history") : NULL;
	if (out->history && !json_is_array(out->history))
		return rh_fail(-EINVAL, "%s: 'history' must be a list of [question, answer] pairs", where);
	size_t i;
	const json_t *turn;
	json_array_foreach(out->history, i, turn) if (json_array_size(turn) != 2 || !json_is_string(json_array_get(turn, 0)) ||
	                                              !json_is_string(json_array_get(turn, 1))) rc =
	        rh_fail(-EINVAL, "%s: 'history' must be a list of [question, answer] pairs; its item %zu is none", where, i + 1);
	return rc;
}

/* instruction, and input in the line after it. */
static json_t *question_of(const struct parts *parts)
{
	if (!parts->input)
		return json_incref((json_t *)(uintptr_t)parts->instruction);
	struct rh_text text = {0};
	json_t *question = NULL;
	int rc = rh_text_append(&text, json_string_value(parts->instruction), json_string_length(parts->instruction));
	if (!rc && text.length)
		rc = rh_text_append(&text, "\n", 1);
	if (!rc)
		rc = rh_text_append(&text, json_string_value(parts->input), json_string_length(parts->input));
	if (!rc)
		question = json_stringn(text.bytes, text.length);
	rh_text_free(&text);
	return question;
}

static int converse(const struct parts *parts, json_t **row)
{
	json_t *prompt = json_array(), *completion = json_array(), *question = question_of(parts);
	int rc = prompt && completion && question ? 0 : -ENOMEM;
	size_t i;
	const json_t *turn;
	if (!rc && parts->system)
		rc = data_add_message(prompt, "system", parts->system);
	json_array_foreach(parts->history, i, turn)
	{
		if (!rc)
			rc = data_add_message(prompt, "user", json_array_get(turn, 0));
		if (!rc)
			rc = data_add_message(prompt, "assistant", json_array_get(turn, 1));
	}
	if (!rc)
		rc = data_add_message(prompt, "user", question);
	if (!rc)
		rc = data_add_message(completion, "assistant", parts->output);
	json_t *made = rc ? NULL : json_pack("{s:O, s:O}", "prompt", prompt, "completion", completion);
	json_decref(prompt);
	json_decref(completion);
	json_decref(question);
	if (!made)
		return rh_fail(-ENOMEM, "out of host memory in a conversation");
	json_decref(*row);
	*row = made;
	return 0;
}

/* `before`, then the string, which may hold NUL. */
static int put_string(struct rh_text *out, const char *before, const json_t *string)
{
	int rc = rh_text_append(out, before, strlen(before));
	return rc ? rc : rh_text_append(out, json_string_value(string), json_string_length(string));
}

/* The prompt of the Alpaca project (tatsu-lab/stanford_alpaca, train.py); a system text takes the place of its first sentence. */
static int write_alpaca(const struct parts *parts, json_t **row)
{
	static const char with_input[] =
	        "Below is an instruction that describes a task, paired with an input that provides further context. "
	        "Write a response that appropriately completes the request.";
	static const char without[] = "Below is an instruction that describes a task. Write a response that appropriately completes the "
	                              "request.";
	struct rh_text text = {0};
	size_t i;
	const json_t *turn;
	int rc = parts->system ? put_string(&text, "", parts->system) : rh_text_printf(&text, "%s", parts->input ? with_input : without);
	if (!rc)
		rc = rh_text_printf(&text, "\n\n");
	json_array_foreach(parts->history, i, turn)
	{
		if (!rc)
			rc = put_string(&text, "### Instruction:\n", json_array_get(turn, 0));
		if (!rc)
			rc = put_string(&text, "\n\n### Response:", json_array_get(turn, 1));
		if (!rc)
			rc = rh_text_printf(&text, "\n\n");
	}
	if (!rc)
		rc = put_string(&text, "### Instruction:\n", parts->instruction);
	if (!rc && parts->input)
		rc = put_string(&text, "\n\n### Input:\n", parts->input);
	if (!rc)
		rc = rh_text_printf(&text, "\n\n### Response:");
	json_t *made = rc ? NULL : json_pack("{s:s%, s:O}", "prompt", text.bytes, text.length, "completion", parts->output);
	rh_text_free(&text);
	if (!made)
		return rc ? rc : rh_fail(-ENOMEM, "out of host memory in a prompt");
	json_decref(*row);
	*row = made;
	return 0;
}

int data_form_convert(enum data_form form, const struct data_tags *tags, int has_template, const char *where, json_t **row,
                      enum data_kind *kind)
{
	struct parts parts;
	int rc;
	switch (form) {
	case FORM_COMPLETION:
		rc = data_parse_cell(*row, "tools", where);
		if (!rc)
			rc = empty_null(*row, "completion", where);
		return rc ? rc : convert_completion(*row, where, kind);
	case FORM_TEXT:
		*kind = DATA_TEXT;
		rc = empty_null(*row, "text", where);
		return rc ? rc : need(*row, "text", JSON_STRING, where);
	case FORM_MESSAGES:
		*kind = DATA_MESSAGES;
		rc = data_parse_cell(*row, "messages", where);
		if (!rc)
			rc = data_parse_cell(*row, "tools", where);
		return rc ? rc : need(*row, "messages", JSON_ARRAY, where);
	case FORM_SHAREGPT:
		*kind = DATA_MESSAGES;
		return data_sharegpt_convert(tags, where, row);
	case FORM_ALPACA:
	case FORM_QUESTION:
	case FORM_INPUT:
		*kind = has_template ? DATA_COMPLETION_CHAT : DATA_COMPLETION;
		rc = read_parts(form, *row, where, &parts);
		if (!rc)
			rc = has_template ? converse(&parts, row) : write_alpaca(&parts, row);
		return rc;
	}
	return 0;
}
