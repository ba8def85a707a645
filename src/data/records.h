/* The records of a data file, whatever its format: one JSON object each. The format follows from the content:
 *   [        a JSON array of objects
 *   {        one JSON object a line
 *   else     a table whose first line names the columns, separated by tabs, commas or semicolons; fields as in RFC 4180. Each record is an
 *            object of strings. */
#ifndef RH_DATA_RECORDS_H
#define RH_DATA_RECORDS_H

#include "core/json.h"
#include "core/text.h"
#include "data/stream.h"

enum data_format { DATA_LINES, DATA_ARRAY, DATA_TABLE };

struct data_records {
	const char *path;
	struct data_window window;
	enum data_format format;
	int is_over;
	int64_t line, next_line; /* where the record last returned begins; where what follows it begins, from 1 */
	struct rh_text where;    /* "path:line" */
	char separator;          /* DATA_TABLE */
	json_t *columns;         /* DATA_TABLE: names, strings */
	int64_t rows;            /* returned so far */
	size_t row_most;         /* bytes of a longer one are refused; 0: any */
};
/* A row costs so many bytes of memory for each of its own, while it is parsed and encoded. */
enum { DATA_ROW_COST = 30 };
/* `path` is borrowed until closed. An empty file has no records, which is no fault here. */
int data_records_open(const char *path, struct data_records *out) RH_MUST;
void data_records_close(struct data_records *records);
/* 1 with the next record (json_decref it), 0 at the end, or negative errno with a line that names path and line. */
int data_records_next(struct data_records *records, json_t **row) RH_MUST;

/* Inside: -EINVAL where the record at records->where has too many bytes. */
int data_records_check_length(const struct data_records *records, size_t length) RH_MUST;
/* Inside: the next record of a table, of whose file the window holds the rest. The first call reads the columns. */
int data_table_next(struct data_records *records, json_t **row) RH_MUST;
/* `where` becomes "path:line". */
int data_records_place(struct data_records *records, int64_t line) RH_MUST;

#endif
