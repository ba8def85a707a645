/* What the files beside tokenizer.json say: tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja.
 *
 * Which tokens they add follows transformers' AutoTokenizer, whose order decides the ids of new ones: first those of
 * added_tokens_decoder, or where there is none those of added_tokens.json and tokenizer.json, by id; then the tokens that have a role; then
 * the special ones without a role. Only the first step adds a token again, where its flags differ. A map's roles count before the
 * configuration's; map and added_tokens.json are read only without added_tokens_decoder. */
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "token/load_parts.h"

#include <stdlib.h>
#include <string.h>

/* A token to be added. */
struct wanted {
	const char *text;
	size_t bytes;
	unsigned flags, own_flags; /* with what else makes it special, and as its object says them */
	int is_object;
	int64_t id; /* that its list gives it; -1: none */
	const char *where;
};

/* Special tokens without a standard role: by the name of a role of the model's own, or in a list. */
struct extras {
	const json_t *names[2], *list[2]; /* of the configuration, of the map; NULL: none */
	int are_extra;                    /* the lists are extra_special_tokens as transformers keeps it, not its older name's rest */
};

struct said {
	char *config_path, *map_path, *list_path;
	json_t *config; /* an empty object where there is no file */
	json_t *map;    /* NULL: none that counts */
	json_t *list;   /* of added_tokens.json; NULL: none that counts */
	struct extras extras;
	struct wanted *wanted;
	size_t count, capacity, listed; /* the first of them have ids */
};

/* In transformers' order. */
static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
enum { ROLES = sizeof roles / sizeof *roles };

/* The token that this key names; *where: the file that says so. */
static const json_t *find_token(const struct said *said, const char *key, const char **where)
{
	const json_t *token = json_object_get(said->map, key);
	*where = token ? said->map_path : said->config_path;
	return token ? token : json_object_get(said->config, key);
}

/* A token: a string, or an object's `content`; NULL: neither. */
static const json_t *content_of(const json_t *token)
{
	const json_t *content = json_is_object(token) ? json_object_get(token, "content") : token;
	return json_is_string(content) ? content : NULL;
}

static int is_text(const json_t *content, const char *text, size_t bytes)
{
	return json_is_string(content) && json_string_length(content) == bytes && !memcmp(json_string_value(content), text, bytes);
}

/* A role of the model's own, such as image_token. */
static int is_own_role(const char *key)
{
	size_t length = strlen(key);
	if (length <= 6 || strcmp(key + length - 6, "_token"))
		return 0;
	for (int i = 0; i < ROLES; i++)
		if (!strcmp(key, roles[i]))
			return 0;
	return 1;
}

/* ---- the list of tokens to be added ---- */

static int push(struct said *said, struct wanted one)
{
	int rc = rh_grow(&said->wanted, &said->capacity, said->count + 1, sizeof *said->wanted);
	if (!rc)
		said->wanted[said->count++] = one;
	return rc;
}

/* 1: a list has the token, or another role or list of special tokens has it in the very same form; another form is added too. */
static int is_wanted(const struct said *said, const struct wanted *one)
{
	for (size_t i = 0; i < said->count; i++) {
		const struct wanted *other = &said->wanted[i];
		if (other->bytes == one->bytes && !memcmp(other->text, one->text, one->bytes) &&
		    (i < said->listed || (other->is_object == one->is_object && other->own_flags == one->own_flags)))
			return 1;
	}
	return 0;
}

/* tokenizer.json has the token. */
static const struct added_token *own_token(const struct rh_tokenizer *tokenizer, const json_t *content)
{
	const struct added *added = &tokenizer->added;
	return added_by_id(added, vocab_find(&added->contents, json_string_value(content), json_string_length(content)));
}

/* The flags of a token that is special in the end: not `normalized` where its object does not say so. */
static unsigned made_special(const json_t *token, unsigned flags, unsigned special)
{
	if (special && token && !json_object_get(token, "normalized"))
		flags &= ~(unsigned)ADDED_NORMALIZED;
	return flags | special;
}

/* A special token, with a role or without. A text is special, and so is an object of the map; `more` are flags that another object gets. */
static int want_special(struct said *said, const struct rh_tokenizer *tokenizer, const json_t *token, const char *where, unsigned more)
{
	const json_t *content = content_of(token);
	struct wanted one = {.is_object = json_is_object(token), .id = -1, .where = where};
	if (!content || own_token(tokenizer, content))
		return 0;
	one.text = json_string_value(content);
	one.bytes = json_string_length(content);
	int rc = one.is_object ? load_added_flags(token, where, RH_JSON_OPTIONAL, &one.own_flags) : 0;
	if (rc)
		return rc;
	if (where == said->map_path || !one.is_object)
		one.own_flags |= ADDED_SPECIAL;
	one.flags = made_special(token, one.own_flags, (one.own_flags | more) & ADDED_SPECIAL);
	return is_wanted(said, &one) ? 0 : push(said, one);
}

/* ---- special tokens without a standard role ---- */

/* extra_special_tokens and its older name, additional_special_tokens, of both files. As in transformers the older one counts in place of an
 * empty newer one, and behind an object; a map's object takes the place of a list, its list adds to it. */
static void find_extras(struct said *said)
{
	const json_t *extra = json_object_get(said->config, "extra_special_tokens"),
	             *more = json_object_get(said->map, "extra_special_tokens");
	const json_t *older = json_object_get(said->config, "additional_special_tokens"),
	             *map_older = json_object_get(said->map, "additional_special_tokens");
	struct extras *out = &said->extras;
	if (older && !json_array_size(extra) && !json_object_size(extra)) {
		extra = older;
		older = NULL;
	}
	if (json_is_object(extra)) {
		out->names[0] = extra;
		extra = NULL;
	}
	if (json_is_object(more)) {
		out->names[1] = more;
		extra = NULL;
	}
	out->are_extra = extra || json_is_array(more);
	out->list[0] = out->are_extra ? extra : map_older ? NULL : older;
	out->list[1] = out->are_extra ? more : map_older;
}

static int want_names(struct said *said, const struct rh_tokenizer *tokenizer)
{
	const char *name;
	json_t *token;
	int rc = 0;
	for (int f = 0; f < 2; f++)
		json_object_foreach((json_t *)(uintptr_t)said->extras.names[f], name, token) if (!rc) rc =
		        want_special(said, tokenizer, token, f ? said->map_path : said->config_path, ADDED_SPECIAL);
	return rc;
}

/* ---- roles ---- */

/* The token of a role of the model's own: what stands among the extra ones counts first, then a plain text of the configuration, then the
 * map, then an object. */
static const json_t *find_own_role(const struct said *said, const char *key, const char **where)
{
	const json_t *token = json_object_get(said->config, key);
	for (int f = 1; f >= 0; f--) {
		const json_t *named = json_object_get(said->extras.names[f], key);
		*where = f ? said->map_path : said->config_path;
		if (named)
			return named;
	}
	return json_is_string(token) ? token : find_token(said, key, where);
}

/* Which of the model's own roles are taken in one walk over a file, in transformers' order. */
enum own_roles { OWN_OBJECTS, OWN_OF_MAP, OWN_TEXTS };

static int want_own_roles(struct said *said, const struct rh_tokenizer *tokenizer, enum own_roles which)
{
	const char *key, *where;
	json_t *value;
	int rc = 0;
	json_object_foreach(which == OWN_OF_MAP ? said->map : said->config, key, value)
	{
		int is_object = json_is_object(json_object_get(said->config, key));
		int is_taken = which == OWN_OBJECTS  ? is_object
		               : which == OWN_OF_MAP ? !is_object
		                                     : json_is_string(value) && !json_object_get(said->map, key);
		if (rc || !is_own_role(key) || !is_taken)
			continue;
		const json_t *token = find_own_role(said, key, &where);
		rc = want_special(said, tokenizer, token, where, ADDED_SPECIAL);
	}
	return rc;
}

static int want_roles(struct said *said, const struct rh_tokenizer *tokenizer)
{
	const char *where;
	int rc = 0;
	for (int i = 0; !rc && i < ROLES; i++) {
		const json_t *token = find_token(said, roles[i], &where);
		rc = want_special(said, tokenizer, token, where, ADDED_SPECIAL);
	}
	for (enum own_roles which = OWN_OBJECTS; !rc && which <= OWN_TEXTS; which++)
		rc = want_own_roles(said, tokenizer, which);
	return rc ? rc : want_names(said, tokenizer);
}

/* Which roles: all, or the standard ones as transformers knows them before it makes tokens of the configuration's objects. */
enum role_kind { ROLE_ANY, ROLE_EARLY };

/* 1: the text is a role's token. */
static int has_role(const struct said *said, const char *text, size_t bytes, enum role_kind kind)
{
	const char *key, *where;
	json_t *value;
	for (int i = 0; i < ROLES; i++) {
		const json_t *token = find_token(said, roles[i], &where);
		int is_known = kind == ROLE_ANY || where == said->map_path || !json_is_object(token);
		if (is_known && is_text(content_of(token), text, bytes))
			return 1;
	}
	if (kind == ROLE_EARLY)
		return 0;
	for (int f = 0; f < 2; f++)
		json_object_foreach(f ? said->map : said->config, key,
		                    value) if (is_own_role(key) &&
		                               is_text(content_of(find_own_role(said, key, &where)), text, bytes)) return 1;
	for (int f = 0; f < 2; f++)
		json_object_foreach((json_t *)(uintptr_t)said->extras.names[f], key,
		                    value) if (is_text(content_of(value), text, bytes)) return 1;
	return 0;
}

static int want_lists(struct said *said, const struct rh_tokenizer *tokenizer)
{
	size_t i;
	const json_t *token;
	int rc = 0;
	for (int f = 0; f < 2; f++)
		json_array_foreach(said->extras.list[f], i, token)
		{
			const json_t *content = content_of(token);
			int is_named = content && has_role(said, json_string_value(content), json_string_length(content), ROLE_ANY);
			if (!rc)
				rc = want_special(said, tokenizer, token, f ? said->map_path : said->config_path,
				                  is_named ? ADDED_SPECIAL : 0);
		}
	return rc;
}

/* ---- lists with ids ---- */

static int by_id(const void *a, const void *b)
{
	const struct wanted *x = a, *y = b;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* A token of a list with ids, or of tokenizer.json: added again where its flags differ, and special where it has a role. token: its object,
 * NULL: its flags are said. */
static int want_listed(struct said *said, const struct rh_tokenizer *tokenizer, const json_t *token, struct wanted one)
{
	const struct added_token *own = added_by_id(&tokenizer->added, vocab_find(&tokenizer->added.contents, one.text, one.bytes));
	if (has_role(said, one.text, one.bytes, ROLE_ANY))
		one.flags = made_special(token, one.flags, ADDED_SPECIAL);
	return own && own->flags == one.flags ? 0 : push(said, one);
}

/* added_tokens_decoder, whose keys are ids. */
static int want_decoder(struct said *said, const struct rh_tokenizer *tokenizer, const json_t *decoder)
{
	const char *key;
	json_t *token;
	int rc = 0;
	json_object_foreach((json_t *)(uintptr_t)decoder, key, token)
	{
		struct wanted one = {.id = strtoll(key, NULL, 10), .where = said->config_path};
		if (!rc)
			rc = rh_json_string(token, "content", said->config_path, RH_JSON_REQUIRED, &one.text);
		if (!rc)
			rc = load_added_flags(token, said->config_path, RH_JSON_OPTIONAL, &one.flags);
		one.bytes = json_string_length(json_object_get(token, "content"));
		if (!rc)
			rc = want_listed(said, tokenizer, token, one);
	}
	return rc;
}

static int is_listed_extra(const struct said *said, const char *text, size_t bytes)
{
	size_t i;
	const json_t *token;
	for (int f = 0; said->extras.are_extra && f < 2; f++)
		json_array_foreach(said->extras.list[f], i,
		                   token) if ((f || json_is_string(token)) && is_text(content_of(token), text, bytes)) return 1;
	return 0;
}

/* added_tokens.json: {"text": id}. Special is what has a standard role, or stands in the list of special ones. */
static int want_older_list(struct said *said, const struct rh_tokenizer *tokenizer)
{
	const char *text;
	size_t bytes;
	json_t *number;
	int rc = 0;
	json_object_keylen_foreach(said->list, text, bytes, number)
	{
		int is_special = has_role(said, text, bytes, ROLE_EARLY) || is_listed_extra(said, text, bytes);
		json_int_t id = json_integer_value(number);
		if (!json_is_integer(number) || id < 0 || id >= VOCAB_IDS)
			return rh_fail(-EINVAL, "%s: '%.40s' has no id of a token", said->list_path, text);
		/* what tokenizer.json has under this id counts */
		if (!rc && !added_by_id(&tokenizer->added, (int32_t)id))
			rc = want_listed(said, tokenizer, NULL,
			                 (struct wanted){.text = text,
			                                 .bytes = bytes,
			                                 .flags = is_special ? ADDED_SPECIAL : ADDED_NORMALIZED,
			                                 .id = id,
			                                 .where = said->list_path});
	}
	return rc;
}

/* tokenizer.json's own. */
static int want_own(struct said *said, const struct rh_tokenizer *tokenizer)
{
	const struct added *added = &tokenizer->added;
	int rc = 0;
	for (size_t i = 0; !rc && i < added->count; i++) {
		const struct added_token *token = &added->token[i];
		rc = want_listed(said, tokenizer, NULL,
		                 (struct wanted){.text = added->text.bytes + token->offset,
		                                 .bytes = token->bytes,
		                                 .flags = token->flags,
		                                 .id = token->id,
		                                 .where = said->config_path});
	}
	return rc;
}

/* Those with ids, in their order. */
static int want_with_ids(struct said *said, const struct rh_tokenizer *tokenizer)
{
	const json_t *decoder = json_object_get(said->config, "added_tokens_decoder");
	int rc = decoder ? want_decoder(said, tokenizer, decoder) : want_older_list(said, tokenizer);
	if (!rc && !decoder)
		rc = want_own(said, tokenizer);
	if (!rc && said->count)
		qsort(said->wanted, said->count, sizeof *said->wanted, by_id);
	said->listed = said->count;
	return rc;
}

static int add_wanted(struct rh_tokenizer *tokenizer, const struct said *said)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < said->count; i++) {
		const struct wanted *one = &said->wanted[i];
		rc = added_add(&tokenizer->added, &tokenizer->bpe.vocab, one->text, one->bytes, one->flags, one->where);
		if (!rc && one->bytes)
			tokenizer->added.token[tokenizer->added.count - 1].file = one->where == said->map_path ? "special_tokens_map.json"
			                                                          : one->where == said->list_path ? "added_tokens.json"
			                                                                                          : "tokenizer_config.json";
		if (!rc && one->bytes && one->id >= 0)
			warn_of_other_id(tokenizer, one->text, one->bytes, one->id, one->where);
	}
	return rc;
}

/* The ids of the roles that the program reads. */
static void set_ends(struct rh_tokenizer *tokenizer, const struct said *said)
{
	const struct {
		const char *key;
		int32_t *id;
	} ends[] = {{"bos_token", &tokenizer->bos}, {"eos_token", &tokenizer->eos}, {"pad_token", &tokenizer->pad}};
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		const char *where;
		const json_t *content = content_of(find_token(said, ends[i].key, &where));
		if (content && json_string_length(content))
			*ends[i].id = rh_tokenizer_id(tokenizer, json_string_value(content));
	}
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

static int read_said(struct said *said)
{
	int rc = 0;
	if (rh_file_exists(said->config_path))
		rc = load_object(said->config_path, &said->config);
	else
		rc = (said->config = json_object()) ? 0 : -ENOMEM;
	if (rc || json_object_get(said->config, "added_tokens_decoder"))
		return rc;
	if (rh_file_exists(said->map_path))
		rc = load_object(said->map_path, &said->map);
	if (!rc && rh_file_exists(said->list_path))
		rc = load_object(said->list_path, &said->list);
	return rc;
}

static int take_said(struct rh_tokenizer *tokenizer, struct said *said)
{
	find_extras(said);
	int rc = want_with_ids(said, tokenizer);
	if (!rc)
		rc = want_roles(said, tokenizer);
	if (!rc)
		rc = want_lists(said, tokenizer);
	if (!rc)
		rc = add_wanted(tokenizer, said);
	if (rc)
		return rc;
	set_ends(tokenizer, said);
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
	                    .map_path = rh_path_join(dir, "special_tokens_map.json"),
	                    .list_path = rh_path_join(dir, "added_tokens.json")};
	int rc = said.config_path && said.map_path && said.list_path ? read_said(&said) : -ENOMEM;
	if (!rc)
		rc = take_said(tokenizer, &said);
	if (!rc)
		rc = load_jinja(tokenizer, dir);
	json_decref(said.config);
	json_decref(said.map);
	json_decref(said.list);
	rh_free(said.wanted);
	rh_free(said.config_path);
	rh_free(said.map_path);
	rh_free(said.list_path);
	return rc;
}
