/* Opens a chat template, and renders conversations with it. */
#include "data/chat.h"

#include "core/alloc.h"
#include "core/file.h"
#include "data/chat_internal.h"

#include <string.h>

static int fail_with_names(const char *fault)
{
	struct rh_text names = {0};
	int rc = 0;
	for (size_t i = 0; !rc && i < chat_texts; i++)
		rc = rh_text_printf(&names, "%s%s", i ? ", " : "", chat_text[i].name);
	if (!rc)
		rc = rh_fail(-EINVAL, "%s; set chat_template to a .jinja file or one of: %s", fault, names.bytes);
	rh_text_free(&names);
	return rc;
}

/* The text of a Jinja file, or the member chat_template of a JSON file. */
static int read_file(const char *path, char **out)
{
	size_t length = strlen(path);
	if (length > 5 && !strcmp(path + length - 5, ".json")) {
		json_t *config;
		const char *text = NULL;
		int rc = rh_json_load(path, &config);
		if (rc)
			return rc;
		rc = rh_json_string(config, "chat_template", path, RH_JSON_REQUIRED, &text);
		if (!rc && !(*out = rh_strdup(text)))
			rc = -ENOMEM;
		json_decref(config);
		return rc;
	}
	struct rh_bytes file;
	int rc = rh_file_load(path, &file);
	if (rc)
		return rc;
	*out = rh_alloc(file.length + 1, 1);
	if (*out)
		memcpy(*out, file.bytes, file.length);
	rh_bytes_free(&file);
	return *out ? 0 : -ENOMEM;
}

static int find_text(const char *named, const char *own, struct rh_chat_template *chat)
{
	char fault[192];
	if (!named && !own)
		return fail_with_names("the model brings no chat template");
	for (size_t i = 0; named && i < chat_texts; i++)
		if (!strcmp(chat_text[i].name, named)) {
			chat->name = chat_text[i].name;
			chat->marker = chat_text[i].marker;
			own = chat_text[i].text;
		}
	if (!named)
		chat->name = "of the model";
	if (chat->name)
		return (chat->text = rh_strdup(own)) ? 0 : -ENOMEM;
	chat->name = named;
	if (rh_file_exists(named))
		return read_file(named, &chat->text);
	snprintf(fault, sizeof fault, "chat_template: '%.80s' is neither a built-in template nor a file (for the model's own remove it)",
	         named);
	return fail_with_names(fault);
}

int rh_chat_template_open(const char *named, const char *own, struct rh_chat_template **out)
{
	struct rh_chat_template *chat = rh_alloc(1, sizeof *chat);
	if (!chat)
		return -ENOMEM;
	int rc = find_text(named, own, chat);
	if (!rc)
		rc = rh_jinja_open(chat->text, strlen(chat->text), named ? chat->name : "the model's chat template", &chat->jinja);
	if (rc)
		rh_chat_template_close(chat);
	else
		*out = chat;
	return rc;
}

void rh_chat_template_close(struct rh_chat_template *chat)
{
	if (!chat)
		return;
	rh_jinja_close(chat->jinja);
	rh_free(chat->text);
	rh_free(chat);
}

const char *rh_chat_template_name(const struct rh_chat_template *chat)
{
	return chat->name;
}

const char *rh_chat_template_text(const struct rh_chat_template *chat)
{
	return chat->text;
}

int rh_chat_template_is_none(const char *name)
{
	return !strcmp(name, "none");
}

int rh_chat_template_check(const struct rh_chat_template *chat, const struct rh_tokenizer *tokenizer)
{
	for (const char *const *marker = chat->marker; marker && *marker; marker++)
		if (rh_tokenizer_id(tokenizer, *marker) < 0)
			return rh_fail(-EINVAL,
			               "chat_template: %s writes %s, which is no token of this model; name the template it was made for",
			               chat->name, *marker);
	return 0;
}

int rh_chat_template_is_in(const struct rh_chat_template *chat, const char *text, const struct rh_tokenizer *tokenizer)
{
	enum { TOKEN_MOST = 64 };
	char token[TOKEN_MOST];
	for (const char *open = text; (open = strpbrk(open, "<[")); open++)
		for (size_t length = 3; length < TOKEN_MOST && strnlen(open, length) == length; length++) {
			if (open[length - 1] != '>' && open[length - 1] != ']')
				continue;
			memcpy(token, open, length);
			token[length] = 0;
			if (rh_tokenizer_id(tokenizer, token) >= 0 && rh_jinja_writes(chat->jinja, token))
				return 1;
		}
	return 0;
}

int rh_chat_render(const struct rh_chat *chat, const json_t *conversation, enum rh_chat_end end, struct rh_text *out)
{
	json_t *variables = NULL;
	int rc = chat_variables(chat, conversation, &variables);
	if (!rc)
		rc = chat_render_some(chat, variables, json_object_get(variables, "messages"), end, out, NULL);
	json_decref(variables);
	return rc;
}

/* Many templates take text for granted, where other programs write null beside a tool's call, or nothing. */
static int explain(const json_t *messages, int rc)
{
	size_t i;
	const json_t *message;
	json_array_foreach(messages, i, message)
	{
		const json_t *content = json_object_get(message, "content");
		if (!content || json_is_null(content))
			return rh_fail(rc, "%s; message %zu has no 'content': write \"\" in place of null", rh_error(rc), i + 1);
	}
	return rc;
}

int chat_render_some(const struct rh_chat *chat, const json_t *variables, const json_t *messages, enum rh_chat_end end, struct rh_text *out,
                     struct rh_jinja_spans *spans)
{
	json_t *all = json_copy((json_t *)(uintptr_t)variables); /* shallow; counts of the values are this thread's */
	int bad = !all || json_object_set(all, "messages", (json_t *)(uintptr_t)messages) ||
	          json_object_set_new(all, "add_generation_prompt", json_boolean(end == RH_CHAT_PROMPT));
	struct rh_jinja_input input = {.variables = all, .date = chat->date, .writes_none = chat->writes_none};
	int rc = bad ? chat_out_of_memory(chat) : rh_jinja_render(chat->form->jinja, &input, chat->where, out, spans);
	json_decref(all);
	return rc == -EINVAL ? explain(messages, rc) : rc;
}

void rh_chat_spans_free(struct rh_chat_spans *spans)
{
	rh_free(spans->span);
	*spans = (struct rh_chat_spans){0};
}
