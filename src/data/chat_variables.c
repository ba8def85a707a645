/* The variables of a chat template: a row's conversation as transformers passes it, with text content in the form that the template
 * accepts. */
#include "core/log.h"
#include "data/chat_internal.h"

#include <string.h>

static const char probe[] = "rhprobe", probe_value[] = "rhvalue";

int chat_out_of_memory(const struct rh_chat *chat)
{
	return rh_fail(-ENOMEM, "%s: out of host memory", chat->where);
}

static json_t *borrowed(const json_t *value)
{
	return json_incref((json_t *)(uintptr_t)value);
}

/* Adds what the template reads of the tokenizer. */
static int set_tokens(const struct rh_tokenizer *tokenizer, json_t *variables)
{
	const struct {
		const char *name;
		int32_t id;
	} tokens[] = {{"bos_token", rh_tokenizer_bos(tokenizer)}, {"eos_token", rh_tokenizer_eos(tokenizer)}};
	int bad = 0;
	for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
		if (tokens[i].id >= 0)
			bad |= json_object_set_new(variables, tokens[i].name, json_string(rh_tokenizer_text(tokenizer, tokens[i].id)));
	return bad;
}

/* Whether text given as `content` is written as text, not as Python shows a list. A template may refuse the probe: then it does not. */
static int writes(const struct rh_chat *chat, json_t *content, int *out)
{
	json_t *variables = json_object();
	json_t *messages = content ? json_pack("[{s:s, s:O}]", "role", "user", "content", content) : NULL;
	struct rh_text text = {0};
	int rc = !variables || !messages || set_tokens(chat->tokenizer, variables) ? chat_out_of_memory(chat) : 0;
	if (!rc)
		rc = chat_render_some(chat, variables, messages, RH_CHAT_WHOLE, &text, NULL);
	*out = !rc && text.bytes && strstr(text.bytes, probe) && !strstr(text.bytes, "'type'") && !strstr(text.bytes, "\"type\"");
	rh_text_free(&text);
	json_decref(variables);
	json_decref(messages);
	json_decref(content);
	if (rc == -EINVAL)
		rh_error_clear();
	return rc == -EINVAL ? 0 : rc;
}

/* Found once a template: the field is the template's own note, and every finding is the same. */
static int find_content_taken(const struct rh_chat *chat)
{
	struct rh_chat_template *form = (struct rh_chat_template *)(uintptr_t)chat->form;
	int strings = 0, parts = 0;
	if (form->content != CHAT_CONTENT_UNKNOWN)
		return 0;
	int rc = writes(chat, json_string(probe), &strings);
	if (!rc)
		rc = writes(chat, json_pack("[{s:s, s:s}]", "type", "text", "text", probe), &parts);
	if (!rc)
		form->content = strings == parts ? CHAT_CONTENT_ANY : strings ? CHAT_CONTENT_STRINGS : CHAT_CONTENT_PARTS;
	return rc;
}

/* Text parts as one string; NULL where another part is among them, with its type. */
static json_t *joined(const json_t *parts, const char **other)
{
	struct rh_text text = {0};
	size_t i;
	const json_t *part;
	*other = NULL;
	json_array_foreach(parts, i, part)
	{
		const json_t *piece = json_is_string(part) ? part : json_object_get(part, "text"), *type = json_object_get(part, "type");
		if (!json_is_string(piece) || (type && strcmp(json_string_value(type) ? json_string_value(type) : "", "text"))) {
			*other = json_is_string(type) ? json_string_value(type) : "that holds no text";
			break;
		}
		if (rh_text_append(&text, json_string_value(piece), json_string_length(piece)))
			break;
	}
	json_t *string = *other ? NULL : json_stringn(text.bytes ? text.bytes : "", text.length);
	rh_text_free(&text);
	return string;
}

/* What a part holds that is no text; NULL: nothing of the kind. A template may well write a placeholder for it, in whose place nothing
 * would be trained on. */
static const char *other_medium(const json_t *part)
{
	static const char *const media[] = {"image", "video", "audio"};
	const char *type = json_string_value(json_object_get(part, "type")), *key;
	json_t *value;
	for (size_t i = 0; i < sizeof media / sizeof *media; i++) {
		if (type && strstr(type, media[i]))
			return type;
		json_object_foreach((json_t *)(uintptr_t)part, key, value)
		{
			if (strstr(key, media[i]) && !json_is_null(value))
				return key;
		}
	}
	return NULL;
}

static int refuse_media(const struct rh_chat *chat, const json_t *content, size_t number)
{
	size_t i;
	const json_t *part;
	json_array_foreach(content, i, part)
	{
		const char *medium = other_medium(part);
		if (medium)
			return rh_fail(-EINVAL, "%s: message %zu: a part of 'content' is of type %.40s; only text parts are read",
			               chat->where, number + 1, medium);
	}
	return 0;
}

/* ---- the arguments of calls, which are an object, or its JSON text as OpenAI writes it ---- */

/* Where a call keeps its arguments: in its function, or beside its name. */
static json_t *arguments_holder(json_t *call)
{
	json_t *function = json_object_get(call, "function");
	return json_is_object(function) ? function : call;
}

static int has_text_arguments(const json_t *message)
{
	size_t i;
	json_t *call;
	json_array_foreach(json_object_get(message, "tool_calls"), i,
	                   call) if (json_is_string(json_object_get(arguments_holder(call), "arguments"))) return 1;
	return 0;
}

/* Whether the template writes a call whose arguments are `arguments`: their one name and their one value, each whole; and whether it
 * writes them in quotes. */
static int writes_arguments(const struct rh_chat *chat, json_t *arguments, int *out, int *quotes)
{
	json_t *variables = json_object();
	json_t *messages = arguments ? json_pack("[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:O}}]}]", "role", "user", "content", "x",
	                                         "role", "assistant", "content", "", "tool_calls", "id", "callnr001", "type", "function",
	                                         "function", "name", "f", "arguments", arguments)
	                             : NULL;
	struct rh_text text = {0};
	int rc = !variables || !messages || set_tokens(chat->tokenizer, variables) ? chat_out_of_memory(chat) : 0;
	if (!rc)
		rc = chat_render_some(chat, variables, messages, RH_CHAT_WHOLE, &text, NULL);
	*out = !rc && text.bytes && strstr(text.bytes, probe) && strstr(text.bytes, probe_value);
	*quotes = *out && strstr(text.bytes, "{\\\"") != NULL;
	rh_text_free(&text);
	json_decref(variables);
	json_decref(messages);
	json_decref(arguments);
	if (rc == -EINVAL)
		rh_error_clear();
	return rc == -EINVAL ? 0 : rc;
}

/* Found once a template, as find_content_taken. */
static int find_arguments_taken(const struct rh_chat *chat)
{
	struct rh_chat_template *form = (struct rh_chat_template *)(uintptr_t)chat->form;
	int texts = 0, objects = 0, quotes = 0, ignored;
	if (form->arguments != CHAT_ARGUMENTS_UNKNOWN)
		return 0;
	int rc = writes_arguments(chat, json_pack("s++++", "{\"", probe, "\": \"", probe_value, "\"}"), &texts, &quotes);
	if (!rc)
		rc = writes_arguments(chat, json_pack("{s:s}", probe, probe_value), &objects, &ignored);
	if (!rc)
		form->arguments = objects && !texts   ? CHAT_ARGUMENTS_OBJECTS
		                  : objects && quotes ? CHAT_ARGUMENTS_QUOTED
		                                      : CHAT_ARGUMENTS_ANY;
	return rc;
}

/* Replaces the text of a call's arguments by the object that it is; what is no object stays. */
static int parse_arguments(const struct rh_chat *chat, json_t *call)
{
	json_t *holder = arguments_holder(call), *text = json_object_get(holder, "arguments"), *value = NULL;
	if (!json_is_string(text))
		return 0;
	int rc = rh_json_parse_data(json_string_value(text), json_string_length(text), chat->where, &value);
	if (rc == -EINVAL)
		rh_error_clear();
	if (!rc && json_is_object(value))
		rc = json_object_set(holder, "arguments", value) ? -ENOMEM : 0;
	json_decref(value);
	return rc == -EINVAL ? 0 : rc;
}

/* A template that goes through the arguments one by one cannot take their text: *calls is the message's tool_calls with objects, NULL
 * where the message's own will do. */
static int with_parsed_arguments(const struct rh_chat *chat, const json_t *message, size_t number, json_t **calls)
{
	size_t i;
	json_t *call;
	*calls = NULL;
	if (!has_text_arguments(message))
		return 0;
	int rc = find_arguments_taken(chat);
	if (!rc && chat->form->arguments == CHAT_ARGUMENTS_QUOTED)
		rh_warn_once("%s: message %zu: chat template %s writes the arguments of calls, which are JSON text, in quotes, as in "
		             "transformers, and so will the model; write them as objects, or name a template that takes text (qwen3)",
		             chat->where, number + 1, chat->form->name);
	if (rc || chat->form->arguments != CHAT_ARGUMENTS_OBJECTS)
		return rc;
	rh_warn_once(
	        "%s: message %zu: chat template %s takes the arguments of calls as objects: their JSON text is parsed, here and elsewhere",
	        chat->where, number + 1, chat->form->name);
	*calls = json_deep_copy(json_object_get(message, "tool_calls"));
	rc = *calls ? 0 : -ENOMEM;
	json_array_foreach(*calls, i, call) if (!rc) rc = parse_arguments(chat, call);
	if (!rc)
		return 0;
	json_decref(*calls);
	*calls = NULL;
	return chat_out_of_memory(chat);
}

/* What the assistant thought, under any of its names; NULL: nothing. */
const json_t *rh_chat_reasoning(const json_t *message)
{
	static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
	const json_t *reasoning = NULL;
	for (size_t i = 0; !reasoning && i < sizeof names / sizeof *names; i++)
		if (!json_is_null(json_object_get(message, names[i])))
			reasoning = json_object_get(message, names[i]);
	return reasoning;
}

int rh_chat_is_assistant(const json_t *message)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	return role && (!strcmp(role, "assistant") || !strcmp(role, "model"));
}

int rh_chat_reads_reasoning(const struct rh_chat_template *form)
{
	return rh_jinja_reads(form->jinja, "reasoning_content") || rh_jinja_reads(form->jinja, "thinking") ||
	       rh_jinja_reads(form->jinja, "reasoning");
}

int rh_chat_is_answer(const struct rh_chat_template *form, const json_t *message)
{
	const json_t *content = json_object_get(message, "content");
	if (!rh_chat_is_assistant(message))
		return 0;
	if (json_string_length(content) || json_array_size(content) || json_array_size(json_object_get(message, "tool_calls")))
		return 1;
	return json_string_length(rh_chat_reasoning(message)) && rh_chat_reads_reasoning(form);
}

int rh_chat_check_message(const json_t *message, size_t number, const char *where)
{
	if (!json_is_object(message) || !json_is_string(json_object_get(message, "role")))
		return rh_fail(-EINVAL, "%s: message %zu must be an object with a string 'role'%s", where, number + 1,
		               json_object_get(message, "from") ? "; from and value are ShareGPT's: data_columns: {conversations: messages}"
		                                                : "");
	const char *role = json_string_value(json_object_get(message, "role"));
	if (!strcmp(role, "human") || !strcmp(role, "gpt"))
		return rh_fail(-EINVAL,
		               "%s: message %zu: role '%s' is no template's; 'messages' are of user and assistant ('conversations' of "
		               "from and value may be of human and gpt)",
		               where, number + 1, role);
	return 0;
}

/* A message as the template sees it: content and the arguments of calls in the form it takes, its reasoning under the names that
 * templates read. A null stays, as none. */
static int adapt(const struct rh_chat *chat, const json_t *message, size_t number, json_t **out)
{
	const json_t *content = json_object_get(message, "content"), *reasoning = rh_chat_reasoning(message);
	json_t *fresh = NULL, *calls = NULL;
	const char *other = NULL;
	int rc = rh_chat_check_message(message, number, chat->where);
	if (!rc)
		rc = refuse_media(chat, content, number);
	if (rc)
		return rc;
	if (json_string_length(reasoning) && !rh_chat_reads_reasoning(chat->form))
		rh_warn_once("%s: message %zu: chat template %s leaves out what the assistant thought, here and elsewhere; a file that "
		             "chat_template names may write it",
		             chat->where, number + 1, chat->form->name);
	if (json_is_array(content) && chat->form->content == CHAT_CONTENT_STRINGS) {
		fresh = joined(content, &other);
		if (other)
			return rh_fail(-EINVAL, "%s: message %zu: a part of 'content' is of type %.40s; only text parts are read",
			               chat->where, number + 1, other);
	} else if (json_is_string(content) && chat->form->content == CHAT_CONTENT_PARTS) {
		fresh = json_pack("[{s:s, s:O}]", "type", "text", "text", content);
	}
	rc = with_parsed_arguments(chat, message, number, &calls);
	if (rc) {
		json_decref(fresh);
		return rc;
	}
	if (!fresh && !reasoning && !calls) {
		*out = borrowed(message);
		return 0;
	}
	json_t *copy = json_object();
	int bad = !copy;
	if (!bad && reasoning)
		bad = json_object_set_new(copy, "thinking", borrowed(reasoning));
	if (!bad)
		bad = json_object_update(copy, (json_t *)(uintptr_t)message);
	if (!bad && reasoning)
		bad = json_object_set_new(copy, "reasoning_content", borrowed(reasoning));
	if (!bad && fresh)
		bad = json_object_set(copy, "content", fresh);
	if (!bad && calls)
		bad = json_object_set(copy, "tool_calls", calls);
	json_decref(fresh);
	json_decref(calls);
	if (bad) {
		json_decref(copy);
		return chat_out_of_memory(chat);
	}
	*out = copy;
	return 0;
}

int rh_chat_tools(const json_t *list, const char *where, json_t **out)
{
	json_t *made = json_array(), *tool;
	size_t i;
	int rc = made ? 0 : -ENOMEM;
	json_array_foreach(list, i, tool)
	{
		int is_bare = !json_object_get(tool, "function") && json_object_get(tool, "name");
		json_t *item = is_bare ? json_pack("{s:s, s:O}", "type", "function", "function", tool) : json_incref(tool);
		if (!rc && !json_is_object(tool))
			rc = rh_fail(-EINVAL, "%s: tool %zu must be an object with a 'name'", where, i + 1);
		if (!item || json_array_append_new(made, item))
			rc = rh_fail(-ENOMEM, "%s: out of host memory", where);
	}
	if (rc)
		json_decref(made);
	else
		*out = made;
	return rc;
}

static int is_given(const json_t *value)
{
	return value && !json_is_null(value) && !(json_is_array(value) && !json_array_size(value));
}

#define OTHERS                                                                                                                             \
	"chat_template: qwen3 has one (for models with ChatML's tokens; others: llama3.1, mistral-v3, mistral-tekken, hermes, or a file)"

/* A template silently drops what it does not read; the model would then learn to answer without a reason. */
static int need_tools_read(const struct rh_chat *chat, const json_t *conversation)
{
	size_t i;
	const json_t *message;
	if (is_given(json_object_get(conversation, "tools")) && !rh_jinja_reads(chat->form->jinja, "tools"))
		return rh_fail(-EINVAL, "%s: chat template %s has no place for 'tools'; " OTHERS, chat->where, chat->form->name);
	json_array_foreach(json_object_get(conversation, "messages"), i, message)
	{
		if (is_given(json_object_get(message, "tool_calls")) && !rh_jinja_reads(chat->form->jinja, "tool_calls"))
			return rh_fail(-EINVAL, "%s: message %zu: chat template %s has no place for 'tool_calls'; " OTHERS, chat->where,
			               i + 1, chat->form->name);
	}
	return 0;
}

int chat_variables(const struct rh_chat *chat, const json_t *conversation, json_t **out)
{
	const json_t *messages = json_object_get(conversation, "messages"), *extra = json_object_get(conversation, "chat_template_kwargs");
	const json_t *tools = json_object_get(conversation, "tools"), *documents = json_object_get(conversation, "documents");
	if (!json_is_array(messages) || !json_array_size(messages))
		return rh_fail(-EINVAL, "%s: the list of messages is empty", chat->where);
	int rc = need_tools_read(chat, conversation);
	if (!rc)
		rc = find_content_taken(chat);
	if (rc)
		return rc;
	json_t *variables = json_object(), *seen = json_array();
	int bad = !variables || !seen || json_object_set_new(variables, "tools", tools ? borrowed(tools) : json_null()) ||
	          json_object_set_new(variables, "documents", documents ? borrowed(documents) : json_null()) ||
	          set_tokens(chat->tokenizer, variables) ||
	          (json_is_object(extra) && json_object_update(variables, (json_t *)(uintptr_t)extra));
	for (size_t i = 0; !rc && !bad && i < json_array_size(messages); i++) {
		json_t *message = NULL;
		rc = adapt(chat, json_array_get(messages, i), i, &message);
		bad = !rc && json_array_append_new(seen, message);
	}
	bad = bad || (!rc && json_object_set(variables, "messages", seen));
	json_decref(seen);
	if (!rc && bad)
		rc = chat_out_of_memory(chat);
	if (rc)
		json_decref(variables);
	else
		*out = variables;
	return rc;
}
