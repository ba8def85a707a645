/* Which files the rows come from, and how each is to be read: paths, or names in a dataset_info.json. */
#ifndef RH_DATA_SOURCES_H
#define RH_DATA_SOURCES_H

#include "config/config.h"
#include "data/preference.h"
#include "data/records.h"

struct data_source {
	char *path;            /* owned */
	json_t *columns;       /* {our key: the file's}, owned; may be NULL */
	struct data_tags tags; /* borrowed from `info` */
	int64_t most_rows;     /* only so many first rows are taken; 0: all */
	double weight;         /* how often a row is in an epoch: 1 once, 2 twice, 0.5 half of the rows, drawn by data_seed */
};
struct data_sources {
	struct data_source *source; /* (count) */
	size_t count, capacity;
	json_t *info; /* dataset_info.json, NULL: none */
};
/* `files` are paths of files or folders, patterns (data/files.h), or names where config->dataset_info is set; each file of theirs becomes a
 * source. `weights`: whether data_weights holds for them. */
enum data_weighting { DATA_UNWEIGHTED, DATA_WEIGHTED };
int data_sources_find(const struct rh_list *files, const struct rh_config *config, enum data_weighting weighting,
                      struct data_sources *out) RH_MUST;
void data_sources_free(struct data_sources *sources);

/* The rows of one source, as the encoder takes them. */
struct data_reader {
	const struct data_source *source;
	const char *text_key; /* dataset_text_field */
	int has_template;
	int is_labelled; /* set after opening: rows are as they are, of kind DATA_LABELLED */
	enum data_preference preference; /* likewise: what rows must be */
	struct data_records records;
	enum data_form form;   /* of the whole file, once a row was read */
	enum data_kind kind;   /* of the row last returned */
	struct rh_text unread; /* columns of the first row that its form does not read */
	int64_t rows;
};
/* `reader->records.where` is "path:line" of the row last returned. */
int data_reader_open(const struct data_source *source, const char *text_key, int has_template, struct data_reader *out) RH_MUST;
void data_reader_close(struct data_reader *reader);
/* 1: the row last returned is plain strings, and would be a conversation if there were a template. */
static inline int data_reader_lacks_template(const struct data_reader *reader)
{
	int asks = reader->form == FORM_ALPACA || reader->form == FORM_QUESTION || reader->form == FORM_INPUT;
	return reader->kind == DATA_COMPLETION && asks;
}
/* 1 with the next row (json_decref it); 0 at the end; negative errno. */
int data_reader_next(struct data_reader *reader, json_t **row) RH_MUST;

#endif
