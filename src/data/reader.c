/* A JSONL file, row after row: each is valid, of the kind of the first, or an error that names its line. */
#include "data/data_internal.h"

#include "core/text.h"

#include <string.h>

int data_reader_open(const char *path, const char *text_field, struct data_reader *out)
{
	*out = (struct data_reader){.path = path, .text_field = text_field};
	int rc = rh_file_map(path, &out->file);
	if (rc)
		return rc;
	const char *bytes = out->file.bytes;
	size_t length = out->file.length;
	if (length >= 3 && !memcmp(bytes, "\xEF\xBB\xBF", 3))
		out->at = 3;
	if (length >= 2 && (!memcmp(bytes, "\xFF\xFE", 2) || !memcmp(bytes, "\xFE\xFF", 2))) {
		rc = rh_fail(-EINVAL, "%s:1: the file is UTF-16; save it as UTF-8", path);
		rh_file_unmap(&out->file);
	}
	return rc;
}

void data_reader_close(struct data_reader *reader)
{
	rh_file_unmap(&reader->file);
	rh_text_free(&reader->where);
}

/* The next line that is not blank; 0 at the end. */
static int next_line(struct data_reader *reader, const char **bytes, size_t *length)
{
	while (reader->at < reader->file.length) {
		const char *line = reader->file.bytes + reader->at;
		size_t left = reader->file.length - reader->at;
		const char *newline = memchr(line, '\n', left);
		size_t count = newline ? (size_t)(newline - line) : left;
		reader->at += count + (newline != NULL);
		reader->line++;
		for (size_t i = 0; i < count; i++)
			if (!memchr(" \t\r", line[i], 3)) {
				*bytes = line;
				*length = count;
				return 1;
			}
	}
	return 0;
}

static int has(const json_t *row, const char *key)
{
	const json_t *value = json_object_get(row, key);
	return value && !json_is_null(value);
}

/* A prompt or a completion alone: the other often goes by another name. */
static int fail_half(const struct data_reader *reader, const json_t *row)
{
	enum { NAMED_MOST = 6 };
	const char *missing = has(row, "prompt") ? "completion" : "prompt", *key, *other = NULL;
	struct rh_text keys = {0};
	json_t *value;
	int named = 0, rc = 0;
	json_object_foreach((json_t *)(uintptr_t)row, key, value)
	{
		if (!rc && named++ < NAMED_MOST)
			rc = rh_text_printf(&keys, "%s'%.40s'", named > 1 ? ", " : "", key);
		if (!other && json_is_string(value) && strcmp(key, "prompt") && strcmp(key, "completion") &&
		    !key[strspn(key, "abcdefghijklmnopqrstuvwxyz_")])
			other = key;
	}
	if (!rc && other)
		rc = rh_fail(-EINVAL,
		             "%s: '%s' is missing: 'prompt' and 'completion' go together; here are %s: jq -c '.%s = .%.40s' if that is it",
		             reader->where.bytes, missing, keys.bytes, missing, other);
	else if (!rc)
		rc = rh_fail(-EINVAL, "%s: '%s' is missing: 'prompt' and 'completion' go together", reader->where.bytes, missing);
	rh_text_free(&keys);
	return rc;
}

static int kind_of(const struct data_reader *reader, const json_t *row, enum data_kind *out)
{
	if (has(row, "prompt") && has(row, "completion")) {
		*out = json_is_array(json_object_get(row, "completion")) ? DATA_COMPLETION_CHAT : DATA_COMPLETION;
	} else if (has(row, "messages")) {
		*out = DATA_MESSAGES;
	} else if (has(row, reader->text_field)) {
		*out = DATA_TEXT;
	} else if (has(row, "prompt") || has(row, "completion")) {
		return fail_half(reader, row);
	} else if (has(row, "instruction")) {
		return rh_fail(-EINVAL,
		               "%s: rows with 'instruction' (Alpaca) are not read; make them prompt and completion: jq -c '{prompt: "
		               "(.instruction + \"\\n\" + .input + \"\\n\"), completion: .output}'",
		               reader->where.bytes);
	} else if (has(row, "conversations")) {
		return rh_fail(
		        -EINVAL,
		        "%s: rows with 'conversations' (ShareGPT) are not read; make them messages: jq -c '{messages: [.conversations[] | "
		        "{role: ({human: \"user\", gpt: \"assistant\"}[.from] // .from), content: .value}]}'",
		        reader->where.bytes);
	} else {
		const char *first = json_object_iter_key(json_object_iter((json_t *)(uintptr_t)row));
		return rh_fail(-EINVAL, "%s: none of 'messages', 'prompt' with 'completion', or '%s' is there (first key: %s%s%s)",
		               reader->where.bytes, reader->text_field, first ? "'" : "", first ? first : "none", first ? "'" : "");
	}
	return 0;
}

static int need(const struct data_reader *reader, const json_t *row, const char *key, json_type type)
{
	const json_t *value = json_object_get(row, key);
	if (!has(row, key))
		return rh_fail(-EINVAL, "%s: '%s' is missing; all lines of a file are of the first one's kind", reader->where.bytes, key);
	if (json_typeof(value) == type)
		return 0;
	const char *should = type == JSON_STRING ? "a string" : "a list of messages";
	if ((json_is_array(value) || json_is_string(value)) && reader->kind != DATA_MESSAGES && reader->kind != DATA_TEXT)
		return rh_fail(-EINVAL, "%s: '%s' must be %s; prompts and completions are strings or lists of messages, all alike",
		               reader->where.bytes, key, should);
	return rh_fail(-EINVAL, "%s: '%s' must be %s", reader->where.bytes, key, should);
}

static int check_row(struct data_reader *reader, const json_t *row)
{
	const char *where = reader->where.bytes;
	if (!json_is_object(row))
		return rh_fail(-EINVAL, "%s: expected one JSON object on the line, such as {\"prompt\": ..., \"completion\": ...}", where);
	int rc = reader->rows ? 0 : kind_of(reader, row, &reader->kind);
	if (rc)
		return rc;
	switch (reader->kind) {
	case DATA_COMPLETION:
		rc = need(reader, row, "prompt", JSON_STRING);
		return rc ? rc : need(reader, row, "completion", JSON_STRING);
	case DATA_COMPLETION_CHAT:
		rc = need(reader, row, "prompt", JSON_ARRAY);
		return rc ? rc : need(reader, row, "completion", JSON_ARRAY);
	case DATA_MESSAGES:
		return need(reader, row, "messages", JSON_ARRAY);
	case DATA_TEXT:
		return need(reader, row, reader->text_field, JSON_STRING);
	}
	return 0;
}

int data_reader_next(struct data_reader *reader, json_t **row)
{
	const char *bytes;
	size_t length;
	if (!next_line(reader, &bytes, &length))
		return 0;
	reader->where.length = 0;
	int rc = rh_text_printf(&reader->where, "%s:%lld", reader->path, (long long)reader->line);
	if (!rc && !reader->rows && bytes[strspn(bytes, " \t")] == '[')
		rc = rh_fail(-EINVAL, "%s: the file is a JSON array; one object a line is read: jq -c '.[]' turns it into that",
		             reader->where.bytes);
	if (!rc)
		rc = rh_json_parse(bytes, length, reader->where.bytes, row);
	if (rc)
		return rc;
	rc = check_row(reader, *row);
	if (rc) {
		json_decref(*row);
		return rc;
	}
	reader->rows++;
	return 1;
}
