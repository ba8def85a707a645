/* The tokenizer inside a GGUF file, borrowed from the mapping during a call. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"

#include <stdio.h>
#include <xxhash.h>

/* Lists taken out of the file for the length of one call. */
struct lists {
	const char **token, **merge;
	size_t *token_bytes, *merge_bytes;
	float *score;
	int32_t *type;
};

static int read_lists(const struct rh_gguf *gguf, struct lists *lists, struct rh_vocabulary *out)
{
	size_t scores = 0, types = 0;
	int rc = rh_gguf_strings(gguf, "tokenizer.ggml.tokens", &out->tokens, &lists->token, &lists->token_bytes);
	if (rc == 0)
		rc = rh_fail(-EINVAL, "%s: there is no vocabulary (tokenizer.ggml.tokens)", rh_gguf_path(gguf));
	if (rc > 0)
		rc = rh_gguf_strings(gguf, "tokenizer.ggml.merges", &out->merges, &lists->merge, &lists->merge_bytes);
	if (rc >= 0)
		rc = rh_gguf_floats(gguf, "tokenizer.ggml.scores", &scores, &lists->score);
	if (rc >= 0)
		rc = rh_gguf_ints(gguf, "tokenizer.ggml.token_type", &types, &lists->type);
	if (rc < 0)
		return rc;
	if ((lists->score && scores != out->tokens) || (lists->type && types != out->tokens))
		return rh_fail(-EINVAL, "%s: %zu tokens, but %zu scores and %zu token types", rh_gguf_path(gguf), out->tokens, scores,
		               types);
	out->token = lists->token;
	out->token_bytes = lists->token_bytes;
	out->merge = lists->merge;
	out->merge_bytes = lists->merge_bytes;
	out->score = lists->score;
	out->token_type = lists->type;
	return 0;
}

static int read_scalars(const struct rh_gguf *gguf, struct rh_vocabulary *out)
{
	int rc = rh_gguf_string(gguf, "tokenizer.ggml.model", &out->model);
	if (rc >= 0)
		rc = rh_gguf_string(gguf, "tokenizer.ggml.pre", &out->pre);
	if (rc >= 0)
		rc = rh_gguf_string(gguf, "tokenizer.chat_template", &out->chat_template);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, "tokenizer.ggml.bos_token_id", &out->bos);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, "tokenizer.ggml.eos_token_id", &out->eos);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, "tokenizer.ggml.unknown_token_id", &out->unknown);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, "tokenizer.ggml.padding_token_id", &out->pad);
	if (rc >= 0)
		rc = rh_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &out->add_bos);
	if (rc >= 0)
		rc = rh_gguf_bool(gguf, "tokenizer.ggml.add_eos_token", &out->add_eos);
	if (rc >= 0)
		rc = rh_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", &out->add_space_prefix);
	return rc < 0 ? rc : 0;
}

/* The context length, under the name of the architecture. */
static int read_longest(const struct rh_gguf *gguf, struct rh_vocabulary *out)
{
	const char *architecture = "";
	char name[128];
	int rc = rh_gguf_string(gguf, "general.architecture", &architecture);
	snprintf(name, sizeof name, "%s.context_length", architecture);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, name, &out->longest);
	return rc < 0 ? rc : 0;
}

static int read_vocabulary(const struct rh_gguf *gguf, struct lists *lists, struct rh_vocabulary *out)
{
	*out = (struct rh_vocabulary){.where = rh_gguf_path(gguf),
	                              .bos = -1,
	                              .eos = -1,
	                              .unknown = -1,
	                              .pad = -1,
	                              .add_bos = -1,
	                              .add_eos = -1,
	                              .add_space_prefix = -1};
	int rc = read_lists(gguf, lists, out);
	if (!rc)
		rc = read_scalars(gguf, out);
	return rc ? rc : read_longest(gguf, out);
}

static void free_lists(struct lists *lists)
{
	rh_free(lists->token);
	rh_free(lists->token_bytes);
	rh_free(lists->merge);
	rh_free(lists->merge_bytes);
	rh_free(lists->score);
	rh_free(lists->type);
}

int rh_source_tokenizer(const struct rh_source *source, struct rh_tokenizer **out)
{
	if (!source->gguf)
		return rh_tokenizer_load(source->path, out);
	struct lists lists = {0};
	struct rh_vocabulary vocabulary;
	int rc = read_vocabulary(source->gguf, &lists, &vocabulary);
	if (!rc)
		rc = rh_tokenizer_from_vocabulary(&vocabulary, out);
	free_lists(&lists);
	return rc;
}

static int hash_file(const char *path, uint64_t *out)
{
	struct rh_bytes file;
	int rc = rh_file_load(path, &file);
	if (rc)
		return rc;
	*out = XXH3_64bits(file.bytes, file.length);
	rh_bytes_free(&file);
	return 0;
}

static void hash_texts(const char *const *text, const size_t *bytes, size_t count, uint64_t *hash)
{
	for (size_t i = 0; i < count; i++)
		*hash = XXH3_64bits_withSeed(text[i], bytes[i], *hash);
}

static int hash_vocabulary(const char *path, uint64_t *out)
{
	struct lists lists = {0};
	struct rh_vocabulary vocabulary;
	struct rh_gguf *gguf = NULL;
	int rc = rh_gguf_open(path, &gguf);
	if (!rc)
		rc = read_vocabulary(gguf, &lists, &vocabulary);
	if (!rc) {
		hash_texts(vocabulary.token, vocabulary.token_bytes, vocabulary.tokens, out);
		hash_texts(vocabulary.merge, vocabulary.merge_bytes, vocabulary.merges, out);
	}
	free_lists(&lists);
	rh_gguf_close(gguf);
	return rc;
}

int rh_source_tokenizer_hash(const char *model, uint64_t *out)
{
	*out = 0;
	if (!rh_dir_exists(model))
		return hash_vocabulary(model, out);
	char *path = rh_path_join(model, "tokenizer.json");
	int rc = path ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(path))
		rc = hash_file(path, out);
	rh_free(path);
	return rc;
}

int gguf_save_tokenizer(const char *path, const char *dir)
{
	struct lists lists = {0};
	struct rh_vocabulary vocabulary;
	struct rh_gguf *gguf = NULL;
	int rc = rh_gguf_open(path, &gguf);
	if (!rc)
		rc = read_vocabulary(gguf, &lists, &vocabulary);
	if (!rc)
		rc = rh_tokenizer_save_vocabulary(&vocabulary, dir);
	free_lists(&lists);
	rh_gguf_close(gguf);
	return rc;
}
