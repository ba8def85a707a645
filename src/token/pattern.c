#include "token/pattern.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "token/pattern_parse.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct pattern {
	pcre2_code *code;
	int jit;
	uint8_t *letter; /* of each code point */
	char *where;
	struct rh_text source;
	int literal;
};

void pattern_free(struct pattern *pattern)
{
	if (!pattern)
		return;
	pcre2_code_free(pattern->code);
	rh_free(pattern->letter);
	rh_free(pattern->where);
	rh_text_free(&pattern->source);
	rh_free(pattern);
}

const char *pattern_source(const struct pattern *pattern, size_t *bytes, int *literal)
{
	*bytes = pattern->source.length;
	*literal = pattern->literal;
	return pattern->source.bytes;
}

void pattern_scratch_free(struct pattern_scratch *scratch)
{
	rh_free(scratch->letter);
	pcre2_match_data_free(scratch->data);
	pcre2_match_context_free(scratch->context);
	*scratch = (struct pattern_scratch){0};
}

/* Where a set begins or ends. */
struct edge {
	uint32_t point, set;
};

static int by_place(const void *a, const void *b)
{
	const struct edge *x = a, *y = b;
	return x->point < y->point ? -1 : x->point > y->point;
}

/* The alphabet: a letter for each combination of sets that some code point is in. */
struct alphabet {
	uint64_t *member; /* [letter][words]: a bit for each set */
	size_t words;
	unsigned letters;
};

static int letter_of(struct alphabet *alphabet, const uint64_t *now, const char *where, unsigned *out)
{
	size_t bytes = alphabet->words * sizeof(uint64_t);
	unsigned i = 0;
	while (i < alphabet->letters && memcmp(alphabet->member + i * alphabet->words, now, bytes))
		i++;
	if (i == 256)
		return rh_fail(-EINVAL,
		               "%s: a regular expression or string tells more than 256 kinds of characters apart; that is not supported",
		               where);
	if (i == alphabet->letters) {
		memcpy(alphabet->member + i * alphabet->words, now, bytes);
		alphabet->letters++;
	}
	*out = i;
	return 0;
}

/* Sweeps over the edges of all sets and gives each stretch between two of them its letter. */
static int make_alphabet(const struct skeleton *skeleton, const char *where, struct alphabet *alphabet, uint8_t *letter)
{
	size_t edges = 0, words = skeleton->sets / 64 + 1, n = 0;
	for (size_t s = 0; s < skeleton->sets; s++)
		edges += 2 * skeleton->set[s].count;
	struct edge *edge = rh_alloc(edges + 1, sizeof *edge);
	uint64_t *now = rh_alloc(words, sizeof *now);
	alphabet->words = words;
	alphabet->member = rh_alloc(256 * words, sizeof *alphabet->member);
	int rc = edge && now && alphabet->member ? 0 : -ENOMEM;
	for (size_t s = 0; s < skeleton->sets && !rc; s++)
		for (size_t i = 0; i < skeleton->set[s].count; i++) {
			edge[n++] = (struct edge){skeleton->set[s].range[i].first, (uint32_t)s};
			edge[n++] = (struct edge){skeleton->set[s].range[i].last + 1, (uint32_t)s};
		}
	if (!rc)
		qsort(edge, edges, sizeof *edge, by_place);
	uint32_t from = 0;
	for (n = 0; !rc && from < UNICODE_END;) {
		for (; n < edges && edge[n].point == from; n++)
			now[edge[n].set / 64] ^= 1ull << edge[n].set % 64;
		uint32_t to = n < edges ? edge[n].point : UNICODE_END;
		unsigned which = 0;
		rc = letter_of(alphabet, now, where, &which);
		if (!rc)
			memset(letter + from, (int)which, to - from);
		from = to;
	}
	rh_free(edge);
	rh_free(now);
	return rc;
}

static int append_class(struct rh_text *out, const struct alphabet *alphabet, uint32_t set)
{
	int rc = 0, any = 0;
	for (unsigned l = 0; l < alphabet->letters && !rc; l++) {
		if (!(alphabet->member[l * alphabet->words + set / 64] >> set % 64 & 1))
			continue;
		rc = rh_text_printf(out, any ? "\\x%02x" : "[\\x%02x", l);
		any = 1;
	}
	return rc ? rc : any ? rh_text_append(out, "]", 1) : rh_text_append(out, "(?!)", 4);
}

static int expand(const struct skeleton *skeleton, const struct alphabet *alphabet, struct rh_text *out)
{
	int rc = 0;
	for (size_t i = 0; i < skeleton->text.length && !rc;) {
		uint32_t set;
		if (skeleton->text.bytes[i] != PATTERN_SET) {
			rc = rh_text_append(out, skeleton->text.bytes + i++, 1);
			continue;
		}
		memcpy(&set, skeleton->text.bytes + i + 1, sizeof set);
		rc = append_class(out, alphabet, set);
		i += 1 + sizeof set;
	}
	return rc;
}

static int compile(const struct rh_text *text, struct pattern *pattern)
{
	int fault;
	PCRE2_SIZE at;
	pattern->code = pcre2_compile((PCRE2_SPTR)(text->bytes ? text->bytes : ""), text->length, PCRE2_NO_AUTO_CAPTURE, &fault, &at, NULL);
	if (!pattern->code) {
		PCRE2_UCHAR message[160] = {0};
		pcre2_get_error_message(fault, message, sizeof message);
		return rh_fail(-EINVAL, "%s: a regular expression is refused: %s", pattern->where, (const char *)message);
	}
	pattern->jit = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
	return 0;
}

static int finish(struct skeleton *skeleton, const char *where, const char *source, size_t bytes, struct pattern **out)
{
	struct alphabet alphabet = {0};
	struct rh_text text = {0};
	struct pattern *pattern = rh_alloc(1, sizeof *pattern);
	int rc = pattern && (pattern->where = rh_strdup(where)) && (pattern->letter = rh_alloc(UNICODE_END, 1)) ? 0 : -ENOMEM;
	if (!rc)
		rc = rh_text_append(&pattern->source, source, bytes);
	if (!rc)
		rc = make_alphabet(skeleton, where, &alphabet, pattern->letter);
	if (!rc)
		rc = expand(skeleton, &alphabet, &text);
	if (!rc)
		rc = compile(&text, pattern);
	rh_text_free(&text);
	rh_free(alphabet.member);
	if (rc)
		pattern_free(pattern);
	else
		*out = pattern;
	return rc;
}

int pattern_compile(const char *source, size_t bytes, const char *where, struct pattern **out)
{
	struct skeleton skeleton = {0};
	int rc = pattern_parse(source, bytes, where, &skeleton);
	if (!rc)
		rc = finish(&skeleton, where, source, bytes, out);
	skeleton_free(&skeleton);
	return rc;
}

int pattern_compile_literal(const char *text, size_t bytes, const char *where, struct pattern **out)
{
	struct skeleton skeleton = {0};
	int rc = 0;
	for (size_t i = 0; i < bytes && !rc;) {
		struct set one = {0};
		uint32_t point;
		i += utf8_next(text + i, &point);
		rc = set_add(&one, point, point);
		if (!rc)
			rc = skeleton_add(&skeleton, &one);
		set_free(&one);
	}
	if (!rc)
		rc = finish(&skeleton, where, text, bytes, out);
	if (!rc)
		(*out)->literal = 1;
	skeleton_free(&skeleton);
	return rc;
}

/* An expression that goes back over a run of blanks takes a few steps for each. One whose steps grow faster than the text is ended. */
static void limit_steps(struct pattern_scratch *scratch, size_t letters)
{
	enum { LEAST_STEPS = 10000000, STEPS = 16 };
	int64_t steps = rh_max(LEAST_STEPS, (int64_t)letters * STEPS);
	pcre2_set_match_limit(scratch->context, (uint32_t)rh_min(steps, UINT32_MAX));
}

/* The text in letters; how many there are. */
static int spell(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text, size_t bytes, size_t *letters)
{
	int rc = rh_grow(&scratch->letter, &scratch->letters, bytes + 1, 1);
	if (rc)
		return rc;
	if ((!scratch->data && !(scratch->data = pcre2_match_data_create(1, NULL))) ||
	    (!scratch->context && !(scratch->context = pcre2_match_context_create(NULL))))
		return rh_fail(-ENOMEM, "out of host memory for matching");
	size_t n = 0;
	for (size_t i = 0; i < bytes;) {
		unsigned char c = (unsigned char)text[i];
		uint32_t point;
		if (c < 0x80) {
			scratch->letter[n++] = pattern->letter[c];
			i++;
		} else {
			i += utf8_next(text + i, &point);
			scratch->letter[n++] = pattern->letter[point];
		}
	}
	*letters = n;
	limit_steps(scratch, n);
	return 0;
}

static int match(const struct pattern *pattern, struct pattern_scratch *scratch, size_t letters, size_t from)
{
	int rc = PCRE2_ERROR_JIT_STACKLIMIT;
	if (pattern->jit)
		rc = pcre2_jit_match(pattern->code, scratch->letter, letters, from, 0, scratch->data, scratch->context);
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter takes its memory from the heap */
		rc = pcre2_match(pattern->code, scratch->letter, letters, from, PCRE2_NO_JIT, scratch->data, scratch->context);
	if (rc >= 0)
		return 1;
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	PCRE2_UCHAR message[160] = {0};
	pcre2_get_error_message(rc, message, sizeof message);
	return rh_fail(
	        -EINVAL,
	        "%s: a regular expression gave up on a text of %zu characters: %s; break up its longest run of one kind of character",
	        pattern->where, letters, (const char *)message);
}

/* Moves a place in the text on by letters. */
static size_t walk(const char *text, size_t at, size_t letters)
{
	for (; letters; letters--) {
		unsigned char c = (unsigned char)text[at];
		at += c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
	}
	return at;
}

int pattern_begin(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text, size_t bytes,
                  struct pattern_search *out)
{
	*out = (struct pattern_search){
	        .pattern = pattern, .scratch = scratch, .text = text, .bytes = bytes, .match_end = SIZE_MAX, .first = !bytes};
	return bytes ? spell(pattern, scratch, text, bytes, &out->letters) : 0;
}

int pattern_next(struct pattern_search *search, struct span *out)
{
	if (search->has_match) {
		search->has_match = 0;
		*out = search->match;
		return 1;
	}
	while (!search->is_over && search->first <= search->letters) {
		int found = match(search->pattern, search->scratch, search->letters, search->first);
		if (found < 0)
			return found;
		if (!found)
			break;
		const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(search->scratch->data);
		if (ends[0] == ends[1] && ends[1] == search->match_end) { /* an empty match right after a match is none */
			search->first++;
			continue;
		}
		size_t gap = search->covered_bytes, first = walk(search->text, gap, ends[0] - search->covered),
		       end = walk(search->text, first, ends[1] - ends[0]);
		search->first = search->match_end = search->covered = ends[1];
		search->covered_bytes = end;
		search->match = (struct span){first, end, 1};
		search->has_match = first > gap;
		*out = search->has_match ? (struct span){gap, first, 0} : search->match;
		return 1;
	}
	if (search->is_over)
		return 0;
	search->is_over = 1;
	*out = (struct span){search->covered_bytes, search->bytes, 0};
	return search->covered_bytes < search->bytes || !search->bytes;
}
