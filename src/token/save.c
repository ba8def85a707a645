/* tokenizer.json and tokenizer_config.json of the vocabulary inside a GGUF file. They are written from the very tokenizer that
 * rh_tokenizer_from_vocabulary makes, so that what is saved is what was trained with. */
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "token/tokenizer_internal.h"
#include "token/unicode.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A document as it grows; after the first failure nothing is added. */
struct document {
	struct rh_text text;
	int rc;
};

#define PUT(document, ...) ((document)->rc = (document)->rc ? (document)->rc : rh_text_printf(&(document)->text, __VA_ARGS__))

static void put_bytes(struct document *out, const char *bytes, size_t length)
{
	if (!out->rc)
		out->rc = rh_text_append(&out->text, bytes, length);
}

/* A JSON string of valid UTF-8. */
static void put_string(struct document *out, const char *text, size_t bytes)
{
	size_t done = 0;
	put_bytes(out, "\"", 1);
	for (size_t i = 0; i < bytes; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		put_bytes(out, text + done, i - done);
		if (c < 0x20)
			PUT(out, "\\u%04x", c);
		else
			PUT(out, "\\%c", c);
		done = i + 1;
	}
	put_bytes(out, text + done, bytes - done);
	put_bytes(out, "\"", 1);
}

static void put_token(struct document *out, const struct rh_tokenizer *t, int32_t id)
{
	size_t bytes = 0;
	const char *text = vocab_text(&t->bpe.vocab, id, &bytes);
	put_string(out, text, bytes);
}

static const char *truth(int value)
{
	return value ? "true" : "false";
}

static void put_pattern(struct document *out, const struct pattern *pattern)
{
	size_t bytes;
	int literal;
	const char *source = pattern_source(pattern, &bytes, &literal);
	PUT(out, ",\"pattern\":{\"%s\":", literal ? "String" : "Regex");
	put_string(out, source, bytes);
	PUT(out, "}");
}

static void put_content(struct document *out, const char *key, const struct rh_text *content)
{
	PUT(out, ",\"%s\":", key);
	put_string(out, content->bytes, content->length);
}

static void put_normalizer(struct document *out, const struct normalizer *step)
{
	switch (step->kind) {
	case NORMALIZER_NFC:
		PUT(out, "{\"type\":\"NFC\"");
		break;
	case NORMALIZER_PREPEND:
		PUT(out, "{\"type\":\"Prepend\"");
		put_content(out, "prepend", &step->content);
		break;
	default:
		RH_ASSERT(step->kind == NORMALIZER_REPLACE);
		PUT(out, "{\"type\":\"Replace\"");
		put_pattern(out, step->pattern);
		put_content(out, "content", &step->content);
	}
	PUT(out, "}");
}

static void put_pre_step(struct document *out, const struct pre_step *step)
{
	switch (step->kind) {
	case PRE_DIGITS:
		PUT(out, "{\"type\":\"Digits\",\"individual_digits\":%s}", truth(step->behaviour == PRE_ISOLATED));
		break;
	case PRE_SPLIT:
		RH_ASSERT(step->behaviour == PRE_ISOLATED && !step->invert);
		PUT(out, "{\"type\":\"Split\"");
		put_pattern(out, step->pattern);
		PUT(out, ",\"behavior\":\"Isolated\",\"invert\":false}");
		break;
	default:
		RH_ASSERT(step->kind == PRE_BYTES);
		PUT(out, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}");
	}
}

static void put_decoder(struct document *out, const struct decoder *step)
{
	char point[4];
	switch (step->kind) {
	case DECODER_BYTE_LEVEL:
		PUT(out, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}");
		break;
	case DECODER_BYTE_FALLBACK:
		PUT(out, "{\"type\":\"ByteFallback\"}");
		break;
	case DECODER_FUSE:
		PUT(out, "{\"type\":\"Fuse\"}");
		break;
	case DECODER_REPLACE:
		PUT(out, "{\"type\":\"Replace\"");
		put_pattern(out, step->pattern);
		put_content(out, "content", &step->content);
		PUT(out, "}");
		break;
	default:
		RH_ASSERT(step->kind == DECODER_STRIP);
		PUT(out, "{\"type\":\"Strip\",\"content\":");
		put_string(out, point, utf8_put(step->point, point));
		PUT(out, ",\"start\":%" PRId64 ",\"stop\":%" PRId64 "}", step->start, step->stop);
	}
}

static void put_added(struct document *out, const struct added *added)
{
	PUT(out, "\"added_tokens\":[");
	for (size_t i = 0; i < added->count; i++) {
		const struct added_token *token = &added->token[i];
		PUT(out, "%s\n{\"id\":%d,\"content\":", i ? "," : "", token->id);
		put_string(out, added->text.bytes + token->offset, token->bytes);
		PUT(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
		    truth(token->flags & ADDED_SPECIAL));
	}
	PUT(out, "\n]");
}

static void put_steps(struct document *out, const struct rh_tokenizer *t)
{
	if (!t->normalizers.count)
		PUT(out, ",\n\"normalizer\":null");
	for (size_t i = 0; i < t->normalizers.count; i++) {
		PUT(out, i ? "," : ",\n\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
		put_normalizer(out, &t->normalizers.step[i]);
	}
	PUT(out, t->normalizers.count ? "]},\n\"pre_tokenizer\":" : ",\n\"pre_tokenizer\":");
	if (!t->pre.count)
		PUT(out, "null");
	for (size_t i = 0; i < t->pre.count; i++) {
		PUT(out, i ? "," : "{\"type\":\"Sequence\",\"pretokenizers\":[");
		put_pre_step(out, &t->pre.step[i]);
	}
	PUT(out, t->pre.count ? "]},\n\"decoder\":" : ",\n\"decoder\":");
	for (size_t i = 0; i < t->decoders.count; i++) { /* every vocabulary has some */
		PUT(out, i ? "," : "{\"type\":\"Sequence\",\"decoders\":[");
		put_decoder(out, &t->decoders.step[i]);
	}
	PUT(out, "]}");
}

/* The id that a token's text leads to: another one where a later token has the same text. */
static int32_t named_id(const struct rh_tokenizer *t, int32_t id)
{
	size_t bytes;
	const char *text = vocab_text(&t->bpe.vocab, id, &bytes);
	return text ? vocab_find(&t->bpe.vocab, text, bytes) : -1;
}

/* The template once for each of one or two texts. */
static void put_template_list(struct document *out, const struct rh_tokenizer *t, int texts)
{
	for (int text = 0; text < texts; text++)
		for (size_t i = 0; i < t->template.count; i++) {
			int32_t id = t->template.id[i];
			PUT(out, "%s{\"%s\":{\"id\":", text || i ? "," : "", id == TEMPLATE_TEXT ? "Sequence" : "SpecialToken");
			if (id == TEMPLATE_TEXT)
				PUT(out, text ? "\"B\"" : "\"A\"");
			else
				put_token(out, t, id);
			PUT(out, ",\"type_id\":%d}}", text);
		}
}

static void put_post_processor(struct document *out, const struct rh_tokenizer *t)
{
	int32_t last = -1;
	if (t->template.count < 2) {
		PUT(out, ",\n\"post_processor\":null");
		return;
	}
	PUT(out, ",\n\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
	put_template_list(out, t, 1);
	PUT(out, "],\"pair\":[");
	put_template_list(out, t, 2);
	PUT(out, "],\"special_tokens\":{");
	for (size_t i = 0; i < t->template.count; i++) {
		int32_t id = named_id(t, t->template.id[i]);
		if (id < 0 || id == last) /* of the text; or EOS that is BOS */
			continue;
		PUT(out, last < 0 ? "" : ",");
		put_token(out, t, id);
		PUT(out, ":{\"id\":");
		put_token(out, t, id);
		PUT(out, ",\"ids\":[%d],\"tokens\":[", id);
		put_token(out, t, id);
		PUT(out, "]}");
		last = id;
	}
	PUT(out, "}}");
}

static int by_rank(const void *a, const void *b)
{
	const struct bpe_merge *x = a, *y = b;
	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void put_merges(struct document *out, const struct rh_tokenizer *t)
{
	struct bpe_merge *merge = rh_alloc(t->bpe.merges + 1, sizeof *merge);
	size_t count = 0;
	if (!merge) {
		out->rc = -ENOMEM;
		return;
	}
	for (size_t i = 0; i < t->bpe.slots; i++)
		if (t->bpe.merge[i].pair != BPE_NO_PAIR)
			merge[count++] = t->bpe.merge[i];
	qsort(merge, count, sizeof *merge, by_rank);
	PUT(out, ",\n\"merges\":[");
	for (size_t i = 0; i < count && !out->rc; i++) {
		put_bytes(out, i ? ",\n[" : "\n[", i ? 3 : 2);
		put_token(out, t, (int32_t)(merge[i].pair >> 32));
		put_bytes(out, ",", 1);
		put_token(out, t, (int32_t)(uint32_t)merge[i].pair);
		put_bytes(out, "]", 1);
	}
	PUT(out, "]");
	rh_free(merge);
}

static void put_model(struct document *out, const struct rh_tokenizer *t)
{
	const struct bpe *bpe = &t->bpe;
	const char *between = "";
	PUT(out, ",\n\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
	if (bpe->unknown)
		put_string(out, bpe->unknown, strlen(bpe->unknown));
	else
		PUT(out, "null");
	PUT(out,
	    ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,\"byte_fallback\":%s,\"ignore_merges\":%s",
	    truth(bpe->fuse_unknown), truth(bpe->byte_fallback), truth(bpe->ignore_merges));
	PUT(out, ",\n\"vocab\":{");
	for (size_t i = 0; i < bpe->vocab.ids && !out->rc; i++) {
		if (named_id(t, (int32_t)i) != (int32_t)i)
			continue;
		PUT(out, "%s\n", between);
		put_token(out, t, (int32_t)i);
		PUT(out, ":%zu", i);
		between = ",";
	}
	PUT(out, "}");
	put_merges(out, t);
	PUT(out, "}");
}

static void put_tokenizer(struct document *out, const struct rh_tokenizer *t)
{
	PUT(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
	put_added(out, &t->added);
	put_steps(out, t);
	put_post_processor(out, t);
	put_model(out, t);
	PUT(out, "}\n");
}

/* Readers make a special token of what is named here, so an ordinary one, such as "!" to pad with, is not. */
static void put_named(struct document *out, const struct rh_tokenizer *t, const char *key, int64_t id)
{
	if (id < 0 || !added_by_id(&t->added, named_id(t, (int32_t)id)))
		return;
	PUT(out, ",\n  \"%s\": ", key);
	put_token(out, t, (int32_t)id);
}

static void put_config(struct document *out, const struct rh_tokenizer *t, const struct rh_vocabulary *v)
{
	const struct rh_ids *template = &t->template;
	PUT(out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"");
	put_named(out, t, "bos_token", t->bos);
	put_named(out, t, "eos_token", t->eos);
	put_named(out, t, "unk_token", v->unknown < 0 ? t->bpe.unknown_id : v->unknown);
	put_named(out, t, "pad_token", t->pad);
	/* for readers that do not go by the post-processor: transformers 4's Llama, llama.cpp's converter */
	if (t->bos >= 0 || t->eos >= 0)
		PUT(out, ",\n  \"add_bos_token\": %s,\n  \"add_eos_token\": %s", truth(template->id[0] != TEMPLATE_TEXT),
		    truth(template->id[template->count - 1] != TEMPLATE_TEXT));
	PUT(out, ",\n  \"clean_up_tokenization_spaces\": false");
	if (v->longest > 0)
		PUT(out, ",\n  \"model_max_length\": %" PRId64, v->longest);
	if (t->chat_template && utf8_valid(t->chat_template, strlen(t->chat_template))) {
		PUT(out, ",\n  \"chat_template\": ");
		put_string(out, t->chat_template, strlen(t->chat_template));
	} else if (t->chat_template) {
		rh_warn_once("%s: the chat template is not UTF-8 and is left out of tokenizer_config.json", v->where);
	}
	PUT(out, "\n}\n");
}

/* Frees the document. */
static int write_document(struct document *document, const char *dir, const char *name)
{
	char *path = rh_path_join(dir, name);
	int rc = document->rc ? document->rc : path ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(path, document->text.bytes, document->text.length);
	rh_free(path);
	rh_text_free(&document->text);
	return rc;
}

int rh_tokenizer_save_vocabulary(const struct rh_vocabulary *vocabulary, const char *dir)
{
	struct rh_tokenizer *tokenizer;
	struct document whole = {0}, config = {0};
	int rc = rh_tokenizer_from_vocabulary(vocabulary, &tokenizer);
	if (rc)
		return rc;
	put_tokenizer(&whole, tokenizer);
	rc = write_document(&whole, dir, "tokenizer.json");
	put_config(&config, tokenizer, vocabulary);
	if (!rc)
		rc = write_document(&config, dir, "tokenizer_config.json");
	rh_text_free(&config.text);
	rh_tokenizer_destroy(tokenizer);
	return rc;
}
