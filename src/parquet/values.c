/* The values of a page in each encoding, and a chunk's dictionary. */
#include "core/alloc.h"
#include "parquet/parquet_internal.h"

#include <string.h>

size_t parquet_leaf_width(const struct parquet_leaf *leaf)
{
	static const uint8_t widths[PARQUET_TYPES] = {0, 4, 8, 12, 4, 8, 0, 0};
	return leaf->type == PARQUET_FIXED_BYTES ? (size_t)leaf->length : widths[leaf->type];
}

static int is_whole(enum parquet_type type)
{
	return type == PARQUET_INT32 || type == PARQUET_INT64;
}

/* Lengths, then the bytes of all values. */
static int open_lengths(const uint8_t *at, int64_t entries, struct parquet_values *values)
{
	int rc = parquet_deltas_open(at, values->end, entries, &values->tails);
	if (rc)
		return rc;
	values->at = parquet_deltas_end(&values->tails);
	return values->at ? 0 : -EINVAL;
}

int parquet_values_open(struct parquet_column *column, int encoding, const uint8_t *at, const uint8_t *end, int64_t entries)
{
	struct parquet_values *values = &column->values;
	enum parquet_type type = column->leaf->type;
	struct rh_text text = values->text;
	text.length = 0;
	*values = (struct parquet_values){.encoding = (enum parquet_encoding)encoding, .at = at, .end = end, .text = text};
	switch (encoding) {
	case ENCODING_PLAIN:
		return 0;
	case ENCODING_OLD_DICTIONARY:
	case ENCODING_DICTIONARY: /* a byte tells how many bits a number has; there is none where the page has no values */
		values->encoding = ENCODING_DICTIONARY;
		values->runs = (struct parquet_runs){.at = at == end ? at : at + 1, .end = end, .width = at == end ? 0 : *at};
		return values->runs.width > 32 ? -EINVAL : 0;
	case ENCODING_RUNS: /* of booleans, behind their length */
		if (type != PARQUET_BOOLEAN)
			return -ENOTSUP;
		values->runs = (struct parquet_runs){.at = end - at < 4 ? end : at + 4, .end = end, .width = 1};
		return 0;
	case ENCODING_DELTAS:
		if (!is_whole(type))
			return -ENOTSUP;
		return at == end ? 0 : parquet_deltas_open(at, end, entries, &values->deltas);
	case ENCODING_DELTA_LENGTHS:
		if (type != PARQUET_BYTES)
			return -ENOTSUP;
		return at == end ? 0 : open_lengths(at, entries, values);
	case ENCODING_DELTA_TEXTS: {
		if (type != PARQUET_BYTES && type != PARQUET_FIXED_BYTES)
			return -ENOTSUP;
		int rc = at == end ? 0 : parquet_deltas_open(at, end, entries, &values->deltas);
		const uint8_t *tails = rc || at == end ? at : parquet_deltas_end(&values->deltas);
		return rc || at == end ? rc : tails ? open_lengths(tails, entries, values) : -EINVAL;
	}
	case ENCODING_SPLIT:
		return parquet_leaf_width(column->leaf) ? 0 : -ENOTSUP;
	default:
		return -ENOTSUP;
	}
}

/* The next `length` bytes. */
static int take(struct parquet_values *values, int64_t length, struct parquet_span *out)
{
	if (length < 0 || length > values->end - values->at)
		return -EINVAL;
	*out = (struct parquet_span){values->at, (size_t)length};
	values->at += length;
	return 0;
}

static int next_plain(struct parquet_column *column, struct parquet_span *out)
{
	struct parquet_values *values = &column->values;
	uint32_t length;
	switch (column->leaf->type) {
	case PARQUET_BOOLEAN:
		if (values->bit >= (uint64_t)(values->end - values->at) * 8)
			return -EINVAL;
		*values->scratch = values->at[values->bit / 8] >> values->bit % 8 & 1;
		values->bit++;
		*out = (struct parquet_span){values->scratch, 1};
		return 0;
	case PARQUET_BYTES:
		if (take(values, sizeof length, out))
			return -EINVAL;
		memcpy(&length, out->bytes, sizeof length);
		return take(values, length, out);
	default:
		return take(values, (int64_t)parquet_leaf_width(column->leaf), out);
	}
}

static int next_of_dictionary(struct parquet_column *column, struct parquet_span *out)
{
	uint32_t number, length;
	size_t width = parquet_leaf_width(column->leaf);
	if (parquet_runs_next(&column->values.runs, &number) || number >= column->dictionary_entries)
		return -EINVAL;
	if (width) {
		*out = (struct parquet_span){column->dictionary.bytes + number * width, width};
		return 0;
	}
	const uint8_t *entry = column->dictionary.bytes + ((const uint32_t *)(const void *)column->entry.bytes)[number];
	memcpy(&length, entry, sizeof length);
	*out = (struct parquet_span){entry + sizeof length, length};
	return 0;
}

/* The first bytes of the text before, and some more. */
static int next_delta_text(struct parquet_column *column, struct parquet_span *out)
{
	struct parquet_values *values = &column->values;
	int64_t kept, length;
	if (parquet_deltas_next(&values->deltas, &kept) || parquet_deltas_next(&values->tails, &length) || kept < 0 ||
	    kept > (int64_t)values->text.length || take(values, length, out))
		return -EINVAL;
	values->text.length = (size_t)kept;
	int rc = rh_text_append(&values->text, out->bytes, out->length);
	*out = (struct parquet_span){(const uint8_t *)values->text.bytes, values->text.length};
	return rc ? rc : column->leaf->type == PARQUET_FIXED_BYTES && out->length != (size_t)column->leaf->length ? -EINVAL : 0;
}

/* Byte k of all values lies before byte k + 1 of any. */
static int next_split(struct parquet_column *column, struct parquet_span *out)
{
	struct parquet_values *values = &column->values;
	size_t width = parquet_leaf_width(column->leaf), count = (size_t)(values->end - values->at) / width;
	if (values->index >= count)
		return -EINVAL;
	values->text.length = 0;
	int rc = 0;
	for (size_t k = 0; !rc && k < width; k++)
		rc = rh_text_append(&values->text, values->at + k * count + values->index, 1);
	values->index++;
	*out = (struct parquet_span){(const uint8_t *)values->text.bytes, width};
	return rc;
}

static int next_number(struct parquet_column *column, struct parquet_span *out)
{
	struct parquet_values *values = &column->values;
	int64_t number;
	if (parquet_deltas_next(&values->deltas, &number))
		return -EINVAL;
	memcpy(values->scratch, &number, sizeof number);
	*out = (struct parquet_span){values->scratch, parquet_leaf_width(column->leaf)};
	return 0;
}

int parquet_values_next(struct parquet_column *column, struct parquet_span *out)
{
	struct parquet_values *values = &column->values;
	uint32_t bit;
	int64_t length;
	switch (values->encoding) {
	case ENCODING_PLAIN:
		return next_plain(column, out);
	case ENCODING_DICTIONARY:
		return next_of_dictionary(column, out);
	case ENCODING_RUNS:
		if (parquet_runs_next(&values->runs, &bit))
			return -EINVAL;
		*values->scratch = bit & 1;
		*out = (struct parquet_span){values->scratch, 1};
		return 0;
	case ENCODING_DELTAS:
		return next_number(column, out);
	case ENCODING_DELTA_LENGTHS:
		return parquet_deltas_next(&values->tails, &length) ? -EINVAL : take(values, length, out);
	case ENCODING_DELTA_TEXTS:
		return next_delta_text(column, out);
	case ENCODING_SPLIT:
		return next_split(column, out);
	case ENCODING_OLD_DICTIONARY: /* is ENCODING_DICTIONARY once opened */
	case ENCODING_BIT_PACKED:
		break;
	}
	return -EINVAL;
}

int parquet_dictionary_open(struct rh_parquet *file, struct parquet_column *column, size_t bytes, int64_t entries)
{
	size_t width = parquet_leaf_width(column->leaf);
	uint32_t length;
	column->dictionary_entries = 0;
	if (column->leaf->type == PARQUET_BOOLEAN || entries < 0 || (size_t)entries > bytes / (width ? width : sizeof length))
		return -EINVAL;
	int rc = width ? 0 : parquet_buffer_reserve(file, &column->entry, (size_t)entries * sizeof(uint32_t));
	if (rc)
		return rc;
	uint32_t *entry = (uint32_t *)(void *)column->entry.bytes;
	for (size_t i = 0, at = 0; !width && i < (size_t)entries; i++, at += sizeof length + length) {
		if (bytes - at < sizeof length)
			return -EINVAL;
		memcpy(&length, column->dictionary.bytes + at, sizeof length);
		if (length > bytes - at - sizeof length)
			return -EINVAL;
		entry[i] = (uint32_t)at;
	}
	column->dictionary_entries = (size_t)entries;
	return 0;
}
