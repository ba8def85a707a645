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

/* A run over one text. */
struct run {
	const struct pre_steps *steps;
	struct pre_scratch *scratch; /* (steps->count) */
	const struct fragment_sink *out;
};
/* From one step to the next. */
struct next {
	const struct run *run;
	size_t step;
};

static int run_from(const struct run *run, size_t index, const char *text, size_t bytes, size_t leading);

static int take_next(void *context, const struct fragment *fragment)
{
	const struct next *next = context;
	return run_from(next->run, next->step, fragment->text, fragment->bytes, fragment->leading);
}

/* The spans of a text whose delimiters an expression finds, or which are single characters: of a class, or `wanted` where there is none. */
struct splitter {
	int by_pattern;
	int (*is_delimiter)(uint32_t point);
	struct pattern_search search;
	const char *text;
	size_t bytes, offset;
	uint32_t wanted;
};

static int next_character(struct splitter *splitter, struct span *out)
{
	size_t first = splitter->offset, length;
	for (; splitter->offset < splitter->bytes; splitter->offset += length) {
		uint32_t point;
		length = utf8_next(splitter->text + splitter->offset, &point);
		if (splitter->is_delimiter ? !splitter->is_delimiter(point) : point != splitter->wanted)
			continue;
		int is_first = splitter->offset == first; /* else what stands before it goes first */
		splitter->offset += is_first ? length : 0;
		*out = (struct span){first, splitter->offset, is_first};
		return 1;
	}
	*out = (struct span){first, splitter->bytes, 0};
	return first < splitter->bytes;
}

static int next_span(struct splitter *splitter, struct span *out)
{
	return splitter->by_pattern ? pattern_next(&splitter->search, out) : next_character(splitter, out);
}

/* Delimiters join the neighbour they merge with only if that is no delimiter itself. */
static int joins(enum pre_behaviour behaviour, int is_delimiter, int next_is_delimiter)
{
	return (behaviour == PRE_WITH_PREVIOUS && !is_delimiter && next_is_delimiter) ||
	       (behaviour == PRE_WITH_NEXT && is_delimiter && !next_is_delimiter) ||
	       (behaviour == PRE_CONTIGUOUS && is_delimiter == next_is_delimiter);
}

/* Hands on the parts of a text that a split keeps. */
static int cut(struct splitter *splitter, enum pre_behaviour behaviour, int invert, const char *text, size_t leading,
               const struct fragment_sink *out)
{
	struct span span, next;
	int rc = 0, more = next_span(splitter, &span);
	while (!rc && more > 0) {
		int is_delimiter = span.match != invert;
		more = next_span(splitter, &next);
		while (more > 0 && joins(behaviour, is_delimiter, next.match != invert)) {
			span.end = next.end;
			more = next_span(splitter, &next);
			if (behaviour != PRE_CONTIGUOUS) /* pairs alone */
				break;
		}
		if (more >= 0 && (behaviour != PRE_REMOVED || !is_delimiter))
			rc = fragment_give(out, text, span.first, span.end, leading);
		span = next;
	}
	return more < 0 ? more : rc;
}

/* The fragment's text in GPT-2's alphabet. */
static int run_bytes(const char *text, size_t bytes, size_t leading, struct rh_text *to, const struct fragment_sink *out)
{
	size_t lead = 0;
	int rc = rh_grow(&to->bytes, &to->capacity, 2 * bytes + 1, 1); /* at once: a long text that grows is copied */
	to->length = 0;
	for (size_t i = 0; i < bytes && !rc;) {
		char put[256];
		size_t length = 0;
		for (; i < bytes && length <= sizeof put - 4; i++) {
			length += utf8_put(byte_to_point((unsigned char)text[i]), put + length);
			if (i + 1 == leading)
				lead = to->length + length;
		}
		rc = rh_text_append(to, put, length);
	}
	return rc ? rc : fragment_give(out, to->bytes, 0, to->length, lead);
}

static int run_prefix_space(const char *text, size_t bytes, size_t leading, struct rh_text *to, const struct fragment_sink *out)
{
	if (*text == ' ')
		return fragment_give(out, text, 0, bytes, leading);
	to->length = 0;
	int rc = rh_grow(&to->bytes, &to->capacity, bytes + 2, 1);
	if (!rc)
		rc = rh_text_append(to, " ", 1);
	if (!rc)
		rc = rh_text_append(to, text, bytes);
	return rc ? rc : fragment_give(out, to->bytes, 0, to->length, leading ? leading + 1 : 0);
}

static int run_metaspace(const struct pre_step *step, struct rh_text *to, const char *text, size_t bytes, size_t leading,
                         const struct fragment_sink *out)
{
	size_t width = strlen(step->replacement), lead = 0;
	to->length = 0;
	int rc = rh_grow(&to->bytes, &to->capacity, bytes + width + 1, 1);
	int starts = (bytes >= width && !memcmp(text, step->replacement, width)) || (bytes && *text == ' ');
	if (!rc && !starts && (step->scheme == PRE_ALWAYS || (step->scheme == PRE_FIRST && leading))) {
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
		return fragment_give(out, to->bytes, 0, to->length, lead);
	struct splitter splitter = {.text = to->bytes, .bytes = to->length};
	utf8_next(step->replacement, &splitter.wanted);
	return cut(&splitter, PRE_WITH_NEXT, 0, to->bytes, lead, out);
}

static int run_step(const struct pre_step *step, struct pre_scratch *scratch, const char *text, size_t bytes, size_t leading,
                    const struct fragment_sink *out)
{
	struct splitter splitter = {.by_pattern = step->kind == PRE_SPLIT, .text = text, .bytes = bytes};
	int rc;
	switch (step->kind) {
	case PRE_SPLIT:
		rc = pattern_begin(step->pattern, &scratch->pattern, text, bytes, &splitter.search);
		return rc ? rc : cut(&splitter, step->behaviour, step->invert, text, leading, out);
	case PRE_DIGITS:
		splitter.is_delimiter = unicode_is_numeric;
		return cut(&splitter, step->behaviour, 0, text, leading, out);
	case PRE_PUNCTUATION:
		splitter.is_delimiter = bert_is_punctuation;
		return cut(&splitter, step->behaviour, 0, text, leading, out);
	case PRE_PREFIX_SPACE:
		return run_prefix_space(text, bytes, leading, &scratch->text, out);
	case PRE_BYTES:
		return run_bytes(text, bytes, leading, &scratch->text, out);
	case PRE_BERT:
		return bert_cut(text, bytes, leading, out);
	case PRE_METASPACE:
		break;
	}
	return run_metaspace(step, &scratch->text, text, bytes, leading, out);
}

static int run_from(const struct run *run, size_t index, const char *text, size_t bytes, size_t leading)
{
	if (index == run->steps->count)
		return fragment_give(run->out, text, 0, bytes, leading);
	struct next next = {run, index + 1};
	return run_step(&run->steps->step[index], &run->scratch[index], text, bytes, leading, &(struct fragment_sink){take_next, &next});
}

int pretokenize(const struct pre_steps *steps, struct pre_scratch *scratch, const char *text, size_t bytes, size_t leading,
                const struct fragment_sink *out)
{
	return bytes ? run_from(&(struct run){steps, scratch, out}, 0, text, bytes, leading) : 0;
}
