/* Which files an item of train_file means. */
#ifndef RH_DATA_FILES_H
#define RH_DATA_FILES_H

#include "core/file.h"

/* By a file's name, `.gz` and `.zst` apart: .jsonl, .json, .ndjson, .csv, .tsv, .parquet; .txt, .md; any other. */
enum data_file { DATA_FILE_ROWS, DATA_FILE_DOCUMENT, DATA_FILE_OTHER };
enum data_file data_file_of(const char *path);

/* The files, sorted by path: a path's own; the files of rows below a folder, or else the documents; those that a pattern matches
 * (core/glob.h). -EINVAL: none; or a folder holds rows and documents, rows to train on and to test with, or a model. */
int data_files_find(const char *path, struct rh_names *out) RH_MUST;

#endif
