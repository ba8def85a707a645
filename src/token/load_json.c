/* tokenizer.json, with what tokenizer_config.json and chat_template.jinja say about it. The file's truncation and padding are what its
 * maker last did with it, not part of how it cuts text, and are not read. */
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/lfs.h"
#include "core/log.h"
#include "token/load_parts.h"
#include "token/scan.h"

#include <string.h>

/* [["left", "right"], ...] or ["left right", ...]. */
static int load_merges(struct bpe *bpe, struct scan *scan)
{
	int rc = 0;
	uint32_t rank = 0;
	if (!scan_take(scan, '[') || scan_take(scan, ']'))
		return 0;
	do {
		const char *left, *right = NULL;
		size_t left_bytes, right_bytes = 0;
		int pair = scan_take(scan, '[');
		rc = scan_string(scan, 0, &left, &left_bytes);
		if (!rc && pair && !scan_take(scan, ','))
			rc = scan_fail(scan, "a merge is neither \"left right\" nor [\"left\", \"right\"]");
		if (!rc && pair)
			rc = scan_string(scan, 1, &right, &right_bytes);
		if (!rc && pair && !scan_take(scan, ']'))
			rc = scan_fail(scan, "a merge of more than two tokens");
		if (!rc && !pair) {
			if (left_bytes >= 8 && !memcmp(left, "#version", 8)) /* the heading of an old merges.txt */
				continue;
			right = memchr(left, ' ', left_bytes);
			if (right) {
				right_bytes = left_bytes - (size_t)(++right - left);
				left_bytes -= right_bytes + 1;
			}
			if (!right || memchr(right, ' ', right_bytes))
				rc = scan_fail(scan, "a merge is neither \"left right\" nor [\"left\", \"right\"]");
		}
		if (!rc)
			rc = bpe_add_merge(bpe, left, left_bytes, right, right_bytes, rank++, scan->where);
	} while (!rc && scan_take(scan, ','));
	return rc || scan_take(scan, ']') ? rc : scan_fail(scan, "expected ',' or ']' in the merges");
}

/* {"text": id, ...}. */
static int load_tokens(struct bpe *bpe, struct scan *scan)
{
	int rc = 0;
	if (!scan_take(scan, '{') || scan_take(scan, '}'))
		return 0;
	do {
		const char *text;
		size_t bytes, before = bpe->vocab.distinct;
		int64_t id;
		rc = scan_string(scan, 0, &text, &bytes);
		if (!rc && !scan_take(scan, ':'))
			rc = scan_fail(scan, "expected ':' in the vocabulary");
		if (!rc)
			rc = scan_integer(scan, &id);
		if (!rc)
			rc = vocab_add(&bpe->vocab, text, bytes, id, scan->where);
		if (!rc && bpe->vocab.distinct == before)
			rc = scan_fail(scan, "a token that is in the vocabulary twice");
	} while (!rc && scan_take(scan, ','));
	return rc || scan_take(scan, '}') ? rc : scan_fail(scan, "expected ',' or '}' in the vocabulary");
}

/* tokenizer.json as it lies in memory: its two big parts, and the rest. */
struct document {
	struct rh_bytes file;
	const char *where;
	struct scan_part vocab, merges;
	json_t *rest;
};

static int load_vocabulary(struct bpe *bpe, const struct document *document, int has_merges)
{
	struct scan scan = {.start = document->file.bytes, .where = document->where};
	if (!document->vocab.first || (has_merges && !document->merges.first))
		return rh_fail(-EINVAL, "%s: the model lacks its 'vocab'%s", document->where, has_merges ? " or its 'merges'" : "");
	scan.cursor = document->vocab.first;
	scan.end = document->vocab.end;
	int rc = load_tokens(bpe, &scan);
	scan.cursor = document->merges.first;
	scan.end = document->merges.end;
	if (!rc && has_merges)
		rc = load_merges(bpe, &scan);
	scan_free(&scan);
	return rc;
}

static int load_word_piece(struct rh_tokenizer *tokenizer, const struct document *document)
{
	const json_t *model = json_object_get(document->rest, "model");
	const char *where = document->where, *unknown = "[UNK]", *prefix = "##";
	struct word_piece *words = &tokenizer->words;
	*words = (struct word_piece){.is_used = 1, .most = 100};
	int rc = rh_json_string(model, "unk_token", where, RH_JSON_OPTIONAL, &unknown);
	if (!rc)
		rc = rh_json_string(model, "continuing_subword_prefix", where, RH_JSON_OPTIONAL, &prefix);
	if (!rc)
		rc = rh_json_int(model, "max_input_chars_per_word", where, RH_JSON_OPTIONAL, &words->most);
	if (!rc && strlen(prefix) > WORD_PIECE_PREFIX_MOST)
		rc = rh_fail(-EINVAL, "%s: continuing_subword_prefix '%.40s' is longer than %d bytes", where, prefix,
		             WORD_PIECE_PREFIX_MOST);
	if (rc)
		return rc;
	memcpy(words->prefix, prefix, strlen(prefix) + 1);
	if (!(tokenizer->bpe.unknown = rh_strdup(unknown)))
		return -ENOMEM;
	rc = load_vocabulary(&tokenizer->bpe, document, 0);
	if (!rc)
		bpe_finish(&tokenizer->bpe);
	return rc;
}

static int load_model(struct rh_tokenizer *tokenizer, const struct document *document)
{
	struct bpe *bpe = &tokenizer->bpe;

	const json_t *model = json_object_get(document->rest, "model");
	const char *where = document->where;
	const char *type = "BPE", *unknown = NULL, *prefix = "", *suffix = "";
	double dropout = 0;
	int rc = rh_json_string(model, "type", where, RH_JSON_OPTIONAL, &type);
	if (!rc && !strcmp(type, "WordPiece"))
		return load_word_piece(tokenizer, document);
	if (!rc && strcmp(type, "BPE"))
		return rh_fail(-EINVAL, "%s: a model of type '%s' is not supported", where, type);
	if (!rc)
		rc = rh_json_real(model, "dropout", where, RH_JSON_OPTIONAL, &dropout);
	if (!rc)
		rc = rh_json_string(model, "unk_token", where, RH_JSON_OPTIONAL, &unknown);
	if (!rc)
		rc = rh_json_string(model, "continuing_subword_prefix", where, RH_JSON_OPTIONAL, &prefix);
	if (!rc)
		rc = rh_json_string(model, "end_of_word_suffix", where, RH_JSON_OPTIONAL, &suffix);
	if (!rc)
		rc = rh_json_bool(model, "fuse_unk", where, RH_JSON_OPTIONAL, &bpe->fuse_unknown);
	if (!rc)
		rc = rh_json_bool(model, "byte_fallback", where, RH_JSON_OPTIONAL, &bpe->byte_fallback);
	if (!rc)
		rc = rh_json_bool(model, "ignore_merges", where, RH_JSON_OPTIONAL, &bpe->ignore_merges);
	if (rc)
		return rc;
	if (dropout != 0)
		return rh_fail(-EINVAL, "%s: a model with dropout is not supported; set it to null", where);
	if (*prefix || *suffix)
		return rh_fail(-EINVAL, "%s: a model with %s is not supported", where,
		               *prefix ? "continuing_subword_prefix" : "end_of_word_suffix");
	if (unknown && !(bpe->unknown = rh_strdup(unknown)))
		return -ENOMEM;
	rc = load_vocabulary(bpe, document, 1);
	if (!rc)
		bpe_finish(bpe);
	return rc;
}

static int load_added_token(struct rh_tokenizer *tokenizer, const json_t *token, const char *where)
{
	static const struct {
		const char *key;
		unsigned flag;
	} keys[] = {{"single_word", ADDED_SINGLE_WORD},
	            {"lstrip", ADDED_LSTRIP},
	            {"rstrip", ADDED_RSTRIP},
	            {"normalized", ADDED_NORMALIZED},
	            {"special", ADDED_SPECIAL}};
	unsigned flags = 0;
	const char *ignored;
	int64_t id = -1;
	int rc = rh_json_string(token, "content", where, RH_JSON_REQUIRED, &ignored);
	if (!rc)
		rc = rh_json_int(token, "id", where, RH_JSON_REQUIRED, &id);
	for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++) {
		int on = 0;
		rc = rh_json_bool(token, keys[i].key, where, RH_JSON_REQUIRED, &on);
		flags |= on ? keys[i].flag : 0;
	}
	if (rc)
		return rc;
	const json_t *content = json_object_get(token, "content");
	const char *text = json_string_value(content);
	rc = added_add(&tokenizer->added, &tokenizer->bpe.vocab, text, json_string_length(content), flags, where);
	if (!rc && *text && rh_tokenizer_id(tokenizer, text) != id && strlen(text) == json_string_length(content))
		rh_warn_once("%s: added token '%s' has id %lld in the file, but gets %d, the next free one, as in the tokenizers library",
		             where, text, (long long)id, rh_tokenizer_id(tokenizer, text));
	return rc;
}

static int load_tokenizer(struct rh_tokenizer *tokenizer, const struct document *document)
{
	const json_t *root = document->rest;
	const char *where = document->where;
	const json_t *added = json_object_get(root, "added_tokens");
	if (!json_is_object(root))
		return rh_fail(-EINVAL, "%s: expected a JSON object", where);
	if (added && !json_is_null(added) && !json_is_array(added))
		return rh_fail(-EINVAL, "%s: 'added_tokens' is not a list", where);
	int rc = load_normalizer(tokenizer, json_object_get(root, "normalizer"), where, 0);
	if (!rc)
		rc = load_pre_tokenizer(tokenizer, json_object_get(root, "pre_tokenizer"), where, 0);
	if (!rc)
		rc = load_decoder(tokenizer, json_object_get(root, "decoder"), where, 0);
	if (!rc)
		rc = load_model(tokenizer, document);
	for (size_t i = 0; i < json_array_size(added) && !rc; i++)
		rc = load_added_token(tokenizer, json_array_get(added, i), where);
	return rc ? rc : load_post_processor(tokenizer, json_object_get(root, "post_processor"), where, 0);
}

/* The token that this key of the configuration names, by its text or by an object with that in `content`. *id: its id, or -1 where the key
 * is absent or the vocabulary lacks the token. From here on it is a special token, also where tokenizer.json does not list it among the
 * added ones, as in transformers. */
static int named_token(struct rh_tokenizer *tokenizer, const json_t *config, const char *key, const char *where, int32_t *id)
{
	const json_t *name = json_object_get(config, key);
	if (json_is_object(name))
		name = json_object_get(name, "content");
	*id = -1;
	if (!json_is_string(name))
		return 0;
	const char *text = json_string_value(name);
	*id = rh_tokenizer_id(tokenizer, text);
	if (*id < 0)
		rh_warn_once("%s: %s is '%s', which the vocabulary lacks; it is taken for none", where, key, text);
	if (*id < 0 || added_by_id(&tokenizer->added, *id))
		return 0;
	return added_add(&tokenizer->added, &tokenizer->bpe.vocab, text, strlen(text), ADDED_SPECIAL, where);
}

/* A string, or a list of {name, template}, of which `default` is taken. */
static int config_template(struct rh_tokenizer *tokenizer, const json_t *config)
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

static const char *const token_keys[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
enum { TOKEN_KEYS = sizeof token_keys / sizeof *token_keys };

static int load_object(const char *path, json_t **out)
{
	int rc = rh_json_load(path, out);
	return rc || json_is_object(*out) ? rc : rh_fail(-EINVAL, "%s: expected a JSON object", path);
}

/* The tokens that special_tokens_map.json names count before the configuration's own. */
static int take_map(const char *path, json_t *config)
{
	json_t *map = NULL;
	int rc = load_object(path, &map);
	for (size_t i = 0; !rc && i < TOKEN_KEYS; i++) {
		json_t *token = json_object_get(map, token_keys[i]);
		if (token && json_object_set(config, token_keys[i], token))
			rc = -ENOMEM;
	}
	json_decref(map);
	return rc;
}

/* What dir/tokenizer_config.json holds, an empty object where there is none. Only without a list of added tokens is special_tokens_map.json
 * read, as in transformers. */
static int read_config(const char *dir, const char *path, json_t **out)
{
	char *map = rh_path_join(dir, "special_tokens_map.json");
	json_t *config = NULL;
	int rc = map ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(path))
		rc = load_object(path, &config);
	else if (!rc)
		rc = (config = json_object()) ? 0 : -ENOMEM;
	if (!rc && !json_object_get(config, "added_tokens_decoder") && rh_file_exists(map))
		rc = take_map(map, config);
	rh_free(map);
	if (rc)
		json_decref(config);
	else
		*out = config;
	return rc;
}

static int load_config(struct rh_tokenizer *tokenizer, const char *dir)
{
	int32_t unknown; /* the model has its own */
	int32_t *const id[TOKEN_KEYS] = {&tokenizer->bos, &tokenizer->eos, &tokenizer->pad, &unknown};
	char *path = rh_path_join(dir, "tokenizer_config.json");
	json_t *config = NULL;
	int rc = path ? read_config(dir, path, &config) : -ENOMEM;
	for (size_t i = 0; !rc && i < TOKEN_KEYS; i++)
		rc = named_token(tokenizer, config, token_keys[i], path, id[i]);
	if (!rc)
		rc = config_template(tokenizer, config);
	if (!rc)
		rc = compare_additions(tokenizer, config, path);
	json_decref(config);
	rh_free(path);
	return rc;
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

static int open_document(const char *path, struct document *document)
{
	struct rh_text rest = {0};
	document->where = path;
	int rc = rh_file_load(path, &document->file);
	if (!rc)
		rc = rh_lfs_refuse(path, document->file.bytes, document->file.length);
	if (!rc)
		rc = scan_model(document->file.bytes, document->file.length, &document->vocab, &document->merges, &rest);
	if (!rc)
		rc = rh_json_parse(rest.bytes ? rest.bytes : "", rest.length, path, &document->rest);
	rh_text_free(&rest);
	return rc;
}

static void close_document(struct document *document)
{
	json_decref(document->rest);
	if (document->file.bytes)
		rh_bytes_free(&document->file);
}

/* Older models bring SentencePiece's file alone. */
static int look_for_older(const char *dir, const char *path)
{
	char *older = rh_path_join(dir, "tokenizer.model");
	int rc = older ? 0 : -ENOMEM;
	if (older && rh_file_exists(older) && !rh_file_exists(path))
		rc = rh_fail(-ENOENT,
		             "%s: only tokenizer.model is there, which is not read; transformers makes tokenizer.json of it: "
		             "AutoTokenizer.from_pretrained(\"%.200s\").save_pretrained(\"%.200s\")",
		             path, dir, dir);
	rh_free(older);
	return rc;
}

int rh_tokenizer_load(const char *dir, struct rh_tokenizer **out)
{
	struct rh_tokenizer *tokenizer = NULL;
	struct document document = {0};
	char *path = rh_path_join(dir, "tokenizer.json");
	int rc = path ? tokenizer_create(&tokenizer) : -ENOMEM;
	int is_list = 0;
	if (!rc && !rh_file_exists(path))
		rc = load_vocabulary_list(tokenizer, dir, &is_list);
	if (!rc && !is_list)
		rc = look_for_older(dir, path);
	if (!rc && !is_list)
		rc = open_document(path, &document);
	if (!rc && !is_list)
		rc = load_tokenizer(tokenizer, &document);
	close_document(&document);
	if (!rc)
		rc = load_config(tokenizer, dir);
	if (!rc)
		rc = added_finish(&tokenizer->added, &tokenizer->normalizers, path);
	if (!rc)
		rc = load_jinja(tokenizer, dir);
	rh_free(path);
	if (rc)
		rh_tokenizer_destroy(tokenizer);
	else
		*out = tokenizer;
	return rc;
}
