/* YAML over libyaml's events: one document, a mapping of keys to scalars or lists of scalars. Anchors, aliases and tags are refused;
 * mappings and lists of lists are read past, for the keys that have no effect whatever they hold. */
#include "config/config_internal.h"

#include "core/alloc.h"

#include <string.h>
#include <yaml.h>

enum { DEPTH_MAX = 32, FILE_MAX_BYTES = 1 << 20 };

struct reader {
	yaml_parser_t parser;
	yaml_event_t event; /* the current one, owned */
	const char *path;
};

static int64_t line_of(const struct reader *reader)
{
	return (int64_t)reader->event.start_mark.line + 1;
}

static int refuse(const struct reader *reader, const char *what)
{
	return rh_fail(-EINVAL, "%s:%lld: %s", reader->path, (long long)line_of(reader), what);
}

/* Tags and anchors of a scalar, list or mapping. */
static int check_plain(const struct reader *reader)
{
	const yaml_event_t *event = &reader->event;
	int anchored = 0, tagged = 0;
	if (event->type == YAML_SCALAR_EVENT) {
		anchored = event->data.scalar.anchor != NULL;
		tagged = event->data.scalar.tag != NULL;
	} else if (event->type == YAML_SEQUENCE_START_EVENT) {
		anchored = event->data.sequence_start.anchor != NULL;
		tagged = event->data.sequence_start.tag != NULL;
	} else if (event->type == YAML_MAPPING_START_EVENT) {
		anchored = event->data.mapping_start.anchor != NULL;
		tagged = event->data.mapping_start.tag != NULL;
	}
	if (anchored || event->type == YAML_ALIAS_EVENT)
		return refuse(reader, "anchors and aliases are not taken; write the value out");
	return tagged ? refuse(reader, "tags are not taken; write the plain value") : 0;
}

static int next(struct reader *reader)
{
	yaml_event_delete(&reader->event);
	if (yaml_parser_parse(&reader->parser, &reader->event))
		return check_plain(reader);
	memset(&reader->event, 0, sizeof reader->event);
	if (reader->parser.error == YAML_MEMORY_ERROR)
		return rh_fail(-ENOMEM, "%s: out of host memory while reading it", reader->path);
	const char *problem = reader->parser.problem ? reader->parser.problem : "cannot be parsed";
	size_t line = reader->parser.error == YAML_READER_ERROR ? reader->parser.mark.line : reader->parser.problem_mark.line;
	int colon = !strcmp(problem, "could not find expected ':'") || strstr(problem, "mapping values are not allowed");
	return rh_fail(-EINVAL, "%s:%zu: not valid YAML: %s%s", reader->path, line + 1, problem,
	               colon ? "; a space follows the colon, as in key: value" : "");
}

/* From the start of a list or mapping to its end. */
static int skip_nested(struct reader *reader)
{
	for (int depth = 1; depth > 0;) {
		int rc = next(reader);
		if (rc)
			return rc;
		yaml_event_type_t type = reader->event.type;
		if (type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT)
			depth++;
		else if (type == YAML_SEQUENCE_END_EVENT || type == YAML_MAPPING_END_EVENT)
			depth--;
		if (depth > DEPTH_MAX)
			return refuse(reader, "nested too deeply");
	}
	return 0;
}

static int scalar_text(const struct reader *reader, const char **out)
{
	*out = (const char *)reader->event.data.scalar.value;
	return strlen(*out) == reader->event.data.scalar.length ? 0 : refuse(reader, "a NUL character has no place here");
}

static int scalar_is_null(const struct reader *reader)
{
	static const char *const words[] = {"", "~", "null", "Null", "NULL"};
	if (reader->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
		return 0;
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		if (!strcmp((const char *)reader->event.data.scalar.value, words[i]))
			return 1;
	return 0;
}

/* The items after the start of a list; *nested tells that there was more than words. */
static int read_items(struct reader *reader, struct rh_list *items, int *nested)
{
	for (;;) {
		int rc = next(reader);
		const char *text;
		if (rc || reader->event.type == YAML_SEQUENCE_END_EVENT)
			return rc;
		if (reader->event.type == YAML_SCALAR_EVENT) {
			rc = scalar_text(reader, &text);
			if (!rc)
				rc = config_list_append(items, text);
		} else {
			*nested = 1;
			rc = skip_nested(reader);
		}
		if (rc)
			return rc;
	}
}

/* A list after its start, as "[a, b]" behind what `out` holds. */
static int read_list_text(struct reader *reader, struct rh_text *out, int *nested)
{
	struct rh_list items = {0};
	int rc = read_items(reader, &items, nested);
	if (rc)
		goto out;
	rc = rh_text_printf(out, "[");
	for (size_t i = 0; !rc && i < items.count; i++)
		rc = rh_text_printf(out, i ? ", %s" : "%s", items.item[i]);
	if (!rc)
		rc = rh_text_printf(out, "]");
out:
	config_list_free(&items);
	return rc;
}

/* The pair whose name the reader is at, as "name=value"; *nested tells that its value is more than words. */
static int read_pair(struct reader *reader, struct rh_list *items, int *nested)
{
	const char *text;
	struct rh_text pair = {0};
	int rc = scalar_text(reader, &text);
	if (rc)
		return rc;
	rc = rh_text_printf(&pair, "%s=", text);
	if (rc)
		goto out;
	rc = next(reader);
	if (rc)
		goto out;
	if (reader->event.type != YAML_SCALAR_EVENT && reader->event.type != YAML_SEQUENCE_START_EVENT) {
		*nested = 1;
		rc = skip_nested(reader);
		goto out;
	}
	if (reader->event.type == YAML_SEQUENCE_START_EVENT)
		rc = read_list_text(reader, &pair, nested);
	else if (!(rc = scalar_text(reader, &text)))
		rc = rh_text_printf(&pair, "%s", text);
	if (!rc)
		rc = config_list_append(items, pair.bytes);
out:
	rh_text_free(&pair);
	return rc;
}

/* The pairs after the start of a mapping; *nested tells that there was more than words. */
static int read_pairs(struct reader *reader, struct rh_list *items, int *nested)
{
	for (;;) {
		int rc = next(reader);
		if (rc || reader->event.type == YAML_MAPPING_END_EVENT)
			return rc;
		if (reader->event.type != YAML_SCALAR_EVENT)
			return refuse(reader, "a key must be a plain word");
		rc = read_pair(reader, items, nested);
		if (rc)
			return rc;
	}
}

static int read_value(struct reader *reader, struct config_entry *entry)
{
	int rc = next(reader), nested = 0;
	if (rc)
		return rc;
	const char *text;
	switch (reader->event.type) {
	case YAML_SCALAR_EVENT:
		entry->kind = scalar_is_null(reader) ? VALUE_NULL : VALUE_SCALAR;
		rc = scalar_text(reader, &text);
		if (rc)
			return rc;
		entry->text = rh_strdup(text);
		return entry->text ? 0 : -ENOMEM;
	case YAML_SEQUENCE_START_EVENT:
		rc = read_items(reader, &entry->items, &nested);
		entry->kind = nested ? VALUE_NESTED : VALUE_LIST;
		return rc;
	case YAML_MAPPING_START_EVENT:
		rc = read_pairs(reader, &entry->items, &nested);
		entry->kind = nested ? VALUE_NESTED : VALUE_MAP;
		return rc;
	default:
		entry->kind = VALUE_NESTED;
		return skip_nested(reader);
	}
}

static int read_mapping(struct reader *reader, struct config_entries *entries)
{
	for (;;) {
		int rc = next(reader);
		const char *name;
		if (rc || reader->event.type == YAML_MAPPING_END_EVENT)
			return rc;
		if (reader->event.type != YAML_SCALAR_EVENT)
			return refuse(reader, "a key must be a plain word");
		rc = scalar_text(reader, &name);
		if (rc)
			return rc;
		struct config_entry *entry = NULL, unknown = {0};
		rc = config_entries_add(entries, name, ORIGIN_FILE, reader->path, line_of(reader), &entry);
		if (!rc)
			rc = read_value(reader, entry ? entry : &unknown);
		rh_free(unknown.text);
		config_list_free(&unknown.items);
		if (rc)
			return rc;
	}
}

/* Up to the root of the first document; *present is 0 where there is none. */
static int open_document(struct reader *reader, int *present)
{
	int rc = next(reader); /* the stream's start */
	if (!rc)
		rc = next(reader);
	*present = !rc && reader->event.type == YAML_DOCUMENT_START_EVENT;
	if (rc || !*present)
		return rc;
	return next(reader);
}

static int close_document(struct reader *reader)
{
	int rc = next(reader); /* the document's end */
	if (!rc)
		rc = next(reader);
	if (!rc && reader->event.type != YAML_STREAM_END_EVENT)
		rc = refuse(reader, "a second document; keep one");
	return rc;
}

static int reader_open(struct reader *reader, const char *bytes, size_t length, const char *path)
{
	*reader = (struct reader){.path = path};
	if (!yaml_parser_initialize(&reader->parser))
		return rh_fail(-ENOMEM, "%s: out of host memory while reading it", path);
	yaml_parser_set_input_string(&reader->parser, (const unsigned char *)bytes, length);
	return 0;
}

static void reader_close(struct reader *reader)
{
	yaml_event_delete(&reader->event);
	yaml_parser_delete(&reader->parser);
}

int config_yaml_read(const char *bytes, size_t length, const char *path, struct config_entries *entries)
{
	struct reader reader;
	if (length > FILE_MAX_BYTES)
		return rh_fail(-EINVAL, "%s: %zu bytes are no configuration; is it the right file?", path, length);
	const char *form = rh_text_utf16(bytes, length);
	if (form && strcmp(form, "UTF-16")) /* which YAML reads where it has a mark */
		return rh_fail(-EINVAL, "%s:1: the file is UTF-16 without a mark; iconv -f %s -t UTF-8 converts it", path, form);
	int present = 0, rc = reader_open(&reader, bytes, length, path);
	if (rc)
		return rc;
	rc = open_document(&reader, &present);
	if (rc || !present)
		goto out;
	if (reader.event.type == YAML_MAPPING_START_EVENT)
		rc = read_mapping(&reader, entries);
	else if (reader.event.type != YAML_SCALAR_EVENT || !scalar_is_null(&reader))
		rc = refuse(&reader, "expected lines of the form key: value (a space follows the colon)");
	if (!rc)
		rc = close_document(&reader);
	if (!rc)
		rc = config_entries_check(entries);
out:
	reader_close(&reader);
	return rc;
}

int config_yaml_words(const char *text, struct rh_list *words)
{
	struct rh_text flow = {0};
	struct reader reader;
	int present = 0, nested = 0;
	size_t length = strlen(text);
	int braced = length > 1 && text[0] == '{' && text[length - 1] == '}';
	int bracketed = length > 1 && text[0] == '[' && text[length - 1] == ']';
	int rc = rh_text_printf(&flow, bracketed || braced ? "%s" : "[%s]", text);
	if (rc)
		goto out;
	rc = reader_open(&reader, flow.bytes, flow.length, "list");
	if (rc)
		goto out;
	rc = open_document(&reader, &present);
	if (!rc && (!present || reader.event.type != (braced ? YAML_MAPPING_START_EVENT : YAML_SEQUENCE_START_EVENT)))
		rc = refuse(&reader, "expected words between commas");
	if (!rc)
		rc = braced ? read_pairs(&reader, words, &nested) : read_items(&reader, words, &nested);
	if (!rc && nested)
		rc = refuse(&reader, "expected words between commas");
	if (!rc)
		rc = close_document(&reader);
	reader_close(&reader);
out:
	rh_text_free(&flow);
	return rc;
}
