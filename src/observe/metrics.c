#include "observe/metrics.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rh_metrics {
	struct rh_file_log *log;
	struct rh_text line;
};

/* The fewest digits that read back as the same double, as JSON; null where it is not finite. */
static int print_real(struct rh_text *out, double value)
{
	char text[40];
	if (!isfinite(value))
		return rh_text_append(out, "null", 4);
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(text, sizeof text, "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	return rh_text_append(out, text, strlen(text));
}

static int step_of_line(const char *bytes, size_t length, const char *path, int64_t number, int64_t *step)
{
	json_t *line = NULL;
	char where[512];
	snprintf(where, sizeof where, "%s:%lld", path, (long long)number);
	int rc = rh_json_parse(bytes, length, where, &line);
	rc = rc ? rc : rh_json_int(line, "step", where, RH_JSON_REQUIRED, step);
	json_decref(line);
	return rc;
}

/* *length: the bytes of the whole lines up to the first of a later step, or that is no metric. Read in pieces: a long run's log is long. */
static int find_end(const char *path, int64_t keep_step, int64_t *length)
{
	enum { PIECE = 1 << 16 }; /* no line is as long */
	struct rh_file_in *file = NULL;
	char *piece = rh_alloc(PIECE, 1);
	int rc = piece ? rh_file_open(path, &file) : -ENOMEM, ended = 0;
	int64_t at = 0;
	for (int64_t number = 1; !rc && !ended && at < rh_file_length(file);) {
		size_t bytes = rh_file_length(file) - at < PIECE ? (size_t)(rh_file_length(file) - at) : PIECE, used = 0;
		rc = rh_file_read(file, at, piece, bytes);
		for (char *end; !rc && !ended && (end = memchr(piece + used, '\n', bytes - used)); number++) {
			int64_t step = 0;
			rc = step_of_line(piece + used, (size_t)(end - piece) - used, path, number, &step);
			if (rc == -EINVAL) { /* a log is no reason not to go on */
				rh_note("%s; the log is cut off there", rh_error(rc));
				rh_error_clear();
				rc = 0;
				ended = 1;
			} else if (rc || step > keep_step) {
				ended = 1;
			} else {
				used = (size_t)(end - piece) + 1;
			}
		}
		ended |= !used;
		at += (int64_t)used;
	}
	rh_file_close(file);
	rh_free(piece);
	*length = at;
	return rc;
}

int rh_metrics_open(const char *path, int64_t keep_step, struct rh_metrics **out)
{
	int64_t length = 0;
	*out = NULL;
	int rc = keep_step > 0 && rh_file_exists(path) ? find_end(path, keep_step, &length) : 0;
	if (rc)
		return rc;
	struct rh_metrics *metrics = rh_alloc(1, sizeof *metrics);
	if (!metrics)
		return -ENOMEM;
	rc = rh_grow(&metrics->line.bytes, &metrics->line.capacity, 1024, 1);
	if (!rc)
		rc = rh_file_log_open(path, length, &metrics->log);
	if (rc)
		rh_metrics_close(metrics);
	else
		*out = metrics;
	return rc;
}

static int add_whole(struct rh_text *line, const char *key, int64_t value)
{
	return rh_text_printf(line, "%s\"%s\": %lld", line->length > 1 ? ", " : "", key, (long long)value);
}

static int add_real(struct rh_text *line, const char *key, double value)
{
	int rc = rh_text_printf(line, "%s\"%s\": ", line->length > 1 ? ", " : "", key);
	return rc ? rc : print_real(line, value);
}

static int add_list(struct rh_text *line, const char *key, const int64_t *values, int count)
{
	int rc = rh_text_printf(line, ", \"%s\": [", key);
	for (int i = 0; i < count && !rc; i++)
		rc = rh_text_printf(line, "%s%lld", i ? ", " : "", (long long)values[i]);
	return rc ? rc : rh_text_append(line, "]", 1);
}

static int begin_line(struct rh_metrics *metrics)
{
	metrics->line.length = 0;
	return rh_text_append(&metrics->line, "{", 1);
}

static int end_line(struct rh_metrics *metrics)
{
	int rc = rh_text_append(&metrics->line, "}\n", 2);
	return rc ? rc : rh_file_log_append(metrics->log, metrics->line.bytes, metrics->line.length);
}

int rh_metrics_step(struct rh_metrics *metrics, const struct rh_step_report *report)
{
	struct rh_text *line = &metrics->line;
	int rc = begin_line(metrics);
	rc = rc ? rc : add_whole(line, "step", report->step);
	rc = rc ? rc : add_real(line, "epoch", report->epoch);
	rc = rc ? rc : add_real(line, "loss", report->loss);
	rc = rc ? rc : add_real(line, "grad_norm", report->grad_norm);
	rc = rc ? rc : add_real(line, "learning_rate", report->learning_rate);
	rc = rc ? rc : add_real(line, "tokens_per_second", report->tokens_per_second);
	rc = rc ? rc : add_whole(line, "trained_tokens", report->trained_tokens);
	rc = rc ? rc : add_real(line, "compute_seconds", report->compute_seconds);
	rc = rc ? rc : add_real(line, "weights_wait_seconds", report->weights_seconds);
	rc = rc ? rc : add_real(line, "activations_wait_seconds", report->activations_seconds);
	rc = rc ? rc : add_real(line, "gradients_wait_seconds", report->gradients_seconds);
	rc = rc ? rc : add_real(line, "optimizer_wait_seconds", report->optimizer_seconds);
	rc = rc ? rc : add_whole(line, "vram_peak_bytes", report->vram_peak_bytes);
	rc = rc ? rc : add_whole(line, "ram_peak_bytes", report->ram_peak_bytes);
	rc = rc ? rc : add_whole(line, "nvme_peak_bytes", report->nvme_peak_bytes);
	if (report->has_version_drift)
		rc = rc ? rc : add_whole(line, "version_drift", report->version_drift);
	if (report->nvme_drives) {
		rc = rc ? rc : add_real(line, "nvme_wait_seconds", report->nvme_wait_seconds);
		rc = rc ? rc : add_list(line, "nvme_read_bytes", report->nvme_read_bytes, report->nvme_drives);
		rc = rc ? rc : add_list(line, "nvme_written_bytes", report->nvme_written_bytes, report->nvme_drives);
	}
	return rc ? rc : end_line(metrics);
}

int rh_metrics_eval(struct rh_metrics *metrics, const struct rh_eval_report *report)
{
	struct rh_text *line = &metrics->line;
	int rc = begin_line(metrics);
	rc = rc ? rc : add_whole(line, "step", report->step);
	rc = rc ? rc : add_real(line, "epoch", report->epoch);
	rc = rc ? rc : add_real(line, "eval_loss", report->loss);
	rc = rc ? rc : add_whole(line, "eval_tokens", report->tokens);
	rc = rc ? rc : add_whole(line, "eval_rows", report->rows);
	rc = rc ? rc : add_real(line, "eval_runtime", report->seconds);
	return rc ? rc : end_line(metrics);
}

void rh_metrics_close(struct rh_metrics *metrics)
{
	if (!metrics)
		return;
	rh_file_log_close(metrics->log);
	rh_text_free(&metrics->line);
	rh_free(metrics);
}
