/* CSV and TSV as RFC 4180 has them: a field in quotes may hold separators, newlines and doubled quotes. */
#include "data/records.h"

#include "core/alloc.h"

#include <string.h>

/* One field of a record, and how it ended. */
enum field_end { FIELD_SEPARATOR, FIELD_LINE, FIELD_FILE };

/* The byte at `at` of the window, read on where needed: 1, 0 at the end, negative errno. */
static int byte_at(struct data_records *records, size_t at, char *byte)
{
	struct data_window *window = &records->window;
	while (at >= window->end - window->begin) {
		int rc = data_records_more(records);
		if (rc <= 0)
			return rc;
	}
	*byte = window->bytes[window->begin + at];
	return 1;
}

/* The rest of a quoted field, after its opening quote. */
static int read_quoted(struct data_records *records, size_t *at, struct rh_text *field)
{
	int64_t opened = records->next_line;
	char byte;
	for (;; ++*at) {
		int rc = byte_at(records, *at, &byte);
		if (rc < 0)
			return rc;
		if (!rc)
			return rh_fail(-EINVAL,
			               "%s:%lld: the quote that opens in this line is not closed; write \"\" for a quote inside a field",
			               records->path, (long long)opened);
		if (byte == '"') {
			rc = byte_at(records, *at + 1, &byte);
			if (rc <= 0 || byte != '"') {
				++*at;
				return rc < 0 ? rc : 0;
			}
			++*at;
		}
		records->next_line += byte == records->line_end;
		rc = rh_text_append(field, &byte, 1);
		if (rc)
			return rc;
	}
}

/* The field at *at, which then is behind its separator. */
static int read_field(struct data_records *records, size_t *at, struct rh_text *field, enum field_end *end)
{
	char byte;
	field->length = 0;
	int rc = rh_text_append(field, "", 0), quoted = 0;
	if (!rc && (rc = byte_at(records, *at, &byte)) > 0 && byte == '"') {
		quoted = 1;
		++*at;
		rc = read_quoted(records, at, field);
	}
	while (rc >= 0) {
		rc = byte_at(records, *at, &byte);
		if (rc <= 0)
			break;
		++*at;
		if (byte == records->separator || byte == records->line_end) {
			*end = byte == records->line_end ? FIELD_LINE : FIELD_SEPARATOR;
			records->next_line += byte == records->line_end;
			if (*end == FIELD_LINE && !quoted && field->length && field->bytes[field->length - 1] == '\r')
				field->bytes[--field->length] = 0;
			return 0;
		}
		if (quoted && byte != '\r')
			return rh_fail(-EINVAL, "%s:%lld: something follows a closing quote; write \"\" for a quote inside a field",
			               records->path, (long long)records->next_line);
		if (!quoted)
			rc = rh_text_append(field, &byte, 1);
	}
	*end = FIELD_FILE;
	if (field->length && !quoted && field->bytes[field->length - 1] == '\r')
		field->bytes[--field->length] = 0;
	return rc;
}

/* All fields of the record at the window's begin, as strings; consumed. */
static int read_fields(struct data_records *records, json_t **out)
{
	enum { FIELD = 208 }; /* bytes: a string, its place in an array that grows, and a member of an object that grows */
	struct rh_text field = {0};
	enum field_end end = FIELD_SEPARATOR;
	size_t at = 0;
	json_t *fields = json_array();
	int rc = fields ? 0 : -ENOMEM;
	records->value_bytes = 0;
	while (!rc && end == FIELD_SEPARATOR) {
		records->value_bytes += FIELD;
		rc = read_field(records, &at, &field, &end);
		if (rc)
			break;
		json_t *text = json_stringn(field.bytes, field.length);
		if (!text)
			rc = rh_fail(-EINVAL, "%s:%lld: the field is not UTF-8; save the file as UTF-8", records->path,
			             (long long)records->line);
		else if (json_array_append_new(fields, text))
			rc = -ENOMEM;
	}
	rh_text_free(&field);
	if (!rc)
		rc = data_records_check_length(records, at);
	if (rc) {
		json_decref(fields);
		return rc;
	}
	data_window_consume(&records->window, at);
	*out = fields;
	return 0;
}

/* 1: the byte at `at`, a carriage return, ends a line by itself. */
static int ends_alone(struct data_records *records, size_t at)
{
	char next;
	int rc = byte_at(records, at + 1, &next);
	return rc <= 0 ? rc : next != '\n' && next != '\r';
}

/* The one of tab, comma and semicolon that the header has most of outside quotes; a tab wins. And what ends the header. */
static int find_separator(struct data_records *records)
{
	size_t tabs = 0, commas = 0, semicolons = 0;
	int quoted = 0, rc = 1;
	char byte = 0;
	records->line_end = '\n';
	for (size_t at = 0; (rc = byte_at(records, at, &byte)) > 0 && (quoted || byte != '\n'); at++) {
		rc = !quoted && byte == '\r' ? ends_alone(records, at) : 0;
		if (rc > 0)
			records->line_end = '\r';
		if (rc)
			break;
		quoted ^= byte == '"';
		tabs += !quoted && byte == '\t';
		commas += !quoted && byte == ',';
		semicolons += !quoted && byte == ';';
	}
	records->separator = tabs ? '\t' : semicolons > commas ? ';' : ',';
	return rc < 0 ? rc : 0;
}

static int read_columns(struct data_records *records)
{
	records->line = records->next_line;
	int rc = data_records_place(records, records->line);
	if (rc)
		return rc;
	rc = find_separator(records);
	if (rc)
		return rc;
	rc = read_fields(records, &records->columns);
	if (rc)
		return rc;
	records->column_bytes = records->row_bytes;
	size_t i;
	json_t *name, *seen = json_object();
	rc = seen ? 0 : -ENOMEM;
	json_array_foreach(records->columns, i, name)
	{
		const char *text = json_string_value(name);
		if (!rc && json_object_get(seen, text))
			rc = rh_fail(-EINVAL, "%s: the column '%.80s' is there twice; rename one", records->where.bytes, text);
		if (!rc && json_object_set_new(seen, text, json_true()))
			rc = -ENOMEM;
	}
	json_decref(seen);
	return rc;
}

static int pair(struct data_records *records, const json_t *fields, json_t **row)
{
	size_t columns = json_array_size(records->columns), count = json_array_size(fields), i;
	json_t *name;
	if (count != columns)
		return rh_fail(-EINVAL,
		               "%s: %zu fields where the first line names %zu columns; put a field that holds the separator into quotes",
		               records->where.bytes, count, columns);
	*row = json_object();
	if (!*row)
		return -ENOMEM;
	json_array_foreach(records->columns, i, name)
	{
		if (json_object_set(*row, json_string_value(name), json_array_get(fields, i)))
			return -ENOMEM;
	}
	return 0;
}

int data_table_next(struct data_records *records, json_t **row)
{
	json_t *fields = NULL;
	char byte = 0;
	int rc = records->columns ? 0 : read_columns(records);
	if (rc)
		return rc;
	for (;;) { /* past empty lines */
		records->line = records->next_line;
		rc = data_records_place(records, records->line);
		if (!rc)
			rc = byte_at(records, 0, &byte);
		if (rc <= 0)
			return rc;
		rc = read_fields(records, &fields);
		if (rc)
			return rc;
		int is_empty = byte == '\n' || byte == '\r',
		    is_lone = json_array_size(fields) == 1 && json_array_size(records->columns) > 1;
		if (!is_empty && (!is_lone || json_string_length(json_array_get(fields, 0))))
			break;
		json_decref(fields);
	}
	*row = NULL;
	rc = pair(records, fields, row);
	json_decref(fields);
	if (rc) {
		json_decref(*row);
		return rc;
	}
	return 1;
}
