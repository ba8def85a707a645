#include "token/bert.h"

#include "token/unicode.h"

#include "token/bert_table.inc"

#define IN(table, point) is_in(table, sizeof(table) / sizeof *(table), point)

static int is_in(const struct unicode_range *range, size_t count, uint32_t point)
{
	size_t low = 0, high = count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (range[middle].last < point)
			low = middle + 1;
		else
			high = middle;
	}
	return low < count && range[low].first <= point;
}

static int put(enum bert_step step, uint32_t point, const char *text, size_t length, struct rh_text *out)
{
	int rc;
	switch (step) {
	case BERT_CLEAN:
		if (IN(removed, point))
			return 0;
		return IN(blanks, point) ? rh_text_append(out, " ", 1) : rh_text_append(out, text, length);
	case BERT_MARKS:
		return IN(marks, point) ? 0 : rh_text_append(out, text, length);
	case BERT_CHINESE:
		break;
	}
	if (!IN(chinese, point))
		return rh_text_append(out, text, length);
	rc = rh_text_append(out, " ", 1);
	if (!rc)
		rc = rh_text_append(out, text, length);
	return rc ? rc : rh_text_append(out, " ", 1);
}

int bert_normalize(enum bert_step step, const char *text, size_t bytes, struct rh_text *out, size_t *leading)
{
	size_t old = *leading, length;
	int rc = rh_text_append(out, "", 0);
	for (size_t i = 0; i < bytes && !rc; i += length) {
		uint32_t point;
		length = utf8_next(text + i, &point);
		rc = put(step, point, text + i, length, out);
		if (i < old)
			*leading = out->length;
	}
	return rc;
}

int bert_is_punctuation(uint32_t point)
{
	return IN(punctuation, point);
}

int bert_cut(const char *text, size_t bytes, size_t leading, const struct fragment_sink *out)
{
	size_t begin = 0, length;
	int rc = 0;
	for (size_t i = 0; i < bytes && !rc; i += length) {
		uint32_t point;
		length = utf8_next(text + i, &point);
		int is_white = IN(white, point), is_mark = bert_is_punctuation(point);
		if (!is_white && !is_mark)
			continue;
		rc = fragment_give(out, text, begin, i, leading);
		if (!rc && is_mark)
			rc = fragment_give(out, text, i, i + length, leading);
		begin = i + length;
	}
	return rc ? rc : fragment_give(out, text, begin, bytes, leading);
}
