/* tokenizer.json. The file's truncation and padding are what its maker last did with it, not part of how it cuts text, and are not read. */
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/lfs.h"
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

static int load_listed(struct rh_tokenizer *tokenizer, const json_t *token, const char *where)
{
	int64_t id = -1;
	unsigned flags = 0;
	int rc = rh_json_int(token, "id", where, RH_JSON_REQUIRED, &id);
	if (!rc)
		rc = load_added_flags(token, where, RH_JSON_REQUIRED, &flags);
	return rc ? rc : load_added_token(tokenizer, token, id, flags, where);
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
		rc = load_listed(tokenizer, json_array_get(added, i), where);
	return rc ? rc : load_post_processor(tokenizer, json_object_get(root, "post_processor"), where, 0);
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
		tokenizer->own_size = rh_tokenizer_size(tokenizer);
	if (!rc)
		rc = load_config(tokenizer, dir);
	if (!rc)
		rc = added_finish(&tokenizer->added, &tokenizer->normalizers, path);
	rh_free(path);
	if (rc)
		rh_tokenizer_destroy(tokenizer);
	else
		*out = tokenizer;
	return rc;
}
