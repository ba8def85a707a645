/* What the files beside tokenizer.json say: tokenizer_config.json, special_tokens_map.json, chat_template.jinja. */
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "token/load_parts.h"

#include <stdlib.h>
#include <string.h>

/* Both files' tokens. What the map names counts before the configuration's own. */
struct said {
	char *config_path, *map_path;
	json_t *config; /* an empty object where there is no file */
	json_t *map;    /* NULL: none that counts */
};

/* The token that this key names; *where: the file that says so. */
static const json_t *find_token(const struct said *said, const char *key, const char **where)
{
	const json_t *token = json_object_get(said->map, key);
	*where = token ? said->map_path : said->config_path;
	return token ? token : json_object_get(said->config, key);
}

/* The text of a token: a string, or an object's `content`; NULL: neither. */
static const char *text_of(const json_t *token)
{
	return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

static int is_token_key(const char *key)
{
	size_t length = strlen(key);
	return length > 6 && !strcmp(key + length - 6, "_token");
}

/* Makes a token that a file names special, as transformers does, even where tokenizer.json does not list it among the added ones.
 * *id: the token's; -1: the vocabulary has no such token. */
static int take_named(struct rh_tokenizer *tokenizer, const json_t *token, const char *key, const char *where, int32_t *id)
{
	const char *text = text_of(token);
	unsigned flags = 0;
	*id = text ? rh_tokenizer_id(tokenizer, text) : -1;
	if (text && *id < 0)
		rh_warn_once("%s: %s is '%s', which the vocabulary lacks; it is taken for none", where, key, text);
	if (*id < 0 || added_by_id(&tokenizer->added, *id))
		return 0;
	int rc = json_is_object(token) ? load_added_flags(token, where, RH_JSON_OPTIONAL, &flags) : 0;
	return rc ? rc : added_add(&tokenizer->added, &tokenizer->bpe.vocab, text, strlen(text), flags | ADDED_SPECIAL, where);
}

/* Special tokens without a role of their own: a list, or an object that gives each a name. */
static int take_others(struct rh_tokenizer *tokenizer, const struct said *said, const char *key)
{
	const char *where, *name;
	const json_t *tokens = find_token(said, key, &where), *token;
	size_t i;
	int32_t id;
	int rc = 0;
	json_array_foreach(tokens, i, token)
	{
		if (!rc)
			rc = take_named(tokenizer, token, key, where, &id);
	}
	json_object_foreach((json_t *)(uintptr_t)tokens, name, token)
	{
		if (!rc)
			rc = take_named(tokenizer, token, name, where, &id);
	}
	return rc;
}

/* Each key that ends in _token names one. */
static int take_keys(struct rh_tokenizer *tokenizer, const struct said *said, json_t *file)
{
	const char *key, *where;
	json_t *value;
	int rc = 0;
	json_object_foreach(file, key, value)
	{
		const json_t *token = find_token(said, key, &where);
		int32_t id = -1;
		if (!rc && is_token_key(key))
			rc = take_named(tokenizer, token, key, where, &id);
		int32_t *role = !strcmp(key, "bos_token")   ? &tokenizer->bos
		                : !strcmp(key, "eos_token") ? &tokenizer->eos
		                : !strcmp(key, "pad_token") ? &tokenizer->pad
		                                            : NULL;
		if (role)
			*role = id;
	}
	return rc;
}

static int is_named_in(const json_t *file, const char *text)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)file, key, value)
	{
		const char *named = is_token_key(key) ? text_of(value) : NULL;
		if (named && !strcmp(named, text))
			return 1;
	}
	return 0;
}

struct listed {
	int64_t id;
	json_t *token;
};

static int by_id(const void *a, const void *b)
{
	const struct listed *x = a, *y = b;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* As in transformers: what tokenizer.json lacks is added, and where the two differ in a token's flags, these count. */
static int take_listed(struct rh_tokenizer *tokenizer, const struct said *said, const struct listed *listed)
{
	const char *text = NULL;
	unsigned flags = 0;
	int rc = rh_json_string(listed->token, "content", said->config_path, RH_JSON_REQUIRED, &text);
	if (!rc)
		rc = load_added_flags(listed->token, said->config_path, RH_JSON_OPTIONAL, &flags);
	if (rc)
		return rc;
	const struct added_token *own = added_by_id(&tokenizer->added, rh_tokenizer_id(tokenizer, text));
	if (own && own->flags == flags)
		return 0;
	if (is_named_in(said->map, text) || is_named_in(said->config, text))
		flags |= ADDED_SPECIAL;
	return load_added_token(tokenizer, listed->token, listed->id, flags, said->config_path);
}

/* Those of added_tokens_decoder, in the order of their ids, which are its keys. */
static int take_list(struct rh_tokenizer *tokenizer, const struct said *said)
{
	json_t *list = json_object_get(said->config, "added_tokens_decoder"), *token;
	const char *key;
	size_t count = 0;
	struct listed *listed = rh_alloc(json_object_size(list) + 1, sizeof *listed);
	int rc = listed ? 0 : -ENOMEM;
	json_object_foreach(list, key, token)
	{
		if (!rc)
			listed[count++] = (struct listed){strtoll(key, NULL, 10), token};
	}
	if (!rc)
		qsort(listed, count, sizeof *listed, by_id);
	for (size_t i = 0; !rc && i < count; i++)
		rc = take_listed(tokenizer, said, &listed[i]);
	rh_free(listed);
	return rc;
}

/* A string, or a list of {name, template}, of which `default` is taken. */
static int take_template(struct rh_tokenizer *tokenizer, const json_t *config)
{
	const json_t *text = json_object_get(config, "chat_template");
	for (size_t i = 0; json_is_array(text) && i < json_array_size(text); i++) {
		const json_t *one = json_array_get(text, i), *name = json_object_get(one, "name");
		if (json_is_string(name) && !strcmp(json_string_value(name), "default")) {
			text = json_object_get(one, "template");
			break;
		}
	}
	if (!json_is_string(text))
		return 0;
	tokenizer->chat_template = rh_strdup(json_string_value(text));
	return tokenizer->chat_template ? 0 : -ENOMEM;
}

/* add_bos_token and add_eos_token count only where there is no tokenizer.json, as in transformers 5; told where they say otherwise. */
static int compare_additions(const struct rh_tokenizer *tokenizer, const json_t *config, const char *where)
{
	const struct rh_ids *template = &tokenizer->template;
	const struct {
		const char *key, *place;
		int32_t id, found;
	} ends[] = {{"add_bos_token", "before", tokenizer->bos, template->count ? template->id[0] : -1},
	            {"add_eos_token", "behind", tokenizer->eos, template->count ? template->id[template->count - 1] : -1}};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof ends / sizeof *ends; i++) {
		int adds = ends[i].id >= 0 && ends[i].found == ends[i].id, says = adds;
		rc = rh_json_bool(config, ends[i].key, where, RH_JSON_OPTIONAL, &says);
		if (!rc && says != adds && ends[i].id >= 0)
			rh_warn_once(
			        "%s: %s is %s, but the post_processor of tokenizer.json puts %s '%s' %s plain texts; as in transformers 5, "
			        "it decides: mend it if it is wrong",
			        where, ends[i].key, says ? "true" : "false", adds ? "a" : "no", rh_tokenizer_text(tokenizer, ends[i].id),
			        ends[i].place);
	}
	return rc;
}

static int load_object(const char *path, json_t **out)
{
	int rc = rh_json_load(path, out);
	return rc || json_is_object(*out) ? rc : rh_fail(-EINVAL, "%s: expected a JSON object", path);
}

/* Only without a list of added tokens is special_tokens_map.json read, as in transformers. */
static int read_said(struct said *said)
{
	int rc = 0;
	if (rh_file_exists(said->config_path))
		rc = load_object(said->config_path, &said->config);
	else
		rc = (said->config = json_object()) ? 0 : -ENOMEM;
	if (!rc && !json_object_get(said->config, "added_tokens_decoder") && rh_file_exists(said->map_path))
		rc = load_object(said->map_path, &said->map);
	return rc;
}

static int take_said(struct rh_tokenizer *tokenizer, const struct said *said)
{
	int rc = take_list(tokenizer, said);
	if (!rc)
		rc = take_keys(tokenizer, said, said->config);
	if (!rc)
		rc = take_keys(tokenizer, said, said->map);
	if (!rc)
		rc = take_others(tokenizer, said, "additional_special_tokens");
	if (!rc)
		rc = take_others(tokenizer, said, "extra_special_tokens");
	if (!rc)
		rc = take_template(tokenizer, said->config);
	return rc ? rc : compare_additions(tokenizer, said->config, said->config_path);
}

/* chat_template.jinja is all template, and counts before what tokenizer_config.json holds. */
static int load_jinja(struct rh_tokenizer *tokenizer, const char *dir)
{
	struct rh_bytes file;
	char *path = rh_path_join(dir, "chat_template.jinja");
	int found = path && rh_file_exists(path), rc = !path ? -ENOMEM : found ? rh_file_load(path, &file) : 0;
	rh_free(path);
	if (rc || !found)
		return rc;
	rh_free(tokenizer->chat_template);
	tokenizer->chat_template = rh_alloc(file.length + 1, 1);
	if (tokenizer->chat_template)
		memcpy(tokenizer->chat_template, file.bytes, file.length);
	else
		rc = -ENOMEM;
	rh_bytes_free(&file);
	return rc;
}

int load_config(struct rh_tokenizer *tokenizer, const char *dir)
{
	struct said said = {.config_path = rh_path_join(dir, "tokenizer_config.json"),
	                    .map_path = rh_path_join(dir, "special_tokens_map.json")};
	int rc = said.config_path && said.map_path ? read_said(&said) : -ENOMEM;
	if (!rc)
		rc = take_said(tokenizer, &said);
	if (!rc)
		rc = load_jinja(tokenizer, dir);
	json_decref(said.config);
	json_decref(said.map);
	rh_free(said.config_path);
	rh_free(said.map_path);
	return rc;
}
