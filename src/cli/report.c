/* `roundhouse report RUN...`: what runs did, on one page: their curves side by side, where the time went, memory, configuration, files. */
#include "checkpoint/checkpoint.h"
#include "ckpt/verify.h"
#include "cli/html.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "observe/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RUNS_MOST = RH_CHART_SERIES };

/* Columns of metrics.jsonl. */
enum column {
	EPOCH,
	LOSS,
	GRAD_NORM,
	LEARNING_RATE,
	SPEED,
	ELAPSED,
	COMPUTE,
	WEIGHTS,
	ACTIVATIONS,
	GRADIENTS,
	OPTIMIZER,
	VRAM_PEAK,
	RAM_PEAK,
	NVME_PEAK,
	EVAL_LOSS,
	STEP,
	COLUMNS
};
static const char *const names[COLUMNS] = {[EPOCH] = "epoch",
                                           [LOSS] = "loss",
                                           [GRAD_NORM] = "grad_norm",
                                           [LEARNING_RATE] = "learning_rate",
                                           [SPEED] = "tokens_per_second",
                                           [ELAPSED] = "elapsed_seconds",
                                           [COMPUTE] = "compute_seconds",
                                           [WEIGHTS] = "weights_wait_seconds",
                                           [ACTIVATIONS] = "activations_wait_seconds",
                                           [GRADIENTS] = "gradients_wait_seconds",
                                           [OPTIMIZER] = "optimizer_wait_seconds",
                                           [VRAM_PEAK] = "vram_peak_bytes",
                                           [RAM_PEAK] = "ram_peak_bytes",
                                           [NVME_PEAK] = "nvme_peak_bytes",
                                           [EVAL_LOSS] = "eval_loss",
                                           [STEP] = "step"};

struct run {
	const char *dir;
	double *value[COLUMNS]; /* a number a line; NAN: the line has none */
	size_t lines, capacity[COLUMNS];
};

/* ---- reading ---- */

static int add_line(struct run *run, const json_t *line)
{
	for (int c = 0; c < COLUMNS; c++) {
		const json_t *number = json_object_get(line, names[c]);
		int rc = rh_grow(&run->value[c], &run->capacity[c], run->lines + 1, sizeof *run->value[c]);
		if (rc)
			return rc;
		run->value[c][run->lines] = json_is_number(number) ? json_number_value(number) : NAN;
	}
	run->lines++;
	return 0;
}

static void run_free(struct run *run)
{
	for (int c = 0; c < COLUMNS; c++)
		rh_free(run->value[c]);
}

/* A line that is not whole ends the file: the run writes it just now, or was killed there. */
static int read_lines(const struct rh_bytes *bytes, const char *path, struct run *run)
{
	char where[4096 + 32];
	int rc = 0;
	for (size_t at = 0, number = 1; !rc && at < bytes->length; number++) {
		const char *end = memchr(bytes->bytes + at, '\n', bytes->length - at);
		json_t *line = NULL;
		if (!end)
			break;
		snprintf(where, sizeof where, "%s:%zu", path, number);
		rc = rh_json_parse(bytes->bytes + at, (size_t)(end - bytes->bytes) - at, where, &line);
		if (!rc)
			rc = add_line(run, line);
		json_decref(line);
		at = (size_t)(end - bytes->bytes) + 1;
	}
	return rc;
}

static int run_read(const char *dir, struct run *run)
{
	struct rh_bytes bytes = {0};
	*run = (struct run){.dir = dir};
	char *path = rh_path_join(dir, "metrics.jsonl");
	int rc = path ? 0 : -ENOMEM;
	if (!rc && !rh_file_exists(path))
		rc = rh_fail(-ENOENT, "%s holds no metrics.jsonl; report takes directories that a run wrote to", dir);
	if (!rc)
		rc = rh_file_load(path, &bytes);
	if (!rc)
		rc = read_lines(&bytes, path, run);
	if (!rc && !run->lines)
		rc = rh_fail(-EINVAL, "%s: the run has logged no step yet", path);
	rh_bytes_free(&bytes);
	rh_free(path);
	if (rc)
		run_free(run);
	return rc;
}

/* ---- figures ---- */

static double sum_of(const struct run *run, enum column column)
{
	double sum = 0;
	for (size_t i = 0; i < run->lines; i++)
		sum += isfinite(run->value[column][i]) ? run->value[column][i] : 0;
	return sum;
}

enum how { LAST, LEAST, MOST, MEAN };

/* One figure of a column; NAN: no line has it. */
static double figure_of(const struct run *run, enum column column, enum how how)
{
	double found = NAN;
	size_t count = 0;
	for (size_t i = 0; i < run->lines; i++) {
		double value = run->value[column][i];
		if (!isfinite(value))
			continue;
		found = how == LEAST ? fmin(found, value) : how == MOST ? fmax(found, value) : value;
		count++;
	}
	return how == MEAN && count ? sum_of(run, column) / (double)count : found;
}

/* ---- the page ---- */

static int put_head(const struct run *runs, size_t count, struct rh_text *out)
{
	int rc = rh_text_printf(
	        out, "%s",
	        "<!doctype html><!-- " OUTPUT_MARK
	        " -->\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n"
	        "<title>Roundhouse: what the run did</title>\n<style>\n" HTML_STYLE
	        ".charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }\n"
	        ".charts section { margin: 0; } svg { width: 100%; height: auto; display: block; }\n"
	        "path { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .grid { stroke: var(--line); stroke-width: 1; }\n"
	        ".tick { fill: var(--soft); font: 11px system-ui, sans-serif; } circle { opacity: 0; } circle:hover, .mark { opacity: 1; "
	        "}\n"
	        ".s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }\n"
	        "circle { fill: var(--card); stroke-width: 1.6; } .bar { display: flex; height: 1.2rem; border-radius: 4px; overflow: "
	        "hidden; }\n"
	        ".f0 { background: var(--s0); } .f1 { background: var(--s1); } .f2 { background: var(--s2); } .f3 { background: var(--s3); "
	        "}\n"
	        ".f4 { background: var(--soft); } .key { display: inline-block; width: .8em; height: "
	        ".8em;\n"
	        "  border-radius: 2px; margin-right: .35em; } .scroll { overflow-x: auto; }\n"
	        "@media print { section { break-inside: avoid; } body { margin: 0; } details { display: none; } }\n"
	        "</style></head><body>\n<h1>");
	for (size_t r = 0; !rc && r < count; r++) {
		rc = rh_text_printf(out, "%s<span class=\"key f%zu\"></span>", r ? " &nbsp; " : "", r);
		if (!rc)
			rc = html_escaped(out, runs[r].dir, strlen(runs[r].dir));
	}
	return rc ? rc : rh_text_printf(out, "</h1>\n");
}

static int put_cell(struct rh_text *out, const char *format, double value)
{
	int rc = rh_text_printf(out, "<td class=n>");
	if (!rc && isfinite(value)) {
		char text[64];
		snprintf(text, sizeof text, fabs(value) < 1e12 ? format : "%.4g", value);
		rc = rh_text_printf(out, "%s", text);
	}
	return rc;
}

static int put_summary(const struct run *runs, size_t count, struct rh_text *out)
{
	enum { gib = 1 << 30 };
	static const struct {
		const char *name, *format;
		enum column column;
		enum how how;
		double unit; /* 0: 1, and 0 is a figure; of memory 0 says that the tier was not used */
	} rows[] = {{"steps", "%.0f", STEP, LAST, 0},
	            {"epochs", "%.3g", EPOCH, LAST, 0},
	            {"loss of the last steps", "%.4f", LOSS, LAST, 0},
	            {"best evaluation's loss", "%.4f", EVAL_LOSS, LEAST, 0},
	            {"last evaluation's loss", "%.4f", EVAL_LOSS, LAST, 0},
	            {"tokens/s, mean", "%.1f", SPEED, MEAN, 0},
	            {"minutes", "%.1f", ELAPSED, LAST, 60},
	            {"largest gradient norm", "%.3g", GRAD_NORM, MOST, 0},
	            {"most device memory, GiB", "%.2f", VRAM_PEAK, MOST, gib},
	            {"most host memory, GiB", "%.2f", RAM_PEAK, MOST, gib},
	            {"most NVMe, GiB", "%.2f", NVME_PEAK, MOST, gib}};
	int rc = rh_text_printf(out, "<section><h2>In short</h2><table>\n");
	for (size_t i = 0; !rc && i < sizeof rows / sizeof *rows; i++) {
		double figure[RUNS_MOST];
		int some = 0;
		for (size_t r = 0; r < count; r++) {
			figure[r] = figure_of(&runs[r], rows[i].column, rows[i].how);
			figure[r] = rows[i].unit == 0 ? figure[r] : figure[r] > 0 ? figure[r] / rows[i].unit : NAN;
			some |= isfinite(figure[r]) != 0;
		}
		rc = some ? rh_text_printf(out, "<tr><td>%s", rows[i].name) : 0;
		for (size_t r = 0; !rc && some && r < count; r++)
			rc = put_cell(out, rows[i].format, figure[r]);
		if (!rc && some)
			rc = rh_text_printf(out, "</tr>\n");
	}
	return rc ? rc : rh_text_printf(out, "</table></section>\n");
}

static int put_chart(const struct run *runs, size_t count, const char *title, enum column column, int from_zero, struct rh_text *out)
{
	struct rh_series series[2 * RUNS_MOST];
	struct rh_text svg = {0};
	size_t used = 0;
	for (size_t r = 0; r < count; r++) {
		const struct run *run = &runs[r];
		series[used++] = (struct rh_series){names[column], (int)r, 0, run->value[STEP], run->value[column], run->lines};
		if (column == LOSS)
			series[used++] = (struct rh_series){"eval_loss", (int)r, 1, run->value[STEP], run->value[EVAL_LOSS], run->lines};
	}
	const struct rh_chart chart = {title, "step", from_zero, series, used};
	int rc = rh_chart_svg(&chart, &svg);
	if (!rc && svg.length)
		rc = rh_text_printf(out, "<section><h2>%s</h2>\n%s</section>\n", title, svg.bytes);
	rh_text_free(&svg);
	return rc;
}

static int put_charts(const struct run *runs, size_t count, struct rh_text *out)
{
	int rc = rh_text_printf(out, "<div class=charts>\n");
	if (!rc)
		rc = put_chart(runs, count, "Loss (circles: evaluations)", LOSS, 0, out);
	if (!rc)
		rc = put_chart(runs, count, "Gradient norm", GRAD_NORM, 1, out);
	if (!rc)
		rc = put_chart(runs, count, "Learning rate", LEARNING_RATE, 1, out);
	if (!rc)
		rc = put_chart(runs, count, "Tokens/s", SPEED, 1, out);
	return rc ? rc : rh_text_printf(out, "</div>\n");
}

/* One device's seconds, of all logged steps. */
static int put_time(const struct run *runs, size_t count, struct rh_text *out)
{
	static const struct {
		enum column column;
		const char *name;
	} parts[] = {{COMPUTE, "computing"},
	             {WEIGHTS, "waiting for weights"},
	             {ACTIVATIONS, "for activations"},
	             {GRADIENTS, "for gradients to leave"},
	             {OPTIMIZER, "for the optimizer"}};
	enum { PARTS = sizeof parts / sizeof *parts };
	int rc = rh_text_printf(out, "<section><h2>Where the devices' time went</h2>\n");
	for (size_t r = 0; !rc && r < count; r++) {
		double all = 0;
		for (int p = 0; p < PARTS; p++)
			all += sum_of(&runs[r], parts[p].column);
		if (!(all > 0))
			continue;
		if (count > 1) {
			rc = rh_text_printf(out, "<p>");
			if (!rc)
				rc = html_escaped(out, runs[r].dir, strlen(runs[r].dir));
			if (!rc)
				rc = rh_text_printf(out, "</p>");
		}
		rc = rc ? rc : rh_text_printf(out, "<div class=bar>");
		for (int p = 0; !rc && p < PARTS; p++)
			rc = rh_text_printf(out, "<div class=f%d style=\"width:%.2f%%\" title=\"%s\"></div>", p,
			                    100 * sum_of(&runs[r], parts[p].column) / all, parts[p].name);
		rc = rc ? rc : rh_text_printf(out, "</div><p>");
		for (int p = 0; !rc && p < PARTS; p++)
			if (sum_of(&runs[r], parts[p].column) > 0)
				rc = rh_text_printf(out, "<span class=\"key f%d\"></span>%s %.1f %% &nbsp; ", p, parts[p].name,
				                    100 * sum_of(&runs[r], parts[p].column) / all);
		rc = rc ? rc : rh_text_printf(out, "</p>\n");
	}
	return rc ? rc : rh_text_printf(out, "</section>\n");
}

/* ---- what lies beside the metrics ---- */

/* A file of the run, as it is (a picture) or as text, under a heading; nothing where there is none. */
static int put_file(const char *dir, const char *name, const char *heading, int is_picture, struct rh_text *out)
{
	struct rh_bytes bytes = {0};
	char *path = rh_path_join(dir, name);
	int rc = path ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(path))
		rc = rh_file_load(path, &bytes);
	if (!rc && bytes.length) {
		const char *svg = is_picture ? strstr(bytes.bytes, "<svg") : NULL;
		rc = rh_text_printf(out, is_picture ? "<section><h2>%s</h2><div class=scroll>\n" : "<details><summary>%s</summary><pre>",
		                    heading);
		if (!rc && svg)
			rc = rh_text_append(out, svg, bytes.length - (size_t)(svg - bytes.bytes));
		else if (!rc && !is_picture)
			rc = html_escaped(out, bytes.bytes, bytes.length);
		if (!rc)
			rc = rh_text_printf(out, is_picture ? "</div></section>\n" : "</pre></details>\n");
	}
	rh_bytes_free(&bytes);
	rh_free(path);
	return rc;
}

static int put_files(const struct run *run, struct rh_text *out)
{
	char *newest = NULL;
	int rc = put_file(run->dir, "trace.svg", "One step: what each device does when", 1, out);
	if (!rc)
		rc = rh_text_printf(out, "<section><h2>");
	if (!rc)
		rc = html_escaped(out, run->dir, strlen(run->dir));
	if (!rc)
		rc = rh_text_printf(out, "</h2>\n");
	if (!rc)
		rc = rh_checkpoint_newest(run->dir, INT64_MAX, &newest);
	if (!rc && newest)
		rc = put_file(newest, "config.yaml", "Configuration, every key as it was resolved", 0, out);
	if (!rc)
		rc = put_file(run->dir, "adapter_config.json", "adapter_config.json", 0, out);
	if (!rc)
		rc = put_file(run->dir, RH_SUMS_NAME, "Files with their SHA-256 sums", 0, out);
	rh_free(newest);
	return rc ? rc : rh_text_printf(out, "</section>\n");
}

static int put_page(const struct run *runs, size_t count, struct rh_text *out)
{
	int rc = put_head(runs, count, out);
	if (!rc)
		rc = put_summary(runs, count, out);
	if (!rc)
		rc = put_charts(runs, count, out);
	if (!rc)
		rc = put_time(runs, count, out);
	for (size_t r = 0; !rc && r < count; r++)
		rc = put_files(&runs[r], out);
	return rc ? rc : rh_text_printf(out, "</body></html>\n");
}

/* ---- the verb ---- */

static const char usage[] =
        "usage: roundhouse report RUN [RUN]... [--html FILE.html] [--force]\n\n"
        "RUN is the output_dir of a run, also of one that is still going. Writes one page that needs no other file and no "
        "network:\nloss, evaluations, gradient norm, learning rate, tokens/s, where the devices' time went, memory, "
        "configuration, files;\nof up to four runs side by side. With trace_step: N in the run, also that step's picture.\n"
        "FILE is RUN/report.html unless it is given; of several runs it must be.\n";

struct asked {
	const char *dir[RUNS_MOST];
	size_t count;
	struct rh_config config; /* html and force, as other verbs have them */
};

static int read_words(int argc, char **argv, struct asked *asked)
{
	for (int i = 0; i < argc; i++) {
		if (!strcmp(argv[i], "--force"))
			asked->config.force = 1;
		else if (!strcmp(argv[i], "--html") && i + 1 == argc)
			return rh_fail(-EINVAL, "--html: which file? --html FILE.html");
		else if (!strcmp(argv[i], "--html"))
			asked->config.html = argv[++i];
		else if (argv[i][0] == '-')
			return rh_fail(-EINVAL, "there is no flag %s; report takes --html FILE.html and --force", argv[i]);
		else if (asked->count == RUNS_MOST)
			return rh_fail(-EINVAL, "%s: report takes up to %d runs", argv[i], RUNS_MOST);
		else
			asked->dir[asked->count++] = argv[i];
	}
	if (!asked->count)
		return rh_fail(-EINVAL, "which run? roundhouse report OUTPUT_DIR");
	if (asked->count > 1 && !asked->config.html)
		return rh_fail(-EINVAL, "of several runs it must be said where the page goes: add --html FILE.html");
	return 0;
}

static int write_page(const struct asked *asked, const char *path)
{
	struct run runs[RUNS_MOST];
	struct rh_text page = {0};
	size_t read = 0;
	int rc = 0;
	for (; !rc && read < asked->count; read += !rc)
		rc = run_read(asked->dir[read], &runs[read]);
	if (!rc)
		rc = verb_check_output(&asked->config, "html", path, OUTPUT_HTML);
	if (!rc)
		rc = put_page(runs, read, &page);
	if (!rc)
		rc = rh_file_write_whole(path, page.bytes, page.length);
	if (!rc)
		rh_note("written to %s", path);
	for (size_t r = 0; r < read; r++)
		run_free(&runs[r]);
	rh_text_free(&page);
	return rc;
}

int verb_report(int argc, char **argv)
{
	struct asked asked = {0};
	if (argc == 1 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
		fputs(usage, stdout);
		return 0;
	}
	int rc = read_words(argc, argv, &asked);
	if (rc)
		return rc;
	char *own = asked.config.html ? NULL : rh_path_join(asked.dir[0], "report.html");
	rc = asked.config.html || own ? write_page(&asked, own ? own : asked.config.html) : -ENOMEM;
	rh_free(own);
	return rc;
}
