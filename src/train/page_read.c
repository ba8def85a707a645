/* Reads what a run left in its directory. */
#include "checkpoint/checkpoint.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "train/page_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *column_key(int column)
{
	static const char *const keys[PAGE_TIMES] = {[PAGE_EPOCH] = "epoch",
	                                             [PAGE_LOSS] = "loss",
	                                             [PAGE_GRAD_NORM] = "grad_norm",
	                                             [PAGE_LEARNING_RATE] = "learning_rate",
	                                             [PAGE_SPEED] = "tokens_per_second",
	                                             [PAGE_ELAPSED] = "elapsed_seconds",
	                                             [PAGE_VRAM_PEAK] = "vram_peak_bytes",
	                                             [PAGE_RAM_PEAK] = "ram_peak_bytes",
	                                             [PAGE_NVME_PEAK] = "nvme_peak_bytes",
	                                             [PAGE_EVAL_LOSS] = "eval_loss",
	                                             [PAGE_STEP] = "step"};
	return column < PAGE_TIMES ? keys[column] : rh_time_part_key((enum rh_time_part)(column - PAGE_TIMES));
}

static int add_answer(struct page_run *run, json_t *line)
{
	if (run->answers == PAGE_ANSWERS) {
		json_decref(run->answer[0].line);
		memmove(run->answer, run->answer + 1, (PAGE_ANSWERS - 1) * sizeof *run->answer);
		run->answers--;
	}
	int rc = rh_grow(&run->answer, &run->answer_room, run->answers + 1, sizeof *run->answer);
	if (!rc)
		run->answer[run->answers++] = (struct page_answer){.step = json_integer_value(json_object_get(line, "step")),
		                                                   .sample = json_integer_value(json_object_get(line, "sample")),
		                                                   .line = json_incref(line)};
	return rc;
}

static int add_line(struct page_run *run, json_t *line)
{
	if (json_is_string(json_object_get(line, "answer")))
		return add_answer(run, line);
	for (int c = 0; c < PAGE_COLUMNS; c++) {
		const json_t *number = json_object_get(line, column_key(c));
		int rc = rh_grow(&run->value[c], &run->capacity[c], run->lines + 1, sizeof *run->value[c]);
		if (rc)
			return rc;
		run->value[c][run->lines] = json_is_number(number) ? json_number_value(number) : NAN;
	}
	run->lines++;
	return 0;
}

/* The whole lines of a piece; *used: their bytes. */
static int take_lines(const struct rh_text *piece, const char *path, size_t *number, size_t *used, struct page_run *run)
{
	char where[4096 + 32];
	int rc = 0;
	*used = 0;
	for (const char *end; !rc && (end = memchr(piece->bytes + *used, '\n', piece->length - *used)); ++*number) {
		json_t *line = NULL;
		snprintf(where, sizeof where, "%s:%zu", path, *number);
		rc = rh_json_parse(piece->bytes + *used, (size_t)(end - piece->bytes) - *used, where, &line);
		if (!rc)
			rc = add_line(run, line);
		json_decref(line);
		*used = (size_t)(end - piece->bytes) + 1;
	}
	return rc;
}

/* In pieces, as a long run's log is long. A line that is not whole ends the file: the run writes it just now, or was killed there. */
static int read_lines(const char *path, struct page_run *run)
{
	enum { PIECE = 1 << 16 };
	struct rh_file_in *file = NULL;
	struct rh_text piece = {0};
	char *bytes = rh_alloc(PIECE, 1);
	size_t number = 1, used;
	int rc = bytes ? rh_file_open(path, &file) : -ENOMEM;
	for (int64_t at = 0, length = rc ? 0 : rh_file_length(file); !rc && at < length;) {
		size_t count = length - at < PIECE ? (size_t)(length - at) : PIECE;
		rc = rh_file_read(file, at, bytes, count);
		if (!rc)
			rc = rh_text_append(&piece, bytes, count);
		if (!rc)
			rc = take_lines(&piece, path, &number, &used, run);
		if (!rc) {
			memmove(piece.bytes, piece.bytes + used, piece.length - used + 1);
			piece.length -= used;
		}
		at += (int64_t)count;
	}
	rh_file_close(file);
	rh_text_free(&piece);
	rh_free(bytes);
	return rc;
}

/* What lies beside the metrics is shown as far as it can be read. */
static void read_status(struct page_run *run)
{
	char *path = rh_path_join(run->dir, RH_STATUS_NAME);
	if (path && rh_file_exists(path) && rh_json_load(path, &run->status))
		run->status = NULL;
	rh_free(path);
	rh_error_clear();
}

static void read_config(struct page_run *run)
{
	char *newest = NULL, *path = NULL;
	struct rh_bytes bytes = {0};
	if (!rh_checkpoint_newest(run->dir, INT64_MAX, &newest) && newest && (path = rh_path_join(newest, "config.yaml")) &&
	    rh_file_exists(path) && !rh_file_load(path, &bytes))
		run->config = rh_strdup(bytes.bytes);
	rh_bytes_free(&bytes);
	rh_free(path);
	rh_free(newest);
	rh_error_clear();
}

static int read_plan(struct page_run *run)
{
	double planned = page_fact(run, "run.planned_tokens_per_second");
	if (!isfinite(planned) || json_is_true(page_fact_json(run, "run.rates_assumed"))) /* guessed rates predict nothing */
		return 0;
	run->planned = rh_alloc(run->lines, sizeof *run->planned);
	for (size_t i = 0; run->planned && i < run->lines; i++)
		run->planned[i] = isfinite(run->value[PAGE_SPEED][i]) ? planned : NAN;
	return run->planned ? 0 : -ENOMEM;
}

/* The losses of status.json, which follow the log's lines before them. Those of a run that skipped a step, or of more steps than it has
 * room for, are no single steps' any more. */
static int read_losses(struct page_run *run)
{
	const json_t *list = page_fact_json(run, "losses.values");
	size_t count = json_array_size(list), before = 0, logged = 0;
	double last = page_fact(run, "step"), first = page_fact(run, "losses.first"), each = page_fact(run, "losses.each");
	if (!(each == 1) || !count || !(first + (double)count - 1 == last))
		return 0;
	for (size_t i = 0; i < run->lines; i++) {
		int is_loss = isfinite(run->value[PAGE_LOSS][i]) != 0, is_before = run->value[PAGE_STEP][i] < first;
		before += is_loss && is_before;
		logged += is_loss && !is_before;
	}
	if (count <= logged)
		return 0;
	run->loss = rh_alloc(before + count, sizeof *run->loss);
	run->loss_step = rh_alloc(before + count, sizeof *run->loss_step);
	if (!run->loss || !run->loss_step)
		return -ENOMEM;
	for (size_t i = 0; i < run->lines; i++)
		if (isfinite(run->value[PAGE_LOSS][i]) && run->value[PAGE_STEP][i] < first) {
			run->loss_step[run->losses] = run->value[PAGE_STEP][i];
			run->loss[run->losses++] = run->value[PAGE_LOSS][i];
		}
	for (size_t i = 0; i < count; i++) {
		const json_t *value = json_array_get(list, i);
		run->loss_step[run->losses] = first + (double)i;
		run->loss[run->losses++] = json_is_number(value) ? json_number_value(value) : NAN;
	}
	return 0;
}

int page_run_read(const char *dir, struct page_run *run)
{
	*run = (struct page_run){.dir = dir};
	char *path = rh_path_join(dir, "metrics.jsonl");
	int rc = path ? 0 : -ENOMEM;
	if (!rc && !rh_dir_exists(dir))
		rc = rh_fail(-ENOENT, "%s: no such directory; report takes the output_dir of a run", dir);
	if (!rc && !rh_file_exists(path))
		rc = rh_fail(-ENOENT, "%s holds no metrics.jsonl; report takes directories that a run wrote to", dir);
	if (!rc)
		rc = read_lines(path, run);
	if (!rc && !run->lines)
		rc = rh_fail(-ENODATA, "%s: the run has logged no step yet", path);
	rh_free(path);
	if (!rc) {
		read_status(run);
		read_config(run);
		rc = read_plan(run);
		if (!rc)
			rc = read_losses(run);
	}
	if (rc)
		page_run_free(run);
	return rc;
}

void page_run_free(struct page_run *run)
{
	for (int c = 0; c < PAGE_COLUMNS; c++)
		rh_free(run->value[c]);
	for (size_t i = 0; i < run->answers; i++)
		json_decref(run->answer[i].line);
	rh_free(run->answer);
	rh_free(run->config);
	rh_free(run->planned);
	rh_free(run->loss_step);
	rh_free(run->loss);
	json_decref(run->status);
}

double page_sum(const struct page_run *run, enum page_column column)
{
	double sum = 0;
	for (size_t i = 0; i < run->lines; i++)
		sum += isfinite(run->value[column][i]) ? run->value[column][i] : 0;
	return sum;
}

double page_figure(const struct page_run *run, enum page_column column, enum page_how how)
{
	double found = NAN;
	size_t count = 0;
	for (size_t i = 0; i < run->lines; i++) {
		double value = run->value[column][i];
		if (!isfinite(value))
			continue;
		found = how == PAGE_LEAST ? fmin(found, value) : how == PAGE_MOST ? fmax(found, value) : value;
		count++;
	}
	return how == PAGE_MEAN && count ? page_sum(run, column) / (double)count : found;
}

const json_t *page_fact_json(const struct page_run *run, const char *path)
{
	return rh_json_at(run->status, path);
}

double page_fact(const struct page_run *run, const char *path)
{
	return rh_json_number_at(run->status, path);
}
