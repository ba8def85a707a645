/* Parquet files as rows of JSON, one object each: the columns in the file's order.
 * - Lists are arrays, also in the older layouts (`.list.item`, `.array`, a bare repeated field); structs and maps are objects.
 * - A struct's null members are left out, since a column of structs has all members that any of its rows has. A column that is null, and
 *   an item of a list, stay null.
 * - JSON columns are parsed. Dates and times are ISO 8601 text, decimals numbers. What JSON has no form for (bytes that are no UTF-8,
 *   infinities, intervals) is null.
 * Pages are read one by one in each column, so that memory is a page and a dictionary a column, whatever the file's size. */
#ifndef RH_PARQUET_PARQUET_H
#define RH_PARQUET_PARQUET_H

#include "core/json.h"

struct rh_parquet;

/* 1: a file that begins as Parquet does; 0: another, or none that can be read; -ENOMEM. */
int rh_parquet_is_one(const char *path) RH_MUST;

/* Reads the footer. -EINVAL, with one line: the file is damaged, encrypted, or compressed in a way that is not read. */
int rh_parquet_open(const char *path, struct rh_parquet **out) RH_MUST;
void rh_parquet_close(struct rh_parquet *file); /* NULL is legal */

/* 1 with the next row (json_decref it), 0 at the end, negative errno. A row for which more than `room` bytes of memory were needed is
 * -EINVAL; 0: a limit of its own. */
int rh_parquet_next(struct rh_parquet *file, int64_t room, json_t **row) RH_MUST;

/* Of the row last returned: the most bytes of memory that were taken while it was read; those that stay until the next one, its texts
 * apart; its number, from 1. */
int64_t rh_parquet_row_bytes(const struct rh_parquet *file);
int64_t rh_parquet_held_bytes(const struct rh_parquet *file);
int64_t rh_parquet_row(const struct rh_parquet *file);

#endif
