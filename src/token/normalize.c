#include "token/normalize.h"

#include "core/alloc.h"

#include <limits.h>
#include <string.h>
#include <utf8proc.h>

void normalizers_free(struct normalizers *normalizers)
{
	for (size_t i = 0; i < normalizers->count; i++) {
		pattern_free(normalizers->step[i].pattern);
		rh_text_free(&normalizers->step[i].content);
	}
	rh_free(normalizers->step);
	*normalizers = (struct normalizers){0};
}

void normalize_scratch_free(struct normalize_scratch *scratch)
{
	rh_text_free(&scratch->text[0]);
	rh_text_free(&scratch->text[1]);
	pattern_scratch_free(&scratch->pattern);
	rh_free(scratch->point);
	*scratch = (struct normalize_scratch){0};
}

/* Whether a code point is the same in all normal forms and never joins what stands before it. On the safe side: every mark and every
 * part of Hangul is taken for one that might. */
static int is_plain(uint32_t point)
{
	if (point < 0x80)
		return 1;
	utf8proc_int32_t parts[4];
	int boundary = 0;
	if (point < 0x300 || (point >= 0x1100 && point < 0x1200) || (point >= 0xAC00 && point < 0xD7A4))
		return 0;
	if (point >= 0x4E00 && point < 0xA000)
		return 1;
	utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);
	if (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME ||
	    utf8proc_get_property((utf8proc_int32_t)point)->combining_class)
		return 0;
	utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
	return utf8proc_decompose_char((utf8proc_int32_t)point, parts, 4, options, &boundary) == 1 && parts[0] == (utf8proc_int32_t)point;
}

/* A stretch without code points that utf8proc may know better than the reference does. */
static int form_stretch(struct normalize_scratch *scratch, const char *text, size_t bytes, utf8proc_option_t options, struct rh_text *out)
{
	if (!bytes)
		return 0;
	if (bytes > INT32_MAX / 32)
		return rh_fail(-EINVAL, "a text of %zu bytes is too long for a normal form", bytes);
	utf8proc_ssize_t count = 0;
	for (int again = 0; again < 2; again++) {
		count = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, scratch->point,
		                           (utf8proc_ssize_t)scratch->points, options);
		if (count < 0)
			return rh_fail(-EINVAL, "a normal form failed: %s", utf8proc_errmsg(count));
		if ((size_t)count < scratch->points)
			break;
		int rc = rh_grow(&scratch->point, &scratch->points, (size_t)count + 1, sizeof *scratch->point);
		if (rc)
			return rc;
	}
	count = utf8proc_normalize_utf32(scratch->point, count, options);
	int rc = count < 0 ? rh_fail(-EINVAL, "a normal form failed: %s", utf8proc_errmsg(count)) : 0;
	for (utf8proc_ssize_t i = 0; i < count && !rc; i++) {
		char put[4];
		rc = rh_text_append(out, put, utf8_put((uint32_t)scratch->point[i], put));
	}
	return rc;
}

/* The form changes only stretches between inert code points, so plain text is copied and the rest given to utf8proc piece by piece. A
 * stretch starts at the code point before the first that is not plain (it may compose) and ends before the next plain one. */
static int normal_form(struct normalize_scratch *scratch, const char *text, size_t bytes, int composed, int compatible, struct rh_text *out)
{
	utf8proc_option_t options =
	        UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0);
	size_t copied = 0, before = 0;
	int rc = 0;
	for (size_t i = 0; i < bytes && !rc;) {
		uint32_t point;
		size_t length = utf8_next(text + i, &point);
		if (is_plain(point) || unicode_in(UNICODE_NORMAL_INERT, point)) {
			before = unicode_in(UNICODE_NORMAL_INERT, point) ? i + length : i;
			i += length;
			continue;
		}
		rc = rh_text_append(out, text + copied, before - copied);
		size_t end = i;
		for (; end < bytes; end += length) {
			length = utf8_next(text + end, &point);
			if (is_plain(point) || unicode_in(UNICODE_NORMAL_INERT, point))
				break;
		}
		if (!rc)
			rc = form_stretch(scratch, text + before, end - before, options, out);
		copied = before = i = end;
	}
	return rc ? rc : rh_text_append(out, text + copied, bytes - copied);
}

static int run_form(struct normalize_scratch *scratch, enum normalizer_kind kind, const char *text, size_t bytes, struct rh_text *out,
                    size_t *leading)
{
	int composed = kind == NORMALIZER_NFC || kind == NORMALIZER_NFKC, compatible = kind == NORMALIZER_NFKC || kind == NORMALIZER_NFKD;
	int rc = 0;
	if (*leading) { /* what the first character becomes by itself; what it then composes with does not make it shorter */
		size_t stretch = *leading < bytes ? *leading : bytes;
		rc = normal_form(scratch, text, stretch, composed, compatible, out);
		*leading = out->length;
		out->length = 0;
	}
	if (!rc)
		rc = normal_form(scratch, text, bytes, composed, compatible, out);
	if (*leading > out->length)
		*leading = out->length;
	return rc;
}

static int run_replace(const struct normalizer *step, struct normalize_scratch *scratch, const char *text, size_t bytes,
                       struct rh_text *out, size_t *leading)
{
	struct pattern_search search;
	struct span span;
	size_t old = *leading;
	int rc = pattern_begin(step->pattern, &scratch->pattern, text, bytes, &search), more = rc;
	while (!rc && (more = pattern_next(&search, &span)) > 0) {
		size_t at = out->length;
		if (span.match)
			rc = rh_text_append(out, step->content.bytes, step->content.length);
		else
			rc = rh_text_append(out, text + span.first, span.end - span.first);
		if (span.first < old)
			*leading = span.match || span.end <= old ? out->length : at + (old - span.first);
	}
	return more < 0 ? more : rc;
}

static int run_lowercase(const char *text, size_t bytes, struct rh_text *out, size_t *leading)
{
	int rc = 0;
	size_t old = *leading;
	for (size_t i = 0; i < bytes && !rc;) {
		uint32_t point, lower[2];
		size_t at = i;
		i += utf8_next(text + i, &point);
		int count = unicode_lower(point, lower);
		for (int k = 0; k < count && !rc; k++) {
			char put[4];
			rc = rh_text_append(out, put, utf8_put(lower[k], put));
		}
		if (at < old)
			*leading = out->length;
	}
	return rc;
}

static int run_strip(const struct normalizer *step, const char *text, size_t bytes, struct rh_text *out, size_t *leading)
{
	size_t first = 0, end = bytes;
	uint32_t point;
	while (step->left && first < end) {
		size_t length = utf8_next(text + first, &point);
		if (!unicode_is_space(point))
			break;
		first += length;
	}
	while (step->right && end > first) {
		size_t length = utf8_before(text, end, &point);
		if (!unicode_is_space(point))
			break;
		end -= length;
	}
	*leading = *leading <= first ? 0 : (*leading < end ? *leading : end) - first;
	return rh_text_append(out, text + first, end - first);
}

int normalize(const struct normalizers *normalizers, struct normalize_scratch *scratch, const char *text, size_t bytes, const char **out,
              size_t *out_bytes, size_t *leading)
{
	int rc = 0;
	for (size_t i = 0; i < normalizers->count && !rc; i++) {
		const struct normalizer *step = &normalizers->step[i];
		struct rh_text *to = &scratch->text[i & 1];
		to->length = 0;
		rc = rh_grow(&to->bytes, &to->capacity, bytes + 1, 1); /* at once, since a long text that grows is copied */
		if (rc)
			break;
		switch (step->kind) {
		case NORMALIZER_REPLACE:
			rc = run_replace(step, scratch, text, bytes, to, leading);
			break;
		case NORMALIZER_PREPEND:
			rc = bytes ? rh_text_append(to, step->content.bytes, step->content.length) : 0;
			if (*leading)
				*leading += to->length;
			if (!rc)
				rc = rh_text_append(to, text, bytes);
			break;
		case NORMALIZER_STRIP:
			rc = run_strip(step, text, bytes, to, leading);
			break;
		case NORMALIZER_BERT:
			rc = bert_normalize(step->bert, text, bytes, to, leading);
			break;
		case NORMALIZER_LOWERCASE:
			rc = run_lowercase(text, bytes, to, leading);
			break;
		default:
			rc = run_form(scratch, step->kind, text, bytes, to, leading);
		}
		text = to->bytes ? to->bytes : "";
		bytes = to->length;
	}
	*out = text;
	*out_bytes = bytes;
	return rc;
}
