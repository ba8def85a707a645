#include "session/prompting.h"

#include "ckpt/prompts.h"
#include "core/alloc.h"
#include "core/file.h"

#include <string.h>

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
	struct rh_prompts told;
	*text = NULL;
	int rc = rh_prompts_read(dir, &told);
	if (rc)
		return rc;
	int wants = rh_dir_exists(dir) && (told.is_told ? told.is_chat : !base_has_template);
	rh_prompts_free(&told);
	return wants ? read_beside(dir, text) : 0;
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

/* What is told of a training at `place`. */
static int read_prompting(const char *place, struct rh_prompting *out, int *is_chat)
{
	struct rh_prompts told;
	int rc = rh_prompts_read(place, &told);
	if (rc || !told.is_told)
		return rc;
	out->is_trained = 1;
	*is_chat = told.is_chat;
	if (told.date) {
		rh_free(out->date);
		out->date = told.date;
		told.date = NULL;
	}
	rh_prompts_free(&told);
	return *is_chat && rh_dir_exists(place) ? open_beside(place, &out->chat) : 0;
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
		const char *places[] = {config->adapter_name_or_path, config->model_name_or_path};
		for (size_t i = 0; !rc && !out->is_trained && i < sizeof places / sizeof *places; i++)
			rc = places[i] ? read_prompting(places[i], out, &is_chat) : 0;
		out->is_adapters = out->chat && config->adapter_name_or_path && rh_tokenizer_is_chat_template_set(tokenizer);
		if (!rc && !out->chat && own && (!out->is_trained || is_chat))
			rc = rh_chat_template_open(NULL, own, &out->chat);
	}
	if (rc)
		rh_prompting_close(out);
	return rc;
}

const char *rh_prompting_name(const struct rh_prompting *prompting)
{
	return prompting->is_adapters ? "of the adapter" : rh_chat_template_name(prompting->chat);
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
