/* A leaf's chunk, page by page: heads, decompression, and the levels of each entry. Values are read by values.c. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "parquet/parquet_internal.h"

#include <string.h>
#include <zlib.h>

enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_2 };

/* PageHeader, with the members of whichever page it is. */
struct page_head {
	int64_t type, unpacked, packed, crc;
	int has_crc, is_packed;
	int64_t entries, encoding;
	int64_t definition_encoding, repetition_encoding; /* PAGE_DATA */
	int64_t definition_bytes, repetition_bytes;       /* PAGE_DATA_2 */
};

int parquet_fail_column(const struct rh_parquet *file, const struct parquet_column *column, const char *what)
{
	return rh_fail(-EINVAL, "%s (row %lld): column '%.80s' is damaged: %s; fetch the file again", rh_file_path(file->file),
	               (long long)file->row + 1, column->leaf->path, what);
}

int parquet_check_room(const struct rh_parquet *file)
{
	int64_t bytes = file->buffer_bytes + file->value_bytes + file->text_bytes;
	if (bytes <= file->limit)
		return 0;
	return rh_fail(-EINVAL,
	               "%s (row %lld): reading it takes more than the %.1f MiB of memory that are left for a row; write the file with "
	               "smaller pages (data_page_size of pyarrow's write_table), split the row, or raise max_ram",
	               rh_file_path(file->file), (long long)file->row + 1, (double)file->limit / 1048576);
}

void parquet_buffer_free(struct rh_parquet *file, struct parquet_buffer *buffer)
{
	rh_free(buffer->bytes);
	file->buffer_bytes -= (int64_t)buffer->capacity;
	*buffer = (struct parquet_buffer){0};
}

int parquet_buffer_reserve(struct rh_parquet *file, struct parquet_buffer *buffer, size_t bytes)
{
	bytes += !bytes; /* so that there is a place to point to */
	if (bytes <= buffer->capacity)
		return 0;
	parquet_buffer_free(file, buffer);
	file->buffer_bytes += (int64_t)bytes;
	int rc = parquet_check_room(file);
	if (!rc && !(buffer->bytes = rh_alloc(bytes, 1)))
		rc = -ENOMEM;
	buffer->capacity = rc ? 0 : bytes;
	file->buffer_bytes -= rc ? (int64_t)bytes : 0;
	file->peak_bytes = rh_max(file->peak_bytes, file->buffer_bytes);
	return rc;
}

/* DataPageHeader, DictionaryPageHeader and DataPageHeaderV2, which number their members differently. */
static void read_page_members(struct thrift *in, int page, struct page_head *out)
{
	int64_t other;
	int64_t *const first[] = {NULL, &out->entries, &out->encoding, &out->definition_encoding, &out->repetition_encoding};
	int64_t *const dictionary[] = {NULL, &out->entries, &out->encoding, NULL, NULL};
	int64_t *const second[] = {NULL, &out->entries, &other, &other, &out->encoding, &out->definition_bytes, &out->repetition_bytes};
	int64_t *const *numbers = page == PAGE_DATA ? first : page == PAGE_DICTIONARY ? dictionary : second;
	int count = page == PAGE_DATA_2 ? 7 : 5;
	for (struct thrift_field field = {0}; thrift_next(in, &field);) {
		if (field.id < count && numbers[field.id])
			*numbers[field.id] = thrift_int(in, &field);
		else if (page == PAGE_DATA_2 && field.id == 7)
			out->is_packed = thrift_bool(in, &field);
		else
			thrift_skip(in, &field);
	}
}

static void read_head_members(struct thrift *in, struct page_head *out)
{
	int64_t *const numbers[] = {NULL, &out->type, &out->unpacked, &out->packed, &out->crc};
	for (struct thrift_field field = {0}; thrift_next(in, &field);) {
		int page = field.id == 5 ? PAGE_DATA : field.id == 7 ? PAGE_DICTIONARY : field.id == 8 ? PAGE_DATA_2 : -1;
		if (field.id < 5)
			*numbers[field.id] = thrift_int(in, &field);
		else if (page == out->type && field.type == THRIFT_STRUCT)
			read_page_members(in, page, out);
		else
			thrift_skip(in, &field);
		out->has_crc |= field.id == 4;
	}
}

/* The head of the next page; the column then stands behind it. How long a head is, it does not say. */
static int read_head(struct rh_parquet *file, struct parquet_column *column, struct page_head *out)
{
	enum { USUAL = 512, GROWTH = 16 };
	size_t left = (size_t)(column->end - column->at);
	for (size_t bytes = USUAL;; bytes *= GROWTH) {
		size_t some = bytes < left ? bytes : left;
		int rc = parquet_buffer_reserve(file, &file->packed, some);
		if (!rc)
			rc = rh_file_read(file->file, column->at, file->packed.bytes, some);
		if (rc)
			return rc;
		struct thrift in = {file->packed.bytes, file->packed.bytes + some, 0};
		*out = (struct page_head){.type = -1, .unpacked = -1, .packed = -1, .entries = -1, .encoding = -1, .is_packed = 1};
		read_head_members(&in, out);
		if (!in.is_bad) {
			column->at += in.at - file->packed.bytes;
			break;
		}
		if (some == left)
			return parquet_fail_column(file, column, "a page has no head");
	}
	if (out->unpacked < 0 || out->unpacked > INT32_MAX || out->packed < 0 || out->packed > column->end - column->at)
		return parquet_fail_column(file, column, "a page reaches beyond its column");
	return 0;
}

/* Checks the page's bytes, which file->packed holds, against the head's CRC. */
static int check_crc(const struct rh_parquet *file, const struct parquet_column *column, const struct page_head *head)
{
	if (!head->has_crc)
		return 0;
	uint32_t sum = (uint32_t)crc32(0, file->packed.bytes, (uInt)head->packed);
	return sum == (uint32_t)head->crc ? 0 : parquet_fail_column(file, column, "a page's checksum is wrong");
}

/* Reads the page behind `head` and unpacks it into `to`, but for its first `raw` bytes, which are not compressed. */
static int read_page(struct rh_parquet *file, struct parquet_column *column, const struct page_head *head, size_t raw,
                     struct parquet_buffer *to)
{
	size_t packed = (size_t)head->packed, unpacked = (size_t)head->unpacked;
	if (raw > packed || raw > unpacked)
		return parquet_fail_column(file, column, "a page is shorter than its levels");
	int rc = parquet_buffer_reserve(file, to, unpacked);
	if (!rc)
		rc = parquet_buffer_reserve(file, &file->packed, packed);
	if (!rc)
		rc = rh_file_read(file->file, column->at, file->packed.bytes, packed);
	if (!rc)
		rc = check_crc(file, column, head);
	if (rc)
		return rc;
	column->at += head->packed;
	if (raw)
		memcpy(to->bytes, file->packed.bytes, raw);
	enum parquet_codec codec = head->is_packed ? column->codec : PARQUET_PLAIN;
	rc = unpacked == raw ? 0 : parquet_unpack(codec, file->packed.bytes + raw, packed - raw, to->bytes + raw, unpacked - raw);
	return rc == -EINVAL ? parquet_fail_column(file, column, "a page cannot be decompressed") : rc;
}

static unsigned bits_for(int level)
{
	unsigned bits = 0;
	for (; level; level >>= 1)
		bits++;
	return bits;
}

/* Levels up to `highest` that begin at *at, with their length before them; or it is known: `bytes`, else -1. *at is then behind them.
 * -EINVAL (without a line): they are cut off. */
static int open_levels(int highest, const uint8_t **at, const uint8_t *end, int64_t bytes, struct parquet_runs *out)
{
	*out = (struct parquet_runs){.width = bits_for(highest)};
	uint32_t length = bytes < 0 ? 0 : (uint32_t)bytes;
	if (highest && bytes < 0) {
		if (end - *at < (ptrdiff_t)sizeof length)
			return -EINVAL;
		memcpy(&length, *at, sizeof length);
		*at += sizeof length;
	}
	if (length > (size_t)(end - *at))
		return -EINVAL;
	out->at = *at;
	out->end = *at += length;
	return 0;
}

static int open_data(struct rh_parquet *file, struct parquet_column *column, const struct page_head *head)
{
	const struct parquet_leaf *leaf = column->leaf;
	int is_second = head->type == PAGE_DATA_2;
	int64_t repetition = is_second ? head->repetition_bytes : -1, definition = is_second ? head->definition_bytes : -1;
	if (head->entries < 0 || head->entries > column->entries)
		return parquet_fail_column(file, column, "a page has more values than the column");
	if (is_second && (repetition < 0 || definition < 0 || repetition + definition > head->unpacked))
		return parquet_fail_column(file, column, "a page is shorter than its levels");
	if (!is_second && ((leaf->repetition && head->repetition_encoding != ENCODING_RUNS) ||
	                   (leaf->definition && head->definition_encoding != ENCODING_RUNS)))
		return rh_fail(-EINVAL, "%s: the levels of column '%.80s' are packed in an old way that is not read; write the file again",
		               rh_file_path(file->file), leaf->path);
	int rc = read_page(file, column, head, is_second ? (size_t)(repetition + definition) : 0, &column->page);
	if (rc)
		return rc;
	const uint8_t *at = column->page.bytes, *end = at + head->unpacked;
	rc = open_levels(leaf->repetition, &at, end, repetition, &column->repetitions);
	if (!rc)
		rc = open_levels(leaf->definition, &at, end, definition, &column->definitions);
	if (!rc)
		rc = parquet_values_open(column, (int)head->encoding, at, end, head->entries);
	column->page_entries = head->entries;
	if (rc == -ENOTSUP)
		return rh_fail(-EINVAL, "%s: column '%.80s' has encoding %lld, which is not read; write the file again",
		               rh_file_path(file->file), leaf->path, (long long)head->encoding);
	return rc == -EINVAL ? parquet_fail_column(file, column, "a page is cut off") : rc;
}

static int open_dictionary(struct rh_parquet *file, struct parquet_column *column, const struct page_head *head)
{
	int rc = read_page(file, column, head, 0, &column->dictionary);
	if (rc)
		return rc;
	rc = parquet_dictionary_open(file, column, (size_t)head->unpacked, head->entries);
	return rc == -EINVAL ? parquet_fail_column(file, column, "its dictionary is cut off") : rc;
}

/* The next page that holds values. */
static int next_page(struct rh_parquet *file, struct parquet_column *column)
{
	struct page_head head;
	while (!column->page_entries) {
		int rc = column->at < column->end ? read_head(file, column, &head)
		                                  : parquet_fail_column(file, column, "its values end early");
		if (!rc && (head.type == PAGE_DATA || head.type == PAGE_DATA_2))
			rc = open_data(file, column, &head);
		else if (!rc && head.type == PAGE_DICTIONARY)
			rc = open_dictionary(file, column, &head);
		else if (!rc)
			column->at += head.packed;
		if (rc)
			return rc;
	}
	return 0;
}

int parquet_column_advance(struct rh_parquet *file, struct parquet_column *column)
{
	uint32_t repetition, definition;
	column->is_over = !column->entries;
	column->repetition = 0;
	column->definition = -1;
	if (column->is_over)
		return 0;
	int rc = column->page_entries ? 0 : next_page(file, column);
	if (rc)
		return rc;
	column->entries--;
	column->page_entries--;
	if (parquet_runs_next(&column->repetitions, &repetition) || parquet_runs_next(&column->definitions, &definition) ||
	    repetition > (uint32_t)column->leaf->repetition || definition > (uint32_t)column->leaf->definition)
		return parquet_fail_column(file, column, "its levels cannot be");
	column->repetition = (int)repetition;
	column->definition = (int)definition;
	return 0;
}

int parquet_column_begin(struct rh_parquet *file, struct parquet_column *column, const struct parquet_chunk *chunk)
{
	column->codec = chunk->codec;
	column->at = chunk->at;
	column->end = chunk->at + chunk->bytes;
	column->entries = chunk->entries;
	column->page_entries = 0;
	column->dictionary_entries = 0;
	return parquet_column_advance(file, column);
}

void parquet_column_end(struct rh_parquet *file, struct parquet_column *column)
{
	parquet_buffer_free(file, &column->page);
	parquet_buffer_free(file, &column->dictionary);
	parquet_buffer_free(file, &column->entry);
	rh_text_free(&column->values.text);
	*column = (struct parquet_column){.leaf = column->leaf};
}
