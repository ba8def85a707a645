/* Converts ShareGPT's turns to messages. */
#include "data/chat.h"
#include "data/form.h"

#include <string.h>

enum role { ROLE_USER, ROLE_ASSISTANT, ROLE_SYSTEM, ROLE_TOOL, ROLE_CALL, ROLE_UNKNOWN };

/* The names that published sets of conversations give to the speakers. */
static const struct {
	const char *name;
	enum role role;
} speakers[] = {
        {"human", ROLE_USER},
        {"user", ROLE_USER},
        {"prompter", ROLE_USER},
        {"gpt", ROLE_ASSISTANT},
        {"assistant", ROLE_ASSISTANT},
        {"chatgpt", ROLE_ASSISTANT},
        {"bard", ROLE_ASSISTANT},
        {"bing", ROLE_ASSISTANT},
        {"model", ROLE_ASSISTANT},
        {"system", ROLE_SYSTEM},
        {"tool", ROLE_TOOL},
        {"observation", ROLE_TOOL},
        {"function_response", ROLE_TOOL},
        {"function_call", ROLE_CALL},
        {"tool_call", ROLE_CALL},
};

static enum role role_of(const struct data_tags *tags, const char *name)
{
	const char *const tagged[] = {tags->user, tags->assistant, tags->system, tags->observation, tags->function}; /* as enum role */
	for (size_t i = 0; i < sizeof tagged / sizeof *tagged; i++)
		if (tagged[i] && !strcmp(tagged[i], name))
			return (enum role)i;
	for (size_t i = 0; i < sizeof speakers / sizeof *speakers; i++)
		if (!strcmp(speakers[i].name, name))
			return speakers[i].role;
	return ROLE_UNKNOWN;
}

static int no_memory(const char *where)
{
	return rh_fail(-ENOMEM, "%s: out of host memory", where);
}

/* {"name": ..., "arguments": ...}, or a list of such, as the tool calls of a message. Arguments that are JSON text become JSON. */
static int read_calls(json_t *content, const char *where, size_t turn, json_t **out)
{
	json_t *calls = NULL;
	int rc = 0;
	if (json_is_string(content)) {
		rc = rh_json_parse_data(json_string_value(content), json_string_length(content), "its text", &calls);
		if (rc)
			return rh_fail_in(rc, "%s: turn %zu calls a function, as JSON {\"name\": ..., \"arguments\": {...}}", where, turn);
	} else {
		calls = json_incref(content);
	}
	json_t *made = json_array();
	size_t count = json_is_array(calls) ? json_array_size(calls) : 1;
	rc = made ? 0 : no_memory(where);
	for (size_t i = 0; !rc && i < count; i++) {
		json_t *call = json_is_array(calls) ? json_array_get(calls, i) : calls;
		if (json_is_object(json_object_get(call, "function")))
			call = json_object_get(call, "function");
		if (!json_is_string(json_object_get(call, "name"))) {
			rc = rh_fail(-EINVAL, "%s: turn %zu calls a function: its JSON needs a 'name'", where, turn);
			break;
		}
		rc = data_parse_cell(call, "arguments", where);
		json_t *arguments = json_object_get(call, "arguments");
		json_t *item = rc ? NULL
		                  : json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function", "name", json_object_get(call, "name"),
		                              "arguments", arguments ? json_incref(arguments) : json_object());
		if (!rc && (!item || json_array_append_new(made, item)))
			rc = no_memory(where);
	}
	json_decref(calls);
	if (rc)
		json_decref(made);
	else
		*out = made;
	return rc;
}

/* Per-message marks of what is trained go along. */
static int copy_marks(const json_t *turn, json_t *message)
{
	static const char *const marks[] = {
	        "weight", "train", "train_detail", "name", "tool_calls", "tool_call_id", "reasoning_content", "thinking", "reasoning"};
	for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
		json_t *mark = json_object_get(turn, marks[i]);
		if (mark && json_object_set(message, marks[i], mark))
			return -ENOMEM;
	}
	return 0;
}

/* What the template is given besides messages and tools. */
static int copy_variables(const json_t *row, json_t *made)
{
	static const char *const names[] = {"documents", "chat_template_kwargs"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		json_t *value = json_object_get(row, names[i]);
		if (value && json_object_set(made, names[i], value))
			return -ENOMEM;
	}
	return 0;
}

static const char *role_key_of(const struct data_tags *tags, const json_t *turn)
{
	if (!tags->role && json_object_get(turn, "role")) /* messages under another name */
		return "role";
	return tags->role ? tags->role : "from";
}

/* Then the row's own system message is not taken, as in LLaMA-Factory: many files have it in both places. */
static int begins_with_system(const struct data_tags *tags, const json_t *turns)
{
	const json_t *first = json_array_get(turns, 0);
	const char *name = json_string_value(json_object_get(first, role_key_of(tags, first)));
	return name && role_of(tags, name) == ROLE_SYSTEM;
}

static int add_turn(const struct data_tags *tags, const json_t *turn, size_t number, const char *where, json_t *messages)
{
	static const char *const names[] = {"user", "assistant", "system", "tool", "assistant"}; /* as enum role */
	const char *role_key = role_key_of(tags, turn), *content_key = tags->content ? tags->content : "value";
	if (!tags->content && !json_object_get(turn, "value") && json_object_get(turn, "content"))
		content_key = "content";
	const char *name = json_string_value(json_object_get(turn, role_key));
	json_t *content = json_object_get(turn, content_key), *calls = NULL;
	if (!json_is_object(turn) || !name)
		return rh_fail(-EINVAL, "%s: turn %zu of 'conversations' must be an object with '%s' and '%s'", where, number, role_key,
		               content_key);
	enum role role = role_of(tags, name);
	if (role == ROLE_UNKNOWN)
		return rh_fail(
		        -EINVAL,
		        "%s: turn %zu is of '%.40s', who is none of human, gpt, system, tool, observation, function_call; rename it, or "
		        "name it in dataset_info's tags",
		        where, number, name);
	if (!content || (!json_is_string(content) && role != ROLE_CALL && !json_is_array(content) && !json_is_null(content)))
		return rh_fail(-EINVAL, "%s: turn %zu: '%s' must be a string", where, number, content_key);
	int rc = role == ROLE_CALL ? read_calls(content, where, number, &calls) : 0;
	if (rc)
		return rc;
	json_t *message = calls ? json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "", "tool_calls", calls)
	                        : json_pack("{s:s, s:O}", "role", names[role], "content", content);
	if (!message || copy_marks(turn, message) || json_array_append_new(messages, message))
		return no_memory(where);
	return 0;
}

static int wrap_tools(json_t *row, const char *where, json_t **out)
{
	int rc = data_parse_cell(row, "tools", where);
	const json_t *tools = json_object_get(row, "tools");
	return rc || !json_is_array(tools) || !json_array_size(tools) ? rc : rh_chat_tools(tools, where, out);
}

int data_sharegpt_convert(const struct data_tags *tags, const char *where, json_t **row)
{
	static const struct data_tags usual = {0};
	json_t *messages = NULL, *tools = NULL;
	int rc = data_parse_cell(*row, "conversations", where);
	const json_t *turns = json_object_get(*row, "conversations");
	if (!rc && (!json_is_array(turns) || !json_array_size(turns)))
		rc = rh_fail(-EINVAL, "%s: 'conversations' must be a list of turns {\"from\": ..., \"value\": ...}%s", where,
		             json_is_array(turns) ? "; it is empty" : "");
	if (!rc)
		rc = wrap_tools(*row, where, &tools);
	if (!rc && !(messages = json_array()))
		rc = no_memory(where);
	if (!rc && data_is_given(*row, "system") && !begins_with_system(tags ? tags : &usual, turns))
		rc = data_add_message(messages, "system", json_object_get(*row, "system"));
	for (size_t i = 0; !rc && i < json_array_size(turns); i++)
		rc = add_turn(tags ? tags : &usual, json_array_get(turns, i), i + 1, where, messages);
	json_t *made = rc ? NULL : json_object();
	if (!rc && (!made || json_object_set(made, "messages", messages) || (tools && json_object_set(made, "tools", tools)) ||
	            copy_variables(*row, made)))
		rc = no_memory(where);
	json_decref(messages);
	json_decref(tools);
	if (rc) {
		json_decref(made);
		return rc;
	}
	json_decref(*row);
	*row = made;
	return 0;
}
