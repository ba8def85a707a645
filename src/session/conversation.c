#include "session/conversation.h"

#include "data/chat.h"

#include <string.h>

int rh_conversation_is_asked_for(const struct rh_config *config, const char **key)
{
	const char *name = config->system ? "system" : config->tools ? "tools" : config->messages_file ? "messages_file" : NULL;
	if (key)
		*key = name;
	return name != NULL;
}

static json_t *first_message(const json_t *conversation)
{
	return json_array_get(json_object_get(conversation, "messages"), 0);
}

static int begins_with_system(const json_t *conversation)
{
	const char *role = json_string_value(json_object_get(first_message(conversation), "role"));
	return role && !strcmp(role, "system");
}

static int make_message(const char *role, const char *content, size_t length, json_t **out)
{
	*out = json_pack("{s:s, s:s%}", "role", role, "content", content, length);
	return *out ? 0 : rh_fail(-EINVAL, "%s: this text is not valid UTF-8", role);
}

int rh_conversation_add(json_t *conversation, const char *role, const char *content, size_t length)
{
	json_t *message;
	int rc = make_message(role, content, length, &message);
	if (!rc && json_array_append_new(json_object_get(conversation, "messages"), message))
		rc = -ENOMEM;
	return rc;
}

int rh_conversation_set_system(json_t *conversation, const char *content, size_t length)
{
	json_t *message, *messages = json_object_get(conversation, "messages");
	int rc = make_message("system", content, length, &message);
	if (rc)
		return rc;
	int failed =
	        begins_with_system(conversation) ? json_array_set_new(messages, 0, message) : json_array_insert_new(messages, 0, message);
	return failed ? -ENOMEM : 0;
}

const char *rh_conversation_system(const json_t *conversation)
{
	return begins_with_system(conversation) ? json_string_value(json_object_get(first_message(conversation), "content")) : NULL;
}

/* A list of messages, or an object as a row of messages is: *conversation becomes it. */
static int read_messages(const char *path, json_t *conversation)
{
	json_t *json = NULL;
	int rc = rh_json_load(path, &json);
	const json_t *messages = json_is_object(json) ? json_object_get(json, "messages") : json;
	if (!rc && (!json_is_array(messages) || !json_array_size(messages)))
		rc = rh_fail(
		        -EINVAL,
		        "messages_file: %s holds no conversation; expected [{\"role\": ..., \"content\": ...}, ...], or an object with "
		        "such a list as \"messages\"",
		        path);
	if (!rc && json_is_object(json) && json_object_update(conversation, json))
		rc = -ENOMEM;
	if (!rc && json_object_set(conversation, "messages", (json_t *)(uintptr_t)messages))
		rc = -ENOMEM;
	json_decref(json);
	return rc;
}

/* A list of descriptions, or an object that holds one as "tools". */
static int read_tools(const char *path, json_t *conversation)
{
	json_t *json = NULL, *tools = NULL;
	int rc = rh_json_load(path, &json);
	const json_t *list = json_is_object(json) && json_object_get(json, "tools") ? json_object_get(json, "tools") : json;
	if (!rc && (!json_is_array(list) || !json_array_size(list)))
		rc = rh_fail(-EINVAL,
		             "tools: %s holds no list of tools; expected [{\"name\": ..., \"description\": ..., \"parameters\": ...}, ...]",
		             path);
	if (!rc)
		rc = rh_chat_tools(list, path, &tools);
	if (!rc && json_object_set_new(conversation, "tools", tools))
		rc = -ENOMEM;
	json_decref(json);
	return rc;
}

int rh_conversation_open(const struct rh_config *config, json_t **out)
{
	json_t *conversation = json_pack("{s:[]}", "messages");
	int rc = conversation ? 0 : -ENOMEM;
	if (!rc && config->messages_file)
		rc = read_messages(config->messages_file, conversation);
	if (!rc && config->tools)
		rc = read_tools(config->tools, conversation);
	if (!rc && config->system && begins_with_system(conversation))
		rc = rh_fail(-EINVAL, "system: contradicts the system message of messages_file; keep one of them");
	if (!rc && config->system)
		rc = rh_conversation_set_system(conversation, config->system, strlen(config->system));
	if (rc)
		json_decref(conversation);
	else
		*out = conversation;
	return rc;
}
