#include "ckpt/prompts.h"

#include "ckpt/gguf.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char file_name[] = "roundhouse.json";

static int take(const char *prompts, const char *date, struct rh_prompts *out)
{
	out->is_told = 1;
	out->is_chat = !strcmp(prompts, "chat");
	return date && !(out->date = rh_strdup(date)) ? -ENOMEM : 0;
}

static int read_file(const char *dir, struct rh_prompts *out)
{
	char *path = rh_path_join(dir, file_name);
	json_t *json = NULL;
	const char *prompts = NULL, *date = NULL;
	int rc = !path ? -ENOMEM : rh_file_exists(path) ? rh_json_load(path, &json) : 0;
	if (!rc && json)
		rc = rh_json_string(json, "prompts", path, RH_JSON_REQUIRED, &prompts);
	if (!rc && json)
		rc = rh_json_string(json, "chat_template_date", path, RH_JSON_OPTIONAL, &date);
	if (!rc && json)
		rc = take(prompts, date, out);
	json_decref(json);
	rh_free(path);
	return rc;
}

static int read_gguf(const char *path, struct rh_prompts *out)
{
	struct rh_gguf *gguf = NULL;
	const char *prompts = NULL, *date = NULL;
	int rc = rh_gguf_open(path, &gguf);
	if (!rc)
		rc = rh_gguf_string(gguf, RH_GGUF_PROMPTS, &prompts);
	if (rc > 0)
		rc = rh_gguf_string(gguf, RH_GGUF_PROMPTS_DATE, &date);
	if (rc >= 0)
		rc = prompts ? take(prompts, date, out) : 0;
	rh_gguf_close(gguf);
	return rc;
}

int rh_prompts_read(const char *place, struct rh_prompts *out)
{
	*out = (struct rh_prompts){0};
	int rc = rh_dir_exists(place) ? read_file(place, out) : rh_file_exists(place) ? read_gguf(place, out) : 0;
	if (rc)
		rh_prompts_free(out);
	return rc;
}

int rh_prompts_base(const char *dir, char *digest, size_t bytes)
{
	char *path = rh_path_join(dir, file_name);
	json_t *json = NULL;
	const char *said = NULL;
	int rc = !path ? -ENOMEM : rh_file_exists(path) ? rh_json_load(path, &json) : 0;
	if (!rc && json)
		rc = rh_json_string(json, "base_weights", path, RH_JSON_OPTIONAL, &said);
	snprintf(digest, bytes, "%s", said ? said : "");
	json_decref(json);
	rh_free(path);
	return rc;
}

int rh_prompts_reference(const char *dir, char **model, char **adapter)
{
	const char *said[2] = {NULL, NULL};
	char *path = rh_path_join(dir, file_name), **const out[2] = {model, adapter};
	json_t *json = NULL;
	*model = *adapter = NULL;
	int rc = !path ? -ENOMEM : rh_file_exists(path) ? rh_json_load(path, &json) : 0;
	if (!rc && json)
		rc = rh_json_string(json, "reference_model", path, RH_JSON_OPTIONAL, &said[0]);
	if (!rc && json)
		rc = rh_json_string(json, "reference_adapter", path, RH_JSON_OPTIONAL, &said[1]);
	for (int i = 0; !rc && i < 2; i++)
		if (said[i] && !(*out[i] = rh_strdup(said[i])))
			rc = -ENOMEM;
	json_decref(json);
	rh_free(path);
	return rc;
}

void rh_prompts_free(struct rh_prompts *prompts)
{
	rh_free(prompts->date);
	*prompts = (struct rh_prompts){0};
}

static const char *word(const struct rh_prompts *prompts)
{
	return prompts->is_chat ? "chat" : "text";
}

int rh_prompts_write(const struct rh_prompts *prompts, const char *dir)
{
	if (!prompts->is_told)
		return 0;
	struct rh_text text = {0};
	char *path = rh_path_join(dir, file_name);
	json_t *json =
	        json_pack("{s:s, s:s*, s:s*, s:s*, s:s*}", "prompts", word(prompts), "chat_template_date", prompts->date, "base_weights",
	                  prompts->base, "reference_model", prompts->reference_model, "reference_adapter", prompts->reference_adapter);
	char *words = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
	int rc = path && words ? rh_text_printf(&text, "%s\n", words) : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(path, text.bytes, text.length);
	rh_text_free(&text);
	free(words);
	json_decref(json);
	rh_free(path);
	return rc;
}

int rh_prompts_write_gguf(const struct rh_prompts *prompts, struct rh_gguf_out *out)
{
	int rc = prompts->is_told ? rh_gguf_out_string(out, RH_GGUF_PROMPTS, word(prompts)) : 0;
	if (!rc && prompts->is_told && prompts->date)
		rc = rh_gguf_out_string(out, RH_GGUF_PROMPTS_DATE, prompts->date);
	return rc;
}
