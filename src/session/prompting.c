#include "session/prompting.h"

#include "core/alloc.h"
#include "core/file.h"

#include <string.h>

static const char file_name[] = "roundhouse.json";

int rh_prompting_save(const char *dir, int is_chat, const char *date)
{
	struct rh_text text = {0};
	char *path = rh_path_join(dir, file_name);
	int rc = path ? rh_text_printf(&text, "{\n  \"prompts\": \"%s\",\n  \"chat_template_date\": \"%s\"\n}\n", is_chat ? "chat" : "text",
	                               date)
	              : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(path, text.bytes, text.length);
	rh_text_free(&text);
	rh_free(path);
	return rc;
}

/* 1: dir/roundhouse.json is there, and *is_chat and the date are what it says. */
static int read_prompting(const char *dir, int *is_chat, char **date)
{
	char *path = rh_path_join(dir, file_name);
	json_t *json = NULL;
	const char *prompts = NULL, *day = NULL;
	if (!path)
		return -ENOMEM;
	int rc = rh_file_exists(path) ? rh_json_load(path, &json) : 0;
	if (!rc && json) {
		rc = rh_json_string(json, "prompts", path, RH_JSON_REQUIRED, &prompts);
		if (!rc)
			rc = rh_json_string(json, "chat_template_date", path, RH_JSON_OPTIONAL, &day);
		if (!rc && day) {
			rh_free(*date);
			rc = (*date = rh_strdup(day)) ? 0 : -ENOMEM;
		}
		if (!rc) {
			*is_chat = !strcmp(prompts, "chat");
			rc = 1;
		}
	}
	json_decref(json);
	rh_free(path);
	return rc;
}

static int read_text(const char *path, char **out)
{
	struct rh_bytes file = {0};
	int rc = rh_file_load(path, &file);
	if (!rc && (*out = rh_alloc(file.length + 1, 1)))
		memcpy(*out, file.bytes, file.length);
	if (!rc && !*out)
		rc = -ENOMEM;
	rh_bytes_free(&file);
	return rc;
}

static int read_member(const char *path, char **out)
{
	json_t *json = NULL;
	int rc = rh_json_load(path, &json);
	const char *text = rc ? NULL : json_string_value(json_object_get(json, "chat_template"));
	if (text && !(*out = rh_strdup(text)))
		rc = -ENOMEM;
	json_decref(json);
	return rc;
}

/* The template in a directory: chat_template.jinja, or tokenizer_config.json's; NULL where there is none. */
static int read_beside(const char *dir, char **out)
{
	static const struct {
		const char *name;
		int (*read)(const char *path, char **out);
	} files[] = {{"chat_template.jinja", read_text}, {"tokenizer_config.json", read_member}};
	int rc = 0;
	*out = NULL;
	for (size_t i = 0; !rc && !*out && i < sizeof files / sizeof *files; i++) {
		char *path = rh_path_join(dir, files[i].name);
		rc = path ? 0 : -ENOMEM;
		if (!rc && rh_file_exists(path))
			rc = files[i].read(path, out);
		rh_free(path);
	}
	return rc;
}

int rh_prompting_of_adapter(const char *dir, int base_has_template, char **text)
{
	char *date = NULL;
	int is_chat = 0, told = rh_dir_exists(dir) ? read_prompting(dir, &is_chat, &date) : 0;
	rh_free(date);
	*text = NULL;
	if (told < 0)
		return told;
	return (told ? is_chat : !base_has_template) ? read_beside(dir, text) : 0;
}

static int open_beside(const char *dir, struct rh_chat_template **out)
{
	char *text = NULL;
	int rc = read_beside(dir, &text);
	if (!rc && text)
		rc = rh_chat_template_open(NULL, text, out);
	rh_free(text);
	return rc;
}

int rh_prompting_open(const struct rh_config *config, const struct rh_tokenizer *tokenizer, struct rh_prompting *out)
{
	const char *own = rh_tokenizer_chat_template(tokenizer);
	*out = (struct rh_prompting){.date = rh_strdup(config->chat_template_date)};
	int rc = out->date ? 0 : -ENOMEM, is_chat = 0;
	if (!rc && config->chat_template) {
		if (!rh_chat_template_is_none(config->chat_template))
			rc = rh_chat_template_open(config->chat_template, NULL, &out->chat);
		if (!rc && out->chat)
			rc = rh_chat_template_check(out->chat, tokenizer);
	} else if (!rc) {
		const char *dirs[] = {config->adapter_name_or_path, config->model_name_or_path};
		for (size_t i = 0; !rc && !out->is_trained && i < sizeof dirs / sizeof *dirs; i++) {
			rc = dirs[i] && rh_dir_exists(dirs[i]) ? read_prompting(dirs[i], &is_chat, &out->date) : 0;
			out->is_trained = rc > 0;
			rc = rc > 0 && is_chat ? open_beside(dirs[i], &out->chat) : rc < 0 ? rc : 0;
		}
		if (!rc && !out->chat && own && (!out->is_trained || is_chat))
			rc = rh_chat_template_open(NULL, own, &out->chat);
	}
	if (rc)
		rh_prompting_close(out);
	return rc;
}

void rh_prompting_close(struct rh_prompting *prompting)
{
	rh_chat_template_close(prompting->chat);
	rh_free(prompting->date);
	*prompting = (struct rh_prompting){0};
}

int rh_prompting_encode(const struct rh_prompting *prompting, const struct rh_tokenizer *tokenizer, const json_t *conversation,
                        struct rh_ids *out)
{
	struct rh_chat chat = {.form = prompting->chat, .tokenizer = tokenizer, .date = prompting->date, .where = "prompt"};
	struct rh_text text = {0};
	int rc = rh_chat_render(&chat, conversation, RH_CHAT_PROMPT, &text);
	if (!rc) /* the template writes its own beginning-of-sequence */
		rc = rh_tokenizer_encode(tokenizer, text.bytes, text.length, RH_TOKENS_PLAIN, out);
	rh_text_free(&text);
	return rc;
}
