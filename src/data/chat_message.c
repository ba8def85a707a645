/* Messages out of JSON, and the few things that chat templates do to strings, to the byte as Jinja and Python do them. */
#include "core/alloc.h"
#include "data/chat_internal.h"

#include <string.h>

static const char *const role_names[] = {"system", "user", "assistant"};

const char *chat_role_name(enum chat_role role)
{
	return role_names[role];
}

static int read_role(const json_t *message, const char *where, size_t number, enum chat_role *out)
{
	const json_t *role = json_object_get(message, "role");
	if (!json_is_string(role))
		return rh_fail(-EINVAL, "%s: message %zu: 'role' must be a string", where, number);
	for (int i = 0; i < 3; i++)
		if (!strcmp(json_string_value(role), role_names[i])) {
			*out = (enum chat_role)i;
			return 0;
		}
	static const char *const others[] = {"human", "gpt", "bot", "model", "ai"};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (!strcmp(json_string_value(role), others[i]))
			return rh_fail(-EINVAL,
			               "%s: message %zu: role '%s' is not supported; jq -c '.messages[].role |= ({human: \"user\", gpt: "
			               "\"assistant\", bot: \"assistant\", model: \"assistant\", ai: \"assistant\"}[.] // .)' mends it",
			               where, number, others[i]);
	return rh_fail(-EINVAL, "%s: message %zu: role '%.40s' is not supported; built-in templates know system, user and assistant", where,
	               number, json_string_value(role));
}

static int read_message(const json_t *message, const char *where, size_t number, struct chat_message *out)
{
	if (!json_is_object(message))
		return rh_fail(-EINVAL, "%s: message %zu must be an object with 'role' and 'content'", where, number);
	int rc = read_role(message, where, number, &out->role);
	if (rc)
		return rc;
	const json_t *calls = json_object_get(message, "tool_calls");
	if (calls && !json_is_null(calls) && !(json_is_array(calls) && !json_array_size(calls)))
		return rh_fail(-EINVAL, "%s: message %zu: 'tool_calls' are not supported by the built-in templates", where, number);
	const json_t *content = json_object_get(message, "content"), *reasoning = json_object_get(message, "reasoning_content");
	if (json_is_array(content) || json_is_null(content))
		return rh_fail(-EINVAL,
		               "%s: message %zu: 'content' must be a string and is %s; jq -c '.messages[].content |= (if type == \"array\" "
		               "then map(.text // \"\") | join(\"\") else . // \"\" end)' mends it",
		               where, number, json_is_array(content) ? "a list" : "null");
	if (!json_is_string(content))
		return rh_fail(-EINVAL, "%s: message %zu: 'content' must be a string", where, number);
	out->content = (struct chat_string){json_string_value(content), json_string_length(content)};
	if (reasoning && !json_is_null(reasoning) && !json_is_string(reasoning))
		return rh_fail(-EINVAL, "%s: message %zu: 'reasoning_content' must be a string", where, number);
	if (json_is_string(reasoning))
		out->reasoning = (struct chat_string){json_string_value(reasoning), json_string_length(reasoning)};
	return 0;
}

int chat_messages_read(const json_t *messages, const char *where, struct chat_message **out, size_t *count)
{
	*out = NULL;
	if (!json_is_array(messages))
		return rh_fail(-EINVAL, "%s: messages must be a list", where);
	*count = json_array_size(messages);
	if (!*count)
		return rh_fail(-EINVAL, "%s: the list of messages is empty", where);
	*out = rh_alloc(*count, sizeof **out);
	int rc = *out ? 0 : -ENOMEM;
	for (size_t i = 0; !rc && i < *count; i++)
		rc = read_message(json_array_get(messages, i), where, i + 1, &(*out)[i]);
	return rc;
}

/* The bytes of a whitespace character at `at`, 0 if it is none: str.isspace() of Python. The string is UTF-8, as JSON's are. */
static size_t blank_at(const char *at, size_t left, enum chat_blank blank)
{
	unsigned char first = (unsigned char)at[0];
	if (first == '\n')
		return 1;
	if (blank == CHAT_NEWLINES)
		return 0;
	if (first < 0x80)
		return first == ' ' || (first >= '\t' && first <= '\r') || (first >= 0x1C && first <= 0x1F);
	if (left >= 2 && first == 0xC2)
		return at[1] == '\x85' || at[1] == '\xA0' ? 2 : 0;
	if (left < 3)
		return 0;
	static const char *const three[] = {"\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007",
	                                    "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"};
	for (size_t i = 0; i < sizeof three / sizeof *three; i++)
		if (!memcmp(at, three[i], 3))
			return 3;
	return 0;
}

struct chat_string chat_strip(struct chat_string string, enum chat_side side, enum chat_blank blank)
{
	size_t bytes;
	while (side & CHAT_LEFT && string.length && (bytes = blank_at(string.bytes, string.length, blank))) {
		string.bytes += bytes;
		string.length -= bytes;
	}
	while (side & CHAT_RIGHT && string.length) {
		size_t start = string.length - 1; /* of the last character */
		while (start > 0 && ((unsigned char)string.bytes[start] & 0xC0) == 0x80)
			start--;
		if (!blank_at(string.bytes + start, string.length - start, blank))
			break;
		string.length = start;
	}
	return string;
}

int chat_starts_with(struct chat_string string, const char *mark)
{
	return string.length >= strlen(mark) && !memcmp(string.bytes, mark, strlen(mark));
}

int chat_ends_with(struct chat_string string, const char *mark)
{
	size_t length = strlen(mark);
	return string.length >= length && !memcmp(string.bytes + string.length - length, mark, length);
}

struct chat_string chat_find_last(struct chat_string string, const char *mark)
{
	struct chat_string found = {NULL, 0};
	size_t length = strlen(mark);
	for (;;) {
		const char *at = memmem(string.bytes, string.length, mark, length);
		if (!at)
			return found;
		found = (struct chat_string){at, string.length - (size_t)(at - string.bytes)};
		string = (struct chat_string){at + length, found.length - length};
	}
}

struct chat_string chat_before_first(struct chat_string string, const char *mark)
{
	const char *at = memmem(string.bytes, string.length, mark, strlen(mark));
	if (at)
		string.length = (size_t)(at - string.bytes);
	return string;
}

struct chat_string chat_after_last(struct chat_string string, const char *mark)
{
	struct chat_string found = chat_find_last(string, mark);
	size_t length = strlen(mark);
	return found.bytes ? (struct chat_string){found.bytes + length, found.length - length} : string;
}

int chat_concat(struct rh_text *out, const struct chat_string *part, size_t count)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < count; i++)
		rc = rh_text_append(out, part[i].bytes, part[i].length);
	return rc;
}
