#include "token/tokenizer_internal.h"

#include "core/alloc.h"
#include "core/log.h"

#include <string.h>

void rh_ids_free(struct rh_ids *ids)
{
	rh_free(ids->id);
	*ids = (struct rh_ids){0};
}

int tokenizer_create(struct rh_tokenizer **out)
{
	struct rh_tokenizer *tokenizer = rh_alloc(1, sizeof *tokenizer);
	if (!tokenizer)
		return -ENOMEM;
	tokenizer->bos = tokenizer->eos = tokenizer->pad = -1;
	tokenizer->added.highest = -1;
	*out = tokenizer;
	return 0;
}

void rh_tokenizer_destroy(struct rh_tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	bpe_free(&tokenizer->bpe);
	added_free(&tokenizer->added);
	normalizers_free(&tokenizer->normalizers);
	pre_steps_free(&tokenizer->pre);
	decoders_free(&tokenizer->decoders);
	rh_ids_free(&tokenizer->template);
	rh_free(tokenizer->chat_template);
	rh_free(tokenizer);
}

int add_normalizer(struct rh_tokenizer *tokenizer, enum normalizer_kind kind, struct normalizer **out)
{
	struct normalizers *list = &tokenizer->normalizers;
	int rc = rh_grow(&list->step, &list->capacity, list->count + 1, sizeof *list->step);
	if (rc)
		return rc;
	*out = &list->step[list->count++];
	**out = (struct normalizer){.kind = kind};
	return 0;
}

static int add_bert_step(struct rh_tokenizer *tokenizer, enum bert_step kind)
{
	struct normalizer *step;
	int rc = add_normalizer(tokenizer, NORMALIZER_BERT, &step);
	if (!rc)
		step->bert = kind;
	return rc;
}

int add_bert_normalizer(struct rh_tokenizer *tokenizer, int cleans, int parts_chinese, int strips, int lowers)
{
	struct normalizer *step;
	int rc = cleans ? add_bert_step(tokenizer, BERT_CLEAN) : 0;
	if (!rc && parts_chinese)
		rc = add_bert_step(tokenizer, BERT_CHINESE);
	if (!rc && strips)
		rc = add_normalizer(tokenizer, NORMALIZER_NFD, &step);
	if (!rc && strips)
		rc = add_bert_step(tokenizer, BERT_MARKS);
	if (!rc && lowers)
		rc = add_normalizer(tokenizer, NORMALIZER_LOWERCASE, &step);
	return rc;
}

int add_pre_step(struct rh_tokenizer *tokenizer, enum pre_kind kind, struct pre_step **out)
{
	struct pre_steps *list = &tokenizer->pre;
	int rc = rh_grow(&list->step, &list->capacity, list->count + 1, sizeof *list->step);
	if (rc)
		return rc;
	*out = &list->step[list->count++];
	**out = (struct pre_step){.kind = kind};
	return 0;
}

int add_decoder(struct rh_tokenizer *tokenizer, enum decoder_kind kind, struct decoder **out)
{
	struct decoders *list = &tokenizer->decoders;
	int rc = rh_grow(&list->step, &list->capacity, list->count + 1, sizeof *list->step);
	if (rc)
		return rc;
	list->present = 1;
	*out = &list->step[list->count++];
	**out = (struct decoder){.kind = kind};
	return 0;
}

int set_template(struct rh_tokenizer *tokenizer, int32_t bos, int32_t eos)
{
	tokenizer->template.count = 0;
	int rc = bos >= 0 ? ids_add(&tokenizer->template, bos) : 0;
	if (!rc)
		rc = ids_add(&tokenizer->template, TEMPLATE_TEXT);
	if (!rc && eos >= 0)
		rc = ids_add(&tokenizer->template, eos);
	return rc;
}

/* One call of encode: a text goes to `out` fragment by fragment. */
struct encoding {
	const struct rh_tokenizer *tokenizer;
	struct rh_ids *out;
	size_t wanted; /* of out->count; 0: all */
	int is_cut;    /* the text goes on behind them */
	struct normalize_scratch normalize;
	struct pre_scratch *pre; /* (pre.count) */
	struct bpe_scratch bpe;
};

static int take_word(void *context, const struct fragment *word)
{
	struct encoding *e = context;
	const struct rh_tokenizer *t = e->tokenizer;
	if (e->wanted && e->out->count >= e->wanted) {
		e->is_cut = 1;
		return 1;
	}
	if (word->id >= 0)
		return ids_add(e->out, word->id);
	return t->words.is_used ? word_piece_encode(&t->words, &t->bpe, word->text, word->bytes, e->out)
	                        : bpe_encode(&t->bpe, &e->bpe, word->text, word->bytes, e->out);
}

static int take_normalized(void *context, const struct fragment *fragment)
{
	struct encoding *e = context;
	if (fragment->id >= 0)
		return take_word(e, fragment);
	return pretokenize(&e->tokenizer->pre, e->pre, fragment->text, fragment->bytes, fragment->leading,
	                   &(struct fragment_sink){take_word, e});
}

/* Takes the text between plain added tokens. */
static int take_plain(void *context, const struct fragment *fragment)
{
	struct encoding *e = context;
	const struct rh_tokenizer *t = e->tokenizer;
	size_t bytes = fragment->bytes, leading = fragment->leading;
	const char *text = fragment->text;
	if (fragment->id >= 0)
		return take_word(e, fragment);
	int rc = normalize(&t->normalizers, &e->normalize, text, bytes, &text, &bytes, &leading);
	return rc ? rc : added_split(&t->added, ADDED_AFTER_NORMALIZING, text, bytes, leading, &(struct fragment_sink){take_normalized, e});
}

static int encode_text(struct encoding *e, const char *text, size_t bytes)
{
	uint32_t point;
	size_t leading = bytes ? utf8_next(text, &point) : 0;
	int rc = added_split(&e->tokenizer->added, ADDED_PLAIN, text, bytes, leading, &(struct fragment_sink){take_plain, e});
	return rc < 0 ? rc : 0;
}

static void encoding_free(struct encoding *e)
{
	normalize_scratch_free(&e->normalize);
	for (size_t i = 0; e->pre && i < e->tokenizer->pre.count; i++)
		pre_scratch_free(&e->pre[i]);
	rh_free(e->pre);
	bpe_scratch_free(&e->bpe);
}

int rh_tokenizer_encode(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, struct rh_ids *out)
{
	int is_cut;
	return rh_tokenizer_encode_first(tokenizer, text, bytes, mode, 0, out, &is_cut);
}

int rh_tokenizer_encode_first(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, size_t most,
                              struct rh_ids *out, int *is_cut)
{
	size_t before = out->count, parts = mode == RH_TOKENS_WITH_SPECIAL ? tokenizer->template.count : 0;
	struct encoding encoding = {.tokenizer = tokenizer, .out = out, .wanted = most ? before + most : 0};
	if (bytes && !utf8_valid(text, bytes))
		return rh_fail(-EINVAL, "a text of %zu bytes is not UTF-8", bytes);
	encoding.pre = rh_alloc(tokenizer->pre.count, sizeof *encoding.pre);
	int rc = encoding.pre ? 0 : -ENOMEM;
	for (size_t i = 0; i < (parts ? parts : 1) && !rc && !encoding.is_cut; i++) {
		int32_t part = parts ? tokenizer->template.id[i] : TEMPLATE_TEXT;
		rc = part == TEMPLATE_TEXT ? encode_text(&encoding, text, bytes) : ids_add(out, part);
	}
	encoding_free(&encoding);
	*is_cut = encoding.is_cut;
	if (rc)
		out->count = before;
	return rc;
}

/* The text that an id decodes to; NULL: there is no such id. */
static const char *shown_text(const struct rh_tokenizer *tokenizer, int32_t id, size_t *bytes, int *special)
{
	const struct added_token *token = added_by_id(&tokenizer->added, id);
	*special = token && added_is_special(&tokenizer->added, token);
	if (!token)
		return vocab_text(&tokenizer->bpe.vocab, id, bytes);
	*bytes = token->shown_bytes;
	return tokenizer->added.text.bytes + token->shown_at;
}

int rh_tokenizer_decode(const struct rh_tokenizer *tokenizer, const int32_t *ids, size_t count, enum rh_specials specials,
                        struct rh_text *out)
{
	struct pieces texts = {0}, other = {0};
	size_t before = out->length;
	int rc = rh_text_append(&texts.text, "", 0);
	if (!rc)
		rc = rh_text_append(&other.text, "", 0);
	if (!rc)
		rc = rh_text_append(out, "", 0);
	for (size_t i = 0; i < count && !rc; i++) {
		size_t bytes;
		int special;
		const char *text = shown_text(tokenizer, ids[i], &bytes, &special);
		if (!text)
			rc = rh_fail(-EINVAL, "token id %d is not in the vocabulary, which has ids 0 to %d", ids[i],
			             rh_tokenizer_size(tokenizer) - 1);
		else if (!special || specials == RH_SPECIALS_KEEP)
			rc = pieces_add(&texts, text, bytes);
	}
	if (!rc)
		rc = decode_texts(&tokenizer->decoders, &texts, &other, out);
	pieces_free(&texts);
	pieces_free(&other);
	if (rc)
		out->length = before;
	return rc;
}

int32_t rh_tokenizer_id(const struct rh_tokenizer *tokenizer, const char *token)
{
	int32_t id = vocab_find(&tokenizer->added.contents, token, strlen(token));
	if (id >= 0 && tokenizer->added.limit && id >= tokenizer->added.limit)
		return -1;
	return id >= 0 ? id : vocab_find(&tokenizer->bpe.vocab, token, strlen(token));
}

int32_t rh_tokenizer_size(const struct rh_tokenizer *tokenizer)
{
	size_t model = tokenizer->bpe.vocab.ids, added = tokenizer->added.ids, size = model > added ? model : added;
	return (int32_t)(tokenizer->added.limit && size > (size_t)tokenizer->added.limit ? (size_t)tokenizer->added.limit : size);
}

int rh_tokenizer_fit(struct rh_tokenizer *tokenizer, int64_t rows)
{
	struct added *added = &tokenizer->added;
	if (tokenizer->own_size > rows)
		return rh_fail(-EINVAL, "the tokenizer has %d entries, the model's embedding only %lld; they do not belong together",
		               tokenizer->own_size, (long long)rows);
	if (rh_tokenizer_size(tokenizer) <= rows)
		return 0;
	size_t first = 0;
	while (added->token[first].id < rows)
		first++;
	rh_warn_once("%s: token '%.40s' is not in tokenizer.json, and has no row in the model's embedding of %lld: text that spells it, or "
	             "another such token, is ordinary text",
	             added->token[first].file, added->text.bytes + added->token[first].offset, (long long)rows);
	added->limit = rows;
	int32_t *const ends[] = {&tokenizer->bos, &tokenizer->eos, &tokenizer->pad};
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		*ends[i] = *ends[i] >= rows ? -1 : *ends[i];
	return added_finish(added, &tokenizer->normalizers, "the tokenizer");
}

int32_t rh_tokenizer_bos(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->bos;
}

int rh_tokenizer_is_special(const struct rh_tokenizer *tokenizer, int32_t id)
{
	const struct added_token *token = added_by_id(&tokenizer->added, id);
	return (token && token->flags & ADDED_SPECIAL) || (id >= 0 && id == tokenizer->eos);
}

int rh_tokenizer_is_added(const struct rh_tokenizer *tokenizer, int32_t id)
{
	return added_by_id(&tokenizer->added, id) != NULL;
}

int32_t rh_tokenizer_eos(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->eos;
}

int32_t rh_tokenizer_pad(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->pad;
}

int32_t rh_tokenizer_unknown(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->bpe.unknown ? rh_tokenizer_id(tokenizer, tokenizer->bpe.unknown) : -1;
}

int rh_tokenizer_set_eos(struct rh_tokenizer *tokenizer, const char *token)
{
	int32_t id = rh_tokenizer_id(tokenizer, token);
	if (id < 0)
		return rh_fail(-EINVAL, "eos_token: '%s' is no token of this model's vocabulary", token);
	tokenizer->eos = id;
	if (added_by_id(&tokenizer->added, id))
		return 0;
	int rc = added_add(&tokenizer->added, &tokenizer->bpe.vocab, token, strlen(token), ADDED_SPECIAL, "eos_token");
	return rc ? rc : added_finish(&tokenizer->added, &tokenizer->normalizers, "eos_token");
}

const char *rh_tokenizer_text(const struct rh_tokenizer *tokenizer, int32_t id)
{
	const struct added_token *token = added_by_id(&tokenizer->added, id);
	return token ? tokenizer->added.text.bytes + token->offset : vocab_text(&tokenizer->bpe.vocab, id, NULL);
}

void rh_tokenizer_set_chat_template(struct rh_tokenizer *tokenizer, char *text)
{
	rh_free(tokenizer->chat_template);
	tokenizer->chat_template = text;
	tokenizer->is_chat_template_set = 1;
}

int rh_tokenizer_is_chat_template_set(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->is_chat_template_set;
}

const char *rh_tokenizer_chat_template(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->chat_template;
}
