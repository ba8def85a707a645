#include "data/records.h"

#include "core/alloc.h"
#include "data/files.h"
#include "data/form.h"

#include <string.h>

int data_records_place(struct data_records *records, int64_t line)
{
	records->where.length = 0;
	return rh_text_printf(&records->where, "%s:%lld", records->path, (long long)line);
}

static int is_blank(char byte)
{
	return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

/* The next byte that is no blank, not consumed: 1, 0 at the end, negative errno. */
static int skip_blanks(struct data_records *records, char *byte)
{
	struct data_window *window = &records->window;
	for (;;) {
		for (; window->begin < window->end; window->begin++) {
			*byte = window->bytes[window->begin];
			if (!is_blank(*byte))
				return 1;
			records->next_line += *byte == '\n';
		}
		int rc = data_window_more(window, records->path);
		if (rc <= 0)
			return rc;
	}
}

/* 1: the file begins as rows of JSON do, {" or [{, between blanks or none. */
static int begins_as_json(const struct data_window *window)
{
	const char *at = window->bytes + window->begin, *end = window->bytes + window->end;
	char marks[3] = "";
	for (int count = 0; count < 2 && at < end; at++)
		if (!is_blank(*at))
			marks[count++] = *at;
	return !strcmp(marks, "{\"") || !strcmp(marks, "[{");
}

int data_records_open(const char *path, struct data_records *out)
{
	*out = (struct data_records){.path = path, .next_line = 1};
	char first = 0;
	int rc = rh_parquet_is_one(path);
	if (rc > 0)
		out->format = DATA_PARQUET;
	if (rc)
		return rc < 0 ? rc : rh_parquet_open(path, &out->parquet);
	rc = data_stream_open(path, &out->window.stream);
	if (rc)
		return rc;
	rc = data_window_more(&out->window, path);
	if (rc > 0 && out->window.end >= 3 && !memcmp(out->window.bytes, "\xEF\xBB\xBF", 3))
		data_window_consume(&out->window, 3);
	if (rc > 0 && out->window.end >= 4 && !memcmp(out->window.bytes, "PAR1", 4))
		rc = rh_fail(-EINVAL, "%s: Parquet inside a compressed file; unpack it (gunzip, unzstd): Parquet is compressed by itself",
		             path);
	if (rc >= 0 && data_file_of(path) == DATA_FILE_DOCUMENT && !begins_as_json(&out->window)) {
		out->format = DATA_DOCUMENT;
		return 0;
	}
	rc = rc < 0 ? rc : skip_blanks(out, &first);
	if (rc < 0) {
		data_records_close(out);
		return rc;
	}
	out->is_over = !rc;
	out->format = first == '[' ? DATA_ARRAY : first == '{' ? DATA_LINES : DATA_TABLE;
	return 0;
}

void data_records_close(struct data_records *records)
{
	rh_parquet_close(records->parquet);
	data_stream_close(records->window.stream);
	data_window_free(&records->window);
	rh_text_free(&records->where);
	json_decref(records->columns);
	records->parquet = NULL;
	records->window.stream = NULL;
	records->columns = NULL;
}

/* The line that begins in the window, without its newline; it is not consumed. 1, 0: a blank rest, negative errno. */
static int find_line(struct data_records *records, size_t *length)
{
	char first;
	int rc = skip_blanks(records, &first);
	if (rc <= 0)
		return rc;
	rc = data_records_place(records, records->next_line);
	struct data_window *window = &records->window;
	for (size_t seen = 0; !rc;) {
		const char *from = window->bytes + window->begin, *newline = memchr(from + seen, '\n', window->end - window->begin - seen);
		if (newline) {
			*length = (size_t)(newline - from);
			return 1;
		}
		seen = window->end - window->begin;
		rc = data_records_more(records);
		if (!rc) {
			*length = seen;
			return 1;
		}
		rc = rc < 0 ? rc : 0;
	}
	return rc;
}

int data_check_room(const char *where, size_t length, int64_t needed, int64_t room)
{
	if (!room || needed <= room)
		return 0;
	return rh_fail(-EINVAL,
	               "%s: a row of at least %.1f MiB takes up to %.1f MiB while it is read and encoded, and max_ram leaves %.1f; split "
	               "the row, or raise max_ram",
	               where, (double)length / 1048576, (double)needed / 1048576, (double)room / 1048576);
}

int data_records_check_length(struct data_records *records, size_t length)
{
	records->row_bytes = (int64_t)length * DATA_ROW_COST + records->value_bytes + records->column_bytes;
	return data_check_room(records->where.bytes, length, records->row_bytes, records->row_room);
}

int data_records_more(struct data_records *records)
{
	struct data_window *window = &records->window;
	int rc = data_records_check_length(records, window->end - window->begin);
	return rc ? rc : data_window_more(window, records->where.bytes);
}

/* Parses the window's first bytes, which end there. */
static int parse(struct data_records *records, size_t length, json_t **row)
{
	struct data_window *window = &records->window;
	const char *bytes = window->bytes + window->begin;
	records->value_bytes = rh_json_bytes_of_values(bytes, length);
	int rc = data_records_check_length(records, length);
	if (!rc)
		rc = rh_json_parse_at(bytes, length, records->path, records->line, row);
	data_window_consume(window, length);
	return rc;
}

enum { KEY_MOST = 48 };

/* 1: the object that begins in the window goes on behind its first `line` bytes. *key: its first member that is a list of objects,
 * as far as the window shows it; empty: none. */
static int goes_on(const struct data_window *window, size_t line, char key[KEY_MOST + 1])
{
	const char *bytes = window->bytes + window->begin;
	size_t end = window->end - window->begin, opened = 0, name = 0, length = 0;
	int depth = 0, depth_of_line = 0, in_string = 0;
	char before = 0; /* the last byte that is no blank, outside strings */
	key[0] = 0;
	for (size_t at = 0; at < end && (at < line || depth > 0); at++) {
		if (at == line)
			depth_of_line = depth;
		if (in_string) {
			at += bytes[at] == '\\';
			in_string = at < end && bytes[at] != '"';
			if (!in_string && depth == 1) {
				name = opened;
				length = at - opened;
			}
			continue;
		}
		if (is_blank(bytes[at]))
			continue;
		in_string = bytes[at] == '"';
		opened = in_string ? at + 1 : opened;
		if (bytes[at] == '{' && depth == 2 && before == '[' && !key[0] && length <= KEY_MOST)
			snprintf(key, KEY_MOST + 1, "%.*s", (int)length, bytes + name);
		depth += bytes[at] == '{' || bytes[at] == '[';
		depth -= bytes[at] == '}' || bytes[at] == ']';
		before = bytes[at];
	}
	return depth_of_line > 0;
}

static int next_of_lines(struct data_records *records, json_t **row)
{
	size_t length = 0;
	char key[KEY_MOST + 1] = "";
	int rc = find_line(records, &length);
	if (rc <= 0)
		return rc;
	records->line = records->next_line;
	int is_first_of_several = !records->rows && goes_on(&records->window, length, key);
	rc = parse(records, length, row);
	if (rc == -EINVAL && is_first_of_several && key[0] && !data_form_has_key(key))
		rc = rh_fail(rc, "%s; if '%s' is the list of rows, write it alone, as jq .%s does", rh_error(rc), key, key);
	else if (rc == -EINVAL && is_first_of_several)
		rc = rh_fail(rc, "%s; write each object on one line, as jq -c . does, or all in an array", rh_error(rc));
	return rc ? rc : 1;
}

/* Where a JSON value that begins in the window ends: a scan of brackets and strings alone, the parser checks the rest. */
static int find_value(struct data_records *records, size_t *length)
{
	struct data_window *window = &records->window;
	int depth = 0, in_string = 0;
	for (size_t at = 0;; at++) {
		while (at >= window->end - window->begin) {
			int rc = data_records_more(records);
			if (rc < 0)
				return rc;
			if (!rc)
				return rh_fail(-EINVAL, "%s: the object that begins here does not end; is the file cut off?",
				               records->where.bytes);
		}
		char byte = window->bytes[window->begin + at];
		records->next_line += byte == '\n';
		if (in_string) {
			at += byte == '\\';
			in_string = byte != '"';
			continue;
		}
		in_string = byte == '"';
		depth += byte == '{' || byte == '[';
		depth -= byte == '}' || byte == ']';
		if (depth <= 0) {
			*length = at + 1;
			return 0;
		}
	}
}

static int fail_array(struct data_records *records, const char *format)
{
	int rc = data_records_place(records, records->next_line);
	return rc ? rc : rh_fail(-EINVAL, format, records->where.bytes);
}

/* After the array's last item nothing follows. */
static int end_array(struct data_records *records)
{
	char byte;
	data_window_consume(&records->window, 1);
	records->is_over = 1;
	int rc = skip_blanks(records, &byte);
	return rc > 0 ? fail_array(records, "%s: something follows the array's end; keep one array in a file") : rc;
}

static int next_of_array(struct data_records *records, json_t **row)
{
	char byte = 0;
	size_t length = 0;
	int rc = skip_blanks(records, &byte);
	if (rc > 0 && !records->rows && records->line == 0) { /* the bracket that opens it */
		data_window_consume(&records->window, 1);
		rc = skip_blanks(records, &byte);
		if (rc > 0 && byte == ']')
			return end_array(records);
	} else if (rc > 0) {
		if (byte == ']')
			return end_array(records);
		if (byte != ',')
			return fail_array(records, "%s: expected ',' or ']' after the array's item");
		data_window_consume(&records->window, 1);
		rc = skip_blanks(records, &byte);
	}
	if (rc < 0)
		return rc;
	if (!rc)
		return fail_array(records, "%s: the array does not end; is the file cut off?");
	if (byte == ']')
		return fail_array(records, "%s: a comma stands behind the array's last item; take it out");
	if (byte != '{')
		return fail_array(records,
		                  "%s: expected an object {...}; each item of the array is one row, such as {\"messages\": [...]} or "
		                  "{\"text\": ...}");
	records->row = records->rows && records->line == records->next_line ? (uint32_t)records->rows + 1 : 0;
	records->line = records->next_line;
	rc = data_records_place(records, records->line);
	if (!rc && records->row)
		rc = rh_text_printf(&records->where, " (row %u)", records->row);
	if (!rc)
		rc = find_value(records, &length);
	if (!rc)
		rc = parse(records, length, row);
	return rc ? rc : 1;
}

static int next_of_parquet(struct data_records *records, json_t **row)
{
	struct rh_parquet *parquet = records->parquet;
	int rc = rh_parquet_next(parquet, records->row_room, row);
	if (rc <= 0)
		return rc;
	records->row = (uint32_t)rh_parquet_row(parquet);
	records->row_bytes = rh_parquet_row_bytes(parquet);
	records->value_bytes = rh_parquet_held_bytes(parquet);
	records->where.length = 0;
	rc = rh_text_printf(&records->where, "%s (row %u)", records->path, records->row);
	if (rc)
		json_decref(*row);
	return rc ? rc : 1;
}

/* The whole file. */
static int next_of_document(struct data_records *records, json_t **row)
{
	struct data_window *window = &records->window;
	records->line = 1;
	records->is_over = 1;
	int rc = data_records_place(records, records->line);
	while (!rc && (rc = data_records_more(records)) > 0)
		rc = 0;
	size_t length = window->end - window->begin;
	if (!rc)
		rc = data_records_check_length(records, length);
	if (rc)
		return rc;
	json_t *text = json_stringn(length ? window->bytes + window->begin : "", length);
	if (!text)
		return rh_fail(-EINVAL, "%s: the document is not UTF-8; iconv -f LATIN1 -t UTF-8 converts it from Latin-1", records->path);
	*row = json_pack("{s:o}", "text", text);
	data_window_consume(window, length);
	return *row ? 1 : rh_fail(-ENOMEM, "%s: out of host memory", records->path);
}

static int next_of_format(struct data_records *records, json_t **row)
{
	switch (records->format) {
	case DATA_LINES:
		return next_of_lines(records, row);
	case DATA_ARRAY:
		return next_of_array(records, row);
	case DATA_TABLE:
		return data_table_next(records, row);
	case DATA_PARQUET:
		return next_of_parquet(records, row);
	case DATA_DOCUMENT:
		return next_of_document(records, row);
	}
	return 0;
}

int data_records_next(struct data_records *records, json_t **row)
{
	if (records->is_over)
		return 0;
	records->value_bytes = 0;
	int rc = next_of_format(records, row);
	records->rows += rc > 0;
	return rc;
}
