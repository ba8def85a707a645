#include "token/decode.h"

#include "core/alloc.h"
#include "token/pretokenize.h"

#include <string.h>

/* Texts of decoding are pieces with id 0, so that an empty one is kept. */

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void decoders_free(struct decoders *decoders)
{
	for (size_t i = 0; i < decoders->count; i++) {
		pattern_free(decoders->step[i].pattern);
		rh_text_free(&decoders->step[i].content);
	}
	rh_free(decoders->step);
	*decoders = (struct decoders){0};
}

/* One token's bytes; a token with a character that stands for no byte is taken as it is. */
static int add_token_bytes(const char *text, size_t bytes, struct rh_text *out)
{
	size_t before = out->length;
	for (size_t i = 0; i < bytes;) {
		uint32_t point;
		i += utf8_next(text + i, &point);
		int byte = point_to_byte(point);
		if (byte < 0) {
			out->length = before;
			return rh_text_append(out, text, bytes);
		}
		char c = (char)byte;
		int rc = rh_text_append(out, &c, 1);
		if (rc)
			return rc;
	}
	return 0;
}

/* All tokens become one text; what is not UTF-8 in it becomes U+FFFD, one for each longest start of a code point. */
static int run_byte_level(const struct pieces *in, struct pieces *out)
{
	struct rh_text raw = {0};
	int rc = 0;
	for (size_t i = 0; i < in->count && !rc; i++)
		rc = add_token_bytes(in->text.bytes + in->piece[i].first, in->piece[i].end - in->piece[i].first, &raw);
	for (size_t i = 0; i < raw.length && !rc;) {
		int whole;
		size_t length = utf8_lossy(raw.bytes + i, raw.length - i, &whole);
		rc = whole ? rh_text_append(&out->text, raw.bytes + i, length) : rh_text_append(&out->text, replacement, 3);
		i += length;
	}
	rh_text_free(&raw);
	return rc ? rc : pieces_close(out, 0);
}

static int run_metaspace(const struct decoder *step, const struct pieces *in, struct pieces *out)
{
	int rc = 0;
	for (size_t i = 0; i < in->count && !rc; i++) {
		size_t first = out->text.length, length;
		for (size_t at = in->piece[i].first; at < in->piece[i].end && !rc; at += length) {
			uint32_t point;
			length = utf8_next(in->text.bytes + at, &point);
			if (point != step->point)
				rc = rh_text_append(&out->text, in->text.bytes + at, length);
			else if (i || !step->drop_first)
				rc = rh_text_append(&out->text, " ", 1);
		}
		if (!rc)
			rc = pieces_close(out, first);
	}
	return rc;
}

static int hex(int c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that a token <0xNN> spells, or -1. A sign instead of the first digit is let through, as in the library. */
static int spelled_byte(const char *text, size_t bytes)
{
	if (bytes != 6 || memcmp(text, "<0x", 3) || text[5] != '>')
		return -1;
	int high = text[3] == '+' ? 0 : hex((unsigned char)text[3]), low = hex((unsigned char)text[4]);
	return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A run of byte tokens: one text if it is UTF-8, else U+FFFD for each. */
static int flush_bytes(struct rh_text *run, struct pieces *out)
{
	int rc = 0;
	if (run->length && utf8_valid(run->bytes, run->length))
		rc = pieces_add(out, run->bytes, run->length);
	else
		for (size_t i = 0; i < run->length && !rc; i++)
			rc = pieces_add(out, replacement, 3);
	run->length = 0;
	return rc;
}

static int run_byte_fallback(const struct pieces *in, struct pieces *out)
{
	struct rh_text run = {0};
	int rc = 0;
	for (size_t i = 0; i < in->count && !rc; i++) {
		const char *text = in->text.bytes + in->piece[i].first;
		size_t bytes = in->piece[i].end - in->piece[i].first;
		int byte = spelled_byte(text, bytes);
		char c = (char)byte;
		if (byte >= 0) {
			rc = rh_text_append(&run, &c, 1);
			continue;
		}
		rc = flush_bytes(&run, out);
		if (!rc)
			rc = pieces_add(out, text, bytes);
	}
	if (!rc)
		rc = flush_bytes(&run, out);
	rh_text_free(&run);
	return rc;
}

static int run_replace(const struct decoder *step, const struct pieces *in, struct pieces *out)
{
	struct pattern_scratch scratch = {0};
	int rc = 0;
	for (size_t i = 0; i < in->count && !rc; i++) {
		const char *text = in->text.bytes + in->piece[i].first;
		size_t first = out->text.length;
		struct pattern_search search;
		struct span span;
		int more = pattern_begin(step->pattern, &scratch, text, in->piece[i].end - in->piece[i].first, &search);
		rc = more;
		while (!rc && (more = pattern_next(&search, &span)) > 0) {
			if (span.match)
				rc = rh_text_append(&out->text, step->content.bytes, step->content.length);
			else
				rc = rh_text_append(&out->text, text + span.first, span.end - span.first);
		}
		rc = more < 0 ? more : rc;
		if (!rc)
			rc = pieces_close(out, first);
	}
	pattern_scratch_free(&scratch);
	return rc;
}

static int run_strip(const struct decoder *step, const struct pieces *in, struct pieces *out)
{
	int rc = 0;
	for (size_t i = 0; i < in->count && !rc; i++) {
		size_t first = in->piece[i].first, end = in->piece[i].end, length;
		uint32_t point;
		for (int64_t n = 0; n < step->start && first < end; n++, first += length) {
			length = utf8_next(in->text.bytes + first, &point);
			if (point != step->point)
				break;
		}
		for (int64_t n = 0; n < step->stop && end > first; n++, end -= length) {
			length = utf8_before(in->text.bytes, end, &point);
			if (point != step->point)
				break;
		}
		rc = pieces_add(out, in->text.bytes + first, end - first);
	}
	return rc;
}

/* `text` with every `from` replaced by `to`, which is no longer. Returns its length. */
static size_t shorten(char *text, size_t length, const char *from, const char *to)
{
	size_t wide = strlen(from), narrow = strlen(to), out = 0;
	for (size_t i = 0; i < length;) {
		if (length - i >= wide && !memcmp(text + i, from, wide)) {
			memcpy(text + out, to, narrow);
			out += narrow;
			i += wide;
		} else {
			text[out++] = text[i++];
		}
	}
	return out;
}

/* Tokens but the first begin with a blank, unless they go on a word. */
static int run_word_piece(const struct decoder *step, const struct pieces *in, struct pieces *out)
{
	static const char *const clean[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
	                                       {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
	                                       {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
	int rc = 0;
	for (size_t i = 0; i < in->count && !rc; i++) {
		const char *text = in->text.bytes + in->piece[i].first;
		size_t bytes = in->piece[i].end - in->piece[i].first, prefix = step->content.length, first = out->text.length;
		int goes_on = i && bytes >= prefix && !memcmp(text, step->content.bytes, prefix);
		if (i && !goes_on)
			rc = rh_text_append(&out->text, " ", 1);
		if (!rc)
			rc = rh_text_append(&out->text, text + (goes_on ? prefix : 0), bytes - (goes_on ? prefix : 0));
		for (size_t c = 0; !rc && step->cleans && c < sizeof clean / sizeof *clean; c++)
			out->text.length = first + shorten(out->text.bytes + first, out->text.length - first, clean[c][0], clean[c][1]);
		if (!rc)
			rc = pieces_close(out, first);
	}
	return rc;
}

static int run_step(const struct decoder *step, const struct pieces *in, struct pieces *out)
{
	switch (step->kind) {
	case DECODER_BYTE_LEVEL:
		return run_byte_level(in, out);
	case DECODER_METASPACE:
		return run_metaspace(step, in, out);
	case DECODER_BYTE_FALLBACK:
		return run_byte_fallback(in, out);
	case DECODER_REPLACE:
		return run_replace(step, in, out);
	case DECODER_STRIP:
		return run_strip(step, in, out);
	case DECODER_WORD_PIECE:
		return run_word_piece(step, in, out);
	case DECODER_FUSE:
		break;
	}
	return pieces_add(out, in->text.bytes, in->text.length); /* the texts already lie one after another */
}

int decode_texts(const struct decoders *decoders, struct pieces *texts, struct pieces *other, struct rh_text *out)
{
	int rc = 0;
	for (size_t i = 0; i < decoders->count && !rc; i++) {
		pieces_clear(other);
		rc = run_step(&decoders->step[i], texts, other);
		struct pieces done = *other;
		*other = *texts;
		*texts = done;
	}
	for (size_t i = 0; i < texts->count && !rc; i++) {
		if (i && !decoders->present)
			rc = rh_text_append(out, " ", 1);
		if (!rc)
			rc = rh_text_append(out, texts->text.bytes + texts->piece[i].first, texts->piece[i].end - texts->piece[i].first);
	}
	return rc;
}
