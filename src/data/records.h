/* The records of a data file, whatever its format: one JSON object each. A file whose name ends in .txt or .md, and which does not begin as
 * JSON objects do, is a document: one record, whose `text` is the whole file. The format of all others follows from the content:
 *   PAR1     Parquet (parquet/parquet.h)
 *   [        a JSON array of objects
 *   {        one JSON object a line
 *   else     a table whose first line names the columns, separated by tabs, commas or semicolons; fields as in RFC 4180. Each record is an
 *            object of strings. Where a carriage return alone ends the first line, it ends all. */
#ifndef RH_DATA_RECORDS_H
#define RH_DATA_RECORDS_H

#include "core/json.h"
#include "core/text.h"
#include "data/stream.h"
#include "parquet/parquet.h"

enum data_format { DATA_LINES, DATA_ARRAY, DATA_TABLE, DATA_PARQUET, DATA_DOCUMENT };

struct data_records {
	const char *path;
	struct data_window window;
	struct rh_parquet *parquet; /* DATA_PARQUET, which has no window */
	enum data_format format;
	int is_over;
	int64_t line,
	        next_line; /* the line, from 1, on which the last returned record begins; and on which the next one begins; 0: no lines */
	uint32_t row;      /* its number, from 1, where no line names it: in Parquet, and in an array where it shares its first line with
	                            the one before; else 0 */
	struct rh_text where; /* "path:line"; "path:line (row 7)" of an array's row that shares its first line; "path (row 7)" */
	char separator;       /* DATA_TABLE */
	char line_end;        /* DATA_TABLE: '\n', or '\r' */
	json_t *columns;      /* DATA_TABLE: names, strings */
	int64_t column_bytes; /* what they took */
	int64_t rows;         /* returned so far */
	int64_t row_room;     /* bytes of memory that reading one may take; 0: any number */
	int64_t row_bytes;    /* what the record last returned took while it was read */
	int64_t value_bytes;  /* what its values take beside their texts, until they are freed */
};
/* While a row is parsed, it takes this many times its length in memory: the row itself, the parser's buffer and its texts. */
enum { DATA_ROW_COST = 4 };
/* `path` is borrowed until closed. An empty file has no records, which is no fault here. */
int data_records_open(const char *path, struct data_records *out) RH_MUST;
void data_records_close(struct data_records *records);
/* 1 with the next record (json_decref it), 0 at the end, or negative errno with a line that names path and line or row. */
int data_records_next(struct data_records *records, json_t **row) RH_MUST;

/* -EINVAL: the row of `length` bytes that `where` names needs `needed` bytes of memory, more than `room`. Room 0: no limit. */
int data_check_room(const char *where, size_t length, int64_t needed, int64_t room) RH_MUST;
/* Inside: the record at records->where has `length` bytes and records->value_bytes; -EINVAL where these are too many. */
int data_records_check_length(struct data_records *records, size_t length) RH_MUST;
/* Inside: data_window_more for the record that fills the window; -EINVAL where it is too long already. */
int data_records_more(struct data_records *records) RH_MUST;
/* Inside: the next record of a table, of whose file the window holds the rest. The first call reads the columns. */
int data_table_next(struct data_records *records, json_t **row) RH_MUST;
/* `where` becomes "path:line". */
int data_records_place(struct data_records *records, int64_t line) RH_MUST;

#endif
