/* BERT's older form of a tokenizer: vocab.txt, a token a line, and what tokenizer_config.json says of its normalizer. */
#include "core/alloc.h"
#include "core/file.h"
#include "token/load_parts.h"

#include <string.h>

static int add_lines(struct rh_tokenizer *tokenizer, const char *text, size_t length, const char *where)
{
	int64_t id = 0;
	int rc = 0;
	for (size_t at = 0; at < length && !rc; id++) {
		const char *end = memchr(text + at, '\n', length - at);
		size_t next = end ? (size_t)(end - text) + 1 : length, bytes = next - at - (end != NULL);
		if (bytes && text[at + bytes - 1] == '\r')
			bytes--;
		rc = vocab_add(&tokenizer->bpe.vocab, text + at, bytes, id, where);
		at = next;
	}
	return rc;
}

static int add_specials(struct rh_tokenizer *tokenizer, const char *where)
{
	static const char *const names[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
	int rc = 0;
	for (size_t i = 0; i < sizeof names / sizeof *names && !rc; i++) {
		if (rh_tokenizer_id(tokenizer, names[i]) < 0)
			return rh_fail(-EINVAL, "%s: the vocabulary lacks %s", where, names[i]);
		rc = added_add(&tokenizer->added, &tokenizer->bpe.vocab, names[i], strlen(names[i]), ADDED_SPECIAL, where);
	}
	return rc;
}

static int set_normalizer(struct rh_tokenizer *tokenizer, const char *dir)
{
	int lowers = 1, parts_chinese = 1;
	char *path = rh_path_join(dir, "tokenizer_config.json");
	json_t *config = NULL;
	int rc = path ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(path))
		rc = rh_json_load(path, &config);
	if (!rc && config)
		rc = rh_json_bool(config, "do_lower_case", path, RH_JSON_OPTIONAL, &lowers);
	if (!rc && config)
		rc = rh_json_bool(config, "tokenize_chinese_chars", path, RH_JSON_OPTIONAL, &parts_chinese);
	int strips = lowers;
	if (!rc && config)
		rc = rh_json_bool(config, "strip_accents", path, RH_JSON_OPTIONAL, &strips);
	if (!rc)
		rc = add_bert_normalizer(tokenizer, 1, parts_chinese, strips, lowers);
	json_decref(config);
	rh_free(path);
	return rc;
}

static int load_lines(struct rh_tokenizer *tokenizer, const char *dir, const char *path)
{
	struct rh_bytes file;
	struct pre_step *step;
	struct decoder *decoder;
	int rc = rh_file_load(path, &file);
	if (rc)
		return rc;
	rc = add_lines(tokenizer, file.bytes, file.length, path);
	rh_bytes_free(&file);
	tokenizer->words = (struct word_piece){.is_used = 1, .prefix = "##", .most = 100};
	if (!rc && !(tokenizer->bpe.unknown = rh_strdup("[UNK]")))
		rc = -ENOMEM;
	if (rc)
		return rc;
	bpe_finish(&tokenizer->bpe);
	rc = set_normalizer(tokenizer, dir);
	if (!rc)
		rc = add_pre_step(tokenizer, PRE_BERT, &step);
	if (!rc)
		rc = add_decoder(tokenizer, DECODER_WORD_PIECE, &decoder);
	if (!rc) {
		decoder->cleans = 1;
		rc = rh_text_append(&decoder->content, "##", 2);
	}
	if (!rc)
		rc = add_specials(tokenizer, path);
	return rc ? rc : set_template(tokenizer, rh_tokenizer_id(tokenizer, "[CLS]"), rh_tokenizer_id(tokenizer, "[SEP]"));
}

int load_vocabulary_list(struct rh_tokenizer *tokenizer, const char *dir, int *found)
{
	char *path = rh_path_join(dir, "vocab.txt");
	int rc = path ? 0 : -ENOMEM;
	*found = !rc && rh_file_exists(path);
	if (*found)
		rc = load_lines(tokenizer, dir, path);
	rh_free(path);
	return rc;
}
