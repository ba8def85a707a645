#include "data/sources.h"

#include "core/alloc.h"
#include "data/files.h"

#include <stdlib.h>
#include <string.h>

/* dataset_info.json's names of columns, and ours, by the form that a set is of. */
static const char *const alpaca_columns[][2] = {{"prompt", "instruction"}, {"query", "input"},   {"response", "output"},
                                                {"history", "history"},    {"system", "system"}, {"chosen", "chosen"},
                                                {"rejected", "rejected"},  {"kto_tag", "kto_tag"}};
static const char *const sharegpt_columns[][2] = {{"messages", "conversations"}, {"system", "system"},     {"tools", "tools"},
                                                  {"chosen", "chosen"},          {"rejected", "rejected"}, {"kto_tag", "kto_tag"}};
enum {
	ALPACA_COLUMNS = sizeof alpaca_columns / sizeof *alpaca_columns,
	SHAREGPT_COLUMNS = sizeof sharegpt_columns / sizeof *sharegpt_columns
};

static int no_memory(void)
{
	return rh_fail(-ENOMEM, "out of host memory while the data files are looked up");
}

/* The map that every file has: data_columns, whose items are "key=column". */
static int add_columns(const struct rh_config *config, json_t *columns)
{
	for (size_t i = 0; i < config->data_columns.count; i++) {
		const char *item = config->data_columns.item[i], *equals = strchr(item, '=');
		json_t *column = json_string(equals + 1);
		char key[64];
		snprintf(key, sizeof key, "%.*s", (int)(equals - item), item);
		if (!column || json_object_set_new(columns, key, column))
			return no_memory();
	}
	const char *text = config->dataset_text_field;
	if (strcmp(text, "text") && !json_object_get(columns, "text") && json_object_set_new(columns, "text", json_string(text)))
		return no_memory();
	return 0;
}

/* Refuses entries that this program does not train on. */
static int refuse_entry(const struct rh_config *config, const json_t *entry, const char *name, const char *path)
{
	static const char *const media[] = {"images", "videos", "audios"};
	const json_t *columns = json_object_get(entry, "columns");
	int ranks = json_is_true(json_object_get(entry, "ranking")) || json_object_get(columns, "chosen");
	if (!config->preference.answers && (ranks || json_object_get(columns, "kto_tag")))
		return rh_fail(-EINVAL, "%s: '%s' holds preferences: loss_type: %s trains on them; or name a set of answers", path, name,
		               ranks ? "sigmoid (DPO)" : "kto");
	for (size_t i = 0; i < sizeof media / sizeof *media; i++)
		if (json_object_get(columns, media[i]))
			return rh_fail(-EINVAL, "%s: '%s' has %s; only text is trained on", path, name, media[i]);
	if (json_object_get(entry, "file_name"))
		return 0;
	const char *hub = json_string_value(json_object_get(entry, "hf_hub_url"));
	if (hub)
		return rh_fail(-EINVAL,
		               "%s: '%s' lies on the Hub and nothing is downloaded here: hf download --repo-type dataset %s, then name its "
		               "file in file_name",
		               path, name, hub);
	return rh_fail(-EINVAL, "%s: '%s' has no file_name", path, name);
}

static int read_tags(const json_t *entry, const char *path, struct data_tags *out)
{
	const json_t *tags = json_object_get(entry, "tags");
	const struct {
		const char *key, **field;
	} all[] = {{"role_tag", &out->role},           {"content_tag", &out->content},         {"user_tag", &out->user},
	           {"assistant_tag", &out->assistant}, {"observation_tag", &out->observation}, {"function_tag", &out->function},
	           {"system_tag", &out->system}};
	int rc = 0;
	for (size_t i = 0; tags && !rc && i < sizeof all / sizeof *all; i++)
		rc = rh_json_string(tags, all[i].key, path, RH_JSON_OPTIONAL, all[i].field);
	return rc;
}

/* Columns as the entry names them. */
static int read_columns(const json_t *entry, const char *name, const char *path, json_t *out)
{
	const char *formatting = "alpaca", *column;
	int rc = rh_json_string(entry, "formatting", path, RH_JSON_OPTIONAL, &formatting);
	if (rc)
		return rc;
	int sharegpt = !strcmp(formatting, "sharegpt") || !strcmp(formatting, "openai");
	if (!sharegpt && strcmp(formatting, "alpaca"))
		return rh_fail(-EINVAL, "%s: '%s': formatting '%.40s' is neither alpaca nor sharegpt", path, name, formatting);
	const char *const(*known)[2] = sharegpt ? sharegpt_columns : alpaca_columns;
	const json_t *columns = json_object_get(entry, "columns");
	for (int i = 0; columns && i < (sharegpt ? SHAREGPT_COLUMNS : ALPACA_COLUMNS); i++) {
		column = NULL;
		rc = rh_json_string(columns, known[i][0], path, RH_JSON_OPTIONAL, &column);
		if (rc)
			return rc;
		if (column && json_object_set_new(out, known[i][1], json_string(column)))
			return no_memory();
	}
	return 0;
}

/* `name` of the table in dataset_info.json; its file lies beside the table. */
static int look_up(const struct rh_config *config, const json_t *info, const char *name, struct data_source *out)
{
	const char *path = config->dataset_info;
	const json_t *entry = json_object_get(info, name);
	const char *file = NULL, *slash = strrchr(path, '/');
	if (!json_is_object(entry))
		return rh_fail(-EINVAL, "%s: no data set is named '%s' there; its keys are the names%s", path, name,
		               strchr(name, ',') ? ", and several are a list: [a,b]" : "");
	int rc = refuse_entry(config, entry, name, path);
	if (rc)
		return rc;
	rc = rh_json_string(entry, "file_name", path, RH_JSON_REQUIRED, &file);
	if (rc)
		return rc;
	rc = rh_json_int(entry, "num_samples", path, RH_JSON_OPTIONAL, &out->most_rows);
	if (rc)
		return rc;
	rc = read_tags(entry, path, &out->tags);
	if (rc)
		return rc;
	rc = read_columns(entry, name, path, out->columns);
	if (rc)
		return rc;
	struct rh_text whole = {0};
	rc = *file == '/' || !slash ? rh_text_printf(&whole, "%s", file)
	                            : rh_text_printf(&whole, "%.*s%s", (int)(slash + 1 - path), path, file);
	out->path = whole.bytes;
	return rc;
}

/* One item of the list, whose path may be a folder's or a pattern. */
static int find_item(const struct rh_list *files, size_t index, const struct rh_config *config, const json_t *info,
                     enum data_weighting weighting, struct data_source *out)
{
	*out = (struct data_source){.columns = json_object(), .weight = 1};
	int rc = out->columns ? add_columns(config, out->columns) : no_memory();
	if (!rc && info)
		rc = look_up(config, info, files->item[index], out);
	else if (!rc && !(out->path = rh_strdup(files->item[index])))
		rc = -ENOMEM;
	if (config->max_samples && (!out->most_rows || config->max_samples < out->most_rows))
		out->most_rows = config->max_samples;
	if (weighting == DATA_WEIGHTED && config->data_weights.count)
		out->weight = strtod(config->data_weights.item[index], NULL);
	return rc;
}

/* Adds a source for each file that the item means. */
static int add_files(const struct data_source *item, struct data_sources *out)
{
	struct rh_names names;
	int rc = data_files_find(item->path, &names);
	if (rc)
		return rc;
	rc = rh_grow(&out->source, &out->capacity, out->count + names.count, sizeof *out->source);
	for (size_t i = 0; !rc && i < names.count; i++) {
		struct data_source *source = &out->source[out->count++];
		*source = *item;
		source->path = names.name[i];
		source->columns = json_incref(item->columns);
		names.name[i] = NULL;
	}
	rh_names_free(&names);
	return rc;
}

int data_sources_find(const struct rh_list *files, const struct rh_config *config, enum data_weighting weighting, struct data_sources *out)
{
	*out = (struct data_sources){0};
	int rc = config->dataset_info ? rh_json_load(config->dataset_info, &out->info) : 0;
	for (size_t i = 0; !rc && i < files->count; i++) {
		struct data_source item;
		rc = find_item(files, i, config, out->info, weighting, &item);
		if (!rc)
			rc = add_files(&item, out);
		rh_free(item.path);
		json_decref(item.columns);
	}
	if (rc)
		data_sources_free(out);
	return rc;
}

void data_sources_free(struct data_sources *sources)
{
	for (size_t i = 0; i < sources->count; i++) {
		rh_free(sources->source[i].path);
		json_decref(sources->source[i].columns);
	}
	rh_free(sources->source);
	json_decref(sources->info);
	*sources = (struct data_sources){0};
}

int data_reader_open(const struct data_source *source, const char *text_key, int has_template, struct data_reader *out)
{
	*out = (struct data_reader){.source = source, .text_key = text_key, .has_template = has_template};
	return data_records_open(source->path, &out->records);
}

void data_reader_close(struct data_reader *reader)
{
	data_records_close(&reader->records);
	rh_text_free(&reader->unread);
}

/* Rows of preferences are not trained on as if they were answers alone, nor answers as preferences. */
static int check_preference(const struct data_reader *reader, const json_t *row)
{
	enum data_preference is = data_preference_of(row);
	const char *where = reader->records.where.bytes, *key;
	json_t *column;
	int is_named = 0;
	json_object_foreach(reader->source->columns, key, column) is_named |=
	        !strcmp(key, "completion") || !strcmp(json_string_value(column), "chosen");
	if (is == reader->preference || (reader->preference == DATA_NO_PREFERENCE && is_named))
		return 0;
	if (reader->preference == DATA_NO_PREFERENCE && is == DATA_IS_PAIR)
		return rh_fail(-EINVAL,
		               "%s: the row has a chosen and a rejected answer: loss_type: sigmoid (DPO) trains on both; data_columns: {%s: "
		               "chosen} on one of them as on any answer",
		               where, json_object_get(row, "prompt") || json_is_string(json_object_get(row, "chosen")) ? "completion" : "messages");
	if (reader->preference == DATA_NO_PREFERENCE)
		return rh_fail(-EINVAL,
		               "%s: the row says with a label whether its answer is a good one: loss_type: kto trains on such rows; else take the "
		               "label out",
		               where);
	return rh_fail(-EINVAL, "%s: loss_type asks for rows with %s; remove it to train on rows as they are", where,
	               reader->preference == DATA_IS_PAIR
	                       ? "chosen and rejected answers, and prompt, messages or instruction"
	                       : "prompt, completion and label, or kto_tag beside an answer (of pairs: loss_type: sigmoid and others)");
}

/* The form of the file's first row. */
static int find_form(struct data_reader *reader, const json_t *row)
{
	const struct data_records *records = &reader->records;
	int rc = check_preference(reader, row);
	if (rc || reader->preference != DATA_NO_PREFERENCE)
		return rc ? rc : data_preference_list_unread(reader->preference, row, &reader->unread);
	rc = data_form_find(row, reader->source->columns, reader->text_key, records->where.bytes, &reader->form);
	if (!rc)
		return data_form_list_unread(reader->form, row, reader->source->columns, &reader->unread);
	return rc == -EINVAL && records->format == DATA_TABLE ? rh_fail(rc,
	                                                                "%s; the file was read as a table, whose first line names its "
	                                                                "columns; a text to train on has a name that ends in .txt or .md",
	                                                                rh_error(rc))
	                                                      : rc;
}

static int convert(struct data_reader *reader, json_t **row)
{
	const struct data_source *source = reader->source;
	const char *where = reader->records.where.bytes;
	if (!json_is_object(*row))
		return rh_fail(-EINVAL, "%s: expected one JSON object on the line, such as {\"prompt\": ..., \"completion\": ...}", where);
	int is_document = reader->records.format == DATA_DOCUMENT; /* whose key is ours */
	int rc = is_document ? 0 : data_columns_rename(source->columns, where, row);
	if (!rc && reader->is_labelled) {
		reader->kind = DATA_LABELLED;
		return 0;
	}
	if (is_document && !rc && reader->preference == DATA_NO_PREFERENCE)
		reader->form = FORM_TEXT;
	else if (!rc && !reader->rows)
		rc = find_form(reader, *row);
	if (!rc && reader->preference != DATA_NO_PREFERENCE)
		return data_preference_convert(reader->preference, &source->tags, reader->has_template, where, row, &reader->kind);
	return rc ? rc : data_form_convert(reader->form, &source->tags, reader->has_template, where, row, &reader->kind);
}

int data_reader_next(struct data_reader *reader, json_t **row)
{
	if (reader->source->most_rows && reader->rows == reader->source->most_rows)
		return 0;
	int rc = data_records_next(&reader->records, row);
	if (rc <= 0)
		return rc;
	rc = convert(reader, row);
	if (rc) {
		json_decref(*row);
		return rc;
	}
	reader->rows++;
	return 1;
}
