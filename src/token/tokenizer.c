#include "token/tokenizer_internal.h"

#include "core/alloc.h"

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

/* What one call of encode needs. */
struct encoding {
	struct pieces a, b;
	struct normalize_scratch normalize;
	struct pre_scratch pre;
	struct bpe_scratch bpe;
};

static void encoding_free(struct encoding *e)
{
	pieces_free(&e->a);
	pieces_free(&e->b);
	normalize_scratch_free(&e->normalize);
	pre_scratch_free(&e->pre);
	bpe_scratch_free(&e->bpe);
}

/* From the pieces between plain added tokens (e->a) to pieces of normalized text (e->b). */
static int normalize_pieces(const struct rh_tokenizer *t, struct encoding *e)
{
	int rc = 0;
	for (size_t i = 0; i < e->a.count && !rc; i++) {
		const struct piece *piece = &e->a.piece[i];
		const char *text = e->a.text.bytes + piece->first;
		size_t bytes = piece->end - piece->first, leading = piece->leading;
		if (piece->id >= 0) {
			rc = pieces_add(&e->b, text, bytes, piece->id, 0);
			continue;
		}
		rc = normalize(&t->normalizers, &e->normalize, text, bytes, &text, &bytes, &leading);
		if (!rc)
			rc = added_split(&t->added, ADDED_AFTER_NORMALIZING, text, bytes, leading, &e->b);
	}
	return rc;
}

/* `most`: so many pieces at most, 0: all; *is_cut: there are more. */
static int encode_text(const struct rh_tokenizer *t, struct encoding *e, const char *text, size_t bytes, size_t most, struct rh_ids *out,
                       int *is_cut)
{
	uint32_t point;
	size_t leading = bytes ? utf8_next(text, &point) : 0;
	int rc = added_split(&t->added, ADDED_PLAIN, text, bytes, leading, &e->a);
	if (!rc)
		rc = normalize_pieces(t, e);
	if (!rc)
		rc = pretokenize(&t->pre, &e->pre, most, &e->b, &e->a, is_cut);
	for (size_t i = 0; i < e->b.count && !rc; i++) {
		const struct piece *piece = &e->b.piece[i];
		if (piece->id >= 0)
			rc = ids_add(out, piece->id);
		else if (t->words.is_used)
			rc = word_piece_encode(&t->words, &t->bpe, e->b.text.bytes + piece->first, piece->end - piece->first, out);
		else
			rc = bpe_encode(&t->bpe, &e->bpe, e->b.text.bytes + piece->first, piece->end - piece->first, out);
	}
	return rc;
}

static int encode(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, size_t most,
                  struct rh_ids *out, int *is_cut)
{
	struct encoding encoding = {0};
	size_t before = out->count, parts = mode == RH_TOKENS_WITH_SPECIAL ? tokenizer->template.count : 0;
	int rc = 0;
	*is_cut = 0;
	for (size_t i = 0; i < (parts ? parts : 1) && !rc && !*is_cut; i++) {
		int32_t part = parts ? tokenizer->template.id[i] : TEMPLATE_TEXT;
		if (part != TEMPLATE_TEXT) {
			rc = ids_add(out, part);
			continue;
		}
		pieces_clear(&encoding.a);
		pieces_clear(&encoding.b);
		rc = encode_text(tokenizer, &encoding, text, bytes, most, out, is_cut);
	}
	encoding_free(&encoding);
	if (rc)
		out->count = before;
	return rc;
}

int rh_tokenizer_encode(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, struct rh_ids *out)
{
	int is_cut;
	return rh_tokenizer_encode_first(tokenizer, text, bytes, mode, 0, out, &is_cut);
}

int rh_tokenizer_encode_first(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, enum rh_tokens mode, size_t most,
                              struct rh_ids *out, int *is_cut)
{
	size_t before = out->count;
	if (bytes && !utf8_valid(text, bytes))
		return rh_fail(-EINVAL, "a text of %zu bytes is not UTF-8", bytes);
	int rc = encode(tokenizer, text, bytes, mode, most, out, is_cut);
	for (size_t pieces = most; !rc && *is_cut && out->count - before < most;) { /* pieces without a token */
		out->count = before;
		pieces *= 4;
		rc = encode(tokenizer, text, bytes, mode, pieces, out, is_cut);
	}
	return rc;
}

/* What an id decodes to; NULL if there is no such id. */
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
			rc = pieces_add(&texts, text, bytes, 0, 0);
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
	return id >= 0 ? id : vocab_find(&tokenizer->bpe.vocab, token, strlen(token));
}

int32_t rh_tokenizer_size(const struct rh_tokenizer *tokenizer)
{
	size_t model = tokenizer->bpe.vocab.ids, added = tokenizer->added.ids;
	return (int32_t)(model > added ? model : added);
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

int32_t rh_tokenizer_eos(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->eos;
}

const char *rh_tokenizer_text(const struct rh_tokenizer *tokenizer, int32_t id)
{
	const struct added_token *token = added_by_id(&tokenizer->added, id);
	return token ? tokenizer->added.text.bytes + token->at : vocab_text(&tokenizer->bpe.vocab, id, NULL);
}

const char *rh_tokenizer_chat_template(const struct rh_tokenizer *tokenizer)
{
	return tokenizer->chat_template;
}
