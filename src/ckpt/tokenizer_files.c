/* The tokenizer's files of a model directory, which a run or a merge copies and changes. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "vocab.txt",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "chat_template.json",
                                    "generation_config.json",
                                    "preprocessor_config.json",
                                    "processor_config.json"};
enum { NAMES = sizeof names / sizeof *names };

int rh_source_is_of_tokenizer(const char *name)
{
	for (size_t i = 0; i < NAMES; i++)
		if (!strcmp(name, names[i]))
			return 1;
	return 0;
}

int rh_source_copy_tokenizer(const char *model, const char *dir)
{
	int rc = 0;
	if (!rh_dir_exists(model))
		return gguf_save_tokenizer(model, dir);
	for (size_t i = 0; !rc && i < NAMES; i++) {
		char *from = rh_path_join(model, names[i]), *to = rh_path_join(dir, names[i]);
		rc = from && to ? 0 : -ENOMEM;
		if (!rc && rh_file_exists(from))
			rc = rh_file_copy(from, to);
		rh_free(from);
		rh_free(to);
	}
	return rc;
}

static int write_json(const char *path, const json_t *json)
{
	char *text = json_dumps(json, JSON_INDENT(2));
	int rc = text ? rh_file_write_whole(path, text, strlen(text)) : -ENOMEM;
	free(text);
	return rc;
}

/* Replaces the string under `key` of a JSON file; where there is none, adds it only if `always`. Without the file it does nothing. */
static int replace_string(const char *dir, const char *name, const char *key, const char *value, int always)
{
	char *path = rh_path_join(dir, name);
	json_t *json = NULL;
	int rc = !path ? -ENOMEM : rh_file_exists(path) ? rh_json_load(path, &json) : 0;
	if (!rc && json_is_object(json) && (always || json_object_get(json, key)))
		rc = json_object_set_new(json, key, json_string(value)) ? -ENOMEM : write_json(path, json);
	json_decref(json);
	rh_free(path);
	return rc;
}

int rh_source_set_chat_template(const char *dir, const char *jinja)
{
	char *own = rh_path_join(dir, "chat_template.jinja"), *old = rh_path_join(dir, "chat_template.json");
	int rc = own && old ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(own, jinja, strlen(jinja));
	if (!rc)
		rc = replace_string(dir, "tokenizer_config.json", "chat_template", jinja, 0);
	if (!rc)
		rc = rh_file_remove(old);
	if (rc == -ENOENT)
		rc = 0;
	rh_free(own);
	rh_free(old);
	return rc;
}

int source_eos_token(const char *dir, char **out)
{
	char *path = rh_path_join(dir, "tokenizer_config.json");
	json_t *json = NULL;
	*out = NULL;
	int rc = !path ? -ENOMEM : rh_file_exists(path) ? rh_json_load(path, &json) : 0;
	const json_t *token = json_object_get(json, "eos_token");
	if (json_is_object(token))
		token = json_object_get(token, "content");
	if (!rc && json_is_string(token) && !(*out = rh_strdup(json_string_value(token))))
		rc = -ENOMEM;
	json_decref(json);
	rh_free(path);
	return rc;
}

int rh_source_take_eos(const char *adapter, struct rh_tokenizer *tokenizer)
{
	char *trained;
	int rc = source_eos_token(adapter, &trained);
	if (!rc && trained && rh_tokenizer_id(tokenizer, trained) >= 0)
		rc = rh_tokenizer_set_eos(tokenizer, trained);
	rh_free(trained);
	return rc;
}

/* `id`, then the ends that were there. */
static json_t *ends_json(const struct rh_model_config *config, json_t *before, int32_t id)
{
	json_t *ends = json_pack("[i]", id);
	size_t count = json_is_array(before) ? json_array_size(before) : before ? 1 : (size_t)config->eos_token_ids;
	int failed = !ends;
	for (size_t i = 0; !failed && i < count; i++) {
		const json_t *old = json_is_array(before) ? json_array_get(before, i) : before;
		json_int_t end = before ? json_integer_value(old) : config->eos_token_id[i];
		if ((!before || json_is_integer(old)) && end != id)
			failed = json_array_append_new(ends, json_integer(end));
	}
	if (!failed)
		return ends;
	json_decref(ends);
	return NULL;
}

int rh_source_set_eos(const char *dir, const struct rh_model_config *config, const struct rh_tokenizer *tokenizer)
{
	int32_t id = rh_tokenizer_eos(tokenizer);
	const char *text = rh_tokenizer_text(tokenizer, id);
	char *path = rh_path_join(dir, "generation_config.json");
	json_t *json = NULL;
	int rc = path ? replace_string(dir, "tokenizer_config.json", "eos_token", text, 1) : -ENOMEM;
	if (!rc)
		rc = replace_string(dir, "special_tokens_map.json", "eos_token", text, 0);
	if (!rc)
		rc = rh_file_exists(path) ? rh_json_load(path, &json) : (json = json_object()) ? 0 : -ENOMEM;
	if (!rc && json_object_set_new(json, "eos_token_id", ends_json(config, json_object_get(json, "eos_token_id"), id)))
		rc = -ENOMEM;
	if (!rc)
		rc = write_json(path, json);
	json_decref(json);
	rh_free(path);
	return rc;
}
