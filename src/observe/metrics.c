#include "observe/metrics.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rh_metrics {
	int descriptor;
	char *path;
	int64_t length; /* bytes of whole lines */
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

/* *length: the bytes of the whole lines up to the first of a later step, or that is no metric. */
static int find_end(const char *path, int64_t keep_step, int64_t *length)
{
	struct rh_mapping file;
	int rc = rh_file_map(path, &file);
	if (rc)
		return rc;
	size_t at = 0;
	for (int64_t number = 1;; number++) {
		const char *end = memchr(file.bytes + at, '\n', file.length - at);
		int64_t step = 0;
		if (!end)
			break;
		rc = step_of_line(file.bytes + at, (size_t)(end - file.bytes) - at, path, number, &step);
		if (rc == -EINVAL) { /* a log is no reason not to go on */
			rh_note("%s; the log is cut off there", rh_error(rc));
			rh_error_clear();
			rc = 0;
			break;
		}
		if (rc || step > keep_step)
			break;
		at = (size_t)(end - file.bytes) + 1;
	}
	rh_file_unmap(&file);
	*length = (int64_t)at;
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
	metrics->descriptor = -1;
	metrics->length = length;
	metrics->path = rh_strdup(path);
	rc = metrics->path ? rh_grow(&metrics->line.bytes, &metrics->line.capacity, 1024, 1) : -ENOMEM;
	if (rc)
		goto out;
	metrics->descriptor = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (metrics->descriptor < 0) {
		rc = -errno;
		rc = rh_fail(rc, "%s: cannot open for writing: %s", path, strerror(-rc));
	} else if (ftruncate(metrics->descriptor, length)) {
		rc = -errno;
		rc = rh_fail(rc, "%s: cannot cut off the lines after step %lld: %s", path, (long long)keep_step, strerror(-rc));
	}
out:
	if (rc) {
		rh_metrics_close(metrics);
		metrics = NULL;
	}
	*out = metrics;
	return rc;
}

/* Writes the line whole or takes it back. */
static int write_line(struct rh_metrics *metrics)
{
	size_t done = 0;
	while (done < metrics->line.length) {
		ssize_t written = write(metrics->descriptor, metrics->line.bytes + done, metrics->line.length - done);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0) {
			int rc = written < 0 ? -errno : -EIO;
			if (ftruncate(metrics->descriptor, metrics->length))
				return rh_fail(rc, "%s: cannot write (%s), and its last line is torn", metrics->path, strerror(-rc));
			return rh_fail(rc, "%s: cannot write: %s", metrics->path, strerror(-rc));
		}
		done += (size_t)written;
	}
	metrics->length += (int64_t)done;
	return 0;
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
	return rc ? rc : write_line(metrics);
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
	if (metrics->descriptor >= 0)
		close(metrics->descriptor);
	rh_text_free(&metrics->line);
	rh_free(metrics->path);
	rh_free(metrics);
}
