/* The vocabulary inside a GGUF file: its name says how text is cut, which tokenizer.json would spell out. */
#include "core/alloc.h"
#include "token/tokenizer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 1 << 14 }; /* bytes of a token that is merged by score: each way to cut it is tried */

enum token_type { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

static int type_of(const struct rh_vocabulary *v, size_t id)
{
	return v->token_type ? v->token_type[id] : TYPE_NORMAL;
}

static int add_texts(struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	int rc = 0;
	for (size_t i = 0; i < v->tokens && !rc; i++) {
		if (!utf8_valid(v->token[i], v->token_bytes[i]))
			return rh_fail(-EINVAL, "%s: the text of token %zu is not UTF-8", v->where, i);
		rc = vocab_add(&t->bpe.vocab, v->token[i], v->token_bytes[i], (int64_t)i, v->where);
	}
	return rc;
}

/* Control tokens, the unknown token, BOS and EOS become special added tokens; user-defined ones become added tokens that are not special.
 * All are looked for in a text before it is normalized. */
static int add_added(struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	int rc = 0;
	for (size_t i = 0; i < v->tokens && !rc; i++) {
		int type = type_of(v, i), is_end = (int64_t)i == v->bos || (int64_t)i == v->eos;
		unsigned flags = type == TYPE_USER && !is_end ? 0 : ADDED_SPECIAL;
		if (type == TYPE_CONTROL || type == TYPE_UNKNOWN || type == TYPE_USER || is_end)
			rc = added_add(&t->added, &t->bpe.vocab, v->token[i], v->token_bytes[i], flags, v->where);
	}
	return rc ? rc : added_finish(&t->added, &t->normalizers, v->where);
}

static int add_merges(struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	int rc = 0;
	for (size_t i = 0; i < v->merges && !rc; i++) {
		const char *merge = v->merge[i], *blank = NULL;
		if (v->merge_bytes[i] > 1) /* a left side that starts with a blank would be one of that blank alone */
			blank = memchr(merge + 1, ' ', v->merge_bytes[i] - 1);
		if (!blank || i > UINT32_MAX)
			return rh_fail(-EINVAL, "%s: merge %zu is not \"left right\"", v->where, i);
		size_t left = (size_t)(blank - merge);
		rc = bpe_add_merge(&t->bpe, merge, left, blank + 1, v->merge_bytes[i] - left - 1, (uint32_t)i, v->where);
	}
	return rc;
}

/* A way to make one token of two others. */
struct split {
	float score; /* of the token made */
	uint32_t left_points, right_points;
	int32_t left, right, made;
};
struct splits {
	struct split *split;
	size_t count, capacity;
};

static int64_t descending(uint32_t a, uint32_t b)
{
	return (int64_t)b - (int64_t)a;
}

/* Best score first. Where scores are equal, above all among the ways to make one token, transformers' order: longer left parts first. */
static int by_rank(const void *a, const void *b)
{
	const struct split *x = a, *y = b;
	if (x->score != y->score)
		return x->score > y->score ? -1 : 1;
	int64_t order = descending(x->left_points, y->left_points);
	if (!order)
		order = descending(x->right_points, y->right_points);
	if (!order)
		order = (int64_t)x->made - y->made;
	return order < 0 ? -1 : order > 0;
}

static uint32_t count_points(const char *text, size_t bytes)
{
	uint32_t count = 0;
	for (size_t i = 0; i < bytes; i++)
		count += ((unsigned char)text[i] & 0xC0) != 0x80;
	return count;
}

/* Bytes, control tokens and the like are never merged, nor do merges make them. */
static int is_mergeable(const struct rh_vocabulary *v, int32_t id)
{
	return id >= 0 && (type_of(v, (size_t)id) == TYPE_NORMAL || type_of(v, (size_t)id) == TYPE_USER);
}

static int add_splits(const struct rh_tokenizer *t, const struct rh_vocabulary *v, size_t id, struct splits *splits)
{
	const struct vocab *vocab = &t->bpe.vocab;
	const char *text = v->token[id];
	size_t bytes = v->token_bytes[id];
	uint32_t point, points = count_points(text, bytes), left_points = 1;
	int rc = 0;
	if (vocab_find(vocab, text, bytes) != (int32_t)id)
		return 0; /* a later token has the same text */
	for (size_t at = bytes ? utf8_next(text, &point) : 0; at < bytes && !rc; at += utf8_next(text + at, &point), left_points++) {
		int32_t left = vocab_find(vocab, text, at);
		if (!is_mergeable(v, left))
			continue;
		int32_t right = vocab_find(vocab, text + at, bytes - at);
		if (!is_mergeable(v, right))
			continue;
		rc = rh_grow(&splits->split, &splits->capacity, splits->count + 1, sizeof *splits->split);
		if (!rc)
			splits->split[splits->count++] =
			        (struct split){v->score[id], left_points, points - left_points, left, right, (int32_t)id};
	}
	return rc;
}

static int add_merges_by_score(struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	struct splits splits = {0};
	int rc = 0;
	if (!v->score)
		return rh_fail(-EINVAL, "%s: a vocabulary of model 'llama' lacks tokenizer.ggml.scores", v->where);
	for (size_t i = 0; i < v->tokens && !rc; i++) {
		if (isnan(v->score[i]))
			rc = rh_fail(-EINVAL, "%s: the score of token %zu is not a number", v->where, i);
		else if (v->token_bytes[i] > LONGEST)
			rc = rh_fail(-EINVAL, "%s: token %zu has %zu bytes; up to %d are supported", v->where, i, v->token_bytes[i],
			             LONGEST);
		else if (is_mergeable(v, (int32_t)i))
			rc = add_splits(t, v, i, &splits);
	}
	if (!rc && splits.count > 1)
		qsort(splits.split, splits.count, sizeof *splits.split, by_rank);
	for (size_t i = 0; i < splits.count && !rc; i++) {
		const struct split *split = &splits.split[i];
		rc = bpe_put_merge(&t->bpe, split->left, split->right, (uint32_t)i, split->made);
	}
	rh_free(splits.split);
	return rc;
}

static int set_content(struct rh_text *content, const char *text)
{
	return rh_text_append(content, text, strlen(text));
}

/* Texts and blanks as SentencePiece has them, but merges in a list of their own. */
static int is_gemma4(const struct rh_vocabulary *v)
{
	return v->model && !strcmp(v->model, "gemma4");
}

static const char meta[] = "\xE2\x96\x81"; /* U+2581 */

/* SentencePiece: blanks are U+2581, one more in front of each text; what the vocabulary lacks is spelled in bytes. */
static int make_llama(struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	struct normalizer *normalizer;
	struct decoder *decoder;
	int rc = 0;
	if (v->add_space_prefix != 0 && !(rc = add_normalizer(t, NORMALIZER_PREPEND, &normalizer)))
		rc = set_content(&normalizer->content, meta);
	if (!rc && !(rc = add_normalizer(t, NORMALIZER_REPLACE, &normalizer)) && !(rc = set_content(&normalizer->content, meta)))
		rc = pattern_compile_literal(" ", 1, v->where, &normalizer->pattern);
	if (!rc && !(rc = add_decoder(t, DECODER_REPLACE, &decoder)) && !(rc = set_content(&decoder->content, " ")))
		rc = pattern_compile_literal(meta, 3, v->where, &decoder->pattern);
	if (!rc)
		rc = add_decoder(t, DECODER_BYTE_FALLBACK, &decoder);
	if (!rc)
		rc = add_decoder(t, DECODER_FUSE, &decoder);
	if (!rc && v->add_space_prefix != 0 && !(rc = add_decoder(t, DECODER_STRIP, &decoder))) {
		decoder->point = ' ';
		decoder->start = 1;
	}
	t->bpe.byte_fallback = t->bpe.fuse_unknown = 1;
	int64_t unknown = v->unknown;
	for (size_t i = 0; unknown < 0 && i < v->tokens; i++)
		unknown = type_of(v, i) == TYPE_UNKNOWN ? (int64_t)i : -1;
	if (!rc && unknown >= 0 && (size_t)unknown < v->tokens) {
		struct rh_text name = {0};
		rc = rh_text_append(&name, v->token[unknown], v->token_bytes[unknown]);
		t->bpe.unknown = name.bytes;
	}
	if (!rc)
		rc = add_texts(t, v);
	if (rc)
		return rc;
	return is_gemma4(v) ? add_merges(t, v) : add_merges_by_score(t, v);
}

static const char llama3_expression[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
        "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_expression[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/* Qwen3.5: marks go with letters */
static const char qwen35_expression[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
        "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char gpt4o_expression[] =
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char tekken_expression[] = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
                                        "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
                                        "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char seed_expression[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|"
                                      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { SPLITS_MOST = 5 };

/* How tokenizer.ggml.pre cuts text for byte-level vocabularies: splits one after the other, each of which isolates what it matches; before
 * them single digits. Of names that mean the same the first is written. */
static const struct {
	const char *name;
	int digits, composed, ignore_merges;
	const char *split[SPLITS_MOST + 1];
} byte_level[] = {
        {"gpt-2", 0, 0, 0, {pre_gpt2_expression}},
        {"smollm", 1, 0, 0, {pre_gpt2_expression}},
        {"llama-bpe", 0, 0, 1, {llama3_expression}},
        {"dbrx", 0, 0, 0, {llama3_expression}}, /* Phi-4 */
        {"qwen2", 0, 1, 0, {qwen2_expression}},
        {"qwen35", 0, 1, 0, {qwen35_expression}},
        {"gpt-4o", 0, 0, 1, {gpt4o_expression}},
        {"llama4", 0, 0, 1, {gpt4o_expression}},
        {"tekken", 0, 0, 1, {tekken_expression}}, /* Mistral NeMo and later */
        {"seed-coder", 0, 0, 0, {seed_expression}},
        {"deepseek-coder", 0, 0, 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "\\p{N}"}},
        {"llama3", 0, 0, 1, {llama3_expression}},
        {"llama-v3", 0, 0, 1, {llama3_expression}},
        {"smaug-bpe", 0, 0, 0, {llama3_expression}},
        {"deepseek-r1-qwen", 0, 1, 0, {qwen2_expression}},
        {"refact", 1, 0, 0, {pre_gpt2_expression}},
        {"starcoder", 1, 0, 0, {pre_gpt2_expression}},
};
enum { BYTE_LEVEL = sizeof byte_level / sizeof *byte_level };

/* 1: the step is a split by this expression, which isolates what it matches. One that removes what it does not match does the same where
 * the expression is alone, as it then matches all of a text. */
static int is_split(const struct pre_step *step, const char *expression, int is_alone)
{
	size_t bytes;
	int literal;
	if (step->kind != PRE_SPLIT)
		return 0;
	const char *source = pattern_source(step->pattern, &bytes, &literal);
	int is_isolated =
	        (step->behaviour == PRE_ISOLATED && !step->invert) || (is_alone && step->behaviour == PRE_REMOVED && step->invert);
	return is_isolated && !literal && bytes == strlen(expression) && !memcmp(source, expression, bytes);
}

static int is_cut_as(const struct rh_tokenizer *t, size_t which)
{
	const struct pre_step *step = t->pre.step, *end = step + t->pre.count;
	if (!t->pre.count || t->bpe.ignore_merges != byte_level[which].ignore_merges)
		return 0;
	if (byte_level[which].digits && !(step->kind == PRE_DIGITS && step->behaviour == PRE_ISOLATED))
		return 0;
	step += byte_level[which].digits;
	for (int i = 0; byte_level[which].split[i]; i++, step++)
		if (step == end || !is_split(step, byte_level[which].split[i], !byte_level[which].split[1]))
			return 0;
	return step + 1 == end && step->kind == PRE_BYTES;
}

const char *rh_tokenizer_pre(const struct rh_tokenizer *tokenizer)
{
	for (size_t i = 0; !tokenizer->words.is_used && i < BYTE_LEVEL; i++)
		if (is_cut_as(tokenizer, i))
			return byte_level[i].name;
	return NULL;
}

static int is_literal(const struct pattern *pattern, const char *text)
{
	size_t bytes;
	int literal;
	const char *source = pattern_source(pattern, &bytes, &literal);
	return literal && bytes == strlen(text) && !memcmp(source, text, bytes);
}

int rh_tokenizer_is_gemma4(const struct rh_tokenizer *tokenizer)
{
	const struct normalizer *replaces = tokenizer->normalizers.step;
	const struct pre_step *cuts = tokenizer->pre.step; /* at blanks, of which the normalizer has left none */
	if (tokenizer->words.is_used || !tokenizer->bpe.byte_fallback || tokenizer->bpe.ignore_merges ||
	    tokenizer->normalizers.count != 1 || tokenizer->pre.count > 1)
		return 0;
	if (tokenizer->pre.count && !(cuts->kind == PRE_SPLIT && is_literal(cuts->pattern, " ")))
		return 0;
	return replaces->kind == NORMALIZER_REPLACE && is_literal(replaces->pattern, " ") && replaces->content.length == strlen(meta) &&
	       !memcmp(replaces->content.bytes, meta, strlen(meta));
}

static int refuse_pre(const struct rh_vocabulary *v)
{
	struct rh_text names = {0};
	int rc = 0;
	for (size_t i = 0; !rc && i < BYTE_LEVEL; i++)
		rc = rh_text_printf(&names, "%s%s", i ? ", " : "", byte_level[i].name);
	if (!rc)
		rc = rh_fail(-EINVAL, "%s: tokenizer.ggml.pre '%s' is not supported; known are %s", v->where, v->pre ? v->pre : "(absent)",
		             names.bytes);
	rh_text_free(&names);
	return rc;
}

static int make_gpt2(struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	struct normalizer *normalizer;
	struct pre_step *step;
	struct decoder *decoder;
	size_t i = 0;
	while (i < BYTE_LEVEL && (!v->pre || strcmp(v->pre, byte_level[i].name)))
		i++;
	if (i == BYTE_LEVEL)
		return refuse_pre(v);
	t->bpe.ignore_merges = byte_level[i].ignore_merges;
	int rc = byte_level[i].composed ? add_normalizer(t, NORMALIZER_NFC, &normalizer) : 0;
	if (!rc && byte_level[i].digits && !(rc = add_pre_step(t, PRE_DIGITS, &step)))
		step->behaviour = PRE_ISOLATED;
	for (int k = 0; !rc && byte_level[i].split[k]; k++) {
		rc = add_pre_step(t, PRE_SPLIT, &step);
		if (rc)
			break;
		step->behaviour = PRE_ISOLATED;
		rc = pattern_compile(byte_level[i].split[k], strlen(byte_level[i].split[k]), v->where, &step->pattern);
	}
	if (!rc)
		rc = add_pre_step(t, PRE_BYTES, &step);
	if (!rc)
		rc = add_decoder(t, DECODER_BYTE_LEVEL, &decoder);
	if (!rc)
		rc = add_texts(t, v);
	return rc ? rc : add_merges(t, v);
}

static int check_id(const struct rh_vocabulary *v, const char *what, int64_t id, int32_t *out)
{
	if (id >= 0 && (uint64_t)id >= v->tokens)
		return rh_fail(-EINVAL, "%s: tokenizer.ggml.%s_token_id is %lld, but there are %zu tokens", v->where, what, (long long)id,
		               v->tokens);
	*out = id < 0 ? -1 : (int32_t)id;
	return 0;
}

static int make(struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	int32_t unknown;
	int llama = is_gemma4(v) || (v->model && !strcmp(v->model, "llama"));
	if (!llama && (!v->model || strcmp(v->model, "gpt2")))
		return rh_fail(-EINVAL, "%s: tokenizer.ggml.model '%s' is not supported; known are llama, gemma4 and gpt2", v->where,
		               v->model ? v->model : "(absent)");
	if (!v->tokens || v->tokens > VOCAB_IDS)
		return rh_fail(-EINVAL, "%s: %zu tokens in the vocabulary", v->where, v->tokens);
	int rc = check_id(v, "bos", v->bos, &t->bos);
	if (!rc)
		rc = check_id(v, "eos", v->eos, &t->eos);
	if (!rc)
		rc = check_id(v, "padding", v->pad, &t->pad);
	if (!rc)
		rc = check_id(v, "unknown", v->unknown, &unknown);
	if (!rc)
		rc = llama ? make_llama(t, v) : make_gpt2(t, v);
	if (rc)
		return rc;
	bpe_finish(&t->bpe);
	rc = add_added(t, v);
	t->own_size = rh_tokenizer_size(t);
	/* SentencePiece vocabularies start with BOS unless the file says otherwise. */
	int add_bos = v->add_bos < 0 ? llama : v->add_bos;
	if (!rc)
		rc = set_template(t, add_bos ? t->bos : -1, v->add_eos > 0 ? t->eos : -1);
	if (!rc && v->chat_template && !(t->chat_template = rh_strdup(v->chat_template)))
		rc = -ENOMEM;
	return rc;
}

int rh_tokenizer_from_vocabulary(const struct rh_vocabulary *vocabulary, struct rh_tokenizer **out)
{
	struct rh_tokenizer *tokenizer;
	int rc = tokenizer_create(&tokenizer);
	if (rc)
		return rc;
	rc = make(tokenizer, vocabulary);
	if (rc)
		rh_tokenizer_destroy(tokenizer);
	else
		*out = tokenizer;
	return rc;
}
