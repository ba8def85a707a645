#include "token/pretokenize.h"

#include "core/alloc.h"
#include "token/bert.h"

#include <string.h>

const char pre_gpt2_expression[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void pre_steps_free(struct pre_steps *steps)
{
	for (size_t i = 0; i < steps->count; i++)
		pattern_free(steps->step[i].pattern);
	rh_free(steps->step);
	*steps = (struct pre_steps){0};
}

void pre_scratch_free(struct pre_scratch *scratch)
{
	pattern_scratch_free(&scratch->pattern);
	rh_free(scratch->spans.span);
	rh_text_free(&scratch->text);
	*scratch = (struct pre_scratch){0};
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the 68 other bytes are U+0100 on in their order. */
static int stands_for_itself(uint32_t byte)
{
	return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

static uint32_t byte_to_point(unsigned char byte)
{
	if (stands_for_itself(byte))
		return byte;
	return byte <= 0x20 ? 0x100u + byte : byte <= 0xA0 ? 0x121u + (byte - 0x7Fu) : 0x143u;
}

int point_to_byte(uint32_t point)
{
	if (point < 0x100)
		return stands_for_itself(point) ? (int)point : -1;
	if (point > 0x143)
		return -1;
	return point <= 0x120 ? (int)(point - 0x100) : point <= 0x142 ? (int)(point - 0x121 + 0x7F) : 0xAD;
}

/* The parts of a text that a split keeps. Delimiters join the neighbour they merge with only if that is no delimiter itself. */
static int cut(const struct spans *spans, enum pre_behaviour behaviour, int invert, const char *text, size_t leading, struct pieces *out)
{
	int rc = 0;
	for (size_t i = 0; i < spans->count && !rc;) {
		size_t next = i + 1;
		int delimiter = spans->span[i].match != invert;
		if (behaviour == PRE_CONTIGUOUS)
			while (next < spans->count && (spans->span[next].match != invert) == delimiter)
				next++;
		else if (behaviour == PRE_WITH_PREVIOUS)
			next += !delimiter && next < spans->count && spans->span[next].match != invert;
		else if (behaviour == PRE_WITH_NEXT)
			next += delimiter && next < spans->count && spans->span[next].match == invert;
		if (spans->is_cut && next == spans->count)
			break; /* what would follow might join it */
		size_t first = spans->span[i].first, end = spans->span[next - 1].end;
		if (behaviour != PRE_REMOVED || !delimiter)
			rc = pieces_add(out, text + first, end - first, -1, piece_leading(leading, first, end));
		i = next;
	}
	return rc;
}

static int add_span(struct spans *spans, size_t first, size_t end, int match)
{
	if (first == end)
		return 0;
	int rc = rh_grow(&spans->span, &spans->capacity, spans->count + 1, sizeof *spans->span);
	if (!rc)
		spans->span[spans->count++] = (struct span){first, end, match};
	return rc;
}

/* Spans where single characters are the delimiters: `wanted` itself, or numeric ones if it is 0. */
static int find_characters(struct spans *spans, const char *text, size_t bytes, uint32_t wanted)
{
	size_t done = 0;
	int rc = 0;
	spans->count = 0;
	spans->is_cut = 0;
	for (size_t i = 0; i < bytes && !rc;) {
		if (spans->most && spans->count >= spans->most) {
			spans->is_cut = 1;
			return 0;
		}
		uint32_t point;
		size_t length = utf8_next(text + i, &point);
		if (wanted ? point == wanted : unicode_is_numeric(point)) {
			rc = add_span(spans, done, i, 0);
			if (!rc)
				rc = add_span(spans, i, i + length, 1);
			done = i + length;
		}
		i += length;
	}
	return rc ? rc : add_span(spans, done, bytes, 0);
}

static int run_bytes(const char *text, size_t bytes, size_t leading, struct pieces *out)
{
	size_t first = out->text.length, lead = 0;
	int rc = 0;
	for (size_t i = 0; i < bytes && !rc;) {
		char put[256];
		size_t length = 0;
		for (; i < bytes && length <= sizeof put - 4; i++) {
			length += utf8_put(byte_to_point((unsigned char)text[i]), put + length);
			if (i + 1 == leading)
				lead = out->text.length - first + length;
		}
		rc = rh_text_append(&out->text, put, length);
	}
	return rc ? rc : pieces_close(out, first, -1, lead);
}

static int run_metaspace(const struct pre_step *step, struct pre_scratch *scratch, const char *text, size_t bytes, size_t leading,
                         struct pieces *out)
{
	size_t width = strlen(step->replacement), lead = 0;
	uint32_t point;
	utf8_next(step->replacement, &point);
	struct rh_text *to = &scratch->text;
	to->length = 0;
	int rc = 0, starts = (bytes >= width && !memcmp(text, step->replacement, width)) || (bytes && *text == ' ');
	if (!starts && (step->scheme == PRE_ALWAYS || (step->scheme == PRE_FIRST && leading))) {
		rc = rh_text_append(to, step->replacement, width);
		lead = leading ? to->length : 0;
	}
	for (size_t i = 0; i < bytes && !rc; i++) {
		rc = text[i] == ' ' ? rh_text_append(to, step->replacement, width) : rh_text_append(to, text + i, 1);
		if (i < leading)
			lead = to->length;
	}
	if (rc)
		return rc;
	if (!step->cut)
		return pieces_add(out, to->bytes, to->length, -1, lead);
	rc = find_characters(&scratch->spans, to->bytes, to->length, point);
	return rc ? rc : cut(&scratch->spans, PRE_WITH_NEXT, 0, to->bytes, lead, out);
}

static int run_step(const struct pre_step *step, struct pre_scratch *scratch, const char *text, size_t bytes, size_t leading,
                    struct pieces *out)
{
	int rc;
	size_t first = out->text.length;
	switch (step->kind) {
	case PRE_SPLIT:
		rc = pattern_find(step->pattern, &scratch->pattern, text, bytes, &scratch->spans);
		return rc ? rc : cut(&scratch->spans, step->behaviour, step->invert, text, leading, out);
	case PRE_DIGITS:
		rc = find_characters(&scratch->spans, text, bytes, 0);
		return rc ? rc : cut(&scratch->spans, step->behaviour, 0, text, leading, out);
	case PRE_PREFIX_SPACE:
		rc = *text == ' ' ? 0 : rh_text_append(&out->text, " ", 1);
		leading += leading ? out->text.length - first : 0;
		if (!rc)
			rc = rh_text_append(&out->text, text, bytes);
		return rc ? rc : pieces_close(out, first, -1, leading);
	case PRE_BYTES:
		return run_bytes(text, bytes, leading, out);
	case PRE_BERT:
		return bert_cut(text, bytes, leading, out);
	case PRE_METASPACE:
		break;
	}
	return run_metaspace(step, scratch, text, bytes, leading, out);
}

int pretokenize(const struct pre_steps *steps, struct pre_scratch *scratch, size_t most, struct pieces *pieces, struct pieces *other,
                int *is_cut)
{
	int rc = 0;
	scratch->spans.most = most ? 2 * most + 2 : 0; /* what matched and what lies between */
	scratch->spans.is_cut = *is_cut = 0;
	for (size_t s = 0; s < steps->count && !rc; s++) {
		int ends = 0;
		pieces_clear(other);
		for (size_t i = 0; i < pieces->count && !rc && !ends; i++) {
			const struct piece *piece = &pieces->piece[i];
			const char *text = pieces->text.bytes + piece->first;
			if (piece->id >= 0)
				rc = pieces_add(other, text, piece->end - piece->first, piece->id, 0);
			else
				rc = run_step(&steps->step[s], scratch, text, piece->end - piece->first, piece->leading, other);
			ends = scratch->spans.is_cut || (most && other->count >= most && i + 1 < pieces->count);
			*is_cut |= ends;
		}
		struct pieces done = *other;
		*other = *pieces;
		*pieces = done;
	}
	return rc;
}
