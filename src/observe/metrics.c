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
	if (!rc)
		rc = rh_json_int(line, "step", where, RH_JSON_REQUIRED, step);
	json_decref(line);
	return rc;
}

/* *length: the bytes of the whole lines up to the first of a later step, or that is no metric. Read in pieces: a long run's log is long. */
static int find_end(const char *path, int64_t keep_step, int64_t *length)
{
	enum { PIECE = 1 << 20 }; /* no line is as long */
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

/* What a line says of a key: a whole number, or a real one. */
struct figure {
	const char *key;
	int is_real;
	int64_t whole;
	double real;
};

static struct figure whole(const char *key, int64_t value)
{
	return (struct figure){.key = key, .whole = value};
}

static struct figure real(const char *key, double value)
{
	return (struct figure){.key = key, .is_real = 1, .real = value};
}

static int add_figures(struct rh_text *line, const struct figure *figure, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		int rc = rh_text_printf(line, "%s\"%s\": ", line->length > 1 ? ", " : "", figure[i].key);
		if (rc)
			return rc;
		rc = figure[i].is_real ? print_real(line, figure[i].real) : rh_text_printf(line, "%lld", (long long)figure[i].whole);
		if (rc)
			return rc;
	}
	return 0;
}

const char *rh_figure_name(enum rh_figure figure)
{
	static const char *const names[RH_FIGURES] = {
	        "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected", "kl",
	        "nll_loss",       "log_odds_ratio",   "log_odds_chosen"};
	return names[figure];
}

/* prefix: "eval_", or "". */
static int add_told(struct rh_text *line, const char *prefix, const struct rh_figures *figures)
{
	int rc = 0;
	for (enum rh_figure f = 0; !rc && f < RH_FIGURES; f++) {
		char key[64];
		snprintf(key, sizeof key, "%s%s", prefix, rh_figure_name(f));
		const struct figure told = real(key, rh_figure_of(figures, f));
		rc = figures->count[f] ? add_figures(line, &told, 1) : 0;
	}
	return rc;
}

static int add_list(struct rh_text *line, const char *key, const int64_t *values, int64_t count)
{
	int rc = rh_text_printf(line, ", \"%s\": [", key);
	for (int64_t i = 0; i < count && !rc; i++)
		rc = rh_text_printf(line, "%s%lld", i ? ", " : "", (long long)values[i]);
	return rc ? rc : rh_text_append(line, "]", 1);
}

static int begin_line(struct rh_metrics *metrics, const struct figure *figure, size_t count)
{
	metrics->line.length = 0;
	int rc = rh_text_append(&metrics->line, "{", 1);
	return rc ? rc : add_figures(&metrics->line, figure, count);
}

static int end_line(struct rh_metrics *metrics)
{
	int rc = rh_text_append(&metrics->line, "}\n", 2);
	return rc ? rc : rh_file_log_append(metrics->log, metrics->line.bytes, metrics->line.length);
}

static int add_drives(struct rh_text *line, const struct rh_step_report *report)
{
	const struct figure waited = real("nvme_wait_seconds", report->nvme_wait_seconds);
	int rc = add_figures(line, &waited, 1);
	if (rc)
		return rc;
	rc = add_list(line, "nvme_read_bytes", report->nvme_read_bytes, report->nvme_drives);
	return rc ? rc : add_list(line, "nvme_written_bytes", report->nvme_written_bytes, report->nvme_drives);
}

int rh_metrics_step(struct rh_metrics *metrics, const struct rh_step_report *report)
{
	const struct figure figure[] = {whole("step", report->step),
	                                real("epoch", report->epoch),
	                                real("loss", report->loss),
	                                real("grad_norm", report->grad_norm),
	                                real("learning_rate", report->learning_rate),
	                                real("tokens_per_second", report->tokens_per_second),
	                                real("elapsed_seconds", report->elapsed_seconds),
	                                whole("trained_tokens", report->trained_tokens),
	                                real("compute_seconds", report->compute_seconds),
	                                real("weights_wait_seconds", report->weights_seconds),
	                                real("activations_wait_seconds", report->activations_seconds),
	                                real("gradients_wait_seconds", report->gradients_seconds),
	                                real("optimizer_wait_seconds", report->optimizer_seconds),
	                                whole("vram_peak_bytes", report->vram_peak_bytes),
	                                whole("ram_peak_bytes", report->ram_peak_bytes),
	                                whole("nvme_peak_bytes", report->nvme_peak_bytes),
	                                whole("version_drift", report->version_drift)};
	size_t count = sizeof figure / sizeof *figure;
	int rc = begin_line(metrics, figure, report->has_version_drift ? count : count - 1);
	if (!rc)
		rc = add_told(&metrics->line, "", &report->figures);
	if (!rc && report->nvme_drives)
		rc = add_drives(&metrics->line, report);
	return rc ? rc : end_line(metrics);
}

int rh_metrics_eval(struct rh_metrics *metrics, const struct rh_eval_report *report)
{
	const struct figure figure[] = {whole("step", report->step),
	                                real("epoch", report->epoch),
	                                real("eval_loss", report->loss),
	                                whole("eval_tokens", report->tokens),
	                                whole("eval_rows", report->rows),
	                                real("eval_runtime", report->seconds),
	                                real("elapsed_seconds", report->elapsed_seconds)};
	int rc = begin_line(metrics, figure, sizeof figure / sizeof *figure);
	if (!rc)
		rc = add_told(&metrics->line, "eval_", &report->figures);
	return rc ? rc : end_line(metrics);
}

static int add_string(struct rh_text *line, const char *key, const char *text, size_t bytes)
{
	json_t *json = json_stringn(text, bytes);
	char *quoted = json ? json_dumps(json, JSON_ENCODE_ANY) : NULL;
	int rc = quoted ? rh_text_printf(line, ", \"%s\": %s", key, quoted) : -ENOMEM;
	free(quoted);
	json_decref(json);
	return rc;
}

int rh_metrics_sample(struct rh_metrics *metrics, const struct rh_sample_report *report)
{
	const struct figure figure[] = {whole("step", report->step), real("epoch", report->epoch), whole("sample", report->number)};
	int rc = begin_line(metrics, figure, sizeof figure / sizeof *figure);
	if (!rc)
		rc = add_string(&metrics->line, "prompt", report->prompt, rh_text_fit(report->prompt, RH_METRICS_ANSWER_BYTES));
	if (!rc)
		rc = add_string(&metrics->line, "answer", report->answer, rh_text_fit(report->answer, RH_METRICS_ANSWER_BYTES));
	if (!rc)
		rc = rh_text_printf(&metrics->line, ", \"tokens\": %lld, \"ended\": %s", (long long)report->tokens,
		                    report->has_ended ? "true" : "false");
	return rc ? rc : end_line(metrics);
}

int rh_metrics_versions(struct rh_metrics *metrics, const struct rh_versions_report *report)
{
	const struct figure step = whole("step", report->step);
	int rc = begin_line(metrics, &step, 1);
	if (!rc)
		rc = add_list(&metrics->line, "layers", report->layers, 2);
	if (!rc)
		rc = add_list(&metrics->line, "forward", report->forward, report->micro_batches);
	if (!rc)
		rc = add_list(&metrics->line, "backward", report->backward, report->micro_batches);
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
