#include "modes/fluidpipe/idle_internal.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"

#include <inttypes.h>
#include <string.h>

struct idle_log {
	struct rh_file_log *file;
	struct rh_text line;
	char *replay;     /* its path; NULL: no log is followed */
	json_t *followed; /* its lines */
	size_t next;
};

static int64_t step_of(const json_t *line, const char *key)
{
	json_t *step = json_object_get(line, key);
	return step ? json_integer_value(step) : -1;
}

/* One line of a log, without its end. */
static int read_line(const char *path, int64_t number, const char *text, size_t length, json_t **out)
{
	int rc = rh_json_parse_at(text, length, path, number, out);
	if (!rc && !json_is_integer(json_object_get(*out, "after")) && !json_is_integer(json_object_get(*out, "restart"))) {
		json_decref(*out);
		rc = rh_fail(-EINVAL, "%s:%" PRId64 ": neither 'after' nor 'restart' is there: no line of an opportunistic.jsonl", path,
		             number);
	}
	return rc;
}

/* The lines before the first of a step behind `step`: their bytes, and, where `lines` is not NULL, all of them. */
static int load_lines(const char *path, int64_t step, int64_t *length, json_t *lines)
{
	struct rh_bytes text;
	int64_t number = 1;
	int rc = rh_file_load(path, &text);
	if (rc)
		return rc;
	*length = 0;
	for (char *at = text.bytes, *end; !rc && (end = strchr(at, '\n')); at = end + 1, number++) {
		json_t *line = NULL;
		rc = read_line(path, number, at, (size_t)(end - at), &line);
		if (rc)
			break;
		int is_behind = step_of(line, "after") >= step || step_of(line, "restart") >= step;
		if (lines && json_array_append(lines, line))
			rc = -ENOMEM;
		json_decref(line);
		if (is_behind)
			break;
		*length = end + 1 - text.bytes;
	}
	rh_bytes_free(&text);
	return rc;
}

static int append_text(struct idle_log *log)
{
	int rc = rh_text_append(&log->line, "\n", 1);
	return rc ? rc : rh_file_log_append(log->file, log->line.bytes, log->line.length);
}

static int say_restart(struct idle_log *log, int64_t step)
{
	log->line.length = 0;
	int rc = rh_text_printf(&log->line, "{\"restart\": %" PRId64 "}", step);
	return rc ? rc : append_text(log);
}

int idle_log_open(const char *path, const char *replay, int64_t step, struct idle_log **out)
{
	int64_t length = 0;
	int rc = step > 0 && rh_file_exists(path) ? load_lines(path, step, &length, NULL) : 0;
	if (rc)
		return rc;
	struct idle_log *log = *out = rh_alloc(1, sizeof *log);
	if (!log)
		return -ENOMEM;
	rc = rh_file_log_open(path, length, &log->file);
	if (!rc && step > 0)
		rc = say_restart(log, step);
	if (rc || !replay)
		return rc;
	log->replay = rh_strdup(replay);
	log->followed = json_array();
	rc = log->replay && log->followed ? load_lines(replay, INT64_MAX, &length, log->followed) : -ENOMEM;
	while (!rc && log->next < json_array_size(log->followed) && step_of(json_array_get(log->followed, log->next), "after") < step)
		log->next++;
	return rc;
}

void idle_log_close(struct idle_log *log)
{
	if (!log)
		return;
	rh_file_log_close(log->file);
	rh_text_free(&log->line);
	rh_free(log->replay);
	json_decref(log->followed);
	rh_free(log);
}

int idle_log_append(struct idle_log *log, const struct idle_line *line)
{
	int64_t at = 0;
	log->line.length = 0;
	int rc = rh_text_printf(&log->line, "{\"after\": %" PRId64 ", \"samples\": [", line->after_step);
	for (int64_t m = 0; !rc && m < line->micro_batches; m++) {
		rc = rh_text_append(&log->line, m ? ", [" : "[", m ? 3 : 1);
		for (int64_t i = 0; !rc && i < line->rows[m]; i++)
			rc = rh_text_printf(&log->line, "%s%" PRId64, i ? ", " : "", line->sample[at++]);
		if (!rc)
			rc = rh_text_append(&log->line, "]", 1);
	}
	if (!rc)
		rc = rh_text_printf(&log->line, "], \"loss\": %.17g}", line->loss);
	return rc ? rc : append_text(log);
}

int idle_log_replays(const struct idle_log *log)
{
	return log->replay != NULL;
}

int idle_log_restarts(const struct idle_log *log, int64_t after)
{
	for (size_t i = 0; i < json_array_size(log->followed); i++)
		if (step_of(json_array_get(log->followed, i), "restart") == after)
			return 1;
	return 0;
}

static const json_t *next_line(const struct idle_log *log)
{
	size_t at = log->next;
	while (at < json_array_size(log->followed) && step_of(json_array_get(log->followed, at), "after") < 0)
		at++;
	return json_array_get(log->followed, at);
}

int idle_log_has_next(const struct idle_log *log, int64_t after)
{
	const json_t *line = next_line(log);
	return line && step_of(line, "after") == after;
}

int idle_log_check(struct idle_log *log, const struct idle_line *line)
{
	const json_t *followed = next_line(log), *batches = json_object_get(followed, "samples");
	int64_t at = 0;
	int same = (int64_t)json_array_size(batches) == line->micro_batches;
	for (int64_t m = 0; same && m < line->micro_batches; m++) {
		const json_t *batch = json_array_get(batches, (size_t)m);
		same = (int64_t)json_array_size(batch) == line->rows[m];
		for (int64_t i = 0; same && i < line->rows[m]; i++)
			same = json_integer_value(json_array_get(batch, (size_t)i)) == line->sample[at++];
	}
	if (!same)
		return rh_fail(-EINVAL,
		               "fluidpipe_idle_replay: %s has other samples behind step %" PRId64
		               " than this run draws: it is the log of a run "
		               "with other data or another configuration, or of one that began elsewhere",
		               log->replay, line->after_step);
	while (log->next < json_array_size(log->followed) && json_array_get(log->followed, log->next) != followed)
		log->next++;
	log->next++;
	return 0;
}
